"""Compression of bodies (CompressorFactory): ZLIB, LZ4 frames, ZSTD frames.

The type stands in bits 8 to 10 of the system flag. Type 0 is ZLIB too: clients before 5.0 set no type.
"""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum
from typing import Any

import lz4.frame

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import sysflag

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# The maximum size of a message by default (maxMessageSize, of the body before it is compressed).
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# A body that inflates to more is a bomb: no configuration seen in the field goes beyond a few tens of MiB.
MAX_DECOMPRESSED_BYTES = 64 * MAX_MESSAGE_BYTES


class CompressionType(IntEnum):
    """The values that stand in the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @classmethod
    def of_sys_flag(cls, sys_flag: int) -> CompressionType:
        """The type that a system flag names."""
        value = (sys_flag & sysflag.COMPRESSION_MASK) >> sysflag.COMPRESSION_SHIFT
        if value == 0:
            return cls.ZLIB
        try:
            return cls(value)
        except ValueError:
            raise CorruptRecordError(
                f"unknown compression type {value} in system flag {sys_flag:#x}"
            ) from None

    @property
    def sys_flag(self) -> int:
        """The bits that mark a body as compressed in this way."""
        return sysflag.COMPRESSED | self << sysflag.COMPRESSION_SHIFT


def compress(body: bytes | memoryview, kind: CompressionType, level: int = 5) -> bytes:
    """A compressed body. Levels are ZLIB's 0 to 9; the others take what is nearest."""
    if not 0 <= level <= 9:
        raise BadMessageError(f"compression level {level} is not within 0 and 9")
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionType.LZ4:
        return bytes(lz4.frame.compress(body, compression_level=0))
    return zstd.compress(body, max(level, 1))


def decompress(
    body: bytes | memoryview, kind: CompressionType, most_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """The body as it was before `compress`; CorruptRecordError if it is none, or more than `most_bytes`."""
    inflater: Any
    try:
        if kind is CompressionType.ZLIB:
            inflater = zlib.decompressobj()
        elif kind is CompressionType.LZ4:
            inflater, body = lz4.frame.LZ4FrameDecompressor(), bytes(body)
        else:
            inflater = zstd.ZstdDecompressor()
        plain = bytes(inflater.decompress(body, most_bytes))
    except (zlib.error, RuntimeError, zstd.ZstdError) as error:
        raise CorruptRecordError(f"body does not decompress as {kind.name}: {error}") from error
    if not inflater.eof:
        if len(plain) < most_bytes:
            raise CorruptRecordError(f"body does not decompress as {kind.name}: it is cut short")
        raise CorruptRecordError(f"body inflates to more than {most_bytes} bytes")
    return plain

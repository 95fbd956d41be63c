"""Compression of bodies (CompressorFactory): ZLIB, LZ4 frames, ZSTD frames.

The type stands in bits 8 to 10 of the system flag. Type 0 is ZLIB too: clients before 5.0 set no type.
"""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum

import lz4.frame

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import sysflag

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# A body that claims to inflate beyond this is refused: brokers accept 4 MiB by default, and no
# configuration seen in the field goes beyond a few tens. It bounds what a hostile body can cost.
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024


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
    try:
        if kind is CompressionType.ZLIB:
            deflated = zlib.decompressobj()
            plain = deflated.decompress(body, most_bytes)
            if not deflated.eof:
                raise CorruptRecordError("compressed body is cut short or larger than allowed")
            return plain
        if kind is CompressionType.LZ4:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            plain = bytes(decompressor.decompress(bytes(body), most_bytes))
            if not decompressor.eof:
                raise CorruptRecordError("compressed body is cut short or larger than allowed")
            return plain
        inflater = zstd.ZstdDecompressor()
        plain = inflater.decompress(body, most_bytes)
        if not inflater.eof:
            raise CorruptRecordError("compressed body is cut short or larger than allowed")
        return plain
    except (zlib.error, RuntimeError, zstd.ZstdError) as error:
        raise CorruptRecordError(f"body does not decompress as {kind.name}: {error}") from error

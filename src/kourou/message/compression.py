"""Compression of bodies (CompressorFactory): ZLIB, LZ4 frames, ZSTD frames.

The type stands in bits 8 to 10 of the system flag. Type 0 is ZLIB too: clients before 5.0 set no type.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import lz4.frame
import zstandard

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import sysflag

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
    return zstandard.ZstdCompressor(level=max(level, 1)).compress(body)


def decompress(body: bytes | memoryview, kind: CompressionType) -> bytes:
    """The body as it was before `compress`."""
    try:
        if kind is CompressionType.ZLIB:
            inflater = zlib.decompressobj()
            plain = inflater.decompress(body, MAX_DECOMPRESSED_BYTES)
            if not inflater.eof:
                raise CorruptRecordError("compressed body is cut short or larger than allowed")
            return plain
        if kind is CompressionType.LZ4:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            plain = bytes(decompressor.decompress(bytes(body), MAX_DECOMPRESSED_BYTES))
            if not decompressor.eof:
                raise CorruptRecordError("compressed body is cut short or larger than allowed")
            return plain
        return _decompress_zstd(body)
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise CorruptRecordError(f"body does not decompress as {kind.name}: {error}") from error


def _decompress_zstd(body: bytes | memoryview) -> bytes:
    """In small steps: a kilobyte of ZSTD can hold 32 MB, and the library sets no limit of its own."""
    inflater = zstandard.ZstdDecompressor().decompressobj()
    parts, total = [], 0
    for start in range(0, len(body), 1024):
        part = inflater.decompress(body[start : start + 1024])
        total += len(part)
        if total > MAX_DECOMPRESSED_BYTES:
            raise CorruptRecordError("compressed body is larger than allowed")
        parts.append(part)
        if inflater.eof:
            return b"".join(parts)
    raise CorruptRecordError("compressed body is cut short")

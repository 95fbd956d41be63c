"""Bodies that nobody can read: garbage and cut ones that are said to be compressed, bombs, bad batches."""

from __future__ import annotations

import sys
import zlib
from typing import NamedTuple

import lz4.frame

from kourou.message import sysflag
from kourou.message.compression import MAX_DECOMPRESSED_BYTES, CompressionType, compress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UNKNOWN_TYPE = sysflag.COMPRESSED | 5 << sysflag.COMPRESSION_SHIFT


class Poison(NamedTuple):
    """A body, what its record says of it, and how the reason begins that it cannot be read."""

    sys_flag: int
    body: bytes
    why: str


def _of(kind: CompressionType) -> dict[str, Poison]:
    why = f"body does not decompress as {kind.name}"
    cut = compress(b"cut short " * 99, kind)[:-3]
    return {
        f"{kind.name} garbage": Poison(kind.sys_flag, b"\x00garbage\xff", why),
        f"{kind.name} cut": Poison(kind.sys_flag, cut, f"{why}: it is cut short"),
        f"{kind.name} nothing": Poison(kind.sys_flag, b"", f"{why}: it is cut short"),
    }


POISON = {
    **{name: poison for kind in CompressionType for name, poison in _of(kind).items()},
    "unknown type": Poison(UNKNOWN_TYPE, b"whatever", "unknown compression type 5"),
    "type of old clients": Poison(sysflag.COMPRESSED, b"garbage", "body does not decompress as ZLIB"),
}
# Of topics with inner batches.
BAD_BATCHES = {
    "no batch": Poison(
        sysflag.INNER_BATCH | sysflag.NEED_UNWRAP, b"no batch", "batch body ends inside a message"
    ),
    "no batch inside": Poison(
        sysflag.INNER_BATCH | sysflag.NEED_UNWRAP | CompressionType.ZSTD.sys_flag,
        compress(bytes(99), CompressionType.ZSTD),
        "batch body has a bad message size",
    ),
    "a batch of garbage": Poison(
        sysflag.INNER_BATCH | sysflag.NEED_UNWRAP | CompressionType.LZ4.sys_flag,
        b"garbage",
        "body does not decompress as LZ4",
    ),
}


def bomb(kind: CompressionType, size_bytes: int = MAX_DECOMPRESSED_BYTES + (1 << 20)) -> bytes:
    """A body that inflates to so many bytes; by default to more than is allowed."""
    piece, pieces = bytes(1 << 20), size_bytes >> 20
    if kind is CompressionType.ZLIB:
        deflater = zlib.compressobj(9)
        return b"".join(deflater.compress(piece) for _ in range(pieces)) + deflater.flush()
    if kind is CompressionType.LZ4:
        lz4_deflater = lz4.frame.LZ4FrameCompressor()
        parts = [lz4_deflater.begin(), *(lz4_deflater.compress(piece) for _ in range(pieces))]
        return b"".join(parts) + bytes(lz4_deflater.flush())
    zstd_deflater = zstd.ZstdCompressor()
    return b"".join(zstd_deflater.compress(piece) for _ in range(pieces)) + zstd_deflater.flush()

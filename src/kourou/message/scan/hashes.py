"""Java's string hash of many texts at once, with numpy alone.

The hash is a polynomial in 31 over UTF-16 code units, modulo 2^32, so that of a text with a prefix is
`hash(prefix) * 31^units + hash(text)`: a topic's part of its keys is hashed once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kourou.message.properties import java_hash
from kourou.message.scan.records import Bytes, Integers, windows

Hashes = NDArray[np.uint32]


def java_hashes(blob: Bytes, starts: Integers, lengths: Integers) -> tuple[Hashes, Integers]:
    """The hashes of UTF-8 texts that lie in a blob, and how many UTF-16 units each has.

    One pass for each length; texts that are not ASCII are hashed one by one.
    """
    hashes = np.zeros(len(starts), np.uint32)
    units = lengths.astype(np.int64)
    for length in np.unique(lengths).tolist():
        if length == 0:
            continue
        chosen = np.flatnonzero(lengths == length)
        rows = windows(blob, starts[chosen], length)
        # Horner's rule column by column: no intermediate is wider than the column.
        total = np.zeros(len(chosen), np.uint32)
        for column in np.ascontiguousarray(rows.T):
            total *= np.uint32(31)
            total += column
        hashes[chosen] = total
        if rows.max() >= 0x80:
            for row in np.flatnonzero((rows >= 0x80).any(axis=1)).tolist():
                text = str(rows[row].tobytes(), "utf-8", "replace")
                hashes[chosen[row]] = java_hash(text) & 0xFFFFFFFF
                units[chosen[row]] = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return hashes, units


def with_prefix(prefixes: Hashes, hashes: Hashes, units: Integers) -> Hashes:
    """The hashes of `prefix + text`."""
    return prefixes * _powers(int(units.max(initial=0)))[units] + hashes


def to_signed(hashes: Hashes) -> Integers:
    """As Java has them: signed 32-bit numbers, here widened to 64."""
    return hashes.view(np.int32).astype(np.int64)


@lru_cache(maxsize=64)
def _powers(most: int) -> Hashes:
    """31^0 … 31^most, modulo 2^32."""
    powers = [1]
    for _ in range(most):
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    return np.array(powers, np.uint32)

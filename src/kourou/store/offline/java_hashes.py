"""Java's String.hashCode of many texts at once, given as places in one blob of UTF-8.

The hash of a text t of n characters is t[0]*31^(n-1) + … + t[n-1], modulo 2^32. There 31 has an inverse, so
with the running sums S[i] = b[0]*31^0 + b[1]*31^-1 + … + b[i-1]*31^-(i-1) over the blob, the hash of the text
from s to e is 31^(e-1) * (S[e] - S[s]): one pass over the blob, then the same few steps for a text of any
length. Texts that are not ASCII, rare in keys, are hashed one by one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kourou.message.properties import java_hash

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint32]

_INVERSE_OF_31 = pow(31, -1, 1 << 32)


class JavaHashes:
    """The hashes of texts in a blob."""

    def __init__(self, blob: NDArray[np.uint8]) -> None:
        self._blob = blob
        size = 1 << max(len(blob), 1).bit_length()
        self._powers, inverses = _powers(31, size), _powers(_INVERSE_OF_31, size)
        self._sums = np.zeros(len(blob) + 1, np.uint32)
        np.cumsum(blob * inverses[: len(blob)], dtype=np.uint32, out=self._sums[1:])
        self._foreign: NDArray[np.int32] | None = None  # how many bytes up to each place are not ASCII
        if len(blob) and blob.max() >= 0x80:
            self._foreign = np.zeros(len(blob) + 1, np.int32)
            np.cumsum(blob >= 0x80, dtype=np.int32, out=self._foreign[1:])

    def of(self, starts: Integers, lengths: Integers, prefixes: Hashes) -> Hashes:
        """The hash of each text (never an empty one) with another text before it, whose hash is given."""
        ends = starts + lengths
        hashes: Hashes = self._powers[ends - 1] * (self._sums[ends] - self._sums[starts])
        hashes += prefixes * self._powers[lengths]
        if self._foreign is not None:
            for row in np.flatnonzero(self._foreign[ends] != self._foreign[starts]).tolist():
                text = str(self._blob[starts[row] : ends[row]].tobytes(), "utf-8", "replace")
                units = len(text.encode("utf-16-le")) // 2
                value = int(prefixes[row]) * pow(31, units, 1 << 32) + java_hash(text)
                hashes[row] = value & 0xFFFFFFFF
        return hashes


@lru_cache(maxsize=4)  # blobs of a scan have about the same size
def _powers(base: int, count: int) -> Hashes:
    """base^0 … base^(count-1), modulo 2^32."""
    powers = np.full(count, base, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


def index_hashes(hashes: Hashes) -> Integers:
    """The absolute values that index entries hold; 0 for the one number that has none."""
    values = np.abs(hashes.view(np.int32).astype(np.int64))
    values[values > 0x7FFFFFFF] = 0
    return values

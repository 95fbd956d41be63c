"""The property strings of many records, cut apart at once with numpy alone.

What lives here: `Properties`, by the rules of `properties.decode_properties`, which Java's reader made.
What does not: finding the strings (`scan`), and texts or maps made from them (`columns`).

The way of the data: the strings of all records are joined into one blob, with U+0002 between them; one
sweep finds every U+0002; a name is then looked for behind all of them at once (`find`), or every
segment is cut at its first U+0001 (`all`). What comes out are positions in the blob.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kourou.message.scan.records import Buffer, Bytes, Integers, Mask, Records, words_at_every_byte

# Names within a row are compared at once, each with each, in rows with at most so many properties.
_MAX_COMPARED_AT_ONCE = 32

_NONE = np.empty(0, np.int64)


class Values(NamedTuple):
    """Values of one property: the row that has it, and where in the blob its value lies."""

    rows: Integers
    starts: Integers
    lengths: Integers


class AllProperties(NamedTuple):
    """All properties, in order: how many each row has, and where in the blob names and values lie."""

    counts: Integers
    name_starts: Integers
    name_lengths: Integers
    value_starts: Integers
    value_lengths: Integers


class Properties:
    """The property strings of many records, cut apart by the rules of `properties.decode_properties`.

    The blob holds each string with a U+0002 before it (`row_starts` point there), one more U+0002
    behind the last, and PADDING bytes. So every segment, whole or damaged, has a U+0002 at both ends,
    and those positions, found in one sweep, are all that a search for a name needs.

    The blob is valid UTF-8, or at least no name of it is asked for that holds U+FFFD: since no other
    byte of UTF-8 can look like a separator, cutting bytes is the same as cutting characters.
    """

    PADDING = 16

    def __init__(self, blob: Bytes, row_starts: Integers) -> None:
        self.blob = blob
        self.row_starts = row_starts
        self._words = words_at_every_byte(blob, "<u8")
        self._ends = np.flatnonzero(blob == 2)
        self._first_bytes: Bytes | None = None

    def find(self, name: str) -> Values:
        """The rows that have this property, in order, and its value: the last, where it comes twice."""
        key = name.encode() + b"\x01"
        if not name or "\x01" in name or "\x02" in name:
            return Values(_NONE, _NONE, _NONE)
        if self._first_bytes is None:
            self._first_bytes = self.blob[self._ends[:-1] + 1]
        opening = np.flatnonzero(self._first_bytes == key[0])
        opening = opening[_starts_with(self._words[self._ends[opening] + 1], key[:8])]
        starts = self._ends[opening] + 1
        ends = self._ends[opening + 1]
        keep = ends - starts > len(key)
        if not keep.all():
            starts, ends = starts[keep], ends[keep]
        for at in range(8, len(key), 8):
            keep = _starts_with(self._words[starts + at], key[at : at + 8])
            starts, ends = starts[keep], ends[keep]
        rows = self._rows_of(starts)
        starts += len(key)
        last = np.ones(len(rows), np.bool_)
        last[:-1] = rows[1:] != rows[:-1]
        if not last.all():
            rows, starts, ends = rows[last], starts[last], ends[last]
        return Values(rows, starts, ends - starts)

    def all(self) -> AllProperties:
        """Every property of every row; a name that comes twice in a row only once, with its last value."""
        filled = np.flatnonzero(np.diff(self._ends) > 1)
        opening, closing = self._ends[filled], self._ends[filled + 1]
        middles = np.flatnonzero(self.blob == 1)
        if not (len(middles) == len(opening) and (opening < middles).all() and (middles < closing).all()):
            # Not one U+0001 in each segment: the first counts.
            first = np.searchsorted(middles, opening)
            middles = np.append(middles, len(self.blob))[first]
        keep = (middles > opening + 1) & (middles + 1 < closing)
        if not keep.all():
            opening, middles, closing = opening[keep], middles[keep], closing[keep]
        counts = np.diff(np.searchsorted(opening, self.row_starts), append=len(opening))
        table = AllProperties(counts, opening + 1, middles - opening - 1, middles + 1, closing - middles - 1)
        return self._without_duplicates(table)

    def _rows_of(self, positions: Integers) -> Integers:
        starts = self.row_starts
        if (
            len(positions) == len(starts)
            and (positions > starts).all()
            and (positions[:-1] < starts[1:]).all()
        ):
            return np.arange(len(starts))  # the usual case: each row has it once
        return np.searchsorted(starts, positions, side="right") - 1

    def _without_duplicates(self, table: AllProperties) -> AllProperties:
        """Names are compared by a hash of their first and last eight bytes and their length, all at
        once; only rows in which two hashes are the same are looked at one by one."""
        counts, name_starts, name_lengths, _, _ = table
        most = int(counts.max(initial=0))
        if most < 2:
            return table
        rows = np.repeat(np.arange(len(counts)), counts)
        hashes = self._hash_names(name_starts, name_lengths)
        hashes += rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        suspects = [np.flatnonzero(counts > _MAX_COMPARED_AT_ONCE)]
        for distance in range(1, min(most, _MAX_COMPARED_AT_ONCE)):
            same = hashes[distance:] == hashes[:-distance]
            if same.any():
                suspects.append(rows[:-distance][same])
        keep = np.ones(len(name_starts), np.bool_)
        first_of_row = np.cumsum(counts) - counts
        for row in np.unique(np.concatenate(suspects)).tolist():
            seen: set[bytes] = set()
            first = int(first_of_row[row])
            for index in range(first + int(counts[row]) - 1, first - 1, -1):
                start = int(name_starts[index])
                name = self.blob[start : start + int(name_lengths[index])].tobytes()
                keep[index] = name not in seen
                seen.add(name)
            counts[row] = len(seen)
        return table if keep.all() else AllProperties(counts, *(part[keep] for part in table[1:]))

    def _hash_names(self, starts: Integers, lengths: Integers) -> NDArray[np.uint64]:
        bits_beyond = (np.maximum(8 - lengths, 0) * 8).astype(np.uint64)
        hashes: NDArray[np.uint64] = self._words[starts] << bits_beyond
        long = np.flatnonzero(lengths > 8)
        hashes[long] ^= self._words[starts[long] + lengths[long] - 8] * np.uint64(0xD6E8FEB86659FD93)
        hashes ^= lengths.astype(np.uint64) << np.uint64(32)
        hashes *= np.uint64(0xA0761D6478BD642F)
        return hashes


def join_properties(buffer: Buffer, records: Records) -> Properties:
    """The properties of these records. It costs 0.2 µs each; `columns` has a faster way with Arrow."""
    view = memoryview(buffer)
    starts, lengths = records.properties_start, records.properties_length
    strings = [view[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist())]
    blob = b"\x02".join([b"", *strings, bytes(Properties.PADDING)])
    return Properties(np.frombuffer(blob, np.uint8), np.cumsum(lengths + 1) - lengths - 1)


def _starts_with(words: NDArray[np.uint64], prefix: bytes) -> Mask:
    mask = np.uint64((1 << 8 * len(prefix)) - 1)
    matches: Mask = words & mask == np.uint64(int.from_bytes(prefix, "little"))
    return matches

"""The index against itself and against the log.

Against itself: slots lead to entries, chains lead back and never round, each entry is in one chain, the
header's numbers are right. Against the log: each entry leads to a record that has such a key. Keys that
the index lacks are told as a warning: RocketMQ itself leaves them out after a crash.

The layout is told in index_file.py. Entries are looked at some ten thousand at a time, so a full file of
420 MB costs 20 MB of memory.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kourou.inspect.check.findings import Findings, Severity
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.rows import Rows
from kourou.message import properties as names
from kourou.message.scan.hashes import Hashes, java_hashes, with_prefix
from kourou.message.scan.properties import Values
from kourou.store.index.index_file import (
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT_SIZE,
    IndexFile,
    key_prefixes,
    positive,
)

Integers = NDArray[np.int64]

_ENTRIES_AT_ONCE = 256 * 1024
# Entries come in the order of the log; a recovery that cut the log begins a new run. More is no order at all.
_MAX_RUNS = 1000
_HASH_BITS = 31
_SECONDS_MAX = 0x7FFFFFFF


class IndexChecker:
    """All files of the index."""

    def __init__(self, store: StoreDirectory, findings: Findings) -> None:
        self._store = store
        self._findings = findings
        self._checked_to = store.min_offset
        self._files: list[_File] = []
        self._missing = 0
        self._first_missing = -1
        for path in store.index_paths:
            file = store.index_file(path)
            if file is None:
                message = f"file has {store.disk.size(path)} bytes, {store.index_file_size} are right"
                findings.fault("index-file-size", path, -1, message)
            else:
                self._files.append(_File(file, findings))
        for checked in self._files:
            checked.check_structure()

    @property
    def files(self) -> list[IndexFile]:
        """The files that could be read."""
        return [checked.file for checked in self._files]

    @property
    def entries(self) -> int:
        """How many entries they have."""
        return sum(file.count - 1 for file in self.files)

    def take(self, rows: Rows) -> None:
        """Compare the entries that point into this stretch, or into what lies before it unread."""
        if not self._files:
            return
        begin, end = self._checked_to, rows.stretch.end
        self._checked_to = end
        keys = _Keys(rows, begin)
        present = np.zeros(len(keys.codes), np.bool_)
        for checked in self._files:
            for first, last in checked.between(begin, end):
                checked.compare(first, last, keys, present)
        missing = np.flatnonzero(~present)
        if len(missing):
            self._missing += len(missing)
            if self._first_missing < 0:
                self._first_missing = int(rows.offset[keys.rows[missing]].min())

    def finish(self, log_end: int, damaged: list[tuple[int, int]]) -> None:
        """Report entries without a record, and keys of the log that the index lacks."""
        for checked in self._files:
            checked.report_suspects(damaged)
            for first, last in checked.between(max(log_end, self._checked_to), None):
                checked.report_past_log(first, last, log_end, self._store.aborted)
        if self._missing:
            self._findings.warning(
                "index-missing", f"{self._store.root}/index", -1,
                f"{self._missing} keys of records are not in the index, the first of the record at"
                f" {self._first_missing}: `rebuild` adds them",
            )  # fmt: skip


class _Keys:
    """The keys that the records of a stretch name, in the order of their codes.

    A code is the record's distance from `begin` and the key's hash in one number.
    """

    def __init__(self, rows: Rows, begin: int) -> None:
        self.begin = begin
        self.record_starts = rows.offset
        prefixes = np.array([key_prefixes(name) for name in rows.topics], np.int64).astype(np.uint32)
        parts = (
            (rows.properties.find(names.UNIQ_KEY), prefixes[:, 0]),
            (_split(rows.properties.blob, rows.properties.find(names.KEYS)), prefixes[:, 0]),
            (rows.tags, prefixes[:, 1]),
        )
        owners = np.concatenate([values.rows for values, _ in parts])
        hashes = np.concatenate([_hash(rows, values, by_topic) for values, by_topic in parts])
        codes = rows.offset[owners] - begin << _HASH_BITS | positive(hashes)
        indexed = rows.in_index[owners]
        if not indexed.all():
            codes, owners = codes[indexed], owners[indexed]
        order = np.argsort(codes, kind="stable")
        self.codes: Integers = codes[order]
        self.rows: Integers = owners[order]
        self.times: Integers = rows.store_time[self.rows]


def _hash(rows: Rows, values: Values, prefixes: Hashes) -> Hashes:
    """The hashes of keys, behind their topics' prefixes."""
    hashes, units = java_hashes(rows.properties.blob, values.starts, values.lengths)
    return with_prefix(prefixes[rows.topic[values.rows]], hashes, units)


def _split(blob: NDArray[np.uint8], values: Values) -> Values:
    """The single keys of KEYS properties, which blanks part."""
    rows, starts, lengths = values
    ends = starts + lengths
    blanks = np.flatnonzero(blob == ord(names.KEY_SEPARATOR))
    owner = np.searchsorted(starts, blanks, side="right") - 1
    inside = owner >= 0
    inside[inside] = blanks[inside] < ends[owner[inside]]
    blanks = blanks[inside]
    if not len(blanks):
        return values
    # Values do not overlap, so the i-th begin of all belongs to the i-th end of all.
    key_starts = np.sort(np.concatenate((starts, blanks + 1)))
    key_ends = np.sort(np.concatenate((ends, blanks)))
    owner = np.searchsorted(starts, key_starts, side="right") - 1
    some = key_ends > key_starts
    return Values(rows[owner[some]], key_starts[some], (key_ends - key_starts)[some])


class _File:
    """One file of the index."""

    def __init__(self, file: IndexFile, findings: Findings) -> None:
        self.file = file
        self._findings = findings
        self._count = min(max(file.count, 1), file.max_entries)
        self._entries_at = HEADER_SIZE + file.slot_count * SLOT_SIZE
        self._suspects: list[
            tuple[int, int, bool]
        ] = []  # number, physical offset, whether a record lies there
        self._runs = self._find_runs()

    # Against itself

    def check_structure(self) -> None:
        """Header, slots and chains."""
        file = self.file
        if file.count > file.max_entries or file.count < 1:
            self._fault(
                "index-count",
                36,
                f"header says {file.count - 1} entries, the file has {file.max_entries - 1}",
            )
        self._check_header()
        heads = self._check_slots()
        self._check_chains(heads)

    def _check_header(self) -> None:
        file, count = self.file, self._count
        if count < file.max_entries:
            beyond = file.entries[count]
            if beyond["hash"] or beyond["offset"]:
                self._fault("index-count", 36, f"header says {count - 1} entries, and there is one more")
        if count > 1:
            first, last = int(file.entries[1]["offset"]), int(file.entries[count - 1]["offset"])
            if file.begin_offset != first:
                self._fault(
                    "index-header",
                    16,
                    f"header says first offset {file.begin_offset}, the first entry {first}",
                )
            if file.end_offset > last:
                self._fault(
                    "index-header", 24, f"header says last offset {file.end_offset}, the last entry {last}"
                )
            times = f"header says times from {file.begin_timestamp} to {file.end_timestamp}"
            if min(file.begin_timestamp, file.end_timestamp) <= 0:
                self._fault("index-header", 0, times)
            elif file.begin_timestamp > file.end_timestamp:
                self._findings.warning(
                    "index-header",
                    file.path,
                    0,
                    f"{times}: the clock went back, and look-ups by time may miss it",
                )

    def _check_slots(self) -> Integers:
        """Find slots that lead nowhere, or to another slot's entry; the entries that the others lead to."""
        file, count = self.file, self._count
        slots = file.slots
        used = np.flatnonzero(slots)
        values = slots[used].astype(np.int64)
        wild = (values < 0) | (values >= count)
        for at in np.flatnonzero(wild).tolist():
            self._slot_fault(int(used[at]), f"leads to entry {values[at]}, there are {count - 1}")
        if len(used) != file.slots_used:
            self._fault("index-count", 32, f"header says {file.slots_used} slots in use, {len(used)} are")
        used, values = used[~wild], values[~wild]
        wrong = file.entries["hash"][values] % file.slot_count != used
        for at in np.flatnonzero(wrong).tolist():
            self._slot_fault(int(used[at]), f"leads to entry {values[at]}, which belongs to another slot")
        return values

    def _check_chains(self, heads: Integers) -> None:
        file, count = self.file, self._count
        reached = np.zeros(count, np.bool_)
        reached[heads] = True
        references = len(heads)
        for first, entries in self._chunks():
            numbers = np.arange(first, first + len(entries))
            previous = entries["previous"].astype(np.int64)
            wild = (previous < 0) | (previous >= count)
            forward = ~wild & (previous >= numbers)
            good = ~wild & ~forward & (previous > 0)
            back = file.entries["hash"][previous[good]] % file.slot_count
            strange = np.zeros(len(entries), np.bool_)
            strange[good] = back != entries["hash"][good] % file.slot_count
            for mask, text in (
                (wild, "says that entry {} comes before it, there are no more than {}"),
                (forward, "says that entry {} comes before it: the chain is a loop"),
                (strange, "says that entry {} comes before it, which belongs to another slot"),
                (entries["seconds"] < 0, "has a negative time: a search stops here"),
            ):
                for at in np.flatnonzero(mask).tolist():
                    self._entry_fault("index-chain", first + at, text.format(previous[at], count - 1))
            reached[previous[good]] = True
            references += int(np.count_nonzero(good))
        lost = np.flatnonzero(~reached[1:]) + 1
        for number in lost.tolist():
            self._entry_fault("index-chain", number, "is in no chain: no search finds it")
        if references > np.count_nonzero(reached):
            self._fault("index-chain", HEADER_SIZE, "chains run together: an entry is reached in two ways")

    def _chunks(self) -> Any:
        for first in range(1, self._count, _ENTRIES_AT_ONCE):
            yield first, self.file.entries[first : min(first + _ENTRIES_AT_ONCE, self._count)]

    # Against the log

    def _find_runs(self) -> list[tuple[int, int]]:
        """The file's entries in runs (first, after the last) within which physical offsets never fall."""
        starts = [1]
        before = -1
        for first, entries in self._chunks():
            offsets = entries["offset"].astype(np.int64)
            falls = np.flatnonzero(np.diff(offsets, prepend=before) < 0)
            starts += (falls + first).tolist()
            before = int(offsets[-1])
            if len(starts) > _MAX_RUNS:
                self._fault("index-order", self._entries_at, "entries are in no order: they are not compared")
                return []
        starts = sorted(set(starts))
        return list(zip(starts, [*starts[1:], self._count]))

    def between(self, begin: int, end: int | None) -> list[tuple[int, int]]:
        """Entries (first, after the last) that point between two places of the log."""
        offsets = self.file.entries["offset"]
        found = []
        for start, stop in self._runs:
            if (
                start >= stop
                or int(offsets[stop - 1]) < begin
                or (end is not None and int(offsets[start]) >= end)
            ):
                continue
            first = bisect_left(range(stop), begin, start, key=lambda number: int(offsets[number]))
            last = stop
            if end is not None:
                last = bisect_left(range(stop), end, start, key=lambda number: int(offsets[number]))
            if first < last:
                found.append((first, last))
        return found

    def compare(self, first: int, last: int, keys: _Keys, present: NDArray[np.bool_]) -> None:
        """Compare entries with the keys of records; mark the keys that are there."""
        entries = self.file.entries[first:last]
        offsets = entries["offset"].astype(np.int64)
        codes = offsets - keys.begin << _HASH_BITS | entries["hash"].astype(np.int64)
        places = np.searchsorted(keys.codes, codes)
        found = places < len(keys.codes)
        found[found] = keys.codes[places[found]] == codes[found]
        self._check_times(first, entries["seconds"].astype(np.int64), places, found, keys)
        for at in np.flatnonzero(~found).tolist():
            start = np.searchsorted(keys.record_starts, offsets[at])
            at_record = bool(start < len(keys.record_starts) and keys.record_starts[start] == offsets[at])
            self._suspects.append((first + at, int(offsets[at]), at_record))
        # The same key may stand twice in a record, and so in the index: then it is there for both.
        low = np.searchsorted(keys.codes, codes[found])
        high = np.searchsorted(keys.codes, codes[found], side="right")
        present[low] = True
        for start, end in zip(low[high - low > 1].tolist(), high[high - low > 1].tolist()):
            present[start:end] = True

    def _check_times(
        self, first: int, seconds: Integers, places: Integers, found: NDArray[np.bool_], keys: _Keys
    ) -> None:
        begin = self.file.begin_timestamp
        right = np.clip((keys.times[places[found]] - begin) // 1000, 0, _SECONDS_MAX)
        numbers = np.flatnonzero(found)
        # The first entry counts from the end of the file before: the header's begin is set after it.
        wrong = (seconds[found] != right) & (numbers + first > 1)
        for at in np.flatnonzero(wrong).tolist():
            number = int(numbers[at])
            self._entry_fault(
                "index-time", first + number, f"says {seconds[number]} seconds, its record says {right[at]}"
            )

    def report_suspects(self, damaged: list[tuple[int, int]]) -> None:
        """Report entries whose record does not have the key, unless the record cannot be read."""
        for number, offset, at_record in self._suspects:
            if any(start <= offset < end for start, end in damaged):
                continue
            what = "whose record has no such key" if at_record else "where no record begins"
            self._entry_fault("index-key", number, f"points to {offset}, {what}")

    def report_past_log(self, first: int, last: int, log_end: int, aborted: bool) -> None:
        """Report entries that point past the end of the log."""
        severity, hint = (
            (Severity.WARNING, ": the next start makes this file anew") if aborted else (Severity.FAULT, "")
        )
        offset = int(self.file.entries[first]["offset"])
        self._findings.add(
            severity, "index-behind-log", self.file.path, self._entries_at + first * ENTRY_SIZE,
            f"entries {first} to {last - 1} point to {offset} and beyond, the log ends at {log_end}{hint}",
            count=last - first,
        )  # fmt: skip

    def _slot_fault(self, slot: int, message: str) -> None:
        self._fault("index-slot", HEADER_SIZE + slot * SLOT_SIZE, f"slot {slot} {message}")

    def _entry_fault(self, kind: str, number: int, message: str) -> None:
        self._fault(kind, self._entries_at + number * ENTRY_SIZE, f"entry {number} {message}")

    def _fault(self, kind: str, position: int, message: str) -> None:
        self._findings.fault(kind, self.file.path, position, message)

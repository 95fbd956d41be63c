"""The queues against the log: each record that consumers may see has its entry, each entry has its record.

A record says topic, queue and queue offset, so its entry is found by its place; entries that a record
has confirmed are marked, and what is unmarked at the end is looked at one by one. Memory: one byte for each
entry, and what is mapped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kourou.errors import StoreDamagedError
from kourou.inspect.check.findings import Findings, Severity
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.queue_files import BLANK_SIZE, QueueFile, QueueFiles
from kourou.inspect.rows import Rows, to_number
from kourou.message import properties as names
from kourou.message.topics import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from kourou.store.log.mapped_file import last_used
from kourou.store.queue.consume_queue_ext import MAX_ADDRESS, ConsumeQueueExt
from kourou.store.queue.queue_store import LMQ_SEPARATOR, is_lmq

Integers = NDArray[np.int64]

# Records whose place in the queue is held by another are kept until the end to say which: so many a queue.
_MAX_DISPLACED = 10_000
_ENTRIES_AT_ONCE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Expected:
    """Entries that records say there are, a row each."""

    queue_offset: Integers
    base: Integers  # of a batch, the queue offset of its first message
    offset: Integers
    size: Integers
    tags: Integers
    time: Integers
    count: Integers  # messages in the record

    def take(self, rows: Integers) -> Expected:
        """Some of the rows."""
        return Expected(*(getattr(self, column.name)[rows] for column in fields(self)))


_FIELD_WORDS = {
    "size": "size",
    "tags": "tags code",
    "time": "store time",
    "base": "first queue offset",
    "count": "number of messages",
}


class QueueChecker:
    """All queues."""

    def __init__(self, store: StoreDirectory, findings: Findings) -> None:
        self._store = store
        self._findings = findings
        self._queues = {
            (queue.topic, queue.queue_id): _Queue(store, queue, findings) for queue in store.queues
        }
        self._missing: dict[tuple[str, int], tuple[int, int]] = {}  # first record and number of records
        # A record that names its offsets in light queues was written by a broker that had them.
        self._light = store.inferred or (store.config.enable_multi_dispatch and store.config.enable_lmq)

    @property
    def entries(self) -> int:
        """How many entries all queues have."""
        return sum(queue.length for queue in self._queues.values())

    def take(self, rows: Rows) -> None:
        """Compare the entries of these records."""
        tags = rows.tags_code.copy()
        self._set_deliver_times(rows, tags)
        base, count = self._batches(rows)
        expected = Expected(rows.queue_offset, base, rows.offset, rows.size, tags, rows.store_time, count)
        visible = np.flatnonzero(rows.in_queue & ~self._is_deleted(rows))
        group = rows.topic[visible] << 32 | rows.queue_id[visible] & 0xFFFFFFFF
        order = np.argsort(group, kind="stable")
        group, visible = group[order], visible[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(group)]):
            first = int(visible[start])
            key = rows.topics[int(rows.topic[first])], int(rows.queue_id[first])
            self._compare(key, expected.take(visible[start:end]))
        self._take_light_queues(rows, expected)

    def _is_deleted(self, rows: Rows) -> NDArray[np.bool_]:
        """Which records are older than the deletion of their topic."""
        deleted = np.zeros(len(rows), np.bool_)
        for topic, offset in self._store.deletions.items():
            if topic in rows.topics:
                deleted |= (rows.topic == rows.topics.index(topic)) & (rows.offset < offset)
        return deleted

    def _compare(self, key: tuple[str, int], expected: Expected) -> None:
        queue = self._queues.get(key)
        if queue is not None:
            queue.compare(expected)
            return
        first, count = self._missing.get(key, (int(expected.offset[0]), 0))
        self._missing[key] = first, count + len(expected.offset)

    def _set_deliver_times(self, rows: Rows, tags: Integers) -> None:
        """In the delay topic an entry holds, instead of a tags code, when to deliver."""
        if SCHEDULE_TOPIC not in rows.topics:
            return
        delayed = rows.topic == rows.topics.index(SCHEDULE_TOPIC)
        levels = self._store.delay_levels
        for row, value in zip(*rows.property(names.DELAY_TIME_LEVEL)):
            if delayed[row] and (level := min(to_number(value), len(levels))) > 0:
                tags[row] = rows.store_time[row] + levels[level - 1]

    def _batches(self, rows: Rows) -> tuple[Integers, Integers]:
        """First queue offset and number of messages of each record."""
        base, count = rows.queue_offset, np.ones(len(rows), np.int64)
        having, bases = rows.property(names.INNER_BASE)
        if len(having):
            base = base.copy()
            base[having] = list(map(to_number, bases))
            having, counts = rows.property(names.INNER_NUM)
            count[having] = list(map(to_number, counts))
        return base, count

    def _take_light_queues(self, rows: Rows, expected: Expected) -> None:
        """A record may name further queues that it is in, with its offset in each."""
        having, queue_names = rows.property(names.INNER_MULTI_DISPATCH)
        if not len(having) or not self._light:
            return
        with_offsets, values = rows.property(names.INNER_MULTI_QUEUE_OFFSET)
        offsets = dict(zip(with_offsets.tolist(), values))
        visible = rows.in_queue
        for row, raw_names in zip(having.tolist(), queue_names):
            topic = rows.topics[int(rows.topic[row])]
            if not visible[row] or row not in offsets or topic == SCHEDULE_TOPIC:
                continue
            if topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)):
                continue
            light = str(raw_names, "utf-8", "replace").split(LMQ_SEPARATOR)
            one = expected.take(np.array([row]))
            for name, offset in zip(light, offsets[row].split(LMQ_SEPARATOR.encode())):
                if (
                    is_lmq(name)
                    and to_number(offset) >= 0
                    and rows.offset[row] >= self._store.deletions.get(name, 0)
                ):
                    self._compare((name, 0), replace(one, queue_offset=np.array([to_number(offset)])))

    def finish(self, log_end: int, damaged: list[tuple[int, int]]) -> None:
        """Check the entries that no record has confirmed."""
        for queue in self._queues.values():
            queue.finish(log_end, damaged)
        for (topic, queue_id), (first, count) in sorted(self._missing.items()):
            self._report_missing_queue(topic, queue_id, first, count)

    def _report_missing_queue(self, topic: str, queue_id: int, first: int, count: int) -> None:
        path = f"{self._store.root}/consumequeue/{topic}/{queue_id}"
        message = (
            f"{count} records of this queue are in the log, the first at {first}, and the queue is not there"
        )
        known = self._store.topic_names
        if known is not None and topic not in known and not is_lmq(topic):
            self._findings.warning("deleted-topic", path, -1, f"{message}: its topic was deleted")
        else:
            self._findings.fault("missing-queue", path, -1, message)


class _Queue:
    """One queue: its entries, and which of them a record has confirmed.

    The place of an entry is its number, from the begin of the first file that ever was. In a ConsumeQueue it
    is the queue offset; in a batch queue it is found by the record's physical offset.
    """

    def __init__(self, store: StoreDirectory, queue: QueueFiles, findings: Findings) -> None:
        self._store = store
        self._queue = queue
        self._findings = findings
        self._first = queue.files[0].first if queue.files else 0
        self._end = self._used_end()
        self._confirmed = np.zeros(max(self._end - self._first, 0), np.bool_)
        self._displaced: list[
            tuple[int, int]
        ] = []  # (place, physical offset) of records that found another there
        self._ext: ConsumeQueueExt | None = None
        self._check_files()

    @property
    def length(self) -> int:
        """How many places there are up to the last that is not empty."""
        return len(self._confirmed)

    def _used_end(self) -> int:
        """After the last place that is not empty, whatever stands before it."""
        unit = self._queue.unit
        for file in reversed(self._queue.files):
            end = min(self._store.data_end(file.path), file.capacity * unit)  # not a byte of a hole is read
            used = last_used(self._store.view(file.path), 0, end)
            if used:
                return file.first - -used // unit
        return self._first

    def _check_files(self) -> None:
        config, queue = self._store.config, self._queue
        wanted = config.mapped_file_size_consume_queue
        if queue.batch:
            wanted = config.mapper_file_size_batch_consume_queue
        for file in queue.files:
            size = self._store.disk.size(file.path)
            if size != wanted:
                self._findings.fault(
                    "queue-file-size", file.path, -1, f"file has {size} bytes, {wanted} are right"
                )
        for before, after in pairwise(queue.files):
            if after.first != before.first + before.capacity:
                self._findings.fault("queue-gap", after.path, -1, "a file before this one is missing")

    # While the log is read

    def compare(self, expected: Expected) -> None:
        """Compare with what records say, and mark what they confirm."""
        places = self._batch_places(expected.offset) if self._queue.batch else expected.queue_offset
        open_rows = np.arange(len(places))
        for file in self._queue.files:
            until = min(file.first + file.capacity, self._end)
            inside = (places[open_rows] >= file.first) & (places[open_rows] < until)
            if inside.any():
                rows = open_rows[inside]
                self._compare_in(file, places[rows], expected.take(rows))
                open_rows = open_rows[~inside]
            if not len(open_rows):
                return
        for row in open_rows.tolist():
            queue_offset = int((expected.base if self._queue.batch else expected.queue_offset)[row])
            self._report_missing(int(places[row]), queue_offset, int(expected.offset[row]))

    @cached_property
    def _batch_offsets(self) -> Integers:
        parts = [self._queue.room(file)["offset"] for file in self._queue.files]
        whole = np.concatenate(parts) if parts else np.empty(0)
        return whole[: self.length].astype(np.int64)

    def _batch_places(self, offsets: Integers) -> Integers:
        places = np.searchsorted(self._batch_offsets, offsets)
        found = places < self.length
        found[found] = self._batch_offsets[places[found]] == offsets[found]
        return np.where(found, places + self._first, self._end)

    def _compare_in(self, file: QueueFile, places: Integers, expected: Expected) -> None:
        found = self._queue.room(file)[places - file.first]
        is_empty = (found["offset"] == 0) & (found["size"] == 0)  # not the entry of the record at 0
        same = (found["offset"] == expected.offset) & ~is_empty
        self._confirmed[places[same] - self._first] = True
        fields = ["size", "tags", *(["time", "base", "count"] if self._queue.batch else [])]
        for name in fields:
            wrong = same & (found[name] != getattr(expected, name))
            for row in np.flatnonzero(wrong).tolist():
                right = int(getattr(expected, name)[row])
                if name != "tags" or not self._ext_confirms(int(found["tags"][row]), right):
                    message = f"says {_FIELD_WORDS[name]} {found[name][row]}, its record at"
                    self._fault(
                        f"queue-{name}", int(places[row]), f"{message} {expected.offset[row]} says {right}"
                    )
        if self._queue.batch:
            odd = same & ((found["compacted"] != -1) | (found["reserved"] != 0))
            for row in np.flatnonzero(odd).tolist():
                self._fault("queue-reserved", int(places[row]), "does not end with -1 and 0")
        rows = np.flatnonzero(~same)
        room = _MAX_DISPLACED - len(self._displaced)
        self._displaced += zip(places[rows[:room]].tolist(), expected.offset[rows[:room]].tolist())

    def _ext_confirms(self, code: int, right: int) -> bool:
        """Whether the code is an address in the ConsumeQueueExt, and the right code stands there."""
        if code > MAX_ADDRESS:
            return False
        queue = self._queue
        if self._ext is None:
            self._ext = ConsumeQueueExt(
                self._store.disk, self._store.root, queue.topic, queue.queue_id,
                self._store.config.mapped_file_size_consume_queue_ext, writable=False,
            )  # fmt: skip
            try:
                self._ext.load()
            except StoreDamagedError as error:
                self._findings.fault("queue-ext", queue.path, -1, str(error))
        unit = self._ext.get(code)
        return unit is not None and unit.tags_code == right

    def _report_missing(self, place: int, queue_offset: int, offset: int) -> None:
        message = f"there is no entry for queue offset {queue_offset}, whose record lies at {offset}"
        entry = self._queue.entry(self._queue.first) if self._queue.first < self._queue.end else None
        severity, hint = Severity.FAULT, ""
        if place >= self._end and entry is not None and offset < int(entry["offset"]):
            severity, hint = Severity.WARNING, ": the topic was deleted and made anew"
        elif place >= self._end and self._store.aborted:
            severity, hint = Severity.WARNING, ": the next start makes it"
        path, position = self._queue.position(place)
        self._findings.add(severity, "queue-missing", path, position, message + hint)

    # When the log has been read

    def finish(self, log_end: int, damaged: list[tuple[int, int]]) -> None:
        """Look at the entries that no record has confirmed."""
        explained = self._report_displaced()
        for file in self._queue.files:
            until = min(file.capacity, self._end - file.first)
            for start in range(0, until, _ENTRIES_AT_ONCE):
                stop = min(start + _ENTRIES_AT_ONCE, until)
                first = file.first + start
                confirmed = self._confirmed[first - self._first : file.first + stop - self._first]
                rows = self._queue.room(file)[start:stop]
                suspect = ~confirmed & ~self._is_fine(rows, first, damaged, log_end)
                for at in np.flatnonzero(suspect).tolist():
                    if first + at not in explained:
                        self._report_unconfirmed(
                            first + at, int(rows["offset"][at]), int(rows["size"][at]), log_end
                        )

    def _report_displaced(self) -> set[int]:
        """Of the places where records found another: faults, unless that other rightly has the place."""
        newer = [pair for pair in self._displaced if self._confirmed[pair[0] - self._first]]
        if newer:
            path, position = self._queue.position(newer[0][0])
            self._findings.warning(
                "queue-replaced", path, position,
                f"{len(newer)} records have queue offsets that belong to newer records, the first at"
                f" {newer[0][1]}: the topic was deleted and made anew",
            )  # fmt: skip
        wrong = dict(pair for pair in self._displaced if not self._confirmed[pair[0] - self._first])
        for place, offset in wrong.items():
            entry = self._queue.entry(place)
            assert entry is not None
            if entry["size"] == 0 and entry["offset"] == 0:
                self._fault("queue-missing", place, f"is empty, its record lies at {offset}")
            else:
                self._fault(
                    "queue-offset", place, f"points to {entry['offset']}, its record lies at {offset}"
                )
        return set(wrong)

    def _is_fine(
        self, rows: NDArray[Any], first: int, damaged: list[tuple[int, int]], log_end: int
    ) -> NDArray[np.bool_]:
        """Entries that need no record: of records that are gone or damaged, and blank ones at the begin."""
        offset, size = rows["offset"], rows["size"]
        places = np.arange(first, first + len(rows))
        fine = (offset >= 0) & (offset < self._store.min_offset) & (size > 0)
        fine |= (offset == 0) & (size == BLANK_SIZE) & (places < self._queue.first)
        for start, end in damaged:
            fine |= (offset >= start) & (offset < min(end, log_end))
        return fine

    def _report_unconfirmed(self, place: int, offset: int, size: int, log_end: int) -> None:
        if size == 0 and offset == 0:
            self._fault("queue-missing", place, "is empty, and others follow")
            return
        if offset >= log_end:
            message = f"points to {offset}, the log ends at {log_end}"
            if self._store.aborted:
                path, position = self._queue.position(place)
                self._findings.warning(
                    "queue-behind-log", path, position, f"entry {place} {message}: the next start drops it"
                )
            else:
                self._fault("queue-behind-log", place, message)
            return
        other = self._store.message(offset)
        whose = "where no record begins"
        if other is not None:
            whose = f"a record of {other.topic}-{other.queue_id}, queue offset {other.queue_offset}"
        self._fault("queue-offset", place, f"points to {offset}, {whose}")

    def _fault(self, kind: str, place: int, message: str) -> None:
        path, position = self._queue.position(place)
        self._findings.fault(kind, path, position, f"entry {place} {message}")

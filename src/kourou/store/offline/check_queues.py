"""The queues against the log: each record that consumers may see has its entry, each entry has its record.

A record says topic, queue and queue offset, so its entry is found by its place; entries that a record
has confirmed are marked, and what is unmarked at the end is looked at one by one. Memory: one byte for each
entry, and what is mapped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kourou.errors import StoreDamagedError
from kourou.message import properties as names
from kourou.store.consume_queue_ext import MAX_ADDRESS, ConsumeQueueExt
from kourou.store.dispatch import SCHEDULE_TOPIC
from kourou.store.offline.directory import StoreDirectory
from kourou.store.offline.findings import Findings, Severity
from kourou.store.offline.log_scan import last_used
from kourou.store.offline.queue_files import BLANK_SIZE, QueueFile, QueueFiles
from kourou.store.offline.rows import Rows
from kourou.store.queue_store import LMQ_SEPARATOR, RETRY_PREFIX, SYSTEM_PREFIX, is_lmq

Integers = NDArray[np.int64]

# Records whose place in the queue is held by another are kept until the end to say which: so many a queue.
_MAX_DISPLACED = 10_000
_ENTRIES_AT_ONCE = 64 * 1024


class Expected(NamedTuple):
    """Entries that records say there are, a row each."""

    index: Integers  # queue offset; base offset for a batch queue
    offset: Integers
    size: Integers
    tags: Integers
    time: Integers
    count: Integers  # messages in the record

    def __getitem__(self, rows: Any) -> Expected:  # type: ignore[override]
        return Expected(*(column[rows] for column in self))


class QueueChecker:
    """All queues."""

    def __init__(self, store: StoreDirectory, findings: Findings) -> None:
        self._store = store
        self._findings = findings
        self._queues = {(queue.topic, queue.queue_id): _Queue(store, queue, findings) for queue in store.queues}
        self._missing: dict[tuple[str, int], tuple[int, int]] = {}  # first record and number of records
        # A record that names its offsets in light queues was written by a broker that had them.
        self._light = store.inferred or store.config.enable_multi_dispatch
        self._light_id_is_zero = store.inferred or store.config.enable_lmq

    @property
    def entries(self) -> int:
        """How many entries all queues have."""
        return sum(queue.length for queue in self._queues.values())

    def take(self, rows: Rows) -> None:
        """Compare the entries of these records."""
        tags = rows.tags_code.copy()
        self._set_deliver_times(rows, tags)
        base, count = self._batches(rows)
        expected = Expected(base, rows.offset, rows.size, tags, rows.store_time, count)
        visible = np.flatnonzero(rows.in_queue)
        group = rows.topic[visible] << 32 | rows.queue_id[visible] & 0xFFFFFFFF
        order = np.argsort(group, kind="stable")
        group, visible = group[order], visible[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(group)]):
            first = int(visible[start])
            key = rows.topics[int(rows.topic[first])], int(rows.queue_id[first])
            self._compare(key, expected[visible[start:end]])
        self._take_light_queues(rows, expected)

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
            if delayed[row] and value.isdigit() and (level := min(int(value), len(levels))) > 0:
                tags[row] = rows.store_time[row] + levels[level - 1]

    def _batches(self, rows: Rows) -> tuple[Integers, Integers]:
        """First queue offset and number of messages of each record."""
        base, count = rows.queue_offset, np.ones(len(rows), np.int64)
        having, bases = rows.property(names.INNER_BASE)
        if len(having):
            base = base.copy()
            base[having] = [int(value) if value.isdigit() else -1 for value in bases]
            having, numbers = rows.property(names.INNER_NUM)
            count[having] = [int(value) if value.isdigit() else -1 for value in numbers]
        return base, count

    def _take_light_queues(self, rows: Rows, expected: Expected) -> None:
        """A record may name further queues that it is in, with its offset in each."""
        having, queue_names = rows.property(names.INNER_MULTI_DISPATCH)
        if not len(having) or not self._light:
            return
        offsets = dict(zip(*((part.tolist() if isinstance(part, np.ndarray) else part)
                             for part in rows.property(names.INNER_MULTI_QUEUE_OFFSET))))  # fmt: skip
        visible = rows.in_queue
        for row, raw_names in zip(having.tolist(), queue_names):
            topic = rows.topics[int(rows.topic[row])]
            if not visible[row] or row not in offsets or topic == SCHEDULE_TOPIC:
                continue
            if topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)):
                continue
            light = str(raw_names, "utf-8", "replace").split(LMQ_SEPARATOR)
            for name, offset in zip(light, str(offsets[row], "utf-8", "replace").split(LMQ_SEPARATOR)):
                if not offset.isdecimal():
                    continue
                queue_id = 0 if self._light_id_is_zero and is_lmq(name) else int(rows.queue_id[row])
                one = expected[row : row + 1]
                self._compare((name, queue_id), one._replace(index=np.array([int(offset)])))

    def finish(self, log_end: int, damaged: list[tuple[int, int]]) -> None:
        """Look at what no record has confirmed."""
        for queue in self._queues.values():
            queue.finish(log_end, damaged)
        for (topic, queue_id), (first, count) in sorted(self._missing.items()):
            self._tell_missing_queue(topic, queue_id, first, count)

    def _tell_missing_queue(self, topic: str, queue_id: int, first: int, count: int) -> None:
        path = f"{self._store.root}/consumequeue/{topic}/{queue_id}"
        message = f"{count} records of this queue are in the log, the first at {first}, and the queue is not there"
        known = self._store.topic_names
        if known is not None and topic not in known and not is_lmq(topic):
            self._findings.warning("deleted-topic", path, -1, f"{message}: its topic was deleted")
        else:
            self._findings.fault("missing-queue", path, -1, message)


class _Queue:
    """One queue: what its entries are compared with, and which have been confirmed."""

    def __init__(self, store: StoreDirectory, queue: QueueFiles, findings: Findings) -> None:
        self._store = store
        self._queue = queue
        self._findings = findings
        self._first = queue.files[0].first if queue.files else 0
        self._end = self._used_end()
        self._confirmed = np.zeros(max(self._end - self._first, 0), np.bool_)
        self._displaced: list[Expected] = []
        self._displaced_count = 0
        self._ext: ConsumeQueueExt | None = None
        wanted = (
            store.config.mapper_file_size_batch_consume_queue
            if queue.batch
            else store.config.mapped_file_size_consume_queue
        )
        for file in queue.files:
            size = store.disk.size(file.path)
            if size != wanted:
                findings.fault("queue-file-size", file.path, -1, f"file has {size} bytes, {wanted} are right")
        for before, after in zip(queue.files, queue.files[1:]):
            if after.first != before.first + before.capacity:
                findings.fault("queue-gap", after.path, -1, "a file before this one is missing")

    @property
    def length(self) -> int:
        """Entries from the first file's first place to the last that is not empty."""
        return len(self._confirmed)

    def _used_end(self) -> int:
        """Behind the last place that is not empty, whatever stands before it."""
        for file in reversed(self._queue.files):
            view = self._store.view(file.path)[: file.capacity * self._queue.unit]
            used = last_used(view, 0, len(view))
            if used:
                return file.first + -(-used // self._queue.unit)
        return self._first

    # While the log is read

    def compare(self, expected: Expected) -> None:
        """Compare with what records say; mark what they confirm."""
        if self._queue.batch:
            expected = self._by_place(expected)
        there = (expected.index >= self._first) & (expected.index < self._end)
        if not there.all():
            self._tell_missing(expected[~there])
            expected = expected[there]
        remaining = expected
        for file in self._queue.files:
            if not len(remaining.index):
                return
            inside = (remaining.index >= file.first) & (remaining.index < file.first + file.capacity)
            if inside.any():
                self._compare_in(file, remaining[inside])
                remaining = remaining[~inside]
        self._tell_missing(remaining)

    def _compare_in(self, file: QueueFile, expected: Expected) -> None:
        found = self._queue.room(file)[expected.index - file.first]
        same_place = found["offset"] == expected.offset
        wrong_size = same_place & (found["size"] != expected.size)
        wrong_tags = same_place & (found["tags"] != expected.tags)
        if wrong_tags.any():
            wrong_tags &= ~self._ext_confirms(found, expected, wrong_tags)
        wrong = wrong_size | wrong_tags
        if self._queue.batch:
            wrong |= same_place & ((found["time"] != expected.time) | (found["base"] != expected.index))
        self._confirmed[expected.index[same_place] - self._first] = True
        for row in np.flatnonzero(wrong_size).tolist():
            self._fault("queue-size", expected, row, "says size", found["size"], expected.size)
        for row in np.flatnonzero(wrong_tags).tolist():
            self._fault("queue-tags", expected, row, "says tags code", found["tags"], expected.tags)
        if not same_place.all():
            self._set_aside(found[~same_place], expected[~same_place])

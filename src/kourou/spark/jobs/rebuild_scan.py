"""The first half of a rebuild, in tasks: what a range of a log means to queues and index, as arrays in files.

A range begins where the one before it ends. A task cannot know that place, so it takes the first record from
its begin on whose magic, size and own physical offset agree, and tells where it began and stopped; the driver
sees whether that fits, and has a range that does not fit scanned again from the right place.

    <scratch>/<range>.queues.npy    ENTRIES, queue after queue, and in each in the order of the log
    <scratch>/<range>.keys.npy      KEYS, in the order of the index

Records take the way of every rebuild, `BulkDispatcher`; only that queues and index here take note instead of
writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kourou.clock import SystemClock
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.log_scan import Blank, Break, Stretch, walk
from kourou.inspect.rebuild import salvage
from kourou.message import properties as names
from kourou.message.scan import records as scan
from kourou.message.scan.records import Integers
from kourou.message.topics import DELETION_TOPIC
from kourou.store.bulk_dispatch import BulkDispatcher
from kourou.store.config import MessageStoreConfig
from kourou.store.dispatch import DispatchRequest
from kourou.store.index.index_file import IndexService
from kourou.store.log.disk import OsDisk
from kourou.store.queue.consume_queue import ConsumeQueue
from kourou.store.queue.queue_store import AnyQueue, ConsumeQueueStore

ENTRIES = np.dtype(
    [
        ("offset", "i8"), ("size", "i4"), ("tags", "i8"), ("queue_offset", "i8"),
        ("light", "?"),  # in a light queue, beside the record's own
        ("time", "i8"), ("base", "i8"), ("count", "i4"),  # for batch queues and filter bitmaps only
    ]
)  # fmt: skip
KEYS = np.dtype([("hash", "i4"), ("offset", "i8"), ("time", "i8")])

# A range is left where the next begins, so what is read too far of it is thrown away: little.
STRETCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreJob:
    """What tasks have to know of a store."""

    root: str
    source_config: MessageStoreConfig | None  # as it was given; None has the files tell
    config: MessageStoreConfig  # to write with
    delay_levels: list[int]
    batch_topics: set[str]
    out: str
    scratch: str


@dataclass(frozen=True, slots=True)
class LogRange:
    """A part of a file of a log, by positions in it."""

    number: int
    base: int
    start: int
    end: int
    begin: int | None = None  # where its first record lies; None where that is to be found


@dataclass(slots=True)
class Damage:
    """A place where no whole record is."""

    place: int  # offsets in the log
    resume: int
    reason: str
    is_empty: bool  # nothing but zeros
    is_salvaged: bool  # its entry and keys are among the others


@dataclass(slots=True)
class QueueSlice:
    """Where the entries of a queue lie in the file of a range."""

    topic: str
    queue_id: int
    start: int
    count: int


@dataclass(slots=True)
class RangeReport:
    """What was found in a range."""

    begin: int  # position in the file of the first record; -1 where there is none
    stop: int  # where the next range has to begin
    records: int = 0
    keys: int = 0
    # The same without damaged records behind the last whole one: they count only if more of the log follows.
    sure_records: int = 0
    sure_keys: int = 0
    last_end: int = -1  # where the last whole record ends in the log
    bad_property: int = -1  # offset of a record that cannot be dispatched: the range ends before it
    damages: list[Damage] = field(default_factory=list)
    queues: list[QueueSlice] = field(default_factory=list)
    deletions: dict[str, int] = field(default_factory=dict)  # topic -> where the log deletes it last


def queues_file(scratch: str, number: int) -> str:
    """The file of the entries of a range."""
    return f"{scratch}/{number:08d}.queues.npy"


def keys_file(scratch: str, number: int) -> str:
    """The file of the keys of a range."""
    return f"{scratch}/{number:08d}.keys.npy"


def scan_range(job: StoreJob, part: LogRange) -> RangeReport:
    """Read a range of a log and write down what queues and index get of it."""
    with StoreDirectory.open(job.root, job.source_config) as store:
        file = store.log_file(part.base)
        assert file is not None
        begin = part.begin
        if begin is None:
            view = store.view(file.path)
            begin = scan.first_record(view, part.start, part.end, base_offset=part.base)
        if begin is None:
            return RangeReport(-1, part.end)
        scanner = _Scanner(job, store, part, begin)
        scanner.run()
        scanner.write()
        return scanner.report


class _Scanner:
    """Goes through one range."""

    def __init__(self, job: StoreJob, store: StoreDirectory, part: LogRange, begin: int) -> None:
        self._job = job
        self._store = store
        self._part = part
        self._queues = _NotedQueues(job.config, job.batch_topics.__contains__)
        self._index = _NotedIndex(job.config)
        self._bulk = BulkDispatcher(self._queues, self._index, job.config, None, job.delay_levels)
        self.report = RangeReport(begin, begin)

    def run(self) -> None:
        """Read up to the first record behind the range, or to the end of the file."""
        part, report = self._part, self.report
        stretch_bytes = min(STRETCH_BYTES, part.end - part.start)
        for piece in walk(self._store, start=part.base + report.begin, stretch_bytes=stretch_bytes):
            if piece.file.base != part.base:
                return
            if isinstance(piece, Stretch):
                self._take(piece)
            elif isinstance(piece, Blank):
                report.stop = piece.file.size
            elif piece.position < part.end:
                self._pass(piece)
            if report.stop >= part.end or report.bad_property >= 0:
                return

    def _take(self, piece: Stretch) -> None:
        report = self.report
        inside = int(np.searchsorted(piece.records.positions, self._part.end))
        if inside:
            own = Stretch(piece.file, piece.view, piece.records[:inside])
            self._dispatch(own)
            report.last_end = own.end
            report.sure_records, report.sure_keys = report.records, self._index.count
        following = piece.records.positions[inside:]
        report.stop = int(following[0]) if len(following) else piece.end - piece.file.base

    def _pass(self, broken: Break) -> None:
        stretch = salvage(self._store, broken)
        self.report.damages.append(
            Damage(
                broken.file.base + broken.position, broken.file.base + broken.resume, broken.reason,
                broken.empty, stretch is not None,
            )
        )  # fmt: skip
        if stretch is not None:
            self._dispatch(stretch)
        self.report.stop = broken.resume

    def _dispatch(self, stretch: Stretch) -> None:
        done = self._bulk.dispatch_records(stretch.view, stretch.records)
        self.report.records += done
        if done < len(stretch.records):
            self.report.bad_property = stretch.file.base + int(stretch.records.positions[done])

    def write(self) -> None:
        """Write the files of the range."""
        report, scratch, number = self.report, self._job.scratch, self._part.number
        pieces: list[NDArray[np.void]] = []
        start = 0
        for (topic, queue_id), entries in self._queues.noted():
            report.queues.append(QueueSlice(topic, queue_id, start, len(entries)))
            pieces.append(entries)
            start += len(entries)
        report.keys = self._index.count
        report.deletions = self._queues.deleted_at
        _save(queues_file(scratch, number), pieces, ENTRIES)
        _save(keys_file(scratch, number), self._index.pieces, KEYS)


def _save(path: str, pieces: list[NDArray[np.void]], dtype: np.dtype[np.void]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    np.save(path, np.concatenate(pieces) if pieces else np.empty(0, dtype))


class _NotedQueue(ConsumeQueue):
    """A queue that takes note of its entries; nothing is written."""

    def __init__(self, topic: str, queue_id: int, config: MessageStoreConfig) -> None:
        super().__init__(OsDisk(), config.store_path_root_dir, topic, queue_id, config)
        self.pieces: list[NDArray[np.void]] = []

    def put(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> None:
        """Take note of an entry, unless the bulk has."""
        if physical_offset + size > self.max_physic_offset:
            columns = ([physical_offset], [size], [tags_code], [queue_offset])
            self.put_many(*(np.array(column, np.int64) for column in columns))

    def put_many(
        self, offsets: Integers, sizes: Integers, tags_codes: Integers, queue_offsets: Integers
    ) -> None:
        """Take note of many entries."""
        entries = np.zeros(len(offsets), ENTRIES)
        entries["offset"], entries["size"] = offsets, sizes
        entries["tags"], entries["queue_offset"] = tags_codes, queue_offsets
        self.pieces.append(entries)
        self.max_physic_offset = int(offsets[-1] + sizes[-1])


class _NotedQueues(ConsumeQueueStore):
    """Queues that take note of their entries; nothing is written."""

    def __init__(self, config: MessageStoreConfig, is_batch_topic: Callable[[str], bool]) -> None:
        super().__init__(OsDisk(), config, is_batch_topic)
        self._one_by_one: dict[tuple[str, int], list[tuple[int, ...]]] = {}

    def _new(self, topic: str, queue_id: int, *, batch: bool) -> AnyQueue:
        queue = super()._new(topic, queue_id, batch=batch)
        if isinstance(queue, ConsumeQueue) and queue.ext is None:
            return _NotedQueue(topic, queue_id, self._config)
        return queue

    def dispatch(self, request: DispatchRequest) -> None:
        """Take note of the entries of a record that needs more than a bulk gives."""
        if request.topic == DELETION_TOPIC:
            self._delete(request)
        queue = self.get_if_usable(request.topic, request.queue_id)
        if queue is None:
            return
        place = (request.physical_offset, request.size, request.tags_code)
        if isinstance(queue, _NotedQueue):
            queue.put(*place, request.queue_offset)
        else:
            batch = (request.store_timestamp, request.batch_base, request.batch_count)
            self._note(request.topic, request.queue_id, (*place, request.queue_offset, False, *batch))
        if names.INNER_MULTI_DISPATCH in request.properties:
            for light, offset in self.light_entries(request):
                self._note(light.topic, light.queue_id, (*place, offset, True, 0, 0, 0))

    def delete_topic(self, topic: str) -> None:
        """Entries stay noted: older ones are in other ranges, too. They are left out when all is known."""

    def _note(self, topic: str, queue_id: int, entry: tuple[int, ...]) -> None:
        self._one_by_one.setdefault((topic, queue_id), []).append(entry)

    def noted(self) -> list[tuple[tuple[str, int], NDArray[np.void]]]:
        """The entries of each queue, in the order of the log."""
        found = []
        for queue in self:
            key = queue.topic, queue.queue_id
            pieces = list(queue.pieces) if isinstance(queue, _NotedQueue) else []
            pieces.append(np.array(self._one_by_one.get(key, []), ENTRIES))
            entries = np.concatenate(pieces)
            found.append((key, entries[np.argsort(entries["offset"], kind="stable")]))
        return found


class _NotedIndex(IndexService):
    """An index that takes note of its keys; nothing is written."""

    def __init__(self, config: MessageStoreConfig) -> None:
        super().__init__(OsDisk(), config.store_path_root_dir, config, SystemClock())
        self.pieces: list[NDArray[np.void]] = []
        self.count = 0

    def put_hashed(self, hashes: Integers, offsets: Integers, timestamps: Integers) -> None:
        """Take note of keys."""
        keys = np.empty(len(hashes), KEYS)
        keys["hash"], keys["offset"], keys["time"] = hashes, offsets, timestamps
        self.pieces.append(keys)
        self.count += len(keys)

"""Which parts of a store to read: ranges of the log, places that queues name, places that the index knows.

The plan is made in the driver, from file names, a few records and, where it pays, the queues:

- by log: ranges of bytes. A range begins at the first record whose magic, size and own physical offset
  agree; the record that runs past its end is its own. Ranges that have nothing of the wanted time are left
  out.
- by queues: where topics or queues are named and hold a small part of the log, their entries say where the
  records lie. The entries of all queues are taken together, by windows of the log, so that no window is
  read twice.
- by index: where keys are named.

Queues and index are asked only where they can be trusted: a store that was closed well or that a broker has
open. What they do not know yet, the newest end of the log, is always read as ranges.

A plan ends where the log ends now: what a broker writes meanwhile is not in it. What it deletes meanwhile
is `store_read`'s concern.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kourou.errors import ConfigError
from kourou.inspect.directory import LogFile, StoreDirectory
from kourou.inspect.log_scan import log_end
from kourou.inspect.queue_files import BLANK_SIZE, QueueFiles
from kourou.message.scan import records as scan
from kourou.properties_file import read_properties_file
from kourou.spark.places import local_place
from kourou.spark.read.wanted import Wanted
from kourou.store.config import MessageStoreConfig

# A task costs Spark ten milliseconds: ranges are as long as Spark's own of Parquet where there are many, and
# shorter where there would be fewer than RANGES.
RANGE_BYTES, SHORT_RANGE_BYTES = 128 * 1024 * 1024, 64 * 1024 * 1024
RANGES = 8
# Queues are read where they name less than this part of the log: gathering costs more than reading on.
QUEUES_SHARE = 0.25
# Store times rise with the log, but for clocks that were set back; ranges are left out with this to spare.
CLOCK_SLACK_MS = 10 * 60 * 1000
# More keys than this are looked for in the log itself.
MAX_INDEX_KEYS = 1000

READ_BY = ("auto", "log", "queues", "index")


@dataclass(frozen=True, slots=True)
class StoreRange:
    """Bytes of one file of a log: records that begin within them."""

    root: str
    path: str
    base: int
    start: int  # positions in the file
    end: int

    @property
    def size_bytes(self) -> int:
        """How much of the log is read."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """Records at known places of a log, with their sizes, as packed arrays in the order of the log."""

    root: str
    offsets: bytes  # int64
    sizes: bytes  # int32; 0 where only the record itself says it

    @property
    def size_bytes(self) -> int:
        """How much of the log is read, as far as that is known."""
        return int(np.frombuffer(self.sizes, np.int32).sum())


StorePart = StoreRange | StorePlaces


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How to read store directories."""

    paths: tuple[str, ...]
    config_file: str | None = None
    broker_name: str | None = None
    range_bytes: int | None = None  # by the size of the log
    read_by: str = "auto"

    def config(self) -> MessageStoreConfig | None:
        """The configuration of the store, where a broker.conf was named."""
        return None if self.config_file is None else MessageStoreConfig.load(self.config_file)

    def broker(self) -> str | None:
        """The name of the broker whose store it is, as far as anybody says it."""
        if self.broker_name is not None or self.config_file is None:
            return self.broker_name
        return read_properties_file(self.config_file).get("brokerName")

    def open(self, path: str) -> StoreDirectory:
        """A store directory."""
        return StoreDirectory.open(path, self.config())


def plan(options: StoreOptions, wanted: Wanted) -> list[StorePart]:
    """The parts that hold everything that is wanted."""
    if wanted.nothing:
        return []
    parts: list[StorePart] = []
    for path in options.paths:
        with options.open(path) as store:
            parts += _Planner(store, wanted, options).parts()
    return parts


def plan_behind(options: StoreOptions, path: str, begin: int, wanted: Wanted) -> tuple[list[StorePart], int]:
    """The ranges of one log from an offset on, and where it ends now: for who goes on where it was."""
    with options.open(path) as store:
        planner = _Planner(store, wanted, options)
        return list(planner.ranges(max(begin, store.min_offset), planner.end)), planner.end


class _Planner:
    def __init__(self, store: StoreDirectory, wanted: Wanted, options: StoreOptions) -> None:
        self._store = store
        self._wanted = wanted
        self._options = options
        self.end = log_end(store).offset
        by_size = max((self.end - store.min_offset) // RANGES, SHORT_RANGE_BYTES)
        self._range_bytes = options.range_bytes or min(by_size, RANGE_BYTES)

    def parts(self) -> list[StorePart]:
        """The parts that hold everything that is wanted."""
        read_by = self._options.read_by
        if read_by not in READ_BY:
            raise ConfigError(f"option readBy={read_by}: it is one of {', '.join(READ_BY)}")
        if read_by == "auto" and not self._is_trusted():
            read_by = "log"
        found: list[StorePart] | None = None
        if read_by in ("auto", "index"):
            found = self._by_index(sure=read_by == "index")
        if found is None and read_by in ("auto", "queues"):
            found = self._by_queues(QUEUES_SHARE if read_by == "auto" else 1.0)
        return list(self.ranges(0, self.end)) if found is None else found

    def _is_trusted(self) -> bool:
        """Whether queues and index are whole: closed well or in the hands of a broker, and no key missing."""
        in_order = not self._store.aborted or self._store.lock_holder is not None
        return in_order and not self._store.lacks_keys

    # By log

    def ranges(self, begin: int, end: int) -> Iterator[StoreRange]:
        """The log between two offsets, cut into ranges."""
        for file in self._store.log_files:
            low = max(begin - file.base, 0)
            high = min(end - file.base, file.size)
            if low < high and self._may_have_time(file):
                yield from self._ranges_of(file, low, high)

    def _ranges_of(self, file: LogFile, low: int, high: int) -> Iterator[StoreRange]:
        step = self._range_bytes
        starts = list(range(low, high, step))
        times = [self._time_at(file, start, high) for start in starts] if self._wanted.has_time else []
        for number, start in enumerate(starts):
            if times and not self._overlaps(times[number], *times[number + 1 : number + 2]):
                continue
            yield StoreRange(self._store.root, file.path, file.base, start, min(start + step, high))

    def _may_have_time(self, file: LogFile) -> bool:
        if not self._wanted.has_time:
            return True
        following = [other for other in self._store.log_files if other.base > file.base][:1]
        later = [self._time_at(other, 0, other.size) for other in following]
        return self._overlaps(self._time_at(file, 0, file.size), *later)

    def _overlaps(self, first_ms: int | None, next_first_ms: int | None = None) -> bool:
        wanted = self._wanted
        if first_ms is not None and first_ms - CLOCK_SLACK_MS >= wanted.end_ms:
            return False
        return next_first_ms is None or next_first_ms + CLOCK_SLACK_MS >= wanted.begin_ms

    def _time_at(self, file: LogFile, start: int, end: int) -> int | None:
        """The store time of the first record from there on."""
        view = self._store.view(file.path)
        position = scan.first_record(view, start, end, base_offset=file.base)
        if position is None:
            return None
        return int(scan.headers(view, np.array([position]))["store_timestamp"][0])

    # By queues

    def _by_queues(self, share: float) -> list[StorePart] | None:
        wanted = self._wanted
        if wanted.topics is None:
            return None
        queues = [
            queue
            for queue in self._store.queues
            if queue.topic in wanted.topics
            and (wanted.queue_ids is None or queue.queue_id in wanted.queue_ids)
        ]
        entries = [self._entries(queue) for queue in queues]
        offsets = np.concatenate([found["offset"] for found in entries] or [np.empty(0)]).astype(np.int64)
        sizes = np.concatenate([found["size"] for found in entries] or [np.empty(0)]).astype(np.int32)
        if sizes.sum(dtype=np.int64) > share * max(self.end - self._store.min_offset, 1):
            return None
        order = np.argsort(offsets, kind="stable")
        parts = list(self._windows(offsets[order], sizes[order]))
        return [*parts, *self.ranges(self._known_end(), self.end)]

    def _entries(self, queue: QueueFiles) -> NDArray[Any]:
        """The entries of a queue that point into the log; without inner batches, only of wanted offsets."""
        low, high = queue.first, queue.end
        if not queue.batch:
            low, high = max(low, self._wanted.first_offset), min(high, self._wanted.last_offset + 1)
        pieces = []
        for file in queue.files:
            first = max(low - file.first, 0)
            last = min(queue.used(file), high - file.first)
            pieces.append(queue.room(file)[first : max(first, last)])
        found: NDArray[Any] = np.concatenate(pieces) if pieces else np.empty(0, queue.dtype)
        in_log = (found["offset"] >= self._store.min_offset) & (found["offset"] < self.end)
        real: NDArray[Any] = found[in_log & (found["size"] > 0) & (found["size"] != BLANK_SIZE)]
        return real

    def _windows(self, offsets: NDArray[np.int64], sizes: NDArray[np.int32]) -> Iterator[StorePlaces]:
        if len(offsets) == 0:
            return
        window = np.cumsum(sizes, dtype=np.int64) // self._range_bytes
        for rows in np.split(np.arange(len(offsets)), np.flatnonzero(np.diff(window)) + 1):
            yield StorePlaces(self._store.root, offsets[rows].tobytes(), sizes[rows].tobytes())

    def _known_end(self) -> int:
        """Up to there the queues know all records."""
        ends = [sum(entry) for queue in self._store.queues if (entry := queue.last_entry)]
        return max(ends, default=self._store.min_offset)

    # By index

    def _by_index(self, *, sure: bool) -> list[StorePart] | None:
        keys = self._wanted.index_keys
        store = self._store
        if keys is None or len(keys) > MAX_INDEX_KEYS or not store.index_paths:
            return None
        if store.index_size_problem is not None:
            return None
        files = [file for path in store.index_paths if (file := store.index_file(path)) and file.count > 1]
        if not files or (len(files) < len(store.index_paths) - 1 and not sure):
            return None
        found: set[int] = set()
        for file in files:
            for topic in self._topics():
                for key in keys:
                    found.update(file.query(f"{topic}#{key}", file.max_entries, 0, (1 << 63) - 1))
        begin, end = files[0].begin_offset, files[-1].end_offset + 1
        offsets = np.array(sorted(o for o in found if store.min_offset <= o < self.end), np.int64)
        places = self._windows(offsets, np.zeros(len(offsets), np.int32))
        # What is older than the index or newer than its last entry is looked for in the log.
        return [*self.ranges(store.min_offset, begin), *places, *self.ranges(end, self.end)]

    def _topics(self) -> Sequence[str]:
        if self._wanted.topics is not None:
            return sorted(self._wanted.topics)
        return sorted({queue.topic for queue in self._store.queues} | (self._store.topic_names or set()))


def split_paths(text: str) -> tuple[str, ...]:
    """The paths in an option: one, several with commas, or a JSON array as Spark makes of a list."""
    import orjson

    if text.startswith("["):
        paths = [str(item) for item in orjson.loads(text)]
    else:
        paths = [part.strip() for part in text.split(",")]
    return tuple(str(local_place(os.path.expanduser(path), "path")) for path in paths if path)

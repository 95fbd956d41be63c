"""QueueFiles: the entries of one queue on disk, a ConsumeQueue or a BatchConsumeQueue, for reading only.

The layouts are told in consume_queue.py and batch_consume_queue.py. An entry is found here by its place in
the file, whatever the file's size and whatever stands in the entries before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kourou.inspect.file_sizes import OFFSET_NAME
from kourou.store.queue import batch_consume_queue, consume_queue
from kourou.store.queue.consume_queue import QueueEntry

if TYPE_CHECKING:
    from kourou.inspect.directory import StoreDirectory

# The size that stands in the entries before the first real one, where a queue does not begin at 0.
BLANK_SIZE = 0x7FFFFFFF


class QueueFile(NamedTuple):
    """A file of a queue: where it is, the index of its first entry, and how many entries it has room for."""

    path: str
    first: int
    capacity: int


class QueueFiles:
    """One queue."""

    def __init__(self, store: StoreDirectory, path: str, topic: str, queue_id: int, *, batch: bool) -> None:
        self._store = store
        self.path = path
        self.topic = topic
        self.queue_id = queue_id
        self.batch = batch
        self.dtype = batch_consume_queue.ENTRY_DTYPE if batch else consume_queue.ENTRY_DTYPE
        self.unit = self.dtype.itemsize
        self._used: dict[int, int] = {}  # by the first entry of a file

    def __str__(self) -> str:
        return f"{self.topic}-{self.queue_id}"

    @cached_property
    def files(self) -> list[QueueFile]:
        """The files in order, empty ones left out."""
        found = []
        disk = self._store.disk
        for name in disk.list(self.path):
            path = f"{self.path}/{name}"
            if OFFSET_NAME.fullmatch(name) and (size := disk.size(path)) > 0:
                found.append(QueueFile(path, int(name) // self.unit, size // self.unit))
        return found

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self._store.disk.size(file.path) for file in self.files)

    def room(self, file: QueueFile) -> NDArray[Any]:
        """All places of a file, used or not, as they stand on disk."""
        return np.frombuffer(self._store.view(file.path), self.dtype, file.capacity)

    def used(self, file: QueueFile) -> int:
        """How many entries a file holds, if they are in order: up to the first whose size is none."""
        found = self._used.get(file.first)
        if found is None:
            sizes = self.room(file)["size"]
            most = min(-(-self._store.data_end(file.path) // self.unit), file.capacity)
            found = bisect_left(range(most), True, key=lambda at: bool(sizes[at] <= 0))
            self._used[file.first] = found
        return found

    @cached_property
    def end(self) -> int:
        """The index after the last entry."""
        for file in reversed(self.files):
            if used := self.used(file):
                return file.first + used
        return self.files[0].first if self.files else 0

    def entry(self, index: int) -> NDArray[Any] | None:
        """The entry at an index, None if the queue has no room for it."""
        for file in reversed(self.files):
            if file.first <= index:
                at = index - file.first
                return self.room(file)[at] if at < file.capacity else None
        return None

    @cached_property
    def first(self) -> int:
        """The index of the first entry that points into the log."""
        low = self._store.min_offset
        for file in self.files:
            rows = self.room(file)[: self.used(file)]
            real = np.flatnonzero((rows["offset"] >= low) & (rows["size"] != BLANK_SIZE))
            if len(real):
                return file.first + int(real[0])
        return self.end

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that is still in the log."""
        entry = self.entry(self.first) if self.batch and self.first < self.end else None
        return self.first if entry is None else int(entry["base"])

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message."""
        entry = self.entry(self.end - 1) if self.batch and self.first < self.end else None
        return self.end if entry is None else int(entry["base"]) + int(entry["count"])

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """(physical offset, size) of the last entry; None for a queue that has nothing in the log."""
        entry = self.entry(self.end - 1) if self.first < self.end else None
        return None if entry is None else (int(entry["offset"]), int(entry["size"]))

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[QueueEntry]:
        """The entries of the messages from queue offset `start` up to `stop`, which are in the log."""
        for file in self.files:
            first = max(self.first - file.first, 0)
            used = self.used(file)
            if self.batch:
                yield from self._iterate_batches(self.room(file)[first:used], start, stop)
                continue
            first = max(first, start - file.first)
            if stop is not None:
                used = min(used, stop - file.first)
            rows = self.room(file)[first : max(used, first)].tolist()
            for number, (offset, size, tags) in enumerate(rows, file.first + first):
                yield QueueEntry(number, offset, size, tags)

    def _iterate_batches(self, rows: NDArray[Any], start: int, stop: int | None) -> Iterator[QueueEntry]:
        for offset, size, tags, _, base, count, _, _ in rows.tolist():
            if base + count > start and (stop is None or base < stop):
                yield QueueEntry(base, offset, size, tags, count)

    def position(self, index: int) -> tuple[str, int]:
        """(path, byte in that file) of the entry at an index."""
        for file in reversed(self.files):
            if file.first <= index:
                return file.path, (index - file.first) * self.unit
        return self.path, 0

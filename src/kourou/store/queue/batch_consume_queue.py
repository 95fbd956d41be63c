"""BatchConsumeQueue: a queue whose records each hold several messages (topics with queue.type=BatchCQ).

Layout: files of `mapperFileSizeBatchConsumeQueue` bytes in batchconsumequeue/<topic>/<queueId>/, an array
of entries, one for each record. Big-endian:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | physical offset of the record |
| 8      | 4    | size of the record |
| 12     | 8    | tags code |
| 20     | 8    | store time |
| 28     | 8    | queue offset of its first message |
| 36     | 2    | how many messages it holds |
| 38     | 4    | compacted offset, -1 |
| 42     | 4    | reserved, 0 |

The index of an entry is not a queue offset here: entries are searched by their first queue offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from kourou.store.config import MessageStoreConfig
from kourou.store.log.disk import Disk
from kourou.store.log.mapped_file import MappedFile, MappedFileQueue
from kourou.store.queue.consume_queue import RESERVE_STEP, QueueEntry, Run, StoreTimes, begin_anew
from kourou.store.status import BoundaryType

ENTRY = struct.Struct(">qiqqqhii")
ENTRY_SIZE = ENTRY.size
ENTRY_DTYPE = np.dtype(
    [
        ("offset", ">i8"), ("size", ">i4"), ("tags", ">i8"), ("time", ">i8"),
        ("base", ">i8"), ("count", ">i2"), ("compacted", ">i4"), ("reserved", ">i4"),
    ]
)  # fmt: skip


class BatchConsumeQueue:
    """The entries of one batch queue."""

    unit_size = ENTRY_SIZE
    cq_type = "BatchCQ"
    ext = None

    def __init__(
        self,
        disk: Disk,
        root: str,
        topic: str,
        queue_id: int,
        config: MessageStoreConfig,
        *,
        writable: bool = True,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = MappedFileQueue(
            disk,
            f"{root}/batchconsumequeue/{topic}/{queue_id}",
            config.mapper_file_size_batch_consume_queue,
            writable=writable,
            reserve_step=RESERVE_STEP,
        )
        self.began_at = -1  # where in the log it begins, if it was seen to begin for a second time
        self.max_physic_offset = -1  # of the newest record that has an entry (its begin, not its end)
        self.min_offset = -1
        self.max_offset = 0
        self.next_offset = 0

    def put_batch(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, base: int, count: int
    ) -> None:
        """Append the entry of a record; one that is there already is left alone."""
        if physical_offset <= self.max_physic_offset:
            return
        if base == 0 and self.max_offset:
            begin_anew(self, physical_offset)
        file = self.files.last_writable(self.files.max_offset)
        file.append(ENTRY.pack(physical_offset, size, tags_code, store_timestamp, base, count, -1, 0))
        self.max_physic_offset = physical_offset
        self.max_offset = base + count
        if self.min_offset == -1:
            self._revise_min()

    def take_back(self, physical_offset: int) -> None:
        """Remove the last entry, if it is that of a record which is not to be seen after all."""
        file = self.files.last()
        if file is not None and file.wrote and self.max_physic_offset == physical_offset:
            file.wrote -= ENTRY_SIZE
            file.view[file.wrote : file.wrote + ENTRY_SIZE] = bytes(ENTRY_SIZE)
            self.max_physic_offset = physical_offset - 1
            self._revise()

    def _entries(self, file: MappedFile) -> np.ndarray:
        return np.frombuffer(file.view, ENTRY_DTYPE, file.read_position // ENTRY_SIZE)

    def _place(self, queue_offset: int) -> tuple[MappedFile, int] | None:
        """The file and the index in it of the entry that holds a queue offset."""
        if queue_offset >= self.max_offset:
            return None
        for file in reversed(self.files.files):
            bases = self._entries(file)["base"]
            if len(bases) and bases[0] <= queue_offset:
                return file, int(np.searchsorted(bases, queue_offset, side="right")) - 1
        return None

    def read_run(self, queue_offset: int, most: int, *, with_ext: bool) -> Run | None:
        """Some entries, from the one that holds `queue_offset` on; None where there is none. They have no
        ConsumeQueueExt."""
        place = self._place(queue_offset)
        if place is None:
            return None
        file, index = place
        count = min(most, file.read_position // ENTRY_SIZE - index)
        if count <= 0:
            return None
        entries = ENTRY.iter_unpack(file.view[index * ENTRY_SIZE : (index + count) * ENTRY_SIZE])
        offsets, sizes, codes, _, bases, counts, _, _ = zip(*entries)
        return Run(bases, offsets, sizes, codes, False, counts)

    def iterate(self, queue_offset: int) -> Iterator[QueueEntry]:
        """Entries from the one that holds `queue_offset` on, up to the end of the queue."""
        place = self._place(queue_offset)
        if place is None:
            return
        first, index = place
        for file in self.files.files:
            if file.base < first.base:
                continue
            start = index if file is first else 0
            end = file.read_position // ENTRY_SIZE * ENTRY_SIZE
            for offset, size, tags, _, base, count, _, _ in ENTRY.iter_unpack(
                file.view[start * ENTRY_SIZE : end]
            ):
                yield QueueEntry(base, offset, size, tags, count)

    def get(self, queue_offset: int) -> QueueEntry | None:
        """The entry that holds a queue offset."""
        return next(self.iterate(queue_offset), None)

    def roll_next_file(self, queue_offset: int) -> int:
        """Files do not say where the next begins: the queue offset itself plus one."""
        return queue_offset + 1

    def offset_by_time(self, timestamp: int, boundary: BoundaryType, times: StoreTimes) -> int:
        """The queue offset of the first (LOWER) or last (UPPER) record of a store time, or of the next."""
        chosen = None
        for file in self.files.files:
            entries = self._entries(file)
            if len(entries) and (chosen is None or entries["time"][0] <= timestamp):
                chosen = entries
        if chosen is None:
            return -1
        stored = chosen["time"]
        if timestamp >= stored[-1]:
            return int(chosen["base"][-1])
        place = int(np.searchsorted(stored, timestamp, side="left"))
        if boundary is BoundaryType.UPPER and stored[place] == timestamp:
            place = int(np.searchsorted(stored, timestamp, side="right")) - 1
        return int(chosen["base"][place])

    @property
    def last_physical_end(self) -> int:
        """End of the record of the last entry, -1 for an empty queue."""
        file = self.files.last()
        if file is None or file.wrote < ENTRY_SIZE:
            return -1
        offset, size, *_ = ENTRY.unpack_from(file.view, file.wrote - ENTRY_SIZE)
        return int(offset + size)

    def load(self, *, after_crash: bool = False) -> None:
        """Map the files."""
        self.files.load(after_crash=after_crash)

    def recover(self) -> None:
        """Find the end: from the third last file on, up to the first entry that is none."""
        files = self.files.files
        if not files:
            return
        end = 0
        for file in files[max(len(files) - 3, 0) :]:
            entries = np.frombuffer(file.view, ENTRY_DTYPE, file.size // ENTRY_SIZE)
            good = _is_entry(entries)
            valid = len(entries) if good.all() else int(np.argmin(good))
            if valid:
                self.max_physic_offset = int(entries["offset"][valid - 1])
            end = file.base + valid * ENTRY_SIZE
            if valid < len(entries):
                break
        self.files.set_where(end)
        self._revise()

    def truncate_dirty(self, physical_offset: int) -> int:
        """Drop entries that point at or behind the end of the log; how many messages went."""
        before = self.max_offset
        self.max_physic_offset = physical_offset - 1
        while (file := self.files.last()) is not None:
            entries = self._entries(file)
            good = _is_entry(entries) & (entries["offset"] < physical_offset)
            keep = len(entries) if good.all() else int(np.argmin(good))
            if keep == 0 and (len(entries) or len(self.files.files) > 1):
                del entries
                self.files.remove_last()
                continue
            if keep < len(entries):
                file.set_position(keep * ENTRY_SIZE)
                file.clear_tail()
            if keep:
                self.max_physic_offset = int(entries["offset"][keep - 1])
            break
        self.files.flushed_where = min(self.files.flushed_where, self.files.max_offset)
        self.files.committed_where = min(self.files.committed_where, self.files.max_offset)
        self._revise()
        return before - self.max_offset

    def _revise(self) -> None:
        self._revise_min()
        self.max_offset = 0
        for file in reversed(self.files.files):
            entries = self._entries(file)
            if len(entries):
                self.max_offset = int(entries["base"][-1]) + int(entries["count"][-1])
                break

    def _revise_min(self) -> None:
        self.min_offset = -1
        if self.files.files:
            entries = self._entries(self.files.files[0])
            if len(entries):
                self.min_offset = int(entries["base"][0])

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum to the first record that is still in the log."""
        self._revise_min()
        if self.files.files:
            entries = self._entries(self.files.files[0])
            gone = int(np.searchsorted(entries["offset"], min_physical_offset))
            if gone:
                self.min_offset = int(entries["base"][gone - 1]) + int(entries["count"][gone - 1])

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the files that point only to records that are gone."""
        count = self.files.remove_files(self.files.expired_by_offset(min_physical_offset, ENTRY_SIZE))
        self.correct_min_offset(min_physical_offset)
        return count

    def flush(self, least_pages: int = 0) -> None:
        """Bring entries to the disk."""
        self.files.flush(least_pages)

    def close(self) -> None:
        """Let go of the files."""
        self.files.close()

    def destroy(self) -> None:
        """Remove the queue from the disk."""
        self.max_physic_offset = self.min_offset = -1
        self.max_offset = self.next_offset = 0
        self.files.destroy()

    def __str__(self) -> str:
        return f"{self.topic}-{self.queue_id}"


def _is_entry(entries: np.ndarray) -> np.ndarray:
    return (entries["offset"] >= 0) & (entries["size"] > 0) & (entries["base"] >= 0) & (entries["count"] > 0)

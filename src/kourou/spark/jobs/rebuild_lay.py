"""The second half of a rebuild, in tasks: files of queues and of the index, from what the first half noted.

Each queue is one piece of work, whose entries come from the files of all ranges in turn. Each file of the
index is one: how many keys it holds is known, so where it begins is too. Inside a file of the index keys
go in one after the other, because each is chained to the one before it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kourou.inspect.rebuild import FOLDERS, anew_note
from kourou.spark.jobs.rebuild_scan import ENTRIES, StoreJob, keys_file, queues_file
from kourou.store.index.index_file import IndexFile
from kourou.store.log.disk import OsDisk
from kourou.store.queue.batch_consume_queue import BatchConsumeQueue
from kourou.store.queue.consume_queue import ConsumeQueue
from kourou.store.queue.consume_queue_ext import ExtUnit
from kourou.store.queue.queue_store import ConsumeQueueStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueWork:
    """A queue to lay down: its slices are (range, first entry, entries)."""

    topic: str
    queue_id: int
    slices: tuple[tuple[int, int, int], ...]
    log_begin: int  # where its topic was deleted: what is older has no entry
    log_end: int

    @property
    def entries(self) -> int:
        """How many entries it has."""
        return sum(count for _, _, count in self.slices)


@dataclass(frozen=True, slots=True)
class IndexWork:
    """A file of the index to lay down: its slices are (range, first key, keys).

    The file begins behind the last key of the file before, which is named by its slice.
    """

    name: str
    slices: tuple[tuple[int, int, int], ...]
    before: tuple[int, int] | None  # range and key


@dataclass(slots=True)
class Laid:
    """What a piece of work made; notes have the offset that they speak of."""

    queue: tuple[str, int] | None = None
    index_entries: int = 0
    notes: tuple[tuple[int, str], ...] = ()


def lay_queue(job: StoreJob, work: QueueWork) -> Laid:
    """Write the files of a queue."""
    for folder in FOLDERS[:3]:  # of a task that failed
        shutil.rmtree(f"{job.out}/{folder}/{work.topic}/{work.queue_id}", ignore_errors=True)
    pieces = [
        np.load(queues_file(job.scratch, number), mmap_mode="r")[first : first + count]
        for number, first, count in work.slices
    ]
    entries = np.concatenate(pieces) if pieces else np.empty(0, ENTRIES)
    entries = entries[(entries["offset"] >= work.log_begin) & (entries["offset"] < work.log_end)]
    if len(entries) == 0:
        return Laid()
    queues = ConsumeQueueStore(OsDisk(), job.config, job.batch_topics.__contains__)
    queue = queues.get_or_create(work.topic, work.queue_id)
    notes: list[tuple[int, str]] = []
    try:
        if isinstance(queue, BatchConsumeQueue):
            _put_batches(queue, entries)
        else:
            _put(queue, entries)
        if queue.began_at >= 0:
            notes.append((queue.began_at, anew_note(queue)))
        queue.flush()
    finally:
        queues.close()
    return Laid((work.topic, work.queue_id), 0, tuple(notes))


def _put(queue: ConsumeQueue, entries: NDArray[np.void]) -> None:
    if queue.ext is None:
        columns = (entries[name].astype(np.int64) for name in ("offset", "size", "tags", "queue_offset"))
        queue.put_many(*columns)
        return
    for offset, size, tags, queue_offset, light, time_ms, _, _ in entries.tolist():
        if light:
            queue.put(offset, size, tags, queue_offset)
        else:
            queue.put_ext(offset, size, ExtUnit(tags, time_ms), queue_offset)


def _put_batches(queue: BatchConsumeQueue, entries: NDArray[np.void]) -> None:
    for offset, size, tags, _, _, time_ms, base, count in entries.tolist():
        if base < 0:
            log.error("%s: record at %d is no inner batch", queue, offset)
        else:
            queue.put_batch(offset, size, tags, time_ms, base, count)


def lay_index(job: StoreJob, work: IndexWork) -> Laid:
    """Write one file of the index."""
    path = f"{job.out}/index/{work.name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    OsDisk().remove(path)  # of a task that failed
    begin_offset = begin_timestamp = 0
    if work.before is not None:
        number, key = work.before
        last = np.load(keys_file(job.scratch, number), mmap_mode="r")[key]
        begin_offset, begin_timestamp = int(last["offset"]), int(last["time"])
    file = IndexFile(
        OsDisk(), path, job.config.max_hash_slot_num, job.config.max_index_num,
        begin_offset=begin_offset, begin_timestamp=begin_timestamp,
    )  # fmt: skip
    try:
        for keys in _keys(job, work):
            file.put_hashed(*(keys[name].astype(np.int64) for name in ("hash", "offset", "time")))
        file.flush()
        return Laid(index_entries=file.count - 1)
    finally:
        file.close()


def _keys(job: StoreJob, work: IndexWork) -> Iterator[NDArray[np.void]]:
    for number, first, count in work.slices:
        yield np.load(keys_file(job.scratch, number), mmap_mode="r")[first : first + count]

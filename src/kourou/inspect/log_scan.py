"""A walk over the whole log, in stretches of many records, that does not stop at damage.

`walk` gives, in order: a Stretch for records that are whole, a Blank at the end of a file, a Break where no
record is although the file goes on. What a Break means is for the caller to say: the end of the log,
if nothing but zeros follows; a torn tail, if no record follows; damage, if one does.

Records are found by message/scan/records.py, many at a time. Memory: the arrays of one stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kourou.inspect.directory import LogFile, StoreDirectory
from kourou.message.codec import INT
from kourou.message.scan import records as scan
from kourou.store.log.mapped_file import last_used

# Long enough that the fixed cost of a stretch does not count, short enough that its arrays do not either.
STRETCH_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Stretch:
    """Whole records, one after the other."""

    file: LogFile
    view: memoryview  # of the file
    records: scan.Records

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where the records lie in the log."""
        return self.records.positions + self.file.base

    @property
    def begin(self) -> int:
        """Where the first lies in the log."""
        return self.file.base + int(self.records.positions[0])

    @property
    def end(self) -> int:
        """Where the last ends."""
        return self.file.base + int(self.records.positions[-1] + self.records.sizes[-1])


@dataclass(frozen=True)
class Blank:
    """The blank record that fills a file's tail."""

    file: LogFile
    position: int
    size: int  # as it says


@dataclass(frozen=True)
class Break:
    """A place in a file where no record is."""

    file: LogFile
    position: int
    reason: str
    resume: int  # where the next record of this file lies; the end of the file where there is none
    dirty: int  # after the last byte between the two that is not zero; `position` where all are

    @property
    def empty(self) -> bool:
        """Whether there is nothing but zeros, as after the end of a log."""
        return self.dirty == self.position


def walk(
    store: StoreDirectory,
    *,
    check_crc: bool = True,
    start: int = 0,
    stretch_bytes: int = STRETCH_BYTES,
) -> Iterator[Stretch | Blank | Break]:
    """Everything in the log from the file that holds `start` on, and in that file from `start` on."""
    for file in store.log_files:
        if file.base + file.size > start:
            yield from _walk_file(store, file, max(start - file.base, 0), check_crc, stretch_bytes)


def _walk_file(
    store: StoreDirectory, file: LogFile, position: int, check_crc: bool, stretch_bytes: int
) -> Iterator[Stretch | Blank | Break]:
    view = store.view(file.path)
    while position < len(view):
        found = scan.find_records(
            view, position, min(position + stretch_bytes, len(view)), base_offset=file.base
        )
        records, stop = scan.read_records(view, found, check_crc=check_crc)
        if len(records):
            yield Stretch(file, view, records)
        position = stop.position
        if stop.reason == scan.END:
            continue
        if stop.reason == scan.BLANK:
            yield Blank(file, position, INT.unpack_from(view, position)[0])
            return
        broken = _describe(file, view, store.data_end(file.path), stop)
        yield broken
        position = broken.resume


def _describe(file: LogFile, view: memoryview, data_end: int, stop: scan.Stop) -> Break:
    position = stop.position
    reason = f"{stop.reason}: {stop.detail}" if stop.detail else stop.reason
    dirty = last_used(view, position, data_end)
    found = scan.first_record(view, position + 1, dirty, base_offset=file.base) if dirty > position else None
    if found is None:
        return Break(file, position, reason, len(view), dirty)
    return Break(file, position, reason, found, last_used(view, position, found))


class LogEnd(NamedTuple):
    """Where a log ends."""

    offset: int
    ending: Break | None  # what ends it there; None for the end of a file
    records_behind_queues: int  # after the newest that a queue knows
    last_store_time: int  # of those records, 0 where there are none


def log_end(store: StoreDirectory) -> LogEnd:
    """Where the log ends, found without reading it all.

    It begins after the newest record that a queue knows, or with the last file that begins with a record.
    """
    end, ending, records, last_time = _near_the_end(store), None, 0, 0
    for part in walk(store, start=end):
        if isinstance(part, Stretch):
            end, ending = part.end, None
            records += len(part.records)
            last_time = int(part.records.header["store_timestamp"][-1])
        elif isinstance(part, Break) and ending is None:
            ending = part
    return LogEnd(end, ending, records, last_time)


def _near_the_end(store: StoreDirectory) -> int:
    last_entries = sorted((entry for queue in store.queues if (entry := queue.last_entry)), reverse=True)
    for offset, size in last_entries:
        message = store.message(offset, check_crc=True)
        if message is not None and message.store_size == size:
            return offset + size
    for file in reversed(store.log_files):
        if store.message(file.base) is not None:
            return file.base
    return store.min_offset

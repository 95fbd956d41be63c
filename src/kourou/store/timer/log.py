"""TimerLog: the units of all timer messages, in the order in which they came (TimerLog).
Layout: store/timer/files.py.

`recover_timers` makes log and wheel agree after any end, good or bad.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kourou.store.log.disk import Disk
from kourou.store.log.mapped_file import MappedFile, MappedFileQueue
from kourou.store.timer.files import (
    BLANK,
    BLANK_MAGIC,
    DELETE,
    UNIT,
    UNIT_DTYPE,
    UNIT_SIZE,
    TimerCheckpoint,
    TimerUnit,
    is_unit,
)
from kourou.store.timer.wheel import TimerWheel

log = logging.getLogger(__name__)

_RESERVE_STEP = 4 * 1024 * 1024  # 80,000 units


class TimerLog:
    """The files of a timer log."""

    def __init__(self, disk: Disk, directory: str, file_size: int) -> None:
        self.files = MappedFileQueue(disk, directory, file_size, reserve_step=_RESERVE_STEP)

    def append(
        self,
        previous: int,
        magic: int,
        enqueue_time: int,
        delayed_time: int,
        physical_offset: int,
        record_size: int,
        topic_hash: int,
    ) -> int:
        """Append a unit; its position."""
        file = self.files.last_writable()
        if file.size - file.wrote < UNIT_SIZE + BLANK.size:
            file.append(BLANK.pack(file.size - file.wrote, 0, BLANK_MAGIC))
            file.wrote = file.size
            file = self.files.last_writable()
        position = file.base + file.wrote
        file.append(
            UNIT.pack(
                UNIT_SIZE, previous, magic, enqueue_time, delayed_time, physical_offset, record_size,
                topic_hash, 0,
            )
        )  # fmt: skip
        return position

    def read(self, position: int) -> TimerUnit | None:
        """The unit at a position; None where there is none."""
        file = self.files.find(position)
        if file is None or not file.available or position - file.base + UNIT_SIZE > file.wrote:
            return None
        unit = UNIT.unpack_from(file.view, position - file.base)
        return TimerUnit(position, *unit) if is_unit(unit[0], unit[2], unit[6]) else None

    def units_of(self, file: MappedFile) -> np.ndarray:
        """The units of a file up to the first thing that is none."""
        units = np.frombuffer(file.view, UNIT_DTYPE, file.wrote // UNIT_SIZE)
        is_other = (units["size"] != UNIT_SIZE) | (units["magic"] | 0xF != 0xF) | (units["record_size"] <= 0)
        others = np.flatnonzero(is_other)
        return units[: others[0]] if len(others) else units

    def count_pending(self, file: MappedFile, read_ms: int, counted: dict[int, int]) -> None:
        """Add to the counts by hash of the topic what of a file is due from a time on."""
        units = self.units_of(file)
        due_ms = units["enqueue_time"].astype(np.int64) + units["delayed_time"]
        units = units[due_ms >= read_ms]
        codes, numbers = np.unique(units["topic_hash"], return_inverse=True)
        changes = np.where(units["magic"] & DELETE, -1, 1)
        for code, change in zip(codes.tolist(), np.bincount(numbers, changes, len(codes)).tolist()):
            counted[code] = counted.get(code, 0) + int(change)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the files, never the last, all of whose records are gone from the log; how many."""
        expired = []
        size = self.files.file_size
        last_unit = size - (size - BLANK.size) % UNIT_SIZE - BLANK.size - UNIT_SIZE
        for file in self.files.files[:-1]:
            unit = self.read(file.base + last_unit)
            if unit is None or unit.physical_offset >= min_physical_offset:
                break
            expired.append(file)
        return self.files.remove_files(expired)


class TimerRecovery(NamedTuple):
    """What is known of a timer log when it is opened."""

    end: int  # of the log
    entered: set[int]  # physical offsets of records with units, if the log lost some that were vouched for
    last_physical_offset: int  # of the last unit, -1 where there is none
    has_lost: bool  # whether units are gone that the checkpoint may speak of: to be entered again


def recover_timers(
    wheel: TimerWheel, timer_log: TimerLog, checkpoint: TimerCheckpoint, *, rebuild: bool = False
) -> TimerRecovery:
    """Open the log, find its end and have the wheel know of every unit that is still to come.

    What the checkpoint vouches for is in the wheel; Java looks one file further back, and so do we. With
    `rebuild`, or a wheel that is new, the whole log is read. Units behind that may be torn, and nothing in
    them tells: they are cut off, and entered again from their queue.
    """
    files = timer_log.files
    files.load()
    vouched = checkpoint.last_timer_log_flush_position
    start = 0 if rebuild or wheel.is_new else vouched - files.file_size
    found_end = _find_end(timer_log, start)
    end = min(found_end, vouched)
    files.set_where(end)
    last = files.last()
    if last is not None:
        last.clear_tail()
    lost = end < vouched
    if lost:
        log.warning("the timer log ends at %d, before %d where it was once flushed", end, vouched)
    cleared, first = wheel.clear_beyond(end)
    if cleared:
        log.warning("%d slots of the timer wheel led beyond the timer log and are made anew", len(cleared))
    entered: set[int] = set()
    last_physical_offset = -1
    for base, units in _files_from(timer_log, min(start, first)):
        positions = base + np.arange(len(units), dtype=np.int64) * UNIT_SIZE
        due_ms = units["enqueue_time"].astype(np.int64) + units["delayed_time"]
        wanted = (due_ms >= checkpoint.last_read_time_ms) & wheel.lacks(due_ms, positions)
        for at in np.flatnonzero(wanted).tolist():
            wheel.add(int(due_ms[at]), int(positions[at]), -1 if units["magic"][at] & DELETE else 1)
        if lost:
            entered.update(units["physical_offset"].tolist())
        if len(units):
            last_physical_offset = int(units["physical_offset"][-1])
    return TimerRecovery(end, entered, last_physical_offset, lost or found_end > vouched)


def _find_end(timer_log: TimerLog, start: int) -> int:
    """Behind the last unit, looking from the file of a position on."""
    end = 0
    for file in _from(timer_log, start):
        at = len(timer_log.units_of(file)) * UNIT_SIZE
        end = file.base + at
        if at + BLANK.size > file.size or BLANK.unpack_from(file.view, at)[2] != BLANK_MAGIC:
            break
    return end


def _files_from(timer_log: TimerLog, start: int) -> Iterator[tuple[int, np.ndarray]]:
    for file in _from(timer_log, start):
        yield file.base, timer_log.units_of(file)


def _from(timer_log: TimerLog, start: int) -> Iterator[MappedFile]:
    """The files from the one that holds a position on, at least the last."""
    files = timer_log.files.files
    for file in files:
        if file is files[-1] or file.base + file.size > start:
            yield file

"""The files of timer messages: the wheel, its log, and how far both have come (TimerWheel, TimerLog,
TimerCheckpoint).

A timer message lies in the log under rmq_sys_wheel_timer until its time. `timerwheel` has a slot for each
second (`timerPrecisionMs`) of two weeks; a slot leads to the newest unit of its second in `timerlog`, a unit
to the one before.
All numbers are big-endian and signed.

timerwheel, slots of 32 bytes:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | time: the second since 1970 that the slot stands for now |
| 8      | 8    | position in the timer log of its first unit |
| 16     | 8    | position of its last unit |
| 24     | 4    | number of messages to deliver: a unit that deletes another counts -1 |
| 28     | 4    | magic, 0 |

timerlog/<offset of the first byte, 20 digits>, units of 52 bytes. Where no further one fits, a file ends with
the first three fields of one, whose size is the rest of the file and whose magic is cbd43194.

| offset | size | field |
|--------|------|-------|
| 0      | 4    | size of the unit, 52 |
| 4      | 8    | position of the unit before it in the same slot, -1 for none |
| 12     | 4    | magic: 1 plain, 2 rolled on to a later slot, 4 deletes another timer |
| 16     | 8    | when it was entered, ms |
| 24     | 4    | delay from then on, ms |
| 28     | 8    | physical offset of its record |
| 36     | 4    | size of its record |
| 40     | 4    | hash of the real topic |
| 44     | 8    | reserved, 0 |

config/timercheck, 56 bytes and more:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | lastReadTimeMs: everything due up to here was delivered |
| 8      | 8    | lastTimerLogFlushPos: end of the timer log on disk |
| 16     | 8    | lastTimerQueueOffset: what of rmq_sys_wheel_timer is in the wheel |
| 24     | 8    | masterTimerQueueOffset |
| 32     | 24   | data version: state version, timestamp, counter |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

SLOT_DTYPE = np.dtype(
    [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("messages", ">i4"), ("magic", ">i4")]
)
SLOT = struct.Struct(">qqqii")
DEFAULT_PRECISION_MS = 1000
WHEEL_DAYS = 7  # how far ahead the wheel reaches, at a slot a second
SLOTS = 2 * WHEEL_DAYS * 86_400  # as many behind, so that what is late is not overwritten
WHEEL_SIZE = SLOTS * SLOT.size

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_SIZE = UNIT.size
UNIT_DTYPE = np.dtype(
    [
        ("size", ">i4"), ("previous", ">i8"), ("magic", ">i4"), ("enqueue_time", ">i8"),
        ("delayed_time", ">i4"), ("physical_offset", ">i8"), ("record_size", ">i4"), ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)  # fmt: skip
PLAIN, ROLL, DELETE = 1, 2, 4  # magic
BLANK = struct.Struct(">iqi")
BLANK_MAGIC = (0xBBCCDDEE ^ 1880681586 + 8) - (1 << 32)

_CHECKPOINT = struct.Struct(">7q")
_SLOTS_AT_ONCE = 64 * 1024


class TimerSlot(NamedTuple):
    """A slot of the wheel that is not empty."""

    slot: int
    time: int
    first_position: int
    last_position: int
    messages: int
    magic: int


class TimerUnit(NamedTuple):
    """A unit of the timer log."""

    position: int
    size: int
    previous_position: int
    magic: int
    enqueue_time: int
    delayed_time: int
    physical_offset: int
    record_size: int
    topic_hash: int
    reserved: int

    @property
    def due_ms(self) -> int:
        """The time of its slot."""
        return self.enqueue_time + self.delayed_time


class TimerCheckpoint(NamedTuple):
    """How far the timer had come."""

    last_read_time_ms: int
    last_timer_log_flush_position: int
    last_timer_queue_offset: int
    master_timer_queue_offset: int
    state_version: int
    timestamp: int
    counter: int


def read_wheel(view: memoryview) -> Iterator[TimerSlot]:
    """The slots of a wheel that have a time or a unit."""
    slots = np.frombuffer(view, SLOT_DTYPE, len(view) // SLOT_DTYPE.itemsize)
    for start in range(0, len(slots), _SLOTS_AT_ONCE):
        chunk = slots[start : start + _SLOTS_AT_ONCE]
        for at in np.flatnonzero((chunk["time"] != 0) | (chunk["last"] != 0)).tolist():
            yield TimerSlot(start + at, *chunk[at].tolist())


def read_timer_log(view: memoryview, base: int) -> Iterator[TimerUnit]:
    """The units of one file of the timer log, up to the first thing that is none."""
    for at in range(0, len(view) - UNIT_SIZE + 1, UNIT_SIZE):
        unit = UNIT.unpack_from(view, at)
        if unit[0] != UNIT_SIZE:
            return
        yield TimerUnit(base + at, *unit)


def read_timer_checkpoint(view: memoryview) -> TimerCheckpoint | None:
    """The timer's checkpoint; None where the file is too short for one."""
    return TimerCheckpoint(*_CHECKPOINT.unpack_from(view, 0)) if len(view) >= _CHECKPOINT.size else None


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """The words of a checkpoint, as in the file and as answered to GET_TIMER_CHECK_POINT."""
    return _CHECKPOINT.pack(*checkpoint)


def is_unit(size: int, magic: int, record_size: int) -> bool:
    """Whether what was read in a timer log is a unit: Java knows four bits of magic, and a unit that a crash
    tore has no size of its record."""
    return size == UNIT_SIZE and magic | 0xF == 0xF and record_size > 0

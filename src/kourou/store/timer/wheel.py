"""TimerWheel: which units of the timer log are due when (TimerWheel, Slot). Layout: store/timer/files.py.

Slots are written straight into the mapped file. The second that a slot stands for is part of it, so a slot
whose time is over needs no clearing: it is simply not found any more, until its turn comes again.

TimerCheckpointFile: how far wheel and log had come together (TimerCheckpoint).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kourou.errors import StoreDamagedError
from kourou.store.log.disk import PAGE_SIZE, Disk
from kourou.store.timer.files import (
    SLOT,
    SLOT_DTYPE,
    SLOTS,
    WHEEL_SIZE,
    TimerCheckpoint,
    TimerSlot,
    encode_timer_checkpoint,
    read_timer_checkpoint,
)

_RESERVE = 16 * PAGE_SIZE  # room on the disk is taken for half an hour of slots at once


class TimerWheel:
    """The wheel of a store. Times are in milliseconds; those within one slot mean the same."""

    def __init__(self, disk: Disk, path: str, precision_ms: int) -> None:
        size = disk.size(path)
        if size > 0 and size != WHEEL_SIZE:
            raise StoreDamagedError(
                f"{path} has {size} bytes, a timer wheel has {WHEEL_SIZE}: move it away, and it is made anew"
                " from the timer log"
            )
        self.is_new = size <= 0
        self.precision_ms = precision_ms
        self._mapping = disk.map(path, WHEEL_SIZE)
        self._view = self._mapping.view
        self._reserved: set[int] = set()

    # Slots

    def slot(self, time_ms: int) -> TimerSlot | None:
        """The slot of a time; None if it is empty."""
        time = time_ms // self.precision_ms
        number = time % SLOTS
        found = SLOT.unpack_from(self._view, number * SLOT.size)
        return TimerSlot(number, *found) if found[0] == time else None

    def messages(self, time_ms: int) -> int:
        """How many messages are due at a time."""
        slot = self.slot(time_ms)
        return 0 if slot is None else slot.messages

    def reserve(self, time_ms: int) -> None:
        """Take room on the disk for the slot of a time; DiskFullError where there is none."""
        part = time_ms // self.precision_ms % SLOTS * SLOT.size // _RESERVE
        if part not in self._reserved:
            self._mapping.reserve(part * _RESERVE, min((part + 1) * _RESERVE, WHEEL_SIZE))
            self._reserved.add(part)

    def add(self, time_ms: int, position: int, messages: int) -> bool:
        """Append a unit to the slot of a time; whether it is the first there."""
        self.reserve(time_ms)
        slot = self.slot(time_ms)
        time = time_ms // self.precision_ms
        first, count, magic = (position, 0, 0) if slot is None else (slot.first_position, *slot[4:])
        SLOT.pack_into(
            self._view, time % SLOTS * SLOT.size, time, first, position, count + messages, magic
        )  # fmt: skip
        return slot is None

    # All slots

    def times_from(self, time_ms: int) -> list[int]:
        """The times from one on, in order, whose slots are in use."""
        slots = self._used()
        first = max(time_ms // self.precision_ms, 1)
        times = slots["time"][slots["time"] >= first].astype(np.int64)
        found: list[int] = (np.sort(times) * self.precision_ms).tolist()
        return found

    def messages_from(self, time_ms: int) -> int:
        """How many messages are due from a time on."""
        slots = self._used()
        return int(slots["messages"][slots["time"] >= time_ms // self.precision_ms].sum())

    def within(self, time_ms: int, spans_ms: Sequence[int]) -> list[int]:
        """How many messages are due in the first span from a time, from there to the end of the second, …"""
        slots, first = self._used(), time_ms // self.precision_ms
        coming = slots[(slots["time"] >= first) & (slots["time"] < first + spans_ms[-1] // self.precision_ms)]
        ends = np.array(spans_ms, np.int64) // self.precision_ms
        places = np.searchsorted(ends, coming["time"].astype(np.int64) - first, side="right")
        found: list[int] = np.bincount(places, coming["messages"], len(ends)).astype(np.int64).tolist()
        return found

    def lacks(self, times_ms: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Which of these units their slots do not know of."""
        times = times_ms // self.precision_ms
        slots = np.frombuffer(self._view, SLOT_DTYPE)[times % SLOTS]
        unknown: np.ndarray = (slots["time"] != times) | (slots["last"] < positions)
        return unknown

    def clear_beyond(self, end: int) -> tuple[set[int], int]:
        """Empty the slots that lead to where the timer log has ended, as after a crash: their times, and
        the position from which on the log is to be read again for them."""
        slots = self._used()
        numbers = np.flatnonzero((slots["time"] > 0) & (slots["last"] >= end))
        times = {int(time) * self.precision_ms for time in slots["time"][numbers]}
        firsts = slots["first"][numbers]
        for number in numbers.tolist():
            SLOT.pack_into(self._view, number * SLOT.size, 0, -1, -1, 0, 0)
        return times, int(firsts.min()) if len(firsts) else end

    def _used(self) -> np.ndarray:
        """The slots up to the last that was written: behind it is a hole, which takes no memory unread."""
        return np.frombuffer(self._view, SLOT_DTYPE, -(-self._mapping.data_end(0) // SLOT.size))

    # The file

    def sync(self) -> None:
        """Return when every slot is on the disk. Slow: for worker threads."""
        self._mapping.sync()

    def close(self) -> None:
        """Let go of the file."""
        self._view = memoryview(b"")
        self._mapping.close()
        del self._mapping  # with it goes the map


class TimerCheckpointFile:
    """The checkpoint of the timer in its file, a page of which seven words are in use."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._mapping = disk.map(path, PAGE_SIZE)
        self._mapping.reserve(0, PAGE_SIZE)
        found = read_timer_checkpoint(self._mapping.view)
        assert found is not None
        self.value: TimerCheckpoint = found

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Bring a checkpoint to the disk. Slow: for worker threads."""
        words = encode_timer_checkpoint(checkpoint)
        self._mapping.view[: len(words)] = words
        self._mapping.sync()
        self.value = checkpoint

    def close(self) -> None:
        """Let go of the file."""
        self._mapping.close()
        del self._mapping

"""Clock: where Kourou gets its time, so that tests and a simulator can hand in another.

There are two kinds of time. The time of day is for what others see: store times, times of delivery that a
user names. Operators and NTP set it, forward and back. Elapsed time is for what lasts: how old a lock, a
client or an interval is. Nobody sets it, and it goes on while the machine sleeps. Which records were written
before the time of day was set is known by `kourou.store.clock_steps`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Linux stops CLOCK_MONOTONIC while the machine sleeps; elsewhere there is only that one.
_ELAPSED: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What tells the time."""

    def now_ms(self) -> int:
        """The time of day: milliseconds since 1970. It may be set."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment before this process began. It is never set."""
        ...

    def boot_id(self) -> str:
        """Processes with the same id count elapsed time from the same moment; "" where that is not known."""
        ...


class SystemClock:
    """The clock of the machine."""

    @staticmethod
    def now_ms() -> int:
        """The time of day: milliseconds since 1970. It may be set."""
        return time.time_ns() // 1_000_000

    @staticmethod
    def elapsed_ms() -> int:
        """Milliseconds since the machine was started, those asleep included. It is never set."""
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000

    @staticmethod
    def boot_id() -> str:
        """Which start of the machine this is; "" where the system does not tell."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

"""Clock: where Kourou gets its time, so that tests and a simulator can hand in another."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class SystemClock:
    """The clock of the machine."""

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

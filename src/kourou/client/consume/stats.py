"""What a consumer has done in the last minute, by topic (ConsumerStatsManager)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kourou.message.model import MessageQueue

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class ConsumeEvent:
    """What became of messages that were given to the handler, for metrics."""

    queue: MessageQueue
    count: int
    seconds: float
    is_success: bool


class _Minute:
    """Counts of this minute and of the one before it."""

    __slots__ = ("_before", "_began", "_now")

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._now = [0.0, 0.0, 0.0]
        self._before = [0.0, 0.0, 0.0]

    def add(self, count: int, seconds: float) -> None:
        now = self._roll()
        now[0] += count
        now[1] += seconds
        now[2] += 1

    def _roll(self) -> list[float]:
        elapsed = time.monotonic() - self._began
        if elapsed >= WINDOW_S:
            self._before = self._now if elapsed < 2 * WINDOW_S else [0.0, 0.0, 0.0]
            self._now = [0.0, 0.0, 0.0]
            self._began += elapsed // WINDOW_S * WINDOW_S
        return self._now

    def _total(self, place: int) -> float:
        self._roll()
        share = 1 - (time.monotonic() - self._began) / WINDOW_S  # of the minute before that still counts
        return self._now[place] + self._before[place] * share

    @property
    def per_second(self) -> float:
        return self._total(0) / WINDOW_S

    @property
    def count(self) -> int:
        return round(self._total(0))

    @property
    def mean_ms(self) -> float:
        calls = self._total(2)
        return self._total(1) / calls * 1000 if calls else 0.0


class ConsumerStats:
    """Pulls and calls of the handler, by topic."""

    def __init__(self) -> None:
        self._pulls: dict[str, _Minute] = {}
        self._consumed: dict[str, _Minute] = {}
        self._failed: dict[str, _Minute] = {}

    def pulled(self, topic: str, count: int, seconds: float) -> None:
        """A pull brought messages."""
        self._pulls.setdefault(topic, _Minute()).add(count, seconds)

    def consumed(self, topic: str, count: int, seconds: float, is_success: bool) -> None:
        """The handler came to an end."""
        table = self._consumed if is_success else self._failed
        table.setdefault(topic, _Minute()).add(count, seconds)

    def to_json(self, topic: str) -> dict[str, float]:
        """ConsumeStatus of a topic."""
        nothing = _Minute()
        pulls = self._pulls.get(topic, nothing)
        consumed, failed = self._consumed.get(topic, nothing), self._failed.get(topic, nothing)
        return {
            "pullRT": pulls.mean_ms,
            "pullTPS": pulls.per_second,
            "consumeRT": consumed.mean_ms,
            "consumeOKTPS": consumed.per_second,
            "consumeFailedTPS": failed.per_second,
            "consumeFailedMsgs": failed.count,
        }

"""Faults: brokers that are slow or gone are left out for a while (Java's MQFaultStrategy).

After each send it is noted how long the broker took. One that took long is not used for a time that depends
on it, one that failed as if it had taken 10 s:

| latency of at least, ms | 50 | 100 | 550   | 1,800 | 3,000 | 5,000  | 15,000 |
|-------------------------|----|-----|-------|-------|-------|--------|--------|
| left out for, ms        | 0  | 0   | 2,000 | 5,000 | 6,000 | 10,000 | 30,000 |

A broker that refused a message counts as out of reach, too, until it takes one. Where all are left out, one
that can be reached is used, else any: a message is never held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LATENCY_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
LEFT_OUT_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
FAILURE_LATENCY_MS = 10_000  # what a send that failed counts as


class LatencyFaults:
    """Latency and reachability of the brokers that messages were sent to."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._left_out_until_s: dict[str, float] = {}  # by the name of the broker
        self._out_of_reach: set[str] = set()

    def record(
        self, broker_name: str, latency_s: float, *, has_failed: bool = False, is_reachable: bool = True
    ) -> None:
        """Note how a send went."""
        left_out_s = left_out_for_ms(FAILURE_LATENCY_MS if has_failed else latency_s * 1000) / 1000
        if left_out_s:
            until_s = max(self._left_out_until_s.get(broker_name, 0.0), self._now_s() + left_out_s)
            self._left_out_until_s[broker_name] = until_s
        if is_reachable:
            self._out_of_reach.discard(broker_name)
        else:
            self._out_of_reach.add(broker_name)

    def is_available(self, broker_name: str) -> bool:
        """Whether a broker is not left out now."""
        until_s = self._left_out_until_s.get(broker_name)
        return until_s is None or self._now_s() >= until_s

    def is_reachable(self, broker_name: str) -> bool:
        """Whether a broker took the last message that it was sent, as far as is known."""
        return broker_name not in self._out_of_reach


def left_out_for_ms(latency_ms: float) -> int:
    """How long a broker is left out that took so long."""
    for limit_ms, left_out_ms in zip(reversed(LATENCY_MS), reversed(LEFT_OUT_MS), strict=True):
        if latency_ms >= limit_ms:
            return left_out_ms
    return 0

"""RepeatedWarnings: a warning that comes again and again is logged at growing intervals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

FIRST_PAUSE_S = 1.0  # it doubles
LONGEST_PAUSE_S = 300.0
# Without the warning for this long after its pause, it counts as new. The slowest task tries every 30 s.
FORGET_AFTER_S = 60.0
MAX_WARNINGS = 1024


class RepeatedWarnings:
    """Logs a warning at once, then after 1 s, 2 s, 4 s … if it still comes. Debug has all of them."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next: dict[tuple[str, Hashable], tuple[float, float]] = {}  # when it is due, and its pause

    def warn(
        self, log: logging.Logger, about: Hashable, text: str, *args: object, trace: bool = False
    ) -> None:
        """Log a text. It repeats an earlier one if the text and what it is about are the same.

        With `trace` the exception that is being handled is logged too.
        """
        now_s = self._now_s()
        due_s, pause_s = self._next.get((text, about), (now_s, 0.0))
        if now_s < due_s:
            log.debug(text, *args)
            return
        is_new = now_s > due_s + FORGET_AFTER_S
        pause_s = FIRST_PAUSE_S if is_new or not pause_s else min(pause_s * 2, LONGEST_PAUSE_S)
        if len(self._next) >= MAX_WARNINGS:
            self._next.clear()
        self._next[text, about] = now_s + pause_s, pause_s
        log.warning(text, *args, exc_info=trace)

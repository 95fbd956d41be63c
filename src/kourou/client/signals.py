"""Signals: Ctrl-C and SIGTERM stop consumers rather than the program (the option stop_on_signals).

All consumers of a process share one handler. The first signal stops them all, and gives both signals back to
whoever had them before: a second one ends the program, should a consumer take too long to close.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from kourou.client.core import ClientError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_before: dict[signal.Signals, Any] = {}
_stops: dict[object, Callable[[], object]] = {}


def stop_on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Callable[[], None]:
    """Have `stop` called on the loop when a signal comes; returns what undoes this. For the main thread."""
    if not _before:
        try:
            _before.update({number: signal.signal(number, _on_signal) for number in _SIGNALS})
        except ValueError:
            raise ClientError("stop_on_signals works in the main thread only, as signals do") from None
    key = object()
    _stops[key] = lambda: loop.call_soon_threadsafe(stop)

    def undo() -> None:
        _stops.pop(key, None)
        if not _stops:
            _give_back()

    return undo


def _on_signal(number: int, frame: object) -> None:
    _give_back()
    for stop in list(_stops.values()):
        stop()


def _give_back() -> None:
    while _before:
        number, handler = _before.popitem()
        if signal.getsignal(number) is _on_signal:  # and not somebody else's by now
            signal.signal(number, handler)

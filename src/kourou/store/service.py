"""ServiceThread: a piece of work done again and again in the background, as Java's class of that name.

Each service of the store is an object with a `run_once`; this runs it every so often, or at once when
woken. A simulator calls `run_once` itself and starts no thread.

Inbox: how a worker hands results back to the one thread that owns the store. A broker gives the
store its event loop's `call_soon_threadsafe` instead.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

log = logging.getLogger(__name__)


class ServiceThread:
    """Runs a function in the background, `interval_ms` after its last run or when woken."""

    def __init__(self, name: str, run_once: Callable[[], None], interval_ms: int) -> None:
        self._run_once = run_once
        self._interval = interval_ms / 1000
        # A queue in C: an Event costs ten times as much, and a sender that waits for the disk pays for it.
        self._wakings: SimpleQueue[None] = SimpleQueue()
        self._is_woken = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Run now."""
        if not self._is_woken:
            self._is_woken = True
            self._wakings.put(None)

    def stop(self) -> None:
        """Stop after the run that is under way."""
        self._is_stopping = True
        self._wakings.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(Empty):
                self._wakings.get(timeout=self._interval)
            self._is_woken = False  # before the run: who wakes from now on means the next one
            if self._is_stopping:
                return
            try:
                self._run_once()
            except Exception:
                log.exception("%s failed; it goes on with its next run", self._thread.name)


class Inbox:
    """Calls that wait for the owner of the store."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()  # hot paths look at it before they drain
        self._arrived = threading.Condition()

    def post(self, call: Callable[[], None]) -> None:
        """From any thread: have `call` made by the owner."""
        with self._arrived:
            self.calls.append(call)
            self._arrived.notify_all()

    def drain(self) -> None:
        """By the owner: make the calls that wait. What one raises is no business of who happens to drain."""
        while self.calls:
            try:
                self.calls.popleft()()
            except Exception:
                log.exception("a call from a worker failed")

    def wait(self, seconds: float) -> None:
        """By the owner: wait for a call, then make those that are there."""
        with self._arrived:
            if not self.calls:
                self._arrived.wait(seconds)
        self.drain()

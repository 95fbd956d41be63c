"""Background tasks of a client: each is kept until it ends, and none ends unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kourou.errors import KourouError

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Background:
    """Tasks that run beside the calls of a user. The loop keeps no task by itself: this does."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, _T], what: str) -> asyncio.Task[_T]:
        """Run a coroutine. If it fails, the log says so; `what` says what failed."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, KourouError):
            # Servers may be gone by the time a client closes: nothing that a user can do about.
            log.log(logging.DEBUG if self._is_closing else logging.WARNING, "%s: %s", task.get_name(), error)
        elif error is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        self._is_closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def notify(observer: Callable[..., object] | None, *event: object) -> None:
    """Call a user's observer (on_send, on_consume, on_rebalance). What it raises is logged only."""
    if observer is not None:
        try:
            observer(*event)
        except Exception:
            log.exception("an observer failed: %r", observer)

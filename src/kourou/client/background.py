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
    """The background tasks of a client. An event loop holds its tasks weakly, so they are held here."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, _T], what: str) -> asyncio.Task[_T]:
        """Run a coroutine in the background. A failure is logged; `what` names the task in the log."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, KourouError):
            # A server may be gone when a client closes. The user can do nothing about it.
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
    """Call an observer of the user (on_send, on_consume, on_rebalance). Its exceptions are only logged."""
    if observer is not None:
        try:
            observer(*event)
        except Exception:
            log.exception("an observer failed: %r", observer)

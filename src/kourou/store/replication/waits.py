"""AckWaits: sends of a SYNC_MASTER that wait for its slaves (GroupTransferService).

How many copies a message needs, the master's included, is `inSyncReplicas`, but never less than two: whoever
sets SYNC_MASTER wants another copy. With `enableAutoInSyncReplicas` it is as many as there are, not below
`minInSyncReplicas`. One acknowledgement of a slave releases every send up to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from kourou.store.config import MessageStoreConfig
from kourou.store.status import PutCallback, PutMessageStatus

log = logging.getLogger(__name__)

LEAST_COPIES = 2

_Wait = tuple[int, float, PutCallback]  # offset, deadline, callback


class Acknowledging(Protocol):
    """A slave, as far as it matters here."""

    ack_offset: int  # all before is there; -1 if it has said nothing


class AckWaits:
    """Who waits until which offset is on how many brokers."""

    def __init__(self, config: MessageStoreConfig, slaves: Callable[[], Iterable[Acknowledging]]) -> None:
        self._config = config
        self._slaves = slaves
        self._waiting: deque[_Wait] = deque()  # in the order of offsets
        self._reached = -1  # the log is on enough brokers up to here
        self._available_until = -1  # beyond this, too few of them are near enough
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def is_in_sync(self, slave: Acknowledging, end: int) -> bool:
        """Whether a slave is near enough to the end of the log."""
        return slave.ack_offset >= 0 and end - slave.ack_offset < self._config.ha_max_gap_not_in_sync

    def in_sync_replicas(self, end: int) -> int:
        """How many brokers are near the end of the log, the master included."""
        return 1 + sum(self.is_in_sync(slave, end) for slave in self._slaves())

    def has_enough_replicas(self, end: int) -> bool:
        """Whether messages may be taken: with fewer replicas than `minInSyncReplicas` they may not."""
        return self.in_sync_replicas(end) >= self._config.min_in_sync_replicas

    def wait_for(self, offset: int, callback: PutCallback) -> None:
        """Have `callback` called when enough slaves have everything before `offset`, or too late. Hot."""
        if offset >= self._available_until:
            callback(PutMessageStatus.SLAVE_NOT_AVAILABLE)
            return
        if offset <= self._reached:
            callback(PutMessageStatus.PUT_OK)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.slave_timeout / 1000
        self._waiting.append((offset, deadline, callback))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)

    def refresh(self) -> None:
        """A slave came, went, or said how far it is: tell those who waited for that."""
        config = self._config
        offsets = sorted((slave.ack_offset for slave in self._slaves()), reverse=True)
        copies = max(config.in_sync_replicas, LEAST_COPIES)
        if config.enable_auto_in_sync_replicas:
            in_sync = self.in_sync_replicas(max(offsets, default=0))
            copies = max(min(copies, in_sync), config.min_in_sync_replicas, LEAST_COPIES)
        reached = offsets[copies - 2] if len(offsets) >= copies - 1 else -1
        self._reached = reached
        self._available_until = reached + config.ha_max_gap_not_in_sync if reached >= 0 else -1
        waiting = self._waiting
        while waiting and waiting[0][0] <= reached:
            _call(waiting.popleft()[2], PutMessageStatus.PUT_OK)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now, late = loop.time(), 0
        waiting = self._waiting
        while waiting and waiting[0][1] <= now:
            late += 1
            _call(waiting.popleft()[2], PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        if late:
            log.warning("%d messages are not on a slave within %d ms", late, self._config.slave_timeout)
        if waiting:
            self._timer = loop.call_at(waiting[0][1], self._expire)

    def stop(self) -> None:
        """Nobody will answer any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._available_until = -1
        while self._waiting:
            _call(self._waiting.popleft()[2], PutMessageStatus.FLUSH_SLAVE_TIMEOUT)


def _call(callback: PutCallback, status: PutMessageStatus) -> None:
    try:
        callback(status)
    except Exception:
        log.exception("a sender could not be answered; the others are")

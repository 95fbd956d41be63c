"""QueueLocks: which client of a group consumes a queue in order (RebalanceLockManager)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kourou.clock import Clock
from kourou.message.model import MessageQueue
from kourou.remoting.budgets import UNBOUND, Bound

log = logging.getLogger(__name__)

MAX_LIVE_MS = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime; clients renew every 20 s


class _Lock:
    __slots__ = ("client_id", "renewed_ms")

    def __init__(self, client_id: str, renewed_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = renewed_ms


class QueueLocks:
    """The locks of all groups; one that is not renewed for MAX_LIVE_MS counts no more."""

    def __init__(self, clock: Clock, max_live_ms: int = MAX_LIVE_MS, *, bound: Bound = UNBOUND) -> None:
        self._clock = clock
        self._max_live_ms = max_live_ms
        self._bound = bound
        self.count = 0
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def try_lock_batch(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> set[MessageQueue]:
        """Lock queues for a client, or renew its locks; those that it holds now."""
        now_ms = self._clock.elapsed_ms()
        locks = self._groups.setdefault(group, {})
        held = set()
        for queue in queues:
            lock = locks.get(queue)
            if lock is None and not self._bound.fits(self.count + 1):
                continue
            if lock is None or self._is_expired(lock, now_ms):
                self.count += lock is None
                if lock is not None and lock.client_id != client_id:
                    log.warning("%s takes %s from %s, which is silent", client_id, queue, lock.client_id)
                locks[queue] = _Lock(client_id, now_ms)
                held.add(queue)
            elif lock.client_id == client_id:
                lock.renewed_ms = now_ms
                held.add(queue)
            else:
                log.info("%s of group %s is locked by %s, not by %s", queue, group, lock.client_id, client_id)
        if not locks:
            del self._groups[group]
        return held

    def try_lock(self, group: str, queue: MessageQueue, client_id: str) -> bool:
        """Lock a queue for a client, or renew its lock."""
        return bool(self.try_lock_batch(group, (queue,), client_id))

    def unlock_batch(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give up the locks that a client holds; those of others stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self.count -= 1
            else:
                log.info("%s of group %s is not locked by %s", queue, group, client_id)
        if not locks:
            self._groups.pop(group, None)

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._is_expired(lock, self._clock.elapsed_ms()):
            return None
        return lock.client_id

    def has_locks(self, group: str) -> bool:
        """Whether some client of a group holds a queue."""
        now_ms = self._clock.elapsed_ms()
        return any(not self._is_expired(lock, now_ms) for lock in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Forget locks that count no more, so that groups that are gone leave nothing behind."""
        now_ms = self._clock.elapsed_ms()
        for group, locks in list(self._groups.items()):
            live = {queue: lock for queue, lock in locks.items() if not self._is_expired(lock, now_ms)}
            if live:
                self._groups[group] = live
            else:
                del self._groups[group]
            self.count -= len(locks) - len(live)

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._max_live_ms

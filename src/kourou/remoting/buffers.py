"""Buffers: what the peers of a server make it keep, and how much that may be.

A peer that has begun a frame makes the server keep its parts; one that does not read, its answers. Both count
against `maxBufferedBytes` of all peers and `maxBufferedBytesPerPeer` of one address. If one is exceeded,

- the oldest incoming frame is read on and the others wait, so that one can always be completed; if it is
  not complete within FRAME_TIMEOUT_S it is dropped, the oldest of the peer that holds most first;
- the peer that holds most and does not read is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kourou.remoting.budgets import Budgets, Refusals
    from kourou.remoting.connection import Connection

log = logging.getLogger(__name__)

FRAME_TIMEOUT_S = 5.0
LOOK_INTERVAL_S = 0.2  # while connections wait for room


class Buffers:
    """The account of one server."""

    def __init__(self, budgets: Budgets, refusals: Refusals) -> None:
        self._most = budgets.max_buffered_bytes
        self._most_per_peer = budgets.max_buffered_bytes_per_peer
        self.refusals = refusals
        self._frames: dict[Connection, float] = {}  # that are not complete: since when, the oldest first
        self._frame_bytes: Counter[Connection] = Counter()
        self._answer_bytes: Counter[Connection] = Counter()
        self._by_host: Counter[str] = Counter()
        self._waiting: set[Connection] = set()
        self._look: asyncio.TimerHandle | None = None
        self.total = 0

    # Frames that come

    def grow(self, connection: Connection, size: int) -> bool:
        """Part of a frame has arrived. Returns False if the connection must pause: `connection.go_on` is
        called when it may read on."""
        self._frames.setdefault(connection, time.monotonic())
        self._frame_bytes[connection] += size
        self._add(connection, size)
        if self._may_read_on(connection):
            return True
        self._waiting.add(connection)
        self._look_again()
        return False

    def release(self, connection: Connection) -> None:
        """A frame is complete, or its connection is gone."""
        self._waiting.discard(connection)
        if self._frames.pop(connection, None) is not None:
            self._add(connection, -self._frame_bytes.pop(connection))

    def _may_read_on(self, connection: Connection) -> bool:
        # The oldest frame may always grow, also over the budget. If all had to wait for room, none would ever
        # be complete, and nothing would free the room: a deadlock.
        if self.total > self._most and connection is not next(iter(self._frames)):
            return False
        host = connection.host
        return self._by_host[host] <= self._most_per_peer or connection is next(
            one for one in self._frames if one.host == host
        )

    def _make_room(self) -> None:
        """Drop one frame that is late while others wait: they may be late because of it."""
        self._look = None
        if not self._waiting:
            return
        late = time.monotonic() - FRAME_TIMEOUT_S
        found = [connection for connection, since in self._frames.items() if since < late]
        if found:
            greediest = max(found, key=lambda connection: self._by_host[connection.host])
            self._cut(greediest, "its frame does not come to an end, and others wait")
        self._look_again()

    def _look_again(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._make_room)

    # Answers that go

    def keep(self, connection: Connection, size: int) -> None:
        """Set the bytes that a peer has not read yet; 0 when it has read everything."""
        more = size - self._answer_bytes[connection]
        self._answer_bytes[connection] = size
        if not size:
            del self._answer_bytes[connection]
        self._add(connection, more)
        while more > 0 and self._answer_bytes:
            if self.total > self._most:
                found = list(self._answer_bytes)
            elif self._by_host[connection.host] > self._most_per_peer:
                found = [one for one in self._answer_bytes if one.host == connection.host]
            else:
                return
            if not found:
                return
            greediest = max(found, key=lambda one: (self._by_host[one.host], self._answer_bytes[one]))
            self._cut(greediest, f"it does not take {self._answer_bytes[greediest]} bytes")

    # Both

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.keep(connection, 0)
        self.release(connection)

    def _add(self, connection: Connection, size: int) -> None:
        self.total += size
        assert self.total >= 0, "more was released than was kept"
        self._by_host[connection.host] += size
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        if size < 0 and self._waiting:
            for one in [one for one in self._frames if one in self._waiting and self._may_read_on(one)]:
                self._waiting.discard(one)
                one.go_on()

    def _cut(self, connection: Connection, reason: str) -> None:
        in_all = self.total > self._most
        self.refusals.count("maxBufferedBytes" if in_all else "maxBufferedBytesPerPeer")
        log.warning("closing the connection of %s: %s", connection.peer, reason)
        self.forget(connection)
        connection.abort()

"""How connections end: politely if the peer lets them, and in any case soon."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast

from kourou.remoting.connection import Connection

# For what was sent to go out, and for TLS to say good-bye; then a connection is cut.
CLOSE_TIMEOUT_S = 1.0
_TURN_S = 0.005


class EndingConnection(Connection):
    """A connection that can also be cut: a transport closes when all it holds has gone out, which is never
    if the peer does not read."""

    _cut: asyncio.Transport | None = None
    _silent_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._cut = cast(asyncio.Transport, transport)
        self._silent_since = self.last_seen
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._cut = None
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close at once; what has not gone out is lost."""
        if self._cut is not None:
            self._cut.abort()

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come on it yet."""
        return self.last_seen == self._silent_since

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return 0 if self._cut is None else self._cut.get_write_buffer_size()


async def close_all(connections: Collection[EndingConnection]) -> None:
    """Close connections, and wait until their owner, who holds this collection, has let go of them.

    It never takes more than twice CLOSE_TIMEOUT_S.
    """
    for connection in list(connections):
        connection.close()
    await _until_empty(connections)
    for connection in list(connections):
        connection.abort()
    await _until_empty(connections)
    await asyncio.sleep(0)  # uvloop closes the descriptor in the turn after the protocol was told


async def _until_empty(connections: Collection[EndingConnection]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CLOSE_TIMEOUT_S
    while connections and loop.time() < deadline:
        await asyncio.sleep(_TURN_S)

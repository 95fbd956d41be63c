"""RemotingServer: listens, and keeps the connections that come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from kourou.remoting.connection import Connection, Handler

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 120.0  # Java's serverChannelMaxIdleTimeSeconds
MAX_CONNECTIONS = 65536


class RemotingServer:
    """A listening socket and its connections."""

    def __init__(
        self, handlers: Mapping[int, Handler], *, on_close: Callable[[Connection], None] | None = None
    ) -> None:
        self._handlers = handlers
        self._on_close = on_close
        self._server: asyncio.Server | None = None
        self._idle_watch: asyncio.Task[None] | None = None
        self.connections: set[Connection] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is of the system's choice for port 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, reuse_address=True)
        self._idle_watch = loop.create_task(self._close_idle())
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self) -> Connection:
        return Connection(self._handlers, on_open=self._opened, on_close=self._closed)

    def _opened(self, connection: Connection) -> None:
        if len(self.connections) >= MAX_CONNECTIONS:
            log.warning("more than %d connections: %s is turned away", MAX_CONNECTIONS, connection.peer)
            connection.close()
        self.connections.add(connection)

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_close is not None:
            self._on_close(connection)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_TIMEOUT_S / 4)
            limit = time.monotonic() - IDLE_TIMEOUT_S
            for connection in [c for c in self.connections if c.last_seen < limit]:
                log.info(
                    "closing the connection of %s: nothing was heard for %.0f s",
                    connection.peer,
                    IDLE_TIMEOUT_S,
                )
                connection.close()

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        if self._idle_watch is not None:
            self._idle_watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._idle_watch
        if self._server is not None:
            self._server.close()
            for connection in list(self.connections):
                connection.close()
            await self._server.wait_closed()

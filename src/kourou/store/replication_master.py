"""The master's side of replication: it listens, and sends each slave the log from where that one is
(DefaultHAConnection).

A slave is sent as much as its connection takes; nothing waits for it. One that does not read, or says
nothing for `haHousekeepingInterval`, is cut off. A slave whose place is not in this log (ahead of its end, or
before its oldest file) is turned away: going on from anywhere else would make its log another one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kourou.store.replication_flow import FlowMonitor

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

REPORT = struct.Struct(">q")
BLOCK_HEAD = struct.Struct(">qi")

POLL_S = 0.1  # for what nobody told of, as Java's wait
WRITE_AT_ONCE_BYTES = 1024 * 1024
HIGH_WATER_BYTES = 4 * 1024 * 1024  # sent, and not taken by the slave's machine yet
MAX_SLAVES = 64
SAY_AGAIN_S = 60.0  # a slave that is turned away comes again every few seconds
CLOSE_TIMEOUT_S = 1.0
HANDSHAKE_TIMEOUT_S = 10.0


class SlaveConnection(asyncio.Protocol):
    """A slave at its master."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._config = acceptor.store.config
        self._log = acceptor.store.commit_log
        self._transport: asyncio.Transport | None = None
        self._rest = b""  # of a report that is not complete
        self._is_paused = False
        self._waits_for_next_second = False
        self._tick: asyncio.TimerHandle | None = None
        self._last_read = self._last_write = time.monotonic()
        self.peer = ""
        self.next_offset = -1  # of the log, to be sent next
        self.ack_offset = -1  # all before is at the slave
        self.flow = FlowMonitor(self._config)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A slave came."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        host, port = (self._transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.peer = f"{host}:{port}"
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        if not self._acceptor.opened(self):
            self._transport.abort()
            return
        log.info("slave %s is connected", self.peer)
        self._tick = asyncio.get_running_loop().call_later(POLL_S, self._on_tick)

    def connection_lost(self, exc: Exception | None) -> None:
        """A slave went."""
        self._transport = None
        if self._tick is not None:
            self._tick.cancel()
        self._acceptor.closed(self)

    def pause_writing(self) -> None:
        """The slave does not read as fast as the log grows."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The slave has read: go on."""
        self._is_paused = False
        self.push()

    def data_received(self, data: bytes) -> None:
        """Reports: the last one counts."""
        self._last_read = time.monotonic()
        data = self._rest + data
        whole = len(data) // REPORT.size * REPORT.size
        self._rest = data[whole:]
        if not whole or self._transport is None:
            return
        (offset,) = REPORT.unpack_from(data, whole - REPORT.size)
        if self.next_offset < 0:
            (first,) = REPORT.unpack_from(data)
            if not self._begin(first):
                return
        if not 0 <= offset <= self.next_offset:
            self.refuse(f"it says that it has the log up to {offset}, and was sent {self.next_offset}")
            return
        self.ack_offset = offset
        self._acceptor.on_change()
        self.push()

    # The log

    def _begin(self, offset: int) -> bool:
        """A slave says where it wants to go on; False if that is nowhere in this log."""
        first, end = max(self._log.min_offset, 0), self._log.max_offset
        if offset == 0:
            size = self._log.file_size
            self.next_offset = first if self._acceptor.from_start else max(end - end % size, first)
        elif offset > end:
            self.refuse(
                f"it is ahead: its log ends at {offset}, this one at {end}. If this master lost messages that"
                " the slave has, make the slave the master; else stop the slave, empty its store and start it"
            )
            return False
        elif offset < first:
            self.refuse(
                f"it is too far behind: its log ends at {offset}, this one begins at {first}."
                " Stop the slave, empty its store and start it"
            )
            return False
        else:
            self.next_offset = offset
        log.info("slave %s has the log up to %d and gets it from %d", self.peer, offset, self.next_offset)
        return True

    def push(self) -> None:
        """Send what there is, as much as the connection and the flow control take."""
        if self.next_offset < 0 or self._is_paused or self._transport is None:
            return
        sent = 0
        pieces: list[bytes | memoryview] = []
        batch = self._config.ha_transfer_batch_size
        while sent < WRITE_AT_ONCE_BYTES:
            data = self._log.data_from(self.next_offset)
            if not data:
                if data is None and self.next_offset < self._log.min_offset:
                    self.refuse("it was too slow: the log file that it needs next is deleted")
                    return
                break
            size = min(len(data), batch, self.flow.allowance())
            if size == 0:
                self._push_next_second()
                break
            pieces += BLOCK_HEAD.pack(self.next_offset, size), data[:size]
            self.flow.add(BLOCK_HEAD.size + size)
            self.next_offset += size
            sent += size
        if pieces:
            self._write(pieces)
        if sent >= WRITE_AT_ONCE_BYTES and not self._is_paused:
            # The rest in another turn, so that requests are answered in between.
            asyncio.get_running_loop().call_soon(self.push)

    def _push_next_second(self) -> None:
        if not self._waits_for_next_second:
            self._waits_for_next_second = True
            delay_s = self.flow.until_next_second_s()
            asyncio.get_running_loop().call_later(delay_s, self._in_next_second)

    def _in_next_second(self) -> None:
        self._waits_for_next_second = False
        self.push()

    def _write(self, pieces: list[bytes | memoryview]) -> None:
        assert self._transport is not None
        self._transport.writelines(pieces)
        self._last_write = time.monotonic()

    # Time

    def _on_tick(self) -> None:
        assert self._transport is not None
        now = time.monotonic()
        if now - self._last_read > self._config.ha_housekeeping_interval / 1000:
            log.warning("slave %s said nothing for too long: its connection is closed", self.peer)
            self.abort()
            return
        self.push()
        due = now - self._last_write > self._config.ha_send_heartbeat_interval / 1000
        if due and self.next_offset >= 0 and not self._is_paused and self._transport is not None:
            self._write([BLOCK_HEAD.pack(self.next_offset, 0)])
        self._tick = asyncio.get_running_loop().call_later(POLL_S, self._on_tick)

    # The end

    def refuse(self, reason: str) -> None:
        """Turn the slave away."""
        self._acceptor.say(self.peer, reason)
        self.next_offset = -1
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send what is left of the log, and close."""
        self.push()
        if self._transport is not None:
            self._transport.close()


class Acceptor:
    """The socket that slaves come to, and those that are there."""

    def __init__(
        self,
        store: MessageStore,
        *,
        from_start: bool,
        tls: ssl.SSLContext | None,
        on_change: Callable[[], None],
    ) -> None:
        self.store = store
        self.from_start = from_start
        self._tls = tls
        self.on_change = on_change
        self.connections: set[SlaveConnection] = set()
        self._server: asyncio.Server | None = None
        self._said: dict[tuple[str, str], float] = {}  # host and reason -> when it may be said again

    async def start(self, host: str, port: int) -> int:
        """Listen; the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: SlaveConnection(self),
            host,
            port,
            family=socket.AF_UNSPEC,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
            ssl_shutdown_timeout=CLOSE_TIMEOUT_S if self._tls else None,
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and close what is open, within a second or so whatever the slaves do."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self.connections):
            connection.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # uvloop tells of the end in the next turn, and closes in the one after
        await asyncio.sleep(0)
        self._server = None

    def opened(self, connection: SlaveConnection) -> bool:
        """Take a slave in; False if there are too many."""
        if len(self.connections) >= MAX_SLAVES:
            self.say(connection.peer, f"there are {MAX_SLAVES} slaves already")
            return False
        self.connections.add(connection)
        return True

    def closed(self, connection: SlaveConnection) -> None:
        """A slave is gone."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.on_change()
            log.info("slave %s is gone; it had the log up to %d", connection.peer, connection.ack_offset)

    def say(self, peer: str, reason: str) -> None:
        """Say why a slave is turned away, once in a while."""
        key, now = (peer.rpartition(":")[0], reason), time.monotonic()
        if self._said.get(key, 0.0) > now:
            return
        self._said = {said: until for said, until in self._said.items() if until > now}
        self._said[key] = now + SAY_AGAIN_S
        log.error("slave %s is turned away: %s", peer, reason)

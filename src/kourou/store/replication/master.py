"""The master's side of replication: it listens, and sends each slave the log from where that one is
(DefaultHAConnection).

A slave is sent as much as its connection takes; nothing waits for it. One that does not read, or says
nothing for `haHousekeepingInterval`, is cut off. A slave whose place is not in this log (ahead of its end, or
before its oldest file) is turned away: going on from anywhere else would make its log another one.

A connection is a slave's, and counts as one, when it has proved who it is, where that is wanted, and has
reported a place in this log. Until then it is pending: it gets no byte of the log, has little time, and gives
way to others where there are many.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kourou.store.replication.flow import FlowMonitor
from kourou.store.replication.proof import Admission, Entrance, ProofError

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

REPORT = struct.Struct(">q")
BLOCK_HEAD = struct.Struct(">qi")

POLL_S = 0.1  # for what nobody told of, as Java's wait
WRITE_AT_ONCE_BYTES = 1024 * 1024
HIGH_WATER_BYTES = 4 * 1024 * 1024  # sent, and not taken by the slave's machine yet
MAX_SLAVES = 64
MAX_PENDING = 64
PENDING_TIMEOUT_S = 10.0  # Java's slave first reports up to haSendHeartbeatInterval (5 s) after it connects
SAY_AGAIN_S = 60.0  # a slave that is turned away comes again every few seconds
MAX_SAID = 1000
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
        self._opened = self._last_read = self._last_write = time.monotonic()
        self._entrance = Entrance(acceptor.admission, "")
        self.peer = self.host = ""
        self.next_offset = -1  # of the log, to be sent next
        self.ack_offset = -1  # all before is at the slave
        self.flow = FlowMonitor(self._config)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A slave came."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self.host, port = (self._transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.peer = f"{self.host}:{port}"
        self._entrance = Entrance(self._acceptor.admission, self.host)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._acceptor.opened(self)
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
        """Reports: the last one counts. Before them, perhaps, a proof."""
        if self._transport is None or self._transport.is_closing():
            return
        self._last_read = time.monotonic()
        data = self._rest + (data if self._entrance.passed else self._enter(data))
        whole = len(data) // REPORT.size * REPORT.size
        self._rest = data[whole:]
        if not whole:
            return
        (offset,) = REPORT.unpack_from(data, whole - REPORT.size)
        if self.next_offset < 0:
            (first,) = REPORT.unpack_from(data)
            if not self._begin(first):
                return
        if not 0 <= offset <= self.next_offset:
            detail = f"it says that it has the log up to {offset}, and was sent {self.next_offset}"
            self.refuse("its report is wrong", detail)
            return
        if self.ack_offset < 0 and not self._acceptor.take(self):
            self.refuse("there are too many slaves", f"{MAX_SLAVES} already")
            return
        self.ack_offset = offset
        self._acceptor.on_change()
        self.push()

    def _enter(self, data: bytes) -> bytes:
        """Have the slave say who it is; the reports that came after that."""
        assert self._transport is not None
        try:
            self._transport.write(self._entrance.receive(data))
        except ProofError as error:
            self.refuse(error.reason, error.advice)
            return b""
        return self._entrance.rest if self._entrance.passed else b""

    # The log

    def _begin(self, offset: int) -> bool:
        """A slave says where it wants to go on; False if that is nowhere in this log."""
        first, end = max(self._log.min_offset, 0), self._log.max_offset
        if offset < 0:
            self.refuse("its report is wrong", f"it says that its log ends at {offset}")
            return False
        if offset == 0:
            size = self._log.file_size
            self.next_offset = first if self._acceptor.from_start else max(end - end % size, first)
        elif offset > end:
            self.refuse(
                "it is ahead",
                f"its log ends at {offset}, this one at {end}. If this master lost messages that the slave"
                " has, make the slave the master; else stop the slave, empty its store and start it",
            )
            return False
        elif offset < first:
            self.refuse(
                "it is too far behind",
                f"its log ends at {offset}, this one begins at {first}."
                " Stop the slave, empty its store and start it",
            )
            return False
        else:
            self.next_offset = offset
        who = (
            f"{self._entrance.name!r}, user {self._entrance.user!r}" if self._entrance.user else "not proved"
        )
        text = "slave %s (%s) has the log up to %d and gets it from %d"
        log.info(text, self.peer, who, offset, self.next_offset)
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
                    self.refuse("it was too slow", "the log file that it needs next is deleted")
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
        if self.ack_offset < 0 and now - self._opened > PENDING_TIMEOUT_S:
            self.refuse("it said too little", f"no report within {PENDING_TIMEOUT_S:g} s")
            return
        if not self._entrance.still_holds:
            detail = f"{self._entrance.user!r} was changed, disabled or deleted"
            self.refuse("its user is no longer accepted", detail)
            return
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

    def refuse(self, reason: str, detail: str) -> None:
        """Turn the slave away."""
        self._acceptor.say(self, reason, detail)
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
        admission: Admission,
        on_change: Callable[[], None],
    ) -> None:
        self.store = store
        self.from_start = from_start
        self._tls = tls
        self.admission = admission
        self.on_change = on_change
        self.connections: dict[SlaveConnection, None] = {}  # the oldest first
        self._pending: dict[SlaveConnection, None] = {}  # the oldest first
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
        for connection in tuple(self._pending):
            connection.abort()
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

    def opened(self, connection: SlaveConnection) -> None:
        """Somebody came. Where too many are pending, the oldest of the address that has most gives way:
        whoever opens many connections displaces its own."""
        self._pending[connection] = None
        if len(self._pending) > MAX_PENDING:
            ((host, _),) = Counter(one.host for one in self._pending).most_common(1)
            oldest = next(one for one in self._pending if one.host == host)
            del self._pending[oldest]  # now: the connection is told of its end in another turn
            oldest.abort()

    def take(self, connection: SlaveConnection) -> bool:
        """Count a connection as a slave's; False if there are too many."""
        if len(self.connections) >= MAX_SLAVES:
            return False
        self._pending.pop(connection, None)
        self.connections[connection] = None
        return True

    def closed(self, connection: SlaveConnection) -> None:
        """A connection is gone."""
        self._pending.pop(connection, None)
        if connection in self.connections:
            del self.connections[connection]
            self.on_change()
            log.info("slave %s is gone; it had the log up to %d", connection.peer, connection.ack_offset)

    def say(self, connection: SlaveConnection, reason: str, detail: str) -> None:
        """Say why a slave is turned away, once in a while. What the peer chose is in the detail alone: in the
        reason it would make each of its connections a line of the log."""
        key, now = (connection.host, reason), time.monotonic()
        if self._said.get(key, 0.0) > now:
            return
        self._said = {said: until for said, until in self._said.items() if until > now}
        if len(self._said) < MAX_SAID:
            self._said[key] = now + SAY_AGAIN_S
            log.error("slave %s is turned away: %s: %s", connection.peer, reason, detail)

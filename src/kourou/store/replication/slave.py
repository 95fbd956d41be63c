"""The slave's side of replication: it connects to its master, appends what comes, and says how far it is
(DefaultHAClient).

Bytes go into the log as they come, records or parts of records; whole records are dispatched to queues and
index after the master was told. A block that does not begin where this log ends ends the connection: the next
one begins at the end of this log. Where a slave has an identity it proves it, and takes nothing from a master
that does not prove its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from kourou.errors import KourouError
from kourou.store.replication.dispatch import LogDispatcher
from kourou.store.replication.flow import FlowMonitor
from kourou.store.replication.master import BLOCK_HEAD, CLOSE_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, REPORT
from kourou.store.replication.proof import HELLO, Identity, Introduction, ProofError

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

# Looks at a master before its bytes are taken: what makes it the wrong one, None if nothing does.
MasterCheck = Callable[[], Awaitable[str | None]]

CONNECT_TIMEOUT_S = 3.0
PROOF_TIMEOUT_S = 5.0
TICK_S = 0.1
RETRY_FIRST_S = 0.2  # doubled with each failure
RETRY_MOST_S = 5.0
MAX_BLOCK_BYTES = 64 * 1024 * 1024  # more than any haTransferBatchSize
SAY_AGAIN_S = 60.0
DISPATCH_DELAY_S = 0.02  # many records at once cost half of what they cost one by one


class _MasterConnection(asyncio.Protocol):
    """The connection to the master."""

    def __init__(self, client: ReplicationClient) -> None:
        self._client = client
        self._config = client.store.config
        self._transport: asyncio.Transport | None = None
        self._head = b""  # of a block, as far as it has come
        self._missing = 0  # bytes of the block that are still to come
        self._offset = 0  # of the next of them
        self._reported = -1
        self._tick: asyncio.TimerHandle | None = None
        self._opened = self._last_read = self._last_write = time.monotonic()
        self._introduction = None if client.identity is None else Introduction(client.identity)
        self.reason = ""
        self.has_read = False
        self.is_decided = asyncio.Event()  # whether the log can be followed; if not, it is over too
        self.is_over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say at once how far this log is, or that there is a proof to come."""
        self._transport = cast(asyncio.Transport, transport)
        if self._introduction is None:
            self._report()
            self.is_decided.set()
        else:
            self._transport.write(HELLO)
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._transport = None
        if self._tick is not None:
            self._tick.cancel()
        self.reason = self.reason or self._reason_of(exc)
        self.is_over.set()
        self.is_decided.set()

    def _reason_of(self, exc: Exception | None) -> str:
        """What it means that the connection ended by itself."""
        if self._introduction is not None:
            return str(self._introduction.failure)
        reason = "the master closed it" if exc is None else str(exc) or type(exc).__name__
        if self.has_read:
            return reason
        return (
            f"{reason} before it sent anything; its log says why. If it wants a proof, set"
            " authenticationEnabled=true and innerClientAuthenticationCredentials here"
        )

    def data_received(self, data: bytes) -> None:
        """Append what came, and say how far this log is now. Hot on a slave."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._introduction is not None:
            data = self._introduce(self._introduction, data)
            if not data:
                return
        self.has_read = True
        self._last_read = time.monotonic()
        self._client.note_read(len(data))
        try:
            self._take(memoryview(data))
        except (OSError, KourouError) as error:
            self._end(f"the log cannot be written: {error}")
            return
        if self._client.end > self._reported:
            self._report()
            self._client.dispatch_soon()

    def _introduce(self, introduction: Introduction, data: bytes) -> bytes:
        """Exchange proofs; the bytes that came after the master's."""
        assert self._transport is not None
        try:
            answer = introduction.receive(data)
        except ProofError as error:
            self._end(str(error))
            return b""
        if answer:
            self._transport.write(answer)
            self._report()
        if not introduction.passed:
            return b""
        self._introduction = None
        self.is_decided.set()
        return introduction.rest

    def _take(self, view: memoryview) -> None:
        while view:
            if self._missing:
                part = view[: self._missing]
                self._client.store.commit_log.append_raw(self._offset, part)
                self._missing -= len(part)
                self._offset += len(part)
                view = view[len(part) :]
                continue
            needed = BLOCK_HEAD.size - len(self._head)
            self._head += view[:needed]
            view = view[needed:]
            if len(self._head) == BLOCK_HEAD.size:
                self._offset, size = BLOCK_HEAD.unpack(self._head)
                self._head = b""
                mistake = self._client.mistake_of(self._offset, size)
                if mistake is not None:
                    self._end(mistake)
                    return
                self._missing = size

    def _report(self) -> None:
        assert self._transport is not None
        self._reported = self._client.end
        self._transport.write(REPORT.pack(self._reported))
        self._last_write = time.monotonic()
        self._client.note_write()

    def _on_tick(self) -> None:
        assert self._transport is not None
        now = time.monotonic()
        if self._introduction is not None and now - self._opened > PROOF_TIMEOUT_S:
            self._end(str(self._introduction.failure))
            return
        if now - self._last_read > self._config.ha_housekeeping_interval / 1000:
            self._end("the master said nothing for too long")
            return
        due = now - self._last_write > self._config.ha_send_heartbeat_interval / 1000
        if due and self._introduction is None:
            self._report()
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)

    def _end(self, reason: str) -> None:
        self.reason = reason
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


class ReplicationClient:
    """Keeps a slave's log like its master's."""

    def __init__(
        self,
        store: MessageStore,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        check_master: MasterCheck | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.store = store
        self.identity = identity
        self._files = store.commit_log.files
        self._tls = tls
        self._check_master = check_master
        self._dispatcher = LogDispatcher(store)
        self.address = store.config.ha_master_address
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: _MasterConnection | None = None
        self._dispatch_timer: asyncio.Handle | None = None
        self._said: dict[str, float] = {}  # reason -> when it may be said again
        self.last_read_ms = self.last_write_ms = 0
        self.flow = FlowMonitor(store.config)
        self.on_connected: Callable[[bool], None] | None = None  # hears whether the master is there

    # Life

    def start(self) -> None:
        """Look for the master from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take nothing more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._connection is not None:
            self._connection.abort()
            await self._connection.is_over.wait()
        if self._dispatch_timer is not None:
            self._dispatch_timer.cancel()
        while not self._dispatcher.run():
            pass

    def set_address(self, address: str) -> None:
        """The master is elsewhere, or, with "", nowhere."""
        if address == self.address:
            return
        log.info("the master's log is at %s now, not at %s", address or "no address", self.address or "any")
        self.address = address
        self._changed.set()
        if self._connection is not None:
            self._connection.abort()

    def wake(self) -> None:
        """Try now, not after the pause."""
        self._changed.set()

    @property
    def is_connected(self) -> bool:
        """Whether the master is there, as far as can be told from here."""
        return self._connection is not None and self._connection.is_decided.is_set()

    async def _run(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            self._changed.clear()
            if self.address:
                try:
                    has_read = await self._follow()
                except Exception:
                    log.exception("replication failed; it is tried again")
                    has_read = False
                pause_s = RETRY_FIRST_S if has_read else min(pause_s * 2, RETRY_MOST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if self.address else None):
                    await self._changed.wait()

    async def _follow(self) -> bool:
        """Take what the master sends until the connection ends; whether anything came."""
        address = self.address
        if self._check_master is not None:
            mistake = await self._check_master()
            if mistake is not None:
                self.say(mistake)
                return False
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S + (HANDSHAKE_TIMEOUT_S if self._tls else 0)):
                _, connection = await loop.create_connection(
                    lambda: _MasterConnection(self),
                    host.strip("[]"),
                    int(port),
                    ssl=None if self._tls is None else self._tls(),
                    server_hostname="" if self._tls else None,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
                    ssl_shutdown_timeout=CLOSE_TIMEOUT_S if self._tls else None,
                )
        except (OSError, ValueError, TimeoutError) as error:
            self.say(f"no connection to {address}: {error or 'it does not answer'}")
            return False
        self._connection = connection
        try:
            if address != self.address:  # the master went elsewhere while this was connecting
                return False
            await connection.is_decided.wait()
            if not connection.is_over.is_set():
                log.info("connected to the master at %s, with the log up to %d", address, self.end)
                self._tell(True)
            await connection.is_over.wait()
        finally:
            connection.abort()
            await connection.is_over.wait()
            self._connection = None
            self._tell(False)
        self.say(f"the connection to {address} is over: {connection.reason}")
        return connection.has_read

    def _tell(self, is_connected: bool) -> None:
        if self.on_connected is not None:
            self.on_connected(is_connected)

    def say(self, reason: str) -> None:
        """Say why nothing is replicated, once in a while."""
        now = time.monotonic()
        if self._said.get(reason, 0.0) > now:
            return
        self._said = {said: until for said, until in self._said.items() if until > now}
        self._said[reason] = now + SAY_AGAIN_S
        log.warning("nothing is replicated: %s", reason)

    # The log

    @property
    def end(self) -> int:
        """Where this log ends."""
        return self._files.max_wrote

    def mistake_of(self, offset: int, size: int) -> str | None:
        """Why a block cannot be taken; None if it can."""
        if not 0 <= size <= MAX_BLOCK_BYTES or offset < 0:
            return f"a block of {size} bytes at {offset} is none"
        end = self.end
        if end == 0 and size > 0:
            if offset % self._files.file_size:
                return f"an empty log cannot begin at {offset}: files have {self._files.file_size} bytes"
            self.store.dispatcher.dispatched_offset = offset
        elif end not in (0, offset):
            return f"the master goes on at {offset}, this log ends at {end}"
        return None

    def note_read(self, count: int) -> None:
        """So many bytes came."""
        self.last_read_ms = self.store.clock.now_ms()
        self.flow.add(count)

    def note_write(self) -> None:
        """The master was told."""
        self.last_write_ms = self.store.clock.now_ms()

    def dispatch_soon(self) -> None:
        """Bring new records to queues and index, with those that come in the next moment."""
        if self._dispatch_timer is None:
            loop = asyncio.get_running_loop()
            self._dispatch_timer = loop.call_later(DISPATCH_DELAY_S, self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_timer = None
        if not self._dispatcher.run():  # there is more: other work has its turn first
            self._dispatch_timer = asyncio.get_running_loop().call_soon(self._dispatch)

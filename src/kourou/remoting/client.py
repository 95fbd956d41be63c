"""RemotingClient: one connection to each address, made when it is needed and again when it was lost.

Whoever needs an address while a connection to it is being made waits for that one. An address that refuses,
or that hangs up before it has said anything, is not tried again at once: the pause doubles from
BACK_OFF_FIRST_S to BACK_OFF_MOST_S with each failure, and calls within it fail at once, so that a dead peer
costs its callers nothing. A call that was sent is never sent again by itself: only the caller knows whether
it may be done twice.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from kourou.errors import KourouError
from kourou.remoting.connection import (
    CLOSE_TIMEOUT_S,
    CallTimeoutError,
    Connection,
    ConnectionLostError,
    Handler,
    Outbox,
    close_all,
)
from kourou.remoting.protocol.command import MAX_FRAME_BYTES, RemotingCommand
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import RenewedContext, TlsConfig

CONNECT_TIMEOUT_S = 3.0  # Java's connectTimeoutMillis
BACK_OFF_FIRST_S = 0.1
BACK_OFF_MOST_S = 2.0

# Addresses come from routes, and brokers come and go: those without a connection are forgotten beyond this.
MAX_ADDRESSES = 4096
# To a peer that does not read; four of the largest frames.
MAX_UNSENT_BYTES = 4 * MAX_FRAME_BYTES
# After this the kernel gives up on a peer that acknowledges nothing: a machine that is gone does not say so.
UNACKNOWLEDGED_TIMEOUT_MS = 30_000


class RemotingClient:
    """Connections to any number of servers.

    `handlers` answer what servers ask. `on_close` is told the address of each connection that is gone, for
    whatever reason. With `tls` connections are in TLS if it is enabled there for clients; with `credentials`
    requests are signed.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        on_close: Callable[[str], None] | None = None,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._handlers = handlers if handlers is not None else {}
        self._credentials = credentials
        self._on_close = on_close
        self._context: RenewedContext | None = None
        if tls is not None and tls.enable:
            self._context = RenewedContext(tls.client_context, tls.client_files())
        self._peers: dict[str, _Peer] = {}
        self._outbox = Outbox()
        self._connections: set[Connection] = set()  # all that are not gone, also those being closed
        self._is_closed = False

    async def call(self, address: str, request: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Send a request to `ip:port`; its response. The time is for connecting and for the answer."""
        connection = self._standing(address)
        if connection is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            connection = await self._connected(address, timeout_s)
            timeout_s = deadline - loop.time()
            if timeout_s <= 0:
                raise CallTimeoutError(f"no time was left for request {request.code} to {address}")
        _check_unsent(connection, address)
        if self._credentials is not None:
            request = self._credentials.sign(request)
        return await connection.call(request, timeout_s)

    async def send_oneway(self, address: str, request: RemotingCommand) -> None:
        """Send a request that nobody answers."""
        connection = self._standing(address) or await self._connected(address, None)
        _check_unsent(connection, address)
        if self._credentials is not None:
            request = self._credentials.sign(request)
        connection.send_oneway(request)

    def drop(self, address: str) -> None:
        """Close the connection to an address, if there is one; calls under way on it fail."""
        peer = self._peers.get(address)
        if peer is None:
            return
        if peer.connecting is not None:
            peer.connecting.cancel()
            peer.connecting = None
        connection, peer.connection = peer.connection, None
        if connection is not None:
            connection.close()
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, connection.abort)

    async def close(self) -> None:
        """Close all connections, within a few seconds whatever the peers do. Calls under way fail."""
        self._is_closed = True
        connecting = [peer.connecting for peer in self._peers.values() if peer.connecting is not None]
        for task in connecting:
            task.cancel()
        if connecting:
            await asyncio.wait(connecting, timeout=CLOSE_TIMEOUT_S)
        await close_all(self._connections)
        self._peers.clear()

    def _standing(self, address: str) -> Connection | None:
        """The connection to an address if it stands. Hot."""
        peer = self._peers.get(address)
        if peer is None or peer.connection is None or not peer.connection.is_open:
            return None
        return peer.connection

    async def _connected(self, address: str, timeout_s: float | None) -> Connection:
        """A connection to an address, made or waited for."""
        if self._is_closed:
            raise ConnectionLostError(f"no connection to {address}: the client is closed")
        peer = self._peers.get(address) or self._add_peer(address)
        if peer.connecting is None or peer.connecting.done():
            peer.release()
            peer.check_pause()
            peer.connecting = asyncio.get_running_loop().create_task(self._connect(peer))
        # A caller that is cancelled or runs out of time leaves the connection to those who come after it.
        done, _ = await asyncio.wait((peer.connecting,), timeout=timeout_s)
        if not done:
            raise CallTimeoutError(f"no connection to {address} within {timeout_s:g} s")
        task = done.pop()
        failure = "the connection was dropped" if task.cancelled() else task.result()
        if failure is None and peer.connection is None:
            failure = "it hung up"
        if failure is not None:
            raise ConnectionLostError(f"{address} cannot be reached: {failure}")
        assert peer.connection is not None
        return peer.connection

    def _add_peer(self, address: str) -> _Peer:
        if len(self._peers) >= MAX_ADDRESSES:
            for other in [name for name, peer in self._peers.items() if peer.is_unused]:
                del self._peers[other]
        if len(self._peers) >= MAX_ADDRESSES:
            raise KourouError(f"no connection to {address}: there are {MAX_ADDRESSES} already")
        peer = self._peers[address] = _Peer(address)
        return peer

    async def _connect(self, peer: _Peer) -> str | None:
        """Make the connection of a peer; why there is none, if so."""
        loop = asyncio.get_running_loop()
        connection = Connection(self._handlers, on_close=partial(self._lost, peer), outbox=self._outbox)
        context = None if self._context is None else self._context.get()
        try:
            host, port = _split(peer.address)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=context,
                    ssl_shutdown_timeout=CLOSE_TIMEOUT_S if context else None,
                )
            _prepare(transport)
            if not connection.is_open:
                raise ConnectionResetError(errno.ECONNRESET, "it hung up at once")
        except (OSError, ValueError) as error:
            connection.abort()
            peer.failed()
            return _why(error, in_tls=context is not None)
        self._connections.add(connection)
        peer.connection = connection
        return None

    def _lost(self, peer: _Peer, connection: Connection) -> None:
        if connection not in self._connections:
            return  # it was never anybody's
        self._connections.remove(connection)
        if peer.connection is connection:  # and was not dropped
            peer.release()
        if self._on_close is not None:
            self._on_close(peer.address)


class _Peer:
    """One address: its connection, and when it may be tried again."""

    __slots__ = ("_not_before", "address", "connecting", "connection", "pause_s")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[str | None] | None = None
        self.pause_s = 0.0
        self._not_before = 0.0

    @property
    def is_unused(self) -> bool:
        """Whether there is nothing to lose but the pause."""
        return self.connection is None and (self.connecting is None or self.connecting.done())

    def release(self) -> None:
        """Forget a connection that is not used any more."""
        if self.connection is not None and self.connection.is_silent:
            self.failed()
        elif self.connection is not None:
            self.pause_s = 0.0
        self.connection = None

    def failed(self) -> None:
        """Leave the address alone for a while."""
        self.pause_s = min(max(self.pause_s * 2, BACK_OFF_FIRST_S), BACK_OFF_MOST_S)
        self._not_before = asyncio.get_running_loop().time() + self.pause_s

    def check_pause(self) -> None:
        """ConnectionLostError while the address is left alone."""
        left_s = self._not_before - asyncio.get_running_loop().time()
        if left_s > 0:
            raise ConnectionLostError(
                f"{self.address} could not be reached just now; it is tried again in {left_s:.1f} s"
            )


def _why(error: Exception, *, in_tls: bool) -> str:
    """What to say of a connection that could not be made.

    A peer that does not speak TLS just hangs up, and is not spoken to in plain text instead.
    """
    text = str(error)
    if not text and isinstance(error, TimeoutError):
        text = f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if in_tls and isinstance(error, OSError) and not isinstance(error, ConnectionRefusedError | ssl.SSLError):
        return f"{text or 'it hung up'} (TLS is wanted here: see whether it speaks TLS, tls.server.mode)"
    return text or "it hung up"


def _split(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("an address is ip:port")
    return host, int(port)


def _prepare(transport: asyncio.Transport) -> None:
    if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
        # A port that the system gives to clients may be given to the very one that connects to it.
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux only
    if option is not None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, UNACKNOWLEDGED_TIMEOUT_MS)


def _check_unsent(connection: Connection, address: str) -> None:
    """Raises KourouError if a peer has not taken what it was sent: nothing may pile up for it without end."""
    if connection.unsent_request_bytes > MAX_UNSENT_BYTES:
        raise KourouError(f"{address} does not read: {connection.unsent_request_bytes} bytes wait for it")

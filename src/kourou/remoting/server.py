"""RemotingServer: listens on one port or several, and keeps the connections that come.

It accepts by itself and not through asyncio's Server, for four reasons. The first byte says whether a peer
speaks TLS, before anything is read. A connection beyond the limit costs one system call. A process without
free descriptors pauses instead of trying in a loop. And asyncio's Server may wait for ever to be closed, for
a connection that it accepted and that nobody knows of yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping

from kourou.errors import KourouError
from kourou.remoting.buffers import Buffers
from kourou.remoting.connection import CLOSE_TIMEOUT_S, Connection, Handler, Outbox, close_all
from kourou.remoting.tls import HELLO_BYTE, RenewedContext, TlsConfig, TlsMode

log = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 120.0  # Java's serverChannelMaxIdleTimeSeconds
MAX_CONNECTIONS = 65536
BACKLOG = 1024  # Java's serverSocketBacklog
ACCEPT_AT_ONCE = 128  # in one turn of the loop, so that open connections are served in between
ACCEPT_PAUSE_S = 1.0  # when the process or the system has no room for another socket
HANDSHAKE_TIMEOUT_S = 10.0
WARNING_PAUSE_S = 10.0  # a flood of connections must not flood the log

# File descriptors that are reserved for files: at most so many, or a quarter of all.
RESERVED_DESCRIPTORS = 256

_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ENCRYPTS_ONLY = (
    "which encrypts, but nobody can verify that this is the server it seems to be"
    " (set tls.server.certPath and tls.server.keyPath)"
)
_NO_DESCRIPTORS = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class RemotingServer:
    """Listening sockets and their connections. Without `tls` it speaks plain."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        on_close: Callable[[Connection], None] | None = None,
        tls: TlsConfig | None = None,
        max_connections: int = MAX_CONNECTIONS,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        make_connection: Callable[..., Connection] = Connection,
        buffers: Buffers | None = None,
    ) -> None:
        self._handlers = handlers
        self._on_close = on_close
        self._tls = tls if tls is not None and tls.server_mode is not TlsMode.disabled else None
        self._certificates: RenewedContext | None = None
        self._making_certificate = asyncio.Lock()
        self._max_connections = max_connections
        self._idle_timeout_s = idle_timeout_s
        self._make_connection = make_connection
        self._listeners: list[socket.socket] = []
        self._accepting: dict[Connection, tuple[asyncio.Task[None], socket.socket]] = {}
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._idle_watch: asyncio.Task[None] | None = None
        self._warn_again = 0.0
        self._last_descriptor = 0  # that a connection may have
        self.connections: set[Connection] = set()
        self._outbox = Outbox()
        self._buffers = buffers

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is of the system's choice for port 0. May be called for more ports."""
        loop = asyncio.get_running_loop()
        if not self._listeners:
            self._load_certificates()
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = sys.maxsize if most == resource.RLIM_INFINITY else most
        self._last_descriptor = most - min(RESERVED_DESCRIPTORS, most // 4)
        listeners = _listen(host, port)
        self._listeners += listeners
        for listener in listeners:
            loop.add_reader(listener, self._accept, listener)
        if self._idle_watch is None:
            self._idle_watch = loop.create_task(self._close_idle())
        return int(listeners[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and close what is open, within a few seconds whatever the peers do."""
        loop = asyncio.get_running_loop()
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        if self._idle_watch is not None:
            self._idle_watch.cancel()
            self._idle_watch = None
        await self._end_accepting()
        await close_all(self.connections)

    # Connections that come

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_ROOM:
                    self._pause(listener, error)
                    return
                continue  # the peer was gone before it was taken
            if len(self.connections) + len(self._accepting) >= self._max_connections:
                self._warn("more than %d connections: one is turned away", self._max_connections)
                sock.close()
                continue
            sock.setblocking(False)
            connection = self._make_connection(
                self._handlers,
                on_open=self._opened,
                on_close=self._closed,
                outbox=self._outbox,
                buffers=self._buffers,
            )
            self._accepting[connection] = loop.create_task(self._attach(connection, sock)), sock
            if _descriptor_of(sock) >= self._last_descriptor:
                self._pause(listener, _NO_DESCRIPTORS)
                return

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Stop accepting for a while: the socket stays readable, and each turn of the loop would fail."""
        loop = asyncio.get_running_loop()
        self._warn("connections have to wait: %s (ulimit -n)", error.strerror)
        loop.remove_reader(listener)
        self._pauses[listener] = loop.call_later(ACCEPT_PAUSE_S, self._go_on, listener)

    def _go_on(self, listener: socket.socket) -> None:
        del self._pauses[listener]
        if _next_descriptor(listener) >= self._last_descriptor:
            self._pause(listener, _NO_DESCRIPTORS)
            return
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _attach(self, connection: Connection, sock: socket.socket) -> None:
        """Make a connection of a socket, in TLS if that is what the peer starts with."""
        loop = asyncio.get_running_loop()
        try:
            try:
                context = await self._context_for(sock)
            except BaseException:
                sock.close()  # nothing else owns it yet
                raise
            await loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if context else None,
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S if context else None,
            )
        except KourouError as error:
            self._warn("a connection is turned away: %s", error)
        except (OSError, TimeoutError) as error:  # a failed TLS handshake too
            log.info("a connection was given up: %s", str(error) or "nothing was heard in time")
        finally:
            self._accepting.pop(connection, None)

    async def _end_accepting(self) -> None:
        """Drop connections that are being set up.

        Its socket is shut down, so that whatever waits for it wakes up. A task that is cancelled instead
        leaves uvloop with a connection that is never told its end.
        """
        tasks = []
        for task, sock in self._accepting.values():
            tasks.append(task)
            with contextlib.suppress(OSError):  # the peer was faster
                sock.shutdown(socket.SHUT_RDWR)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)

    async def _context_for(self, sock: socket.socket) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        async with asyncio.timeout(self._idle_timeout_s):
            is_hello = await _first_byte(sock) == HELLO_BYTE
        if not is_hello:
            if self._tls.server_mode is TlsMode.enforcing:
                raise _TurnedAwayError(f"{_peer_of(sock)} does not speak TLS, and tls.server.mode=enforcing")
            return None
        async with self._making_certificate:  # connections that come meanwhile wait for the same certificate
            if self._certificates is None:
                self._certificates = await asyncio.to_thread(_renewed, self._tls)
                log.info("the first connection in TLS: a certificate was made, %s", _ENCRYPTS_ONLY)
        return self._certificates.get()

    def _load_certificates(self) -> None:
        """Read the certificate that is configured. Otherwise one is made, when the first peer asks for it."""
        if self._tls is None:
            return
        if not self._tls.is_self_signed:
            self._certificates = _renewed(self._tls)
            return
        self._tls.server_checks()  # what is wrong with the rest is said now
        if self._tls.server_mode is TlsMode.enforcing:
            log.warning("tls.server.mode=enforcing without a certificate: one is made, %s", _ENCRYPTS_ONLY)

    def _warn(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now >= self._warn_again:
            self._warn_again = now + WARNING_PAUSE_S
            log.warning(message, *arguments)

    # Connections that stand

    def _opened(self, connection: Connection) -> None:
        self._accepting.pop(connection, None)
        self.connections.add(connection)
        if not self._listeners:  # stopped meanwhile
            connection.close()

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_close is not None:
            self._on_close(connection)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(self._idle_timeout_s / 4)
            limit = time.monotonic() - self._idle_timeout_s
            for connection in [c for c in self.connections if c.has_waited_since(limit)]:
                if not connection.is_open:  # closed before, and its peer does not take what was sent
                    connection.abort()
                    continue
                log.info(
                    "closing the connection of %s: no request was heard for %g s",
                    connection.peer,
                    self._idle_timeout_s,
                )
                connection.close()


class _TurnedAwayError(KourouError):
    """A peer that speaks what this server does not."""


def _renewed(tls: TlsConfig) -> RenewedContext:
    return RenewedContext(tls.server_context, tls.server_files())


def _descriptor_of(sock: object) -> int:
    """The number of a socket; those of a simulator have none."""
    return sock.fileno() if isinstance(sock, socket.socket) else 0


def _next_descriptor(listener: socket.socket) -> int:
    """The number that a descriptor would have which is opened now; the system gives the lowest."""
    try:
        number = os.dup(listener.fileno())
    except OSError as error:
        return sys.maxsize if error.errno in _OUT_OF_ROOM else 0
    os.close(number)
    return number


def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at each address of a host, on the same port."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            # The protocol is given to accepted sockets too; without it asyncio leaves Nagle's delay on.
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)
            listener.bind((address[0], port, *address[2:]))
            listener.listen(BACKLOG)
            port = port or int(listener.getsockname()[1])
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listeners


async def _first_byte(sock: socket.socket) -> int:
    """The first byte that a peer sends, which stays where it is."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(loop, sock)
            continue
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        return data[0]


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)


def _peer_of(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a peer that is gone"
    return f"{host}:{port}"

"""Door: one port that takes TLS and plain text (the first byte tells them apart), in front of gRPC's two.

gRPC's server has a port for either. It listens on two sockets of its own in the file system; what comes to
the port is passed on to the one or the other, byte by byte. The socket that passes it on has a number for its
name: gRPC tells it of each call, and by it `address` finds where the client is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path

log = logging.getLogger(__name__)

TLS_HANDSHAKE = 0x16  # the first byte of a TLS connection; HTTP/2 begins with "PRI"
FIRST_BYTE_S = 10.0  # a peer that says nothing is let go
MAX_WAITING = 1 << 20  # bytes that one side does not take before the other is not read


class Door:
    """Listens, and passes connections on."""

    def __init__(self, plain: Path, tls: Path | None) -> None:
        self._plain = plain
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._sides: set[_Side] = set()
        self._numbers = count(1)
        self._addresses: dict[str, str] = {}

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Begin to listen. OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self), host, port, backlog=1024)

    async def close(self) -> None:
        """End, with all connections."""
        if self._server is not None:
            self._server.close()
        for side in list(self._sides):
            side.abort()

    @property
    def connections(self) -> int:
        """How many are passed on."""
        return len(self._addresses)

    def target(self, first: int) -> Path | None:
        """Where a connection goes that begins with this byte."""
        return self._tls if first == TLS_HANDSHAKE else self._plain

    def address(self, peer: str) -> str:
        """Where the client of a call is, `host:port`; `peer` is what gRPC says of the call."""
        return self._addresses.get(peer.rpartition("/")[2], "")

    def named_socket(self, address: str) -> tuple[socket.socket, str]:
        """A socket to pass on what comes from an address, and its name."""
        name = str(next(self._numbers))
        made = socket.socket(socket.AF_UNIX)
        made.setblocking(False)
        path = self._plain.with_name(name)
        try:
            made.bind(str(path))
            path.unlink()  # the name stays with the socket
        except OSError:
            made.close()
            raise
        self._addresses[name] = address
        return made, name

    def forget(self, name: str) -> None:
        """A connection that was passed on has ended."""
        self._addresses.pop(name, None)


class _Side(asyncio.Protocol):
    """One end of a connection that is passed on. What it reads, the other end writes."""

    def __init__(self, door: Door, other: _Side | None = None) -> None:
        self._door = door
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()  # what came before the other end was there
        self._connecting: asyncio.Task[None] | None = None
        self._silent: asyncio.TimerHandle | None = None
        self._name = ""  # of the socket that passes this on

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(MAX_WAITING)  # type: ignore[attr-defined]
        self._door._sides.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._other is None:
            self._silent = asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.write(data)
            return
        self._early += data
        if self._connecting is None:
            if self._silent is not None:
                self._silent.cancel()
            self._connecting = asyncio.ensure_future(self._connect(self._early[0]))
        elif len(self._early) > MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()

    async def _connect(self, first: int) -> None:
        target = self._door.target(first)
        if target is None:
            self.abort()
            return
        loop, made = asyncio.get_running_loop(), None
        try:
            made, self._name = self._door.named_socket(self._address())
            await loop.sock_connect(made, str(target))
            _, other = await loop.create_unix_connection(lambda: _Side(self._door, self), sock=made)
        except OSError as error:
            log.warning("a connection cannot be passed on: %s", error)
            if made is not None:
                made.close()
            self.abort()
            return
        assert isinstance(other, _Side)
        if self._transport is None or self._transport.is_closing():
            other.abort()
            return
        self._other = other
        assert other._transport is not None
        other._transport.write(bytes(self._early))
        self._early.clear()
        self._transport.resume_reading()

    def _address(self) -> str:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return "" if not peer else f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"

    def pause_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._door._sides.discard(self)
        self._door.forget(self._name)
        self._transport = None
        if self._silent is not None:
            self._silent.cancel()
        if self._other is not None:
            self._other.close()

    def close(self) -> None:
        """End when what is written has gone."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

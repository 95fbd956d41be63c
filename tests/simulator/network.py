"""SimNetwork: connections between nodes, with delays, cuts, resets, and peers that are gone without a word.

It behaves as TCP does: what is sent arrives in order or not at all; while two machines cannot reach each
other it waits, and a sender that hears nothing for too long gives up. A process that is killed has its
connections reset by its machine; a machine that loses its power says nothing, until it is back and knows
nothing of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from simulator.loop import NODE, Node, SimLoop, context_of

LATENCY_S = (0.0001, 0.003)
CONNECT_TIMEOUT_S = 5.0
UNACKNOWLEDGED_S = 30.0
_EOF = object()


class SimNetwork:
    """All connections of a world."""

    def __init__(self, loop: SimLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.nodes: dict[str, Node] = {}  # by host, those that run
        self.off: set[str] = set()  # hosts without power
        self.transports: list[SimTransport] = []  # in the order in which they were made
        self.cuts: set[frozenset[str]] = set()  # pairs of hosts that cannot reach each other
        self._next_port = 40_000

    def latency(self) -> float:
        return self.chance.uniform(*LATENCY_S)

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cuts

    # Servers

    def listen(self, host: str, port: int) -> SimListener:
        node = NODE.get()
        assert node is not None
        port = port or self._port()
        if (node.host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        listener = SimListener(self, node, port)
        self.listeners[node.host, port] = listener
        return listener

    def serve(self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int) -> SimServer:
        listener = self.listen(host, port)

        def accept() -> None:
            while listener.waiting:
                transport = listener.waiting.popleft()
                transport.attach(protocol_factory())

        listener.watch(accept)
        return SimServer(listener)

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port

    # Clients

    async def connect(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.Protocol]:
        node = NODE.get()
        assert node is not None
        host = node.host if host == "127.0.0.1" else host
        await asyncio.sleep(self.latency())
        if self.is_cut(node.host, host) or host in self.off:
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError(errno.ETIMEDOUT, "nobody answers")
        listener = self.listeners.get((host, int(port)))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
        near = SimTransport(self, node, (node.host, self._port()))
        far = SimTransport(self, listener.node, (host, int(port)))
        near.pair(far)
        self.transports += [near, far]
        listener.arrived(far)
        protocol = protocol_factory()
        near.attach(protocol)
        return near, protocol

    # What happens to nodes

    def up(self, node: Node) -> None:
        """A node runs."""
        self.nodes[node.host] = node
        self.off.discard(node.host)

    def down(self, node: Node, *, silent: bool) -> None:
        """A node does not run any more; silent if its machine does not either."""
        self.nodes.pop(node.host, None)
        if silent:
            self.off.add(node.host)
        for key in [key for key, listener in self.listeners.items() if listener.node is node]:
            del self.listeners[key]
        for transport in [item for item in self.transports if item.node is node]:
            if not silent:
                transport.peer.reset_soon()
            self.transports.remove(transport)

    def reset_one(self) -> None:
        """A connection breaks."""
        if self.transports:
            transport = self.chance.choice(self.transports)
            transport.reset_soon()
            transport.peer.reset_soon()


class SimListener:
    """A socket that listens."""

    def __init__(self, network: SimNetwork, node: Node, port: int) -> None:
        self._network = network
        self.node = node
        self.port = port
        self.waiting: deque[SimTransport] = deque()
        self._reader: Callable[[], None] | None = None
        self._context: contextvars.Context | None = None

    def watch(self, reader: Callable[[], None] | None) -> None:
        self._reader = reader
        self._context = contextvars.copy_context()

    def arrived(self, transport: SimTransport) -> None:
        self.waiting.append(transport)
        if self._reader is not None:
            self._network.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        if self._reader is not None:
            self._reader()

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        transport = self.waiting.popleft()
        return SimSocket(transport), transport.peername

    def getsockname(self) -> tuple[str, int]:
        return self.node.host, self.port

    def close(self) -> None:
        if self._network.listeners.get((self.node.host, self.port)) is self:
            del self._network.listeners[self.node.host, self.port]


class SimServer:
    """What create_server gives."""

    def __init__(self, listener: SimListener) -> None:
        self._listener = listener
        self.sockets = [listener]

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        pass


class SimSocket:
    """A socket that was accepted and has no protocol yet."""

    def __init__(self, transport: SimTransport) -> None:
        self.transport = transport

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *_: Any) -> None:
        pass

    def shutdown(self, how: int) -> None:
        self.transport.abort()

    def close(self) -> None:
        self.transport.abort()


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: SimNetwork, node: Node, sockname: tuple[str, int]) -> None:
        super().__init__()
        self._network = network
        self.node = node
        self._sockname = sockname
        self._context = context_of(node)
        self.peer: SimTransport
        self._protocol: asyncio.Protocol | None = None
        self._arriving: deque[Any] = deque()  # sent by the peer, not yet given to the protocol
        self._not_before = 0.0
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        self._stuck_since: float | None = None

    def pair(self, other: SimTransport) -> None:
        self.peer, other.peer = other, self

    @property
    def peername(self) -> tuple[str, int]:
        return self.peer._sockname

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Give it the protocol that hears what comes."""
        self._protocol = protocol
        if self._is_lost:
            self._is_lost = False
            self._call(self._end, None)
            return
        protocol.connection_made(self)
        self._pump_soon()

    def _call(self, callback: Callable[..., Any], *args: Any, delay_s: float = 0.0) -> None:
        loop = self._network.loop
        loop.call_at(loop.time() + delay_s, callback, *args, context=self._context)

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return SimSocket(self)
        return {"peername": self.peername, "sockname": self._sockname}.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return sum(len(item) for item in self.peer._arriving if item is not _EOF)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._pump_soon()

    def is_reading(self) -> bool:
        return not self._is_paused

    def write(self, data: Any) -> None:
        if self.is_closing() or not data:
            return
        if self.peer.node.is_alive:
            self.peer.arrive(bytes(data))
        elif self.peer.node.host not in self._network.off:
            self.reset_soon()  # the machine is there, and knows nothing of this connection
        else:
            self._call(self._give_up, delay_s=UNACKNOWLEDGED_S)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self.peer.arrive(_EOF)
            self._call(self._end, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self.peer.reset_soon()
            self._call(self._end, None)

    # What arrives

    def arrive(self, item: Any) -> None:
        """The peer has sent something; it is here after a while."""
        self._arriving.append(item)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if self._arriving:
            self._call(self._pump, delay_s=self._network.latency())

    def _pump(self) -> None:
        """Give the protocol what has arrived, if it may have."""
        if self._protocol is None or self._is_paused or self._is_lost:
            return
        if self._network.is_cut(self.node.host, self.peer.node.host):
            now = self._network.loop.time()
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since > UNACKNOWLEDGED_S:
                self.reset_soon()
                self.peer.reset_soon()
            else:
                self._call(self._pump, delay_s=0.2)
            return
        self._stuck_since = None
        parts = []
        while self._arriving and self._arriving[0] is not _EOF:
            parts.append(self._arriving.popleft())
        if parts:
            self._protocol.data_received(b"".join(parts))
        if self._arriving and self._arriving[0] is _EOF and not self._is_lost:
            self._arriving.clear()
            self._is_closing = True
            self._call(self._end, None)

    def _give_up(self) -> None:
        self._end(TimeoutError(errno.ETIMEDOUT, "nothing was acknowledged"))

    def reset_soon(self) -> None:
        """The connection is broken, and this end hears of it."""
        self._call(
            self._end, ConnectionResetError(errno.ECONNRESET, "reset"), delay_s=self._network.latency()
        )

    def _end(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._arriving.clear()
        if self in self._network.transports:
            self._network.transports.remove(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

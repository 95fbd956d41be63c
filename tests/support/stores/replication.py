"""Masters and slaves on one event loop, and a link between them that can be cut, stopped and slowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kourou.store import BrokerRole, MessageStore
from kourou.store.replication.service import Replication
from support.loops import until
from support.stores.store import small_config

HOST = "127.0.0.1"


class Node:
    """A store that replicates."""

    def __init__(self, store: MessageStore, replication: Replication, port: int) -> None:
        self.store = store
        self.replication = replication
        self.port = port

    @property
    def end(self) -> int:
        return self.store.commit_log.files.max_wrote

    def log_bytes(self, begin: int = 0) -> bytes:
        """The log from an offset on."""
        found = b"".join(bytes(file.view[: file.wrote]) for file in self.store.commit_log.files.files)
        return found[begin - max(self.store.commit_log.min_offset, 0) :]


@asynccontextmanager
async def node(
    directory: Path, role: BrokerRole = BrokerRole.ASYNC_MASTER, master: str = "", **more: Any
) -> AsyncIterator[Node]:
    """A store with its replication, whose services run in threads."""
    options = {name: more.pop(name) for name in tuple(more) if name in _OPTIONS}
    config = small_config(directory, broker_role=role, ha_master_address=master, **more)
    loop = asyncio.get_running_loop()
    store = MessageStore(config, post=lambda call: _post(loop, call))
    store.load()
    store.start()
    replication = Replication(store, **options)
    port = await replication.start(HOST, 0)
    try:
        yield Node(store, replication, port)
    finally:
        await replication.stop()
        store.shutdown()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


_OPTIONS = ("from_start", "server_tls", "client_tls", "check_master", "admission", "identity")


@asynccontextmanager
async def slave(directory: Path, port: int, **more: Any) -> AsyncIterator[Node]:
    """A slave of the master, or the link, at a port."""
    async with node(directory, BrokerRole.SLAVE, f"{HOST}:{port}", **more) as found:
        yield found


async def caught_up(master: Node, follower: Node) -> None:
    """Wait until a slave has the master's log and has dispatched it, and the master knows."""
    await until(lambda: follower.end == master.end, "the slave to have the log")
    await until(lambda: follower.store.dispatcher.dispatched_offset == master.end, "the slave to dispatch")
    await until(
        lambda: any(one.ack_offset == master.end for one in master.replication.slaves),
        "the master to hear of it",
    )


class Link:
    """A proxy between a slave and its master."""

    def __init__(self, master_port: int) -> None:
        self._master_port = master_port
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.chunk_bytes = 64 * 1024
        self.delay_s = 0.0
        self.cut_after_bytes = -1  # of what the master sends on one connection
        self.connections = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close what is open; new connections come."""
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()
        self._pairs.clear()

    def hold(self) -> None:
        """Pass nothing on, and close nothing: a link that is half open."""
        self._flows.clear()

    def go_on(self) -> None:
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            to_master = await asyncio.open_connection(HOST, self._master_port)
        except OSError:
            writer.transport.abort()
            return
        self._pairs.append((writer, to_master[1]))
        for source, target, limited in ((reader, to_master[1], False), (to_master[0], writer, True)):
            task = asyncio.get_running_loop().create_task(self._pump(source, target, limited))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, limited: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await source.read(self.chunk_bytes):
                await self._flows.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                passed += len(data)
                if limited and 0 <= self.cut_after_bytes < passed:
                    target.write(data[: self.cut_after_bytes - passed])
                    await target.drain()
                    break
                target.write(data)
                await target.drain()
        target.close()


@asynccontextmanager
async def link(master_port: int) -> AsyncIterator[Link]:
    """A link to a master."""
    found = Link(master_port)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()

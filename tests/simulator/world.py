"""World: nodes on one loop, with one clock, one network and disks that can lose their power.

While a world is open, time and chance of the whole process are its own; what would be a thread runs on the
loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from kourou.broker import Broker, BrokerConfig
from kourou.namesrv import NameServer, NameServerConfig
from kourou.store.log.disk import OsDisk
from kourou.store.timer.files import SLOT
from simulator.loop import NODE, Node, SimLoop, context_of
from simulator.network import SimListener, SimNetwork
from simulator.power import Power

EPOCH_MS = 1_800_000_000_000
HOSTS = {"namesrv": "10.0.0.1", "broker": "10.0.0.2", "slave": "10.0.0.3", "client": "10.0.0.9"}
NAMESRV = f"{HOSTS['namesrv']}:9876"
BROKER_PORT = 10911
THREAD_S = (0.0002, 0.01)
SLOW_S = (0.05, 3.0)
INDEX_STEP_BYTES, INDEX_PAUSE_MS = 2048, 20
WHEEL_SLOTS = 1024

_T = TypeVar("_T")


class World:
    """Everything there is in one run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"world {seed}")
        self.loop = SimLoop(random.Random(f"threads {seed}"))
        self.network = SimNetwork(self.loop, random.Random(f"network {seed}"))
        self.loop.network = self.network
        memory = Path("/dev/shm")
        base = memory if os.access(memory, os.W_OK) else None
        self._root = Path(tempfile.mkdtemp(prefix="kourou-sim-", dir=base)).resolve()
        self.power = Power(self._root, random.Random(f"power {seed}"))
        self.nodes: dict[str, Node] = {}
        self.brokers: dict[str, Broker] = {}
        self.broker_config: dict[str, dict[str, Any]] = {}
        self._deaths: dict[str, asyncio.Future[None]] = {}
        self._seed = seed
        self.set_by_ms: Counter[str] = Counter()  # by node: how wrong its time of day is
        self.boots: Counter[str] = Counter()

    def now_ms(self) -> int:
        """The true time."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    def _wrong_by_s(self) -> float:
        """How wrong the time of day is on the machine that asks."""
        node = NODE.get()
        return 0.0 if node is None else self.set_by_ms[node.name] / 1000

    # Nodes

    def run(self, node: Node, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Have a node do something."""
        return self.loop.create_task(work, context=context_of(node))

    def add_node(self, name: str) -> Node:
        node = self.nodes[name] = Node(name, HOSTS[name])
        self._deaths[name] = self.loop.create_future()
        self.network.up(node)
        return node

    async def start(self, name: str) -> bool:
        """Start the process of a node, on the files that it has; whether it lived until it was started."""
        node = self.add_node(name)
        directory = self.power.directory(name)
        if name == "namesrv":
            config = NameServerConfig(
                bind_address=node.host, listen_port=9876, kv_config_path=str(directory / "kvConfig.json")
            )
            return await self._until_started(node, NameServer(config, clock=HostClock(self, name)).start())
        properties = {
            "brokerIP1": node.host,
            "brokerIP2": node.host,
            "bindAddress": node.host,
            "listenPort": str(BROKER_PORT),
            "namesrvAddr": NAMESRV,
            "storePathRootDir": str(directory),
            **{key: str(value) for key, value in self.broker_config[name].items()},
        }
        clock = HostClock(self, name)
        broker = self.brokers[name] = Broker(BrokerConfig.from_properties(properties), clock=clock)
        return await self._until_started(node, broker.start())

    async def _until_started(self, node: Node, work: Coroutine[Any, Any, Any]) -> bool:
        task = self.run(node, work)
        await asyncio.wait((task, self._deaths[node.name]), return_when=asyncio.FIRST_COMPLETED)
        if node.is_alive:
            task.result()
        elif task.done():
            task.exception()
        return node.is_alive

    async def stop(self, name: str) -> None:
        """Have the broker of a node stop, as an operator would."""
        await self.run(self.nodes[name], self.brokers[name].stop())

    def kill(self, name: str, *, lost_power: bool) -> None:
        """End the process of a node, or switch its machine off. It is `start`ed on what is left."""
        node = self.nodes.pop(name)
        node.is_alive = False
        self.network.down(node, silent=lost_power)
        self.brokers.pop(name, None)
        self.boots[name] += lost_power
        self.power.next_life(name, lost_power=lost_power)
        self._deaths.pop(name).set_result(None)

    # Life of the world

    def play(self, main: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        """Run the world until `main` is over."""
        with self._laws():
            gc.disable()  # what a collection ends would end at another moment in each process
            asyncio.set_event_loop(self.loop)
            try:
                return self.loop.run_until_complete(asyncio.wait_for(main, timeout_s))
            finally:
                for node in self.nodes.values():
                    node.is_alive = False
                for task in asyncio.all_tasks(self.loop):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the dead do not answer
                asyncio.set_event_loop(None)
                self.loop._ready.clear()  # type: ignore[attr-defined]
                self.loop._scheduled.clear()  # type: ignore[attr-defined]
                self.brokers.clear()
                self.network.transports.clear()
                self.network.listeners.clear()
                gc.enable()
                gc.collect()
                self.loop.close()
                shutil.rmtree(self._root, ignore_errors=True)

    @contextlib.contextmanager
    def _laws(self) -> Iterator[None]:
        """Time, chance, threads, sockets and syncs are the world's."""
        chance = random.Random(f"process {self._seed}")
        state = random.getstate()
        opened: dict[int, None] = {}
        os_open, os_close = os.open, os.close

        def open_noted(*args: Any, **more: Any) -> int:
            fd = os_open(*args, **more)
            opened[fd] = None
            return fd

        def close_noted(fd: int) -> None:
            opened.pop(fd, None)
            os_close(fd)

        random.seed(f"global {self._seed}")
        patches: list[contextlib.AbstractContextManager[Any]] = [
            _law(
                time, "time_ns", lambda: int(EPOCH_MS * 1e6 + (self.loop.time() + self._wrong_by_s()) * 1e9)
            ),
            _law(time, "time", lambda: EPOCH_MS / 1000 + self.loop.time() + self._wrong_by_s()),
            _law(time, "monotonic", self.loop.time),
            _law(time, "monotonic_ns", lambda: int(self.loop.time() * 1e9)),
            _law(time, "perf_counter", self.loop.time),
            _law(sys, "unraisablehook", lambda _: None),  # the dead end badly
            _law(os, "getpid", lambda: 4711),
            _law(OsDisk, "modified_ms", lambda disk, path: self.now_ms()),
            _law(OsDisk, "used_ratio", lambda disk, path: 0.1),
            _law(Broker, "saved_ms", lambda broker, name: 0),
            _law(os, "open", open_noted),
            _law(os, "close", close_noted),
            _law(os, "urandom", chance.randbytes),
            _law(secrets, "randbits", chance.getrandbits),
            _law(os, "fsync", self.power.fsync),
            _law(os, "fdatasync", self.power.fsync),
            _law(os, "posix_fallocate", self.power.fallocate),
            # Java's wheel has seven days: far more than a world lives, and each sync copies it.
            mock.patch("kourou.store.timer.wheel.SLOTS", WHEEL_SLOTS),
            mock.patch("kourou.store.timer.wheel.WHEEL_SIZE", WHEEL_SLOTS * SLOT.size),
            mock.patch("kourou.broker.services.timer.service.SLOTS", WHEEL_SLOTS),
            mock.patch("kourou.store.message_store.ServiceThread", self._service),
            # An index catches up in many steps: brokers serve and die on the way.
            mock.patch("kourou.store.index.index_catch_up.STEP_BYTES", INDEX_STEP_BYTES),
            mock.patch("kourou.store.message_store.PAUSE_MS", INDEX_PAUSE_MS),
            mock.patch("kourou.store.log.allocate.ThreadPoolExecutor", InlineExecutor),
            mock.patch("kourou.remoting.server._listen", self._listen),
        ]
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # those of the dead
            for patch in patches:
                stack.enter_context(patch)
            try:
                yield
            finally:
                random.setstate(state)
                for fd in opened:  # the dead did not close them
                    os_close(fd)

    def _listen(self, host: str, port: int) -> list[SimListener]:
        return [self.network.listen(host, port)]

    def _service(self, name: str, run_once: Callable[[], None], interval_ms: int) -> SimService:
        node = NODE.get()
        assert node is not None
        return SimService(self, node.name, run_once, interval_ms / 1000)


class HostClock:
    """The clock of a machine: its time of day may be wrong, elapsed time never is."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def now_ms(self) -> int:
        return self._world.now_ms() + self._world.set_by_ms[self._name]

    def elapsed_ms(self) -> int:
        return int(self._world.loop.time() * 1000)

    def boot_id(self) -> str:
        return f"{self._name} {self._world.boots[self._name]}"


class SimService:
    """A ServiceThread on the loop."""

    def __init__(self, world: World, node: str, run_once: Callable[[], None], interval_s: float) -> None:
        self._loop, self._chance, self._slow = world.loop, world.chance, world.power.slow
        self._node, self._run_once = node, run_once
        self._interval_s = max(interval_s, 0.001)
        self._handle: asyncio.TimerHandle | None = None
        self._is_over = False

    def start(self) -> None:
        self._schedule(self._interval_s)

    def wake(self) -> None:
        # Until the thread runs, and for what it does
        delay_s = self._chance.uniform(*(SLOW_S if self._node in self._slow else THREAD_S))
        if self._handle is None or self._handle.when() > self._loop.time() + delay_s:
            self._schedule(delay_s)

    def stop(self) -> None:
        self._is_over = True
        if self._handle is not None:
            self._handle.cancel()

    def _schedule(self, delay_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(delay_s, self._run)

    def _run(self) -> None:
        self._handle = None
        if self._is_over:
            return
        with contextlib.suppress(Exception):  # a ServiceThread goes on with its next run, too
            self._run_once()
        if self._handle is None:
            self._schedule(self._interval_s)


class InlineExecutor:
    """A ThreadPoolExecutor that does the work when it is given."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None:
        pass


def _law(target: Any, name: str, value: Any) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(target, name, value)

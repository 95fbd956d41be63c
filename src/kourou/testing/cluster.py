"""Cluster: servers on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kourou.broker import Broker, BrokerConfig
from kourou.errors import KourouError
from kourou.message.topics import AUTO_CREATE_TOPIC
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0

# Small files: a test writes little, and a file that is made costs time.
SMALL_STORE = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 20_000),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "diskMaxUsedSpaceRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
    "diskSpaceCleanForciblyRatio": "99",
}

_T = TypeVar("_T")


class Cluster:
    """A name server, brokers, and so many slaves of each. `config` has keys of broker.conf, for all brokers;
    `brokerRole` in it is that of the masters."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        slaves: int = 0,
        config: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self._count = brokers
        self._slave_count = slaves
        self._config = dict(config or {})
        self._keep = directory is not None
        self.directory = Path(directory) if directory is not None else None
        self.name_server: NameServer
        self.brokers: list[Broker] = []
        self.slaves: list[Broker] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: RemotingClient

    @property
    def namesrv(self) -> str:
        """The address of the name server, for clients."""
        return f"{HOST}:{self.name_server.port}"

    @property
    def broker_addresses(self) -> list[str]:
        """The addresses of the masters."""
        return [broker.config.address for broker in self.brokers]

    @property
    def slave_addresses(self) -> list[str]:
        """The addresses of the slaves."""
        return [broker.config.address for broker in self.slaves]

    def create_topic(self, topic: str, *, queues: int = 4, attributes: str = "") -> None:
        """Make a topic on every master; it is at the name server when this returns."""
        header = CreateTopic(
            topic,
            AUTO_CREATE_TOPIC,
            queues,
            queues,
            PERM_READ | PERM_WRITE,
            "SINGLE_TAG",
            attributes=attributes or None,
        )
        for address in self.broker_addresses:
            self.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())

    def call(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        """Send a request to a server of the cluster; its answer, or an error if that is no success."""
        request = RemotingCommand(code, dict(fields or {}), body)
        answer = self._run(self._client.call(address, request, START_TIMEOUT_S))
        if answer.code != ResponseCode.SUCCESS:
            raise KourouError(f"request {code} to {address} was answered with {answer.code}: {answer.remark}")
        return answer

    # Life

    def start(self) -> Cluster:
        """Start everything; it can be used when this returns."""
        if self._loop is not None:
            raise KourouError("the cluster is running already")
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="kourou-"))
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="kourou-cluster", daemon=True)
        self._thread.start()
        ready.wait()
        try:
            self._run(self._start())
        except BaseException:
            self.stop()
            raise
        return self

    def _serve(self, ready: threading.Event) -> None:
        loop_factory = None
        with contextlib.suppress(ImportError):
            import uvloop

            loop_factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    async def _start(self) -> None:
        assert self.directory is not None
        self._client = RemotingClient()
        self.name_server = NameServer(
            NameServerConfig(
                bind_address=HOST, listen_port=0, kv_config_path=str(self.directory / "kvConfig.json")
            )
        )
        await self.name_server.start()
        for number in range(self._count):
            name = f"broker-{chr(ord('a') + number)}"
            self.brokers.append(await self._start_broker(name, name, {}))
            for broker_id in range(1, self._slave_count + 1):
                role = {"brokerRole": "SLAVE", "brokerId": str(broker_id)}
                slave = await self._start_broker(name, f"{name}-slave-{broker_id}", role)
                self.slaves.append(slave)
                await _connected(slave)

    async def _start_broker(self, name: str, folder: str, more: Mapping[str, str]) -> Broker:
        assert self.directory is not None
        properties = {
            **SMALL_STORE,
            "brokerName": name,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "bindAddress": HOST,
            "listenPort": "0",
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.directory / folder),
            **self._config,
            **more,
        }
        broker = Broker(BrokerConfig.from_properties(properties))
        await broker.start()
        await broker.registrar.register_all()
        return broker

    def stop_broker(self, broker: Broker) -> None:
        """Stop one broker, and leave the others as they are."""
        self._run(broker.stop())
        self.brokers = [other for other in self.brokers if other is not broker]
        self.slaves = [other for other in self.slaves if other is not broker]

    def restart_broker(self, broker: Broker) -> Broker:
        """Start a broker that was stopped, with its configuration and its store; the new one."""
        again = Broker(broker.config)
        self._run(again.start())
        self._run(again.registrar.register_all())
        (self.brokers if again.slave is None else self.slaves).append(again)
        return again

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the event loop of the servers."""
        return self._run(work)

    def stop(self) -> None:
        """Stop everything and, unless it was given, remove the directory."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._stop(), loop).result(START_TIMEOUT_S)
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join(START_TIMEOUT_S)
        if self.directory is not None and not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    async def _stop(self) -> None:
        brokers, self.brokers, self.slaves = [*self.slaves, *self.brokers], [], []
        stops = await asyncio.gather(*(broker.stop() for broker in brokers), return_exceptions=True)
        if hasattr(self, "name_server"):
            await self.name_server.stop()
        if hasattr(self, "_client"):
            await self._client.close()
        for failure in stops:
            if failure is not None:
                raise failure

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            work.close()
            raise KourouError("the cluster is not running: use it in a `with`, or call start()")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _connected(slave: Broker) -> None:
    """Wait until a slave follows its master."""
    client = slave.replication.client
    assert client is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        while not client.is_connected:
            await asyncio.sleep(0.01)

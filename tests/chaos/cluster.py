"""A cluster of processes: a name server, a master with a slave, and a master without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.load import TOPIC
from chaos.nodes import Node, broker, name_server
from chaos.recorder import Found, Place, name_of
from kourou.inspect import StoreDirectory
from kourou.inspect.check.findings import Severity
from kourou.inspect.check.whole import check
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from support.sites.broker import until
from support.sites.servers import broker_names

QUEUES = 2
OPEN_FILES = 700  # of broker-b, so that a few hundred connections are too many


class Cluster:
    """Four processes. `broker-a` waits for its slave; `broker-b` has few descriptors and may have a disk of
    its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name_server = name_server(directory)
        namesrv = self.namesrv
        self.a = broker(directory, "broker-a", namesrv, brokerRole="SYNC_MASTER", flushDiskType="ASYNC_FLUSH")
        self.slave = broker(directory, "broker-a", namesrv, "broker-a-slave", brokerRole="SLAVE", brokerId=1)
        self.b = broker(directory, "broker-b", namesrv, flushDiskType="SYNC_FLUSH")
        self.b.open_files = OPEN_FILES

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.name_server.port}"

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.name_server, self.a, self.slave, self.b

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start everything; in the end it stops in order, and its stores are whole."""
        try:
            for node in self.nodes:
                node.start()
            until(self.is_complete, "the brokers to be known")
            for node in (self.a, self.b):
                node.create_topic(TOPIC, QUEUES)
            yield
            for node in (self.slave, self.a, self.b, self.name_server):
                code = node.stop()
                assert code == 0, f"{node.name} ended with {code}: {node.said()[-2000:]}"
        finally:
            for node in self.nodes:
                node.kill()

    def is_complete(self) -> bool:
        """Whether everything runs, is known, and the slave follows."""
        if not all(node.is_running for node in self.nodes):
            return False
        try:
            if {*broker_names(self.name_server.port)} < {"broker-a", "broker-b"}:
                return False
            body = self.a.ask(RequestCode.GET_BROKER_HA_STATUS).body or b"{}"
            return bool(lenient_json.loads(bytes(body))["haConnectionInfo"])
        except (OSError, KeyError):
            return False

    def revive(self) -> None:
        """Have everything run again."""
        for node in self.nodes:
            if not node.is_running:
                node.kill()
                node.start()
        until(self.is_complete, "the cluster to be complete", 60)

    def read(self, *nodes: Node) -> dict[str, list[Found]]:
        """What is in the topic, by name."""
        found: dict[str, list[Found]] = defaultdict(list)
        for node in nodes:
            broker_name = "broker-a" if node is self.slave else node.name
            for queue_id, offset, body, stored_ms in node.read(TOPIC, QUEUES):
                found[name_of(body)].append(Found(Place(broker_name, queue_id, offset), body, stored_ms))
        return found

    def damage(self) -> list[str]:
        """What is wrong with the stores, once all is stopped."""
        wrong = []
        for node in (self.a, self.slave, self.b):
            with StoreDirectory.open(node.directory / "store") as store:
                report = check(store)
            wrong += [f"{node.name}: {one}" for one in report.findings if one.severity is Severity.FAULT]
        return wrong

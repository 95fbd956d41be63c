"""Pairs of a Java broker and one of ours, with either as the master: killed, started again, and read from
when the master is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.client.routes import MASTER_ID, TopicRoute
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.java import Java
from support.recorded.wire import Caller
from support.sites.servers import Server, interop, kourou_name_server, mqadmin, report_of, run_interop
from support.stores.pairs import Process, assert_same_logs, replicated, until

COUNT = 60
METADATA_S = 120  # Java takes topics from its master once a minute


class Pair:
    """A name server, a master and a slave."""

    def __init__(
        self,
        directory: Path,
        server: Server,
        master: str,
        slave: str,
        stack: ExitStack,
        role: str = "ASYNC_MASTER",
        of_master: Mapping[str, str] | None = None,
        of_slave: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.namesrv = server.address
        self.master = Process(
            master, directory / "master", server.port, {"brokerRole": role, **(of_master or {})}
        )
        slave_role = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
        self.slave = Process(slave, directory / "slave", server.port, {**slave_role, **(of_slave or {})})
        for process in (self.master, self.slave):
            stack.callback(process.kill)
            process.start()
        self.produced: list[Path] = []

    def interop(self, *arguments: str) -> None:
        interop(self.directory, self.namesrv, *arguments)

    def has_route(self) -> bool:
        """Whether the name server knows the master, and that it has the topic."""
        with Caller(int(self.namesrv.rpartition(":")[2])) as caller:
            answer = caller.call(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}))
        if answer.code != ResponseCode.SUCCESS or answer.body is None:
            return False
        return MASTER_ID in TopicRoute.decode("T", answer.body).addresses.get("broker-a", {})

    def produce(self, mode: str = "sync") -> None:
        """Messages by the Java client."""
        until(self.has_route, "the master to be known")
        name = f"k{len(self.produced)}"
        out = self.directory / f"{name}.json"
        count = ["--count", str(COUNT), "--key-prefix", name, "--out", str(out)]
        self.interop("produce", "--topic", "T", "--mode", mode, "--size", "2000", *count)
        self.produced.append(out)

    def everything(self) -> str:
        """A file of all that was produced."""
        messages = [message for file in self.produced for message in json.loads(file.read_text())["messages"]]
        everything = self.directory / "everything.json"
        everything.write_text(json.dumps({"ok": True, "messages": messages}))
        return str(everything)

    def compare(self) -> None:
        """Log, queues and index of the slave are the master's."""
        replicated(self.master, self.slave)
        assert_same_logs(self.master, self.slave, self.master.end())
        until(lambda: self.slave.queues() == self.master.queues(), "the queues to be the same")
        for number in range(len(self.produced)):
            first = json.loads(self.produced[number].read_text())["messages"][0]
            for key in (first["msgId"], *first.get("keys", "").split()):
                self._compare_by(key)

    def _compare_by(self, key: str) -> None:
        found = self.master.by_key("T", key)
        assert found, key
        until(lambda: self.slave.by_key("T", key) == found, f"{key} in the index")


@pytest.fixture(params=[("kourou", "java"), ("java", "kourou")], ids=["java-slave", "java-master"])
def pair(request: pytest.FixtureRequest, java: Java, tmp_path: Path) -> Iterator[Pair]:
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        master, slave = request.param
        yield Pair(tmp_path, server, master, slave, stack)


def test_a_pair_with_java_through_kills_and_restarts(pair):
    pair.interop("topic", "--topic", "T")
    until(lambda: slaves_of(pair.master), "the slave to connect")
    pair.produce()
    pair.produce("batch")
    pair.compare()

    pair.slave.kill()
    pair.produce("async")
    pair.slave.start()
    pair.compare()

    pair.master.kill()
    pair.master.start()
    until(lambda: slaves_of(pair.master), "the slave to connect again")
    pair.produce()
    pair.slave.stop()
    pair.produce("ordered")
    pair.slave.start()
    until(lambda: slaves_of(pair.master), "the slave to connect again")
    pair.compare()
    (status,) = mqadmin(
        pair.directory, ["haStatus", "-n", pair.namesrv, "-b", f"127.0.0.1:{pair.master.port}"]
    )
    assert "#SlaveNum\t1" in status
    assert "#InSyncSlaveNum\t1" in status
    (status,) = mqadmin(
        pair.directory, ["haStatus", "-n", pair.namesrv, "-b", f"127.0.0.1:{pair.slave.port}"]
    )
    assert f"#CommitLogMaxOffset\t{pair.slave.end()}" in status

    until(lambda: pair.slave.has_topic("T"), "the slave to have the topic", METADATA_S)
    pair.master.kill()
    pair.interop("consume", "--topic", "T", "--group", "G", "--expect", pair.everything())


def test_a_slave_of_javas_master_begins_a_topic_anew_that_was_deleted(java, tmp_path):
    """Java says nothing of it in its log."""
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        pair = Pair(tmp_path, server, "java", "kourou", stack)
        until(lambda: slaves_of(pair.master), "the slave to connect")
        for _ in range(2):
            pair.interop("topic", "--topic", "T")
            pair.produce()
            pair.compare()
            mqadmin(tmp_path, ["deleteTopic", "-n", pair.namesrv, "-c", "DefaultCluster", "-t", "T"])
            pair.produced.clear()
        pair.interop("topic", "--topic", "T")
        pair.produce()
        replicated(pair.master, pair.slave)
        pair.slave.kill()
        pair.slave.start()
        pair.compare()


def test_a_sync_master_with_a_java_slave(java, tmp_path):
    """The Java client is told what became of its messages."""
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        pair = Pair(tmp_path, server, "kourou", "java", stack, "SYNC_MASTER")
        pair.interop("topic", "--topic", "T")
        until(lambda: slaves_of(pair.master), "the slave to connect")
        pair.produce("sync")
        assert pair.slave.end() == pair.master.end()
        pair.slave.kill()
        until(lambda: not slaves_of(pair.master), "the slave to be gone")
        done = run_interop(tmp_path, pair.namesrv, "produce", "--topic", "T", "--count", "3")
        assert report_of(done)["problems"] == [f"send {number}: SLAVE_NOT_AVAILABLE" for number in range(3)]


GUARDED = {
    "haAuthenticationEnable": "true",
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}


@pytest.mark.parametrize("trusted", ["127.0.0.1", "192.0.2.7"], ids=["trusted", "not trusted"])
def test_a_java_slave_of_a_master_that_wants_proofs_is_taken_where_it_is_trusted(java, tmp_path, trusted):
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        of_master = {**GUARDED, "haTrustedSlaves": trusted}
        pair = Pair(tmp_path, server, "kourou", "java", stack, "SYNC_MASTER", of_master)
        pair.interop("topic", "--topic", "T")
        if trusted == "127.0.0.1":
            until(lambda: slaves_of(pair.master), "the slave to connect")
            pair.produce("sync")
            assert pair.slave.end() == pair.master.end()
            return
        until(lambda: "haTrustedSlaves" in output_of(pair.master), "the slave to be turned away")
        done = run_interop(tmp_path, pair.namesrv, "produce", "--topic", "T", "--count", "3")
        assert report_of(done)["problems"] == [f"send {number}: SLAVE_NOT_AVAILABLE" for number in range(3)]
        assert not slaves_of(pair.master)
        assert pair.slave.end() == 0


def test_a_slave_that_wants_proofs_takes_nothing_from_a_java_master_and_acknowledges_nothing(java, tmp_path):
    """Java's master has no proof and reads the hello as a report: it must not count. One setting helps."""
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        of_master = {"inSyncReplicas": "2", "slaveTimeout": "1000"}
        pair = Pair(tmp_path, server, "java", "kourou", stack, "SYNC_MASTER", of_master, GUARDED)
        pair.interop("topic", "--topic", "T")
        until(lambda: "set haAuthenticationEnable=false here" in output_of(pair.slave), "the slave to say so")
        done = run_interop(tmp_path, pair.namesrv, "produce", "--topic", "T", "--count", "5")
        assert report_of(done)["problems"] == [f"send {number}: FLUSH_SLAVE_TIMEOUT" for number in range(5)]
        assert pair.slave.end() == 0
        pair.slave.stop()
        pair.slave.change("haAuthenticationEnable", "false")
        pair.slave.start()
        until(lambda: slaves_of(pair.master), "the slave to connect")
        until(lambda: pair.slave.end() == pair.master.end(), "the slave to have the log")
        pair.produce("sync")
        assert pair.slave.end() == pair.master.end()


def test_a_java_consumer_goes_on_from_the_slave(java, tmp_path):
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        pair = Pair(tmp_path, server, "kourou", "kourou", stack, "SYNC_MASTER")
        pair.interop("topic", "--topic", "T")
        until(lambda: slaves_of(pair.master), "the slave to connect")
        pair.produce("sync")
        pair.produce("batch")
        until(lambda: pair.slave.has_topic("T"), "the slave to have the topic")
        consume = ["consume", "--topic", "T", "--group", "G", "--expect", pair.everything()]
        with ThreadPoolExecutor(1) as worker:
            consumed = worker.submit(pair.interop, *consume)
            until(lambda: is_online(pair.master, "G"), "the consumer to begin")
            pair.master.kill()
            consumed.result()


def is_online(broker: Process, group: str) -> bool:
    """Whether a consumer of a group is connected."""
    answer = broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    return answer.code == ResponseCode.SUCCESS


def output_of(process: Process) -> str:
    return (process.directory / "output.log").read_text()


def slaves_of(master: Process) -> list[object]:
    return list(master.json(RequestCode.GET_BROKER_HA_STATUS)["haConnectionInfo"])

"""A broker starts, registers, keeps its state and stops: in this process, as a process, and as a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kourou.broker import Broker
from kourou.broker import server as broker_server
from kourou.broker.services import registrar
from kourou.broker.state import state_file
from kourou.broker.state.state_file import StateDamagedError
from kourou.errors import ConfigError, KourouError, StoreLockedError
from kourou.files import write_atomically
from kourou.inspect import StoreDirectory
from kourou.inspect.check.whole import check
from kourou.namesrv import NameServer
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import ONEWAY_FLAG, RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.server import RemotingServer
from kourou.testing import Cluster
from support.recorded.wire import free_ports
from support.sites.broker import (
    HOST,
    SMALL,
    SUBSCRIPTION,
    SUSPEND,
    WAIT_S,
    Peer,
    broker_config,
    loop_thread,
    messages_in,
    pull_request,
    run_on,
    running,
    send_request,
    until,
)
from support.sites.name_server import name_server
from support.sites.servers import kourou_broker, kourou_name_server

READY_S = 30


def create(topic: str, queues: int = 4) -> RemotingCommand:
    header = CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())


def commit(offset: int, topic: str = "t", group: str = "g") -> RemotingCommand:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def committed(peer: Peer, topic: str = "t", group: str = "g") -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return int(peer.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext_fields["offset"])


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("kourou")}


def assert_cannot_start(directory: Path, config: dict[str, str], error: type[Exception], text: str) -> None:
    """A start fails for this reason, and leaves neither thread nor lock behind."""
    with loop_thread() as loop:

        async def start() -> None:
            await Broker(broker_config(directory, config)).start()

        with pytest.raises(error, match=text):
            run_on(loop, start())
    assert names_of_threads() == set()


# Ports


def test_the_port_of_vip_channels_is_two_below(tmp_path):
    port = free_ports(-2, 0)
    with running(tmp_path, {"listenPort": str(port)}) as site:
        assert site.port == port
        for each in (port, port - 2):
            with contextlib.closing(Peer(each)) as peer:
                peer.ask(send_request())


def test_a_broker_does_without_the_port_of_vip_channels(tmp_path, caplog):
    port = free_ports(-2, 0)
    with socket.create_server((HOST, port - 2)), running(tmp_path, {"listenPort": str(port)}) as site:
        site.connect().ask(send_request())
    assert f"port {port - 2} cannot be used" in caplog.text


def test_a_port_in_use_stops_the_start_and_nothing_stays(tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert_cannot_start(tmp_path, {"listenPort": str(port)}, OSError, f"cannot listen on {HOST}:{port}")
    assert not (tmp_path / "store" / "abort").exists()
    with running(tmp_path) as site:
        site.connect().ask(send_request())


def test_an_address_that_is_none_stops_the_start_and_nothing_stays(tmp_path):
    assert_cannot_start(
        tmp_path, {"brokerIP1": "no such host."}, ConfigError, "brokerIP1=no such host. is neither"
    )
    assert not (tmp_path / "store" / "abort").exists()
    with running(tmp_path):
        pass


def test_a_store_that_is_open_is_not_opened_twice(tmp_path):
    with running(tmp_path) as site:
        site.connect().ask(send_request())
        with loop_thread() as loop, pytest.raises(StoreLockedError):
            run_on(loop, Broker(broker_config(tmp_path)).start())
        site.connect().ask(send_request())


# State


def test_topics_groups_and_offsets_are_there_after_a_restart(tmp_path):
    with running(tmp_path) as site:
        peer = site.connect()
        peer.ask(create("t", 3))
        peer.ask(create("gone"))
        peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}))
        group = json.dumps({"groupName": "g", "retryMaxTimes": 3}).encode()
        peer.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group))
        for number in range(5):
            peer.ask(send_request(body=b"%d" % number))
        peer.ask(commit(4))
        version = site.broker.topics.data_version
    with running(tmp_path) as site:
        peer = site.connect()
        topic = site.broker.topics.get("t")
        assert topic is not None
        assert topic.write_queue_nums == 3
        assert site.broker.topics.get("gone") is None
        assert site.broker.topics.data_version.counter >= version.counter
        found = site.broker.groups.get("g")
        assert found is not None
        assert found.retry_max_times == 3
        assert committed(peer) == 4
        assert [bytes(item.body) for item in messages_in(peer.ask(pull_request(offset=3)))] == [b"3", b"4"]


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"null", b"\xff\x00", b'{"offsetTable":{"t@g":{"0":"x"}}}']
)
def test_damaged_state_falls_back_or_stops_the_start(tmp_path, name, damage):
    """Given a file that cannot be read, then the one before counts; without it, the broker says which."""
    for number in range(2):
        with running(tmp_path) as site:
            peer = site.connect()
            peer.ask(create("t", 3 + number))
            peer.ask(create(f"more-{number}"))
            peer.ask(send_request())
            peer.ask(pull_request())
            peer.ask(pull_request(group=f"g{number}"))
            peer.ask(commit(1 + number))
    file = tmp_path / "store" / "config" / name
    backup = file.with_name(name + ".bak")
    assert backup.exists()
    file.write_bytes(damage)
    with running(tmp_path) as site:
        peer = site.connect()
        assert site.broker.topics.get("t") is not None
        assert site.broker.groups.get("g") is not None
        assert committed(peer) in (1, 2)
    assert file.with_name(name + ".damaged").read_bytes() == damage
    for each in (file, backup):
        each.write_bytes(damage)
    assert_cannot_start(tmp_path, {}, StateDamagedError, f"{name}.*nor.*{name}.bak can be read")
    assert not (tmp_path / "store" / "abort").exists()
    for each in (file, backup):
        each.unlink()
    with running(tmp_path) as site:
        assert site.max_offset() == 2


def test_tables_are_never_written_by_two_at_once(tmp_path, monkeypatch):
    """Given a table that is being written when the broker stops, then that write ends before the next."""
    writing: list[str] = []
    clashes: list[str] = []

    def slowly(path: Any, data: bytes) -> None:
        if str(path) in writing:
            clashes.append(str(path))
        writing.append(str(path))
        time.sleep(0.05)
        write_atomically(path, data)
        writing.remove(str(path))

    with running(tmp_path) as site:
        monkeypatch.setattr(state_file, "write_atomically", slowly)
        peer = site.connect()
        peer.send(create("first"))
        until(lambda: writing)
        peer.send(create("second"))
        until(lambda: site.broker.topics.get("second"))
    assert clashes == []
    saved = lenient_json.loads((tmp_path / "store" / "config" / "topics.json").read_bytes())
    assert {"first", "second"} <= saved["topicConfigTable"].keys()


def test_a_table_that_cannot_be_written_is_written_later(tmp_path, monkeypatch, caplog):
    def fails(path: Any, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with running(tmp_path, {"flushConsumerOffsetInterval": "20"}) as site:
        peer = site.connect()
        peer.ask(create("t"))
        peer.ask(send_request())
        peer.ask(pull_request())
        monkeypatch.setattr(state_file, "write_atomically", fails)
        peer.ask(commit(1))
        until(lambda: "save failed; it is tried again" in caplog.text)
        monkeypatch.setattr(state_file, "write_atomically", write_atomically)
        file = tmp_path / "store" / "config" / "consumerOffset.json"
        until(lambda: file.exists() and '"t@g":{0: 1}' in file.read_text())


# Name servers


def route(server: NameServer | int, topic: str) -> dict[str, Any] | None:
    """What a name server says of a topic."""
    port = server if isinstance(server, int) else server.port
    with contextlib.closing(Peer(port)) as peer:
        answer = peer.call(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
    return (
        None if answer.code == ResponseCode.TOPIC_NOT_EXIST else lenient_json.loads(bytes(answer.body or b""))
    )


def test_all_name_servers_know_the_broker_though_one_is_dead(tmp_path, caplog):
    """Given name servers of which one is not there, then the others have each topic when it is answered."""
    dead = free_ports(0)
    with name_server() as first, name_server() as second:
        addresses = f"{HOST}:{first.port};{HOST}:{dead}; {HOST}:{second.port} ;nonsense"
        with running(tmp_path, {"namesrvAddr": addresses}) as site:
            peer = site.connect()
            peer.ask(create("t", 3))
            for server in (first, second):
                found = route(server, "t")
                assert found is not None
                assert found["queueDatas"][0]["writeQueueNums"] == 3
                assert found["brokerDatas"][0]["brokerAddrs"] == {"0": f"{HOST}:{site.port}"}
            peer.ask(create("t", 5))
            assert route(first, "t")["queueDatas"][0]["writeQueueNums"] == 5  # type: ignore[index]
            for at in range(10):
                peer.ask(send_request(f"made-by-a-send-{at}"))
                assert route(second, f"made-by-a-send-{at}") is not None
        assert f"not registered at name server {HOST}:{dead}" in caplog.text
        assert route(first, "t") is None
        assert route(second, "t") is None


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_send_that_makes_a_topic_is_answered_when_name_servers_know_it(tmp_path, flush):
    """Given a name server, and one that never answers, then the first has the route, and the other is not
    waited for."""
    with name_server() as server, socket.create_server((HOST, 0)) as silent:
        addresses = f"{HOST}:{server.port};{HOST}:{silent.getsockname()[1]}"
        config = {"namesrvAddr": addresses, "flushDiskType": flush, "registerBrokerTimeoutMills": "3000"}
        with running(tmp_path, config) as site:
            peer = site.connect()
            for at in range(3):
                assert peer.ask(send_request(f"new-{at}")).code == ResponseCode.SUCCESS
                assert route(server, f"new-{at}") is not None


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_send_that_makes_a_topic_while_the_broker_starts_is_answered(tmp_path, monkeypatch, flush):
    """Given a client that is there as soon as the first port is open."""
    listen = Broker._listen_for_slaves
    answers: list[RemotingCommand] = []

    async def send_first(broker: Broker, host: str, port: int) -> None:
        address = f"{HOST}:{broker.config.listen_port}"
        answers.append(await broker.client.call(address, send_request("early"), WAIT_S))
        await listen(broker, host, port)

    monkeypatch.setattr(Broker, "_listen_for_slaves", send_first)
    with running(tmp_path, {"flushDiskType": flush}) as site:
        assert answers[0].code == ResponseCode.SUCCESS
        assert site.broker.topics.get("early") is not None


def test_permissions_are_at_the_name_server_when_they_are_answered(tmp_path):
    with name_server() as server, running(tmp_path, {"namesrvAddr": f"{HOST}:{server.port}"}) as site:
        peer = site.connect()
        peer.ask(create("t"))
        peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4"))
        assert route(server, "t")["queueDatas"][0]["perm"] == 4  # type: ignore[index]


def test_a_name_server_that_was_restarted_hears_of_the_broker_again(tmp_path, monkeypatch):
    monkeypatch.setattr(registrar, "_MIN_PERIOD_MS", 20)
    port = free_ports(0)
    with running(tmp_path, {"namesrvAddr": f"{HOST}:{port}", "registerNameServerPeriod": "20"}) as site:
        site.connect().ask(create("t"))
        for _ in range(2):
            with name_server(listen_port=port):
                until(lambda: route(port, "t"))


def test_answers_of_no_use_do_not_end_the_registrations(tmp_path, monkeypatch, caplog):
    """Given a name server that answers nonsense, then the broker says so and goes on."""
    monkeypatch.setattr(registrar, "_MIN_PERIOD_MS", 20)
    bodies = [b"[1]", b"{", b"null", b'{"table":5}', b'{"table":{"t":5}}', b""]
    asked: list[int] = []

    def register(_: Any, request: RemotingCommand) -> RemotingCommand:
        asked.append(request.code)
        return request.response(body=bodies[len(asked) % len(bodies)])

    with loop_thread() as loop:

        async def listen() -> tuple[RemotingServer, int]:
            server = RemotingServer({int(RequestCode.REGISTER_BROKER): register})
            return server, await server.start(HOST, 0)

        server, port = run_on(loop, listen())
        with running(tmp_path, {"namesrvAddr": f"{HOST}:{port}", "registerNameServerPeriod": "20"}) as site:
            until(lambda: len(asked) > 2 * len(bodies))
            site.connect().ask(create("t"))
            site.connect().ask(send_request())
        run_on(loop, server.stop())


def test_a_broker_that_left_does_not_come_back(tmp_path):
    """Given a broker that stops while topics still change, then name servers do not hear of it again."""
    with name_server() as server:
        with running(tmp_path, {"namesrvAddr": f"{HOST}:{server.port}"}) as site:
            site.connect().ask(create("t"))
            site.run(site.broker.registrar.unregister())
            assert route(server, "t") is None
            site.connect().ask(create("late"))
            site.run(site.broker.registrar.register_all())
            assert route(server, "late") is None
        assert route(server, "t") is None


# Answers that take longer


def test_more_than_can_wait_is_refused(tmp_path, monkeypatch):
    """Given too many requests whose answers wait, then others are told to come again, unless nobody asks."""
    monkeypatch.setattr(broker_server, "MAX_LATER", 0)
    with running(tmp_path) as site:
        peer = site.connect()
        answer = peer.call(create("t"))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, broker_server.BUSY)
        request = create("u")
        request.flag = ONEWAY_FLAG
        peer.send(request)
        assert peer.is_silent()


# A process


def test_a_broker_that_is_killed_has_what_it_answered(tmp_path):
    """Given kill -9, then topics are there that were answered, and offsets as of the last interval."""
    conf = tmp_path / "broker.conf"
    keys = {**SMALL, "storePathRootDir": str(tmp_path / "store"), "flushConsumerOffsetInterval": "100"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "kourou", "broker", "-c", str(conf)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            with contextlib.closing(Peer(port)) as peer:
                for number in range(5):
                    peer.ask(send_request(body=b"%d" % number))
                peer.ask(pull_request())
                peer.ask(commit(3))
                file = tmp_path / "store" / "config" / "consumerOffset.json"
                until(lambda: file.exists() and '"t@g":{0: 3}' in file.read_text())
                peer.ask(create("just-now", 2))
        finally:
            process.kill()
    assert (tmp_path / "store" / "abort").exists()
    with running(tmp_path) as site:
        peer = site.connect()
        assert committed(peer) == 3
        found = messages_in(peer.ask(pull_request()))
        assert [bytes(item.body) for item in found] == [b"%d" % number for number in range(5)]
        peer.ask(send_request("just-now", e="1", c="none"))


def test_sigterm_ends_a_broker_well(tmp_path):
    """Given SIGTERM, then pulls that wait are answered, nothing is left to recover, and it ends with 0."""
    with kourou_name_server(tmp_path) as names:
        with kourou_broker(tmp_path, names.port) as server:
            peer = Peer(server.port)
            peer.ask(send_request(body=b"kept"))
            waiting = peer.send(pull_request(offset=1, flag=SUBSCRIPTION | SUSPEND, suspend_ms=600_000))
            assert peer.is_silent()
            server.process.send_signal(signal.SIGTERM)
            assert peer.answer_to(waiting).code == ResponseCode.PULL_NOT_FOUND
            with pytest.raises(ConnectionError):
                peer.receive()
            peer.close()
            assert server.process.wait(READY_S) == 0
        with contextlib.closing(Peer(names.port)) as asker:
            answer = asker.ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert lenient_json.loads(bytes(answer.body or b""))["brokerAddrTable"] == {}
    store = tmp_path / "store"
    assert not (store / "abort").exists()
    lines = [json.loads(line) for line in (store / "logs" / "broker.log").read_text().splitlines()]
    assert lines
    assert {frozenset(line) for line in lines} <= {
        frozenset({"time", "level", "logger", "message"}),
        frozenset({"time", "level", "logger", "message", "exception"}),
    }
    with StoreDirectory.open(store) as directory:
        report = check(directory)
    assert (report.records, report.faults, report.warnings) == (1, 0, 0)


def run_kourou(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kourou", *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=READY_S,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], text: str) -> None:
    """It failed, and one line says why; warnings of the log may stand before it."""
    assert done.returncode == 2, done
    *before, last = done.stderr.splitlines()
    assert last.startswith("kourou: ")
    assert text in last
    assert "Traceback" not in done.stderr
    assert all(" WARNING " in line for line in before), done.stderr


def test_a_broker_that_cannot_start_says_why_in_one_line(tmp_path):
    store = ("--store", str(tmp_path / "store"))
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        conf = tmp_path / "broker.conf"
        conf.write_text(f"bindAddress={HOST}\nlistenPort={port}\n")
        assert_one_line(run_kourou("broker", "-c", str(conf), *store), f"cannot listen on {HOST}:{port}")
    conf.write_text("listenPort=70000\n")
    assert_one_line(run_kourou("broker", "-c", str(conf), *store), "listenPort=70000")
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / "topics.json").write_text("{")
    assert_one_line(run_kourou("broker", "--port", "0", *store), "topics.json can be read")


# kourou up


class Up:
    """`kourou up` that runs."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kourou", "up", *arguments], stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith("Ctrl-C stops it"):
            assert line, "it ended before it was up"
            self.lines.append(line.strip())

    def addresses(self, what: str) -> list[int]:
        return [int(line.rpartition(":")[2]) for line in self.lines if line.startswith(what)]

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(READY_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_is_a_whole_cluster_until_it_is_interrupted(tmp_path, number):
    """Given `kourou up`, then clients find a broker through it, and what they sent is there the next time."""
    options = ("--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0")
    for expected in (0, 1):
        up = Up(*options)
        (namesrv,), (broker,) = up.addresses("name server"), up.addresses("broker")
        assert any(str(tmp_path / "data") in line for line in up.lines)
        with contextlib.closing(Peer(broker)) as peer:
            assert peer.ask(send_request()).ext_fields["queueOffset"] == str(expected)
        until(lambda port=namesrv: route(port, "t"))  # type: ignore[misc]
        # both speak TLS as well, with one certificate of the process
        assert len({ssl.get_server_certificate(("127.0.0.1", port)) for port in (namesrv, broker)}) == 1
        assert up.stop(number) == 0
    assert not (tmp_path / "data" / "broker-0" / "abort").exists()


def brokers_of(namesrv: int, topic: str) -> set[str]:
    found = route(namesrv, topic)
    return {item["brokerName"] for item in found["brokerDatas"]} if found else set()


def test_up_runs_several_brokers_as_processes(tmp_path):
    up = Up("--dir", str(tmp_path), "--port", "0", "--broker-port", "0", "--brokers", "2")
    (namesrv,), brokers = up.addresses("name server"), up.addresses("broker")
    assert len(brokers) == 2
    until(lambda: brokers_of(namesrv, "TBW102") == {"broker-0", "broker-1"})  # both are known
    for port in brokers:
        with contextlib.closing(Peer(port)) as peer:
            peer.ask(create("t"))
    assert brokers_of(namesrv, "t") == {"broker-0", "broker-1"}
    assert up.stop(signal.SIGINT) == 0
    for port in brokers:
        with pytest.raises(ConnectionRefusedError):
            Peer(port)
    assert not list(tmp_path.glob("broker-*/abort"))


def test_up_ends_when_one_of_its_brokers_does(tmp_path):
    up = Up("--dir", str(tmp_path), "--port", "0", "--broker-port", "0", "--brokers", "2")
    brokers = up.addresses("broker")
    children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
    assert len(children) >= 2
    os.kill(int(children[0]), signal.SIGKILL)
    assert up.process.wait(READY_S) == 2
    assert up.process.stdout is not None
    up.process.stdout.close()
    for port in brokers:
        with pytest.raises(ConnectionRefusedError):
            Peer(port)


def test_up_says_in_one_line_which_port_is_taken(tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("up", "--dir", str(tmp_path))
        done = run_kourou(*options, "--port", port, "--broker-port", "0")
        assert_one_line(done, f"port {port} of {HOST} cannot be used")
        done = run_kourou(*options, "--port", "0", "--broker-port", port)
        assert_one_line(done, f"port {port} cannot be used")
    done = run_kourou("up", "--dir", str(tmp_path), "--broker-port", "65535", "--brokers", "2")
    assert_one_line(done, "would listen on port 65545")


# Clusters in tests


def test_a_cluster_has_as_many_brokers_as_asked_for():
    before = names_of_threads()
    with Cluster(brokers=3, config={"defaultTopicQueueNums": "2"}) as cluster:
        assert len(set(cluster.broker_addresses)) == 3
        cluster.create_topic("t", queues=5, attributes="+message.type=NORMAL")
        host, _, port = cluster.namesrv.rpartition(":")
        assert host == HOST
        found = route(int(port), "t")
        assert found is not None
        assert [item["writeQueueNums"] for item in found["queueDatas"]] == [5, 5, 5]
        for address in cluster.broker_addresses:
            fields = send_request("made").ext_fields
            cluster.call(address, RequestCode.SEND_MESSAGE_V2, fields, b"x")
            with pytest.raises(KourouError, match="answered with"):
                cluster.call(address, RequestCode.SEND_MESSAGE_V2, {**fields, "e": "3"}, b"x")
        directory = cluster.directory
        assert directory is not None
        assert directory.is_dir()
    assert not directory.exists()
    assert names_of_threads() == before
    with pytest.raises(KourouError, match="not running"):
        cluster.call(f"{HOST}:1", RequestCode.GET_BROKER_CONFIG)


def test_the_directory_of_a_cluster_is_kept_if_it_was_given(tmp_path):
    for expected in ("0", "1"):
        with Cluster(directory=tmp_path / "data") as cluster:
            (address,) = cluster.broker_addresses
            answer = cluster.call(address, RequestCode.SEND_MESSAGE_V2, send_request().ext_fields, b"x")
            assert answer.ext_fields["queueOffset"] == expected
    assert (tmp_path / "data" / "broker-a" / "commitlog").is_dir()


def test_a_cluster_is_started_once(tmp_path):
    with Cluster(directory=tmp_path) as cluster:
        with pytest.raises(KourouError, match="running already"):
            cluster.start()
        cluster.create_topic("t")


def test_a_cluster_that_cannot_start_leaves_nothing(tmp_path):
    """Given a second broker that cannot start, then the first is stopped, and no thread or port is left."""
    before = names_of_threads()
    (tmp_path / "broker-b" / "config").mkdir(parents=True)
    (tmp_path / "broker-b" / "config" / "topics.json").write_text("{")
    cluster = Cluster(brokers=2, directory=tmp_path)
    with pytest.raises(StateDamagedError):
        cluster.start()
    assert names_of_threads() == before
    assert not (tmp_path / "broker-a" / "abort").exists()
    with pytest.raises(ConfigError), Cluster(config={"listenPort": "x"}):
        pass
    assert names_of_threads() == before
    (tmp_path / "broker-b" / "config" / "topics.json").unlink()
    with cluster:
        assert len(cluster.brokers) == 2


def test_a_stop_that_fails_stops_the_other_brokers(tmp_path):
    before = names_of_threads()
    cluster = Cluster(brokers=2, directory=tmp_path).start()
    first = cluster.brokers[0]

    async def fails() -> None:
        raise KourouError("cannot be saved")

    first.save = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(KourouError, match="cannot be saved"):
        cluster.stop()
    assert not (tmp_path / "broker-b" / "abort").exists()
    assert names_of_threads() == before


def test_the_fixture_is_there_where_kourou_is_installed(pytester):
    """Given a project that has kourou, then its tests have a cluster, the same for all of them."""
    pytester.makepyfile(
        """
        from kourou.remoting.protocol.codes import RequestCode

        seen = []

        def test_one(kourou_cluster):
            kourou_cluster.create_topic("orders", queues=2)
            seen.append(kourou_cluster.namesrv)

        def test_two(kourou_cluster):
            assert seen == [kourou_cluster.namesrv]
            (address,) = kourou_cluster.broker_addresses
            kourou_cluster.call(address, RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=2)


def test_the_loop_of_a_broker_is_not_left_with_work(tmp_path):
    """Given a broker that stopped, then no task or timer of it is left on the loop."""

    async def main() -> None:
        broker = Broker(broker_config(tmp_path))
        before = asyncio.all_tasks()
        await broker.start()
        await broker.stop()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_a_group_that_is_too_far_behind_is_stopped_where_that_is_wanted(tmp_path):
    """disableConsumeIfConsumerReadSlowly: it may consume again when an operator says so."""
    settings = {"disableConsumeIfConsumerReadSlowly": "true", "consumerFallbehindThreshold": "100"}
    with running(tmp_path, settings) as site:
        site.make_topic("t")
        peer = site.connect()
        for _ in range(3):
            peer.ask(send_request(body=b"x" * 200))
        peer.ask(pull_request(count=1))
        site.run(site.broker._protect())
        assert peer.call(pull_request(count=1)).code == ResponseCode.NO_PERMISSION
        assert peer.call(pull_request(group="another", count=1)).code == ResponseCode.SUCCESS

"""A real Java broker and the real Java client find each other through `kourou namesrv`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kourou.remoting import lenient_json
from kourou.remoting.codes import RequestCode
from kourou.remoting.command import RemotingCommand
from support.java import RUN, Java
from support.wire import Caller, free_ports

START_TIMEOUT_S = 90  # a Java broker on a loaded machine
PROGRAM_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


class Cluster(NamedTuple):
    """A name server of ours and a broker of Java's."""

    namesrv_port: int
    broker: subprocess.Popen[bytes]
    directory: Path

    def interop(self, *arguments: str) -> None:
        """Run a step of Interop, which must succeed."""
        done = subprocess.run(
            [RUN, "Interop", arguments[0], "--namesrv", f"127.0.0.1:{self.namesrv_port}", *arguments[1:]],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment(self.directory),
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-30:])

    def broker_names(self) -> list[str]:
        """The brokers that the name server knows."""
        with Caller(self.namesrv_port) as caller:
            answer = caller.call(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert answer.body is not None
        return list(lenient_json.loads(answer.body)["brokerAddrTable"])


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with name_server(directory) as port, java_broker(directory, port) as broker:
        cluster = Cluster(port, broker, directory)
        wait_until(lambda: cluster.broker_names() == ["broker-a"], broker)
        yield cluster


def test_the_java_client_sends_and_consumes(cluster, tmp_path):
    sent = str(tmp_path / "sent.json")
    cluster.interop("topic", "--topic", "T")
    cluster.interop("produce", "--topic", "T", "--mode", "sync", "--count", "20", "--out", sent)
    cluster.interop(
        "consume", "--topic", "T", "--group", "G", "--mode", "concurrent", "--expect", sent
    )  # fmt: skip


def test_the_java_admin_client_finds_what_it_asks_for(cluster):
    cluster.interop("topic", "--topic", "A")
    cluster.interop("admin", "--topic", "A")


def test_a_broker_that_stops_is_gone_from_the_cluster(cluster):
    stop(cluster.broker)
    assert cluster.broker_names() == []


@contextmanager
def name_server(directory: Path) -> Iterator[int]:
    """`kourou namesrv` on a free port."""
    conf = directory / "namesrv.conf"
    conf.write_text(f"kvConfigPath={directory}/kvConfig.json\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "kourou",
        "namesrv",
        "-c",
        str(conf),
        "--port",
        "0",
        "--host",
        "127.0.0.1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:")
            yield int(line.rpartition(":")[2])
        finally:
            stop(process)
        assert process.returncode == 0


@contextmanager
def java_broker(directory: Path, namesrv_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The real broker, with small files."""
    listen_port = free_ports(-2, 0, 1)  # fastRemotingServer and HA listen beside it
    conf = directory / "broker.conf"
    lines = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{namesrv_port}",
        "listenPort": listen_port,
        "haListenPort": listen_port + 1,
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        "mappedFileSizeCommitLog": 16 * 1024 * 1024,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "autoCreateTopicEnable": "true",
        "timerWheelEnable": "true",
        "enablePropertyFilter": "true",
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
    with (
        open(directory / "broker.log", "wb") as log,
        subprocess.Popen(
            [RUN, "broker", "-c", str(conf)], stdout=log, stderr=log, env=environment(directory)
        ) as process,
    ):
        try:
            yield process
        finally:
            stop(process)


def environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_OPTS": "-Xmx512m",
        "TMPDIR": str(directory),
        "INTEROP_HOME": str(directory / "home"),
    }


def wait_until(condition, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert process.poll() is None, "the broker ended"
        assert time.monotonic() < deadline, f"the broker did not register within {START_TIMEOUT_S} s"
        time.sleep(0.2)


def stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

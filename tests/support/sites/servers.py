"""Servers as processes, ours and Java's, on free ports of 127.0.0.1, and the Java programs that use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from support.java import RUN
from support.recorded.wire import Caller, free_ports

HOST = "127.0.0.1"
# How long a server or program may take before it counts as hanging; machines are slow and shared
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 180
PROGRAM_TIMEOUT_S = 600

SMALL_STORE = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


class Server(NamedTuple):
    """A server that runs."""

    port: int
    process: subprocess.Popen[Any]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


class Mortal:
    """A server of ours or of Java's that can be killed, and started again as it was."""

    def __init__(self, kind: str, role: str, conf: Path) -> None:
        self.kind, self._role, self._file = kind, role, conf
        self.conf = read_conf(conf)
        self.port = int(self.conf["listenPort"])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it listens when this returns."""
        program: list[str | Path] = [sys.executable, "-m", "kourou"] if self.kind == "kourou" else [RUN]
        directory = self._file.parent
        with open(directory / "output.log", "ab") as log:
            self.process = subprocess.Popen(
                [*program, self._role, "-c", str(self._file)], stdout=log, stderr=log,
                env=java_environment(directory),
            )  # fmt: skip
        wait_until(lambda: listens(self.port), self.process)

    def kill(self) -> None:
        """End it as a power cut would, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Stop it in order, if it runs."""
        if self.process is not None:
            stop(self.process)
            self.process = None

    def change(self, key: str, value: str) -> None:
        """Change a line of its file, for its next start."""
        self.conf[key] = value
        self._file.write_text("".join(f"{key}={value}\n" for key, value in self.conf.items()))


@contextmanager
def kourou_name_server(directory: Path) -> Iterator[Server]:
    """`kourou namesrv` on a free port; it must end well."""
    conf = directory / "namesrv.conf"
    conf.write_text(f"kvConfigPath={directory}/kvConfig.json\n", encoding="utf-8")
    with kourou("namesrv", "-c", str(conf), "--port", "0", "--host", HOST) as server:
        yield server


@contextmanager
def kourou_broker(
    directory: Path, namesrv_port: int, more: Mapping[str, object] | None = None
) -> Iterator[Server]:
    """`kourou broker` on a free port, known at the name server; it must end well."""
    conf = write_broker_conf(directory, namesrv_port, more or {})
    with kourou("broker", "-c", str(conf)) as server:
        wait_until_registered(namesrv_port, server.process, read_conf(conf)["brokerName"])
        yield server


@contextmanager
def java_name_server(directory: Path) -> Iterator[Server]:
    """The real name server."""
    port = free_ports(0)
    conf = directory / "java-namesrv.conf"
    conf.write_text(f"listenPort={port}\nkvConfigPath={directory}/kvConfig.json\n", encoding="utf-8")
    with _java("namesrv", conf, directory) as process:
        wait_until(lambda: listens(port), process)
        yield Server(port, process)


@contextmanager
def java_broker(
    directory: Path, namesrv_port: int, more: Mapping[str, object] | None = None, *, options: str = ""
) -> Iterator[Server]:
    """The real broker, known at the name server; started again if somebody else was faster to take a port."""
    with ExitStack() as stack:
        for last in (False, False, True):
            conf = write_broker_conf(directory, namesrv_port, more or {})
            process = stack.enter_context(_java("broker", conf, directory, options))
            try:
                wait_until_registered(namesrv_port, process, read_conf(conf)["brokerName"])
                break
            except AssertionError:
                if last or process.poll() is None:
                    raise
        yield Server(int(read_conf(conf)["listenPort"]), process)


@contextmanager
def java_proxy(directory: Path, namesrv_port: int) -> Iterator[Server]:
    """The real proxy, in cluster mode, at its gRPC port; started again if somebody else took a port."""
    conf = directory / "rmq-proxy.json"
    with ExitStack() as stack:
        for last in (False, False, True):
            port = free_ports(0)
            values = {
                "proxyMode": "CLUSTER", "namesrvAddr": f"{HOST}:{namesrv_port}", "grpcServerPort": port,
                "remotingListenPort": free_ports(0),
            }  # fmt: skip
            conf.write_text(json.dumps(values), encoding="utf-8")
            process = stack.enter_context(_java("proxy", conf, directory))
            try:
                wait_until(partial(listens, port), process)
                break
            except AssertionError:
                if last or process.poll() is None:
                    raise
        yield Server(port, process)


def write_broker_conf(directory: Path, namesrv_port: int, more: Mapping[str, object]) -> Path:
    """A broker.conf that both brokers read."""
    listen_port = free_ports(-2, 0, 1)  # fastRemotingServer and HA listen beside it
    lines = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "bindAddress": HOST,
        "namesrvAddr": f"{HOST}:{namesrv_port}",
        "listenPort": listen_port,
        "haListenPort": listen_port + 1,
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        **SMALL_STORE,
        "autoCreateTopicEnable": "true",
        "timerWheelEnable": "true",
        "enablePropertyFilter": "true",
        **more,
    }
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
    return conf


def read_conf(conf: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in conf.read_text(encoding="utf-8").splitlines())


def kourou_proxy(namesrv: str, *, remoting_port: int = -1) -> AbstractContextManager[Server]:
    """`kourou proxy` on a free port."""
    ports = ("--port", "0", "--remoting-port", str(remoting_port))
    return kourou("proxy", "-n", namesrv, *ports, "--host", HOST)


@contextmanager
def kourou(*arguments: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "kourou", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), f"{arguments[0]} did not start"
            yield Server(int(line.split()[2].rpartition(":")[2]), process)
        finally:
            stop(process)
        assert process.returncode == 0


@contextmanager
def _java(server: str, conf: Path, directory: Path, options: str = "") -> Iterator[subprocess.Popen[bytes]]:
    with (
        open(directory / f"java-{server}.log", "wb") as log,
        subprocess.Popen(
            [RUN, server, "-pc" if server == "proxy" else "-c", str(conf)],
            stdout=log,
            stderr=log,
            env=java_environment(directory, options),
        ) as process,
    ):
        try:
            yield process
        finally:
            stop(process)


def java_environment(directory: Path, options: str = "") -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_OPTS": f"-Xmx512m {options}".strip(),
        "TMPDIR": str(directory),
        "INTEROP_HOME": str(directory / "home"),
    }


def interop(directory: Path, namesrv: str, *arguments: str, options: str = "") -> dict[str, Any]:
    """What a step of Interop reports, which must succeed."""
    done = run_interop(directory, namesrv, *arguments, options=options)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-10:]
    return report_of(done)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last line that a program of Java's printed; logging may be before it."""
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def run_interop(
    directory: Path, namesrv: str, *arguments: str, options: str = "", timeout_s: float = PROGRAM_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RUN, "Interop", arguments[0], "--namesrv", namesrv, *arguments[1:]],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=java_environment(directory, options),
        timeout=timeout_s,
        check=False,
    )


def mqadmin(directory: Path, *verbs: list[str]) -> list[str]:
    """What Java's mqadmin prints for each of the verbs, one after the other in one process."""
    return _mqadmin(directory, list(verbs), len(verbs))


def mqadmin_at_once(directory: Path, *batches: list[list[str]]) -> list[str]:
    """What Java's mqadmin prints for each of the verbs: batch after batch, those of a batch at once."""
    return _mqadmin(directory, list(batches), sum(map(len, batches)))


def _mqadmin(directory: Path, lines: Sequence[object], count: int) -> list[str]:
    done = subprocess.run(
        [RUN, "Mqadmin"],
        cwd=directory,  # some verbs write files where they are
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=java_environment(directory),
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == count, done.stdout + done.stderr
    for answer in answers:
        assert answer.get("failure") is None, answer
    return [answer["output"] for answer in answers]


def broker_names(namesrv_port: int) -> list[str]:
    """The brokers that a name server knows."""
    with Caller(namesrv_port) as caller:
        answer = caller.call(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert answer.body is not None
    return list(lenient_json.loads(answer.body)["brokerAddrTable"])


def wait_until_registered(
    namesrv_port: int, process: subprocess.Popen[Any], broker_name: str = "broker-a"
) -> None:
    wait_until(lambda: broker_name in broker_names(namesrv_port), process)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline, f"the server was not ready within {START_TIMEOUT_S} s"
        time.sleep(0.1)


def listens(port: int) -> bool:
    try:
        Caller(port).close()
    except OSError:
        return False
    return True


def stop(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

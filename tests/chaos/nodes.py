"""Servers as processes that are killed, stopped for a while, squeezed and started again."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from support.java import RUN
from support.recorded.wire import Caller, free_ports
from support.sites.broker import messages_in, pull_request
from support.sites.servers import HOST, java_environment, listens, wait_until

TESTS = Path(__file__).resolve().parent.parent
START_S = 60.0
STOP_S = 60.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Small files, so that they roll; nothing is deleted because a disk is full.
BROKER = {
    "brokerClusterName": "DefaultCluster", "brokerIP1": HOST, "brokerIP2": HOST, "bindAddress": HOST,
    "mappedFileSizeCommitLog": 4 * 1024 * 1024, "mappedFileSizeConsumeQueue": 20 * 5000,
    "maxHashSlotNum": 5000, "maxIndexNum": 20_000, "cleanFileForciblyEnable": "false",
    "messageDelayLevel": "1s 2s 3s", "transactionTimeOut": 1000, "transactionCheckInterval": 500,
    "transactionCheckMax": 100_000, "transactionOpBatchInterval": 300, "flushConsumerOffsetInterval": 500,
    "registerNameServerPeriod": 10_000, "cleanResourceInterval": 500,
}  # fmt: skip


class Node:
    """A server: `kind` is broker or namesrv."""

    def __init__(self, kind: str, name: str, directory: Path, lines: Mapping[str, object]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self.name = name
        self.directory = directory
        self.port = int(str(lines["listenPort"]))
        self.conf = directory / f"{kind}.conf"
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(8))
        self.output = directory / "output.log"
        self.open_files = 0  # at most; 0: what the machine allows
        self.process: subprocess.Popen[bytes] | None = None

    # Life

    def spawn(self) -> subprocess.Popen[bytes]:
        """A process of this server, whatever becomes of it; its word goes to the output."""
        python_path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "CHAOS_CLOCK": str(self._clock), "PYTHONPATH": python_path}
        if self.open_files:
            environment["CHAOS_OPEN_FILES"] = str(self.open_files)
        command = [sys.executable, "-m", "chaos.launch", self.kind, "-c", str(self.conf)]
        command += [
            "--log-file",
            str(self.directory / "log.json"),
        ]  # not on the disk of the store, which fills up
        with open(self.output, "ab") as log:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=self.directory
            )

    def start(self) -> None:
        """Start it; it listens when this returns."""
        self.process = process = self.spawn()
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else b""
        process.stdout.close()
        if not line.startswith(b"listening on "):
            self.kill()
            raise AssertionError(f"{self.name} did not start: {self.said()[-2000:]}")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """Stop it in order; its exit code."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} does not stop: {self.said()[-2000:]}") from None

    def set_clock(self, shift_s: float) -> None:
        """Have its time of day be so far from the machine's."""
        with open(self._clock, "r+b") as file:
            file.write(int(shift_s * 1000).to_bytes(8, "big", signed=True))

    # What is seen of it

    def said(self) -> str:
        """What it printed, and logged as a warning."""
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""

    def resident_bytes(self) -> int:
        """Its memory that is no file's: mapped files grow with what is stored."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    def open_count(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    # Questions

    def ask(
        self, code: RequestCode, body: bytes | None = None, timeout_s: float = 10, **fields: str
    ) -> RemotingCommand:
        """The answer to a request."""
        with contextlib.closing(Caller(self.port, timeout_s=timeout_s)) as caller:
            return caller.call(RemotingCommand(code, fields, body))

    def answers(self) -> bool:
        """Whether it serves."""
        probe = RequestCode.GET_BROKER_CONFIG if self.kind == "broker" else RequestCode.GET_NAMESRV_CONFIG
        try:
            return self.ask(probe, timeout_s=2).code == ResponseCode.SUCCESS
        except OSError:
            return False

    def create_topic(self, topic: str, queues: int = 2) -> None:
        """Make a topic, which must succeed."""
        header = CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")
        with contextlib.closing(Caller(self.port)) as caller:
            answer = caller.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields()))
        assert answer.code == ResponseCode.SUCCESS, answer

    def runtime(self) -> dict[str, str]:
        """Its runtime table."""
        answer = self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(lenient_json.loads(bytes(answer.body or b"{}"))["table"])

    def read(self, topic: str, queues: int = 2) -> Iterator[tuple[int, int, bytes, int]]:
        """All that is in a topic: queue, offset, body, when it was stored. No offset is missing."""
        with contextlib.closing(Caller(self.port, timeout_s=20)) as caller:
            for queue_id in range(queues):
                offset = 0
                while True:
                    answer = caller.call(
                        pull_request(topic, offset, queue_id=queue_id, group="READER", count=1000)
                    )
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    for message in messages_in(answer):
                        assert message.queue_offset == offset, f"{topic} {queue_id}: a gap at {offset}"
                        offset += 1
                        body = bytes(message.decompressed_body)
                        yield queue_id, message.queue_offset, body, message.store_timestamp


class JavaNode(Node):
    """The same server of Java's; it takes no faults but being stopped, killed and started."""

    def spawn(self) -> subprocess.Popen[bytes]:
        with open(self.output, "ab") as log:
            return subprocess.Popen(
                [RUN, self.kind, "-c", str(self.conf)], stdout=log, stderr=log,
                env=java_environment(self.directory), cwd=self.directory,
            )  # fmt: skip

    def start(self) -> None:
        self.process = self.spawn()
        wait_until(lambda: listens(self.port), self.process)

    def stop(self) -> int:
        code = super().stop()
        return 0 if code == 128 + signal.SIGTERM else code


def broker(
    directory: Path,
    name: str = "broker-a",
    namesrv: str = "",
    folder: str = "",
    node: type[Node] = Node,
    **more: Any,
) -> Node:
    """A broker below a directory, which is not started."""
    port = free_ports(-2, 0, 1)
    home = directory / (folder or name)
    lines = {
        **BROKER, "brokerName": name, "listenPort": port, "haListenPort": port + 1,
        "storePathRootDir": home / "store", **({"namesrvAddr": namesrv} if namesrv else {}), **more,
    }  # fmt: skip
    return node("broker", folder or name, home, lines)


def name_server(directory: Path, node: type[Node] = Node) -> Node:
    """A name server below a directory, which is not started."""
    lines = {
        "listenPort": free_ports(0), "bindAddress": HOST, "kvConfigPath": directory / "namesrv" / "kv.json"
    }  # fmt: skip
    return node("namesrv", "namesrv", directory / "namesrv", lines)


@contextmanager
def started(*nodes: Node) -> Iterator[None]:
    """Servers that run; in the end they stop in order."""
    try:
        for node in nodes:
            node.start()
        yield
        for node in reversed(nodes):
            code = node.stop()
            assert code == 0, f"{node.name} ended with {code}: {node.said()[-2000:]}"
    finally:
        for node in nodes:
            node.kill()

"""The processes behind the comparison of brokers: Kourou's and Java's servers, and the load generator.

Each server is a process in a session of its own, so that a Ctrl-C reaches only the benchmark, which then ends
them one by one. Everything is reached over loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kourou.errors import KourouError
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand, decode
from kourou.remoting.signing import Credentials

HERE = Path(__file__).resolve().parent.parent
RUN_JAVA = HERE.parent / "interop" / "run.sh"
SOURCE = HERE / "mqload"
GENERATOR = SOURCE / "target" / "mqload"

HOST = "127.0.0.1"
PORTS = range(4_000, 9_800, 5)
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60
PREPARE_TIMEOUT_S = 600  # the first run gets a hundred jars
GENERATOR_EXTRA_S = 120  # it ends 20 s after its time at the latest, but may have to fill a topic first
POLL_S = 0.005

# What runbroker.sh of the distribution sets, with a heap for one machine instead of its 8 GB; without
# AlwaysPreTouch, so that memory is what the broker uses and not what it was given.
JAVA_OPTIONS = (
    "-Xms2g -Xmx2g -XX:-UseSerialGC -XX:+UseG1GC -XX:G1HeapRegionSize=16m -XX:G1ReservePercent=25 "
    "-XX:InitiatingHeapOccupancyPercent=30 -XX:SoftRefLRUPolicyMSPerMB=0 -XX:-OmitStackTraceInFastThrow"
)
JAVA_NAMESRV_OPTIONS = "-Xmx256m"


class CannotRunError(Exception):
    """Something that the comparison needs is missing or failed; the message says what to do."""


@dataclass(slots=True)
class Broker:
    """A running broker with its name server."""

    name: str
    address: str
    namesrv_address: str
    process: subprocess.Popen[Any]
    namesrv: subprocess.Popen[Any]
    startup_s: float  # from starting the process to the first accepted send
    namesrv_startup_s: float  # until it listens
    idle_mb: float  # anonymous memory before any load
    log: Path | None

    def pause(self) -> None:
        """Stop it from running at all: an idle Java broker takes 5 to 10 % of a core."""
        for process in (self.process, self.namesrv):
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        for process in (self.namesrv, self.process):
            process.send_signal(signal.SIGCONT)


def check_tools(names: list[str]) -> None:
    """Everything that is needed is there and built, or an error says what to install."""
    if shutil.which("go") is None:
        raise CannotRunError(
            "no go on this machine: the load generator needs Go 1.21 or later (Debian: golang-go)"
        )
    build_generator()
    if "java" in names:
        check_java()


def check_java() -> None:
    """Java's code can be run here, or an error says what to install."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise CannotRunError(
                f"no {tool} on this machine: the Java broker needs a JDK, version 17 "
                "(Debian: openjdk-17-jdk-headless); --only kourou goes without"
            )
    jars = os.environ.get("ROCKETMQ_LIB") or (RUN_JAVA.parent / "target/lib/.complete").exists()
    if not jars and shutil.which("mvn") is None:
        raise CannotRunError(
            "no mvn on this machine to get RocketMQ's jars with (Debian: maven), and ROCKETMQ_LIB is not set"
        )
    _prepare([str(RUN_JAVA), "compile"], "interop/run.sh compile")


def build_generator() -> None:
    """Build mqload, unless it is newer than its source."""
    sources = [*SOURCE.glob("*.go"), SOURCE / "go.mod"]
    if GENERATOR.exists() and GENERATOR.stat().st_mtime >= max(path.stat().st_mtime for path in sources):
        return
    GENERATOR.parent.mkdir(exist_ok=True)
    fresh = GENERATOR.with_suffix(f".{os.getpid()}")
    command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(fresh), "."]
    _prepare(command, "go build of benchmarks/mqload", cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"})
    fresh.replace(GENERATOR)


def generate(broker: Broker, mode: str, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Put load on a broker; what mqload reports. A run that is not ok has `error`."""
    arguments = [f"--{key}={value}" for key, value in options.items()]
    command = [str(GENERATOR), mode, "--broker", broker.address, "--pid", str(broker.process.pid), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + GENERATOR_EXTRA_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"mqload did not end within {seconds + GENERATOR_EXTRA_S:.0f} s"}
    lines = done.stdout.splitlines()
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {"ok": False}
    if not report["ok"]:
        said = (report.get(key) for key in ("error", "failure", "verify_error"))
        report["error"] = next(filter(None, said), None) or done.stderr.strip() or "mqload is not content"
        if broker.process.poll() is not None:
            raise CannotRunError(_ended(broker.name, broker.process, broker.log))
    return report


@contextlib.contextmanager
def running(
    name: str,
    root: Path,
    java_options: str,
    more: Mapping[str, Any] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    credentials: Credentials | None = None,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> Iterator[Broker]:
    """A name server and a broker (`kourou` or `java`) with all their files in `root`, removed afterwards.

    `more` has lines of broker.conf; `credentials` are for a broker that asks for them. With a short
    `stop_timeout_s` it is killed: an orderly stop takes Java 20 s, and nobody needs its files.
    """
    root.mkdir(parents=True)
    try:
        namesrv_port, port = free_ports(0), free_ports(-2, 0, 1)
        namesrv_conf = _write_conf(root / "namesrv.conf", _namesrv_config(root, namesrv_port))
        broker_conf = _write_conf(
            root / "broker.conf", {**_broker_config(root, namesrv_port, port), **(more or {})}
        )
        began = time.perf_counter()
        with _process(name, "namesrv", namesrv_conf, JAVA_NAMESRV_OPTIONS, stop_timeout_s) as namesrv:
            wait_for_port(namesrv, namesrv_port, f"{name} namesrv", root / "namesrv.log")
            namesrv_startup_s = time.perf_counter() - began
            began = time.perf_counter()
            with _process(name, "broker", broker_conf, java_options, stop_timeout_s) as process:
                log = root / "broker.log"
                _wait_for_a_send(process, port, f"{name} broker", log, timeout_s, credentials)
                startup_s = time.perf_counter() - began
                yield Broker(
                    name, f"{HOST}:{port}", f"{HOST}:{namesrv_port}", process, namesrv, startup_s,
                    namesrv_startup_s, anonymous_mb(process.pid), log,
                )  # fmt: skip
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def running_namesrv(name: str, root: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A name server alone, its process and its port."""
    root.mkdir(parents=True)
    try:
        port = free_ports(0)
        conf = _write_conf(root / "namesrv.conf", _namesrv_config(root, port))
        with _process(name, "namesrv", conf, "-Xmx1g") as process:
            wait_for_port(process, port, f"{name} namesrv", root / "namesrv.log")
            yield process, port
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def slave_of(master: Broker, root: Path, java_options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A slave of a broker, of the same kind, with all its files in `root`; its process and its address."""
    root.mkdir(parents=True)
    try:
        port = free_ports(-2, 0, 1)
        namesrv_port = int(master.namesrv_address.rpartition(":")[2])
        config = _broker_config(root, namesrv_port, port) | {"brokerRole": "SLAVE", "brokerId": 1}
        conf = _write_conf(root / "broker.conf", config)
        with _process(master.name, "broker", conf, java_options) as process:
            wait_for_port(process, port, f"{master.name} slave", root / "broker.log")
            yield process, f"{HOST}:{port}"
    finally:
        shutil.rmtree(root, ignore_errors=True)


def anonymous_mb(pid: int) -> float:
    """The anonymous memory of a process and its children."""
    total_kib = 0
    for process in [pid, *_children(pid)]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
                if line.startswith("RssAnon:"):
                    total_kib += int(line.split()[1])
    return total_kib * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """The processor's time that a process and its children have had."""
    total = 0.0
    for process in [pid, *_children(pid)]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="utf-8").split():
                found += [int(child), *_children(int(child))]
    return found


def ask(
    address: str,
    code: RequestCode,
    body: bytes | None = None,
    credentials: Credentials | None = None,
    **fields: str,
) -> RemotingCommand:
    """The answer of a server to a request."""
    host, _, port = address.rpartition(":")
    request = RemotingCommand(code, fields, body)
    if credentials is not None:
        request = credentials.sign(request)
    with socket.create_connection((host, int(port)), START_TIMEOUT_S) as connection:
        connection.sendall(request.encode())
        with connection.makefile("rb") as stream:
            return decode(stream.read(int.from_bytes(stream.read(4), "big")))


def _namesrv_config(root: Path, port: int) -> dict[str, Any]:
    return {"listenPort": port, "bindAddress": HOST, "kvConfigPath": root / "kvConfig.json"}


def _broker_config(root: Path, namesrv_port: int, port: int) -> dict[str, Any]:
    """The same for both: the defaults, but nobody is "busy" because the machine stood still for a moment."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "bindAddress": HOST,
        "namesrvAddr": f"{HOST}:{namesrv_port}",
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": root / "store",
        "storePathCommitLog": root / "store" / "commitlog",
        "autoCreateTopicEnable": "true",
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "waitTimeMillsInSendQueue": 10_000,
        "waitTimeMillsInPullQueue": 10_000,
        "osPageCacheBusyTimeOutMills": 10_000,
    }


def _write_conf(path: Path, lines: Mapping[str, Any]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
    return path


@contextlib.contextmanager
def _process(
    name: str, role: str, conf: Path, java_options: str, stop_timeout_s: float = STOP_TIMEOUT_S
) -> Iterator[subprocess.Popen[bytes]]:
    root = conf.parent
    environment = dict(os.environ)
    if name == "java":
        command = [str(RUN_JAVA), role, "-c", str(conf)]
        # run.sh has options of its own; the JVM reads _JAVA_OPTIONS behind them.
        environment |= {
            "_JAVA_OPTIONS": java_options, "TMPDIR": str(root), "INTEROP_HOME": str(root / "home")
        }  # fmt: skip
    else:
        command = [sys.executable, "-m", "kourou", role, "-c", str(conf)]
    with (
        open(root / f"{role}.log", "wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            _end(process, stop_timeout_s)


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Ask it to end, and do not ask twice. A Ctrl-C in the meantime makes it quick."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def wait_for_port(process: subprocess.Popen[Any], port: int, what: str, log: Path | None) -> None:
    """Returns when somebody listens."""

    def connects() -> bool:
        with socket.create_connection((HOST, port), START_TIMEOUT_S):
            return True

    _wait(connects, process, what, log)


def _wait_for_a_send(
    process: subprocess.Popen[bytes],
    port: int,
    what: str,
    log: Path,
    timeout_s: float,
    credentials: Credentials | None,
) -> None:
    """Returns when a message was accepted: to a new topic, as the first message of an application is."""
    fields = {
        "a": "bench_producer", "b": "bench_first", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip

    def accepts() -> bool:
        answer = ask(f"{HOST}:{port}", RequestCode.SEND_MESSAGE_V2, b"first", credentials, **fields)
        return answer.code == ResponseCode.SUCCESS

    _wait(accepts, process, what, log, timeout_s)


def _wait(
    condition: Any,
    process: subprocess.Popen[Any],
    what: str,
    log: Path | None,
    timeout_s: float = START_TIMEOUT_S,
) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotRunError(_ended(what, process, log))
        with contextlib.suppress(OSError, KourouError):
            if condition():
                return
        time.sleep(POLL_S)
    raise CannotRunError(f"{what} was not ready within {timeout_s:.0f} s:\n{_tail(log)}")


def _prepare(command: list[str], what: str, **options: Any) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PREPARE_TIMEOUT_S, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"{what} did not end within {PREPARE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise CannotRunError(f"{what} failed:\n" + "\n".join(lines[-20:]))


def _ended(what: str, process: subprocess.Popen[Any], log: Path | None) -> str:
    return f"{what} ended with status {process.returncode}:\n{_tail(log)}"


def _tail(log: Path | None, lines: int = 20) -> str:
    if log is None:
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def free_ports(*steps: int) -> int:
    """A port p so that p + step is free for each of the steps: none that an outgoing connection may take."""
    for port in random.sample(PORTS, 100):
        if all(_is_free(port + step) for step in steps):
            return port
    raise CannotRunError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True

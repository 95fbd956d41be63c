"""The Go client (apache/rocketmq-client-go) sends to a Kourou cluster and consumes from it.

The program in tests/interop/go does all of the checking. It runs against the real Java broker too, so that a
failure shows whether Kourou or the program is wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from kourou.remoting import lenient_json
from kourou.remoting.codes import RequestCode
from kourou.remoting.command import RemotingCommand
from support.java import RUN
from support.wire import Caller, free_ports

SOURCE = Path(__file__).resolve().parent / "go"
PROGRAM = SOURCE / "target" / "goclient"

DOWNLOAD_TIMEOUT_S = 300  # some twenty modules, 24 MB, over a slow line
BUILD_TIMEOUT_S = 300  # half a minute on two cores with nothing cached
PROGRAM_TIMEOUT_S = 90  # it takes four seconds
START_TIMEOUT_S = 90  # a Java broker on a loaded machine
STOP_TIMEOUT_S = 60
COUNT = 60  # messages of each kind


@pytest.fixture(scope="session")
def go_client() -> Path:
    """The program, built when its source is newer."""
    if shutil.which("go") is None:
        missing("needs: Go, version 1.21 or later, to build the Go client with")
    PROGRAM.parent.mkdir(exist_ok=True)
    with open(PROGRAM.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers start together: one builds, the others find it done
        if not is_built():
            build()
    return PROGRAM


@pytest.fixture(params=["kourou", "java"])
def name_server_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The port of a name server of ours that knows a broker: ours, or Java's."""
    if request.param == "java":
        request.getfixturevalue("java")
    with name_server(tmp_path) as port, broker(request.param, tmp_path, port):
        yield port


def test_the_go_client_sends_and_consumes(go_client: Path, name_server_port: int) -> None:
    done = go(
        str(go_client), "--namesrv", f"127.0.0.1:{name_server_port}", "--count", str(COUNT),
        "--timeout", f"{PROGRAM_TIMEOUT_S}s", timeout_s=PROGRAM_TIMEOUT_S + 30,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["sent"] == dict.fromkeys(["sync", "async", "oneway", "live", "later"], COUNT)
    assert report["received"] == 5 * COUNT * 2 // 3  # two tags of three


def is_built() -> bool:
    sources = [*SOURCE.glob("*.go"), SOURCE / "go.mod", SOURCE / "go.sum"]
    return PROGRAM.exists() and PROGRAM.stat().st_mtime >= max(path.stat().st_mtime for path in sources)


def build() -> None:
    try:
        modules = go("go", "list", "-deps", ".", timeout_s=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        missing(f"needs: the modules of the Go client, which did not come within {DOWNLOAD_TIMEOUT_S} s")
    if modules.returncode != 0:
        missing(f"needs: the modules of the Go client: {modules.stderr.strip()[-1000:]}")
    fresh = PROGRAM.with_suffix(".new")
    done = go(
        "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(fresh), ".", timeout_s=BUILD_TIMEOUT_S
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    fresh.replace(PROGRAM)


def go(*command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":  # a build machine has Go
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


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


@contextmanager
def broker(kind: str, directory: Path, namesrv_port: int) -> Iterator[None]:
    """A broker with small files, `kourou` or `java`, that the name server knows."""
    port = free_ports(-2, 0, 1)  # the fast port and HA beside it
    conf = directory / "broker.conf"
    lines = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{namesrv_port}",
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        "mappedFileSizeCommitLog": 16 * 1024 * 1024,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "autoCreateTopicEnable": "true",
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
    start = [str(RUN)] if kind == "java" else [sys.executable, "-m", "kourou"]
    environment = {
        **os.environ,
        "JAVA_OPTS": "-Xmx512m",
        "TMPDIR": str(directory),
        "INTEROP_HOME": str(directory / "home"),
    }
    with (
        open(directory / "broker.log", "wb") as log,
        subprocess.Popen(
            [*start, "broker", "-c", str(conf)], stdout=log, stderr=log, env=environment
        ) as process,
    ):
        try:
            wait_until_known(namesrv_port, process, directory / "broker.log")
            yield
        finally:
            stop(process)


def wait_until_known(namesrv_port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until clients find the broker and the topic that new topics are made from."""
    request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with Caller(namesrv_port) as caller:
            answer = caller.call(request)
        if answer.code == 0 and answer.body and lenient_json.loads(answer.body)["brokerDatas"]:
            return
        assert process.poll() is None, f"the broker ended: {tail(log)}"
        assert time.monotonic() < deadline, f"no broker within {START_TIMEOUT_S} s: {tail(log)}"
        time.sleep(0.1)


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

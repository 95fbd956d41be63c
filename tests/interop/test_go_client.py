"""The Go client (apache/rocketmq-client-go) sends to a Kourou cluster and consumes from it.

The program in tests/interop/go does all of the checking. It runs against the real Java broker too, so that a
failure shows whether Kourou or the program is wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sites.servers import java_broker, kourou_broker, kourou_name_server

SOURCE = Path(__file__).resolve().parent / "go"
PROGRAM = SOURCE / "target" / "goclient"

DOWNLOAD_TIMEOUT_S = 300  # some twenty modules, 24 MB, over a slow line
BUILD_TIMEOUT_S = 300  # half a minute on two cores with nothing cached
PROGRAM_TIMEOUT_S = 90  # it takes four seconds
pytestmark = pytest.mark.go

COUNT = 60  # messages of each kind


@pytest.fixture(scope="session")
def go_client() -> Path:
    """The program, built when its source is newer."""
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
    broker = java_broker if request.param == "java" else kourou_broker
    with kourou_name_server(tmp_path) as server, broker(tmp_path, server.port):
        yield server.port


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
        pytest.skip(f"no modules of the Go client, which did not come within {DOWNLOAD_TIMEOUT_S} s")
    if modules.returncode != 0:
        pytest.skip(f"no modules of the Go client: {modules.stderr.strip()[-1000:]}")
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

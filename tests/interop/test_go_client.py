"""The Go client (apache/rocketmq-client-go) sends to a Kourou cluster and consumes from it.

The program in tests/interop/go does all of the checking. It runs against the real Java broker too, so that a
failure shows whether Kourou or the program is wrong.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.foreign import go_program
from support.sites.servers import java_broker, kourou_broker, kourou_name_server

SOURCE = Path(__file__).resolve().parent / "go"

PROGRAM_TIMEOUT_S = 300  # it takes four seconds
pytestmark = pytest.mark.go

COUNT = 60  # messages of each kind


@pytest.fixture(scope="session")
def go_client() -> Path:
    return go_program(SOURCE)


@pytest.fixture(params=["kourou", "java"])
def name_server_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The port of a name server of ours that knows a broker: ours, or Java's."""
    if request.param == "java":
        request.getfixturevalue("java")
    broker = java_broker if request.param == "java" else kourou_broker
    with kourou_name_server(tmp_path) as server, broker(tmp_path, server.port):
        yield server.port


def test_the_go_client_sends_and_consumes(go_client, name_server_port):
    command = [
        go_client, "--namesrv", f"127.0.0.1:{name_server_port}", "--count", str(COUNT),
        "--timeout", f"{PROGRAM_TIMEOUT_S}s",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=PROGRAM_TIMEOUT_S + 30,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["sent"] == dict.fromkeys(["sync", "async", "oneway", "live", "later"], COUNT)
    assert report["received"] == 5 * COUNT * 2 // 3  # two tags of three

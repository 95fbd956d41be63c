"""Clients in other languages: what they need is installed once, and they run against both brokers."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from support.java import java
from support.recorded.wire import Caller
from support.sites.servers import java_broker, kourou_broker, kourou_name_server

INSTALL_TIMEOUT_S = 300  # a few megabytes over a slow line
PROGRAM_TIMEOUT_S = 150
LEVELS = {"messageDelayLevel": "1s 3s 1s 1s 1s 1s 1s"}  # the first retries have the third and those after it


def install(directory: Path, wanted: Path, *commands: list[str]) -> None:
    """Run these once, and again when `wanted`, which says what they install, is newer."""
    directory.mkdir(exist_ok=True)
    stamp = directory / ".complete"
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers start together: one installs, the others find it done
        if stamp.exists() and stamp.stat().st_mtime >= wanted.stat().st_mtime:
            return
        for command in commands:
            try:
                done = subprocess.run(
                    command, capture_output=True, encoding="utf-8", timeout=INSTALL_TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"no {wanted.name} installed, which took more than {INSTALL_TIMEOUT_S} s")
            if done.returncode != 0:
                pytest.skip(f"no {wanted.name} installed: {(done.stdout + done.stderr).strip()[-1000:]}")
        stamp.touch()


@contextmanager
def cluster(directory: Path, kind: str, *topics: str) -> Iterator[str]:
    """The address of a name server of ours that knows a broker, ours or Java's, with these topics."""
    if kind == "java":
        java()
    start = java_broker if kind == "java" else kourou_broker
    with kourou_name_server(directory) as server, start(directory, server.port, LEVELS) as broker:
        with Caller(broker.port) as caller:
            for topic in topics:
                fields = CreateTopic(topic, "TBW102", 4, 4, 6, "SINGLE_TAG").fields()
                answer = caller.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
                assert answer.code == 0, answer
        yield server.address


def run_step(directory: Path, command: list[str], more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a program printed on its last line."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        env={**environment, "HOME": str(directory), **(more or {})},  # where clients keep logs and offsets
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report

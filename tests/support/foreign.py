"""Clients in other languages: what they need is installed once, and they run against both brokers."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from support.java import java
from support.recorded.wire import Caller
from support.sites.servers import java_broker, kourou_broker, kourou_name_server, kourou_proxy

INSTALL_TIMEOUT_S = 300  # a few megabytes over a slow line
BUILD_TIMEOUT_S = 300  # a Go program: half a minute on two cores with nothing cached
PROGRAM_TIMEOUT_S = 600
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


def python_with(source: Path, module: str) -> str:
    """A Python in an environment of its own, with what the requirements.txt of a directory names."""
    target, wanted = source / "target", source / "requirements.txt"
    found = str(target / "bin" / "python")
    pip = [found, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--requirement", str(wanted)]
    install(
        target, wanted, [sys.executable, "-m", "venv", str(target)], pip, [found, "-c", f"import {module}"]
    )
    return found


def node_modules(source: Path) -> Path:
    """What the package-lock.json of a directory names."""
    target, wanted = source / "target", source / "package-lock.json"
    target.mkdir(exist_ok=True)
    npm = ["npm", "ci", "--prefix", str(target), "--ignore-scripts", "--no-audit", "--no-fund"]
    install(target, wanted, ["cp", str(source / "package.json"), str(wanted), str(target)], npm)
    return target / "node_modules"


def go_program(source: Path) -> Path:
    """The Go program in a directory, built when its source is newer."""
    program = source / "target" / "program"
    program.parent.mkdir(exist_ok=True)
    sources = [*source.glob("*.go"), source / "go.mod", source / "go.sum"]
    with open(program.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers start together: one builds, the others find it done
        if not program.exists() or program.stat().st_mtime < max(path.stat().st_mtime for path in sources):
            _build(source, program)
    return program


def _build(source: Path, program: Path) -> None:
    try:
        modules = _go(source, "list", "-deps", ".", timeout_s=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no modules of the Go client, which did not come within {INSTALL_TIMEOUT_S} s")
    if modules.returncode != 0:
        pytest.skip(f"no modules of the Go client: {modules.stderr.strip()[-1000:]}")
    fresh = program.with_suffix(".new")
    options = ("-trimpath", "-ldflags", "-s -w", "-o", str(fresh), ".")
    done = _go(source, "build", *options, timeout_s=BUILD_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    fresh.replace(program)


def _go(source: Path, *command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *command],
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


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


@contextmanager
def proxied_cluster(
    directory: Path, kind: str, settings: Mapping[str, object], topics: Mapping[str, str],
    groups: Mapping[str, Mapping[str, object]],
) -> Iterator[str]:  # fmt: skip
    """The address of `kourou proxy` before a broker, ours or Java's, with topics (and types) and groups."""
    if kind == "java":
        java()
    start = java_broker if kind == "java" else kourou_broker
    with kourou_name_server(directory) as server, start(directory, server.port, settings) as broker:
        with Caller(broker.port) as caller:
            make_typed_topics(caller, topics)
            for group, more in groups.items():
                body = lenient_json.dumps({"groupName": group, **more})
                answer = caller.call(
                    RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
                )
                assert answer.code == 0, answer
        with kourou_proxy(server.address) as proxy:
            yield proxy.address


def make_typed_topics(caller: Caller, topics: Mapping[str, str]) -> None:
    """Topics for messages of a type each."""
    for topic, kind in topics.items():
        header = CreateTopic(topic, "TBW102", 4, 4, 6, "SINGLE_TAG", attributes=f"+message.type={kind}")
        answer = caller.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields()))
        assert answer.code == 0, answer


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

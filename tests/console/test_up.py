"""`kourou up` serves a console beside its cluster, and runs whatever becomes of it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from kourou.cli.servers import console_process
from kourou.cli.servers.console_process import ConsoleProcess

READY_S = 60


@contextmanager
def running_up(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`kourou up`, and what it says of its console."""
    command = [
        sys.executable,
        "-m",
        "kourou",
        "up",
        "--dir",
        str(directory),
        "--port",
        "0",
        "--broker-port",
        "0",
    ]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        said = ""
        while not (line := process.stdout.readline()).startswith("Ctrl-C stops it"):
            assert line, "it ended before it was up"
            if line.strip().startswith("console"):
                said = line.strip().removeprefix("console").strip()
        try:
            yield process, said
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(READY_S)


def answers(url: str) -> bool:
    try:
        with urlopen(f"{url}healthz", timeout=5) as answer:
            return bool(answer.read() == b"ok")
    except (URLError, OSError):
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_up_serves_a_console_which_ends_with_it(tmp_path, number):
    with running_up(tmp_path, "--console-port", "0") as (process, url):
        wait_until(lambda: answers(url))
        process.send_signal(number)
        assert process.wait(READY_S) == (0 if number == signal.SIGTERM else -number)
        wait_until(lambda: not answers(url))


def test_up_runs_without_a_console(tmp_path):
    with running_up(tmp_path, "--no-console") as (process, said):
        assert said == ""
        process.send_signal(signal.SIGINT)
        assert process.wait(READY_S) == 0


def test_up_runs_where_the_port_of_the_console_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running_up(tmp_path, "--console-port", str(port)) as (process, said):
            assert f"port {port} is taken" in said
            process.send_signal(signal.SIGINT)
            assert process.wait(READY_S) == 0


def test_where_the_console_is_not_installed_none_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(console_process, "find_spec", lambda _: None)

    async def run() -> str | None:
        console = ConsoleProcess("127.0.0.1:9876", 0, tmp_path / "console.log")
        said = console.start()
        await console.stop()
        return said

    with ThreadPoolExecutor(1) as thread:
        assert "kourou[console]" in (thread.submit(asyncio.run, run()).result() or "")
    assert list(tmp_path.iterdir()) == []

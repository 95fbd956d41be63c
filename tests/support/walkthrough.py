"""Follows a page of the documentation as a reader would: every block of it, in order, in one directory.

- A block of `sh` is run by bash; where it was and what it exported counts for the next one. A block that is
  one of the servers (`kourou up`, `broker`, `namesrv`, `console`) is started in another terminal, so to
  say, and waited for.
- A block with `title="name"`, of any language, is a file of that name. One of `python` without is run.
- A block of `text` is what the block before it printed: its lines in their order, where … stands for
  anything.
- `<!-- reader: stop COMMAND -->` is Ctrl-C in the terminal of that server.

RocketMQ's ports become free ones and /data/ a directory of the test's, in all of it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType

TIMEOUT_S = 240
READY = re.compile(r"^(listening on|Ctrl-C stops it)")
BLOCK = re.compile(
    r"^```(?P<language>\w+)(?:[ ]title=\"(?P<title>[^\"]+)\")?[ ]*\n(?P<text>.*?)^```$"
    r"|^<!-- reader: stop (?P<stop>.+?) -->$",
    re.DOTALL | re.MULTILINE,
)
SERVER = re.compile(r"kourou (?:up|broker|namesrv|console)\b(?! (?:add-user|list-users|remove-user))")
# What makes the reader's environment, which a test has already
INSTALL = re.compile(r"^(?:pip install|python3 -m venv|(?:\.|source) \S+/bin/activate)\b.*\n?", re.MULTILINE)
NAMESRV_PORT, BROKER_PORT, CONSOLE_PORT = 9876, 10911, 8088
PORTS_OF_BROKERS = range(BROKER_PORT - 2, BROKER_PORT + 22)


def free_ports() -> dict[int, int]:
    """For each of RocketMQ's ports one that is free; those of brokers keep their distances."""
    for base in range(21_000 + os.getpid() % 5000, 32_000, 40):
        ports = {port: base + port - PORTS_OF_BROKERS.start for port in PORTS_OF_BROKERS}
        ports |= {NAMESRV_PORT: base + 30, CONSOLE_PORT: base + 31}
        if all(_is_free(port) for port in ports.values()):
            return ports
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _split_server(block: str) -> tuple[str, str]:
    """The lines of a block before a server is started, and the command that starts it, the last one."""
    lines = block.strip().splitlines()
    if lines and SERVER.match(lines[-1]):
        return "\n".join(lines[:-1]), lines[-1].partition(" #")[0].strip()
    return block, ""


@dataclass
class _Server:
    """A command that runs until Ctrl-C."""

    command: str
    process: subprocess.Popen[str]
    lines: Queue[str] = field(default_factory=Queue)

    def __post_init__(self) -> None:
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line)
        self.lines.put("")

    def wait_until_ready(self) -> str:
        """What it says until it is."""
        said = ""
        while True:
            try:
                line = self.lines.get(timeout=TIMEOUT_S)
            except Empty:
                raise AssertionError(f"{self.command} does not say that it is ready: {said}") from None
            assert line, f"{self.command} ended: {said}"
            said += line
            if READY.match(line):
                return said

    def stop(self) -> None:
        """Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(TIMEOUT_S)
        self._reading.join(TIMEOUT_S)


class Reader:
    """Somebody who reads a page and does what it says."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, *, installs: bool = False
    ) -> None:
        self.directory = directory
        self.ports = free_ports()
        self._cwd = directory
        self._installs = installs
        self._servers: list[_Server] = []
        self._printed = ""
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "NAMESRV_ADDR": self.here("127.0.0.1:9876"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "160",
            "NO_COLOR": "1",
            **(environment or {}),
        }

    def here(self, text: str) -> str:
        """A text of the page with the ports and paths of this test."""
        numbers = "|".join(map(str, self.ports))
        text = re.sub(rf"\b({numbers})\b", lambda found: str(self.ports[int(found[1])]), text)
        return re.sub(r"(?<![\w.])/data/", f"{self.directory}/data/", text)

    def follow(self, page: Path) -> Iterator[str]:
        """Do what the page says, block by block; after each, what it printed."""
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if block["stop"]:
                self.stop(block["stop"])
                continue
            language, content = block["language"], self.here(block["text"])
            if block["title"]:
                (self._cwd / block["title"]).write_text(content, encoding="utf-8")
            elif language == "sh":
                self._printed = self._do(content)
                yield self._printed
            elif language == "python":
                self._printed = self._run([self._python(), "-c", content])
                yield self._printed
            elif language == "text":
                self._compare(content)

    def stop(self, command: str) -> None:
        """Ctrl-C for a server."""
        server = next(server for server in self._servers if server.command.startswith(command))
        self._servers.remove(server)
        server.stop()

    def _do(self, block: str) -> str:
        if not self._installs:
            block = INSTALL.sub("", block)
        before, server = _split_server(block)
        if server and not before:
            return self._start(server)
        if server:
            return self._shell(before) + self._start(server)
        return self._shell(block)

    def _shell(self, block: str) -> str:
        # What a shell is told counts for the next block, too: where it is, and its environment.
        state = self.directory / ".reader"
        script = f"{block}\npwd > {shlex.quote(str(state))}\nenv -0 >> {shlex.quote(str(state))}\n"
        printed = self._run(["bash", "-euo", "pipefail", "-c", script])
        place, _, variables = state.read_text(encoding="utf-8").partition("\n")
        self._cwd = Path(place)
        self._environment = dict(item.split("=", 1) for item in variables.split("\0") if "=" in item)
        return printed

    def _start(self, command: str) -> str:
        words = shlex.split(command)
        if words[1] == "up":
            words += ["--port", str(self.ports[NAMESRV_PORT]), "--broker-port", str(self.ports[BROKER_PORT])]
            words += ["--console-port", str(self.ports[CONSOLE_PORT])]
        words[0] = self._run(["bash", "-c", "command -v kourou"]).strip()
        process = subprocess.Popen(
            words, cwd=self._cwd, env=self._environment, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        server = _Server(command, process)
        self._servers.append(server)
        return server.wait_until_ready()

    def _python(self) -> str:
        return self._run(["bash", "-c", "command -v python"]).strip()

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self._cwd, env=self._environment, encoding="utf-8", timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{command[-1]}\n\n{done.stdout}"
        return done.stdout

    def _compare(self, expected: str) -> None:
        left = self._printed
        for line in filter(None, map(str.strip, expected.splitlines())):
            parts = (r"\s+".join(map(re.escape, part.split())) for part in line.split("…"))
            found = re.search(r"[^\n]*?".join(parts), left)
            assert found, f"{line!r} is not in what was printed:\n{self._printed}"
            left = left[found.end() :]

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self._servers):
            server.stop()

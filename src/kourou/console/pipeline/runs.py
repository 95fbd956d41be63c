"""Runs: Spark jobs as child processes, with what they say, how far they are, and what they have left behind.

They are kept in memory, the newest ones; what they wrote stays in their directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from kourou.console.pipeline.child import PROGRESS
from kourou.errors import KourouError

MAX_RUNNING = 2  # each is a JVM
MAX_RUNS = 50
MAX_LINES = 1000
MAX_ROWS = 1000
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_REPORT_BYTES = 8 * 1024 * 1024
STOP_S = 5.0
CHILD = "kourou.console.pipeline.child"
_ENDED_BY_A_FAULT = 1


class State(StrEnum):
    """What became of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAULTS = "faults"  # an audit that has found some
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Run:
    """One job, running or ended."""

    run_id: str
    job: str
    source: str
    user: str
    arguments: tuple[str, ...]
    directory: Path
    started_s: float = field(default_factory=time.time)
    ended_s: float | None = None
    state: State = State.RUNNING
    tasks_done: int = 0
    tasks: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    rows: list[dict[str, Any]] = field(default_factory=list)
    row_count: int = 0
    version: int = 0  # grows with each change
    process: asyncio.subprocess.Process | None = None

    @property
    def duration_s(self) -> float:
        """How long it has run."""
        return (self.ended_s or time.time()) - self.started_s

    @property
    def report(self) -> Path:
        """Where an audit writes its report."""
        return self.directory / "report" / "report.html"

    def read_report(self) -> str | None:
        """The report, if this run has made one that can be shown."""
        path = self.report
        if self.job != "audit" or path.is_symlink() or not path.is_file():
            return None
        if path.stat().st_size > MAX_REPORT_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")


class Runs:
    """The runs of a console. `directory` is where they may write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.version = 0

    def all(self) -> list[Run]:
        """All that are known, newest first."""
        return list(reversed(self._runs.values()))

    def find(self, run_id: str) -> Run | None:
        """The run of an id."""
        return self._runs.get(run_id)

    async def start(self, job: str, source: str, user: str, arguments: Sequence[str]) -> Run:
        """Start a job; `{run}` in its arguments is the directory of the run."""
        if sum(run.state is State.RUNNING for run in self._runs.values()) >= MAX_RUNNING:
            raise KourouError(f"{MAX_RUNNING} jobs are running: wait for one of them, or cancel it")
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        directory = self.directory / "runs" / run_id
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            raise KourouError(f"{directory} cannot be made: {error.strerror or error}") from error
        told = tuple(argument.replace("{run}", str(directory)) for argument in arguments)
        run = Run(run_id, job, source, user, told, directory)
        run.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", CHILD, "spark", job, *told,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=directory, start_new_session=True, limit=MAX_LINE_BYTES,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "160"},
        )  # fmt: skip
        self._runs[run_id] = run
        self._changed(run)
        self._forget_old()
        task = asyncio.get_running_loop().create_task(self._follow(run, run.process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def cancel(self, run: Run) -> None:
        """End a run, and all processes of it."""
        process = run.process
        if process is None or run.state is not State.RUNNING:
            return
        run.state = State.CANCELLED
        self._changed(run)
        _signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()
        _signal(process, signal.SIGKILL)  # what is left of its group

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(self.cancel(run) for run in self._runs.values()))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, run: Run, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(
            self._read(run, process.stdout, is_result=run.job == "sql"),
            self._read(run, process.stderr, is_result=False),
        )
        code = await process.wait()
        run.ended_s = time.time()
        if run.state is State.RUNNING:
            has_faults = run.job == "audit" and code == _ENDED_BY_A_FAULT and run.report.is_file()
            run.state = State.FAULTS if has_faults else State.FAILED if code else State.SUCCEEDED
        run.process = None
        self._changed(run)

    async def _read(self, run: Run, stream: asyncio.StreamReader, *, is_result: bool) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                run.lines.append(f"a line of more than {MAX_LINE_BYTES:,} bytes is left out")
                continue
            if not line:
                return
            self._take(run, line.decode("utf-8", "replace").rstrip("\n"), is_result)

    def _take(self, run: Run, text: str, is_result: bool) -> None:
        if text.startswith(PROGRESS):
            done, _, tasks = text.removeprefix(PROGRESS).partition("/")
            if done.isdecimal() and tasks.isdecimal():
                run.tasks_done, run.tasks = int(done), int(tasks)
        elif is_result and (row := _row(text)) is not None:
            run.row_count += 1
            if len(run.rows) < MAX_ROWS:
                run.rows.append(row)
        else:
            run.lines.append(text)
        self._changed(run)

    def _changed(self, run: Run) -> None:
        run.version += 1
        self.version += 1

    def _forget_old(self) -> None:
        ended = [run for run in self._runs.values() if run.state is not State.RUNNING]
        for run in ended[: max(len(self._runs) - MAX_RUNS, 0)]:
            del self._runs[run.run_id]


def _row(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)

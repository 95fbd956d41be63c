"""A driver of Spark's in a process of its own, with executors and Python workers, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue

import pyspark

START_TIMEOUT_S = 600  # a machine that does other things, too
# A machine that is very busy ends queries, too: Spark gives a Python process ten seconds to start.
_TOO_BUSY = "Python worker failed to connect back"


class Driver:
    """A driver in a process of its own, with what it starts."""

    def __init__(self, program: str, arguments: Sequence[str], directory: Path) -> None:
        """`program` says "running" when it does; its files are below `directory`."""
        tests = Path(__file__).resolve().parent.parent
        self._log = Path(tempfile.mkstemp(".log", "driver-", directory)[1])
        environment = {
            **os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}",
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home(directory)),
        }  # fmt: skip
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip

        assert self.process.stdout is not None
        self._out = self.process.stdout

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_until_it_runs(self) -> None:
        """Raises AssertionError if it ends before, or takes too long."""
        lines: Queue[bytes] = Queue()
        threading.Thread(target=lambda: lines.put(self._out.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=START_TIMEOUT_S)
        except Empty:
            line = b""
        assert line == b"running\n", self.log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-12000:]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def was_too_slow(self) -> bool:
        """Whether it ended since the machine is too busy for Spark."""
        return not self.is_alive and _TOO_BUSY in self._log.read_text(errors="replace")

    def executors(self) -> list[int]:
        return [pid for pid, (_, command) in self._processes().items() if "ExecutorBackend" in command]

    def python_workers(self) -> list[int]:
        """The Python processes of executors: daemons, and the workers that these forked."""
        processes, executors = self._processes(), set(self.executors())
        daemons = [
            pid for pid, (parent, _) in processes.items() if parent in executors and self._is_python(pid)
        ]
        return daemons + [pid for pid, (parent, _) in processes.items() if parent in daemons]

    def _is_python(self, pid: int) -> bool:
        return "daemon" in self._processes().get(pid, (0, ""))[1]

    def _processes(self) -> dict[int, tuple[int, str]]:
        """All processes of this driver's session: pid to parent and command line."""
        found: dict[int, tuple[int, str]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    found[int(path.name)] = int(fields[1]), (path / "cmdline").read_text()
            except (OSError, IndexError):  # it is gone
                continue
        return found

    def kill(self) -> None:
        """Kill everything, as a machine does that goes down."""
        for pid in self._processes():
            kill(pid)
        self.process.wait()
        self._out.close()


def spark_home(directory: Path) -> Path:
    """Spark as it is installed, but for the files of executors, which go to this directory."""
    home = directory / "spark"
    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            (home / path.name).symlink_to(path)
    return home


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True

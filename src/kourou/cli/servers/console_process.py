"""ConsoleProcess: the web console beside the servers of `kourou up`, in a process of its own.

Whatever becomes of it, the servers run: where NiceGUI is not installed, or the port is taken, there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 10.0


class ConsoleProcess:
    """The console of a cluster. `port` is None where none is wanted, and 0 for a free one."""

    def __init__(
        self,
        namesrv: str,
        port: int | None,
        log_file: Path,
        *,
        stores: Sequence[Path] = (),
        jobs: Path | None = None,
    ) -> None:
        self._namesrv = namesrv
        self._port = port
        self._log_file = log_file
        self._places = [part for store in stores for part in ("--store", str(store))]
        if jobs is not None:
            self._places += ["--jobs", str(jobs)]
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None

    def start(self) -> str | None:
        """Start it soon; its address, or why there is none. None where none is wanted."""
        if self._port is None:
            return None
        if find_spec("nicegui") is None:
            return "not installed: pip install 'kourou[console]'"
        port = _free_port(self._port)
        if port is None:
            return f"none: port {self._port} is taken, choose another one with --console-port"
        self._starting = asyncio.get_running_loop().create_task(self._start(port))
        return f"http://{HOST}:{port}/"

    async def _start(self, port: int) -> asyncio.subprocess.Process:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log_file, "ab") as log:
            # In a session of its own: Ctrl-C reaches the parent, which stops it. Its standard input ends with
            # the parent, and it with that, however the parent ends.
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kourou", "console", "--namesrv", self._namesrv, "--host", HOST,
                "--port", str(port), "--while-stdin", *self._places,
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def stop(self) -> None:
        """Stop it, if it runs."""
        if self._starting is None:
            return
        with contextlib.suppress(OSError):
            process = await self._starting
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def _free_port(port: int) -> int | None:
    try:
        with socket.create_server((HOST, port)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        return None

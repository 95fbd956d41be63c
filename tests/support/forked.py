"""Brokers as processes that begin at once: forked from one that has imported everything already."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["kourou.cli.servers.broker", "kourou.broker.server", "support.forked"])


def start_broker(conf: Path) -> ForkServerProcess:
    """`kourou broker -c CONF` in a process of its own; returns when it listens."""
    reader, writer = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_broker, args=(str(conf), writer))
    process.start()
    writer.close()
    with reader:
        said = os.read(reader.fileno(), 4096)
    assert said.startswith(b"listening on "), f"the broker did not start: {said!r}"
    return process


def _broker(conf: str, writer: Connection) -> None:
    from kourou.cli import main

    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stderr.fileno())
    os.dup2(writer.fileno(), sys.stdout.fileno())
    sys.argv = ["kourou", "broker", "-c", conf]
    main()

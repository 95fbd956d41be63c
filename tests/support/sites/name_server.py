"""A name server in a thread of the test's process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kourou.namesrv import NameServer, NameServerConfig
from support.sites.broker import HOST, loop_thread, run_on


@contextmanager
def started(config: NameServerConfig) -> Iterator[tuple[NameServer, asyncio.AbstractEventLoop]]:
    """A name server, and the loop that it runs on; none of its tasks outlives it."""

    async def start() -> NameServer:
        server = NameServer(config)
        await server.start()
        return server

    async def tasks() -> int:
        return len(asyncio.all_tasks()) - 1

    with loop_thread() as loop:
        server = run_on(loop, start())
        try:
            yield server, loop
        finally:
            run_on(loop, server.stop())
            assert run_on(loop, tasks()) == 0


def name_server_config(
    directory: Path, others: Mapping[str, str] | None = None, **values: Any
) -> NameServerConfig:
    """A configuration with its files below a directory, and with keys that Java's does not have."""
    config = NameServerConfig(
        **{
            "bind_address": HOST,
            "listen_port": 0,
            "kv_config_path": str(directory / "kvConfig.json"),
            "config_store_path": str(directory / "namesrv.properties"),
            **values,
        }
    )
    config.others.update(others or {})
    return config


@contextmanager
def name_server(
    directory: Path | None = None, others: Mapping[str, str] | None = None, **values: Any
) -> Iterator[NameServer]:
    """A name server that runs; without a directory its files go with it."""
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield stack.enter_context(started(name_server_config(directory, others, **values)))[0]

"""`kourou namesrv`: a name server in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kourou.namesrv import NameServerConfig


def namesrv(
    config_file: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="A namesrv.conf, with Java's keys."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where to listen, before listenPort of the file (9876); 0: a free port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen on, before bindAddress of the file (0.0.0.0)."),
    ] = None,
) -> None:
    """Run a name server until Ctrl-C or SIGTERM."""
    from kourou.namesrv import NameServerConfig

    config = NameServerConfig() if config_file is None else NameServerConfig.load(config_file)
    if port is not None:
        config.listen_port = port
    if host is not None:
        config.bind_address = host
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    run(_serve(config))


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server's main coroutine, on uvloop where it exists."""
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main)


async def _serve(config: NameServerConfig) -> None:
    from kourou.namesrv import NameServer

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = NameServer(config)
    await server.start()
    typer.echo(f"listening on {config.bind_address}:{server.port}")
    await stop.wait()
    await server.stop()

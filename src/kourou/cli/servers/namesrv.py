"""`kourou namesrv`: a name server in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.servers.serve import (
    MetricsPortOption,
    TlsOption,
    load_tls,
    run,
    set_up_logging,
    settle_memory,
    stop_event,
)

if TYPE_CHECKING:
    from kourou.namesrv import NameServerConfig
    from kourou.remoting.tls import TlsConfig


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
    log_file: Annotated[
        Path | None,
        typer.Option(help="Where to log, one JSON object a line; warnings go to the terminal in any case."),
    ] = None,
    metrics_port: MetricsPortOption = None,
    tls: TlsOption = None,
) -> None:
    """Run a name server until Ctrl-C or SIGTERM."""
    from kourou.namesrv import NameServerConfig

    config = NameServerConfig() if config_file is None else NameServerConfig.load(config_file)
    if port is not None:
        config.listen_port = port
    if host is not None:
        config.bind_address = host
    if metrics_port is not None:
        config.others |= {"metricsExporterType": "PROM", "metricsPromExporterPort": str(metrics_port)}
    set_up_logging(log_file)
    run(_serve(config, load_tls(tls, config.others)))


async def _serve(config: NameServerConfig, tls: TlsConfig) -> None:
    from kourou.namesrv import NameServer

    stop = stop_event()
    server = NameServer(config, tls=tls)
    await server.start()
    settle_memory()
    typer.echo(f"listening on {config.bind_address}:{server.port}")
    if server.metrics is not None:
        typer.echo(f"metrics on http://{server.metrics.address}/metrics")
    await stop.wait()
    await server.stop()

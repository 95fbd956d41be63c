"""`kourou broker`: a broker in the foreground."""

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
    from kourou.broker import BrokerConfig
    from kourou.remoting.tls import TlsConfig


def broker(
    config_file: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="A broker.conf, with Java's keys."),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrv",
            metavar="HOST:PORT",
            help="Name servers, joined by ';', before those of the file.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where to listen, before listenPort of the file (10911); 0: a free port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="The store directory, before storePathRootDir of the file (~/store)."),
    ] = None,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Where to log, one JSON object a line (<store>/logs/broker.log)."),
    ] = None,
    metrics_port: MetricsPortOption = None,
    tls: TlsOption = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM."""
    from kourou.broker import BrokerConfig
    from kourou.properties_file import read_properties_file

    properties = {} if config_file is None else read_properties_file(config_file)
    if config_file is not None:
        properties["brokerConfigPath"] = str(config_file.absolute())
    if namesrv is not None:
        properties["namesrvAddr"] = namesrv
    if port is not None:
        properties["listenPort"] = str(port)
    if store is not None:
        properties["storePathRootDir"] = str(store)
    if metrics_port is not None:
        properties["metricsExporterType"] = "PROM"
        properties["metricsPromExporterPort"] = str(metrics_port)
    config = BrokerConfig.from_properties(properties)
    set_up_logging(log_file or Path(config.store.store_path_root_dir) / "logs" / "broker.log")
    run(_serve(config, load_tls(tls, config.others)))


async def _serve(config: BrokerConfig, tls: TlsConfig) -> None:
    from kourou.broker import Broker

    stop = stop_event()
    server = Broker(config, tls=tls)
    await server.start()
    settle_memory()
    typer.echo(f"listening on {config.bind_address}:{config.listen_port} as {config.address}")
    if server.metrics is not None:
        typer.echo(f"metrics on http://{server.metrics.address}/metrics")
    await stop.wait()
    await server.stop()

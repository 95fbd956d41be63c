"""`kourou proxy`: a gRPC proxy in the foreground."""

from __future__ import annotations

import os
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
from kourou.errors import KourouError

if TYPE_CHECKING:
    from kourou.proxy.config import ProxyConfig
    from kourou.proxy.server import Proxy
    from kourou.remoting.tls import TlsConfig


def proxy(
    config_file: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="An rmq-proxy.json, with Java's keys."),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrv",
            help="The cluster's name servers, before namesrvAddr of the file (127.0.0.1:9876).",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where to listen, before grpcServerPort of the file (8081); 0: a free port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    remoting_port: Annotated[
        int | None,
        typer.Option(
            help="Where to listen for clients that speak remoting, before remotingListenPort of the file"
            " (8080); 0: a free port, -1: nowhere.",
            min=-1,
            max=65535,
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The address to listen on, before bindAddress of the file (0.0.0.0).", show_default=False
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Where to log, one JSON object a line; warnings go to the terminal in any case."),
    ] = None,
    tls: TlsOption = None,
) -> None:
    """Run a proxy before any cluster, until Ctrl-C or SIGTERM: RocketMQ 5's gRPC clients, and clients of
    remoting that cannot reach the brokers.

    Its ports take TLS and plain text. Clients are told the address that they called; advertisedEndpoints in
    the file (host:port, several joined by ';') tells those of gRPC another, remotingAccessAddr the others.
    """
    from kourou.remoting.metrics import MetricsExporterType

    proxy_config, _ = import_proxy()
    config = proxy_config() if config_file is None else proxy_config.load(config_file)
    config.namesrv_addr = namesrv or config.namesrv_addr or "127.0.0.1:9876"
    if port is not None:
        config.grpc_server_port = port
    if remoting_port is not None:
        config.remoting_listen_port = remoting_port
    if host is not None:
        config.bind_address = host
    if metrics_port is not None:
        config.metrics_exporter_type = MetricsExporterType.PROM
        config.metrics_prom_exporter_port = metrics_port
    set_up_logging(log_file)
    run(_serve(config, load_tls(tls, config.others)))


def import_proxy() -> tuple[type[ProxyConfig], type[Proxy]]:
    """The classes of the proxy. Raises KourouError without the extra."""
    # Children are started by exec alone; gRPC would write about each fork on standard error.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    try:
        from kourou.proxy.config import ProxyConfig
        from kourou.proxy.server import Proxy
    except ImportError as error:
        raise KourouError(f"the proxy needs gRPC: pip install 'kourou[proxy]' ({error})") from None
    return ProxyConfig, Proxy


async def _serve(config: ProxyConfig, tls: TlsConfig) -> None:
    _, proxy_class = import_proxy()
    stop = stop_event()
    server = proxy_class(config, tls=tls)
    try:
        await server.start()
    except OSError as error:
        raise KourouError(
            f"the proxy cannot listen: {error.strerror or error}; --port and --metrics-port take other ports"
        ) from error
    settle_memory()
    typer.echo(f"listening on {config.bind_address}:{server.port}")
    if config.remoting_listen_port >= 0:
        typer.echo(f"for remoting on {config.bind_address}:{server.relay.port}")
    if server.metrics is not None:
        typer.echo(f"metrics on http://{server.metrics.address}/metrics")
    typer.echo(f"before the cluster at {config.namesrv_addr}")
    await stop.wait()
    await server.stop()

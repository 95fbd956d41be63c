"""`kourou up`: a name server, brokers and a data directory with one command."""

from __future__ import annotations

import contextlib
import difflib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.run import pairs
from kourou.cli.servers.console_process import ConsoleProcess
from kourou.cli.servers.proxy import import_proxy
from kourou.cli.servers.serve import load_tls, run, set_up_logging, settle_memory, stop_event
from kourou.errors import KourouError
from kourou.properties_file import parse_properties

if TYPE_CHECKING:
    import asyncio

    from kourou.namesrv import NameServer
    from kourou.proxy.server import Proxy

MAX_PORT = 65535
PORT_STEP = 10  # between the ports of brokers, each of which takes three
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
REGISTER_TIMEOUT_S, REGISTER_STEP_S = 10.0, 0.02

# Keys that follow from the options, for each broker others
_OWN_KEYS = {
    "brokerName": "brokers are broker-0, broker-1, …",
    "brokerId": "slaves come with --slaves",
    "brokerIP1": "give --host",
    "brokerIP2": "give --host",
    "bindAddress": "give --host",
    "listenPort": "give --broker-port",
    "haListenPort": "it is one more than --broker-port",
    "namesrvAddr": "the name server is that of `up`, at --port",
    "storePathRootDir": "give --dir",
}


# What the documentation shows, and a new broker has not. `--set` has the last word.
DEFAULTS = {"enablePropertyFilter": "true", "recallMessageEnable": "true"}

_CLUSTER = "The cluster"
_PLACES = "Addresses and ports"
_CONSOLE = "The web console"
_PROXY = "The gRPC proxy"


def up(
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", "-d", help="Where everything is kept, between runs too.", rich_help_panel=_CLUSTER
        ),
    ] = Path("kourou-data"),
    brokers: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="How many brokers; several run as processes of their own.",
            rich_help_panel=_CLUSTER,
        ),
    ] = 1,
    slaves: Annotated[
        int,
        typer.Option(
            min=0,
            max=8,
            help="How many slaves each broker has, with a copy of its messages on their own.",
            rich_help_panel=_CLUSTER,
        ),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key of broker.conf, for all brokers; again for more.",
            show_default=False,
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on and to tell clients. The default is for this machine alone; for"
            " others, give one that they can reach.",
            rich_help_panel=_PLACES,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="The name server's port; 0: a free port.", rich_help_panel=_PLACES
        ),
    ] = 9876,
    broker_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="The first broker's port; 0: free ports.", rich_help_panel=_PLACES
        ),
    ] = 10911,
    console: Annotated[
        bool,
        typer.Option(
            "--console/--no-console",
            help="Serve the web console too, if it is installed.",
            rich_help_panel=_CONSOLE,
        ),
    ] = True,
    console_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="The port of the console, on 127.0.0.1; 0: a free port.",
            rich_help_panel=_CONSOLE,
        ),
    ] = 8088,
    proxy: Annotated[
        bool,
        typer.Option(
            "--proxy/--no-proxy",
            help="Serve RocketMQ 5's gRPC clients too, if gRPC is installed.",
            rich_help_panel=_PROXY,
        ),
    ] = True,
    proxy_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port of the proxy; 0: a free port.", rich_help_panel=_PROXY),
    ] = 8081,
) -> None:
    """Run a whole RocketMQ on this machine, until Ctrl-C or SIGTERM.

    Clients of any language find it at the name server's address. Topics are made when they are first sent to;
    SQL filters and the recall of timer messages are on. The console may look into the stores of all brokers,
    and run Spark jobs that write to DIR/jobs.

    \b
    Examples: in ./kourou-data; two brokers with a slave each; other limits; for a container or other machines
      kourou up
      kourou up --brokers 2 --slaves 1 --dir /data/mq
      kourou up --set maxMessageSize=8388608 --set autoCreateTopicEnable=false
      kourou up --host 192.0.2.7 --no-console
    """
    last_port = broker_port + (brokers * (slaves + 1) - 1) * PORT_STEP
    if broker_port and last_port > MAX_PORT:
        raise KourouError(f"--broker-port {broker_port}: the last broker would listen on port {last_port}")
    more = {**DEFAULTS, **_check_settings(pairs(settings or []))}
    directory = directory.absolute()
    set_up_logging(directory / "logs" / "kourou.log")
    run(
        _up(
            directory, brokers, slaves, host, port, broker_port, console_port if console else None,
            proxy_port if proxy else None, more,
        )
    )  # fmt: skip


def _check_settings(settings: dict[str, str]) -> dict[str, str]:
    """What --set gives. Raises where it is a key that `up` decides, or that no broker has."""
    if not settings:
        return settings
    from kourou.auth.config import KEYS as AUTH_KEYS
    from kourou.broker import BrokerConfig

    for key in settings.keys() & _OWN_KEYS.keys():
        raise KourouError(f"--set {key}: {_OWN_KEYS[key]}")
    config = BrokerConfig.from_properties(settings)
    known = parse_properties(config.to_text()).keys() - config.others.keys() | AUTH_KEYS
    for key in config.others.keys() - known:
        near = difflib.get_close_matches(key, known, 1)
        raise KourouError(f"--set {key}: no broker has this key{f'; is it {near[0]}?' if near else ''}")
    return settings


async def _up(
    directory: Path,
    brokers: int,
    slaves: int,
    host: str,
    port: int,
    broker_port: int,
    console_port: int | None,
    proxy_port: int | None,
    settings: dict[str, str],
) -> None:
    from kourou.namesrv import NameServer, NameServerConfig

    started = time.monotonic()
    stop = stop_event()
    name_server = NameServer(
        NameServerConfig(
            bind_address=host,
            listen_port=port,
            kv_config_path=str(directory / "namesrv" / "kvConfig.json"),
            config_store_path=str(directory / "namesrv" / "namesrv.properties"),
        ),
        tls=load_tls(None, {}),
    )
    try:
        await name_server.start()
    except OSError as error:
        raise KourouError(
            f"port {port} of {host} cannot be used: {error.strerror or error}; is there another one running?"
            " Take another one with --port"
        ) from error
    namesrv = f"{host}:{name_server.port}"
    properties = [
        settings | _properties(directory, number, broker_id, brokers, host, broker_port, namesrv)
        for broker_id in range(slaves + 1)
        for number in range(brokers)
    ]
    console = ConsoleProcess(
        namesrv,
        console_port,
        directory / "logs" / "console.log",
        stores=[Path(values["storePathRootDir"]) for values in properties],
        jobs=directory / "jobs",
    )
    proxy = await _start_proxy(namesrv, host, proxy_port, settings) if proxy_port is not None else None
    try:
        announce = _Announcement(
            started, directory, namesrv, console, f"{host}:{proxy.port}" if proxy else None
        )
        if len(properties) == 1:
            await _serve_here(properties, stop, announce)
        else:
            await _serve_processes(properties, stop, announce, name_server)
    finally:
        await console.stop()
        if proxy is not None:
            await proxy.stop()
        await name_server.stop()


async def _start_proxy(namesrv: str, host: str, port: int, settings: dict[str, str]) -> Proxy | None:
    """The proxy, with the access control of the brokers; None where gRPC is not installed, or its port is
    taken."""
    from kourou.auth.config import KEYS as AUTH_KEYS

    try:
        proxy_config, proxy_class = import_proxy()
    except KourouError:
        return None
    auth = {key: value for key, value in settings.items() if key in AUTH_KEYS}
    # Who speaks remoting has the name server.
    config = proxy_config(
        namesrv_addr=namesrv, bind_address=host, grpc_server_port=port, remoting_listen_port=-1, others=auth
    )
    proxy = proxy_class(config)
    try:
        await proxy.start()
    except OSError as error:
        typer.echo(f"There is no gRPC proxy: {error.strerror or error}; --proxy-port takes another port.")
        return None
    return proxy


def _properties(
    directory: Path, number: int, broker_id: int, brokers: int, host: str, broker_port: int, namesrv: str
) -> dict[str, str]:
    """The broker.conf of a master, of id 0, or of one of its slaves.

    Slaves have the ports behind those of all masters, so that a master has the same with and without them.
    """
    place = broker_id * brokers + number
    name = f"broker-{number}"
    found = {
        "brokerName": name,
        "brokerIP1": host,
        "brokerIP2": host,
        "bindAddress": host,
        "listenPort": str(broker_port + place * PORT_STEP if broker_port else 0),
        "haListenPort": str(broker_port + place * PORT_STEP + 1 if broker_port else 0),
        "namesrvAddr": namesrv,
        "storePathRootDir": str(directory / name),
    }
    if broker_id:
        found |= {
            "brokerRole": "SLAVE",
            "brokerId": str(broker_id),
            "storePathRootDir": str(directory / f"{name}-slave-{broker_id}"),
        }
    return found


class _Announcement:
    """What is printed once everything is up; the console, which is not waited for, starts then."""

    def __init__(
        self, started: float, directory: Path, namesrv: str, console: ConsoleProcess, proxy: str | None
    ) -> None:
        self._started = started
        self._directory = directory
        self._namesrv = namesrv
        self._console = console
        self._proxy = proxy

    def __call__(self, addresses: list[str], slaves: list[str]) -> None:
        elapsed = time.monotonic() - self._started
        typer.echo(f"RocketMQ is up, after {elapsed:.1f} s.\n")
        typer.echo(f"  name server  {self._namesrv}")
        for address in addresses:
            typer.echo(f"  broker       {address}")
        for address in slaves:
            typer.echo(f"  slave        {address}")
        if self._proxy:
            typer.echo(f"  proxy        {self._proxy}")
        console = self._console.start()
        if console:
            typer.echo(f"  console      {console}")
        typer.echo(f"  data         {self._directory}\n")
        typer.echo(f"Clients of any language: name server address {self._namesrv}.")
        if self._proxy:
            typer.echo(f"RocketMQ 5's gRPC clients: endpoints {self._proxy}.")
        typer.echo(f"What is in the store:    kourou store info {self._directory}/broker-0")
        typer.echo("Ctrl-C stops it; what was sent is there again next time.")


async def _serve_here(properties: list[dict[str, str]], stop: asyncio.Event, announce: _Announcement) -> None:
    """One broker, in this process."""
    from kourou.broker import Broker, BrokerConfig

    broker = Broker(BrokerConfig.from_properties(properties[0]), tls=load_tls(None, {}))
    try:
        await broker.start()
    except OSError as error:
        wanted = properties[0]["listenPort"]
        raise KourouError(
            f"port {wanted} cannot be used: {error.strerror or error}; take another one with --broker-port"
        ) from error
    await broker.registrar.register_all()
    settle_memory()
    announce([broker.config.address], [])
    await stop.wait()
    await broker.stop()


async def _serve_processes(
    properties: list[dict[str, str]], stop: asyncio.Event, announce: _Announcement, name_server: NameServer
) -> None:
    """Several brokers, each in a process; one that ends by itself ends all, with its number."""
    import asyncio

    processes: list[asyncio.subprocess.Process] = []
    try:
        for values in properties:
            processes.append(await _start_broker(values))
        addresses = await asyncio.gather(*map(_address_of, processes, properties))
        # They listen before they are registered, and topics are made at brokers that the name server knows.
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        while name_server.routes.sizes()["addresses"] < len(processes) and time.monotonic() < deadline:
            await asyncio.sleep(REGISTER_STEP_S)
        is_slave = ["brokerId" in values for values in properties]
        announce(
            [address for address, slave in zip(addresses, is_slave) if not slave],
            [address for address, slave in zip(addresses, is_slave) if slave],
        )
        waits = [asyncio.ensure_future(process.wait()) for process in processes]
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([*waits, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        failed = [number for number, wait in enumerate(waits) if wait.done()]
        if failed and not stop.is_set():
            name = Path(properties[failed[0]]["storePathRootDir"]).name
            raise KourouError(f"{name} ended with status {waits[failed[0]].result()}: see its log")
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()


async def _start_broker(properties: dict[str, str]) -> asyncio.subprocess.Process:
    import asyncio

    root = Path(properties["storePathRootDir"])
    root.mkdir(parents=True, exist_ok=True)
    conf = root / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
    # In a session of its own: Ctrl-C reaches this process, which stops the others in order.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kourou", "broker", "-c", str(conf),
        stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


async def _address_of(process: asyncio.subprocess.Process, properties: dict[str, str]) -> str:
    """Where a broker can be reached, once it can."""
    import asyncio

    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), READY_TIMEOUT_S)
    if not line:
        log_file = Path(properties["storePathRootDir"]) / "logs" / "broker.log"
        raise KourouError(f"{properties['brokerName']} did not start: see {log_file}")
    return line.decode().split()[-1]

"""`kourou admin cluster`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kourou.cli.admin.run import DEFAULT_NAMESRV, AsJson, Cluster, Namesrv, run
from kourou.cli.output import show

app = typer.Typer(name="cluster", no_args_is_help=True, help="Clusters: their brokers, and what they do.")


@app.command("list")
def list_(cluster: Cluster = None, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """List all brokers, masters and slaves, and how they do. Exit code 1 if one does not answer."""
    found = run(namesrv, lambda admin: admin.clusters.states(cluster))
    columns: dict[str, Any] = {
        "cluster": "cluster",
        "broker": "broker_name",
        ">id": "broker_id",
        "address": "address",
        "version": "version",
        ">in/s": "in_tps",
        ">out/s": "out_tps",
        ">disk": lambda one: f"{one.disk_ratio:.1%}",
        "active": lambda one: one.error or ("yes" if one.is_active else "no"),
    }
    show(found, columns, as_json=json)
    if any(one.error for one in found):
        raise typer.Exit(1)


@app.command()
def stats(
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", metavar="TOPIC", help="Only this topic.", show_default=False),
    ] = None,
    active: Annotated[bool, typer.Option("--active", help="Only where something came or went.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show what comes into topics, and out to groups."""
    columns: dict[str, Any] = {
        "topic": "topic",
        "group": "group",
        ">waiting": "accumulation",
        ">in/s": "in_tps",
        ">out/s": "out_tps",
        ">in of a day": "in_24h",
        ">out of a day": "out_24h",
    }
    show(run(namesrv, lambda admin: admin.clusters.traffic(topic, only_active=active)), columns, as_json=json)


@app.command("round-trip")
def round_trip(
    cluster: Cluster = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Messages for each broker.")] = 100,
    size: Annotated[int, typer.Option("--size", min=1, help="Bytes of a message.")] = 128,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Send messages to each broker, and show how long that takes. Exit code 1 if one was not sent."""
    found = run(namesrv, lambda admin: admin.clusters.round_trips(cluster, count=count, size_bytes=size))
    columns: dict[str, Any] = {
        "cluster": "cluster",
        "broker": "broker_name",
        ">ms": "average_ms",
        ">sent": "successes",
        ">failed": "failures",
    }
    show(found, columns, as_json=json)
    if any(one.failures for one in found):
        raise typer.Exit(1)

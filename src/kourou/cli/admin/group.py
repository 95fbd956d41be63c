"""`kourou admin group` and `kourou admin producer`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    Broker,
    BrokerArgument,
    Cluster,
    GroupArgument,
    Namesrv,
    Yes,
    confirm,
    group_exists,
    pairs,
    run,
    said,
)
from kourou.cli.output import echo, print_json, print_json_lines, print_table, show, show_time

app = typer.Typer(name="group", no_args_is_help=True, help="Consumer groups: how far they are, who is there.")
producer_app = typer.Typer(name="producer", no_args_is_help=True, help="Producers: who sends.")

TopicOption = Annotated[
    str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="Only this topic.", show_default=False)
]
_CLIENTS: dict[str, Any] = {
    "client": "client_id",
    "address": "address",
    "language": "language",
    "version": "version",
}


@app.command("list")
def list_(
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    everything: Annotated[bool, typer.Option("--all", help="Also the groups of brokers and tools.")] = False,
    json: AsJson = False,
) -> None:
    """List groups."""
    names = run(namesrv, lambda admin: admin.groups.names(cluster, with_system=everything))
    if json:
        print_json_lines({"group": name} for name in names)
    elif names:
        echo(*names)


@app.command()
def create(
    group: GroupArgument,
    retry_times: Annotated[
        int, typer.Option(min=-1, help="How often a message comes again before it lies dead.")
    ] = 16,
    retry_queues: Annotated[int, typer.Option(min=0, help="Queues of the retry topic.")] = 1,
    enable: Annotated[bool, typer.Option("--enable/--disable", help="Whether it may consume.")] = True,
    broadcast: Annotated[
        bool, typer.Option("--broadcast/--no-broadcast", help="Whether each client may have all messages.")
    ] = True,
    from_min: Annotated[
        bool, typer.Option("--from-min/--no-from-min", help="Whether it may begin at the oldest message.")
    ] = True,
    orderly: Annotated[bool, typer.Option("--orderly", help="It consumes in order.")] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A field of SubscriptionGroupConfig, such as brokerId=1; again for more.",
            show_default=False,
        ),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Make a group, or change it: on all masters, those of a cluster, or one broker."""
    settings: dict[str, Any] = {
        "consumeEnable": enable,
        "consumeFromMinEnable": from_min,
        "consumeBroadcastEnable": broadcast,
        "consumeMessageOrderly": orderly,
        "retryMaxTimes": retry_times,
        "retryQueueNums": retry_queues,
        **pairs(setting or []),
    }
    addresses = run(
        namesrv, lambda admin: admin.groups.create(group, settings, broker=broker, cluster=cluster)
    )
    said(f"{group} is on {', '.join(addresses)}")


@app.command()
def delete(
    group: GroupArgument,
    clean_offset: Annotated[bool, typer.Option("--offsets", help="Delete its offsets too.")] = False,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Delete a group; from a whole cluster with its retry and dead-letter topics."""
    confirm(f"Delete group {group}{' and its offsets' if clean_offset else ''}?", yes)
    addresses = run(
        namesrv,
        lambda admin: admin.groups.delete(group, broker=broker, cluster=cluster, clean_offset=clean_offset),
        check=group_exists(group),
    )
    said(f"{group} is deleted from {', '.join(addresses)}")


@app.command()
def config(group: GroupArgument, namesrv: Namesrv = DEFAULT_NAMESRV) -> None:
    """Show how a group is set at each broker, as JSON."""
    from kourou.admin import AdminError

    found = run(namesrv, lambda admin: admin.groups.config(group))
    if not found:
        raise AdminError(f"no broker has group {group}: make it with `kourou admin group create {group}`")
    print_json(found)


@app.command()
def progress(
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="One group; else all.", show_default=False)
    ] = None,
    topic: TopicOption = None,
    clients: Annotated[bool, typer.Option("--clients", help="Also who reads each queue.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show how many messages wait: of one group queue by queue, or of all groups.

    \b
    Example: who is behind?
      kourou admin group progress
    """
    if group is None:
        columns: dict[str, Any] = {
            "group": "group",
            ">clients": "clients",
            "version": "version",
            "type": "consume_type",
            "model": "message_model",
            ">messages/s": "tps",
            ">lag": "lag",
        }
        show(run(namesrv, lambda admin: admin.groups.summaries()), columns, as_json=json)
        return
    found = run(
        namesrv,
        lambda admin: admin.groups.progress(group, topic, with_clients=clients),
        check=group_exists(group),
    )
    columns = {
        "topic": "topic",
        "broker": "broker_name",
        ">queue": "queue_id",
        ">end": "broker_offset",
        ">consumed": "consumer_offset",
        ">lag": "lag",
        ">in flight": "in_flight",
        "last consumed": "last_consumed_ms",
    }
    if clients:
        columns["client"] = "client_ip"
    title = f"{group}: {found.lag} messages wait, {found.in_flight} in flight, {found.tps:.2f} messages/s"
    show(found.queues, columns, as_json=json, title=title)


@app.command()
def connections(
    group: GroupArgument, broker: Broker = None, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False
) -> None:
    """Show the clients of a group, and what they subscribe to."""
    from kourou.cli.output import as_plain

    found = run(
        namesrv, lambda admin: admin.groups.connections(group, broker=broker), check=group_exists(group)
    )
    if json:
        print_json(as_plain(found))
        return
    title = f"{group}: {found.consume_type}, {found.message_model}, {found.consume_from_where}"
    show(found.clients, _CLIENTS, as_json=False, title=title)
    print_table(
        ("topic", "expression", "type"),
        ((one.topic, one.expression, one.expression_type) for one in found.subscriptions),
    )


@app.command()
def status(
    group: GroupArgument,
    client: Annotated[
        str | None, typer.Option("-i", "--client", metavar="ID", help="Only this client.", show_default=False)
    ] = None,
    stack: Annotated[bool, typer.Option("--stack", help="Also what its threads do.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show what the clients of a group do now: queues, cached messages, speed."""
    from kourou.admin import Admin
    from kourou.message.model import MessageQueue

    async def work(admin: Admin) -> dict[str, dict[str, Any]]:
        if client is None:
            return await admin.groups.status(group, with_stack=stack)
        return {client: await admin.groups.running_info(group, client, with_stack=stack)}

    found = run(namesrv, work, check=group_exists(group))
    if json:
        print_json(found)
        return
    rows = []
    for client_id, info in found.items():
        for key, queue in sorted((info.get("mqTable") or {}).items()):
            name = MessageQueue.from_json(key)
            last = show_time(int(queue.get("lastConsumeTimestamp") or 0))
            row = client_id, *name, queue.get("commitOffset"), queue.get("cachedMsgCount"), last
            rows.append(row)
    print_table(("client", "topic", "broker", ">queue", ">consumed", ">cached", "last consumed"), rows)
    for client_id, info in found.items():
        if info.get("jstack"):
            echo(client_id, *str(info["jstack"]).expandtabs().splitlines())


@app.command()
def mode(
    group: GroupArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    how: Annotated[str, typer.Argument(metavar="PULL|POP", help="How clients take messages.")],
    pop_queues: Annotated[int, typer.Option(min=0, help="Queues that clients share with POP.")] = 0,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Change how the clients of a group take the messages of a topic."""
    if how.upper() not in ("PULL", "POP"):
        raise typer.BadParameter(f"{how!r} is no mode: say PULL or POP")
    addresses = run(
        namesrv,
        lambda admin: admin.groups.set_consume_mode(
            topic, group, how.upper(), pop_share_queues=pop_queues, broker=broker, cluster=cluster
        ),
        check=group_exists(group),
    )
    said(f"{group} takes {topic} with {how.upper()} at {', '.join(addresses)}")


# Producers


@producer_app.command("list")
def list_producers(broker: BrokerArgument, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """Show all producers that are connected to a broker."""
    found = run(namesrv, lambda admin: admin.producers.at_broker(broker))
    rows = [{"group": group, **client} for group, clients in found.items() for client in clients]
    if json:
        print_json_lines(rows)
        return
    names = ("group", "clientId", "remoteIP", "language", "versionDesc", "lastUpdateTimestamp")
    print_table(
        ("group", "client", "address", "language", "version", "last seen"),
        ([*(one.get(name) for name in names[:-1]), show_time(one[names[-1]])] for one in rows),
    )


@producer_app.command("connections")
def producer_connections(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The producer group.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic that it sends to.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show the clients of a producer group."""
    show(run(namesrv, lambda admin: admin.producers.connections(group, topic)), _CLIENTS, as_json=json)

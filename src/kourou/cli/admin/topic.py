"""`kourou admin topic`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    Broker,
    Cluster,
    Namesrv,
    TopicArgument,
    Yes,
    confirm,
    run,
    said,
    topic_exists,
)
from kourou.cli.output import as_plain, echo, print_json, print_json_lines, print_table, show

app = typer.Typer(name="topic", no_args_is_help=True, help="Topics: where they are, what is in them.")

PERMS = {"r": 4, "w": 2, "rw": 6, "wr": 6, "none": 0, "0": 0, "2": 2, "4": 4, "6": 6}


def show_perm(perm: int) -> str:
    """RW, R- or -W, as Java writes it."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


def _perm(text: str) -> int:
    if text.lower() not in PERMS:
        raise typer.BadParameter(f"{text!r} is no permission: say r, w, rw or none")
    return PERMS[text.lower()]


@app.command("list")
def list_(
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    everything: Annotated[
        bool, typer.Option("--all", help="Also retry, dead-letter and system topics.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List topics."""
    from kourou.admin import Admin

    async def work(admin: Admin) -> list[str]:
        if everything:
            return await admin.topics.names(cluster)
        found: set[str] = set()
        for address in await admin.link.masters(cluster):
            found |= (await admin.topics.user_configs(address)).keys()
        return sorted(found)

    names = run(namesrv, work)
    if json:
        print_json_lines({"topic": name} for name in names)
    else:
        echo(*names)


@app.command()
def route(topic: TopicArgument, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """Show on which brokers a topic is."""
    found = run(namesrv, lambda admin: admin.topics.route(topic))
    columns: dict[str, Any] = {
        "cluster": "cluster",
        "broker": "broker_name",
        "addresses": lambda one: ", ".join(f"{number}: {text}" for number, text in one.addresses.items()),
        ">read queues": "read_queue_nums",
        ">write queues": "write_queue_nums",
        "perm": lambda one: show_perm(one.perm),
    }
    show(found, columns, as_json=json)


@app.command()
def status(topic: TopicArgument, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """Show the offsets of a topic's queues."""
    found = run(namesrv, lambda admin: admin.topics.status(topic))
    columns: dict[str, Any] = {
        "broker": "broker_name",
        ">queue": "queue_id",
        ">first": "min_offset",
        ">end": "max_offset",
        ">messages": lambda one: one.max_offset - one.min_offset,
        "last message": "last_update_ms",
    }
    show(found.queues, columns, as_json=json, title=f"{topic}: {found.put_tps:.2f} messages/s come in")


@app.command()
def config(topic: TopicArgument, namesrv: Namesrv = DEFAULT_NAMESRV) -> None:
    """Show how a topic is set at each broker, as JSON."""
    print_json(as_plain(run(namesrv, lambda admin: admin.topics.config(topic))))


@app.command()
def create(
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("-q", "--queues", min=0, help="Queues on each broker.")] = 8,
    read_queues: Annotated[
        int | None, typer.Option(min=0, help="Queues to read, if other.", show_default=False)
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=0, help="Queues to write, if other.", show_default=False)
    ] = None,
    perm: Annotated[str, typer.Option(help="r, w, rw or none.")] = "rw",
    order: Annotated[bool, typer.Option("--order", help="Keep order even when a broker is gone.")] = False,
    attributes: Annotated[
        str | None,
        typer.Option(metavar="CHANGES", help="Such as +message.type=FIFO,-old.", show_default=False),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Make a topic, or change it: on all masters, those of a cluster, or one broker.

    \b
    Example: a topic whose messages keep their order
      kourou admin topic create orders -q 4 --attributes +message.type=FIFO
    """
    number = _perm(perm)
    addresses = run(
        namesrv,
        lambda admin: admin.topics.create(
            topic,
            broker=broker,
            cluster=cluster,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            perm=number,
            order=order,
            attributes=attributes,
        ),
    )
    said(f"{topic} is on {', '.join(addresses)}")


@app.command()
def delete(
    topic: TopicArgument,
    cluster: Annotated[str, typer.Option("-c", "--cluster", metavar="NAME", help="The cluster.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Delete a topic with its queues and offsets from a cluster."""
    confirm(f"Delete topic {topic} and its messages from {cluster}?", yes)
    addresses = run(
        namesrv, lambda admin: admin.topics.delete(topic, cluster=cluster), check=topic_exists(topic)
    )
    said(f"{topic} is deleted from {', '.join(addresses)} and from the name servers")


@app.command("perm")
def set_perm(
    topic: TopicArgument,
    perm: Annotated[str, typer.Argument(metavar="PERM", help="r, w, rw or none.")],
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Change whether a topic can be read and written."""
    number = _perm(perm)
    changes = run(
        namesrv, lambda admin: admin.topics.set_permission(topic, number, broker=broker, cluster=cluster)
    )
    columns: dict[str, Any] = {
        "broker": "address",
        "before": lambda one: show_perm(one.old_perm),
        "now": lambda one: show_perm(one.new_perm),
    }
    show(changes, columns, as_json=json)


@app.command()
def clusters(topic: TopicArgument, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """List the clusters that have a topic."""
    found = run(namesrv, lambda admin: admin.topics.clusters(topic))
    if json:
        print_json_lines({"cluster": name} for name in found)
    else:
        echo(*found)


@app.command()
def groups(topic: TopicArgument, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """List the groups that consume a topic, or did."""
    found = run(namesrv, lambda admin: admin.topics.groups(topic))
    if json:
        print_json_lines({"group": name} for name in found)
    elif found:
        echo(*found)


@app.command()
def allocate(
    topic: TopicArgument,
    clients: Annotated[list[str], typer.Argument(metavar="CLIENT…", help="Ids of clients.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show which queues each of some clients would read."""
    found = run(namesrv, lambda admin: admin.topics.allocate(topic, clients))
    if json:
        print_json(as_plain(found))
        return
    rows = [(client, queue.broker_name, queue.queue_id) for client, own in found.items() for queue in own]
    print_table(("client", "broker", ">queue"), rows)


@app.command()
def order(
    topic: TopicArgument,
    value: Annotated[
        str | None,
        typer.Argument(metavar="[BROKER:QUEUES;…]", help="Set it to this.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget it.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Show, set or remove what the name servers know of the queues of a topic in order."""
    from kourou.admin import Admin
    from kourou.admin.name_servers import ORDER_TOPIC_CONFIG

    async def work(admin: Admin) -> str:
        if remove:
            await admin.name_servers.get_kv(ORDER_TOPIC_CONFIG, topic)  # raises where there is none
            await admin.name_servers.delete_kv(ORDER_TOPIC_CONFIG, topic)
            return ""
        if value is not None:
            await admin.name_servers.put_kv(ORDER_TOPIC_CONFIG, topic, value)
        return await admin.name_servers.get_kv(ORDER_TOPIC_CONFIG, topic)

    found = run(namesrv, work)
    if found:
        echo(found)

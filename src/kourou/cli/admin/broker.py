"""`kourou admin broker` and `kourou admin ha`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    Broker,
    BrokerArgument,
    Cluster,
    Namesrv,
    Yes,
    confirm,
    pairs,
    run,
    said,
)
from kourou.cli.output import echo, print_json, print_json_lines, print_table, show_time

app = typer.Typer(name="broker", no_args_is_help=True, help="Single brokers: figures, configuration.")
ha_app = typer.Typer(name="ha", no_args_is_help=True, help="Replication.")


@app.command()
def status(
    broker: BrokerArgument,
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Only this figure.", show_default=False)
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the figures of a broker and its store."""
    found = run(namesrv, lambda admin: admin.brokers.runtime(broker))
    _print_keys({name: value for name, value in found.items() if key in (None, name)}, key, json)


@app.command()
def config(
    broker: BrokerArgument,
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Only this key.", show_default=False)
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the configuration of a broker."""
    found = run(namesrv, lambda admin: admin.brokers.config(broker))
    _print_keys({name: value for name, value in sorted(found.items()) if key in (None, name)}, key, json)


def _print_keys(found: dict[str, str], key: str | None, json: bool) -> None:
    from kourou.admin import AdminError

    if key is not None and not found:
        raise AdminError(f"there is no {key}: leave the key out to see all of them")
    if json:
        print_json(found)
    elif key is not None:
        echo(found[key])
    else:
        print_table(("key", "value"), found.items())


@app.command("set")
def set_(
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="What to change.")],
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Change the configuration of a broker, or of all masters; it counts at once and after a restart.

    \b
    Example: keep messages for two days
      kourou admin broker set fileReservedTime=48 -b broker-a
    """
    wanted = pairs(changes)
    addresses = run(namesrv, lambda admin: admin.brokers.set_config(wanted, broker=broker, cluster=cluster))
    said(f"changed at {', '.join(addresses)}")


@app.command("consume-stats")
def consume_stats(
    broker: BrokerArgument,
    at_least: Annotated[int, typer.Option(min=0, help="Only queues so many messages behind.")] = 0,
    only_ordered: Annotated[bool, typer.Option("--ordered", help="Only topics in order.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show how far all groups are in all queues of a broker."""
    from kourou.admin.brokers import lagging

    found = run(namesrv, lambda admin: admin.brokers.consume_stats(broker, only_ordered=only_ordered))
    rows = lagging(found, at_least)
    if json:
        print_json_lines(
            {
                "group": group, "topic": queue.topic, "brokerName": queue.broker_name,
                "queueId": queue.queue_id, "brokerOffset": queue.broker_offset,
                "consumerOffset": queue.consumer_offset, "lag": queue.lag,
                "lastConsumedTimestamp": queue.last_consumed_ms,
            }
            for group, queue in rows
        )  # fmt: skip
        return
    print_table(
        ("group", "topic", ">queue", ">end", ">consumed", ">lag", "last consumed"),
        (
            (
                group, queue.topic, queue.queue_id, queue.broker_offset, queue.consumer_offset, queue.lag,
                show_time(queue.last_consumed_ms),
            )
            for group, queue in rows
        ),
    )  # fmt: skip


@app.command()
def clean(
    what: Annotated[
        str,
        typer.Argument(
            metavar="queues|topics|log",
            help="Queues without messages, queues of topics that are no more, or log files past their time.",
        ),
    ],
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Have brokers remove what nobody needs any more, now."""
    if what not in ("queues", "topics", "log"):
        raise typer.BadParameter(f"{what!r} cannot be cleaned: say queues, topics or log")
    confirm(f"Remove {what} that have expired or are unused?", yes)
    addresses = run(namesrv, lambda admin: admin.brokers.clean(what, broker=broker, cluster=cluster))
    said(f"{', '.join(addresses)} cleaned {what}")


@ha_app.command("status")
def ha_status(
    broker: Annotated[
        str | None,
        typer.Argument(metavar="[BROKER]", help="One broker; else all masters.", show_default=False),
    ] = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show how far slaves are behind their masters."""
    from kourou.admin import Admin

    async def work(admin: Admin) -> dict[str, dict[str, Any]]:
        addresses = await admin.link.targets(cluster, broker)
        return {address: await admin.brokers.ha_status(address) for address in addresses}

    found = run(namesrv, work)
    if json:
        print_json_lines({"address": address, **status} for address, status in found.items())
        return
    for address, status in found.items():
        if status.get("master"):
            title = (
                f"{address}: master, its log ends at {status['masterCommitLogMaxOffset']},"
                f" {status['inSyncSlaveNums']} slaves in sync"
            )
            echo(title)
            print_table(
                ("slave", ">has", ">behind", ">bytes/s", "in sync"),
                (
                    (
                        slave["addr"], slave["slaveAckOffset"], slave["diff"],
                        slave["transferredByteInSecond"], slave["inSync"],
                    )
                    for slave in status.get("haConnectionInfo") or ()
                ),
            )  # fmt: skip
        else:
            client = status.get("haClientRuntimeInfo") or {}
            print_table(
                ("field", "value"),
                sorted(client.items()),
                title=f"{address}: slave of {client.get('masterAddr')}",
            )


@ha_app.command("reset-master-flush")
def reset_master_flush(
    broker: BrokerArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="How far the master's disk is.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Tell a slave how far its master's disk is."""
    confirm(f"Tell {broker} that its master's disk is at {offset}?", yes)
    run(namesrv, lambda admin: admin.brokers.reset_master_flush_offset(broker, offset))
    said(f"{broker} takes its master's disk to be at {offset}")

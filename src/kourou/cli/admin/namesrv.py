"""`kourou admin namesrv`."""

from __future__ import annotations

from typing import Annotated

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    Namesrv,
    Yes,
    broker_exists,
    confirm,
    pairs,
    run,
    said,
)
from kourou.cli.output import echo, print_json_lines, print_table

app = typer.Typer(name="namesrv", no_args_is_help=True, help="Name servers.")

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="The namespace.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
BrokerName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the broker.")]


@app.command()
def config(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Only this key.", show_default=False)
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show the configuration of each name server."""
    found = run(namesrv, lambda admin: admin.name_servers.config())
    rows = [
        (address, name, value)
        for address, table in found.items()
        for name, value in sorted(table.items())
        if key in (None, name)
    ]
    if json:
        print_json_lines({"address": one[0], "key": one[1], "value": one[2]} for one in rows)
    else:
        print_table(("name server", "key", "value"), rows)


@app.command("set")
def set_(
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="What to change.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Change the configuration of all name servers."""
    wanted = pairs(changes)
    said(f"changed at {', '.join(run(namesrv, lambda admin: admin.name_servers.set_config(wanted)))}")


@app.command("kv-list")
def kv_list(namespace: Namespace, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """List the keys and values of a namespace."""
    found = run(namesrv, lambda admin: admin.name_servers.list_kv(namespace))
    if json:
        print_json_lines({"key": key, "value": value} for key, value in found.items())
    else:
        print_table(("key", "value"), found.items())


@app.command("kv-get")
def kv_get(namespace: Namespace, key: Key, namesrv: Namesrv = DEFAULT_NAMESRV) -> None:
    """Print a value."""
    echo(run(namesrv, lambda admin: admin.name_servers.get_kv(namespace, key)))


@app.command("kv-put")
def kv_put(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Set a value."""
    run(namesrv, lambda admin: admin.name_servers.put_kv(namespace, key, value))
    said(f"{namespace} {key} is {value}")


@app.command("kv-delete")
def kv_delete(namespace: Namespace, key: Key, namesrv: Namesrv = DEFAULT_NAMESRV, yes: Yes = False) -> None:
    """Forget a value."""
    confirm(f"Forget {key} of {namespace}?", yes)
    run(
        namesrv,
        lambda admin: admin.name_servers.delete_kv(namespace, key),
        check=lambda admin: admin.name_servers.get_kv(namespace, key),
    )
    said(f"{namespace} {key} is forgotten")


@app.command("wipe-write")
def wipe_write(
    broker: BrokerName, namesrv: Namesrv = DEFAULT_NAMESRV, yes: Yes = False, json: AsJson = False
) -> None:
    """Have nothing sent to a broker any more, before it is stopped."""
    confirm(f"Have nothing sent to {broker} any more?", yes)
    counts = run(namesrv, lambda admin: admin.name_servers.wipe_write(broker), check=broker_exists(broker))
    _print_counts(counts, json)


@app.command("add-write")
def add_write(broker: BrokerName, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False) -> None:
    """Have a broker sent to again."""
    counts = run(namesrv, lambda admin: admin.name_servers.add_write(broker), check=broker_exists(broker))
    _print_counts(counts, json)


def _print_counts(counts: dict[str, int], json: bool) -> None:
    if json:
        print_json_lines({"address": address, "topics": count} for address, count in counts.items())
    else:
        print_table(("name server", ">topics"), counts.items())

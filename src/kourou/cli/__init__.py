"""The command `kourou`: thin verbs over the packages, and how they speak to a person or a script.

    servers/    broker, namesrv, proxy, console, up
    admin       kourou admin …, made from the declarations of `kourou.admin.operations`
    mqadmin/    kourou mqadmin …, the same with Java's verbs, flags and words
    send, tail, store, spark, bench, doctor
    run         what commands that talk to a cluster share
    answers, output, errors, message_view, store_tables    tables, JSON, progress, exit codes

What a verb does is not here; that is an API of the package that it belongs to. Those are imported by the verb
that runs, so that help and completion are quick.

Exit codes: 0 done, 1 done and something is wrong (`store check`) or a cluster refused (`admin`), 2 not done
(one line on standard error says why), 130 interrupted.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

import kourou
from kourou.cli import admin, bench, doctor, send, spark, store, tail
from kourou.cli.errors import OneLineErrors, RefusedCommand
from kourou.cli.mqadmin import commands as mqadmin
from kourou.cli.servers import broker, console, namesrv, proxy, up
from kourou.cli.servers.serve import OneLineEach

app = typer.Typer(
    name="kourou",
    help="RocketMQ in Python.",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(admin.app)
app.command(
    "mqadmin",
    cls=RefusedCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(mqadmin.mqadmin)
app.add_typer(store.app)
app.add_typer(console.app)
app.add_typer(spark.app)
app.command("namesrv")(namesrv.namesrv)
app.command("broker")(broker.broker)
app.command("proxy")(proxy.proxy)
app.command("up")(up.up)
app.command("send", cls=RefusedCommand)(send.send)
app.command("tail", cls=RefusedCommand)(tail.tail)
app.command("bench", cls=RefusedCommand)(bench.bench)
app.command("doctor", cls=RefusedCommand)(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kourou {kourou.__version__}")
        raise typer.Exit


@app.callback()
def _kourou(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """RocketMQ in Python: byte-compatible with Apache RocketMQ 5.5."""


def main() -> None:
    """Run the command. To build all the others takes longer than a name server does to start."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(OneLineEach())  # of commands that set up no log
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    commands = [command for command in app.registered_commands if command.name == name]
    groups = [
        group
        for group in app.registered_groups
        if group.typer_instance is not None and group.typer_instance.info.name == name
    ]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups
    app()

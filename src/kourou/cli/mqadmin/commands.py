"""`kourou mqadmin`: Java's own verbs and flags over the same calls, for runbooks that have them.

Each verb is an entry of a table: its flags, and a coroutine that asks `Admin` and prints in the shape of
Java's mqadmin, with its headings. The tables are in the modules `mqadmin_*`; `mqadmin_verbs` has what
they share.
"""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.admin.run import DEFAULT_NAMESRV, run

if TYPE_CHECKING:
    from kourou.admin import Admin
    from kourou.cli.mqadmin.verbs import Verb

EXIT_USAGE = 2


def verbs() -> dict[str, Verb]:
    """All verbs by their names."""
    from kourou.cli.mqadmin import access as mqadmin_access
    from kourou.cli.mqadmin import brokers as mqadmin_brokers
    from kourou.cli.mqadmin import exports as mqadmin_exports
    from kourou.cli.mqadmin import groups as mqadmin_groups
    from kourou.cli.mqadmin import messages as mqadmin_messages
    from kourou.cli.mqadmin import sends as mqadmin_sends
    from kourou.cli.mqadmin import topics as mqadmin_topics

    modules = (
        mqadmin_topics, mqadmin_groups, mqadmin_messages, mqadmin_sends, mqadmin_brokers, mqadmin_exports,
        mqadmin_access,
    )  # fmt: skip
    return {verb.name: verb for module in modules for verb in module.VERBS}


def mqadmin(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VERB] [FLAGS]…", help="As for Java's mqadmin.", show_default=False),
    ] = None,
) -> None:
    """Run a verb of Java's mqadmin, with its own flags; alone, list the verbs.

    \b
    Example:
      kourou mqadmin consumerProgress -n 127.0.0.1:9876 -g billing
    """
    given = arguments or []
    table = verbs()
    if not given or (len(given) == 1 and given[0] in ("help", "-h", "--help")):
        _print_list(table)
        return
    if given[0] == "help":
        typer.echo(_find(table, given[1]).usage())
        return
    verb = _find(table, given[0])
    from kourou.cli.mqadmin.verbs import BadFlagsError

    try:
        flags = verb.parse(given[1:])
    except BadFlagsError as error:
        typer.echo(f"{error}\n{verb.usage()}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    if flags.has("h"):
        typer.echo(verb.usage())
        return
    namesrv = flags.get("n") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV

    async def work(admin: Admin) -> None:
        await verb.run(admin, flags)

    try:
        run(namesrv, work)
    except BadFlagsError as error:
        typer.echo(f"{error}\n{verb.usage()}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def _print_list(table: dict[str, Verb]) -> None:
    typer.echo("Verbs of mqadmin:\n")
    for name, verb in table.items():
        typer.echo(f"   {name:<35} {verb.help}")
    typer.echo("\n`kourou mqadmin help VERB` shows the flags of a verb.")


def _find(table: dict[str, Verb], name: str) -> Verb:
    by_lower = {known.lower(): verb for known, verb in table.items()}
    found = by_lower.get(name.lower())  # Java does not mind the case either
    if found is not None:
        return found
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)
    nearest = by_lower[near[0]].name
    typer.echo(f"there is no verb {name}: the nearest is {nearest}; `kourou mqadmin` lists all", err=True)
    raise typer.Exit(EXIT_USAGE)

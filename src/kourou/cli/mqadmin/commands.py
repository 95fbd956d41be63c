"""`kourou mqadmin`: Java's own verbs and flags, for runbooks that have them."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.run import DEFAULT_NAMESRV, run

if TYPE_CHECKING:
    from kourou.cli.mqadmin.verbs import Verb

EXIT_USAGE = 2


def verbs() -> dict[str, Verb]:
    """All verbs by their names."""
    from kourou.cli.mqadmin import access, brokers, groups, messages, topics
    from kourou.cli.mqadmin.verbs import VERBS

    assert all((topics, groups, messages, brokers, access))  # each has declared its own
    return VERBS


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
    from kourou.admin.operations.parameters import BadInputError

    given = arguments or []
    table = verbs()
    if not given or (len(given) == 1 and given[0] in ("help", "-h", "--help")):
        _print_list(table)
        return
    verb = _find(table, given[1] if given[0] == "help" else given[0])
    try:
        flags = verb.parse(["-h"] if given[0] == "help" else given[1:])
        if flags.has("h"):
            typer.echo(verb.usage())
            return
        namesrv = flags.get("n") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
        run(namesrv, lambda admin: verb(admin, flags))
    except BadInputError as error:
        typer.echo(f"{error}\n{verb.usage()}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def _print_list(table: dict[str, Verb]) -> None:
    typer.echo("Verbs of mqadmin:\n")
    for name, verb in table.items():
        typer.echo(f"   {name:<35} {verb.help}")
    typer.echo("\n`kourou mqadmin help VERB` shows the flags of a verb.")


def _find(table: dict[str, Verb], name: str) -> Verb:
    from kourou.cli.mqadmin.verbs import NOT_THERE

    by_lower = {known.lower(): verb for known, verb in table.items()}
    found = by_lower.get(name.lower())  # Java does not mind the case either
    if found is not None:
        return found
    for known, why in NOT_THERE.items():
        if known.lower() == name.lower():
            typer.echo(f"{known} is a verb of Java's that is not there. {why}", err=True)
            raise typer.Exit(EXIT_USAGE)
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)
    nearest = by_lower[near[0]].name
    typer.echo(f"there is no verb {name}: the nearest is {nearest}; `kourou mqadmin` lists all", err=True)
    raise typer.Exit(EXIT_USAGE)

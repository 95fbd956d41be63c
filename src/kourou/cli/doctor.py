"""`kourou doctor`: whether this machine is fit for a broker, and whether a cluster answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kourou.cli.output import as_plain, print_json_lines, printable
from kourou.cli.run import DEFAULT_NAMESRV, AsJson, Namesrv


def doctor(
    directory: Annotated[
        Path, typer.Option("-d", "--dir", metavar="DIRECTORY", help="Where a store is, or would be.")
    ] = Path("kourou-data"),
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Look at ports, limits, disk, memory, clock, Java and versions, and say what to do.

    Exit code 1 if something must be changed; advice alone is 0.
    """
    import asyncio

    from kourou.admin.tools.doctor import FAIL, OK, examine, examine_cluster
    from kourou.cli.output import quiet_log

    with quiet_log("kourou"):
        checks = [*examine(directory), *asyncio.run(examine_cluster(namesrv))]
    if json:
        print_json_lines(map(as_plain, checks))
    else:
        colors = {OK: typer.colors.GREEN, FAIL: typer.colors.RED}
        for check in checks:
            mark = typer.style(f"{check.state:<5}", fg=colors.get(check.state, typer.colors.YELLOW))
            typer.echo(mark + printable(f"{check.name:<16} {check.found}"))
            if check.advice:
                typer.echo(f"{'':<5}{'':<16} → {printable(check.advice)}")
    if any(check.state == FAIL for check in checks):
        raise typer.Exit(1)

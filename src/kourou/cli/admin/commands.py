"""`kourou admin`: what an operator does with a cluster, Java's or Kourou's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kourou.cli.admin import access as admin_access
from kourou.cli.admin import broker as admin_broker
from kourou.cli.admin import cluster as admin_cluster
from kourou.cli.admin import group as admin_group
from kourou.cli.admin import message as admin_message
from kourou.cli.admin import namesrv as admin_namesrv
from kourou.cli.admin import offset as admin_offset
from kourou.cli.admin import topic as admin_topic
from kourou.cli.admin.run import DEFAULT_NAMESRV, Cluster, Namesrv, Yes, confirm, run, said
from kourou.cli.errors import RefusedGroup

app = typer.Typer(
    name="admin",
    cls=RefusedGroup,
    no_args_is_help=True,
    help="Operate a cluster: topics, groups, offsets, messages, brokers, name servers."
    " Exit codes: 0 done, 1 refused or failed, 2 wrong usage.",
)
for part in (
    admin_topic.app,
    admin_group.app,
    admin_group.producer_app,
    admin_offset.app,
    admin_message.app,
    admin_broker.app,
    admin_broker.ha_app,
    admin_cluster.app,
    admin_namesrv.app,
    admin_access.user_app,
    admin_access.acl_app,
):
    app.add_typer(part)

Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        metavar="PART",
        help="topics, groups, config or offsets; again for more.",
        show_default=False,
    ),
]


def _check_parts(parts: list[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    from kourou.admin.metadata import PARTS

    for part in parts or ():
        if part not in PARTS:
            raise typer.BadParameter(f"{part!r} is no part: choose of {', '.join(PARTS)}")
    return tuple(parts or default)


@app.command("export")
def export(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write; else to standard output.")
    ] = None,
    part: Parts = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Write topics, groups, configuration and offsets as JSON.

    \b
    Example: a copy of everything before a change
      kourou admin export before.json
    """
    import orjson

    from kourou.admin.metadata import PARTS

    wanted = _check_parts(part, PARTS)
    found = run(namesrv, lambda admin: admin.metadata.export(cluster, wanted))
    data = orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if file is None:
        sys.stdout.buffer.write(data)
    else:
        file.write_bytes(data)
        said(f"{len(found['brokers'])} brokers in {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote.")],
    part: Parts = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Make the topics and groups of an export, and set their offsets.

    What is there already is changed to what the export says. The configuration is taken over with
    `--part config` only, and then without what belongs to a machine: paths, addresses, names.
    """
    from kourou.admin import AdminError
    from kourou.cli.output import as_plain, print_json
    from kourou.remoting.protocol import lenient_json

    wanted = _check_parts(part, ("topics", "groups", "offsets"))
    try:
        document = lenient_json.loads(file.read_bytes())
        named = document["format"]
    except (ValueError, TypeError, KeyError):
        raise AdminError(f"{file} is no export of `kourou admin export`") from None
    confirm(f"Change {', '.join(wanted)} of {namesrv} to what {file} says ({named})?", yes)
    print_json(
        as_plain(
            run(namesrv, lambda admin: admin.metadata.import_all(document, cluster=cluster, parts=wanted))
        )
    )

"""`kourou admin offset`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    GroupArgument,
    Namesrv,
    TopicArgument,
    Yes,
    confirm,
    group_exists,
    run,
    said,
)
from kourou.cli.output import parse_time, print_json_lines, print_table, show, show_time

app = typer.Typer(name="offset", no_args_is_help=True, help="Where groups go on.")

KeepBack = Annotated[bool, typer.Option("--only-back", help="Never go forward.")]

_COLUMNS: dict[str, Any] = {
    "broker": "broker_name",
    ">queue": "queue_id",
    ">before": "old_offset",
    ">now": "offset",
}


@app.command()
def reset(
    group: GroupArgument,
    topic: TopicArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TIME", help="first, last, 2026-11-15T08:30, milliseconds, or 10m for 10 min ago."
        ),
    ],
    only_back: KeepBack = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Let a group go on at a time, whether it is online or not.

    \b
    Example: consume the last hour again
      kourou admin offset reset billing orders --to 1h
    """
    when_ms = {"first": 0, "last": -1}.get(to, -2)
    if when_ms == -2:
        when_ms = parse_time(to)
    where = to if when_ms <= 0 else show_time(when_ms)
    confirm(f"Let group {group} go on at {where} in {topic}?", yes)
    changes = run(
        namesrv,
        lambda admin: admin.offsets.reset(group, topic, when_ms, force=not only_back),
        check=group_exists(group),
    )
    show(changes, _COLUMNS, as_json=json)


@app.command()
def skip(
    group: GroupArgument,
    topic: TopicArgument,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Let a group go on behind the last message: what has piled up is not consumed."""
    confirm(f"Skip all messages of {topic} that group {group} has not consumed?", yes)
    changes = run(namesrv, lambda admin: admin.offsets.skip(group, topic), check=group_exists(group))
    show(changes, _COLUMNS, as_json=json)


@app.command()
def clone(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The group whose offsets are taken.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The group that gets them.")],
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="Only in this topic.", show_default=False)
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Let a group go on where another one is."""
    confirm(f"Let group {target} go on where {source} is, in {topic or 'all its topics'}?", yes)
    found = run(namesrv, lambda admin: admin.offsets.clone(source, target, topic), check=group_exists(source))
    if json:
        print_json_lines({**queue.to_json(), "offset": offset} for queue, offset in found.items())
    else:
        print_table(
            ("topic", "broker", ">queue", ">offset"), ((*queue, offset) for queue, offset in found.items())
        )


@app.command("set")
def set_(
    group: GroupArgument,
    topic: TopicArgument,
    broker: Annotated[str, typer.Option("-b", "--broker", help="The broker: its name, or an address.")],
    queue: Annotated[int, typer.Option("-q", "--queue", min=0, help="The queue.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="Where to go on.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Let a group go on at an offset of one queue."""
    confirm(f"Let group {group} go on at {offset} in queue {queue} of {topic} at {broker}?", yes)
    run(
        namesrv,
        lambda admin: admin.offsets.set(group, topic, broker, queue, offset),
        check=group_exists(group),
    )
    said(f"{group} goes on at {offset} in queue {queue} of {topic} at {broker}")

"""`kourou tail`: the messages of a topic as they come."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.output import parse_time, print_json_lines, printable, show_time
from kourou.cli.run import DEFAULT_NAMESRV, AsJson, Namesrv, TopicArgument, run

if TYPE_CHECKING:
    from kourou.admin import Admin
    from kourou.client.consume.received import ReceivedMessage

HEX_BYTES = 512  # of a body that is shown in hex; the rest is counted
HEX_WIDTH = 16


class BodyForm(StrEnum):
    """How bodies are shown."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"


def tail(
    topic: TopicArgument,
    tags: Annotated[
        str | None,
        typer.Option("--tags", metavar="TAGS", help="Only these, joined by ||.", show_default=False),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="EXPRESSION",
            help="Only what an SQL92 expression lets through.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="first, last, 2026-11-15T08:30, milliseconds, or 10m for 10 min ago.",
        ),
    ] = "last",
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Stop after so many.", show_default=False)
    ] = None,
    body: Annotated[BodyForm, typer.Option("--body", help="How bodies are shown.")] = BodyForm.AUTO,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C. No group's offset is touched.

    \b
    Example: orders that were paid, from ten minutes ago on
      kourou tail orders --tags paid --from 10m
    """
    from kourou.admin.tools.following import follow
    from kourou.client import Sql

    if tags is not None and sql is not None:
        raise typer.BadParameter("filter by tags or by an expression, not by both")
    expression: str = Sql(sql) if sql is not None else tags or "*"
    start_ms = None if start == "last" else 0 if start == "first" else parse_time(start)

    async def work(admin: Admin) -> None:
        seen = 0
        messages = follow(admin.link, topic, expression, start_ms=start_ms)
        try:
            async for message in messages:
                print_message(message, body, as_json=json)
                seen += 1
                if seen == count:
                    return
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  # it is a generator

    run(namesrv, work)


def print_message(message: ReceivedMessage, form: BodyForm, *, as_json: bool) -> None:
    """A message on lines of its own."""
    from kourou.cli import message_view

    if as_json:
        print_json_lines([{**message_view.fields(message), "brokerName": message.broker_name}])
        return
    place = f"{message.broker_name}-{message.queue_id}@{message.queue_offset}"
    parts = [show_time(message.store_timestamp), place]
    if message.tags:
        parts.append(f"tags={message.tags}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    typer.secho(printable("  ".join(parts)), fg=typer.colors.CYAN)
    if message.body_error is not None:
        typer.secho(printable(message.body_error), fg=typer.colors.RED)
    typer.echo(pretty_body(bytes(message.body), form))


def pretty_body(body: bytes, form: BodyForm) -> str:
    """A body as JSON, as text or in hex: what it is, unless a form is asked for."""
    import orjson

    if form in (BodyForm.AUTO, BodyForm.JSON) and body[:1] in (b"{", b"["):
        try:
            text = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2).decode()
            return "\n".join(map(printable, text.split("\n")))
        except orjson.JSONDecodeError:
            pass
    if form is not BodyForm.HEX:
        try:
            text = str(body, "utf-8")
        except UnicodeDecodeError:
            pass
        else:
            if form is not BodyForm.AUTO or all(c.isprintable() or c in "\n\r\t" for c in text):
                return "\n".join(map(printable, text.expandtabs().splitlines()))
    return _hex(body)


def _hex(body: bytes) -> str:
    rows = []
    for at in range(0, min(len(body), HEX_BYTES), HEX_WIDTH):
        part = body[at : min(at + HEX_WIDTH, HEX_BYTES)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{at:06x}  {part.hex(' '):<{HEX_WIDTH * 3}} {text}")
    if len(body) > HEX_BYTES:
        rows.append(f"… {len(body)} bytes")
    return "\n".join(rows)

"""`kourou send`: messages from arguments, from a file, or from the lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.admin.operations.messages import receipt_fields
from kourou.cli.output import count as counted
from kourou.cli.output import print_json_lines
from kourou.cli.run import DEFAULT_NAMESRV, AsJson, Namesrv, TopicArgument, pairs, run, said

if TYPE_CHECKING:
    from kourou.admin import Admin


def send(
    topic: TopicArgument,
    bodies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BODY]…",
            help="Bodies, a message each; without them, each line of standard input is one.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Send a whole file as one message.", show_default=False),
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="The tag.", show_default=False)] = None,
    keys: Annotated[str | None, typer.Option("--keys", help="Keys, with spaces.", show_default=False)] = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="What the order is kept by.", show_default=False)
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("-p", "--property", metavar="NAME=VALUE", help="Again for more.", show_default=False),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="SECONDS", min=0, help="Deliver so much later.", show_default=False),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Send everything so many times.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="At most so many messages a second.", show_default=False),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace them.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Send messages.

    \b
    Examples: two messages; a line of a file each; ten a second
      kourou send orders '{"id": 1}' '{"id": 2}' --tags paid
      kourou send orders < orders.jsonl
      kourou send orders ping --count 100 --rate 10
    """
    from kourou.message import Message

    if file is not None and bodies:
        raise typer.BadParameter("send a file or bodies, not both")
    if file is None and not bodies and sys.stdin.isatty():
        raise typer.BadParameter("what shall be sent? Give bodies, --file, or lines on standard input")
    if count > 1 and file is None and not bodies:
        raise typer.BadParameter("--count is for bodies and --file: standard input can be read once")
    named = pairs(properties or [])

    def contents() -> Iterator[bytes]:
        for _ in range(count):
            if file is not None:
                yield file.read_bytes()
            elif bodies:
                yield from (body.encode() for body in bodies)
            else:
                yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)

    async def work(admin: Admin) -> int:
        import asyncio

        sent = 0
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with admin.messages.producer(trace=trace) as producer:
            for body in contents():
                if rate is not None:
                    await asyncio.sleep(max(started + sent / rate - loop.time(), 0))
                message = Message(
                    topic, body, named, tags=tags, keys=keys, sharding_key=sharding_key, delay_s=delay
                )
                receipt = await producer.send(message)
                sent += 1
                if json:
                    print_json_lines([receipt_fields(receipt)])
        return sent

    said(f"{counted(run(namesrv, work), 'message')} sent to {topic}")

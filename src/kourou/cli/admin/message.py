"""`kourou admin message`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    Broker,
    Namesrv,
    TopicArgument,
    pairs,
    run,
)
from kourou.cli.output import as_plain, parse_time, print_json_lines, print_table, show

if TYPE_CHECKING:
    from kourou.admin import Admin
    from kourou.client.consume.received import ReceivedMessage
    from kourou.client.produce.receipts import SendReceipt

app = typer.Typer(name="message", no_args_is_help=True, help="Messages: find, read, send, hand out.")

MessageId = Annotated[str, typer.Argument(metavar="ID", help="An offset message id, or a unique id.")]
Begin = Annotated[
    str | None,
    typer.Option("--begin", metavar="TIME", help="Stored at this time or later.", show_default=False),
]
End = Annotated[
    str | None, typer.Option("--end", metavar="TIME", help="Stored before this time.", show_default=False)
]


def _time(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def show_messages(messages: list[ReceivedMessage], *, as_json: bool, whole: bool = False) -> None:
    """Messages as JSON lines, as a table, or each on a page; exit code 1 if there is none."""
    from kourou.cli import message_view

    if as_json:
        print_json_lines(
            {**message_view.fields(message), "brokerName": message.broker_name} for message in messages
        )
    elif whole:
        for message in messages:
            message_view.print_whole(message)
    elif messages:
        message_view.print_messages(messages)
    if not messages:
        typer.echo("no message was found", err=True)
        raise typer.Exit(1)


def show_receipt(receipt: SendReceipt, *, as_json: bool) -> None:
    """Where a message went."""
    columns: dict[str, Any] = {
        "status": "status",
        "message id": "message_id",
        "offset message id": "offset_message_id",
        "broker": lambda one: one.queue.broker_name,
        ">queue": lambda one: one.queue.queue_id,
        ">offset": "queue_offset",
    }
    if as_json:
        print_json_lines([receipt_fields(receipt)])
    else:
        show([receipt], columns, as_json=False)


def receipt_fields(receipt: SendReceipt) -> dict[str, Any]:
    """A receipt for JSON."""
    return {
        "status": receipt.status,
        "msgId": receipt.message_id,
        "offsetMsgId": receipt.offset_message_id,
        **receipt.queue.to_json(),
        "queueOffset": receipt.queue_offset,
    }


@app.command()
def send(
    topic: TopicArgument,
    body: Annotated[str, typer.Argument(metavar="BODY", help="The body, as text.")],
    tags: Annotated[str | None, typer.Option("--tags", help="The tag.", show_default=False)] = None,
    keys: Annotated[str | None, typer.Option("--keys", help="Keys, with spaces.", show_default=False)] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("-p", "--property", metavar="NAME=VALUE", help="Again for more.", show_default=False),
    ] = None,
    broker: Annotated[
        str | None, typer.Option("-b", "--broker", metavar="NAME", help="The broker.", show_default=False)
    ] = None,
    queue: Annotated[
        int | None, typer.Option("-q", "--queue", min=0, help="The queue.", show_default=False)
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace it.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Send one message; `kourou send` sends many."""
    from kourou.message import Message
    from kourou.message.model import MessageQueue

    if (broker is None) != (queue is None):
        raise typer.BadParameter("a queue is named by its broker and its number: give --broker and --queue")
    chosen = None if broker is None or queue is None else MessageQueue(topic, broker, queue)
    message = Message(topic, body.encode(), pairs(properties or []), tags=tags, keys=keys)
    receipt = run(namesrv, lambda admin: admin.messages.send(message, queue=chosen, trace=trace))
    show_receipt(receipt, as_json=json)


@app.command("print")
def print_(
    topic: TopicArgument,
    broker: Annotated[
        str | None,
        typer.Option("-b", "--broker", metavar="NAME", help="Only of this broker.", show_default=False),
    ] = None,
    queue: Annotated[
        int | None, typer.Option("-q", "--queue", min=0, help="Only this queue.", show_default=False)
    ] = None,
    begin: Begin = None,
    end: End = None,
    tags: Annotated[str, typer.Option("--tags", help="Tags, joined by ||.")] = "*",
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many messages.")] = 100,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Print the messages of a topic, from the oldest on; `kourou tail` follows the newest."""
    begin_ms, end_ms = _time(begin), _time(end)

    async def work(admin: Admin) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for one in await admin.messages.queues(topic):
            if broker not in (None, one.broker_name) or queue not in (None, one.queue_id):
                continue
            low, high = await admin.messages.bounds(one, begin_ms, end_ms)
            async for message in admin.messages.read(one, low, high, tags):
                found.append(message)
                if len(found) >= limit:
                    return found
        return found

    show_messages(run(namesrv, work), as_json=json)


@app.command("id")
def by_id(
    topic: TopicArgument, message_id: MessageId, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False
) -> None:
    """Show a message, and which groups have consumed it."""

    async def work(admin: Admin) -> tuple[ReceivedMessage, list[Any]]:
        message = await admin.messages.by_id(topic, message_id)
        return message, await admin.messages.tracks(message)

    message, tracks = run(namesrv, work)
    if json:
        from kourou.cli import message_view

        print_json_lines([{**message_view.fields(message), "tracks": as_plain(tracks)}])
        return
    show_messages([message], as_json=False, whole=True)
    if tracks:
        print_table(
            ("group", "consumed", ""), ((one.group, one.track_type, one.reason or "") for one in tracks)
        )


@app.command()
def key(
    topic: TopicArgument,
    value: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    is_tag: Annotated[bool, typer.Option("--tag", help="It is a tag.")] = False,
    begin: Begin = None,
    end: End = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many messages.")] = 64,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Find messages by a key, or by a tag."""
    from kourou.admin.messages import FOREVER_MS

    begin_ms, end_ms = _time(begin) or 0, _time(end) or FOREVER_MS
    found = run(
        namesrv,
        lambda admin: admin.messages.by_key(
            topic, value, most=limit, begin_ms=begin_ms, end_ms=end_ms, key_type="T" if is_tag else "K"
        ),
    )
    show_messages(found, as_json=json)


@app.command("unique-key")
def unique_key(
    topic: TopicArgument,
    value: Annotated[str, typer.Argument(metavar="ID", help="The id that the producer gave.")],
    begin: Begin = None,
    end: End = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Find messages by their unique id; by default those of the last 36 hours."""
    begin_ms, end_ms = _time(begin), _time(end)
    found = run(
        namesrv,
        lambda admin: admin.messages.by_unique_key(topic, value, begin_ms=begin_ms, end_ms=end_ms),
    )
    show_messages(found, as_json=json, whole=True)


@app.command("offset")
def by_offset(
    topic: TopicArgument,
    broker: Annotated[str, typer.Option("-b", "--broker", metavar="NAME", help="The broker.")],
    queue: Annotated[int, typer.Option("-q", "--queue", min=0, help="The queue.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="The offset in the queue.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show the message at an offset of a queue."""
    from kourou.message.model import MessageQueue

    chosen = MessageQueue(topic, broker, queue)
    found = run(namesrv, lambda admin: admin.messages.by_queue_offset(chosen, offset))
    show_messages([] if found is None else [found], as_json=json, whole=True)


@app.command()
def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The unique id of the message, or a key.")],
    topic: Annotated[
        str, typer.Option("-t", "--trace-topic", help="Where traces are.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show what became of a message, as clients that trace have told."""
    found = run(namesrv, lambda admin: admin.messages.trace(message_id, trace_topic=topic))
    columns: dict[str, Any] = {
        "time": "timestamp_ms",
        "what": "type",
        "group": "group",
        "client": "client_host",
        ">ms": "cost_ms",
        "success": "is_success",
    }
    show(found, columns, as_json=json)
    if not found:
        typer.echo("no trace was found: are the clients started with tracing?", err=True)
        raise typer.Exit(1)


@app.command()
def resend(
    topic: TopicArgument, message_id: MessageId, namesrv: Namesrv = DEFAULT_NAMESRV, json: AsJson = False
) -> None:
    """Send a message again, as a new one with the same body and properties."""
    show_receipt(run(namesrv, lambda admin: admin.messages.resend(topic, message_id)), as_json=json)


@app.command()
def consume(
    topic: TopicArgument,
    message_id: MessageId,
    group: Annotated[str, typer.Option("-g", "--group", help="The consumer group.")],
    client: Annotated[str, typer.Option("-i", "--client", metavar="ID", help="The client of the group.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Have a client consume a message now. Exit code 1 if it did not succeed."""
    result = run(namesrv, lambda admin: admin.messages.consume_directly(group, client, topic, message_id))
    columns: dict[str, Any] = {"result": "consume_result", ">ms": "spent_ms", "remark": "remark"}
    show([result], columns, as_json=json)
    if result.consume_result != "CR_SUCCESS":
        raise typer.Exit(1)


@app.command()
def queue(
    topic: TopicArgument,
    queue_id: Annotated[int, typer.Option("-q", "--queue", min=0, help="The queue.")] = 0,
    first: Annotated[int, typer.Option("--from", min=0, help="From this offset on.")] = 0,
    count: Annotated[int, typer.Option("--count", min=1, help="So many entries.")] = 10,
    group: Annotated[
        str | None,
        typer.Option("-g", "--group", help="Also whether its filter takes each.", show_default=False),
    ] = None,
    broker: Broker = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """Show entries of a consume queue: where each message lies in the log."""
    found = run(
        namesrv,
        lambda admin: admin.messages.consume_queue(topic, queue_id, first, count, broker=broker, group=group),
    )
    if json:
        print_json_lines(
            {"queueOffset": first + number, **entry} for number, entry in enumerate(found.entries)
        )
        return
    print_table(
        (">offset", ">physical", ">size", ">tags code", "taken"),
        (
            (first + number, entry["physicOffset"], entry["physicSize"], entry["tagsCode"], entry.get("eval"))
            for number, entry in enumerate(found.entries)
        ),
        title=f"{topic}-{queue_id}: offsets {found.min_offset} to {found.max_offset}",
    )

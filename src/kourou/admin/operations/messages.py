"""Messages: sent, read, found by their ids, keys and places, traced, handed to a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import OPERATOR, Messages, Number, Table, Text, columns, operation
from kourou.admin.operations.parameters import BadInputError, Param

if TYPE_CHECKING:
    from kourou.admin import Admin

NOTHING = "no message was found"
RECEIPT = Table(
    columns(
        "Status=status, Message id=msgId, Offset message id=offsetMsgId, Broker=brokerName, "
        "Queue=queueId:number, Offset=queueOffset:number"
    ),
    rows=lambda found: [receipt_fields(found)],
)
TRACE = Table(
    columns(
        "Time=timestamp_ms:time, What=type, Group=group, Client=client_host, ms=cost_ms:number, "
        "Success=is_success:yes"
    ),
    nothing="no trace was found: are the clients started with tracing?",
)
CONSUMED = Table(
    columns("Result=consume_result, ms=spent_ms:number, Remark=remark"),
    rows=lambda found: [found],
    fails=lambda found: bool(found.consume_result != "CR_SUCCESS"),
)
ENTRIES = Table(
    columns(
        "Offset=queueOffset:number, Physical offset=physicOffset:number, Bytes=physicSize:number, "
        "Tags code=tagsCode:number, Taken=eval:yes"
    ),
    "{topic}-{queue}: offsets {found.min_offset} to {found.max_offset}",
    lambda found: [{"queueOffset": found.first + at, **entry} for at, entry in enumerate(found.entries)],
)


def receipt_fields(receipt: Any) -> dict[str, Any]:
    """A receipt for JSON."""
    return {
        "status": receipt.status,
        "msgId": receipt.message_id,
        "offsetMsgId": receipt.offset_message_id,
        **receipt.queue.to_json(),
        "queueOffset": receipt.queue_offset,
    }


@operation(
    "message send",
    RECEIPT,
    role=OPERATOR,
    java="sendMessage t!topic p!body k:key=keys c:tags b:broker i:qid=queue m:msgTraceEnable=trace",
)
async def send(
    admin: Admin, topic: str, body: str, tags: Text = None, keys: Text = None, sharding_key: Text = None,
    delay: float | None = None, properties: dict[str, str] | None = None, broker: Text = None,
    queue: Number = None, trace: bool = False,
) -> Any:  # fmt: skip
    """Send one message; `kourou send` sends many."""
    from kourou.message import Message
    from kourou.message.model import MessageQueue

    if (broker is None) != (queue is None):
        raise BadInputError("a queue is named by its broker and its number: give both, or none")
    chosen = None if broker is None or queue is None else MessageQueue(topic, broker, queue)
    message = Message(
        topic, body.encode(), properties or {}, tags=tags, keys=keys, sharding_key=sharding_key,
        delay_s=delay or None,
    )  # fmt: skip
    return await admin.messages.send(message, queue=chosen, trace=trace)


@operation("message print", Messages(nothing=NOTHING))
async def print_messages(
    admin: Admin, topic: str, broker: Text = None, queue: Number = None, begin: Number = None,
    end: Number = None, tags: str = "*", limit: int = 100,
) -> Any:  # fmt: skip
    """Print the messages of a topic, from the oldest on; `kourou tail` follows the newest."""
    found: list[Any] = []
    for one in await admin.messages.queues(topic):
        if broker not in (None, one.broker_name) or queue not in (None, one.queue_id):
            continue
        low, high = await admin.messages.bounds(one, begin, end)
        async for message in admin.messages.read(one, low, high, tags):
            found.append(message)
            if len(found) >= limit:
                return found
    return found


@operation("message id", Messages(whole=True, tracks=True))
async def by_id(admin: Admin, topic: str, message_id: str) -> Any:
    """Show a message, and which groups have consumed it."""
    message = await admin.messages.by_id(topic, message_id)
    return message, await admin.messages.tracks(message)


@operation("message key", Messages(nothing=NOTHING))
async def by_key(
    admin: Admin, topic: str, key: str, tag: bool = False, begin: Number = None, end: Number = None,
    limit: int = 64,
) -> Any:  # fmt: skip
    """Find messages by a key, or by a tag."""
    from kourou.admin.messages import FOREVER_MS

    return await admin.messages.by_key(
        topic, key, most=limit, begin_ms=begin or 0, end_ms=end or FOREVER_MS, key_type="T" if tag else "K"
    )


@operation("message unique-key", Messages(whole=True, nothing=NOTHING))
async def by_unique_key(
    admin: Admin, topic: str, message_id: str, begin: Number = None, end: Number = None
) -> Any:
    """Find messages by their unique id; by default those of the last 36 hours."""
    return await admin.messages.by_unique_key(topic, message_id, begin_ms=begin, end_ms=end)


@operation(
    "message offset",
    Messages(whole=True, nothing=NOTHING),
    options="broker offset",
    java="queryMsgByOffset t!topic b!brokerName i!queueId o!offset f:bodyFormat= r:routeTopic=route_of",
)
async def by_offset(
    admin: Admin, topic: str, broker: str, queue: int, offset: int, route_of: Text = None
) -> Any:
    """Show the message at an offset of a queue."""
    from kourou.message.model import MessageQueue

    place = MessageQueue(topic, broker, queue)
    found = await admin.messages.by_queue_offset(place, offset, route_topic=route_of)
    return [] if found is None else [found]


@operation(
    "message trace",
    TRACE,
    java="queryMsgTraceById i!msgId t:traceTopic=trace_topic b:beginTimestamp e:endTimestamp c:maxNum=limit",
    message_id=Param("The unique id of the message, or a key.", metavar="ID"),
)
async def trace(
    admin: Admin, message_id: str, trace_topic: str = "RMQ_SYS_TRACE_TOPIC", begin: Number = None,
    end: Number = None, limit: int = 64,
) -> Any:  # fmt: skip
    """Show what became of a message, as clients that trace have told."""
    from kourou.admin.messages import FOREVER_MS

    return await admin.messages.trace(
        message_id, trace_topic=trace_topic, begin_ms=begin or 0, end_ms=end or FOREVER_MS, most=limit
    )


@operation("message resend", RECEIPT, role=OPERATOR)
async def resend(admin: Admin, topic: str, message_id: str) -> Any:
    """Send a message again, as a new one with the same body and properties."""
    return await admin.messages.resend(topic, message_id)


@operation("message consume", CONSUMED, role=OPERATOR, options="group")
async def consume(admin: Admin, topic: str, message_id: str, group: str, client: str) -> Any:
    """Have a client consume a message now. Exit code 1 if it did not succeed."""
    return await admin.messages.consume_directly(group, client, topic, message_id)


@operation(
    "message queue",
    ENTRIES,
    java="queryCq t!topic q!queue i!index=first c:count b:broker g:consumer=group",
    group=Param("Also whether the filter of this group takes each.", "-g", metavar="GROUP"),
)
async def queue_entries(
    admin: Admin, topic: str, queue: int = 0, first: int = 0, count: int = 10, group: Text = None,
    broker: Text = None,
) -> Any:  # fmt: skip
    """Show entries of a consume queue: where each message lies in the log."""
    return await admin.messages.consume_queue(topic, queue, first, count, broker=broker, group=group)

"""Verbs of `kourou mqadmin` about messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kourou.admin.link import AdminError
from kourou.admin.messages import FOREVER_MS
from kourou.cli.mqadmin.verbs import (
    BadFlagsError,
    Flags,
    Verb,
    file_name,
    flags,
    human_time,
    java_message,
    java_queue,
    java_receipt,
    java_value,
    line,
    plain_time,
    pretty_json,
    temporary,
)
from kourou.client.consume.received import MessageBatch, ReceivedMessage
from kourou.errors import KourouError
from kourou.message import properties as names
from kourou.message.host import format_host
from kourou.message.model import MessageQueue
from kourou.message.topics import TRACE_TOPIC
from kourou.remoting.protocol.subscription import ALL

if TYPE_CHECKING:
    from kourou.admin import Admin

_TRACE = "%-10s %-20s %-20s %-20s %-10s %-10s"
HOUR_MS = 3_600_000


async def print_message(
    admin: Admin, message: ReceivedMessage, *, with_id: bool, charset: str | None = None, number: int = 0
) -> None:
    """Everything of a message, its body in a file, and which groups have consumed it."""
    file = temporary("msgbodys", file_name(message.message_id) + (f"_{number}" if number else ""))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(message.body))
    rows: list[tuple[str, object]] = [("OffsetID:", message.offset_message_id)] if with_id else []
    rows += [
        ("Topic:", message.topic),
        ("Tags:", f"[{java_value(message.tags)}]"),
        ("Keys:", f"[{java_value(message.properties.get(names.KEYS))}]"),
        ("Queue ID:", message.queue_id),
        ("Queue Offset:", message.queue_offset),
        ("CommitLog Offset:", message.physical_offset),
        ("Reconsume Times:", message.reconsume_times),
        ("Born Timestamp:", human_time(message.born_timestamp)),
        ("Store Timestamp:", human_time(message.store_timestamp)),
        ("Born Host:", format_host(message.born_host)),
        ("Store Host:", format_host(message.store_host)),
        ("System Flag:", message.sys_flag),
        ("Properties:", java_value(message.properties)),
        ("Message Body Path:", file),
    ]
    if charset is not None:
        rows.append(("Message Body:", _text(message, charset)))
    for name, value in rows:
        line("%-20s %s", name, value)
    tracks = await admin.messages.tracks(message)
    if not tracks:
        line("\n\nWARN: No Consumer")
        return
    line("\n")
    for one in tracks:
        line(
            "MessageTrack [consumerGroup=%s, trackType=%s, exceptionDesc=%s]",
            one.group, one.track_type, java_value(one.reason),
        )  # fmt: skip


def _text(message: ReceivedMessage, charset: str) -> str:
    try:
        return str(bytes(message.body), charset, "replace")
    except LookupError:
        raise BadFlagsError(f"{charset} is no character set") from None


async def _query_by_id(admin: Admin, given: Flags) -> None:
    topic = given.text("t")
    for message_id in filter(None, map(str.strip, given.text("i").split(","))):
        if given.has("g") and given.has("d"):
            await _push(admin, given.text("g"), given.text("d"), topic, message_id)
        elif given.truth("s"):
            line("prepare resend msg. originalMsgId=%s", message_id)
            line("%s", java_receipt(await admin.messages.resend(topic, message_id)))
        elif not given.has("s"):
            message = await admin.messages.by_id(topic, message_id)
            await print_message(admin, message, with_id=True, charset=given.get("f"))


async def _push(admin: Admin, group: str, client: str, topic: str, message_id: str) -> None:
    found = await admin.messages.consume_directly(group, client, topic, message_id)
    line(
        "ConsumeMessageDirectlyResult [order=%s, autoCommit=%s, consumeResult=%s, remark=%s, "
        "spentTimeMills=%d]",
        java_value(found.order), java_value(found.auto_commit), found.consume_result,
        java_value(found.remark), found.spent_ms,
    )  # fmt: skip


async def _query_by_key(admin: Admin, given: Flags) -> None:
    topic, key, kind = given.text("t"), given.text("k"), given.text("p", "K")
    if kind not in ("K", "T"):
        raise BadFlagsError("index type error, just support K for keys or T for tags")
    found = await admin.messages.by_key(
        topic, key, most=given.number("m", 64), begin_ms=given.number("b"),
        end_ms=given.number("e", FOREVER_MS), key_type=kind, last_key=given.get("l"),
    )  # fmt: skip
    form = "%-50s %4s %40s %-200s"
    line(form, "#Message ID", "#QID", "#Offset", "#IndexKey")
    for one in found:
        hour = one.store_timestamp // HOUR_MS * HOUR_MS
        index = f"{hour}@{topic}@{kind}@{key}@{one.message_id}@{one.physical_offset}"
        line(form, one.message_id, one.queue_id, one.queue_offset, index)


async def _query_by_unique_key(admin: Admin, given: Flags) -> None:
    topic, message_id = given.text("t"), given.text("i")
    if given.has("g") and given.has("d"):
        await _push(admin, given.text("g"), given.text("d"), topic, message_id)
        return
    begin = given.number("s") if given.has("s") and given.has("e") else None
    end = given.number("e") if begin is not None else None
    found = await admin.messages.by_unique_key(topic, message_id, begin_ms=begin, end_ms=end)
    for number, message in enumerate(found if given.has("a") else found[:1]):
        await print_message(admin, message, with_id=False, number=number)


async def _query_by_offset(admin: Admin, given: Flags) -> None:
    queue = MessageQueue(given.text("t"), given.text("b"), given.number("i"))
    message = await admin.messages.by_queue_offset(queue, given.number("o"), route_topic=given.get("r"))
    if message is not None:
        await print_message(admin, message, with_id=True, charset=given.get("f"))


async def _query_trace(admin: Admin, given: Flags) -> None:
    found = await admin.messages.trace(
        given.text("i"), trace_topic=given.text("t", TRACE_TOPIC), begin_ms=given.number("b"),
        end_ms=given.number("e", FOREVER_MS), most=given.number("c", 64),
    )  # fmt: skip
    for kind, shown, heads in (
        ("Pub", "Pub", ("#ProducerGroup", "#ClientHost", "#SendTime")),
        ("SubAfter", "Sub", ("#ConsumerGroup", "#ClientHost", "#ConsumerTime")),
    ):
        entries = [entry for entry in found if entry.type == kind]
        for group in dict.fromkeys(entry.group for entry in entries):
            line(_TRACE, "#Type", *heads, "#CostTimes", "#Status")
            for one in entries:
                if one.group == group:
                    state = "success" if one.is_success else "failed"
                    when = plain_time(one.timestamp_ms)
                    line(_TRACE, shown, group, one.client_host, when, f"{one.cost_ms}ms", state)
            line("")


# Reads


def _print_messages(messages: Iterable[ReceivedMessage], charset: str, *, with_body: bool) -> None:
    for one in messages:
        body = _text(one, charset) if with_body else "NOT PRINT BODY"
        line("MSGID: %s %s BODY: %s", one.message_id, java_message(one), body)


async def _print_msg(admin: Admin, given: Flags) -> None:
    topic = given.text("t")
    queues = await admin.messages.queues(given.text("l", topic))
    for queue in queues:
        queue = queue._replace(topic=topic)
        low, high = await admin.messages.bounds(queue, given.time("b"), given.time("e"))
        line("minOffset=%s, maxOffset=%s, %s", low, high, java_queue(queue))
        async for message in admin.messages.read(queue, low, high, given.text("s", ALL)):
            _print_messages([message], given.text("c", "UTF-8"), with_body=given.truth("d", True))
        line("--------------------------------------------------------")


async def _print_msg_by_queue(admin: Admin, given: Flags) -> None:
    queue = MessageQueue(given.text("t"), given.text("a"), given.number("i"))
    low, high = await admin.messages.bounds(queue, given.time("b"), given.time("e"))
    tags: dict[str, int] = {}
    async for message in admin.messages.read(queue, low, high, given.text("s", ALL)):
        if message.tags:
            tags[message.tags] = tags.get(message.tags, 0) + 1
        if given.truth("p"):
            _print_messages([message], given.text("c", "UTF-8"), with_body=given.truth("d"))
    if given.truth("f"):
        for tag, count in sorted(tags.items(), key=lambda one: -one[1]):
            line("Tag: %-30s Count: %d", tag, count)


async def _consume_message(admin: Admin, given: Flags) -> None:
    topic, left = given.text("t"), given.number("c", 128)
    if left <= 0:
        raise BadFlagsError("-c is the number of messages: one or more")
    if given.has("i") and not given.has("b"):
        raise BadFlagsError("a queue is named by its broker too: give -b with -i")
    if given.has("o") and not given.has("i"):
        raise BadFlagsError("an offset is that of a queue: give -b and -i with -o")
    queues = await admin.messages.queues(topic)
    if given.has("i"):
        queues = [MessageQueue(topic, given.text("b"), given.number("i"))]
    elif given.has("b"):
        queues = [queue for queue in queues if queue.broker_name == given.text("b")]
    for queue in queues:
        low, high = await admin.messages.bounds(queue, given.time("s"), given.time("e"))
        low = max(low, given.number("o", low))
        high = min(high, low + left)
        found = [message async for message in admin.messages.read(queue, low, high)]
        if found:
            line("Consume ok")
            _print_messages(found, "UTF-8", with_body=True)
        left -= len(found)
        if left <= 0:
            return


async def _query_cq(admin: Admin, given: Flags) -> None:
    first = given.number("i")
    found = await admin.messages.consume_queue(
        given.text("t"), given.number("q"), first, given.number("c", 10), broker=given.get("b"),
        group=given.get("g"),
    )  # fmt: skip
    rule = "======================================"
    if found.subscription is not None:
        line("Subscription data: \n%s\n%s", pretty_json(found.subscription), rule)
    if found.filter_data is not None:
        line("Filter data: \n%s\n%s", found.filter_data, rule)
    line("Queue data: \nmax: %d, min: %d\n%s", found.max_offset, found.min_offset, rule)
    for number, one in enumerate(found.entries):
        told = (
            f"ConsumeQueueData{{physicOffset={one['physicOffset']}, physicSize={one['physicSize']}, "
            f"tagsCode={one['tagsCode']}, extendDataJson='{java_value(one.get('extendDataJson'))}', "
            f"bitMap='{java_value(one.get('bitMap'))}', eval={java_value(one.get('eval', False))}, "
            f"msg='{java_value(one.get('msg'))}'}}"
        )
        line("idx: %d\n%s\n%s", first + number, told, rule)


async def _dump_compaction_log(admin: Admin, given: Flags) -> None:
    if not given.has("f"):
        raise BadFlagsError("miss dump log file name")
    file = Path(given.text("f"))
    if not file.is_file():
        raise AdminError(f"there is no file {file}")
    data = file.read_bytes()
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if not 0 < size <= len(data) - at:
            break
        try:
            messages = MessageBatch(MessageQueue("", "", 0), data[at : at + size], 0, 1).messages
        except KourouError:
            break  # the blank record at the end of a file
        for message in messages:
            line("%s", java_message(message))
        at += size


VERBS = (
    Verb(
        "queryMsgById",
        "Show a message by its id, send it again, or hand it to a consumer.",
        flags("t!topic i!msgId g:consumerGroup d:clientId s:sendMessage u:unitName f:bodyFormat c:cluster"),
        _query_by_id,
    ),
    Verb(
        "queryMsgByKey",
        "Find messages by a key.",
        flags("t!topic k!msgKey b:beginTimestamp e:endTimestamp m:maxNum c:cluster p:keyType l:lastKey"),
        _query_by_key,
    ),
    Verb(
        "queryMsgByUniqueKey",
        "Show a message by its unique id, or hand it to a consumer.",
        flags("i!msgId g:consumerGroup d:clientId t!topic a-showAll c:cluster s:startTime e:endTime"),
        _query_by_unique_key,
    ),
    Verb(
        "queryMsgByOffset",
        "Show the message at an offset of a queue.",
        flags("t!topic b!brokerName i!queueId o!offset f:bodyFormat r:routeTopic"),
        _query_by_offset,
    ),
    Verb(
        "queryMsgTraceById",
        "Show what became of a message, by its trace.",
        flags("i!msgId t:traceTopic b:beginTimestamp e:endTimestamp c:maxNum"),
        _query_trace,
    ),
    Verb(
        "printMsg",
        "Print the messages of a topic.",
        flags(
            "t!topic c:charsetName s:subExpression b:beginTimestamp e:endTimestamp d:printBody"
            " l:lmqParentTopic"
        ),
        _print_msg,
    ),
    Verb(
        "printMsgByQueue",
        "Print the messages of a queue, or count them by tag.",
        flags(
            "t!topic a!brokerName i!queueId c:charsetName s:subExpression b:beginTimestamp e:endTimestamp"
            " p:printMsg d:printBody f:calculate"
        ),
        _print_msg_by_queue,
    ),
    Verb(
        "consumeMessage",
        "Read messages of a topic without a group's offset.",
        flags(
            "t!topic b:brokerName i:queueId o:offset g:consumerGroup s:beginTimestamp e:endTimestamp"
            " c:MessageNumber"
        ),
        _consume_message,
    ),
    Verb(
        "queryCq",
        "Show entries of a consume queue.",
        flags("t!topic q!queue i!index c:count b:broker g:consumer"),
        _query_cq,
    ),
    Verb("dumpCompactionLog", "Print the records of a log file.", flags("f:file"), _dump_compaction_log),
)

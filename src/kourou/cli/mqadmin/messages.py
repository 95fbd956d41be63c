"""Verbs about messages: found, read, sent."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kourou.admin import AdminError
from kourou.admin.messages import FOREVER_MS
from kourou.admin.operations import messages
from kourou.admin.operations.parameters import BadInputError
from kourou.cli.mqadmin.verbs import Given, shows, verb
from kourou.cli.mqadmin.words import (
    file_name,
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
from kourou.message import Message
from kourou.message import properties as names
from kourou.message.host import format_host
from kourou.message.model import MessageQueue
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
        raise BadInputError(f"{charset} is no character set") from None


@verb(
    "queryMsgById t!topic i!msgId g:consumerGroup d:clientId s:sendMessage u:unitName f:bodyFormat c:cluster",
    "Show a message by its id, send it again, or hand it to a consumer.",
)
async def query_by_id(admin: Admin, given: Given) -> None:
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


@verb(
    "queryMsgByKey t!topic k!msgKey b:beginTimestamp e:endTimestamp m:maxNum c:cluster p:keyType l:lastKey",
    "Find messages by a key.",
)
async def query_by_key(admin: Admin, given: Given) -> None:
    topic, key, kind = given.text("t"), given.text("k"), given.text("p", "K")
    if kind not in ("K", "T"):
        raise BadInputError("index type error, just support K for keys or T for tags")
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


@verb(
    "queryMsgByUniqueKey i!msgId g:consumerGroup d:clientId t!topic a-showAll c:cluster s:startTime"
    " e:endTime",
    "Show a message by its unique id, or hand it to a consumer.",
)
async def query_by_unique_key(admin: Admin, given: Given) -> None:
    topic, message_id = given.text("t"), given.text("i")
    if given.has("g") and given.has("d"):
        await _push(admin, given.text("g"), given.text("d"), topic, message_id)
        return
    begin = given.number("s") if given.has("s") and given.has("e") else None
    end = given.number("e") if begin is not None else None
    found = await admin.messages.by_unique_key(topic, message_id, begin_ms=begin, end_ms=end)
    for number, message in enumerate(found if given.has("a") else found[:1]):
        await print_message(admin, message, with_id=False, number=number)


@shows(messages.by_offset)
async def query_by_offset(admin: Admin, given: Given) -> None:
    for message in await given.found(admin):
        await print_message(admin, message, with_id=True, charset=given.get("f"))


@shows(messages.trace)
async def query_trace(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
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


@verb(
    "printMsg t!topic c:charsetName s:subExpression b:beginTimestamp e:endTimestamp d:printBody"
    " l:lmqParentTopic",
    "Print the messages of a topic.",
)
async def print_msg(admin: Admin, given: Given) -> None:
    topic = given.text("t")
    queues = await admin.messages.queues(given.text("l", topic))
    for queue in queues:
        queue = queue._replace(topic=topic)
        low, high = await admin.messages.bounds(queue, given.time("b"), given.time("e"))
        line("minOffset=%s, maxOffset=%s, %s", low, high, java_queue(queue))
        async for message in admin.messages.read(queue, low, high, given.text("s", ALL)):
            _print_messages([message], given.text("c", "UTF-8"), with_body=given.truth("d", True))
        line("--------------------------------------------------------")


@verb(
    "printMsgByQueue t!topic a!brokerName i!queueId c:charsetName s:subExpression b:beginTimestamp"
    " e:endTimestamp p:printMsg d:printBody f:calculate",
    "Print the messages of a queue, or count them by tag.",
)
async def print_msg_by_queue(admin: Admin, given: Given) -> None:
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


@verb(
    "consumeMessage t!topic b:brokerName i:queueId o:offset g:consumerGroup s:beginTimestamp"
    " e:endTimestamp c:MessageNumber",
    "Read messages of a topic without a group's offset.",
)
async def consume_message(admin: Admin, given: Given) -> None:
    topic, left = given.text("t"), given.number("c", 128)
    if left <= 0:
        raise BadInputError("-c is the number of messages: one or more")
    if given.has("i") and not given.has("b"):
        raise BadInputError("a queue is named by its broker too: give -b with -i")
    if given.has("o") and not given.has("i"):
        raise BadInputError("an offset is that of a queue: give -b and -i with -o")
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


@shows(messages.queue_entries)
async def query_cq(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
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
        line("idx: %d\n%s\n%s", found.first + number, told, rule)


@verb(
    "dumpCompactionLog f:file",
    "Print the records of a log file.",
)
async def dump_compaction_log(admin: Admin, given: Given) -> None:
    if not given.has("f"):
        raise BadInputError("miss dump log file name")
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


# Sends


_SENT = "%-32s  %-4s  %-20s    %s"


@shows(messages.send)
async def send_message(admin: Admin, given: Given) -> None:
    receipt = await given.found(admin)
    line(_SENT, "#Broker Name", "#QID", "#Send Result", "#MsgId")
    line(_SENT, receipt.queue.broker_name, receipt.queue.queue_id, receipt.status, receipt.message_id)


@verb(
    "checkMsgSendRT t!topic a:amount s:size",
    "Send messages to a topic, and show how long each took.",
)
async def check_send_rt(admin: Admin, given: Given) -> None:
    topic, amount, size = given.text("t"), given.number("a", 100), given.number("s", 128)
    line(_SENT, "#Broker Name", "#QID", "#Send Result", "#RT")
    queues = await admin.messages.queues(topic)
    times = []
    async with admin.messages.producer() as producer:
        for number in range(amount):
            queue = queues[number % len(queues)]
            started = time.perf_counter()
            try:
                await producer.send(Message(topic, b"a" * size), queue=queue)
                sent = "true"
            except KourouError:
                sent = "false"
            times.append((time.perf_counter() - started) * 1000)
            line(_SENT, queue.broker_name, queue.queue_id, sent, round(times[-1]))
    line("Avg RT: %.2f", sum(times[1:]) / max(len(times) - 1, 1))


@verb(
    "sendMsgStatus b!brokerName s:messageSize c:count",
    "Send messages to a broker, and show how long each took.",
)
async def send_msg_status(admin: Admin, given: Given) -> None:
    topic, size = given.text("b"), given.number("s", 128)
    await admin.clusters.send_timed(topic, count=1, size_bytes=16)
    for seconds, result in await admin.clusters.send_timed(
        topic, count=given.number("c", 50), size_bytes=size
    ):
        if isinstance(result, KourouError):
            raise result
        line("rt=%dms, SendResult=%s", round(seconds * 1000), java_receipt(result))

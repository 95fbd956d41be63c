"""Reading messages for people: the newest of a topic within a time, and bodies as they can be shown."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from kourou.admin import Admin
from kourou.admin.operations.declare import Table, columns
from kourou.client.consume.consumer import Sql
from kourou.client.consume.received import ReceivedMessage, held_bytes
from kourou.console.views.view import message_url
from kourou.errors import KourouError
from kourou.inspect.look.fields import PREVIEW_CHARACTERS, is_text, preview
from kourou.message import properties as names
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.subscription import ALL

MOST_MESSAGES = 200
SCANNED = 5000  # entries of each queue that a filter goes through
STEP, SCANNED_STEP = 32, 1000  # entries that are read at a time
MAX_READ_BYTES = 64 * 1024 * 1024  # of bodies
READ_S = 6.0
QUEUES_AT_ONCE = 8
MAX_SHOWN_BYTES = 64 * 1024


@dataclass(slots=True)
class Found:
    """Messages, the newest first; `is_partial` if time was up before all queues were read."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    is_partial: bool = False
    error: str | None = None


async def browse(
    admin: Admin,
    topic: str,
    *,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    expression: str = "",
    is_sql: bool = False,
    most: int = MOST_MESSAGES,
) -> Found:
    """The newest messages of a topic between two times that an expression lets through."""
    wanted = Sql(expression) if is_sql and expression.strip() else (expression.strip() or ALL)
    found = Found()
    slots = asyncio.Semaphore(QUEUES_AT_ONCE)
    left_bytes = MAX_READ_BYTES
    step = STEP if wanted == ALL else SCANNED_STEP

    async def read(queue: MessageQueue) -> None:
        """From the end of a queue to its beginning, some at a time, until there are enough."""
        nonlocal left_bytes
        async with slots:
            low, high = await admin.messages.bounds(queue, begin_ms, end_ms)
            low = max(low, high - (most if wanted == ALL else SCANNED))
            count = 0
            while high > low and count < most:
                if left_bytes <= 0:
                    found.is_partial = True
                    return
                start = max(high - step, low)
                async for message in admin.messages.read(queue, start, high, wanted):
                    if end_ms is None or message.store_timestamp <= end_ms:
                        found.messages.append(message)
                        left_bytes -= held_bytes([message])
                        count += 1
                high = start

    deadline = time.monotonic() + READ_S
    tasks = [asyncio.ensure_future(read(queue)) for queue in await admin.messages.queues(topic)]
    if not tasks:
        return found
    done, waiting = await asyncio.wait(tasks, timeout=max(deadline - time.monotonic(), 0.1))
    found.is_partial = found.is_partial or bool(waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for task in done:
        error = task.exception()
        if isinstance(error, KourouError):
            found.error = str(error)
        elif error is not None:
            raise error
    found.messages.sort(key=lambda one: (-one.store_timestamp, -one.physical_offset))
    del found.messages[most:]
    return found


def _link(message: ReceivedMessage) -> tuple[str, str]:
    topic = message.queue.topic or message.topic
    return message.message_id, message_url(topic, message.offset_message_id)


STORED = columns("Stored=store_timestamp:time, Message id=link:id", link=_link)
CONTENT = columns(
    "Keys=keys:code-, Body=body:line",
    keys=lambda message: " ".join(message.keys),
    body=lambda message: message.body_error or preview(bytes(message.body[: PREVIEW_CHARACTERS * 4])),
)
MESSAGES = Table(
    (*STORED, *columns("Tag=tags-, Queue=queue_id:number-, Offset=queue_offset:number-"), *CONTENT)
)


def body_forms(body: bytes) -> dict[str, str]:
    """A body as `json`, `text` and `hex`, as far as it is that; the first is the best to look at."""
    shown = body[:MAX_SHOWN_BYTES]
    forms: dict[str, str] = {}
    try:
        text = shown.decode("utf-8") if len(body) <= MAX_SHOWN_BYTES else shown.decode("utf-8", "ignore")
    except UnicodeDecodeError:
        text = ""
    if text and is_text(text):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, (dict, list)):
            forms["json"] = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        forms["text"] = text
    forms["hex"] = hex_dump(shown)
    return forms


def hex_dump(body: bytes) -> str:
    """Bytes in hex with their offsets, and as text."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def as_json(message: ReceivedMessage) -> dict[str, Any]:
    """A message for an export."""
    body = bytes(message.body)
    try:
        content: dict[str, str] = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"bodyHex": body.hex()}
    return {
        "topic": message.queue.topic or message.topic,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "properties": dict(message.properties),
        **({} if message.body_error is None else {"bodyError": message.body_error}),
        **content,
    }


# What a message is given on its way, and must not take along when it is sent again
OF_THE_WAY = frozenset(
    {
        names.UNIQ_KEY, names.WAIT_STORE_MSG_OK, names.MSG_REGION, names.TRACE_SWITCH, names.DELAY_TIME_LEVEL,
        names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES, names.MIN_OFFSET, names.MAX_OFFSET,
        names.CONSUME_START_TIMESTAMP, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.CLUSTER,
    }
)  # fmt: skip

"""Verbs of `kourou mqadmin` that send messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kourou.cli.mqadmin.verbs import BadFlagsError, Flags, Verb, flags, java_receipt, line
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message.model import MessageQueue

if TYPE_CHECKING:
    from kourou.admin import Admin

_SENT = "%-32s  %-4s  %-20s    %s"


async def _send_message(admin: Admin, given: Flags) -> None:
    topic, queue = given.text("t"), None
    if given.has("i"):
        if not given.has("b"):
            raise BadFlagsError("a queue is named by its broker too: give -b with -i")
        queue = MessageQueue(topic, given.text("b"), given.number("i"))
    message = Message(topic, given.text("p").encode(), tags=given.get("c"), keys=given.get("k"))
    receipt = await admin.messages.send(message, queue=queue, trace=given.truth("m"))
    line(_SENT, "#Broker Name", "#QID", "#Send Result", "#MsgId")
    line(_SENT, receipt.queue.broker_name, receipt.queue.queue_id, receipt.status, receipt.message_id)


async def _check_send_rt(admin: Admin, given: Flags) -> None:
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


async def _send_msg_status(admin: Admin, given: Flags) -> None:
    topic, size = given.text("b"), given.number("s", 128)
    await admin.clusters.send_timed(topic, count=1, size_bytes=16)
    for seconds, result in await admin.clusters.send_timed(
        topic, count=given.number("c", 50), size_bytes=size
    ):
        if isinstance(result, KourouError):
            raise result
        line("rt=%dms, SendResult=%s", round(seconds * 1000), java_receipt(result))


VERBS = (
    Verb(
        "sendMessage",
        "Send a message.",
        flags("t!topic p!body k:key c:tags b:broker i:qid m:msgTraceEnable"),
        _send_message,
    ),
    Verb(
        "checkMsgSendRT",
        "Send messages to a topic, and show how long each took.",
        flags("t!topic a:amount s:size"),
        _check_send_rt,
    ),
    Verb(
        "sendMsgStatus",
        "Send messages to a broker, and show how long each took.",
        flags("b!brokerName s:messageSize c:count"),
        _send_msg_status,
    ),
)

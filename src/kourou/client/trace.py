"""Traces: what became of each message, as messages of a topic of their own (TraceDataEncoder,
AsyncTraceDispatcher). `mqadmin queryMsgTraceById` and the console read them.

The body of a trace message is text: contexts that end with U+0002, each of fields between which U+0001 stands.
A field that has no value is `null`, as in Java.

| context        | fields behind its name |
|----------------|------------------------|
| Pub            | time, region, group, topic, message id, tags, keys, store host, body length, cost, message type, offset message id, success |
| SubBefore      | time, region, group, request id, message id, retry times, keys |
| SubAfter       | request id, message id, cost, success, keys, return code, time, group |
| EndTransaction | time, region, group, topic, message id, tags, keys, store host, message type, transaction id, state, from check |
| Recall         | time, region, group, topic, message id, success |

The keys of a trace message are the ids and keys of the messages in it.
"""  # noqa: E501  # a table has no shorter lines

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol

from kourou.client.background import Background
from kourou.client.consume.received import ReceivedMessage, ReconsumeLater
from kourou.client.namespace import unwrap_any
from kourou.client.produce.receipts import DEFAULT_REGION, SEND_OK, SendEvent
from kourou.client.produce.transactions import TransactionState
from kourou.client.validators import DELAYS
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message import properties as names
from kourou.message.topics import TRACE_TOPIC

log = logging.getLogger(__name__)

# Java's: contexts of one message, contexts that wait, bytes of a message, how long contexts wait for others
BATCH_CONTEXTS = 10
MAX_WAITING_CONTEXTS = 2048
MAX_TRACE_BYTES = 128_000
FLUSH_INTERVAL_S = 5.0
STOP_TIMEOUT_S = 5.0
_SENDS_AT_ONCE = 4

_FIELD_END = "\x01"
_CONTEXT_END = "\x02"


class TraceType(Enum):
    """What a context tells of."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(IntEnum):
    """Kinds of messages; a trace has their numbers."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(slots=True)
class TraceBean:
    """One message of a context."""

    topic: str
    message_id: str
    tags: str | None = None
    keys: str | None = None  # with spaces between them, as the property has them
    offset_message_id: str = ""
    store_host: str = ""
    body_length: int = 0
    retry_times: int = 0
    message_type: MessageType = MessageType.NORMAL
    transaction_id: str | None = None
    transaction_state: TransactionState = TransactionState.UNKNOWN
    is_from_check: bool = False


@dataclass(slots=True)
class TraceContext:
    """One thing that happened to a message, or to several that were consumed together.

    SubBefore and SubAfter of the same messages have the same `request_id`; `cost_ms` is that of each.
    `return_code` is the place of how they were consumed in Java's ConsumeReturnType.
    """

    type: TraceType
    beans: list[TraceBean]
    group: str = ""  # of the tracer, if it is empty
    region: str = DEFAULT_REGION
    timestamp_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    cost_ms: int = 0
    is_success: bool = True
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex.upper())
    return_code: int = 0

    def encode(self) -> str:
        """The context as text: a line for each message of what was consumed, one for all else."""
        return "".join(map(self._encode_bean, self.beans if self.type in _SUBSCRIPTIONS else self.beans[:1]))

    def _encode_bean(self, bean: TraceBean) -> str:
        head: tuple[object, ...] = (self.timestamp_ms, self.region, unwrap_any(self.group))
        message = (unwrap_any(bean.topic), bean.message_id)
        match self.type:
            case TraceType.PUB:
                fields = (
                    *head, *message, bean.tags, bean.keys, bean.store_host, bean.body_length, self.cost_ms,
                    bean.message_type.value, bean.offset_message_id, self.is_success,
                )  # fmt: skip
            case TraceType.SUB_BEFORE:
                fields = (*head, self.request_id, bean.message_id, bean.retry_times, bean.keys)
            case TraceType.SUB_AFTER:
                fields = (
                    self.request_id, bean.message_id, self.cost_ms, self.is_success, bean.keys,
                    self.return_code, self.timestamp_ms, head[2],
                )  # fmt: skip
            case TraceType.END_TRANSACTION:
                fields = (
                    *head, *message, bean.tags, bean.keys, bean.store_host, bean.message_type.value,
                    bean.transaction_id, bean.transaction_state.value, bean.is_from_check,
                )  # fmt: skip
            case TraceType.RECALL:
                fields = (*head, *message, self.is_success)
        return _FIELD_END.join(map(_text, (self.type.value, *fields))) + _CONTEXT_END

    def index_keys(self) -> Iterator[str]:
        """What the trace message is found by."""
        for bean in self.beans:
            yield bean.message_id
            yield from (bean.keys or "").split()


_SUBSCRIPTIONS = (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # An empty field at the end of a line is one that Java's reader does not find.
    return "null" if value is None or value == "" else str(value)


class TraceSender(Protocol):
    """Who sends trace messages: a producer that traces nothing itself."""

    def send(self, message: Message) -> Awaitable[object]:
        """Send a message."""


class Tracer:
    """Gathers contexts, and sends them some at a time. `dropped` counts those that were not sent."""

    def __init__(self, sender: TraceSender, group: str, topic: str = TRACE_TOPIC) -> None:
        self.dropped = 0
        self.topic = topic
        self._sender = sender
        self._group = group
        self._waiting: deque[TraceContext] = deque()
        self._wake = asyncio.Event()
        self._background = Background()

    def record(self, context: TraceContext) -> None:
        """Have a context sent, soon. It never blocks nor raises; where too many wait, it is dropped."""
        if len(self._waiting) >= MAX_WAITING_CONTEXTS:
            self._drop(1, "too many wait to be sent")
            return
        if not context.group:
            context.group = self._group
        self._waiting.append(context)
        if len(self._waiting) >= BATCH_CONTEXTS:
            self._wake.set()

    async def start(self) -> None:
        """Send from now on."""
        self._background.start(self._run(), f"sending traces of group {self._group}")

    async def stop(self) -> None:
        """Send what waits, if that is soon done, and end."""
        await self._background.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._flush()
        except TimeoutError:
            self._drop(len(self._waiting), "the client is closed")
            self._waiting.clear()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(FLUSH_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            contexts = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_CONTEXTS * 4))]
            messages = list(self._pack(contexts))
            for start in range(0, len(messages), _SENDS_AT_ONCE):
                await asyncio.gather(*map(self._send, messages[start : start + _SENDS_AT_ONCE]))

    def _pack(self, contexts: Iterable[TraceContext]) -> Iterator[tuple[int, Message]]:
        """Trace messages, and how many contexts each has: those of one topic, as far as they fit."""
        by_topic: dict[str, list[TraceContext]] = {}
        for context in contexts:
            if context.beans:
                by_topic.setdefault(context.beans[0].topic, []).append(context)
        for same in by_topic.values():
            part: list[TraceContext] = []
            texts: list[bytes] = []
            for context in same:
                text = context.encode().encode()
                size = sum(map(len, texts)) + len(text)
                if part and (size > MAX_TRACE_BYTES or len(part) >= BATCH_CONTEXTS):
                    yield len(part), self._message(part, texts)
                    part, texts = [], []
                part.append(context)
                texts.append(text)
            yield len(part), self._message(part, texts)

    def _message(self, contexts: list[TraceContext], texts: list[bytes]) -> Message:
        keys = {key for context in contexts for key in context.index_keys()}
        return Message(self.topic, b"".join(texts), keys=sorted(keys))

    async def _send(self, packed: tuple[int, Message]) -> None:
        count, message = packed
        try:
            await self._sender.send(message)
        except KourouError as error:
            self._drop(count, str(error))

    def _drop(self, count: int, why: str) -> None:
        if count:
            log.log(logging.DEBUG if self.dropped else logging.WARNING, "%s traces lost: %s", count, why)
            self.dropped += count


def of_send(event: SendEvent) -> TraceContext | None:
    """The context of a message that was sent; None if the broker wants none, or did not answer."""
    receipt = event.receipt
    if receipt is None or not receipt.trace_on:
        return None
    message = event.message
    kind = MessageType.NORMAL
    if message.properties.get(names.TRANSACTION_PREPARED) == "true":
        kind = MessageType.TRANSACTION_HALF
    if any(name in message.properties for name in DELAYS):
        kind = MessageType.DELAY
    bean = TraceBean(
        message.topic,
        receipt.message_id,
        message.properties.get(names.TAGS),
        message.properties.get(names.KEYS),
        offset_message_id=receipt.offset_message_id,
        store_host=event.address,
        body_length=len(message.body),
        message_type=kind,
    )
    return TraceContext(
        TraceType.PUB,
        [bean],
        event.group,
        receipt.region,
        event.started_ms,
        int(event.duration_s * 1000),
        receipt.status == SEND_OK,
    )


def of_end(
    message: Message | ReceivedMessage,
    message_id: str,
    address: str,
    state: TransactionState,
    *,
    is_from_check: bool,
) -> TraceContext:
    """The context of a transaction that has ended, at the broker of an address."""
    bean = TraceBean(
        message.topic,
        message_id,
        message.properties.get(names.TAGS),
        message.properties.get(names.KEYS),
        store_host=address,
        message_type=MessageType.TRANSACTION_COMMIT,
        transaction_id=message.properties.get(names.UNIQ_KEY),
        transaction_state=state,
        is_from_check=is_from_check,
    )
    region = message.properties.get(names.MSG_REGION) or DEFAULT_REGION
    return TraceContext(TraceType.END_TRANSACTION, [bean], region=region)


def of_recall(topic: str, message_id: str, region: str, *, is_success: bool) -> TraceContext:
    """The context of a message that was recalled."""
    return TraceContext(
        TraceType.RECALL, [TraceBean(topic, message_id)], region=region, is_success=is_success
    )


def of_consume(messages: Iterable[ReceivedMessage], group: str) -> TraceContext | None:
    """The context of messages that a handler is about to be given; None if their brokers want none."""
    beans = []
    region = DEFAULT_REGION
    for message in messages:
        if message.properties.get(names.TRACE_SWITCH) == "false":
            continue
        region = message.properties.get(names.MSG_REGION) or DEFAULT_REGION
        beans.append(
            TraceBean(
                message.topic,
                message.message_id,
                message.tags,
                message.properties.get(names.KEYS),
                offset_message_id=message.offset_message_id,
                body_length=len(message.body),
                retry_times=message.reconsume_times,
            )
        )
    return TraceContext(TraceType.SUB_BEFORE, beans, group, region) if beans else None


# Places in ConsumeReturnType
_SUCCESS, _TIME_OUT, _EXCEPTION, _FAILED = 0, 1, 2, 4


def after_consume(
    before: TraceContext, seconds: float, failure: Exception | None, timeout_s: float
) -> TraceContext:
    """The context of the same messages when the handler has come to an end."""
    if failure is not None:
        code = _FAILED if isinstance(failure, ReconsumeLater) else _EXCEPTION
    else:
        code = _TIME_OUT if seconds > timeout_s else _SUCCESS
    return TraceContext(
        TraceType.SUB_AFTER,
        before.beans,
        before.group,
        before.region,
        cost_ms=int(seconds * 1000 / len(before.beans)),
        is_success=failure is None,
        request_id=before.request_id,
        return_code=code,
    )


_number = itertools.count(1)


def trace_group(group: str, kind: str) -> str:
    """The group of the producer that sends traces; `kind` is PRODUCE or CONSUME."""
    return f"_INNER_TRACE_PRODUCER-{group}"[:100] + f"-{kind}-{next(_number)}"

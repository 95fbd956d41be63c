"""Producer: sends messages (DefaultMQProducer).

A message goes to the next queue of its topic, in turn; where a broker does not take it, to a queue of another
one, `retries` times. A message with a `sharding_key`, or a `select` of the caller's, always goes to the same
queue, so that those of one key keep their order, and is not tried elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kourou.client.core import (
    DEFAULT_TOPIC,
    ClientCore,
    ClientError,
    NoRouteError,
    RefusedError,
    make_client_id,
)
from kourou.client.routes import TopicRoute
from kourou.errors import KourouError
from kourou.message import Message, properties
from kourou.message.batch import encode_batch
from kourou.message.compression import CompressionType, compress
from kourou.message.ids import UniqueIdGenerator
from kourou.message.properties import encode_properties, java_hash
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.lenient_json import MessageQueue
from kourou.remoting.tls import TlsConfig

DEFAULT_QUEUES = 4  # of a topic that its first message makes
COMPRESS_FROM_BYTES = 4096
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
BATCH_OVERHEAD_BYTES = 22  # of each message of a batch, beside its body and properties

# Answers after which another broker may take the message (DefaultMQProducer.retryResponseCodes)
RETRY_CODES = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION,
    )
)  # fmt: skip
_STORED = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}

Select = Callable[[Sequence[MessageQueue]], MessageQueue]


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where a message went."""

    status: str  # SEND_OK, or what the broker could not wait for
    message_id: str  # the unique id; of a batch, of all its messages with commas
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int


class Producer:
    """Sends messages to the topics of a cluster."""

    def __init__(
        self,
        namesrv: str,
        *,
        group: str = "DEFAULT_PRODUCER",
        instance: str | None = None,
        timeout_s: float = 3.0,
        retries: int = 2,
        compression: CompressionType = CompressionType.ZLIB,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: TlsConfig | None = None,
        ip: str = "127.0.0.1",
    ) -> None:
        self.group = group
        self._timeout_s = timeout_s
        self._retries = retries
        self._compression = compression
        self._compress_from = compress_from_bytes
        self._max_bytes = max_message_bytes
        self._unique_id = UniqueIdGenerator(ip)
        self._turn = itertools.count()
        self.core = ClientCore(
            namesrv, client_id=make_client_id(ip, instance), heartbeat=self._heartbeat, tls=tls
        )

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.__aexit__()

    def _heartbeat(self) -> dict[str, Any]:
        return {"producerDataSet": [{"groupName": self.group}], "consumerDataSet": []}

    # Sends

    async def send(
        self,
        message: Message,
        *,
        select: Select | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a message, and wait until the broker has it."""
        if queue is not None:
            select = _only(queue)
        elif select is None and properties.SHARDING_KEY in message.properties:
            select = _by_key(message.properties[properties.SHARDING_KEY])
        body, sys_flag = self._prepare(message)
        return await self._send(message.topic, message, body, sys_flag, False, select, timeout_s)

    async def send_batch(
        self, messages: Iterable[Message], *, timeout_s: float | None = None
    ) -> list[SendReceipt]:
        """Send messages of one topic together, in as many requests as their size takes."""
        receipts = []
        for part in self._split(list(messages)):
            for message in part:
                message.properties.setdefault(properties.UNIQ_KEY, self._unique_id())
            first = part[0]
            frame = Message(first.topic, b"", {properties.UNIQ_KEY: self._unique_id()})
            body = encode_batch(part)
            receipt = await self._send(first.topic, frame, body, 0, True, None, timeout_s)
            receipts.append(receipt)
        return receipts

    async def send_oneway(self, message: Message) -> None:
        """Send a message, and do not wait for anything."""
        body, sys_flag = self._prepare(message)
        route = await self._route(message.topic)
        queue = self._next_queue(route, None)
        request = self._request(message, queue, body, sys_flag, False)
        await self.core.send_oneway(_master(route, queue), request)

    def _prepare(self, message: Message) -> tuple[bytes | memoryview, int]:
        """Give a message its id, and its body the form that it travels in."""
        if not message.topic:
            raise ClientError("a message needs a topic")
        body = memoryview(message.body)
        if not body:
            raise ClientError("a message needs a body: on the wire, an empty one is none")
        if len(body) > self._max_bytes:
            raise ClientError(f"a body of {len(body)} bytes: max_message_bytes is {self._max_bytes}")
        message.properties.setdefault(properties.UNIQ_KEY, self._unique_id())
        message.properties.setdefault(properties.WAIT_STORE_MSG_OK, "true")
        if len(body) >= self._compress_from:
            return compress(body, self._compression), self._compression.sys_flag
        return body, 0

    def _split(self, messages: list[Message]) -> Iterable[list[Message]]:
        part: list[Message] = []
        size = 0
        for message in messages:
            if message.topic != messages[0].topic:
                raise ClientError(f"a batch has one topic: {messages[0].topic}, {message.topic}")
            if message.delay_time_level:
                raise ClientError("a message of a batch cannot be delayed")
            own = BATCH_OVERHEAD_BYTES + len(message.body) + 64 + len(encode_properties(message.properties))
            if own > self._max_bytes:
                raise ClientError(f"a message of {own} bytes: max_message_bytes is {self._max_bytes}")
            if part and size + own > self._max_bytes:
                yield part
                part, size = [], 0
            part.append(message)
            size += own
        if part:
            yield part

    async def _send(
        self,
        topic: str,
        message: Message,
        body: bytes | memoryview,
        sys_flag: int,
        is_batch: bool,
        select: Select | None,
        timeout_s: float | None,
    ) -> SendReceipt:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self._timeout_s)
        tries = 1 if select is not None else 1 + self._retries
        avoid: str | None = None
        failure: KourouError | None = None
        for number in range(tries):
            route = await self._route(topic)
            queue = select(route.write_queues) if select is not None else self._next_queue(route, avoid)
            address = _master(route, queue)
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            await self.core.greet(address)
            try:
                answer = await self.core.call(
                    address, self._request(message, queue, body, sys_flag, is_batch), left_s
                )
            except KourouError as error:
                failure = ClientError(f"{queue.broker_name} at {address}, topic {topic}: {error}")
                avoid = queue.broker_name
                if number + 1 < tries:
                    await self._learn(topic)
                continue
            if answer.code in _STORED:
                return _receipt(message, queue, answer)
            failure = RefusedError(address, f"a message for {topic}", answer)
            avoid = queue.broker_name
            if answer.code not in RETRY_CODES:
                break
        raise failure or ClientError(f"no broker took a message for {topic} within the time given")

    async def _learn(self, topic: str) -> None:
        """A broker cannot be reached: others may be known by now."""
        with contextlib.suppress(KourouError):  # what is known still counts
            await self.core.fetch_route(topic)

    async def _route(self, topic: str) -> TopicRoute:
        try:
            route = await self.core.route(topic)
        except NoRouteError:
            # Its first message makes it, with the queues that the default topic allows.
            default = await self.core.route(DEFAULT_TOPIC)
            usable = [queue for queue in default.write_queues if queue.queue_id < DEFAULT_QUEUES]
            queues = tuple(queue._replace(topic=topic) for queue in usable)
            route = TopicRoute(topic, queues, queues, default.addresses)
        if not route.write_queues:
            raise NoRouteError(f"no broker takes messages for {topic} now")
        return route

    def _next_queue(self, route: TopicRoute, avoid: str | None) -> MessageQueue:
        queues = route.write_queues
        for _ in queues:
            queue = queues[next(self._turn) % len(queues)]
            if queue.broker_name != avoid:
                return queue
        return queues[next(self._turn) % len(queues)]  # there is no other broker

    def _request(
        self, message: Message, queue: MessageQueue, body: bytes | memoryview, sys_flag: int, is_batch: bool
    ) -> RemotingCommand:
        fields = {
            "a": self.group, "b": message.topic, "c": DEFAULT_TOPIC, "d": str(DEFAULT_QUEUES),
            "e": str(queue.queue_id), "f": str(sys_flag), "g": str(time.time_ns() // 1_000_000),
            "h": str(message.flag), "i": encode_properties(message.properties), "j": "0", "k": "false",
            "m": "true" if is_batch else "false", "n": queue.broker_name,
        }  # fmt: skip
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        return RemotingCommand(code, fields, body)


def _master(route: TopicRoute, queue: MessageQueue) -> str:
    address = route.master(queue.broker_name)
    if address is None:
        raise NoRouteError(f"broker {queue.broker_name} of {queue.topic} has no master now")
    return address


def _receipt(message: Message, queue: MessageQueue, answer: RemotingCommand) -> SendReceipt:
    fields = answer.ext_fields
    return SendReceipt(
        _STORED[ResponseCode(answer.code)],
        message.properties.get(properties.UNIQ_KEY, ""),
        fields.get("msgId", ""),
        queue._replace(queue_id=int(fields.get("queueId", queue.queue_id))),
        int(fields.get("queueOffset", -1)),
    )


def _only(queue: MessageQueue) -> Select:
    return lambda queues: queue


def _by_key(key: str) -> Select:
    """The queue of a sharding key, as Java's SelectMessageQueueByHash chooses it."""
    return lambda queues: queues[abs(java_hash(key)) % len(queues)]

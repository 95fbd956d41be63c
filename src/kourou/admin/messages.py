"""Messages: sent, read, found by their ids, keys and places, traced, handed to a consumer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from kourou.admin.groups import Groups
from kourou.admin.link import AdminError, Link
from kourou.admin.model import ConsumeQueueEntries, DirectResult, MessageTrack, TraceEntry
from kourou.admin.offsets import Offsets
from kourou.admin.tools.traces import read_traces
from kourou.admin.topics import Topics
from kourou.client.consume.pulling import Puller, PullStatus
from kourou.client.consume.received import MessageBatch, ReceivedMessage
from kourou.client.consume.subscriptions import build_subscription
from kourou.client.core import RefusedError
from kourou.client.produce.producer import Producer
from kourou.client.produce.receipts import SendReceipt
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message import properties as names
from kourou.message.host import format_host
from kourou.message.ids import decode_offset_message_id
from kourou.message.model import MessageQueue
from kourou.message.topics import TRACE_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.headers import (
    ConsumeMessageDirectly,
    QueryConsumeQueue,
    QueryMessage,
    ViewMessage,
)
from kourou.remoting.protocol.subscription import ALL

log = logging.getLogger(__name__)

TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker has it, for tools that read
PRODUCER_GROUP = "kourou-admin"
KEY_TYPES = ("K", "T")  # what the index knows: keys and tags
UNIQUE_SPAN_MS = 36 * 3600 * 1000  # how far from now unique ids are looked for, as Java does
MAX_FOUND = 64
INCOMPLETE = "not complete"  # how the remark of a broker begins that makes its index anew after a crash
FOREVER_MS = (1 << 63) - 1

# What a message is given on its way; a message that is sent again gets its own.
_OF_THE_WAY = (names.UNIQ_KEY, names.WAIT_STORE_MSG_OK, names.MSG_REGION, names.TRACE_SWITCH)


class Messages:
    """The messages of a cluster."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._groups = Groups(link)
        self._offsets = Offsets(link)
        self._topics = Topics(link)

    # Sends

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, trace: bool | str = False
    ) -> SendReceipt:
        """Send a message, to a queue where one is named."""
        async with self.producer(trace=trace) as producer:
            return await producer.send(message, queue=queue)

    def producer(self, *, trace: bool | str = False) -> Producer:
        """A producer on these connections, for many messages; use it in an `async with`."""
        return Producer(core=self._link.core, group=PRODUCER_GROUP, trace=trace)

    async def resend(self, topic: str, message_id: str) -> SendReceipt:
        """Send a message again, as a new one with the same body and properties."""
        found = await self.by_id(topic, message_id)
        if found.body_error is not None:
            raise AdminError(f"{message_id} is not sent again, its body cannot be read: {found.body_error}")
        properties = {key: value for key, value in found.properties.items() if key not in _OF_THE_WAY}
        return await self.send(Message(topic, bytes(found.body), properties, found.flag))

    # By id, key, place

    async def by_id(self, topic: str, message_id: str) -> ReceivedMessage:
        """The message of an offset message id, or of a unique id; AdminError if there is none."""
        refusal: KourouError | None = None
        try:
            place = decode_offset_message_id(message_id)
            address = f"{place.ip}:{place.port}"
            members = {
                text for info in await self._link.brokers() for text in info.addresses.values()
            }  # a unique id looks the same, and leads to no broker
            if address in members:
                header = ViewMessage(place.physical_offset, topic)
                answer = await self._link.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
                return self._decode(topic, "", bytes(answer.body or b""))[0]
        except KourouError as error:
            refusal = error
        found = await self.by_unique_key(topic, message_id)
        if found:
            return found[0]
        raise AdminError(f"there is no message {message_id} in {topic}; it may have expired") from refusal

    async def by_unique_key(
        self, topic: str, unique_id: str, *, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[ReceivedMessage]:
        """The messages that a producer gave an id: several, where it was sent again."""
        now_ms = time.time_ns() // 1_000_000
        begin = now_ms - UNIQUE_SPAN_MS if begin_ms is None else begin_ms
        end = now_ms + UNIQUE_SPAN_MS if end_ms is None else end_ms
        found = await self._query(QueryMessage(topic, unique_id, 32, begin, end), is_unique=True)
        return [message for message in found if message.properties.get(names.UNIQ_KEY) == unique_id]

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        most: int = MAX_FOUND,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        key_type: str = KEY_TYPES[0],
        last_key: str | None = None,
    ) -> list[ReceivedMessage]:
        """The messages with a key (or a tag, with key_type T), the oldest first."""
        header = QueryMessage(topic, key, most, begin_ms, end_ms, key_type, last_key)
        found = await self._query(header, is_unique=False)
        if key_type == "T":
            return [message for message in found if message.tags == key][:most]
        return [message for message in found if key in message.keys][:most]

    async def _query(self, header: QueryMessage, *, is_unique: bool) -> list[ReceivedMessage]:
        brokers = await self._link.topic_brokers(header.topic)
        fields = {**header.fields(), "_UNIQUE_KEY_QUERY": str(is_unique).lower()}

        async def ask(name: str, address: str) -> list[ReceivedMessage]:
            try:
                answer = await self._link.ask(address, RequestCode.QUERY_MESSAGE, fields)
            except RefusedError as error:
                if error.code == ResponseCode.QUERY_NOT_FOUND:
                    _warn_if_incomplete(name, error.remark)
                    return []
                raise
            _warn_if_incomplete(name, answer.remark)
            return self._decode(header.topic, name, bytes(answer.body or b""))

        parts = await asyncio.gather(*(ask(name, address) for name, address in brokers.items()))
        found = [message for part in parts for message in part if message.topic == header.topic]
        return sorted(found, key=lambda one: (one.store_timestamp, one.physical_offset))

    async def by_queue_offset(
        self, queue: MessageQueue, offset: int, *, route_topic: str | None = None
    ) -> ReceivedMessage | None:
        """The message at an offset of a queue."""
        if route_topic is not None:
            await self._link.core.fetch_route(route_topic)
        async for message in self.read(queue, offset, offset + 1):
            return message
        return None

    @staticmethod
    def _decode(topic: str, broker_name: str, body: bytes) -> list[ReceivedMessage]:
        batch = MessageBatch(MessageQueue(topic, broker_name, 0), body, 0, 0)
        for message in batch.messages:
            message.queue = MessageQueue(topic, broker_name, message.queue_id)
        return batch.messages

    # Reads

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return sorted((await self._link.core.fetch_route(topic)).read_queues)

    async def bounds(
        self, queue: MessageQueue, begin_ms: int | None = None, end_ms: int | None = None
    ) -> tuple[int, int]:
        """The offsets of a queue between two times: of the first message, and behind the last."""
        address = await self._address(queue)
        if begin_ms is None:
            low = await self._offsets.min_offset(address, queue.topic, queue.queue_id)
        else:
            low = await self._offsets.at_time(address, queue.topic, queue.queue_id, begin_ms)
        if end_ms is None:
            high = await self._offsets.max_offset(address, queue.topic, queue.queue_id)
        else:
            high = await self._offsets.at_time(address, queue.topic, queue.queue_id, end_ms)
        return low, high

    async def _address(self, queue: MessageQueue) -> str:
        address = self._link.core.broker_address(queue.broker_name)
        if address is None:
            await self._link.core.fetch_route(queue.topic)
            address = self._link.core.broker_address(queue.broker_name)
        return address or await self._link.address_of(queue.broker_name)

    async def read(
        self, queue: MessageQueue, low: int, high: int, expression: str = ALL, *, batch: int = 32
    ) -> AsyncIterator[ReceivedMessage]:
        """The messages of a queue from one offset to behind another that an expression lets through (tags,
        or a `kourou.client.Sql`). No group's offset is touched."""
        puller = Puller(self._link.core, TOOLS_GROUP, tell_subscription=True)
        wanted = build_subscription(queue.topic, expression)
        offset = low
        while offset < high:
            pulled = await puller.pull(queue, offset, wanted, most=min(batch, high - offset), suspend_s=0)
            if pulled.status is PullStatus.FOUND and pulled.batch is not None:
                for message in pulled.batch.messages:
                    if message.queue_offset < high:
                        yield message
            elif pulled.status is not PullStatus.NOTHING_WANTED or pulled.next_offset <= offset:
                return
            offset = pulled.next_offset

    async def consume_queue(
        self,
        topic: str,
        queue_id: int,
        first: int,
        count: int = 10,
        *,
        broker: str | None = None,
        group: str | None = None,
    ) -> ConsumeQueueEntries:
        """Entries of a queue as they are on disk, and whether the filter of a group takes each."""
        if broker is None:
            address = next(iter((await self._link.topic_brokers(topic)).values()))
        else:
            address = await self._link.address_of(broker)
        header = QueryConsumeQueue(topic, queue_id, first, count, group)
        found = await self._link.ask_json(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return ConsumeQueueEntries(
            int(found.get("minQueueIndex") or 0),
            int(found.get("maxQueueIndex") or 0),
            first,
            list(found.get("queueData") or ()),
            found.get("subscriptionData"),
            found.get("filterData"),
        )

    # What became of them

    async def trace(
        self,
        message_id: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        most: int = MAX_FOUND,
    ) -> list[TraceEntry]:
        """What clients that trace have told of a message, in the order of time."""
        header = QueryMessage(trace_topic, message_id, most, begin_ms, end_ms, KEY_TYPES[0])
        found = await self._query(header, is_unique=False)
        entries = [
            entry
            for message in found
            for entry in read_traces(bytes(message.body), format_host(message.born_host).rpartition(":")[0])
            if message_id in (entry.message_id, *entry.keys.split())
        ]
        return sorted(entries, key=lambda entry: entry.timestamp_ms)

    async def tracks(self, message: ReceivedMessage) -> list[MessageTrack]:
        """Whether each group of the topic has consumed a message."""
        return [await self._track(message, group) for group in await self._topics.groups(message.topic)]

    async def _track(self, message: ReceivedMessage, group: str) -> MessageTrack:
        try:
            connections = await self._groups.connections(group)
        except RefusedError as error:
            offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
            return MessageTrack(group, "NOT_ONLINE" if offline else "UNKNOWN", str(error))
        if connections.consume_type == "CONSUME_ACTIVELY":
            return MessageTrack(group, "PULL")
        if connections.message_model == "BROADCASTING":
            return MessageTrack(group, "CONSUME_BROADCASTING")
        name = message.broker_name or await self._name_of(format_host(message.store_host))
        for queue in (await self._groups.progress(group, message.topic)).queues:
            if (queue.broker_name, queue.queue_id) == (name, message.queue_id):
                if queue.consumer_offset <= message.queue_offset:
                    return MessageTrack(group, "NOT_CONSUME_YET")
                for one in connections.subscriptions:
                    tags = {tag.strip() for tag in one.expression.split("||")}
                    is_filtered = one.topic == message.topic and one.expression_type == "TAG"
                    if is_filtered and ALL not in tags and (message.tags or "") not in tags:
                        return MessageTrack(group, "CONSUMED_BUT_FILTERED")
                return MessageTrack(group, "CONSUMED")
        return MessageTrack(group, "NOT_CONSUME_YET")

    async def _name_of(self, address: str) -> str:
        for info in await self._link.brokers():
            if address in info.addresses.values():
                return info.broker_name
        return ""

    async def consume_directly(self, group: str, client_id: str, topic: str, message_id: str) -> DirectResult:
        """Have a client of a group consume a message now, whatever became of it before."""
        message = await self.by_id(topic, message_id)
        header = ConsumeMessageDirectly(group, client_id, message.offset_message_id, topic=topic)
        address = format_host(message.store_host)
        found = await self._link.ask_json(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        return DirectResult(
            bool(found.get("order")),
            bool(found.get("autoCommit", True)),
            str(found.get("consumeResult")),
            found.get("remark"),
            int(found.get("spentTimeMills") or 0),
        )


def _warn_if_incomplete(broker: str, remark: str | None) -> None:
    if remark and remark.startswith(INCOMPLETE):
        log.warning("broker %s: %s", broker, remark)

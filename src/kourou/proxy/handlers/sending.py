"""SendMessage and RecallMessage (SendMessageActivity, RecallMessageActivity)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from kourou.client.produce.receipts import STORED, read_receipt
from kourou.client.routes import TopicRoute
from kourou.errors import KourouError
from kourou.message import properties as names
from kourou.message.ids import decode_offset_message_id
from kourou.message.model import MessageQueue
from kourou.message.properties import encode_properties, java_hash
from kourou.message.recall import RecallHandle
from kourou.proxy import messages
from kourou.proxy.calls import Call, as_status
from kourou.proxy.handlers.transactions import TransactionId
from kourou.proxy.protocol import pb
from kourou.proxy.statuses import OK, StatusError, check, of_all, of_answer
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import RecallMessage, SendMessageV2

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

_MIXED = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
_MASK = (1 << 64) - 1


class Sending:
    """What the calls of producers do."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._turns = count().__next__

    async def send(self, call: Call, request: Any) -> Any:
        """SendMessage: every message to a queue of its topic."""
        if not request.messages:
            raise StatusError(pb.Code.MESSAGE_CORRUPTED, "no message to send")
        topics = {messages.topic_of(message) for message in request.messages}
        if len(topics) > 1:
            raise StatusError(pb.Code.MESSAGE_CORRUPTED, "all messages of a request must have the same topic")
        prepared = [await self._prepare(call, message) for message in request.messages]
        entries = [await self._entry(call, message, found) for message, found in prepared]
        return pb.SendMessageResponse(status=of_all(entries), entries=entries)

    async def _prepare(self, call: Call, message: Any) -> tuple[Any, dict[str, str]]:
        """A message and its properties. Raises StatusError, before any of a request is sent."""
        proxy, topic = self._proxy, messages.topic_of(message)
        proxy.check_topic(topic)
        self._check_body(message)
        found = messages.sent_properties(message, proxy.config, call.peer, proxy.now_ms())
        await self._check_type(topic, messages.type_name(found))
        return message, found

    async def _entry(self, call: Call, message: Any, found: dict[str, str]) -> Any:
        try:
            return await self._send_one(call, message, found)
        except KourouError as error:
            return pb.SendResultEntry(status=as_status(error))

    async def _send_one(self, call: Call, message: Any, found: dict[str, str]) -> Any:
        proxy, topic = self._proxy, messages.topic_of(message)
        route = await proxy.cluster.route(topic)
        queue = self._queue_for(route, found.get(names.SHARDING_KEY))
        is_half = message.system_properties.message_type == pb.MessageType.TRANSACTION
        if is_half:
            await proxy.transactions.join(topic, queue.broker_name)
        header = SendMessageV2(
            topic, topic, "TBW102", 4, queue.queue_id, messages.sys_flag_of(message),
            int(found[names.BORN_TIMESTAMP]), 0, encode_properties(found),
        )  # fmt: skip
        answer = await proxy.cluster.call(
            queue.broker_name, RequestCode.SEND_MESSAGE_V2, header, message.body, call.remaining_ms() / 1000
        )
        if answer.code not in STORED:
            return pb.SendResultEntry(status=of_answer(answer))
        receipt = read_receipt(message.system_properties.message_id, queue, answer)
        entry = pb.SendResultEntry(
            status=of_answer(answer), message_id=receipt.message_id, offset=receipt.queue_offset,
            recall_handle=receipt.recall_handle or "",
        )  # fmt: skip
        if is_half:
            place = decode_offset_message_id(receipt.offset_message_id)
            entry.transaction_id = TransactionId(
                queue.broker_name, receipt.queue_offset, place.physical_offset,
                receipt.transaction_id or receipt.message_id,
            ).text  # fmt: skip
        return entry

    def _check_body(self, message: Any) -> None:
        config, size = self._proxy.config, len(message.body)
        if size > config.max_message_size:
            raise StatusError(
                pb.Code.MESSAGE_BODY_TOO_LARGE,
                f"message body cannot exceed the max {config.max_message_size}",
            )
        if not size and config.enable_message_body_empty_check:
            raise StatusError(pb.Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")

    async def _check_type(self, topic: str, kind: str) -> None:
        if not self._proxy.config.enable_topic_message_type_check:
            return
        expected = await self._proxy.cluster.message_type(topic)
        if kind != expected and not (expected == "MIXED" and kind in _MIXED) and expected != "UNSPECIFIED":
            raise StatusError(
                pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "TopicMessageType validate failed,"
                f" the expected type is {expected}, but actual type is {kind}",
            )

    def _queue_for(self, route: TopicRoute, group: str | None) -> MessageQueue:
        queues = sorted(route.write_queues)
        if not queues:
            raise StatusError(pb.Code.FORBIDDEN, f"no queue of {route.topic} takes messages")
        if group is None:
            return queues[self._turns() % len(queues)]
        return queues[consistent_hash(java_hash(group), len(queues))]

    async def recall(self, call: Call, request: Any) -> Any:
        """RecallMessage: take back a message that waits for its time."""
        topic = call.name_of(request.topic)
        self._proxy.check_topic(topic)
        route = await self._proxy.cluster.route(topic)
        handle = RecallHandle.decode(request.recall_handle)
        if handle.broker_name not in route.addresses:
            raise StatusError(pb.Code.BAD_REQUEST, "recall handle is invalid")
        header = RecallMessage(topic, request.recall_handle, topic)
        answer = check(await self._proxy.cluster.call(handle.broker_name, RequestCode.RECALL_MESSAGE, header))
        return pb.RecallMessageResponse(status=OK, message_id=answer.ext_fields.get("msgId", ""))


def consistent_hash(value: int, buckets: int) -> int:
    """The bucket of a value (Guava's Hashing.consistentHash): few values move when buckets are added."""
    state, candidate = value & _MASK, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / 2**31))
        if not 0 <= following < buckets:
            return candidate
        candidate = following

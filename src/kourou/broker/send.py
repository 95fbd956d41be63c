"""Sends: a message comes in, is checked, gets the broker's properties and goes to the store.

The hot path is `send_v2` for one plain message: it reads the fields it needs by name, takes what the checks
of its topic found from a cache, and answers with a header put together from a template. Everything that
is rarer (batches, retries, delays, the long header) goes through `_send`, in the order of Java's
SendMessageProcessor.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from kourou.auth.rules import sending
from kourou.broker.config import resolved
from kourou.broker.groups import SubscriptionGroupConfig
from kourou.broker.header_forms import SendForm
from kourou.broker.names import check_topic_name, is_send_forbidden
from kourou.broker.send_answers import FAILURES, STORED, SendRefusedError, answer_template, remark_of
from kourou.broker.send_headers import read_header
from kourou.broker.stats import TopicStats
from kourou.errors import BadMessageError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.batch import iter_batch
from kourou.message.host import pack_host
from kourou.message.ids import UniqueIdGenerator
from kourou.message.plain_properties import PlainProperties
from kourou.message.properties import decode_properties, encode_properties
from kourou.message.recall import RecallHandle
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.command import JSON, RemotingCommand, decode_frame, frame_head
from kourou.remoting.connection import (
    Answer,
    CallTimeoutError,
    Connection,
    ConnectionLostError,
    Pieces,
)
from kourou.remoting.headers import ReplyMessage, SendMessage
from kourou.remoting.registration import PERM_READ, PERM_WRITE, UNIT_FLAG, UNIT_SUB_FLAG, TopicConfig
from kourou.store.config import BrokerRole
from kourou.store.put import InnerMessage
from kourou.store.queue_store import LMQ_SEPARATOR, allows_lmq
from kourou.store.status import PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

DLQ_QUEUES = 1
_MAX_INT_DIGITS = 9
BUSY = "[REJECTREQUEST]system busy, start flow control for a while"

PUT_OK = PutMessageStatus.PUT_OK
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
BORN_HOST_V6 = sysflag.BORN_HOST_V6

# A message with one of these is not plain: it is kept elsewhere first, or the broker's own property is in it.
_TIMER = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)

PutPlain = Callable[..., tuple[int, int, int] | None]  # PlainPuts.put, .put_batch
PutBatch = Callable[..., tuple[list[int], int, int] | None]
OnStored = Callable[[InnerMessage, PutMessageResult], None]


class _Target:
    """What the checks of a topic found. Hot: looked up for each message, made anew when topics change."""

    __slots__ = ("config", "is_plain", "name", "puts", "queue_ids", "queues", "sys_flag")

    def __init__(self, config: TopicConfig, is_batch: bool, stats: TopicStats, store_flag: int) -> None:
        self.config = config
        self.name = config.name
        self.queues = max(config.read_queue_nums, config.write_queue_nums)
        self.queue_ids = {str(queue_id): queue_id for queue_id in range(self.queues)}
        self.puts = [stats.queue(queue_id) for queue_id in range(self.queues)]
        multi = sysflag.MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0
        self.sys_flag = multi | store_flag
        compacted = config.attributes.get("cleanup.policy") == "COMPACTION"
        self.is_plain = not (is_batch or compacted or config.name.startswith(RETRY_PREFIX))


class MessageSender:
    """What the requests that bring messages do."""

    HANDLERS: ClassVar = {
        RequestCode.SEND_MESSAGE: "send",
        RequestCode.SEND_MESSAGE_V2: "send_v2",
        RequestCode.SEND_BATCH_MESSAGE: "send_v2",
        RequestCode.SEND_REPLY_MESSAGE: "reply",
        RequestCode.SEND_REPLY_MESSAGE_V2: "reply",
    }

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._has_put = broker.has_put
        self._put = broker.store.put_message
        self._put_plain: PutPlain = broker.store.plain.put
        self._put_plain_batch: PutBatch = broker.store.plain.put_batch
        self._put_many = broker.store.put_messages
        self._on_stored: OnStored | None = None
        self._targets: dict[str, _Target] = {}
        self._plain_targets: dict[bytes, _Target] = {}
        self._unique_id = UniqueIdGenerator(resolved(broker.config.broker_ip1))
        self.waiting = 0  # sends that are not answered yet
        self._slow_s = math.inf if broker.watch is None else broker.watch.slow_s
        self._stopping = False
        self.configure()

    def configure(self) -> None:
        """Take what is needed of the configuration; again after it changed."""
        config = self._broker.config
        self.store_host = pack_host(resolved(config.broker_ip1), config.listen_port)
        self._host_text = self.store_host.hex().upper()
        self._waits_for_disk = config.store.sync_flush
        self._waits_for_slaves = config.store.broker_role is BrokerRole.SYNC_MASTER
        self._waits = self._waits_for_disk or self._waits_for_slaves
        self._most_waiting = config.send_thread_pool_queue_capacity
        added = {
            names.MSG_REGION: config.region_id,
            names.TRACE_SWITCH: str(config.trace_on).lower(),
            names.CLUSTER: config.broker_cluster_name,
        }
        self._added = added
        self._plain_properties = PlainProperties(added)
        self._read_json = self._plain_properties.read_json
        self._answer_fields = {key: added[key] for key in (names.MSG_REGION, names.TRACE_SWITCH)}
        self._template = answer_template(self._answer_fields, self._host_text)
        self._targets.clear()
        self._plain_targets.clear()

    def count_puts(self, put_plain: PutPlain, put_batch: PutBatch, on_stored: OnStored) -> None:
        """Have plain messages and batches put by these, and tell of the others that were stored."""
        self._put_plain, self._put_plain_batch, self._on_stored = put_plain, put_batch, on_stored

    def stop(self) -> None:
        """Take no more messages."""
        self._stopping = True

    # Requests

    def send_v2(self, connection: Connection, request: RemotingCommand) -> Answer:
        """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE. Hot: every microsecond here is one of every message."""
        fields = request.ext_fields
        body = request.body
        try:
            target = self._targets[fields["b"]]
            queue_id, born, raw = target.queue_ids[fields["e"]], fields["g"], fields["i"]
            born_timestamp = int(born)
            is_plain = (
                target.is_plain
                and born.isdigit()
                and born.isascii()
                and fields["f"] == fields["h"] == "0"
                and fields.get("j", "0") == "0"
                and born_timestamp < 1 << 63
                and body is not None
                and not self._stopping
                and self.waiting < self._most_waiting
            )
        except (KeyError, ValueError):
            is_plain = False
        if not is_plain:
            return self.send(connection, request)
        assert body is not None
        name, sys_flag, born_host = target.name, target.sys_flag, connection.peer_host
        if len(born_host) == 20:
            sys_flag |= BORN_HOST_V6
        batch = fields.get("m", "false")
        if batch != "false" or request.code == SEND_BATCH:
            of_all = decode_properties(raw)
            if batch not in ("true", "false") or names.DELAY_TIME_LEVEL in of_all:
                return self.send(connection, request)  # any other text is false, or true with capitals
            return self._send_batch(
                connection, request, target, queue_id, of_all, sys_flag, born_timestamp, born_host
            )
        raw_bytes = raw.encode()
        read = self._plain_properties.read(raw_bytes)
        if read is None:
            return self.send(connection, request)
        unique_id, keys, model = read
        raw_bytes = self._plain_properties.stored(raw_bytes)
        put = self._put_plain(
            name, queue_id, body, raw_bytes, unique_id, keys, model, sys_flag, born_timestamp, born_host,
            self.store_host,
        )  # fmt: skip
        self._has_put()
        if put is None:
            message = InnerMessage.of_request(
                name, queue_id, body, raw_bytes.decode(), model.properties(unique_id, keys), sys_flag,
                born_timestamp, born_host, self.store_host,
            )  # fmt: skip
            return self._answer_when_stored(connection, request, message, self._put(message), queue_id, None)
        offset, queue_offset, size = put
        puts = target.puts[queue_id]
        puts.messages += 1
        puts.calls += 1
        puts.size_bytes += size
        answer: RemotingCommand | bytes
        if request.serialize_type != JSON:
            answer = request.response(0, self._fields(offset, queue_id, queue_offset, unique_id.decode()))
        else:
            answer = frame_head(
                JSON, self._template % (offset, queue_id, queue_offset, unique_id, request.opaque)
            )
        if not (self._waits and model.waits):
            return answer
        place = offset, queue_id, queue_offset, unique_id.decode()
        self._answer_when_safe(connection, request, answer, offset + size, place)
        return None

    def take(
        self, connection: Connection, data: bytes, view: memoryview, at: int, header_end: int, end: int
    ) -> bytes | Pieces | None:
        """The answer to a plain message of the form that its connection sends, taken from what was read;
        empty if it has to wait, None for what `send_v2` has to look at. Hot: the way of most messages.

        What is of another form may be a pull."""
        form: SendForm | None = connection.send_form
        if form is None or (match := form.match(data, at, header_end)) is None:
            return self._broker.puller.take(connection, data, at, header_end)
        if form.opaque_first:
            opaque, name, queue_text, born_text, text = match.groups()
        else:
            name, queue_text, born_text, text, opaque = match.groups()
        target = self._plain_targets.get(name)
        queue_id = int(queue_text)
        if (
            target is None
            or queue_id >= target.queues
            or end == header_end
            or self._stopping
            or self.waiting >= self._most_waiting
            or (read := self._read_json(text)) is None
        ):
            return None
        raw, unique_id, keys, model = read
        sys_flag, born_host = target.sys_flag, connection.peer_host
        if len(born_host) == 20:
            sys_flag |= BORN_HOST_V6
        put = self._put_plain(
            target.name, queue_id, view[header_end:end], raw, unique_id, keys, model, sys_flag,
            int(born_text), born_host, self.store_host,
        )  # fmt: skip
        if put is None:
            return None
        self._has_put()
        offset, queue_offset, size = put
        puts = target.puts[queue_id]
        puts.messages += 1
        puts.calls += 1
        puts.size_bytes += size
        answer = frame_head(JSON, self._template % (offset, queue_id, queue_offset, unique_id, int(opaque)))
        if not (self._waits and model.waits):
            return answer
        place = offset, queue_id, queue_offset, unique_id.decode()
        self._answer_when_safe(connection, data[at:header_end], answer, offset + size, place)
        return b""

    def _send_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        target: _Target,
        queue_id: int,
        properties: dict[str, str],
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
    ) -> Answer:
        body = request.body
        assert body is not None
        put = self._put_plain_batch(
            target.name, queue_id, body, sys_flag, born_timestamp, born_host, self.store_host
        )
        self._has_put()
        if put is None:
            message = InnerMessage.of_request(
                target.name, queue_id, body, "", properties, sys_flag, born_timestamp, born_host,
                self.store_host,
            )  # fmt: skip
            return self._answer_when_stored(
                connection, request, message, self._put_many(message), queue_id, None
            )
        offsets, queue_offset, size = put
        puts = target.puts[queue_id]
        puts.messages += len(offsets)
        puts.calls += 1
        puts.size_bytes += size
        prefix = self._host_text
        answered = self._fields(offsets[0], queue_id, queue_offset, properties.get("UNIQ_KEY"))
        answered["msgId"] = ",".join([f"{prefix}{offset:016X}" for offset in offsets])
        answer = request.response(0, answered)
        if not self._waits or properties.get("WAIT", "true").lower() != "true":
            return answer
        place = offsets[0], queue_id, queue_offset, properties.get("UNIQ_KEY")
        self._answer_when_safe(connection, request, answer, offsets[0] + size, place)
        return None

    def send(self, connection: Connection, request: RemotingCommand) -> Answer:
        """SEND_MESSAGE, SEND_BATCH_MESSAGE, and what of SEND_MESSAGE_V2 is not plain."""
        header = read_header(request)
        try:
            return self._send(connection, request, header)
        except SendRefusedError as refused:
            return request.response(refused.response_code, dict(self._answer_fields), remark=str(refused))

    def _send(self, connection: Connection, request: RemotingCommand, header: SendMessage) -> Answer:
        if request.body is None:
            raise BadMessageError("the request has no body")
        if self._stopping:
            raise SendRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down")
        if self.waiting >= self._most_waiting:
            raise SendRefusedError(ResponseCode.SYSTEM_BUSY, BUSY)
        known = self._targets.get(header.topic)
        is_new = known is None and self._broker.topics.get(header.topic) is None
        target = known or self._admit(connection, header)
        properties = decode_properties(header.properties)
        properties.pop(names.POP_CK, None)
        is_batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        if not is_batch and not properties.get(names.UNIQ_KEY):
            properties[names.UNIQ_KEY] = self._unique_id()
        config, queue_id = target.config, _queue_of(target, header, connection)
        topic = config.name
        if topic.startswith(RETRY_PREFIX):
            if is_batch:
                raise SendRefusedError(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
                )
            topic, queue_id = self._retry_or_dead_letter(header, topic, queue_id, properties)
        if not is_batch:
            queue_id = self._apply_properties(config, properties, topic, queue_id)
        self._check_light_queues(connection, request, topic, properties)
        properties.update(self._added)
        message = InnerMessage(
            topic, queue_id, request.body, properties, flag=header.flag,
            sys_flag=header.sys_flag & ~sysflag.TRANSACTION_MASK | target.sys_flag,
            born_timestamp=header.born_timestamp, born_host=connection.peer_host, store_host=self.store_host,
            reconsume_times=header.reconsume_times,
        )  # fmt: skip
        if is_batch:
            result, batch_id = self._put_batch(message, properties)
        else:
            # Clients before 4.6.1 leave the mark on messages that they send back.
            sent_back = header.reconsume_times > 0 and properties.get(names.DELAY_TIME_LEVEL, "0") != "0"
            prepared = _is_prepared(properties) and not sent_back
            put = self._broker.transactions.prepare if prepared else self._broker.put
            result, batch_id = put(message), None
        # A delayed message lies in another queue; its sender is told the one it asked for.
        answer = self._answer_when_stored(connection, request, message, result, queue_id, batch_id, is_new)
        if answer is None or not is_new:
            return answer
        self._broker.reply_when_routed(connection, request, answer)
        return None

    def _put_batch(
        self, message: InnerMessage, properties: dict[str, str]
    ) -> tuple[PutMessageResult, str | None]:
        unique_id = properties.get(names.UNIQ_KEY)
        if not (self._broker.topics.is_batch_topic(message.topic) and unique_id):
            result = self._broker.store.put_messages(message)
            self._broker.has_put()
            return result, None
        message.sys_flag |= sysflag.NEED_UNWRAP | sysflag.INNER_BATCH
        message.set_property(names.INNER_NUM, str(sum(1 for _ in iter_batch(message.body))))
        return self._broker.put(message), unique_id

    def _admit(self, connection: Connection, header: SendMessage) -> _Target:
        """The checks of AbstractSendMessageProcessor.msgCheck, which make a topic where that is allowed."""
        broker, config = self._broker, self._broker.config
        start = config.start_accept_send_request_time_stamp
        if start and broker.clock.now_ms() < start:
            until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start / 1000))
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        topic = header.topic
        known = broker.topics.get(topic)
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        mistake = check_topic_name(topic)
        if mistake is not None:
            raise SendRefusedError(ResponseCode.INVALID_PARAMETER, mistake)
        if is_send_forbidden(topic):
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if known is None:
            known = self._create_topic(connection, header)
        store_flag = sysflag.STORE_HOST_V6 if len(self.store_host) == 20 else 0
        is_batch = broker.topics.is_batch_topic(topic)
        target = _Target(known, is_batch, broker.stats.topic(topic), store_flag)
        if start == 0 and config.broker_permission & PERM_WRITE:
            self._targets[topic] = target  # nothing of what was checked changes without notice
            if target.is_plain:
                self._plain_targets[topic.encode()] = target
        return target

    def _create_topic(self, connection: Connection, header: SendMessage) -> TopicConfig:
        topics, topic = self._broker.topics, header.topic
        is_retry = topic.startswith(RETRY_PREFIX)
        unit = (UNIT_SUB_FLAG if is_retry else UNIT_FLAG) if header.unit_mode else 0
        made = topics.create_for_send(
            topic, header.default_topic, connection.peer, header.default_topic_queue_nums, unit
        )
        if made is None and is_retry:
            made = topics.create_for_send_back(topic, 1, PERM_READ | PERM_WRITE, unit)
        if made is None:
            raise SendRefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{ADVICE}"
            )
        return made

    def _apply_properties(
        self, config: TopicConfig, properties: dict[str, str], topic: str, queue_id: int
    ) -> int:
        """What some properties of a single message ask of the broker; the queue it goes to."""
        if self._broker.config.reject_transaction_message and _is_prepared(properties):
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._broker.config.broker_ip1}] sending transaction message is forbidden",
            )
        if config.attributes.get("cleanup.policy") == "COMPACTION" and not properties.get(names.KEYS):
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
        light = properties.get(names.LITE_TOPIC)
        if light:
            properties[names.INNER_MULTI_DISPATCH] = _lite_queue(topic, light)
        priority = properties.get(names.PRIORITY, "")
        if priority.isdecimal() and len(priority) <= _MAX_INT_DIGITS:
            exclusive = (names.DELAY_TIME_LEVEL, names.SHARDING_KEY, names.LITE_TOPIC, *_TIMER)
            if any(name in properties for name in exclusive):
                del properties[names.PRIORITY]
            else:
                queue_id = max(min(int(priority), config.write_queue_nums - 1), 0)
        return queue_id

    def _check_light_queues(
        self, connection: Connection, request: RemotingCommand, topic: str, properties: dict[str, str]
    ) -> None:
        """AccessError unless who sends may send to each light queue that the message goes to.

        Those of the topic's own lite topics need no more than the topic.
        """
        light = properties.get(names.INNER_MULTI_DISPATCH)
        if light is None or not allows_lmq(topic):
            return
        for name in light.split(LMQ_SEPARATOR):
            if not name.startswith(_lite_queue(topic, "")):
                owner, actions = sending(name)
                self._broker.guard.require(request, connection.peer, owner, *actions)

    # Retries

    def _retry_or_dead_letter(
        self, header: SendMessage, topic: str, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int]:
        """Where a message that a client sends back by itself goes: its retry topic, or the dead letters."""
        broker, group = self._broker, topic.removeprefix(RETRY_PREFIX)
        config = broker.groups.find(group)
        if config is None:
            raise SendRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {ADVICE}"
            )
        most = most_retries(config, header.max_reconsume_times)
        # A group that holds locks consumes in order: what it gives up is not tried again behind its back.
        if header.reconsume_times <= most and not broker.locks.has_locks(group):
            return topic, queue_id
        properties[names.DELAY_TIME_LEVEL] = "-1"
        broker.stats.count_dead_letter(header.producer_group, topic)
        return dead_letter_topic(broker, group), random.randrange(DLQ_QUEUES)

    # Request and reply

    def reply(self, connection: Connection, request: RemotingCommand) -> Answer:
        """SEND_REPLY_MESSAGE, _V2: hand an answer to the client that asked, and keep it."""
        header = read_header(request)
        try:
            target = self._admit(connection, header)
            queue_id = _queue_of(target, header, connection)
        except SendRefusedError as refused:
            return request.response(refused.response_code, dict(self._answer_fields), remark=str(refused))
        properties = decode_properties(header.properties)
        self._check_light_queues(connection, request, header.topic, properties)
        body = bytes(request.body or b"")
        self._broker.answer_later(
            connection, request, self._push_reply(connection, request, header, properties, queue_id, body)
        )
        return None

    async def _push_reply(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessage,
        properties: dict[str, str],
        queue_id: int,
        body: bytes,
    ) -> RemotingCommand:
        broker = self._broker
        properties = {**properties, **self._answer_fields}
        fields = dict(self._answer_fields)
        failure = await self._push(connection, header, properties, body)
        if failure is None:
            fields |= {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if broker.config.store_reply_message_enable:
            message = InnerMessage(
                header.topic, queue_id, body, properties, flag=header.flag,
                born_timestamp=header.born_timestamp, born_host=connection.peer_host,
                store_host=self.store_host, reconsume_times=header.reconsume_times,
            )  # fmt: skip
            result = broker.put(message)
            if result.status in STORED:
                fields |= self._place(result, queue_id)
                if self._on_stored is not None:
                    self._on_stored(message, result)
            else:
                log.warning("a reply was not stored: %s %s", result.status.name, result.reason)
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        return request.response(code, fields, remark=failure)

    async def _push(
        self, connection: Connection, header: SendMessage, properties: dict[str, str], body: bytes
    ) -> str | None:
        """Hand a reply to its client; why not, where it could not be done."""
        client_id = properties.get(names.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{names.REPLY_TO_CLIENT}] is null"
        asker = self._broker.producers.find(client_id)
        if asker is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._broker.clock.now_ms()
        properties = {**properties, names.PUSH_REPLY_TIME: str(now_ms)}  # it is pushed with it, not stored
        pushed = ReplyMessage(
            header.producer_group, header.topic, header.default_topic, header.default_topic_queue_nums,
            header.queue_id, header.sys_flag, header.born_timestamp, header.flag, connection.peer,
            self._broker.config.address, now_ms, encode_properties(properties), header.reconsume_times,
            header.unit_mode,
        )  # fmt: skip
        try:
            answer = await asker.call(
                RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.fields(), body)
            )
        except (ConnectionLostError, CallTimeoutError) as error:
            log.warning("a reply did not reach %s: %s", client_id, error)
            return f"push reply message to {client_id}fail."
        return None if answer.code == ResponseCode.SUCCESS else f"push reply message to {client_id}fail."

    # Answers

    def _answer_when_stored(
        self,
        connection: Connection,
        request: RemotingCommand,
        message: InnerMessage,
        result: PutMessageResult,
        queue_id: int,
        batch_id: str | None,
        is_new: bool = False,
    ) -> RemotingCommand | None:
        if result.status is not PUT_OK or not self._waits or not message.wait_store_msg_ok:
            return self._answer(request, message, result, queue_id, batch_id)
        self.waiting += 1

        def stored(status: PutMessageStatus) -> None:
            self.waiting -= 1
            reply = partial(self._broker.reply_when_routed, connection) if is_new else connection.reply
            reply(request, self._answer(request, message, result, queue_id, batch_id))

        self._broker.store.when_stored(result, message, stored)
        return None

    def _answer_when_safe(
        self,
        connection: Connection,
        request: RemotingCommand | bytes,
        answer: RemotingCommand | bytes,
        end: int,
        place: tuple[int, int, int, str | None],
    ) -> None:
        """Answer a plain message, of which at least the JSON header is there, when the disk or enough slaves
        have the log up to its end. Hot with SYNC_FLUSH and on a SYNC_MASTER."""
        self.waiting += 1
        began = perf_counter()
        if isinstance(request, RemotingCommand):
            request.body = None  # it would keep the bytes of its read

        def safe(status: PutMessageStatus) -> None:
            self.waiting -= 1
            if isinstance(request, RemotingCommand):
                asked = request
            elif status is PUT_OK and perf_counter() - began < self._slow_s:
                connection.send(answer)
                return
            else:
                asked = decode_frame(memoryview(request), 0, len(request), len(request))
                asked.began = began
            failed = status is not PUT_OK
            connection.reply(
                asked, asked.response(STORED[status], self._fields(*place)) if failed else answer
            )

        self._broker.store.when_safe(end, safe)

    def _answer(
        self,
        request: RemotingCommand,
        message: InnerMessage,
        result: PutMessageResult,
        queue_id: int,
        batch_id: str | None = None,
    ) -> RemotingCommand:
        fields = dict(self._answer_fields)
        code = STORED.get(result.status)
        if code is None:
            log.warning(
                "a message for %s was refused: %s %s", message.topic, result.status.name, result.reason
            )
            refused = FAILURES.get(result.status, ResponseCode.SYSTEM_ERROR)
            return request.response(refused, fields, remark=remark_of(result, self._broker.config))
        puts = self._broker.stats.topic(message.topic).queue(message.queue_id)
        puts.messages += result.message_count
        puts.calls += 1
        puts.size_bytes += result.wrote_bytes
        if self._on_stored is not None:
            self._on_stored(message, result)
        if batch_id is not None:
            fields["batchUniqId"] = batch_id
        fields |= self._place(result, queue_id)
        unique_id = message.properties.get(names.UNIQ_KEY)
        if unique_id is not None:
            fields["transactionId"] = unique_id
        handle = RecallHandle.of_stored(message.properties, self._broker.config.broker_name)
        if handle is not None and request.code != SEND_BATCH:
            fields["recallHandle"] = handle.encode()
        return request.response(code, fields)

    def _fields(self, offset: int, queue_id: int, queue_offset: int, unique_id: str | None) -> dict[str, str]:
        """The fields of an answer to a plain message."""
        fields = {
            **self._answer_fields,
            "msgId": f"{self._host_text}{offset:016X}",
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }
        if unique_id is not None:
            fields["transactionId"] = unique_id
        return fields

    def _place(self, result: PutMessageResult, queue_id: int) -> dict[str, str]:
        prefix = self._host_text
        offsets = result.physical_offsets or [result.physical_offset]
        return {
            "msgId": ",".join(f"{prefix}{offset:016X}" for offset in offsets),
            "queueId": str(queue_id),
            "queueOffset": str(result.queue_offset),
        }


def most_retries(config: SubscriptionGroupConfig, asked: int | None) -> int:
    """How often a message may be tried again: as its group is set, or as its client says, of any version."""
    return config.retry_max_times if asked is None else asked


def dead_letter_topic(broker: Broker, group: str) -> str:
    """The topic of what a group gave up."""
    topic = DLQ_PREFIX + group
    broker.topics.create_for_send_back(topic, DLQ_QUEUES, PERM_READ | PERM_WRITE)
    return topic


def _queue_of(target: _Target, header: SendMessage, connection: Connection) -> int:
    """The queue that a message goes to: the one it names, or any."""
    if header.queue_id >= target.queues:
        raise SendRefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{header.queue_id}] is illegal, {target.name} has {target.queues} queues"
            f" Producer: {connection.peer}",
        )
    if header.queue_id >= 0:
        return header.queue_id
    if target.config.write_queue_nums <= 0:
        raise SendRefusedError(ResponseCode.INVALID_PARAMETER, f"{target.name} has no queue to write to")
    return random.randrange(target.config.write_queue_nums)


def _lite_queue(topic: str, lite_topic: str) -> str:
    return f"%LMQ%${topic}${lite_topic}"


def _is_prepared(properties: dict[str, str]) -> bool:
    return properties.get(names.TRANSACTION_PREPARED, "").lower() == "true"

"""Sends: a message comes in, is checked, gets the broker's properties and goes to the store.

`MessageSender.send` is the way of every message and batch, in the order of Java's SendMessageProcessor. What
the checks of a topic found is taken from a cache; the properties are read once; what they say chooses where
the message is put: its queue, or where it waits for its time or for the end of its transaction.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kourou.auth.rules import sending
from kourou.broker.config import resolved
from kourou.broker.messages.send_answers import FAILURES, STORED, AnswerForms, NotTakenError, remark_of
from kourou.broker.names import check_topic_name, is_send_forbidden
from kourou.broker.state.groups import SubscriptionGroupConfig
from kourou.errors import BadMessageError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.batch import iter_batch
from kourou.message.host import pack_host
from kourou.message.ids import UniqueIdGenerator
from kourou.message.properties import decode_properties, encode_properties, read_properties
from kourou.message.recall import RecallHandle
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.connection import (
    Answer,
    CallTimeoutError,
    Connection,
    ConnectionLostError,
)
from kourou.remoting.protocol.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import ReplyMessage, SendMessage, SendMessageV2
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, UNIT_FLAG, UNIT_SUB_FLAG, TopicConfig
from kourou.store.put import InnerMessage
from kourou.store.queue.queue_store import LMQ_SEPARATOR, allows_lmq
from kourou.store.status import PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

DLQ_QUEUES = 1
_MAX_INT_DIGITS = 9
BUSY = "[REJECTREQUEST]system busy, start flow control for a while"

_LONG = {int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE)}  # with the long names of fields
PUT_OK = PutMessageStatus.PUT_OK
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)

_TIMER = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
# A message with one of these is kept elsewhere first, goes to further queues, or says what the broker says.
UNUSUAL = frozenset(
    (
        names.TRANSACTION_PREPARED, names.DELAY_TIME_LEVEL, *_TIMER, names.TIMER_OUT_MS, names.POP_CK,
        names.PRIORITY, names.LITE_TOPIC, names.MSG_REGION, names.TRACE_SWITCH, names.CLUSTER,
        names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET,
    )
)  # fmt: skip
# Of the flag that a sender gives: what only the broker says of a record is left out.
_SENDERS_FLAGS = ~(sysflag.TRANSACTION_MASK | sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6)

OnStored = Callable[[InnerMessage, PutMessageResult], None]


class _Target:
    """What the checks of a topic found. Hot: looked up for each message, made anew when topics change."""

    __slots__ = ("config", "is_usual", "name", "queues", "sys_flag")

    def __init__(self, config: TopicConfig, is_batch: bool, store_flag: int) -> None:
        self.config = config
        self.name = config.name
        self.queues = max(config.read_queue_nums, config.write_queue_nums)
        multi = sysflag.MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0
        self.sys_flag = multi | store_flag
        compacted = config.attributes.get("cleanup.policy") == "COMPACTION"
        self.is_usual = not (is_batch or compacted or config.name.startswith(RETRY_PREFIX))


class MessageSender:
    """What the requests that bring messages do."""

    HANDLERS: ClassVar = {
        RequestCode.SEND_MESSAGE: "send",
        RequestCode.SEND_MESSAGE_V2: "send",
        RequestCode.SEND_BATCH_MESSAGE: "send",
        RequestCode.SEND_REPLY_MESSAGE: "reply",
        RequestCode.SEND_REPLY_MESSAGE_V2: "reply",
    }

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._has_put = broker.has_put
        self._stats = broker.stats
        self._put = broker.store.put_message
        self.on_stored: OnStored | None = None  # hears of each message and batch that was stored
        self._targets: dict[str, _Target] = {}
        self._unique_id = UniqueIdGenerator(resolved(broker.config.broker_ip1))
        self.waiting = 0  # sends that are not answered yet
        self._stopping = False
        self.configure()

    def configure(self) -> None:
        """Take what is needed of the configuration; again after it changed."""
        config = self._broker.config
        self.store_host = pack_host(resolved(config.broker_ip1), config.listen_port)
        self._host_text = self.store_host.hex().upper()
        self._waits = config.store.sync_copies
        self._most_waiting = 0 if self._stopping else config.send_thread_pool_queue_capacity
        self._added = {
            names.MSG_REGION: config.region_id,
            names.TRACE_SWITCH: str(config.trace_on).lower(),
            names.CLUSTER: config.broker_cluster_name,
        }
        self._added_raw = encode_properties(self._added)
        self._added_after = names.PROPERTY_SEPARATOR + self._added_raw  # where senders leave out the last one
        self._answer_fields = {key: self._added[key] for key in (names.MSG_REGION, names.TRACE_SWITCH)}
        self._answers = AnswerForms(self._answer_fields, self._host_text)
        self._targets.clear()

    def stop(self) -> None:
        """Take no more messages."""
        self._stopping = True
        self._most_waiting = 0

    # Requests

    def send(self, connection: Connection, request: RemotingCommand) -> Answer:
        """SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: a message or a batch, from its request to the
        log. Hot: every microsecond here is one of every message."""
        header, body = request.header or _read_header(request), request.body
        if body is None:
            raise BadMessageError("the request has no body")
        try:
            if self.waiting >= self._most_waiting:
                raise self._too_many()
            target, is_new = self._targets.get(header.topic), False
            if target is None:
                is_new = self._broker.topics.get(header.topic) is None
                target = self._admit(connection, header)
            topic, queue_id, raw = target.name, header.queue_id, header.properties
            if not 0 <= queue_id < target.queues:
                queue_id = _queue_of(target, header, connection)
            properties, is_clean = read_properties(raw)
            is_batch = header.batch or request.code == SEND_BATCH
            # A message as most are needs nothing but the log. Others are kept elsewhere first, go to other
            # queues, or say something that only the broker may say.
            is_usual = (
                is_clean
                and not is_batch
                and target.is_usual
                and "UNIQ_KEY" in properties
                and UNUSUAL.isdisjoint(properties)
            )
            if is_usual:
                raw += self._added_raw if raw[-1] == "\x02" else self._added_after
                properties |= self._added
            else:
                topic, queue_id = self._adapt(
                    connection, request, header, target, queue_id, properties, is_batch=is_batch
                )
                raw = None
            message = InnerMessage(
                topic, queue_id, body, raw, properties,
                header.sys_flag & _SENDERS_FLAGS | target.sys_flag | connection.peer_flag,
                header.born_timestamp, connection.peer_host, self.store_host, header.flag,
                header.reconsume_times,
            )  # fmt: skip
            batch_id = None
            if is_usual:
                result = self._put(message)
                self._has_put()
            elif is_batch:
                result, batch_id = self._put_batch(message, properties)
            else:
                result = self._put_where_it_waits(message)
        except NotTakenError as refused:
            return request.response(refused.response_code, dict(self._answer_fields), remark=str(refused))
        # A delayed message lies in another queue; its sender is told the one it asked for.
        if self._waits and result.status is PUT_OK and message.wait_store_msg_ok:
            self._answer_when_safe(connection, request, message, result, queue_id, batch_id, is_new)
            return None
        answer = self._answer(request, message, result, queue_id, batch_id)
        if is_new:
            self._broker.reply_when_routed(connection, request, answer)
            return None
        return answer

    def _too_many(self) -> NotTakenError:
        """Why no message is taken now."""
        if self._stopping:
            return NotTakenError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down")
        return NotTakenError(ResponseCode.SYSTEM_BUSY, BUSY)

    def _adapt(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessage,
        target: _Target,
        queue_id: int,
        properties: dict[str, str],
        *,
        is_batch: bool,
    ) -> tuple[str, int]:
        """Make of what a message says what the broker does with it; the topic and queue that it goes to."""
        topic = target.name
        properties.pop(names.POP_CK, None)
        if not is_batch and not properties.get(names.UNIQ_KEY):
            properties[names.UNIQ_KEY] = self._unique_id()
        if topic.startswith(RETRY_PREFIX):
            if is_batch:
                raise NotTakenError(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
                )
            topic, queue_id = self._retry_or_dead_letter(header, topic, queue_id, properties)
        if not is_batch:
            queue_id = self._apply_properties(target.config, properties, topic, queue_id)
        self._check_light_queues(connection, request, topic, properties)
        properties.update(self._added)
        return topic, queue_id

    def _put_where_it_waits(self, message: InnerMessage) -> PutMessageResult:
        """Put a message that may have to wait for its time or for the end of its transaction."""
        properties = message.properties
        # Clients before 4.6.1 leave the mark on messages that they send back.
        sent_back = message.reconsume_times > 0 and properties.get(names.DELAY_TIME_LEVEL, "0") != "0"
        if _is_prepared(properties) and not sent_back:
            return self._broker.transactions.prepare(message)
        return self._broker.put(message)

    def _put_batch(
        self, message: InnerMessage, properties: dict[str, str]
    ) -> tuple[PutMessageResult, str | None]:
        unique_id = properties.get(names.UNIQ_KEY)
        if not (self._broker.topics.is_batch_topic(message.topic) and unique_id):
            result = self._broker.store.put_messages(message)
            self._has_put()
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
            raise NotTakenError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        topic = header.topic
        known = broker.topics.get(topic)
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise NotTakenError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        mistake = check_topic_name(topic)
        if mistake is not None:
            raise NotTakenError(ResponseCode.INVALID_PARAMETER, mistake)
        if is_send_forbidden(topic):
            raise NotTakenError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if known is None:
            known = self._create_topic(connection, header)
        store_flag = sysflag.STORE_HOST_V6 if len(self.store_host) == 20 else 0
        is_batch = broker.topics.is_batch_topic(topic)
        target = _Target(known, is_batch, store_flag)
        if start == 0 and config.broker_permission & PERM_WRITE:
            self._targets[topic] = target  # nothing of what was checked changes without notice
        return target

    def _create_topic(self, connection: Connection, header: SendMessage) -> TopicConfig:
        topics, topic = self._broker.topics, header.topic
        is_retry = topic.startswith(RETRY_PREFIX)
        if is_retry:
            self._retry_group(topic)  # anybody could make topics of groups that are not there
        unit = (UNIT_SUB_FLAG if is_retry else UNIT_FLAG) if header.unit_mode else 0
        made = topics.create_for_send(
            topic, header.default_topic, connection.peer, header.default_topic_queue_nums, unit
        )
        if made is None and is_retry:
            made = topics.create_for_send_back(topic, 1, PERM_READ | PERM_WRITE, unit)
        if made is None:
            raise NotTakenError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{ADVICE}"
            )
        return made

    def _apply_properties(
        self, config: TopicConfig, properties: dict[str, str], topic: str, queue_id: int
    ) -> int:
        """What some properties of a single message ask of the broker; the queue it goes to."""
        if self._broker.config.reject_transaction_message and _is_prepared(properties):
            raise NotTakenError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._broker.config.broker_ip1}] sending transaction message is forbidden",
            )
        if config.attributes.get("cleanup.policy") == "COMPACTION" and not properties.get(names.KEYS):
            raise NotTakenError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
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
        if light is None or not (self._broker.guard.authorizes and allows_lmq(topic)):
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
        broker, config = self._broker, self._retry_group(topic)
        group = config.group_name
        most = most_retries(config, header.max_reconsume_times)
        # A group that holds locks consumes in order: what it gives up is not tried again behind its back.
        if header.reconsume_times <= most and not broker.locks.has_locks(group):
            return topic, queue_id
        properties[names.DELAY_TIME_LEVEL] = "-1"
        broker.stats.count_dead_letter(header.producer_group, topic)
        return dead_letter_topic(broker, group), random.randrange(DLQ_QUEUES)

    def _retry_group(self, topic: str) -> SubscriptionGroupConfig:
        """The group whose retry topic this is. NotTakenError if there is none."""
        group = topic.removeprefix(RETRY_PREFIX)
        config = self._broker.groups.find(group)
        if config is None:
            raise NotTakenError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {ADVICE}"
            )
        return config

    # Request and reply

    def reply(self, connection: Connection, request: RemotingCommand) -> Answer:
        """SEND_REPLY_MESSAGE, _V2: hand an answer to the client that asked, and keep it."""
        header = _read_header(request)
        try:
            target = self._admit(connection, header)
            queue_id = _queue_of(target, header, connection)
        except NotTakenError as refused:
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
            message = InnerMessage.of(
                header.topic, queue_id, body, properties, flag=header.flag,
                born_timestamp=header.born_timestamp, born_host=connection.peer_host,
                store_host=self.store_host, reconsume_times=header.reconsume_times,
            )  # fmt: skip
            result = broker.put(message)
            if result.status in STORED:
                fields |= self._place(result, queue_id)
                if self.on_stored is not None:
                    self.on_stored(message, result)
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
        if asker is None or not self._broker.guard.may_send(asker.user, asker.connection.peer):
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
            answer = await asker.connection.call(
                RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.fields(), body)
            )
        except (ConnectionLostError, CallTimeoutError) as error:
            log.warning("a reply did not reach %s: %s", client_id, error)
            return f"push reply message to {client_id}fail."
        return None if answer.code == ResponseCode.SUCCESS else f"push reply message to {client_id}fail."

    # Answers

    def _answer_when_safe(
        self,
        connection: Connection,
        request: RemotingCommand,
        message: InnerMessage,
        result: PutMessageResult,
        queue_id: int,
        batch_id: str | None,
        is_new: bool,
    ) -> None:
        """Answer when the disk or enough slaves have the message."""
        self.waiting += 1
        request.body, message.body = None, b""  # they would keep the bytes of their read

        def stored(status: PutMessageStatus) -> None:
            self.waiting -= 1
            result.status = status
            reply = partial(self._broker.reply_when_routed, connection) if is_new else connection.reply
            reply(request, self._answer(request, message, result, queue_id, batch_id))

        self._broker.store.when_safe(result.physical_offset + result.wrote_bytes, stored)

    def _answer(
        self,
        request: RemotingCommand,
        message: InnerMessage,
        result: PutMessageResult,
        queue_id: int,
        batch_id: str | None,
    ) -> RemotingCommand | bytes:
        """What a sender is told. Hot."""
        status, properties = result.status, message.properties
        code = 0 if status is PUT_OK else STORED.get(status)
        if code is None:
            log.warning("a message for %s was refused: %s %s", message.topic, status.name, result.reason)
            refused = FAILURES.get(status, ResponseCode.SYSTEM_ERROR)
            remark = remark_of(result, self._broker.config)
            return request.response(refused, dict(self._answer_fields), remark=remark)
        try:
            puts = self._stats.topics[message.topic].queues[message.queue_id]
        except KeyError:
            puts = self._stats.topic(message.topic).queue(message.queue_id)
        puts.messages += result.message_count
        puts.calls += 1
        puts.size_bytes += result.wrote_bytes
        if self.on_stored is not None:
            self.on_stored(message, result)
        unique_id, handle = properties.get("UNIQ_KEY"), None
        if "TIMER_OUT_MS" in properties and request.code != SEND_BATCH:
            handle = RecallHandle.of_stored(properties, self._broker.config.broker_name)
        is_simple = result.physical_offsets is None and code == 0 and batch_id is None and handle is None
        # What has to be escaped in JSON is not alphanumeric; ids never are anything else.
        if is_simple and unique_id is not None and unique_id.isalnum() and unique_id.isascii():
            return self._answers.frame(
                request.serialize_type, request.opaque, result.physical_offset, queue_id,
                result.queue_offset, unique_id,
            )  # fmt: skip
        fields = dict(self._answer_fields)
        if batch_id is not None:
            fields["batchUniqId"] = batch_id
        fields |= self._place(result, queue_id)
        if unique_id is not None:
            fields["transactionId"] = unique_id
        if handle is not None:
            fields["recallHandle"] = handle.encode()
        return request.response(code, fields)

    def _place(self, result: PutMessageResult, queue_id: int) -> dict[str, str]:
        prefix = self._host_text
        offsets = result.physical_offsets or [result.physical_offset]
        return {
            "msgId": ",".join([f"{prefix}{offset:016X}" for offset in offsets]),
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
    """The queue that a message goes to, where it does not name one that there is: any, or none."""
    if header.queue_id < 0 < target.config.write_queue_nums:
        return random.randrange(target.config.write_queue_nums)
    if header.queue_id < 0:
        raise NotTakenError(ResponseCode.INVALID_PARAMETER, f"{target.name} has no queue to write to")
    if header.queue_id < target.queues:
        return header.queue_id
    raise NotTakenError(
        ResponseCode.INVALID_PARAMETER,
        f"request queueId[{header.queue_id}] is illegal, {target.name} has {target.queues} queues"
        f" Producer: {connection.peer}",
    )


def _read_header(request: RemotingCommand) -> SendMessage:
    return (SendMessage if request.code in _LONG else SendMessageV2).read(request)


def _lite_queue(topic: str, lite_topic: str) -> str:
    return f"%LMQ%${topic}${lite_topic}"


def _is_prepared(properties: dict[str, str]) -> bool:
    return properties.get(names.TRANSACTION_PREPARED, "").lower() == "true"

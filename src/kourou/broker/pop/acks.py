"""Acknowledgements (AckMessageProcessor, ChangeInvisibleTimeProcessor).

Those of a group without order are messages to the revive topic. In an ordered group each moves the offset of
its queue, as far as nothing before it is in flight.
"""

from __future__ import annotations

import base64
import binascii
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kourou.broker.pop.checkpoints import MAX_MESSAGES, Ack, CheckPoint
from kourou.broker.pop.order import NOT_IN_FLIGHT
from kourou.broker.pop.popper import NOT_SET
from kourou.remoting.connection import Answer, Connection
from kourou.remoting.protocol.bodies import as_object, read_body, read_int, read_text
from kourou.remoting.protocol.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import ORDER_QUEUE, Handle, retry_topic
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.headers import AckMessage, ChangeInvisibleTime
from kourou.store.status import PutMessageResult

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

OF_MASTER = "this broker is a slave: its master takes acknowledgements"
MAX_BITS_BYTES = 4096  # of a batch: offsets up to 32,768 after its first


def ack(broker: Broker, connection: Connection, request: RemotingCommand) -> Answer:
    """ACK_MESSAGE: a message is done."""
    header = AckMessage.read(request)
    refused = _refusal(broker, connection, request, header)
    if refused is not None:
        return refused
    low, high = _range(broker, header.topic, header.queue_id)
    if not low <= header.offset <= high:
        remark = (
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset},"
            f" store:{low}~{high}"
        )
        return request.response(ResponseCode.NO_MESSAGE, remark=remark)
    handle = Handle.read(header.extra_info)
    done = Ack(
        header.topic, header.consumer_group, header.queue_id, handle.start_offset, handle.pop_time_ms,
        handle.broker, [header.offset],
    )  # fmt: skip
    if handle.is_ordered:
        mistake = _ack_in_order(broker, connection, done)
        if mistake is not None:
            return request.response(ResponseCode.MESSAGE_ILLEGAL, remark=mistake)
        return request.response()
    stored = broker.popper.put_ack(done, handle.revive_queue, handle.invisible_ms)
    return broker.popper.answer_when_safe(connection, request, stored, request.response())


def batch_ack(broker: Broker, connection: Connection, request: RemotingCommand) -> Answer:
    """BATCH_ACK_MESSAGE: messages of several queues are done. What is illegal among them is left out."""
    if broker.slave is not None:
        return request.response(ResponseCode.SYSTEM_ERROR, remark=OF_MASTER)
    if not request.body:
        return request.response(ResponseCode.NO_MESSAGE)
    body = read_body(request.body, "BATCH_ACK_MESSAGE")
    acks = body.get("acks")
    if not isinstance(acks, list) or not acks:
        return request.response(ResponseCode.NO_MESSAGE)
    name = body.get("brokerName") or broker.config.broker_name
    batches = [_read_batch(as_object(each, "acks"), str(name)) for each in acks]
    mistake = None
    results: list[PutMessageResult] = []
    for done, revive_queue, invisible_ms in batches:
        low, high = _range(broker, done.topic, done.queue_id)
        if broker.store.queues.get(done.topic, done.queue_id) is None:
            log.warning("%s acknowledges messages of %s, queue %d, which is not there",
                        connection.peer, done.topic, done.queue_id)  # fmt: skip
            continue
        offsets = [offset for offset in done.offsets if low <= offset <= high]
        if revive_queue == ORDER_QUEUE:
            for offset in offsets:
                mistake = _ack_in_order(broker, connection, replace(done, offsets=[offset])) or mistake
        elif offsets:
            results += broker.popper.put_ack(replace(done, offsets=offsets), revive_queue, invisible_ms)
    answer = request.response()
    if mistake is not None:
        answer = request.response(ResponseCode.MESSAGE_ILLEGAL, remark=mistake)
    return broker.popper.answer_when_safe(connection, request, results, answer)


def change_invisible(broker: Broker, connection: Connection, request: RemotingCommand) -> Answer:
    """CHANGE_MESSAGE_INVISIBLETIME: a message comes again at another time."""
    header = ChangeInvisibleTime.read(request)
    refused = _refusal(broker, connection, request, header)
    if refused is not None:
        return refused
    low, high = _range(broker, header.topic, header.queue_id)
    if not low <= header.offset < high:
        return request.response(ResponseCode.NO_MESSAGE, {}, remark=NOT_SET)
    mistake = broker.popper.admission.check_invisible(header.invisible_time)
    if mistake is not None:
        return request.response(ResponseCode.INVALID_PARAMETER, {}, remark=mistake)
    handle, now_ms = Handle.read(header.extra_info), broker.clock.now_ms()
    topic, group, queue_id, offset = header.topic, header.consumer_group, header.queue_id, header.offset
    if handle.is_ordered:
        if offset < broker.offsets.query(group, topic, queue_id):
            return request.response(ResponseCode.SUCCESS, {}, remark=NOT_SET)
        until_ms = now_ms + header.invisible_time
        broker.orders.hide(topic, group, queue_id, offset, handle.pop_time_ms, until_ms)
        if header.invisible_time <= 0:
            broker.popper.wake(topic, group, queue_id)
        return _changed(request, until_ms - handle.pop_time_ms, handle.pop_time_ms, handle.revive_queue)
    # First the new check point, then the old one is done: between the two nothing is lost. Its pop time is
    # another in any case: with the same, the acknowledgement of the old one would do for both.
    now_ms = max(now_ms, handle.pop_time_ms + 1)
    point = CheckPoint(
        topic, group, queue_id, offset, now_ms, header.invisible_time, handle.broker, [0],
        is_suspended=header.suspend,
    )  # fmt: skip
    result = broker.popper.put_check_point(point, handle.revive_queue)
    if not result.ok:
        return broker.popper.answer_when_safe(connection, request, [result], request.response())
    done = Ack(topic, group, queue_id, handle.start_offset, handle.pop_time_ms, handle.broker, [offset])
    results = [result, *broker.popper.put_ack(done, handle.revive_queue, handle.invisible_ms)]
    answer = _changed(request, header.invisible_time, now_ms, handle.revive_queue)
    return broker.popper.answer_when_safe(connection, request, results, answer)


def _changed(
    request: RemotingCommand, invisible_ms: int, pop_time_ms: int, revive_queue: int
) -> RemotingCommand:
    fields = {
        "invisibleTime": str(invisible_ms),
        "popTime": str(pop_time_ms),
        "reviveQid": str(revive_queue),
    }
    return request.response(ResponseCode.SUCCESS, fields, remark=NOT_SET)


def _refusal(
    broker: Broker,
    connection: Connection,
    request: RemotingCommand,
    header: AckMessage | ChangeInvisibleTime,
) -> RemotingCommand | None:
    if broker.slave is not None:
        return request.response(ResponseCode.SYSTEM_ERROR, remark=OF_MASTER)
    topic = broker.topics.get(header.topic)
    if topic is None:
        remark = f"topic[{header.topic}] not exist, apply first please! {ADVICE}"
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    if not 0 <= header.queue_id < topic.read_queue_nums:
        remark = (
            f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}]"
            f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.peer}]"
        )
        return request.response(ResponseCode.MESSAGE_ILLEGAL, remark=remark)
    return None


def _range(broker: Broker, topic: str, queue_id: int) -> tuple[int, int]:
    return max(broker.store.min_offset(topic, queue_id), 0), broker.store.max_offset(topic, queue_id)


def _ack_in_order(broker: Broker, connection: Connection, done: Ack) -> str | None:
    """A message of an ordered group is done; why it cannot be."""
    topic, group, queue_id, offset = done.topic, done.group, done.queue_id, done.offsets[0]
    before = broker.offsets.query(group, topic, queue_id)
    if offset < before:
        return None  # done before
    following = broker.orders.ack(topic, group, queue_id, offset, done.pop_time_ms)
    if following == NOT_IN_FLIGHT:
        return (
            f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{before}, commit:{offset},"
            f" next:{following}, /{connection.peer}"
        )
    if following >= 0:
        if not broker.offsets.has_reset(topic, group, queue_id):
            broker.offsets.commit(connection.peer, group, topic, queue_id, following)
        if not broker.orders.is_blocked(topic, group, queue_id, None):
            broker.popper.wake(topic, group, queue_id)
    return None


def _read_batch(value: dict[str, Any], broker_name: str) -> tuple[Ack, int, int]:
    """The messages of one entry, their revive queue and invisible time."""
    group, kind = read_text(value, "c"), read_text(value, "r", "0")
    if kind not in ("0", "1", "2"):
        raise BadRequestError(f"the field <r> is {kind[:20]!r}, not 0, 1 or 2")
    start = read_int(value, "so")
    done = Ack(
        retry_topic(read_text(value, "t"), group, kind), group, read_int(value, "q"), start,
        read_int(value, "pt"), broker_name, [start + bit for bit in _bits(read_text(value, "b"))],
        is_batch=True,
    )  # fmt: skip
    return done, read_int(value, "rq"), read_int(value, "it")


def _bits(text: str) -> list[int]:
    """The numbers of a Java BitSet, in base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError("the field <b> is no base64") from None
    if len(data) > MAX_BITS_BYTES:
        raise BadRequestError(f"the field <b> has {len(data)} bytes, {MAX_BITS_BYTES} may be")
    bits = int.from_bytes(data, "little")
    if bits.bit_count() > MAX_MESSAGES:
        raise BadRequestError(f"the field <b> names {bits.bit_count()} messages, {MAX_MESSAGES} may be")
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


HANDLERS = {
    RequestCode.ACK_MESSAGE: ack,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible,
}

"""PEEK_MESSAGE: messages that a group would be given next, which stay (PeekMessageProcessor)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kourou.broker.pop.admission import MAX_MESSAGES, RefusedError
from kourou.remoting.connection import Answer, Connection
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand, frame_head
from kourou.remoting.protocol.handles import retry_topic
from kourou.remoting.protocol.headers import PeekMessage

if TYPE_CHECKING:
    from kourou.broker.server import Broker

RETRIES_FIRST = 0.2  # in so many cases, as in Java


def peek(broker: Broker, connection: Connection, request: RemotingCommand) -> Answer:
    """PEEK_MESSAGE: messages of a topic and of its retries. Offsets stay where they are."""
    header, popper = PeekMessage.read(request), broker.popper
    topic, group = header.topic, header.consumer_group
    try:
        popper.admission.check(connection, topic, group, header.queue_id, "peeking")
    except RefusedError as refused:
        return refused.answer(request)
    retries, chance = retry_topic(topic, group, popper.admission.retry_kind()), random.randrange(100)
    whole = popper.queues_of(topic, chance) if header.queue_id < 0 else iter([header.queue_id])
    places = [(topic, queue_id) for queue_id in whole]
    others = [(retries, queue_id) for queue_id in popper.queues_of(retries, chance)]
    pieces: list[bytes | memoryview] = []
    wanted, rest = min(header.max_msg_nums, MAX_MESSAGES), 0
    for name, queue_id in (others + places) if random.random() < RETRIES_FIRST else (places + others):
        offset = max(popper.next_offset(name, group, queue_id), broker.store.min_offset(name, queue_id), 0)
        rest += max(broker.store.max_offset(name, queue_id) - offset, 0)
        if wanted > 0:
            found = broker.store.get_message(name, queue_id, offset, wanted)
            wanted -= found.message_count
            pieces += found.blocks
    fields = {"invisibleTime": "0", "popTime": "0", "restNum": str(rest), "reviveQid": "0"}
    if not pieces:
        return request.response(ResponseCode.PULL_NOT_FOUND, fields, remark="NO_MESSAGE_IN_QUEUE")
    head = request.response(ResponseCode.SUCCESS, fields, remark="FOUND").encode_header()
    return [frame_head(request.serialize_type, head, sum(map(len, pieces))), *pieces]


HANDLERS = {RequestCode.PEEK_MESSAGE: peek}

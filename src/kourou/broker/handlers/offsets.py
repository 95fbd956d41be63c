"""Offsets of consumer groups: asked, committed, reset, cloned (ConsumerManageProcessor, Broker2Client)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from kourou.auth.rules import GET, UPDATE
from kourou.auth.rules import group as group_of
from kourou.auth.rules import topic as topic_of
from kourou.broker.names import check_group_name
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import (
    CloneGroupOffset,
    GetConsumerStatus,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    ResetOffset,
    UpdateConsumerOffset,
)
from kourou.store.config import BrokerRole

if TYPE_CHECKING:
    from kourou.broker.server import Broker
    from kourou.broker.state.clients import Client

log = logging.getLogger(__name__)

ASK_CLIENT_S = 5.0  # for GET_CONSUMER_STATUS_FROM_CLIENT, as Java
MAX_LONG = (1 << 63) - 1

# Clients before V3_0_7_SNAPSHOT know neither 220 nor 221. The place in this list is the number of a version.
_OLD_VERSIONS = (
    "V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1", "V3_0_0_BETA1", "V3_0_0_BETA2", "V3_0_0_BETA3", "V3_0_0_BETA4",
    "V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_BETA6", "V3_0_0_BETA7_SNAPSHOT", "V3_0_0_BETA7",
    "V3_0_0_BETA8_SNAPSHOT", "V3_0_0_BETA8", "V3_0_0_BETA9_SNAPSHOT", "V3_0_0_BETA9", "V3_0_0_FINAL",
    "V3_0_1_SNAPSHOT", "V3_0_1", "V3_0_2_SNAPSHOT", "V3_0_2", "V3_0_3_SNAPSHOT", "V3_0_3",
    "V3_0_4_SNAPSHOT", "V3_0_4", "V3_0_5_SNAPSHOT", "V3_0_5", "V3_0_6_SNAPSHOT", "V3_0_6",
)  # fmt: skip

# What Java's answers say where nobody set another remark
UNSET_REMARK = "not set any response code"


def query_offset(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """QUERY_CONSUMER_OFFSET: where a group goes on in a queue."""
    header = QueryConsumerOffset.read(request)
    offset = broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if offset >= 0:
        return request.response(ext_fields={"offset": str(offset)})
    if header.set_zero_if_not_found is False:
        remark = "Not found, do not set to zero, maybe this group boot first"
        return request.response(ResponseCode.QUERY_NOT_FOUND, {}, remark=remark)
    # A queue that still has its first message in memory is so young that a new group takes all of it.
    if broker.store.min_offset(header.topic, header.queue_id) <= 0 and broker.store.is_in_memory(
        header.topic, header.queue_id, 0
    ):
        return request.response(ext_fields={"offset": "0"})
    remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    return request.response(ResponseCode.QUERY_NOT_FOUND, {}, remark=remark)


def update_offset(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """UPDATE_CONSUMER_OFFSET: how far a group has consumed a queue."""
    header = UpdateConsumerOffset.read(request)
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    if broker.groups.get(group) is None:
        remark = f"Group {group} not exist!"
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, {}, remark=remark)
    if broker.topics.get(topic) is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, {}, remark=f"Topic {topic} not exist!")
    if not broker.has_queue(topic, queue_id) and broker.offsets.query(group, topic, queue_id) < 0:
        return _no_queue(request, topic, queue_id)
    reset = broker.config.use_server_side_reset_offset and broker.offsets.has_reset(topic, group, queue_id)
    if reset:
        return request.response(ext_fields={}, remark="Offset has been previously reset")
    if not broker.offsets.commit(connection.peer, group, topic, queue_id, header.commit_offset):
        remark = "there are more offsets of groups than maxConsumerOffsets allows"
        return request.response(ResponseCode.SYSTEM_ERROR, {}, remark=remark)
    return request.response(ext_fields={})


def _no_queue(request: RemotingCommand, topic: str, queue_id: int) -> RemotingCommand:
    remark = f"Topic {topic} has no queue {queue_id}!"
    return request.response(ResponseCode.INVALID_PARAMETER, {}, remark=remark)


def get_all_offsets(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_ALL_CONSUMER_OFFSET: the whole table, as slaves take it."""
    return request.response(body=broker.offsets.encode())


def get_all_delay_offsets(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """GET_ALL_DELAY_OFFSET: how far each delay level is delivered, as slaves take it."""
    return request.response(body=broker.delay.encode())


def query_correction_offset(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """QUERY_CORRECTION_OFFSET: the least offset of all groups in each queue, and the greatest number there
    is where the compared group is behind it."""
    header = QueryCorrectionOffset.read(request)
    left_out = {group for group in (header.filter_groups or "").split(",") if group}
    for group in broker.offsets.groups_of(header.topic) - left_out:
        broker.guard.require(request, connection.peer, group_of(group), GET)
    offsets = broker.offsets.min_in_all_groups(header.topic, left_out, broker.store.min_offset)
    compared = broker.offsets.query_all(header.compare_group, header.topic) or {}
    for queue_id, offset in compared.items():
        if queue_id in offsets and offsets[queue_id] > offset:
            offsets[queue_id] = MAX_LONG
    return request.response(body=lenient_json.dumps({"correctionOffsets": dict(sorted(offsets.items()))}))


def clone_offsets(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """CLONE_GROUP_OFFSET: let a group go on where another one is, in one topic or in all."""
    header = CloneGroupOffset.read(request)
    mistake = check_group_name(header.dest_group)
    if mistake is not None:
        return request.response(ResponseCode.INVALID_PARAMETER, remark=mistake)
    topics = {header.topic} if header.topic else broker.offsets.topics_of(header.src_group)
    for topic in topics:
        broker.guard.require(request, connection.peer, topic_of(topic), UPDATE)
    for topic in topics:
        if broker.topics.get(topic) is None:
            log.warning("no offsets of %s are cloned: there is no such topic", topic)
        elif not header.offline and has_left(broker, header.src_group, topic):
            log.warning("no offsets of %s are cloned: %s has left it", topic, header.src_group)
        else:
            broker.offsets.clone(header.src_group, header.dest_group, topic)
    return request.response()


def has_left(broker: Broker, group: str, topic: str) -> bool:
    """Whether a group that consumes now does not subscribe to a topic any more."""
    found = broker.consumers.get(group)
    if found is None or not found.subscriptions:
        return False
    return broker.consumers.find_subscription(group, topic) is None


# Resets


def reset_offset(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """INVOKE_BROKER_TO_RESET_OFFSET: send a group to another place, here or by way of its clients."""
    header = ResetOffset.read(request)
    log.info("%s resets offsets: %s", connection.peer, header)
    if broker.config.use_server_side_reset_offset:
        return _reset_here(broker, connection, request, header)
    return _reset_by_clients(broker, request, header)


def _reset_here(
    broker: Broker, connection: Connection, request: RemotingCommand, header: ResetOffset
) -> RemotingCommand | None:
    """The next pull of a queue is told where to go on."""
    topic, group = header.topic, header.group
    if broker.config.store.broker_role is BrokerRole.SLAVE:
        return request.response(ResponseCode.SYSTEM_ERROR, remark="Can not reset offset in slave broker")
    config = broker.topics.get(topic)
    if config is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {topic} does not exist")
    if broker.groups.get(group) is None:
        remark = f"Group {group} does not exist"
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    if header.queue_id >= 0 and not broker.has_queue(topic, header.queue_id):
        return _no_queue(request, topic, header.queue_id)
    if header.queue_id < 0:
        targets = {
            queue_id: _offset_at(broker, topic, queue_id, header.timestamp)
            for queue_id in range(config.read_queue_nums)
        }
    elif header.offset is None or header.offset == -1:
        targets = {header.queue_id: _offset_at(broker, topic, header.queue_id, header.timestamp)}
    else:
        low = broker.store.min_offset(topic, header.queue_id)
        high = broker.store.max_offset(topic, header.queue_id)
        if not max(low, 0) <= header.offset <= high + 1:
            remark = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        targets = {header.queue_id: header.offset}
    if not targets:
        return request.response(ResponseCode.SYSTEM_ERROR, remark="No queues to reset.")
    for queue_id, offset in targets.items():
        broker.offsets.assign_reset(topic, group, queue_id, offset)
    broker.answer_settled(
        connection, request, broker.offsets.file_name, body=_offset_body(broker, topic, targets)
    )
    return None


def _reset_by_clients(broker: Broker, request: RemotingCommand, header: ResetOffset) -> RemotingCommand:
    """The clients of the group are told where to go on, and commit that."""
    topic, group = header.topic, header.group
    config = broker.topics.get(topic)
    if config is None:
        remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    targets = {}
    for queue_id in range(config.write_queue_nums):
        consumed = broker.offsets.query(group, topic, queue_id)
        if consumed == -1:
            remark = f"THe consumer group <{group}> not exist"  # the spelling is Java's
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        wanted = _offset_at(broker, topic, queue_id, header.timestamp)
        targets[queue_id] = wanted if header.is_force else min(wanted, consumed)
    clients = _clients_of(broker, group, topic)
    if not clients:
        remark = (
            f"Consumer not online, so can not reset offset, "
            f"Group: {group} Topic: {topic} Timestamp: {header.timestamp}"
        )
        return request.response(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
    refusal = _refuse_old_clients(request, clients)
    if refusal is not None:
        return refusal
    told = ResetOffset(group, topic, header.timestamp, is_force=False).fields()
    body = _offset_body(broker, topic, targets)
    own_body = _offset_body_for_c(broker, topic, targets) if request.language == "CPP" else body
    for client in clients:
        client.connection.send_oneway(
            RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(told), own_body)
        )
    return request.response(body=body, remark=UNSET_REMARK)


def _offset_at(broker: Broker, topic: str, queue_id: int, timestamp: int) -> int:
    """The offset of a queue at a time; its end for a time below 0."""
    if timestamp < 0:
        return broker.store.max_offset(topic, queue_id)
    return max(broker.store.offset_by_time(topic, queue_id, timestamp), 0)


def _offset_body(broker: Broker, topic: str, offsets: dict[int, int]) -> bytes:
    name = broker.config.broker_name
    table = {MessageQueue(topic, name, queue_id): offset for queue_id, offset in offsets.items()}
    return lenient_json.dumps({"offsetTable": table})


def _offset_body_for_c(broker: Broker, topic: str, offsets: dict[int, int]) -> bytes:
    """The form for clients in C++, whose JSON knows no objects as keys."""
    rows = [
        {**MessageQueue(topic, broker.config.broker_name, queue_id).to_json(), "offset": offset}
        for queue_id, offset in offsets.items()
    ]
    return lenient_json.dumps({"offsetTable": rows})


# What clients say


def get_consumer_status(broker: Broker, connection: Connection, request: RemotingCommand) -> None:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: how far the clients of a group, or one of them, have come."""
    header = GetConsumerStatus.read(request)
    broker.answer_later(connection, request, _consumer_status(broker, request, header))


async def _consumer_status(
    broker: Broker, request: RemotingCommand, header: GetConsumerStatus
) -> RemotingCommand:
    clients = _clients_of(broker, header.group, header.topic)
    if not clients:
        remark = f"No Any Consumer online in the consumer group: [{header.group}]"
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    refusal = _refuse_old_clients(request, clients)
    if refusal is not None:
        return refusal
    asked = [client for client in clients if not header.client_addr or client.client_id == header.client_addr]
    tables = await asyncio.gather(*(_ask_status(client, header) for client in asked))
    table = {client.client_id: found for client, found in zip(asked, tables) if found is not None}
    body = lenient_json.dumps({"consumerTable": table, "messageQueueTable": {}})
    return request.response(body=body, remark=UNSET_REMARK)


async def _ask_status(client: Client, header: GetConsumerStatus) -> dict[MessageQueue, int] | None:
    """Queue -> offset of a client; None if it does not say."""
    fields = GetConsumerStatus(header.topic, header.group).fields()
    question = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
    try:
        answer = await client.connection.call(question, ASK_CLIENT_S)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        found: dict[str, Any] = lenient_json.loads(answer.body).get("messageQueueTable") or {}
        return {MessageQueue.from_json(queue): int(offset) for queue, offset in found.items()}
    except (KourouError, KeyError, ValueError, TypeError, AttributeError) as error:
        log.warning("no status from %s: %s", client, error)
        return None


def _clients_of(broker: Broker, group: str, topic: str) -> list[Client]:
    """The clients of a group that may still consume a topic with it."""
    found, touched = broker.consumers.get(group), (group_of(group), topic_of(topic))
    return [] if found is None else [c for c in found.clients.values() if broker.may_consume(c, *touched)]


def _refuse_old_clients(request: RemotingCommand, clients: list[Client]) -> RemotingCommand | None:
    old = [client.version for client in clients if client.version < len(_OLD_VERSIONS)]
    if not old:
        return None
    remark = f"the client does not support this feature. version={_OLD_VERSIONS[max(old[0], 0)]}"
    return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)


HANDLERS = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.GET_ALL_CONSUMER_OFFSET: get_all_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: get_all_delay_offsets,
    RequestCode.QUERY_CORRECTION_OFFSET: query_correction_offset,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: get_consumer_status,
}

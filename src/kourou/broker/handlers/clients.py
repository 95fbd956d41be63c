"""Clients: heartbeats, who is in a group, queue locks, and questions handed on to a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.auth.rules import SUB
from kourou.auth.rules import group as group_of
from kourou.auth.rules import topic as topic_of
from kourou.broker.handlers.queries import message_at
from kourou.broker.messages.filter_data import compile_filter
from kourou.errors import CorruptRecordError
from kourou.message.ids import decode_offset_message_id
from kourou.message.model import MessageQueue
from kourou.remoting.connection import CallTimeoutError, Connection, ConnectionLostError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import as_object, read_body, read_list, read_text
from kourou.remoting.protocol.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.headers import (
    ConsumeMessageDirectly,
    ConsumerGroupName,
    GetConsumerRunningInfo,
    ProducerGroupName,
    UnregisterClient,
)
from kourou.remoting.protocol.heartbeat import read_heartbeat
from kourou.remoting.protocol.subscription import SubscriptionData
from kourou.remoting.signing import unsigned

if TYPE_CHECKING:
    from kourou.broker.server import Broker

CALL_CLIENT_S = 10.0  # Java's Broker2Client


def heartbeat(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """HEART_BEAT: a client lives, with these producers and consumers."""
    beat = read_heartbeat(request.body, broker.clock.now_ms(), broker.budgets.max_groups_per_client)
    user = broker.guard.user_of(request)
    resend = broker.clients.heartbeat(connection, beat, request.language, request.version, user)
    if not (beat.without_sub and beat.fingerprint):
        for consumer in beat.consumers:
            if consumer.group in broker.consumers.groups:  # others were refused
                broker.filters.register_group(consumer.group, consumer.subscriptions)
    return request.response(
        ext_fields={"IS_SUB_CHANGE": str(resend).lower(), "IS_SUPPORT_HEART_BEAT_V2": "true"}
    )


def unregister_client(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """UNREGISTER_CLIENT: a client leaves its groups."""
    header = UnregisterClient.read(request)
    broker.clients.unregister(connection, header.producer_group, header.consumer_group)
    return request.response(ext_fields={})


def check_client_config(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """CHECK_CLIENT_CONFIG: whether the broker can filter by an expression."""
    body = read_body(request.body, "CHECK_CLIENT_CONFIG")
    if body.get("subscriptionData") is None:
        return request.response()
    value = as_object(body["subscriptionData"], "subscriptionData")
    subscription = SubscriptionData.from_json(value, broker.clock.now_ms())
    if subscription.is_tag_type:
        return request.response()
    if not broker.config.enable_property_filter:
        remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    compile_filter(subscription)  # its error says what is wrong, and where
    return request.response()


def get_consumer_list(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_CONSUMER_LIST_BY_GROUP: the ids of a group's clients, among which they share its queues."""
    header = ConsumerGroupName.read(request)
    group = broker.consumers.get(header.consumer_group)
    if group is None or not group.clients:
        return request.response(
            ResponseCode.SYSTEM_ERROR, {}, remark=f"no consumer for this group, {header.consumer_group}"
        )
    return request.response(ext_fields={}, body=lenient_json.dumps({"consumerIdList": group.client_ids()}))


def get_consumer_connections(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """GET_CONSUMER_CONNECTION_LIST: the clients of a consumer group and what they subscribe to."""
    header = ConsumerGroupName.read(request)
    group = broker.consumers.get(header.consumer_group)
    if group is None:
        return request.response(
            ResponseCode.CONSUMER_NOT_ONLINE,
            remark=f"the consumer group[{header.consumer_group}] not online",
        )
    return request.response(body=lenient_json.dumps(group.to_json()))


def get_producer_connections(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """GET_PRODUCER_CONNECTION_LIST: the clients of a producer group."""
    header = ProducerGroupName.read(request)
    found = broker.producers.connections_json(header.producer_group)
    if found is None:
        return request.response(
            ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{header.producer_group}] not exist"
        )
    return request.response(body=lenient_json.dumps(found))


def get_all_producers(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_ALL_PRODUCER_INFO: the clients of all producer groups."""
    return request.response(body=lenient_json.dumps(broker.producers.table_json()))


# Queue locks of consumers in order


def lock_queues(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """LOCK_BATCH_MQ: take or renew locks; which were got."""
    group, client_id, queues = _lock_request(broker, request)
    if broker.groups.find(group) is None:
        remark = f"subscription group [{group}] does not exist, {ADVICE}"
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    name, locks = broker.config.broker_name, broker.locks
    queues = [
        queue
        for queue in queues
        if (queue.broker_name == name and broker.has_queue(queue.topic, queue.queue_id))
        or locks.holder(group, queue) is not None  # its topic has fewer queues now
    ]
    locked = locks.try_lock_batch(group, queues, client_id)
    return request.response(body=lenient_json.dumps({"lockOKMQSet": sorted(locked)}))


def unlock_queues(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """UNLOCK_BATCH_MQ: give locks back."""
    group, client_id, queues = _lock_request(broker, request)
    broker.locks.unlock_batch(group, queues, client_id)
    return request.response()


def _lock_request(broker: Broker, request: RemotingCommand) -> tuple[str, str, list[MessageQueue]]:
    body = read_body(request.body, f"request {request.code}")
    try:
        queues = [MessageQueue.from_json(value) for value in read_list(body, "mqSet")]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadRequestError("the field <mqSet> has an entry that is no queue") from None
    client_id = read_text(body, "clientId")
    broker.clients.check_owner(client_id, broker.guard.user_of(request))
    return read_text(body, "consumerGroup"), client_id, queues


# Questions that only a client can answer


def get_running_info(broker: Broker, connection: Connection, request: RemotingCommand) -> None:
    """GET_CONSUMER_RUNNING_INFO: what a consumer does now."""
    header = GetConsumerRunningInfo.read(request)
    fields = unsigned(request)
    work = _ask_consumer(broker, request, header.consumer_group, header.client_id, fields)
    broker.answer_later(connection, request, work)


def consume_directly(broker: Broker, connection: Connection, request: RemotingCommand) -> None:
    """CONSUME_MESSAGE_DIRECTLY: have a consumer consume one message now."""
    header = ConsumeMessageDirectly.read(request)
    fields = unsigned(request)
    fields["brokerName"] = broker.config.broker_name
    topic = broker.topics.get(header.topic) if header.topic else None
    if topic is not None:
        fields["topicSysFlag"] = str(topic.topic_sys_flag)
    group = broker.groups.find(header.consumer_group)
    if group is not None:
        fields["groupSysFlag"] = str(group.group_sys_flag)
    try:
        place = decode_offset_message_id(header.msg_id or "")
    except (ValueError, CorruptRecordError) as error:
        raise BadRequestError(f"the custom field <msgId> is no message id: {error}") from None
    found = message_at(broker, connection, request, place.physical_offset, SUB)
    record = broker.store.commit_log.message_at(place.physical_offset)
    if found is None or record is None:
        raise BadRequestError(f"there is no message at {place.physical_offset}")
    work = _ask_consumer(
        broker, request, header.consumer_group, header.client_id or "", fields, bytes(record), found.topic
    )
    broker.answer_later(connection, request, work)


async def _ask_consumer(
    broker: Broker,
    request: RemotingCommand,
    group: str,
    client_id: str,
    fields: dict[str, str],
    body: bytes | None = None,
    topic: str | None = None,
) -> RemotingCommand:
    """Hand a request on to a consumer, if it may have what is of a topic, and of its group; its answer."""
    client = broker.consumers.find_client(group, client_id)
    if client is None:
        return request.response(
            ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online"
        )
    touched = [group_of(group)] if topic is None else [group_of(group), topic_of(topic)]
    if not broker.may_consume(client, *touched):
        remark = f"consumer <{group}> <{client_id}> may not consume {' and '.join(map(str, touched))}"
        return request.response(ResponseCode.NO_PERMISSION, remark=remark)
    try:
        answer = await client.connection.call(RemotingCommand(request.code, fields, body), CALL_CLIENT_S)
    except CallTimeoutError as error:
        remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
        return request.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
    except ConnectionLostError as error:
        remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    return request.response(answer.code, answer.ext_fields or None, answer.body, answer.remark)


HANDLERS = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.CHECK_CLIENT_CONFIG: check_client_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: get_consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: get_all_producers,
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
    RequestCode.GET_CONSUMER_RUNNING_INFO: get_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
}

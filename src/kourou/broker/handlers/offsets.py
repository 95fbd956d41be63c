"""Offsets of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.connection import Connection
from kourou.remoting.headers import QueryConsumerOffset, UpdateConsumerOffset

if TYPE_CHECKING:
    from kourou.broker.server import Broker


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
    reset = broker.config.use_server_side_reset_offset and broker.offsets.has_reset(topic, group, queue_id)
    if reset:
        return request.response(ext_fields={}, remark="Offset has been previously reset")
    broker.offsets.commit(connection.peer, group, topic, queue_id, header.commit_offset)
    return request.response(ext_fields={})


HANDLERS = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
}

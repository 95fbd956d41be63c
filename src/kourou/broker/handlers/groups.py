"""Consumer groups: made, changed, deleted, listed (AdminBrokerProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.broker.names import check_group_name
from kourou.broker.state.groups import READ_INDEX, SubscriptionGroupConfig
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import read_body, read_list
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroup,
    GroupName,
    QuerySubscriptionByConsumer,
    UpdateGroupForbidden,
)

if TYPE_CHECKING:
    from kourou.broker.server import Broker

FILE = "subscriptionGroup.json"


def create_group(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: make a group, or change it."""
    body = read_body(request.body, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP")
    return _create(broker, connection, request, [SubscriptionGroupConfig.from_json(body)])


def create_groups(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: make or change several groups, or none of them."""
    body = read_body(request.body, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST")
    groups = [SubscriptionGroupConfig.from_json(value) for value in read_list(body, "groupConfigList")]
    return _create(broker, connection, request, groups)


def _create(
    broker: Broker, connection: Connection, request: RemotingCommand, groups: list[SubscriptionGroupConfig]
) -> RemotingCommand | None:
    for group in groups:
        mistake = check_group_name(group.group_name)
        if mistake is not None:
            return request.response(ResponseCode.INVALID_PARAMETER, remark=mistake)
    broker.groups.update_all(groups)
    broker.answer_settled(connection, request, FILE)
    return None


def delete_group(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """DELETE_SUBSCRIPTIONGROUP: a group goes, and its offsets where that is asked for."""
    header = DeleteSubscriptionGroup.read(request)
    broker.groups.delete(header.group_name)
    if header.clean_offset:
        broker.pop_buffer.forget(group=header.group_name)
        broker.offsets.remove_group(header.group_name)
    broker.stats.forget_group(header.group_name)
    broker.answer_settled(connection, request, FILE, broker.offsets.file_name)
    return None


def get_all_groups(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all groups, or a part of them."""
    header = GetAllSubscriptionGroup.read(request)
    groups = None
    if header.group_seq is not None or header.max_group_num is not None or header.data_version is not None:
        most = min(
            broker.config.split_metadata_size, header.max_group_num or broker.config.split_metadata_size
        )
        groups = broker.groups.page(header.data_version, header.group_seq or 0, most)
    fields = {"totalGroupNum": str(len(broker.groups.groups))}
    return request.response(ext_fields=fields, body=lenient_json.dumps(broker.groups.to_json(groups)))


def get_group(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_SUBSCRIPTIONGROUP_CONFIG: one group."""
    group = broker.groups.find(GroupName.read(request).group)
    if group is None:
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="No group in this broker")
    return request.response(body=lenient_json.dumps(group.to_json()))


def forbid(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """UPDATE_AND_GET_GROUP_FORBIDDEN: forbid a group to read a topic, or allow it; or ask."""
    header = UpdateGroupForbidden.read(request)
    if header.readable is False and broker.groups.find(header.group) is None:
        remark = f"Group {header.group} not exist!"
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    if header.readable is False and broker.topics.get(header.topic) is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {header.topic} not exist!")
    if header.readable is not None:
        broker.groups.set_forbidden(header.group, header.topic, READ_INDEX, not header.readable)
    readable = not broker.groups.is_forbidden(header.group, header.topic)
    body = {"group": header.group, "readable": readable, "topic": header.topic}
    return request.response(body=lenient_json.dumps(body), remark="")


def get_topics_of_group(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """QUERY_TOPICS_BY_CONSUMER: the topics that a group has consumed."""
    topics = broker.offsets.topics_of(GroupName.read(request).group)
    body = {"brokerAddr": broker.config.address, "topicList": sorted(topics)}
    return request.response(body=lenient_json.dumps(body))


def get_subscription(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """QUERY_SUBSCRIPTION_BY_CONSUMER: what a group wants of a topic now."""
    header = QuerySubscriptionByConsumer.read(request)
    found = broker.consumers.find_subscription(header.group, header.topic or "")
    body = {
        "group": header.group,
        "subscriptionData": None if found is None else found.to_json(),
        "topic": header.topic,
    }
    return request.response(body=lenient_json.dumps(body))


HANDLERS = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: create_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbid,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: get_topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: get_subscription,
}

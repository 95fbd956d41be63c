"""What each request asks for: the resources it touches, and the actions one of which must be allowed.

Where Java has a rule it is Java's. Where Java has none, a request is open there to anybody who is known;
here it asks for the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kourou.auth.model import CLUSTER, GROUP, TOPIC, AccessError, Resource
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol.bodies import as_object, read_body, read_list, read_text
from kourou.remoting.protocol.codes import RequestCode as Code
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.heartbeat import read_heartbeat
from kourou.remoting.protocol.subscription import BadSubscriptionError, SubscriptionData

GET, UPDATE, LIST, CREATE, DELETE, PUB, SUB = "Get", "Update", "List", "Create", "Delete", "Pub", "Sub"


class Need(NamedTuple):
    """One of these actions on a resource."""

    resource: Resource
    actions: tuple[str, ...]


Rule = Callable[[RemotingCommand, str], Iterator[Need]]


def needs_of(request: RemotingCommand, cluster: str) -> list[Need]:
    """Everything that must be allowed for a request. AccessError if it does not say what it is about."""
    rule = RULES.get(request.code)
    if rule is None:
        return [Need(Resource(CLUSTER, cluster), (UPDATE,))]
    try:
        return list(rule(request, cluster))
    except (BadRequestError, BadSubscriptionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AccessError(f"request {request.code} does not say what it is about: {error}") from error


def topic(name: str) -> Resource:
    """A topic; the retry topic of a group is that group's."""
    if name.startswith(RETRY_PREFIX):
        return group(name.removeprefix(RETRY_PREFIX))
    return Resource(TOPIC, name)


def group(name: str) -> Resource:
    """A group, by the name that it has: one whose name begins as a retry topic does is another group."""
    return Resource(GROUP, name)


def sending(name: str) -> Need:
    """What a message for a topic needs. Into a retry topic the consumers of its group send."""
    resource = topic(name)
    return Need(resource, (SUB,) if resource.type == GROUP else (PUB,))


def popping(name: str, owner: str, actions: tuple[str, ...] = (SUB,)) -> Iterator[Need]:
    """What it needs to pop from a topic. What a group could not consume lies in a topic named after both."""
    for separator in "+_":
        name = name.removeprefix(f"{RETRY_PREFIX}{owner}{separator}")
    yield Need(topic(name), actions)
    yield Need(group(owner), actions)


ALL_TOPICS = Resource(TOPIC, "*")  # only an entry for all topics covers it


# Kinds of rules


def _cluster(*actions: str) -> Rule:
    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        yield Need(Resource(CLUSTER, cluster), actions)

    return rule


def _named_cluster(*actions: str) -> Rule:
    """Of the cluster that the request is about, on a name server, which may know several."""

    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        yield Need(Resource(CLUSTER, request.ext_fields.get("clusterName") or cluster), actions)

    return rule


def _all_of(kind: str, *actions: str) -> Rule:
    """About all topics or groups there are: an entry for any name of the type, or for anything."""

    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        yield Need(Resource(kind, "*"), actions)

    return rule


def _fields(actions: tuple[str, ...], **places: str) -> Rule:
    """The topics and groups that fields name; a field that is missing or empty names nothing."""

    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        found = False
        for place, kind in places.items():
            text = request.ext_fields.get(place, "")
            for name in text.split(";" if place == "topicList" else ",") if place in _LISTS else [text]:
                if name.strip():
                    found = True
                    yield Need(topic(name) if kind == TOPIC else group(name), actions)
        if not found:
            yield Need(Resource(CLUSTER, cluster), actions)

    return rule


_LISTS = ("topicList", "filterGroups")


def _send(place: str) -> Rule:
    """The topic of the header. The light queues that a message names are asked for when they are known."""

    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        yield sending(request.ext_fields[place])

    return rule


def _pull(actions: tuple[str, ...]) -> Rule:
    """A topic and a group. The retry topic of a group needs no more than the group: it is the group's."""

    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        fields = request.ext_fields
        yield Need(topic(fields["topic"]), actions)
        yield Need(group(fields["consumerGroup"]), actions)

    return rule


def _pop(actions: tuple[str, ...]) -> Rule:
    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        return popping(request.ext_fields["topic"], request.ext_fields["consumerGroup"], actions)

    return rule


def _batch_acks(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    for ack in read_list(_body(request), "acks"):
        yield Need(topic(read_text(ack, "t")), (SUB,))
        yield Need(group(read_text(ack, "c")), (SUB,))


def _route(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    resource = topic(request.ext_fields["topic"])
    yield Need(resource, (SUB, GET) if resource.type == GROUP else (PUB, SUB, GET))


def _end_transaction(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    """The topic that is named, if any is; that of the half is asked for when it is found."""
    name = request.ext_fields.get("topic", "")
    if name.strip():
        yield Need(topic(name), (PUB,))


def _unregister(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    name = request.ext_fields.get("consumerGroup", "")
    if name.strip():
        yield Need(group(name), (SUB,))


def _clone(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    """The topic may be missing: then all of the source's are asked for when they are found."""
    fields = request.ext_fields
    yield Need(group(fields["srcGroup"]), (GET,))
    yield Need(group(fields["destGroup"]), (UPDATE,))
    if fields.get("topic", "").strip():
        yield Need(topic(fields["topic"]), (UPDATE,))


# Bodies are read as the handlers read them: what is allowed is what is done.


def _body(request: RemotingCommand) -> dict[str, Any]:
    return read_body(request.body, f"request {request.code}")


def _heartbeat(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    for consumer in read_heartbeat(request.body, 0).consumers:
        yield Need(group(consumer.group), (SUB,))
        for subscription in consumer.subscriptions:
            yield Need(topic(subscription.topic), (SUB,))


def _client_config(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    body = _body(request)
    yield Need(group(read_text(body, "group")), (SUB,))
    if body.get("subscriptionData") is not None:
        value = as_object(body["subscriptionData"], "subscriptionData")
        yield Need(topic(SubscriptionData.from_json(value, 0).topic), (SUB,))


def _locks(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    body = _body(request)
    yield Need(group(read_text(body, "consumerGroup")), (SUB,))
    for queue in read_list(body, "mqSet"):
        yield Need(topic(MessageQueue.from_json(queue).topic), (SUB,))


def _group_in_body(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    yield Need(group(read_text(_body(request), "groupName")), (CREATE,))


def _groups_in_body(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    for config in read_list(_body(request), "groupConfigList"):
        yield Need(group(read_text(config, "groupName")), (CREATE,))


def _topics_in_body(request: RemotingCommand, cluster: str) -> Iterator[Need]:
    for config in read_list(_body(request), "topicConfigList"):
        yield Need(topic(read_text(config, "topicName")), (CREATE,))


def _group_and_topic_in_body(action: str) -> Rule:
    def rule(request: RemotingCommand, cluster: str) -> Iterator[Need]:
        body = _body(request)
        yield Need(group(read_text(body, "consumerGroup")), (action,))
        yield Need(topic(read_text(body, "topic")), (action,))

    return rule


_OF_CLUSTER = {
    GET: (
        Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET, Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS,
        Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_CONSUME_STATS, Code.GET_ALL_PRODUCER_INFO,
        Code.GET_BROKER_HA_STATUS, Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_COLD_DATA_FLOW_CTR_INFO, Code.AUTH_GET_USER, Code.AUTH_LIST_USER,
        Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL, Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_BROKER_CLUSTER_INFO, Code.GET_NAMESRV_CONFIG,
    ),
    UPDATE: (
        Code.UPDATE_BROKER_CONFIG, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC,
        Code.DELETE_EXPIRED_COMMITLOG, Code.NOTIFY_MIN_BROKER_ID_CHANGE, Code.EXCHANGE_BROKER_HA_INFO,
        Code.RESET_MASTER_FLUSH_OFFSET, Code.SWITCH_TIMER_ENGINE, Code.AUTH_CREATE_USER,
        Code.AUTH_UPDATE_USER,
        Code.AUTH_DELETE_USER, Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL,
        Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.REGISTER_TOPIC_IN_NAMESRV, Code.UPDATE_NAMESRV_CONFIG,
    ),
}  # fmt: skip

_TOPIC, _GROUP = {"topic": TOPIC}, {"group": GROUP}
_BY_FIELDS: dict[Code, tuple[tuple[str, ...], dict[str, str]]] = {
    Code.QUERY_MESSAGE: ((SUB, GET), _TOPIC),
    Code.UPDATE_AND_CREATE_TOPIC: ((CREATE,), _TOPIC),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: ((GET, SUB), _TOPIC),
    Code.GET_MAX_OFFSET: ((GET, SUB), _TOPIC),
    Code.GET_MIN_OFFSET: ((GET, SUB), _TOPIC),
    Code.GET_EARLIEST_MSG_STORETIME: ((GET,), _TOPIC),
    Code.VIEW_MESSAGE_BY_ID: ((GET,), _TOPIC),
    Code.GET_TOPIC_STATS_INFO: ((GET,), _TOPIC),
    Code.DELETE_TOPIC_IN_BROKER: ((DELETE,), _TOPIC),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: ((GET,), _TOPIC),
    Code.RESUME_CHECK_HALF_MESSAGE: ((UPDATE,), _TOPIC),
    Code.GET_TOPIC_CONFIG: ((GET,), _TOPIC),
    Code.RECALL_MESSAGE: ((PUB,), _TOPIC),
    Code.CONSUMER_SEND_MSG_BACK: ((SUB,), _GROUP),
    Code.GET_CONSUMER_LIST_BY_GROUP: ((SUB, GET), {"consumerGroup": GROUP}),
    Code.GET_CONSUMER_CONNECTION_LIST: ((GET,), {"consumerGroup": GROUP}),
    Code.DELETE_SUBSCRIPTIONGROUP: ((DELETE,), {"groupName": GROUP}),
    Code.GET_CONSUME_STATS: ((GET,), {"consumerGroup": GROUP, "topic": TOPIC, "topicList": TOPIC}),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: ((UPDATE,), {"group": GROUP, "topic": TOPIC}),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ((GET,), {"group": GROUP, "topic": TOPIC}),
    Code.QUERY_CONSUME_TIME_SPAN: ((GET,), {"group": GROUP, "topic": TOPIC}),
    Code.GET_CONSUMER_RUNNING_INFO: ((GET,), {"consumerGroup": GROUP}),
    Code.QUERY_CORRECTION_OFFSET: ((GET,), {"filterGroups": GROUP, "compareGroup": GROUP, "topic": TOPIC}),
    Code.CONSUME_MESSAGE_DIRECTLY: ((SUB,), {"consumerGroup": GROUP, "topic": TOPIC}),
    Code.QUERY_CONSUME_QUEUE: ((GET,), {"topic": TOPIC, "consumerGroup": GROUP}),
    Code.QUERY_TOPICS_BY_CONSUMER: ((GET,), _GROUP),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: ((GET,), {"group": GROUP, "topic": TOPIC}),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: ((GET,), _GROUP),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: ((UPDATE,), {"group": GROUP, "topic": TOPIC}),
}

RULES: dict[int, Rule] = {
    **{int(code): _cluster(action) for action, codes in _OF_CLUSTER.items() for code in codes},
    **{int(code): _fields(actions, **places) for code, (actions, places) in _BY_FIELDS.items()},
    Code.REGISTER_BROKER: _named_cluster(UPDATE),
    Code.UNREGISTER_BROKER: _named_cluster(UPDATE),
    Code.BROKER_HEARTBEAT: _named_cluster(UPDATE),
    Code.DELETE_TOPIC_IN_NAMESRV: _named_cluster(UPDATE),
    Code.QUERY_DATA_VERSION: _named_cluster(GET),
    Code.GET_BROKER_MEMBER_GROUP: _named_cluster(GET),
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
    Code.SEND_MESSAGE: _send("topic"),
    Code.SEND_REPLY_MESSAGE: _send("topic"),
    Code.SEND_MESSAGE_V2: _send("b"),
    Code.SEND_BATCH_MESSAGE: _send("b"),
    Code.SEND_REPLY_MESSAGE_V2: _send("b"),
    Code.END_TRANSACTION: _end_transaction,
    Code.PULL_MESSAGE: _pull((SUB,)),
    Code.LITE_PULL_MESSAGE: _pull((SUB,)),
    Code.POP_MESSAGE: _pop((SUB,)),
    Code.PEEK_MESSAGE: _pop((SUB,)),
    Code.ACK_MESSAGE: _pop((SUB,)),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _pop((SUB,)),
    Code.NOTIFICATION: _pop((SUB,)),
    Code.POLLING_INFO: _pop((SUB, GET)),
    Code.BATCH_ACK_MESSAGE: _batch_acks,
    Code.QUERY_CONSUMER_OFFSET: _pull((SUB, GET)),
    Code.UPDATE_CONSUMER_OFFSET: _pull((SUB, UPDATE)),
    Code.CLONE_GROUP_OFFSET: _clone,
    Code.HEART_BEAT: _heartbeat,
    Code.CHECK_CLIENT_CONFIG: _client_config,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_in_body,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups_in_body,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topics_in_body,
    Code.QUERY_ASSIGNMENT: _group_and_topic_in_body(SUB),
    Code.SET_MESSAGE_REQUEST_MODE: _group_and_topic_in_body(UPDATE),
    Code.GET_ALL_TOPIC_CONFIG: _all_of(TOPIC, GET, LIST),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _all_of(GROUP, GET, LIST),
    Code.GET_TOPICS_BY_CLUSTER: _all_of(TOPIC, LIST),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _all_of(TOPIC, LIST),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _all_of(TOPIC, LIST),
    Code.GET_UNIT_TOPIC_LIST: _all_of(TOPIC, LIST),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _all_of(TOPIC, LIST),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _all_of(TOPIC, LIST),
}

"""Topics: made, changed, deleted, listed (AdminBrokerProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.broker.names import check_topic_name
from kourou.broker.state.attributes import parse_changes
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import as_object, read_body, read_list
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.headers import CreateTopic, GetAllTopicConfig, TopicName
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig

if TYPE_CHECKING:
    from kourou.broker.server import Broker

MAX_QUEUES = 65_536  # of a topic; each has files of its own


def create_topic(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """UPDATE_AND_CREATE_TOPIC: make a topic, or change it."""
    header = CreateTopic.read(request)
    topic = TopicConfig(
        header.topic,
        header.read_queue_nums,
        header.write_queue_nums,
        header.perm,
        header.topic_sys_flag,
        header.order,
        parse_changes(header.attributes),
        header.topic_filter_type,
    )
    return _create(broker, connection, request, [topic])


def create_topics(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """UPDATE_AND_CREATE_TOPIC_LIST: make or change several topics, or none of them."""
    body = read_body(request.body, "UPDATE_AND_CREATE_TOPIC_LIST")
    topics = []
    for value in read_list(body, "topicConfigList"):
        try:
            topics.append(TopicConfig.from_json(as_object(value, "topicConfigList")))
        except (TypeError, ValueError) as error:
            raise BadRequestError(f"the field <topicConfigList> has a topic of no use: {error}") from None
    return _create(broker, connection, request, topics)


def _create(
    broker: Broker, connection: Connection, request: RemotingCommand, topics: list[TopicConfig]
) -> RemotingCommand | None:
    for topic in topics:
        mistake = check_topic_name(topic.name) or _conflict(broker, topic.name)
        if mistake is None and not 0 <= max(topic.read_queue_nums, topic.write_queue_nums) <= MAX_QUEUES:
            mistake = f"The topic[{topic.name}] cannot have more than {MAX_QUEUES} queues."
        if mistake is None and min(topic.read_queue_nums, topic.write_queue_nums) < 0:
            mistake = f"The topic[{topic.name}] cannot have less than no queues."
        if mistake is None and topic.attributes.get("+message.type") == "MIXED" and not _may_mix(broker):
            mistake = "MIXED message type is not supported."
        if mistake is not None:
            return request.response(ResponseCode.INVALID_PARAMETER, remark=mistake)
    if all(topic == broker.topics.get(topic.name) for topic in topics):
        return request.response()
    broker.topics.update_all(topics)
    broker.answer_settled(connection, request, "topics.json")
    return None


def _conflict(broker: Broker, topic: str) -> str | None:
    if broker.config.validate_system_topic_when_update_topic and broker.topics.is_system_topic(topic):
        return f"The topic[{topic}] is conflict with system topic."
    return None


def _may_mix(broker: Broker) -> bool:
    return broker.config.others.get("enableMixedMessageType", "").lower() == "true"


def delete_topic(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """DELETE_TOPIC_IN_BROKER: a topic, its queues and its offsets go; its messages go with their files."""
    topic = TopicName.read(request).topic
    mistake = "The specified topic is blank." if not topic.strip() else _conflict(broker, topic)
    if mistake is not None:
        return request.response(ResponseCode.INVALID_PARAMETER, remark=mistake)
    gone = {topic}
    if broker.config.clear_retry_topic_when_delete_topic:
        retries = {
            f"{RETRY_PREFIX}{group}{separator}{topic}"
            for group in broker.offsets.groups_of(topic)
            for separator in ("_", "+")  # POP's retry topics, of versions 1 and 2
        }
        # The retry topic of a group that is called so is that group's.
        groups = {f"{RETRY_PREFIX}{group}" for group in broker.groups.groups}
        gone |= retries & broker.topics.topics.keys() - groups
    # What was committed must be known as such: its message, which would tell after a crash, goes.
    broker.transactions.write_ops()
    table = broker.store.queues.table
    broker.store.delete_topics(name for name in gone if name in table or broker.topics.get(name) is not None)
    for name in gone:
        broker.topics.delete(name)
        broker.forget_topic(name)
    broker.answer_settled(connection, request, "topics.json", broker.offsets.file_name)
    return None


def get_all_topics(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_ALL_TOPIC_CONFIG: all topics, or a part of them."""
    header = GetAllTopicConfig.read(request)
    topics = broker.topics.topics
    if header.topic_seq is not None or header.max_topic_num is not None or header.data_version is not None:
        most = min(
            broker.config.split_metadata_size, header.max_topic_num or broker.config.split_metadata_size
        )
        topics = broker.topics.page(header.data_version, header.topic_seq or 0, most)
    body = {
        "dataVersion": broker.topics.data_version.to_json(),
        "mappingDataVersion": DataVersion(0, 0, broker.started_ms).to_json(),
        "topicConfigTable": {name: topic.to_json() for name, topic in topics.items()},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    fields = {"totalTopicNum": str(len(broker.topics.topics))}
    return request.response(ext_fields=fields, body=lenient_json.dumps(body))


def get_topic(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_TOPIC_CONFIG: one topic."""
    name = TopicName.read(request).topic
    topic = broker.topics.get(name)
    if topic is None:
        remark = f"No topic in this broker. topic: {name}"
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    return request.response(body=lenient_json.dumps(topic.to_json()))


def get_topic_stats(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_TOPIC_STATS_INFO: the offsets of a topic's queues and the time of their last message."""
    name = TopicName.read(request).topic
    topic = broker.topics.get(name)
    if topic is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
    table: dict[MessageQueue, dict[str, int]] = {}
    store = broker.store
    for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
        low, high = max(store.min_offset(name, queue_id), 0), store.max_offset(name, queue_id)
        table[MessageQueue(name, broker.config.broker_name, queue_id)] = {
            "lastUpdateTimestamp": store.message_store_timestamp(name, queue_id, high - 1) if high else 0,
            "maxOffset": high,
            "minOffset": low,
        }
    body: dict[str, Any] = {"offsetTable": table, "topicPutTps": broker.stats.topic_put_tps(name)}
    return request.response(body=lenient_json.dumps(body))


def get_system_topics(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER: the topics that belong to the broker."""
    return request.response(body=lenient_json.dumps({"topicList": sorted(broker.topics.system_topics())}))


def get_consumers_of_topic(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """QUERY_TOPIC_CONSUME_BY_WHO: the groups that consume a topic or did."""
    topic = TopicName.read(request).topic
    groups = {*broker.consumers.groups_of(topic), *broker.offsets.groups_of(topic)}
    return request.response(body=lenient_json.dumps({"groupList": sorted(groups)}))


def clean_unused_topics(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """CLEAN_UNUSED_TOPIC: remove queues of topics that are no more."""
    kept = broker.topics.topics
    unused = {
        name for name in list(broker.store.queues.table) if name not in kept and _is_removable(broker, name)
    }
    broker.transactions.write_ops()
    broker.store.delete_topics(unused)
    return request.response()


def _is_removable(broker: Broker, topic: str) -> bool:
    return not broker.topics.is_system_topic(topic) and not topic.startswith("%LMQ%")


HANDLERS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: create_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topics,
    RequestCode.GET_TOPIC_CONFIG: get_topic,
    RequestCode.GET_TOPIC_STATS_INFO: get_topic_stats,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: get_consumers_of_topic,
    RequestCode.CLEAN_UNUSED_TOPIC: clean_unused_topics,
}

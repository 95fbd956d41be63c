"""Topics: made, changed, deleted, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.broker.attributes import parse_changes
from kourou.broker.names import check_topic_name
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.connection import Connection
from kourou.remoting.headers import CreateTopic
from kourou.remoting.registration import TopicConfig

if TYPE_CHECKING:
    from kourou.broker.server import Broker


def create_topic(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """UPDATE_AND_CREATE_TOPIC."""
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
    mistake = check_topic_name(topic.name)
    if (
        mistake is None
        and broker.config.validate_system_topic_when_update_topic
        and broker.topics.is_system_topic(topic.name)
    ):
        mistake = f"The topic[{topic.name}] is conflict with system topic."
    if mistake is not None:
        return request.response(ResponseCode.INVALID_PARAMETER, remark=mistake)
    if topic == broker.topics.get(topic.name):
        return request.response()
    broker.topics.update(topic)
    broker.answer_later(connection, request, _settled(broker, request))
    return None


async def _settled(broker: Broker, request: RemotingCommand) -> RemotingCommand:
    await broker.settle("topics.json")
    return request.response()


HANDLERS = {RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic}

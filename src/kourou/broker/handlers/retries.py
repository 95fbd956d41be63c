"""Messages that a consumer could not consume: they come again later, or lie dead."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from kourou.auth.rules import SUB
from kourou.broker.handlers.queries import message_at
from kourou.broker.messages.send import (
    DLQ_QUEUES,
    dead_letter_topic,
    most_retries,
)
from kourou.broker.messages.send_answers import NotTakenError
from kourou.message import properties as names
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import MAX_INT
from kourou.remoting.protocol.headers import ConsumerSendMsgBack
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, UNIT_SUB_FLAG
from kourou.store.put import InnerMessage
from kourou.store.status import PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

FIRST_LEVEL = 3  # the delay level of the first retry; each further one is a level later


def send_back(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """CONSUMER_SEND_MSG_BACK: have a message consumed again later, or keep it with the dead letters."""
    header = ConsumerSendMsgBack.read(request)
    group = header.group
    config = broker.groups.find(group)
    if config is None:
        remark = f"subscription group not exist, {group} {ADVICE}"
        raise NotTakenError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not broker.config.broker_permission & PERM_WRITE:
        remark = f"the broker[{broker.config.broker_ip1}] sending message is forbidden"
        raise NotTakenError(ResponseCode.NO_PERMISSION, remark)
    if config.retry_queue_nums <= 0:
        return request.response()
    found = message_at(broker, connection, request, header.offset, SUB)
    topic, read_write = RETRY_PREFIX + group, PERM_READ | PERM_WRITE
    unit = UNIT_SUB_FLAG if header.unit_mode else 0
    made = broker.topics.create_for_send_back(topic, config.retry_queue_nums, read_write, unit)
    if not made.perm & PERM_WRITE:
        remark = f"the topic[{topic}] sending message is forbidden"
        raise NotTakenError(ResponseCode.NO_PERMISSION, remark)
    if found is None:
        remark = f"look message by offset failed, {header.offset}"
        raise NotTakenError(ResponseCode.SYSTEM_ERROR, remark)
    queue_id = random.randrange(config.retry_queue_nums)
    properties = dict(found.properties)
    is_again = found.topic.startswith(RETRY_PREFIX) or broker.topics.is_system_topic(found.topic)
    if not is_again or names.RETRY_TOPIC not in properties:
        # Consumers take a message from a retry topic for one of this topic: its sender chooses no other one.
        properties[names.RETRY_TOPIC] = found.topic
    properties[names.WAIT_STORE_MSG_OK] = "false"
    most = most_retries(config, header.max_reconsume_times)
    if found.reconsume_times >= most or header.delay_level < 0:
        topic, queue_id = dead_letter_topic(broker, group), random.randrange(DLQ_QUEUES)
        broker.stats.count_dead_letter(group, header.origin_topic or found.topic)
        properties[names.DELAY_TIME_LEVEL] = "0"
        log.info("%s of %s goes to the dead letters of %s", found.offset_message_id, found.topic, group)
    else:
        properties[names.DELAY_TIME_LEVEL] = str(header.delay_level or FIRST_LEVEL + found.reconsume_times)
    origin = properties.get(names.ORIGIN_MESSAGE_ID) or found.offset_message_id
    properties[names.ORIGIN_MESSAGE_ID] = origin
    message = InnerMessage.of(
        topic, queue_id, found.body, properties, flag=found.flag, sys_flag=found.sys_flag,
        born_timestamp=found.born_timestamp, born_host=found.born_host, store_host=broker.sender.store_host,
        reconsume_times=min(found.reconsume_times + 1, MAX_INT),
    )  # fmt: skip
    result = broker.put(message)
    if result.status is not PutMessageStatus.PUT_OK:
        raise NotTakenError(ResponseCode.SYSTEM_ERROR, f"{result.status.name}: {result.reason}")
    broker.stats.group(properties[names.RETRY_TOPIC], group).send_backs += 1
    return request.response()


HANDLERS = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}

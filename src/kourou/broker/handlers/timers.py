"""Timer messages: how far they are, how many wait, and taking one back (RecallMessageProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.errors import BadMessageError
from kourou.message import properties as names
from kourou.message.host import pack_host
from kourou.message.recall import RecallHandle
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import RecallMessage
from kourou.remoting.protocol.topic_config import PERM_WRITE
from kourou.store.config import BrokerRole
from kourou.store.put import InnerMessage
from kourou.store.status import PutMessageStatus
from kourou.store.timer.files import encode_timer_checkpoint

if TYPE_CHECKING:
    from kourou.broker.server import Broker

RECALL_TAG = "_RECALL_TAG_"

_TAKEN = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)


def get_checkpoint(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_TIMER_CHECK_POINT: how far the timers are, for a slave."""
    timers = broker.timers
    if not timers.enabled:
        return request.response(ResponseCode.SYSTEM_ERROR, remark="The checkpoint is null")
    return request.response(body=encode_timer_checkpoint(timers.take_checkpoint()))


def get_metrics(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_TIMER_METRICS: how many messages of each topic wait."""
    timers = broker.timers
    if not timers.enabled:
        return request.response(ResponseCode.SYSTEM_ERROR, remark="The timer message store is null")
    return request.response(body=timers.metrics.encode())


def recall(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """RECALL_MESSAGE: take a timer message back, by a message that deletes it when both are due."""
    header = RecallMessage.read(request)
    fields = {names.MSG_REGION: broker.config.region_id}
    code, reason, handle = _check(broker, header)
    if handle is None:
        return request.response(code, fields, remark=reason)
    now_ms = broker.clock.now_ms()
    by_topic = broker.config.store.append_topic_for_timer_delete_key
    properties = {
        names.TAGS: RECALL_TAG,
        names.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.unique_id}" if by_topic else handle.unique_id,
        names.UNIQ_KEY: handle.unique_id,
        names.TIMER_DELIVER_MS: handle.deliver_ms,
        names.BORN_TIMESTAMP: str(now_ms),
    }
    if header.producer_group is not None:
        properties[names.PRODUCER_GROUP] = header.producer_group
    result = broker.put(
        InnerMessage.of(
            handle.topic, 0, b"0", properties, born_timestamp=now_ms, born_host=connection.peer_host,
            store_host=pack_host(broker.config.broker_ip1, broker.config.listen_port),
        )
    )  # fmt: skip
    if result.status not in _TAKEN:
        return request.response(ResponseCode.SYSTEM_ERROR, fields, remark="recall failed, execute error")
    return request.response(ext_fields={**fields, "msgId": handle.unique_id})


def _check(broker: Broker, header: RecallMessage) -> tuple[ResponseCode, str, RecallHandle | None]:
    """The handle of a message that can be recalled; otherwise why not, in Java's words and order."""
    config = broker.config
    unavailable = "recall failed, broker service not available"
    if not config.recall_message_enable:
        return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden", None
    if config.store.broker_role is BrokerRole.SLAVE:
        return ResponseCode.SLAVE_NOT_AVAILABLE, unavailable, None
    writable = config.broker_permission & PERM_WRITE or config.allow_recall_when_broker_not_writeable
    now_ms = broker.clock.now_ms()
    if now_ms < config.start_accept_send_request_time_stamp or not writable:
        return ResponseCode.SERVICE_NOT_AVAILABLE, unavailable, None
    if broker.topics.get(header.topic) is None:
        remark = f"recall failed, the topic[{header.topic}] not exist"
        return ResponseCode.TOPIC_NOT_EXIST, remark, None
    try:
        handle = RecallHandle.decode(header.recall_handle)
    except BadMessageError as error:
        return ResponseCode.ILLEGAL_OPERATION, str(error), None
    if handle.topic != header.topic:
        return ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match", None
    if handle.broker_name != config.broker_name:
        return ResponseCode.ILLEGAL_OPERATION, unavailable, None
    left_ms = int(handle.deliver_ms) - now_ms if handle.deliver_ms.isdecimal() else -1
    if not 0 < left_ms < config.store.timer_max_delay_sec * 1000:
        return ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid", None
    return ResponseCode.SUCCESS, "", handle


HANDLERS = {
    RequestCode.GET_TIMER_CHECK_POINT: get_checkpoint,
    RequestCode.GET_TIMER_METRICS: get_metrics,
    RequestCode.RECALL_MESSAGE: recall,
}

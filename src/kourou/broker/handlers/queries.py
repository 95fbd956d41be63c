"""Messages by key or id, entries of queues, offsets of queues (QueryMessageProcessor and others)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.auth.rules import GET, topic
from kourou.broker.messages.filters import filter_of
from kourou.message.codec import StoredMessage
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import is_true
from kourou.remoting.protocol.headers import (
    GetMaxOffset,
    QueryConsumeQueue,
    QueryMessage,
    QueueOfTopic,
    SearchOffset,
    ViewMessage,
)
from kourou.store import BoundaryType
from kourou.store.index.index_file import TAG_TYPE

if TYPE_CHECKING:
    from kourou.broker.server import Broker

UNIQUE_KEY_FLAG = "_UNIQUE_KEY_QUERY"
MAX_QUERY = 256  # messages; what a client asks beyond is cut, so that no request stops the loop
UNIQUE_QUERY = 32  # Java's defaultQueryMaxNum
MAX_ENTRIES = 4096


def query_message(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """QUERY_MESSAGE: messages by key, unique id or tag."""
    header = QueryMessage.read(request)
    unique = is_true(request.ext_fields.get(UNIQUE_KEY_FLAG))
    limit = UNIQUE_QUERY if unique else min(max(header.max_num, 0), MAX_QUERY)
    by_tag = not unique and header.index_type == TAG_TYPE
    found = broker.store.query_message(
        header.topic,
        header.key,
        limit,
        header.begin_timestamp,
        header.end_timestamp,
        TAG_TYPE if by_tag else None,
    )
    fields = {
        "indexLastUpdatePhyoffset": str(found.index_last_update_physical_offset),
        "indexLastUpdateTimestamp": str(found.index_last_update_timestamp),
    }
    if not found.records:
        remark = found.incomplete or "can not find message, maybe time range not correct"
        return request.response(ResponseCode.QUERY_NOT_FOUND, fields, remark=remark)
    return request.response(ext_fields=fields, body=b"".join(found.records), remark=found.incomplete)


def view_message(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """VIEW_MESSAGE_BY_ID: the message at a physical offset."""
    header = ViewMessage.read(request)
    found = message_at(broker, connection, request, header.offset, GET)
    if found is None:
        return request.response(
            ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {header.offset}"
        )
    return request.response(body=broker.store.commit_log.message_at(header.offset))


def message_at(
    broker: Broker, connection: Connection, request: RemotingCommand, physical_offset: int, *actions: str
) -> StoredMessage | None:
    """The message at a place in the log. It is its topic's, whichever one the request names."""
    found = broker.store.look_message(physical_offset)
    owner = None if found is None else topic(found.topic)
    broker.guard.require_found(request, connection.peer, f"message at {physical_offset}", owner, *actions)
    return found


def query_consume_queue(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """QUERY_CONSUME_QUEUE: entries of a queue, and whether a group would take them."""
    header = QueryConsumeQueue.read(request)
    queue = broker.store.queues.get(header.topic, header.queue_id)
    if queue is None:
        return request.response(
            ResponseCode.SYSTEM_ERROR, remark=f"{header.queue_id}@{header.topic} is not exist!"
        )
    body: dict[str, Any] = {"maxQueueIndex": queue.max_offset, "minQueueIndex": queue.min_offset}
    message_filter = None
    if header.consumer_group is not None:
        subscription = broker.consumers.find_subscription(header.consumer_group, header.topic)
        if subscription is None:
            body["filterData"] = f"{header.consumer_group}@{header.topic} is not online!"
        else:
            data = broker.filters.get(header.topic, header.consumer_group)
            body["subscriptionData"] = subscription.to_json()
            body["filterData"] = "null" if data is None else lenient_json.dumps(data.to_json()).decode()
            if subscription.is_tag_type or data is not None:
                message_filter = filter_of(subscription, data)
    if not queue.min_offset <= header.index < queue.max_offset:
        remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
        return request.response(remark=remark)
    entries = []
    for entry in queue.iterate(header.index):
        if entry.queue_offset - header.index >= min(header.count, MAX_ENTRIES):
            break
        one = {
            "eval": entry.ext is not None
            and message_filter is not None
            and message_filter.matches_queue(entry.tags_code, entry.ext),
            "physicOffset": entry.physical_offset,
            "physicSize": entry.size,
            "tagsCode": entry.tags_code,
        }
        entries.append(one)
    body["queueData"] = entries
    return request.response(body=lenient_json.dumps(body))


def search_offset(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """SEARCH_OFFSET_BY_TIMESTAMP: the queue offset at a time."""
    header = SearchOffset.read(request)
    upper = (header.boundary_type or "").lower() == BoundaryType.UPPER.value
    boundary = BoundaryType.UPPER if upper else BoundaryType.LOWER
    offset = broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
    return request.response(ext_fields={"offset": str(offset)})


def get_max_offset(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_MAX_OFFSET: the queue offset behind the last message."""
    header = GetMaxOffset.read(request)
    offset = broker.store.max_offset(header.topic, header.queue_id, committed=header.committed)
    return request.response(ext_fields={"offset": str(offset)})


def get_min_offset(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_MIN_OFFSET: the queue offset of the first message."""
    header = QueueOfTopic.read(request)
    offset = max(broker.store.min_offset(header.topic, header.queue_id), 0)
    return request.response(ext_fields={"offset": str(offset)})


def get_earliest_time(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_EARLIEST_MSG_STORETIME: when the first message of a queue was stored."""
    header = QueueOfTopic.read(request)
    timestamp = broker.store.earliest_message_time(header.topic, header.queue_id)
    return request.response(ext_fields={"timestamp": str(timestamp)})


HANDLERS = {
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_CONSUME_QUEUE: query_consume_queue,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: get_earliest_time,
}

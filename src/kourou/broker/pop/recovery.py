"""What POP knows again after a crash, from the log.

Offsets of groups are saved every few seconds. What was popped and what was revived after the last time is in
the log, after the place that the file of offsets names: check points say how far each group was given
messages, records in retry topics say which messages were revived. Java takes the offsets as they were saved,
so that messages come again which are in flight or acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kourou.broker.pop.checkpoints import ACK_TAG, CK_TAG, CheckPoint, read_ack, read_check_point
from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage
from kourou.message.topics import TIMER_TOPIC
from kourou.store import InnerMessage, MessageStore

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

# Unique id, retries, first pop: what a message in a retry topic is known by
_Identity = tuple[str | None, int, str | None]


def restore_offsets(broker: Broker, since: int) -> int:
    """Move groups on to where they were given messages, by the check points from a place of the log on; how
    many offsets that changed."""
    store, moved = broker.store, 0
    records = [
        *_records_since(store, TIMER_TOPIC, 0, since),
        *(
            record
            for number in range(broker.config.revive_queue_num)
            for record in _records_since(store, broker.popper.revive_topic, number, since)
        ),
    ]
    records.sort(key=lambda record: record.physical_offset)
    for record, following in zip(records, [*records[1:], None]):
        point = _popped(broker, record)
        if point is None or store.queues.was_deleted(point.topic, record.physical_offset):
            continue
        where = broker.offsets.query(point.group, point.topic, point.queue_id)
        if point.start_offset == where or (point.start_offset > where and not _is_change(point, following)):
            end = point.start_offset + point.differences[-1] + 1
            broker.offsets.commit("recovery", point.group, point.topic, point.queue_id, end)
            moved += 1
    return moved


def _popped(broker: Broker, record: StoredMessage) -> CheckPoint | None:
    """The check point of a record; None if it is another, was put again on its way, or was revived in
    vain."""
    get = record.properties.get
    if get(names.TAGS) != CK_TAG or names.TIMER_DEQUEUE_MS in record.properties:
        return None
    if record.topic == TIMER_TOPIC and get(names.REAL_TOPIC) != broker.popper.revive_topic:
        return None
    try:
        point = read_check_point(record.body, broker.config.broker_name)
    except CorruptRecordError:
        return None  # revive says it
    return None if point.written_again else point


def _is_change(point: CheckPoint, following: StoredMessage | None) -> bool:
    """Whether a check point may be of a message that was given another time, which moves no offset: the
    acknowledgement of the one before follows it."""
    if len(point.differences) > 1:
        return False
    if following is None:
        return True
    if following.properties.get(names.TAGS) != ACK_TAG:
        return False
    try:
        ack = read_ack(following.body, point.broker)
    except CorruptRecordError:
        return True
    same_queue = (ack.topic, ack.group, ack.queue_id) == (point.topic, point.group, point.queue_id)
    return same_queue and ack.offsets == [point.start_offset] and ack.key != point.key


class RevivedBefore:
    """The messages that were put into retry topics from a place of the log on, topic by topic as they are
    asked for."""

    def __init__(self, store: MessageStore, since: int) -> None:
        self._store = store
        self.since = since
        self._topics: dict[str, dict[_Identity, int]] = {}  # the last queue offset of each

    def has(self, message: InnerMessage, after: int) -> bool:
        """Whether this message, as it would be put now, is in its queue after an offset."""
        found = self._topics.get(message.topic)
        if found is None:
            found = self._topics[message.topic] = {
                _identity(record.properties, record.reconsume_times): record.queue_offset
                for record in _records_since(self._store, message.topic, message.queue_id, self.since)
            }
        identity = _identity(message.properties, message.reconsume_times)
        return identity[0] is not None and found.get(identity, -1) > after


def _identity(properties: dict[str, str], reconsume_times: int) -> _Identity:
    return properties.get(names.UNIQ_KEY), reconsume_times, properties.get(names.FIRST_POP_TIME)


def _records_since(store: MessageStore, topic: str, queue_id: int, since: int) -> Iterator[StoredMessage]:
    """The records of a queue from a place of the log on."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return
    low, high = queue.min_offset, queue.max_offset
    while low < high:  # offsets in the log grow with those of the queue
        middle = (low + high) // 2
        entry = queue.get(middle)
        if entry is not None and entry.physical_offset < since:
            low = middle + 1
        else:
            high = middle
    for entry in queue.iterate(low):
        record = store.look_message(entry.physical_offset)
        if record is not None:
            yield record

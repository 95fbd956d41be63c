"""Popper: messages of a topic, whichever queue they are in (PopMessageProcessor, NotificationProcessor)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from kourou.broker.messages.filters import AnyFilter
from kourou.broker.messages.pull import MAX_HOLD_MS
from kourou.broker.pop.admission import Admission, RefusedError
from kourou.broker.pop.checkpoints import Ack, CheckPoint
from kourou.broker.pop.polls import Poll, PollKey, Polls
from kourou.broker.pop.settled import Settled
from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import decode, encode
from kourou.message.properties import encode_properties
from kourou.message.topics import RETRY_PREFIX, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from kourou.remoting.connection import Answer, Connection, Pieces
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand, frame_head
from kourou.remoting.protocol.handles import (
    NORMAL,
    ORDER_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Handle,
    OffsetTexts,
    kind_of,
    normal_topic,
    retry_topic,
)
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.headers import Notification, PollingInfo, PopMessage
from kourou.store.status import GetMessageResult, GetMessageStatus, PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

EARLY_MS = 50  # before its time is up, a poll is answered
DEFAULT_PRIORITY_FACTOR = 100
FROM_FIRST = 0  # initMode: where a group begins that has no offset
NOT_SET = "not set any response code"  # what Java's answers say where nobody said anything else

_WRONG_OFFSET = (
    GetMessageStatus.OFFSET_TOO_SMALL,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.OFFSET_FOUND_NULL,
)
_PASSED = (
    GetMessageStatus.NO_MATCHED_MESSAGE,
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
)


# As in Java, a slave that lacks a check point or an acknowledgement is no reason to refuse a request.
_SAFE = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)

Tried = Callable[[Connection, RemotingCommand, bool], Answer]


@dataclass(slots=True)
class _Popped:
    """What a request gets."""

    pop_time_ms: int
    revive_queue: int
    texts: OffsetTexts = field(default_factory=OffsetTexts)
    pieces: list[bytes | memoryview] = field(default_factory=list)
    count: int = 0
    stored: list[PutMessageResult] = field(default_factory=list)  # the check points
    rest: int = 0  # messages that are left in the queues
    has_moved: bool = False  # messages that the filter left out were passed


class Popper:
    """What the requests do that ask for messages of a topic, and those that wait."""

    HANDLERS: ClassVar = {
        RequestCode.POP_MESSAGE: "pop",
        RequestCode.NOTIFICATION: "notify",
        RequestCode.POLLING_INFO: "polling_info",
    }

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.awaited: dict[Poll, None] = {}  # all who wait
        self.polls = Polls(partial(self._again, self.pop), self.awaited)
        self.notifications = Polls(partial(self._again, self.notify), self.awaited, newest_first=True)
        self.admission = Admission(broker)
        self.settled = Settled()
        self._next_revive_queue = count().__next__
        self._in_flight: Counter[PollKey] = Counter()  # messages, where they are limited
        self._unblock: dict[PollKey, asyncio.TimerHandle] = {}
        self._stopping = False
        # Hears of check points and acknowledgements: group, topic, CK or ACK, and what became of them
        self.on_put: Callable[[str, str, str, PutMessageStatus], None] | None = None
        self.configure()

    def configure(self) -> None:
        """Take what is needed of the configuration."""
        self.revive_topic = REVIVE_TOPIC_PREFIX + self._broker.config.broker_cluster_name
        self._waits = self._broker.config.store.sync_copies
        self.admission.forget()

    # Requests

    def pop(self, connection: Connection, request: RemotingCommand, is_over: bool = False) -> Answer:
        """POP_MESSAGE: give out messages, or wait for some."""
        header = PopMessage.read(request)
        request.header = header  # it may be tried again
        now_ms = self._broker.clock.now_ms()
        header.born_time = header.born_time or now_ms
        try:
            message_filter = self.admission.admit(connection, header, now_ms)
        except RefusedError as refused:
            return refused.answer(request)
        popped = self._pop(header, message_filter, now_ms)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        fields = {
            "invisibleTime": str(header.invisible_time),
            "popTime": str(popped.pop_time_ms),
            "restNum": str(popped.rest),
            "reviveQid": str(popped.revive_queue),
            **popped.texts.fields(),
        }
        if popped.count:
            if popped.rest > 0:
                self.polls.wake_one(topic, group, queue_id)
            size = sum(map(len, popped.pieces))
            head = request.response(ResponseCode.SUCCESS, fields, remark="FOUND").encode_header()
            answer = [frame_head(request.serialize_type, head, size), *popped.pieces]
            return self.answer_when_safe(connection, request, popped.stored, answer)
        waits = not is_over and self._wait(self.polls, connection, request, header, now_ms, message_filter)
        if waits:
            if popped.has_moved and popped.rest > 0:
                self.polls.wake_one(topic, group, queue_id)
            elif header.order:
                self._wake_when_free((topic, group, queue_id))
            return None
        code = ResponseCode.POLLING_FULL if waits is None else ResponseCode.POLLING_TIMEOUT
        return request.response(code, fields, remark="NO_MESSAGE_IN_QUEUE")

    def notify(self, connection: Connection, request: RemotingCommand, is_over: bool = False) -> Answer:
        """NOTIFICATION: say that there are messages, as soon as there are."""
        header = Notification.read(request)
        request.header = header
        now_ms = self._broker.clock.now_ms()
        header.born_time = header.born_time or now_ms
        try:
            self.admission.check(
                connection, header.topic, header.consumer_group, header.queue_id, "notification"
            )
            message_filter = self.admission.filter_of(
                header.topic, header.consumer_group, header.exp, header.exp_type
            )
        except RefusedError as refused:
            return refused.answer(request)
        has_messages = self._has_messages(header)
        waits: bool | None = False
        if not has_messages and not is_over:
            polls = self.notifications
            waits = self._wait(polls, connection, request, header, now_ms, message_filter)
            if waits:
                if header.order:
                    self._wake_when_free((header.topic, header.consumer_group, header.queue_id))
                return None
        fields = {"hasMsg": str(has_messages).lower(), "pollingFull": str(waits is None).lower()}
        return request.response(ResponseCode.SUCCESS, fields, remark=NOT_SET)

    def polling_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """POLLING_INFO: how many requests wait for a queue."""
        header = PollingInfo.read(request)
        try:
            self.admission.check(connection, header.topic, header.consumer_group, header.queue_id, "polling")
        except RefusedError as refused:
            return refused.answer(request)
        number = self.polls.waiting((header.topic, header.consumer_group, header.queue_id))
        return request.response(ResponseCode.SUCCESS, {"pollingNum": str(number)}, remark=NOT_SET)

    # Messages

    def _pop(self, header: PopMessage, message_filter: AnyFilter | None, now_ms: int) -> _Popped:
        config, chance = self._broker.config, random.randrange(100)
        queues = config.revive_queue_num
        revive_queue = ORDER_QUEUE if header.order else self._next_revive_queue() % queues
        popped = _Popped(now_ms, revive_queue)
        if self._broker.slave is not None:
            return popped  # it writes nothing, so it gives nothing out
        kind = self.admission.retry_kind()
        if kind == RETRY_V2 and config.retrieve_message_from_pop_retry_topic_v1 and chance % 2 == 0:
            kind = RETRY_V1
        retries = retry_topic(header.topic, header.consumer_group, kind)
        retries_first = chance < config.pop_from_retry_probability
        if retries_first and not header.order:
            self._pop_topic(popped, header, retries, self.queues_of(retries, chance), message_filter)
        queue_ids = iter([header.queue_id])
        if header.queue_id < 0:
            queue_ids = self.queues_of(header.topic, self._first_queue(header, chance))
        self._pop_topic(popped, header, header.topic, queue_ids, message_filter)
        if not retries_first and not header.order and popped.count < header.max_msg_nums:
            self._pop_topic(popped, header, retries, self.queues_of(retries, chance), message_filter)
        return popped

    def _pop_topic(
        self,
        popped: _Popped,
        header: PopMessage,
        topic: str,
        queue_ids: Iterator[int],
        message_filter: AnyFilter | None,
    ) -> None:
        """From queues of a topic, one after the other."""
        group = header.consumer_group
        for queue_id in queue_ids:
            if popped.count < header.max_msg_nums and not self._has_too_many(topic, group, queue_id):
                self._pop_queue(popped, header, topic, queue_id, message_filter)
            elif not (
                header.order and self._broker.orders.is_blocked(topic, group, queue_id, header.attempt_id)
            ):
                popped.rest += self._left(topic, group, queue_id)

    def _has_too_many(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a group has so many messages of a queue in flight that it gets no more of it."""
        config = self._broker.config
        if not config.enable_pop_message_threshold:
            return False
        return self._in_flight[topic, group, queue_id] > config.pop_inflight_message_threshold

    def count_in_flight(self, topic: str, group: str, queue_id: int, change: int) -> None:
        """Messages are given out, or done, where that is limited."""
        if self._broker.config.enable_pop_message_threshold:
            key = topic, group, queue_id
            self._in_flight[key] += change
            if self._in_flight[key] <= 0:  # done twice, or given out before the start
                del self._in_flight[key]

    def _left(self, topic: str, group: str, queue_id: int) -> int:
        """How many messages of a queue a group was not given. Hot: asked for each queue of a topic."""
        offset = max(self.next_offset(topic, group, queue_id), 0)
        return max(self._broker.store.max_offset(topic, queue_id) - offset, 0)

    def _first_queue(self, header: PopMessage, chance: int) -> int:
        """Any queue; of a topic with priorities the highest, in as many of 100 cases as its group says."""
        topic = self._broker.topics.get(header.topic)
        if topic is None or topic.attributes.get("message.type") != "PRIORITY":
            return chance
        group = self._broker.groups.find(header.consumer_group)
        factor = DEFAULT_PRIORITY_FACTOR if group is None else group.attributes.get("priority.factor", "")
        return topic.read_queue_nums - 1 if chance < int(factor or DEFAULT_PRIORITY_FACTOR) else chance

    def queues_of(self, topic: str, start: int) -> Iterator[int]:
        config = self._broker.topics.get(topic)
        number = 0 if config is None else config.read_queue_nums
        return ((start - step) % number for step in range(number))

    def _pop_queue(
        self,
        popped: _Popped,
        header: PopMessage,
        topic: str,
        queue_id: int,
        message_filter: AnyFilter | None,
    ) -> None:
        broker, group = self._broker, header.consumer_group
        store, offsets = broker.store, broker.offsets
        start = self._take_offset(topic, group, queue_id, header.init_mode)
        if header.order and broker.orders.is_blocked(topic, group, queue_id, header.attempt_id):
            return  # what is behind it does not count: its acknowledgement wakes who waits
        wanted = header.max_msg_nums - popped.count
        found = store.get_message(topic, queue_id, start, wanted, message_filter=message_filter)
        if found.status in _WRONG_OFFSET and found.next_begin_offset != start:
            log.warning("%s@%s, queue %d: %d is no offset, goes on at %d", topic, group, queue_id, start,
                        found.next_begin_offset)  # fmt: skip
            start = found.next_begin_offset
            broker.pop_buffer.write_queue(topic, group, queue_id)
            offsets.commit("pop", group, topic, queue_id, start)
            found = store.get_message(topic, queue_id, start, wanted, message_filter=message_filter)
        places: list[int] = found.queue_offsets
        pieces: list[bytes | memoryview] = list(found.blocks)
        if header.order:
            places, pieces = self._open_ones(topic, group, queue_id, found)
        if places:
            if header.order:
                info = broker.orders.update(
                    topic,
                    group,
                    queue_id,
                    header.attempt_id,
                    popped.pop_time_ms,
                    header.invisible_time,
                    places,
                )
                offsets.commit("pop", group, topic, queue_id, start)
                popped.texts.add_counts(topic, queue_id, info.counts, len(places))
            elif not self._keep(popped, header, topic, queue_id, start, places, found.next_begin_offset):
                popped.rest += len(places)
                return
            popped.texts.add(topic, queue_id, start, places)
            popped.count += len(places)
            if kind_of(topic) != NORMAL and not broker.config.pop_response_return_actual_retry_topic:
                pieces = self._as_sent(popped, header, topic, start, found.records)
            popped.pieces += pieces
            gets = broker.stats.group(topic, group).queue(queue_id)
            gets.messages += len(places)
            gets.calls += 1
            gets.size_bytes += sum(map(len, pieces))
        elif (found.status in _PASSED or found.queue_offsets) and found.next_begin_offset > start:
            if not broker.pop_buffer.passed(topic, group, queue_id, found.next_begin_offset):
                offsets.commit("pop", group, topic, queue_id, found.next_begin_offset)
            popped.has_moved = True
        popped.rest += max(found.max_offset - found.next_begin_offset, 0)

    def _take_offset(self, topic: str, group: str, queue_id: int, init_mode: int) -> int:
        """Where a group is in a queue; where it begins, if it was never there."""
        broker = self._broker
        reset_to = broker.offsets.take_reset(topic, group, queue_id)
        if reset_to is not None:
            broker.pop_buffer.write_queue(topic, group, queue_id)
            broker.orders.clear(topic, group, queue_id)
            broker.offsets.commit("reset", group, topic, queue_id, reset_to)
            return reset_to
        offset = self.next_offset(topic, group, queue_id)
        if offset < 0:
            offset = self._first_offset(topic, queue_id, init_mode)
            broker.offsets.commit("pop", group, topic, queue_id, offset)
        return offset

    def next_offset(self, topic: str, group: str, queue_id: int) -> int:
        """The offset after what a group was given of a queue; -1 if it was never given anything."""
        broker = self._broker
        return max(
            broker.offsets.query(group, topic, queue_id),
            broker.pop_buffer.next_offset(topic, group, queue_id),
        )

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        store = self._broker.store
        low = max(store.min_offset(topic, queue_id), 0)
        if init_mode == FROM_FIRST or topic.startswith(RETRY_PREFIX):
            return low
        if low == 0 and self._broker.config.init_pop_offset_by_check_msg_in_mem:
            return 0  # the topic is new: the group would miss what made it
        return max(store.max_offset(topic, queue_id) - 1, 0)

    def _keep(
        self,
        popped: _Popped,
        header: PopMessage,
        topic: str,
        queue_id: int,
        start: int,
        places: list[int],
        next_offset: int,
    ) -> bool:
        """Keep what is given out, in memory or in the log; False where that failed, and nothing may be."""
        broker, group = self._broker, header.consumer_group
        point = CheckPoint(
            topic, group, queue_id, start, popped.pop_time_ms, header.invisible_time,
            broker.config.broker_name, [place - start for place in places],
        )  # fmt: skip
        if broker.pop_buffer.take(point, popped.revive_queue, next_offset):
            self.count_in_flight(topic, group, queue_id, len(places))
            return True
        if not broker.pop_buffer.write_queue(topic, group, queue_id):
            return False
        result = self.put_check_point(point, popped.revive_queue)
        if result.ok:
            popped.stored.append(result)
            self.count_in_flight(topic, group, queue_id, len(places))
            broker.offsets.commit("pop", group, topic, queue_id, next_offset)
        return result.ok

    def put_check_point(self, point: CheckPoint, revive_queue: int) -> PutMessageResult:
        """Have a check point come to a revive queue when it is due. BadRequestError if there is none such."""
        broker = self._broker
        self.check_revive_queue(revive_queue)
        host, now_ms = broker.sender.store_host, broker.clock.now_ms()
        message = point.message(self.revive_topic, revive_queue, host, now_ms)
        result = broker.put(message)
        if self.on_put is not None:
            self.on_put(point.group, point.topic, "CK", result.status)
        if result.ok and message.topic == TIMER_TOPIC:
            self.settled.add(point, result.physical_offset)
        if not result.ok:
            log.warning("no check point of %s: %s %s", point.topic, result.status.name, result.reason)
        return result

    def put_ack(self, done: Ack, revive_queue: int, invisible_ms: int) -> list[PutMessageResult]:
        """Note acknowledgements: in the check point that is in memory, or as a message that comes to a revive
        queue; what was written. BadRequestError if there is no such queue."""
        broker = self._broker
        self.count_in_flight(done.topic, done.group, done.queue_id, -len(done.offsets))
        if broker.pop_buffer.ack(done):
            return []
        self.check_revive_queue(revive_queue)
        now_ms, host = broker.clock.now_ms(), broker.sender.store_host
        message = done.message(self.revive_topic, revive_queue, invisible_ms, host, now_ms)
        result = broker.put(message)
        if result.ok and message.topic == TIMER_TOPIC:
            self.settled.ack(done, invisible_ms, result.physical_offset)
        if self.on_put is not None:
            self.on_put(done.group, done.topic, "ACK", result.status)
        return [result]

    def answer_when_safe(
        self,
        connection: Connection,
        request: RemotingCommand,
        stored: list[PutMessageResult],
        answer: RemotingCommand | Pieces,
    ) -> Answer:
        """Answer when the check points and acknowledgements that a request wrote are where SYNC_FLUSH and
        SYNC_MASTER want them: at once, or later. An error where one could not be written."""

        def answer_with(status: PutMessageStatus) -> RemotingCommand | Pieces:
            if status in _SAFE:
                return answer
            log.warning("a request of POP is refused: %s", status.name)
            return request.response(ResponseCode.SYSTEM_ERROR, {}, remark=status.name)

        failed = next((result.status for result in stored if not result.ok), None)
        if failed is not None or not stored or not self._waits:
            return answer_with(failed or PutMessageStatus.PUT_OK)
        request.body = None  # it would keep the bytes of its read
        end = max(result.physical_offset + result.wrote_bytes for result in stored)
        self._broker.store.when_safe(end, lambda status: connection.reply(request, answer_with(status)))
        return None

    def check_revive_queue(self, number: int) -> None:
        """BadRequestError unless there is such a revive queue: clients give back the one of their handle."""
        if not 0 <= number < self._broker.config.revive_queue_num:
            raise BadRequestError(f"there is no revive queue {number}")

    def _open_ones(
        self, topic: str, group: str, queue_id: int, found: GetMessageResult
    ) -> tuple[list[int], list[bytes | memoryview]]:
        """What an ordered group has not acknowledged yet: offsets, and what is sent of them."""
        places = found.queue_offsets
        given = self._broker.orders.open_offsets(topic, group, queue_id, places)
        if len(given) == len(places):
            return places, list(found.blocks)
        kept = set(given)
        return given, [record for place, record in zip(places, found.records) if place in kept]

    def _as_sent(
        self, popped: _Popped, header: PopMessage, topic: str, start: int, records: list[memoryview]
    ) -> list[bytes | memoryview]:
        """Records of a retry topic as if they were of the topic itself."""
        kind = kind_of(topic)
        made: list[bytes | memoryview] = []
        for record in records:
            try:
                message = decode(record, check_crc=False)
            except CorruptRecordError as error:
                log.error("a message of %s cannot be read and is sent as it is: %s", topic, error)
                made.append(record)
                continue
            handle = Handle(
                start, popped.pop_time_ms, header.invisible_time, popped.revive_queue, kind,
                self._broker.config.broker_name, message.queue_id, message.queue_offset,
            )  # fmt: skip
            properties = {**message.properties, names.POP_CK: handle.text}
            changed = replace(
                message, topic=header.topic, properties_raw=encode_properties(properties), _properties=None
            )
            made.append(encode(changed))
        return made

    def _has_messages(self, header: Notification) -> bool:
        group = header.consumer_group
        topics = [header.topic]
        if not header.order:
            topics += [retry_topic(header.topic, group, kind) for kind in (RETRY_V1, RETRY_V2)]
        for topic in topics:
            whole = header.queue_id < 0 or topic != header.topic
            for queue_id in self.queues_of(topic, 0) if whole else [header.queue_id]:
                if header.order and self._broker.orders.is_blocked(topic, group, queue_id, header.attempt_id):
                    continue
                offset = self.next_offset(topic, group, queue_id)
                if offset < 0:
                    offset = max(self._broker.store.min_offset(topic, queue_id), 0)
                if self._broker.store.max_offset(topic, queue_id) > offset:
                    return True
        return False

    # Requests that wait

    def _wait(
        self,
        polls: Polls,
        connection: Connection,
        request: RemotingCommand,
        header: PopMessage | Notification,
        now_ms: int,
        message_filter: AnyFilter | None,
    ) -> bool | None:
        """Have a request wait; False if it does not want to, None if too many do."""
        wait_ms = min(header.born_time + header.poll_time - EARLY_MS - now_ms, header.poll_time, MAX_HOLD_MS)
        if wait_ms <= 0 or self._stopping:
            return False
        key = header.topic, header.consumer_group, header.queue_id
        if not polls.has_room(key):
            return None
        polls.add(Poll(connection, request, key, self._loop.time() + wait_ms / 1000, message_filter))
        return True

    def _wake_when_free(self, key: PollKey) -> None:
        """An ordered request waits: have it tried again when the first blocked queue is free."""
        topic, group, queue_id = key
        now_ms = self._broker.clock.now_ms()
        queues = self.queues_of(topic, 0) if queue_id < 0 else iter([queue_id])
        infos = (self._broker.orders.get(topic, group, queue) for queue in queues)
        ends = [end for info in infos if info is not None and (end := info.blocked_until_ms(now_ms))]
        if ends and key not in self._unblock:
            delay_s = (min(ends) - now_ms) / 1000
            self._unblock[key] = self._loop.call_later(delay_s, self._freed, key)

    def _freed(self, key: PollKey) -> None:
        self._unblock.pop(key, None)
        self.wake(*key)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """There may be something for a group."""
        for polls in (self.polls, self.notifications):
            polls.wake_one(topic, group, queue_id)

    def _again(self, handler: Tried, connection: Connection, request: RemotingCommand, is_over: bool) -> None:
        """Try a request once more that has waited."""

        def again(connection: Connection, request: RemotingCommand) -> Answer:
            self._broker.guard.check_again(request, connection.peer)
            return handler(connection, request, is_over)

        connection.answer_again(request, again)

    def on_arrive(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        timestamp: int,
        properties: Mapping[str, str] | None,
    ) -> None:
        """A message is in its queue."""
        group = properties.get(names.ORIGIN_GROUP) if properties else None
        for polls in (self.polls, self.notifications):
            if group is not None and topic.startswith(RETRY_PREFIX):
                polls.wake_any(normal_topic(topic, group) or topic, group)
            elif polls.count:
                polls.arrived(topic, queue_id, tags_code, properties, next_offset)

    def connection_lost(self, connection: Connection) -> None:
        """Nobody waits on that connection any more."""
        self.polls.connection_lost(connection)
        self.notifications.connection_lost(connection)

    def stop(self) -> None:
        """Answer all who wait, and let nobody wait any more."""
        self._stopping = True
        for timer in self._unblock.values():
            timer.cancel()
        self._unblock.clear()
        self.polls.stop()
        self.notifications.stop()

"""ReviveService: what was popped and not acknowledged in time comes again (PopReviveService).

Check points and acknowledgements come to the queues of the revive topic when they are due, a check point
before its acknowledgements. Each queue is read once, from where the group CID_RMQ_SYS_REVIVE_GROUP is; check
points wait in memory until their acknowledgements must be there, then what is open of them is put into the
retry topic. The group's offset names the last check point that is done, and with it all before it: a broker
that starts again reads those that were waiting once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kourou.broker.pop.checkpoints import (
    ACK_INTERVAL_MS,
    CK_TAG,
    REVIVE_GROUP,
    Ack,
    CheckPoint,
    CheckPointKey,
    read_ack,
    read_check_point,
)
from kourou.broker.pop.recovery import RevivedBefore
from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage, decode
from kourou.remoting.protocol.handles import NORMAL, RETRY_V1, RETRY_V2, kind_of, normal_topic, retry_topic
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE
from kourou.store.put import InnerMessage, with_host_flags
from kourou.store.status import TRY_LATER, PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

AT_ONCE = 256  # records read before other work has its turn
GRACE_MS = ACK_INTERVAL_MS + 1000  # after a check point is due: slots of the timer are seconds
MAX_EARLY_ACKS = 100_000  # that came before their check point, while the timer was behind
RETRY_QUEUES = 1
LATE_S = 1  # that the timer may be late without being behind
# Until a message that could not be put is tried again
REWRITE_S = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class _Queue:
    """A revive queue, as far as it was read."""

    __slots__ = ("doubted_until", "early", "early_count", "latest_ms", "next_offset", "waiting")

    def __init__(self, next_offset: int, doubted_until: int) -> None:
        self.next_offset = next_offset
        self.doubted_until = doubted_until  # check points before may have been revived before a crash
        self.waiting: dict[CheckPointKey, CheckPoint] = {}  # in the order of the queue
        self.early: dict[CheckPointKey, list[tuple[int, Ack]]] = {}  # with where each lies
        self.early_count = 0
        self.latest_ms = 0  # the latest time that something was due which has come


class ReviveService:
    """The revive queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[int, _Queue] = {}
        self._before: RevivedBefore | None = None  # until what was due before a crash is revived
        self.revived = 0  # messages since the start
        # Hear of records that are read (group, topic, CK or ACK, queue) and of messages that are put again
        self.on_read: Callable[[str, str, str, int], None] | None = None
        self.on_retry: Callable[[str, str, PutMessageStatus], None] | None = None

    def lag(self, number: int) -> int:
        """How many records of a revive queue are not read yet."""
        queue, end = (
            self._queues.get(number),
            self._broker.store.max_offset(self._broker.popper.revive_topic, number),
        )
        return 0 if queue is None else max(end - queue.next_offset, 0)

    def latency_ms(self, number: int) -> int:
        """How late what is read of a revive queue is; 0 if all is read."""
        queue = self._queues.get(number)
        if queue is None or not queue.latest_ms or not self.lag(number):
            return 0
        return max(self._broker.clock.now_ms() - queue.latest_ms, 0)

    async def run(self) -> None:
        """Look at all queues, every `reviveInterval`."""
        while True:
            await asyncio.sleep(self._broker.config.revive_interval / 1000)
            try:
                await self.revive()
            except Exception:
                log.exception("reviving messages failed; it is tried again")

    async def revive(self) -> None:
        """Read what came, and put again what is due."""
        for number in range(self._broker.config.revive_queue_num):
            queue = self._queues.get(number)
            if queue is None:
                queue = self._queues[number] = self._make_queue(number)
            while self._read(number, queue):
                await asyncio.sleep(0)
            await self._revive_due(number, queue)
            self._commit(number, queue)
        if self._before is not None and not any(map(_has_doubts, self._queues.values())):
            self._before = None

    def doubt(self, since: int | None) -> None:
        """The broker starts: what lies in the log from a place on may have been revived before a crash."""
        self._before = None if since is None else RevivedBefore(self._broker.store, since)

    @property
    def doubted_from(self) -> int | None:
        """The place of the log from which on it is not known what was revived; None if all is known."""
        return None if self._before is None else self._before.since

    def _make_queue(self, number: int) -> _Queue:
        end = self._broker.store.max_offset(self._broker.popper.revive_topic, number)
        return _Queue(max(self._committed(number), -1) + 1, end if self._before is not None else 0)

    def _committed(self, number: int) -> int:
        return self._broker.offsets.query(REVIVE_GROUP, self._broker.popper.revive_topic, number)

    def _commit(self, number: int, queue: _Queue) -> None:
        if queue.early and not self._is_behind():
            queue.early.clear()  # nothing comes before them any more: their check points were done
            queue.early_count = 0
        first = next(iter(queue.waiting.values()), None)
        next_offset = queue.next_offset if first is None else first.revive_offset
        for early in queue.early.values():
            next_offset = min(next_offset, early[0][0])
        done = next_offset - 1
        if done > self._committed(number):
            self._broker.offsets.commit(
                "revive", REVIVE_GROUP, self._broker.popper.revive_topic, number, done
            )

    def _read(self, number: int, queue: _Queue) -> bool:
        """Take some records of a revive queue; whether there are more."""
        store, topic = self._broker.store, self._broker.popper.revive_topic
        entries = store.queues.get(topic, number)
        if entries is None:
            return False
        queue.next_offset = max(queue.next_offset, entries.min_offset)
        for taken, entry in enumerate(entries.iterate(queue.next_offset), 1):
            record = store.commit_log.message(entry.physical_offset, entry.size)
            if record is not None:
                self._take(number, queue, record, entry.queue_offset)
            queue.next_offset = entry.queue_offset + 1
            if taken >= AT_ONCE:
                return True
        return False

    def _note_read(self, what: CheckPoint | Ack, kind: str, number: int) -> None:
        if self.on_read is not None:
            self.on_read(what.group, what.topic, kind, number)

    def _take(self, number: int, queue: _Queue, record: memoryview, queue_offset: int) -> None:
        own_broker = self._broker.config.broker_name
        try:
            message = decode(record)
            due = message.properties.get(names.TIMER_DELIVER_MS, "")
            queue.latest_ms = max(queue.latest_ms, int(due) if due.isdecimal() and len(due) < 19 else 0)
            if message.properties.get(names.TAGS) != CK_TAG:
                ack = read_ack(message.body, own_broker)
                self._note_read(ack, "ACK", number)
                self._take_ack(queue, ack, queue_offset)
                return
            point = read_check_point(message.body, own_broker)
            self._note_read(point, "CK", number)
        except CorruptRecordError as error:
            log.error("a record of the revive queue at %d is left out: %s", queue_offset, error)
            return
        point.revive_offset = queue_offset
        early = queue.early.pop(point.key, ())
        queue.early_count -= len(early)
        for _, ack in early:
            _apply(point, ack)
        if not point.is_acked:
            queue.waiting[point.key] = point

    def _take_ack(self, queue: _Queue, ack: Ack, queue_offset: int) -> None:
        point = queue.waiting.get(ack.key)
        if point is not None:
            _apply(point, ack)
            if point.is_acked:
                del queue.waiting[ack.key]
        elif queue.early_count < MAX_EARLY_ACKS:  # its check point may still be on its way
            queue.early_count += 1
            queue.early.setdefault(ack.key, []).append((queue_offset, ack))

    def _is_behind(self) -> bool:
        """Whether messages are due that the timer has not delivered yet."""
        timers = self._broker.timers
        return timers.queue_behind > 0 or timers.read_behind_s > LATE_S

    async def _revive_due(self, number: int, queue: _Queue) -> None:
        """Put again what is open of the check points whose acknowledgements must be there by now."""
        end_ms = queue.latest_ms if self._is_behind() else self._broker.clock.now_ms()
        for turn, point in enumerate(list(queue.waiting.values()), 1):
            if end_ms - point.due_ms <= GRACE_MS:
                break  # one after the other: a broker that starts again reads all from the first that waits
            for offset in point.open_offsets():
                if self._revive_one(number, point, offset):
                    point.ack(offset)
                    self._broker.popper.count_in_flight(point.topic, point.group, point.queue_id, -1)
            if point.is_acked:
                del queue.waiting[point.key]  # otherwise it is tried again with the next look
            if turn % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _revive_one(self, number: int, point: CheckPoint, offset: int) -> bool:
        """Put a message again, or have it put again later; False where neither could be done."""
        broker = self._broker
        topic = normal_topic(point.topic, point.group) or point.topic
        if broker.topics.get(topic) is None or broker.groups.get(point.group) is None:
            log.info("a message of %s for %s is not revived: one of them is gone", topic, point.group)
            return True
        if self._is_of_deleted(point):
            log.info("a message of %s is not revived: it was of a topic of that name before", point.topic)
            return True
        found = broker.store.get_message(point.topic, point.queue_id, offset, 1)
        if found.queue_offsets[:1] != [offset]:
            log.info("a message of %s at %d is not revived: it is gone", point.topic, offset)
            return True
        try:
            message = decode(found.records[0])
        except CorruptRecordError as error:
            log.error("a message of %s at %d is not revived: %s", point.topic, offset, error)
            return True
        is_doubted = point.revive_offset < self._queues[number].doubted_until
        status = self._put_again(point, message, is_doubted)
        if status is PutMessageStatus.PUT_OK:
            self.revived += 1
        elif status in TRY_LATER:
            return self._write_again(number, point, offset)
        else:
            log.error("a message of %s at %d cannot be revived: %s", point.topic, offset, status.name)
        return True

    def _is_of_deleted(self, point: CheckPoint) -> bool:
        """Whether the topic was deleted since: what lies at the offset now is another message."""
        store = self._broker.store
        deleted_at = store.queues.deleted_at.get(point.topic)
        deletion = None if deleted_at is None else store.look_message(deleted_at)
        return deletion is not None and point.pop_time_ms <= deletion.store_timestamp

    def _put_again(self, point: CheckPoint, message: StoredMessage, is_doubted: bool) -> PutMessageStatus:
        """Put a message into the retry topic of its group, unless a broker that crashed did."""
        broker, topic = self._broker, point.topic
        if kind_of(topic) == NORMAL:
            kind = RETRY_V2 if broker.config.enable_retry_topic_v2 else RETRY_V1
            topic = retry_topic(topic, point.group, kind)
        if broker.topics.get(topic) is None:
            broker.topics.create_for_send_back(topic, RETRY_QUEUES, PERM_READ | PERM_WRITE)
        if broker.offsets.query(point.group, topic, 0) < 0:
            broker.offsets.commit("revive", point.group, topic, 0, 0)
        properties = {**message.properties, names.ORIGIN_GROUP: point.group}
        if message.reconsume_times == 0 or names.FIRST_POP_TIME not in properties:
            properties[names.FIRST_POP_TIME] = str(point.pop_time_ms)
        host = broker.sender.store_host
        again = InnerMessage(
            topic, 0, message.body, None, properties, with_host_flags(message.sys_flag, host, host),
            message.born_timestamp, host, host, message.flag,
            message.reconsume_times + (0 if point.is_suspended else 1),
        )  # fmt: skip
        own_offset = message.queue_offset if topic == point.topic else -1
        if is_doubted and self._before is not None and self._before.has(again, own_offset):
            return PutMessageStatus.PUT_OK
        result = broker.store.put_message(again)
        broker.has_put()
        if self.on_retry is not None:
            self.on_retry(point.group, point.topic, result.status)
        return result.status

    def _write_again(self, number: int, point: CheckPoint, offset: int) -> bool:
        """A message could not be put: it gets a check point of its own, which is due later; False where that
        cannot be put either."""
        times = point.written_again
        wait_ms = REWRITE_S[min(times, len(REWRITE_S) - 1)] * 1000
        again = replace(
            point, start_offset=offset, differences=[0], acked=0, written_again=times + 1,
            invisible_ms=point.invisible_ms + wait_ms,
        )  # fmt: skip
        return self._broker.popper.put_check_point(again, number).ok


def _has_doubts(queue: _Queue) -> bool:
    if queue.next_offset < queue.doubted_until:
        return True
    return any(point.revive_offset < queue.doubted_until for point in queue.waiting.values())


def _apply(point: CheckPoint, ack: Ack) -> None:
    for offset in ack.offsets:
        if not point.ack(offset):
            log.warning(
                "an acknowledgement of %s at %d fits no message of its check point", ack.topic, offset
            )

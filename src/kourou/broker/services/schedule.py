"""DelayService: messages that come later, by delay level (ScheduleMessageService).

A message with a delay level lies in the queue of its level in SCHEDULE_TOPIC_XXXX; its tags code there is the
time of delivery, and its own topic and queue are properties. All messages of a level wait equally long, so
the first of each queue is always the next due: one timer a level, set for that one.

A level is a duration: the message comes when that has elapsed, also if somebody sets the clock meanwhile
(`store.clock_steps`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from kourou.broker.state.versions import next_version
from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.codec import StoredMessage, split
from kourou.message.properties import read_property
from kourou.message.topics import SCHEDULE_TOPIC
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import DataVersion
from kourou.store.config import parse_delay_levels
from kourou.store.log.commit_log import MAX_PROPERTIES
from kourou.store.put import InnerMessage, WaitingMessage
from kourou.store.queue.consume_queue import QueueEntry
from kourou.store.queue.queue_store import AnyQueue
from kourou.store.status import TRY_LATER, PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

MAX_A_TURN = 256  # messages of a level delivered before others have their turn, if those are quick
MAX_TURN_S = 0.1
MAX_BYTES_AT_ONCE = 1 << 20  # of messages that are put together
RETRY_S = 0.1  # until a message that the store did not take is tried again
GATHER_MS = 10  # at least, from one delivery to the next: messages that are put together cost half
LOOK_S = 1.0  # how often a message that waits has the clock looked at: the machine may sleep
MAX_TEXT = MAX_PROPERTIES // 4  # characters of a property string that surely fits, with its CRC
UNUSUAL_FLAGS = sysflag.TRANSACTION_PREPARED | sysflag.INNER_BATCH
MARGIN_MS = 5000  # clocks of file systems are coarse, and a file is written after it was encoded
VERSION_STEP = 200  # offsets between two data versions, Java's delayOffsetUpdateVersionStep


# What a delivered message has in common with the delayed one
_Identity = tuple[str | None, int, int, int]


class DelayService:
    """The levels, how far each is delivered, and their timers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.delays_ms = parse_delay_levels(broker.config.store.message_delay_level)
        self.offsets: dict[int, int] = {}
        self.data_version = DataVersion()
        self.dirty = False
        self._moves = 0
        self._timers: dict[int, asyncio.TimerHandle | asyncio.Handle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_delivered: Callable[[str, int], None] | None = None  # hears topic and size

    # State, in config/delayOffset.json

    def encode(self) -> bytes:
        """The state as Java's file has it."""
        return lenient_json.dumps(
            {"dataVersion": self.data_version.to_json(), "offsetTable": dict(sorted(self.offsets.items()))}
        )

    def decode(self, value: Any) -> None:
        """Take the state of a file."""
        self.offsets = {int(level): int(offset) for level, offset in (value.get("offsetTable") or {}).items()}
        self.data_version = DataVersion.from_json(value.get("dataVersion") or {})

    # Messages that come

    def divert(self, message: InnerMessage) -> None:
        """Send a message with a delay level to the queue of its level."""
        level = min(int(message.properties[names.DELAY_TIME_LEVEL]), len(self.delays_ms))
        message.properties[names.DELAY_TIME_LEVEL] = str(level)
        message.properties[names.REAL_TOPIC] = message.topic
        message.properties[names.REAL_QUEUE_ID] = str(message.queue_id)
        message.properties_raw = None
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1
        self._broker.store.look_at_clock()

    def arrived(self, level: int) -> None:
        """A message came to a level: if it is the first there, its timer is set."""
        self._broker.store.look_at_clock()
        if level not in self._timers:
            self._deliver(level)

    # Delivery

    def start(self) -> None:
        """Deliver what is due, and set the timers."""
        self._loop = asyncio.get_running_loop()
        for level in range(1, len(self.delays_ms) + 1):
            self.offsets.setdefault(level, 0)
        self._skip_delivered()
        for level in range(1, len(self.delays_ms) + 1):
            self._deliver(level)

    def _skip_delivered(self) -> None:
        """After a crash the offsets are some seconds old: what was delivered since then does not come again.

        Delivered messages keep their delay's properties, so that they are found at the ends of their queues.
        """
        delivered: dict[tuple[str, int], set[_Identity]] = {}
        for level in range(1, len(self.delays_ms) + 1):  # the file may tell of more
            skipped = 0
            for queue_offset, message in self.due(level):
                target = _target(message)
                if target not in delivered:
                    delivered[target] = self._delivered_to(*target)
                if _identity(message) not in delivered[target]:
                    break  # nor was what lies behind it, however much that is
                skipped += 1
                self.move(level, queue_offset + 1)
            if skipped:
                log.warning("delay level %d: %d messages were delivered before the crash", level, skipped)

    def due(self, level: int) -> Iterator[tuple[int, StoredMessage]]:
        """The messages of a level that should have been delivered by now, with their offsets."""
        store, delay_ms = self._broker.store, self.delays_ms[level - 1]
        left_ms = store.look_at_clock().left_ms
        queue = store.queues.get(SCHEDULE_TOPIC, level - 1)
        for entry in queue.iterate(max(self.offsets[level], queue.min_offset)) if queue is not None else ():
            if left_ms(entry.tags_code, entry.physical_offset, delay_ms) > 0:
                return
            message = store.look_message(entry.physical_offset)
            if message is not None and not store.queues.was_deleted(
                message.properties.get(names.REAL_TOPIC), message.physical_offset
            ):
                yield entry.queue_offset, message

    def _delivered_to(self, topic: str, queue_id: int) -> set[_Identity]:
        """The delayed messages at the end of a queue, from when the offsets were saved last."""
        store = self._broker.store
        queue = store.queues.get(topic, queue_id)
        if queue is None:
            return set()
        since = store.offset_by_time(topic, queue_id, self._broker.saved_ms("delayOffset.json") - MARGIN_MS)
        found = (store.look_message(entry.physical_offset) for entry in queue.iterate(since))
        return {
            _identity(message)
            for message in found
            if message is not None and names.REAL_TOPIC in message.properties
        }

    def stop(self) -> None:
        """Deliver nothing more."""
        self._loop = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _deliver(self, level: int, last_turn_s: float | None = None) -> None:
        """Deliver what is due, for one turn: where senders took long since the last one, this takes as long.

        Otherwise those who send faster than others are served would let what is due wait for ever longer.
        """
        self._timers.pop(level, None)
        loop = self._loop
        if loop is None:
            return
        store = self._broker.store
        queue = store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return
        if not queue.min_offset <= self.offsets[level] <= queue.max_offset:
            corrected = min(max(self.offsets[level], queue.min_offset), queue.max_offset)
            log.warning("delay level %d was at %d and goes on at %d", level, self.offsets[level], corrected)
            self.move(level, corrected)
        began_s = time.perf_counter()
        until_s = began_s if last_turn_s is None else began_s + min(began_s - last_turn_s, MAX_TURN_S)
        while entries := self._next_due(queue, level):
            if not self._deliver_all(level, entries):
                self._timers[level] = loop.call_later(RETRY_S, self._deliver, level)
                return
            if len(entries) == MAX_A_TURN and (turn_s := time.perf_counter()) >= until_s:
                self._timers[level] = loop.call_soon(self._deliver, level, turn_s)
                return
        entry = queue.get(self.offsets[level])
        if entry is not None:
            left_ms = store.look_at_clock().left_ms(
                entry.tags_code, entry.physical_offset, self.delays_ms[level - 1]
            )
            wait_s = min(max(left_ms, GATHER_MS) / 1000, LOOK_S)
            self._timers[level] = loop.call_later(wait_s, self._deliver, level)
        elif store.dispatcher.dispatched_offset < store.commit_log.max_offset:
            # What came last has no entry yet: nobody will tell when it has.
            self._timers[level] = loop.call_later(RETRY_S, self._deliver, level)

    def _next_due(self, queue: AnyQueue, level: int) -> list[QueueEntry]:
        """The next entries of a level that are due, as many as a turn has."""
        left_ms, delay_ms = self._broker.store.look_at_clock().left_ms, self.delays_ms[level - 1]
        entries = islice(queue.iterate(self.offsets[level]), MAX_A_TURN)
        return list(
            takewhile(lambda one: left_ms(one.tags_code, one.physical_offset, delay_ms) <= 0, entries)
        )

    def _deliver_all(self, level: int, entries: list[QueueEntry]) -> bool:
        """Deliver messages; False where some have to be tried again."""
        store, waiting, size = self._broker.store, list[WaitingMessage](), 0
        plain: dict[tuple[str, int], bool] = {}
        most_bytes = min(MAX_BYTES_AT_ONCE, store.commit_log.file_size // 2)  # with longer topics it fits too
        for entry in entries:
            record = store.commit_log.message(entry.physical_offset, entry.size)
            found = None if record is None else self._read(record, entry.physical_offset)
            if found is None:
                continue  # there is none, or none that goes anywhere
            place = found[0], found[1]
            if place not in plain:
                plain[place] = self._takes_many(*place)
            if not plain[place] or _is_special(found):
                if not (self._put_all(level, waiting, entry.queue_offset) and self._put_one(found)):
                    return False
                waiting, size = [], 0
                self.move(level, entry.queue_offset + 1)
                continue
            if size and size + entry.size > most_bytes:
                if not self._put_all(level, waiting, entry.queue_offset):
                    return False
                waiting, size = [], 0
            waiting.append(found)
            size += entry.size
        return self._put_all(level, waiting, entries[-1].queue_offset + 1)

    def _takes_many(self, topic: str, queue_id: int) -> bool:
        try:
            return self._broker.store.putter.takes_waiting(topic, queue_id)
        except BadMessageError:
            return False

    def _read(self, record: memoryview, physical_offset: int) -> WaitingMessage | None:
        """A message and the queue that it waits for; None where it goes nowhere."""
        try:
            header, body, _, raw = split(record)
        except CorruptRecordError as error:
            log.error("a delayed message at %d cannot be read and is left out: %s", physical_offset, error)
            return None
        text = str(raw, "utf-8", "replace")
        topic = read_property(text, names.REAL_TOPIC)
        queue_id = read_property(text, names.REAL_QUEUE_ID) or ""
        if not topic or not queue_id.isdecimal():
            log.error("a delayed message at %d has no topic to go to and is left out", physical_offset)
            return None
        if self._broker.store.queues.was_deleted(topic, physical_offset):
            log.info("a delayed message at %d goes with its topic %s", physical_offset, topic)
            return None
        return topic, int(queue_id), header, body, text

    def _put_all(self, level: int, waiting: list[WaitingMessage], following: int) -> bool:
        """Put messages; the level is delivered up to `following` then."""
        if waiting:
            result = self._broker.store.put_waiting(waiting)
            self._broker.has_put()
            if not self._is_done(waiting[0][0], result):
                return False
            if self.on_delivered is not None:
                for topic, _, header, *_ in waiting:
                    self.on_delivered(topic, header[0])
        self.move(level, following)
        return True

    def _put_one(self, found: WaitingMessage) -> bool:
        """Put a message that goes to queues of another kind."""
        topic, queue_id, header, body, text = found
        message = InnerMessage.of(
            topic, queue_id, body, text, flag=header[4], sys_flag=header[7], born_timestamp=header[8],
            born_host=header[9], store_host=header[11], reconsume_times=header[12],
        )  # fmt: skip
        result = self._broker.store.put_message(message)
        self._broker.has_put()
        if not self._is_done(topic, result):
            return False
        if self.on_delivered is not None and result.status is PutMessageStatus.PUT_OK:
            self.on_delivered(topic, result.wrote_bytes)
        return True

    def _is_done(self, topic: str, result: PutMessageResult) -> bool:
        """Whether a put is not to be tried again: it was made, or the store will never take it."""
        if result.status in TRY_LATER:
            log.warning("a delayed message for %s waits on: %s %s", topic, result.status.name, result.reason)
            return False
        if result.status is not PutMessageStatus.PUT_OK:
            log.error("a delayed message for %s is left out: %s %s", topic, result.status.name, result.reason)
        return True

    def advance(self, offsets: dict[int, int]) -> None:
        """Take how far a slave has delivered, where that is further."""
        for level, offset in offsets.items():
            if offset > self.offsets.get(level, 0):
                self.move(level, offset)

    def move(self, level: int, offset: int) -> None:
        """Note up to where a level is delivered."""
        self.offsets[level] = offset
        self.dirty = True
        self._moves += 1
        if self._moves % VERSION_STEP == 0:
            self.data_version = next_version(self.data_version, self._broker.clock.now_ms())


def _identity(message: StoredMessage) -> _Identity:
    unique_id = message.properties.get(names.UNIQ_KEY)
    return unique_id, message.born_timestamp, message.reconsume_times, message.body_crc


def _target(message: StoredMessage) -> tuple[str, int]:
    queue_id = message.properties.get(names.REAL_QUEUE_ID, "")
    return message.properties.get(names.REAL_TOPIC, ""), int(queue_id) if queue_id.isdecimal() else -1


def _is_special(found: WaitingMessage) -> bool:
    """Whether a message may be more than a record of one queue, or may not fit one."""
    return bool(found[2][7] & UNUSUAL_FLAGS) or "INNER_" in found[4] or len(found[4]) > MAX_TEXT

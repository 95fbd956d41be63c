"""TimerService: messages that come at any time (TimerMessageStore).

A message with a time goes to rmq_sys_wheel_timer, its own topic and queue become properties. From the queue
of that topic it is entered: a unit of the timer log and a slot of the wheel, of the second that ends with its
time. When that second is over, the records of the slot's units go to their topics. What is further away than
`timerRollWindowSlot` is put into the queue again on the way, so that its record stays young.

A unit may delete another of the same slot, by its unique id: that is how a message is recalled.

Where a slot is over before its message is due, because the clock was set meanwhile (`time`), the
message is put into the queue again.

Nothing here polls: a put starts the entering, and one timer is set for the first slot in use. `_due` has the
times of these slots, from the wheel at the start. State is of the event loop alone; a worker brings it to the
disk, first log and wheel, then the checkpoint that speaks of them.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kourou.broker.services.schedule import LOOK_S
from kourou.broker.services.timer.deliveries import DeliveredBefore
from kourou.broker.services.timer.metrics import TimerMetrics
from kourou.broker.services.timer.time import WheelTime, deliver_ms, read_long
from kourou.broker.state.state_file import StateFile
from kourou.errors import CorruptRecordError, KourouError
from kourou.message import java_hash, sysflag
from kourou.message import properties as names
from kourou.message.codec import StoredMessage, decode
from kourou.message.topics import TIMER_TOPIC
from kourou.store.config import BrokerRole
from kourou.store.put import InnerMessage
from kourou.store.queue.consume_queue import QueueEntry
from kourou.store.status import TRY_LATER, PutMessageResult, PutMessageStatus
from kourou.store.timer.files import DELETE, PLAIN, ROLL, SLOTS, TimerCheckpoint
from kourou.store.timer.log import TimerRecovery
from kourou.store.timer.store import TimerStore

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

TIMER_PROPERTIES = frozenset((names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS))

MAX_A_TURN = 256  # messages entered or delivered before others have their turn
UNITS_A_STEP = 64  # units read at once, which is as much work as a message
RETRY_S = 0.5  # until a message that the store did not take is tried again, Java's pause
FINISH_S = 10.0  # for the rest of a slot when the broker stops: what is left of it comes twice
CLEAN_INTERVAL_MS = 180_000  # between two looks for counts of topics that are gone
BLANK_SLOTS = 60  # that the longest wait stays below the reach of the wheel
NEVER_ENTERED = str((1 << 63) - 1)  # TIMER_ENQUEUE_MS of what was due when it came


class TimerService:
    """The timers of a broker: `load`, `start`, `stop`, and `divert` for each message that is put."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config.store
        self.enabled = config.timer_wheel_enable
        self.precision_ms = config.timer_precision_ms
        reach = SLOTS // 2
        window = config.timer_roll_window_slot
        self._window = window if 2 <= window <= reach - BLANK_SLOTS else reach - BLANK_SLOTS
        self._reach_ms = reach * self.precision_ms
        self.metrics = TimerMetrics(broker.clock)
        root = config.store_path_root_dir
        self._metrics_file = StateFile(f"{root}/config/timermetrics", self.metrics)
        self._files: TimerStore | None = None  # None before `load` and after `stop`
        self.checkpoint = TimerCheckpoint(0, 0, 0, 0, 0, 0, 0)
        self.queue_offset = 0  # of rmq_sys_wheel_timer, up to which messages are entered
        self._entered: set[int] = set()  # physical offsets of records beyond it that are entered already
        self._before: DeliveredBefore | None = None  # until what was due at the start is delivered
        self._before_until = (0, 0)  # time and queue offset of the start
        self._time: WheelTime  # from `load` on
        self._write_ms = 0  # the slots before this time are closed
        self._due: list[int] = []  # a heap: times of the slots in use that are not delivered
        self._slot: Iterator[float] | None = None  # the delivery of the first of them, once begun
        self.entered = self.delivered = 0  # messages since the start
        self._rates = (0, 0, 0, 0.0, 0.0)  # ms, entered, delivered, and what came of them a second
        self.on_entered: Callable[[StoredMessage, int], None] | None = None  # hears a message and its time
        self.on_delivered: Callable[[StoredMessage], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_ms = 0
        self._entering: asyncio.Handle | None = None
        self._awaited = False  # the disk will tell that there is something to enter
        self._flush_timer: asyncio.Handle | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._revision: asyncio.Handle | None = None
        self._flushed_delivered = 0
        self._cleaned_ms = 0

    # Life

    def load(self) -> None:
        """Open the files and make them agree, after the store has recovered."""
        if not self.enabled:
            return
        store = self._broker.store
        files = self._files = TimerStore(store.disk, store.config)
        checkpoint = self.checkpoint = files.checkpoint
        self._time = WheelTime(store, self.precision_ms, checkpoint.last_read_time_ms)
        now_ms = self._time.now_ms()
        try:
            self._metrics_file.load()
            found = files.recover()
        except BaseException:
            self.abandon()
            raise
        self._entered = found.entered
        self.queue_offset = self._find_queue_offset(found)
        # Without a checkpoint it is not known what was delivered: all that the wheel can reach back to.
        read_ms = checkpoint.last_read_time_ms or now_ms - self._reach_ms + BLANK_SLOTS * self.precision_ms
        self._due = files.wheel.times_from(read_ms)  # in order, so it is a heap
        self._cleaned_ms = self._broker.clock.elapsed_ms()
        self._doubt(now_ms)
        log.info(
            "timers: %d slots to come, %d of rmq_sys_wheel_timer entered", len(self._due), self.queue_offset
        )

    def _doubt(self, now_ms: int) -> None:
        """What is due, or not entered, may have been delivered before a crash."""
        store = self._broker.store
        end = store.max_offset(TIMER_TOPIC, 0)
        times = [time_ms - self._time.lead_ms for time_ms in self._due[:1]]
        if self.queue_offset < end:
            times.append(store.message_store_timestamp(TIMER_TOPIC, 0, self.queue_offset))
        if times and min(times) < now_ms - self._time.lead_ms:
            self._before = DeliveredBefore(store, min(times))
            self._before_until = now_ms, end

    def _find_queue_offset(self, found: TimerRecovery) -> int:
        """Where to go on with the queue: where the checkpoint says, or behind the last unit if the timer log
        lost some that the checkpoint may speak of."""
        checkpoint = self.checkpoint
        offset = min(checkpoint.last_timer_queue_offset, checkpoint.master_timer_queue_offset)
        if found.has_lost:
            last = self._read(found.last_physical_offset) if found.last_physical_offset >= 0 else None
            offset = 0 if last is None else min(offset, last.queue_offset + 1)
        queue = self._broker.store.queues.get(TIMER_TOPIC, 0)
        if queue is None:
            return 0
        corrected = min(max(offset, queue.min_offset), queue.max_offset)
        if corrected != offset:
            log.warning("the timer queue was read to %d and goes on at %d", offset, corrected)
        return corrected

    def start(self) -> None:
        """Deliver what is due, enter what is not, and set the timer."""
        if self._files is None:
            return
        self._loop = asyncio.get_running_loop()
        self.deliver_due()
        self.enter()
        self._plan_revision()

    async def stop(self) -> None:
        """Finish the slot that is being delivered, bring everything to the disk and let go of the files."""
        if self._files is None:
            return
        for handle in (self._timer, self._entering, self._flush_timer, self._revision):
            if handle is not None:
                handle.cancel()
        loop, self._loop = self._loop, None
        self._finish_slot()
        if loop is not None:
            if self._flushing is not None:
                await asyncio.wait((self._flushing,))
            try:
                await loop.run_in_executor(None, self._flush_work())
            except OSError as error:
                log.error("the timers are not all on the disk, the next start recovers: %s", error)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def _finish_slot(self) -> None:
        deadline = time.monotonic() + FINISH_S
        while self._slot is not None and time.monotonic() < deadline:
            if self._step() > 0:
                return

    # Messages that come

    def divert(self, message: InnerMessage) -> PutMessageResult | None:
        """Send a message with a time to where it waits; None if it may be put, there or in its own queue."""
        properties = message.properties
        if TIMER_PROPERTIES.isdisjoint(properties):
            return None
        kind = message.sys_flag & sysflag.TRANSACTION_MASK
        if kind not in (sysflag.TRANSACTION_NOT, sysflag.TRANSACTION_COMMIT):
            return None
        level = properties.get(names.DELAY_TIME_LEVEL, "0")
        if level.isdecimal() and int(level) > 0:  # a delay level comes before a time
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
            message.properties_raw = None
            return None
        if message.topic == TIMER_TOPIC or names.TIMER_OUT_MS in properties:
            return None  # rolled, or delivered
        if not self.enabled:
            return PutMessageResult(PutMessageStatus.WHEEL_TIMER_NOT_ENABLE)
        return self._divert(message, properties)

    def _divert(self, message: InnerMessage, properties: dict[str, str]) -> PutMessageResult | None:
        config, now_ms = self._broker.config.store, self._broker.store.look_at_clock().now_ms
        due_ms = deliver_ms(properties, now_ms)
        if due_ms is None:
            return PutMessageResult(PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL, reason="the time is no number")
        if due_ms <= now_ms:
            if names.TIMER_DEL_UNIQKEY in properties:
                return PutMessageResult(
                    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL, reason="what it deletes is due already"
                )
            return None
        if due_ms - now_ms > config.timer_max_delay_sec * 1000:
            return PutMessageResult(
                PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL,
                reason=f"the delay is above timerMaxDelaySec={config.timer_max_delay_sec}",
            )
        out_ms = (due_ms - 1) // self.precision_ms * self.precision_ms  # its slot ends with its time
        if self._is_congested(self._time.slot_ms(out_ms)):
            return PutMessageResult(PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL)
        properties[names.TIMER_OUT_MS] = str(out_ms)
        properties[names.REAL_TOPIC] = message.topic
        properties[names.REAL_QUEUE_ID] = str(message.queue_id)
        message.properties_raw = None
        message.topic = TIMER_TOPIC
        message.queue_id = 0
        return None

    def _is_congested(self, slot_ms: int) -> bool:
        """Whether too many messages are due at a time: above the limit by chance, at twice of it always. The
        chance is Java's: nearly all are refused right above the limit."""
        limit = self._broker.config.store.timer_congest_num_each_slot
        count = 0 if self._files is None else self._files.wheel.messages(slot_ms)
        if count <= limit:
            return False
        return count >= 2 * limit or random.randrange(1000) > 1000 * (count - limit) / (limit + 0.1)

    def arrived(self) -> None:
        """A message was put into the timer queue: it is entered soon, with others of this turn."""
        self._broker.store.look_at_clock()
        if self._loop is None or self._entering is not None:
            return
        if self._broker.store.dispatcher.at_once:
            self._entering = self._loop.call_soon(self.enter)
        elif not self._awaited:
            self._awaited = True
            end = self._broker.store.commit_log.files.max_wrote
            self._broker.store.flusher.wait_for(end, self._on_disk)

    def _on_disk(self, status: PutMessageStatus) -> None:
        """What was put is in its queue now, or could not be brought to the disk in time."""
        self._awaited = False
        if self._loop is not None and self._entering is None:
            delay_s = 0.0 if status is PutMessageStatus.PUT_OK else RETRY_S
            self._entering = self._loop.call_later(delay_s, self.enter)

    # Entering

    def enter(self) -> None:
        """Bring messages from the timer queue into log and wheel, as many as a turn may take."""
        self._entering = None
        queue = self._broker.store.queues.get(TIMER_TOPIC, 0)
        if self._loop is None or queue is None:
            return
        if self.queue_offset < queue.min_offset:
            log.warning(
                "the timer queue was read to %d and begins at %d", self.queue_offset, queue.min_offset
            )
            self.queue_offset = queue.min_offset
        self._move_write_time()
        first = self.queue_offset
        for entry in queue.iterate(first):
            if entry.queue_offset - first >= MAX_A_TURN:
                self._entering = self._loop.call_soon(self.enter)
                break
            # After a long pause, late slots lie where new ones belong: they are delivered first.
            if self._due and self._due[0] < self._write_ms - self._reach_ms:
                break
            if not self.delivers and entry.queue_offset >= self.checkpoint.master_timer_queue_offset:
                break
            if not self._enter(entry):
                self._entering = self._loop.call_later(RETRY_S, self.enter)
                break
            self.queue_offset = entry.queue_offset + 1
        else:
            self._entered.clear()
            if queue.next_offset > queue.max_offset:
                self.arrived()
        if self.queue_offset > first:
            self.entered += self.queue_offset - first
            self._changed()
            self._set_timer()

    def _enter(self, entry: QueueEntry) -> bool:
        """Enter a message, or deliver it if its time has come; False to try again."""
        if entry.physical_offset in self._entered:
            self._entered.discard(entry.physical_offset)
            return True
        found = self._read(entry.physical_offset, entry.size)
        out_ms = None if found is None else self._time.out_ms(found)
        if found is None or out_ms is None:
            log.error("a message at %d has no time to come and is left out", entry.physical_offset)
            return True
        if self._broker.store.queues.was_deleted(
            found.properties.get(names.REAL_TOPIC), found.physical_offset
        ):
            return True
        slot_ms = self._time.slot_ms(out_ms)
        if self.delivers and slot_ms < self._write_ms:
            is_needless = self._broker.popper.settled.is_needless(found.physical_offset)
            if not is_needless and not self._put(found, NEVER_ENTERED, rolls=False):
                return False
        else:
            try:
                self._append(entry, found, slot_ms)
            except (OSError, KourouError) as error:
                log.error("a timer message waits to be entered: %s", error)
                return False
        if self.on_entered is not None:
            self.on_entered(found, out_ms)
        return True

    def follow(self, master: TimerCheckpoint) -> None:
        """Take how far the master is: enter what it has entered, forget what it has delivered."""
        self.checkpoint = self.checkpoint._replace(
            last_read_time_ms=master.last_read_time_ms,
            master_timer_queue_offset=master.master_timer_queue_offset,
            state_version=master.state_version,
            timestamp=master.timestamp,
            counter=master.counter,
        )
        while self._due and self._due[0] < master.last_read_time_ms:
            heapq.heappop(self._due)
        self._time.follow(master.last_read_time_ms)
        if self._loop is not None and self._entering is None:
            self.enter()
        self._changed()

    def _append(self, entry: QueueEntry, found: StoredMessage, due_ms: int) -> None:
        assert self._files is not None
        # At a slave whose clock is ahead of its master's, the time of a message may be over already.
        write_ms, window_ms, magic = min(self._write_ms, due_ms), self._window * self.precision_ms, PLAIN
        beyond_ms = due_ms - write_ms - window_ms
        if beyond_ms >= 0:
            magic |= ROLL
            # So that the last stretch is not a short one, which would leave no time for it.
            near = beyond_ms < self._window // 3 * self.precision_ms
            due_ms = write_ms + (self._window // 2 * self.precision_ms if near else window_ms)
        if names.TIMER_DEL_UNIQKEY in found.properties:
            magic |= DELETE
        topic = found.properties.get(names.REAL_TOPIC)
        code = 0 if topic is None else java_hash(topic)
        if self._files.append(due_ms, magic, write_ms, entry.physical_offset, entry.size, code):
            heapq.heappush(self._due, due_ms // self.precision_ms * self.precision_ms)
        self._count(found, -1 if magic & DELETE else 1)

    # Delivery

    @property
    def delivers(self) -> bool:
        """Whether this broker delivers: a slave only enters, what its master has entered."""
        return self._broker.config.store.broker_role is not BrokerRole.SLAVE

    def deliver_due(self) -> None:
        """Deliver the slots whose time is over, as much of them as a turn may take, and set the timer."""
        self._timer = None
        if self._loop is None or not self.delivers:
            return
        self._move_write_time()
        wait_s = 0.0
        for _ in range(MAX_A_TURN):
            if self._slot is None:
                if not self._is_due():
                    break
                self._slot = self._deliver_slot(self._due[0])
            wait_s = self._step()
            if wait_s > 0:
                break
        self._set_timer(wait_s)

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0] < self._write_ms

    def _step(self) -> float:
        """Go on with the slot that is being delivered; how long to wait before the next step."""
        assert self._slot is not None
        wait_s = next(self._slot, None)
        if wait_s is None:
            heapq.heappop(self._due)
            self._slot = None
            self._changed()
            if self._entering is None and self._loop is not None:
                self._entering = self._loop.call_soon(self.enter)  # if it waited for late slots
        return wait_s or 0.0

    def _deliver_slot(self, time_ms: int) -> Iterator[float]:
        """Deliver a slot, step by step; what comes of each is how long to wait before the next."""
        assert self._files is not None
        read, is_needless = self._files.log.read, self._broker.popper.settled.is_needless
        units, deleting, needless = array("q"), array("q"), 0
        for number, unit in enumerate(self._files.units(time_ms), 1):
            if is_needless(unit.physical_offset, rolls=bool(unit.magic & ROLL)):
                needless += 1
            else:
                (deleting if unit.magic & (DELETE | ROLL) == DELETE else units).append(unit.position)
            if number % UNITS_A_STEP == 0:
                yield 0.0
        if needless:
            self.delivered += needless
            self.metrics.add(self._broker.popper.revive_topic, -needless)
        deleted: set[tuple[str | None, str | None]] = set()  # topic and key: senders choose the key
        for entered in map(read, deleting):
            found = self._read(entered.physical_offset, entered.record_size) if entered else None
            key = found.properties.get(names.TIMER_DEL_UNIQKEY) if found else None
            if found is not None and key is not None:
                self._count(found, 1)  # it was counted as one less; what it deletes is, below
                deleted.add((found.properties.get(names.REAL_TOPIC), key))
            yield 0.0
        for entered in map(read, reversed(units)):
            found = self._read(entered.physical_offset, entered.record_size) if entered else None
            if entered is None or found is None:
                continue  # its log file is gone
            if deleted and (found.properties.get(names.REAL_TOPIC), self._delete_key(found)) in deleted:
                self._count(found, -1)
                continue
            out_ms = self._time.out_ms(found)
            is_early = out_ms is not None and self._time.slot_ms(out_ms) >= self._write_ms
            rolls = is_early or bool(entered.magic & ROLL)
            while not self._put(found, str(entered.enqueue_time), rolls=rolls):
                yield RETRY_S
            yield 0.0

    def _delete_key(self, found: StoredMessage) -> str | None:
        """What a unit that deletes this message calls it."""
        unique_id = found.properties.get(names.UNIQ_KEY)
        if unique_id is None or not self._broker.config.store.append_topic_for_timer_delete_key:
            return unique_id
        return f"{found.properties.get(names.REAL_TOPIC)}+{unique_id}"

    def _put(self, found: StoredMessage, enqueue_ms: str, *, rolls: bool) -> bool:
        """Put a message into its queue or, if it rolls, into that of the timer again; False to try again."""
        properties = found.properties
        topic, queue_text = properties.get(names.REAL_TOPIC), properties.get(names.REAL_QUEUE_ID, "")
        if self._broker.store.queues.was_deleted(
            found.properties.get(names.REAL_TOPIC), found.physical_offset
        ):
            log.info("a timer message at %d goes with its topic %s", found.physical_offset, topic)
            return True  # it is not counted any more: counts go with a topic too
        if names.TIMER_DEL_UNIQKEY in properties and not rolls:
            log.warning("a recall at %d came too late", found.physical_offset)
            return True
        if topic is None or not queue_text.isdecimal():
            log.error("a timer message at %d has no topic and is left out", found.physical_offset)
            return True
        properties = dict(properties)
        properties[names.TIMER_ENQUEUE_MS] = enqueue_ms
        properties[names.TIMER_DEQUEUE_MS] = str(self._broker.clock.now_ms())
        if rolls:
            times = read_long(properties.get(names.TIMER_ROLL_TIMES, "")) or 0
            properties[names.TIMER_ROLL_TIMES] = str(times + 1)
            properties[names.TIMER_OUT_MS] = str(self._time.out_ms(found))
            topic, queue_text = found.topic, str(found.queue_id)
        message = InnerMessage(
            topic, int(queue_text), found.body, None, properties, found.sys_flag, found.born_timestamp,
            found.born_host, found.store_host, found.flag, found.reconsume_times,
        )  # fmt: skip
        if self._before is not None and self._before.has(message):
            log.info("a timer message for %s was delivered before a crash", topic)
            return True
        result = self._broker.store.put_message(message)
        self._broker.has_put()
        if result.status in TRY_LATER:
            log.warning("a timer message for %s waits on: %s %s", topic, result.status.name, result.reason)
            return False
        if enqueue_ms != NEVER_ENTERED:
            self._count(found, -1)
        self.delivered += 1
        if self.on_delivered is not None:
            self.on_delivered(found)
        if result.status is not PutMessageStatus.PUT_OK:
            log.error("a timer message for %s is left out: %s %s", topic, result.status.name, result.reason)
            return True
        puts = self._broker.stats.topic(topic).queue(message.queue_id)
        puts.messages += 1
        puts.calls += 1
        puts.size_bytes += result.wrote_bytes
        if rolls:
            self.arrived()
        return True

    def _count(self, found: StoredMessage, change: int) -> None:
        topic = found.properties.get(names.REAL_TOPIC)
        if topic is not None and self.delivers:  # a slave has the counts of its master
            self.metrics.add(topic, change)

    def _read(self, physical_offset: int, size: int = -1) -> StoredMessage | None:
        commit_log = self._broker.store.commit_log
        record = (
            commit_log.message(physical_offset, size) if size >= 0 else commit_log.message_at(physical_offset)
        )
        if record is None:
            return None
        try:
            return decode(record, copy_body=False)
        except CorruptRecordError as error:
            log.error("a timer message at %d cannot be read: %s", physical_offset, error)
            return None

    # Times

    def _move_write_time(self) -> None:
        """Close the slots whose time is over. It never goes back, whatever the clock does."""
        now_ms = self._time.now_ms()
        self._write_ms = max(self._write_ms, now_ms // self.precision_ms * self.precision_ms)

    def _set_timer(self, wait_s: float = 0.0) -> None:
        """Come back for the slot that is under way or due, else when the time of the next is over."""
        loop = self._loop
        if loop is None or not self.delivers or not self._due:
            return
        if wait_s == 0.0 and self._slot is None and not self._is_due():
            end_ms = self._due[0] + self.precision_ms
            if self._timer is not None and self._timer_ms <= end_ms:
                return
            self._timer_ms = end_ms
            # The clock is looked at now and then: it may be set, or the machine may sleep.
            wait_s = min(max(end_ms - self._time.now_ms(), 0) / 1000, LOOK_S)
        elif self._timer is not None and self._slot is not None:
            return  # it waits, or comes in the next turn
        else:
            self._timer_ms = 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            loop.call_later(wait_s, self.deliver_due) if wait_s else loop.call_soon(self.deliver_due)
        )

    @property
    def read_ms(self) -> int:
        """The time before which everything is delivered."""
        if not self.delivers:
            return self.checkpoint.last_read_time_ms
        self._move_write_time()
        return self._due[0] if self._is_due() else self._write_ms

    # The disk

    def _changed(self) -> None:
        """Have the state on the disk soon."""
        if self._loop is not None and self._flush_timer is None and self._flushing is None:
            interval_s = self._broker.config.store.timer_flush_interval_ms / 1000
            self._flush_timer = self._loop.call_later(interval_s, self._flush)

    def _flush(self) -> None:
        assert self._loop is not None
        self._flush_timer = None
        self._measure()
        until_ms, until_offset = self._before_until
        if self.queue_offset >= until_offset and not (self._due and self._due[0] < until_ms):
            self._before = None
        state = self.queue_offset, self.entered, self.delivered
        self._flushing = self._loop.run_in_executor(None, self._flush_work())

        def flushed(done: asyncio.Future[None]) -> None:
            self._flushing = None
            error = done.exception()
            if error is not None:
                log.error("the timers cannot be brought to the disk: %s", error)
            if error is not None or state != (self.queue_offset, self.entered, self.delivered):
                self._changed()

        self._flushing.add_done_callback(flushed)

    def _flush_work(self) -> Callable[[], None]:
        """What a worker does to have the state of now on the disk."""
        files = self._files
        assert files is not None
        store, now_ms = self._broker.store, self._broker.clock.elapsed_ms()
        checkpoint = self.take_checkpoint()
        has_delivered, self._flushed_delivered = self.delivered > self._flushed_delivered, self.delivered
        if now_ms - self._cleaned_ms >= CLEAN_INTERVAL_MS:
            self._cleaned_ms = now_ms
            self.metrics.keep(self._broker.topics.topics)
        write_metrics = self._metrics_file.pending()
        min_offset, end = store.commit_log.min_offset, store.commit_log.max_offset

        def work() -> None:
            # The checkpoint says what was delivered: so that must not be lost.
            if store.flusher.failed or (has_delivered and store.flusher.flush() < end):
                raise OSError(errno.EIO, "the checkpoint is not saved: the log cannot be brought to the disk")
            files.flush(checkpoint, min_offset)
            if write_metrics is not None:
                write_metrics()

        return work

    def take_checkpoint(self) -> TimerCheckpoint:
        """How far everything is now: log and wheel are brought to the disk before this is."""
        before = self.checkpoint
        if self._files is None:
            return before
        offset = self.queue_offset
        master_offset = offset if self.delivers else before.master_timer_queue_offset
        counter, timestamp, read_ms = before.counter, before.timestamp, self.read_ms
        if self.delivers and (read_ms, offset) != (before.last_read_time_ms, before.last_timer_queue_offset):
            counter, timestamp = counter + 1, self._broker.clock.now_ms()
        self.checkpoint = TimerCheckpoint(
            read_ms, self._files.log.files.max_wrote, min(offset, master_offset), master_offset,
            before.state_version, timestamp, counter,
        )  # fmt: skip
        return self.checkpoint

    # Figures

    @property
    def pending(self) -> int:
        """How many messages are in the wheel."""
        return 0 if self._files is None else self._files.wheel.messages_from(self.read_ms)

    def due_within(self, spans_ms: Sequence[int]) -> list[int]:
        """How many messages are due in the first span from now, from there to the end of the second, …"""
        if self._files is None:
            return [0] * len(spans_ms)
        return self._files.wheel.within(self._time.now_ms(), spans_ms)

    @property
    def queue_behind(self) -> int:
        """How many messages of the queue are not entered."""
        return max(self._broker.store.max_offset(TIMER_TOPIC, 0) - self.queue_offset, 0)

    @property
    def read_behind_s(self) -> int:
        """How late delivery is."""
        return 0 if self._files is None else max(self._time.now_ms() - self.read_ms, 0) // 1000

    @property
    def rates(self) -> tuple[float, float]:
        """Messages entered and delivered a second, of late."""
        measured_ms, _, _, entered, delivered = self._rates
        still_ms = self._broker.clock.elapsed_ms() - measured_ms
        is_old = still_ms > 3 * self._broker.config.store.timer_flush_interval_ms
        return (0.0, 0.0) if is_old else (entered, delivered)

    def _measure(self) -> None:
        now_ms = self._broker.clock.elapsed_ms()
        before_ms, entered, delivered, _, _ = self._rates
        seconds = max(now_ms - before_ms, 1) / 1000
        self._rates = (
            now_ms, self.entered, self.delivered,
            (self.entered - entered) / seconds, (self.delivered - delivered) / seconds,
        )  # fmt: skip

    # Counts by topic are checked against the timer log once a day

    def _plan_revision(self) -> None:
        config = self._broker.config.store
        if self._loop is None or not config.timer_enable_check_metrics:
            return
        now = time.localtime(self._broker.clock.now_ms() / 1000)
        hours = [int(hour) for hour in config.timer_check_metrics_when.split(";")]
        wait_h = min((hour - now.tm_hour - 1) % 24 + 1 for hour in hours)
        wait_s = wait_h * 3600 - now.tm_min * 60 - now.tm_sec
        self._revision = self._loop.call_later(wait_s, self.revise_counts)

    def revise_counts(self) -> None:
        """Count what waits, a file of the timer log a turn."""
        self._revise(self.read_ms, 0, {})

    def _revise(self, read_ms: int, position: int, counted: dict[int, int]) -> None:
        if self._loop is None or self._files is None:
            return
        timer_log = self._files.log
        file = next((file for file in timer_log.files.files if file.base >= position), None)
        if file is not None:
            timer_log.count_pending(file, read_ms, counted)
            after = file.base + file.size
            self._revision = self._loop.call_soon(self._revise, read_ms, after, counted)
            return
        self.metrics.revise(counted, self._broker.config.store.timer_metric_small_threshold)
        self._changed()
        self._plan_revision()

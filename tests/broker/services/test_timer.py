"""Timer messages: when they come, with which properties, and what a restart or a crash does to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.broker import Broker, BrokerConfig
from kourou.broker.handlers import timers as handlers
from kourou.message.codec import StoredMessage, decode
from kourou.message.recall import RecallHandle
from kourou.message.topics import TIMER_TOPIC
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.store import PutMessageResult, PutMessageStatus
from kourou.store.put import InnerMessage
from kourou.store.timer.files import UNIT_SIZE, read_timer_checkpoint
from kourou.testing.cluster import SMALL_STORE
from support.loops import until
from support.recorded.golden import unpack
from support.stores.store import START_MS, ManualClock

DAY_S = 86_400
YEAR_MS = 365 * DAY_S * 1000
TURNS = 200  # of the loop: more than any test needs to settle


class Connection:
    """Where a request comes from."""

    peer = "127.0.0.1:1"
    peer_host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


class Timers:
    """A broker, its clock, and what a test does with them."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock

    def put(
        self, name: str = "U", queue_id: int = 2, topic: str = "T", **properties: object
    ) -> PutMessageResult:
        given = {"UNIQ_KEY": name, "TAGS": "paid", **{key: str(value) for key, value in properties.items()}}
        message = InnerMessage.of(topic, queue_id, name.encode(), given, born_timestamp=self.clock.time_ms)
        return self.broker.put(message)

    async def settle(self) -> None:
        """Let everything happen that can happen now."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def at(self, ms: int) -> list[str]:
        """Go to a time after the start; the messages that are in the topic then, whatever its queue."""
        await self.settle()
        self.clock.time_ms = START_MS + ms
        self.broker.timers.deliver_due()
        await self.settle()
        return self.names()

    async def passes(self, ms: int) -> list[str]:
        """Let time pass; the messages that are in the topic then."""
        for _ in range(2):
            await self.settle()
            self.clock.advance(ms // 2)
            self.broker.timers.deliver_due()
        await self.settle()
        self.clock.advance(ms % 2)
        self.broker.timers.deliver_due()
        await self.settle()
        return self.names()

    def messages(self, topic: str = "T", queue_id: int = 2) -> list[StoredMessage]:
        queue = self.broker.store.queues.get(topic, queue_id)
        if queue is None:
            return []
        records = [
            self.broker.store.commit_log.message_at(entry.physical_offset) for entry in queue.iterate(0)
        ]
        return [decode(record) for record in records if record is not None]

    def names(self, topic: str = "T") -> list[str]:
        return [str(one.body, "utf-8") for queue_id in range(4) for one in self.messages(topic, queue_id)]

    def ask(self, code: RequestCode, **fields: str) -> RemotingCommand:
        handler = handlers.HANDLERS[code]
        answer = handler(self.broker, Connection(), RemotingCommand(code, fields))  # type: ignore[arg-type]
        assert isinstance(answer, RemotingCommand)
        return answer


def config_of(root: Path, more: dict[str, Any]) -> BrokerConfig:
    properties = {
        **SMALL_STORE, "storePathRootDir": str(root), "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
        "listenPort": "0", "brokerName": "broker-a", "mappedFileSizeTimerLog": str(52 * 100 + 16),
        "recallMessageEnable": "true", **{key: str(value) for key, value in more.items()},
    }  # fmt: skip
    return BrokerConfig.from_properties(properties)


@asynccontextmanager
async def running(root: Path, clock: ManualClock, **more: Any) -> AsyncIterator[Timers]:
    """A broker whose store is a directory."""
    broker = Broker(config_of(root, more), clock=clock)
    await broker.start()
    try:
        yield Timers(broker, clock)
    finally:
        await broker.stop()


# A clock that is set

SETTINGS_MS = [-1500, 1500, -3_600_000, 3_600_000, -20 * YEAR_MS, 20 * YEAR_MS]


@pytest.mark.parametrize("ms", SETTINGS_MS)
async def test_a_duration_lasts_as_long_as_it_says_whichever_way_the_clock_is_set(tmp_path, clock, ms):
    """Given messages with a delay, when the clock is set, then those before and after come in their time, and
    those of before a restart too."""

    async with running(tmp_path, clock) as timers:
        timers.put("before", TIMER_DELAY_SEC=10)
        await timers.settle()
        clock.set_by(ms)
        timers.put("after", TIMER_DELAY_MS=10_000)
        assert await timers.passes(9999) == []
        assert sorted(await timers.passes(2001)) == ["after", "before"]
        timers.put("restart", TIMER_DELAY_SEC=10)
        await timers.settle()
        clock.set_by(-ms)
    async with running(tmp_path, clock) as timers:
        assert sorted(await timers.passes(9999)) == ["after", "before"]
        assert sorted(await timers.passes(2001)) == ["after", "before", "restart"]


@pytest.mark.parametrize("ms", SETTINGS_MS)
async def test_a_time_of_the_day_is_kept_by_the_clock_of_the_day(tmp_path, clock, ms):
    """Given a message for a time, when the clock is set, then it comes when the clock says that time: at
    once if that is over, and not before it otherwise."""

    async with running(tmp_path, clock) as timers:
        timers.put("before", TIMER_DELIVER_MS=clock.time_ms + 10_000)
        await timers.settle()
        clock.set_by(ms)
        timers.put("after", TIMER_DELIVER_MS=clock.time_ms + 5000)
        is_over = ms > 10_000
        assert await timers.passes(4999) == (["before"] if is_over else [])
        assert await timers.passes(1001) == (["before", "after"] if is_over else ["after"])
        if not is_over:
            assert await timers.passes(10_000 - ms - 6001) == ["after"]
            assert await timers.passes(1001) == ["after", "before"]


async def test_a_delay_that_is_rolled_on_its_way_is_as_long_when_the_clock_is_set(tmp_path, clock):
    """Given a message that is put into the queue again on its way, when the clock is set before and after,
    then it comes in its time."""

    async with running(tmp_path, clock, timerRollWindowSlot=10) as timers:
        timers.put("far", TIMER_DELAY_SEC=60)
        await timers.settle()
        clock.set_by(3_600_000)
        assert await timers.passes(30_000) == []
        clock.set_by(-7_200_000)
        assert await timers.passes(29_999) == []
        assert await timers.passes(1001) == ["far"]


# When a message comes


@pytest.mark.parametrize(
    ("properties", "comes_ms"),
    [
        ({"TIMER_DELAY_SEC": 3}, 3000),
        ({"TIMER_DELAY_MS": 2300}, 3000),
        ({"TIMER_DELAY_MS": 3000}, 3000),
        ({"TIMER_DELAY_MS": 1}, 1000),
        ({"TIMER_DELIVER_MS": START_MS + 4001}, 5000),
        ({"TIMER_DELAY_SEC": 2, "TIMER_DELIVER_MS": START_MS + 9000}, 2000),
    ],
)
async def test_a_message_comes_when_the_second_of_its_time_is_over(tmp_path, clock, properties, comes_ms):
    async with running(tmp_path, clock) as timers:
        assert timers.put(**properties).ok

        assert await timers.at(comes_ms - 1) == []
        assert await timers.at(comes_ms) == ["U"]
        assert await timers.at(comes_ms + 60_000) == ["U"]


async def test_the_loop_delivers_by_itself(tmp_path):
    broker = Broker(config_of(tmp_path / "store", {"timerPrecisionMs": 100}))
    await broker.start()
    timers = Timers(broker, ManualClock(broker.clock.now_ms()))
    timers.put("late", TIMER_DELAY_MS=700)
    timers.put("early", TIMER_DELAY_MS=250)
    await until(lambda: len(timers.names()) == 2)
    assert timers.names() == ["early", "late"]
    for found, delay_ms in zip(timers.messages(), (250, 700), strict=True):
        late_ms = found.store_timestamp - found.born_timestamp - delay_ms
        assert 0 <= late_ms < 100 + 400, late_ms  # the precision, and a machine that is busy
    await broker.stop()


async def test_a_message_is_delivered_as_java_delivers_it(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        timers.put(TIMER_DELAY_SEC=3, KEYS="k")
        await timers.settle()
        (waiting,) = timers.messages(TIMER_TOPIC, 0)
        clock.advance(100)
        await timers.at(3210)
        (found,) = timers.messages()

        kept = {
            "UNIQ_KEY": "U", "TAGS": "paid", "KEYS": "k", "TIMER_DELAY_SEC": "3", "REAL_TOPIC": "T",
            "REAL_QID": "2", "TIMER_OUT_MS": str(START_MS + 2000),
        }  # fmt: skip
        assert waiting.properties == kept
        assert found.properties == {
            **kept, "TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(START_MS + 3210)
        }  # fmt: skip
        assert (found.topic, found.queue_id, found.tags_code) == ("T", 2, waiting.tags_code)
        assert found.born_timestamp == START_MS


async def test_messages_of_a_slot_keep_their_order(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        names = [f"m{number}" for number in range(1000)]
        for name in names:
            timers.put(name, TIMER_DELAY_SEC=5)

        assert await timers.at(5000) == names


# What is not taken, or not by timer


@pytest.mark.parametrize(
    ("properties", "status"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELAY_SEC": 3 * DAY_S + 1}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELAY_MS": "9" * 19}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELIVER_MS": START_MS, "TIMER_DEL_UNIQKEY": "U"}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ({"TIMER_DELAY_SEC": 3 * DAY_S}, PutMessageStatus.PUT_OK),
    ],
)
async def test_times_of_no_use_are_refused(tmp_path, clock, properties, status):
    async with running(tmp_path, clock) as timers:
        assert timers.put(**properties).status is status


async def test_what_is_due_already_goes_straight_to_its_queue(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        assert timers.put(TIMER_DELIVER_MS=START_MS).ok

        assert timers.names() == ["U"]
        assert "TIMER_OUT_MS" not in timers.messages()[0].properties


async def test_without_a_wheel_no_time_is_taken(tmp_path, clock):
    async with running(tmp_path, clock, timerWheelEnable="false") as timers:
        assert timers.put(TIMER_DELAY_SEC=1).status is PutMessageStatus.WHEEL_TIMER_NOT_ENABLE
        assert timers.ask(RequestCode.GET_TIMER_METRICS).code == ResponseCode.SYSTEM_ERROR
        assert timers.ask(RequestCode.GET_TIMER_CHECK_POINT).code == ResponseCode.SYSTEM_ERROR
        assert not (tmp_path / "timerwheel").exists()


async def test_of_a_level_and_a_time_the_level_counts(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        assert timers.put(DELAY=1, TIMER_DELAY_SEC=1000).ok

        (found,) = timers.messages("SCHEDULE_TOPIC_XXXX", 0)
        assert "TIMER_DELAY_SEC" not in found.properties


async def test_too_many_for_one_second_are_refused(tmp_path, clock):
    async with running(tmp_path, clock, timerCongestNumEachSlot=3) as timers:
        for _ in range(40):
            timers.put(TIMER_DELAY_SEC=5)
            await timers.settle()

        assert 3 <= timers.broker.timers.pending <= 6
        while timers.broker.timers.pending < 6:
            timers.put(TIMER_DELAY_SEC=5)
            await timers.settle()
        assert timers.put(TIMER_DELAY_SEC=5).status is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
        assert timers.put(TIMER_DELAY_SEC=7).ok


# Rolling


@pytest.mark.parametrize(
    ("delay_s", "rolled_s"),
    [
        (36, [11, 22, 33]),  # the window, and the second that the slot takes
        (13, [6]),  # half of the window: the whole would leave little for the rest
        (10, []),
    ],
)
async def test_what_is_far_away_is_rolled_and_comes_at_its_time(tmp_path, clock, delay_s, rolled_s):
    async with running(tmp_path, clock, timerRollWindowSlot=10) as timers:
        timers.put(TIMER_DELAY_SEC=delay_s)

        for second in range(1, delay_s):
            assert await timers.at(second * 1000) == []
        assert await timers.at(delay_s * 1000) == ["U"]
        rolled = timers.messages(TIMER_TOPIC, 0)[1:]
        assert [(one.store_timestamp - START_MS) // 1000 for one in rolled] == rolled_s
        times = [str(number) for number in range(1, len(rolled_s) + 1)]
        assert [one.properties["TIMER_ROLL_TIMES"] for one in rolled] == times
        assert timers.messages()[0].properties.get("TIMER_ROLL_TIMES") == (times[-1] if times else None)
        assert timers.broker.timers.metrics.count("T") == 0


# Recall


async def test_a_recalled_message_does_not_come(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        timers.broker.topics.create_for_send_back("T", 4, 6)
        for name in ("keep", "recall", "stay"):
            timers.put(name, TIMER_DELAY_SEC=5)
        await timers.settle()
        waiting = timers.messages(TIMER_TOPIC, 0)[1]
        handle = RecallHandle.of_stored(waiting.properties, "broker-a")
        assert handle is not None

        answer = timers.ask(
            RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle.encode(), producerGroup="PG"
        )

        assert (answer.code, answer.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "recall")
        assert await timers.at(4000) == []
        assert timers.broker.timers.metrics.count("T") == 2
        assert await timers.at(5000) == ["keep", "stay"]
        assert timers.broker.timers.metrics.count("T") == 0


@pytest.mark.parametrize(
    ("handle", "code", "remark"),
    [
        ("?", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        (RecallHandle("T", "broker-a", "5", "U").encode(), ResponseCode.ILLEGAL_OPERATION, "timestamp"),
        (RecallHandle("S", "broker-a", "5", "U").encode(), ResponseCode.ILLEGAL_OPERATION, "topic not match"),
        (RecallHandle("T", "broker-b", "5", "U").encode(), ResponseCode.ILLEGAL_OPERATION, "not available"),
    ],
)
async def test_a_handle_of_no_use_is_refused(tmp_path, clock, handle, code, remark):
    async with running(tmp_path, clock) as timers:
        timers.broker.topics.create_for_send_back("T", 4, 6)
        answer = timers.ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle)
        assert (answer.code, remark in (answer.remark or "")) == (code, True)
        absent = timers.ask(RequestCode.RECALL_MESSAGE, topic="absent", recallHandle=handle)
        assert absent.code == ResponseCode.TOPIC_NOT_EXIST


async def test_recall_is_an_option(tmp_path, clock):
    async with running(tmp_path, clock, recallMessageEnable="false") as timers:
        answer = timers.ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle="?")
        assert answer.code == ResponseCode.NO_PERMISSION


def test_a_handle_is_javas():
    handle = RecallHandle("topic", "broker-a", "1794731631001", "C000")

    assert handle.encode() == "djEgdG9waWMgYnJva2VyLWEgMTc5NDczMTYzMTAwMSBDMDAw"
    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.of_stored({"TIMER_OUT_MS": "7", "REAL_TOPIC": "%RETRY%g"}, "b") is None


# Figures


async def test_counts_and_checkpoint(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        for number in range(3):
            timers.put(f"m{number}", TIMER_DELAY_SEC=5 + number)
        await timers.at(6000)

        body = lenient_json.loads(timers.ask(RequestCode.GET_TIMER_METRICS).body or b"")
        assert body["timingCount"] == {"T": {"count": 1, "timeStamp": START_MS + 6000}}
        assert body["dataVersion"]["counter"] == 5
        checkpoint = read_timer_checkpoint(
            memoryview(timers.ask(RequestCode.GET_TIMER_CHECK_POINT).body or b"")
        )
        assert checkpoint is not None
        assert checkpoint[0] == START_MS + 6000
        assert checkpoint[2:4] == (3, 3)
        assert (timers.broker.timers.pending, timers.broker.timers.queue_behind) == (1, 0)

        timers.broker.timers.metrics.counts["T"][0] = 70
        timers.broker.timers.revise_counts()
        await timers.settle()
        assert timers.broker.timers.metrics.count("T") == 1


# The store fails for a while


async def test_a_store_that_takes_nothing_is_tried_again(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        for number in range(3):
            timers.put(f"m{number}", TIMER_DELAY_SEC=5)
        await timers.settle()
        timers.broker.store.refusal = "the disk is full"
        assert await timers.at(5000) == []

        timers.broker.store.refusal = None
        await until(lambda: timers.names() == ["m0", "m1", "m2"])


async def test_with_sync_flush_messages_are_entered_when_the_disk_has_them(tmp_path, clock):
    async with running(tmp_path, clock, flushDiskType="SYNC_FLUSH") as timers:
        timers.put("m0", TIMER_DELAY_SEC=5)
        timers.put("m1", TIMER_DELAY_SEC=5)
        await until(lambda: timers.broker.timers.queue_offset == 2)

        await timers.at(5000)
        await until(lambda: timers.names() == ["m0", "m1"])


# Restarts


async def test_what_waits_survives_a_restart(tmp_path, clock):
    root = tmp_path / "store"
    async with running(root, clock) as timers:
        for number in range(1, 8):
            timers.put(f"m{number}", TIMER_DELAY_SEC=number)
        assert await timers.at(2000) == ["m1", "m2"]
    clock.advance(3000)
    async with running(root, clock) as timers:
        await timers.settle()
        assert timers.names() == ["m1", "m2", "m3", "m4", "m5"]
        assert timers.broker.timers.metrics.count("T") == 2
        assert await timers.at(7000) == [f"m{number}" for number in range(1, 8)]


async def test_after_a_long_pause_the_late_ones_come_before_the_wheel_is_used_again(tmp_path, clock):
    root, more = tmp_path / "store", {"timerMaxDelaySec": 20 * DAY_S}
    async with running(root, clock, timerRollWindowSlot=6 * DAY_S, **more) as timers:
        timers.put("late", TIMER_DELAY_SEC=DAY_S)
        timers.put("later", TIMER_DELAY_SEC=5 * DAY_S)
        await timers.settle()
    clock.advance(10 * DAY_S * 1000)
    async with running(root, clock, timerRollWindowSlot=6 * DAY_S, **more) as timers:
        timers.put("new", TIMER_DELAY_SEC=5 * DAY_S)  # two weeks after the first: the same slot
        await timers.settle()
        assert timers.names() == ["late", "later"]
        assert await timers.at(15 * DAY_S * 1000) == ["late", "later", "new"]


@pytest.mark.parametrize("flushed", [True, False], ids=["flushed", "not flushed"])
@pytest.mark.parametrize("crash_at", [0, 2500, 3000])
async def test_a_crash_loses_nothing_and_delivers_nothing_twice(tmp_path, clock, crash_at, flushed):
    copy = tmp_path / "copy"
    async with running(tmp_path / "store", clock) as timers:
        for number in range(600):
            timers.put(f"m{number}", TIMER_DELAY_SEC=2 + number % 3)
            if number == 300:
                await timers.settle()
                if flushed:
                    timers.broker.timers._flush_work()()
        if crash_at:
            await timers.at(crash_at - 500)
            clock.time_ms = START_MS + crash_at
            timers.broker.timers.deliver_due()  # one turn of the loop, in the middle of a slot
        shutil.copytree(tmp_path / "store", copy)
    async with running(copy, clock) as timers:
        assert sorted(await timers.at(10_000)) == sorted(f"m{number}" for number in range(600))


@pytest.mark.parametrize("at", range(0, UNIT_SIZE, 3))
async def test_a_unit_that_a_power_cut_damaged_is_entered_again(tmp_path, clock, at):
    copy = tmp_path / "copy"
    async with running(tmp_path / "store", clock) as timers:
        timers.put("a", TIMER_DELAY_SEC=2)
        await timers.settle()
        timers.broker.timers._flush_work()()
        timers.put("b", TIMER_DELAY_SEC=2)
        timers.put("c", TIMER_DELAY_SEC=3)
        await timers.settle()
        shutil.copytree(tmp_path / "store", copy)
    (log,) = (copy / "timerlog").iterdir()
    data = bytearray(log.read_bytes())
    data[UNIT_SIZE + at] ^= 4  # of the first that was not flushed
    log.write_bytes(data)
    async with running(copy, clock) as timers:
        assert sorted(await timers.at(5_000)) == ["a", "b", "c"]


async def test_what_was_delivered_counts_when_the_log_has_it_on_the_disk(tmp_path, clock):
    async with running(tmp_path, clock) as timers:
        service, flusher = timers.broker.timers, timers.broker.store.flusher
        timers.put("a", TIMER_DELAY_SEC=2)
        await timers.settle()
        service._flush_work()()
        before = service._files.checkpoint  # type: ignore[union-attr]
        await timers.at(5_000)
        flusher.failed = True  # as after a sync that failed

        for _ in range(2):
            with pytest.raises(OSError, match="the log cannot be brought to the disk"):
                service._flush_work()()

        assert service._files.checkpoint == before  # type: ignore[union-attr]
        flusher.failed = False


async def test_what_java_left_is_delivered(tmp_path):
    path = unpack("timer", tmp_path).path
    sizes = {
        "mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 100,
        "maxIndexNum": 400, "mappedFileSizeTimerLog": 2096,
    }  # fmt: skip
    clock = ManualClock(1794731622999)
    async with running(path, clock, **sizes) as timers:
        queue = lambda: [one.body for one in timers.messages("GoldenTimer", 3)]  # noqa: E731
        before = timers.names("GoldenTimer")
        await timers.settle()
        assert (len(before), queue()) == (9, [])
        clock.advance(20_000)
        timers.broker.timers.deliver_due()
        await timers.settle()
        found = [one.properties["KEYS"] for one in timers.messages("GoldenTimer", 3)]
        assert found == ["timer-3", "timer-7"]  # timer-11 was recalled
        assert timers.broker.timers.metrics.count("GoldenTimer") == 0

"""Transactions: what consumers see, what op messages say, who is asked, and what a restart knows."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kourou.broker import Broker, BrokerConfig
from kourou.broker.names import TRANSACTION_GROUP as GROUP
from kourou.broker.services.transactions import AT_ONCE
from kourou.message import sysflag
from kourou.message.codec import StoredMessage, decode
from kourou.message.topics import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CheckTransactionState, EndTransaction
from kourou.store import PutMessageStatus
from kourou.store.index import index_catch_up
from kourou.store.index.index_catch_up import IndexCatchUp
from kourou.store.put import InnerMessage
from kourou.testing.cluster import SMALL_STORE
from support.recorded.golden import unpack
from support.stores.store import ManualClock

COMMIT, ROLLBACK, UNKNOWN = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK, 0
YEAR_MS = 365 * 24 * 3_600_000
Test = Callable[[Broker], Awaitable[None]]


class Producer:
    """A connection that takes what it is asked."""

    is_open = True
    peer = "127.0.0.1:1"

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []

    def send_oneway(self, request: RemotingCommand) -> None:
        self.asked.append(request)


@pytest.fixture
def producer() -> Producer:
    return Producer()


@asynccontextmanager
async def running(
    directory: Path, clock: ManualClock, producer: Producer, more: Mapping[str, object] | None = None
) -> AsyncIterator[Broker]:
    """A broker whose producer group PG has one connection."""
    properties = {
        **SMALL_STORE, "storePathRootDir": str(directory / "store"), "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1", "listenPort": "0", "transactionCheckMax": "3",
        **{key: str(value) for key, value in (more or {}).items()},
    }  # fmt: skip
    broker = Broker(BrokerConfig.from_properties(properties), clock=clock)
    await broker.start()
    try:
        setattr(broker.producers, "pick", lambda group, may: {"PG": producer}.get(group))  # noqa: B010
        yield broker
    finally:
        await broker.stop()


def prepare(broker: Broker, clock: ManualClock, number: int = 0, **properties: str) -> StoredMessage:
    """The half of a new message."""
    given = {"UNIQ_KEY": f"U{number}", "PGROUP": "PG", "TRAN_MSG": "true", "TAGS": "paid", **properties}
    message = InnerMessage.of("T", 2, b"body %d" % number, given, born_timestamp=clock.time_ms)
    result = broker.transactions.prepare(message)
    assert result.status is PutMessageStatus.PUT_OK
    return halves(broker)[result.queue_offset]


async def check_asks_once(broker: Broker, producer: Producer) -> None:
    """The only half is asked for, and not given up."""
    await broker.transactions.check()
    assert len(producer.asked) == 1
    assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC, 0)


def end(
    broker: Broker, half: StoredMessage, outcome: int, *, check: bool = False, group: str = "PG"
) -> int | None:
    header = EndTransaction(group, half.queue_offset, half.physical_offset, outcome, "U", "T", check)
    request = RemotingCommand(RequestCode.END_TRANSACTION, header.fields())
    answer = broker.transactions.end(request, header, half)
    return None if answer is None else answer.code


def messages(broker: Broker, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    queue = broker.store.queues.get(topic, queue_id)
    if queue is None:
        return []
    found = [broker.store.look_message(entry.physical_offset) for entry in queue.iterate(queue.min_offset)]
    return [message for message in found if message is not None]


def halves(broker: Broker) -> list[StoredMessage]:
    return messages(broker, TRANS_HALF_TOPIC)


def committed(broker: Broker) -> list[bytes]:
    return [bytes(message.body) for message in messages(broker, "T", 2)]


def ops(broker: Broker) -> list[bytes]:
    return [bytes(message.body) for message in messages(broker, TRANS_OP_HALF_TOPIC)]


async def test_a_prepared_message_is_seen_when_it_is_committed_and_not_before(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        half = prepare(broker, clock)
        assert half.sys_flag & sysflag.TRANSACTION_MASK == 0
        assert (half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == ("T", "2")
        assert half.properties["__transactionId__"] == "U0"
        assert committed(broker) == []

        assert end(broker, half, COMMIT) == ResponseCode.SUCCESS

        (final,) = messages(broker, "T", 2)
        assert bytes(final.body) == b"body 0"
        assert final.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT
        assert final.prepared_transaction_offset == half.physical_offset
        assert "REAL_TOPIC" not in final.properties
        assert final.properties["TRAN_MSG"] == "true"  # as Java leaves it


async def test_a_rolled_back_message_is_never_seen(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        assert end(broker, prepare(broker, clock), ROLLBACK) == ResponseCode.SUCCESS
        clock.time_ms += 3_600_000
        await broker.transactions.check()
        assert committed(broker) == []
        assert producer.asked == []


async def test_offsets_that_are_resolved_together_share_an_op_message(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        first, second, third = (prepare(broker, clock, number) for number in range(3))
        end(broker, third, COMMIT)
        end(broker, first, ROLLBACK)
        assert ops(broker) == []
        broker.transactions.write_ops()
        end(broker, second, COMMIT)
        broker.transactions.write_ops()
        assert ops(broker) == [b"2,0,", b"1,"]
        (op, _) = messages(broker, TRANS_OP_HALF_TOPIC)
        assert op.properties == {"WAIT": "true", "TAGS": "d"}


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"producer_group": "other"}, "producer group"),
        ({"tran_state_table_offset": 7}, "state table"),
        ({"commit_log_offset": 1}, "failed"),
    ],
)
async def test_an_end_that_does_not_fit_its_half_changes_nothing(tmp_path, clock, producer, change, remark):
    async with running(tmp_path, clock, producer) as broker:
        half = prepare(broker, clock)
        values = {
            "producer_group": "PG", "tran_state_table_offset": half.queue_offset,
            "commit_log_offset": half.physical_offset, **change,
        }  # fmt: skip
        header = EndTransaction(**values, commit_or_rollback=COMMIT, msg_id="U")
        found = broker.transactions.find_half(header.commit_log_offset)
        answer = broker.transactions.end(RemotingCommand(37), header, found)
        assert answer is not None
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
        assert committed(broker) == []


async def test_an_end_that_comes_twice_gives_one_message(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        half = prepare(broker, clock)
        assert end(broker, half, COMMIT) == end(broker, half, COMMIT) == ResponseCode.SUCCESS
        assert end(broker, half, ROLLBACK) == ResponseCode.SUCCESS
        assert committed(broker) == [b"body 0"]


async def test_a_half_that_nobody_ends_is_asked_for_and_can_be_ended_then(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        half = prepare(broker, clock)
        assert end(broker, half, UNKNOWN) is None
        clock.time_ms += broker.config.transaction_time_out
        await broker.transactions.check()
        assert producer.asked == []  # it is immune that long

        clock.time_ms += 1
        await broker.transactions.check()

        (asked,) = producer.asked
        header = CheckTransactionState.read(asked)
        assert header.topic == TRANS_HALF_TOPIC
        assert header.msg_id == header.transaction_id == "U0"
        again = halves(broker)[1]
        assert again.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert (header.tran_state_table_offset, header.commit_log_offset) == (1, again.physical_offset)
        assert header.offset_msg_id == again.offset_message_id
        assert asked.body is not None
        shown = decode(asked.body)
        assert (shown.topic, shown.queue_id, bytes(shown.body)) == ("T", 2, b"body 0")

        assert end(broker, again, COMMIT, check=True) == ResponseCode.SUCCESS
        assert committed(broker) == [b"body 0"]
        clock.time_ms += 3_600_000
        await broker.transactions.check()
        assert len(producer.asked) == 1


async def test_a_half_that_was_asked_for_too_often_is_given_up_and_can_be_taken_up_again(
    tmp_path, clock, producer
):
    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock)
        for _ in range(5):
            clock.time_ms += 60_000
            await broker.transactions.check()
        assert len(producer.asked) == 3  # transactionCheckMax
        (given_up,) = messages(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
        assert committed(broker) == []

        assert broker.transactions.resume(given_up)
        clock.time_ms += 60_000
        await broker.transactions.check()
        assert len(producer.asked) == 4


@pytest.mark.parametrize("ms", [-YEAR_MS, -5000, 5000, YEAR_MS])
async def test_a_half_is_asked_for_in_its_time_whichever_way_the_clock_is_set(tmp_path, clock, producer, ms):
    """Given halves, one of them immune, when the clock is set by seconds or years, then none is asked for,
    given up or too old to be ended before that much time has elapsed."""

    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock)
        immune = prepare(broker, clock, 1, CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        clock.set_by(ms)
        clock.advance(broker.config.transaction_time_out)
        await broker.transactions.check()
        assert not producer.asked
        clock.advance(1)
        await broker.transactions.check()
        assert len(producer.asked) == 1
        assert end(broker, immune, COMMIT) == ResponseCode.SUCCESS
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC, 0)


async def test_a_machine_that_starts_with_a_clock_ahead_gives_up_no_half(tmp_path, clock, producer):
    """Given a half that nobody has ended, when the machine starts with a clock that is a year ahead, then it
    is asked for, and not given up as too old."""

    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock)
    clock.set_by(YEAR_MS)
    clock.boot = "second"
    async with running(tmp_path, clock, producer) as broker:
        await check_asks_once(broker, producer)


@pytest.mark.parametrize(
    "name", ["TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"]
)
async def test_numbers_of_no_use_in_a_half_do_not_stop_the_checks(tmp_path, clock, producer, name):
    """Given a half with a number that no broker writes, then it and those after it are asked for."""

    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock, 0, **{name: "9" * 5000})
        prepare(broker, clock, 1)
        clock.advance(60_000)
        await broker.transactions.check()
        assert len(producer.asked) == 2


async def test_how_long_a_half_waits_is_not_up_to_the_clock_of_its_producer(tmp_path, clock, producer):
    """Given a producer whose clock is a week behind, then its half is not asked for or given up early."""

    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, ManualClock(clock.time_ms - 7 * 24 * 3_600_000))
        await broker.transactions.check()
        assert not producer.asked
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC, 0)


async def test_a_half_without_a_producer_waits_for_one(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock, PGROUP="gone")
        clock.time_ms += 60_000
        await broker.transactions.check()
        assert producer.asked == []
        assert halves(broker)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_an_immune_half_is_not_asked_for_and_holds_up_no_other(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        immune = prepare(broker, clock, 0, CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        prepare(broker, clock, 1)
        clock.time_ms += 60_000
        await broker.transactions.check()
        assert [CheckTransactionState.read(asked).msg_id for asked in producer.asked] == ["U1"]
        again = halves(broker)[2]
        assert again.properties["TRAN_PREPARED_QUEUE_OFFSET"] == str(immune.queue_offset)

        assert end(broker, immune, COMMIT) == ResponseCode.SUCCESS  # of the first, which its producer knows
        clock.time_ms += 60_000
        await broker.transactions.check()
        assert committed(broker) == [b"body 0"]
        clock.time_ms += 3_600_000
        await broker.transactions.check()
        assert {CheckTransactionState.read(asked).msg_id for asked in producer.asked} == {"U1"}


async def test_an_immune_half_that_is_ended_too_late_waits_for_its_check(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        half = prepare(broker, clock, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
        clock.time_ms += 10_001
        assert end(broker, half, COMMIT) == ResponseCode.ILLEGAL_OPERATION
        assert committed(broker) == []
        assert end(broker, half, COMMIT, check=True) == ResponseCode.SUCCESS


async def test_a_restart_knows_what_was_resolved_and_asks_for_the_rest(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        made = [prepare(broker, clock, number) for number in range(300)]
        for half in made[::2]:
            end(broker, half, COMMIT)
    async with running(tmp_path, clock, producer) as broker:
        clock.time_ms += 60_000
        await broker.transactions.check()
        asked = [CheckTransactionState.read(request).msg_id for request in producer.asked]
        assert asked == [f"U{number}" for number in range(1, 300, 2)]
        assert broker.offsets.query(GROUP, TRANS_HALF_TOPIC, 0) == 300
        assert broker.offsets.query(GROUP, TRANS_OP_HALF_TOPIC, 0) == len(ops(broker))


async def test_a_crash_between_commits_and_their_op_messages_gives_each_message_once(
    tmp_path, clock, producer
):
    count = 3 * AT_ONCE + 1

    async with running(tmp_path, clock, producer) as broker:
        for number in range(count):
            end(broker, prepare(broker, clock, number), COMMIT)
        broker.transactions._unwritten.clear()  # what a crash takes
    async with running(tmp_path, clock, producer) as broker:
        for half in halves(broker)[::100]:  # the answer of a check that was asked before
            assert end(broker, half, COMMIT, check=True) == ResponseCode.SUCCESS
        clock.time_ms += 60_000
        await broker.transactions.check()
        assert producer.asked == []
        assert committed(broker) == [b"body %d" % number for number in range(count)]


async def test_what_was_committed_before_a_crash_is_not_decided_before_the_index_is_complete(
    tmp_path, clock, producer, monkeypatch
):
    """The index alone tells whether a half was committed. Until it does, nothing becomes of the half."""

    async with running(tmp_path, clock, producer) as broker:
        for number in range(100):
            end(broker, prepare(broker, clock, number), COMMIT)
        prepare(broker, clock, 100)
        broker.transactions._unwritten.clear()  # what a crash takes
    (tmp_path / "store" / "abort").touch()
    shutil.rmtree(tmp_path / "store" / "index")
    monkeypatch.setattr(index_catch_up, "STEP_BYTES", 1000)
    monkeypatch.setattr(IndexCatchUp, "run_once", lambda self: None)
    async with running(tmp_path, clock, producer) as broker:
        assert broker.store.index_catch_up.is_behind
        last, undecided = halves(broker)[99:101]
        assert end(broker, last, COMMIT, check=True) == ResponseCode.SYSTEM_ERROR
        clock.time_ms += 60_000
        await broker.transactions.check()
        assert producer.asked == []
        assert list(broker.transactions.overdue()) == []

        broker.store.index_catch_up.finish()
        await broker.transactions.check()
        assert [CheckTransactionState.read(asked).msg_id for asked in producer.asked] == ["U100"]
        assert end(broker, last, COMMIT, check=True) == ResponseCode.SUCCESS
        assert end(broker, undecided, COMMIT, check=True) == ResponseCode.SUCCESS
        assert committed(broker) == [b"body %d" % number for number in range(101)]


async def test_a_clock_that_is_put_right_while_the_index_catches_up_gives_up_no_half(
    tmp_path, clock, producer, monkeypatch
):
    """Given a machine that started with a clock a year behind and was off again before its index was
    complete, when the clock was put right by then, then halves are asked for
    and not given up as too old."""

    def crash(boot: str) -> None:
        (tmp_path / "store" / "abort").touch()
        clock.boot = boot

    async with running(tmp_path, clock, producer) as broker:
        for number in range(100):
            prepare(broker, clock, number)
    shutil.rmtree(tmp_path / "store" / "index")
    monkeypatch.setattr(index_catch_up, "STEP_BYTES", 1000)
    monkeypatch.setattr(IndexCatchUp, "run_once", lambda self: None)
    crash("second")
    clock.set_by(-YEAR_MS)
    async with running(tmp_path, clock, producer) as broker:
        assert broker.store.index_catch_up.is_behind
        clock.set_by(YEAR_MS)
        await broker.transactions.check()
        assert broker.store.clock_steps.today(0, 0) == 0  # back and ahead: both were seen
    crash("third")
    async with running(tmp_path, clock, producer) as broker:
        assert broker.store.index_catch_up.is_behind
    crash("fourth")
    async with running(tmp_path, clock, producer) as broker:
        broker.store.index_catch_up.finish()
        clock.advance(60_000)
        await broker.transactions.check()
        assert len(producer.asked) == 100
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC, 0)


async def test_a_machine_that_starts_twice_after_its_clock_was_wrong_gives_up_no_half(
    tmp_path, clock, producer
):
    """Given a half that was stored long ago only by a clock that nobody trusts yet, when the machine starts
    once more, then that is still not time that passed."""
    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock)
    clock.set_by(YEAR_MS)
    for clock.boot in ("second", "third"):
        async with running(tmp_path, clock, producer):
            clock.advance(1000)
    clock.boot = "fourth"
    async with running(tmp_path, clock, producer) as broker:
        await check_asks_once(broker, producer)


async def test_a_half_of_which_nobody_was_asked_is_asked_for_before_it_is_given_up(tmp_path, clock, producer):
    """Given halves, one of them immune for longer than messages are kept, when the broker is away for longer
    than that, then both are asked for once it is back, and the answers count."""

    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock, 0)
        prepare(broker, clock, 1, CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
    clock.advance(100 * 3_600_000)  # fileReservedTime is 72
    async with running(tmp_path, clock, producer) as broker:
        await broker.transactions.check()
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        assert [CheckTransactionState.read(asked).msg_id for asked in producer.asked] == ["U0", "U1"]
        for half in halves(broker)[2:]:
            assert end(broker, half, COMMIT, check=True) == ResponseCode.SUCCESS
        clock.advance(60_000)
        await broker.transactions.check()
        assert len(producer.asked) == 2
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        assert committed(broker) == [b"body 0", b"body 1"]


async def test_the_last_question_has_time_to_be_answered(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        prepare(broker, clock)
        for _ in range(3):  # transactionCheckMax
            clock.advance(60_000)
            await broker.transactions.check()
        assert len(producer.asked) == 3
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        assert end(broker, halves(broker)[-1], COMMIT, check=True) == ResponseCode.SUCCESS
        clock.advance(60_000)
        await broker.transactions.check()
        assert not messages(broker, TRANS_CHECK_MAX_TIME_TOPIC)


@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
async def test_a_clock_that_was_set_back_does_not_hide_what_was_committed_before_a_crash(
    tmp_path, clock, producer, when
):
    """Given a clock that is set back around a commit whose op message a crash takes, then the message is not
    asked for again and comes once: also if index files of the time after that begin before the half."""

    config = {"maxIndexNum": "64", "maxHashSlotNum": "16"}
    async with running(tmp_path, clock, producer, config) as broker:
        half = prepare(broker, clock)
        if when == "before the commit":
            clock.set_by(-YEAR_MS)
        end(broker, half, COMMIT)
        if when == "after the commit":
            clock.set_by(-YEAR_MS)
        for number in range(1, 100):
            end(broker, prepare(broker, clock, number), ROLLBACK)
        broker.transactions._unwritten.remove(0)  # what a crash takes
    async with running(tmp_path, clock, producer, config) as broker:
        assert len(broker.store.index.files) > 2
        assert end(broker, halves(broker)[0], COMMIT, check=True) == ResponseCode.SUCCESS
        clock.advance(60_000)
        await broker.transactions.check()
        assert producer.asked == []
        assert committed(broker) == [b"body 0"]


async def test_a_delayed_message_of_a_transaction_is_delayed_when_it_is_committed(tmp_path, clock, producer):
    async with running(tmp_path, clock, producer) as broker:
        half = prepare(broker, clock, DELAY="18")
        assert end(broker, half, COMMIT) == ResponseCode.SUCCESS
        assert committed(broker) == []
        (waiting,) = messages(broker, "SCHEDULE_TOPIC_XXXX", 17)
        assert waiting.properties["REAL_TOPIC"] == "T"


async def test_the_golden_store_goes_on_where_java_stopped(tmp_path, producer):
    """Halves, op messages and offsets are those of a Java broker: what it had not resolved is asked for."""
    golden = unpack("transaction", tmp_path)
    golden.path.rename(tmp_path / "store")
    stored_ms = int.from_bytes((tmp_path / "store" / "checkpoint").read_bytes()[:8], "big")
    clock = ManualClock(stored_ms)

    async with running(
        tmp_path, clock, producer, {**golden.expected["config"], "transactionCheckMax": 100}
    ) as broker:
        setattr(  # noqa: B010
            broker.producers, "pick", lambda group, may: {"golden_trans_group": producer}.get(group)
        )
        first = broker.offsets.query(GROUP, TRANS_HALF_TOPIC, 0)
        resolved = {int(text) for body in ops(broker) for text in body.decode().split(",") if text}
        pending = [half for half in halves(broker)[first:] if half.queue_offset not in resolved]
        immune = [half for half in pending if "CHECK_IMMUNITY_TIME_IN_SECONDS" in half.properties]
        assert pending
        assert immune
        clock.time_ms = max(half.store_timestamp for half in pending) + 60_000

        await broker.transactions.check()

        asked = [CheckTransactionState.read(request) for request in producer.asked]
        seen = {
            m.properties["UNIQ_KEY"] for number in range(4) for m in messages(broker, "GoldenTrans", number)
        }
        expected = [half.properties["UNIQ_KEY"] for half in pending if half not in immune]
        assert not seen.issuperset(expected)
        expected = [name for name in expected if name not in seen]  # Java asks even for what it committed
        assert [header.msg_id for header in asked] == expected
        for header in asked:
            half = broker.store.look_message(header.commit_log_offset)
            assert half is not None
            assert end(broker, half, COMMIT, check=True, group="golden_trans_group") == ResponseCode.SUCCESS

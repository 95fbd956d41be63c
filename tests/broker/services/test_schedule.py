"""Messages by delay level: where they wait, what arrives, and what a restart or a clock does to them.

The clock of most tests stands still: it is moved, and the level is told that its timer rang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.services import schedule
from kourou.broker.services.schedule import MAX_A_TURN
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.store.put import InnerMessage
from kourou.store.status import PutMessageResult, PutMessageStatus
from support.sites.broker import (
    SUBSCRIPTION,
    SUSPEND,
    UNIQUE_ID,
    Site,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)
from support.stores.store import START_MS, ManualClock

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
LEVELS = {"messageDelayLevel": "1s 5s 10s"}
YEAR_MS = 365 * 24 * 3_600_000
pytestmark = [pytest.mark.configured(LEVELS), pytest.mark.usefixtures("clock")]
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


def late(level: object, body: bytes = b"late", **values: Any) -> RemotingCommand:
    properties = {"UNIQ_KEY": UNIQUE_ID, "TAGS": "T", "DELAY": str(level), **values.pop("more", {})}
    return send_request(body=body, properties=properties, **values)


def ring(site: Site, *levels: int) -> None:
    """The timers of levels ring, as often as it takes to deliver what is due."""
    for level in levels or (1, 2, 3):
        while True:
            before = site.do(site.broker.delay.offsets.get, level)
            site.do(site.broker.delay._deliver, level)
            if site.do(site.broker.delay.offsets.get, level) == before:
                break


def bodies(site: Site, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [bytes(item.body) for item in site.stored(topic, queue_id)]


def assert_comes_after(
    site: Site, clock: ManualClock, ms: int, *before: bytes, late: bytes = b"late"
) -> None:
    """A message arrives when so much time has passed, and not a millisecond before."""
    clock.advance(ms - 1)
    ring(site)
    assert bodies(site) == list(before)
    clock.advance(1)
    ring(site)
    assert bodies(site) == [*before, late]


@contextmanager
def delayed(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    """A broker in which a message of ten seconds waits."""
    with running(tmp_path, LEVELS, clock=clock) as site:
        site.make_topic("t")
        site.connect().ask(late(3))
        yield site


# What lies where


def test_a_delayed_message_waits_in_the_queue_of_its_level(site, peer):
    """Given a message of level 2, then it lies in SCHEDULE_TOPIC_XXXX with its time as tag."""
    answer = peer.ask(late(2, e="3", h="9"))
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("3", "0")
    assert site.max_offset("t", 3) == 0
    (waiting,) = site.stored(SCHEDULE, 1)
    assert waiting.properties == {
        "UNIQ_KEY": UNIQUE_ID, "TAGS": "T", "DELAY": "2", **ADDED, "REAL_TOPIC": "t", "REAL_QID": "3",
    }  # fmt: skip
    (entry,) = site.do(lambda: list(site.broker.store.queues.get(SCHEDULE, 1).iterate(0)))
    assert entry.tags_code == START_MS + 5000


def test_what_arrives_is_what_was_sent(site, peer, clock):
    """Given that its time has come, then the message is in its queue, with DELAY and where it was to go."""
    peer.ask(late(1, b"late", e="3", h="9", g="77"))
    clock.advance(999)
    ring(site)
    assert bodies(site, "t", 3) == []
    clock.advance(1)
    ring(site)
    (waiting,), (found,) = site.stored(SCHEDULE, 0), site.stored("t", 3)
    assert (bytes(found.body), found.flag, found.born_timestamp) == (b"late", 9, 77)
    assert found.properties == waiting.properties
    assert (found.properties["DELAY"], found.properties["REAL_QID"]) == ("1", "3")
    assert (found.born_host, found.store_host) == (waiting.born_host, waiting.store_host)
    assert found.store_timestamp == START_MS + 1000
    (entry,) = site.do(lambda: list(site.broker.store.queues.get("t", 3).iterate(0)))
    assert entry.tags_code == ord("T")  # its own tag again


@pytest.mark.parametrize(
    ("level", "expected"), [("4", "3"), ("18", "3"), ("999999999", "3"), ("3", "3"), ("01", "1")]
)
def test_a_level_above_the_last_is_the_last(site, peer, level, expected):
    peer.ask(late(level))
    (waiting,) = site.stored(SCHEDULE, int(expected) - 1)
    assert waiting.properties["DELAY"] == expected


@pytest.mark.parametrize("level", ["0", "-1", "-5"])
def test_a_level_that_is_none_does_not_delay(site, peer, level):
    peer.ask(late(level))
    (found,) = site.stored("t")
    assert found.properties["DELAY"] == level
    assert "REAL_TOPIC" not in found.properties


@pytest.mark.parametrize("level", ["x", "1.5", "9" * 5000, "1 ", "-", "99999999999"])
def test_a_level_that_is_no_number_is_refused(site, peer, level):
    end = site.log_end()
    answer = peer.call(late(level))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "DELAY is no number" in (answer.remark or "")
    assert site.log_end() == end


def test_of_a_level_and_a_time_the_level_counts(site, peer):
    """Given both, then as in Java the time is left out."""
    peer.ask(late(1, more={"TIMER_DELAY_SEC": "9", "TIMER_DELIVER_MS": "5"}))
    (waiting,) = site.stored(SCHEDULE, 0)
    assert not [name for name in waiting.properties if name.startswith("TIMER")]


def test_a_retry_comes_to_its_retry_topic(site, peer, clock):
    peer.ask(send_request(body=b"again"))
    (message,) = site.stored("t")
    fields = {"offset": str(message.physical_offset), "group": "g", "delayLevel": "2"}
    peer.ask(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
    clock.advance(5000)
    ring(site)
    (found,) = site.stored("%RETRY%g")
    assert (found.reconsume_times, found.properties["RETRY_TOPIC"]) == (1, "t")


# Order and numbers


def test_messages_of_a_level_arrive_in_their_order(site, peer, clock):
    """Given more messages than are delivered in one turn, then all arrive, once, in the order of sending."""
    count = 2 * MAX_A_TURN + 10
    peer.socket.sendall(b"".join(late(1, b"%d" % number).encode() for number in range(count)))
    for _ in range(count):
        assert peer.receive().code == 0
    clock.advance(1000)
    ring(site)
    assert bodies(site) == [b"%d" % number for number in range(count)]
    assert site.broker.delay.offsets[1] == count


@pytest.mark.parametrize(("others_s", "all_at_once"), [(None, False), (0.0, False), (30.0, True)])
def test_a_turn_takes_as_long_as_others_took(site, peer, clock, monkeypatch, others_s, all_at_once):
    """Given more that is due than fits a turn, then senders that take long do not make it late."""
    monkeypatch.setattr(schedule, "MAX_TURN_S", 60.0)
    count = 2 * MAX_A_TURN
    for _ in range(count):
        peer.ask(late(1))
    clock.time_ms += 1000

    def one_turn() -> int:
        last_turn_s = None if others_s is None else time.perf_counter() - others_s
        site.broker.delay._deliver(1, last_turn_s)
        return site.broker.delay.offsets[1]

    assert (site.do(one_turn) == count) is all_at_once
    until(lambda: site.max_offset() == count, "all")


def test_a_short_level_does_not_wait_for_a_long_one(site, peer, clock):
    peer.ask(late(3, b"long"))
    peer.ask(late(1, b"short"))
    clock.advance(1000)
    ring(site)
    assert bodies(site) == [b"short"]
    peer.ask(late(1, b"second"))
    clock.advance(9000)
    ring(site, 3, 1)
    assert bodies(site) == [b"short", b"long", b"second"]


def test_what_is_not_due_stops_what_lies_behind_it(site, peer, clock):
    for number in range(3):
        peer.ask(late(2, b"%d" % number))
        clock.advance(1000)
    clock.advance(2000)
    ring(site)
    assert bodies(site) == [b"0"]
    clock.advance(1000)
    ring(site)
    assert bodies(site) == [b"0", b"1"]


def test_a_delivered_message_wakes_who_waits(site, peer, clock):
    waiter = site.connect()
    waiting = waiter.send(pull_request(flag=SUBSCRIPTION | SUSPEND, suspend_ms=600_000, subscription="T"))
    until(lambda: site.broker.puller.held == 1)
    peer.ask(late(1))
    assert waiter.is_silent()
    clock.advance(1000)
    ring(site)
    assert [bytes(item.body) for item in messages_in(waiter.answer_to(waiting))] == [b"late"]


def test_timers_ring_by_themselves(tmp_path):
    """Given a clock that goes, then nobody has to do anything."""
    with running(tmp_path, LEVELS) as site:
        site.make_topic("t")
        peer = site.connect()
        peer.ask(late(1, b"first"))
        peer.ask(late(1, b"second"))
        until(lambda: bodies(site) == [b"first", b"second"])
        assert site.stored()[0].store_timestamp - site.stored(SCHEDULE, 0)[0].store_timestamp >= 1000


# Restarts


def test_a_restart_delivers_what_was_due_meanwhile_once(tmp_path, clock):
    """Given messages that wait, when the broker is away at their time, then they arrive when it is back."""
    with running(tmp_path, LEVELS, clock=clock) as site:
        site.make_topic("t")
        peer = site.connect()
        peer.ask(late(1, b"delivered"))
        clock.advance(1000)
        ring(site)
        peer.ask(late(1, b"due"))
        peer.ask(late(3, b"not yet"))
    clock.advance(5000)
    with running(tmp_path, LEVELS, clock=clock) as site:
        until(lambda: len(bodies(site)) == 2)
        assert bodies(site) == [b"delivered", b"due"]
        clock.advance(5000)
        ring(site)
        assert bodies(site) == [b"delivered", b"due", b"not yet"]
    with running(tmp_path, LEVELS, clock=clock) as site:
        ring(site)
        assert len(bodies(site)) == 3


def test_how_far_each_level_is_lies_in_a_file_of_javas_form(tmp_path, clock):
    with running(tmp_path, LEVELS, clock=clock) as site:
        site.make_topic("t")
        peer = site.connect()
        for _ in range(3):
            peer.ask(late(2))
        clock.advance(5000)
        ring(site)
    text = (tmp_path / "store" / "config" / "delayOffset.json").read_text()
    assert '"offsetTable":{1:0,2:3,3:0}' in text
    assert set(lenient_json.loads(text.encode())) == {"dataVersion", "offsetTable"}


def test_an_offset_that_the_queue_does_not_have_is_put_right(tmp_path, clock, caplog):
    """Given a file that is ahead of the queue, as after a restored disk, then delivery goes on at its end."""
    with running(tmp_path, LEVELS, clock=clock) as site:
        site.make_topic("t")
        site.connect().ask(late(1, b"passed"))
    file = tmp_path / "store" / "config" / "delayOffset.json"
    file.write_text('{"dataVersion":{"counter":1,"timestamp":1},"offsetTable":{1:99,7:3}}')
    with running(tmp_path, LEVELS, clock=clock) as site:
        assert "delay level 1 was at 99 and goes on at 1" in caplog.text
        site.connect().ask(late(1, b"next"))
        clock.advance(1000)
        ring(site)
        assert bodies(site) == [b"next"]


def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path, clock):
    for number in range(2):
        with running(tmp_path, LEVELS, clock=clock) as site:
            site.make_topic("t")
            site.connect().ask(late(1, b"%d" % number))
            clock.advance(1000)
            ring(site)
    file = tmp_path / "store" / "config" / "delayOffset.json"
    assert file.with_name("delayOffset.json.bak").exists()
    file.write_text("{")
    with running(tmp_path, LEVELS, clock=clock) as site:
        until(lambda: site.broker.delay.offsets[1] == 2)
        assert bodies(site) == [b"0", b"1"]  # the older file is behind, but nothing comes twice


# Faults


SETTINGS_MS = [-1000, -5000, 5000, -3_600_000, 3_600_000, -20 * YEAR_MS, 20 * YEAR_MS]


@pytest.mark.parametrize("ms", SETTINGS_MS)
def test_a_level_lasts_as_long_as_it_says_whichever_way_the_clock_is_set(site, peer, clock, ms):
    """Given messages of a level, when the clock is set, then those before and after come in their time."""
    peer.ask(late(2, b"before"))
    clock.advance(1000)
    clock.set_by(ms)
    peer.ask(late(2, b"after"))
    assert_comes_after(site, clock, 4000, late=b"before")
    clock.set_by(-2 * ms)
    assert_comes_after(site, clock, 1000, b"before", late=b"after")


@pytest.mark.parametrize("ms", SETTINGS_MS)
def test_a_clock_that_is_set_while_the_broker_is_away_changes_no_delay(tmp_path, clock, ms):
    """Given a message that waits, when the clock is set and the broker started again, then it comes in its
    time: elapsed time goes on."""
    with delayed(tmp_path, clock):
        pass
    clock.set_by(ms)
    clock.advance(6000)
    with running(tmp_path, LEVELS, clock=clock) as site:
        assert_comes_after(site, clock, 4000)


@pytest.mark.parametrize("ms", [-5000, -20 * YEAR_MS])
def test_a_machine_that_starts_with_a_clock_in_the_past_delivers_in_time_all_the_same(tmp_path, clock, ms):
    """Given a message that waits, when the machine is off and its clock goes back, then it waits on for what
    was left, and it stays so when the clock is put right."""
    with delayed(tmp_path, clock) as site:
        clock.advance(4000)
        site.connect().ask(send_request(body=b"plain"))
    clock.set_by(ms)
    clock.boot = "second"
    with running(tmp_path, LEVELS, clock=clock) as site:
        clock.set_by(-ms)
        assert_comes_after(site, clock, 6000, b"plain")


def test_a_machine_that_starts_with_a_clock_ahead_delivers_nothing_early_once_it_is_put_right(
    tmp_path, clock
):
    """Given that time may have passed while the machine was off, when the clock goes back after the start,
    then it was the clock: what waits does not come earlier for it."""
    with delayed(tmp_path, clock):
        pass
    clock.boot = "second"
    clock.set_by(9000)
    with running(tmp_path, LEVELS, clock=clock) as site:
        clock.set_by(-9000)
        assert_comes_after(site, clock, 10_000)


def test_a_message_of_another_clock_waits_no_longer_than_its_level_says(tmp_path, clock):
    """Given a message that was stored by a clock a year ahead, and nothing that tells so, as in a store of
    Java's, then it counts from the start."""
    clock.set_by(YEAR_MS)
    with delayed(tmp_path, clock):
        pass
    (tmp_path / "store" / "clock").unlink()
    clock.set_by(-YEAR_MS)
    with running(tmp_path, LEVELS, clock=clock) as site:
        assert_comes_after(site, clock, 10_000)


def test_a_store_that_refuses_is_asked_again(site, peer, clock):
    """Given a store that takes nothing for a while, then what is due waits, and arrives in order, once."""
    for number in range(3):
        peer.ask(late(1, b"%d" % number))
    clock.advance(1000)
    site.do(lambda: setattr(site.broker.store, "refusal", "a test"))
    ring(site)
    assert bodies(site) == []
    assert 1 in site.broker.delay._timers
    site.do(lambda: setattr(site.broker.store, "refusal", None))
    until(lambda: len(bodies(site)) == 3)  # by its own timer
    assert bodies(site) == [b"0", b"1", b"2"]
    assert site.broker.delay.offsets[1] == 3


def test_what_cannot_be_delivered_does_not_stop_the_others(site, peer, clock, caplog):
    """Given a record without a topic to go to, then it is left out, and said so."""
    for properties in (
        {"DELAY": "1"},
        {"DELAY": "1", "REAL_TOPIC": "t"},
        {"DELAY": "1", "REAL_TOPIC": "t", "REAL_QID": "x"},
    ):
        site.do(
            lambda values=properties: site.broker.store.put_message(
                InnerMessage.of(SCHEDULE, 0, b"lost", values)
            )
        )
    peer.ask(late(1, b"fine"))
    clock.advance(1000)
    ring(site)
    assert bodies(site) == [b"fine"]
    assert caplog.text.count("has no topic to go to") == 3


def test_a_stop_delivers_nothing_more(site, peer, clock):
    peer.ask(late(1))
    site.do(site.broker.delay.stop)
    clock.advance(1000)
    ring(site)
    assert bodies(site) == []
    assert site.broker.delay._timers == {}


# Many that are due at once


def number_with_key(site: Site, topic: str, key: str) -> int:
    return site.do(lambda: len(site.broker.store.query_message(topic, key, 64).records))


def until_visible(site: Site) -> None:
    def is_done() -> bool:
        store = site.broker.store
        return store.dispatcher.dispatched_offset == store.commit_log.max_offset

    until(lambda: site.do(is_done), "all to be visible")


@pytest.mark.parametrize(
    "settings", [{}, {"enabledAppendPropCRC": "true"}, {"flushDiskType": "SYNC_FLUSH"}], ids=str
)
def test_many_that_are_due_arrive_as_if_each_came_alone(tmp_path, clock, settings):
    """Given messages for queues of every kind, then each has its queue's order, its keys, and its bytes."""
    with running(tmp_path, {**LEVELS, **settings, **LIGHT}, clock=clock) as site:
        site.make_topic("t")
        site.make_topic("other")
        peer = site.connect()
        for number in range(300):
            more = {"KEYS": f"k{number} all", "user": f"北京{number}"}
            if number % 50 == 7:
                more["INNER_MULTI_DISPATCH"] = "%LMQ%light"
            topic = "other" if number % 3 == 0 else "t"
            peer.ask(late(1, b"%d" % number, topic=topic, e=str(number % 4), more=more))
        until_visible(site)
        clock.advance(1000)
        ring(site, 1)
        until_visible(site)
        found = {
            (topic, queue_id): [int(body) for body in bodies(site, topic, queue_id)]
            for topic in ("t", "other")
            for queue_id in range(4)
        }
        for (topic, queue_id), numbers in found.items():
            expected = [n for n in range(300) if n % 4 == queue_id and (n % 3 == 0) == (topic == "other")]
            assert numbers == expected
            for stored in site.stored(topic, queue_id):
                assert stored.properties["user"] == f"北京{int(bytes(stored.body))}"
                assert stored.properties["REAL_TOPIC"] == topic
        assert number_with_key(site, "other", "all") == 64
        assert number_with_key(site, "t", "k7") == 1
        assert len(site.stored("%LMQ%light", 0)) == 6
        assert site.do(site.broker.delay.offsets.get, 1) == 300
    with running(tmp_path, {**LEVELS, **settings, **LIGHT}, clock=clock) as site:
        assert len(bodies(site, "t", 1)) == len(found["t", 1])


def test_what_no_store_takes_is_left_out_and_the_next_comes(site, peer, clock, caplog, monkeypatch):
    peer.ask(late(1, b"first"))
    peer.ask(late(1, b"large"))
    peer.ask(late(1, b"last"))
    put_message, refused = site.broker.store.put_message, []

    def refuse(message: InnerMessage) -> PutMessageResult:
        refused.append(bytes(message.body))
        return PutMessageResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, reason="too long")

    special = schedule._is_special
    monkeypatch.setattr(schedule, "_is_special", lambda found: bytes(found[3]) == b"large" or special(found))
    site.broker.store.put_message = refuse
    clock.advance(1000)
    ring(site, 1)
    site.broker.store.put_message = put_message
    assert refused == [b"large"]
    assert bodies(site) == [b"first", b"last"]
    assert "is left out: PROPERTIES_SIZE_EXCEEDED too long" in caplog.text

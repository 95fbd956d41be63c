"""Filters: what a subscription lets through, asked with queue entries, records and properties."""

from __future__ import annotations

from typing import Any

import pytest

from kourou.broker.messages.bloom import BloomFilter
from kourou.broker.messages.filter_data import ConsumerFilters
from kourou.broker.messages.filters import (
    AnyFilter,
    RetrySqlFilter,
    SqlFilter,
    TagFilter,
    filter_of,
    group_of_retry_topic,
)
from kourou.broker.messages.sql92 import BadExpressionError
from kourou.remoting.protocol.subscription import SQL92, BadSubscriptionError, SubscriptionData
from kourou.store import InnerMessage
from kourou.store.queue.consume_queue_ext import ExtUnit
from kourou.store.status import GetMessageStatus
from support.sites.broker import heartbeat, messages_in, pull_request, running, send_request
from support.stores.store import START_MS, ManualClock, message, open_store, put, small_config

HOUR_MS = 3_600_000
# More names than are looked for one by one
MANY = "a > 5" + "".join(f" AND n{number} IS NULL" for number in range(9))


def sql(expression: str = "a > 5", topic: str = "t") -> SubscriptionData:
    return SubscriptionData(topic, expression, 1, expression_type=SQL92)


def made_of(*arguments: Any) -> AnyFilter:
    made = filter_of(*arguments)
    assert made is not None
    return made


@pytest.fixture
def filters(clock: ManualClock) -> ConsumerFilters:
    return ConsumerFilters(clock, BloomFilter(20, 32), 1000)


def test_the_filter_of_a_subscription():
    assert filter_of(SubscriptionData("t")) is None
    assert filter_of(SubscriptionData("t", "x", class_filter_mode=True)) is None
    assert isinstance(filter_of(SubscriptionData.build("t", "x || y", None, 1)), TagFilter)
    assert isinstance(filter_of(sql()), SqlFilter)
    with pytest.raises(BadExpressionError, match="column 4"):
        filter_of(sql("a >"))
    with pytest.raises(BadSubscriptionError):
        filter_of(SubscriptionData("t", "a", expression_type="XPATH"))


def test_tags_are_decided_by_the_entry_alone():
    subscription = SubscriptionData.build("t", "x", None, 1)
    by_tags = made_of(subscription)
    (code,) = subscription.codes

    assert by_tags.matches_queue(code, None)
    assert by_tags.matches_queue(0, ExtUnit(code, 0))
    assert not by_tags.matches_queue(code + 1, None)
    assert by_tags.matches_properties({})


def test_an_expression_without_maps_lets_every_entry_through(filters):
    own = made_of(sql())
    filters.register("g", sql())
    registered = made_of(sql(), filters.get("t", "g"))
    zeros = ExtUnit(0, START_MS + 1, bytes(14))

    assert own.matches_queue(0, None)
    assert own.matches_queue(0, zeros)
    assert registered.matches_queue(0, None)
    assert registered.matches_queue(0, ExtUnit(0, START_MS + 1))  # nothing was calculated
    assert registered.matches_queue(0, ExtUnit(0, START_MS + 1, bytes(8)))  # by another bloom filter
    assert registered.matches_queue(0, ExtUnit(0, START_MS, bytes(14)))  # when this one was not known
    assert not registered.matches_queue(0, zeros)


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30], ids=["IPv4", "born IPv6", "store IPv6", "IPv6"])
@pytest.mark.parametrize("topic", ["t", "t" * 200], ids=["version 1", "version 2"])
@pytest.mark.parametrize("expression", ["a > 5", MANY])
def test_records_are_asked_for_their_properties(tmp_path, sys_flag, topic, expression):
    hosts: dict[str, Any] = {
        "born_host": bytes(20 if sys_flag & 0x10 else 8),
        "store_host": bytes(20 if sys_flag & 0x20 else 8),
    }
    with open_store(small_config(tmp_path)) as store:
        for value in ("4", "6", "x", "7"):
            put(store, message(topic, 0, b"a\x015\x02", sys_flag=sys_flag, **hosts, a=value, xa="9"))
        put(store, message(topic, 0, b""))

        result = store.get_message(topic, 0, 0, 32, message_filter=made_of(sql(expression, topic)))
        nothing = store.get_message(topic, 0, 0, 32, message_filter=made_of(sql("zz = 1", topic)))

    assert result.status is GetMessageStatus.FOUND
    assert result.queue_offsets == [1, 3]
    assert result.next_begin_offset == 5
    assert nothing.status is GetMessageStatus.NO_MATCHED_MESSAGE
    assert nothing.next_begin_offset == 5


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a\x016\x02", True),
        ("a\x016", True),  # the last separator may be missing
        ("b\x01x\x02a\x016\x02", True),
        ("a\x014\x02a\x016\x02", True),  # the last counts
        ("a\x016\x02a\x01\x02", True),  # but not an empty one
        ("a\x016\x02a\x014\x02", False),
        ("ba\x016\x02", False),
        ("b\x01a\x016\x02", False),
        ("a\x01é\x02", False),
        ("", False),
    ],
)
def test_properties_are_cut_as_everywhere(tmp_path, text, matches):
    with open_store(small_config(tmp_path)) as store:
        put(store, InnerMessage.of("t", 0, b"body", text))
        record = store.commit_log.message_at(0)

        assert record is not None
        assert made_of(sql("a > 5")).matches_record(record) is matches
        assert made_of(sql(MANY)).matches_record(record) is matches


@pytest.mark.parametrize("size", [0, 10, 80, 88, 91, 100])
def test_a_damaged_record_has_no_properties(size):
    for byte in (0x00, 0x7F, 0xFF):
        record = memoryview(bytes([byte]) * size)
        assert made_of(sql("a IS NULL")).matches_record(record)


def test_bit_maps_spare_reading_records(tmp_path, filters, clock):
    config = small_config(tmp_path, enable_consume_queue_ext=True)
    filters.register("g", sql())
    data = filters.get("t", "g")
    clock.advance(1)
    with open_store(config, clock=clock) as store:
        store.queues.bitmap_of = filters.bitmap_of
        put(store, *(message("t", 0, a=value) for value in ("4", "6", "7")))

        result = store.get_message("t", 0, 0, 32, message_filter=made_of(sql(), data))

    assert result.queue_offsets == [1, 2]
    assert result.filter_message_count == 0  # none had to be read to be left out


def test_what_comes_back_is_filtered_as_its_first_topic(filters):
    filters.register("g", sql("a > 5", "orders"))
    subscription = sql("a > 100", "%RETRY%g")

    retry = made_of(subscription, None, filters)

    assert isinstance(retry, RetrySqlFilter)
    assert retry.matches_properties({"RETRY_TOPIC": "orders", "a": "6"})
    assert not retry.matches_properties({"RETRY_TOPIC": "orders", "a": "5"})
    assert retry.matches_properties({"RETRY_TOPIC": "other", "a": "5"})  # not by an expression
    assert not made_of(subscription).matches_properties({"RETRY_TOPIC": "orders", "a": "6"})
    assert not isinstance(made_of(sql(), None, filters), RetrySqlFilter)
    assert group_of_retry_topic("%RETRY%g") == group_of_retry_topic("%RETRY%g+t") == "g"


@pytest.mark.parametrize("set_by_ms", [-HOUR_MS, 24 * 365 * HOUR_MS, -24 * 365 * HOUR_MS])
@pytest.mark.parametrize("put_right", [False, True], ids=["as it is", "put right again"])
def test_a_bit_map_that_is_older_than_a_filter_hides_nothing_whichever_way_the_clock_is_set(
    tmp_path, set_by_ms, put_right
):
    """What was stored before a group came has no bit for it, whatever the clock said then."""
    clock = ManualClock()
    config = {
        "enableConsumeQueueExt": "true",
        "enableCalcFilterBitMap": "true",
        "enablePropertyFilter": "true",
    }
    with running(tmp_path, config, clock=clock) as site:
        site.make_topic("t", queues=1)
        peer = site.connect()
        site.do(site.broker.filters.register, "other", sql("a = 2"))
        if put_right:
            clock.set_by(-set_by_ms)
        peer.ask(send_request("t", b"1", {"UNIQ_KEY": "A", "a": "1"}))
        clock.set_by(set_by_ms)
        clock.advance(1000)
        peer.ask(send_request("t", b"2", {"UNIQ_KEY": "B", "a": "1"}))
        clock.advance(1000)
        peer.ask(heartbeat("c", "g", subscriptions=[sql("a = 1").to_json()]))
        clock.advance(1000)
        peer.ask(send_request("t", b"3", {"UNIQ_KEY": "C", "a": "1"}))
        found = messages_in(peer.ask(pull_request("t", group="g", flag=0)))
        assert [bytes(message.body) for message in found] == [b"1", b"2", b"3"]

"""Statistics: Java's windows and sums, from counters that cost an addition."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.metrics.stats import BrokerStats
from kourou.store import MessageStoreConfig
from support.stores.store import ManualClock

ZERO = {"avgpt": 0.0, "sum": 0, "tps": 0.0}


class Broker:
    """Statistics, and a clock that ticks them."""

    def __init__(self, *, lmq: bool = False, **config: Any) -> None:
        self.clock = ManualClock()
        values = {"broker_cluster_name": "c", "store": MessageStoreConfig(enable_lmq=lmq), **config}
        self.stats = BrokerStats(BrokerConfig(**values), self.clock, lambda topic: topic.startswith("sys"))
        self.stats.tick()  # as at the start

    def put(
        self, messages: int = 1, size: int = 100, topic: str = "t", queue_id: int = 0, latency: int = 0
    ) -> None:
        puts = self.stats.topic(topic).queue(queue_id)
        puts.messages += messages
        puts.calls += 1
        puts.size_bytes += size
        puts.latency_ms += latency

    def get(
        self, messages: int = 1, topic: str = "t", group: str = "g", queue_id: int = 0, latency: int = 0
    ) -> None:
        gets = self.stats.group(topic, group).queue(queue_id)
        gets.messages += messages
        gets.calls += 1
        gets.size_bytes += 100 * messages
        gets.latency_ms += latency

    def run(self, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.clock.advance(10_000)
            self.stats.tick()

    def minute(self, name: str, key: str) -> dict[str, Any]:
        found = self.stats.view(name, key)
        assert found is not None
        return found["statsMinute"]


@pytest.fixture
def broker() -> Broker:
    return Broker()


# Windows


def test_what_was_never_counted_is_not_there(broker):
    broker.stats.topic("t").queue(0)
    assert broker.stats.view("TOPIC_PUT_NUMS", "t") is None
    assert broker.stats.view("NOTHING", "t") is None
    broker.put()
    assert broker.stats.view("TOPIC_PUT_NUMS", "t") == {
        "statsDay": ZERO,
        "statsHour": ZERO,
        "statsMinute": ZERO,  # until it is sampled
    }


def test_a_minute_has_up_to_seven_samples_ten_seconds_apart(broker):
    broker.put(messages=6)
    broker.put(messages=2)
    broker.run(10)
    assert broker.minute("TOPIC_PUT_NUMS", "t") == {"avgpt": 4.0, "sum": 8, "tps": 0.8}
    broker.put(messages=2)
    broker.run(10)
    assert broker.minute("TOPIC_PUT_NUMS", "t") == {"avgpt": 10 / 3, "sum": 10, "tps": 0.5}
    broker.run(40)
    assert broker.minute("TOPIC_PUT_NUMS", "t")["sum"] == 10
    broker.run(10)  # the first ten seconds leave the window
    assert broker.minute("TOPIC_PUT_NUMS", "t") == {"avgpt": 2.0, "sum": 2, "tps": 2 / 60}
    broker.run(10)
    assert broker.minute("TOPIC_PUT_NUMS", "t") == ZERO


def test_hours_and_days_are_sampled_less_often(broker):
    broker.put(messages=600)
    broker.run(590)
    view = broker.stats.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert view["statsHour"] == view["statsDay"] == ZERO
    broker.run(10)
    view = broker.stats.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert view["statsHour"] == {"avgpt": 600.0, "sum": 600, "tps": 1.0}
    assert view["statsDay"] == ZERO
    broker.run(3000)
    view = broker.stats.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert view["statsMinute"] == ZERO
    assert view["statsHour"]["sum"] == 600
    assert view["statsDay"] == {"avgpt": 600.0, "sum": 600, "tps": 600 / 3600}


def test_a_day_ends_after_25_samples(broker):
    broker.put(messages=7)
    broker.run(24 * 3600)
    view = broker.stats.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert view["statsDay"] == {"avgpt": 7.0, "sum": 7, "tps": 7 / 86_400}
    broker.run(3600)
    view = broker.stats.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert view["statsDay"] == ZERO


def test_a_process_that_stood_still_samples_once(broker):
    broker.put(messages=10)
    broker.clock.advance(35_000)
    broker.stats.tick()
    broker.stats.tick()
    assert broker.minute("TOPIC_PUT_NUMS", "t")["tps"] == 1.0
    broker.clock.advance(4999)
    broker.stats.tick()
    assert broker.minute("TOPIC_PUT_NUMS", "t")["tps"] == 1.0
    broker.clock.advance(1)  # in step again with the start
    broker.stats.tick()
    assert broker.minute("TOPIC_PUT_NUMS", "t")["tps"] == 10 * 1000 / 15_000


# What is counted


def test_a_topic_is_the_sum_of_its_queues(broker):
    broker.put(messages=3, size=300, queue_id=0, latency=4)
    broker.put(messages=1, size=50, queue_id=1, latency=1)
    broker.put(messages=1, size=50, queue_id=1, latency=2)
    broker.run(10)
    assert broker.minute("TOPIC_PUT_NUMS", "t")["sum"] == 5
    assert broker.minute("TOPIC_PUT_SIZE", "t") == {"avgpt": 400 / 3, "sum": 400, "tps": 40.0}
    assert broker.minute("TOPIC_PUT_LATENCY", "0@t")["avgpt"] == 4.0
    assert broker.minute("TOPIC_PUT_LATENCY", "1@t") == {"avgpt": 1.5, "sum": 3, "tps": 0.3}
    assert broker.minute("QUEUE_PUT_NUMS", "t@1")["sum"] == 2
    assert broker.minute("QUEUE_PUT_SIZE", "t@1")["sum"] == 100
    assert broker.stats.topic_put_tps("t") == 0.5
    assert broker.stats.topic_put_tps("nothing") == 0.0


def test_what_a_group_got_and_sent_back(broker):
    broker.get(messages=32, queue_id=0, latency=6)
    broker.get(messages=8, queue_id=1, latency=2)
    broker.get(messages=1, group="h")
    broker.stats.group("t", "g").send_backs += 2
    broker.run(10)
    assert broker.minute("GROUP_GET_NUMS", "t@g") == {"avgpt": 20.0, "sum": 40, "tps": 4.0}
    assert broker.minute("GROUP_GET_SIZE", "t@g")["sum"] == 4000
    assert broker.minute("GROUP_GET_LATENCY", "0@t@g")["avgpt"] == 6.0
    assert broker.minute("QUEUE_GET_NUMS", "t@1@g")["sum"] == 8
    assert broker.minute("QUEUE_GET_SIZE", "t@1@g")["sum"] == 800
    assert broker.minute("SNDBCK_PUT_NUMS", "t@g") == {"avgpt": 1.0, "sum": 2, "tps": 0.2}
    assert broker.stats.view("SNDBCK_PUT_NUMS", "t@h") is None
    assert broker.stats.view("GROUP_ACK_NUMS", "t@g") is None
    assert broker.stats.group_get_tps("t", "g") == 4.0
    assert broker.stats.group_get_tps("t", "nobody") == 0.0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("GROUP_GET_NUMS", "t"),
        ("GROUP_GET_NUMS", "t@g@x"),
        ("GROUP_GET_LATENCY", "t@g"),
        ("GROUP_GET_LATENCY", "x@t@g"),
        ("GROUP_GET_LATENCY", ""),
        ("TOPIC_PUT_LATENCY", "t"),
        ("TOPIC_PUT_LATENCY", "9@t"),
        ("QUEUE_GET_NUMS", "@"),
        ("QUEUE_PUT_NUMS", "t@x"),
        ("BROKER_PUT_NUMS", "other cluster"),
    ],
)
def test_a_key_that_names_nothing_finds_nothing(broker, name, key):
    broker.put()
    broker.get()
    assert broker.stats.view(name, key) is None


def test_without_details_a_group_has_one_latency():
    broker = Broker(enable_detail_stat=False)
    broker.get(queue_id=0, latency=6)
    broker.get(queue_id=1, latency=2)
    broker.put()
    broker.run(10)
    assert broker.minute("GROUP_GET_LATENCY", "t@g")["avgpt"] == 4.0
    assert broker.stats.view("GROUP_GET_LATENCY", "0@t@g") is None
    assert broker.stats.view("QUEUE_PUT_NUMS", "t@0") is None
    assert broker.stats.view("QUEUE_GET_NUMS", "t@0@g") is None


def test_the_broker_is_the_sum_of_all(broker):
    broker.put(messages=5)
    broker.put(messages=2, topic="sys_topic")
    broker.get(messages=4)
    broker.get(messages=3, topic="sys_topic")
    group = broker.stats.group("t", "g")
    group.acks, group.ack_calls, group.check_points, group.check_point_calls = 6, 2, 4, 1
    broker.run(10)
    for name, expected in {
        "BROKER_PUT_NUMS": 7,
        "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": 5,
        "BROKER_GET_NUMS": 7,
        "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": 4,
        "BROKER_ACK_NUMS": 6,
        "BROKER_CK_NUMS": 4,
    }.items():
        assert broker.minute(name, "c") == {"avgpt": 0.0, "sum": expected, "tps": expected / 10}
    assert broker.minute("GROUP_ACK_NUMS", "t@g")["avgpt"] == 3.0
    assert broker.minute("GROUP_CK_NUMS", "t@g")["avgpt"] == 4.0


def test_what_is_seldom_has_a_name_and_a_key(broker):
    broker.stats.count("CHANNEL_ACTIVITY", "CONNECT")
    broker.stats.count("CHANNEL_ACTIVITY", "CONNECT")
    broker.stats.count("CONSUMER_REGISTER_TIME", "c", 12)
    broker.run(10)
    assert broker.minute("CHANNEL_ACTIVITY", "CONNECT") == {"avgpt": 1.0, "sum": 2, "tps": 0.2}
    assert broker.minute("CONSUMER_REGISTER_TIME", "c")["sum"] == 12
    assert broker.stats.view("CHANNEL_ACTIVITY", "CLOSE") is None


def test_groups_that_are_far_behind_are_known(broker):
    broker.stats.group("t", "g").queue(0).fall_behind_bytes = 10
    broker.stats.group("t", "h").queue(3).fall_behind_bytes = 11
    assert broker.stats.groups_behind(10) == {"h"}
    assert broker.stats.groups_behind(11) == set()


def test_light_queues_share_their_counters():
    broker = Broker(lmq=True)
    broker.get(topic="%LMQ%a", group="%LMQ%g")
    broker.get(topic="%LMQ%b", group="%LMQ%h")
    broker.run(10)
    assert broker.minute("GROUP_GET_NUMS", "%LMQ%@%LMQ%")["sum"] == 2
    assert broker.stats.group_get_tps("%LMQ%a", "%LMQ%g") == 0.2
    apart = Broker(lmq=True, enable_lmq_stats=True)
    apart.get(topic="%LMQ%a", group="%LMQ%g")
    assert apart.stats.groups.keys() == {("%LMQ%a", "%LMQ%g")}


# Deletion


def test_what_is_deleted_is_gone_but_not_from_the_totals(broker):
    broker.put(messages=5)
    broker.get(messages=4)
    broker.get(messages=2, topic="u")
    broker.get(messages=1, topic="u", group="h")
    broker.stats.forget_topic("t")
    broker.stats.forget_group("g")
    broker.stats.forget_topic("nothing")
    assert broker.stats.view("TOPIC_PUT_NUMS", "t") is None
    assert broker.stats.groups.keys() == {("u", "h")}
    broker.put(messages=1)
    broker.run(10)
    assert broker.minute("BROKER_PUT_NUMS", "c")["sum"] == 6
    assert broker.minute("BROKER_GET_NUMS", "c")["sum"] == 7
    assert broker.minute("TOPIC_PUT_NUMS", "t")["sum"] == 1


# Mornings


def at(hour: int, day: int = 14) -> int:
    return int(datetime(2023, 11, day, hour).timestamp() * 1000)


def test_mornings_divide_the_totals():
    broker = Broker()
    broker.clock.time_ms = at(22)
    stats = BrokerStats(BrokerConfig(), broker.clock, lambda topic: False)
    broker.stats = stats
    broker.put(messages=5)
    broker.get(messages=3)
    stats.tick()
    assert stats.runtime_info() == {
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": "5",
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": "3",
    }
    broker.clock.time_ms = at(0, 15)
    stats.tick()
    stats.tick()
    broker.put(messages=2)
    assert (stats.put_total_yesterday_morning, stats.put_total_today_morning, stats.put_total) == (0, 5, 7)
    broker.clock.time_ms = at(1, 16)
    stats.tick()
    info = stats.runtime_info()
    assert (info["msgPutTotalYesterdayMorning"], info["msgPutTotalTodayMorning"]) == ("5", "7")
    assert (info["msgGetTotalYesterdayMorning"], info["msgGetTotalTodayMorning"]) == ("3", "3")


def test_a_morning_is_midnight_where_the_broker_stands(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        clock = ManualClock(1_700_000_000_000)  # 06:13:20 there
        stats = BrokerStats(BrokerConfig(), clock, lambda topic: False)
        stats.topic("t").queue(0).messages = 5
        clock.time_ms = 1_700_063_999_999
        stats.tick()
        assert stats.put_total_today_morning == 0
        clock.advance(1)
        stats.tick()
        assert stats.put_total_today_morning == 5
    finally:
        monkeypatch.undo()
        time.tzset()

"""Slow and failing brokers are left out as in Java's MQFaultStrategy."""

from __future__ import annotations

import itertools

import pytest

from kourou.client import ClientError
from kourou.client.core import NoRouteError
from kourou.client.produce.faults import LatencyFaults, left_out_for_ms
from kourou.client.produce.publication import Publication, RequestOptions
from kourou.client.routes import TopicRoute
from kourou.message.model import MessageQueue

OPTIONS = RequestOptions("PG", None, "TBW102", 4, False)


class Time:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def publication(brokers: str = "abc", queues: int = 2) -> Publication:
    all_queues = tuple(MessageQueue("T", broker, number) for broker in brokers for number in range(queues))
    return Publication(TopicRoute("T", all_queues, (), {b: {0: f"{b}:1"} for b in brokers}), OPTIONS)


def brokers_of(publication: Publication, faults: LatencyFaults | None, avoid: str | None = None) -> set[str]:
    return {publication.next(avoid, faults, False).queue.broker_name for _ in range(20)}


@pytest.mark.parametrize(
    ("latency_ms", "left_out_ms"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000),
        (5000, 10_000), (10_000, 10_000), (14_999, 10_000), (15_000, 30_000), (60_000, 30_000),
    ],
)  # fmt: skip
def test_the_longer_it_took_the_longer_it_is_left_out(latency_ms, left_out_ms):
    assert left_out_for_ms(latency_ms) == left_out_ms


def test_a_slow_broker_is_left_out_until_its_time_is_over():
    clock, topic = Time(), publication()
    faults = LatencyFaults(clock)
    assert brokers_of(topic, faults) == {"a", "b", "c"}
    faults.record("a", 0.6)
    assert brokers_of(topic, faults) == {"b", "c"}
    faults.record("a", 0.01)  # one that was quick does not shorten it
    assert brokers_of(topic, faults) == {"b", "c"}
    clock.now_s += 2
    assert brokers_of(topic, faults) == {"a", "b", "c"}


def test_one_that_failed_is_left_out_for_ten_seconds():
    clock, topic = Time(), publication()
    faults = LatencyFaults(clock)
    faults.record("b", 0.001, has_failed=True)
    clock.now_s += 9.9
    assert brokers_of(topic, faults) == {"a", "c"}
    clock.now_s += 0.2
    assert brokers_of(topic, faults) == {"a", "b", "c"}


def test_where_all_are_left_out_one_in_reach_is_used_then_any():
    clock, topic = Time(), publication()
    faults = LatencyFaults(clock)
    for broker in "abc":
        faults.record(broker, 20)
    faults.record("a", 0.1, has_failed=True, is_reachable=False)
    assert brokers_of(topic, faults) == {"b", "c"}
    assert brokers_of(topic, faults, avoid="b") == {"c"}
    faults.record("b", 0.1, has_failed=True, is_reachable=False)
    faults.record("c", 0.1, has_failed=True, is_reachable=False)
    assert brokers_of(topic, faults) == {"a", "b", "c"}
    faults.record("c", 0.1)
    assert brokers_of(topic, faults) == {"c"}


def test_a_retry_goes_to_another_broker_if_there_is_one():
    topic = publication("ab")
    assert brokers_of(topic, None, avoid="a") == {"b"}
    assert brokers_of(topic, LatencyFaults(), avoid="a") == {"b"}
    assert brokers_of(publication("a"), None, avoid="a") == {"a"}
    assert brokers_of(publication("a"), LatencyFaults(), avoid="a") == {"a"}


def test_a_retry_starts_anywhere_with_faults_and_goes_on_in_turn_without():
    topic = publication("ab", queues=50)
    without = [topic.next(None, None, True).queue.queue_id for _ in range(20)]
    steps = {(second - first) % 50 for first, second in itertools.pairwise(without)}
    assert steps == {1}
    faults = LatencyFaults()
    anywhere = [topic.next(None, faults, True).queue.queue_id for _ in range(20)]
    assert len({(second - first) % 50 for first, second in itertools.pairwise(anywhere)}) > 3


def test_a_topic_without_queues_cannot_be_sent_to():
    for avoid, faults in ((None, None), ("a", LatencyFaults())):
        with pytest.raises(NoRouteError, match="no broker takes messages for topic T"):
            publication("").next(avoid, faults, False)
    with pytest.raises(NoRouteError, match="has no master"):
        publication("a").target(MessageQueue("T", "z", 0))
    with pytest.raises(ClientError, match="must give one of the queues"):
        publication("a").select(lambda queues: 3)  # type: ignore[arg-type, return-value]

"""Strategies: what they share, and with whom. tests/interop compares them with Java's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.client import ClientError
from kourou.client.consume import strategies
from kourou.message.model import MessageQueue

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(4)]


def near(strategy: strategies.Strategy) -> strategies.MachineRoomNearby:
    return strategies.MachineRoomNearby(
        strategy, lambda queue: queue.broker_name[0], lambda client_id: client_id[0]
    )


def share(strategy: strategies.Strategy, clients: list[str]) -> dict[str, list[tuple[str, int]]]:
    return {
        client: [(queue.broker_name, queue.queue_id) for queue in strategy("G", client, QUEUES, clients)]
        for client in clients
    }


@pytest.mark.parametrize(
    "strategy",
    [
        strategies.AVERAGE,
        strategies.AVERAGE_BY_CIRCLE,
        strategies.CONSISTENT_HASH,
        near(strategies.AVERAGE),
        near(strategies.CONSISTENT_HASH),
    ],
    ids=lambda strategy: strategy.name,
)
@given(
    st.lists(st.sampled_from([f"{room}{number}" for room in "abc" for number in range(5)]), min_size=1),
    st.sets(st.sampled_from(QUEUES), min_size=1),
    st.randoms(),
)
def test_each_queue_is_taken_once(strategy, clients, queues, order):
    clients = sorted(set(clients))
    taken = []
    for client in clients:
        seen, others = list(queues), list(clients)
        order.shuffle(seen)  # whatever order each of them sees
        order.shuffle(others)
        taken += strategy("G", client, seen, others)
    assert sorted(taken) == sorted(queues)


def test_neighbours_or_a_circle():
    assert share(strategies.AVERAGE, ["x", "y", "z"]) == {
        "x": [("a", 0), ("a", 1), ("a", 2)],
        "y": [("a", 3), ("b", 0), ("b", 1)],
        "z": [("b", 2), ("b", 3)],
    }
    assert share(strategies.AVERAGE_BY_CIRCLE, ["x", "y", "z"]) == {
        "x": [("a", 0), ("a", 3), ("b", 2)],
        "y": [("a", 1), ("b", 0), ("b", 3)],
        "z": [("a", 2), ("b", 1)],
    }


def test_a_room_keeps_its_queues():
    found = share(near(strategies.AVERAGE), ["a-1", "a-2"])
    assert found == {
        "a-1": [("a", 0), ("a", 1), ("b", 0), ("b", 1)],  # nobody is in b: all share it
        "a-2": [("a", 2), ("a", 3), ("b", 2), ("b", 3)],
    }
    assert share(near(strategies.AVERAGE), ["a-1", "b-1"]) == {
        "a-1": [("a", number) for number in range(4)],
        "b-1": [("b", number) for number in range(4)],
    }


def test_only_the_rooms_that_are_named():
    queues = [MessageQueue("T", name, 0) for name in ("hz@a", "sh@a", "hz", "hz@a@b")]
    strategy = strategies.ByMachineRoom({"hz"})
    assert strategy("G", "x", queues, ["x"]) == [MessageQueue("T", "hz@a", 0)]


def test_what_was_told_is_taken():
    assert strategies.ByConfig(QUEUES[2:3])("G", "x", QUEUES, ["y"]) == QUEUES[2:3]


def test_a_stranger_takes_nothing_and_mistakes_are_told():
    for strategy in (strategies.AVERAGE, strategies.AVERAGE_BY_CIRCLE, strategies.CONSISTENT_HASH):
        assert strategy("G", "stranger", QUEUES, ["x"]) == []
        with pytest.raises(ClientError, match="no id"):
            strategy("G", "", QUEUES, ["x"])
        with pytest.raises(ClientError, match="there are none"):
            strategy("G", "x", [], ["x"])
        with pytest.raises(ClientError, match="no clients"):
            strategy("G", "x", QUEUES, [])
    nowhere = strategies.MachineRoomNearby(strategies.AVERAGE, lambda _: "", lambda _: "a")
    with pytest.raises(ClientError, match="machine room"):
        nowhere("G", "x", QUEUES, ["x"])
    with pytest.raises(ClientError, match="0 or more"):
        strategies.ConsistentHash(-1)

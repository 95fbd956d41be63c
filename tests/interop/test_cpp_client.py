"""The C++ client (librocketmq) sends to a Kourou cluster and consumes from it.

It comes in the wheel `rocketmq`, which has an environment of its own. The program in tests/interop/cpp runs
against the real Java broker too, so that a failure shows whether Kourou or the program is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.foreign import cluster, python_with, run_step

SOURCE = Path(__file__).resolve().parent / "cpp"
COUNT = 30  # messages of each kind

Step = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def python() -> str:
    """A Python with the client."""
    return python_with(SOURCE, "rocketmq.client")


@pytest.fixture(scope="module", params=["kourou", "java"])
def step(
    python: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Step]:
    """Runs a step of the program."""
    directory = tmp_path_factory.mktemp(request.param)
    with cluster(directory, request.param, "%RETRY%cpp-retry-c") as address:
        yield lambda name: run_step(directory, [python, str(SOURCE / "client.py"), address, name])


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in messages)


def test_sends_of_each_kind_reach_a_consumer_of_two_tags(step):
    """Given a topic that the first send makes, then a consumer that starts at once has its messages."""
    report = step("tags")

    assert (set(report["statuses"]), report["async"], report["failed"]) == ({0}, COUNT, 0)
    sent = [f"{kind}-{at}" for kind in ("sync", "oneway", "async") for at in range(COUNT) if at % 3 != 2]
    assert bodies(report["received"]) == sorted([*sent, "live"])
    for message in report["received"]:
        assert message["keys"] == f"key-{message['body']}"
        assert message["tags"] in ("A", "B")


def test_queues_are_chosen_and_consumed_in_order(step):
    by_queue: dict[int, list[dict[str, Any]]] = {}
    for message in step("orderly")["received"]:
        by_queue.setdefault(message["queue"], []).append(message)

    assert Counter({queue: len(found) for queue, found in by_queue.items()}) == {0: 7, 1: 9, 2: 7, 3: 8}
    for queue, found in by_queue.items():
        numbers = [int(message["body"].partition("-")[2]) for message in found]
        assert numbers == sorted(numbers)
        assert {message["body"].partition("-")[0] for message in found} == {str(queue)}
        assert [message["offset"] for message in found] == list(range(len(found)))


def test_a_delayed_message_comes_later(step):
    now, later = step("delay")["received"]

    assert (now["body"], later["body"]) == ("now", "later")
    assert later["after_ms"] >= 3000


def test_a_message_that_fails_comes_again(step):
    found = [(message["body"], message["retries"]) for message in step("retry")["received"]]

    assert found == [("again", 0), ("again", 1), ("again", 2)]


def test_all_of_a_broadcast_group_take_everything(step):
    for received in step("broadcast")["received"]:
        assert sorted(int(body) for body in bodies(received) if body.isdigit()) == list(range(COUNT))


def test_queues_are_pulled_with_and_without_a_tag(step):
    received = step("pull")["received"]

    assert bodies(received["*"]) == sorted(str(at) for at in range(COUNT))
    assert bodies(received["B"]) == sorted(str(at) for at in range(COUNT) if at % 3 == 1)

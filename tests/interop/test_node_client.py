"""The Node client (ali-ons) sends to a Kourou cluster and consumes from it.

The program in tests/interop/node runs against the real Java broker too, so that a failure shows whether
Kourou or the program is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.foreign import cluster, node_modules, run_step

SOURCE = Path(__file__).resolve().parent / "node"
pytestmark = pytest.mark.node

COUNT = 30
# It knows no default topic: what it sends to must be there.
TOPICS = ("node-tags", "node-retry", "node-delay", "%RETRY%node-retry-c")

Step = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def modules() -> Path:
    """The client and what it needs, as the lock file has them."""
    return node_modules(SOURCE)


@pytest.fixture(scope="module", params=["kourou", "java"])
def step(
    modules: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Step]:
    """Runs a step of the program."""
    directory = tmp_path_factory.mktemp(request.param)
    more = {"NODE_PATH": str(modules)}
    with cluster(directory, request.param, *TOPICS) as address:
        yield lambda name: run_step(directory, ["node", str(SOURCE / "client.js"), address, name], more)


def test_sends_reach_a_consumer_of_two_tags(step):
    report = step("tags")

    assert set(report["statuses"]) == {"SEND_OK"}
    sent = [f"sync-{at}" for at in range(COUNT) if at % 3 != 2]
    assert sorted(message["body"] for message in report["received"]) == sorted([*sent, "live"])
    for message in report["received"]:
        assert message["keys"] == f"key-{message['body']}"
        assert message["tags"] in ("A", "B")


def test_a_message_that_fails_comes_again(step):
    found = Counter((message["body"], message["retries"]) for message in step("retry")["received"])

    assert found == {(str(at), retries): 1 for at in range(3) for retries in range(3)}


def test_a_delayed_message_comes_later(step):
    now, later = step("delay")["received"]

    assert (now["body"], later["body"]) == ("now", "later")
    assert later["after_ms"] >= 3000

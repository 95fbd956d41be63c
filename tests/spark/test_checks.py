"""What a driver answers when brokers ask for half messages."""

from __future__ import annotations

import json
import time

import pytest

from kourou.message import Message
from kourou.spark import answer_checks
from kourou.spark.channel import NetSettings, close_channels
from kourou.spark.cluster import ClusterView
from kourou.spark.write.send import BatchSender
from kourou.spark.write.transactions import Row, TransactionLog, send_halves
from kourou.testing import Cluster

TIMEOUT_S = 60
QUICK = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}


@pytest.fixture
def view(tmp_path):
    with Cluster(config=QUICK) as cluster:
        cluster.create_topic("target", queues=1)
        yield ClusterView(cluster.namesrv, NetSettings()), cluster.namesrv
    close_channels()


def halves_of(view, batch, count):
    rows = [Row(Message("target", b"h", {"UNIQ_KEY": f"{batch:016X}{n:016X}"})) for n in range(count)]
    return list(send_halves(BatchSender(view, group="tx"), rows, "tx", f"the-query/{batch}"))


def visible(view):
    return sum(high - low for low, high in view.bounds(view.route("target").read_queues).values())


def test_leftovers_are_rolled_back_and_what_is_under_way_is_left_alone(view, tmp_path):
    cluster, namesrv = view
    (tmp_path / "metadata").write_text(json.dumps({"id": "the-query"}))
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "4").touch()
    left = halves_of(cluster, 3, 5)  # of a try that failed: batch 3 was done without them
    under_way = halves_of(cluster, 5, 2)
    log = TransactionLog(str(tmp_path))

    with answer_checks(namesrv, ["target"], str(tmp_path), group="tx") as answers:
        deadline = time.monotonic() + TIMEOUT_S
        while answers.rolled_back < len(left):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert visible(cluster) == 0
        log.commit(cluster, "tx", 5, under_way)
        assert visible(cluster) == 2
        time.sleep(1.5)  # a few more checks: nothing becomes visible by an answer

    assert visible(cluster) == 2

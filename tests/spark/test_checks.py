"""What a driver answers when brokers ask for half messages."""

from __future__ import annotations

import json
import time

import pytest

from kourou.message import encode_properties
from kourou.message.ids import decode_offset_message_id
from kourou.message.sysflag import TRANSACTION_PREPARED
from kourou.remoting.protocol.codes import RequestCode
from kourou.spark import answer_checks
from kourou.spark.channel import NetSettings, call, close_channels
from kourou.spark.cluster import ClusterView
from kourou.spark.write.once import Journal, Publisher
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
    """Half messages, as a version before this one sent them, and its decision says."""
    found = []
    address = view.masters()["broker-a"]
    for key in (f"{batch:016X}{n:016X}" for n in range(count)):
        properties = {
            "UNIQ_KEY": key,
            "TRAN_MSG": "true",
            "PGROUP": "tx",
            "KOUROU_BATCH": f"the-query/{batch}",
        }
        fields = {
            "a": "tx", "b": "target", "c": "TBW102", "d": "4", "e": "0", "f": str(TRANSACTION_PREPARED),
            "g": "0", "h": "0", "i": encode_properties(properties), "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        answer = call(address, view.settings, RequestCode.SEND_MESSAGE_V2, fields, "a half", b"h")
        place = decode_offset_message_id(answer.ext_fields["msgId"]).physical_offset
        found.append(["broker-a", "target", int(answer.ext_fields["queueOffset"]), place, key])
    return found


def visible(view):
    return sum(high - low for low, high in view.bounds(view.route("target").read_queues).values())


def test_leftovers_are_rolled_back_and_what_is_under_way_is_left_alone(view, tmp_path):
    cluster, namesrv = view
    (tmp_path / "metadata").write_text(json.dumps({"id": "the-query"}))
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "4").touch()
    left = halves_of(cluster, 3, 5)  # of a try that failed: batch 3 was done without them
    under_way = halves_of(cluster, 5, 2)
    (tmp_path / "rocketmq").mkdir()
    (tmp_path / "rocketmq" / "5.json").write_text(json.dumps(under_way))

    with answer_checks(namesrv, ["target"], str(tmp_path), group="tx") as answers:
        deadline = time.monotonic() + TIMEOUT_S
        while answers.rolled_back < len(left):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert visible(cluster) == 0
        for _ in range(2):  # a crash before the last step, and again
            Journal(str(tmp_path)).commit(Publisher(cluster, "tx"), 5, [])
            (tmp_path / "rocketmq" / "5.done").unlink()
            assert visible(cluster) == 2
        time.sleep(1.5)  # a few more checks: nothing becomes visible by an answer

    assert visible(cluster) == 2

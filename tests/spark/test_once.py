"""Exactly once without Spark: a commit that is cut off at every step, and brokers that go away in it."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kourou.message import Message
from kourou.spark import channel
from kourou.spark.channel import NetSettings, close_channels
from kourou.spark.cluster import ClusterView
from kourou.spark.read.broker_road import BrokerRoad
from kourou.spark.write import once
from kourou.spark.write.once import Journal, Publisher, Staged, Stager
from kourou.testing import Cluster

ROWS = 40
names = (f"once{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        yield running
    close_channels()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(once, "SETTLE_S", 0.05)


@pytest.fixture
def topic(cluster):
    name = next(names)
    cluster.create_topic(name, queues=2)
    return name


def staged(directory: Path | None, topic: str, partition: int, **more) -> Staged:
    stager = Stager(directory, partition)
    for number in range(ROWS):
        key = f"{partition:016X}{number:016X}"
        stager.add(Message(topic, b"row %d %d" % (partition, number), {"UNIQ_KEY": key}), **more)
    return stager.close()


def publisher(cluster) -> Publisher:
    return Publisher(ClusterView(cluster.namesrv, NetSettings(wait_s=30), from_slaves="never"), "sink", 500)


def seen(cluster, topic) -> Counter[bytes]:
    road = BrokerRoad({"namesrv": cluster.namesrv, "topic": topic}, ("body",))
    return Counter(
        body for part in road.plan() for rows in road.read(part) for body in rows.column(0).to_pylist()
    )


def rows_of(*partitions: int) -> Counter[bytes]:
    return Counter(b"row %d %d" % (partition, number) for partition in partitions for number in range(ROWS))


class Killed(BaseException):
    """The process is gone."""


class Steps:
    """Counts what leaves a trace outside of the process, and kills it before or after one of these."""

    def __init__(self, monkeypatch, last: int) -> None:
        self.done, self._last = 0, last
        for owner, name in (
            (channel.Channel, "send"), (once, "write_atomically"), (shutil, "rmtree"),
            (once.BatchSender, "flush"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, work):
        def step(*arguments, **more):
            self._count()
            result = work(*arguments, **more)
            self._count()
            return result

        return step

    def _count(self):
        if self.done == self._last:
            raise Killed
        self.done += 1


def test_a_commit_that_is_killed_at_every_step(cluster, tmp_path):
    """Whatever the step, the next process goes on: each row is there once."""
    for last in itertools.count():
        topic = next(names)
        cluster.create_topic(topic, queues=1)
        journal = Journal(str(tmp_path / str(last)))
        files = [staged(journal.files(3), topic, partition) for partition in range(2)]
        staged(journal.files(3), topic, 9)  # of a try that failed
        with pytest.MonkeyPatch.context() as patched:
            steps = Steps(patched, last)
            try:
                journal.commit(publisher(cluster), 3, files)
                break
            except Killed:
                close_channels()
        assert seen(cluster, topic) <= rows_of(0, 1)
        if not journal.decided(3):
            assert not seen(cluster, topic)  # and the batch is run again
            files = [staged(journal.files(3), topic, partition) for partition in range(2)]
        journal.commit(publisher(cluster), 3, files)
        assert seen(cluster, topic) == rows_of(0, 1), last
        assert journal.done(3)
    assert last > 20
    assert steps.done == last


def test_rows_that_a_broker_has_though_it_did_not_answer(cluster, topic, monkeypatch):
    """The connection is lost when a request was sent, and before its answer: one of five is cut off so."""
    chance = random.Random(7)
    ask = channel.Channel.wait

    def cut_off(self, opaque):
        answer = ask(self, opaque)
        if chance.random() < 0.2:
            self.close()
            raise channel.ChannelError("cut off")
        return answer

    one = publisher(cluster)
    files = [
        staged(None, topic, 0),
        staged(None, topic, 1, sharding_key="k"),
        staged(None, topic, 2, queue_id=1),
    ]
    starts = one.ends(files, is_first=True)
    monkeypatch.setattr(channel.Channel, "wait", cut_off)
    one.publish(files, starts)
    monkeypatch.undo()

    assert seen(cluster, topic) == rows_of(0, 1, 2)


def test_a_topic_that_its_first_message_makes(cluster, tmp_path):
    topic, journal = next(names), Journal(str(tmp_path))
    files = [staged(journal.files(0), topic, 0)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(once.BatchSender, "flush", lambda self: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            journal.commit(publisher(cluster), 0, files)
    close_channels()
    decision = json.loads((tmp_path / "rocketmq" / "0.json").read_text())
    assert set(decision["starts"][topic]) == {"broker-a", "broker-b"}
    journal.commit(publisher(cluster), 0, [])

    assert seen(cluster, topic) == rows_of(0)


def test_queues_that_come_after_the_decision_are_left_alone(cluster, topic):
    """Nobody would look into them after a crash."""
    one = publisher(cluster)
    files = [staged(None, topic, 0)]
    starts = one.ends(files, is_first=True)
    cluster.create_topic(topic, queues=8)
    one.publish(files, starts)

    view = ClusterView(cluster.namesrv, NetSettings())
    queues = view.route(topic).read_queues
    assert len(queues) == 2 * 8
    assert {queue for queue, (_, high) in view.bounds(queues).items() if high} <= starts.keys()
    assert seen(cluster, topic) == rows_of(0)


def test_a_broker_that_is_away_in_a_commit_is_waited_for(tmp_path):
    with Cluster() as own:
        own.create_topic("t", queues=2)
        journal, one = Journal(str(tmp_path)), publisher(own)
        (broker,) = own.brokers
        send = once.BatchSender.add_encoded
        numbers = itertools.count()

        def restart(self, *arguments, **more):
            if next(numbers) == ROWS:
                own.stop_broker(broker)
                own.restart_broker(broker)
            send(self, *arguments, **more)

        files = [staged(journal.files(0), "t", partition) for partition in range(2)]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(once.BatchSender, "add_encoded", restart)
            journal.commit(one, 0, files)

        assert seen(own, "t") == rows_of(0, 1)
    close_channels()


def test_decisions_do_not_pile_up(cluster, topic, tmp_path, monkeypatch):
    monkeypatch.setattr(once, "KEEP_DECISIONS", 2)
    journal = Journal(str(tmp_path))
    for batch in range(5):
        journal.commit(publisher(cluster), batch, [staged(journal.files(batch), topic, batch)])

    assert {path.name for path in (tmp_path / "rocketmq").iterdir()} == {
        "4", *(f"{batch}.{kind}" for batch in (3, 4) for kind in ("json", "done"))
    }  # fmt: skip
    assert seen(cluster, topic) == rows_of(*range(5))

"""Brokers and name servers that are away, slaves that lag, topics that are gone: the source without Spark."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("pyspark")

from kourou.remoting.protocol.codes import RequestCode
from kourou.spark.channel import ChannelError, NetSettings, call, close_channels
from kourou.spark.cluster import ClusterView
from kourou.spark.read import stream
from kourou.spark.read.broker_road import BrokerRoad
from kourou.spark.read.pull import OffsetsGoneError
from kourou.spark.write.send import BatchSender
from kourou.testing import Cluster
from support.spark import STEP_S, Stream, send

WHICH = {"topic": {"topic": "t"}, "pattern": {"pattern": "t.*"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(stream, "GONE_FOR_S", 0.05)
    yield
    close_channels()


def bodies(first, last):
    return [b"m %03d" % number for number in range(first, last)]


def later(work):
    """Something that happens while the test waits."""
    timer = threading.Timer(0.5, work)
    timer.start()
    return timer


def rows_of(cluster, **options):
    road = BrokerRoad({"namesrv": cluster.namesrv, "topic": "t", **options}, ("body",))
    return sorted(
        body for part in road.plan() for rows in road.read(part) for body in rows.column(0).to_pylist()
    )


# Brokers that are away


@pytest.mark.parametrize("which", WHICH)
def test_a_broker_that_restarts_is_waited_for_at_every_step(which):
    with Cluster() as cluster:
        cluster.create_topic("t", queues=2)
        send(cluster, "t", bodies(0, 10), queues=2)
        reader = Stream(cluster, **WHICH[which])
        assert reader.until(10) == bodies(0, 10)

        send(cluster, "t", bodies(10, 20), queues=2)
        (broker,) = cluster.brokers
        cluster.stop_broker(broker)
        assert reader.batch() == []  # nothing can be planned: it waits, and says for what
        assert "broker-a" in str(reader.waiting()) or "topic t" in str(reader.waiting())
        broker = cluster.restart_broker(broker)
        assert reader.until(10) == bodies(10, 20)
        assert not reader.waiting()

        send(cluster, "t", bodies(20, 30), queues=2)  # it goes away between the offsets and the plan
        reader.decide()
        cluster.stop_broker(broker)
        waiting = later(lambda: cluster.restart_broker(broker))
        parts = reader.source.partitions(reader.at, reader.end)
        waiting.join()
        assert sorted(reader.read(parts)) == bodies(20, 30)

        send(cluster, "t", bodies(30, 40), queues=2)  # and between the plan and the task
        parts = reader.plan()
        broker = cluster.brokers[0]
        cluster.stop_broker(broker)
        waiting = later(lambda: cluster.restart_broker(broker))
        assert sorted(reader.read(parts)) == bodies(30, 40)
        waiting.join()

        broker = cluster.brokers[0]  # batch: the plan
        cluster.stop_broker(broker)
        waiting = later(lambda: cluster.restart_broker(broker))
        assert rows_of(cluster) == bodies(0, 40)
        waiting.join()


@pytest.mark.parametrize("noticed", [True, False])
def test_queues_of_living_brokers_go_on_meanwhile(monkeypatch, noticed):
    with Cluster(brokers=2) as cluster:
        if not noticed:  # a machine that was cut off: name servers go on to name it for a while
            monkeypatch.setattr(cluster.name_server.routes, "unregister", lambda *_: None)
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(0, 4), queue=0, brokers=(0, 1))
        reader = Stream(cluster, topic="t")
        assert reader.until(4) == bodies(0, 4)
        away = cluster.brokers[1]
        send(cluster, "t", bodies(4, 5), queue=0, brokers=(1,))
        cluster.stop_broker(away)
        send(cluster, "t", bodies(5, 9), queue=0, brokers=(0,))
        assert reader.until(4) == bodies(5, 9)
        assert "broker broker-b" in reader.waiting()
        cluster.restart_broker(away)
        assert reader.until(1) == bodies(4, 5)


def test_a_broker_that_comes_back_at_another_place_is_found():
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(0, 40), queue=0)
        reader = Stream(cluster, topic="t")
        parts = reader.plan()
        moved = cluster.brokers[0]
        cluster.stop_broker(moved)
        port = cluster.brokers[0].config.listen_port
        moved.config.listen_port = 0
        again = cluster.restart_broker(moved)
        assert again.config.listen_port != port
        assert sorted(reader.read(parts)) == bodies(0, 40)


def test_what_stays_away_is_an_error_that_names_it():
    with Cluster() as cluster:
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(0, 4), queue=0)
        reader = Stream(cluster, topic="t", waittimeout="1s", requesttimeout="1s")
        parts = reader.plan()
        cluster.stop_broker(cluster.brokers[0])
        for work in (
            lambda: reader.read(parts),
            lambda: reader.until(100),
            lambda: rows_of(cluster, waittimeout="1s"),
        ):
            with pytest.raises(ChannelError, match=r"(broker-a|topic t|cannot connect).*see waitTimeout"):
                work()


# Slaves


@contextmanager
def lagging_slave(messages, missing):
    """A cluster whose slave has stopped following, and lacks the newest messages."""
    with Cluster(slaves=1) as cluster:
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(0, messages), queue=0)
        (slave,) = cluster.slaves
        master = cluster.brokers[0]
        deadline = time.monotonic() + STEP_S
        while (
            slave.store.dispatcher.dispatched_offset < master.store.commit_log.max_offset
            or "t" not in slave.topics.topics
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        cluster.run(stop_following(slave))
        send(cluster, "t", bodies(messages, messages + missing), queue=0)
        assert slave.store.max_offset("t", 0) == messages
        yield cluster


async def stop_following(slave):
    client = slave.replication.client
    assert client is not None
    await client.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_a_slave_lacks_comes_from_the_master(fail):
    with lagging_slave(52, 8) as cluster:
        cluster.slaves[0].master_is_up = True  # so it answers otherwise than where the master is gone
        assert rows_of(cluster, readfromslaves="true", failondataloss=fail) == bodies(0, 60)
        (slave,) = cluster.slaves
        del slave.topics.topics["t"]  # messages come first, tables of topics later
        slave.puller.configure()
        assert rows_of(cluster, readfromslaves="true", failondataloss=fail) == bodies(0, 60)
        reader = Stream(cluster, topic="t", readfromslaves="true", failondataloss=fail)
        assert reader.until(60) == bodies(0, 60)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_master_that_is_gone_is_read_from_its_slave(fail):
    with lagging_slave(52, 8) as cluster:
        reader, ahead, late = (Stream(cluster, topic="t", failondataloss=fail) for _ in range(3))
        planned = reader.plan()
        assert ahead.until(60) == bodies(0, 60)
        late.decide()
        (master,) = cluster.brokers
        cluster.stop_broker(master)
        assert ahead.batch() == []  # the slave ends before what this one has read
        assert rows_of(cluster, failondataloss=fail) == bodies(0, 52)
        other = Stream(cluster, topic="t", failondataloss=fail)
        assert other.until(52) == bodies(0, 52)
        assert other.batch() == []
        with pytest.raises(ChannelError):
            rows_of(cluster, readfromslaves="never", waittimeout="1s")

        # What the slave does not have waits for the master: ranges that are being read, and a plan.
        waiting = later(lambda: cluster.restart_broker(master))
        assert sorted(reader.read(planned)) == bodies(0, 60)
        waiting.join()
        assert other.until(8) == bodies(52, 60)
        (master,) = cluster.brokers
        cluster.stop_broker(master)
        waiting = later(lambda: cluster.restart_broker(master))
        parts = late.source.partitions(late.at, late.end)
        waiting.join()
        assert sorted(late.read(parts)) == bodies(0, 60)


# Topics and queues that are gone


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_is_deleted_with_unread_messages(which, restarted):
    with Cluster() as cluster:
        cluster.create_topic("t", queues=1)
        cluster.create_topic("t2", queues=1)
        send(cluster, "t", bodies(0, 4), queue=0)
        reader = Stream(cluster, **WHICH[which])
        assert reader.until(4) == bodies(0, 4)
        send(cluster, "t", bodies(4, 6), queue=0)
        delete(cluster, "t")
        if restarted:
            reader.restart()
        with pytest.raises(OffsetsGoneError, match="t-broker-a-0 was deleted; the query has read it up to 4"):
            reader.batch()

        reader.restart(
            failondataloss="false"
        )  # goes on without it, and with one of its name from the beginning
        if which == "pattern":
            send(cluster, "t2", bodies(6, 8), queue=0)
            assert reader.until(2) == bodies(6, 8)
        else:
            assert reader.batch() == []
        assert "t" not in reader.at
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(8, 10), queue=0)
        assert reader.until(2) == bodies(8, 10)


def delete(cluster, topic):
    for address in cluster.broker_addresses:
        cluster.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    cluster.call(cluster.namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})


def test_queues_that_are_taken_away():
    with Cluster() as cluster:
        cluster.create_topic("t", queues=3)
        send(cluster, "t", bodies(0, 6), queues=3)
        reader = Stream(cluster, topic="t")
        assert reader.until(6) == bodies(0, 6)
        cluster.create_topic("t", queues=2)
        send(cluster, "t", bodies(6, 8), queue=0)
        assert reader.until(2) == bodies(6, 8)  # the third was read to its end
        cluster.create_topic("t", queues=3)
        send(cluster, "t", bodies(8, 9), queue=2)
        assert reader.until(1) == bodies(8, 9)
        send(cluster, "t", bodies(9, 10), queue=2)
        cluster.create_topic("t", queues=2)
        with pytest.raises(OffsetsGoneError, match="t-broker-a-2 was deleted"):
            reader.batch()


# Name servers


@contextmanager
def silent_server():
    """A server that accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_name_server_that_never_answers_costs_a_moment_once(monkeypatch):
    monkeypatch.setattr("kourou.spark.cluster.ASK_NEXT_S", 0.2)
    with Cluster() as cluster, silent_server() as silent:
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(0, 4), queue=0)
        both = f"{silent};{cluster.namesrv}"
        assert rows_of(cluster, namesrv=both) == bodies(0, 4)
        asked = []

        def noted(address, *rest):
            asked.append(address)
            return call(address, *rest)

        monkeypatch.setattr("kourou.spark.cluster.call", noted)
        reader = Stream(cluster, topic="t", namesrv=both)
        assert reader.until(4) == bodies(0, 4)
        sender = BatchSender(ClusterView(both, NetSettings()), group="g")
        assert sender.write_queues("t")
        assert set(asked) == {cluster.namesrv}  # the one that answered is asked first from then on


def test_one_time_for_a_whole_question(monkeypatch):
    times_s = []

    def noted(address, settings, *rest):
        times_s.append(settings.timeout_s)
        return call(address, settings, *rest)

    monkeypatch.setattr("kourou.spark.cluster.call", noted)
    with silent_server() as first, silent_server() as second:
        given = {"namesrv": f"{first};{second}", "topic": "t", "requesttimeout": "600ms", "waittimeout": "0s"}
        with pytest.raises(ChannelError, match="no name server answers"):
            BrokerRoad(given, ("body",)).plan()
    assert times_s == [0.3, 0.3]  # each name server has its part of it


def test_a_name_server_that_knows_nothing_yet_is_not_believed():
    with Cluster() as cluster, Cluster(brokers=0) as fresh:
        cluster.create_topic("t", queues=1)
        send(cluster, "t", bodies(0, 4), queue=0)
        assert rows_of(cluster, namesrv=f"{fresh.namesrv};{cluster.namesrv}") == bodies(0, 4)

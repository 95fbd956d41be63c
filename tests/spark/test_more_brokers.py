"""Clusters that change, or have slaves: brokers and queues that come while a stream runs."""

from __future__ import annotations

import time

import pytest

from kourou.spark.channel import close_channels
from kourou.spark.read.broker_road import BrokerRoad
from kourou.testing import Cluster
from support.spark import bodies_of, send

TIMEOUT_S = 120


def wait_until(condition, what):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def bodies(first, last):
    return [b"m %04d" % number for number in range(first, last)]


def stream(spark, cluster, topic, **options):
    given = {"namesrv": cluster.namesrv, "topic": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("rocketmq").options(**given).load().select("body")


def test_slaves_are_read_when_told(spark, tmp_path):
    with Cluster(slaves=1) as cluster:
        cluster.create_topic("t", queues=2)
        send(cluster, "t", bodies(0, 20), queues=2)
        master, slave = cluster.brokers[0].store, cluster.slaves[0].store
        end = master.commit_log.max_offset
        wait_until(lambda: slave.dispatcher.dispatched_offset >= end, "the slave to have the messages")
        wait_until(lambda: "t" in cluster.slaves[0].topics.topics, "the slave to know the topic")
        for told, address in (("true", cluster.slave_addresses[0]), ("false", cluster.broker_addresses[0])):
            given = {"namesrv": cluster.namesrv, "topic": "t", "readFromSlaves": told}
            road = BrokerRoad(given, ("body",))
            assert {part.servers[0].address for part in road.plan()} == {address}
            frame = spark.read.format("rocketmq").options(**given).load()
            assert bodies_of(frame) == bodies(0, 20)

        query = (
            stream(spark, cluster, "t", readFromSlaves="true").writeStream.format("parquet")
            .option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True)
            .start(f"{tmp_path}/out")
        )  # fmt: skip
        assert query.awaitTermination(TIMEOUT_S)
        assert bodies_of(spark.read.parquet(f"{tmp_path}/out")) == bodies(0, 20)
    close_channels()


def test_brokers_and_queues_that_come_while_a_stream_runs(spark, tmp_path):
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("t", queues=1)
        away = cluster.brokers[1]
        cluster.stop_broker(away)
        send(cluster, "t", bodies(0, 5), queue=0)
        query = (
            stream(spark, cluster, "t").writeStream.format("memory").queryName("found")
            .option("checkpointLocation", str(tmp_path)).trigger(processingTime="0 seconds").start()
        )  # fmt: skip

        def found(last):
            assert query.exception() is None
            return bodies_of(spark.table("found")) == bodies(0, last)

        try:
            wait_until(lambda: found(5), "the messages of the first broker")
            cluster.restart_broker(away)
            send(cluster, "t", bodies(5, 10), queue=0, brokers=(1,))
            wait_until(lambda: found(10), "the messages of the broker that came")
            cluster.create_topic("t", queues=3)
            send(cluster, "t", bodies(10, 14), queue=2, brokers=(0, 1))
            wait_until(lambda: found(14), "the messages of the queues that came")
        finally:
            query.stop()
            query.awaitTermination(TIMEOUT_S)
    close_channels()


@pytest.mark.parametrize("at_once", [True, False])
def test_one_stream_feeds_several_queries(spark, tmp_path, at_once):
    with Cluster() as cluster:
        cluster.create_topic("t", queues=2)
        send(cluster, "t", bodies(0, 20), queues=2)
        frame = stream(spark, cluster, "t", maxOffsetsPerTrigger="7")
        queries = []
        for number in range(2):
            queries.append(
                frame.writeStream.format("parquet").trigger(availableNow=True)
                .option("checkpointLocation", f"{tmp_path}/checkpoint{number}").start(f"{tmp_path}/{number}")
            )  # fmt: skip
            if not at_once:
                assert queries[-1].awaitTermination(TIMEOUT_S)
        for number, query in enumerate(queries):
            assert query.awaitTermination(TIMEOUT_S)
            assert bodies_of(spark.read.parquet(f"{tmp_path}/{number}")) == bodies(0, 20)
    close_channels()

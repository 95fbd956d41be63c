"""Retention that overtakes a query: failOnDataLoss decides, and the error names the queue and the offsets."""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kourou.spark.channel import close_channels
from kourou.spark.read.pull import OffsetsGoneError
from kourou.spark.read.stream import RocketmqStreamReader
from kourou.testing import Cluster
from support.spark import bodies_of, send

names = (f"kept{number}" for number in itertools.count())
TIMEOUT_S = 120
BODY = bytes(2000)  # a file of the log holds thirty


@pytest.fixture(scope="module")
def cluster():
    # Files have had their time as soon as they are full.
    with Cluster(config={"mappedFileSizeCommitLog": str(64 * 1024), "fileReservedTime": "0"}) as running:
        yield running
    close_channels()


@pytest.fixture
def topic(cluster):
    name = next(names)
    cluster.create_topic(name, queues=1)
    return name


def bodies(first, last):
    return [b"%06d" % number + BODY for number in range(first, last)]


def delete_expired(cluster, topic):
    """Let retention run; where the queue begins now."""

    async def work():
        store = cluster.brokers[0].store
        store.retention.delete_now()
        store.retention.run_once()
        return store.min_offset(topic, 0)

    return cluster.run(work())


def run(spark, cluster, topic, directory, **options):
    """One run of a query into Parquet, until it has read what is there; what is there then."""
    given = {"namesrv": cluster.namesrv, "topic": topic, "startingOffsets": "earliest", **options}
    query = (
        spark.readStream.format("rocketmq").options(**given).load().select("body")
        .writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True).start(f"{directory}/out")
    )  # fmt: skip
    assert query.awaitTermination(TIMEOUT_S)
    return bodies_of(spark.read.schema("body binary").parquet(f"{directory}/out"))


def test_a_query_that_was_down_too_long(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 20), queue=0)
    assert run(spark, cluster, topic, tmp_path) == bodies(0, 20)
    send(cluster, topic, bodies(20, 120), queue=0)
    begin = delete_expired(cluster, topic)
    assert 20 < begin < 120

    gone = f"{topic}-broker-a-0: offsets 20 to {begin - 1} are gone, it begins at {begin} now"
    with pytest.raises(Exception, match=gone):
        run(spark, cluster, topic, tmp_path)
    left = run(spark, cluster, topic, tmp_path, failOnDataLoss="false")
    assert left == bodies(0, 20) + bodies(begin, 120)
    send(cluster, topic, bodies(120, 125), queue=0)
    assert run(spark, cluster, topic, tmp_path)[-5:] == bodies(120, 125)  # and on from there, strictly again


@pytest.mark.parametrize("fail", ["true", "false"])
def test_messages_that_go_between_plan_and_read(cluster, topic, fail):
    send(cluster, topic, bodies(0, 100), queue=0)
    given = {
        "namesrv": cluster.namesrv,
        "topic": topic,
        "startingoffsets": "earliest",
        "failondataloss": fail,
    }
    reader = RocketmqStreamReader(given, ("body",))
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    begin = delete_expired(cluster, topic)
    assert begin > 0

    if fail == "true":
        with pytest.raises(
            OffsetsGoneError, match=rf"{topic}-broker-a-0: offsets 0 to \d+ are not there any more"
        ):
            list(reader.read(part))
    else:
        found = [body for batch in reader.read(part) for body in batch.column("body").to_pylist()]
        assert found == bodies(begin, 100)

"""Topics as streams: offsets, limits, restarts, new queues and brokers, data loss."""

from __future__ import annotations

import itertools
import json
import shutil
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import QueryConsumerOffset
from kourou.spark import commit_to_group
from kourou.spark.channel import close_channels
from kourou.spark.read.stream import INITIAL, RocketmqStreamReader
from kourou.testing import Cluster
from support.spark import bodies_of, send

names = (f"stream{number}" for number in itertools.count())
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        yield running
    close_channels()


@pytest.fixture
def topic(cluster):
    name = next(names)
    cluster.create_topic(name, queues=2)
    return name


def reader(cluster, **options):
    return RocketmqStreamReader({"namesrv": cluster.namesrv, **options}, ("body",))


def stream(spark, cluster, topic, **options):
    source = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
    for name, value in {"startingOffsets": "earliest", **options}.items():
        source = source.option(name, value)
    return source.load()


def run(frame, directory, **trigger):
    """One run of a query into Parquet, until it has read what is there."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(**(trigger or {"availableNow": True}))
        .start(f"{directory}/out")
    )
    assert query.awaitTermination(TIMEOUT_S)
    return query


def written(spark, directory):
    return bodies_of(spark.read.schema("body binary").parquet(f"{directory}/out"))


def bodies(first, last):
    return [b"m %04d" % number for number in range(first, last)]


def total(offset):
    brokers = [offset[topic] for topic in offset if topic != INITIAL]
    return sum(n for queues in brokers for numbers in queues.values() for n in numbers.values())


# The whole query


def test_a_query_goes_on_where_its_checkpoint_ends(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 30), queues=2, brokers=(0, 1))
    run(stream(spark, cluster, topic), tmp_path)
    assert written(spark, tmp_path) == bodies(0, 30)
    run(stream(spark, cluster, topic), tmp_path)
    assert written(spark, tmp_path) == bodies(0, 30)
    send(cluster, topic, bodies(30, 50), queues=2, brokers=(0, 1))
    query = run(stream(spark, cluster, topic), tmp_path)

    assert written(spark, tmp_path) == bodies(0, 50)
    progress = [json.loads(p.json) for p in query.recentProgress if p.numInputRows]
    assert sum(p["numInputRows"] for p in progress) == 20
    source = progress[-1]["sources"][0]
    assert source["endOffset"] == source["latestOffset"]


def test_a_driver_that_died_while_it_wrote_down_the_first_batch(spark, cluster, topic, tmp_path):
    """It leaves the file that was to be renamed, and Spark would not use the checkpoint again."""
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.5d3e0b52-5a6c-4c5a-8f5b-6c1f3f2d7a10.tmp").write_bytes(b"v1")
    send(cluster, topic, bodies(0, 4), queues=2)
    run(stream(spark, cluster, topic), tmp_path)
    assert written(spark, tmp_path) == bodies(0, 4)


def test_a_first_batch_that_is_planned_again_begins_where_it_began(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 10), queues=2)
    frame = stream(spark, cluster, topic, startingOffsets="latest")
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .start(f"{tmp_path}/out")
    )
    number = 10
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.glob("checkpoint/commits/0")):  # messages come while Spark plans
            assert time.monotonic() < deadline
            assert query.exception() is None
            send(cluster, topic, bodies(number, number + 1), queues=2)
            number += 1
    finally:
        query.stop()
    shutil.rmtree(tmp_path / "out")  # of the first batch nothing was committed
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    for path in tmp_path.glob("checkpoint/offsets/[1-9]*"):
        path.unlink()
    run(frame, tmp_path)

    found = written(spark, tmp_path)
    assert found == bodies(number - len(found), number)  # nothing between is missing
    first = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[2])
    started = (
        sum(first["*initial"][topic]["broker-a"].values()) if first["*initial"] else total_of(first, topic)
    )
    assert found == bodies(started, number)


def total_of(offset, topic):
    return sum(offset[topic]["broker-a"].values())


def test_a_query_without_a_checkpoint_begins_with_what_comes(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 10), queues=2)
    frame = stream(spark, cluster, topic, startingOffsets="latest")
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .start(f"{tmp_path}/out")
    )
    try:
        wait_until(lambda: query.lastProgress is not None or query.status["message"].startswith("Waiting"))
        send(cluster, topic, bodies(10, 20), queues=2)
        wait_until(lambda: written_or_none(spark, tmp_path) == bodies(10, 20))
    finally:
        query.stop()


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def written_or_none(spark, directory):
    try:
        return written(spark, directory)
    except Exception:  # the first file is not there yet
        return None


def test_micro_batches_are_limited(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 40), queues=2)
    query = run(stream(spark, cluster, topic, maxOffsetsPerTrigger="10"), tmp_path)

    counts = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert counts == [10, 10, 10, 10]
    assert written(spark, tmp_path) == bodies(0, 40)


def test_new_queues_and_topics_are_found_while_it_runs(spark, cluster, tmp_path):
    first, second = "found-a", "found-b"
    cluster.create_topic(first, queues=1)
    send(cluster, first, bodies(0, 5), queue=0)
    frame = (
        spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("pattern", "found-.*")
        .option("startingOffsets", "earliest").load()
    )  # fmt: skip
    run(frame, tmp_path)
    cluster.create_topic(first, queues=3)
    cluster.create_topic(second, queues=1)
    send(cluster, first, bodies(5, 8), queue=2, brokers=(1,))
    send(cluster, second, bodies(8, 10), queue=0, brokers=(1,))
    run(frame, tmp_path)

    assert written(spark, tmp_path) == bodies(0, 10)


def test_offsets_of_a_group_follow_the_query(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 10), queue=1)

    def committed(group):
        fields = QueryConsumerOffset(group, topic, 1).fields()
        return cluster.call(
            cluster.broker_addresses[0], RequestCode.QUERY_CONSUMER_OFFSET, fields
        ).ext_fields["offset"]

    listener = commit_to_group(spark, cluster.namesrv, "followed")
    try:
        run(stream(spark, cluster, topic), tmp_path / "1")
        wait_until(lambda: is_committed(committed, "followed", "10"))
    finally:
        spark.streams.removeListener(listener)

    run(stream(spark, cluster, topic, commitGroup="late", maxOffsetsPerTrigger="5"), tmp_path / "2")
    assert committed("late") in ("5", "10")  # the last is told only when there is a next one


def is_committed(committed, group, offset):
    try:
        return committed(group) == offset
    except Exception:  # nothing yet
        return False


def test_data_loss_stops_a_query_unless_it_may_go_on(spark, cluster, topic, tmp_path):
    send(cluster, topic, bodies(0, 6), queue=0)
    run(stream(spark, cluster, topic), tmp_path)
    # The topic is made anew, and the new one is shorter.
    for address in cluster.broker_addresses:
        cluster.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    cluster.create_topic(topic, queues=2)
    send(cluster, topic, bodies(6, 8), queue=0)

    with pytest.raises(Exception, match=f"{topic}-broker-a-0 ends at 2, the query is at 6"):
        run(stream(spark, cluster, topic), tmp_path)
    run(stream(spark, cluster, topic, failOnDataLoss="false"), tmp_path)
    send(cluster, topic, bodies(8, 9), queue=0)
    run(stream(spark, cluster, topic, failOnDataLoss="false"), tmp_path)
    assert written(spark, tmp_path)[-1:] == bodies(8, 9)


# The reader alone


def test_a_limit_is_shared_out_in_proportion(cluster, topic):
    send(cluster, topic, bodies(0, 30), queue=0)
    send(cluster, topic, bodies(30, 40), queue=1)
    source = reader(cluster, topic=topic, startingoffsets="earliest", maxoffsetspertrigger="20")
    start = source.initialOffset()

    assert source.getDefaultReadLimit() == ReadMaxRows(20)
    end = source.latestOffset(start, ReadMaxRows(20))
    assert end[topic]["broker-a"] == {"0": 15, "1": 5}
    assert source.reportLatestOffset()[topic]["broker-a"] == {"0": 30, "1": 10}


def test_few_messages_wait_for_more_or_for_the_time(cluster, topic):
    source = reader(
        cluster, topic=topic, startingoffsets="earliest", minoffsetspertrigger="10", maxtriggerdelay="1s"
    )
    start = source.initialOffset()
    send(cluster, topic, bodies(0, 3), queue=0)
    first = source.latestOffset(start, ReadAllAvailable())
    assert total(first) == 3  # the first micro-batch does not wait
    send(cluster, topic, bodies(3, 5), queue=0)
    assert source.latestOffset(first, ReadAllAvailable()) == first
    send(cluster, topic, bodies(5, 20), queue=0)
    second = source.latestOffset(first, ReadAllAvailable())
    assert total(second) == 20
    send(cluster, topic, bodies(20, 21), queue=0)
    assert source.latestOffset(second, ReadAllAvailable()) == second
    wait_until(lambda: total(source.latestOffset(second, ReadAllAvailable())) == 21)


def test_available_now_ends_with_what_is_there(cluster, topic):
    send(cluster, topic, bodies(0, 5), queue=0)
    source = reader(cluster, topic=topic, startingoffsets="earliest")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    send(cluster, topic, bodies(5, 10), queue=0)

    end = source.latestOffset(start, ReadAllAvailable())
    assert total(end) == 5
    assert source.latestOffset(end, ReadAllAvailable()) == end


def test_a_queue_whose_broker_is_away_keeps_its_offset(topic, tmp_path):
    with Cluster(brokers=1) as own:
        own.create_topic("here", queues=1)
        send(own, "here", bodies(0, 5), queue=0)
        source = reader(own, topic="here")
        start = {"here": {"broker-a": {"0": 2}, "broker-z": {"0": 7}}}

        assert source.latestOffset(start, ReadAllAvailable()) == {
            "here": {"broker-a": {"0": 5}, "broker-z": {"0": 7}}
        }
        parts = source.partitions(start, {"here": {"broker-a": {"0": 5}, "broker-z": {"0": 7}}})
        assert [part.value.records for part in parts] == [3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingoffsets": "latest"}, "option endingOffsets"),
        ({"minoffsetspertrigger": "5", "maxoffsetspertrigger": "4"}, "option minOffsetsPerTrigger"),
        ({"maxtriggerdelay": "5s"}, "option maxTriggerDelay: it needs"),
        ({"maxoffsetspertrigger": "0"}, "option maxOffsetsPerTrigger"),
        ({"keys": "a"}, "option keys"),
    ],
)
def test_wrong_options_are_refused_by_name(cluster, options, said):
    with pytest.raises(Exception, match=said):
        reader(cluster, topic="t", **options)


def test_a_stream_of_files_is_refused(spark, tmp_path):
    with pytest.raises(Exception, match="option namesrv: a stream comes from brokers"):
        run(spark.readStream.format("rocketmq").load(str(tmp_path)), tmp_path)

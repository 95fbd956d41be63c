"""Rows as messages: columns, batches, ids that repeat with their row, and exactly once."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta

import pytest

from kourou.spark.channel import NetSettings, close_channels
from kourou.spark.cluster import ClusterView
from kourou.testing import Cluster
from support.spark import bodies_of, send

names = (f"sink{number}" for number in itertools.count())
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2, config={"timerWheelEnable": "true"}) as running:
        yield running
    close_channels()


@pytest.fixture
def topic(cluster):
    name = next(names)
    cluster.create_topic(name, queues=4)
    return name


def write(frame, cluster, **options):
    writer = frame.write.format("rocketmq").mode("append").option("namesrv", cluster.namesrv)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def read(spark, cluster, topic):
    return spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic).load()


def test_columns_become_parts_of_a_message(spark, cluster, topic):
    frame = spark.createDataFrame(
        [(b"paid", topic, "TagA", ["k1", "k2"], {"colour": "red", "UNIQ_KEY": "no"}, 7)],
        "body binary, topic string, tags string, keys array<string>, properties map<string,string>, flag int",
    )
    write(frame, cluster)

    (row,) = read(spark, cluster, topic).collect()

    assert (bytes(row.body), row.tags, row["keys"], row.flag) == (b"paid", "TagA", ["k1", "k2"], 7)
    assert row.properties["colour"] == "red"
    assert len(row.uniqKey) == 32


def test_rows_go_in_batches_and_all_arrive_once(spark, cluster, topic):
    frame = spark.range(5000).selectExpr("concat('m ', id) AS body", "'few' AS tags")
    write(frame, cluster, topic=topic, batchSize="16k")

    rows = read(spark, cluster, topic).collect()

    assert sorted(int(bytes(row.body).split()[1]) for row in rows) == list(range(5000))
    assert len({row.uniqKey for row in rows}) == 5000
    assert len({(row.brokerName, row.queueId) for row in rows}) == 8


def test_rows_of_a_sharding_key_stay_in_order_in_one_queue(spark, cluster, topic):
    frame = spark.range(0, 600, 1, 1).selectExpr("string(id) AS body", "concat('key', id % 5) AS shardingKey")
    write(frame, cluster, topic=topic, batchSize="2k")

    by_key: dict[str, list] = {}
    rows = read(spark, cluster, topic).collect()
    for row in sorted(rows, key=lambda row: (row.brokerName, row.queueId, row.queueOffset)):
        by_key.setdefault(row.properties["__SHARDINGKEY"], []).append(row)
    for rows_of_key in by_key.values():
        assert len({(row.brokerName, row.queueId) for row in rows_of_key}) == 1
        numbers = [int(bytes(row.body)) for row in rows_of_key]
        assert numbers == sorted(numbers)
    assert sum(map(len, by_key.values())) == 600


def test_a_queue_can_be_named(spark, cluster, topic):
    write(spark.range(50).selectExpr("string(id) AS body", "int(2) AS queueId"), cluster, topic=topic)

    rows = read(spark, cluster, topic).collect()

    assert {row.queueId for row in rows} == {2}
    with pytest.raises(Exception, match="has no queue 9"):
        write(spark.range(1).selectExpr("string(id) AS body", "int(9) AS queueId"), cluster, topic=topic)


def test_messages_can_be_delivered_later(spark, cluster, topic):
    later = datetime.now(UTC) + timedelta(seconds=15)  # more than Spark takes to send it
    frame = spark.createDataFrame([(b"later", later), (b"now", None)], "body binary, deliverTime timestamp")
    write(frame, cluster, topic=topic)

    deadline = time.monotonic() + TIMEOUT_S
    while len(rows := read(spark, cluster, topic).collect()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    by_body = {bytes(row.body): row for row in rows}
    assert "TIMER_OUT_MS" in by_body[b"later"].properties  # it has been through the broker's timer
    assert "TIMER_OUT_MS" not in by_body[b"now"].properties


def test_a_topic_is_made_by_its_first_message(spark, cluster):
    topic = next(names)
    write(spark.range(10).selectExpr("string(id) AS body"), cluster, topic=topic)

    assert len(bodies_of(read(spark, cluster, topic))) == 10


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("string(id) AS text", {"topic": "t"}, "column body"),
        ("id AS body", {"topic": "t"}, "column body is bigint"),
        ("string(id) AS body", {}, "option topic"),
        ("string(id) AS body, id AS colour", {"topic": "t"}, "column colour"),
        ("string(id) AS body, 1 AS delayLevel, id AS deliverTime", {"topic": "t"}, "column deliverTime"),
        ("string(id) AS body", {"topic": "t", "delivery": "twice"}, "option delivery"),
        ("string(id) AS body", {"topic": "t", "batchSize": "1g"}, "option batchSize"),
        ("'' AS body", {"topic": "t"}, "has no body"),
    ],
)
def test_wrong_columns_and_options_are_refused_by_name(spark, cluster, columns, options, said):
    with pytest.raises(Exception, match=said):
        write(spark.range(1).selectExpr(*columns.split(", ")), cluster, **options)


# Streams


def stream(spark, cluster, source, target, directory, **options):
    """One run from topic to topic."""
    frame = (
        spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", source)
        .option("startingOffsets", "earliest").load()
    )  # fmt: skip
    writer = (
        frame.select("body", "tags").writeStream.format("rocketmq").option("namesrv", cluster.namesrv)
        .option("topic", target).option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
    )  # fmt: skip
    for name, value in options.items():
        writer = writer.option(name, value)
    query = writer.start()
    assert query.awaitTermination(TIMEOUT_S)


def uncommit(directory):
    """What a crash between the sink's commit and Spark's own leaves behind: the last batch is run again."""
    last = max(directory.glob("checkpoint/commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    for crc in directory.glob(f"checkpoint/commits/.{last.name}.crc"):
        crc.unlink()
    return int(last.name)


def test_a_batch_that_is_run_again_has_the_same_ids(spark, cluster, topic, tmp_path):
    target = next(names)
    cluster.create_topic(target, queues=2)
    send(cluster, topic, (b"m %d" % n for n in range(20)))
    stream(spark, cluster, topic, target, tmp_path)
    uncommit(tmp_path)
    stream(spark, cluster, topic, target, tmp_path)

    rows = read(spark, cluster, target).collect()

    assert len(rows) == 40
    assert len({row.uniqKey for row in rows}) == 20
    assert len({(row.uniqKey, bytes(row.body)) for row in rows}) == 20


def test_exactly_once_shows_each_row_once(spark, cluster, topic, tmp_path):
    target = next(names)
    cluster.create_topic(target, queues=2)
    send(cluster, topic, (b"m %02d" % n for n in range(20)))
    stream(spark, cluster, topic, target, tmp_path, delivery="exactly-once")
    assert bodies_of(read(spark, cluster, target)) == [b"m %02d" % n for n in range(20)]

    uncommit(tmp_path)  # after everything was ended
    stream(spark, cluster, topic, target, tmp_path, delivery="exactly-once")
    assert bodies_of(read(spark, cluster, target)) == [b"m %02d" % n for n in range(20)]

    batch = uncommit(tmp_path)  # after the decision, when all was sent and nobody had written that down
    (tmp_path / "checkpoint" / "rocketmq" / f"{batch}.done").unlink()
    stream(spark, cluster, topic, target, tmp_path, delivery="exactly-once")
    assert bodies_of(read(spark, cluster, target)) == [b"m %02d" % n for n in range(20)]

    send(cluster, topic, [b"m 20"])
    stream(spark, cluster, topic, target, tmp_path, delivery="exactly-once")
    assert bodies_of(read(spark, cluster, target)) == [b"m %02d" % n for n in range(21)]


def test_a_crash_before_the_decision_shows_nothing_of_the_first_try(spark, cluster, topic, tmp_path):
    target = next(names)
    cluster.create_topic(target, queues=2)
    send(cluster, topic, (b"m %02d" % n for n in range(10)))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "rocketmq").touch()  # no decision can be written
    with pytest.raises(Exception, match="rocketmq"):
        stream(spark, cluster, topic, target, tmp_path, delivery="exactly-once")
    assert bodies_of(read(spark, cluster, target)) == []
    (tmp_path / "checkpoint" / "rocketmq").unlink()
    stream(spark, cluster, topic, target, tmp_path, delivery="exactly-once")

    assert bodies_of(read(spark, cluster, target)) == [b"m %02d" % n for n in range(10)]


def test_a_lost_connection_costs_no_message(cluster, topic):
    import socket

    from kourou.message import Message
    from kourou.spark.write.send import BatchSender

    view = ClusterView(cluster.namesrv, NetSettings())
    sender = BatchSender(view, group="tx", batch_records=10)
    for number in range(200):
        sender.add(Message(topic, b"%d" % number, {"UNIQ_KEY": f"{number:032X}"}))
        if number == 95:
            for channel in sender._channels.values():
                channel._socket.shutdown(socket.SHUT_RDWR)
    sender.flush()

    assert sender.sent == 200
    assert visible(view, topic) >= 200  # what was under way may be there twice


def visible(view, topic):
    bounds = view.bounds(view.route(topic).read_queues)
    return sum(high - low for low, high in bounds.values())


def test_a_batch_write_exactly_once(spark, cluster, topic):
    write(spark.range(100).selectExpr("string(id) AS body"), cluster, topic=topic, delivery="exactly-once")
    assert len(bodies_of(read(spark, cluster, topic))) == 100

    broken = spark.range(0, 100, 1, 4).selectExpr("IF(id = 99, NULL, string(id)) AS body")
    with pytest.raises(Exception, match="has no body"):
        write(broken, cluster, topic=topic, delivery="exactly-once")
    assert len(bodies_of(read(spark, cluster, topic))) == 100


def test_exactly_once_needs_a_checkpoint_that_it_knows(spark, cluster, topic):
    from kourou.spark.write.sink import RocketmqStreamWriter

    schema = spark.range(1).selectExpr("string(id) AS body").schema
    with pytest.raises(Exception, match="option delivery: exactly-once needs checkpointLocation"):
        RocketmqStreamWriter(
            {"namesrv": cluster.namesrv, "topic": topic, "delivery": "exactly-once"}, schema, False
        )

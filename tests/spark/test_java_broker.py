"""Source, sink and store reader against the real Java broker and its live store."""

from __future__ import annotations

import time

import pytest

from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.spark.channel import close_channels
from kourou.spark.schema import ALL_COLUMNS
from support.java import java
from support.recorded.wire import Caller
from support.sites.servers import java_broker, java_name_server
from support.spark import bodies_of

pytestmark = pytest.mark.interop

TIMEOUT_S = 90


class Target:
    def __init__(self, namesrv, port, directory):
        self.namesrv = namesrv
        self.port = port
        self.store = str(directory / "store")

    def create_topic(self, topic, queues=4):
        header = CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")
        with Caller(self.port) as caller:
            answer = caller.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields()))
        assert answer.code == 0
        return topic


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    java()
    directory = tmp_path_factory.mktemp("java")
    more = {
        "diskMaxUsedSpaceRatio": 99,
        "waitTimeMillsInSendQueue": 20_000,
        "osPageCacheBusyTimeOutMills": 20_000,
    }
    with java_name_server(directory) as name_server, java_broker(directory, name_server.port, more) as broker:
        yield Target(name_server.address, broker.port, directory)
    close_channels()


@pytest.fixture(scope="module")
def orders(spark, target):
    """Two thousand messages, sent by the sink."""
    target.create_topic("orders")
    frame = spark.range(2000).selectExpr(
        "concat('order ', lpad(id, 4, '0')) AS body", "IF(id % 2 = 0, 'even', 'odd') AS tags",
        "array(concat('o-', id), 'all') AS keys", "map('n', string(id)) AS properties",
    )  # fmt: skip
    frame.write.format("rocketmq").mode("append").option("namesrv", target.namesrv).option(
        "topic", "orders"
    ).save()
    deadline = time.monotonic() + TIMEOUT_S
    while source(spark, target, topic="orders").count() < 2000:  # Java's queues follow its log
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return "orders"


def source(spark, target, **options):
    reader = spark.read.format("rocketmq").option("namesrv", target.namesrv)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def numbers(frame):
    return [int(body.split()[1]) for body in bodies_of(frame)]


def test_what_the_sink_sent_the_source_reads(spark, target, orders):
    rows = source(spark, target, topic=orders).collect()

    assert sorted(int(bytes(row.body).split()[1]) for row in rows) == list(range(2000))
    assert len({row.uniqKey for row in rows}) == 2000
    row = next(row for row in rows if bytes(row.body) == b"order 0007")
    assert (row.tags, row["keys"], row.properties["n"]) == ("odd", ["o-7", "all"], "7")
    assert len({row.queueId for row in rows}) >= 2


def test_options_of_a_query(spark, target, orders):
    assert numbers(source(spark, target, topic=orders, tags="even")) == list(range(0, 2000, 2))
    assert numbers(source(spark, target, topic=orders, sql="n BETWEEN 10 AND 20")) == list(range(10, 21))
    assert numbers(source(spark, target, pattern="ord.*").where("tags = 'odd'")) == list(range(1, 2000, 2))
    some = source(
        spark,
        target,
        topic=orders,
        endingOffsets='{"orders": {"broker-a": {"0": 3, "1": 0, "2": 0, "3": 0}}}',
    )
    assert [row.queueOffset for row in some.orderBy("queueOffset").collect()] == [0, 1, 2]
    late = str(int(time.time() * 1000) + 3_600_000)
    assert source(spark, target, topic=orders, endingTimestamp=late).count() == 2000
    with pytest.raises(Exception, match="has no message at"):
        source(spark, target, topic=orders, startingTimestamp=late).collect()
    rest = source(
        spark, target, topic=orders, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest"
    )
    assert rest.count() == 0
    assert source(spark, target, topic=orders, startingTimestamp="1").count() == 2000


def test_the_live_store_says_what_the_broker_says(spark, target, orders):
    columns = [name for name in ALL_COLUMNS if name != "brokerName"]
    by_broker = sorted(map(str, source(spark, target, topic=orders).select(*columns).collect()))
    deadline = time.monotonic() + TIMEOUT_S
    for read_by in ("auto", "log", "queues"):
        reader = spark.read.format("rocketmq").option("topic", orders).option("readBy", read_by)
        while (
            by_files := sorted(map(str, reader.load(target.store).select(*columns).collect()))
        ) != by_broker:
            assert time.monotonic() < deadline, read_by
        assert by_files == by_broker
    found = spark.read.format("rocketmq").option("keys", "o-77").option("readBy", "index").load(target.store)
    assert bodies_of(found) == [b"order 0077"]


def run(spark, target, source_topic, target_topic, directory, **options):
    frame = (
        spark.readStream.format("rocketmq").option("namesrv", target.namesrv).option("topic", source_topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700").load()
    )  # fmt: skip
    writer = (
        frame.select("body", "tags", "keys").writeStream.format("rocketmq").option("namesrv", target.namesrv)
        .option("topic", target_topic).option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
    )  # fmt: skip
    for name, value in options.items():
        writer = writer.option(name, value)
    assert writer.start().awaitTermination(TIMEOUT_S)


def test_a_stream_from_topic_to_topic(spark, target, orders, tmp_path):
    copy = target.create_topic("copy")
    run(spark, target, orders, copy, tmp_path)
    run(spark, target, orders, copy, tmp_path)

    assert numbers(source(spark, target, topic=copy)) == list(range(2000))


def test_exactly_once_through_a_crash_among_the_ends(spark, target, tmp_path):
    first = target.create_topic("first")
    once = target.create_topic("once")
    frame = spark.range(60).selectExpr("concat('m ', lpad(id, 2, '0')) AS body")
    frame.write.format("rocketmq").mode("append").option("namesrv", target.namesrv).option(
        "topic", first
    ).save()
    run(spark, target, first, once, tmp_path, delivery="exactly-once")
    assert numbers(source(spark, target, topic=once)) == list(range(60))

    for path in tmp_path.glob("checkpoint/commits/*0*"):
        path.unlink()
    (tmp_path / "checkpoint" / "rocketmq" / "0.done").unlink()
    run(spark, target, first, once, tmp_path, delivery="exactly-once")

    assert numbers(source(spark, target, topic=once)) == list(range(60))

"""Topics as tables: every option of a batch query, against two real brokers."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from kourou.remoting.protocol.codes import RequestCode
from kourou.spark.channel import NetSettings, close_channels
from kourou.spark.cluster import ClusterView
from kourou.spark.read.broker_road import BrokerRoad
from kourou.spark.read.pull import OffsetsGoneError, PullSettings, QueuePuller, QueueRange, Source
from kourou.spark.schema import ALL_COLUMNS
from kourou.testing import Cluster
from support.spark import bodies_of, send

COUNT = 240
names = (f"topic{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with Cluster(brokers=2) as running:
        yield running
    close_channels()


@pytest.fixture(scope="module")
def orders(cluster):
    """A topic of 4 queues on each of two brokers, with tags, keys and a property."""
    cluster.create_topic("orders", queues=4)
    send(
        cluster, "orders", (b"order %03d" % n for n in range(COUNT)), brokers=(0, 1),
        properties=lambda n: {"TAGS": "even" if n % 2 == 0 else "odd", "KEYS": f"o-{n} all", "n": str(n),
                              "UNIQ_KEY": f"{n:032X}"},
    )  # fmt: skip
    return "orders"


def source(spark, cluster, **options):
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str) else json.dumps(value))
    return reader


def numbers(frame):
    return [int(body.split()[1]) for body in bodies_of(frame)]


def test_a_topic_is_a_table(spark, cluster, orders):
    rows = source(spark, cluster, topic=orders).load().collect()

    assert len(rows) == COUNT
    row = next(row for row in rows if bytes(row.body) == b"order 007")
    assert row.asDict().keys() == set(ALL_COLUMNS)
    assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == ("orders", "broker-b", 3, 0)
    assert (row.tags, row["keys"], row.uniqKey, row.msgId) == (
        "odd",
        ["o-7", "all"],
        f"{7:032X}",
        f"{7:032X}",
    )
    assert row.properties["n"] == "7"
    assert abs(row.storeTimestamp.timestamp() - time.time()) < 600
    offsets = {(row.brokerName, row.queueId, row.queueOffset) for row in rows}
    assert offsets == {
        (b, q, o) for b in ("broker-a", "broker-b") for q in range(4) for o in range(COUNT // 8)
    }


def test_the_files_and_the_broker_say_the_same(spark, cluster, orders):
    """All columns but the broker's name, which files do not know."""
    paths = ",".join(str(cluster.directory / name) for name in ("broker-a", "broker-b"))
    columns = [name for name in ALL_COLUMNS if name != "brokerName"]
    by_broker = source(spark, cluster, topic=orders).load().select(*columns)
    by_files = spark.read.format("rocketmq").option("topic", orders).load(paths).select(*columns)

    assert sorted(map(str, by_broker.collect())) == sorted(map(str, by_files.collect()))


def test_topics_by_list_pattern_and_assignment(spark, cluster, orders):
    first, second = next(names), next(names)
    for topic in (first, second):
        cluster.create_topic(topic, queues=2)
        send(cluster, topic, [b"%s 1" % topic.encode(), b"%s 2" % topic.encode()], queues=2)

    def topics(**options):
        found = source(spark, cluster, **options).load().select("topic", "queueId").collect()
        return sorted(tuple(row) for row in found)

    both = [(first, 0), (first, 1), (second, 0), (second, 1)]
    assert topics(topics=f"{first}, {second}") == both
    assert topics(topics=[first, second]) == both
    assert topics(pattern=f"{first}|{second}") == both
    assert topics(assign={first: {"broker-a": [1]}}) == [(first, 1)]


def test_offsets_per_queue(spark, cluster, orders):
    start = {
        "orders": {"broker-a": {"0": 28, "1": -1, "2": -2}, "broker-b": {"0": -1, "1": -1, "2": -1, "3": -1}}
    }
    end = {"orders": {"broker-a": {"2": 1, "3": 2}}}
    rows = source(spark, cluster, topic=orders, startingOffsets=start, endingOffsets=end).load().collect()

    found = sorted((row.brokerName, row.queueId, row.queueOffset) for row in rows)

    assert found == [
        ("broker-a", 0, 28), ("broker-a", 0, 29), ("broker-a", 2, 0), ("broker-a", 3, 0), ("broker-a", 3, 1)
    ]  # fmt: skip


def test_times_instead_of_offsets(spark, cluster):
    topic = next(names)
    cluster.create_topic(topic, queues=2)
    send(cluster, topic, [b"a 1", b"a 2"], queues=2)
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    send(cluster, topic, [b"b 1", b"b 2"], queues=2)
    assign = {topic: {"broker-a": [0, 1]}}

    def bodies(**options):
        return bodies_of(source(spark, cluster, assign=assign, **options).load())

    assert bodies(startingTimestamp=between) == [b"b 1", b"b 2"]
    assert bodies(endingTimestamp=between) == [b"a 1", b"a 2"]
    assert bodies(startingOffsetsByTimestamp={topic: {"broker-a": {"0": between}}}) == [
        b"a 2",
        b"b 1",
        b"b 2",
    ]
    assert bodies(endingOffsetsByTimestamp={topic: {"broker-a": {"0": between}}}) == [b"a 1", b"a 2", b"b 2"]
    late = between + 3_600_000
    with pytest.raises(Exception, match=r"startingTimestamp.*has no message at"):
        bodies(startingTimestamp=late)
    assert bodies(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []


def test_tags_and_sql_are_filtered_by_the_broker(spark, cluster, orders):
    def pulled():
        stats = [broker.stats.group(orders, "counting") for broker in cluster.brokers]
        return sum(stat.queue(number).messages for stat in stats for number in range(4))

    before = pulled()
    even = numbers(source(spark, cluster, topic=orders, group="counting", tags="even").load())
    by_tags = pulled() - before
    frame = source(spark, cluster, topic=orders, group="counting").load().where("tags = 'odd'")
    odd = numbers(frame)
    by_filter = pulled() - before - by_tags

    assert even == list(range(0, COUNT, 2))
    assert odd == list(range(1, COUNT, 2))
    assert by_tags == by_filter == COUNT // 2


def test_sql_expressions(spark, tmp_path):
    with Cluster(config={"enablePropertyFilter": "true"}) as cluster:
        cluster.create_topic("filtered", queues=2)
        send(
            cluster,
            "filtered",
            (b"m %d" % n for n in range(50)),
            queues=2,
            properties=lambda n: {"n": str(n)},
        )

        frame = source(spark, cluster, topic="filtered", sql="n BETWEEN 10 AND 20").load()

        assert numbers(frame) == list(range(10, 21))


def test_filters_reach_queues_and_offsets(cluster, orders):
    from pyspark.sql import datasource as ds

    road = BrokerRoad({"namesrv": cluster.namesrv, "topic": orders}, ("body",))
    left = road.narrow(
        [
            ds.EqualTo(("queueId",), 2),
            ds.GreaterThan(("queueOffset",), 10),
            ds.LessThanOrEqual(("queueOffset",), 12),
        ]
    )
    parts = road.plan()

    assert left == []
    assert sum(part.records for part in parts) == 2 * 2


def test_partitions_are_cut_and_put_together(cluster, orders):
    def sizes(**options):
        road = BrokerRoad({"namesrv": cluster.namesrv, "topic": orders, **options}, ("body",))
        return [part.records for part in road.plan()]

    assert sizes() == [COUNT // 2, COUNT // 2]  # small: one task for each broker
    assert max(sizes(maxRecordsPerPartition="20")) <= 20
    assert sum(sizes(maxRecordsPerPartition="20")) == COUNT
    assert len(sizes(minPartitions="16")) >= 16
    assert len(sizes(minPartitions="3")) == 8  # one for each queue is enough


def test_inner_batches_are_unfolded_once(spark, cluster):
    from kourou.message import Message, encode_batch

    topic = next(names)
    cluster.create_topic(topic, queues=1, attributes="+queue.type=BatchCQ")
    for batch in range(20):
        messages = [Message(topic, b"inner %03d" % (batch * 7 + n), {"TAGS": "x"}) for n in range(7)]
        fields = {
            "a": "tests", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
            "i": f"INNER_NUM\x017\x02UNIQ_KEY\x01{batch:032X}\x02", "j": "0", "k": "false", "m": "true",
        }  # fmt: skip
        cluster.call(
            cluster.broker_addresses[0], RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(messages)
        )

    assign = {topic: {"broker-a": [0]}}
    assert numbers(source(spark, cluster, assign=assign).load()) == list(range(140))
    start, end = ({topic: {"broker-a": {"0": offset}}} for offset in (10, 90))
    part = source(spark, cluster, assign=assign, startingOffsets=start, endingOffsets=end).load()
    assert numbers(part) == list(range(10, 90))


def test_what_retention_took_is_data_loss(spark, tmp_path):
    with Cluster(directory=tmp_path) as cluster:
        cluster.create_topic("old", queues=1)
        send(cluster, "old", (b"m %d" % n for n in range(10)), queue=0)
        start = {"old": {"broker-a": {"0": 4}}}
        end = {"old": {"broker-a": {"0": 40}}}
        with pytest.raises(Exception, match="old-broker-a-0 ends at 10, before 40"):
            source(spark, cluster, topic="old", startingOffsets=start, endingOffsets=end).load().collect()
        frame = source(
            spark, cluster, topic="old", startingOffsets=start, endingOffsets=end, failOnDataLoss="false"
        ).load()
        assert numbers(frame) == [4, 5, 6, 7, 8, 9]


def test_a_pull_of_offsets_that_are_gone_names_them(cluster, orders):
    gone = QueueRange("orders", "broker-a", 0, 25, 64)
    with pytest.raises(OffsetsGoneError, match="orders-broker-a-0: offsets 30 to"):
        list(puller_of(cluster, gone).pieces())
    assert b"".join(puller_of(cluster, gone, fail_on_data_loss=False).pieces()).count(b"order ") == 5


def puller_of(cluster, wanted, **more):
    settings = PullSettings(net=NetSettings(), group="tests", **more)
    view = ClusterView(cluster.namesrv, settings.net)
    view.route(wanted.topic)
    return QueuePuller(wanted, settings, Source(view, wanted, view.servers(wanted.broker_name)))


def test_pulls_are_as_many_as_the_broker_makes_necessary(cluster):
    topic = next(names)
    cluster.create_topic(topic, queues=1)
    send(cluster, topic, (b"x" * 100 for _ in range(640)), queue=0)
    puller = puller_of(cluster, QueueRange(topic, "broker-a", 0, 0, 640))

    assert b"".join(puller.pieces()).count(b"x" * 100) == 640
    assert puller.pulls <= 2 * 640 // 32


def test_a_lost_connection_costs_no_record(cluster):
    import socket

    topic = next(names)
    cluster.create_topic(topic, queues=1)
    send(cluster, topic, (b"record %04d" % n for n in range(900)), queue=0)
    puller = puller_of(cluster, QueueRange(topic, "broker-a", 0, 0, 900), depth=4)
    bodies, channels = [], set()
    for number, body in enumerate(puller._bodies()):
        bodies.append(bytes(body))
        channels.add(puller._channel)
        if number == 3:
            puller._channel._socket.shutdown(socket.SHUT_RDWR)

    joined = b"".join(bodies)
    assert [joined.count(b"record %04d" % n) for n in range(900)] == [1] * 900
    assert len(channels) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option topic: name what to read"),
        ({"topic": "a", "pattern": "b"}, "option pattern: it contradicts topic"),
        ({"topic": "orders", "startingOffsets": "tomorrow"}, "option startingOffsets"),
        ({"topic": "orders", "startingOffsets": "latest"}, "option startingOffsets"),
        ({"topic": "orders", "endingOffsets": "earliest"}, "option endingOffsets"),
        ({"topic": "orders", "startingOffsets": "{}", "startingTimestamp": "1"}, "option startingTimestamp"),
        ({"topic": "orders", "startingOffsets": '{"orders": {"broker-x": {"0": 1}}}'}, "broker-x-0 is no"),
        ({"topic": "orders", "endingOffsets": '{"orders": {"broker-a": {"0": -2}}}'}, "option endingOffsets"),
        ({"topic": "orders", "startingOffsetsByTimestampStrategy": "latest"}, "Strategy: it needs"),
        ({"topic": "orders", "minPartitions": "0"}, "option minPartitions"),
        ({"topic": "orders", "failOnDataLoss": "maybe"}, "option failOnDataLoss"),
        ({"topic": "orders", "fetchRetries": "often"}, "option fetchRetries"),
        ({"topic": "orders", "requestTimeout": "soon"}, "option requestTimeout"),
        ({"topic": "orders", "tags": "a", "sql": "b = 1"}, "option sql: it contradicts tags"),
        ({"topic": "orders", "accessKey": "a"}, "option accessKey: it needs secretKey"),
        ({"topic": "orders", "tlsConfig": "x", "tls": "false"}, "option tlsConfig"),
        ({"topic": "orders", "maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger"),
        ({"pattern": "("}, "option pattern"),
        ({"assign": '{"orders": 1}'}, "option assign"),
        ({"assign": '{"orders": {"broker-a": [9]}}'}, "option assign: orders-broker-a-9"),
        ({"topic": "nobody-made-me", "waitTimeout": "0s"}, "no name server knows topic nobody-made-me"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_by_name(cluster, orders, options, said):
    with pytest.raises(Exception, match=said):
        BrokerRoad(
            {"namesrv": cluster.namesrv, **{k.lower(): v for k, v in options.items()}}, ("body",)
        ).plan()


def test_a_cluster_that_is_not_there_is_an_error_that_says_so(cluster):
    road = BrokerRoad({"namesrv": "127.0.0.1:1", "topic": "a", "fetchretries": "0"}, ("body",))
    with pytest.raises(Exception, match=r"no name server answers: cannot connect to 127\.0\.0\.1:1"):
        road.plan()


def test_a_wrong_option_reaches_the_user_of_spark(spark, cluster, orders):
    with pytest.raises(Exception, match="option minPartitions"):
        source(spark, cluster, topic=orders, minPartitions="many").load().collect()

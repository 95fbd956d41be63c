"""Store directories as tables: every golden store is read as Java reads it, by both roads."""

from __future__ import annotations

import base64
import inspect
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from kourou.message import sysflag
from kourou.spark import read_store, session
from kourou.spark.schema import ALL_COLUMNS
from kourou.spark.session import PUSH_DOWN
from support.recorded.golden import GOLDEN_STORES


def expected_rows(records):
    """What Java decodes, as rows: inner batches unfolded, bodies as they were sent."""
    rows = []
    for record in records:
        if record["sysFlag"] & sysflag.TRANSACTION_PREPARED:
            continue
        if "inner" not in record:
            rows.append(expected_row(record, {}))
        for inner in record.get("inner", ()):
            rows.append(expected_row(record, inner))
    return sorted(rows, key=lambda row: (row["physicalOffset"], row["queueOffset"]))


def expected_row(record, inner):
    properties = inner.get("properties", record["properties"])
    unfolded = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP | sysflag.COMPRESSED | sysflag.COMPRESSION_MASK
    sys_flag = record["sysFlag"] & ~unfolded if inner else record["sysFlag"]
    body = inner.get("body") or record.get("decompressedBody") or record["body"]
    return {
        "topic": record["topic"],
        "brokerName": "broker-a",
        "queueId": record["queueId"],
        "queueOffset": inner.get("queueOffset", record["queueOffset"]),
        "physicalOffset": record["physicalOffset"],
        "msgId": inner.get("msgId", record["msgId"]),
        "uniqKey": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "body": base64.b64decode(body),
        "properties": properties,
        "bornTimestamp": record["bornTimestamp"],
        "storeTimestamp": record["storeTimestamp"],
        "bornHost": record["bornHost"],
        "storeHost": record["storeHost"],
        "sysFlag": sys_flag,
        "flag": record["flag"],
        "reconsumeTimes": record["reconsumeTimes"],
        "transactionOffset": record["preparedTransactionOffset"],
        "bodyError": None,
    }


def rows_of(frame):
    """The rows of a DataFrame in the order of the log, times as milliseconds."""
    rows = []
    for row in frame.collect():
        fields = row.asDict()
        for name in ("bornTimestamp", "storeTimestamp"):
            if name in fields:
                moment = fields[name].astimezone(UTC)
                fields[name] = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        fields["body"] = bytes(fields.get("body") or b"")
        rows.append(fields)
    return sorted(rows, key=lambda row: (row["physicalOffset"], row["queueOffset"]))


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_a_golden_store_is_read_as_java_reads_it(spark, golden_store, name):
    store = golden_store(name)
    expected = expected_rows(store.expected["commitlog"]["records"])

    by_source = spark.read.format("rocketmq").option("brokerName", "broker-a").load(str(store.path))
    by_map = read_store(spark, str(store.path), broker_name="broker-a")

    assert by_source.columns == list(ALL_COLUMNS)
    found = rows_of(by_source)
    assert rows_of(by_map) == found
    if (
        name == "batchcq"
    ):  # each message of an inner batch has a flag of its own, which the expected data leaves out
        assert {row.pop("flag") for row in found} >= {row.pop("flag") for row in expected}
    assert found == expected


@pytest.mark.parametrize("range_bytes", [500, 4000, 70_000])
def test_ranges_of_any_size_give_each_record_once(spark, golden_store, range_bytes):
    store = golden_store("plain")
    frame = read_store(spark, str(store.path), ["physicalOffset", "queueOffset"], range_bytes=range_bytes)

    offsets = [row.physicalOffset for row in frame.collect()]

    assert sorted(offsets) == [record["physicalOffset"] for record in store.expected["commitlog"]["records"]]


def test_several_stores_are_one_table(spark, golden_store):
    plain, batch = golden_store("plain"), golden_store("batch")
    counts = [len(store.expected["commitlog"]["records"]) for store in (plain, batch)]

    with_comma = spark.read.format("rocketmq").load(f"{plain.path},{batch.path}")
    as_list = spark.read.format("rocketmq").load([str(plain.path), str(batch.path)])

    assert with_comma.count() == as_list.count() == sum(counts)


def test_a_schema_is_a_projection(spark, golden_store):
    store = golden_store("plain")

    frame = spark.read.format("rocketmq").schema("tags string, queueId int").load(str(store.path))

    assert frame.columns == ["tags", "queueId"]
    assert frame.count() == len(expected_rows(store.expected["commitlog"]["records"]))


@pytest.mark.parametrize(
    ("schema", "said"), [("colour string", "colour"), ("topic binary", "topic is string")]
)
def test_a_schema_that_does_not_fit_is_refused(spark, golden_store, schema, said):
    with pytest.raises(Exception, match=said):
        spark.read.format("rocketmq").schema(schema).load(str(golden_store("plain").path)).collect()


def test_bodies_stay_compressed_if_told(spark, golden_store):
    store = golden_store("batch")
    frame = spark.read.format("rocketmq").option("decompress", "false").load(str(store.path))

    assert [row["body"] for row in rows_of(frame)] == [
        base64.b64decode(record["body"]) for record in store.expected["commitlog"]["records"]
    ]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("rangeBytes", "many", "rangeBytes"),
        ("decompress", "perhaps", "decompress"),
        ("readBy", "magic", "readBy"),
        ("rangeByte", "1m", "did you mean rangeBytes"),
        ("topics", "a", "topics: it contradicts topic"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(spark, golden_store, option, value, said):
    reader = spark.read.format("rocketmq").option(option, value)
    if option == "topics":
        reader = reader.option("topic", "b")
    with pytest.raises(Exception, match=said):
        reader.load(str(golden_store("plain").path)).collect()


def test_no_store_is_an_error_that_names_the_path(spark, tmp_path):
    with pytest.raises(Exception, match="is no RocketMQ store"):
        spark.read.format("rocketmq").load(str(tmp_path)).collect()


def test_a_view_in_sql(spark, golden_store):
    store = golden_store("plain")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW plain USING rocketmq OPTIONS (path '{store.path}')")

    counts = {
        row.topic: row.n for row in spark.sql("SELECT topic, count(*) n FROM plain GROUP BY topic").collect()
    }

    topics = [record["topic"] for record in store.expected["commitlog"]["records"]]
    assert counts == {topic: topics.count(topic) for topic in topics}


def test_a_session_as_it_is_made_answers_query_after_query_of_one_frame(spark, golden_store):
    """Spark 4.3 keeps the filters of one query for the next where they are pushed: by default none are."""
    made = inspect.signature(session).parameters["push_filters"].default
    other = spark.newSession()
    other.conf.set(PUSH_DOWN, str(made).lower())
    store = golden_store("plain")
    frame = other.read.format("rocketmq").load(str(store.path))

    some = frame.where(F.col("queueId") == 1).count()

    assert 0 < some < frame.count() == len(store.expected["commitlog"]["records"])


def test_without_the_conf_nothing_is_pushed_and_the_answers_are_the_same(spark, golden_store):
    store = golden_store("plain")
    frame = spark.read.format("rocketmq").load(str(store.path)).where(F.col("queueId") == 1)
    pushed = rows_of(frame)
    spark.conf.set(PUSH_DOWN, "false")
    try:
        plain = rows_of(spark.read.format("rocketmq").load(str(store.path)).where(F.col("queueId") == 1))
    finally:
        spark.conf.set(PUSH_DOWN, "true")
    assert plain == pushed != []

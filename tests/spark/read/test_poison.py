"""Bodies that nobody can read, by every road of Spark: a row each, with the reason; none is missing."""

from __future__ import annotations

import pytest

from kourou.message import sysflag
from kourou.message.compression import CompressionType, compress
from kourou.spark import read_store
from kourou.spark.channel import close_channels
from kourou.spark.jobs.archive import archive
from kourou.spark.jobs.audit import audit
from kourou.spark.jobs.inputs import read_archive
from kourou.spark.jobs.replay import replay
from kourou.testing import Cluster
from support.poison import BAD_BATCHES, POISON, Poison, bomb
from support.spark import send
from support.stores.store import message, open_store, put, small_config

HONEST = [b"plain", *(b"honest %d " % kind * 40 for kind in CompressionType)]
BOMBS = {
    f"{kind.name} bomb": Poison(kind.sys_flag, bomb(kind), "body inflates to more than 268435456 bytes")
    for kind in CompressionType
}
BAD = {name: poison for name, poison in (POISON | BOMBS).items() if poison.body}
COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        running.create_topic("poisoned", queues=2)
        honest = [
            (0, HONEST[0]),
            *((k.sys_flag, compress(b, k)) for k, b in zip(CompressionType, HONEST[1:])),
        ]
        sent = [*honest, *((poison.sys_flag, poison.body) for poison in BAD.values()), *honest]
        send(running, "poisoned", [body for _, body in sent], queues=2, sys_flag=lambda n: sent[n][0])
        yield running
    close_channels()


@pytest.fixture
def store(cluster):
    return str(cluster.directory / "broker-a")


def by_broker(spark, cluster, **options):
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", "poisoned")
    return reader.options(**options).load()


def by_files(spark, store, **options):
    return spark.read.format("rocketmq").option("topic", "poisoned").options(**options).load(store)


def check_rows(rows):
    """Every message is a row: honest ones as they were sent, others as they are stored, with the reason."""
    assert sorted(bytes(row.body) for row in rows if row.bodyError is None) == sorted(HONEST * 2)
    found = {(bytes(row.body), row.sysFlag): row.bodyError for row in rows if row.bodyError is not None}
    assert found.keys() == {(poison.body, poison.sys_flag) for poison in BAD.values()}
    for poison in BAD.values():
        assert found[poison.body, poison.sys_flag].startswith(poison.why)
    assert len(rows) == len(HONEST) * 2 + len(BAD)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_batch_query_has_a_row_for_each(spark, cluster, store, loss):
    """One of them failed every read of the topic, whatever failOnDataLoss said."""
    check_rows(by_broker(spark, cluster, failOnDataLoss=loss).collect())
    check_rows(by_files(spark, store, failOnDataLoss=loss).collect())
    check_rows(by_files(spark, store, failOnDataLoss=loss, readBy="queues").collect())
    check_rows(read_store(spark, store, topics="poisoned").collect())


def test_a_stream_has_a_row_for_each(spark, cluster, tmp_path):
    reader = spark.readStream.format("rocketmq").option("namesrv", cluster.namesrv)
    frame = reader.option("topic", "poisoned").option("startingOffsets", "earliest").load()
    query = frame.writeStream.format("memory").queryName("poison").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(120)
    check_rows(spark.sql("select * from poison").collect())


def test_an_option_has_the_query_fail(spark, cluster, store):
    for frame in (
        by_broker(spark, cluster, failOnBadBody="true"),
        by_files(spark, store, failOnBadBody="true"),
        by_files(spark, store, failOnBadBody="true").select("body"),
        read_store(spark, store, ["body"], topics="poisoned", fail_on_bad_body=True),
    ):
        with pytest.raises(Exception, match=r"of topic poisoned at physical offset .* cannot be read: body"):
            frame.collect()
    assert by_files(spark, store, failOnBadBody="true", decompress="false").count() == len(BAD) + 8
    columns = read_store(spark, store, ["queueId"], topics="poisoned", fail_on_bad_body=True)
    assert columns.count() == len(BAD) + 8  # no body is read


def test_only_bodies_and_only_reasons(spark, store):
    bodies = read_store(spark, store, ["body"], topics="poisoned").collect()
    reasons = read_store(spark, store, ["bodyError"], topics="poisoned").where("bodyError is not null")
    assert len(bodies) == len(BAD) + len(HONEST) * 2
    assert reasons.count() == len(BAD)


def test_batches_that_are_none_are_rows(spark, tmp_path):
    config = small_config(tmp_path)
    with open_store(config, is_batch_topic=lambda topic: topic == "batches") as opened:
        for poison in BAD_BATCHES.values():
            bad = message("batches", 0, poison.body, sys_flag=poison.sys_flag, INNER_NUM="3")
            put(opened, bad, message("others", 0, b"beside"))
    rows = read_store(spark, config.store_path_root_dir).collect()
    found = {bytes(row.body): row.bodyError for row in rows}
    assert found.pop(b"beside") is None
    assert len(rows) == 2 * len(BAD_BATCHES)
    assert found.keys() == {poison.body for poison in BAD_BATCHES.values()}
    assert all(found[poison.body].startswith(poison.why) for poison in BAD_BATCHES.values())


def test_an_audit_names_them(spark, cluster, store):
    for source in (store, cluster.namesrv):
        report = audit(spark, source, topics=["poisoned"])
        assert report.messages == len(BAD) + len(HONEST) * 2
        assert len(report.tables["bodies"]) == len(BAD) == report.faults
        assert {row["error"].split(":")[0] for row in report.tables["bodies"]} >= {
            "body inflates to more than 268435456 bytes", "body does not decompress as LZ4",
        }  # fmt: skip


def stored(frame):
    """What the log has of messages, whoever may read it."""
    return sorted((bytes(row.body), row.sysFlag & COMPRESSION) for row in frame.collect())


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_an_archive_keeps_their_bytes_and_a_replay_writes_the_same(
    spark, cluster, tmp_path, format, delivery
):
    if format != "parquet":
        pytest.importorskip("deltalake")
    target = f"again-{format}-{delivery}"
    cluster.create_topic(target, queues=2)
    archive(spark, cluster.namesrv, tmp_path / "a", topics=["poisoned"], format=format)
    check_rows(read_archive(spark, str(tmp_path / "a")).collect())

    report = replay(
        spark, str(tmp_path / "a"), cluster.namesrv, target, options={"delivery": delivery, "group": target}
    )
    assert report.messages == len(BAD) + len(HONEST) * 2
    reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", target)
    check_rows(reader.load().collect())
    again = reader.option("decompress", "false").load()
    assert [item for item in stored(again) if item[1]] == sorted(
        (poison.body, poison.sys_flag & COMPRESSION) for poison in BAD.values()
    )


def test_columns_of_json_bodies_are_not_made_of_bodies_that_cannot_be_read(spark, tmp_path):
    """Their bytes are all that there is: they stay, whatever is dropped."""
    config = small_config(tmp_path)
    flag, body = CompressionType.ZSTD.sys_flag, b'{"n": 1}'
    with open_store(config) as opened:
        put(opened, message("t", 0, body, sys_flag=flag), message("t", 0, b'{"n": 2}'))
    archive(spark, config.store_path_root_dir, tmp_path / "a", json_columns=True, drop_body=True)
    rows = read_archive(spark, str(tmp_path / "a")).collect()
    assert sorted((row.n or 0, bytes(row.body or b"")) for row in rows) == [(0, body), (2, b"")]


def forget_column(target, format):
    """An archive as it was before there was a column bodyError."""
    if format == "parquet":
        import pyarrow.parquet as pq

        for path in target.glob("topic=*/day=*/*.parquet"):
            pq.write_table(pq.ParquetFile(path).read().drop_columns(["bodyError"]), path)
        return
    if format == "delta":
        from deltalake import DeltaTable, write_deltalake

        table = DeltaTable(target).to_pyarrow_table().drop_columns(["bodyError"])
        write_deltalake(
            target, table, mode="overwrite", schema_mode="overwrite", partition_by=["topic", "day"]
        )
        return
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("kourou", uri=f"sqlite:///{target}/catalog.db", warehouse=f"file://{target}")
    table = catalog.load_table("kourou.messages")
    rows = table.scan().to_arrow().drop_columns(["bodyError"])
    with table.update_schema() as update:
        update.delete_column("bodyError")
    table.overwrite(rows)


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_an_archive_that_was_begun_without_the_column_goes_on(spark, tmp_path, format):
    if format != "parquet":
        pytest.importorskip("deltalake")
    config, target = small_config(tmp_path), tmp_path / "a"
    flag, root = CompressionType.ZSTD.sys_flag, config.store_path_root_dir
    with open_store(config) as opened:
        put(opened, message("t", 0, b"old"))
    archive(spark, root, target, format=format)
    forget_column(target, format)
    assert [row.bodyError for row in read_archive(spark, str(target)).collect()] == [None]
    for number, body in enumerate((b"garbage", b"rubbish")):
        with open_store(config) as opened:
            put(opened, message("t", 0, body, sys_flag=flag))
        assert archive(spark, root, target, compact=number == 1).rows == 1
    found = {bytes(row.body): row.bodyError is None for row in read_archive(spark, str(target)).collect()}
    assert found == {b"old": True, b"garbage": False, b"rubbish": False}

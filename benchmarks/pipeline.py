"""The pipeline on Spark: store, broker and archive as tables, beside Spark's Parquet scan of the same rows.

All figures are rows a second of one run on one machine, and their limit is what Spark does with Parquet, so
the share is the ratio that counts. Rows go to Spark's noop sink.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import Row, messages, open_store, scratch

if TYPE_CHECKING:
    from kourou.store import MessageStore

LOG_BYTES = int(os.environ.get("BENCH_PIPELINE_BYTES", 1024**3))
BODY_BYTES = 128
ROUNDS = 3
SINK_ROWS = 1_000_000
MESSAGES_A_PULL = (32, 1024)  # what brokers give by default, and what they may be told to
TOPICS = 14  # so that one of them is 7 % of the log
NARROW = ["topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bornTimestamp", "sysFlag",
          "reconsumeTimes", "tags", "keys", "body"]  # fmt: skip
WITH_MAP = [*NARROW, "properties"]
FOUR = ["topic", "queueId", "queueOffset", "body"]


def run() -> list[Row]:
    """Rows for the store road, the broker road, the sink and the archive."""
    from kourou.spark import session

    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    with scratch() as root:
        conf = {
            "spark.driver.memory": "3g",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(root / "spark"),
            "spark.driver.host": "127.0.0.1",
        }
        spark = session("benchmark", conf=conf, push_filters=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            return [*_store_rows(spark, root), *_broker_rows(spark), *_micro_batch_rows(spark, root)]
        finally:
            spark.stop()


def _store_rows(spark: Any, root: Path) -> list[Row]:
    from kourou.spark import read_store
    from kourou.spark.jobs.archive import archive
    from kourou.spark.schema import ddl

    store = root / "store"
    with open_store(store) as opened:
        count = _fill(opened)
    parquet = str(root / "parquet")
    read_store(spark, str(store), WITH_MAP).write.parquet(parquet)

    def source(columns: list[str]) -> Any:
        return spark.read.format("rocketmq").schema(ddl(columns)).load(str(store))

    def copy() -> None:
        spark.read.parquet(parquet).write.mode("overwrite").parquet(str(root / "copy"))

    numbers = itertools.count()

    def to_archive() -> None:
        archive(spark, str(store), root / f"archive{next(numbers)}", compact=False)

    rows = []
    for name, columns, own_ratio, source_ratio in (
        ("11 columns", NARROW, 1.0, 0.75), ("with the map", WITH_MAP, 1.0, 0.85),
        ("4 columns", FOUR, 1.0, 0.5),
    ):  # fmt: skip
        limit, own, sources = _rates(
            count,
            spark.read.parquet(parquet).select(*columns),
            read_store(spark, str(store), columns),
            source(columns),
        )
        rows.append(_row(f"read_store, {name}", own, limit, own_ratio))
        rows.append(_row(f"format(rocketmq), {name}", sources, limit, source_ratio))
    rows.append(
        _row("the bytes of the log, read", _best(lambda: _timed(count, lambda: _read(store))), limit, None)
    )
    one = "topic = 'bench3'"
    limit, pushed = _rates(
        count, spark.read.parquet(parquet).select(*NARROW).where(one), source(NARROW).where(one)
    )
    rows.append(_row("format(rocketmq), one of 14 topics", pushed, limit, 1.3))
    copied = _best(lambda: _timed(count, copy))
    archived = _best(lambda: _timed(count, to_archive))
    limit_is = "a Parquet to Parquet copy by Spark, 12 columns"
    memory = Row("Python worker, memory", _worker_mb(spark), 300, "MB", "the goal", 300, lower_is_better=True)
    return [*rows, _row("archive, all columns", archived, copied, 1.5, limit_is), memory]


def _read(store: Path) -> None:
    """What a file can be read with, and no more."""
    for path in sorted((store / "commitlog").iterdir()):
        with open(path, "rb", buffering=0) as file:
            left, block = LOG_BYTES, bytearray(1 << 20)
            while left > 0 and (got := file.readinto(block)):
                left -= got


def _worker_mb(spark: Any) -> float:
    """The memory of a worker that was used for all of the above, without the pages of mapped files."""

    def own_memory(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            pass
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        yield pa.RecordBatch.from_pydict({"kb": [int(lines["RssAnon"].split()[0])]})

    rows = spark.range(0, 8, 1, 8).mapInArrow(own_memory, "kb bigint").collect()
    return max(float(row.kb) for row in rows) / 1000


def _fill(store: MessageStore) -> int:
    """Messages of several topics, until the log is as large as it should be; how many."""
    for number, message in enumerate(messages(BODY_BYTES, 1 << 40)):
        if store.commit_log.max_offset >= LOG_BYTES:
            return number
        message.topic = f"bench{number % TOPICS}"
        message.body = _order(number)
        store.put_message(message)
    raise AssertionError("there is no end of messages")


def _order(number: int) -> bytes:
    """A body that is no other's: of one body for all, Parquet would keep one and no scan would read any."""
    customer = hashlib.md5(number.to_bytes(8, "big")).hexdigest()
    text = f'{{"order":{number},"customer":"{customer}","amount":{number * 7919 % 99991 / 100},"items":['
    return (
        f'{text}{number * 31 % 97},{number * 17 % 89}],"note":"'.ljust(BODY_BYTES - 2, "-").encode() + b'"}'
    )


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _broker_rows(spark: Any) -> list[Row]:
    from kourou.remoting.protocol.codes import RequestCode
    from kourou.spark import read_store
    from kourou.spark.channel import NetSettings, call
    from kourou.spark.schema import ddl
    from kourou.testing import Cluster

    # Java's sizes: small files would be made all the time.
    sizes = {"mappedFileSizeCommitLog": str(1024**3), "mappedFileSizeConsumeQueue": str(20 * 300_000)}
    with Cluster(config=sizes) as cluster:

        def rows(count: int) -> Any:
            return spark.range(count).selectExpr(
                f"rpad(concat(id, ' ', md5(string(id))), {BODY_BYTES}, '-') AS body",
                "'TagA' AS tags",
                "array(concat('order-', id)) AS keys",
            )

        def send(topic: str, count: int, delivery: str = "at-least-once") -> float:
            cluster.create_topic(topic, queues=8)
            writer = rows(count).write.format("rocketmq").mode("append").option("namesrv", cluster.namesrv)
            writer = writer.option("delivery", delivery)
            return _timed(count, lambda: writer.option("topic", topic).save())

        send("first", SINK_ROWS // 20)  # until the workers run
        sent = send("bench", SINK_ROWS)
        plain, once = 0.0, 0.0
        for turn in range(ROUNDS):  # as many rows each, in turns: what it costs to begin is the same for both
            plain = max(plain, send(f"plain{turn}", SINK_ROWS // 5))
            once = max(once, send(f"once{turn}", SINK_ROWS // 5, "exactly-once"))
        noop = _timed(SINK_ROWS, lambda: _drain(rows(SINK_ROWS)))
        store = str(cluster.directory / "broker-a")  # type: ignore[operator]

        def pull(columns: list[str]) -> Any:
            reader = spark.read.format("rocketmq").schema(ddl(columns)).option("namesrv", cluster.namesrv)
            return reader.option("topic", "bench").load()

        reads = []
        for most in MESSAGES_A_PULL:
            setting = f"maxTransferCountOnMessageInMemory={most}".encode()
            address = cluster.broker_addresses[0]
            call(address, NetSettings(), RequestCode.UPDATE_BROKER_CONFIG, {}, "its settings", setting)
            for name, columns in (("11 columns", NARROW), ("4 columns", FOUR)):
                scanned, pulled = _rates(
                    SINK_ROWS, read_store(spark, store, columns, topics="bench"), pull(columns)
                )
                what = f"broker read, {name}, {most} a pull"
                reads.append(_row(what, pulled, scanned, 0.5, "read_store of the same"))
        return [
            *reads,
            Row("sink into a broker", sent, noop, "rows/s", "the same rows to nowhere", 100_000),
            Row("sink, exactly once", once, plain, "rows/s", "at least once, as many rows", 15_000),
        ]


def _micro_batch_rows(spark: Any, root: Path) -> list[Row]:
    from kourou.testing import Cluster

    def median_ms(frame: Any, name: str, feed: Callable[[], None]) -> float:
        query = frame.writeStream.format("noop").option("checkpointLocation", str(root / name)).start()
        try:
            deadline = time.monotonic() + 60
            while (
                len([p for p in query.recentProgress if p.numInputRows]) < 12 and time.monotonic() < deadline
            ):
                assert query.exception() is None, query.exception()
                feed()
                time.sleep(0.05)
            times = sorted(p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows)
        finally:
            query.stop()
        return float(times[len(times) // 2])

    with Cluster() as cluster:
        cluster.create_topic("small", queues=2)
        feed = _feeder(cluster)
        frame = (
            spark.readStream.format("rocketmq")
            .option("namesrv", cluster.namesrv)
            .option("topic", "small")
            .load()
        )
        own = median_ms(frame, "own", feed)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    sparks = median_ms(rate, "rate", lambda: None)
    return [
        Row("micro-batch, small", own, sparks, "ms", "rate-micro-batch", 2 * sparks, lower_is_better=True)
    ]


def _feeder(cluster: Any) -> Callable[[], None]:
    from kourou.message import Message
    from kourou.spark.channel import NetSettings
    from kourou.spark.cluster import ClusterView
    from kourou.spark.write.send import BatchSender

    sender = BatchSender(ClusterView(cluster.namesrv, NetSettings()), group="bench")

    def feed() -> None:
        for number in range(1000):
            sender.add(Message("small", b"x" * BODY_BYTES, {"UNIQ_KEY": f"{number:032X}"}))
        sender.flush()

    return feed


def _row(
    what: str, measured: float, limit: float, ratio: float | None, limit_is: str = "Spark's Parquet scan"
) -> Row:
    expected = None if ratio is None else ratio * limit
    return Row(what, measured, limit, "rows/s", limit_is, expected)


def _rates(count: int, *frames: Any) -> list[float]:
    """Rows a second of each, the best of some rounds, in which they take turns.

    The first rounds of a JVM are slow, and a machine is not always as fast: what is run in one go would be
    compared with another machine.
    """
    rates = [0.0] * len(frames)
    for _ in range(3 * ROUNDS):
        for number, frame in enumerate(frames):
            rates[number] = max(rates[number], _timed(count, partial(_drain, frame)))
    return rates


def _timed(count: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def _best(work: Callable[[], float]) -> float:
    return max(work() for _ in range(ROUNDS))

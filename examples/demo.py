"""The first minute: a RocketMQ, a day of orders, a pipeline on Spark, and a look into the broker's files.

    python examples/demo.py [--orders 10000] [--directory kourou-demo]

A name server and a broker run inside this program and are gone at its end. Orders are sent to them, and read
by a Python consumer; Spark brings them to Parquet, and to another topic an invoice for each that is paid,
exactly once; a consumer of that topic fills the table. Then Spark reads the files of the broker, which goes
on running, and audits them. What was written stays in the directory: the store, the table and the report.

Spark, and a Java where there is none, come with the extra `spark`. Without it the broker's part is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kourou.client import Message, Producer
from kourou.sync import PullConsumer
from kourou.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

ORDER = "order bigint, customer string, country string, product string, amount double, time timestamp"
COUNTRIES = {"FR": 30, "DE": 25, "BR": 20, "JP": 15, "GF": 10}
PRODUCTS = {"baguette": 2, "keyboard": 80, "bicycle": 700, "telescope": 400, "novel": 15}
STATES = {"paid": 85, "open": 10, "refunded": 5}
TOPICS = ["orders", "invoices"]
MICRO_BATCHES = 6
AT_ONCE = 200  # sends under way together
TIMEOUT_S = 420  # on a machine that does other things, too
MARK = ".kourou-demo"  # in a directory that may be removed by the next run
BAR_WIDTH = 30
BLOCKS = " ▁▂▃▄▅▆▇█"
console = Console(highlight=False)


def main() -> None:
    """The demonstration."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", type=int, default=10_000, help="how many orders (10000)")
    parser.add_argument("--directory", type=Path, default=Path("kourou-demo"), help="where files go")
    arguments = parser.parse_args()
    directory = make_directory(arguments.directory.absolute())
    # Half messages that wait longer are copied by the broker when it asks for them: the audit would show it.
    config = {"transactionTimeOut": str(1000 * TIMEOUT_S)}
    with Cluster(directory=directory / "cluster", config=config) as cluster:
        paid = show_broker(cluster, arguments.orders)
        missing = what_is_missing()
        if missing is None:
            with spark_session(directory) as spark:
                show_stream(spark, cluster, directory, arguments.orders, paid)
                show_store(spark, str(directory / "cluster" / "broker-a"), arguments.orders)
                show_audit(spark, str(directory / "cluster" / "broker-a"), directory / "audit")
    console.rule("Done")
    if missing is not None:
        say(f"The pipeline on Spark was left out: {escape(missing)}")
    say(f"Nothing is left running. The files are in {directory}; the next demonstration makes them anew.")


def make_directory(directory: Path) -> Path:
    """An empty directory; only one of an earlier demonstration is removed for it."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            sys.exit(f"{directory} is not empty, and not of an earlier demonstration: name another one")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    return directory


def what_is_missing() -> str | None:
    """What must be installed before Spark can run here."""
    if importlib.util.find_spec("pyspark") is None:
        return "it needs pyspark: pip install '.[spark]'"
    from kourou.spark.java import NEEDED, java_home

    return NEEDED if java_home() is None else None


# The broker


def show_broker(cluster: Cluster, orders: int) -> int:
    """Send orders, and consume some of them; how many are paid."""
    console.rule("1. A RocketMQ in this process")
    for topic in TOPICS:
        cluster.create_topic(topic, queues=4)
    say(f"Name server {cluster.namesrv}, broker {cluster.broker_addresses[0]}: for clients of any language")
    started = time.perf_counter()
    paid = asyncio.run(produce(cluster.namesrv, orders))
    seconds = time.perf_counter() - started
    say(f"{orders:,} orders sent and acknowledged, one by one, {orders / seconds:,.0f} a second.")
    with PullConsumer(
        cluster.namesrv, group="refunds", subscribe={"orders": "refunded"}, consume_from="first"
    ) as consumer:
        first = consumer.poll(timeout_s=10)
    for message in first[:3]:
        say(f"  refunded: {bytes(message.body).decode()}")
    return paid


async def produce(namesrv: str, orders: int) -> int:
    """Send a day of orders, with a bar; how many are paid."""
    paid = 0
    columns = TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("sending", total=orders)
        async with Producer(namesrv, group="shop", timeout_s=60) as producer:
            messages = make_orders(orders)
            while part := [message for _, message in zip(range(AT_ONCE), messages)]:
                await asyncio.gather(*(producer.send(message) for message in part))
                progress.advance(task, len(part))
                paid += sum(message.tags == "paid" for message in part)
    return paid


def make_orders(count: int) -> Iterator[Message]:
    """Orders of one day: few in the night, most at noon and in the evening."""
    rng = random.Random(1)
    hours = [
        1 + 5 * math.exp(-((hour - 12) ** 2) / 8) + 8 * math.exp(-((hour - 20) ** 2) / 6)
        for hour in range(24)
    ]
    seconds = sorted(3600 * hour + rng.randrange(3600) for hour in rng.choices(range(24), hours, k=count))
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for number, second in enumerate(seconds):
        customer, product = f"c-{rng.randrange(500)}", rng.choice(list(PRODUCTS))
        order = {
            "order": number, "customer": customer, "product": product, "country": pick(rng, COUNTRIES),
            "amount": round(PRODUCTS[product] * rng.lognormvariate(0, 0.4), 2),
            "time": (midnight + timedelta(seconds=second)).isoformat(),
        }  # fmt: skip
        yield Message(
            "orders", json.dumps(order).encode(), tags=pick(rng, STATES), keys=[f"order-{number}"],
            sharding_key=customer,
        )  # fmt: skip


def pick(rng: random.Random, weights: dict[str, int]) -> str:
    """One of these, by weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


# Spark


@contextlib.contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """A Spark of two threads; what it and its Java print goes to spark.log."""
    from kourou.spark import session

    conf = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "spark"), "spark.sql.warehouse.dir": str(directory / "spark"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }  # fmt: skip
    with console.status("starting Spark …"), output_to(directory / "spark.log"):
        spark = session("kourou demo", master="local[2]", conf=conf)
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Programs that are started meanwhile write there, for as long as they run."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def show_stream(spark: SparkSession, cluster: Cluster, directory: Path, orders: int, paid: int) -> None:
    """Topic to Parquet, and topic to topic; the table is filled from the second topic."""
    console.rule("2. Streams on Spark: topic → Parquet, topic → topic")
    queries: list[StreamingQuery] = []
    totals: dict[str, list[float]] = {}
    deadline = time.monotonic() + TIMEOUT_S

    def take_and_show() -> None:
        for message in consumer.poll(timeout_s=0.25, max_messages=AT_ONCE):
            invoice = json.loads(bytes(message.body))
            total = totals.setdefault(invoice["country"], [0, 0.0])
            total[0] += 1
            total[1] += invoice["amount"]
        live.update(totals_table(totals, queries))
        if any(query.exception() for query in queries) or time.monotonic() > deadline:
            sys.exit(f"the queries failed, or took too long: see {directory / 'spark.log'}")

    with (
        PullConsumer(cluster.namesrv, group="ledger", subscribe="invoices", consume_from="first") as consumer,
        Live(console=console, refresh_per_second=4) as live,
    ):
        # One after the other: two that share a plan were seen to disturb each other in Spark at their start.
        for writer in stream_writers(spark, cluster.namesrv, directory, orders):
            queries.append(writer.trigger(availableNow=True).start())
            while queries[-1].isActive:
                take_and_show()
        while counted(totals) < paid:
            take_and_show()
        take_and_show()
    if not console.is_terminal:
        console.print()  # where nothing is redrawn, the table has no end of line
    written = spark.read.parquet(str(directory / "orders")).count()
    if counted(totals) != paid or written != orders:
        sys.exit(f"WRONG: {counted(totals)} invoices for {paid} orders, {written} of {orders} in Parquet")
    say(f"{paid:,} orders are paid, each has one invoice; all {written:,} are in {directory / 'orders'}")


def stream_writers(spark: SparkSession, namesrv: str, directory: Path, orders: int) -> list[DataStreamWriter]:
    """The orders to Parquet, and an invoice for each that is paid to a topic."""
    from pyspark.sql import functions as f

    messages = (
        spark.readStream.format("rocketmq")
        .schema("body binary, tags string")
        .options(namesrv=namesrv, topic="orders", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", max(orders // MICRO_BATCHES, 1))
        .load()
    )
    read = parsed(messages)
    tax = f.round(f.col("amount") * 0.2, 2).alias("tax")
    invoices = read.where("state = 'paid'").select(
        f.to_json(f.struct("order", "customer", "country", "amount", tax)).alias("body"),
        f.col("country").alias("tags"),
        f.concat(f.lit("order-"), "order").alias("keys"),
        f.col("customer").alias("shardingKey"),
    )
    to_parquet = read.writeStream.format("parquet").partitionBy("country").queryName("to Parquet")
    to_topic = invoices.writeStream.format("rocketmq").queryName("to topic")
    to_topic = to_topic.options(namesrv=namesrv, topic="invoices", delivery="exactly-once")
    checkpoints = directory / "checkpoints"
    return [
        to_parquet.options(path=str(directory / "orders"), checkpointLocation=str(checkpoints / "parquet")),
        to_topic.option("checkpointLocation", str(checkpoints / "topic")),
    ]


def parsed(messages: DataFrame) -> DataFrame:
    """The orders in bodies, with the tag of each message."""
    from pyspark.sql import functions as f

    body = f.from_json(f.col("body").cast("string"), ORDER).alias("o")
    return messages.select(body, f.col("tags").alias("state")).select("o.*", "state")


def counted(totals: dict[str, list[float]]) -> int:
    """How many invoices there are."""
    return int(sum(count for count, _ in totals.values()))


def totals_table(totals: dict[str, list[float]], queries: list[StreamingQuery]) -> Table:
    """What has come from the topic of invoices, and how far the queries are."""
    done = [f"{query.name}: batch {last['batchId'] + 1}" for query in queries if (last := query.lastProgress)]
    table = Table("country", title="invoices, as they come", caption=", ".join(done) or "first micro-batch …")
    table.add_column("invoices", justify="right", min_width=9)
    table.add_column("amount", justify="right", min_width=14)
    table.add_column(width=BAR_WIDTH)
    most = max((amount for _, amount in totals.values()), default=1) or 1
    for country, (count, amount) in sorted(totals.items(), key=lambda item: -item[1][1]):
        table.add_row(country, f"{count:,}", f"{amount:,.2f}", "█" * round(BAR_WIDTH * amount / most))
    return table


def show_store(spark: SparkSession, store: str, orders: int) -> None:
    """Ask the broker's files, with no request to the broker."""
    from kourou.spark import read_store

    console.rule("3. The broker's files as a table")
    say(f"read_store(spark, {store!r})")
    with console.status("reading …"):
        parsed(read_store(spark, store, ["body", "tags"], topics="orders")).createOrReplaceTempView("orders")
        query = "select hour(time) hour, sum(amount) amount, count(*) n from orders group by hour"
        rows = {row.hour: row for row in spark.sql(query).collect()}
        found = read_store(
            spark, store, ["topic", "queueId", "queueOffset", "body"], keys=["order-42"]
        ).collect()
    if sum(row.n for row in rows.values()) != orders:
        sys.exit(f"WRONG: the store has {sum(row.n for row in rows.values()):,} of {orders:,} orders")
    say(f"[bold]{query}")
    plot([float(rows[hour].amount) if hour in rows else 0.0 for hour in range(24)])
    for row in found:
        place = f"{row.topic}, queue {row.queueId}, offset {row.queueOffset}"
        say(f"key order-42 → {place}: {bytes(row.body).decode()}")


def plot(values: list[float], height: int = 8) -> None:
    """Columns, and the hours below them."""
    most = max(values) or 1
    for line in reversed(range(height)):
        cells = (BLOCKS[min(max(round(value / most * height * 8) - line * 8, 0), 8)] for value in values)
        label = f"{most / 1000:,.0f}k" if line == height - 1 else ""
        console.print(f"{label:>6}│" + "".join(f" {cell * 2}" for cell in cells), style="cyan")
    console.print(" " * 7 + "".join(f" {hour:02d}" for hour in range(len(values))))


def show_audit(spark: SparkSession, store: str, out: Path) -> None:
    """Audit the store, and say where the report is."""
    from kourou.spark.jobs.audit import audit

    console.rule("4. An audit of the store")
    with console.status("auditing …"):
        report = audit(spark, store)
        path = report.write(out)
    repeats = len(report.tables["repeats"])
    say(f"{report.messages:,} messages of all topics, {report.faults} faults, {repeats} repeats")
    say(f"Report: {path}")
    say(f"The same from the shell: kourou spark audit {store} --out {out}")


def say(text: str) -> None:
    """Print a line as long as it is: paths are there to be copied."""
    console.print(text, soft_wrap=True)


if __name__ == "__main__":
    main()

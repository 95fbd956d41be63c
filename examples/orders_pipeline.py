"""A streaming pipeline on Spark: orders of a topic, enriched, to Parquet and, summed up, to a topic.

    python examples/orders_pipeline.py --namesrv 127.0.0.1:9876 --directory /data/orders [--once]

Orders are JSON: {"order": 7, "customer": "c-3", "amount": 12.5, "time": "2026-11-15T08:30:00Z"}. Each gets
the country of its customer and goes to <directory>/orders, partitioned by country. What a country ordered in
a minute goes to the topic order-totals, exactly once, when no more orders of that minute are expected: ten
minutes of the orders' own time later. Stop it at any moment, by any means: started again it goes on where
its checkpoints are, and no order is lost or counted twice.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

COUNTRIES = ["FR", "DE", "BR", "JP", "GF"]
CUSTOMERS = 100
ORDER = "order bigint, customer string, amount double, time timestamp"


def main() -> None:
    """Run the pipeline until it is stopped, or with --once until everything that is there is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namesrv", required=True, help="name servers, host:port")
    parser.add_argument("--directory", required=True, type=Path, help="where tables and checkpoints go")
    parser.add_argument("--source", default="orders", help="the topic of orders")
    parser.add_argument("--target", default="order-totals", help="the topic of totals")
    parser.add_argument("--once", action="store_true", help="do what is there, and leave")
    arguments = parser.parse_args()

    from kourou.spark import session

    spark = session("orders", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"})
    spark.sparkContext.setLogLevel("ERROR")
    enriched = enrich(spark, read_orders(spark, arguments.namesrv, arguments.source))
    queries = [
        to_parquet(enriched, arguments.directory, once=arguments.once),
        to_topic(
            totals(enriched), arguments.namesrv, arguments.target, arguments.directory, once=arguments.once
        ),
    ]
    print("running", flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


def read_orders(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    """The orders of a topic as a stream."""
    from pyspark.sql import functions as f

    messages = (
        spark.readStream.format("rocketmq")
        .schema("body binary, uniqKey string")
        .option("namesrv", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 10_000)
        .load()
    )
    return messages.select(f.from_json(f.col("body").cast("string"), ORDER).alias("o")).select("o.*")


def enrich(spark: SparkSession, orders: DataFrame) -> DataFrame:
    """Each order with the country of its customer."""
    rows = [(f"c-{number}", COUNTRIES[number % len(COUNTRIES)]) for number in range(CUSTOMERS)]
    customers = spark.createDataFrame(rows, "customer string, country string")
    return orders.join(customers.hint("broadcast"), "customer", "left")


def totals(enriched: DataFrame) -> DataFrame:
    """What each country ordered in each minute, as messages."""
    from pyspark.sql import functions as f

    summed = (
        enriched.withWatermark("time", "10 minutes")
        .groupBy("country", f.window("time", "1 minute").alias("minute"))
        .agg(f.count("*").alias("orders"), f.round(f.sum("amount"), 2).alias("amount"))
    )
    value = f.struct("country", f.col("minute.start").alias("minute"), "orders", "amount")
    return summed.select(
        f.to_json(value).alias("body"),
        f.col("country").alias("tags"),
        f.array(f.concat_ws("/", "country", f.col("minute.start").cast("string"))).alias("keys"),
        f.col("country").alias("shardingKey"),
    )


def to_parquet(enriched: DataFrame, directory: Path, *, once: bool) -> StreamingQuery:
    """Start writing orders to Parquet."""
    writer = enriched.writeStream.format("parquet").partitionBy("country").queryName("orders")
    writer = writer.option("checkpointLocation", str(directory / "checkpoints" / "orders"))
    query = _triggered(writer, once).start(str(directory / "orders"))
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(0.05)  # Spark 4.3 cannot send a task of one query while the source of another begins
    return query


def to_topic(messages: DataFrame, namesrv: str, topic: str, directory: Path, *, once: bool) -> StreamingQuery:
    """Start writing totals to a topic."""
    writer = messages.writeStream.format("rocketmq").queryName("totals")
    writer = writer.option("namesrv", namesrv).option("topic", topic).option("delivery", "exactly-once")
    writer = writer.option("checkpointLocation", str(directory / "checkpoints" / "totals"))
    return _triggered(writer, once).start()


def _triggered(writer: DataStreamWriter, once: bool) -> DataStreamWriter:
    return writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")


if __name__ == "__main__":
    main()

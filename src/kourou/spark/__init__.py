"""The data pipeline: topics and store files as Spark's tables, streams and sinks.

    source             the data source `format("rocketmq")`: what Spark calls
    options, schema    what a user may say, and the columns
    read/              tables and streams, from store directories and from brokers
    write/             the sink, and exactly once
    jobs/              the jobs of `kourou spark`
    cluster, channel   a cluster as the driver sees it, blocking connections, and waiting
    sentence           what a user sees of an error
    session, java, daemon, listener

How records are decoded is not here, which is `kourou.message.scan`'s for all roads, nor how a log is laid
out, which is `kourou.store`'s.

The way of the data: a plan is made in the driver, a list of partitions that say what to read and no more;
a task makes Arrow batches of one partition (`rows`) and hands them to Spark. No Python object is made per
message.

    spark = kourou.spark.session("orders")
    spark.read.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "orders").load()
    spark.read.format("rocketmq").load("/data/rocketmq/store")
    kourou.spark.read_store(spark, "/data/rocketmq/store", columns=["topic", "body"])

This package needs the extra `spark`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kourou.spark.read.store_table import read_store
from kourou.spark.session import session

if TYPE_CHECKING:
    from kourou.spark.listener import commit_to_group
    from kourou.spark.source import RocketmqDataSource
    from kourou.spark.write.checks import answer_checks

__all__ = ["RocketmqDataSource", "answer_checks", "commit_to_group", "read_store", "session"]

# These bring half of pyspark with them, which every worker would pay for.
_LATE = {
    "RocketmqDataSource": "kourou.spark.source",
    "answer_checks": "kourou.spark.write.checks",
    "commit_to_group": "kourou.spark.listener",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""replay: messages of a store, an archive or a topic back into a topic.

They can be chosen by topic, time and a condition, and changed by a query over the view `messages`, whose
columns are those of the sink. `dlq` replays the dead letters of a consumer group to where they came from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kourou.errors import ConfigError
from kourou.message.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC
from kourou.spark.jobs.inputs import Input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "topic",
    "body",
    "tags",
    "keys",
    "properties",
    "storeTimestamp",
    "queueId",
    "queueOffset",
    "uniqKey",
    "flag",
    "sysFlag",
    "bodyError",
)
SINK_COLUMNS = (
    "topic",
    "body",
    "tags",
    "keys",
    "properties",
    "shardingKey",
    "delayLevel",
    "deliverTime",
    "flag",
    "sysFlag",
    "bodyError",
)
DLQ_PREFIX = "%DLQ%"


@dataclass(slots=True)
class ReplayReport:
    """What was sent, or would have been."""

    messages: int
    by_topic: dict[str, int]
    dry_run: bool


def replay(
    spark: SparkSession,
    source: str | Input,
    namesrv: str,
    topic: str | None = None,
    *,
    topics: Collection[str] | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    where: str | None = None,
    transform: str | None = None,
    dlq: str | None = None,
    per_second: int | None = None,
    dry_run: bool = False,
    options: Mapping[str, str] | None = None,
) -> ReplayReport:
    """Send messages again.

    topic: where to; without it each goes to the topic it had.
    where: a condition, as in SQL. transform: a query over `messages`. dlq: a consumer group.
    per_second: no more than so many messages a second. options: of the sink.
    """
    source = source if isinstance(source, Input) else Input.parse(source)
    if dlq is not None:
        if topics is not None:
            raise ConfigError("a replay of dead letters has its topics from the group: leave the topics out")
        topics = [f"{DLQ_PREFIX}{dlq}"]
    frame = source.frame(spark, topics=topics, columns=COLUMNS, begin_ms=begin_ms, end_ms=end_ms)
    if where is not None:
        frame = frame.where(where)
    if dlq is not None:
        frame = frame.withColumns({"topic": _origin(frame)})
    if transform is not None:
        frame.createOrReplaceTempView("messages")
        frame = spark.sql(transform)
    frame = _for_sink(frame, topic)
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    report = ReplayReport(sum(counts.values()), counts, dry_run)
    if not dry_run and report.messages:
        writer = (frame if per_second is None else frame.coalesce(1)).write.format("rocketmq").mode("append")
        given: dict[str, Any] = {"namesrv": namesrv, **(options or {})}
        if per_second is not None:
            given["maxRowsPerSecond"] = per_second
        writer.options(**given).save()
    return report


def _origin(frame: DataFrame) -> Any:
    """The topic that a dead letter came from."""
    from pyspark.sql import functions

    properties = frame.properties
    return functions.coalesce(properties[DLQ_ORIGIN_TOPIC], properties[RETRY_TOPIC], frame.topic)


def _for_sink(frame: DataFrame, topic: str | None) -> DataFrame:
    from pyspark.sql import functions

    if "body" not in frame.columns:
        raise ConfigError("the query of a replay must give a column body")
    if topic is not None:
        frame = frame.withColumns({"topic": functions.lit(topic)})
    elif "topic" not in frame.columns:
        raise ConfigError("say where to: name a topic, or give a column topic")
    return frame.select(*(name for name in SINK_COLUMNS if name in frame.columns))

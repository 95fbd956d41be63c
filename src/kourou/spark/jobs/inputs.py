"""Inputs of jobs: one word names a store directory, a cluster or an archive, and becomes a DataFrame.

/data/rocketmq/store        a store directory; several with commas
127.0.0.1:9876              a cluster, by its name servers
/data/archive               what the job `archive` wrote
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kourou.errors import ConfigError
from kourou.spark.schema import ALL_COLUMNS, check_columns, ddl
from kourou.spark.store_table import read_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["store", "cluster", "archive"]

STATE_DIRECTORY = "_kourou"  # of an archive; Spark passes over names that begin so
_ADDRESSES = re.compile(r"[\w.\-\[\]:]+:\d+([;,][\w.\-\[\]:]+:\d+)*")


@dataclass(frozen=True, slots=True)
class Input:
    """Where messages come from."""

    kind: Kind
    text: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str] | None = None) -> Input:
        """What a word means; ConfigError where it means nothing."""
        given = dict(options or {})
        if not os.path.exists(text.split(",")[0]) and _ADDRESSES.fullmatch(text):
            return cls("cluster", text, given)
        path = Path(text)
        if (path / STATE_DIRECTORY).is_dir():
            return cls("archive", text, given)
        if all(Path(part).is_dir() for part in text.split(",")):
            return cls("store", text, given)
        raise ConfigError(f"{text} is neither a directory nor name servers as host:port")

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories of a store."""
        return tuple(part.strip() for part in self.text.split(","))

    def frame(
        self,
        spark: SparkSession,
        *,
        topics: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        begin_ms: int | None = None,
        end_ms: int | None = None,
    ) -> DataFrame:
        """The messages as a DataFrame."""
        names = check_columns(columns or ALL_COLUMNS)
        if self.kind == "store":
            return read_store(
                spark, self.paths, names, topics, begin_ms, end_ms,
                broker_name=self.options.get("brokerName"), config_file=self.options.get("brokerConf"),
            )  # fmt: skip
        if self.kind == "archive":
            frame = read_archive(spark, self.text)
            if topics is not None:
                frame = frame.where(frame.topic.isin(list(topics)))
        else:
            reader = spark.read.format("rocketmq").options(**{**self.options, "namesrv": self.text})
            if not {"topic", "topics", "pattern", "assign"}.intersection(self.options):
                reader = (
                    reader.option("topics", ",".join(topics)) if topics else reader.option("pattern", ".*")
                )
            frame = reader.load()
        if begin_ms is not None:
            frame = frame.where(f"storeTimestamp >= timestamp_millis({begin_ms})")
        if end_ms is not None:
            frame = frame.where(f"storeTimestamp < timestamp_millis({end_ms})")
        return frame.select(*names)


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """What the job `archive` wrote, with the columns of every other road and the day."""
    data = ", ".join(part for part in ddl().split(", ") if not part.startswith("topic "))
    frame = spark.read.schema(f"{data}, topic string, day date").parquet(path)
    return frame.select(*ALL_COLUMNS, "day")

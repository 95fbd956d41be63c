"""Inputs of jobs: one word names a store directory, a cluster or an archive, and becomes a DataFrame.

/data/rocketmq/store        a store directory; several with commas
127.0.0.1:9876              a cluster, by its name servers
/data/archive               what the job `archive` wrote
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kourou.errors import ConfigError
from kourou.spark.jobs import json_columns
from kourou.spark.jobs.archive_place import STATE_DIRECTORY
from kourou.spark.jobs.archive_write import read_file
from kourou.spark.jobs.lake import open_place
from kourou.spark.options import Options
from kourou.spark.places import local_place
from kourou.spark.read.store_table import read_store
from kourou.spark.schema import ALL_COLUMNS, check_columns, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["store", "cluster", "archive"]

STORE_OPTIONS = ("brokerConf", "brokerName")
_ADDRESSES = re.compile(r"[\w.\-\[\]:]+:\d+([;,][\w.\-\[\]:]+:\d+)*")


@dataclass(frozen=True, slots=True)
class Input:
    """Where messages come from."""

    kind: Kind
    text: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that the source does not know; brokers refuse theirs themselves."""
        if self.kind != "cluster":
            known = STORE_OPTIONS if self.kind == "store" else ()
            given = Options(self.options, known)
            own = {name: text for name in known if (text := given.text(name)) is not None}
            object.__setattr__(self, "options", own)

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str] | None = None) -> Input:
        """What a word means; ConfigError where it means nothing."""
        given = dict(options or {})
        if not os.path.exists(text.split(",")[0]) and _ADDRESSES.fullmatch(text):
            return cls("cluster", text, given)
        places = [str(local_place(part.strip(), "source")) for part in text.split(",")]
        if (Path(places[0]) / STATE_DIRECTORY).is_dir():
            return cls("archive", places[0], given)
        if all(Path(place).is_dir() for place in places):
            return cls("store", ",".join(places), given)
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
            if columns is None:  # what bodies gave, too
                names = tuple(name for name in frame.columns if name != "day")
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
    """What the job `archive` wrote: the columns of every other road, the day, and those of JSON bodies."""
    place = open_place(Path(path), None)
    fields = place.fields()
    own = ", ".join(part for part in ddl().split(", ") if not part.startswith("topic "))
    more = json_columns.ddl(fields.values())
    names = [*ALL_COLUMNS, "day", *(field.name for field in fields.values())]
    if place.format == "parquet":
        frame = spark.read.schema(f"{own}{more}, topic string, day date").parquet(path)
        return frame.select(*(f"`{name}`" for name in names))
    files = place.files()

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_file(files[number], names, fields)

    schema = f"{ddl()}, day date{more}"
    return spark.range(0, len(files), 1, max(len(files), 1)).mapInArrow(read, schema)

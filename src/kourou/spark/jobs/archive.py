"""archive: messages into Parquet files or into a Delta or Iceberg table, by topic and day, and on from there.

Tasks write with pyarrow, which costs a third of Spark's own writer (`archive_write`), and tell the driver of
their files. The driver puts them in place in one step (`archive_place`, `lake`), together with how far the
archive is: no message is there twice or not at all, whenever a run ends.

How far it is: of a cluster the offset of each queue. Of a store the offset in the log up to which all topics
are there, and those of topics that were archived alone and are further.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kourou.errors import ConfigError
from kourou.message.model import MessageQueue
from kourou.spark.jobs.archive_place import Place, State
from kourou.spark.jobs.archive_write import DayWriter, File, Writing, write_anew
from kourou.spark.jobs.inputs import Input
from kourou.spark.jobs.json_columns import Fields, fields_of, merge
from kourou.spark.jobs.lake import open_place
from kourou.spark.places import local_place
from kourou.spark.read.wanted import Wanted
from kourou.spark.schema import ALL_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Reader = Callable[[Any], Iterator[Any]]


@dataclass(slots=True)
class ArchiveReport:
    """What a run did."""

    target: str
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    compacted_files: int = 0
    rewritten_files: int = 0  # because a column of bodies became wider
    by_topic: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def archive(
    spark: SparkSession,
    source: str | Input,
    target: str | os.PathLike[str],
    *,
    topics: Collection[str] | None = None,
    format: str | None = None,
    json_columns: bool = False,
    drop_body: bool = False,
    compact: bool = True,
    compression: str = "snappy",
    row_group_rows: int = 128 * 1024,
) -> ArchiveReport:
    """Bring what is new in a store or a cluster into an archive.

    format: parquet, delta or iceberg; that of the archive by default, and parquet for a new one.
    json_columns: fields of bodies that are JSON objects become columns, beside the body; with `drop_body`
    instead of it. Other bodies stay.
    """
    started = time.monotonic()
    source = source if isinstance(source, Input) else Input.parse(source)
    if drop_body and not json_columns:
        raise ConfigError("only bodies that become columns can be dropped: that needs json_columns")
    place = open_place(local_place(str(target), "target"), format)
    report = ArchiveReport(str(target))
    with place.locked():
        state = place.open(source.kind)
        for parts, read, following in _new_parts(source, state["offsets"], topics):
            if parts:
                state["run"] += 1
                writing = Writing(
                    str(place.scratch(state["run"])), state["run"], compression, row_group_rows,
                    json_columns, drop_body, place.with_partition, _fields(state),
                )  # fmt: skip
                state["offsets"] = {**state["offsets"], **following}
                written = _write(spark, parts, read, writing)
                _count(report, written)
                report.rewritten_files += _put(spark, place, state, written, writing)
        if compact:
            report.compacted_files = place.compact(state, compression)
    report.seconds = time.monotonic() - started
    return report


def _fields(state: State) -> Fields:
    return merge({}, state["columns"])


def _put(spark: SparkSession, place: Place, state: State, written: list[File], writing: Writing) -> int:
    """Put files in place, and first write those anew whose columns are too narrow; how many these were."""
    fields = dict(writing.known)
    for file in written:
        fields = merge(fields, file["columns"])
    grown = any(fields[key] != known for key, known in writing.known.items())
    replaced = _with_columns(place.files()) if grown else []
    if not place.replaces_all:
        replaced = [file for file in replaced if _is_narrow(file, fields)]
    anew = [file for file in written if _is_narrow(file, fields)]
    fresh = _write_anew(spark, [*replaced, *anew], fields, writing)
    state["columns"] = [list(each) for each in fields.values()]
    place.put([*(file for file in written if file not in anew), *fresh], replaced, state)
    return len(replaced)


def _with_columns(files: list[File]) -> list[File]:
    import pyarrow.parquet as pq

    return [
        {**file, "columns": [list(each) for each in fields_of(pq.read_schema(file["path"]))]}
        for file in files
    ]


def _is_narrow(file: File, fields: Fields) -> bool:
    return any(fields[name.lower()] != (name, kind) for name, kind in file["columns"])


def _count(report: ArchiveReport, written: list[File]) -> None:
    for file in written:
        report.rows += file["rows"]
        report.files += 1
        report.size_bytes += file["bytes"]
        report.by_topic[file["topic"]] = report.by_topic.get(file["topic"], 0) + file["rows"]


# What is new


def _new_parts(
    source: Input, offsets: Mapping[str, Any], topics: Collection[str] | None
) -> Iterator[tuple[list[Any], Reader, dict[str, Any]]]:
    """(parts, how a task reads one, the state when they are archived), for each store or for the cluster."""
    if source.kind == "store":
        for path in source.paths:
            yield _new_of_store(source, path, offsets, topics)
    elif source.kind == "cluster":
        yield _new_of_cluster(source, offsets, topics)
    else:
        raise ConfigError("an archive is made of a store or a cluster, not of another archive")


def _new_of_store(
    source: Input, path: str, offsets: Mapping[str, Any], topics: Collection[str] | None
) -> tuple[list[Any], Reader, dict[str, Any]]:
    from kourou.spark.read.store_plan import SHORT_RANGE_BYTES, StoreOptions, plan_behind

    options = StoreOptions(
        paths=(path,),
        config_file=source.options.get("brokerConf"),
        broker_name=source.options.get("brokerName"),
        range_bytes=SHORT_RANGE_BYTES,  # a task holds what it writes
    )
    wanted = Wanted(topics=None if topics is None else frozenset(topics))
    key = os.path.abspath(path)
    known = offsets.get(key, {"all": 0, "topics": {}})
    begins = {topic: max(at, known["all"]) for topic, at in known["topics"].items()}
    if topics is None:
        begin = known["all"]
    else:
        begins = {topic: begins.get(topic, known["all"]) for topic in topics}
        begin = min(begins.values(), default=known["all"])
    ahead = {topic: at for topic, at in begins.items() if at > begin}
    parts, end = plan_behind(options, path, begin, wanted)

    def read(part: Any) -> Iterator[Any]:
        from kourou.spark.read.rows import RowMaker
        from kourou.spark.read.store_read import read_part

        maker = RowMaker(ALL_COLUMNS, wanted=wanted, broker_name=options.broker())
        for batch in read_part(part, options, maker, fail_on_data_loss=True):
            yield _behind(batch, ahead)

    if topics is None:
        following = {"all": end, "topics": {}}
    else:
        following = {"all": known["all"], "topics": {**known["topics"], **dict.fromkeys(topics, end)}}
    return list(parts), read, {key: following}


def _behind(batch: Any, ahead: Mapping[str, int]) -> Any:
    """The rows of a batch without those of topics that the archive has already."""
    import pyarrow.compute as pc

    for topic, begin in ahead.items():
        there = pc.and_(pc.equal(batch["topic"], topic), pc.less(batch["physicalOffset"], begin))
        batch = batch.filter(pc.invert(there))
    return batch


def _new_of_cluster(
    source: Input, offsets: Mapping[str, Any], topics: Collection[str] | None
) -> tuple[list[Any], Reader, dict[str, Any]]:
    from kourou.spark.options import Options
    from kourou.spark.read.broker_road import ALL_READ_OPTIONS, BrokerReads
    from kourou.spark.read.offsets import within_bounds

    which = {"topics": ",".join(topics)} if topics else {"pattern": ".*"}
    if {"topic", "topics", "pattern", "assign"}.intersection(source.options):
        which = {}
    reads = BrokerReads(
        Options({**which, **source.options, "namesrv": source.text}, ALL_READ_OPTIONS), ALL_COLUMNS
    )
    cluster, bounds = reads.at_first(
        lambda cluster: (cluster, cluster.bounds(reads.subscription.queues(cluster)))
    )
    start = {queue: int(offsets.get(_key(queue), low)) for queue, (low, _) in bounds.items()}
    end = cluster.not_behind(start, bounds)
    ranges = within_bounds(start, end, bounds, fail_on_data_loss=reads.fail_on_data_loss)
    following = {_key(queue): offset for queue, offset in end.items()}
    return list(reads.parts(cluster, ranges)), lambda part: reads.read(part, Wanted()), following


def _key(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


# Writing, in tasks


def _write(spark: SparkSession, parts: list[Any], read: Reader, writing: Writing) -> list[File]:
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                writer = DayWriter(writing, number)
                for rows in read(parts[number]):
                    if rows.num_rows:
                        writer.add(rows)
                files = [json.dumps(file) for file in writer.close()]
                yield pa.RecordBatch.from_arrays([pa.array(files, pa.string())], ["file"])

    told = spark.range(0, len(parts), 1, len(parts)).mapInArrow(task, "file string").collect()
    return [json.loads(row.file) for row in told]


def _write_anew(spark: SparkSession, files: list[File], fields: Fields, writing: Writing) -> list[File]:
    if not files:
        return []
    paths = [f"{writing.directory}/{writing.run:010d}-anew-{number}.parquet" for number in range(len(files))]
    work = list(zip(files, paths))

    def anew(item: tuple[File, str]) -> File:
        return write_anew([item[0]], item[1], fields, writing.compression)

    made: list[File] = spark.sparkContext.parallelize(work, len(work)).map(anew).collect()
    return made

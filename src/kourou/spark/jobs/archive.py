"""archive: messages into Parquet files, partitioned by topic and day, and on from there the next time.

    <target>/topic=orders/day=2026-11-15/0000000003-0000-0.parquet    run, task, file
    <target>/_kourou/state.json                                        how far it is
    <target>/_kourou/pending.json                                      a run that is being put in place
    <target>/_kourou/tmp/                                              what tasks are writing

Tasks write with pyarrow, which costs a third of Spark's own writer, and tell the driver of their files. The
driver writes down what is to be done (files to move, files to delete, the new state), does it, and then
forgets it. A run that ended in between is finished by the next one, so that no message is there twice or
not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kourou.errors import ConfigError
from kourou.files import write_atomically
from kourou.remoting.lenient_json import MessageQueue
from kourou.spark.jobs.inputs import STATE_DIRECTORY, Input
from kourou.spark.schema import ALL_COLUMNS
from kourou.spark.wanted import Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A task has so many files open at most; beyond it the one used longest ago is closed.
MAX_OPEN_FILES = 64
SMALL_FILE_BYTES = 64 * 1024 * 1024
DAY_US = 86_400_000_000

Reader = Callable[[Any], Iterator[Any]]


@dataclass(slots=True)
class ArchiveReport:
    """What a run did."""

    target: str
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    compacted_files: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def archive(
    spark: SparkSession,
    source: str | Input,
    target: str | os.PathLike[str],
    *,
    topics: Collection[str] | None = None,
    compact: bool = True,
    compression: str = "snappy",
    row_group_rows: int = 128 * 1024,
) -> ArchiveReport:
    """Bring what is new in a store or a cluster into an archive."""
    started = time.monotonic()
    source = source if isinstance(source, Input) else Input.parse(source)
    place = _Place(Path(target))
    state = place.open(source)
    report = ArchiveReport(str(target))
    for parts, read, following in _new_parts(source, state["offsets"], topics):
        if parts:
            run = state["run"] = state["run"] + 1
            written = _write(spark, parts, read, place.scratch(run), run, compression, row_group_rows)
            moves = [(file["path"], place.final(file)) for file in written]
            state["offsets"] = {**state["offsets"], **following}
            place.apply(moves, [], state)
            _count(report, written)
    if compact:
        report.compacted_files = place.compact(state, compression)
    report.seconds = time.monotonic() - started
    return report


def _count(report: ArchiveReport, written: list[dict[str, Any]]) -> None:
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
    from kourou.spark.store_plan import StoreOptions, plan_behind

    options = StoreOptions(
        paths=(path,),
        config_file=source.options.get("brokerConf"),
        broker_name=source.options.get("brokerName"),
    )
    wanted = Wanted(topics=None if topics is None else frozenset(topics))
    key = os.path.abspath(path)
    parts, end = plan_behind(options, path, int(offsets.get(key, 0)), wanted)

    def read(part: Any) -> Iterator[Any]:
        from kourou.spark.rows import RowMaker
        from kourou.spark.store_read import read_part

        maker = RowMaker(ALL_COLUMNS, wanted=wanted, broker_name=options.broker())
        return read_part(part, options, maker, fail_on_data_loss=True)

    return list(parts), read, {key: end}


def _new_of_cluster(
    source: Input, offsets: Mapping[str, Any], topics: Collection[str] | None
) -> tuple[list[Any], Reader, dict[str, Any]]:
    from kourou.spark.broker_road import ALL_READ_OPTIONS, BrokerReads
    from kourou.spark.offsets import within_bounds
    from kourou.spark.options import Options

    which = {"topics": ",".join(topics)} if topics else {"pattern": ".*"}
    if {"topic", "topics", "pattern", "assign"}.intersection(source.options):
        which = {}
    reads = BrokerReads(
        Options({**which, **source.options, "namesrv": source.text}, ALL_READ_OPTIONS), ALL_COLUMNS
    )
    cluster = reads.cluster()
    bounds = cluster.bounds(reads.subscription.queues(cluster))
    start = {queue: int(offsets.get(_key(queue), low)) for queue, (low, _) in bounds.items()}
    end = {queue: high for queue, (_, high) in bounds.items()}
    ranges = within_bounds(start, end, bounds, fail_on_data_loss=reads.fail_on_data_loss)
    following = {_key(queue): offset for queue, offset in end.items()}
    return list(reads.parts(cluster, ranges)), lambda part: reads.read(part, Wanted()), following


def _key(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


# Writing, in tasks


def _write(
    spark: SparkSession,
    parts: list[Any],
    read: Reader,
    scratch: Path,
    run: int,
    compression: str,
    row_group_rows: int,
) -> list[dict[str, Any]]:
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                writer = _DayWriter(scratch, f"{run:010d}-{number:04d}", compression, row_group_rows)
                for rows in read(parts[number]):
                    writer.add(rows)
                files = [json.dumps(file) for file in writer.close()]
                yield pa.RecordBatch.from_arrays([pa.array(files, pa.string())], ["file"])

    scratch.mkdir(parents=True, exist_ok=True)
    told = spark.range(0, len(parts), 1, len(parts)).mapInArrow(task, "file string").collect()
    return [json.loads(row.file) for row in told]


class _DayWriter:
    """Files of one task, one for each topic and day at a time."""

    def __init__(self, directory: Path, prefix: str, compression: str, row_group_rows: int) -> None:
        self._directory = directory
        self._prefix = prefix
        self._compression = compression
        self._rows = row_group_rows
        self._open: dict[tuple[str, int], tuple[Any, dict[str, Any], list[Any]]] = {}
        self._files: list[dict[str, Any]] = []

    def add(self, batch: Any) -> None:
        """Take rows, each to the file of its topic and day."""
        import numpy as np
        import pyarrow as pa

        days = batch.column("storeTimestamp").view(pa.int64()).to_numpy() // DAY_US
        topics = batch.column("topic").dictionary_encode()
        codes = topics.indices.to_numpy().astype(np.int64) * (1 << 32) + days
        data = batch.drop_columns(["topic"])
        for code in np.unique(codes):
            own = codes == code
            rows = data if own.all() else data.filter(pa.array(own))
            self._write((topics.dictionary[int(code >> 32)].as_py(), int(code & 0xFFFFFFFF)), rows)

    def _write(self, key: tuple[str, int], rows: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        entry = self._open.pop(key, None)
        if entry is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._finish(next(iter(self._open)))
            path = self._directory / f"{self._prefix}-{len(self._files) + len(self._open)}.parquet"
            file = {"topic": key[0], "day": key[1], "path": str(path), "rows": 0}
            entry = pq.ParquetWriter(path, rows.schema, compression=self._compression), file, []
        self._open[key] = entry
        writer, file, waiting = entry
        waiting.append(rows)
        file["rows"] += rows.num_rows
        if sum(part.num_rows for part in waiting) >= self._rows:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting.clear()

    def _finish(self, key: tuple[str, int]) -> None:
        import pyarrow as pa

        writer, file, waiting = self._open.pop(key)
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
        writer.close()
        file["bytes"] = os.path.getsize(file["path"])
        self._files.append(file)

    def close(self) -> list[dict[str, Any]]:
        """Close everything; the files, each with topic, day, path, rows and bytes."""
        while self._open:
            self._finish(next(iter(self._open)))
        return self._files


# Files and state, in the driver


class _Place:
    """An archive's directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = root / STATE_DIRECTORY

    def open(self, source: Input) -> dict[str, Any]:
        """The state, after a run that was interrupted has been finished."""
        self._own.mkdir(parents=True, exist_ok=True)
        pending = self._own / "pending.json"
        if pending.exists():
            self._finish(json.loads(pending.read_bytes()))
        shutil.rmtree(self._own / "tmp", ignore_errors=True)
        path = self._own / "state.json"
        state: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"run": 0, "offsets": {}}
        kind = state.setdefault("kind", source.kind)
        if kind != source.kind:
            raise ConfigError(
                f"{self._root} is the archive of a {kind}: give the {source.kind} one of its own"
            )
        return state

    def scratch(self, run: int) -> Path:
        """Where the tasks of a run write."""
        return self._own / "tmp" / str(run)

    def final(self, file: Mapping[str, Any]) -> str:
        """Where a file belongs."""
        day = time.strftime("%Y-%m-%d", time.gmtime(file["day"] * DAY_US // 1_000_000))
        folder = self._root / f"topic={quote(file['topic'], safe=' ')}" / f"day={day}"
        return str(folder / os.path.basename(file["path"]))

    def apply(self, moves: list[tuple[str, str]], deletes: list[str], state: Mapping[str, Any]) -> None:
        """Put a run in place, so that a crash at any point leaves either nothing of it or all."""
        plan = {"moves": moves, "deletes": deletes, "state": state}
        write_atomically(self._own / "pending.json", json.dumps(plan).encode())
        self._finish(plan)

    def _finish(self, plan: Mapping[str, Any]) -> None:
        for old, new in plan["moves"]:
            if os.path.exists(old):
                os.makedirs(os.path.dirname(new), exist_ok=True)
                os.replace(old, new)
        for path in plan["deletes"]:
            if os.path.exists(path):
                os.unlink(path)
        write_atomically(self._own / "state.json", json.dumps(plan["state"]).encode())
        (self._own / "pending.json").unlink(missing_ok=True)

    def compact(self, state: dict[str, Any], compression: str) -> int:
        """Make one file of the small ones of a topic and day; how many files went into others."""
        import pyarrow.parquet as pq

        count = 0
        for folder in sorted(self._root.glob("topic=*/day=*")):
            small = [
                file for file in sorted(folder.glob("*.parquet")) if file.stat().st_size < SMALL_FILE_BYTES
            ]
            if len(small) < 2:
                continue
            run = state["run"] = state["run"] + 1
            scratch = self.scratch(run)
            scratch.mkdir(parents=True, exist_ok=True)
            path = scratch / f"{run:010d}-0000-0.parquet"
            with pq.ParquetWriter(path, pq.read_schema(small[0]), compression=compression) as writer:
                for file in small:
                    parquet = pq.ParquetFile(file)
                    for group in range(parquet.num_row_groups):
                        writer.write_table(parquet.read_row_group(group))
            # Spark never sees both: it lists a directory once, and the old ones go with the plan.
            self.apply([(str(path), str(folder / path.name))], [str(file) for file in small], state)
            count += len(small)
        return count

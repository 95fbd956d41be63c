"""What tasks of the job `archive` do: write rows into Parquet files by topic and day, and files anew.

A file is a dictionary, as tasks tell the driver of it: topic, day (since 1970), path, rows, bytes, and the
columns that come from bodies as [name, type].
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kourou.spark.jobs import json_columns
from kourou.spark.jobs.json_columns import Field, Fields

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# A task has so many files open at most; beyond it the one used longest ago is closed.
MAX_OPEN_FILES = 64
DAY_US = 86_400_000_000

File = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Writing:
    """How files are written."""

    directory: str
    run: int
    compression: str = "snappy"
    row_group_rows: int = 128 * 1024
    json_columns: bool = False
    drop_body: bool = False  # of messages whose body became columns
    with_partition: bool = False  # topic and day are columns of the files, too
    known: Fields = field(default_factory=dict)  # columns that the archive has already


class _Open:
    """A file that is being filled. It is made with its first row group, when its columns are known."""

    def __init__(self, path: str, topic: str, day: int) -> None:
        self.file: File = {"topic": topic, "day": day, "path": path, "rows": 0, "columns": []}
        self.writer: pq.ParquetWriter | None = None
        self.fields: list[Field] = []
        self.waiting: list[pa.Table] = []

    @property
    def waiting_rows(self) -> int:
        return sum(table.num_rows for table in self.waiting)


class DayWriter:
    """Files of one task, one for each topic and day at a time."""

    def __init__(self, writing: Writing, number: int) -> None:
        self._writing = writing
        self._prefix = f"{writing.directory}/{writing.run:010d}-{number:04d}"
        self._open: dict[tuple[str, int], _Open] = {}
        self._made = 0
        self._files: list[File] = []
        self._known: Fields = dict(writing.known)
        self._of_topic: dict[str, dict[str, None]] = {}  # columns of bodies that a topic has

    def add(self, batch: pa.RecordBatch) -> None:
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
            topic = topics.dictionary[int(code >> 32)].as_py()
            self._take(topic, int(code & 0xFFFFFFFF), pa.Table.from_batches([rows]))

    def _take(self, topic: str, day: int, rows: pa.Table) -> None:
        if self._writing.json_columns:
            rows = self._with_fields(topic, rows)
        entry = self._open.pop((topic, day), None)
        if entry is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._finish(next(iter(self._open)))
            entry = self._new(topic, day)
        self._open[topic, day] = entry
        entry.waiting.append(rows)
        if entry.waiting_rows >= self._writing.row_group_rows:
            self._write_out(topic, day)

    def _new(self, topic: str, day: int) -> _Open:
        self._made += 1
        return _Open(f"{self._prefix}-{self._made - 1}.parquet", topic, day)

    def _with_fields(self, topic: str, rows: pa.Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        readable = pc.if_else(pc.is_null(rows["bodyError"]), rows["body"], pa.scalar(None, pa.binary()))
        objects = json_columns.read_objects(readable)
        found = json_columns.to_columns(objects, self._known)
        self._known = json_columns.merge(self._known, found)
        seen = self._of_topic.setdefault(topic, {})
        for new, values in found.items():
            seen.setdefault(new.name.lower())
            rows = rows.append_column(new.name, values)
        if self._writing.drop_body:
            parsed = pa.array([item is not None for item in objects])
            body = pc.if_else(parsed, pa.scalar(None, pa.binary()), rows["body"])
            rows = rows.set_column(rows.schema.get_field_index("body"), "body", body)
        return rows

    def _write_out(self, topic: str, day: int) -> None:
        """Write what waits as a row group; into a new file, where there are other columns since."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = [self._known[key] for key in self._of_topic.get(topic, ())]
        entry = self._open[topic, day]
        if entry.writer is not None and entry.fields != fields:
            waiting, entry.waiting = entry.waiting, []
            self._finish((topic, day))
            entry = self._open[topic, day] = self._new(topic, day)
            entry.waiting = waiting
        table = pa.concat_tables([json_columns.conform(rows, fields) for rows in entry.waiting])
        entry.waiting.clear()
        if self._writing.with_partition:
            table = _with_partition(table, topic, day)
        if entry.writer is None:
            entry.writer = pq.ParquetWriter(
                entry.file["path"], table.schema, compression=self._writing.compression
            )
            entry.fields = fields
            entry.file["columns"] = [list(each) for each in fields]
        entry.writer.write_table(table)
        entry.file["rows"] += table.num_rows

    def _finish(self, key: tuple[str, int]) -> None:
        if self._open[key].waiting:
            self._write_out(*key)
        entry = self._open.pop(key)
        assert entry.writer is not None
        entry.writer.close()
        entry.file["bytes"] = os.path.getsize(entry.file["path"])
        self._files.append(entry.file)

    def close(self) -> list[File]:
        """Close everything; the files."""
        while self._open:
            self._finish(next(iter(self._open)))
        return self._files


def _with_partition(table: pa.Table, topic: str, day: int) -> pa.Table:
    import pyarrow as pa

    rows = table.num_rows
    table = table.append_column("topic", pa.repeat(pa.scalar(topic, pa.string()), rows))
    return table.append_column("day", pa.repeat(pa.scalar(day, pa.int32()), rows).cast(pa.date32()))


def write_anew(files: list[File], path: str, fields: Fields, compression: str) -> File:
    """Make one file of some of the same topic and day; its columns have the names and types of now."""
    import pyarrow.parquet as pq

    sources = [pq.ParquetFile(file["path"]) for file in files]
    there = {each.name.lower() for source in sources for each in json_columns.fields_of(source.schema_arrow)}
    columns = [each for key, each in fields.items() if key in there]
    writer: pq.ParquetWriter | None = None
    rows = 0
    for source in sources:
        for group in range(source.num_row_groups):
            table = json_columns.conform(source.read_row_group(group), columns)
            writer = writer or pq.ParquetWriter(path, table.schema, compression=compression)
            writer.write_table(table)
            rows += table.num_rows
        source.close()
    assert writer is not None  # a file has rows
    writer.close()
    return {**files[0], "path": path, "rows": rows, "bytes": os.path.getsize(path), "columns": columns}


def read_file(file: File, names: list[str], fields: Fields) -> Iterator[pa.RecordBatch]:
    """The rows of a file of a table, with all columns of the archive in this order."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file["path"]) as source:
        for group in range(source.num_row_groups):
            table = json_columns.conform(source.read_row_group(group), list(fields.values()))
            if "topic" not in table.column_names:
                table = _with_partition(table, file["topic"], file["day"])
            yield from table.select(names).to_batches()

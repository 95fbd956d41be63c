"""Archives that are Delta or Iceberg tables, by the libraries deltalake and pyiceberg.

Tasks write the same Parquet files as ever; the driver adds them to the table. How far the archive is goes
with the files in one commit of the table: the number of the run, as Delta's application transaction or as
a property of the Iceberg table. The rest of the state lies beside the table, a file for each run:

    <target>/_kourou/format             delta, or iceberg
    <target>/_kourou/state-<run>.json   the run that the table names is the one that counts

So a run that was killed before its commit never was, whatever files it left behind, and they are removed by
the next one.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from kourou.errors import ConfigError
from kourou.files import write_atomically
from kourou.spark.jobs import json_columns
from kourou.spark.jobs.archive_place import (
    FORMATS,
    SMALL_FILE_BYTES,
    Place,
    State,
    day_name,
    format_of,
    move,
)
from kourou.spark.jobs.archive_write import File
from kourou.spark.jobs.json_columns import STRING, Field, Fields
from kourou.spark.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

APP_ID = "kourou-archive"
RUN_PROPERTY = "kourou.run"
TABLE_NAME = "kourou.messages"  # in the Iceberg catalog
PARTITION = ("topic", "day")
EPOCH = date(1970, 1, 1).toordinal()


def open_place(target: Path, format: str | None) -> Place:
    """An archive in a format; None for the one it has, and Parquet for a new one."""
    format = format or format_of(target) or "parquet"
    places: dict[str, type[Place]] = {"parquet": Place, "delta": DeltaPlace, "iceberg": IcebergPlace}
    if format not in places:
        raise ConfigError(f"format {format}: it is one of {', '.join(FORMATS)}")
    try:
        return places[format](target.absolute())
    except ImportError as error:
        raise ConfigError(
            f"archives in {format} need the library {error.name}: pip install 'kourou[lake]'"
        ) from error


def arrow_schema(fields: Fields) -> pa.Schema:
    """All columns of a table."""
    import pyarrow as pa

    types = {
        "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"), "array<string>": pa.list_(pa.string()),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }  # fmt: skip
    own = [(name, types[column.kind]) for name, column in COLUMNS.items()]
    more = [(field.name, json_columns.arrow_type(field.kind)) for field in fields.values()]
    return pa.schema([*own, ("day", pa.date32()), *more])


class _LakePlace(Place, ABC):
    """What both kinds of tables have in common."""

    replaces_all: ClassVar[bool] = True

    @abstractmethod
    def run(self) -> int:
        """The run that the table is at; 0 for a new one."""

    @abstractmethod
    def commit(self, added: Sequence[File], replaced: Sequence[File], fields: Fields, run: int) -> None:
        """Add files to the table in place of others, and name the run: all at once."""

    def load(self) -> State:
        """The state of the run that the table names; what others left behind goes."""
        self.own.mkdir(parents=True, exist_ok=True)
        write_atomically(self.own / "format", self.format.encode())
        run = self.run()
        for path in self.own.glob("state-*.json"):
            if path > self._state_file(run):
                for left in json.loads(path.read_bytes())["files"]:
                    Path(left).unlink(missing_ok=True)
            if path != self._state_file(run):
                path.unlink()
        return self._state(run)

    def _state(self, run: int) -> State:
        if run == 0:
            return {"run": 0, "offsets": {}, "columns": []}
        state: State = json.loads(self._state_file(run).read_bytes())["state"]
        return state

    def _state_file(self, run: int) -> Path:
        return self.own / f"state-{run:010d}.json"

    def fields(self) -> Fields:
        """The columns that come from bodies."""
        return json_columns.merge({}, self._state(self.run())["columns"])

    def final(self, file: File) -> str:
        """Where a file belongs. The table says its topic; the name of the directory only helps the eye."""
        topic = re.sub(r"[^\w.-]", "_", file["topic"])
        name = Path(file["path"]).name
        return str(self.root / "data" / f"topic={topic}" / f"day={day_name(file['day'])}" / name)

    def put(self, added: Sequence[File], replaced: Sequence[File], state: State) -> None:
        """Put a run into the table: it has all of it or nothing."""
        run, before = state["run"], self.run()
        moves = [(file["path"], self.final(file)) for file in added]
        plan = {"state": state, "files": [new for _, new in moves]}
        write_atomically(self._state_file(run), json.dumps(plan).encode())
        move(moves)
        final = [{**file, "path": new} for file, (_, new) in zip(added, moves)]
        self.commit(final, replaced, json_columns.merge({}, state["columns"]), run)
        self._state_file(before).unlink(missing_ok=True)


class DeltaPlace(_LakePlace):
    """An archive that is a Delta table."""

    format: ClassVar[str] = "delta"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        import deltalake

        self._library = deltalake

    def _table(self) -> DeltaTable:
        table = self._library.DeltaTable
        if not table.is_deltatable(str(self.root)):
            table.create(self.root, arrow_schema({}), partition_by=list(PARTITION))
        return table(self.root)

    def run(self) -> int:
        """The run that the table is at."""
        return self._table().transaction_version(APP_ID) or 0

    def files(self) -> list[File]:
        """The data files of the table."""
        import pyarrow as pa

        actions = pa.table(self._table().get_add_actions(flatten=True)).to_pylist()
        return [
            {
                "path": str(self.root / unquote(action["path"])), "bytes": action["size_bytes"],
                "topic": action["partition.topic"], "day": action["partition.day"].toordinal() - EPOCH,
            }
            for action in actions
        ]  # fmt: skip

    def commit(self, added: Sequence[File], replaced: Sequence[File], fields: Fields, run: int) -> None:
        """Add files to the table, or make it anew of them."""
        table, schema = self._table(), arrow_schema(fields)
        if not replaced:
            there = {field.name for field in table.schema().fields}
            new = [self._library.Field.from_arrow(field) for field in schema if field.name not in there]
            if new:
                table.alter.add_columns(new)
        properties = self._library.CommitProperties(
            custom_metadata={RUN_PROPERTY: str(run)},
            app_transactions=[self._library.Transaction(APP_ID, run)],
        )
        table.create_write_transaction(
            [self._action(file) for file in added], "overwrite" if replaced else "append", schema,
            list(PARTITION), commit_properties=properties,
        )  # fmt: skip

    def _action(self, file: File) -> Any:
        path = Path(file["path"])
        return self._library.transaction.AddAction(
            str(path.relative_to(self.root)), file["bytes"],
            {"topic": file["topic"], "day": day_name(file["day"])}, path.stat().st_mtime_ns // 1_000_000,
            True, json.dumps({"numRecords": file["rows"]}),
        )  # fmt: skip

    def compact(self, state: State, compression: str) -> int:
        """Have Delta make one file of the small ones of a topic and day."""
        if not self.small_files():
            return 0
        codec: Any = compression.upper()
        writer = self._library.WriterProperties(compression=codec)
        done = self._table().optimize.compact(target_size=SMALL_FILE_BYTES, writer_properties=writer)
        return int(done["numFilesRemoved"])


class IcebergPlace(_LakePlace):
    """An archive that is an Iceberg table, with its catalog in <target>/catalog.db."""

    format: ClassVar[str] = "iceberg"
    with_partition: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        from pyiceberg.catalog.sql import SqlCatalog

        self.root.mkdir(parents=True, exist_ok=True)
        location = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
        self._catalog = SqlCatalog("kourou", **location)

    def _table(self) -> Table:
        from pyiceberg.exceptions import NamespaceAlreadyExistsError

        if not self._catalog.table_exists(TABLE_NAME):
            with suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace(TABLE_NAME.partition(".")[0])
            with (
                self._catalog.create_table_transaction(
                    TABLE_NAME, arrow_schema({}), location=f"file://{self.root}"
                ) as new,
                new.update_spec() as spec,
            ):
                for name in PARTITION:
                    spec.add_identity(name)
        return self._catalog.load_table(TABLE_NAME)

    def run(self) -> int:
        """The run that the table is at."""
        return int(self._table().properties.get(RUN_PROPERTY, "0"))

    def files(self) -> list[File]:
        """The data files of the table."""
        found = (task.file for task in self._table().scan().plan_files())
        return [
            {
                "path": file.file_path.removeprefix("file://"), "bytes": file.file_size_in_bytes,
                "topic": file.partition[0], "day": file.partition[1],
            }
            for file in found
        ]  # fmt: skip

    def commit(self, added: Sequence[File], replaced: Sequence[File], fields: Fields, run: int) -> None:
        """Add files to the table in place of all of some topics and days."""
        with self._table().transaction() as change:
            if replaced:
                change.delete(self._where(replaced))
            self._change_columns(change, fields)
            change.set_properties({RUN_PROPERTY: str(run)})
            if added:
                paths = [file["path"] for file in added]
                change.add_files(paths, snapshot_properties={RUN_PROPERTY: str(run)})

    def _where(self, files: Sequence[File]) -> BooleanExpression:
        """The rows of these topics and days."""
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo

        parts = {(file["topic"], file["day"]) for file in files}
        if len(parts) > 1:
            return AlwaysTrue()
        ((topic, day),) = parts
        equal: Any = EqualTo  # whose arguments its annotations do not tell
        return And(equal("topic", topic), equal("day", day_name(day)))

    def _change_columns(self, change: Transaction, fields: Fields) -> None:
        """Give the table the columns of now; one of another type is a new one, for Iceberg widens little."""
        from pyiceberg.types import BooleanType, DoubleType, LongType, StringType

        types = {"boolean": BooleanType(), "long": LongType(), "double": DoubleType(), "string": StringType()}
        schema = change.table_metadata.schema()
        there = {field.name: field.field_type for field in schema.fields}
        # A table that was begun before there was the column bodyError gets it now.
        wanted = [Field("bodyError", STRING), *fields.values()]
        other = [f for f in wanted if f.name in there and there[f.name] != types[f.kind]]
        if other:
            with change.update_schema(allow_incompatible_changes=True) as update:
                for field in other:
                    update.delete_column(field.name)
        new = [field for field in wanted if field.name not in there or field in other]
        if new:
            with change.update_schema() as update:
                for field in new:
                    update.add_column(field.name, types[field.kind])

    def small_files(self) -> list[list[File]]:
        """As ever, but only where all files of a topic and day are small: they are replaced together."""
        large = {(f["topic"], f["day"]) for f in self.files() if f["bytes"] >= SMALL_FILE_BYTES}
        return [group for group in super().small_files() if (group[0]["topic"], group[0]["day"]) not in large]

"""Where an archive lies: a directory of Parquet files, and what every kind of archive has in common.

    <target>/topic=orders/day=2026-11-15/0000000003-0000-0.parquet    run, task, file
    <target>/_kourou/state.json                                        how far it is
    <target>/_kourou/pending.json                                      a run that is being put in place
    <target>/_kourou/tmp/                                              what tasks are writing

The driver writes down what is to be done (files to move, files to delete, the new state), does it, and then
forgets it. A run that ended in between is finished by the next one, so that no message is there twice or
not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from kourou.errors import ConfigError
from kourou.files import write_atomically
from kourou.spark.jobs import json_columns
from kourou.spark.jobs.archive_write import DAY_US, File, write_anew
from kourou.spark.jobs.json_columns import Fields
from kourou.store.log.disk import OsDisk

STATE_DIRECTORY = "_kourou"  # Spark passes over names that begin so
SMALL_FILE_BYTES = 64 * 1024 * 1024
FORMATS = ("parquet", "delta", "iceberg")

State = dict[str, Any]


def day_name(day: int) -> str:
    """A day as the names of directories have it."""
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY_US // 1_000_000))


def day_number(name: str) -> int:
    """The day of a name."""
    import calendar

    return calendar.timegm(time.strptime(name, "%Y-%m-%d")) * 1_000_000 // DAY_US


def format_of(root: Path) -> str | None:
    """The format of an archive that is there already."""
    own = root / STATE_DIRECTORY
    if (own / "format").exists():
        return (own / "format").read_text().strip()
    return "parquet" if (own / "state.json").exists() else None


class Place:
    """An archive's directory, with Parquet files in it."""

    format: ClassVar[str] = "parquet"
    with_partition: ClassVar[bool] = False  # files have topic and day as columns
    replaces_all: ClassVar[bool] = False  # a column cannot change its type unless all files are new

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = root / STATE_DIRECTORY

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one run at a time: StoreLockedError for another."""
        self.own.mkdir(parents=True, exist_ok=True)
        lock = OsDisk().lock(str(self.own / "lock"))
        try:
            yield
        finally:
            lock.release()

    def open(self, kind: str) -> State:
        """The state, after a run that was interrupted has been finished."""
        found = format_of(self.root)
        if found not in (None, self.format):
            raise ConfigError(f"{self.root} is an archive in {found}: it cannot go on in {self.format}")
        state = self.load()
        shutil.rmtree(self.own / "tmp", ignore_errors=True)
        known = state.setdefault("kind", kind)
        if known != kind:
            raise ConfigError(f"{self.root} is the archive of a {known}: give the {kind} one of its own")
        return state

    def load(self) -> State:
        """The state of what is visible."""
        pending = self.own / "pending.json"
        if pending.exists():
            self._finish(json.loads(pending.read_bytes()))
        path = self.own / "state.json"
        return json.loads(path.read_bytes()) if path.exists() else {"run": 0, "offsets": {}, "columns": []}

    def fields(self) -> Fields:
        """The columns that come from bodies."""
        path = self.own / "state.json"
        return json_columns.merge({}, json.loads(path.read_bytes())["columns"] if path.exists() else [])

    def scratch(self, run: int) -> Path:
        """Where the tasks of a run write."""
        path = self.own / "tmp" / str(run)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def files(self) -> list[File]:
        """The data files."""
        return [
            {
                "path": str(path), "topic": unquote(path.parent.parent.name.removeprefix("topic=")),
                "day": day_number(path.parent.name.removeprefix("day=")), "bytes": path.stat().st_size,
            }
            for path in sorted(self.root.glob("topic=*/day=*/*.parquet"))
        ]  # fmt: skip

    def final(self, file: File) -> str:
        """Where a file belongs."""
        folder = self.root / f"topic={quote(file['topic'], safe=' ')}" / f"day={day_name(file['day'])}"
        return str(folder / os.path.basename(file["path"]))

    def put(self, added: Sequence[File], replaced: Sequence[File], state: State) -> None:
        """Put a run in place, so that a crash at any point leaves either nothing of it or all."""
        plan = {
            "moves": [(file["path"], self.final(file)) for file in added],
            "deletes": [file["path"] for file in replaced],
            "state": state,
        }
        write_atomically(self.own / "pending.json", json.dumps(plan).encode())
        self._finish(plan)

    def _finish(self, plan: dict[str, Any]) -> None:
        move(plan["moves"])
        for path in plan["deletes"]:
            if os.path.exists(path):
                os.unlink(path)
        write_atomically(self.own / "state.json", json.dumps(plan["state"]).encode())
        (self.own / "pending.json").unlink(missing_ok=True)

    def compact(self, state: State, compression: str) -> int:
        """Make one file of the small ones of a topic and day; how many files went into others."""
        count = 0
        for small in self.small_files():
            run = state["run"] = state["run"] + 1
            path = str(self.scratch(run) / f"{run:010d}-0000-0.parquet")
            fields = json_columns.merge({}, state["columns"])
            # Spark never sees both: it lists a directory once, and the old ones go with the plan.
            self.put([write_anew(small, path, fields, compression)], small, state)
            count += len(small)
        return count

    def small_files(self) -> list[list[File]]:
        """The files that are worth making one of, by topic and day."""
        groups = defaultdict(list)
        for file in self.files():
            if file["bytes"] < SMALL_FILE_BYTES:
                groups[file["topic"], file["day"]].append(file)
        return [group for group in groups.values() if len(group) > 1]


def move(moves: Sequence[Sequence[str]]) -> None:
    """Move files to where they belong; those that are there already stay."""
    for old, new in moves:
        if os.path.exists(old):
            os.makedirs(os.path.dirname(new), exist_ok=True)
            os.replace(old, new)

"""What the benchmarks share: rows and their table, a store on a scratch directory, messages."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import CannotRunError
from kourou.message import UniqueIdGenerator
from kourou.store import InnerMessage, MessageStore, MessageStoreConfig

TOPIC = "bench"
QUEUES = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, and the machine's own limit beside it, in the same unit."""

    what: str
    measured: float
    limit: float
    unit: str
    limit_is: str
    expected: float | None = None  # on two cores of a laptop-class machine
    lower_is_better: bool = False

    @property
    def share(self) -> float:
        """How much of the limit is reached."""
        return self.limit / self.measured if self.lower_is_better else self.measured / self.limit


def print_rows(rows: list[Row]) -> None:
    """The rows as a table."""
    table = Table(title="Store")
    for heading, justify in (
        ("what", "left"), ("measured", "right"), ("expected", "right"), ("raw limit", "right"),
        ("share", "right"), ("the limit is", "left"),
    ):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        sign = "≤" if row.lower_is_better else "≥"
        expected = "" if row.expected is None else f"{sign} {row.expected:,.0f}"
        number = ",.1f" if row.measured < 100 else ",.0f"
        table.add_row(
            row.what, f"{row.measured:{number}} {row.unit}", expected, f"{row.limit:{number}} {row.unit}",
            f"{row.share:.1%}", row.limit_is,
        )  # fmt: skip
    Console(width=160).print(table)


@contextmanager
def scratch(directory: Path | str | None = None) -> Iterator[Path]:
    """A directory on a real disk (BENCH_DIR, else the system's temporary directory), removed afterwards."""
    directory = directory or os.environ.get("BENCH_DIR")
    if directory is not None and not Path(directory).is_dir():
        raise CannotRunError(f"there is no directory {directory}")
    path = Path(tempfile.mkdtemp(prefix="kourou-bench-", dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def read_seconds(*files: Path) -> float:
    """How long a raw read of files takes."""
    buffer = bytearray(8 * 1024 * 1024)
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began


@contextmanager
def open_store(root: Path, **options: Any) -> Iterator[MessageStore]:
    """A started store with Java's default sizes."""
    with MessageStore(MessageStoreConfig(store_path_root_dir=str(root), **options)) as store:
        gc.collect()
        gc.freeze()
        try:
            yield store
        finally:
            gc.unfreeze()


def messages(body_size: int, count: int) -> Iterator[InnerMessage]:
    """Messages as a Java client and broker make them: unique id, tag, key and the broker's own properties."""
    unique = UniqueIdGenerator("10.0.0.1")
    body = os.urandom(body_size)
    now = time.time_ns() // 1_000_000
    for number in itertools.islice(itertools.count(), count):
        properties = (
            f"UNIQ_KEY\x01{unique()}\x02KEYS\x01order-{number}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
            "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
        )
        yield InnerMessage.of(TOPIC, number % QUEUES, body, properties, born_timestamp=now)


def fill(store: MessageStore, body_size: int, size_bytes: int) -> int:
    """Put messages until the log has grown by so many bytes; how many."""
    count, end = 0, store.commit_log.max_offset + size_bytes
    for message in messages(body_size, 1 << 40):
        if store.commit_log.max_offset >= end:
            break
        store.put_message(message)
        count += 1
    return count


def best_of(times: int, run: Callable[[], float]) -> float:
    """The best of some runs: other work on the machine only ever makes a run worse."""
    return max(run() for _ in range(times))

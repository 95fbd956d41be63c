"""Log scan into Arrow: every record of the log as columns, as the pipeline and the offline tools read it."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.common import Row, best_of, fill, open_store, scratch
from kourou.message.scan.columns import iter_columns
from kourou.store import MessageStore

LOG_BYTES = 512 * 1024 * 1024
COLUMNS = [
    "topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "born_timestamp", "sys_flag",
    "reconsume_times", "tags", "keys", "body",
]  # fmt: skip


def run() -> list[Row]:
    """Rows for bodies of 1 KiB and 128 bytes."""
    return [*_rows(1024, 500), *_rows(128, 500)]


def _rows(body_size: int, expected: float) -> list[Row]:
    with scratch() as root, open_store(root) as store:
        fill(store, body_size, LOG_BYTES)
        path = Path(store.commit_log.files.files[0].path)
        return [
            Row(
                f"log scan into Arrow, {len(COLUMNS)} columns, {body_size} B",
                best_of(3, lambda: _scan(store)),
                best_of(3, lambda: _read(path)),
                "MB/s",
                "raw read of the file into memory",
                expected,
            )
        ]


def _scan(store: MessageStore) -> float:
    file = store.commit_log.files.files[0]
    start = time.perf_counter()
    rows = sum(part.batch.num_rows for part in iter_columns(file.view, 0, file.wrote, columns=COLUMNS))
    elapsed = time.perf_counter() - start
    assert rows > 0
    return file.wrote / elapsed / 1e6


def _read(path: Path) -> float:
    buffer = bytearray(8 * 1024 * 1024)
    total, start = 0, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while total < LOG_BYTES and (count := file.readinto(buffer)):
            total += count
    return total / (time.perf_counter() - start) / 1e6

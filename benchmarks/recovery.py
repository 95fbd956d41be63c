"""Recovery of a 1 GiB log after a crash: every record checked, queues and index made to agree."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from benchmarks.common import Row, fill, open_store, read_seconds, scratch
from kourou.store import MessageStore, MessageStoreConfig

GIB = 1 << 30


def run() -> list[Row]:
    """Rows for a crash that left the queues, and for one that left the log alone."""
    rows = []
    for body_size, expected in ((1024, 10.0), (128, None)):
        with scratch() as root:
            with open_store(root) as store:
                fill(store, body_size, GIB - 8 * 1024 * 1024)
            read_s = read_seconds(root / "commitlog" / f"{0:020d}")
            for what in ("queues left", "log alone left"):
                if what == "log alone left":
                    shutil.rmtree(root / "consumequeue")
                    shutil.rmtree(root / "index")
                rows.append(
                    Row(
                        f"recovery of 1 GiB, {body_size} B, {what}",
                        _recovery_seconds(root),
                        read_s,
                        "s",
                        "raw read of the log into memory",
                        expected,
                        lower_is_better=True,
                    )
                )
    return rows


def _recovery_seconds(root: Path) -> float:
    """The checkpoint is reset, so that all of the log has to be looked at."""
    (root / "checkpoint").write_bytes(bytes(4096))
    (root / "abort").touch()
    store = MessageStore(MessageStoreConfig(store_path_root_dir=str(root)))
    os.sync()  # what filling left behind must not be paid for here
    start = time.perf_counter()
    report = store.load()
    elapsed = time.perf_counter() - start
    assert report.records > 0
    store.abandon()
    return elapsed

"""Recovery of a 1 GiB log after a crash: every record checked and queues made to agree; then its index."""

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
                load_s, index_s = _recovery_seconds(root)
                for part, seconds, most in ((what, load_s, expected), (f"index, {what}", index_s, None)):
                    rows.append(
                        Row(
                            f"recovery of 1 GiB, {body_size} B, {part}",
                            seconds,
                            read_s,
                            "s",
                            "raw read of the log into memory",
                            most,
                            lower_is_better=True,
                        )
                    )
    return rows


def _recovery_seconds(root: Path) -> tuple[float, float]:
    """Until the store is open, and from then until its index is complete if nothing else is done.

    The checkpoint is reset, so that all of the log has to be looked at."""
    (root / "checkpoint").write_bytes(bytes(4096))
    (root / "abort").touch()
    store = MessageStore(MessageStoreConfig(store_path_root_dir=str(root)))
    os.sync()  # what filling left behind must not be paid for here
    start = time.perf_counter()
    report = store.load()
    opened = time.perf_counter()
    assert report.records > 0
    store.index_catch_up.finish()
    complete = time.perf_counter()
    store.abandon()
    return opened - start, complete - opened

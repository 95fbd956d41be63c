"""SYNC_FLUSH with many waiters: how many messages a second are acknowledged once they are on disk."""

from __future__ import annotations

import os
import time

from benchmarks.common import Row, best_of, messages, open_store, scratch
from kourou.store import FlushDiskType

SECONDS = 2.0
WAITERS = 256  # senders that each wait for their message before the next


def run() -> list[Row]:
    """One row: acknowledged messages, beside bare writes of as many bytes with an fdatasync each."""
    syncs = best_of(2, _syncs_per_second)
    return [
        Row(
            f"sync flush, {WAITERS} waiters, 1024 B",
            best_of(2, _acknowledged_per_second),
            syncs * WAITERS,
            "msg/s",
            f"{WAITERS} records a fdatasync, at {syncs:,.0f} syncs/s",
        )
    ]


def _acknowledged_per_second() -> float:
    acknowledged = 0
    free = WAITERS
    source = messages(1024, 1 << 40)

    def answered(_: object) -> None:
        nonlocal acknowledged, free
        acknowledged += 1
        free += 1

    with scratch() as root, open_store(root, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            while free:
                free -= 1
                message = next(source)
                store.when_stored(store.put_message(message), message, answered)
            store.wait(0.01)
        elapsed = time.perf_counter() - start
        return acknowledged / elapsed


def _syncs_per_second() -> float:
    data = os.urandom(1294 * WAITERS)
    with scratch() as root:
        fd = os.open(root / "file", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 1 << 30)
        count, at, start = 0, 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS / 2:
            os.pwrite(fd, data, at)
            os.fdatasync(fd)
            at, count = (at + len(data)) % (1 << 29), count + 1
        elapsed = time.perf_counter() - start
        os.close(fd)
    return count / elapsed

"""Append with full dispatch: the record to the log, its entry to the queue, three keys to the index."""

from __future__ import annotations

import time
from collections import deque

from benchmarks.common import Row, best_of, messages, open_store, scratch
from kourou.store.log.disk import OsDisk

COUNT = 150_000


def run() -> list[Row]:
    """Rows for bodies of 1 KiB and 128 bytes."""
    return [_row(1024, 100_000), _row(128, 100_000)]


def _row(body_size: int, expected: float) -> Row:
    return Row(
        f"append + queue + index, {body_size} B",
        best_of(3, lambda: _appends_per_second(body_size)),
        best_of(3, lambda: _copies_per_second(body_size)),
        "msg/s",
        "memcpy of the record into the same mmap",
        expected,
    )


def _appends_per_second(body_size: int) -> float:
    prepared = deque(messages(body_size, COUNT))
    with scratch() as root, open_store(root) as store:
        start = time.perf_counter()
        while prepared:
            store.put_message(prepared.popleft())  # and is done with, as in a broker
        store.index.write_pending()
        return COUNT / (time.perf_counter() - start)


def _copies_per_second(body_size: int) -> float:
    record = bytes(body_size + 270)
    size = 1 << 30
    with scratch() as root:
        mapping = OsDisk().map(f"{root}/commitlog", size)
        mapping.reserve(0, size)
        view, at, step = mapping.view, 0, len(record)
        start = time.perf_counter()
        for _ in range(COUNT):
            view[at : at + step] = record
            at += step
        elapsed = time.perf_counter() - start
        mapping.close()
    return COUNT / elapsed

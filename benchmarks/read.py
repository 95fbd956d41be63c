"""Read of 32 messages: what a pull costs the store."""

from __future__ import annotations

import time

from benchmarks.common import QUEUES, TOPIC, Row, best_of, fill, open_store, scratch
from kourou.store import MessageStore

LOG_BYTES = 256 * 1024 * 1024


def run() -> list[Row]:
    """One row: messages handed out as slices, beside bare slices of the same lengths."""
    with scratch() as root, open_store(root) as store:
        fill(store, 1024, LOG_BYTES)
        return [
            Row(
                "read of 32 messages, 1024 B",
                best_of(3, lambda: _messages_per_second(store)),
                best_of(3, lambda: _slices_per_second(store)),
                "msg/s",
                "a slice of the mmap for each record, nothing else",
                1_500_000,
            )
        ]


def _messages_per_second(store: MessageStore) -> float:
    count, start = 0, time.perf_counter()
    for queue_id in range(QUEUES):
        offset = 0
        while (result := store.get_message(TOPIC, queue_id, offset, 32)).records:
            count += result.message_count
            offset = result.next_begin_offset
    return count / (time.perf_counter() - start)


def _slices_per_second(store: MessageStore) -> float:
    file = store.commit_log.files.files[0]
    view, step = file.view, 1294
    count = file.wrote // step
    start = time.perf_counter()
    for at in range(0, count * step, step):
        view[at : at + step]
    return count / (time.perf_counter() - start)

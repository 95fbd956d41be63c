"""Small stores for tests: builders of configurations and messages, a clock that stands still, file facts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kourou.clock import Clock
from kourou.message import StoredMessage, decode
from kourou.store import GetMessageResult, InnerMessage, MessageStore, MessageStoreConfig
from kourou.store.log.disk import Disk

START_MS = 1_700_000_000_000  # a time like any other

LOG_FILE = 64 * 1024
QUEUE_FILE = 400  # 20 entries
BATCH_QUEUE_FILE = 460  # 10 entries
HASH_SLOTS = 100
INDEX_ENTRIES = 400


class ManualClock:
    """Time that passes only when told. `set_by` is an operator at the clock: no time passes by it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.time_ms = now_ms
        self._set_by_ms = 0
        self.boot = "first"

    def now_ms(self) -> int:
        return self.time_ms

    def elapsed_ms(self) -> int:
        return self.time_ms - self._set_by_ms

    def boot_id(self) -> str:
        return self.boot

    def advance(self, ms: int) -> None:
        self.time_ms += ms

    def set_by(self, ms: int) -> None:
        self.time_ms += ms
        self._set_by_ms += ms


def small_config(directory: Path, **overrides: Any) -> MessageStoreConfig:
    """A store of small files below `directory`."""
    values: dict[str, Any] = {
        "store_path_root_dir": str(directory / "store"),
        "mapped_file_size_commit_log": LOG_FILE,
        "mapped_file_size_consume_queue": QUEUE_FILE,
        "mapper_file_size_batch_consume_queue": BATCH_QUEUE_FILE,
        "mapped_file_size_consume_queue_ext": 4096,
        "max_hash_slot_num": HASH_SLOTS,
        "max_index_num": INDEX_ENTRIES,
        "delete_commit_log_files_interval": 0,
    }
    return MessageStoreConfig(**{**values, **overrides})


def message(
    topic: str = "topic",
    queue_id: int = 0,
    body: bytes = b"body",
    *,
    sys_flag: int = 0,
    born_host: bytes = b"\x0a\x00\x00\x01\x00\x00\x1f\x90",
    store_host: bytes = b"\x0a\x00\x00\x02\x00\x00\x2a\x9f",
    **properties: str,
) -> InnerMessage:
    """A message; what is not named otherwise is a property: `message("T", 0, b"x", KEYS="a b")`."""
    return InnerMessage.of(
        topic,
        queue_id,
        body,
        properties,
        sys_flag=sys_flag,
        born_timestamp=START_MS - 1000,
        born_host=born_host,
        store_host=store_host,
    )


@contextmanager
def open_store(
    config: MessageStoreConfig,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    threads: bool = False,
    is_batch_topic: Callable[[str], bool] | None = None,
) -> Iterator[MessageStore]:
    """A started store; without threads nothing happens that the test does not do itself."""
    store = MessageStore(config, disk=disk, clock=clock, is_batch_topic=is_batch_topic)
    store.load()
    store.start(threads=threads)
    try:
        yield store
    finally:
        store.shutdown()


def put(store: MessageStore, *messages: InnerMessage) -> list[int]:
    """Put messages that must be taken; their physical offsets."""
    offsets = []
    for item in messages:
        result = store.put_message(item)
        assert result.ok, result
        offsets.append(result.physical_offset)
    return offsets


def fill_file(store: MessageStore, topic: str = "topic", queue_id: int = 0, size: int = 4096) -> int:
    """Put messages until the log has rolled to a new file; how many there were."""
    last, count = store.commit_log.files.last(), 0
    while store.commit_log.files.last() is last or last is None:
        put(store, message(topic, queue_id, bytes(size)))
        last = last or store.commit_log.files.last()
        count += 1
    return count


def decoded(result: GetMessageResult) -> list[StoredMessage]:
    """The messages of a get."""
    return [decode(record) for record in result.records]


def bodies(store: MessageStore, topic: str = "topic", queue_id: int = 0, offset: int = 0) -> list[bytes]:
    """The bodies of a queue, from an offset to its end, over as many gets as it takes."""
    found: list[bytes] = []
    while (result := store.get_message(topic, queue_id, offset, 32)).records:
        found += [bytes(item.body) for item in decoded(result)]
        offset = result.next_begin_offset
    return found


def files_below(directory: str | Path) -> dict[str, int]:
    """Every file below a directory and its size."""
    return {
        str(p.relative_to(directory)): p.stat().st_size for p in Path(directory).rglob("*") if p.is_file()
    }


def open_files_below(directory: str | Path) -> list[str]:
    """Files below a directory that this process has open or mapped."""
    root = str(Path(directory).resolve())
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(root):
            found.append(target)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted(found + [line.split(None, 5)[5] for line in maps if root in line])

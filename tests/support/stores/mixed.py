"""A store with everything in it: many topics, batches, IPv6, compressed and delayed messages, transactions.

Run as a program it writes to a store until it is killed, and prints a line for each acknowledged message:

    python mixed.py ROOT SEED [sync]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kourou.message import (
    CompressionType,
    Message,
    UniqueIdGenerator,
    compress,
    encode_batch,
    encode_properties,
    pack_host,
    sysflag,
)
from kourou.store import FlushDiskType, InnerMessage, MessageStore, MessageStoreConfig, PutMessageResult

# Small files, so that a few hundred messages roll over all kinds of them.
SIZES = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}

TOPICS = [f"topic-{number}" for number in range(12)] + ["%RETRY%group", "T" * 140]
HOSTS = [pack_host("10.1.2.3", 4321), pack_host("2001:db8::17", 65535)]


def mixed_config(root: Path | str, **overrides: Any) -> MessageStoreConfig:
    """The configuration of such a store."""
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=SIZES["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=SIZES["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=SIZES["maxHashSlotNum"],
        max_index_num=SIZES["maxIndexNum"],
        **overrides,
    )


def put_mixed(store: MessageStore, count: int, seed: int = 1) -> list[tuple[InnerMessage, PutMessageResult]]:
    """Put messages of all kinds; each with its result."""
    return [(message, put(store, message)) for message in mixed_messages(count, seed)]


def put(store: MessageStore, message: InnerMessage) -> PutMessageResult:
    """Put a message of `mixed_messages`, which may be a batch."""
    return (store.put_messages if message.flag == BATCH_MARK else store.put_message)(message)


BATCH_MARK = 77  # flag of those whose body is a batch


def mixed_messages(count: int, seed: int) -> Iterator[InnerMessage]:
    """Messages of all kinds, the same for the same seed."""
    rng = random.Random(seed)
    unique = UniqueIdGenerator("10.9.8.7", pid=seed, instance=seed, now_ms=lambda: 1_790_000_000_000)
    for number in range(count):
        topic, queue_id = rng.choice(TOPICS), rng.randrange(3)
        properties = {"UNIQ_KEY": unique()}
        if rng.random() < 0.7:
            properties["TAGS"] = rng.choice(["TagA", "TagB", "标签", "t" * 40])
        if rng.random() < 0.5:
            properties["KEYS"] = " ".join(f"key-{rng.randrange(200)}" for _ in range(rng.randrange(1, 4)))
        if rng.random() < 0.3:
            properties["user"] = rng.choice(["plain", "ünïcödé 😀", "=&;,{}"])
        body = rng.randbytes(rng.choice([0, 1, 20, 300, 5000]))
        flag, sys_flag, prepared_offset = 0, 0, 0
        kind = rng.randrange(8)
        if kind == 0:
            compression = rng.choice(list(CompressionType))
            body, sys_flag = compress(body * 3, compression), compression.sys_flag
        elif kind == 1:
            flag = BATCH_MARK
            body = encode_batch(
                Message(topic, rng.randbytes(rng.randrange(80)), {**properties, "UNIQ_KEY": unique()})
                for _ in range(rng.randrange(1, 6))
            )
        elif kind == 2:
            level = rng.randrange(1, 19)
            properties |= {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
            topic, queue_id = "SCHEDULE_TOPIC_XXXX", level - 1
        elif kind == 3:
            sys_flag = rng.choice(
                [sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK]
            )
            prepared_offset = number
        yield InnerMessage.of(
            topic,
            queue_id,
            body,
            encode_properties(properties),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=1_790_000_000_000 + number,
            born_host=rng.choice(HOSTS),
            store_host=rng.choice(HOSTS),
            reconsume_times=rng.randrange(3),
            prepared_transaction_offset=prepared_offset,
        )


def main(root: str, seed: str, flush: str = "async") -> None:
    kind = FlushDiskType.SYNC_FLUSH if flush == "sync" else FlushDiskType.ASYNC_FLUSH
    store = MessageStore(mixed_config(root, flush_disk_type=kind))
    store.load()
    store.start()
    for message in mixed_messages(1_000_000, int(seed)):
        if flush == "sync" and message.flag != BATCH_MARK:
            result = store.put_and_wait(message)
        else:
            result = put(store, message)
        assert result.ok, result
        print(result.physical_offset, result.wrote_bytes, message.topic, result.queue_offset, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

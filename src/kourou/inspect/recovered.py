"""What a store makes of a directory when it loads it: the `recovered` part of a dump.

Recovery writes, so it runs on a private copy, which lies in the system's place for temporary files
(TMPDIR) as long as the dump is read. Holes in files stay holes in the copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from kourou.errors import KourouError
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.dump import LogDump, java_order
from kourou.inspect.json_stream import Parts
from kourou.message import properties as names
from kourou.store.index.index_file import TAG_TYPE
from kourou.store.message_store import MessageStore
from kourou.store.queue.queue_store import AnyQueue

# What a load reads or writes, beside the log.
_COPIED = (
    "abort", "batchconsumequeue", "checkpoint", "config", "consumequeue", "consumequeue_ext", "index",
)  # fmt: skip
_ALL_TIME = (1 << 63) - 1
_MOST_ANSWERS = 64


def recover_copy(source: StoreDirectory, stack: contextlib.ExitStack) -> Parts:
    """Load a copy. It stays, with the store that has it open, until `stack` is closed."""
    root = stack.enter_context(tempfile.TemporaryDirectory(prefix="kourou-dump-"))
    store = MessageStore(_copy(source, root))
    try:
        store.load()
        store.index_catch_up.finish()
    except KourouError:
        return Parts(loaded=False)
    stack.callback(store.shutdown)
    queues = Parts()
    for topic in sorted(store.queues.table, key=java_order):
        by_id = store.queues.table[topic]
        queues[topic] = Parts((str(queue_id), _queue(by_id[queue_id])) for queue_id in sorted(by_id))
    checkpoint = store.checkpoint
    after = StoreDirectory.open(root, store.config)
    log = LogDump(after)
    readable = sum(1 for _ in log.messages())
    return Parts(
        loaded=True,
        minPhyOffset=store.commit_log.min_offset,
        maxPhyOffset=store.commit_log.max_offset,
        flushedWhere=store.commit_log.files.flushed_where,
        confirmOffset=store.commit_log.max_offset,
        queues=queues,
        indexQueries=_index_queries(source, store),
        checkpoint={
            "physicMsgTimestamp": checkpoint.physic_msg_timestamp,
            "logicsMsgTimestamp": checkpoint.logics_msg_timestamp,
            "indexMsgTimestamp": checkpoint.index_msg_timestamp,
        },
        commitlogFiles=[os.path.basename(file.path) for file in after.log_files],
        readableRecords=readable,
        readableEnd=log.end,
    )


def _queue(queue: AnyQueue) -> Parts:
    return Parts(
        cqType=queue.cq_type,
        minOffset=queue.min_offset,
        maxOffset=queue.max_offset,
        maxPhysicOffset=queue.max_physic_offset,
        entries=(
            [entry.queue_offset, entry.physical_offset, entry.size, entry.tags_code, entry.batch_num]
            for entry in queue.iterate(queue.min_offset)
        ),
    )


def _index_queries(source: StoreDirectory, store: MessageStore) -> Iterator[dict[str, Any]]:
    """What the index answers for each key that a record of the log names, once for each."""
    asked: set[tuple[str, str, str]] = set()
    for message, _ in LogDump(source).messages():
        properties = message.properties
        keys = [(properties.get(names.UNIQ_KEY), "U"), (properties.get(names.TAGS), TAG_TYPE)]
        keys[1:1] = [(key, "K") for key in properties.get(names.KEYS, "").split(names.KEY_SEPARATOR)]
        for key, kind in keys:
            if not key or (message.topic, key, kind) in asked:
                continue
            asked.add((message.topic, key, kind))
            found = store.index.query(message.topic, key, _MOST_ANSWERS, 0, _ALL_TIME, kind)
            yield {"topic": message.topic, "key": key, "type": kind, "phyOffsets": found}


def _copy(source: StoreDirectory, root: str) -> Any:
    """Copy what a load needs to `root`; the configuration to load it with."""
    for name in _COPIED:
        _copy_tree(f"{source.root}/{name}", f"{root}/{name}")
    config = source.config
    directories = dict.fromkeys(config.commit_log_directories[:1], f"{root}/commitlog")
    others = [*config.commit_log_directories[1:], *config.read_only_directories]
    directories |= {path: f"{root}/commitlog-{number}" for number, path in enumerate(others, 1)}
    for path, copy in directories.items():
        os.makedirs(copy, exist_ok=True)
        _copy_tree(path, copy)
    return dataclasses.replace(
        config,
        store_path_root_dir=root,
        store_path_commit_log=",".join(directories[path] for path in config.commit_log_directories),
        read_only_commit_log_store_paths=",".join(directories[path] for path in config.read_only_directories),
    )


def _copy_tree(source: str, target: str) -> None:
    if os.path.isfile(source):
        _copy_file(source, target)
        return
    for folder, _, file_names in os.walk(source):
        copy = f"{target}{folder.removeprefix(source)}"
        os.makedirs(copy, exist_ok=True)
        for name in file_names:
            _copy_file(f"{folder}/{name}", f"{copy}/{name}")


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        size = os.fstat(reader.fileno()).st_size
        for start, end in _data_ranges(reader.fileno(), size):
            at = start
            while at < end:
                done = os.pwrite(writer.fileno(), os.pread(reader.fileno(), min(end - at, 1 << 20), at), at)
                at += done
        os.ftruncate(writer.fileno(), size)


def _data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data; between lie holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole is left
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end

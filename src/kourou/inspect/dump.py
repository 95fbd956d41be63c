"""Everything in a store directory as one JSON document, in the form `rocketmq-store-dump/1`.

The form is that of the Java program interop/StoreDump.java, key by key, so that what Java and what Kourou
read in a store can be compared: first what lies on disk, decoded and not judged, then, if asked for, what
a store makes of a private copy when it loads it (recovered.py).

The document is streamed: no part of it is held but the record or the entry being written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from typing import Any

from kourou.errors import CorruptRecordError
from kourou.inspect.directory import LogFile, StoreDirectory
from kourou.inspect.json_stream import Parts, stream_json
from kourou.inspect.lock import own_descriptor
from kourou.inspect.queue_files import QueueFiles
from kourou.message import sysflag
from kourou.message.codec import BLANK_MAGIC, LONG, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, StoredMessage, decode
from kourou.message.host import format_host
from kourou.message.properties import UNIQ_KEY
from kourou.store.index.index_file import HEADER as INDEX_HEADER
from kourou.store.log.disk import PAGE_SIZE
from kourou.store.timer.files import read_timer_checkpoint, read_timer_log, read_wheel

FORMAT = "rocketmq-store-dump/1"

Progress = Callable[[int], None]  # bytes of the log done since the last call

_ENTRIES_AT_ONCE = 8192


def dump(
    store: StoreDirectory, *, recovered: bool = False, progress: Progress | None = None
) -> Iterator[bytes]:
    """The document, part by part; joined they are one JSON object."""
    config = store.config
    document = Parts(
        format=FORMAT,
        config={
            "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
            "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
            "maxHashSlotNum": config.max_hash_slot_num,
            "maxIndexNum": config.max_index_num,
            "enabledAppendPropCRC": config.enabled_append_prop_crc,
            "enableLmq": config.enable_lmq,
        },
        abort=store.aborted,
        files=_files(store.root),
        checkpoint=_checkpoint(store),
        commitlog=_commit_log(store, progress),
        consumequeue=_queues(store, batch=False),
    )
    if store.disk.is_dir(f"{store.root}/batchconsumequeue"):
        document["batchconsumequeue"] = _queues(store, batch=True)
    document["index"] = Parts(files=(_index_file(store, path) for path in store.index_paths))
    if store.disk.size(f"{store.root}/timerwheel") >= 0:
        document["timer"] = _timer(store)
    document["configFiles"] = _config_files(store)
    with contextlib.ExitStack() as stack:
        if recovered:
            # Not at the top: it brings the whole store with it, which the rest does not need.
            from kourou.inspect.recovered import recover_copy

            document["recovered"] = recover_copy(store, stack)
        yield from stream_json(document)


def _files(root: str) -> Iterator[dict[str, Any]]:
    paths = []
    for folder, _, file_names in os.walk(root):
        paths += [os.path.relpath(f"{folder}/{name}", root) for name in file_names]
    for path in sorted(paths, key=java_order):
        full = f"{root}/{path}"
        shown = os.fsencode(path).decode("utf-8", "replace")  # a name need not be UTF-8, JSON must
        yield {"path": shown, "size": os.stat(full).st_size, "sha256": _sha256_of_file(full)}


def _sha256_of_file(path: str) -> str:
    descriptor = own_descriptor(path) if os.path.basename(path) == "lock" else None
    if descriptor is not None:  # to open and close it would give up the lock
        return hashlib.sha256(os.pread(descriptor, PAGE_SIZE, 0)).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def java_order(text: str) -> bytes:
    """The key by which Java sorts strings: their UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def _checkpoint(store: StoreDirectory) -> dict[str, Any] | None:
    view = store.view(f"{store.root}/checkpoint")
    if len(view) < 48:
        return None
    words = [LONG.unpack_from(view, at)[0] for at in range(0, 48, 8)]
    keys = (
        "physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset",
        "confirmPhyOffset", "logicsPhysicalOffset",
    )  # fmt: skip
    return {"size": len(view), **dict(zip(keys, words, strict=True)), "words": words}


# The log


class LogDump:
    """The records from the log's first byte up to the first thing that is none."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self.stop = "end of files"
        self.end = 0
        self.blanks: list[dict[str, Any]] = []

    def messages(self) -> Iterator[tuple[StoredMessage, memoryview]]:
        """Each record, decoded and as bytes; afterwards `stop`, `end` and `blanks` say how it ended."""
        self.stop, self.end, self.blanks = "end of files", 0, []
        for file in self._store.log_files:
            position, ended = yield from self._file(file)
            self.end = file.base + position
            if ended:
                return

    def _file(self, file: LogFile) -> Generator[tuple[StoredMessage, memoryview], None, tuple[int, bool]]:
        """The records of one file; how far it goes, and whether the log ends there."""
        view = self._store.view(file.path)
        position = 0
        while position + 8 <= len(view):
            size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
            if magic == BLANK_MAGIC:
                word = LONG.unpack_from(view, position + 8)[0] if position + 16 <= len(view) else 0
                self.blanks.append(
                    {
                        "file": os.path.basename(file.path),
                        "physicalOffset": file.base + position,
                        "size": size,
                        "storeTimestampWord": word,
                    }
                )
                return len(view), False
            if magic not in (MAGIC_V1, MAGIC_V2):
                self.stop = f"unknown magic {magic}" if magic else "zero magic"
                return position, True
            if size <= 0 or position + size > len(view):
                self.stop = "record runs past the file"
                return position, True
            record = view[position : position + size]
            try:
                message = decode(record, copy_body=False)
            except CorruptRecordError:
                self.stop = "record does not decode"
                return position, True
            yield message, record
            position += size
        return position, False


def _commit_log(store: StoreDirectory, progress: Progress | None) -> Parts:
    log = LogDump(store)
    for _ in log.messages():  # once for where it ends, which stands before the records, once for them
        pass
    names = [os.path.basename(file.path) for file in store.log_files]
    return Parts(
        files=names, endOffset=log.end, stop=log.stop, blanks=log.blanks, records=_records(store, progress)
    )


def _records(store: StoreDirectory, progress: Progress | None) -> Iterator[dict[str, Any]]:
    for message, record in LogDump(store).messages():
        yield record_fields(message, record)
        if progress is not None:
            progress(len(record))


def record_fields(message: StoredMessage, record: memoryview) -> dict[str, Any]:
    """All that is in a record, by the names that Java's MessageExt has for it."""
    fields: dict[str, Any] = {
        "physicalOffset": message.physical_offset,
        "storeSize": message.store_size,
        "magic": message.magic,
        "bodyCRC": message.body_crc,
        "queueId": message.queue_id,
        "flag": message.flag,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": format_host(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": format_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "topic": message.topic,
        "bodyLength": len(message.body),
        "body": b64encode(message.body).decode(),
    }
    if message.sys_flag & sysflag.COMPRESSED:
        fields |= _decompressed(message)
    fields["propertiesRaw"] = message.properties_raw
    fields["properties"] = sorted_properties(message.properties)
    fields["tagsCode"] = message.tags_code
    fields["offsetMsgId"] = message.offset_message_id
    fields["msgId"] = message.message_id
    if message.is_inner_batch:
        fields["inner"] = _inner(message)
    fields["recordSha256"] = hashlib.sha256(record).hexdigest()
    return fields


def _decompressed(message: StoredMessage) -> dict[str, Any]:
    try:
        plain, kind = message.decompressed_body, message.compression
    except CorruptRecordError as error:  # Java's program would fail on it
        return {"decompressError": str(error)}
    return {
        "compression": "" if kind is None else kind.name,
        "decompressedLength": len(plain),
        "decompressedSha256": hashlib.sha256(plain).hexdigest(),
        "decompressedBody": b64encode(plain).decode(),
    }


def _inner(message: StoredMessage) -> list[Any]:
    try:
        inner = message.inner_messages()
    except CorruptRecordError as error:
        return [f"undecodable: {error}"]
    return [
        {
            "queueOffset": message.queue_offset + number,
            "body": b64encode(part.body).decode(),
            "properties": sorted_properties(part.properties),
            "msgId": part.properties.get(UNIQ_KEY) or message.offset_message_id,
        }
        for number, part in enumerate(inner)
    ]


def sorted_properties(properties: dict[str, str]) -> dict[str, str]:
    """Properties in Java's order of names."""
    return {name: properties[name] for name in sorted(properties, key=java_order)}


# Queues and index


def _queues(store: StoreDirectory, *, batch: bool) -> Parts:
    folder = "batchconsumequeue" if batch else "consumequeue"
    topics = Parts()
    for topic in sorted(store.disk.list(f"{store.root}/{folder}"), key=java_order):
        if store.disk.is_dir(f"{store.root}/{folder}/{topic}"):
            topics[topic] = Parts()
    queues = [queue for queue in store.queues if queue.batch == batch]
    for queue in sorted(queues, key=lambda queue: java_order(str(queue.queue_id))):
        names = [os.path.basename(file.path) for file in queue.files]
        topics[queue.topic][str(queue.queue_id)] = Parts(files=names, entries=_entries(queue))
    return topics


def _entries(queue: QueueFiles) -> Iterator[list[int]]:
    """Of each file the entries up to the first that has no size."""
    for file in queue.files:
        room = queue.room(file)
        for start in range(0, file.capacity, _ENTRIES_AT_ONCE):
            for at, entry in enumerate(room[start : start + _ENTRIES_AT_ONCE].tolist(), start):
                if entry[1] <= 0:
                    break
                yield [file.first + at, *entry]
            else:
                continue
            break


def _index_file(store: StoreDirectory, path: str) -> Parts:
    fields = Parts(name=os.path.basename(path), size=store.disk.size(path))
    file = store.index_file(path)
    if file is None:
        fields["error"] = "size does not fit --hash-slots/--index-num"
        return fields
    header = INDEX_HEADER.unpack_from(store.view(path), 0)
    keys = ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset", "hashSlotCount", "indexCount")
    fields["header"] = dict(zip(keys, header, strict=True))
    fields["header"]["indexCount"] = file.count  # an empty file has 0 there and counts from 1
    slots = file.slots
    used = slots.nonzero()[0]
    fields["slots"] = iter(zip(used.tolist(), slots[used].tolist()))
    fields["entries"] = (
        (number, *entry)
        for start in range(1, min(file.count, file.max_entries), _ENTRIES_AT_ONCE)
        for number, entry in enumerate(
            file.entries[start : min(start + _ENTRIES_AT_ONCE, file.count)].tolist(), start
        )
    )
    return fields


# Timer and configuration


def _timer(store: StoreDirectory) -> Parts:
    wheel = store.view(f"{store.root}/timerwheel")
    fields = Parts(
        wheelSize=len(wheel),
        slots=(
            {
                "slot": slot.slot,
                "time": slot.time,
                "firstPos": slot.first_position,
                "lastPos": slot.last_position,
                "num": slot.messages,
                "magic": slot.magic,
            }
            for slot in read_wheel(wheel)
        ),
        log=_timer_log(store),
    )
    checkpoint = read_timer_checkpoint(store.view(f"{store.root}/config/timercheck"))
    if checkpoint is not None:
        fields["timercheck"] = {
            "lastReadTimeMs": checkpoint.last_read_time_ms,
            "lastTimerLogFlushPos": checkpoint.last_timer_log_flush_position,
            "lastTimerQueueOffset": checkpoint.last_timer_queue_offset,
            "masterTimerQueueOffset": checkpoint.master_timer_queue_offset,
            "stateVersion": checkpoint.state_version,
            "timestamp": checkpoint.timestamp,
            "counter": checkpoint.counter,
        }
    return fields


def _timer_log(store: StoreDirectory) -> Iterator[dict[str, int]]:
    for name in store.disk.list(f"{store.root}/timerlog"):
        if not name.isdecimal():
            continue
        for unit in read_timer_log(store.view(f"{store.root}/timerlog/{name}"), int(name)):
            yield {
                "pos": unit.position,
                "size": unit.size,
                "prevPos": unit.previous_position,
                "magic": unit.magic,
                "enqueueTime": unit.enqueue_time,
                "delayedTime": unit.delayed_time,
                "offsetPy": unit.physical_offset,
                "sizePy": unit.record_size,
                "hashCodeOfRealTopic": unit.topic_hash,
                "reserved": unit.reserved,
            }


def _config_files(store: StoreDirectory) -> dict[str, str]:
    base = f"{store.root}/config"
    names = sorted((name for name in store.disk.list(base) if name.endswith(".json")), key=java_order)
    return {name: str(store.view(f"{base}/{name}"), "utf-8", "replace") for name in names}

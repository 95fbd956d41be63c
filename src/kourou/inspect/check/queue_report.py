"""The entries of a queue, and whether their records are there."""

from __future__ import annotations

from typing import Any

from kourou.inspect.directory import StoreDirectory
from kourou.inspect.queue_files import QueueFiles
from kourou.message import properties as names
from kourou.store.queue.consume_queue import QueueEntry
from kourou.store.queue.queue_store import LMQ_SEPARATOR


def entry_fields(
    store: StoreDirectory, queue: QueueFiles, entry: QueueEntry, *, check_record: bool
) -> dict[str, Any]:
    """An entry; with `check_record` also what is to be said of its record."""
    fields: dict[str, Any] = {
        "queueOffset": entry.queue_offset,
        "physicalOffset": entry.physical_offset,
        "size": entry.size,
        "tagsCode": entry.tags_code,
        "messages": entry.batch_num,
    }
    if check_record:
        fields["record"] = judge_record(store, queue, entry)
    return fields


def judge_record(store: StoreDirectory, queue: QueueFiles, entry: QueueEntry) -> str:
    """`ok`, or what is wrong with the record that an entry points to."""
    message = store.message(entry.physical_offset)
    if message is None:
        return "there is no record"
    if message.store_size != entry.size:
        return f"the record has {message.store_size} bytes"
    own = (message.topic, message.queue_id, message.queue_offset)
    light = message.properties.get(names.INNER_MULTI_DISPATCH, "").split(LMQ_SEPARATOR)
    if own == (queue.topic, queue.queue_id, entry.queue_offset) or queue.topic in light:
        return "ok"
    return f"the record is of {message.topic}-{message.queue_id}, offset {message.queue_offset}"

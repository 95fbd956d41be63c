"""How the files of the index are filled, how long their chains are, and what they say of a key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from kourou.errors import StoreError
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.messages import has_key
from kourou.message import properties as names
from kourou.store.index.index_file import TAG_TYPE, IndexFile, key_hash

_ENTRIES_AT_ONCE = 1024 * 1024


def describe_index(store: StoreDirectory) -> Iterator[dict[str, Any]]:
    """Each file: header, slots in use, chains."""
    for path in store.index_paths:
        file = _file(store, path)
        chains = _chain_lengths(file)
        used = chains[chains > 0]
        yield {
            "file": os.path.basename(path),
            "bytes": file.size,
            "beginTimestamp": file.begin_timestamp,
            "endTimestamp": file.end_timestamp,
            "beginPhyOffset": file.begin_offset,
            "endPhyOffset": file.end_offset,
            "entries": file.count - 1,
            "maxEntries": file.max_entries - 1,
            "slotsUsed": file.slots_used,
            "slots": file.slot_count,
            "meanChain": round(float(used.mean()), 2) if len(used) else 0.0,
            "longestChain": int(used.max()) if len(used) else 0,
            "p99Chain": int(np.percentile(used, 99)) if len(used) else 0,
        }


def look_up(store: StoreDirectory, topic: str, key: str, *, tag: bool = False) -> Iterator[dict[str, Any]]:
    """Every entry with the hash of a key, newest first, and whether its record has the key itself."""
    text = f"{topic}#{TAG_TYPE}#{key}" if tag else f"{topic}#{key}"
    value = key_hash(text)
    for path in reversed(store.index_paths):
        file = _file(store, path)
        number = int(file.slots[value % file.slot_count])
        while 0 < number < min(file.count, file.max_entries):
            entry = file.entries[number]
            if int(entry["hash"]) == value:
                offset = int(entry["offset"])
                message = store.message(offset)
                same = message is not None and message.topic == topic
                if same and message is not None:
                    same = message.properties.get(names.TAGS) == key if tag else has_key(message, key)
                yield {
                    "file": os.path.basename(path),
                    "entry": number,
                    "hash": value,
                    "physicalOffset": offset,
                    "storeTimestamp": file.store_ms(number, int(entry["seconds"])),
                    "previous": int(entry["previous"]),
                    "hasKey": same,
                    "queueId": None if message is None else message.queue_id,
                    "queueOffset": None if message is None else message.queue_offset,
                }
            previous = int(entry["previous"])
            if previous >= number:
                break  # damage; `check` tells where
            number = previous


def _file(store: StoreDirectory, path: str) -> IndexFile:
    file = store.index_file(path)
    if file is None:
        size, right, name = store.disk.size(path), store.index_file_size, store.relative(path)
        raise StoreError(f"{name} has {size} bytes, maxHashSlotNum and maxIndexNum say {right}")
    return file


def _chain_lengths(file: IndexFile) -> np.ndarray:
    """How many entries each slot has."""
    lengths = np.zeros(file.slot_count, np.int64)
    last = min(file.count, file.max_entries)
    for start in range(1, last, _ENTRIES_AT_ONCE):
        hashes = file.entries["hash"][start : min(start + _ENTRIES_AT_ONCE, last)].astype(np.int64)
        lengths += np.bincount(hashes % file.slot_count, minlength=file.slot_count)
    return lengths

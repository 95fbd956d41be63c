"""An index file to look at: how its slots are used, and the chain that a key leads through."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kourou.errors import StoreError
from kourou.inspect import StoreDirectory
from kourou.inspect.check.index_report import describe_index
from kourou.inspect.messages import has_key
from kourou.message import properties as names
from kourou.store.index.index_file import TAG_TYPE, key_hash

STRIP_PARTS = 160
MOST_LINKS = 200  # of one chain that are shown


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of a chain: of this key (`has_key`), or of one that has its hash, or of its slot alone."""

    number: int
    hash: int
    offset: int
    store_ms: int
    previous: int
    is_same_hash: bool
    has_key: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """What a file has in the slot of a key, newest first."""

    file: str
    hash: int
    slot: int
    links: list[Link]
    is_cut: bool  # there are more


def describe_file(store: StoreDirectory, name: str) -> tuple[dict[str, Any], list[float]]:
    """What is to be said of an index file, and how full each part of its slots is (0 to 1)."""
    for described in describe_index(store):
        if described["file"] == name:
            path = next(path for path in store.index_paths if os.path.basename(path) == name)
            file = store.index_file(path)
            if file is not None:
                edges = np.linspace(0, file.slot_count, STRIP_PARTS + 1).astype(np.int64)
                shares = [
                    float(np.count_nonzero(file.slots[low:high])) / max(high - low, 1)
                    for low, high in pairwise(edges.tolist())
                ]
                return described, shares
    raise StoreError(f"there is no index file {name} here")


def walk_chains(store: StoreDirectory, topic: str, key: str, *, is_tag: bool = False) -> list[Chain]:
    """The chains of all files that a key of a topic leads to, newest file first."""
    value = key_hash(f"{topic}#{TAG_TYPE}#{key}" if is_tag else f"{topic}#{key}")
    chains = []
    for path in reversed(store.index_paths):
        file = store.index_file(path)
        if file is None:
            continue
        slot = value % file.slot_count
        number = int(file.slots[slot])
        links: list[Link] = []
        while 0 < number < min(file.count, file.max_entries) and len(links) < MOST_LINKS:
            entry = file.entries[number]
            offset, previous = int(entry["offset"]), int(entry["previous"])
            is_same = int(entry["hash"]) == value
            links.append(
                Link(
                    number, int(entry["hash"]), offset,
                    file.store_ms(number, int(entry["seconds"])), previous, is_same,
                    is_same and _has(store, offset, topic, key, is_tag),
                )
            )  # fmt: skip
            if previous >= number:
                break  # damage: a chain leads back, never on
            number = previous
        if links:
            is_cut = len(links) == MOST_LINKS and 0 < links[-1].previous < links[-1].number
            chains.append(Chain(os.path.basename(path), value, slot, links, is_cut))
    return chains


def _has(store: StoreDirectory, offset: int, topic: str, key: str, is_tag: bool) -> bool:
    message = store.message(offset)
    if message is None or message.topic != topic:
        return False
    return message.properties.get(names.TAGS) == key if is_tag else has_key(message, key)

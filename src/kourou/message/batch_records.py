"""The records that a batch becomes: each of its messages, as it lies in the log.

`encode_records` is the inner loop of batches, and the one function of the package that may be compiled: where
the build has a C compiler, Cython makes a module of `_batch_records.pyx`, which does the same. Which one it
is, is decided once, when this module is imported; a test compares the two (docs/decisions/0009).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from kourou.errors import BadMessageError
from kourou.message import properties as names
from kourou.message.batch import split_batch
from kourou.message.checksum import crc32
from kourou.message.properties import decode_properties, read_keys, tags_code

MAX_PROPERTIES = 0x7FFF
_OFFSET_END = 36  # of a record's header: then come bytes that are the same for a batch, and the body's length

# The encoded records, and for each its offset, its size and the code of its tags. Then all keys, in the form
# that the index takes: prefix, text, offset, store time of each (store.index.index_file.KeyList).
Records = tuple[bytes, list[int], list[int], list[int], list[Any]]


class TooLongError(BadMessageError):
    """Properties that no record has room for."""


def check_in_batch(text: str) -> None:
    """BadMessageError for properties that no message of a batch may have."""
    properties = decode_properties(text)
    if names.INNER_NUM in properties:
        raise BadMessageError(f"{names.INNER_NUM} is for inner batches only")
    if names.INNER_MULTI_QUEUE_OFFSET in properties:  # the store gives it, to single messages
        raise BadMessageError("a message of a batch goes to no light queue")


def add_keys(keys: list[Any], prefixes: tuple[int, int], text: str, offset: int, timestamp: int) -> int:
    """Add the keys that a property string names to others; the code of its tags. Hot."""
    unique_id, own_keys, tags = read_keys(text)
    if unique_id is not None:
        keys += prefixes[0], unique_id, offset, timestamp
    if own_keys is not None:
        for key in own_keys.split(" "):
            if key:
                keys += prefixes[0], key, offset, timestamp
    if tags is None:
        return 0
    keys += prefixes[1], tags, offset, timestamp
    return tags_code(tags)


def encode_in_python(
    batch: memoryview,
    header: bytes,
    topic_field: bytes,
    crc_room: int,
    offset: int,
    queue_offset: int,
    timestamp: int,
    prefixes: tuple[int, int],
) -> Records:
    """The records of a batch body that begin at an offset of the log. `header` is what they have in common,
    with zeros in place of what differs. BadMessageError, CorruptRecordError where there are none. Hot."""
    magic, queue_id, middle = header[4:8], header[12:16], header[_OFFSET_END:-4]
    pack, overhead, room = _head(len(middle)).pack, len(header) + len(topic_field), bytes(crc_room)
    offsets: list[int] = []
    sizes: list[int] = []
    codes: list[int] = []
    keys: list[Any] = []
    pieces: list[bytes | memoryview] = []
    for flag, body, raw in split_batch(batch):
        text = str(raw[2:], "utf-8", "replace")
        if "INNER_" in text:
            check_in_batch(text)
        tail: bytes | memoryview = raw  # the properties after their length: they stay as they are
        if room:
            own = bytes(raw[2:])
            own += (b"\x02" if own and own[-1] != 2 else b"") + room
            if len(own) > MAX_PROPERTIES:
                raise TooLongError(f"properties of {len(own)} bytes")
            tail = len(own).to_bytes(2, "big") + own
        size = overhead + len(body) + len(tail)
        codes.append(add_keys(keys, prefixes, text, offset, timestamp))
        crc = crc32(body) & 0x7FFFFFFF
        head = pack(size, magic, crc, queue_id, flag, queue_offset, offset, middle, len(body))
        pieces += head, body, topic_field, tail
        offsets.append(offset)
        sizes.append(size)
        offset += size
        queue_offset += 1
    return b"".join(pieces), offsets, sizes, codes, keys


@lru_cache
def _head(middle_length: int) -> struct.Struct:
    return struct.Struct(f">i4si4siqq{middle_length}si")


try:
    from kourou.message._batch_records import encode_records as encode_records
except ImportError:
    encode_records = encode_in_python

"""The body of a batch: several messages in one request or in one inner-batch record.

Layout of each message in it (MessageDecoder.encodeMessage):

| offset | size | field |
|--------|------|-------|
| 0      | 4    | size of all of it |
| 4      | 4    | magic, 0 |
| 8      | 4    | body CRC, 0 |
| 12     | 4    | flag |
| 16     | 4    | body length b |
| 20     | b    | body |
| 20+b   | 2    | properties length p |
| 22+b   | p    | property string |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message.model import Message
from kourou.message.properties import decode_properties, encode_properties

_HEAD = struct.Struct(">i8xii")  # magic and CRC of a sender mean nothing
_HEAD_SIZE = _HEAD.size
_SHORT = struct.Struct(">h")
_MIN_SIZE = _HEAD.size + _SHORT.size


def encode_batch(messages: Iterable[Message]) -> bytes:
    """The body that carries these messages."""
    return b"".join(
        [
            encode_in_batch(message.body, encode_properties(message.properties).encode(), message.flag)
            for message in messages
        ]
    )


def encode_in_batch(body: bytes | bytearray | memoryview, properties: bytes, flag: int = 0) -> bytes:
    """One message of a batch."""
    if len(properties) > 0x7FFF:
        raise BadMessageError(f"properties take {len(properties)} bytes, 32767 are allowed")
    head = _HEAD.pack(_MIN_SIZE + len(body) + len(properties), flag, len(body))
    return b"".join((head, body, _SHORT.pack(len(properties)), properties))


def iter_batch(body: bytes | memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """(flag, body, property string) of each message, as slices of the batch body: nothing is copied."""
    for flag, part, properties in split_batch(memoryview(body)):
        yield flag, part, properties[_SHORT.size :]


def split_batch(view: memoryview) -> list[tuple[int, memoryview, memoryview]]:
    """(flag, body, properties with their length before them) of each message, as slices. Hot."""
    found = []
    position, end = 0, len(view)
    unpack_head, unpack_length = _HEAD.unpack_from, _SHORT.unpack_from
    while position < end:
        if end - position < _MIN_SIZE:
            raise CorruptRecordError(f"batch body ends inside a message at {position}")
        size, flag, body_length = unpack_head(view, position)
        body_at = position + _HEAD_SIZE
        body_end = body_at + body_length
        if body_length < 0 or body_end + 2 > end:
            raise CorruptRecordError(f"batch body has a bad body length {body_length} at {position}")
        (properties_length,) = unpack_length(view, body_end)
        following = body_end + 2 + properties_length
        if properties_length < 0 or following > end or size != following - position:
            raise CorruptRecordError(f"batch body has a bad message size {size} at {position}")
        found.append((flag, view[body_at:body_end], view[body_end:following]))
        position = following
    return found


def decode_batch(body: bytes | memoryview, topic: str) -> list[Message]:
    """The messages of a batch body."""
    return [
        Message(topic, bytes(part), decode_properties(str(properties, "utf-8", "replace")), flag)
        for flag, part, properties in iter_batch(body)
    ]

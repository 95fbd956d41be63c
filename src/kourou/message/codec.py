"""The record: one message as the commit log holds it and as a pull hands it to a consumer.

Layout (CommitLog, MessageDecoder; seed 001). All numbers are big-endian and signed.

| offset | size    | field                  | meaning |
|--------|---------|------------------------|---------|
| 0      | 4       | TOTALSIZE              | of the whole record |
| 4      | 4       | MAGICCODE              | daa320a7 (version 1), daa320ab (version 2), cbd43194 (blank) |
| 8      | 4       | BODYCRC                | crc32 of the stored body, without its highest bit |
| 12     | 4       | QUEUEID                | |
| 16     | 4       | FLAG                   | the user's own |
| 20     | 8       | QUEUEOFFSET            | place in the ConsumeQueue |
| 28     | 8       | PHYSICALOFFSET         | place in the log: of this record's first byte |
| 36     | 4       | SYSFLAG                | see sysflag.py |
| 40     | 8       | BORNTIMESTAMP          | ms, the sender's clock |
| 48     | 8 or 20 | BORNHOST               | see host.py |
| 56     | 8       | STORETIMESTAMP         | ms, the broker's clock (68 with an IPv6 born host) |
| 64     | 8 or 20 | STOREHOST              | |
| 72     | 4       | RECONSUMETIMES         | |
| 76     | 8       | PREPARED TX OFFSET     | physical offset of the half message |
| 84     | 4       | BODY LENGTH b          | |
| 88     | b       | BODY                   | |
| 88+b   | 1 or 2  | TOPIC LENGTH t         | 2 bytes in version 2, for topics over 127 bytes |
| …      | t       | TOPIC                  | UTF-8 |
| …      | 2       | PROPERTIES LENGTH p    | |
| …      | p       | PROPERTIES             | see properties.py |

With `enabledAppendPropCRC` the property string ends with `__CRC32#` U+0001, ten decimal digits, lowest
first, U+0002: the crc32 of all bytes of the record before it.

A blank record fills the tail of a log file: TOTALSIZE of the rest, magic cbd43194, then anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import sysflag
from kourou.message.batch import decode_batch
from kourou.message.checksum import crc32
from kourou.message.compression import CompressionType, decompress
from kourou.message.ids import offset_message_id
from kourou.message.model import Message
from kourou.message.properties import CRC32, TAGS, UNIQ_KEY, decode_properties, tags_code

Buffer = bytes | bytearray | memoryview

MAGIC_V1 = -626843481  # daa320a7
MAGIC_V2 = -626843477  # daa320ab
BLANK_MAGIC = -875286124  # cbd43194

QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = 56  # with an IPv4 born host; 12 more with IPv6
IPV6_EXTRA = 12

# The header up to and with BODY LENGTH, by the two IPv6 bits of the system flag.
HEADERS = tuple(struct.Struct(f">iiiiiqqiq{born}sq{store}siqi") for store in (8, 20) for born in (8, 20))
HEADER_SIZES = tuple(header.size for header in HEADERS)
_MIN_RECORD_SIZE = HEADERS[0].size + 3  # no body, no topic, no properties

INT = struct.Struct(">i")
LONG = struct.Struct(">q")
SIZE_AND_MAGIC = struct.Struct(">ii")
_SHORT = struct.Struct(">h")
_pack_short = _SHORT.pack

# `__CRC32#` U+0001, ten digits, U+0002
PROPERTY_CRC_LENGTH = len(CRC32) + 12


def body_crc(body: Buffer) -> int:
    """BODYCRC of a stored body."""
    return crc32(body) & 0x7FFFFFFF


def record_size(sys_flag: int, magic: int, body: int, topic: int, properties: int) -> int:
    """TOTALSIZE for these lengths."""
    return HEADER_SIZES[sys_flag >> 4 & 3] + body + (2 if magic == MAGIC_V2 else 1) + topic + 2 + properties


def property_crc(record: Buffer) -> bytes:
    """The `__CRC32#` property for a record given without its room for that property."""
    return b"%s\x01%s\x02" % (CRC32.encode(), str(crc32(record) & 0x7FFFFFFF).zfill(10)[::-1].encode())


@dataclass(slots=True)
class StoredMessage:
    """A record as read back. `body` is as stored: see `decompressed_body`."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes | memoryview
    properties_raw: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    magic: int
    store_size: int
    _properties: dict[str, str] | None = field(default=None, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name, decoded when first asked for."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_raw)
        return self._properties

    @property
    def tags_code(self) -> int:
        """The hash of TAGS, as consumers filter by it."""
        return tags_code(self.properties.get(TAGS))

    @property
    def offset_message_id(self) -> str:
        """The id that says where the record lies."""
        return offset_message_id(self.store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The id that a client shows: the unique one where there is one."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def compression(self) -> CompressionType | None:
        """How the stored body is compressed."""
        return CompressionType.of_sys_flag(self.sys_flag) if self.sys_flag & sysflag.COMPRESSED else None

    @property
    def decompressed_body(self) -> bytes | memoryview:
        """The body as it was sent; CorruptRecordError where it cannot be read."""
        kind = self.compression
        return self.body if kind is None else decompress(self.body, kind)

    @property
    def is_inner_batch(self) -> bool:
        """Whether the body holds several messages."""
        return bool(self.sys_flag & sysflag.INNER_BATCH)

    def inner_messages(self) -> list[Message]:
        """The messages of an inner batch; the i-th has the queue offset `queue_offset + i`."""
        return decode_batch(self.decompressed_body, self.topic)


_M = TypeVar("_M", bound=StoredMessage)


@overload
def decode(
    buffer: Buffer, position: int = 0, *, check_crc: bool = True, copy_body: bool = True
) -> StoredMessage: ...
@overload
def decode(
    buffer: Buffer, position: int = 0, *, check_crc: bool = True, copy_body: bool = True, into: type[_M]
) -> _M: ...
def decode(
    buffer: Buffer,
    position: int = 0,
    *,
    check_crc: bool = True,
    copy_body: bool = True,
    into: type[StoredMessage] = StoredMessage,
) -> StoredMessage:
    """The record at `position`, as a StoredMessage or a kind `into` of it.

    With copy_body=False the body is a slice of the buffer and lives as long as it does.
    """
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    header, body, topic, properties = split(view, position, check_crc=check_crc)
    (
        size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
        store_timestamp, store_host, reconsume_times, prepared_offset, _,
    ) = header  # fmt: skip
    return into(
        str(topic, "utf-8", "replace"),
        queue_id,
        queue_offset,
        physical_offset,
        bytes(body) if copy_body else body,
        str(properties, "utf-8", "replace"),
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        crc,
        magic,
        size,
    )


def split(
    view: memoryview, position: int = 0, *, check_crc: bool = True
) -> tuple[tuple[Any, ...], memoryview, memoryview, memoryview]:
    """The fields before the body of a record, in their order, its body, its topic and its property string.
    CorruptRecordError where there is none. Hot."""
    available = len(view) - position
    if available < _MIN_RECORD_SIZE:
        raise CorruptRecordError(f"{available} bytes are left, a record has at least {_MIN_RECORD_SIZE}")
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise CorruptRecordError(f"unknown magic {magic & 0xFFFFFFFF:08x}")
    if not _MIN_RECORD_SIZE <= size <= available:
        raise CorruptRecordError(f"record of {size} bytes runs past its buffer")
    (sys_flag,) = INT.unpack_from(view, position + SYS_FLAG_AT)
    layout = HEADERS[sys_flag >> 4 & 3]
    if size < layout.size + 3:
        raise CorruptRecordError(f"record of {size} bytes is too short for its addresses")
    header = layout.unpack_from(view, position)
    crc, body_length = header[2], header[14]

    end = position + size
    body_at = position + layout.size
    topic_at = body_at + max(body_length, 0)
    if topic_at >= end:
        raise CorruptRecordError(f"body length {body_length} does not fit a record of {size} bytes")
    body = view[body_at:topic_at]
    if check_crc and body_length > 0 and crc32(body) & 0x7FFFFFFF != crc:
        raise CorruptRecordError(f"body CRC is {crc32(body) & 0x7FFFFFFF:08x}, the record says {crc:08x}")
    if magic == MAGIC_V1:
        topic_length = view[topic_at]
        topic_at += 1
    else:
        if topic_at + 2 > end:
            raise CorruptRecordError("record ends inside its topic length")
        (topic_length,) = _SHORT.unpack_from(view, topic_at)
        topic_at += 2
    properties_at = topic_at + topic_length + 2
    if topic_length < 0 or (magic == MAGIC_V1 and topic_length > 127) or properties_at > end:
        raise CorruptRecordError(f"topic length {topic_length} does not fit")
    (properties_length,) = _SHORT.unpack_from(view, properties_at - 2)
    if properties_at + max(properties_length, 0) != end:
        raise CorruptRecordError(f"parts of the record do not add up to its size {size}")
    return header, body, view[topic_at : properties_at - 2], view[properties_at:end]


def encode(message: StoredMessage, *, append_property_crc: bool = False) -> bytes:
    """The bytes of a record, its sizes and CRC computed anew."""
    topic = message.topic.encode()
    properties = message.properties_raw.encode()
    magic = MAGIC_V1 if len(topic) <= 127 else MAGIC_V2
    v6 = (len(message.born_host) == 20) * sysflag.BORN_HOST_V6 | (
        len(message.store_host) == 20
    ) * sysflag.STORE_HOST_V6
    if message.sys_flag & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6) != v6:
        raise BadMessageError("the system flag contradicts the lengths of the addresses")
    if append_property_crc:
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties += bytes(PROPERTY_CRC_LENGTH)
    if max(len(topic), len(properties)) > 0x7FFF:
        raise BadMessageError("topic or properties are too long for a record")
    size = record_size(message.sys_flag, magic, len(message.body), len(topic), len(properties))
    record = bytearray(size)
    encode_into(
        memoryview(record), 0, size, magic, body_crc(message.body), message.queue_id, message.flag,
        message.queue_offset, message.physical_offset, message.sys_flag, message.born_timestamp,
        message.born_host, message.store_timestamp, message.store_host, message.reconsume_times,
        message.prepared_transaction_offset, message.body, topic_field(topic, magic), properties,
    )  # fmt: skip
    if append_property_crc:
        record[-PROPERTY_CRC_LENGTH:] = property_crc(memoryview(record)[:-PROPERTY_CRC_LENGTH])
    return bytes(record)


def topic_field(topic: bytes, magic: int) -> bytes:
    """TOPIC LENGTH and TOPIC, which are the same in every record of a topic."""
    return len(topic).to_bytes(1 if magic == MAGIC_V1 else 2, "big") + topic


def encode_into(
    view: memoryview,
    position: int,
    size: int,
    magic: int,
    crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: Buffer,
    topic: bytes,
    properties: bytes,
) -> None:
    """Write a record at `position`, given its `topic_field`. Hot: one struct, two slice assignments."""
    kind = sys_flag >> 4 & 3
    body_length = len(body)
    HEADERS[kind].pack_into(
        view, position, size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
        prepared_transaction_offset, body_length,
    )  # fmt: skip
    at = position + HEADER_SIZES[kind]
    end = at + body_length
    view[at:end] = body
    view[end : position + size] = topic + _pack_short(len(properties)) + properties

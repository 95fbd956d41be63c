"""Records made up by hypothesis, and what a plain reading of a log says of it."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from kourou.errors import CorruptRecordError
from kourou.message import sysflag
from kourou.message.codec import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, StoredMessage, decode
from kourou.message.host import format_host
from kourou.message.properties import KEYS, TAGS, UNIQ_KEY

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
topics = st.one_of(text, st.sampled_from(["TopicTest", "T" * 127, "T" * 128, "主题" * 40]))
bodies = st.one_of(st.binary(max_size=60), st.integers(0, 300).map(lambda size: b"b" * size))
other_flags = st.integers(0, 0x7FF).map(lambda bits: bits & ~(sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6))
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))

# Property strings as clients write them, and damaged in every way that a few characters can make.
names = st.one_of(st.sampled_from([TAGS, KEYS, UNIQ_KEY, "TAG", "TAGSX", "a", "MSG_REGION", "名字"]), text)
well_formed = st.lists(st.tuples(names, text), max_size=8).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)
damaged = st.lists(
    st.sampled_from(
        [TAGS, KEYS, UNIQ_KEY, "\x01", "\x02", "a", "é", "TAGS\x01v\x02", "long-name-of-a-property\x01"]
    ),
    max_size=12,
).map("".join)
property_strings = st.one_of(well_formed, damaged)


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    """A message whose sizes, CRC and magic are those of its record."""
    born_host, store_host = draw(hosts), draw(hosts)
    flags = draw(other_flags)
    flags |= sysflag.BORN_HOST_V6 if len(born_host) == 20 else 0
    flags |= sysflag.STORE_HOST_V6 if len(store_host) == 20 else 0
    message = StoredMessage(
        topic=draw(topics),
        queue_id=draw(int32),
        queue_offset=draw(int64),
        physical_offset=draw(int64),
        body=draw(bodies),
        properties_raw=draw(property_strings),
        flag=draw(int32),
        sys_flag=flags,
        born_timestamp=draw(int64),
        born_host=born_host,
        store_timestamp=draw(int64),
        store_host=store_host,
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
        body_crc=0,
        magic=0,
        store_size=0,
    )
    topic = message.topic.encode()
    message.body_crc = crc32(message.body) & 0x7FFFFFFF
    message.magic = MAGIC_V1 if len(topic) <= 127 else MAGIC_V2
    message.store_size = len(encode_raw(message, topic, message.properties_raw.encode(), message.magic))
    return message


@st.composite
def raw_records(draw: st.DrawFn) -> bytes:
    """The bytes of a record, in which topic and properties need not be UTF-8.

    The length of a short topic may take two bytes, which no broker writes and every reader reads.
    """
    message = draw(stored_messages())
    topic = draw(st.one_of(st.just(message.topic.encode()), st.binary(max_size=20)))
    dirt = st.sampled_from(
        [b"", b"\xff", b"\xe4\xb8", b"\xed\xa0\x80", b"\xffTAGS\x01\xfe\x02", b"\xff\x01a\x02\xfe\x01b"]
    )
    properties = draw(dirt) + message.properties_raw.encode() + draw(dirt)
    magic = MAGIC_V2 if len(topic) > 127 else draw(st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]))
    return encode_raw(message, topic, properties, magic)


def encode_raw(message: StoredMessage, topic: bytes, properties: bytes, magic: int = MAGIC_V1) -> bytes:
    """A record with any bytes for topic and properties, put together here field by field."""
    body = bytes(message.body)
    tail = struct.pack(">B" if magic == MAGIC_V1 else ">h", len(topic)) + topic
    tail += struct.pack(">h", len(properties)) + properties
    born, store = len(message.born_host), len(message.store_host)
    return (
        struct.pack(
            f">iiiiiqqiq{born}sq{store}siqi", 72 + born + store + len(body) + len(tail), magic,
            crc32(body) & 0x7FFFFFFF, message.queue_id, message.flag, message.queue_offset,
            message.physical_offset, message.sys_flag, message.born_timestamp, message.born_host,
            message.store_timestamp, message.store_host, message.reconsume_times,
            message.prepared_transaction_offset, len(body),
        )
        + body
        + tail
    )  # fmt: skip


def simple_message(body: bytes = b"body", properties: str = "", **fields: Any) -> StoredMessage:
    """A message of which a test cares for a few fields only."""
    values: dict[str, Any] = {
        "topic": "TopicTest", "queue_id": 1, "queue_offset": 2, "physical_offset": 3, "body": body,
        "properties_raw": properties, "flag": 4, "sys_flag": 0, "born_timestamp": 1_700_000_000_000,
        "born_host": bytes([10, 0, 0, 1, 0, 0, 0x9C, 0x40]), "store_timestamp": 1_700_000_000_001,
        "store_host": bytes([10, 0, 0, 2, 0, 0, 0x2A, 0x9F]), "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body_crc": 0, "magic": 0, "store_size": 0,
    }  # fmt: skip
    return StoredMessage(**(values | fields))


def blank(size: int) -> bytes:
    """A blank record, as it fills the tail of a log file."""
    return struct.pack(">ii", size, BLANK_MAGIC).ljust(size, b"\0")


def decode_all(
    log: bytes | bytearray | memoryview, *, check_crc: bool = False
) -> tuple[list[StoredMessage], int]:
    """Record by record from the start, up to the first thing that does not decode; and where that is."""
    position, messages = 0, []
    while position < len(log):
        try:
            messages.append(decode(log, position, check_crc=check_crc))
        except CorruptRecordError:
            break
        position += messages[-1].store_size
    return messages, position


def as_row(message: StoredMessage) -> dict[str, Any]:
    """A message as a row of `columns`, with timestamps as numbers and properties as a dictionary."""
    row = {
        field: getattr(message, field)
        for field in (
            "topic", "queue_id", "queue_offset", "physical_offset", "store_size", "body", "body_crc", "flag",
            "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times", "prepared_transaction_offset",
            "message_id", "properties", "properties_raw", "magic",
        )
    }  # fmt: skip
    return row | {
        "born_host": format_host(message.born_host),
        "store_host": format_host(message.store_host),
        "tags": message.properties.get(TAGS),
        "keys": message.properties.get(KEYS),
        "uniq_key": message.properties.get(UNIQ_KEY),
        "body_error": None,
    }

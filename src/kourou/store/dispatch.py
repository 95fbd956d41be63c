"""DispatchRequest: what a record in the log means to the queues and to the index.

`check_record` reads it from the log, for recovery and for slaves, by the very checks of
CommitLog.checkMessageAndReturnSize. A master that appends a record knows all of it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.codec import (
    BLANK_MAGIC,
    HEADER_SIZES,
    HEADERS,
    INT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_LENGTH,
    SIZE_AND_MAGIC,
    SYS_FLAG_AT,
)
from kourou.message.properties import decode_properties, tags_code

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class DispatchRequest:
    """One record on its way to its queue and to the index."""

    __slots__ = (
        "batch_count",
        "batch_base",
        "physical_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "size",
        "store_timestamp",
        "sys_flag",
        "tags_code",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,
        queue_offset: int,
        sys_flag: int,
        properties: dict[str, str],
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.physical_offset = physical_offset
        self.size = size
        self.tags_code = tags_code
        self.store_timestamp = store_timestamp
        self.queue_offset = queue_offset
        self.sys_flag = sys_flag
        self.properties = properties
        self.batch_base = -1
        self.batch_count = 1
        if names.INNER_NUM in properties and names.INNER_BASE in properties:
            self.batch_base = int(properties[names.INNER_BASE])
            self.batch_count = int(properties[names.INNER_NUM])

    @property
    def in_queue(self) -> bool:
        """Whether consumers may see it: not prepared, not rolled back."""
        transaction = self.sys_flag & sysflag.TRANSACTION_MASK
        return transaction in (sysflag.TRANSACTION_NOT, sysflag.TRANSACTION_COMMIT)

    @property
    def in_index(self) -> bool:
        """Whether it can be found by key: not rolled back."""
        return self.sys_flag & sysflag.TRANSACTION_MASK != sysflag.TRANSACTION_ROLLBACK


class NotARecord:
    """Why there is no record at a place."""

    __slots__ = ("blank", "reason")

    def __init__(self, reason: str, blank: bool = False) -> None:
        self.reason = reason
        self.blank = blank  # the file goes on in the next


_BLANK = NotARecord("blank", blank=True)
_END = NotARecord("end of file")
_ZERO = NotARecord("zero magic")


def check_record(
    view: memoryview,
    position: int,
    limit: int,
    *,
    check_crc: bool = True,
    verify_property_crc: bool = False,
    delay_levels: Sequence[int] = (),
    topics: dict[bytes, str] | None = None,
) -> DispatchRequest | NotARecord:
    """The record at `position` of a log file whose bytes end at `limit`.

    `topics` caches topic names over many calls. Hot in recovery: no object but the request is made.
    """
    if limit - position <= 8:
        return _END
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    end = position + size
    if end > limit:
        return NotARecord(f"record of {size} bytes runs past the file")
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if magic == BLANK_MAGIC:
            return _BLANK
        return NotARecord(f"unknown magic {magic & 0xFFFFFFFF:08x}") if magic else _ZERO
    if size < HEADER_SIZES[0]:
        return NotARecord(f"record of {size} bytes is too short")
    (sys_flag,) = INT.unpack_from(view, position + SYS_FLAG_AT)
    kind = sys_flag >> 4 & 3
    at = position + HEADER_SIZES[kind]
    if at > end:
        return NotARecord(f"record of {size} bytes is too short for its addresses")
    (
        _, _, crc, queue_id, _, queue_offset, physical_offset, _, _, _, store_timestamp, _, _, _, body_length,
    ) = HEADERS[kind].unpack_from(view, position)  # fmt: skip
    if body_length > 0:
        topic_at = at + body_length
        if topic_at > end:
            return NotARecord(f"body of {body_length} bytes runs past the record")
        if check_crc and not verify_property_crc and crc32(view[at:topic_at]) & 0x7FFFFFFF != crc:
            return NotARecord("body CRC does not match")
        at = topic_at
    if magic == MAGIC_V1:
        topic_at = at + 1
        topic_length = view[at] if at < end else 255
        topic_length = -1 if topic_length > 127 else topic_length
    else:
        topic_at = at + 2
        topic_length = int.from_bytes(view[at:topic_at], "big", signed=True)
    at = topic_at + topic_length + 2
    if topic_length < 0 or at > end:
        return NotARecord(f"topic of {topic_length} bytes does not fit the record")
    properties_length = int.from_bytes(view[at - 2 : at], "big", signed=True)
    if at + (properties_length if properties_length > 0 else 0) != end:
        return NotARecord(f"the parts do not add up to {size} bytes")

    topic_bytes = bytes(view[topic_at : at - 2])
    topic = topics.get(topic_bytes) if topics is not None else None
    if topic is None:
        topic = str(topic_bytes, "utf-8", "replace")
        if topics is not None:
            topics[topic_bytes] = topic
    properties = decode_properties(str(view[at:end], "utf-8", "replace"))
    if check_crc and verify_property_crc and not _property_crc_fits(view[position:end], properties):
        return NotARecord("record CRC does not match")
    code = tags_code(properties.get(names.TAGS))
    try:
        if topic == SCHEDULE_TOPIC and names.DELAY_TIME_LEVEL in properties:
            level = min(int(properties[names.DELAY_TIME_LEVEL]), len(delay_levels))
            if level > 0:
                code = store_timestamp + delay_levels[level - 1]
        return DispatchRequest(
            topic, queue_id, physical_offset, size, code, store_timestamp, queue_offset, sys_flag, properties
        )
    except ValueError as error:
        return NotARecord(f"a property that must be a number is none: {error}")


def _property_crc_fits(record: memoryview, properties: dict[str, str]) -> bool:
    digits = properties.get(names.CRC32, "")[::-1]
    return digits.isdecimal() and crc32(record[:-PROPERTY_CRC_LENGTH]) & 0x7FFFFFFF == int(digits)

"""A record of the log taken apart: which bytes are which field, what they say, and whether that is right.

The layout is told in message/codec.py. A record that is damaged is taken apart as far as its lengths go.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime

from kourou.inspect.directory import StoreDirectory
from kourou.message import sysflag
from kourou.message.codec import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, body_crc
from kourou.message.host import format_host

_MAGICS = {MAGIC_V1: "daa320a7, V1", MAGIC_V2: "daa320ab, V2", BLANK_MAGIC: "cbd43194, blank"}
_TRANSACTIONS = {
    sysflag.TRANSACTION_PREPARED: "prepared",
    sysflag.TRANSACTION_COMMIT: "commit",
    sysflag.TRANSACTION_ROLLBACK: "rollback",
}
_BITS = {
    sysflag.COMPRESSED: "compressed", sysflag.MULTI_TAGS: "multi tags",
    sysflag.BORN_HOST_V6: "born host is IPv6", sysflag.STORE_HOST_V6: "store host is IPv6",
    sysflag.NEED_UNWRAP: "to be unwrapped", sysflag.INNER_BATCH: "inner batch",
}  # fmt: skip
PREVIEW_CHARACTERS = 90
_LONGEST_VALUE = 160  # characters of a value that are shown
_MOST_MS = 253_402_300_799_000  # the end of the year 9999, behind which no date can be made


@dataclass(frozen=True, slots=True)
class Field:
    """Some bytes of a record. `group` gives the colour; `verdict` is True or False where it was checked."""

    name: str
    start: int
    end: int
    value: str
    group: str
    kind: str
    verdict: bool | None = None


class _Reader:
    def __init__(self, record: bytes) -> None:
        self.record = record
        self.at = 0
        self.fields: list[Field] = []

    def take(self, name: str, size: int, group: str) -> bytes | None:
        """The next bytes, as a field; None where the record has not so many."""
        if size < 0 or self.at + size > len(self.record):
            return None
        data = self.record[self.at : self.at + size]
        self.fields.append(Field(name, self.at, self.at + size, "", group, name))
        self.at += size
        return data

    def say(self, value: str, verdict: bool | None = None) -> None:
        """What the field taken last says."""
        last = self.fields[-1]
        self.fields[-1] = Field(last.name, last.start, last.end, value, last.group, last.kind, verdict)

    def number(self, name: str, size: int, group: str) -> int | None:
        """The next bytes as a number."""
        data = self.take(name, size, group)
        if data is None:
            return None
        value = int.from_bytes(data, "big", signed=True)
        self.say(f"{value}")
        return value


def dissect(record: bytes, offset: int) -> list[Field]:
    """The fields of the record that lies at a physical offset, in order."""
    reader = _Reader(record)
    body_at = _read_header(reader, offset)
    if body_at is not None:
        _read_rest(reader, body_at)
    if reader.at < len(record):
        left = len(record) - reader.at
        reader.take("REST", left, "rest")
        reader.say(f"{left} B")
    return reader.fields


def _read_header(reader: _Reader, offset: int) -> tuple[int, int, int] | None:
    """Read up to BODY LENGTH; (place of BODYCRC's field, magic, length), None where it ends before."""
    total = reader.number("TOTALSIZE", 4, "frame")
    magic = reader.number("MAGICCODE", 4, "frame")
    if total is None or magic is None:
        return None
    reader.say(_MAGICS.get(magic, f"{magic & 0xFFFFFFFF:08x}"), magic in _MAGICS)
    if magic == BLANK_MAGIC:
        return None
    reader.number("BODYCRC", 4, "check")
    crc_at = len(reader.fields) - 1
    reader.number("QUEUEID", 4, "place")
    reader.number("FLAG", 4, "flag")
    reader.number("QUEUEOFFSET", 8, "place")
    physical = reader.number("PHYSICALOFFSET", 8, "place")
    flags = reader.number("SYSFLAG", 4, "flag")
    if physical is None or flags is None:
        return None
    where = reader.fields[-2]
    reader.fields[-2] = Field(
        where.name, where.start, where.end, where.value, where.group, where.kind, physical == offset
    )
    reader.say(_say_flags(flags))
    for name in ("BORN", "STORE"):
        time = reader.number(f"{name}TIMESTAMP", 8, "time")
        is_v6 = flags & (sysflag.BORN_HOST_V6 if name == "BORN" else sysflag.STORE_HOST_V6)
        if time is not None:
            reader.say(_say_time(time))
        host = reader.take(f"{name}HOST", 20 if is_v6 else 8, "host")
        if host is not None:
            reader.say(format_host(host))
    reader.number("RECONSUMETIMES", 4, "flag")
    reader.number("PREPARED TX OFFSET", 8, "place")
    length = reader.number("BODY LENGTH", 4, "length")
    return None if length is None else (crc_at, magic, length)


def _read_rest(reader: _Reader, header: tuple[int, int, int]) -> None:
    crc_at, magic, length = header
    body = reader.take("BODY", length, "body")
    if body is None:
        return
    reader.say(preview(body[: PREVIEW_CHARACTERS * 4]))
    crc = reader.fields[crc_at]
    is_right = int(crc.value) == body_crc(body)
    reader.fields[crc_at] = Field(
        crc.name, crc.start, crc.end, f"{int(crc.value):08x}", crc.group, crc.kind, is_right
    )
    topic_length = reader.number("TOPIC LENGTH", 2 if magic == MAGIC_V2 else 1, "length")
    topic = None if topic_length is None else reader.take("TOPIC", topic_length, "topic")
    if topic is None:
        return
    reader.say(topic.decode("utf-8", "replace"))
    size = reader.number("PROPERTIES LENGTH", 2, "length")
    if size is None or not 0 <= size <= len(reader.record) - reader.at:
        return
    end = reader.at + size
    while reader.at < end:
        stop = reader.record.find(b"\x02", reader.at, end)
        data = reader.take("PROPERTY", (end if stop < 0 else stop + 1) - reader.at, "property") or b""
        name, _, value = data.rstrip(b"\x02").partition(b"\x01")
        last = reader.fields[-1]
        reader.fields[-1] = Field(
            name.decode("utf-8", "replace") or "PROPERTY", last.start, last.end,
            _short(value.decode("utf-8", "replace")), last.group, last.kind,
        )  # fmt: skip


def _say_flags(flags: int) -> str:
    words = [word for bit, word in _BITS.items() if flags & bit]
    transaction = _TRANSACTIONS.get(flags & sysflag.TRANSACTION_MASK)
    if transaction is not None:
        words.append(transaction)
    return f"{flags:#x} {', '.join(words)}".strip() if flags else "0"


def _say_time(time_ms: int) -> str:
    return f"{time_ms} = {show_time(time_ms)}" if 0 < time_ms < _MOST_MS else str(time_ms)


def show_time(time_ms: int) -> str:
    """A time for people, in UTC; a dash for none."""
    if not 0 < time_ms < _MOST_MS:
        return "—"
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03d} UTC"


def preview(body: bytes, most: int = PREVIEW_CHARACTERS) -> str:
    """The beginning of a body, in one line."""
    text = body.decode("utf-8", "ignore")
    if not is_text(text) or (body and not text):
        return body[: most // 3].hex(" ")
    return textwrap.shorten(text, most, placeholder="…") if text.strip() else text


def is_text(text: str) -> bool:
    """Whether a text can be shown as it is."""
    return all(char.isprintable() or char in "\r\n\t" for char in text)


# The checkpoint

_WORDS = (
    "physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset",
    "confirmPhyOffset", "logicsPhysicalOffset",
)  # fmt: skip


def dissect_checkpoint(store: StoreDirectory) -> tuple[bytes, list[Field]]:
    """The bytes of the checkpoint that are in use, and what they say."""
    data = bytes(store.view(f"{store.root}/checkpoint")[: len(_WORDS) * 8])
    fields = []
    for at, name in zip(range(0, len(data) - 7, 8), _WORDS):
        value = int.from_bytes(data[at : at + 8], "big", signed=True)
        is_time = name.endswith("Timestamp")
        shown = f"{value} = {show_time(value)}" if is_time and value > 0 else f"{value}"
        fields.append(Field(name, at, at + 8, shown, "time" if is_time else "place", "WORD"))
    return data[: len(fields) * 8], fields


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"

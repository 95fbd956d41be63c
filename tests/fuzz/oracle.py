"""What bytes mean, read a second time by other code than Kourou's: plain, slow, and after the documents."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

JSON, ROCKETMQ = 0, 1
MOST_BYTES = 16 * 1024 * 1024
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_INT32 = range(-(2**31), 2**31)


class Command(NamedTuple):
    """What a header says."""

    code: int
    opaque: int
    flag: int
    remark: str | None
    fields: dict[str, str] | None
    body: bytes


class Unclear(NamedTuple):
    """A frame whose header two readers may take for different things: numbers as texts, two equal names,
    bytes that are no UTF-8 (in a name that nobody knows they do not matter)."""


Read = Command | Unclear | None  # None: no frame


def frames_in(data: bytes) -> Iterator[tuple[bytes, Read]]:
    """The frames in what came on a connection: each with what it means. It ends with the first that is none,
    or with a piece of one (b"" and None)."""
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            yield b"", None
            return
        (length,) = struct.unpack_from(">i", data, at)
        if not 4 <= length <= MOST_BYTES:
            yield data[at : at + 4], None
            return
        if at + 4 + length > len(data):
            yield b"", None
            return
        frame = data[at : at + 4 + length]
        read = read_frame(frame)
        yield frame, read
        if read is None:
            return
        at += 4 + length


def read_frame(frame: bytes) -> Read:
    """A whole frame."""
    word = int.from_bytes(frame[4:8], "big")
    header, body = frame[8 : 8 + (word & 0xFFFFFF)], frame[8 + (word & 0xFFFFFF) :]
    if len(header) < word & 0xFFFFFF:
        return None
    if word >> 24 == JSON:
        return _read_json(header, body)
    return _read_binary(header, body) if word >> 24 == ROCKETMQ else None


def _read_json(header: bytes, body: bytes) -> Read:
    try:
        pairs = json.loads(header.decode("utf-8"), object_pairs_hook=list, parse_constant=_refuse)
    except UnicodeDecodeError:
        return Unclear()
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    fields = dict(pairs)
    if len(fields) < len(pairs) or not {"code", "opaque"} <= fields.keys():
        return Unclear() if {"code", "opaque"} <= fields.keys() else None
    numbers = [fields["code"], fields["opaque"], fields.get("flag", 0), fields.get("version", 0)]
    if any(type(number) is not int or number not in _INT32 for number in numbers):
        return Unclear()
    texts = fields.get("extFields")
    if texts is not None and (
        not isinstance(texts, list)
        or not all(isinstance(pair, tuple) and isinstance(pair[1], str) for pair in texts)
        or len(dict(texts)) < len(texts)
    ):
        return Unclear()
    remark = fields.get("remark")
    if not isinstance(remark, str | None) or not isinstance(fields.get("language", ""), str):
        return Unclear()
    if _SURROGATE.search(header):  # half of one is no text, and can only come of an escape
        return Unclear()
    code, opaque, flag, _ = numbers
    return Command(code, opaque, flag, remark, None if texts is None else dict(texts), body)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _read_binary(header: bytes, body: bytes) -> Read:
    try:
        code, _, _, opaque, flag, size = struct.unpack_from(">hBhiii", header)
        at = 17 + size
        if not 0 <= size <= len(header) - 17:
            return None
        remark = header[17:at].decode("utf-8", "replace") or None
        (size,) = struct.unpack_from(">i", header, at)
        at, end = at + 4, at + 4 + size
        if size < 0 or end > len(header):
            return None
        fields: dict[str, str] = {}
        while at < end:
            (size,) = struct.unpack_from(">h", header, at)
            name = header[at + 2 : at + 2 + size]
            (text_size,) = struct.unpack_from(">i", header, at + 2 + size)
            at += 6 + size + text_size
            if size < 0 or text_size < 0 or at > end:
                return None
            fields[name.decode("utf-8", "replace")] = header[at - text_size : at].decode("utf-8", "replace")
    except struct.error:
        return None
    return Command(code, opaque, flag, remark, fields or None, body)


# The log

_MAGICS = (0xDAA320A7, 0xDAA320AB)
_BLANK = 0xCBD43194


class LogEnd(NamedTuple):
    """Where a log ends, and the records before that: offset and size of each."""

    end: int
    records: list[tuple[int, int]]


def read_log(files: list[tuple[int, bytes]]) -> LogEnd:
    """Read a log from its first byte to the first that is no record, by sizes, magic, place and CRC."""
    records: list[tuple[int, int]] = []
    end = files[0][0] if files else 0
    used = len(files)
    while used and not files[used - 1][1]:  # made ahead, and never used
        used -= 1
    for base, data in files[:used]:
        at, rolls = 0, False
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == _BLANK and at + size <= len(data):
                rolls = True
                break
            if not is_record(data, at, base):
                break
            records.append((base + at, size))
            at += size
        end = base + at
        if not rolls:
            break
    return LogEnd(end, records)


def is_record(data: bytes, at: int, base: int) -> bool:
    """Whether a record is whole. Lengths below zero count as none, as in Java."""
    try:
        size, magic, crc = struct.unpack_from(">iIi", data, at)
        if magic not in _MAGICS or at + size > len(data):
            return False
        (offset,) = struct.unpack_from(">q", data, at + 28)
        (flags,) = struct.unpack_from(">i", data, at + 36)
        place = at + 48 + (20 if flags & 1 << 4 else 8) + 8 + (20 if flags & 1 << 5 else 8) + 12
        (body_size,) = struct.unpack_from(">i", data, place)
        body = data[place + 4 : place + 4 + max(body_size, 0)]
        place += 4 + len(body)
        form = ">b" if magic == _MAGICS[0] else ">h"
        (topic_size,) = struct.unpack_from(form, data, place)
        place += struct.calcsize(form) + topic_size
        (properties_size,) = struct.unpack_from(">h", data, place)
    except struct.error:
        return False
    fits = topic_size >= 0 and place + 2 + max(properties_size, 0) == at + size
    return fits and offset == base + at and (not body or zlib.crc32(body) & 0x7FFFFFFF == crc)

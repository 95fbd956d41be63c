"""Loops over the bytes of many records, compiled: the same answers as `scan` and `property_scan`, sooner.

What lives here: the innermost loops of reading a log into Arrow, and nothing that decides anything. What
does not: their meaning, which is told in `scan`, `property_scan` and `columns`. Where a loop meets
something unusual (a record that is none, a text that is not ASCII) it says so, and the plain road goes on.

numba is an optional dependency (extra `spark`), and takes time and memory to load: `columns.accelerate`
imports this module where that pays. Words are read and written at any byte, so that a text is copied eight
bytes at a time; what is written beyond its end is overwritten by the next, and outputs have room for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kourou.message import codec

WORD = 8  # bytes that an output needs beyond what it holds

_V1 = codec.MAGIC_V1 & 0xFFFFFFFF
_V2 = codec.MAGIC_V2 & 0xFFFFFFFF
_MIN_RECORD_SIZE = codec.HEADER_SIZES[0] + 3
_SYS_FLAG_AT = codec.SYS_FLAG_AT
_PHYSICAL_OFFSET_AT = codec.PHYSICAL_OFFSET_AT
_LONGEST_PROPERTIES = 0x7FFF
_HEADER_SIZE, _IPV6_EXTRA = codec.HEADER_SIZES[0], codec.IPV6_EXTRA


def _compiled(function: Any) -> Any:
    return njit(cache=True, nogil=True)(function)


@_compiled
def _int(data: Any, at: int) -> Any:
    """Four bytes, big-endian, without a sign."""
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@_compiled
def _is_same(data: Any, start: int, other_data: Any, other: int, length: int) -> Any:
    for at in range(length):  # noqa: SIM110 - a generator does not compile
        if data[start + at] != other_data[other + at]:
            return False
    return True


@_compiled
def walk(data: Any, position: int, end: int, base_offset: int, positions: Any) -> Any:
    """From record to record, as `scan.find_records`; base_offset is -1 where it is not known.

    How many there are, and where the walk stopped: at `end` or behind it, or at what is no record.
    """
    count = 0
    size_of_file = len(data)
    while position < end:
        if position + _MIN_RECORD_SIZE > size_of_file:
            break
        size = _int(data, position)
        magic = _int(data, position + 4)
        if (magic != _V1 and magic != _V2) or size < _MIN_RECORD_SIZE or position + size > size_of_file:
            break
        if base_offset >= 0:
            at = position + _PHYSICAL_OFFSET_AT
            if ((_int(data, at) << 32) | _int(data, at + 4)) != base_offset + position:
                break
        positions[count] = position
        count += 1
        position += size
    return count, position


@_compiled
def _parts(data: Any, position: int, end: int, out: Any, row: int) -> Any:
    """Where the parts of one record lie; False if they do not add up."""
    layout = (_int(data, position + _SYS_FLAG_AT) >> 4) & 3
    body = position + _HEADER_SIZE + _IPV6_EXTRA * ((layout & 1) + (layout >> 1))
    if body + 3 > end:
        return False
    body_length = _int(data, body - 4)
    if body_length >= 0x80000000:
        body_length = 0
    topic = body + body_length + 1
    if topic > end:
        return False
    topic_length = np.int64(data[topic - 1])
    if _int(data, position + 4) == _V2:
        topic += 1
        if topic > end:
            return False
        topic_length = (topic_length << 8) | np.int64(data[topic - 1])
        if topic_length > 0x7FFF:
            return False
    elif topic_length > 127:
        return False
    properties = topic + topic_length + 2
    if properties > end:
        return False
    properties_length = (np.int64(data[properties - 2]) << 8) | np.int64(data[properties - 1])
    if properties_length >= 0x8000:
        properties_length = np.int64(0)
    out[0, row] = body
    out[1, row] = body_length
    out[2, row] = topic
    out[3, row] = topic_length
    out[4, row] = properties
    out[5, row] = properties_length
    return properties + properties_length == end


@_compiled
def parts(data: Any, positions: Any, sizes: Any, out: Any) -> Any:
    """Where the parts of records begin and how long they are, as `scan.read_records`; how many are good.

    out: six rows, for start and length of body, topic and properties.
    """
    for row in range(len(positions)):
        if not _parts(data, positions[row], positions[row] + sizes[row], out, row):
            return row
    return len(positions)


@_compiled
def of_topics(
    data: Any, positions: Any, sizes: Any, names: Any, name_starts: Any, rows: Any, out: Any
) -> Any:
    """The rows whose topic is one of `names` (one behind the other, each from its start to the next), and
    their parts as by `parts`; how many, or -1 if a record is not good."""
    count = 0
    for row in range(len(positions)):
        if not _parts(data, positions[row], positions[row] + sizes[row], out, count):
            return -1
        for name in range(len(name_starts) - 1):
            length = name_starts[name + 1] - name_starts[name]
            if out[3, count] == length and _is_same(data, out[2, count], names, name_starts[name], length):
                rows[count] = row
                count += 1
                break
    return count


@_compiled
def fixed(headers: Any, at: int, size: int, out: Any) -> Any:
    """The integers of four or eight bytes that stand at a place of each header."""
    if size == 4:
        for row in range(len(out)):
            out[row] = _int(headers[row], at)
    else:
        for row in range(len(out)):
            out[row] = (_int(headers[row], at) << 32) | _int(headers[row], at + 4)


@_compiled
def offsets(lengths: Any, out: Any) -> Any:
    """Where each text begins if they lie one behind the other, and where the last ends."""
    total = np.int64(0)
    for row in range(len(lengths)):
        out[row] = total
        length = lengths[row]
        if length > 0:
            total += length
    out[len(lengths)] = total
    return total


@_compiled
def gather(data: Any, words: Any, starts: Any, lengths: Any, out: Any, out_words: Any) -> Any:
    """Copy data[start : start + length] of each row, one behind the other; the OR of all bytes.

    A length below zero is a row that has none. `words` and `out_words` are the words at every byte.
    """
    to = np.int64(0)
    seen = np.uint64(0)
    for row in range(len(starts)):
        length = np.int64(lengths[row])
        if length <= 0:
            continue
        start = np.int64(starts[row])
        if start + length + WORD <= len(data):
            whole = length & ~np.int64(7)
            at = np.int64(0)
            while at < whole:
                word = words[start + at]
                out_words[to + at] = word
                seen |= word
                at += 8
            if at < length:
                word = words[start + at]
                out_words[to + at] = word
                seen |= word & ((np.uint64(1) << np.uint64(8 * (length - at))) - np.uint64(1))
        else:
            for index in range(length):
                byte = data[start + index]
                out[to + index] = byte
                seen |= np.uint64(byte)
        to += length
    return seen


@_compiled
def _count_separators(data: Any, start: int, length: int) -> Any:
    """How many bytes are U+0001 or U+0002. In short runs, whose count fits a byte: many at a time."""
    total = np.int64(0)
    for at in range(0, length, 128):
        count = np.uint8(0)
        for byte in data[start + at : start + min(at + 128, length)]:
            count += np.uint8((byte == 1) | (byte == 2))
        total += np.int64(count)
    return total


@_compiled
def _find_separators(data: Any, start: int, length: int, separators: Any) -> Any:
    """Where they are. Without a branch, since a guess that fails costs as much as ten bytes."""
    first, end, count = np.uint64(start), np.uint64(length), np.uint64(0)
    at = np.uint64(0)
    while at < end:
        separators[count] = at
        byte = data[first + at]
        count += np.uint64((byte == 1) | (byte == 2))
        at += np.uint64(1)
    return np.int64(count)


@_compiled
def _are_separators(data: Any, start: int, separators: Any, kinds: Any, count: int) -> Any:
    wrong = np.uint8(0)
    for index in range(count):
        wrong |= data[start + separators[index]] ^ kinds[index]
    return wrong == 0


@_compiled
def cut(data: Any, starts: Any, lengths: Any, bounds: Any, out: Any) -> Any:
    """All properties of all rows, a name that comes twice only once with its last value; how many.

    bounds: where the properties of each row begin in `out`, and where those of the last end.
    out: four rows, for start and length of name and value. -1 if there is no room for them.

    Messages of a kind follow one another: a row whose separators lie where those of the row before it lay
    is known by looking there and counting, which is half the work of finding them.
    """
    total = 0
    room = out.shape[1]
    bounds[0] = 0
    separators = np.empty(_LONGEST_PROPERTIES + 1, np.int32)
    kinds = np.empty(_LONGEST_PROPERTIES + 1, np.uint8)
    count, known_length = np.int64(0), np.int64(-1)
    for row in range(len(starts)):
        start = np.int64(starts[row])
        length = np.int64(lengths[row])
        if (
            length != known_length
            or not _are_separators(data, start, separators, kinds, count)
            or _count_separators(data, start, length) != count
        ):
            count = _find_separators(data, start, length, separators)
            known_length = length
            for index in range(count):
                kinds[index] = data[start + separators[index]]
        first = total
        begin, middle = np.int64(0), np.int64(-1)
        for index in range(count + 1):
            at = np.int64(separators[index]) if index < count else length  # the last need not be ended
            if index < count and kinds[index] == 1:
                if middle < 0:
                    middle = at
                continue
            if middle > begin and middle + 1 < at:
                if total == room:
                    return -1
                out[0, total] = start + begin
                out[1, total] = middle - begin
                out[2, total] = start + middle + 1
                out[3, total] = at - middle - 1
                total += 1
            begin = at + 1
            middle = np.int64(-1)
        if total - first > 1:
            total = _drop_repeats(data, out, first, total)
        bounds[row + 1] = total
    return total


@_compiled
def _drop_repeats(data: Any, out: Any, first: int, total: int) -> Any:
    """Leave each name where it comes last; where the properties of a row end then."""
    repeats = False
    for index in range(first, total):
        name, length = out[0, index], out[1, index]
        for other in range(index + 1, total):
            if out[1, other] == length and _is_same(data, out[0, other], data, name, length):
                out[1, index] = 0
                repeats = True
                break
    if not repeats:
        return total
    to = first
    for index in range(first, total):
        if out[1, index] > 0:
            for part in range(4):
                out[part, to] = out[part, index]
            to += 1
    return to


@_compiled
def find(data: Any, bounds: Any, places: Any, name: Any, out_starts: Any, out_lengths: Any) -> Any:
    """The value of one property in each row, by what `cut` found; how many rows have it.

    The length is -1 where there is none.
    """
    count = 0
    for row in range(len(out_starts)):
        out_starts[row] = 0
        out_lengths[row] = -1
        for index in range(bounds[row], bounds[row + 1]):
            if places[1, index] == len(name) and _is_same(data, places[0, index], name, 0, len(name)):
                out_starts[row] = places[2, index]
                out_lengths[row] = places[3, index]
                count += 1
                break
    return count

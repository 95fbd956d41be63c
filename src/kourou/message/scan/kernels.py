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

# As words that were not swapped.
_V1, _V2 = (np.frombuffer(codec.INT.pack(magic), "=u4")[0] for magic in (codec.MAGIC_V1, codec.MAGIC_V2))
_MIN_RECORD_SIZE = codec.HEADER_SIZES[0] + 3
_SYS_FLAG_AT = codec.SYS_FLAG_AT
_PHYSICAL_OFFSET_AT = codec.PHYSICAL_OFFSET_AT
_AHEAD, _LINE = 4096, 64  # bytes
_LONGEST_PROPERTIES = 0x7FFF
_RECENT = 4  # shapes of properties that the next row is compared with
_PATIENCE = 64  # rows
_HEADER_SIZE, _IPV6_EXTRA = codec.HEADER_SIZES[0], codec.IPV6_EXTRA


def _compiled(function: Any) -> Any:
    return njit(cache=True, nogil=True)(function)


@_compiled
def _swapped(word: Any) -> Any:
    """A big-endian word of four bytes as a number without a sign."""
    first, second = word & np.uint32(0xFF), (word >> np.uint32(8)) & np.uint32(0xFF)
    third, fourth = (word >> np.uint32(16)) & np.uint32(0xFF), word >> np.uint32(24)
    return np.int64((first << 24) | (second << 16) | (third << 8) | fourth)


@_compiled
def _is_same(data: Any, start: int, other_data: Any, other: int, length: int) -> Any:
    for at in range(length):  # noqa: SIM110 - a generator does not compile
        if data[start + at] != other_data[other + at]:
            return False
    return True


@_compiled
def walk(data: Any, ints: Any, position: int, end: int, base_offset: int, positions: Any) -> Any:
    """From record to record, as `scan.find_records`; base_offset is -1 where it is not known.

    How many there are, and where the walk stopped: at `end` or behind it, or at what is no record; and a
    number that says nothing: each step touches the bytes that some of the next need, since they are not known
    before this one is read, and to wait for them in turn costs three times as much.
    """
    count = 0
    touched = np.uint8(0)
    size_of_file = len(data)
    while position < end:
        if position + _MIN_RECORD_SIZE > size_of_file:
            break
        if position + _AHEAD + 5 * _LINE < size_of_file:
            ahead = np.uint64(position + _AHEAD)
            for line in range(5):
                touched |= data[ahead + np.uint64(line * _LINE)]
        at = np.uint64(position)
        size, magic = _swapped(ints[at]), ints[at + np.uint64(4)]
        if (magic != _V1 and magic != _V2) or size < _MIN_RECORD_SIZE or position + size > size_of_file:
            break
        if base_offset >= 0:
            at += np.uint64(_PHYSICAL_OFFSET_AT)
            offset = (_swapped(ints[at]) << 32) | _swapped(ints[at + np.uint64(4)])
            if offset != base_offset + position:
                break
        positions[count] = position
        count += 1
        position += size
    return count, position, touched


@_compiled
def _parts(data: Any, ints: Any, position: int, end: int, out: Any, row: int) -> Any:
    """Where the parts of one record lie; False if they do not add up."""
    layout = (_swapped(ints[position + _SYS_FLAG_AT]) >> 4) & 3
    body = position + _HEADER_SIZE + _IPV6_EXTRA * ((layout & 1) + (layout >> 1))
    if body + 3 > end:
        return False
    body_length = _swapped(ints[body - 4])
    if body_length >= 0x80000000:
        body_length = 0
    topic = body + body_length + 1
    if topic > end:
        return False
    topic_length = np.int64(data[topic - 1])
    if ints[position + 4] == _V2:
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
def parts(data: Any, ints: Any, positions: Any, sizes: Any, out: Any) -> Any:
    """Where the parts of records begin and how long they are, as `scan.read_records`; how many are good.

    out: six rows, for start and length of body, topic and properties.
    """
    for row in range(len(positions)):
        if not _parts(data, ints, positions[row], positions[row] + sizes[row], out, row):
            return row
    return len(positions)


@_compiled
def of_topics(
    data: Any, ints: Any, positions: Any, sizes: Any, names: Any, name_starts: Any, rows: Any, out: Any
) -> Any:
    """The rows whose topic is one of `names` (one behind the other, each from its start to the next), and
    their parts as by `parts`; how many, or -1 if a record is not good."""
    count = 0
    for row in range(len(positions)):
        if not _parts(data, ints, positions[row], positions[row] + sizes[row], out, count):
            return -1
        for name in range(len(name_starts) - 1):
            length = name_starts[name + 1] - name_starts[name]
            if out[3, count] == length and _is_same(data, out[2, count], names, name_starts[name], length):
                rows[count] = row
                count += 1
                break
    return count


@_compiled
def fixed(ints: Any, at: int, is_long: bool, out: Any) -> Any:
    """The integers of four or eight bytes that stand at a place of each header; both in words of four."""
    if is_long:
        for row in range(len(out)):
            out[row] = (_swapped(ints[row, at]) << 32) | _swapped(ints[row, at + 1])
    else:
        for row in range(len(out)):
            out[row] = _swapped(ints[row, at])


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
def _find_separators(data: Any, start: int, length: int, separators: Any) -> Any:
    """Where U+0001 and U+0002 are. Without a branch, since a guess that fails costs as much as ten bytes."""
    first, end, count = np.uint64(start), np.uint64(length), np.uint64(0)
    at = np.uint64(0)
    while at < end:
        separators[count] = at
        byte = data[first + at]
        count += np.uint64((byte == 1) | (byte == 2))
        at += np.uint64(1)
    return np.int64(count)


@_compiled
def _has_shape(data: Any, start: int, model: int, is_value: Any, length: int) -> Any:
    """Whether properties differ from those of the model in values only. Many bytes at a time."""
    wrong = np.uint8(0)
    own, others = data[start : start + length], data[model : model + length]
    for at in range(length):
        byte = own[at]
        ends_value = np.uint8((byte == 1) | (byte == 2)) & is_value[at]
        wrong |= ends_value | ((byte ^ others[at]) & ~is_value[at])
    return wrong == 0


@_compiled
def shapes(
    data: Any, words: Any, starts: Any, lengths: Any, shape_of_row: Any, models: Any, kin: Any, bounds: Any,
    slots: Any,
) -> Any:  # fmt: skip
    """The shape of the properties of each row: how many shapes there are, or -1 if there is no room.

    Messages of a kind follow one another: often their properties are equal but for values of the same length,
    and nearly always they have the same names. What is the same is found once, in a model, and looked up for
    the others.

    models: where the properties of each shape's model begin. kin: the first shape that has the same names.
    bounds: where its slots begin, and where those of the last end. slots: four rows, for start (from that of
    the properties on) and length of name and value; a name that comes twice is there once, with its last
    value.
    """
    count, total = np.int64(0), np.int64(0)
    bounds[0] = 0
    separators = np.empty(_LONGEST_PROPERTIES + 1, np.int32)
    recent = np.full(_RECENT, -1, np.int64)  # shapes, the oldest is replaced
    recent_lengths = np.full(_RECENT, -1, np.int64)
    is_value = np.empty((_RECENT, _LONGEST_PROPERTIES + 1), np.uint8)
    last, oldest, missed = 0, 0, 0
    for row in range(len(starts)):
        start, length = np.int64(starts[row]), np.int64(lengths[row])
        found = -1
        # Where lengths are never the same it does not pay to look for the same shape: once in a while only.
        looks = missed < _PATIENCE or missed % _PATIENCE < _RECENT
        if looks:
            for step in range(_RECENT):
                place = (last + step) % _RECENT
                if recent_lengths[place] == length and _has_shape(
                    data, start, models[recent[place]], is_value[place], length
                ):
                    found = place
                    break
        missed = 0 if found >= 0 else missed + 1
        if found < 0:
            end, relative = np.int64(-1), np.int64(0)
            if count > 0:
                relative = np.int64(kin[recent[last]])
                model, first, after = models[relative], bounds[relative], bounds[relative + 1]
                end = _same_names(data, words, start, length, model, first, after, slots, total)
            if end < 0:
                relative = count
                end = _slots(data, start, length, separators, slots, total)
                if end < 0:
                    return -1
            found, oldest = oldest, (oldest + 1) % _RECENT
            recent_lengths[found] = -1
            if looks:
                recent_lengths[found] = length
                _mark_values(data, start, length, slots, total, end, is_value[found])
            total = end
            models[count] = start
            kin[count] = relative
            recent[found] = count
            count += 1
            bounds[count] = total
        last = found
        shape_of_row[row] = recent[found]
    return count


@_compiled
def _same_names(
    data: Any, words: Any, start: int, length: int, model: int, first: int, after: int, slots: Any, total: int
) -> Any:
    """The slots of a row that has the names of a model, one pair behind the other; where they end, or -1."""
    if total + after - first > slots.shape[1] or start + length + WORD > len(data):
        return -1
    at = np.int64(0)
    for slot in range(first, after):
        name_length = np.int64(slots[1, slot])
        begin = at + name_length + 1
        if begin >= length or data[start + begin - 1] != 1:
            return -1
        if not _is_same(data, start + at, data, model + slots[0, slot], name_length):
            return -1
        end = begin
        while end < length:
            other = words[start + end] ^ np.uint64(0x0202020202020202)
            hit = (other - np.uint64(0x0101010101010101)) & ~other & np.uint64(0x8080808080808080)
            if hit == 0:
                end += 8
                continue
            while hit & np.uint64(0xFF) == 0:
                hit >>= np.uint64(8)
                end += 1
            break
        end = min(end, np.int64(length))
        if end == begin:
            return -1
        slots[0, total] = at
        slots[1, total] = name_length
        slots[2, total] = begin
        slots[3, total] = end - begin
        total += 1
        at = end + 1
    return total if at >= length else -1


@_compiled
def _mark_values(
    data: Any, start: int, length: int, slots: Any, first: int, after: int, is_value: Any
) -> Any:
    """Which bytes may be others in a row of the same shape."""
    is_value[:length] = 0
    for slot in range(first, after):
        for at in range(slots[2, slot], slots[2, slot] + slots[3, slot]):
            is_value[at] = np.uint8(0 if data[start + at] == 1 else 0xFF)


@_compiled
def _slots(data: Any, start: int, length: int, separators: Any, slots: Any, first: int) -> Any:
    """The names and values of one row, from `first` on; where they end, or -1 if there is no room."""
    count = _find_separators(data, start, length, separators)
    total = first
    begin, middle = 0, -1
    for index in range(count + 1):
        at = int(separators[index]) if index < count else length  # the last need not be ended
        if index < count and data[start + at] == 1:
            if middle < 0:
                middle = at
            continue
        if middle > begin and middle + 1 < at:
            if total == slots.shape[1]:
                return -1
            slots[0, total] = begin
            slots[1, total] = middle - begin
            slots[2, total] = middle + 1
            slots[3, total] = at - middle - 1
            total += 1
        begin, middle = at + 1, -1
    return _drop_repeats(data, start, slots, first, total)


@_compiled
def _drop_repeats(data: Any, start: int, slots: Any, first: int, total: int) -> Any:
    """Leave each name where it comes last; where the slots end then."""
    to = first
    for index in range(first, total):
        name, length = start + slots[0, index], slots[1, index]
        is_repeated = False
        for other in range(index + 1, total):
            if slots[1, other] == length and _is_same(data, start + slots[0, other], data, name, length):
                is_repeated = True
                break
        if not is_repeated:
            for part in range(4):
                slots[part, to] = slots[part, index]
            to += 1
    return to


@_compiled
def find(
    data: Any, starts: Any, shape_of_row: Any, models: Any, kin: Any, bounds: Any, slots: Any, name: Any,
    out_starts: Any, out_lengths: Any,
) -> Any:  # fmt: skip
    """The value of one property in each row, by its shape; how many rows have it.

    The length is -1 where there is none.
    """
    count = len(kin)
    places, sizes = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    found = np.full(count, -1, np.int64)  # which slot of the shape, the same for its kin
    for shape in range(count):
        if kin[shape] == shape:
            for slot in range(bounds[shape], bounds[shape + 1]):
                at = models[shape] + slots[0, slot]
                if slots[1, slot] == len(name) and _is_same(data, at, name, 0, len(name)):
                    found[shape] = slot - bounds[shape]
                    break
        else:
            found[shape] = found[kin[shape]]
        if found[shape] >= 0:
            slot = bounds[shape] + found[shape]
            places[shape], sizes[shape] = slots[2, slot], slots[3, slot]
    with_it = 0
    for row in range(len(starts)):
        shape = shape_of_row[row]
        out_starts[row] = starts[row] + places[shape]
        out_lengths[row] = sizes[shape]
        with_it += sizes[shape] >= 0
    return with_it


@_compiled
def slot_bytes(shape_of_row: Any, kin: Any, bounds: Any, slots: Any, row_bounds: Any) -> Any:
    """How many bytes the names of all kin, the names of all rows, and the values of all rows have.

    row_bounds: where the properties of each row begin.
    """
    count = len(kin)
    names_of, values_of = np.zeros(count, np.int64), np.zeros(count, np.int64)
    in_kin, names, values, total = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for shape in range(count):
        for slot in range(bounds[shape], bounds[shape + 1]):
            names_of[shape] += slots[1, slot]
            values_of[shape] += slots[3, slot]
        if kin[shape] == shape:
            in_kin += names_of[shape]
    row_bounds[0] = 0
    for row in range(len(shape_of_row)):
        shape = shape_of_row[row]
        names += names_of[shape]
        values += values_of[shape]
        total += bounds[shape + 1] - bounds[shape]
        row_bounds[row + 1] = total
    return in_kin, names, values


@_compiled
def gather_names(
    data: Any, shape_of_row: Any, models: Any, kin: Any, bounds: Any, slots: Any, blob: Any, blob_words: Any,
    out_offsets: Any, out_words: Any,
) -> Any:  # fmt: skip
    """The names of all properties, as by `gather`. Those of kin are put together once, in `blob`."""
    count = len(kin)
    blob_starts, blob_lengths = np.zeros(count, np.int64), np.zeros(count, np.int64)
    seen, end = np.uint8(0), np.int64(0)
    for shape in range(count):
        if kin[shape] != shape:
            continue
        blob_starts[shape] = end
        for slot in range(bounds[shape], bounds[shape + 1]):
            for at in range(slots[1, slot]):
                byte = data[models[shape] + slots[0, slot] + at]
                blob[end] = byte
                seen |= byte
                end += 1
        blob_lengths[shape] = end - blob_starts[shape]
    to, item = np.int64(0), np.int64(0)
    for row in range(len(shape_of_row)):
        shape = kin[shape_of_row[row]]
        start, length = blob_starts[shape], blob_lengths[shape]
        for at in range(0, length, 8):
            out_words[to + at] = blob_words[start + at]
        within = to
        for slot in range(bounds[shape], bounds[shape + 1]):
            out_offsets[item] = within
            item += 1
            within += slots[1, slot]
        to += length
    out_offsets[item] = to
    return seen


@_compiled
def gather_values(
    data: Any, words: Any, starts: Any, shape_of_row: Any, bounds: Any, slots: Any, out_offsets: Any,
    out: Any, out_words: Any,
) -> Any:  # fmt: skip
    """The values of all properties, as by `gather`, whose loop stands here again: as a function that both
    call, or inlined by numba, it takes twice as long."""
    to, item = np.int64(0), np.int64(0)
    seen = np.uint64(0)
    for row in range(len(starts)):
        begin, shape = np.int64(starts[row]), shape_of_row[row]
        for slot in range(bounds[shape], bounds[shape + 1]):
            start, length = begin + np.int64(slots[2, slot]), np.int64(slots[3, slot])
            out_offsets[item] = to
            item += 1
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
    out_offsets[item] = to
    return seen

"""Many records at once, with numpy alone: where they lie, their fixed fields, where their parts begin.

What lives here: what can be said of a stretch of the log without copying a body. What does not: the
layout of a record, which is told in `codec`; cutting property strings apart, in `property_scan`;
Arrow arrays, in `columns`.

The way of the data: `find_records` walks from size to size and gives the positions; `read_records`
gathers the headers of all of them with one copy of 88 bytes each, computes from the lengths where
body, topic and properties begin, and checks that these add up as `codec.decode` does. No step runs
Python code per record, but for the walk over small inputs, the check of CRCs where it is asked for, and
records that are damaged.

A scan never raises because of what it reads: it stops, and `Stop` says where and why. To go on behind
a damaged place, start again at `first_record(buffer, stop.position + 1)`.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kourou.errors import CorruptRecordError
from kourou.message import codec, sysflag
from kourou.message.checksum import crc32

Buffer = codec.Buffer | mmap.mmap
Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Why a scan stopped. With an unknown magic its number follows, as a signed 32-bit number.
END = "end"
BLANK = "blank"
ZERO_MAGIC = "zero magic"
UNKNOWN_MAGIC = "unknown magic"
PAST_THE_FILE = "record runs past the file"
DOES_NOT_DECODE = "record does not decode"

_HEADER_SIZE = codec.HEADER_SIZES[0]
_MIN_RECORD_SIZE = _HEADER_SIZE + 3
_MAGICS = (codec.MAGIC_V1, codec.MAGIC_V2)
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")

# The walk costs 0.25 µs a record in a plain loop and 0.06 in lanes (see _walk_in_lanes), which pay only
# where there are many records and they are small. So the first stretch is walked to learn their size.
_PROBE_BYTES = 64 * 1024
_LANES_MIN_RECORDS = 8192
_LANES_MAX_MEAN_SIZE = 4096
_LANES_MIN = 64
_LANE_SEARCH_BYTES = 16 * 1024

_NONE = np.empty(0, np.int64)


class Stop(NamedTuple):
    """Where a scan stopped: the first byte that it did not take, and why it went no further."""

    position: int
    reason: str
    detail: str = ""


class Found(NamedTuple):
    """The records of a stretch: each begins where the one before it ends."""

    positions: Integers
    sizes: Integers
    stop: Stop


def find_records(
    buffer: Buffer, start: int = 0, end: int | None = None, *, base_offset: int | None = None
) -> Found:
    """The records that begin within start and end, up to the first thing that is none.

    The buffer ends where the file does: a record may run past `end`, but not past the buffer. Where
    base_offset, the physical offset of the buffer's first byte, is given, a record has to say the
    physical offset at which it lies.
    """
    view = memoryview(buffer)
    end = len(view) if end is None else min(end, len(view))
    walked: list[int] = []
    stop = _walk(view, start, min(end, start + _PROBE_BYTES), walked)
    mean_size = max((stop.position - start) // max(len(walked), 1), _MIN_RECORD_SIZE)
    if stop.reason != END:
        positions = np.array(walked, np.int64)
    elif mean_size <= _LANES_MAX_MEAN_SIZE and end - stop.position >= _LANES_MIN_RECORDS * mean_size:
        positions, stop = _walk_in_lanes(view, stop.position, end, mean_size, walked)
    else:
        stop = _walk(view, stop.position, end, walked)
        positions = np.array(walked, np.int64)
    sizes = np.diff(positions, append=stop.position)
    found = Found(positions, sizes, stop)
    return found if base_offset is None else _check_physical_offsets(view, found, base_offset)


def first_record(
    buffer: Buffer, start: int = 0, end: int | None = None, *, base_offset: int | None = None
) -> int | None:
    """The first record that begins within start and end, where `start` may be anywhere in the log.

    It goes by the magic, and then by the physical offset that the record must say (where base_offset
    is given: practically certain) or by what follows the record (a body may hold what looks so).
    """
    view = memoryview(buffer)
    end = len(view) if end is None else min(end, len(view))
    for match in _MAGIC.finditer(view, start + 4, min(end + 7, len(view))):
        position = match.start() - 4
        if _looks_like_a_record(view, position, base_offset):
            return position
    return None


def _looks_like_a_record(view: memoryview, position: int, base_offset: int | None) -> bool:
    size: int = codec.INT.unpack_from(view, position)[0]
    following = position + size
    if size < _MIN_RECORD_SIZE or following > len(view):
        return False
    if base_offset is not None:
        physical_offset: int = codec.LONG.unpack_from(view, position + codec.PHYSICAL_OFFSET_AT)[0]
        return physical_offset == base_offset + position
    if following + 8 > len(view):
        return following == len(view)
    next_magic: int = codec.SIZE_AND_MAGIC.unpack_from(view, following)[1]
    return next_magic in {*_MAGICS, codec.BLANK_MAGIC, 0}


def _walk(view: memoryview, position: int, end: int, positions: list[int]) -> Stop:
    """From record to record, one by one. Hot: 0.25 µs each."""
    unpack_from, append = codec.SIZE_AND_MAGIC.unpack_from, positions.append
    file_end = len(view)
    magic_v1, magic_v2 = _MAGICS
    try:
        while position < end:
            size, magic = unpack_from(view, position)
            following = position + size
            if magic != magic_v1 and magic != magic_v2:
                return Stop(position, _reason_of(magic))
            if following > file_end:
                return Stop(position, PAST_THE_FILE)
            if size < _MIN_RECORD_SIZE:
                return Stop(position, DOES_NOT_DECODE, f"record of {size} bytes is too short")
            append(position)
            position = following
    except struct.error:  # fewer than eight bytes are left
        return Stop(position, PAST_THE_FILE)
    return Stop(position, END)


def _reason_of(magic: int) -> str:
    if magic == codec.BLANK_MAGIC:
        return BLANK
    return f"{UNKNOWN_MAGIC} {magic}" if magic else ZERO_MAGIC


def _walk_in_lanes(
    view: memoryview, start: int, end: int, mean_size: int, walked: list[int]
) -> tuple[Integers, Stop]:
    """From record to record in hundreds of places at once, then sewn together.

    A lane begins at something that looks like a record. Whether it is one shows at the seam: the lane
    before it, walked from the true start, must end exactly there. Where it does not, the lane is
    thrown away and its stretch is walked one by one, so the outcome is always that of the plain walk.
    """
    lane_starts = _find_lane_starts(view, start, end, mean_size)
    lane_ends, lanes = _run_lanes(view, lane_starts, end)
    pieces = [np.array(walked, np.int64)]
    stop = Stop(start, END)
    for lane_start, lane_end, lane in zip([*lane_starts, end], [*lane_ends, end], [*lanes, _NONE]):
        if stop.position < lane_start:
            walked = []
            stop = _walk(view, stop.position, lane_start, walked)
            pieces.append(np.array(walked, np.int64))
            if stop.reason != END:
                break
        if stop.position == lane_start:
            pieces.append(lane)
            stop = Stop(lane_end, END)
    return np.concatenate(pieces), stop


def _find_lane_starts(view: memoryview, start: int, end: int, mean_size: int) -> list[int]:
    # Twice the lanes halve the steps, 12 µs each, and double the searches, 4 µs each: the best number
    # of lanes grows with the square root of the number of records.
    lane_bytes = (end - start) // math.isqrt(3 * (end - start) // mean_size)
    starts = [start]
    for boundary in range(start + lane_bytes, end - lane_bytes // 2, lane_bytes):
        found = first_record(view, boundary, boundary + min(lane_bytes, _LANE_SEARCH_BYTES))
        if found is not None:
            starts.append(found)
    return starts


def _run_lanes(view: memoryview, starts: list[int], end: int) -> tuple[list[int], list[Integers]]:
    """Where each lane ended, and the positions of its records."""
    data = as_array(view)
    words = words_at_every_byte(data, ">u8")
    position = np.array(starts, np.int64)
    limit = np.append(position[1:], min(end, len(words)))
    lane = np.arange(len(starts))
    ends = position.copy()
    counts = np.zeros(len(starts), np.int64)
    steps: list[tuple[Integers, Integers]] = []
    magic_v1, magic_v2 = (np.uint32(magic & 0xFFFFFFFF) for magic in _MAGICS)
    while len(lane) >= _LANES_MIN:
        word = words[position].astype(np.uint64)
        magic = word.astype(np.uint32)
        size = (word >> np.uint64(32)).astype(np.int64)
        following = position + size
        good = (magic == magic_v1) | (magic == magic_v2)
        good &= (size >= _MIN_RECORD_SIZE) & (following <= len(data))
        if not good.all():
            lane, position, following, limit = lane[good], position[good], following[good], limit[good]
        steps.append((lane, position))
        counts[lane] = len(steps)
        ends[lane] = following
        runs_on = following < limit
        if not runs_on.all():
            lane, following, limit = lane[runs_on], following[runs_on], limit[runs_on]
        position = following

    lane_ends = np.cumsum(counts)
    lane_starts = lane_ends - counts
    positions = np.empty(counts.sum(), np.int64)
    for step, (lane, position) in enumerate(steps):
        positions[lane_starts[lane] + step] = position
    return ends.tolist(), np.split(positions, lane_ends[:-1])


def _check_physical_offsets(view: memoryview, found: Found, base_offset: int) -> Found:
    said = words_at_every_byte(as_array(view), ">i8")[found.positions + codec.PHYSICAL_OFFSET_AT]
    wrong = _first_false(said == found.positions + base_offset)
    if wrong == len(said):
        return found
    position = int(found.positions[wrong])
    detail = f"it says physical offset {said[wrong]} and lies at {position + base_offset}"
    return Found(found.positions[:wrong], found.sizes[:wrong], Stop(position, DOES_NOT_DECODE, detail))


# The header with IPv4 addresses. An IPv6 address is cut off here: addresses are asked for with `hosts`.
HEADER: np.dtype[np.void] = np.dtype(
    [
        ("store_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)


def headers(buffer: Buffer | Bytes, positions: Integers) -> NDArray[np.void]:
    """The fixed fields of the records at these positions, one row of HEADER each."""
    data = as_array(buffer)
    rows = windows(data, positions, _HEADER_SIZE)
    header: NDArray[np.void] = rows.view(HEADER).reshape(-1)
    layout = header["sys_flag"] >> 4 & 3
    if not layout.any():
        return header
    for number in (1, 2, 3):  # IPv6: the same fields lie further back
        size = codec.HEADER_SIZES[number]
        wide = np.flatnonzero((layout == number) & (positions + size <= len(data)))
        bytes_of_wide = windows(data, positions[wide], size)
        behind_born_host = 68 if number & 1 else 56
        rows[wide, 56:72] = bytes_of_wide[:, behind_born_host : behind_born_host + 16]
        rows[wide, 72:88] = bytes_of_wide[:, -16:]
    return header


@dataclass(slots=True, eq=False)
class Records:
    """What is known of many records without reading a body; all arrays have one row a record."""

    positions: Integers
    sizes: Integers
    header: NDArray[np.void]
    body_start: Integers
    body_length: Integers
    topic_start: Integers
    topic_length: Integers
    properties_start: Integers
    properties_length: Integers

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | Mask | Integers) -> Records:
        return Records(*(getattr(self, part.name)[rows] for part in fields(self)))


def read_records(buffer: Buffer, found: Found, *, check_crc: bool = False) -> tuple[Records, Stop]:
    """Header and parts of the records found, up to the first that `codec.decode` would refuse."""
    view = memoryview(buffer)
    records = _read_parts(as_array(view), found)
    if check_crc:
        records = records[: _first_bad_crc(view, records)]
    if len(records) == len(found.positions):
        return records, found.stop
    return records, _refused(view, int(found.positions[len(records)]), check_crc)


def _read_parts(data: Bytes, found: Found) -> Records:
    positions, sizes, _ = found
    header = headers(data, positions)
    ends = positions + sizes
    layout = header["sys_flag"] >> 4 & 3
    body_start = positions + (np.array(codec.HEADER_SIZES)[layout] if layout.any() else _HEADER_SIZE)
    body_length = np.maximum(header["body_length"].astype(np.int64), 0)
    topic_start = body_start + body_length + 1
    # Each cut makes sure that the next length to be read lies within the record.
    good = _first_false((body_start + 3 <= ends) & (topic_start <= ends))
    long_topic = header["magic"] == codec.MAGIC_V2
    has_long_topics = bool(long_topic.any())
    if has_long_topics:
        topic_start += long_topic
        good = min(good, _first_false(topic_start <= ends))

    topic_length = data[topic_start[:good] - 1].astype(np.int64)
    longest: Integers | int = 127
    if has_long_topics:
        first_byte = data[topic_start[:good] - 2].astype(np.int64)
        topic_length += np.where(long_topic[:good], first_byte << 8, 0)
        longest = np.where(long_topic[:good], 0x7FFF, 127)
    properties_start = topic_start[:good] + topic_length + 2
    good = min(good, _first_false((topic_length <= longest) & (properties_start <= ends[:good])))

    properties_start = properties_start[:good]
    shorts = words_at_every_byte(data, ">i2")
    properties_length = np.maximum(shorts[properties_start - 2].astype(np.int64), 0)
    good = min(good, _first_false(properties_start + properties_length == ends[:good]))
    records = Records(
        positions, sizes, header, body_start, body_length, topic_start, topic_length,
        properties_start, properties_length,
    )  # fmt: skip
    return records[:good]


def _first_bad_crc(view: memoryview, records: Records) -> int:
    rows = zip(records.body_start.tolist(), records.body_length.tolist(), records.header["body_crc"].tolist())
    for row, (start, length, crc) in enumerate(rows):
        if length and crc32(view[start : start + length]) & 0x7FFFFFFF != crc:
            return row
    return len(records)


def _refused(view: memoryview, position: int, check_crc: bool) -> Stop:
    try:
        codec.decode(view, position, check_crc=check_crc, copy_body=False)
    except CorruptRecordError as error:
        return Stop(position, DOES_NOT_DECODE, str(error))
    raise AssertionError(f"the scan refuses the record at {position}, the codec does not")


def has_topic(buffer: Buffer | Bytes, records: Records, topics: Collection[str]) -> Mask:
    """Which records are of one of these topics."""
    data = as_array(buffer)
    mask = np.zeros(len(records), np.bool_)
    for topic in {topic.encode() for topic in topics}:
        rows = np.flatnonzero(records.topic_length == len(topic))
        if topic:
            same = windows(data, records.topic_start[rows], len(topic)) == np.frombuffer(topic, np.uint8)
            rows = rows[same.all(axis=1)]
        mask[rows] = True
    return mask


class TopicTable:
    """A number for each topic name, over as many stretches as one likes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def number_all(self, buffer: Buffer, records: Records) -> Integers:
        """The number of the topic of each record."""
        view, numbers = memoryview(buffer), self._numbers
        found = np.empty(len(records), np.int64)
        ends = records.topic_start + records.topic_length
        for row, (start, end) in enumerate(zip(records.topic_start.tolist(), ends.tolist())):
            topic = bytes(view[start:end])
            number = numbers.get(topic)
            if number is None:
                number = numbers[topic] = len(numbers)
                self.names.append(str(topic, "utf-8", "replace"))
            found[row] = number
        return found


def hosts(buffer: Buffer | Bytes, records: Records, whose: Literal["born", "store"]) -> tuple[Bytes, Mask]:
    """The addresses, a row each, and which of them are IPv6.

    A row has 8 bytes where all are IPv4, else 20, of which the first 8 count for IPv4.
    """
    header = records.header
    born_is_v6: Mask = header["sys_flag"] & sysflag.BORN_HOST_V6 != 0
    if whose == "born":
        packed, is_v6 = header["born_host"], born_is_v6
        starts = records.positions + codec.BORN_HOST_AT
    else:
        packed, is_v6 = header["store_host"], header["sys_flag"] & sysflag.STORE_HOST_V6 != 0
        starts = records.positions + codec.STORE_TIMESTAMP_AT + 8 + np.where(born_is_v6, codec.IPV6_EXTRA, 0)
    short: Bytes = packed.copy().view(np.uint8).reshape(-1, 8)
    if not is_v6.any():
        return short, is_v6
    wide = np.pad(short, ((0, 0), (0, codec.IPV6_EXTRA)))
    wide[is_v6] = windows(as_array(buffer), starts[is_v6], 20)
    return wide, is_v6


def as_array(buffer: Buffer | Bytes) -> Bytes:
    """The bytes of any buffer, not copied."""
    if isinstance(buffer, np.ndarray):
        return buffer
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)


def words_at_every_byte(data: Bytes, dtype: str) -> NDArray[Any]:
    """A view in which element i is the word that begins at byte i: an index gathers unaligned words."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), dtype, data, strides=(1,))


def windows(data: Bytes, starts: Integers, size: int) -> Bytes:
    """The `size` bytes from each start on, a row each. Void items make it one memcpy a row."""
    if len(starts) == 0:
        return np.empty((0, size), np.uint8)
    gathered = words_at_every_byte(data, f"V{size}")[starts]
    return gathered.view(np.uint8).reshape(len(starts), size)


def _first_false(mask: Mask) -> int:
    if mask.all():
        return len(mask)
    return int(mask.argmin())

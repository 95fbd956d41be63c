"""Many records as Arrow arrays: a stretch of the log, or what a pull returned, as a RecordBatch.

What lives here: the columns, their types, and how each is made. What does not: where records begin and
where their parts lie, which is `scan`'s and needs no Arrow. This module alone of the package needs
pyarrow (extra `arrow`).

The way of the data: `scan.find_records` and `scan.read_records` say where everything lies; a filter by
topic or by fixed fields is applied to that, before anything is copied; then each column that was asked
for, and no other, is made for all rows at once:

- fixed fields: one pass over the gathered headers, which turns them into the machine's byte order;
- bodies: an array of views into the log buffer, 16 bytes each, that Arrow casts to plain binary. That
  is the only copy of a body (building arrays of views takes pyarrow 19);
- properties: copied the same way into one blob, cut apart by `Properties`;
- topics, tags, keys and other short texts: taken by Arrow out of an array whose items are, in turn, a
  text and the gap up to the next;
- addresses: each distinct one is formatted once.

A row is a record as `codec.decode` reads it: same fields, same rules for damaged properties and for
bytes that are no UTF-8, same refusals. An inner batch is one row. Where bodies are asked for as they were
sent, one that cannot be read stays as it is stored, and `body_error` says why; it is null for all others.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.batch import iter_batch
from kourou.message.codec import Buffer as PlainBuffer
from kourou.message.compression import CompressionType
from kourou.message.compression import decompress as decompress_body
from kourou.message.host import format_host
from kourou.message.scan import records as scan
from kourou.message.scan.properties import Properties
from kourou.message.scan.records import Buffer, Bytes, Integers, Mask, Records, Stop

log = logging.getLogger(__name__)

Where = Callable[[NDArray[np.void]], Mask]

_TIMESTAMP = pa.timestamp("ms", tz="UTC")

SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "physical_offset": pa.int64(),
        "store_size": pa.int32(),
        "body": pa.binary(),
        "body_crc": pa.int32(),
        "flag": pa.int32(),
        "sys_flag": pa.int32(),
        "born_timestamp": _TIMESTAMP,
        "born_host": pa.string(),
        "store_timestamp": _TIMESTAMP,
        "store_host": pa.string(),
        "reconsume_times": pa.int32(),
        "prepared_transaction_offset": pa.int64(),
        "tags": pa.string(),
        "keys": pa.string(),
        "uniq_key": pa.string(),
        "message_id": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "properties_raw": pa.string(),
        "magic": pa.int32(),
        "body_error": pa.string(),
    }
)

# `properties.color` is the column of the property `color`.
PROPERTY_PREFIX = "properties."

# A batch of this size is still in the processor's caches when the next column is made from it.
ROWS_PER_BATCH = 32 * 1024
# Bounds the memory of a batch when bodies are large; finding records costs less in larger stretches.
BYTES_PER_BATCH = 32 * 1024 * 1024
# Arrow's plain binary and string arrays count their bytes with 32 bits.
MAX_COLUMN_BYTES = 0x7FFFFFFF

# Why a batch ends where it does although the scan could go on.
MORE = "more"


class ColumnBatch(NamedTuple):
    """Rows, and where to go on: `stop.reason` is MORE if there may be more rows from there on."""

    batch: Any  # pa.RecordBatch
    stop: Stop


def schema(columns: Sequence[str] | None = None) -> Any:
    """The Arrow schema of these columns; all of SCHEMA by default."""
    if columns is None:
        return SCHEMA
    if not columns:
        raise ValueError("name at least one column")
    return pa.schema([_field(name) for name in columns])


def _field(name: str) -> Any:
    if name.startswith(PROPERTY_PREFIX) and len(name) > len(PROPERTY_PREFIX):
        return pa.field(name, pa.string())
    if name not in SCHEMA.names:
        raise ValueError(
            f"there is no column {name!r}: choose from {', '.join(SCHEMA.names)}, {PROPERTY_PREFIX}<name>"
        )
    return SCHEMA.field(name)


def read_columns(
    buffer: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    base_offset: int | None = None,
    decompress: bool = False,
    most_inflated: int = MAX_COLUMN_BYTES,
    check_crc: bool = False,
    topics: Collection[str] | None = None,
    where: Where | None = None,
) -> ColumnBatch:
    """The records that begin within start and end as one batch, and where and why the scan stopped.

    columns: the names to make columns of, in this order; all of SCHEMA by default.
    base_offset: the physical offset of the buffer's first byte. Where given, the scan stops at a record
        that says another physical offset than that at which it lies.
    decompress: bodies as they were sent; one that cannot be read as it is stored, and why in `body_error`.
    most_inflated: to so many bytes, in all; beyond it the largest stay as they are stored, and say so.
    check_crc: stop at a record whose body has another CRC than it says. Costs a pass over all bodies.
    topics: only records of these topics.
    where: a function from the fixed fields (an array of scan.HEADER) to a mask of the rows to keep.

    One batch takes about the memory of the stretch it reads, 2 GiB at most. `iter_columns` reads with
    little memory, and faster, since its batches fit the processor's caches.
    """
    reader = _Reader(buffer, columns, base_offset, decompress, check_crc, topics, where)
    records, stop = reader.select(start, end)
    return ColumnBatch(reader.make_batch(records, most_inflated, whole=True), stop)


def iter_columns(
    buffer: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
    bytes_per_batch: int = BYTES_PER_BATCH,
    columns: Sequence[str] | None = None,
    base_offset: int | None = None,
    decompress: bool = False,
    check_crc: bool = False,
    topics: Collection[str] | None = None,
    where: Where | None = None,
) -> Iterator[ColumnBatch]:
    """As `read_columns`, in batches that are made one by one as they are asked for.

    A batch holds no more than rows_per_batch rows; it covers about bytes_per_batch of the log, and with
    `decompress` its inflated bodies have that size in all (but a first one of more). The last batch
    says why the scan stopped, and alone may be empty.
    """
    reader = _Reader(buffer, columns, base_offset, decompress, check_crc, topics, where)
    end = len(buffer) if end is None else min(end, len(buffer))
    stop = Stop(start, MORE)
    while stop.reason == MORE:
        records, stop = reader.select(stop.position, min(end, stop.position + bytes_per_batch))
        if stop.reason == scan.END and stop.position < end:
            stop = Stop(stop.position, MORE)
        while len(records) > 0 or stop.reason != MORE:
            batch = reader.make_batch(records[:rows_per_batch], bytes_per_batch)
            records = records[batch.num_rows :]
            if len(records) == 0:
                yield ColumnBatch(batch, stop)
                break
            yield ColumnBatch(batch, Stop(int(records.positions[0]), MORE))


def decode_rows(
    records: Sequence[PlainBuffer], *, columns: Sequence[str] | None = None, decompress: bool = False
) -> Iterator[Any]:
    """Batches, as of `iter_columns`, of records that do not lie side by side: what a read of a queue gives.

    They are joined first, so a body is copied once more than by `read_columns`. CorruptRecordError
    tells of a record that does not decode.
    """
    for batch, stop in iter_columns(b"".join(records), columns=columns, decompress=decompress):
        if stop.reason not in (scan.END, MORE):
            raise CorruptRecordError(f"{stop.reason}: {stop.detail}" if stop.detail else stop.reason)
        yield batch


class _Reader:
    """A buffer, and what was asked of it."""

    def __init__(
        self,
        buffer: Buffer,
        columns: Sequence[str] | None,
        base_offset: int | None,
        decompress: bool,
        check_crc: bool,
        topics: Collection[str] | None,
        where: Where | None,
    ) -> None:
        self._view = memoryview(buffer)
        self._schema = schema(columns)
        self._base_offset = base_offset
        self._decompress = decompress and not {"body", "body_error"}.isdisjoint(self._schema.names)
        self._check_crc = check_crc
        self._topics = topics
        self._where = where

    def select(self, start: int, end: int | None) -> tuple[Records, Stop]:
        """The rows that begin within start and end and pass the filters."""
        found = _road.find_records(self._view, start, end, base_offset=self._base_offset)
        chosen, stop = self._of_topics(found), found.stop
        if chosen is None:
            chosen, stop = _road.read_records(self._view, found, check_crc=self._check_crc)
            if self._topics is not None:
                chosen = chosen[scan.has_topic(self._view, chosen, self._topics)]
        if self._where is not None:
            chosen = chosen[self._where(chosen.header)]
        return chosen, stop

    def _of_topics(self, found: scan.Found) -> Records | None:
        """The records of the topics that are wanted, without reading the others; None if that cannot be."""
        if self._topics is None or _road.of_topics is None or self._check_crc:
            return None
        return _road.of_topics(self._view, found, self._topics)

    def make_batch(self, records: Records, max_bytes: int, *, whole: bool = False) -> Any:
        """The first of these rows, as many as max_bytes of inflated bodies allow, but at least one.

        The whole of them where that is asked for: then the largest bodies beyond max_bytes are not inflated.
        """
        if len(records) == 0:
            return pa.RecordBatch.from_pylist([], self._schema)
        span = int(records.positions[-1] + records.sizes[-1] - records.positions[0])
        if span > MAX_COLUMN_BYTES:
            raise ValueError("one batch cannot span more than 2 GiB of the log: use iter_columns")
        bodies = _SentBodies()
        if self._decompress:
            bodies = self._read_bodies(records, min(max_bytes, MAX_COLUMN_BYTES - span), whole)
            records = records[: bodies.rows]
        rows = _road.rows(scan.as_array(self._view), records, bodies.sent, bodies.errors)
        arrays = [rows.column(name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _read_bodies(self, records: Records, max_bytes: int, whole: bool) -> _SentBodies:
        found = _SentBodies(len(records))
        largest: list[tuple[int, int]] = []  # a heap: size below zero, row
        sys_flags = records.header["sys_flag"]
        for row in np.flatnonzero(sys_flags & (sysflag.COMPRESSED | sysflag.INNER_BATCH)).tolist():
            start = int(records.body_start[row])
            stored = self._view[start : start + int(records.body_length[row])]
            try:
                body = _sent_body(stored, int(sys_flags[row]))
            except CorruptRecordError as error:
                found.errors[row] = str(error)
                continue
            if body is None:
                continue
            max_bytes -= len(body)
            if max_bytes < 0 and row > 0 and not whole:
                found.rows = row
                break
            found.sent[row] = body
            heapq.heappush(largest, (-len(body), row))
            while max_bytes < 0 and whole:
                size, too_large = heapq.heappop(largest)
                max_bytes -= size
                del found.sent[too_large]
                found.errors[too_large] = f"body inflates to {-size} bytes: too many for one batch"
        return found


@dataclass(slots=True)
class _SentBodies:
    """What became of the bodies of some rows: those that are not as they are stored, and why others are."""

    rows: int = 0  # that were looked at
    sent: dict[int, bytes] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


def _sent_body(stored: memoryview, sys_flag: int) -> bytes | None:
    """A body as it was sent; None where it is stored so. CorruptRecordError where it cannot be read."""
    body = None
    if sys_flag & sysflag.COMPRESSED:
        body = decompress_body(stored, CompressionType.of_sys_flag(sys_flag))
    if sys_flag & sysflag.INNER_BATCH:
        for _ in iter_batch(stored if body is None else body):
            pass
    return body


class Rows:
    """The rows of one batch, from which each column is made on its own."""

    def __init__(
        self, data: Bytes, records: Records, sent_bodies: dict[int, bytes], body_errors: dict[int, str]
    ) -> None:
        self._data = data
        self._records = records
        self._sent_bodies = sent_bodies
        self._body_errors = body_errors

    def column(self, name: str) -> Any:
        """The column of this name: made by the method of this name, else a property or a fixed field."""
        if name.startswith(PROPERTY_PREFIX):
            return self.property(name.removeprefix(PROPERTY_PREFIX))
        make = getattr(self, name, None)
        return make() if make else self.fixed(name)

    def fixed(self, name: str) -> Any:
        """The column of a fixed field."""
        native = self._records.header[name].astype(self._records.header[name].dtype.newbyteorder("="))
        buffers = [None, pa.py_buffer(native)]
        return pa.Array.from_buffers(SCHEMA.field(name).type, len(native), buffers, null_count=0)

    def topic(self) -> Any:
        records = self._records
        return as_string(_take_texts(self._data, records.topic_start, records.topic_length))

    def body(self) -> Any:
        records = self._records
        return _binary(self._data, records.body_start, records.body_length, self._sent_bodies)

    def body_error(self) -> Any:
        errors = self._body_errors
        if not errors:
            return pa.nulls(len(self._records), pa.string())
        return pa.array([errors.get(row) for row in range(len(self._records))], pa.string())

    def born_host(self) -> Any:
        return _host_texts(*scan.hosts(self._data, self._records, "born"))

    def store_host(self) -> Any:
        return _host_texts(*scan.hosts(self._data, self._records, "store"))

    def tags(self) -> Any:
        return self.property(names.TAGS)

    def keys(self) -> Any:
        return self.property(names.KEYS)

    def uniq_key(self) -> Any:
        return self.property(names.UNIQ_KEY)

    def message_id(self) -> Any:
        ids = self.property(names.UNIQ_KEY)
        if ids.null_count == 0:
            return ids
        without = ids.is_null()
        records = self._records[without.to_numpy(zero_copy_only=False)]
        return pc.replace_with_mask(ids, without, _offset_message_ids(self._data, records))

    def properties_raw(self) -> Any:
        records = self._records
        return as_string(_binary(self._data, records.properties_start, records.properties_length))

    def properties(self) -> Any:
        properties = self._cut_properties
        table = properties.all()
        offsets = np.zeros(len(self._records) + 1, np.int32)
        np.cumsum(table.counts, out=offsets[1:])
        keys = unchecked_string(_take_texts(properties.blob, table.name_starts, table.name_lengths))
        values = unchecked_string(_take_texts(properties.blob, table.value_starts, table.value_lengths))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def property(self, name: str) -> Any:
        """The values of one property."""
        count = len(self._records)
        rows, starts, lengths = self._cut_properties.find(name)
        if len(rows) == 0:
            return pa.nulls(count, pa.string())
        return unchecked_string(_take_texts(self._cut_properties.blob, starts, lengths, rows, count))

    @cached_property
    def _cut_properties(self) -> Properties:
        """All property strings, copied into one blob of the form that Properties asks for."""
        records = self._records
        count = len(records)
        # Each with the byte before it, which becomes the separator, and one more row for the tail.
        starts = np.append(records.properties_start - 1, records.properties_start[:1])
        lengths = np.append(records.properties_length + 1, 0)
        strings = _binary(self._data, starts, lengths, {count: _TAIL_OF_PROPERTIES})
        row_starts, blob = _offsets_and_data(strings)
        blob[row_starts[:count]] = 2  # nobody else has seen this buffer yet
        if blob.max() >= 0x80:
            row_starts, blob = _offsets_and_data(as_string(strings))
        return Properties(blob, row_starts[:count].astype(np.int64))


class _Road(NamedTuple):
    """How records are found, read and made into columns."""

    find_records: Callable[..., scan.Found]
    read_records: Callable[..., tuple[Records, Stop]]
    rows: type[Rows]
    of_topics: Callable[..., Records | None] | None = None


_road = _Road(scan.find_records, scan.read_records, Rows)


def accelerate() -> bool:
    """Read with compiled loops from now on, where numba is installed (extra `spark`); whether they are used.

    For processes that read much: loading them takes half a second and 100 MB, and compiling them, where no
    earlier process could leave them in its cache, some seconds.
    """
    global _road
    try:
        from kourou.message.scan import compiled

        compiled.warm_up()
    except (ImportError, RuntimeError) as error:  # the second where numba finds no place for its cache
        log.debug("records are read without compiled loops: %s", error)
        return False
    _road = _Road(compiled.find_records, compiled.read_records, compiled.CompiledRows, compiled.of_topics)
    return True


_TAIL_OF_PROPERTIES = b"\x02" + bytes(Properties.PADDING)

# An item of a binary view array: up to 12 bytes stand in it, longer ones where it points to.
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE = 12
_INLINE_MASKS = np.tri(_INLINE + 1, _INLINE, -1, dtype=np.uint8) * np.uint8(0xFF)


def _binary(data: Bytes, starts: Integers, lengths: Integers, others: dict[int, bytes] | None = None) -> Any:
    """data[start : start + length] of each row, or what `others` has for the row; copied once, by Arrow.

    The prefix of a view stays empty: only comparisons read it, and nobody compares these.
    """
    base = int(starts[0])
    data = data[base:]
    starts = starts - base
    views = np.zeros(len(starts), _VIEW)
    views["length"] = lengths
    views["offset"] = starts
    inlined = views.view(np.uint8).reshape(-1, _VIEW.itemsize)[:, 4:]
    short = np.flatnonzero(lengths <= _INLINE)
    if len(short):
        inside = starts[short] + _INLINE <= len(data)
        for row in short[~inside].tolist():  # the last record alone can be that near to the end
            others = {row: data[starts[row] : starts[row] + lengths[row]].tobytes()} | (others or {})
        short = short[inside]
        inlined[short] = scan.windows(data, starts[short], _INLINE) & _INLINE_MASKS[lengths[short]]
    buffers = [None, pa.py_buffer(views.view(np.uint8)), pa.py_buffer(data)]
    for row, value in (others or {}).items():
        views["length"][row] = len(value)
        if len(value) <= _INLINE:
            inlined[row] = np.frombuffer(value.ljust(_INLINE, b"\0"), np.uint8)
        else:
            views["buffer"][row], views["offset"][row] = len(buffers) - 2, 0
            buffers.append(pa.py_buffer(value))
    return pa.Array.from_buffers(pa.binary_view(), len(views), buffers, null_count=0).cast(pa.binary())


def _take_texts(
    data: Bytes, starts: Integers, lengths: Integers, rows: Integers | None = None, count: int | None = None
) -> Any:
    """data[start : start + length] of each row; faster than `_binary` where texts are short.

    Starts must rise. Where `rows` are given there is one for each text, and the others of the `count`
    rows are null.
    """
    if len(starts) == 0:
        return pa.nulls(count or 0, pa.binary())
    base = int(starts[0])
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2] = starts - base
    bounds[1::2] = bounds[0::2] + lengths
    texts_and_gaps = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data[base:])], null_count=0
    )
    which = np.arange(0, len(bounds), 2, dtype=np.int32)
    if rows is None or len(rows) == count:
        return texts_and_gaps.take(pa.array(which))
    spread = np.zeros(count or 0, np.int32)
    spread[rows] = which
    is_null = np.ones(count or 0, np.bool_)
    is_null[rows] = False
    return texts_and_gaps.take(pa.array(spread, mask=is_null))


def _host_texts(packed: Bytes, is_v6: Mask) -> Any:
    """Each distinct address is formatted once: a log has few."""
    rows, width = packed.shape
    if width > 8:
        packed, width = np.column_stack((packed, is_v6)), width + 1
    keys = pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(packed)], null_count=0)
    encoded = keys.dictionary_encode()
    texts = [
        format_host(key[:20] if key[20:] == b"\1" else key[:8]) for key in encoded.dictionary.to_pylist()
    ]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.string())).cast(pa.string())


# Two upper-case hexadecimal digits of each byte, as one number of two bytes.
_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)


def _offset_message_ids(data: Bytes, records: Records) -> Any:
    """ids.offset_message_id of each row: IPv4 ones have 32 digits, IPv6 ones 56."""
    packed, is_v6 = scan.hosts(data, records, "store")
    raw = np.zeros((len(records), 28), np.uint8)
    raw[:, : packed.shape[1]] = packed
    offsets = np.ascontiguousarray(records.header["physical_offset"]).view(np.uint8).reshape(-1, 8)
    raw[~is_v6, 8:16] = offsets[~is_v6]
    raw[is_v6, 20:] = offsets[is_v6]
    digits = _HEX[raw].view(np.uint8).reshape(-1)
    starts = np.arange(len(records), dtype=np.int64) * 56
    return unchecked_string(_take_texts(digits, starts, np.where(is_v6, 56, 32)))


def as_string(array: Any) -> Any:
    """A binary array as text, with U+FFFD for what is no UTF-8, as `codec.decode` does it."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(value, "utf-8", "replace") for value in array.to_pylist()], pa.string())


def unchecked_string(array: Any) -> Any:
    """A binary array that is known to be UTF-8 as text."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count, array.offset)


def _offsets_and_data(array: Any) -> tuple[NDArray[np.int32], Bytes]:
    _, offsets, data = array.buffers()
    return np.frombuffer(offsets, np.int32), np.frombuffer(data, np.uint8)

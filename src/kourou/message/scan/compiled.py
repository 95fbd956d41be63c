"""The road of `columns` with compiled loops: records found, read and made into columns by `kernels`.

What a column holds is said in `columns`, and its tests are run on both roads. Here is only how its buffers
are filled. What is unusual goes the plain road: texts that are not ASCII, and bodies that were compressed.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kourou.message import codec
from kourou.message.scan import columns, kernels
from kourou.message.scan import records as scan
from kourou.message.scan.records import Buffer, Bytes, Found, Integers, Records, Stop

_NOT_ASCII = 0x8080808080808080
_PROPERTIES_OF_A_ROW = 8  # room at first for so many, and for twice as many while that is too little


def find_records(
    buffer: Buffer, start: int = 0, end: int | None = None, *, base_offset: int | None = None
) -> Found:
    """As `scan.find_records`."""
    view = memoryview(buffer)
    end = len(view) if end is None else min(end, len(view))
    data = scan.as_array(view)
    room = max(end - start, 0) // (codec.HEADER_SIZES[0] + 3) + 1
    positions = _empty(room, np.int64)
    base = -1 if base_offset is None else base_offset
    count, stopped_at, _ = kernels.walk(data, _words(data, "=u4"), start, end, base, positions)
    positions = positions[:count].copy()  # what there was room for is many times what there is
    stop = Stop(int(stopped_at), scan.END)
    if stopped_at < end:
        stop = scan.find_records(view, stop.position, stop.position + 1, base_offset=base_offset).stop
    return Found(positions, np.diff(positions, append=stopped_at), stop)


def read_records(buffer: Buffer, found: Found, *, check_crc: bool = False) -> tuple[Records, Stop]:
    """As `scan.read_records`."""
    view = memoryview(buffer)
    data = scan.as_array(view)
    parts = _empty(6 * len(found.positions), np.int64).reshape(6, -1)
    good = kernels.parts(data, _words(data, "=u4"), found.positions, found.sizes, parts)
    if good < len(found.positions) or check_crc:
        return scan.read_records(buffer, found, check_crc=check_crc)
    return Records(found.positions, found.sizes, scan.headers(data, found.positions), *parts), found.stop


def of_topics(buffer: Buffer, found: Found, topics: Collection[str]) -> Records | None:
    """The records of these topics, with the headers of these alone; None if a record does not decode."""
    data = scan.as_array(memoryview(buffer))
    names = sorted({topic.encode() for topic in topics})
    starts = np.cumsum([0, *map(len, names)], dtype=np.int64)
    count = len(found.positions)
    rows, parts = _empty(count, np.int64), _empty(6 * (count + 1), np.int64).reshape(6, count + 1)
    texts = np.frombuffer(b"".join(names) or b"\0", np.uint8)
    good = kernels.of_topics(
        data, _words(data, "=u4"), found.positions, found.sizes, texts, starts, rows, parts
    )
    if good < 0:
        return None
    positions, sizes = found.positions[rows[:good]], found.sizes[rows[:good]]
    return Records(positions, sizes, scan.headers(data, positions), *parts[:, :good])


def warm_up() -> None:
    """Load all loops now, instead of at their first use: before a fork, and out of the way of collections."""
    host, texts = bytes(8), "TAGS\x01a\x02KEYS\x01b\x02"
    record = codec.encode(
        codec.StoredMessage("t", 0, 0, 0, b"body", texts, 0, 0, 0, host, 0, host, 0, 0, 0, codec.MAGIC_V1, 0)
    )
    found = find_records(record, base_offset=0)
    records, _ = read_records(record, found)
    of_topics(record, found, ("t",))
    rows = CompiledRows(scan.as_array(memoryview(record)), records, {}, {})
    for name in columns.SCHEMA.names:
        rows.column(name)


class CompiledRows(columns.Rows):
    """Rows whose columns are filled by kernels."""

    def fixed(self, name: str) -> Any:
        kind, header = columns.SCHEMA.field(name).type, self._records.header
        field_type, at = header.dtype.fields[name][:2]  # type: ignore[index]
        native = _empty(len(header), field_type.newbyteorder("="))
        ints = header.view("=u4").reshape(len(header), header.dtype.itemsize // 4)
        kernels.fixed(ints, at // ints.itemsize, native.itemsize > ints.itemsize, native)
        return pa.Array.from_buffers(kind, len(native), [None, pa.py_buffer(native)], null_count=0)

    def topic(self) -> Any:
        records = self._records
        array, is_ascii = _gather(self._data, records.topic_start, records.topic_length)
        return columns.unchecked_string(array) if is_ascii else columns.as_string(array)

    def body(self) -> Any:
        if self._sent_bodies:
            return super().body()
        return _gather(self._data, self._records.body_start, self._records.body_length)[0]

    def properties_raw(self) -> Any:
        records = self._records
        array, is_ascii = _gather(self._data, records.properties_start, records.properties_length)
        return columns.unchecked_string(array) if is_ascii else columns.as_string(array)

    def properties(self) -> Any:
        data, starts = self._data, self._records.properties_start
        shape_of_row, models, kin, bounds, slots = self._shapes
        row_bounds = _empty(len(starts) + 1, np.int32)
        in_kin, in_names, in_values = kernels.slot_bytes(shape_of_row, kin, bounds, slots, row_bounds)
        blob, names, values = (
            _empty(int(size) + kernels.WORD, np.uint8) for size in (in_kin, in_names, in_values)
        )
        name_offsets, value_offsets = (_empty(int(row_bounds[-1]) + 1, np.int32) for _ in range(2))
        seen = kernels.gather_names(
            data, shape_of_row, models, kin, bounds, slots, blob, _words(blob), name_offsets, _words(names)
        )
        seen |= kernels.gather_values(
            data, _words(data), starts, shape_of_row, bounds, slots, value_offsets, values, _words(values)
        )
        if int(seen) & _NOT_ASCII:
            return super().properties()
        texts = _texts(name_offsets, names), _texts(value_offsets, values)
        return pa.MapArray.from_arrays(pa.array(row_bounds), *map(columns.unchecked_string, texts))

    def property(self, name: str) -> Any:
        if not name.isascii():
            return super().property(name)
        count = len(self._records)
        starts, lengths = _empty(count, np.int64), _empty(count, np.int64)
        wanted = np.frombuffer(name.encode(), np.uint8)
        found = kernels.find(
            self._data, self._records.properties_start, *self._shapes, wanted, starts, lengths
        )
        array, is_ascii = _gather(self._data, starts, lengths, lengths < 0 if found < count else None)
        return columns.unchecked_string(array) if is_ascii else super().property(name)

    @cached_property
    def _shapes(self) -> tuple[NDArray[Any], ...]:
        """The shape of each row, and of the shapes models, kin, bounds and slots: see `kernels.shapes`."""
        data, rows = self._data, len(self._records)
        starts, lengths = self._records.properties_start, self._records.properties_length
        shape_of_row, kin, bounds = (_empty(rows + 1, np.int32) for _ in range(3))
        models = _empty(rows, np.int64)
        room = _PROPERTIES_OF_A_ROW * rows
        while True:
            slots = _empty(4 * room, np.int32).reshape(4, room)
            count = kernels.shapes(
                data, _words(data), starts, lengths, shape_of_row, models, kin, bounds, slots
            )
            if count >= 0:
                return shape_of_row[:rows], models[:count], kin[:count], bounds[: count + 1], slots
            room *= 2


def _empty(count: int, dtype: Any) -> NDArray[Any]:
    """An array in memory of Arrow's pool, which keeps its pages: new ones cost more than what is written."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(pa.allocate_buffer(size), dtype) if size else np.empty(0, dtype)


def _words(data: Bytes, dtype: str = "=u8") -> NDArray[Any]:
    return scan.words_at_every_byte(data, dtype)


def _texts(offsets: NDArray[np.int32], out: Bytes, validity: Any = None) -> Any:
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _gather(
    data: Bytes, starts: Integers, lengths: Integers, is_null: NDArray[np.bool_] | None = None
) -> tuple[Any, bool]:
    """data[start : start + length] of each row as binary, and whether all of it is ASCII."""
    offsets = _empty(len(starts) + 1, np.int32)
    out = _empty(kernels.offsets(lengths, offsets) + kernels.WORD, np.uint8)
    seen = kernels.gather(data, _words(data), starts, lengths, out, _words(out))
    validity = None
    if is_null is not None:
        validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return _texts(offsets, out, validity), not int(seen) & _NOT_ASCII

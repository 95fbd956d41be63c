"""RowMaker: records as Arrow batches of the form that Spark asks for.

The decoder is `kourou.message.scan.columns`; here its columns get their names and types in Spark, inner
batches are unfolded, and what was not asked for is left out. Fixed fields and topics are looked at before
anything is copied, tags and keys when their column is made.

Records that no queue ever shows, half messages of the old form and rolled back ones, are left out.

A body that cannot be read is a row with the body as it is stored, and with the reason in bodyError. So is an
inner batch that cannot be read: one row.

An inner batch is unfolded by writing its messages as records of their own, behind one another with the
records around it, which are then decoded as any others: there is one way to read a record. That copies the
stretch, which only logs with inner batches pay for.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kourou.errors import CorruptRecordError
from kourou.message import codec, sysflag
from kourou.message.properties import KEY_SEPARATOR, encode_properties
from kourou.message.scan import columns
from kourou.message.scan import records as scan
from kourou.message.scan.records import Buffer, Mask
from kourou.spark.read.wanted import MAX_LONG, Wanted
from kourou.spark.schema import COLUMNS

log = logging.getLogger(__name__)

# So much of a log is decoded at once: tens of thousands of rows, little memory.
STRETCH_BYTES = 4 * 1024 * 1024

_TYPES: dict[str, Any] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(names: Sequence[str]) -> Any:
    """The Arrow schema of these columns as Spark compares it."""
    return pa.schema([(name, _TYPES[COLUMNS[name].kind]) for name in names])


@functools.cache
def settle() -> None:
    """Load the compiled loops; leave what is imported out of the collections after every task."""
    columns.accelerate()
    gc.collect()
    gc.freeze()


class RowMaker:
    """Makes rows of records. `read_bytes` counts the bytes of the records that were looked at."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        wanted: Wanted | None = None,
        broker_name: str | None = None,
        decompress_body: bool = True,
        fail_on_bad_body: bool = False,
        check_crc: bool = False,
    ) -> None:
        settle()
        self.schema = arrow_schema(names)
        self.wanted = wanted or Wanted()
        self._broker_name = broker_name
        self._check_crc = check_crc
        self._decompress = decompress_body
        self._fail_on_bad_body = fail_on_bad_body and decompress_body and "body" in names
        hidden = [name for name in self._filtered_columns() if name not in names]
        sources = (COLUMNS[name].source for name in (*names, *hidden))
        self._sources = tuple(dict.fromkeys(name for name in sources if name)) or ("queue_id",)
        self._saw_batch = False
        self.read_bytes = 0

    def _filtered_columns(self) -> Iterator[str]:
        if self.wanted.tags is not None:
            yield "tags"
        if self.wanted.uniq_keys is not None or self.wanted.keys is not None:
            yield "uniqKey"
        if self.wanted.keys is not None:
            yield "keys"
        if self._fail_on_bad_body:
            yield from ("bodyError", "physicalOffset", "topic")

    # Ways in

    def from_log(self, view: memoryview, start: int, end: int, base_offset: int) -> Iterator[Any]:
        """The records that begin within start and end of a log file.

        `start` may be anywhere: the first record behind it is found. Damage is stepped over, with a warning.
        """
        position: int | None = start
        if start > 0:
            position = scan.first_record(view, start, end, base_offset=base_offset)
        while position is not None and position < end:
            stretch_end = min(position + STRETCH_BYTES, end)
            stop = yield from self._stretch(view, position, stretch_end, base_offset)
            self.read_bytes += stop.position - position
            position = stop.position
            if stop.reason == scan.END or position >= end:
                continue
            if stop.reason == scan.BLANK:
                return
            following = scan.first_record(view, position + 1, end, base_offset=base_offset)
            if following is not None:
                log.warning(
                    "no record lies at %d of the log (%s): it goes on at %d",
                    base_offset + position, stop.reason, base_offset + following,
                )  # fmt: skip
            position = following

    def from_records(self, records: Buffer) -> Iterator[Any]:
        """Records that lie one behind the other, wherever they came from."""
        view = memoryview(records)
        stop = yield from self._stretch(view, 0, len(view), None)
        self.read_bytes += stop.position
        if stop.reason != scan.END:
            raise CorruptRecordError(f"{stop.reason} at byte {stop.position} of {len(view)}: {stop.detail}")

    # One stretch

    def _stretch(
        self, view: memoryview, start: int, end: int, base_offset: int | None
    ) -> Any:  # a generator that returns a scan.Stop
        self._saw_batch = False
        stop = scan.Stop(start, scan.END)
        for part in columns.iter_columns(
            view, start, end, columns=self._sources, base_offset=base_offset, decompress=self._decompress,
            check_crc=self._check_crc, topics=self.wanted.topics, where=self._mask_noting_batches,
            bytes_per_batch=max(end - start, columns.BYTES_PER_BATCH),
        ):  # fmt: skip
            stop = part.stop
            if self._saw_batch:
                return (yield from self._unfolded(view, start, end, base_offset))
            if part.batch.num_rows:
                yield from self._finish(part.batch)
        return stop

    def _unfolded(self, view: memoryview, start: int, end: int, base_offset: int | None) -> Any:
        found = scan.find_records(view, start, end, base_offset=base_offset)
        records, stop = scan.read_records(view, found, check_crc=self._check_crc)
        keep = self._mask(records.header)
        if self.wanted.topics is not None:
            keep &= scan.has_topic(view, records, self.wanted.topics)
        records = records[keep]
        pieces = (
            piece
            for at, size in zip(records.positions.tolist(), records.sizes.tolist())
            for piece in unfold(view[at : at + size])
        )
        for joined in _joined(pieces):
            for part in columns.iter_columns(
                joined, columns=self._sources, decompress=self._decompress, where=self._exact_mask
            ):
                if part.batch.num_rows:
                    yield from self._finish(part.batch)
        return stop

    # What is wanted

    def _mask_noting_batches(self, header: NDArray[np.void]) -> Any:
        """What is wanted; a slice where that is everything, which copies nothing."""
        self._saw_batch = bool((header["sys_flag"] & sysflag.INNER_BATCH).any())
        keep = self._mask(header)
        return slice(None) if keep.all() else keep

    def _mask(self, header: NDArray[np.void]) -> Mask:
        """By fixed fields; an inner batch stays if one of its messages may have the offset."""
        wanted, sys_flag = self.wanted, header["sys_flag"]
        keep: Mask = sys_flag & sysflag.TRANSACTION_PREPARED == 0  # the bit of half and of rolled back ones
        if wanted.queue_ids is not None:
            keep &= np.isin(header["queue_id"], list(wanted.queue_ids))
        if wanted.first_offset > 0:
            keep &= (header["queue_offset"] >= wanted.first_offset) | (sys_flag & sysflag.INNER_BATCH != 0)
        if wanted.last_offset < MAX_LONG:
            keep &= header["queue_offset"] <= wanted.last_offset
        if wanted.begin_ms > 0:
            keep &= header["store_timestamp"] >= wanted.begin_ms
        if wanted.end_ms < MAX_LONG:
            keep &= header["store_timestamp"] < wanted.end_ms
        return keep

    def _exact_mask(self, header: NDArray[np.void]) -> Mask:
        return self._mask(header) & (header["queue_offset"] >= self.wanted.first_offset)

    def _finish(self, batch: Any) -> Iterator[Any]:
        keep = self._texts_mask(batch)
        if keep is not None:
            batch = batch.filter(keep)
            if batch.num_rows == 0:
                return
        if self._fail_on_bad_body:
            _refuse_bad_bodies(batch)
        arrays = [self._column(name, batch) for name in self.schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _texts_mask(self, batch: Any) -> Any:
        wanted, keep = self.wanted, None
        if wanted.tags is not None:
            keep = _is_in(batch.column("tags"), wanted.tags)
        if wanted.uniq_keys is not None:
            mask = _is_in(batch.column("uniq_key"), wanted.uniq_keys)
            keep = mask if keep is None else pc.and_(keep, mask)
        if wanted.keys is not None:
            mask = pc.or_(_is_in(batch.column("uniq_key"), wanted.keys), _any_is_in(batch, wanted.keys))
            keep = mask if keep is None else pc.and_(keep, mask)
        return keep

    # Columns

    def _column(self, name: str, batch: Any) -> Any:
        kind, source = COLUMNS[name]
        if source is None:
            return pa.array([self._broker_name], pa.string()).take(
                pa.array(np.zeros(batch.num_rows, np.int8))
            )
        array = batch.column(source)
        convert = _CONVERSIONS.get(kind)
        return array if convert is None else convert(array)


def unfold(record: memoryview) -> list[bytes | memoryview]:
    """A record as it is, or the messages of an inner batch as records of their own."""
    (sys_flag,) = codec.INT.unpack_from(record, codec.SYS_FLAG_AT)
    if not sys_flag & sysflag.INNER_BATCH:
        return [record]
    outer = codec.decode(record, check_crc=False, copy_body=False)
    try:
        messages = outer.inner_messages()
    except CorruptRecordError:  # the column bodyError says so
        return [record]
    plain = sys_flag & ~(
        sysflag.INNER_BATCH | sysflag.NEED_UNWRAP | sysflag.COMPRESSED | sysflag.COMPRESSION_MASK
    )
    return [
        codec.encode(
            dataclasses.replace(
                outer,
                queue_offset=outer.queue_offset + number,
                body=bytes(message.body),
                properties_raw=encode_properties(message.properties),
                flag=message.flag,
                sys_flag=plain,
            )
        )
        for number, message in enumerate(messages)
    ]


def _joined(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Records behind one another, not many more than STRETCH_BYTES at a time: batches inflate."""
    waiting: list[bytes | memoryview] = []
    size_bytes = 0
    for piece in pieces:
        waiting.append(piece)
        size_bytes += len(piece)
        if size_bytes >= STRETCH_BYTES:
            yield b"".join(waiting)
            waiting, size_bytes = [], 0
    yield b"".join(waiting)


def _refuse_bad_bodies(batch: Any) -> None:
    errors = batch.column("body_error")
    for row in np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False)).tolist():
        topic, offset = batch.column("topic")[row], batch.column("physical_offset")[row]
        raise CorruptRecordError(
            f"the message of topic {topic} at physical offset {offset} cannot be read: {errors[row]};"
            " failOnBadBody=false reads it as it is stored"
        )


def _is_in(array: Any, values: frozenset[str]) -> Any:
    return pc.is_in(array, pa.array(sorted(values), pa.string()))


def _any_is_in(batch: Any, values: frozenset[str]) -> Any:
    """Whether one of a row's keys is among the values."""
    lists = _key_lists(batch.column("keys"))
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    hits = _is_in(lists.flatten(), values).to_numpy(zero_copy_only=False)
    mask = np.zeros(batch.num_rows, np.bool_)
    mask[rows[hits]] = True
    return pa.array(mask)


def _key_lists(keys: Any) -> Any:
    """KEYS, cut at its spaces; an empty list where there is none."""
    kind = _TYPES["array<string>"]
    _, offsets, data = keys.buffers()
    end = np.frombuffer(offsets, np.int32)[keys.offset + len(keys)]
    if end == 0 or not (np.frombuffer(data, np.uint8)[:end] == ord(KEY_SEPARATOR)).any():
        bounds = np.arange(len(keys) + 1, dtype=np.int32)
        if keys.null_count:
            np.cumsum(keys.is_valid().to_numpy(zero_copy_only=False), out=bounds[1:])
            keys = keys.drop_null()
        return pa.ListArray.from_arrays(pa.array(bounds), keys, type=kind)
    texts = keys.to_pylist()
    return pa.array([[key for key in (text or "").split(KEY_SEPARATOR) if key] for text in texts], kind)


def _microseconds(array: Any) -> Any:
    """Milliseconds as Spark's microseconds; without the checks of a cast, which no real time needs."""
    values = array.view(pa.int64()).to_numpy() * 1000
    return pa.Array.from_buffers(_TYPES["timestamp"], len(values), [None, pa.py_buffer(values)], null_count=0)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "timestamp": _microseconds,
    "array<string>": _key_lists,
}

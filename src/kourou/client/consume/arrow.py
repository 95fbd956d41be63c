"""Pulled batches as Arrow columns: no Python object for any message (extra `arrow`).

The columns are those of `kourou.message.scan.columns`, and `broker_name`. Bodies are as they were sent; one
that cannot be read is as it is stored, and `body_error` says why. So are the largest, where all bodies of a
batch would take more memory than a pull may.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from kourou.client.consume.pop.batches import PopBatch
from kourou.client.consume.received import MAX_INFLATED_BYTES, MessageBatch
from kourou.errors import CorruptRecordError
from kourou.message import sysflag
from kourou.message.codec import encode
from kourou.message.compression import MAX_DECOMPRESSED_BYTES
from kourou.message.scan import columns as message_columns
from kourou.message.scan import records as scan

BROKER_NAME = "broker_name"
RECEIPT_HANDLE = "receipt_handle"  # of popped messages only
_OWN = (BROKER_NAME, RECEIPT_HANDLE)


def arrow_schema(columns: Sequence[str] | None = None) -> Any:
    """The schema of these columns; of all by default."""
    fields = [
        pa.field(name, pa.string()) if name in _OWN else message_columns.schema([name]).field(0)
        for name in _names(columns)
    ]
    return pa.schema(fields)


def to_arrow(batches: Sequence[MessageBatch], columns: Sequence[str] | None = None) -> Any:
    """The messages of these batches, in their order, as one RecordBatch."""
    names = _names(columns)
    wanted = [name for name in names if name not in _OWN]
    # The system flag tells of inner batches, the size of a record to which batch it belongs.
    asked = list(dict.fromkeys([*wanted, "sys_flag", "store_size"]))
    bodies = [_unfolded(batch) if batch.is_filtered or batch.is_opened else batch.body for batch in batches]
    rows = _read(bodies, asked)
    flags = rows.column("sys_flag").to_numpy()
    if np.any(flags & sysflag.INNER_BATCH != 0):
        bodies = [_unfolded(batch) for batch in batches]
        rows = _read(bodies, asked)
    arrays = {name: rows.column(name) for name in wanted}
    if BROKER_NAME in names:
        brokers = sorted({batch.queue.broker_name for batch in batches})
        of_batch = np.array([brokers.index(batch.queue.broker_name) for batch in batches], np.int32)
        ends = np.fromiter(accumulate(map(len, bodies)), np.int64, len(bodies))
        record_ends = np.cumsum(rows.column("store_size").to_numpy(), dtype=np.int64)
        which = of_batch[np.searchsorted(ends, record_ends)]
        encoded = pa.DictionaryArray.from_arrays(pa.array(which), pa.array(brokers, pa.string()))
        arrays[BROKER_NAME] = encoded.cast(pa.string())
    if RECEIPT_HANDLE in names:
        handles = [handle for batch in batches if isinstance(batch, PopBatch) for handle in batch.row_handles]
        arrays[RECEIPT_HANDLE] = pa.array(handles, pa.string())
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=arrow_schema(names))


def popped_to_arrow(batches: Sequence[PopBatch], columns: Sequence[str] | None = None) -> Any:
    """The same of popped messages, by default with their receipt handles."""
    return to_arrow(batches, [*_names(None), RECEIPT_HANDLE] if columns is None else columns)


def _read(bodies: Sequence[bytes], columns: Sequence[str]) -> Any:
    rows, stop = message_columns.read_columns(
        b"".join(bodies), columns=columns, decompress=True,
        most_inflated=MAX_DECOMPRESSED_BYTES + len(bodies) * MAX_INFLATED_BYTES,
    )  # fmt: skip
    if stop.reason != scan.END:
        raise CorruptRecordError(f"{stop.reason} in what was pulled: {stop.detail}")
    return rows


def _names(columns: Sequence[str] | None) -> list[str]:
    return [*message_columns.SCHEMA.names, BROKER_NAME] if columns is None else list(columns)


def _unfolded(batch: MessageBatch) -> bytes:
    """The messages of a batch as records: those of inner batches one by one, those of other tags left out."""
    return b"".join(encode(message.packed()) for message in batch.messages)

"""Pulled batches as Arrow columns: no Python object for any message (extra `arrow`).

The columns are those of `kourou.message.columns`, and `broker_name`. Bodies are as they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kourou.client.received import MessageBatch
from kourou.errors import CorruptRecordError
from kourou.message import columns as message_columns
from kourou.message import scan
from kourou.message.codec import encode

BROKER_NAME = "broker_name"


def arrow_schema(columns: Sequence[str] | None = None) -> Any:
    """The schema of these columns; of all by default."""
    names = _names(columns)
    fields = [
        pa.field(BROKER_NAME, pa.string()) if name == BROKER_NAME else message_columns.schema([name]).field(0)
        for name in names
    ]
    return pa.schema(fields)


def to_arrow(batches: Sequence[MessageBatch], columns: Sequence[str] | None = None) -> Any:
    """The messages of these batches, in their order, as one RecordBatch."""
    names = _names(columns)
    wanted = [name for name in names if name != BROKER_NAME]
    bodies = [batch.body if batch.is_plain else _unfolded(batch) for batch in batches]
    rows, stop = message_columns.read_columns(
        b"".join(bodies), columns=wanted or ["queue_id"], decompress=True
    )
    if stop.reason != scan.END:
        raise CorruptRecordError(f"{stop.reason} in what was pulled: {stop.detail}")
    arrays = {name: rows.column(number) for number, name in enumerate(wanted)}
    if BROKER_NAME in names:
        counts = [batch.record_count if batch.is_plain else len(batch.messages) for batch in batches]
        brokers = sorted({batch.queue.broker_name for batch in batches})
        which = np.repeat([brokers.index(batch.queue.broker_name) for batch in batches], counts)
        encoded = pa.DictionaryArray.from_arrays(pa.array(which.astype(np.int32)), pa.array(brokers))
        arrays[BROKER_NAME] = encoded.cast(pa.string())
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=arrow_schema(names))


def _names(columns: Sequence[str] | None) -> list[str]:
    return [*message_columns.SCHEMA.names, BROKER_NAME] if columns is None else list(columns)


def _unfolded(batch: MessageBatch) -> bytes:
    """The messages of a batch as records: those of inner batches one by one, those of other tags left out."""
    return b"".join(encode(message) for message in batch.messages)

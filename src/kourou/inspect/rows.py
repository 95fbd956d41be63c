"""Rows: what the records of a stretch say of themselves, as arrays.

A check compares queues and index with it, a rebuild looks for queues that begin anew.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kourou.inspect.log_scan import Stretch
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.scan.hashes import java_hashes, to_signed
from kourou.message.scan.properties import Properties, Values, join_properties
from kourou.message.scan.records import TopicTable

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MAX_DIGITS = 18


class Rows:
    """The records of a stretch, one row each."""

    def __init__(self, stretch: Stretch, topics: TopicTable) -> None:
        self.stretch = stretch
        self._table = topics
        records = stretch.records
        header = records.header
        self.offset = stretch.offsets
        self.size = records.sizes
        self.queue_id = header["queue_id"].astype(np.int64)
        self.queue_offset = header["queue_offset"].astype(np.int64)
        self.store_time = header["store_timestamp"].astype(np.int64)
        self.transaction = header["sys_flag"].astype(np.int64) & sysflag.TRANSACTION_MASK
        self.topic = topics.number_all(stretch.view, records)  # of each row, in `topics`

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def topics(self) -> list[str]:
        """Names of topics by their number."""
        return self._table.names

    @property
    def in_queue(self) -> Mask:
        """Which records consumers may see: not prepared, not rolled back."""
        mask: Mask = np.isin(self.transaction, (sysflag.TRANSACTION_NOT, sysflag.TRANSACTION_COMMIT))
        return mask

    @property
    def in_index(self) -> Mask:
        """Which records can be found by key: not rolled back."""
        mask: Mask = self.transaction != sysflag.TRANSACTION_ROLLBACK
        return mask

    @cached_property
    def properties(self) -> Properties:
        """The property strings, cut apart."""
        return join_properties(self.stretch.view, self.stretch.records)

    def property(self, name: str) -> tuple[Integers, list[bytes]]:
        """The rows that have a property, and its values."""
        rows, starts, lengths = self.properties.find(name)
        blob = self.properties.blob
        return rows, [
            blob[start:end].tobytes() for start, end in zip(starts.tolist(), (starts + lengths).tolist())
        ]

    @cached_property
    def tags(self) -> Values:
        """The rows with tags, and where these lie in the blob."""
        return self.properties.find(names.TAGS)

    @cached_property
    def tags_code(self) -> Integers:
        """The tags code of each row, as a queue holds it (but see delay levels)."""
        rows, starts, lengths = self.tags
        codes = np.zeros(len(self), np.int64)
        codes[rows] = to_signed(java_hashes(self.properties.blob, starts, lengths)[0])
        return codes


def to_number(digits: bytes) -> int:
    """The number that a property says; -1 where it says none that fits 64 bits."""
    return int(digits) if digits.isdigit() and len(digits) <= _MAX_DIGITS else -1

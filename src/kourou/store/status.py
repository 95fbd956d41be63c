"""What the store answers: the statuses of a put and of a get, and the results that carry them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class PutMessageStatus(Enum):
    """The outcome of a put (PutMessageStatus)."""

    PUT_OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    FLUSH_SLAVE_TIMEOUT = auto()
    SLAVE_NOT_AVAILABLE = auto()
    SERVICE_NOT_AVAILABLE = auto()
    CREATE_MAPPED_FILE_FAILED = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    OS_PAGE_CACHE_BUSY = auto()
    UNKNOWN_ERROR = auto()
    IN_SYNC_REPLICAS_NOT_ENOUGH = auto()
    PUT_TO_REMOTE_BROKER_FAIL = auto()
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = auto()
    WHEEL_TIMER_FLOW_CONTROL = auto()
    WHEEL_TIMER_MSG_ILLEGAL = auto()
    WHEEL_TIMER_NOT_ENABLE = auto()


class GetMessageStatus(Enum):
    """The outcome of a get (GetMessageStatus)."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    OFFSET_RESET = auto()


class BoundaryType(Enum):
    """Which end of a run of equal times is meant."""

    LOWER = "lower"
    UPPER = "upper"


class PutMessageResult(Struct, eq=False):
    """Where a put went. Hot: one is made for each put."""

    status: PutMessageStatus
    physical_offset: int = -1
    wrote_bytes: int = 0
    queue_offset: int = -1
    store_timestamp: int = 0
    message_count: int = 1
    reason: str = ""
    physical_offsets: list[int] | None = None  # of each message of a batch

    @property
    def ok(self) -> bool:
        """Whether the message is in the log."""
        return self.status is PutMessageStatus.PUT_OK

    def __repr__(self) -> str:
        return (
            f"PutMessageResult({self.status.name}, physical_offset={self.physical_offset}, "
            f"queue_offset={self.queue_offset}, reason={self.reason!r})"
        )


# Numbers of many records: an array where there are so many that looking at each would take long.
Places = Sequence[int] | NDArray[np.int64]

PutCallback = Callable[[PutMessageStatus], None]


class GetMessageResult:
    """Records found for a pull: slices of the log, not copies. Hot: one is made for each pull."""

    __slots__ = (
        "_queue_offsets",
        "_records",
        "buffer_total_size",
        "filter_message_count",
        "max_offset",
        "message_count",
        "min_offset",
        "next_begin_offset",
        "places",
        "status",
        "suggest_pulling_from_slave",
        "view",
    )

    def __init__(
        self, status: GetMessageStatus, next_begin_offset: int, min_offset: int = 0, max_offset: int = 0
    ) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self._records: list[memoryview] | None = None
        self.view: memoryview | None = None  # with places: the log file that they are in
        self.places: tuple[Places, Places] | None = None  # positions and sizes in it
        self._queue_offsets: list[int] | None = None
        self.message_count = 0
        self.buffer_total_size = 0
        self.suggest_pulling_from_slave = False
        self.filter_message_count = 0

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offsets of the records."""
        if self._queue_offsets is None:
            first = self.next_begin_offset - self.message_count
            self._queue_offsets = list(range(first, self.next_begin_offset)) if self.places else []
        return self._queue_offsets

    @property
    def records(self) -> list[memoryview]:
        """The records, one by one."""
        if self._records is None:
            self._records = []
            if self.view is not None and self.places is not None:
                view = self.view
                self._records = [view[at : at + size] for at, size in zip(*self.places)]
        return self._records

    @property
    def blocks(self) -> list[memoryview]:
        """The bytes of all records, in as few slices as it takes: one, where they lie behind each other."""
        if self.view is not None and self.places is not None:
            first = self.places[0][0]
            if self.places[0][-1] + self.places[1][-1] - first == self.buffer_total_size:
                return [self.view[first : first + self.buffer_total_size]]
            if isinstance(self.places[0], np.ndarray):
                return self._runs(self.view, *self.places)
        return self.records

    @staticmethod
    def _runs(view: memoryview, positions: Places, sizes: Places) -> list[memoryview]:
        """A slice for all records that lie behind each other, as those of a batch do."""
        starts, ends = np.asarray(positions), np.asarray(positions) + sizes
        first = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))
        last = np.append(first[1:], len(starts)) - 1
        return [view[start:end] for start, end in zip(starts[first].tolist(), ends[last].tolist())]


@dataclass(slots=True)
class QueryMessageResult:
    """Records found by key, and how far the index is."""

    records: list[memoryview]
    physical_offsets: list[int]
    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0

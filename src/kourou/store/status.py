"""What the store answers: the statuses of a put and of a get, and the results that carry them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

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


# A store that answers with one of these takes the message later; with others it never does.
TRY_LATER = frozenset(
    (
        PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT, PutMessageStatus.OS_PAGE_CACHE_BUSY,
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED, PutMessageStatus.SLAVE_NOT_AVAILABLE,
        PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, PutMessageStatus.UNKNOWN_ERROR,
    )
)  # fmt: skip


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


class PutMessageResult(Struct, eq=False, gc=False):
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


def as_list(places: Places) -> Sequence[int]:
    """The same as Python's numbers."""
    return places.tolist() if isinstance(places, np.ndarray) else places


PutCallback = Callable[[PutMessageStatus], None]


class GetMessageResult:
    """Records found for a pull: slices of the log, not copies. Hot: one is made for each pull."""

    __slots__ = (
        "_parts",
        "_queue_offsets",
        "behind_bytes",
        "buffer_total_size",
        "filter_message_count",
        "max_offset",
        "message_count",
        "min_offset",
        "next_begin_offset",
        "status",
        "suggest_pulling_from_slave",
    )

    def __init__(
        self, status: GetMessageStatus, next_begin_offset: int, min_offset: int = 0, max_offset: int = 0
    ) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        # Records, or runs of them: the log file that they are in, their places and sizes, and all their bytes
        self._parts: list[memoryview | tuple[memoryview, Places, Places, int]] = []
        self._queue_offsets: list[Sequence[int]] = []
        self.message_count = 0
        self.buffer_total_size = 0
        self.behind_bytes = 0  # how much of the log is behind the last entry that was looked at
        self.suggest_pulling_from_slave = False
        self.filter_message_count = 0

    def add(self, record: memoryview, queue_offset: int, batch_num: int) -> None:
        """Take a record."""
        self._parts.append(record)
        self._queue_offsets.append((queue_offset,))
        self.message_count += batch_num
        self.buffer_total_size += len(record)

    def add_run(
        self,
        view: memoryview,
        base: int,
        offsets: Places,
        sizes: Places,
        queue_offsets: Sequence[int],
        total: int,
    ) -> None:
        """Take records of one log file, given as bytes from its beginning at an offset of the log. Hot."""
        if isinstance(offsets, np.ndarray):
            offsets = offsets - base
        elif base:
            offsets = [place - base for place in offsets]
        self._parts.append((view, offsets, sizes, total))
        self._queue_offsets.append(queue_offsets)
        self.message_count += len(queue_offsets)
        self.buffer_total_size += total
        self.next_begin_offset = queue_offsets[-1] + 1

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offsets of the records."""
        return list(chain.from_iterable(self._queue_offsets))

    @property
    def records(self) -> list[memoryview]:
        """The records, one by one."""
        found: list[memoryview] = []
        for part in self._parts:
            if isinstance(part, memoryview):
                found.append(part)
            else:
                view, positions, sizes, _ = part
                found += [view[at : at + size] for at, size in zip(positions, sizes)]
        return found

    @property
    def blocks(self) -> list[memoryview]:
        """The bytes of all records, in one slice where they lie behind each other, as those of a batch."""
        found: list[memoryview] = []
        for part in self._parts:
            if isinstance(part, memoryview):
                found.append(part)
            else:
                found += _slices(*part)
        return found


def _slices(view: memoryview, positions: Places, sizes: Places, total: int) -> list[memoryview]:
    first, end = positions[0], positions[-1] + sizes[-1]
    if end - first == total:
        return [view[first:end]]
    if not isinstance(positions, np.ndarray):
        return [view[at : at + size] for at, size in zip(positions, sizes)]
    ends = positions + sizes
    firsts = np.flatnonzero(np.append(True, positions[1:] != ends[:-1]))
    lasts = np.append(firsts[1:], len(positions)) - 1
    return [view[start:end] for start, end in zip(positions[firsts].tolist(), ends[lasts].tolist())]


@dataclass(slots=True)
class QueryMessageResult:
    """Records found by key, and how far the index is."""

    records: list[memoryview]
    physical_offsets: list[int]
    incomplete: str | None = None  # why the index may lack some of them
    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0

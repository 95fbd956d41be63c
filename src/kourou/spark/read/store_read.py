"""Reads the parts of a plan in a task: from the files of the log, mapped for reading only.

A broker may delete a file between plan and read. A file that is open stays whole; one that is gone is data
loss: an error that names it, or, where the reader was told to go on, a warning.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kourou.errors import StoreError
from kourou.inspect.directory import StoreDirectory
from kourou.message.codec import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from kourou.spark.read.rows import RowMaker
from kourou.spark.read.store_plan import StoreOptions, StorePart, StorePlaces, StoreRange

log = logging.getLogger(__name__)

# So much is gathered before it is decoded.
GATHER_BYTES = 8 * 1024 * 1024
_MAGICS = (MAGIC_V1, MAGIC_V2)


class DataLossError(StoreError):
    """What should be read is not there any more."""


def read_part(
    part: StorePart, options: StoreOptions, maker: RowMaker, *, fail_on_data_loss: bool
) -> Iterator[Any]:
    """The rows of a part."""
    try:
        if isinstance(part, StoreRange):
            yield from _read_range(part, maker)
        else:
            yield from _read_places(part, options, maker)
    except FileNotFoundError as error:
        text = f"{error.filename or part.root} was deleted before it was read (retention)"
        if fail_on_data_loss:
            raise DataLossError(f"{text}; failOnDataLoss=false reads what is left") from error
        log.warning("%s: it is left out", text)


def _read_range(part: StoreRange, maker: RowMaker) -> Iterator[Any]:
    with open(part.path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return maker.from_log(memoryview(mapped), part.start, part.end, part.base)


def _read_places(part: StorePlaces, options: StoreOptions, maker: RowMaker) -> Iterator[Any]:
    offsets = np.frombuffer(part.offsets, np.int64)
    sizes = np.frombuffer(part.sizes, np.int32)
    with options.open(part.root) as store:
        if len(offsets) and int(offsets[0]) < store.min_offset:
            raise FileNotFoundError(2, "deleted", f"the log of {store.root} before {store.min_offset}")
        for rows in _groups(sizes):
            pieces = list(_slices(store, offsets[rows].tolist(), sizes[rows].tolist()))
            if pieces:
                yield from maker.from_records(b"".join(pieces))


def _groups(sizes: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    group = np.cumsum(sizes, dtype=np.int64) // GATHER_BYTES
    return np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(group)) + 1)


def _slices(store: StoreDirectory, offsets: list[int], sizes: list[int]) -> Iterator[memoryview]:
    """The bytes of the records at these places. Hot: a slice and two comparisons a record."""
    base = end = 0
    view = memoryview(b"")
    for offset, size in zip(offsets, sizes):
        if not base <= offset < end:
            file = store.log_file(offset)
            if file is None:
                continue
            view = store.view(file.path)
            if len(view) == 0:
                raise FileNotFoundError(2, "deleted", file.path)
            base, end = file.base, file.base + len(view)
        at = offset - base
        if at + SIZE_AND_MAGIC.size <= len(view):
            said, magic = SIZE_AND_MAGIC.unpack_from(view, at)
            if size in (said, 0) and magic in _MAGICS and at + said <= len(view):
                yield view[at : at + said]
                continue
        log.warning("no record lies at %d of %s, although a queue or the index says so", offset, store.root)

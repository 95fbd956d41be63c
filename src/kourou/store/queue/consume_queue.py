"""ConsumeQueue: what one queue of a topic holds, as an array of places in the log.

Layout (seed 000, 1.4): files of `mappedFileSizeConsumeQueue` bytes in consumequeue/<topic>/<queueId>/, an
array of entries; the index of an entry is the queue offset of its message. Big-endian:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | physical offset of the record |
| 8      | 4    | size of the record |
| 12     | 8    | tags code; the deliver time in SCHEDULE_TOPIC_XXXX; an address in ConsumeQueueExt |

Where a queue does not begin at 0, its first file is filled with entries (0, 2147483647, 0) up to
the first real one. A file is zero behind its last entry.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kourou.errors import DiskFullError, StoreError
from kourou.message.scan.records import Integers
from kourou.store.config import MessageStoreConfig
from kourou.store.log.disk import Disk
from kourou.store.log.mapped_file import MappedFile, MappedFileQueue
from kourou.store.queue.consume_queue_ext import MAX_ADDRESS, ConsumeQueueExt, ExtUnit
from kourou.store.status import BoundaryType, Places, as_list

log = logging.getLogger(__name__)

ENTRY = struct.Struct(">qiq")
ENTRY_SIZE = ENTRY.size
# By number of entries: how to read them at once. From so many on, numpy does.
LONG_RUN = 65
_UNPACKERS = tuple(struct.Struct(">" + "qiq" * count).unpack_from for count in range(LONG_RUN))
ENTRY_DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
BLANK_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_SIZE, 0)
# 3,276 entries: room for a queue is reserved in steps that cost little where topics are many.
RESERVE_STEP = 64 * 1024
# Recovery looks at so many entries at a time, so that it does not read a file's empty rest.
SCAN_ENTRIES = 8192


class QueueEntry(NamedTuple):
    """One entry of a queue."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    batch_num: int = 1
    ext: ExtUnit | None = None


class Run(NamedTuple):
    """Entries of a queue that lie one behind the other in one file."""

    queue_offsets: Sequence[int]
    offsets: Places
    sizes: Places
    tags_codes: Places
    ends_file: bool  # a pull that has found something goes no further, as in Java
    batch_nums: Sequence[int] | None = None  # how many messages each has, where that is not one
    ext: Sequence[ExtUnit | None] | None = None  # what each has in the ConsumeQueueExt


class StoreTimes(Protocol):
    """What a queue asks of the log: when a record was stored, and where the log begins."""

    @property
    def min_offset(self) -> int:
        """Where the log begins."""
        ...

    def pickup_store_timestamp(self, offset: int, size: int) -> int:
        """Store time of a record, -1 where it is not there."""
        ...


class Block(Protocol):
    """Records that lie one behind the other (dispatch.DispatchBlock)."""

    physical_offset: int
    size: int
    store_timestamp: int
    queue_offset: int
    offsets: list[int]
    sizes: list[int]
    codes: list[int]


class Removable(Protocol):
    """A queue of any kind, as far as its removal is concerned."""

    files: MappedFileQueue
    began_at: int

    def destroy(self) -> None:
        """Remove the queue from the disk."""
        ...


class ConsumeQueue:
    """The entries of one queue."""

    unit_size = ENTRY_SIZE
    cq_type = "SimpleCQ"

    def __init__(
        self,
        disk: Disk,
        root: str,
        topic: str,
        queue_id: int,
        config: MessageStoreConfig,
        *,
        writable: bool = True,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = MappedFileQueue(
            disk,
            f"{root}/consumequeue/{topic}/{queue_id}",
            config.mapped_file_size_consume_queue,
            writable=writable,
            reserve_step=RESERVE_STEP,
        )
        self.ext: ConsumeQueueExt | None = None
        if config.enable_consume_queue_ext:
            self.ext = ConsumeQueueExt(
                disk, root, topic, queue_id, config.mapped_file_size_consume_queue_ext, writable=writable
            )
        self.began_at = -1  # where in the log it begins, if it was seen to begin for a second time
        self.max_physic_offset = -1  # end of the newest record that has an entry
        self.min_logic_offset = 0  # byte offset of the first entry that points into the log
        self.next_offset = 0  # what the next appended message gets; ahead of the entries while they wait

    # Offsets

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that is still in the log."""
        return self.min_logic_offset // ENTRY_SIZE

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last entry."""
        return self.files.max_offset // ENTRY_SIZE

    # Writing

    def put(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> None:
        """Append the entry of a message; one that is there already is left alone. Hot."""
        end = physical_offset + size
        if end <= self.max_physic_offset:
            return
        if not queue_offset and self.files.max_offset:
            begin_anew(self, physical_offset)
        files = self.files.files
        if files and (file := files[-1]).wrote < file.size:
            pass
        else:
            file = self._new_file(queue_offset)
        at = file.wrote
        if queue_offset:
            expected = queue_offset * ENTRY_SIZE - file.base
            if expected < at:
                log.warning("%s: entry %d is there already", self, queue_offset)
                return
            if expected != at:
                log.error(
                    "%s: entry %d comes at the place of %d",
                    self,
                    queue_offset,
                    (file.base + at) // ENTRY_SIZE,
                )
        if at + ENTRY_SIZE > file.reserved:
            file.ensure(at + ENTRY_SIZE)
        ENTRY.pack_into(file.view, at, physical_offset, size, tags_code)
        file.wrote = at + ENTRY_SIZE
        self.max_physic_offset = end

    def put_block(self, block: Block, bitmaps: Sequence[bytes] = ()) -> bool:
        """Append the entries of records that lie one behind the other, with their filter bitmaps where the
        queue has a ConsumeQueueExt; False, and nothing done, where they are not what comes next in the last
        file. Hot."""
        files = self.files.files
        if not files:
            return False
        file, size = files[-1], len(block.offsets) * ENTRY_SIZE
        at = file.wrote
        end = block.physical_offset + block.size
        if (
            at + size > file.size
            or file.base + at != block.queue_offset * ENTRY_SIZE
            or end <= self.max_physic_offset
        ):
            return False
        if at + size > file.reserved:
            file.ensure(at + size)
        codes = block.codes
        if self.ext is not None:
            codes = self.ext.put_many(codes, block.store_timestamp, bitmaps or [b""] * len(codes))
        file.view[at : at + size] = b"".join(map(ENTRY.pack, block.offsets, block.sizes, codes))
        file.wrote = at + size
        self.max_physic_offset = end
        return True

    def put_many(
        self, offsets: Integers, sizes: Integers, tags_codes: Integers, queue_offsets: Integers
    ) -> None:
        """Append the entries of many messages at once, as `put` would one by one."""
        new = offsets + sizes > self.max_physic_offset
        if not new.all():
            offsets, sizes, tags_codes, queue_offsets = (
                column[new] for column in (offsets, sizes, tags_codes, queue_offsets)
            )
        count = len(offsets)
        if count == 0:
            return
        expected = self.max_offset if self.files.files else int(queue_offsets[0])
        if not np.array_equal(queue_offsets, np.arange(expected, expected + count)):
            for row in zip(offsets.tolist(), sizes.tolist(), tags_codes.tolist(), queue_offsets.tolist()):
                self.put(*row)
            return
        done = 0
        while done < count:
            file = self.files.last()
            if file is None or file.full:
                file = self._new_file(expected + done)
            fitting = min((file.size - file.wrote) // ENTRY_SIZE, count - done)
            file.ensure(file.wrote + fitting * ENTRY_SIZE)
            entries = np.frombuffer(file.view, ENTRY_DTYPE, fitting, file.wrote)
            entries["offset"] = offsets[done : done + fitting]
            entries["size"] = sizes[done : done + fitting]
            entries["tags"] = tags_codes[done : done + fitting]
            file.wrote += fitting * ENTRY_SIZE
            done += fitting
        self.max_physic_offset = int(offsets[-1]) + int(sizes[-1])

    def put_ext(self, physical_offset: int, size: int, unit: ExtUnit, queue_offset: int) -> None:
        """Append an entry whose filter bitmap goes to the ConsumeQueueExt."""
        assert self.ext is not None
        address = self.ext.put(unit)
        self.put(physical_offset, size, unit.tags_code if address is None else address, queue_offset)

    def take_back(self, physical_offset: int) -> None:
        """Remove the last entry, if it is that of a record which is not to be seen after all."""
        file = self.files.last()
        if file is None or file.wrote < ENTRY_SIZE:
            return
        at = file.wrote - ENTRY_SIZE
        entry = file.view[at : file.wrote]
        if ENTRY.unpack(entry)[0] == physical_offset and entry != BLANK_ENTRY:
            entry[:] = bytes(ENTRY_SIZE)
            file.wrote = at
            self.max_physic_offset = physical_offset

    def _new_file(self, queue_offset: int) -> MappedFile:
        start = queue_offset * ENTRY_SIZE
        file = self.files.last_writable(start)
        if file.created_first and queue_offset and file.wrote == 0:
            self.min_logic_offset = start
            self.files.flushed_where = self.files.committed_where = start
            try:
                file.append(BLANK_ENTRY * (start % self.files.file_size // ENTRY_SIZE))
            except DiskFullError:
                self.files.remove_last()  # a file that begins with anything else would misplace all entries
                raise
        return file

    # Reading

    def entries_from(self, queue_offset: int) -> memoryview | None:
        """The entries from one on to the end of its file, as bytes; None where there is no such entry."""
        at = queue_offset * ENTRY_SIZE
        if at < self.min_logic_offset:
            return None
        file = self.files.find(at)
        return None if file is None else file.select(at - file.base)

    def read_run(self, queue_offset: int, most: int, *, with_ext: bool) -> Run | None:
        """Some entries from one on; None where there is no such entry. Hot: a few are read by one call of
        struct, many by numpy."""
        at = queue_offset * ENTRY_SIZE
        file = self.files.find(at) if at >= self.min_logic_offset else None
        if file is None:
            return None
        at -= file.base
        available = (file.read_position - at) // ENTRY_SIZE
        count = min(most, available)
        if count <= 0:
            return None
        numbers = range(queue_offset, queue_offset + count)
        offsets: Places
        sizes: Places
        codes: Places
        if count < LONG_RUN:
            flat = _UNPACKERS[count](file.view, at)
            offsets, sizes, codes = flat[0::3], flat[1::3], flat[2::3]
        else:
            entries = np.frombuffer(file.view, ENTRY_DTYPE, count, at)
            offsets, sizes, codes = (entries[name].astype(np.int64) for name in ("offset", "size", "tags"))
        run = Run(numbers, offsets, sizes, codes, count == available)
        return self._with_ext(run) if with_ext and self.ext is not None else run

    def _with_ext(self, run: Run) -> Run:
        assert self.ext is not None
        codes = as_list(run.tags_codes)
        units = self.ext.get_many(codes)
        own = [code if unit is None else unit.tags_code for code, unit in zip(codes, units)]
        return run._replace(tags_codes=own, ext=units)

    def iterate(self, queue_offset: int) -> Iterator[QueueEntry]:
        """Entries from one on, up to the end of the queue."""
        while (view := self.entries_from(queue_offset)) is not None and len(view):
            for physical_offset, size, tags_code in ENTRY.iter_unpack(
                view[: len(view) // ENTRY_SIZE * ENTRY_SIZE]
            ):
                ext = None
                if tags_code <= MAX_ADDRESS and self.ext is not None:
                    ext = self.ext.get(tags_code)
                    tags_code = tags_code if ext is None else ext.tags_code
                yield QueueEntry(queue_offset, physical_offset, size, tags_code, 1, ext)
                queue_offset += 1

    def get(self, queue_offset: int) -> QueueEntry | None:
        """One entry."""
        return next(self.iterate(queue_offset), None)

    def roll_next_file(self, queue_offset: int) -> int:
        """The first queue offset of the file behind the one that holds `queue_offset`."""
        per_file = self.files.file_size // ENTRY_SIZE
        return queue_offset + per_file - queue_offset % per_file

    def offset_by_time(self, timestamp: int, boundary: BoundaryType, times: StoreTimes) -> int:
        """The queue offset of a store time, as Java finds it (see docs/differences.md)."""
        file = self._file_by_time(timestamp, boundary, times)
        if file is None or file.read_position < ENTRY_SIZE:
            return 0
        if self.min_logic_offset >= self.files.max_offset:
            return self.max_offset  # nothing of it is in the log any more
        view = file.view[: file.read_position]

        def time_at(at: int) -> int:
            physical_offset, size, _ = ENTRY.unpack_from(view, at)
            return times.pickup_store_timestamp(physical_offset, size)

        first = max(self.min_logic_offset - file.base, 0)
        last = len(view) - ENTRY_SIZE
        lower = boundary is BoundaryType.LOWER
        if time_at(last) < timestamp:
            return (file.base + last) // ENTRY_SIZE + (1 if lower else 0)
        if time_at(first) > timestamp:
            return file.base // ENTRY_SIZE if lower else 0
        low, high, left, right = first, last, -1, -1
        while low <= high:
            middle = (low + high) // (2 * ENTRY_SIZE) * ENTRY_SIZE
            physical_offset, size, _ = ENTRY.unpack_from(view, middle)
            if physical_offset < times.min_offset:
                low, left = middle + ENTRY_SIZE, middle
                continue
            stored = times.pickup_store_timestamp(physical_offset, size)
            if stored < 0:
                return 0
            if stored == timestamp:
                step = -ENTRY_SIZE if lower else ENTRY_SIZE
                while first <= middle + step <= last and time_at(middle + step) == timestamp:
                    middle += step
                return (file.base + middle) // ENTRY_SIZE
            if stored > timestamp:
                high, right = middle - ENTRY_SIZE, middle
            else:
                low, left = middle + ENTRY_SIZE, middle
        return (file.base + (right if lower else left)) // ENTRY_SIZE

    def _file_by_time(self, timestamp: int, boundary: BoundaryType, times: StoreTimes) -> MappedFile | None:
        files = self.files.files
        for number, file in enumerate(files):
            if file.start_timestamp < 0 and file.read_position >= ENTRY_SIZE:
                physical_offset, size, _ = ENTRY.unpack_from(file.view, 0)
                file.start_timestamp = times.pickup_store_timestamp(physical_offset, size) or -1
            if number < len(files) - 1 and file.stop_timestamp < 0:
                physical_offset, size, _ = ENTRY.unpack_from(file.view, file.size - ENTRY_SIZE)
                file.stop_timestamp = times.pickup_store_timestamp(physical_offset, size) or -1
        if boundary is BoundaryType.LOWER:
            return next(
                (f for f in files[:-1] if f.stop_timestamp >= timestamp), files[-1] if files else None
            )
        return next((f for f in reversed(files) if f.start_timestamp <= timestamp), None)

    @property
    def last_physical_end(self) -> int:
        """End of the record of the last entry, -1 for an empty queue."""
        file = self.files.last()
        if file is None or file.wrote < ENTRY_SIZE:
            return -1
        physical_offset, size, _ = ENTRY.unpack_from(file.view, file.wrote - ENTRY_SIZE)
        return physical_offset + size if physical_offset >= 0 and 0 < size < BLANK_SIZE else -1

    # Recovery and retention

    def load(self, *, after_crash: bool = False) -> None:
        """Map the files."""
        self.files.load(after_crash=after_crash)
        if self.ext is not None:
            self.ext.load()

    def recover(self) -> None:
        """Find the end: from the third last file on, up to the first entry that is none."""
        files = self.files.files
        if not files:
            return
        end, max_ext, log_end = 0, 0, 0
        for file in files[max(len(files) - 3, 0) :]:
            # Behind the data all is zero: reading it would only fault pages in.
            used = min(-(-file.mapping.data_end(0) // ENTRY_SIZE), file.size // ENTRY_SIZE)
            entries = np.frombuffer(file.view, ENTRY_DTYPE, used)
            valid = 0
            for start in range(0, len(entries), SCAN_ENTRIES):
                chunk = entries[start : start + SCAN_ENTRIES]
                # Entries lie in the order of the log. One that does not was torn, or had a bit flipped.
                ends = chunk["offset"].astype(np.int64) + np.where(
                    chunk["size"] == BLANK_SIZE, 0, chunk["size"]
                )
                before = np.concatenate(([log_end], ends[:-1]))
                bad = np.flatnonzero((chunk["offset"] < before) | (chunk["size"] <= 0))
                valid = start + (int(bad[0]) if len(bad) else len(chunk))
                if len(bad):
                    break
                log_end = int(ends[-1])
            if valid:
                self._note_last(entries[valid - 1])
                if self.ext is not None:
                    addresses = entries["tags"][:valid][entries["tags"][:valid] <= MAX_ADDRESS]
                    max_ext = int(addresses[-1]) if len(addresses) else max_ext
            end = file.base + valid * ENTRY_SIZE
            if valid < file.size // ENTRY_SIZE:
                break
        self.files.set_where(end)
        self._skip_blank_entries()
        if self.ext is not None:
            self.ext.recover()
            self.ext.truncate_behind(max_ext)

    def _note_last(self, entry: np.void) -> None:
        # A blank entry speaks of no record. Its size would make all below 2 GiB look dispatched.
        if int(entry["size"]) != BLANK_SIZE:
            self.max_physic_offset = int(entry["offset"]) + int(entry["size"])

    def _skip_blank_entries(self) -> None:
        """A queue that did not begin at 0 begins with blank entries: its minimum is behind them."""
        first = self.files.files[0]
        at = 0
        while at < first.wrote and first.view[at : at + ENTRY_SIZE] == BLANK_ENTRY:
            at += ENTRY_SIZE
        self.min_logic_offset = first.base + at if at else self.min_logic_offset

    def truncate_dirty(self, physical_offset: int) -> int:
        """Drop entries that point at or behind the end of the log; how many went."""
        before = self.max_offset
        self.max_physic_offset = physical_offset
        max_ext = 0
        while (file := self.files.last()) is not None:
            entries = np.frombuffer(file.view, ENTRY_DTYPE)[: file.wrote // ENTRY_SIZE]
            good = (entries["offset"] >= 0) & (entries["size"] > 0) & (entries["offset"] < physical_offset)
            keep = len(entries) if good.all() else int(np.argmin(good))
            if keep == 0 and (len(entries) or len(self.files.files) > 1):
                del entries
                self.files.remove_last()
                continue
            if keep < len(entries):
                file.set_position(keep * ENTRY_SIZE)
                file.clear_tail()
            if keep:
                last = entries[keep - 1]
                self._note_last(last)
                max_ext = int(last["tags"]) if int(last["tags"]) <= MAX_ADDRESS else 0
            break
        self.files.flushed_where = min(self.files.flushed_where, self.files.max_offset)
        self.files.committed_where = min(self.files.committed_where, self.files.max_offset)
        if self.ext is not None and max_ext:
            self.ext.truncate_behind(max_ext)
        return before - self.max_offset

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum to the first entry that still points into the log."""
        last = self.files.last()
        if last is None or self.min_logic_offset >= self.files.max_offset:
            return
        if last.read_position >= ENTRY_SIZE:
            physical_offset, _, _ = ENTRY.unpack_from(last.view, last.read_position - ENTRY_SIZE)
            if physical_offset < min_physical_offset:
                # Nothing of it is in the log any more: the minimum points to the entry to come.
                self.min_logic_offset = last.base + last.read_position
                return
        first = self.files.files[0]
        offsets = np.frombuffer(first.view, ENTRY_DTYPE)["offset"][: first.read_position // ENTRY_SIZE]
        start = max(self.min_logic_offset - first.base, 0) // ENTRY_SIZE
        if start >= len(offsets):
            return
        if self.min_logic_offset >= first.base and int(offsets[start]) >= min_physical_offset:
            return
        found = start + int(np.searchsorted(offsets[start:], min_physical_offset))
        if found < len(offsets):
            self.min_logic_offset = first.base + found * ENTRY_SIZE
            if self.ext is not None:
                address = ENTRY.unpack_from(first.view, found * ENTRY_SIZE)[2]
                self.ext.truncate_before(address)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the files that point only to records that are gone."""
        count = self.files.remove_files(self.files.expired_by_offset(min_physical_offset, ENTRY_SIZE))
        self.correct_min_offset(min_physical_offset)
        return count

    def flush(self, least_pages: int = 0) -> None:
        """Bring entries to the disk."""
        self.files.flush(least_pages)
        if self.ext is not None:
            self.ext.files.flush(least_pages)

    def close(self) -> None:
        """Let go of the files."""
        self.files.close()
        if self.ext is not None:
            self.ext.files.close()

    def destroy(self) -> None:
        """Remove the queue from the disk."""
        self.max_physic_offset = -1
        self.min_logic_offset = self.next_offset = 0
        self.files.destroy()
        if self.ext is not None:
            self.ext.files.destroy()

    def __str__(self) -> str:
        return f"{self.topic}-{self.queue_id}"


def begin_anew(queue: Removable, physical_offset: int) -> None:
    """A message with the first offset comes after others: the topic was deleted in between by a broker that
    does not say so in the log, as Java's. What came before is no more."""
    log.info("%s begins anew with the record at %d: it was deleted before", queue, physical_offset)
    queue.destroy()
    queue.began_at = physical_offset
    if queue.files.files:
        raise StoreError(f"the files of queue {queue} cannot be removed")

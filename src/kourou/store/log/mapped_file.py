"""MappedFile and MappedFileQueue: files of fixed size, and a directory of them as one long address space.

A file is named by the offset of its first byte, 20 digits: `00000000001073741824`. Three positions say
how far its bytes have come (seed 000):

    0 ≤ flushed ≤ committed ≤ wrote ≤ size

`wrote` is where the next byte goes, `committed` what is in the file (they differ only with a
TransientStorePool, where writes go to a buffer first), `flushed` what is on the disk.

Threads: one thread appends; a flush or clean-up thread may flush and delete. `files` is a tuple that is
replaced, never changed, so that readers need no lock.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from kourou.errors import DiskFullError, StoreDamagedError
from kourou.store.log.disk import PAGE_SIZE, Disk, Mapping

log = logging.getLogger(__name__)

_CHUNK = 1024 * 1024  # bytes looked at, or zeroed, at a time

# Room on disk is reserved in steps of this many bytes ahead of what is written.
RESERVE_STEP = 64 * 1024 * 1024


class MappedFile:
    """One file of fixed size in memory."""

    __slots__ = (
        "_buffer_home",
        "_disk",
        "available",
        "base",
        "committed",
        "created_first",
        "flushed",
        "mapping",
        "path",
        "reserve_step",
        "reserved",
        "size",
        "start_timestamp",
        "stop_timestamp",
        "store_timestamp",
        "view",
        "write_view",
        "wrote",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        size: int,
        *,
        base: int | None = None,
        writable: bool = True,
        buffer_home: TransientStorePool | None = None,
        reserve_step: int = RESERVE_STEP,
    ) -> None:
        self._disk = disk
        self.path = path
        self.size = size
        self.base = int(path[path.rfind("/") + 1 :]) if base is None else base
        self.mapping: Mapping = disk.map(path, size, writable=writable)
        self.view = self.mapping.view
        self.write_view = self.view  # where appends go: the pool's buffer where there is one
        self._buffer_home = buffer_home
        buffer = buffer_home.borrow() if buffer_home else None
        if buffer is None:
            self._buffer_home = None
        else:
            self.write_view = buffer
        self.wrote = self.committed = self.flushed = 0
        self.reserved = 0
        self.reserve_step = reserve_step
        self.store_timestamp = 0  # of the last record appended, 0 before the first
        self.start_timestamp = self.stop_timestamp = -1  # of a queue's first and last entry, when known
        self.available = True
        self.created_first = False  # the first file of its queue, created (not loaded) by this process

    def __repr__(self) -> str:
        return f"MappedFile({self.path!r}, wrote={self.wrote}, flushed={self.flushed})"

    @property
    def full(self) -> bool:
        """Whether no further byte fits."""
        return self.wrote == self.size

    @property
    def read_position(self) -> int:
        """How far readers may go."""
        return self.wrote if self.write_view is self.view else self.committed

    def set_position(self, position: int) -> None:
        """All three positions at once, as recovery and truncation do."""
        self.wrote = self.committed = self.flushed = position

    def ensure(self, end: int) -> None:
        """Reserve room on the disk up to `end`; DiskFullError where there is none."""
        if end <= self.reserved:
            return
        start = self.reserved or self.wrote
        step_end = min(self.size, max(end, start + self.reserve_step))
        try:
            self.mapping.reserve(start, step_end)
        except DiskFullError:
            # The step may not fit where the bytes themselves still do.
            self.mapping.reserve(start, end)
            step_end = end
        self.reserved = step_end

    def append(self, data: bytes | memoryview) -> bool:
        """Append bytes that fit; False where they do not."""
        end = self.wrote + len(data)
        if end > self.size:
            return False
        if end > self.reserved:
            self.ensure(end)
        self.write_view[self.wrote : end] = data
        self.wrote = end
        return True

    def select(self, position: int, size: int = -1) -> memoryview | None:
        """A slice of what may be read: `size` bytes, or all from `position` on; None where it is not."""
        end = self.read_position if size < 0 else position + size
        if position < 0 or position > end or end > self.read_position or not self.available:
            return None
        return self.view[position:end]

    def commit(self, least_pages: int) -> int:
        """Move appended bytes from the pool's buffer into the file."""
        if self.write_view is self.view:
            return self.wrote
        wrote = self.wrote
        if _worth_doing(self.committed, wrote, wrote == self.size, least_pages):
            self.mapping.write(self.committed, self.write_view[self.committed : wrote])
            self.committed = wrote
        if self.committed == self.size and self._buffer_home is not None:
            self._buffer_home.give_back(self.write_view)
            self.write_view = self.view
            self._buffer_home = None
        return self.committed

    def flush(self, least_pages: int) -> int:
        """Bring committed bytes to the disk, if there are at least so many pages of them (0: any)."""
        position = self.read_position
        if _worth_doing(self.flushed, position, position == self.size, least_pages):
            try:
                self.mapping.sync()
            except OSError:
                if self.available:  # else it was removed meanwhile: nothing is left to bring to the disk
                    raise
            self.flushed = position
            if position == self.size:
                self.mapping.unlock()  # the memory is for the files that are written
        return self.flushed

    def dirty_end(self, start: int) -> int:
        """Behind the last byte from `start` on that is not zero; `start` where all are."""
        return last_used(self.view, start, self.mapping.data_end(start))

    def clear_tail(self) -> None:
        """Zero what lies behind the write position: leftovers there could pass for data after a crash."""
        end = self.dirty_end(self.wrote)
        for at in range(self.wrote, end, _CHUNK):
            until = min(at + _CHUNK, end)
            self.view[at:until] = bytes(until - at)
        if end > self.wrote:
            self.mapping.sync()

    def close(self) -> None:
        """Let go of the file, which stays on the disk."""
        if self.available:
            self.available = False
            self._return_buffer()
            self.mapping.close()

    def destroy(self) -> bool:
        """Remove the file. False where the disk refused: the caller tries again later."""
        self.close()
        try:
            self._disk.remove(self.path)
        except OSError as error:
            log.warning("cannot remove %s: %s", self.path, error)
            return False
        return True

    def _return_buffer(self) -> None:
        if self._buffer_home is not None:
            self._buffer_home.give_back(self.write_view)
            self._buffer_home = None
            self.write_view = self.view


def last_used(view: memoryview, start: int, end: int) -> int:
    """Behind the last byte between two places that is not zero; `start` where all are."""
    while end > start:
        chunk = np.frombuffer(view[max(end - _CHUNK, start) : end], np.uint8)
        if chunk.any():
            return end - len(chunk) + int(np.flatnonzero(chunk)[-1]) + 1
        end -= len(chunk)
    return start


def _worth_doing(done: int, until: int, full: bool, least_pages: int) -> bool:
    if until <= done:
        return False
    return full or least_pages <= 0 or until // PAGE_SIZE - done // PAGE_SIZE >= least_pages


class TransientStorePool:
    """Buffers of a file's size that take appends before they reach the page cache.

    An option (`transientStorePoolEnable`): writers never wait for the page cache, and what has not been
    committed is lost when the process dies, not only when the machine does.
    """

    def __init__(self, count: int, size: int) -> None:
        self._free = [memoryview(bytearray(size)) for _ in range(count)]

    @property
    def available(self) -> int:
        """How many buffers are free."""
        return len(self._free)

    def borrow(self) -> memoryview | None:
        """A buffer; None where none is free: the file is then written through its map."""
        return self._free.pop() if self._free else None

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer."""
        self._free.append(buffer)


class MappedFileQueue:
    """The files of one directory, or of several (`MultiPath`), as one address space."""

    def __init__(
        self,
        disk: Disk,
        directories: str | Sequence[str],
        file_size: int,
        *,
        writable: bool = True,
        reserve_step: int = RESERVE_STEP,
        create: Callable[[str, str], MappedFile] | None = None,
    ) -> None:
        self._disk = disk
        self.directories = [directories] if isinstance(directories, str) else sorted(directories)
        self.read_only_directories: set[str] = set()
        self.full_directories: set[str] = set()
        self.file_size = file_size
        self.writable = writable
        self.reserve_step = reserve_step
        self._create = create
        self._lock = threading.Lock()  # for changes of `files`
        self._commit_lock = threading.Lock()  # both the flush and the commit service commit
        self.files: tuple[MappedFile, ...] = ()
        self.flushed_where = 0
        self.committed_where = 0
        self.store_timestamp = 0  # of the newest record that is on the disk

    def load(self, *, after_crash: bool = False) -> None:
        """Map what is there. A file of a wrong size is an error: guessing would lose data.

        After a crash an empty file may be one that was made ahead, of which the power left only the name:
        recovery takes it for the end of what is there.
        """
        paths = []
        for directory in self.directories:
            paths += [(name, f"{directory}/{name}") for name in self._disk.list(directory) if len(name) == 20]
        paths = [(name, path) for name, path in sorted(paths) if name.isdecimal()]
        files: list[MappedFile] = []
        for number, (_, path) in enumerate(paths):
            size = self._disk.size(path)
            if size == 0 and self.writable and number == len(paths) - 1:
                log.warning("removing %s: it is empty", path)
                self._disk.remove(path)
                continue
            if size == 0 and self.writable and after_crash:
                log.warning("%s is empty, and others come behind it", path)
            elif size != self.file_size:
                if self._disk.is_dir(path):
                    continue
                raise StoreDamagedError(
                    f"{path} has {size} bytes, {self.file_size} are configured: name the right size, or move"
                    " the file away"
                )
            file = self._open(path)
            file.set_position(self.file_size)
            if files and files[-1].base == file.base:
                file = self._choose(files.pop(), file)
            files.append(file)
        self.files = tuple(files)
        for before, after in itertools.pairwise(files):
            if after.base - before.base != self.file_size:
                log.error("%s does not follow %s: a file between them is missing", after.path, before.path)

    def _choose(self, one: MappedFile, other: MappedFile) -> MappedFile:
        """Of two files for the same offsets in two directories, the one that was not only made ahead."""
        for empty, used in ((one, other), (other, one)):
            if empty.dirty_end(0) == 0:
                log.warning("removing %s: it was made ahead, %s is used", empty.path, used.path)
                empty.destroy() if self.writable else empty.close()
                return used
        raise StoreDamagedError(f"{one.path} and {other.path} hold the same part of the log: move one away")

    def _open(self, path: str) -> MappedFile:
        return MappedFile(
            self._disk, path, self.file_size, writable=self.writable, reserve_step=self.reserve_step
        )

    @property
    def min_offset(self) -> int:
        """Where the first file begins, -1 where there is none."""
        files = self.files
        return files[0].base if files else -1

    @property
    def max_offset(self) -> int:
        """How far readers may go."""
        files = self.files
        return files[-1].base + files[-1].read_position if files else 0

    @property
    def max_wrote(self) -> int:
        """Where the next byte goes."""
        files = self.files
        return files[-1].base + files[-1].wrote if files else 0

    @property
    def total_size(self) -> int:
        """Bytes of all files."""
        return len(self.files) * self.file_size

    def last(self) -> MappedFile | None:
        """The last file."""
        files = self.files
        return files[-1] if files else None

    def last_writable(self, start_offset: int = 0) -> MappedFile:
        """The file that the next byte goes to; created if there is none or the last is full."""
        files = self.files
        if files and not files[-1].full:
            return files[-1]
        base = files[-1].base + self.file_size if files else start_offset - start_offset % self.file_size
        path, after = self._path(base), self._path(base + self.file_size)
        file = self._create(path, after) if self._create else self._open(path)
        file.created_first = not files
        with self._lock:
            self.files = (*self.files, file)
        return file

    def _path(self, base: int) -> str:
        choices = [d for d in self.directories if d not in self.read_only_directories]
        choices = [d for d in choices if d not in self.full_directories] or choices
        return f"{choices[base // self.file_size % len(choices)]}/{base:020d}"

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds an offset."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].base) // self.file_size
        if index < 0:
            return None
        if index < len(files):
            file = files[index]
            if file.base <= offset < file.base + self.file_size:
                return file
        if offset < files[-1].base + self.file_size:
            # A file is missing between: look at each.
            for file in files:
                if file.base <= offset < file.base + self.file_size:
                    return file
        return None

    def flush(self, least_pages: int = 0) -> int:
        """Bring what is written to the disk, file after file; the offset up to which it is there."""
        while True:
            # The files it had reached may have been removed before they were flushed.
            where = max(self.flushed_where, self.min_offset)
            file = self.find(where)
            if file is None:
                return self.flushed_where
            timestamp = file.store_timestamp
            self.flushed_where = file.base + file.flush(least_pages)
            if least_pages == 0 and timestamp:
                self.store_timestamp = timestamp
            if self.flushed_where == where or self.flushed_where >= self.max_offset:
                return self.flushed_where

    def commit(self, least_pages: int = 0) -> int:
        """Move what is in buffers into the files; the offset up to which it is there."""
        with self._commit_lock:
            while True:
                where = max(self.committed_where, self.min_offset)
                file = self.find(where)
                if file is None:
                    return self.committed_where
                self.committed_where = file.base + file.commit(least_pages)
                if self.committed_where == where or self.committed_where >= self.max_wrote:
                    return self.committed_where

    def set_where(self, offset: int) -> None:
        """Take everything up to `offset` as written, committed and flushed, and cut what is behind."""
        self.flushed_where = self.committed_where = offset
        self.truncate(offset)

    def truncate(self, offset: int) -> list[MappedFile]:
        """Set the file at `offset` to it and remove the files behind; the removed ones."""
        removed = []
        for file in self.files:
            if file.base + self.file_size > offset:
                if offset >= file.base:
                    file.set_position(offset % self.file_size)
                else:
                    removed.append(file)
        self.remove_files(removed)
        return removed

    def remove_last(self) -> None:
        """Remove the last file."""
        if self.files:
            self.remove_files([self.files[-1]])

    def remove_files(self, files: Sequence[MappedFile]) -> int:
        """Remove these files, up to the first that the disk refuses to remove; how many went."""
        removed = 0
        for file in files:
            if self.writable and not file.destroy():
                break
            with self._lock:
                self.files = tuple(other for other in self.files if other is not file)
            removed += 1
        return removed

    def expired_by_offset(self, offset: int, unit_size: int) -> list[MappedFile]:
        """The files, never the last, whose last entry points below a physical offset."""
        expired = []
        for file in self.files[:-1]:
            if file.available:
                last = int.from_bytes(
                    file.view[self.file_size - unit_size : self.file_size - unit_size + 8], "big"
                )
                if last >= offset:
                    break
            expired.append(file)
        return expired

    def close(self) -> None:
        """Let go of all files: each is unmapped as soon as no reader holds a slice of it."""
        for file in self.files:
            file.close()
        self.files = ()

    def destroy(self) -> None:
        """Remove all files and the directories, where they are empty then."""
        self.remove_files(self.files)
        self.flushed_where = self.committed_where = 0
        for directory in self.directories:
            self._disk.remove_dir(directory)

"""Disk: the only way by which the store touches files (and kourou.clock the only one to the time).

`OsDisk` is the real one. Tests hand in others: a disk that tears writes, fills up or lies about syncing.
Paths are plain strings; a Mapping is a file of fixed size seen as one writable memoryview.

Rules of OsDisk that are easy to break:
- `Mapping.sync` is fdatasync, never msync through the mmap object: Python's mmap.flush holds the GIL for
  the whole write-back, os.fdatasync does not, and it writes the mapped pages too.
- A queue's file costs no descriptor: a broker has tens of thousands of them, and a mapping of Python's two
  each. It is mapped by the system's own call, and opened again where something needs a descriptor.
- A write into a mapped hole of a full disk kills the process with SIGBUS. So room is reserved with
  `Mapping.reserve` before a byte is written, and a full disk is an exception in the right place.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, Protocol

from kourou.errors import DiskFullError, StoreLockedError
from kourou.files import sync_dir

PAGE_SIZE = 4096
# The files of queues are not larger. Of a new one, pages come one by one: with the first touch Linux would
# bring 32 of them, which takes a hundred times as long, for each of thousands of queues.
SMALL_FILE_BYTES = 32 * 1024 * 1024
_ADVICE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "raise the limit of mappings (sysctl vm.max_map_count)",
}
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14: fault pages in without touching each


@cache
def physical_memory_bytes() -> int:
    """How much memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Mapping(Protocol):
    """A file of fixed size in memory."""

    view: memoryview

    def sync(self) -> None:
        """Return when every byte written so far is on the disk."""
        ...

    def reserve(self, start: int, end: int) -> None:
        """Make sure that these bytes have room on the disk; DiskFullError where they have not."""
        ...

    def warm(self, lock: bool) -> None:
        """Fault every page in, and keep them in memory if `lock`."""
        ...

    def populate(self, start: int, end: int, *, write: bool = False) -> None:
        """Have pages in memory before they are written to, and as if they were, if `write`. Slow: for worker
        threads."""
        ...

    def unlock(self) -> None:
        """Let pages leave the memory again; nothing, where none were kept. Slow: for worker threads."""
        ...

    def write(self, position: int, data: memoryview) -> None:
        """Write through the file instead of the view (no page fault, releases the GIL)."""
        ...

    def data_end(self, start: int) -> int:
        """Where the file's last data from `start` on may end: behind it, all is known to be zero."""
        ...

    def close(self) -> None:
        """Let go. Slices of the view that are still held stay valid."""
        ...


class Disk(Protocol):
    """Everything the store does to files."""

    def map(self, path: str, size: int, *, writable: bool = True) -> Mapping:
        """Map a file; a writable one is created, or grown to `size`, where needed."""
        ...

    def list(self, directory: str) -> list[str]:
        """The sorted names in a directory; empty where there is none."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether there is such a directory."""
        ...

    def size(self, path: str) -> int:
        """Size of a file, -1 where there is none."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, 0 where there is none."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a directory and those above it."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine where there is none."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it is empty."""
        ...

    def rename(self, path: str, new_path: str) -> None:
        """Give a file or a directory another name."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a small file whole and durably."""
        ...

    def used_ratio(self, path: str) -> float:
        """Used share of the file system, -1 where it cannot be told."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock of a store; StoreLockedError where another process has it."""
        ...


class Lock(Protocol):
    """A held store lock."""

    def release(self) -> None:
        """Give it back."""
        ...


class OsDisk:
    """The disk of the machine."""

    def map(self, path: str, size: int, *, writable: bool = True) -> Mapping:
        """Map a file; a writable one is created, or grown to `size`, where needed."""
        return OsMapping(path, size, writable)

    def list(self, directory: str) -> list[str]:
        """The sorted names in a directory; empty where there is none."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_dir(self, path: str) -> bool:
        """Whether there is such a directory."""
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        """Size of a file, -1 where there is none."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return -1

    def modified_ms(self, path: str) -> int:
        """When the file was last written, 0 where there is none."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0

    def make_dirs(self, path: str) -> None:
        """Make a directory and those above it."""
        for parent in _make_dirs(path):
            sync_dir(parent)

    def remove(self, path: str) -> None:
        """Remove a file; fine where there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it is empty."""
        with contextlib.suppress(FileNotFoundError, OSError):
            os.rmdir(path)

    def rename(self, path: str, new_path: str) -> None:
        """Give a file or a directory another name."""
        os.rename(path, new_path)
        for directory in {os.path.dirname(new_path), os.path.dirname(path)}:
            sync_dir(directory)

    def write(self, path: str, data: bytes) -> None:
        """Write a small file whole and durably."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_dir(os.path.dirname(path))

    def used_ratio(self, path: str) -> float:
        """Used share of the file system in whole percents, rounded up as Java does; -1 where unknown."""
        try:
            status = os.statvfs(path)
        except OSError:
            return -1.0
        used = status.f_blocks - status.f_bfree
        entire = used + status.f_bavail
        return -(-used * 100 // entire) / 100 if entire else -1.0

    def lock(self, path: str) -> Lock:
        """Take the lock of a store; StoreLockedError where another process has it."""
        return OsLock(path)


class OsMapping:
    """A file in memory by mmap."""

    def __init__(self, path: str, size: int, writable: bool) -> None:
        created = writable and not os.path.exists(path)
        # A new file is on the disk only when the directories that lead to it are, too: see `sync`. So is one
        # that a process made before it was killed.
        directory = os.path.dirname(path)
        self._unsynced = [directory, *(_make_dirs(directory) if created else ())] if writable else []
        self._path, self._flags = path, os.O_RDWR if writable else os.O_RDONLY
        self._fd = -1
        self._closed = False
        self._locked = False
        try:
            self._fd = os.open(path, self._flags | os.O_CREAT if writable else self._flags, 0o644)
            if writable and os.fstat(self._fd).st_size < size:
                os.ftruncate(self._fd, size)
            self._map: Any
            if size <= SMALL_FILE_BYTES:
                self._map = _map_without_descriptor(self._fd, size, writable)
                os.close(self._fd)
                self._fd = -1
            else:
                self._map = mmap.mmap(
                    self._fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                )
        except BaseException as error:
            if self._fd >= 0:
                os.close(self._fd)
            if isinstance(error, OSError) and error.errno in _ADVICE:
                error.strerror = f"{error.strerror}: {_ADVICE[error.errno]}"
            raise
        view = memoryview(self._map).cast("B")
        self.view = view if writable else view.toreadonly()
        if created and size <= SMALL_FILE_BYTES:
            self._call_libc("madvise", mmap.MADV_RANDOM)

    @contextlib.contextmanager
    def _descriptor(self, flags: int | None = None) -> Iterator[int]:
        fd = self._fd  # read once: another thread may close it
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed")
        if fd >= 0:
            yield fd
            return
        fd = os.open(self._path, self._flags if flags is None else flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Return when every byte written so far is on the disk."""
        # To read is enough, and works on a file system that was made read-only, as after an error.
        with self._descriptor(os.O_RDONLY) as fd:
            os.fdatasync(fd)
        for directory in tuple(self._unsynced):
            sync_dir(directory)
        self._unsynced.clear()

    def reserve(self, start: int, end: int) -> None:
        """Make sure that these bytes have room on the disk; DiskFullError where they have not."""
        try:
            with self._descriptor() as fd:
                os.posix_fallocate(fd, start, end - start)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(
                    f"no room on the disk for {end - start} bytes: {error.strerror}"
                ) from error
            raise

    def warm(self, lock: bool) -> None:
        """Fault every page in, and keep them in memory if `lock`. Slow: for worker threads."""
        if self._call_libc("madvise", _MADV_POPULATE_WRITE) != 0:
            for position in range(0, len(self.view), PAGE_SIZE):
                self.view[position] = self.view[position]
        # Refused without the privilege: then the pages are warm, only not pinned. As in Java.
        self._locked = lock and self._call_libc("mlock") == 0

    def populate(self, start: int, end: int, *, write: bool = False) -> None:
        """Have pages in memory before they are written to, and as if they were, if `write`. Slow: for worker
        threads."""
        start -= start % PAGE_SIZE
        advice = _MADV_POPULATE_WRITE if write else _MADV_POPULATE_READ
        self._call_libc("madvise", advice, start=start, size=end - start)

    def unlock(self) -> None:
        """Let pages leave the memory again; nothing, where none were kept. Slow: for worker threads."""
        if self._locked:
            self._locked = False
            self._call_libc("munlock")

    def _call_libc(self, name: str, *more: int, start: int = 0, size: int | None = None) -> int:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + start
        length = len(self.view) if size is None else size
        function = getattr(_libc(), name)  # a call of it releases the GIL
        return int(function(ctypes.c_void_p(address), ctypes.c_size_t(length), *more))

    def write(self, position: int, data: memoryview) -> None:
        """Write through the file instead of the view (no page fault, releases the GIL)."""
        with self._descriptor() as fd:
            while data:
                done = os.pwrite(fd, data, position)
                position += done
                data = data[done:]

    def data_end(self, start: int) -> int:
        """Where the file's last data from `start` on may end: behind it, all is known to be zero."""
        end = start
        try:
            with self._descriptor() as fd:
                while True:  # over holes, which a log file has gigabytes of: reading would fault pages in
                    end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data behind `end`
                return len(self.view)
        return end

    def close(self) -> None:
        """Let go. The view and its slices stay valid: the map goes when the last of them is dropped."""
        self._closed = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    return libc


def _map_without_descriptor(fd: int, size: int, writable: bool) -> ctypes.Array[ctypes.c_ubyte]:
    """The bytes of a file, mapped for as long as somebody holds them or a slice of them."""
    libc = _libc()
    protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    if os.fstat(fd).st_size < size:  # to touch what is behind the end would be the end of the process
        raise ValueError("mmap length is greater than file size")
    address = libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_ubyte * size).from_address(address)
    gone = weakref.finalize(memory, libc.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size))
    gone.atexit = False
    return memory


class OsLock:
    """The lock file of a store: `lock`, with Java's content, locked with fcntl as Java does.

    Such a lock belongs to the process: a second store in it would get the same, and free it for both when it
    closes the file. So this process notes what it holds and does not open the file again.
    """

    _held: ClassVar[set[str]] = set()

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        if self._path in self._held:
            raise StoreLockedError(f"{os.path.dirname(path)} is open in this process already")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os.pwrite(self._fd, b"lock", 0)
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreLockedError(
                f"{os.path.dirname(path)} is in use by another process; stop it, or use another directory"
            ) from error
        self._held.add(self._path)

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            self._held.discard(self._path)
            os.close(self._fd)  # closing releases the lock
            self._fd = -1


def _make_dirs(path: str) -> list[str]:
    """Make a directory and those above it; the directories that have a new entry, from the deepest up."""
    changed: list[str] = []
    missing = path
    while not os.path.isdir(missing):
        missing = os.path.dirname(missing) or "."
        changed.append(missing)
    if changed:
        os.makedirs(path, exist_ok=True)
    return changed

"""FaultDisk: the disk of the machine, with faults on demand.

Which faults must be survived, and by whom:

| fault                       | who       | what must hold |
|-----------------------------|-----------|----------------|
| a sync fails (EIO)          | the store | who waits is told, no more messages are taken, abort stays |
| a sync takes long           | the store | nobody waits too long; one sync answers all it covered |
| no room (ENOSPC on reserve) | the put   | SERVICE_NOT_AVAILABLE, nothing half written; later taken |
| a file cannot be made (EIO) | the put   | refused, nothing half written; the next try may succeed |
| a file cannot be removed    | retention | it is not read any more, and its removal is tried again |
| a disk nearly full          | retention | deletes, stops taking messages, takes them again |

Not injected here: torn writes, lost writes and flipped bits. Those are for recovery to survive, and its
tests make them in the files themselves.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kourou.errors import DiskFullError
from kourou.store.log.disk import Lock, Mapping, OsDisk


class FaultDisk:
    """A Disk. `where` of each fault is a part of the paths it hits; "" hits all."""

    def __init__(self) -> None:
        self._os = OsDisk()
        self._sync_fails: str | None = None
        self._map_fails: str | None = None
        self._remove_fails: str | None = None
        self._full: str | None = None
        self._room = 0
        self._gate: SyncGate | None = None
        self.syncs: list[str] = []  # path of each sync that came back, in order
        self.reserved: list[tuple[str, int, int]] = []
        self.ratio: float | Callable[[str], float] = 0.1  # what used_ratio answers

    # Faults

    def fail_syncs(self, where: str = "") -> None:
        """From now on syncs raise EIO."""
        self._sync_fails = where

    def fail_maps(self, where: str = "") -> None:
        """From now on files that are not there cannot be made."""
        self._map_fails = where

    def refuse_removes(self, where: str = "") -> None:
        """From now on files cannot be removed."""
        self._remove_fails = where

    def fill(self, where: str = "", room: int = 0) -> None:
        """From now on only so many bytes can be reserved."""
        self._full, self._room = where, room

    def heal(self) -> None:
        """No more faults."""
        self._sync_fails = self._map_fails = self._remove_fails = self._full = None

    @contextmanager
    def held_syncs(self, where: str = "") -> Iterator[SyncGate]:
        """Syncs wait until the gate is opened, at the latest at the end of the block."""
        self._gate = gate = SyncGate(where)
        try:
            yield gate
        finally:
            self._gate = None
            gate.open()

    def count_syncs(self, where: str = "") -> int:
        """How many syncs there were of files whose path has `where` in it."""
        return sum(where in path for path in self.syncs)

    # The Disk protocol

    def map(self, path: str, size: int, *, writable: bool = True) -> Mapping:
        if _hits(self._map_fails, path) and self._os.size(path) < 0:
            raise OSError(errno.EIO, "injected: cannot make the file", path)
        return FaultMapping(self, path, self._os.map(path, size, writable=writable))

    def list(self, directory: str) -> list[str]:
        return self._os.list(directory)

    def is_dir(self, path: str) -> bool:
        return self._os.is_dir(path)

    def size(self, path: str) -> int:
        return self._os.size(path)

    def modified_ms(self, path: str) -> int:
        return self._os.modified_ms(path)

    def make_dirs(self, path: str) -> None:
        self._os.make_dirs(path)

    def remove(self, path: str) -> None:
        if _hits(self._remove_fails, path):
            raise OSError(errno.EBUSY, "injected: cannot remove", path)
        self._os.remove(path)

    def remove_dir(self, path: str) -> None:
        self._os.remove_dir(path)

    def rename(self, path: str, new_path: str) -> None:
        self._os.rename(path, new_path)

    def write(self, path: str, data: bytes) -> None:
        self._os.write(path, data)

    def used_ratio(self, path: str) -> float:
        return self.ratio(path) if callable(self.ratio) else self.ratio

    def lock(self, path: str) -> Lock:
        return self._os.lock(path)

    # For FaultMapping

    def before_sync(self, path: str) -> None:
        gate = self._gate
        if gate is not None and gate.where in path:
            gate.wait()
        if _hits(self._sync_fails, path):
            raise OSError(errno.EIO, "injected: sync failed", path)

    def before_reserve(self, path: str, start: int, end: int) -> None:
        if _hits(self._full, path):
            if end - start > self._room:
                raise DiskFullError(f"injected: no room for {end - start} bytes")
            self._room -= end - start
        self.reserved.append((path, start, end))


class SyncGate:
    """Where syncs wait."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.reached = threading.Event()  # a sync has come to the gate
        self._opened = threading.Event()

    def open(self) -> None:
        """Let through all that wait, and all that come."""
        self._opened.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._opened.wait(10), "nobody opened the gate"


class FaultMapping:
    """A Mapping whose syncs and reservations may fail."""

    def __init__(self, disk: FaultDisk, path: str, inner: Mapping) -> None:
        self._disk = disk
        self._path = path
        self._inner = inner
        self.view = inner.view

    def sync(self) -> None:
        self._disk.before_sync(self._path)
        self._inner.sync()
        self._disk.syncs.append(self._path)

    def reserve(self, start: int, end: int) -> None:
        self._disk.before_reserve(self._path, start, end)
        self._inner.reserve(start, end)

    def warm(self, lock: bool) -> None:
        self._inner.warm(lock)

    def populate(self, start: int, end: int, *, write: bool = False) -> None:
        self._inner.populate(start, end, write=write)

    def unlock(self) -> None:
        self._inner.unlock()

    def write(self, position: int, data: memoryview) -> None:
        self._inner.write(position, data)

    def data_end(self, start: int) -> int:
        return self._inner.data_end(start)

    def close(self) -> None:
        self._inner.close()


def _hits(where: str | None, path: str) -> bool:
    return where is not None and where in path

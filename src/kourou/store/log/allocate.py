"""What an append would have to wait for, done ahead by workers.

AllocateMappedFileService makes the next log file, and the one after it: an append that reaches the end of a
file finds the next one mapped (and warm, with `warmMapedFileEnable`). PageToucher has the pages behind the
last record in memory: an append finds them there instead of waiting for the kernel to make and clear them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kourou.errors import StoreError
from kourou.store.log.mapped_file import MappedFile, MappedFileQueue

log = logging.getLogger(__name__)

TOUCH_AHEAD_BYTES = 32 * 1024 * 1024  # a third of a second at 100 MB/s
WRITE_AHEAD_BYTES = 4 * 1024 * 1024
TOUCH_INTERVAL_MS = 20
WAIT_SECONDS = 5.0  # Java's waitTimeOut: then the append fails and the sender may try again


class AllocateMappedFileService:
    """Makes MappedFiles ahead of need."""

    def __init__(self, make: Callable[[str], MappedFile]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._ready: dict[str, Future[MappedFile]] = {}
        self._worker: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """From now on files are made ahead; before, only when they are asked for."""
        self._worker = ThreadPoolExecutor(1, "kourou-allocate")

    def take(self, path: str, after: str) -> MappedFile:
        """The file of this path; `after` is made ahead for the next time."""
        if self._worker is None:
            return self._make(path)
        with self._lock:
            future = self._ready.get(path)
            if future is None or (future.done() and future.exception() is not None):
                future = self._submit(path)  # what failed while nobody needed it may succeed now
            if after not in self._ready:
                self._submit(after)
            stale = [self._ready.pop(other) for other in list(self._ready) if other not in (path, after)]
        for unused in stale:  # made ahead in a directory that is full meanwhile
            unused.add_done_callback(_destroy)
        try:
            file = future.result(WAIT_SECONDS)
        except TimeoutError:
            raise StoreError(
                f"{path} was not created within {WAIT_SECONDS:.0f} s: the disk is too slow"
            ) from None
        finally:
            if future.done():
                with self._lock:
                    self._ready.pop(path, None)
        return file

    def _submit(self, path: str) -> Future[MappedFile]:
        assert self._worker is not None
        future = self._worker.submit(self._make, path)
        self._ready[path] = future
        return future

    def shutdown(self) -> None:
        """Stop, and remove the files that were made ahead and never used."""
        if self._worker is None:
            return
        self._worker.shutdown(wait=True)
        self._worker = None
        for future in self._ready.values():
            _destroy(future)
        self._ready.clear()


class PageToucher:
    """Keeps the pages that come next in memory, while messages come."""

    def __init__(self, files: MappedFileQueue, *, sync_flush: bool = False) -> None:
        self._files = files
        # A block that was never written changes the file's metadata when it is synced, which takes as long
        # as the sync itself. With SYNC_FLUSH each message waits for one: zeros go ahead of it.
        self._writes = sync_flush
        self._path = ""
        self._touched = 0
        self._seen = 0

    def run_once(self) -> None:
        """Touch ahead, if something was written since the last time."""
        file = self._files.last()
        if file is None or file.write_view is not file.view:
            return
        wrote = file.wrote
        if file.path != self._path:
            self._path, self._touched, self._seen = file.path, wrote, -1
        if wrote == self._seen:
            return
        ahead, end = TOUCH_AHEAD_BYTES, file.size
        if self._writes:  # few: the next sync brings them to the disk with its messages
            ahead, end = max(WRITE_AHEAD_BYTES, 2 * (wrote - self._seen)), file.reserved
        self._seen = wrote
        start, end = max(self._touched, wrote), min(wrote + ahead, end)
        if end - start >= ahead // 8:
            file.mapping.populate(start, end, write=self._writes)
            self._touched = end


def _destroy(future: Future[MappedFile]) -> None:
    if future.exception() is None:
        future.result().destroy()

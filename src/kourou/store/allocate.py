"""AllocateMappedFileService: the next log file, and the one after it, made ahead by a worker.

An append that reaches the end of a file finds the next one mapped (and warm, with
`warmMapedFileEnable`) instead of waiting for the file system.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kourou.errors import StoreError
from kourou.store.mapped_file import MappedFile

log = logging.getLogger(__name__)

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


def _destroy(future: Future[MappedFile]) -> None:
    if future.exception() is None:
        future.result().destroy()

"""Flush: how bytes come to the disk, and who is told (seeds 000 and 001).

- ASYNC_FLUSH: every `flushIntervalCommitLog`, if there are `flushCommitLogLeastPages`; all of it every
  `flushCommitLogThoroughInterval`.
- SYNC_FLUSH: group commit. Whoever waits is noted with the offset that must be on disk; one fdatasync
  answers all waiters up to where it reached. A waiter past `syncFlushTimeout` is told so.
- Queues: every `flushIntervalConsumeQueue`, all of them every `flushConsumeQueueThoroughInterval`, and
  then the checkpoint, which may only speak of what is on disk.

fdatasync runs in these services' threads and releases the GIL; results go to the owner of the store
through `post`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from kourou.clock import Clock
from kourou.store.checkpoint import StoreCheckpoint
from kourou.store.config import MessageStoreConfig
from kourou.store.index.index_file import IndexService
from kourou.store.log.mapped_file import MappedFileQueue
from kourou.store.queue.queue_store import ConsumeQueueStore
from kourou.store.status import PutCallback, PutMessageStatus

log = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], None]


class CommitLogFlusher:
    """Brings the log to the disk and answers those who wait for it."""

    def __init__(
        self,
        files: MappedFileQueue,
        config: MessageStoreConfig,
        clock: Clock,
        checkpoint: StoreCheckpoint,
        post: Post,
        on_flushed: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._files = files
        self._config = config
        self._clock = clock
        self._checkpoint = checkpoint
        self._post = post
        self._on_flushed = on_flushed  # by the owner: records up to the flushed offset may be dispatched
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._waiting: deque[tuple[int, int, PutCallback]] = deque()  # offset, deadline, callback; by offset
        self._last_thorough_ms = clock.elapsed_ms()
        self.wake: Callable[[], None] = lambda: None
        self.failed = False

    def wait_for(self, offset: int, callback: PutCallback) -> None:
        """Have `callback` called by the owner when everything before `offset` is on disk, or too late."""
        if self._files.flushed_where >= offset:
            callback(PutMessageStatus.PUT_OK)
            return
        if self.failed:
            callback(PutMessageStatus.FLUSH_DISK_TIMEOUT)
            return
        with self._lock:
            self._waiting.append(
                (offset, self._clock.elapsed_ms() + self._config.sync_flush_timeout, callback)
            )
        self.wake()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def run_once(self) -> None:
        """Flush what is due."""
        now = self._clock.elapsed_ms()
        least_pages = 0 if self._config.sync_flush else self._config.flush_commit_log_least_pages
        if now - self._last_thorough_ms >= self._config.flush_commit_log_thorough_interval:
            self._last_thorough_ms = now
            least_pages = 0
        self.flush(least_pages)

    def flush(self, least_pages: int = 0) -> int:
        """Flush now; the offset up to which the log is on disk."""
        before = self._files.flushed_where
        if self.failed:
            self._answer(1 << 63, PutMessageStatus.FLUSH_DISK_TIMEOUT)
            return before
        try:
            with self._flushing:  # others than the service may ask for it
                if self._config.transient_store_pool_enable and least_pages == 0:
                    self._files.commit(0)
                where = self._files.flush(least_pages)
        except OSError as error:
            # After a failed fdatasync the kernel may have dropped the pages: trying again could report
            # success for bytes that are not there. The store stops taking messages instead.
            self.failed = True
            reason = f"the commit log cannot be brought to the disk: {error}"
            self._post(lambda: self._on_failed(reason))
            self._answer(1 << 63, PutMessageStatus.FLUSH_DISK_TIMEOUT)
            return before
        if least_pages == 0 and self._files.store_timestamp > 0:
            self._checkpoint.physic_msg_timestamp = self._files.store_timestamp
        self._answer(where, PutMessageStatus.PUT_OK, self._on_flushed if where > before else None)
        return where

    def expire(self) -> None:
        """Tell those who have waited too long; run often, and not in the thread that flushes."""
        now = self._clock.elapsed_ms()
        late: list[PutCallback] = []
        with self._lock:
            while self._waiting and self._waiting[0][1] <= now:
                late.append(self._waiting.popleft()[2])
        self._call(late, PutMessageStatus.FLUSH_DISK_TIMEOUT)

    def _answer(self, where: int, status: PutMessageStatus, first: Callable[[], None] | None = None) -> None:
        ready: list[PutCallback] = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= where:
                ready.append(self._waiting.popleft()[2])
        self._call(ready, status, first)

    def _call(
        self,
        callbacks: list[PutCallback],
        status: PutMessageStatus,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Have the owner call all of these, in one go: to wake it costs more than most of the calls."""
        if not callbacks and first is None:
            return

        def call_all() -> None:
            try:
                if first is not None:
                    first()
            finally:
                for callback in callbacks:
                    try:
                        callback(status)
                    except Exception:
                        log.exception("a sender could not be answered; the others are")

        self._post(call_all)


class CommitLogCommitter:
    """With a TransientStorePool: moves records from its buffers into the files."""

    def __init__(
        self,
        files: MappedFileQueue,
        config: MessageStoreConfig,
        clock: Clock,
        post: Post,
        on_committed: Callable[[], None],
    ) -> None:
        self._files = files
        self._config = config
        self._clock = clock
        self._post = post
        self._on_committed = on_committed
        self._last_thorough_ms = 0

    def run_once(self) -> None:
        """Commit what is due."""
        now = self._clock.elapsed_ms()
        least_pages = self._config.commit_commit_log_least_pages
        if now - self._last_thorough_ms >= self._config.commit_commit_log_thorough_interval:
            self._last_thorough_ms = now
            least_pages = 0
        before = self._files.committed_where
        if self._files.commit(least_pages) > before:
            self._post(self._on_committed)


class QueueFlusher:
    """Brings queues and index to the disk, and keeps the checkpoint."""

    def __init__(
        self,
        queues: ConsumeQueueStore,
        index: IndexService,
        config: MessageStoreConfig,
        clock: Clock,
        checkpoint: StoreCheckpoint,
        post: Post,
        retry: Callable[[], None],
        log_flushed: Callable[[], int],
    ) -> None:
        self._post = post
        self._log_flushed = log_flushed  # up to which offset the log is on the disk
        self._retry = retry  # by the owner: what had no room gets its entries
        self._queues = queues
        self._index = index
        self._config = config
        self._clock = clock
        self._checkpoint = checkpoint
        self._last_thorough_ms = clock.elapsed_ms()

    def run_once(self) -> None:
        """Flush what is due."""
        self._post(self._retry)
        self._post(self._index.try_write_pending)  # keys of the last messages before a pause
        now = self._clock.elapsed_ms()
        if now - self._last_thorough_ms >= self._config.flush_consume_queue_thorough_interval:
            self._last_thorough_ms = now
            self.flush_all()
            return
        self._queues.flush(self._config.flush_consume_queue_least_pages)
        if self._flush_full_index_files():
            self._checkpoint.flush()

    def _flush_full_index_files(self) -> bool:
        """After a crash, what the checkpoint knows to be on disk need not be indexed again."""
        timestamp = self._index.flush_full()
        self._checkpoint.index_msg_timestamp = timestamp or self._checkpoint.index_msg_timestamp
        return timestamp > 0

    def flush_all(self) -> None:
        """All queues, then the checkpoint."""
        # Read before the flush: what is dispatched meanwhile may not be on disk when it ends.
        timestamp = self._checkpoint.dispatched_msg_timestamp
        offset = self._checkpoint.dispatched_physical_offset
        self._queues.flush(0)
        self._flush_full_index_files()
        # Recovery begins there: a record that is on the disk in its queue alone may be lost with the power.
        flushed = self._log_flushed()
        if timestamp > 0 and flushed > 0:
            self._checkpoint.logics_msg_timestamp = timestamp
            self._checkpoint.logics_physical_offset = min(offset, flushed)
        self._checkpoint.flush()

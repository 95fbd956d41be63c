"""MessageStore: the log, the queues and the index as one store (DefaultMessageStore).

The way of one message: `put_message` checks it, gives it its queue offset, appends the record to the log,
and in the same call its entry to the queue and its keys to the index. With SYNC_FLUSH or a
TransientStorePool, queue and index wait until the record is on disk or in the file, as in Java, so
that no consumer sees what a crash could take back. `when_stored` tells when the sender may be answered.

Threads: one thread owns the store and makes every call of this class. Workers flush, allocate and clean;
what they have to say comes back through `post`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from kourou.clock import Clock, SystemClock
from kourou.errors import CorruptRecordError, StoreError
from kourou.message import properties as names
from kourou.message.codec import (
    StoredMessage,
    decode,
)
from kourou.message.topics import DELETION_TOPIC
from kourou.store import reads
from kourou.store.checkpoint import StoreCheckpoint
from kourou.store.clock_steps import ClockSteps
from kourou.store.config import BrokerRole, MessageStoreConfig
from kourou.store.dispatch import Dispatcher
from kourou.store.index.index_catch_up import PAUSE_MS, IndexCatchUp
from kourou.store.index.index_file import IndexService
from kourou.store.log.allocate import TOUCH_INTERVAL_MS, AllocateMappedFileService, PageToucher
from kourou.store.log.commit_log import CommitLog
from kourou.store.log.disk import Disk, Lock, OsDisk
from kourou.store.log.flush import CommitLogCommitter, CommitLogFlusher, QueueFlusher
from kourou.store.log.mapped_file import MappedFile, TransientStorePool
from kourou.store.put import InnerMessage, MessagePutter
from kourou.store.queue.queue_store import ConsumeQueueStore
from kourou.store.recovery import RecoveryReport, recover
from kourou.store.retention import Retention
from kourou.store.service import Inbox, ServiceThread
from kourou.store.stats import SAMPLE_INTERVAL_MS, StoreStats
from kourou.store.status import (
    BoundaryType,
    GetMessageResult,
    PutCallback,
    PutMessageResult,
    PutMessageStatus,
    QueryMessageResult,
)

if TYPE_CHECKING:
    from kourou.store.replication.service import Replication

log = logging.getLogger(__name__)

PUT_OK = PutMessageStatus.PUT_OK

_EXPIRE_INTERVAL_MS = 100  # how often waiters are checked for their deadline


class MessageStore:
    """A store directory, open for writing."""

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        post: Callable[[Callable[[], None]], None] | None = None,
        is_batch_topic: Callable[[str], bool] | None = None,
    ) -> None:
        self.config = config
        self.disk: Disk = disk or OsDisk()
        self.clock: Clock = clock or SystemClock()
        self._inbox = Inbox()
        self.post = post or self._inbox.post  # has the owner call something
        self.root = config.store_path_root_dir
        self.stats = StoreStats(self.clock)
        self._pool: TransientStorePool | None = None
        self._allocator = AllocateMappedFileService(self._make_file)
        self.commit_log = CommitLog(self.disk, config, self._allocator.take)
        self.queues = ConsumeQueueStore(self.disk, config, is_batch_topic)
        self.index = IndexService(self.disk, self.root, config, self.clock)
        self.index.on_failed = self._stop_taking
        self.index.on_restored = self._take_again
        self.clock_steps = ClockSteps(
            self.disk, f"{self.root}/clock", self.clock, self.commit_log.files, config
        )
        self.retention = Retention(self)
        self.dispatcher = Dispatcher(self.commit_log, self.queues, self.index, config, self._stop_taking)
        self.dispatcher.on_restored = self._take_again
        self.index_catch_up = IndexCatchUp(self)

        self._lock: Lock | None = None
        self._started = False
        self.checkpoint: StoreCheckpoint
        self.flusher: CommitLogFlusher
        self._committer: CommitLogCommitter
        self._queue_flusher: QueueFlusher
        self._services: list[ServiceThread] = []
        self.putter = MessagePutter(
            config,
            self.clock,
            self.commit_log,
            self.queues,
            self.index,
            self.dispatcher,
            self.stats,
            self._inbox,
        )
        self.put_message = self.putter.put_message  # bound once: a call less for each message
        self.put_messages = self.putter.put_messages
        self.put_waiting = self.putter.put_waiting
        self.recovery: RecoveryReport | None = None
        self.replication: Replication | None = None  # while it runs
        self.on_topic_deleted: Callable[[str], None] | None = None  # hears each, of a slave too

    # Life

    def load(self) -> RecoveryReport:
        """Open the files and recover; what was found and cut."""
        self.disk.make_dirs(self.root)
        self._lock = self.disk.lock(f"{self.root}/lock")
        try:
            if self.config.transient_store_pool_enable:
                self._pool = TransientStorePool(
                    self.config.transient_store_pool_size, self.config.mapped_file_size_commit_log
                )
            last_exit_ok = self.disk.size(self._abort_path) < 0
            self.commit_log.files.load(after_crash=not last_exit_ok)
            self.queues.load(after_crash=not last_exit_ok)
            self.checkpoint = StoreCheckpoint(self.disk, f"{self.root}/checkpoint")
            self.dispatcher.checkpoint = self.checkpoint
            dropped = self.index.load(last_exit_ok, self.checkpoint.index_msg_timestamp)
            if dropped:
                # The files that are made instead have the times of old messages, and are not on the disk yet.
                self.checkpoint.index_msg_timestamp = self.index.end_timestamp
                self.checkpoint.flush()
            self.index.is_behind = True  # until it has caught up with what recovery finds
            self.recovery = recover(self, last_exit_ok)
            self.recovery.dropped_index_files = dropped
            self.recovery.log(log)
            last_ms = self.checkpoint.dispatched_msg_timestamp or self.checkpoint.physic_msg_timestamp
            self.clock_steps.load(last_ms)
        except BaseException:
            self._release()
            raise
        self.queues.read_deletions(self.look_message)
        self.queues.flush_log = self._flush_log
        self.queues.on_deleted = self._topic_deleted
        self.dispatcher.dispatched_offset = self.commit_log.max_offset
        self.index_catch_up.begin(self.recovery.index_offset)
        files, config, clock, reput = self.commit_log.files, self.config, self.clock, self.dispatcher.reput
        self.flusher = CommitLogFlusher(
            files, config, clock, self.checkpoint, self.post, reput, self._stop_taking
        )
        self._committer = CommitLogCommitter(files, config, clock, self.post, reput)
        self._queue_flusher = QueueFlusher(
            self.queues, self.index, config, clock, self.checkpoint, self.post, self.dispatcher.retry,
            lambda: files.flushed_where,
        )  # fmt: skip
        return self.recovery

    @property
    def _abort_path(self) -> str:
        return f"{self.root}/abort"

    def start(self, *, threads: bool = True) -> None:
        """Take messages. Without threads the caller runs the services itself, as a simulator does."""
        self.disk.write(self._abort_path, str(os.getpid()).encode())
        self._started = True
        self.refusal = None
        if self.config.broker_role is BrokerRole.SLAVE:
            self.refusal = "this store is a slave's: it takes messages from its master only"
        if threads:
            self._start_threads()

    def _start_threads(self) -> None:
        config = self.config
        self._allocator.start()
        interval = 10 if config.sync_flush else config.flush_interval_commit_log
        flush = ServiceThread("kourou-flush", self.flusher.run_once, interval)
        self.flusher.wake = flush.wake
        toucher = PageToucher(self.commit_log.files, sync_flush=config.sync_flush)
        self._services = [
            flush,
            ServiceThread(
                "kourou-flush-queues", self._queue_flusher.run_once, config.flush_interval_consume_queue
            ),
            ServiceThread("kourou-clean", self.retention.run_once, config.clean_resource_interval),
            ServiceThread("kourou-stats", self.stats.sample, SAMPLE_INTERVAL_MS),
            ServiceThread("kourou-touch", toucher.run_once, TOUCH_INTERVAL_MS),
        ]
        if self.index_catch_up.is_behind:
            catch_up = ServiceThread("kourou-index", self.index_catch_up.run_once, PAUSE_MS)
            self._services.append(catch_up)
            self.index_catch_up.on_caught_up = partial(self._stop_service, catch_up)
        if config.sync_flush:
            self._services.append(
                ServiceThread("kourou-flush-watch", self.flusher.expire, _EXPIRE_INTERVAL_MS)
            )
        if config.transient_store_pool_enable:
            commit = ServiceThread(
                "kourou-commit", self._committer.run_once, config.commit_interval_commit_log
            )
            self._services.append(commit)
        for service in self._services:
            service.start()

    def _stop_service(self, service: ServiceThread) -> None:
        service.stop()
        self._services.remove(service)

    def shutdown(self) -> None:
        """Flush everything, write the checkpoint, and leave no abort file if all went well."""
        if not self._started:
            self.abandon()  # loaded at most: an abort file of an earlier run stays
            return
        self._started = False
        healthy = self.refusal is None or self.config.broker_role is BrokerRole.SLAVE
        self.refusal = "the store is shutting down"
        for service in self._services:
            service.stop()
        self._services.clear()
        try:
            self.flusher.flush()
            self._inbox.drain()
            self.dispatcher.reput()
            self.checkpoint.index_msg_timestamp = self.index.flush() or self.checkpoint.index_msg_timestamp
            self._queue_flusher.flush_all()
            self._allocator.shutdown()
            all_done = self.dispatcher.is_done and not self.index_catch_up.failure
            if healthy and not self.flusher.failed and all_done:
                self.disk.remove(self._abort_path)
            else:
                log.warning("the store was not healthy: the abort file stays, the next start recovers")
        finally:
            self._release()

    def abandon(self) -> None:
        """Let go of everything as it is, as a crash would: nothing is flushed, the abort file stays."""
        for service in self._services:
            service.stop()
        self._services.clear()
        self._release()

    def _release(self) -> None:
        self._allocator.shutdown()
        self.index.close()
        self.queues.close()
        self.commit_log.files.close()
        with contextlib.suppress(AttributeError):
            self.checkpoint.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> MessageStore:
        self.load()
        try:
            self.start()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _make_file(self, path: str) -> MappedFile:
        file = MappedFile(self.disk, path, self.config.mapped_file_size_commit_log, buffer_home=self._pool)
        if self.config.warm_maped_file_enable:
            file.ensure(file.size)
            file.mapping.warm(lock=True)
        return file

    @property
    def refusal(self) -> str | None:
        """Why no message is taken now."""
        return self.putter.refusal

    @refusal.setter
    def refusal(self, reason: str | None) -> None:
        self.putter.refusal = reason

    def _take_again(self, reason: str) -> None:
        """What was in the way is not any more: there is room on the disk again."""
        if self.refusal == reason and not self.flusher.failed:
            log.warning("messages are taken again: it is over that %s", reason)
            self.refusal = None

    def _stop_taking(self, reason: str) -> None:
        log.critical("no more messages are taken: %s", reason)
        self.refusal = reason

    def look_at_clock(self) -> ClockSteps:
        """Note it if the clock was set. Before and after each record that says when something is due."""
        self.clock_steps.look()
        return self.clock_steps

    def wait(self, seconds: float) -> None:
        """Without an event loop: wait for what the workers have to say, and take it."""
        self._inbox.wait(seconds)

    # Put

    def when_stored(self, result: PutMessageResult, message: InnerMessage, callback: PutCallback) -> None:
        """Call back when the sender may be told: at once, or with SYNC_FLUSH when the disk has it, and of a
        SYNC_MASTER when slaves have it."""
        if result.status is not PUT_OK or not self.config.sync_copies or not message.wait_store_msg_ok:
            callback(result.status)
            return

        def settle(status: PutMessageStatus) -> None:
            result.status = status
            callback(status)

        self.when_safe(result.physical_offset + result.wrote_bytes, settle)

    def when_safe(self, end: int, callback: PutCallback) -> None:
        """Call back when what ends there is where SYNC_FLUSH and SYNC_MASTER want it, or why not. Hot."""
        if not self.config.sync_flush:
            self.wait_for_slaves(end, callback)
            return
        began_ms = self.clock.elapsed_ms()

        def on_disk(status: PutMessageStatus) -> None:
            self.stats.record_put_time(self.clock.elapsed_ms() - began_ms)
            callback(status)

        if self.config.broker_role is not BrokerRole.SYNC_MASTER:
            self.flusher.wait_for(end, on_disk)
            return
        outcomes: list[PutMessageStatus | None] = [None, None]

        def settle(place: int, status: PutMessageStatus) -> None:
            outcomes[place] = status
            if None not in outcomes:
                # As in Java, what is wrong with the slaves is said before what is wrong with the disk.
                on_disk(next((one for one in outcomes if one and one is not PUT_OK), PUT_OK))

        self.wait_for_slaves(end, partial(settle, 0))
        self.flusher.wait_for(end, partial(settle, 1))

    def wait_for_slaves(self, offset: int, callback: PutCallback) -> None:
        """Call back when enough slaves have everything before `offset`, or why they will not."""
        if self.replication is None:
            callback(PutMessageStatus.SLAVE_NOT_AVAILABLE)
        else:
            self.replication.wait_for(offset, callback)

    def put_and_wait(self, message: InnerMessage) -> PutMessageResult:
        """Put, and come back when the sender may be told. Blocks: for callers without an event loop."""
        result = self.put_message(message)
        done: list[PutMessageStatus] = []
        self.when_stored(result, message, done.append)
        while not done:
            if not self._services:
                self.flusher.flush()
            self._inbox.wait(0.1)
        return result

    # Read

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_size: int = reads.MAX_PULL_SIZE,
        message_filter: reads.MessageFilter | None = None,
    ) -> GetMessageResult:
        """Records of a queue from an offset on, by Java's limits for memory and disk. Hot."""
        if self._inbox.calls:
            self._inbox.drain()
        return reads.get_message(self, topic, queue_id, offset, max_count, max_size, message_filter)

    def look_message(self, physical_offset: int) -> StoredMessage | None:
        """The message at a physical offset."""
        record = self.commit_log.message_at(physical_offset)
        if record is None:
            return None
        try:
            return decode(record)
        except CorruptRecordError:
            return None

    def query_message(
        self,
        topic: str,
        key: str,
        limit: int = 32,
        begin: int = 0,
        end: int = 1 << 62,
        index_type: str | None = None,
        after_offset: int = 1 << 62,
    ) -> QueryMessageResult:
        """Messages by key (or tag, with index_type T) stored within two times, or after an offset of the log,
        whatever the clock said then."""
        return reads.query_message(self, topic, key, limit, begin, end, index_type, after_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the first message of a queue, -1 where there is no such queue."""
        queue = self.queues.get(topic, queue_id)
        return -1 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Queue offset behind the last message, 0 where there is no such queue."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        return queue.max_offset if committed else queue.next_offset

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Queue offset of the first message stored at or after a time."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        found = queue.offset_by_time(timestamp, boundary, self.commit_log)
        return min(max(found, queue.min_offset), queue.max_offset)

    def message_store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message at a queue offset was stored, -1 where there is none."""
        queue = self.queues.get(topic, queue_id)
        entry = queue.get(queue_offset) if queue is not None else None
        return (
            -1 if entry is None else self.commit_log.pickup_store_timestamp(entry.physical_offset, entry.size)
        )

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the message at a queue offset is so new that it is still in memory."""
        queue = self.queues.get(topic, queue_id)
        entry = queue.get(queue_offset) if queue is not None else None
        return entry is not None and self.commit_log.max_offset - entry.physical_offset <= reads.memory_bytes(
            self
        )

    def earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """When the first message of a queue, or of the log, was stored; -1 where there is none."""
        if topic is not None:
            queue = self.queues.get(topic, queue_id)
            return -1 if queue is None else self.message_store_timestamp(topic, queue_id, queue.min_offset)
        record = self.commit_log.message_at(self.commit_log.min_offset)
        if record is None:
            return -1
        return self.commit_log.pickup_store_timestamp(self.commit_log.min_offset, len(record))

    def estimate_message_count(
        self, topic: str, queue_id: int, start: int, end: int, message_filter: reads.MessageFilter
    ) -> int:
        """About how many messages between two queue offsets match a filter; -1 where it cannot be told."""
        return reads.estimate_message_count(self, topic, queue_id, start, end, message_filter)

    def estimate_message_size(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """About how many bytes of log the messages between two queue offsets take; -1 without a queue."""
        return reads.estimate_message_size(self, topic, queue_id, start, end)

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Remove the queues of topics; their records go with the log. The log says so, durably: recovery and
        slaves do the same where they come to it. StoreError, and nothing removed, where it cannot say so.

        A topic without queues may have messages that wait for their time: they end with it."""
        for topic in topics:
            properties = {names.KEYS: topic, names.WAIT_STORE_MSG_OK: "false"}
            deletion = InnerMessage.of(
                DELETION_TOPIC, 0, topic.encode(), properties, born_timestamp=self.clock.now_ms()
            )
            result = self.put_message(deletion)
            if result.status is not PUT_OK:
                raise StoreError(f"topic {topic} cannot be deleted: {result.reason or result.status.name}")
        if not self.dispatcher.at_once:
            self.flusher.flush()
            self.dispatcher.reput()
            if not self.dispatcher.is_done:
                raise StoreError("topics cannot be deleted now: queues or log cannot be written")

    def _topic_deleted(self, topic: str) -> None:
        self.putter.forget_topic(topic)
        if self.on_topic_deleted is not None:
            self.on_topic_deleted(topic)

    def _flush_log(self, until: int) -> None:
        """Bring the log to the disk up to an offset."""
        if self.commit_log.files.flushed_where < until and self.flusher.flush() < until:
            raise StoreError("the log cannot be brought to the disk")

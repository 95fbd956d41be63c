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
from collections import deque
from collections.abc import Callable
from zlib import crc32

from kourou.errors import CorruptRecordError, DiskFullError, KourouError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.batch import iter_batch
from kourou.message.codec import HEADER_SIZES, MAGIC_V1, MAGIC_V2, PROPERTY_CRC_LENGTH, StoredMessage, decode
from kourou.message.properties import decode_properties, tags_code
from kourou.store import reads
from kourou.store.allocate import AllocateMappedFileService
from kourou.store.batch_consume_queue import BatchConsumeQueue
from kourou.store.checkpoint import StoreCheckpoint
from kourou.store.commit_log import END_FILE_MIN_BLANK, MAX_PROPERTIES, MAX_RECORD_OVERHEAD, CommitLog
from kourou.store.config import BrokerRole, MessageStoreConfig, parse_delay_levels
from kourou.store.disk import Clock, Disk, Lock, OsDisk, SystemClock
from kourou.store.dispatch import SCHEDULE_TOPIC, DispatchRequest, check_record
from kourou.store.flush import CommitLogCommitter, CommitLogFlusher, QueueFlusher
from kourou.store.index_file import IndexService
from kourou.store.mapped_file import MappedFile, TransientStorePool
from kourou.store.put import InnerMessage
from kourou.store.queue_store import LMQ_SEPARATOR, AnyQueue, ConsumeQueueStore, is_lmq
from kourou.store.recovery import RecoveryReport, recover
from kourou.store.retention import Retention
from kourou.store.service import Inbox, ServiceThread
from kourou.store.stats import SAMPLE_INTERVAL_MS, StoreStats, TopicPuts
from kourou.store.status import (
    BoundaryType,
    GetMessageResult,
    PutCallback,
    PutMessageResult,
    PutMessageStatus,
    QueryMessageResult,
)

log = logging.getLogger(__name__)

PUT_OK = PutMessageStatus.PUT_OK

# Requests kept from the put until they may be dispatched; beyond, they are read from the log again.
MAX_RECENT_REQUESTS = 100_000
_EXPIRE_INTERVAL_MS = 100  # how often waiters are checked for their deadline

# on_arrive(topic, queue_id, next queue offset, tags code, store timestamp, properties)
OnArrive = Callable[[str, int, int, int, int, dict[str, str]], None]


class _Topic:
    """What a put needs of its topic, looked up once."""

    __slots__ = ("encoded", "magic", "overhead", "puts")

    def __init__(self, name: str, puts: TopicPuts) -> None:
        self.encoded = name.encode()
        self.magic = MAGIC_V2 if len(self.encoded) > 127 else MAGIC_V1
        self.overhead = len(self.encoded) + (1 if self.magic == MAGIC_V1 else 2) + 2
        self.puts = puts


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
        self._post = post or self._inbox.post
        self.root = config.store_path_root_dir
        self.stats = StoreStats(self.clock)
        self._pool: TransientStorePool | None = None
        self._allocator = AllocateMappedFileService(self._make_file)
        self.commit_log = CommitLog(self.disk, config, self._allocator.take)
        self.queues = ConsumeQueueStore(self.disk, config, is_batch_topic)
        self.index = IndexService(self.disk, self.root, config, self.clock)
        self.retention = Retention(self)
        self.delay_levels = parse_delay_levels(config.message_delay_level)
        self.on_arrive: OnArrive | None = None

        self._lock: Lock | None = None
        self.checkpoint: StoreCheckpoint
        self.flusher: CommitLogFlusher
        self._committer: CommitLogCommitter
        self._queue_flusher: QueueFlusher
        self._services: list[ServiceThread] = []
        self._topics: dict[str, _Topic] = {}
        self._recent: deque[DispatchRequest] = deque()
        self._at_once = not (config.sync_flush or config.transient_store_pool_enable)
        self.dispatched_offset = 0  # everything before it has its queue entry and its keys
        self._max_record = min(
            config.max_message_size + MAX_RECORD_OVERHEAD, config.mapped_file_size_commit_log - END_FILE_MIN_BLANK
        )
        self._crc_room = PROPERTY_CRC_LENGTH if config.enabled_append_prop_crc else 0
        self.refusal: str | None = "the store is not started"  # why no message is taken now
        self.recovery: RecoveryReport | None = None

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
            self.commit_log.files.load()
            self.queues.load()
            self.checkpoint = StoreCheckpoint(self.disk, f"{self.root}/checkpoint")
            dropped = self.index.load(last_exit_ok, self.checkpoint.index_msg_timestamp)
            self.recovery = recover(self, last_exit_ok)
            self.recovery.dropped_index_files = dropped
            self.recovery.log(log)
        except BaseException:
            self._release()
            raise
        self.dispatched_offset = self.commit_log.max_offset
        files, config, clock = self.commit_log.files, self.config, self.clock
        self.flusher = CommitLogFlusher(
            files, config, clock, self.checkpoint, self._post, self.reput, self._flush_failed
        )
        self._committer = CommitLogCommitter(files, config, clock, self._post, self.reput)
        self._queue_flusher = QueueFlusher(self.queues, self.index, config, clock, self.checkpoint, self._post)
        return self.recovery

    @property
    def _abort_path(self) -> str:
        return f"{self.root}/abort"

    def start(self, *, threads: bool = True) -> None:
        """Take messages. Without threads the caller runs the services itself, as a simulator does."""
        self.disk.write(self._abort_path, str(os.getpid()).encode())
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
        self._services = [
            flush,
            ServiceThread("kourou-flush-queues", self._queue_flusher.run_once, config.flush_interval_consume_queue),
            ServiceThread("kourou-clean", self.retention.run_once, config.clean_resource_interval),
            ServiceThread("kourou-stats", self.stats.sample, SAMPLE_INTERVAL_MS),
        ]
        if config.sync_flush:
            self._services.append(ServiceThread("kourou-flush-watch", self.flusher.expire, _EXPIRE_INTERVAL_MS))
        if config.transient_store_pool_enable:
            commit = ServiceThread("kourou-commit", self._committer.run_once, config.commit_interval_commit_log)
            self._services.append(commit)
        for service in self._services:
            service.start()

    def shutdown(self) -> None:
        """Flush everything, write the checkpoint, and leave no abort file if all went well."""
        if self._lock is None:
            return
        healthy = self.refusal is None or self.config.broker_role is BrokerRole.SLAVE
        self.refusal = "the store is shutting down"
        for service in self._services:
            service.stop()
        self._services.clear()
        try:
            self.flusher.flush()
            self._inbox.drain()
            self.reput()
            self.index.write_pending()
            for file in self.index.files:
                file.flush()
                if file.full:
                    self.checkpoint.index_msg_timestamp = file.end_timestamp
            self._queue_flusher.flush_all()
            self._allocator.shutdown()
            if healthy and not self.flusher.failed and self.dispatched_offset >= self.commit_log.max_offset:
                self.disk.remove(self._abort_path)
            else:
                log.warning("the store was not healthy: the abort file stays, the next start recovers")
        finally:
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
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _make_file(self, path: str) -> MappedFile:
        file = MappedFile(self.disk, path, self.config.mapped_file_size_commit_log, buffer_home=self._pool)
        if self.config.warm_maped_file_enable:
            file.ensure(file.size)
            file.mapping.warm(lock=True)
        return file

    def _flush_failed(self, reason: str) -> None:
        self.refusal = f"the disk failed: {reason}"

    def poll(self) -> None:
        """Without an event loop: take what the workers have to say. Every other call does it too."""
        if self._inbox:
            self._inbox.drain()

    # Put

    def put_message(self, message: InnerMessage) -> PutMessageResult:
        """Append one message. Hot: some six microseconds with its queue entry and its keys."""
        if self._inbox:
            self._inbox.drain()
        if self.refusal is not None:
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        topic_name = message.topic
        topic = self._topics.get(topic_name) or self._topic(topic_name)
        queue_id = message.queue_id
        queue = self.queues.get_or_create(topic_name, queue_id)
        properties = message.properties
        sys_flag = message.sys_flag
        special = (
            sys_flag & sysflag.INNER_BATCH
            or names.INNER_NUM in properties
            or queue.__class__ is BatchConsumeQueue
            or names.INNER_MULTI_DISPATCH in properties
        )
        if special:
            refused = self._prepare_special(message, queue)
            if refused is not None:
                return refused
        body = message.body
        raw = message.properties_raw.encode()
        if self._crc_room:
            raw = self._with_crc_room(message)
        body_length = len(body)
        size = HEADER_SIZES[sys_flag >> 4 & 3] + body_length + topic.overhead + len(raw)
        if body_length > self.config.max_message_size or size > self._max_record:
            return self._refuse(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"body of {body_length} bytes (record of {size}) does not fit"
                f" maxMessageSize={self.config.max_message_size}",
            )
        if len(raw) > MAX_PROPERTIES:
            return self._refuse(
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, f"properties of {len(raw)} bytes, {MAX_PROPERTIES} allowed"
            )
        visible = not sys_flag & sysflag.TRANSACTION_PREPARED  # 4 prepared, 12 rollback: neither is
        queue_offset = queue.next_offset if visible else 0
        timestamp = self.clock.now_ms()
        try:
            queue.ensure_writable()
            offset = self.commit_log.append(
                size, topic.magic, crc32(body) & 0x7FFFFFFF, queue_id, message.flag, queue_offset, sys_flag,
                message.born_timestamp, message.born_host, timestamp, message.store_host, message.reconsume_times,
                message.prepared_transaction_offset, body, topic.encoded, raw,
            )  # fmt: skip
        except (OSError, KourouError) as error:
            return self._refuse_after(error)
        tags = properties.get(names.TAGS)
        code = tags_code(tags)
        if topic_name == SCHEDULE_TOPIC:
            code = self._deliver_time(properties, timestamp, code)
        count = 1
        if self._at_once and not special and queue.ext is None:
            self.dispatched_offset = offset + size
            checkpoint = self.checkpoint
            if visible:
                queue.next_offset = queue_offset + 1
                queue.put(offset, size, code, queue_offset)  # type: ignore[union-attr]  # special otherwise
                checkpoint.dispatched_msg_timestamp = timestamp
                checkpoint.dispatched_physical_offset = offset
            if self.config.message_index_enable and sys_flag & sysflag.TRANSACTION_MASK != sysflag.TRANSACTION_ROLLBACK:
                self.index.add(
                    topic_name, properties.get(names.UNIQ_KEY), properties.get(names.KEYS), tags, offset, timestamp
                )
            if visible and self.on_arrive is not None:
                self.on_arrive(topic_name, queue_id, queue_offset + 1, code, timestamp, properties)
        else:
            request = DispatchRequest(
                topic_name, queue_id, offset, size, code, timestamp, queue_offset, sys_flag, properties
            )
            count = max(request.batch_count, 1) if special else 1
            if visible:
                queue.next_offset = queue_offset + count
                if special:
                    self._advance_lmq(properties)
            self._dispatch_or_keep(request)
        topic.puts.count += count
        topic.puts.size_bytes += size
        if self._at_once:
            self.stats.put_distribution[0] += 1
        return PutMessageResult(PUT_OK, offset, size, queue_offset, timestamp, count)

    def put_messages(self, batch: InnerMessage) -> PutMessageResult:
        """Append the messages of a batch body, one record each, one behind the other in one file."""
        if self._inbox:
            self._inbox.drain()
        if self.refusal is not None:
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        illegal = PutMessageStatus.MESSAGE_ILLEGAL
        sys_flag = batch.sys_flag
        if sys_flag & sysflag.TRANSACTION_MASK:
            return self._refuse(illegal, "a batch cannot be part of a transaction")
        if int(batch.properties.get(names.DELAY_TIME_LEVEL, "0")) > 0:
            return self._refuse(illegal, "a batch cannot be delayed")
        if len(batch.body) > self.config.max_message_size:
            return self._refuse(
                illegal, f"body of {len(batch.body)} bytes is larger than maxMessageSize={self.config.max_message_size}"
            )
        topic_name, queue_id = batch.topic, batch.queue_id
        topic = self._topics.get(topic_name) or self._topic(topic_name)
        queue = self.queues.get_or_create(topic_name, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            return self._refuse(illegal, f"{topic_name} is a BatchCQ topic: it takes inner batches only")
        header = HEADER_SIZES[sys_flag >> 4 & 3] + topic.overhead
        parts: list[tuple[int, int, memoryview, bytes]] = []  # size, flag, body, properties
        try:
            for flag, body, raw_view in iter_batch(batch.body):
                raw = bytes(raw_view)
                if self._crc_room:
                    raw += bytes(self._crc_room) if raw.endswith(b"\x02") else b"\x02" + bytes(self._crc_room)
                if len(raw) > MAX_PROPERTIES:
                    return self._refuse(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, f"properties of {len(raw)} bytes")
                parts.append((header + len(body) + len(raw), flag, body, raw))
        except CorruptRecordError as error:
            return self._refuse(illegal, str(error))
        total = sum(part[0] for part in parts)
        if not parts or total > self.commit_log.file_size - END_FILE_MIN_BLANK:
            return self._refuse(illegal, "the batch is empty" if not parts else "the batch does not fit a log file")
        timestamp = self.clock.now_ms()
        first = queue_offset = queue.next_offset
        offsets: list[int] = []
        try:
            queue.ensure_writable()
            self.commit_log.room_for(total)
            for size, flag, body, raw in parts:
                offsets.append(
                    self.commit_log.append(
                        size, topic.magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, sys_flag,
                        batch.born_timestamp, batch.born_host, timestamp, batch.store_host, batch.reconsume_times,
                        0, body, topic.encoded, raw,
                    )
                )  # fmt: skip
                queue_offset += 1
        except (OSError, KourouError) as error:
            return self._refuse_after(error)
        queue.next_offset = queue_offset
        self._dispatch_batch(topic_name, queue, first, timestamp, sys_flag, parts, offsets)
        topic.puts.count += len(parts)
        topic.puts.size_bytes += total
        if self._at_once:
            self.stats.put_distribution[0] += 1
        return PutMessageResult(PUT_OK, offsets[0], total, first, timestamp, len(parts), "", offsets)

    def _dispatch_batch(
        self,
        topic: str,
        queue: AnyQueue,
        queue_offset: int,
        timestamp: int,
        sys_flag: int,
        parts: list[tuple[int, int, memoryview, bytes]],
        offsets: list[int],
    ) -> None:
        for (size, _, _, raw), offset in zip(parts, offsets, strict=True):
            properties = decode_properties(str(raw, "utf-8", "replace"))
            code = tags_code(properties.get(names.TAGS))
            self._dispatch_or_keep(
                DispatchRequest(
                    topic, queue.queue_id, offset, size, code, timestamp, queue_offset, sys_flag, properties
                )
            )
            queue_offset += 1

    def when_stored(self, result: PutMessageResult, message: InnerMessage, callback: PutCallback) -> None:
        """Call back when the sender may be told: at once, or with SYNC_FLUSH when the disk has it."""
        if result.status is not PUT_OK or not self.config.sync_flush or not message.wait_store_msg_ok:
            callback(result.status)
            return

        def answered(status: PutMessageStatus) -> None:
            self.stats.record_put_time(self.clock.now_ms() - result.store_timestamp)
            result.status = status
            callback(status)

        self.flusher.wait_for(result.physical_offset + result.wrote_bytes, answered)

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

    def _topic(self, name: str) -> _Topic:
        topic = self._topics[name] = _Topic(name, self.stats.topic(name))
        return topic

    def _with_crc_room(self, message: InnerMessage) -> bytes:
        if names.CRC32 in message.properties:
            message.properties.pop(names.CRC32)
            message.properties_raw = names.encode_properties(message.properties)
        raw = message.properties_raw.encode()
        if raw and not raw.endswith(b"\x02"):
            raw += b"\x02"
        return raw + bytes(self._crc_room)

    def _prepare_special(self, message: InnerMessage, queue: AnyQueue) -> PutMessageResult | None:
        """Inner batches and light queues: their offsets are properties of the record."""
        inner = message.sys_flag & sysflag.INNER_BATCH
        if inner and not isinstance(queue, BatchConsumeQueue):
            return self._refuse(
                PutMessageStatus.MESSAGE_ILLEGAL, "an inner batch needs a topic with queue.type=BatchCQ"
            )
        if names.INNER_NUM in message.properties and not inner:
            return self._refuse(PutMessageStatus.MESSAGE_ILLEGAL, f"{names.INNER_NUM} is for inner batches only")
        if inner:
            message.set_property(names.INNER_BASE, str(queue.next_offset))
            if names.INNER_NUM not in message.properties:
                message.set_property(names.INNER_NUM, "1")
        if names.INNER_MULTI_DISPATCH in message.properties and self.config.enable_lmq:
            light = message.properties[names.INNER_MULTI_DISPATCH].split(LMQ_SEPARATOR)
            new = sum(is_lmq(name) and self.queues.get(name, 0) is None for name in light)
            if new and self.queues.lmq_count + new > self.config.max_lmq_consume_queue_num:
                return self._refuse(
                    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                    f"more than maxLmqConsumeQueueNum={self.config.max_lmq_consume_queue_num} light queues",
                )
            offsets = [str(self.queues.get_or_create(name, 0).next_offset) if is_lmq(name) else "" for name in light]
            message.set_property(names.INNER_MULTI_QUEUE_OFFSET, LMQ_SEPARATOR.join(offsets))
        return None

    def _advance_lmq(self, properties: dict[str, str]) -> None:
        if self.config.enable_lmq:
            for name in properties.get(names.INNER_MULTI_DISPATCH, "").split(LMQ_SEPARATOR):
                if is_lmq(name):
                    self.queues.get_or_create(name, 0).next_offset += 1

    def _deliver_time(self, properties: dict[str, str], timestamp: int, code: int) -> int:
        level = properties.get(names.DELAY_TIME_LEVEL, "")
        if not level.isdecimal() or int(level) == 0:
            return code
        return timestamp + self.delay_levels[min(int(level), len(self.delay_levels)) - 1]

    def _refuse(self, status: PutMessageStatus, reason: str) -> PutMessageResult:
        self.stats.put_failed += 1
        return PutMessageResult(status, reason=reason)

    def _refuse_after(self, error: Exception) -> PutMessageResult:
        log.error("message not stored: %s", error)
        if isinstance(error, DiskFullError):
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, str(error))
        return self._refuse(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, str(error))

    # Dispatch

    def _dispatch_or_keep(self, request: DispatchRequest) -> None:
        if self._at_once:
            self._dispatch(request)
            self.dispatched_offset = request.physical_offset + request.size
            return
        if len(self._recent) >= MAX_RECENT_REQUESTS:
            self._recent.clear()
        self._recent.append(request)

    def _dispatch(self, request: DispatchRequest) -> None:
        if request.in_queue:
            self.queues.dispatch(request)
            self.checkpoint.dispatched_msg_timestamp = request.store_timestamp
            self.checkpoint.dispatched_physical_offset = request.physical_offset
        if request.in_index and self.config.message_index_enable:
            properties = request.properties
            self.index.add(
                request.topic, properties.get(names.UNIQ_KEY), properties.get(names.KEYS),
                properties.get(names.TAGS), request.physical_offset, request.store_timestamp,
            )  # fmt: skip
        if self.on_arrive is not None and request.in_queue:
            self.on_arrive(
                request.topic, request.queue_id, request.queue_offset + request.batch_count, request.tags_code,
                request.store_timestamp, request.properties,
            )  # fmt: skip

    @property
    def confirm_offset(self) -> int:
        """Records before it may be seen: those on disk with SYNC_FLUSH, else those in the files."""
        if self.config.sync_flush and not self.config.read_un_committed:
            return self.commit_log.files.flushed_where
        return self.commit_log.max_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """How far queues and index are behind the log."""
        return self.confirm_offset - self.dispatched_offset

    def reput(self) -> None:
        """Give every confirmed record its queue entry and its keys: those kept, or read from the log."""
        confirmed = self.confirm_offset
        if self.dispatched_offset < self.commit_log.min_offset:
            log.warning("records before %d expired undispatched", self.commit_log.min_offset)
            self.dispatched_offset = self.commit_log.min_offset
        recent = self._recent
        while self.dispatched_offset < confirmed:
            at = self.dispatched_offset
            while recent and recent[0].physical_offset < at:
                recent.popleft()
            if recent and recent[0].physical_offset == at:
                if at + recent[0].size > confirmed:
                    return
                request = recent.popleft()
            else:
                file = self.commit_log.files.find(at)
                if file is None:
                    return
                found = check_record(
                    file.view, at - file.base, file.read_position, check_crc=False, delay_levels=self.delay_levels
                )
                if not isinstance(found, DispatchRequest):
                    if not found.blank and file.size - (at - file.base) > 8:
                        log.error("no record to dispatch at %d: %s", at, found.reason)
                        return
                    self.dispatched_offset = self.commit_log.roll_next_file(at)
                    continue
                request = found
                if at + request.size > confirmed:
                    return
            self._dispatch(request)
            self.dispatched_offset = at + request.size

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
        if self._inbox:
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
        self, topic: str, key: str, limit: int = 32, begin: int = 0, end: int = 1 << 62, index_type: str | None = None
    ) -> QueryMessageResult:
        """Messages by key (or tag, with index_type T) stored within two times."""
        return reads.query_message(self, topic, key, limit, begin, end, index_type)

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
        return -1 if entry is None else self.commit_log.pickup_store_timestamp(entry.physical_offset, entry.size)

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

    def delete_topics(self, topics: set[str]) -> int:
        """Remove the queues of topics; their records go with the log. How many had queues."""
        removed = [topic for topic in topics if self.queues.delete_topic(topic)]
        for topic in removed:
            self._topics.pop(topic, None)
            self.stats.topics.pop(topic, None)
        return len(removed)

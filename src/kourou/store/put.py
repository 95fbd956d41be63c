"""Put: how a message gets into the log (CommitLog.asyncPutMessage, MessageExtEncoder).

InnerMessage is a message with what the broker knows of it; MessagePutter checks it, gives it its queue
offset and appends its record, and where records may be seen at once its queue entry and its keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kourou.clock import Clock
from kourou.errors import BadMessageError, CorruptRecordError, DiskFullError, KourouError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.batch import iter_batch
from kourou.message.checksum import crc32
from kourou.message.codec import (
    HEADER_SIZES,
    HEADERS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_LENGTH,
    encode_into,
    property_crc,
    topic_field,
)
from kourou.message.properties import decode_properties, encode_properties, tags_code
from kourou.store.batch_consume_queue import BatchConsumeQueue
from kourou.store.commit_log import END_FILE_MIN_BLANK, MAX_PROPERTIES, MAX_RECORD_OVERHEAD, CommitLog
from kourou.store.config import MessageStoreConfig
from kourou.store.consume_queue import ConsumeQueue
from kourou.store.disk import physical_memory_bytes
from kourou.store.dispatch import SCHEDULE_TOPIC, Dispatcher, DispatchRequest
from kourou.store.index_file import IndexService, key_prefixes
from kourou.store.queue_store import (
    DELETION_TOPIC,
    LMQ_SEPARATOR,
    AnyQueue,
    ConsumeQueueStore,
    allows_lmq,
    is_lmq,
)
from kourou.store.service import Inbox
from kourou.store.stats import StoreStats, TopicPuts
from kourou.store.status import PutMessageResult, PutMessageStatus

log = logging.getLogger(__name__)

PUT_OK = PutMessageStatus.PUT_OK
MAX_TOPIC_BYTES = 0x7FFF
# Linux stops a writer when dirty pages take 20 % of the memory (vm.dirty_ratio), and the one thread that owns
# the store with it. Before that, senders are told to wait.
MAX_UNFLUSHED_SHARE = 0.15
_BUSY = "the disk is behind: too much is not flushed yet"
_TOO_FEW = "fewer replicas than minInSyncReplicas are in sync"

_MAX_INNER = 0x7FFF  # messages of an inner batch: its queue entry has two bytes for them

LOCAL_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"  # 127.0.0.1:0


class InnerMessage:
    """What `MessageStore.put_message` takes. Hot: a plain class with slots.

    Properties are given as the string of the request, or as a mapping; the other is made when asked
    for. Hosts are packed (message.host). For `put_messages`, `body` is a batch body.
    """

    __slots__ = (
        "_properties",
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_transaction_offset",
        "properties_raw",
        "queue_id",
        "reconsume_times",
        "store_host",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: str | Mapping[str, str] = "",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = LOCAL_HOST,
        store_host: bytes = LOCAL_HOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        if isinstance(properties, str):
            self.properties_raw = properties
            self._properties: dict[str, str] | None = None
        else:
            self.properties_raw = encode_properties(properties)
            self._properties = decode_properties(self.properties_raw)
        self.flag = flag
        # The address families are facts of the bytes, whatever the sender's flag says.
        if len(born_host) == 20:
            sys_flag |= sysflag.BORN_HOST_V6
        elif sys_flag & sysflag.BORN_HOST_V6:
            sys_flag &= ~sysflag.BORN_HOST_V6
        if len(store_host) == 20:
            sys_flag |= sysflag.STORE_HOST_V6
        elif sys_flag & sysflag.STORE_HOST_V6:
            sys_flag &= ~sysflag.STORE_HOST_V6
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset

    @classmethod
    def of_request(
        cls,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties_raw: str,
        properties: dict[str, str],
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
    ) -> InnerMessage:
        """A first send of a plain message, both forms of whose properties are there. Hot: no keywords."""
        message = cls.__new__(cls)
        message.topic = topic
        message.queue_id = queue_id
        message.body = body
        message.properties_raw = properties_raw
        message._properties = properties
        message.flag = 0
        if len(born_host) == 20:
            sys_flag |= sysflag.BORN_HOST_V6
        if len(store_host) == 20:
            sys_flag |= sysflag.STORE_HOST_V6
        message.sys_flag = sys_flag
        message.born_timestamp = born_timestamp
        message.born_host = born_host
        message.store_host = store_host
        message.reconsume_times = 0
        message.prepared_transaction_offset = 0
        return message

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_raw)
        return self._properties

    def set_property(self, name: str, value: str) -> None:
        """Set a property, in both forms."""
        properties = self.properties
        if name in properties:
            properties[name] = value
            self.properties_raw = encode_properties(properties)
        else:
            properties[name] = value
            raw = self.properties_raw
            separator = "" if not raw or raw.endswith(names.PROPERTY_SEPARATOR) else names.PROPERTY_SEPARATOR
            self.properties_raw = f"{raw}{separator}{name}\x01{value}\x02"

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the sender waits for disk and slaves where the broker is set so."""
        return self.properties.get(names.WAIT_STORE_MSG_OK, "true").lower() == "true"


# Size of the record, flag, body, property string, properties
_BatchMessage = tuple[int, int, memoryview, bytes, dict[str, str]]


class TopicForm:
    """What a put needs of its topic, looked up once."""

    __slots__ = ("field", "is_deletion", "key_prefixes", "magic", "overhead", "puts")

    def __init__(self, name: str, puts: TopicPuts) -> None:
        encoded = name.encode()
        if len(encoded) > MAX_TOPIC_BYTES:
            raise BadMessageError(f"topic of {len(encoded)} bytes, {MAX_TOPIC_BYTES} allowed")
        self.magic = MAGIC_V2 if len(encoded) > 127 else MAGIC_V1
        self.field = topic_field(encoded, self.magic)
        self.overhead = len(self.field) + 2
        self.key_prefixes = key_prefixes(name)
        self.puts = puts
        self.is_deletion = name == DELETION_TOPIC


class MessagePutter:
    """Appends messages. One thread calls it."""

    def __init__(
        self,
        config: MessageStoreConfig,
        clock: Clock,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService,
        dispatcher: Dispatcher,
        stats: StoreStats,
        inbox: Inbox,
    ) -> None:
        self.config = config
        self.clock = clock
        self.commit_log = commit_log
        self.queues = queues
        self.index = index
        self.dispatcher = dispatcher
        self.stats = stats
        self.inbox = inbox
        self.topics: dict[str, TopicForm] = {}
        self._files = commit_log.files
        self.max_unflushed = int(physical_memory_bytes() * MAX_UNFLUSHED_SHARE)
        self._at_once = dispatcher.at_once
        self._indexing = config.message_index_enable
        self._max_record = min(
            config.max_message_size + MAX_RECORD_OVERHEAD,
            config.mapped_file_size_commit_log - END_FILE_MIN_BLANK,
        )
        self._crc_room = PROPERTY_CRC_LENGTH if config.enabled_append_prop_crc else 0
        self._lmq = config.enable_lmq
        self.refusal: str | None = "the store is not started"  # why no message is taken now
        # Whether too few replicas are there; None where that does not matter
        self.lacks_replicas: Callable[[], bool] | None = None

    def put_message(self, message: InnerMessage) -> PutMessageResult:
        """Append one message. Hot: some six microseconds with its queue entry and its keys."""
        if self.inbox.calls:
            self.inbox.drain()
        if self.refusal is not None:
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        if self.lacks_replicas is not None and message.wait_store_msg_ok and self.lacks_replicas():
            return self._refuse(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, _TOO_FEW)
        topic_name = message.topic
        queue_id = message.queue_id
        try:
            topic = self.topics[topic_name]
            queue = self.queues.table[topic_name][queue_id]
        except KeyError:
            try:
                topic, queue = self._first_use(topic_name, queue_id)
            except BadMessageError as unusable:
                return self._refuse(PutMessageStatus.MESSAGE_ILLEGAL, str(unusable))
        properties = message.properties
        sys_flag = message.sys_flag
        # Inner batches and light queues are told by flag or by the names INNER_NUM, INNER_MULTI_DISPATCH.
        special = (
            queue.__class__ is not ConsumeQueue
            or "INNER_" in message.properties_raw
            or queue.ext is not None
            or topic.is_deletion
        )
        if special or sys_flag & sysflag.INNER_BATCH:
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
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties of {len(raw)} bytes, {MAX_PROPERTIES} allowed",
            )
        visible = not sys_flag & sysflag.TRANSACTION_PREPARED  # 4 prepared, 12 rollback: neither is
        queue_offset = queue.next_offset if visible else 0
        timestamp = self.clock.now_ms()
        try:
            file = self.commit_log.room_for(size)
        except (OSError, KourouError) as error:
            return self._refuse_after(error)
        at = file.wrote
        offset = file.base + at
        if offset - self._files.flushed_where > self.max_unflushed:
            return self._refuse(PutMessageStatus.OS_PAGE_CACHE_BUSY, _BUSY)
        encode_into(
            file.write_view, at, size, topic.magic, crc32(body) & 0x7FFFFFFF, queue_id, message.flag,
            queue_offset, offset, sys_flag, message.born_timestamp, message.born_host, timestamp,
            message.store_host, message.reconsume_times, message.prepared_transaction_offset, body,
            topic.field, raw,
        )  # fmt: skip
        if self._crc_room:
            self._write_crc(file.write_view[at : at + size])
        tags = properties.get(names.TAGS)
        code = tags_code(tags)
        if topic_name == SCHEDULE_TOPIC:
            try:
                code = self._deliver_time(properties, timestamp, code)
            except ValueError:
                self.commit_log.take_back(file, at, size)
                return self._refuse(
                    PutMessageStatus.MESSAGE_ILLEGAL, f"{names.DELAY_TIME_LEVEL} is no number"
                )
        file.wrote = at + size
        file.store_timestamp = timestamp
        count = 1
        if special or not self._at_once:
            request = DispatchRequest(
                topic_name, queue_id, offset, size, code, timestamp, queue_offset, sys_flag, properties
            )
            count = max(request.batch_count, 1)
            failure = self.dispatcher.appended(request)
            if failure is not None:
                self.commit_log.take_back(file, at, size)
                return self._refuse_after(failure)
            if visible:
                queue.next_offset = queue_offset + count
                self._advance_lmq(topic_name, properties)
        else:
            if visible:
                try:
                    queue.put(offset, size, code, queue_offset)  # type: ignore[union-attr]  # special otherwise
                except (OSError, KourouError) as error:
                    self.commit_log.take_back(file, at, size)
                    return self._refuse_after(error)
                queue.next_offset = queue_offset + 1
                checkpoint = self.dispatcher.checkpoint
                checkpoint.dispatched_msg_timestamp = timestamp
                checkpoint.dispatched_physical_offset = offset
            self.dispatcher.dispatched_offset = offset + size
            if self._indexing and sys_flag & sysflag.TRANSACTION_MASK != sysflag.TRANSACTION_ROLLBACK:
                self.index.add(
                    topic.key_prefixes, properties.get(names.UNIQ_KEY), properties.get(names.KEYS), tags,
                    offset, timestamp,
                )  # fmt: skip
            if visible and self.dispatcher.on_arrive is not None:
                self.dispatcher.on_arrive(topic_name, queue_id, queue_offset + 1, code, timestamp, properties)
        topic.puts.count += count
        topic.puts.size_bytes += size
        if self._at_once:
            self.stats.put_distribution[0] += 1
        return PutMessageResult(PUT_OK, offset, size, queue_offset, timestamp, count)

    def put_messages(self, batch: InnerMessage) -> PutMessageResult:
        """Append the messages of a batch body, one record each, one behind the other in one file."""
        if self.inbox.calls:
            self.inbox.drain()
        if self.refusal is not None:
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        if self.lacks_replicas is not None and batch.wait_store_msg_ok and self.lacks_replicas():
            return self._refuse(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, _TOO_FEW)
        illegal = PutMessageStatus.MESSAGE_ILLEGAL
        sys_flag = batch.sys_flag
        if sys_flag & sysflag.TRANSACTION_MASK:
            return self._refuse(illegal, "a batch cannot be part of a transaction")
        if batch.properties.get(names.DELAY_TIME_LEVEL, "0") != "0":
            return self._refuse(illegal, "a batch cannot be delayed")
        if len(batch.body) > self.config.max_message_size:
            return self._refuse(
                illegal,
                f"body of {len(batch.body)} bytes does not fit maxMessageSize={self.config.max_message_size}",
            )
        topic_name, queue_id = batch.topic, batch.queue_id
        try:
            topic, queue = self._first_use(topic_name, queue_id)
        except BadMessageError as unusable:
            return self._refuse(illegal, str(unusable))
        if isinstance(queue, BatchConsumeQueue):
            return self._refuse(illegal, f"{topic_name} is a BatchCQ topic: it takes inner batches only")
        kind = sys_flag >> 4 & 3
        overhead = HEADER_SIZES[kind] + topic.overhead
        messages: list[_BatchMessage] = []
        try:
            for flag, body, raw_view in iter_batch(batch.body):
                raw = bytes(raw_view)
                properties = decode_properties(str(raw, "utf-8", "replace"))
                if names.INNER_NUM in properties:
                    return self._refuse(illegal, f"{names.INNER_NUM} is for inner batches only")
                if names.INNER_MULTI_QUEUE_OFFSET in properties:  # the store gives it, to single messages
                    return self._refuse(illegal, "a message of a batch goes to no light queue")
                if self._crc_room:
                    raw += b"\x02" if raw and not raw.endswith(b"\x02") else b""
                    raw += bytes(self._crc_room)
                if len(raw) > MAX_PROPERTIES:
                    return self._refuse(
                        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, f"properties of {len(raw)} bytes"
                    )
                messages.append((overhead + len(body) + len(raw), flag, body, raw, properties))
        except CorruptRecordError as error:
            return self._refuse(illegal, str(error))
        total = sum([message[0] for message in messages])
        if not messages or total > self.commit_log.file_size - END_FILE_MIN_BLANK:
            return self._refuse(
                illegal, "the batch is empty" if not messages else "the batch does not fit a log file"
            )
        timestamp = self.clock.now_ms()
        first = queue_offset = queue.next_offset
        try:
            file = self.commit_log.room_for(total)
        except (OSError, KourouError) as error:
            return self._refuse_after(error)
        start = file.wrote
        offset = file.base + start
        if offset - self._files.flushed_where > self.max_unflushed:
            return self._refuse(PutMessageStatus.OS_PAGE_CACHE_BUSY, _BUSY)
        # The records are put together aside and copied at once: half the time of writing them one by one.
        pack, born_timestamp, born_host = HEADERS[kind].pack, batch.born_timestamp, batch.born_host
        store_host, reconsume_times, magic = batch.store_host, batch.reconsume_times, topic.magic
        topic_bytes, offsets, codes = topic.field, [], []
        pieces: list[bytes | memoryview] = []
        for size, flag, body, raw, properties in messages:
            head = pack(
                size, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset, sys_flag,
                born_timestamp, born_host, timestamp, store_host, reconsume_times, 0, len(body),
            )  # fmt: skip
            pieces += head, body, topic_bytes, len(raw).to_bytes(2, "big"), raw
            codes.append(tags_code(properties.get(names.TAGS)))
            offsets.append(offset)
            offset += size
            queue_offset += 1
        view = file.write_view
        view[start : start + total] = b"".join(pieces)
        if self._crc_room:
            for at, message in zip(offsets, messages):
                self._write_crc(view[at - file.base : at - file.base + message[0]])
        file.wrote = start + total
        file.store_timestamp = timestamp
        failure = self._dispatch_batch(batch, messages, offsets, codes, first, timestamp)
        if failure is not None:
            self.commit_log.take_back(file, start, total)
            return self._refuse_after(failure)
        queue.next_offset = queue_offset
        topic.puts.count += len(messages)
        topic.puts.size_bytes += total
        if self._at_once:
            self.stats.put_distribution[0] += 1
        return PutMessageResult(PUT_OK, offsets[0], total, first, timestamp, len(messages), "", offsets)

    def _dispatch_batch(
        self,
        batch: InnerMessage,
        messages: list[_BatchMessage],
        offsets: list[int],
        codes: list[int],
        first: int,
        timestamp: int,
    ) -> Exception | None:
        """Give the records of a batch their queue entries and keys; why none of them could have any."""
        dispatcher = self.dispatcher
        for number, (offset, message, code) in enumerate(zip(offsets, messages, codes)):
            request = DispatchRequest(
                batch.topic, batch.queue_id, offset, message[0], code, timestamp, first + number,
                batch.sys_flag, message[4],
            )  # fmt: skip
            failure = dispatcher.appended(request)
            if failure is not None and number == 0:
                return failure
            if failure is not None:
                # Its first messages are in their queue: the rest gets there by `reput`, when it can.
                dispatcher.fail(failure)
                break
        return None

    def _first_use(self, topic_name: str, queue_id: int) -> tuple[TopicForm, AnyQueue]:
        queue = self.queues.get_or_create(topic_name, queue_id)
        topic = self.topics.get(topic_name)
        if topic is None:
            topic = self.topics[topic_name] = TopicForm(topic_name, self.stats.topic(topic_name))
        return topic, queue

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        self.topics.pop(topic, None)
        self.stats.forget(topic)

    def _with_crc_room(self, message: InnerMessage) -> bytes:
        if names.CRC32 in message.properties:
            message.properties.pop(names.CRC32)
            message.properties_raw = encode_properties(message.properties)
        raw = message.properties_raw.encode()
        if raw and not raw.endswith(b"\x02"):
            raw += b"\x02"
        return raw + bytes(self._crc_room)

    def _write_crc(self, record: memoryview) -> None:
        record[-PROPERTY_CRC_LENGTH:] = property_crc(record[:-PROPERTY_CRC_LENGTH])

    def _prepare_special(self, message: InnerMessage, queue: AnyQueue) -> PutMessageResult | None:
        """Inner batches and light queues: their offsets are properties of the record."""
        inner = message.sys_flag & sysflag.INNER_BATCH
        if inner and not isinstance(queue, BatchConsumeQueue):
            return self._refuse(
                PutMessageStatus.MESSAGE_ILLEGAL, "an inner batch needs a topic with queue.type=BatchCQ"
            )
        if names.INNER_NUM in message.properties and not inner:
            return self._refuse(
                PutMessageStatus.MESSAGE_ILLEGAL, f"{names.INNER_NUM} is for inner batches only"
            )
        if inner:
            message.set_property(names.INNER_BASE, str(queue.next_offset))
            if names.INNER_NUM not in message.properties:
                message.set_property(names.INNER_NUM, "1")
            number = message.properties[names.INNER_NUM]
            if not (number.isdecimal() and len(number) <= 5 and 1 <= int(number) <= _MAX_INNER):
                return self._refuse(
                    PutMessageStatus.MESSAGE_ILLEGAL,
                    f"{names.INNER_NUM}={number[:20]}: it takes 1 to {_MAX_INNER}",
                )
        if names.INNER_MULTI_DISPATCH in message.properties and self._gives_lmq(message.topic):
            light = message.properties[names.INNER_MULTI_DISPATCH].split(LMQ_SEPARATOR)
            new = sum(is_lmq(name) and self.queues.get(name, 0) is None for name in light)
            if new and self.queues.lmq_count + new > self.config.max_lmq_consume_queue_num:
                return self._refuse(
                    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                    f"more than maxLmqConsumeQueueNum={self.config.max_lmq_consume_queue_num} light queues",
                )
            try:
                offsets = [
                    str(self.queues.get_or_create(name, 0).next_offset) if is_lmq(name) else ""
                    for name in light
                ]
            except BadMessageError as unusable:
                return self._refuse(PutMessageStatus.MESSAGE_ILLEGAL, str(unusable))
            message.set_property(names.INNER_MULTI_QUEUE_OFFSET, LMQ_SEPARATOR.join(offsets))
        return None

    def _gives_lmq(self, topic: str) -> bool:
        return self._lmq and allows_lmq(topic)

    def _advance_lmq(self, topic: str, properties: dict[str, str]) -> None:
        if self._gives_lmq(topic):
            for name in set(properties.get(names.INNER_MULTI_DISPATCH, "").split(LMQ_SEPARATOR)):
                if is_lmq(name):
                    self.queues.get_or_create(name, 0).next_offset += 1

    def _deliver_time(self, properties: dict[str, str], timestamp: int, code: int) -> int:
        """As `check_record` reads it from the log: a level that is no number would end the log there."""
        text = properties.get(names.DELAY_TIME_LEVEL, "0")
        if not text.isdecimal():
            raise ValueError(text)
        level = int(text)
        if level == 0:
            return code
        delays = self.dispatcher.delay_levels
        return timestamp + delays[min(level, len(delays)) - 1]

    def _refuse(self, status: PutMessageStatus, reason: str) -> PutMessageResult:
        self.stats.put_failed += 1
        return PutMessageResult(status, reason=reason)

    def _refuse_after(self, error: Exception) -> PutMessageResult:
        log.error("message not stored: %s", error)
        if isinstance(error, DiskFullError):
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, str(error))
        return self._refuse(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, str(error))

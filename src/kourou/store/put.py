"""Put: how a message gets into the log (CommitLog.asyncPutMessage, MessageExtEncoder).

InnerMessage is a message with what the broker knows of it; MessagePutter checks it, gives it its queue
offset and appends its record, and where records may be seen at once its queue entry and its keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from kourou.clock import Clock
from kourou.errors import BadMessageError, CorruptRecordError, DiskFullError, KourouError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.batch import iter_batch
from kourou.message.batch_records import TooLongError, add_keys, encode_records
from kourou.message.checksum import crc32
from kourou.message.codec import (
    HEADER_SIZES,
    HEADERS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_LENGTH,
    property_crc,
    topic_field,
)
from kourou.message.properties import decode_properties, encode_properties, tags_code
from kourou.message.topics import DELETION_TOPIC, SCHEDULE_TOPIC
from kourou.store.config import MessageStoreConfig
from kourou.store.dispatch import DispatchBlock, Dispatcher, DispatchRequest
from kourou.store.index.index_file import IndexService, key_prefixes
from kourou.store.log.commit_log import END_FILE_MIN_BLANK, MAX_PROPERTIES, MAX_RECORD_OVERHEAD, CommitLog
from kourou.store.log.disk import physical_memory_bytes
from kourou.store.queue.batch_consume_queue import BatchConsumeQueue
from kourou.store.queue.consume_queue import ConsumeQueue
from kourou.store.queue.queue_store import LMQ_SEPARATOR, AnyQueue, ConsumeQueueStore, allows_lmq, is_lmq
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

# A message with one of these goes to light queues too, or is a batch.
_INNER = frozenset(
    (names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET)
)
_PREPARED, _INNER_BATCH = sysflag.TRANSACTION_PREPARED, sysflag.INNER_BATCH
_MAX_INNER = 0x7FFF  # messages of an inner batch: its queue entry has two bytes for them

LOCAL_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"  # 127.0.0.1:0


class InnerMessage(Struct, eq=False, gc=False):
    """What `MessageStore.put_message` takes. Hot: one is made for each message.

    Whoever changes `properties` sets `properties_raw`, the same as a string, to None: it is made from them
    when the record is. Hosts are packed (message.host), and the system flag says of which family they are
    (`with_host_flags`). For `put_messages`, `body` is a batch body.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties_raw: str | None
    properties: dict[str, str]
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = LOCAL_HOST
    store_host: bytes = LOCAL_HOST
    flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def of(
        cls,
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
    ) -> InnerMessage:
        """A message with the properties of a string or of a mapping."""
        raw = properties if isinstance(properties, str) else encode_properties(properties)
        return cls(
            topic, queue_id, body, raw, decode_properties(raw),
            with_host_flags(sys_flag, born_host, store_host), born_timestamp, born_host, store_host, flag,
            reconsume_times, prepared_transaction_offset,
        )  # fmt: skip

    def set_property(self, name: str, value: str) -> None:
        """Set a property."""
        self.properties[name] = value
        self.properties_raw = None

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the sender waits for disk and slaves where the broker is set so."""
        return self.properties.get(names.WAIT_STORE_MSG_OK, "true").lower() == "true"


def with_host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """A system flag that says of which families these addresses are, whatever a sender's flag said."""
    sys_flag &= ~(sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6)
    if len(born_host) == 20:
        sys_flag |= sysflag.BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= sysflag.STORE_HOST_V6
    return sys_flag


# A message that waited in the log: where it goes, the fields before its body, its body and its properties
WaitingMessage = tuple[str, int, tuple[Any, ...], memoryview, str]
_Encoded = tuple[DispatchBlock, list[bytes | memoryview]]


class TopicForm:
    """What a put needs of its topic, looked up once."""

    __slots__ = ("field", "is_schedule", "is_special", "key_prefixes", "magic", "overhead", "puts")

    def __init__(self, name: str, puts: TopicPuts, *, is_batch: bool) -> None:
        encoded = name.encode()
        if len(encoded) > MAX_TOPIC_BYTES:
            raise BadMessageError(f"topic of {len(encoded)} bytes, {MAX_TOPIC_BYTES} allowed")
        self.magic = MAGIC_V2 if len(encoded) > 127 else MAGIC_V1
        self.field = topic_field(encoded, self.magic)
        self.overhead = len(self.field) + 2
        self.key_prefixes = key_prefixes(name)
        self.puts = puts
        self.is_schedule = name == SCHEDULE_TOPIC
        self.is_special = is_batch or name == DELETION_TOPIC


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
        self._appended = dispatcher.dispatch if self._at_once else dispatcher.keep
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
        """Append one message. Hot: some five microseconds with its queue entry and its keys."""
        if self.inbox.calls:
            self.inbox.drain()
        if self.refusal is not None or self.lacks_replicas is not None:
            refused = self._refusal_of(message)
            if refused is not None:
                return refused
        topic_name, queue_id, sys_flag = message.topic, message.queue_id, message.sys_flag
        try:
            topic = self.topics[topic_name]
            queue = self.queues.table[topic_name][queue_id]
        except KeyError:
            try:
                topic, queue = self._first_use(topic_name, queue_id)
            except BadMessageError as unusable:
                return self._refuse(PutMessageStatus.MESSAGE_ILLEGAL, str(unusable))
        properties, text = message.properties, message.properties_raw
        is_special = topic.is_special or not _INNER.isdisjoint(properties) or bool(sys_flag & _INNER_BATCH)
        if is_special:
            refused = self._prepare_special(message, queue)
            if refused is not None:
                return refused
            text = message.properties_raw
        if text is None:
            text = encode_properties(properties)
        raw = self._with_crc_room(text) if self._crc_room else text.encode()
        body = message.body
        body_length, raw_length, kind = len(body), len(raw), sys_flag >> 4 & 3
        header_size = HEADER_SIZES[kind]
        size = header_size + body_length + topic.overhead + raw_length
        if body_length > self.config.max_message_size or size > self._max_record:
            return self._refuse(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"body of {body_length} bytes (record of {size}) does not fit"
                f" maxMessageSize={self.config.max_message_size}",
            )
        if raw_length > MAX_PROPERTIES:
            return self._refuse(
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties of {raw_length} bytes, {MAX_PROPERTIES} allowed",
            )
        visible = not sys_flag & _PREPARED  # 4 prepared, 12 rollback: neither is
        queue_offset = queue.next_offset if visible else 0
        timestamp = self.clock.now_ms()
        try:
            file = self.commit_log.room_for(size)
        except (OSError, KourouError) as error:
            return self._refuse_after(error)
        at = file.wrote
        offset, body_at = file.base + at, at + header_size
        if offset - self._files.flushed_where > self.max_unflushed:
            return self._refuse(PutMessageStatus.OS_PAGE_CACHE_BUSY, _BUSY)
        tags = properties.get(names.TAGS)
        code = tags_code(tags) if tags else 0
        if topic.is_schedule:
            try:
                code = self._deliver_time(properties, timestamp, code)
            except ValueError:
                return self._refuse(
                    PutMessageStatus.MESSAGE_ILLEGAL, f"{names.DELAY_TIME_LEVEL} is no number"
                )
        view = file.write_view
        HEADERS[kind].pack_into(
            view, at, size, topic.magic, crc32(body) & 0x7FFFFFFF, queue_id, message.flag, queue_offset,
            offset, sys_flag, message.born_timestamp, message.born_host, timestamp, message.store_host,
            message.reconsume_times, message.prepared_transaction_offset, body_length,
        )  # fmt: skip
        body_end = body_at + body_length
        view[body_at:body_end] = body
        view[body_end : at + size] = topic.field + raw_length.to_bytes(2, "big") + raw
        if self._crc_room:
            self._write_crc(view[at : at + size])
        file.wrote = at + size
        file.store_timestamp = timestamp
        request = DispatchRequest(
            topic_name,
            queue_id,
            offset,
            size,
            code,
            timestamp,
            queue_offset,
            sys_flag,
            properties,
            is_special,
        )
        if is_special:
            request.read_batch()
        try:
            self._appended(request)
        except (OSError, KourouError) as failure:
            self.commit_log.take_back(file, at, size)
            return self._refuse_after(failure)
        count = request.batch_count
        if visible:
            queue.next_offset = queue_offset + count
            if is_special:
                self._advance_lmq(topic_name, properties)
        puts = topic.puts
        puts.count += count
        puts.size_bytes += size
        if self._at_once:
            self.stats.put_distribution[0] += 1
        return PutMessageResult(PUT_OK, offset, size, queue_offset, timestamp, count)

    def put_messages(self, batch: InnerMessage) -> PutMessageResult:
        """Append the messages of a batch body, one record each, one behind the other in one file. Hot."""
        if self.inbox.calls:
            self.inbox.drain()
        refused = self._refusal_of(batch)
        if refused is not None:
            return refused
        illegal = PutMessageStatus.MESSAGE_ILLEGAL
        if batch.sys_flag & sysflag.TRANSACTION_MASK:
            return self._refuse(illegal, "a batch cannot be part of a transaction")
        if batch.properties.get(names.DELAY_TIME_LEVEL, "0") != "0":
            return self._refuse(illegal, "a batch cannot be delayed")
        if len(batch.body) > self.config.max_message_size:
            return self._refuse(
                illegal,
                f"body of {len(batch.body)} bytes does not fit maxMessageSize={self.config.max_message_size}",
            )
        try:
            topic, queue = self._first_use(batch.topic, batch.queue_id)
            if isinstance(queue, BatchConsumeQueue):
                raise BadMessageError(f"{batch.topic} is a BatchCQ topic: it takes inner batches only")
            return self._append_blocks(lambda offset: [self._encode_batch(batch, topic, queue, offset)])
        except TooLongError as error:
            return self._refuse(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, str(error))
        except (BadMessageError, CorruptRecordError) as error:
            return self._refuse(illegal, str(error))

    def put_waiting(self, messages: Sequence[WaitingMessage]) -> PutMessageResult:
        """Append messages that waited in the log for their time, for all of their queues together: all of
        them or none. Their order is kept in each queue. Hot when many are due."""
        if self.inbox.calls:
            self.inbox.drain()
        if self.refusal is not None:
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        by_queue: dict[tuple[str, int], list[WaitingMessage]] = {}
        for message in messages:
            by_queue.setdefault((message[0], message[1]), []).append(message)
        places = [(self._first_use(*place), found) for place, found in by_queue.items()]

        def encode(offset: int) -> list[_Encoded]:
            blocks = []
            for (topic, queue), found in places:
                assert isinstance(queue, ConsumeQueue)  # the others take single messages alone
                block, pieces = self._encode_waiting(found, topic, queue, offset)
                blocks.append((block, pieces))
                offset += block.size
            return blocks

        try:
            return self._append_blocks(encode)
        except BadMessageError as error:
            return self._refuse(PutMessageStatus.MESSAGE_ILLEGAL, str(error))

    def takes_waiting(self, topic: str, queue_id: int) -> bool:
        """Whether `put_waiting` takes messages of a queue. BadMessageError where nothing does."""
        form, queue = self._first_use(topic, queue_id)
        return not form.is_special and not form.is_schedule and isinstance(queue, ConsumeQueue)

    def _append_blocks(self, encode: Callable[[int], list[_Encoded]]) -> PutMessageResult:
        """Append the records of some queues, block by block, in one file. `encode` makes them for the place
        that it is given."""
        begin = self._files.max_wrote
        blocks = encode(begin)
        size = sum(block.size for block, _ in blocks)
        if size > self.commit_log.file_size - END_FILE_MIN_BLANK:
            raise BadMessageError("the batch does not fit a log file")
        try:
            file = self.commit_log.room_for(size)
        except (OSError, KourouError) as error:
            return self._refuse_after(error)
        start, base = file.wrote, file.base
        if base + start != begin:  # it begins a new file: each record says where it lies
            blocks = encode(base + start)
        if base + start - self._files.flushed_where > self.max_unflushed:
            return self._refuse(PutMessageStatus.OS_PAGE_CACHE_BUSY, _BUSY)
        # The records are put together aside and copied at once: half the time of writing them one by one.
        view, end = file.write_view, start + size
        view[start:end] = b"".join(chain.from_iterable(pieces for _, pieces in blocks))
        if self._crc_room:
            for block, _ in blocks:
                for offset, record_size in zip(block.offsets, block.sizes):
                    self._write_crc(view[offset - base : offset - base + record_size])
        file.wrote = end
        first = blocks[0][0]
        file.store_timestamp = first.store_timestamp
        failure = self.dispatcher.appended_blocks([block for block, _ in blocks])
        if failure is not None:
            self.commit_log.take_back(file, start, size)
            return self._refuse_after(failure)
        total = 0
        for block, _ in blocks:
            count = len(block.offsets)
            self.queues.table[block.topic][block.queue_id].next_offset = block.queue_offset + count
            puts = self.topics[block.topic].puts
            puts.count += count
            puts.size_bytes += block.size
            total += count
        if self._at_once:
            self.stats.put_distribution[0] += 1
        return PutMessageResult(
            PUT_OK, first.offsets[0], size, first.queue_offset, first.store_timestamp, total, "",
            first.offsets,
        )  # fmt: skip

    def _encode_waiting(
        self, messages: list[WaitingMessage], topic: TopicForm, queue: ConsumeQueue, offset: int
    ) -> _Encoded:
        """The records of messages that waited, for one queue."""
        topic_name, queue_id = messages[0][:2]
        magic, field, overhead = topic.magic, topic.field, topic.overhead
        timestamp, queue_offset = self.clock.now_ms(), queue.next_offset
        block = DispatchBlock(topic_name, queue_id, offset, timestamp, queue_offset)
        offsets, sizes, codes = block.offsets, block.sizes, block.codes
        pieces: list[bytes | memoryview] = []
        with_properties = queue.ext is not None
        for _, _, header, body, text in messages:
            (
                _, _, crc, _, flag, _, _, sys_flag, born_timestamp, born_host, _, store_host, reconsume_times,
                _, body_length,
            ) = header  # fmt: skip
            raw = self._with_crc_room(text) if self._crc_room else text.encode()
            kind = sys_flag >> 4 & 3
            size = HEADER_SIZES[kind] + overhead + body_length + len(raw)
            codes.append(add_keys(block.keys, topic.key_prefixes, text, offset, timestamp))
            head = HEADERS[kind].pack(
                size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp, born_host,
                timestamp, store_host, reconsume_times, 0, body_length,
            )  # fmt: skip
            pieces += head, body, field, len(raw).to_bytes(2, "big"), raw
            if with_properties:
                block.properties.append(decode_properties(text))
            offsets.append(offset)
            sizes.append(size)
            offset += size
            queue_offset += 1
        block.size = offset - block.physical_offset
        return block, pieces

    def _encode_batch(
        self, batch: InnerMessage, topic: TopicForm, queue: ConsumeQueue, offset: int
    ) -> _Encoded:
        """The records of a batch that begins at a place of the log, and what is to be dispatched of them."""
        timestamp, queue_offset = self.clock.now_ms(), queue.next_offset
        header = HEADERS[batch.sys_flag >> 4 & 3].pack(
            0, topic.magic, 0, batch.queue_id, 0, 0, 0, batch.sys_flag, batch.born_timestamp, batch.born_host,
            timestamp, batch.store_host, batch.reconsume_times, 0, 0,
        )  # fmt: skip
        body = memoryview(batch.body)
        block = DispatchBlock(batch.topic, batch.queue_id, offset, timestamp, queue_offset)
        encoded, block.offsets, block.sizes, block.codes, block.keys = encode_records(
            body, header, topic.field, self._crc_room, offset, queue_offset, timestamp, topic.key_prefixes
        )
        if not encoded:
            raise BadMessageError("the batch is empty")
        block.size = len(encoded)
        if queue.ext is not None:
            block.properties = [
                decode_properties(str(raw, "utf-8", "replace")) for _, _, raw in iter_batch(body)
            ]
        return block, [encoded]

    def _refusal_of(self, message: InnerMessage) -> PutMessageResult | None:
        """Why a message is not taken now; None if it is."""
        if self.refusal is not None:
            return self._refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        if self.lacks_replicas is not None and message.wait_store_msg_ok and self.lacks_replicas():
            return self._refuse(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, _TOO_FEW)
        return None

    def _first_use(self, topic_name: str, queue_id: int) -> tuple[TopicForm, AnyQueue]:
        queue = self.queues.get_or_create(topic_name, queue_id)
        topic = self.topics.get(topic_name)
        if topic is None:
            topic = self.topics[topic_name] = TopicForm(
                topic_name, self.stats.topic(topic_name), is_batch=isinstance(queue, BatchConsumeQueue)
            )
        return topic, queue

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        self.topics.pop(topic, None)
        self.stats.forget(topic)

    def _with_crc_room(self, text: str) -> bytes:
        """The property string, and behind it room for a CRC in place of one that it may have."""
        if names.CRC32 in text:
            properties = decode_properties(text)
            properties.pop(names.CRC32, None)
            text = encode_properties(properties)
        raw = text.encode()
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
            light = message.properties[names.INNER_MULTI_DISPATCH]
            if not self.queues.knows_light_queues(light):
                refused = self._refusal_of_light_queues(light)
                if refused is not None:
                    return refused
            offsets = [
                "" if queue is None else str(queue.next_offset) for queue in self.queues.light_queues(light)
            ]
            message.set_property(names.INNER_MULTI_QUEUE_OFFSET, LMQ_SEPARATOR.join(offsets))
        return None

    def _refusal_of_light_queues(self, text: str) -> PutMessageResult | None:
        """Why a message cannot go to the light queues that it names; None if it can."""
        light = {name for name in text.split(LMQ_SEPARATOR) if is_lmq(name)}
        new = sum(self.queues.get(name, 0) is None for name in light)
        most = self.config.max_lmq_consume_queue_num
        if new and self.queues.lmq_count + new > most:
            return self._refuse(
                PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                f"more than maxLmqConsumeQueueNum={most} light queues",
            )
        try:
            for name in light:
                self.queues.get_or_create(name, 0)
        except BadMessageError as unusable:
            return self._refuse(PutMessageStatus.MESSAGE_ILLEGAL, str(unusable))
        return None

    def _gives_lmq(self, topic: str) -> bool:
        return self._lmq and allows_lmq(topic)

    def _advance_lmq(self, topic: str, properties: dict[str, str]) -> None:
        if names.INNER_MULTI_DISPATCH in properties and self._gives_lmq(topic):
            for queue in set(self.queues.light_queues(properties[names.INNER_MULTI_DISPATCH])):
                if queue is not None:
                    queue.next_offset += 1

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

"""What a pull brings: a batch of records, and each of them as a message when it is asked for.

A batch keeps the bytes as they came. Who wants Arrow columns or bodies alone never pays for an object of each
message; who goes through its messages has them decoded in one pass.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, overload

from kourou.client.namespace import unwrap
from kourou.client.validators import check_delay_level
from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.codec import StoredMessage, decode
from kourou.message.compression import MAX_MESSAGE_BYTES, CompressionType, compress, decompress
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol.handles import normal_topic

if TYPE_CHECKING:
    from kourou.remoting.protocol.subscription import SubscriptionData

log = logging.getLogger(__name__)

_NO_QUEUE = MessageQueue("", "", 0)
_SIZE = struct.Struct(">i")
# The largest inflated body that is kept, and how much is kept of all bodies of one pull. Any other body is
# inflated each time it is asked for: it can be read whatever came with it, and takes no memory meanwhile.
MAX_KEPT_BYTES = MAX_MESSAGE_BYTES
MAX_INFLATED_BYTES = 16 * MAX_MESSAGE_BYTES
_UNWRAP = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
_COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK
_TO_OPEN = sysflag.COMPRESSED | sysflag.INNER_BATCH


class ReconsumeLater(Exception):
    """Raised by a handler to have its messages again, after a delay of this level (0: growing with each time;
    -1: not at all, they go to the dead-letter topic)."""

    def __init__(self, delay_level: int = 0) -> None:
        check_delay_level(delay_level, least=-1)
        super().__init__(f"to be consumed again, with delay level {delay_level}")
        self.delay_level = delay_level


@dataclass(slots=True)
class ReceivedMessage(StoredMessage):
    """A message from a broker: the body is as it was sent, and `topic` is where it was sent to.

    `queue` is where it was read: for one that comes again, a queue of the group's retry topic.

    One that was popped has a `receipt_handle`, by which it is acknowledged, and `pop_time_ms`, when it was
    popped by the clock of its broker.

    A body that cannot be read is as it is stored, and `body_error` says why: it does not decompress, inflates
    to more than 256 MiB, or should be a batch and is none. Such a message does not stop its queue.
    """

    queue: MessageQueue = _NO_QUEUE
    body_error: str | None = None
    receipt_handle: str | None = None
    pop_time_ms: int = 0

    def open_body(self) -> None:
        """Read the body as it was sent, or say why that cannot be."""
        try:
            self.body = self.decompressed_body
        except CorruptRecordError as error:
            self.fail(error)
        else:
            self.sys_flag &= ~_COMPRESSION

    def fail(self, error: CorruptRecordError) -> None:
        """The body cannot be read."""
        self.body_error = str(error)  # not the error, which holds what was inflated
        log.error("the body of %s cannot be read: %s", self.message_id, self.body_error)

    def packed(self) -> ReceivedMessage:
        """The message with its body as it is kept; the system flag tells how that is compressed."""
        return self

    @property
    def tags(self) -> str | None:
        """The tag that it was sent with."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys that it was sent with."""
        return self.properties.get(names.KEYS, "").split()

    @property
    def broker_name(self) -> str:
        """The broker that it was read from."""
        return self.queue.broker_name

    @property
    def delivery_attempt(self) -> int:
        """How often it was given out, with this time."""
        return self.reconsume_times + 1

    @property
    def first_pop_time_ms(self) -> int:
        """When it was popped for the first time; 0 if it was not."""
        return int(self.properties.get(names.FIRST_POP_TIME, self.pop_time_ms))

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction that sent it."""
        is_of_transaction = self.properties.get(names.TRANSACTION_PREPARED) == "true"
        return self.properties.get(names.UNIQ_KEY) if is_of_transaction else None


_body_slot: Any = StoredMessage.__dict__["body"]
_kept_body = _body_slot.__get__


def held_bytes(messages: Iterable[ReceivedMessage]) -> int:
    """The memory that the bodies of messages take. Hot."""
    return sum(map(len, map(_kept_body, messages)))


class _Packed(ReceivedMessage):
    """A message whose body is kept compressed, and inflated each time it is asked for."""

    __slots__ = ("_kind",)
    _kind: CompressionType | None  # of the body that is kept; None if it was set by the application

    @classmethod
    def of(cls, message: ReceivedMessage, body: bytes | memoryview, kind: CompressionType) -> _Packed:
        """A message that was read, with its body compressed."""
        packed = cls(**_fields(message, body=body))
        packed._kind = kind
        return packed

    @property
    def body(self) -> bytes | memoryview:
        """The body as it was sent."""
        body: bytes | memoryview = _kept_body(self)
        return body if self._kind is None else decompress(body, self._kind)

    @body.setter
    def body(self, body: bytes | memoryview) -> None:
        _body_slot.__set__(self, body)
        self._kind = None

    def packed(self) -> ReceivedMessage:
        """The message with its body as it is kept; the system flag tells how that is compressed."""
        flag = self.sys_flag | (0 if self._kind is None else self._kind.sys_flag)
        return ReceivedMessage(**_fields(self, body=_kept_body(self), sys_flag=flag))


def _fields(message: ReceivedMessage, **others: Any) -> dict[str, Any]:
    return {
        field.name: others[field.name] if field.name in others else getattr(message, field.name)
        for field in fields(ReceivedMessage)
    }


class MessageBatch(Sequence[ReceivedMessage]):
    """The messages of one pull of one queue."""

    __slots__ = (
        "_group", "_messages", "_namespace", "_size", "_wanted", "body", "next_offset", "queue",
        "start_offset",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        body: bytes,
        start_offset: int,
        next_offset: int,
        wanted: SubscriptionData | None = None,
        *,
        group: str = "",
        namespace: str | None = None,
    ) -> None:
        self.queue = queue
        self.body = body  # the records, one after the other
        self.start_offset = start_offset  # that was asked for
        self.next_offset = next_offset  # after the batch
        # Brokers filter tags by their hashes: which of them are really wanted is seen here.
        self._wanted = wanted.tags if wanted is not None and wanted.tags else None
        self._group = group
        self._namespace = namespace
        self._messages: list[ReceivedMessage] | None = None
        self._size: int | None = None

    @classmethod
    def of(cls, queue: MessageQueue, messages: list[ReceivedMessage], start: int, end: int) -> MessageBatch:
        """A batch of messages that are decoded already."""
        batch = cls(queue, b"", start, end)
        batch._messages = messages
        batch._size = len(messages)
        return batch

    def __repr__(self) -> str:
        return f"<MessageBatch of {self.queue}, {self.start_offset} to {self.next_offset}>"

    @property
    def messages(self) -> list[ReceivedMessage]:
        """All messages, decoded when first asked for."""
        if self._messages is None:
            self._messages = list(self._decode())
        return self._messages

    @property
    def is_filtered(self) -> bool:
        """Whether there may be records that are not wanted."""
        return self._wanted is not None

    @property
    def is_opened(self) -> bool:
        """Whether its messages are decoded."""
        return self._messages is not None

    @property
    def size(self) -> int:
        """How many messages there are, about: without looking at them, where all are wanted."""
        if self._size is None:
            if self._wanted is None:
                self._size = self.next_offset - self.start_offset
            else:
                self._size = sum(1 for _ in self._starts())
        return self._size

    def _starts(self) -> Iterator[int]:
        body, at, end = self.body, 0, len(self.body)
        unpack = _SIZE.unpack_from
        while at < end:
            size = unpack(body, at)[0] if at + _SIZE.size <= end else 0
            if size <= 0:
                raise CorruptRecordError(f"a record of {size} bytes in what {self.queue} gave")
            yield at
            at += size

    def _decode(self) -> Iterator[ReceivedMessage]:
        view = memoryview(self.body)
        wanted = self._wanted
        retried = self.queue.topic.startswith(RETRY_PREFIX)
        left_bytes = MAX_INFLATED_BYTES
        for number, at in enumerate(self._starts()):
            message = decode(view, at, into=ReceivedMessage)
            self._place(message, number)
            parts = [message]
            if message.sys_flag & _TO_OPEN:
                parts, left_bytes = _open(message, left_bytes)
            for part in parts:
                if wanted is not None and part.tags not in wanted:
                    continue
                if retried:
                    topic = part.properties.get(names.RETRY_TOPIC, part.topic)
                    part.topic = normal_topic(topic, self._group) or topic
                if self._namespace is not None:
                    part.topic = unwrap(self._namespace, part.topic)
                yield part

    def _place(self, message: ReceivedMessage, number: int) -> None:
        """Say of a record, the so-and-so-many-th, where it lies."""
        message.queue = self.queue

    def bodies(self) -> list[bytes | memoryview]:
        """The bodies alone."""
        return [message.body for message in self.messages]

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """The messages as a RecordBatch (extra `arrow`)."""
        from kourou.client.consume.arrow import to_arrow

        return to_arrow([self], columns)

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[ReceivedMessage]: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage | list[ReceivedMessage]:
        return self.messages[index]

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)


def _open(message: ReceivedMessage, left_bytes: int) -> tuple[list[ReceivedMessage], int]:
    """A message with its body as it was sent, or those of an inner batch; and how much may still be kept."""
    stored, sys_flag = message.body, message.sys_flag
    message.open_body()
    parts = [message]
    if message.body_error is None and sys_flag & _UNWRAP == _UNWRAP:
        try:
            parts = _unwrap(message)
        except CorruptRecordError as error:
            message.body, message.sys_flag = stored, sys_flag
            message.fail(error)
    if message.body_error is not None or not sys_flag & sysflag.COMPRESSED:
        return parts, left_bytes
    for number, part in enumerate(parts):
        if len(part.body) <= min(left_bytes, MAX_KEPT_BYTES):
            left_bytes -= len(part.body)
        elif part is message:
            parts[number] = _Packed.of(part, stored, CompressionType.of_sys_flag(sys_flag))
        else:
            kind = CompressionType.ZSTD
            parts[number] = _Packed.of(part, compress(part.body, kind, level=1), kind)
    return parts, left_bytes


def _unwrap(outer: ReceivedMessage) -> list[ReceivedMessage]:
    """The messages of an inner batch, each with its own place in the queue."""
    found = []
    for number, inner in enumerate(outer.inner_messages()):
        message = replace(
            outer,
            queue_offset=outer.queue_offset + number,
            body=bytes(inner.body),
            properties_raw=names.encode_properties(inner.properties),
            flag=inner.flag,
            sys_flag=outer.sys_flag & ~_UNWRAP,
            _properties=None,
        )
        found.append(message)
    return found

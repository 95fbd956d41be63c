"""Batches: messages that go to the broker in one request (MessageBatch), in parts that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kourou.client.core import ClientError
from kourou.client.validators import check_not_delayed
from kourou.message import Message, properties
from kourou.message.properties import encode_properties
from kourou.message.topics import RETRY_PREFIX

# Of each message of a batch beside its body and properties: lengths and flags, and the properties it is given
OVERHEAD_BYTES = 22 + 128


def split_batch(messages: Sequence[Message], max_bytes: int) -> Iterator[list[Message]]:
    """Messages in parts of at most so many bytes, in their order. Raises ClientError if they are no batch."""
    for message in messages:
        _check(messages[0], message)
    part: list[Message] = []
    size = 0
    for message in messages:
        own = OVERHEAD_BYTES + len(message.body) + len(encode_properties(message.properties).encode())
        if own > max_bytes:
            raise ClientError(
                f"a message of {own} bytes for topic {message.topic}: max_message_bytes is {max_bytes}"
            )
        if part and size + own > max_bytes:
            yield part
            part, size = [], 0
        part.append(message)
        size += own
    if part:
        yield part


def frame_of(first: Message, body: bytes, unique_id: str) -> Message:
    """The message that carries a batch: its body is that of all."""
    frame = Message(first.topic, body, {properties.UNIQ_KEY: unique_id})
    frame.wait_store_msg_ok = first.wait_store_msg_ok
    return frame


def batch_ids(messages: Sequence[Message]) -> str:
    """The id of a batch: those of all its messages."""
    return ",".join(message.properties[properties.UNIQ_KEY] for message in messages)


def _check(first: Message, message: Message) -> None:
    if not isinstance(message, Message):
        raise ClientError(f"a batch is of Messages, not {message!r}")
    if message.topic != first.topic:
        raise ClientError(f"a batch has one topic: {first.topic}, {message.topic}")
    if message.topic.startswith(RETRY_PREFIX):
        raise ClientError(f"topic {message.topic} takes no batches: it is a retry topic")
    if message.wait_store_msg_ok != first.wait_store_msg_ok:
        raise ClientError("the messages of a batch all wait for the disk, or none: wait_store_msg_ok")
    check_not_delayed(message, "a message of a batch")

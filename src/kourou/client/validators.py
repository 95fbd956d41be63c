"""Validators: what names, subscriptions and messages must be, before anything is sent (Validators)."""

from __future__ import annotations

import re
from typing import Any

from kourou.client.core import ClientError
from kourou.message import Message, properties
from kourou.message.topics import BROKER_TOPICS

MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 120  # so that a retry topic made of it is not too long
DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"

_find_illegal = re.compile(r"[^%|a-zA-Z0-9_-]").search

DELAYS = (
    properties.DELAY_TIME_LEVEL, properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS,
    properties.TIMER_DELIVER_MS,
)  # fmt: skip


def is_whole(value: Any) -> bool:
    """Whether this is an int. A bool is one in Python, and a mistake in every place where numbers are."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_delay_level(level: int, least: int) -> None:
    """Raises ClientError if this cannot be a delay level. How many there are, only the broker knows."""
    if not is_whole(level) or level < least:
        raise ClientError(f"delay_level is a whole number from {least} on, not {level!r}")


def check_topic(topic: str) -> None:
    """Raises ClientError if this cannot be the name of a topic."""
    _check_name("topic", topic, MAX_TOPIC_LENGTH)


def check_group(group: str) -> None:
    """Raises ClientError if this cannot be the name of a group."""
    _check_name("group", group, MAX_GROUP_LENGTH)
    if group in (DEFAULT_PRODUCER_GROUP, DEFAULT_CONSUMER_GROUP):
        raise ClientError(f"group {group} is not for use: give it a name of its own")


def check_send_topic(topic: str) -> None:
    """Raises ClientError if this cannot be the topic of a message."""
    check_topic(topic)
    if topic in BROKER_TOPICS:
        raise ClientError(f"topic {topic} belongs to the brokers: messages cannot be sent to it")


def check_body(message: Message, max_bytes: int) -> bytes | memoryview:
    """The body of a message as bytes; raises ClientError if it is not one, empty or too large. Hot."""
    body = message.body
    if body.__class__ is not bytes:
        try:
            body = memoryview(body).cast("B")  # so that its length is one of bytes
        except TypeError as error:
            raise ClientError(f"the body of a message for topic {message.topic} is bytes: {error}") from error
    if not body:
        raise ClientError(
            f"a message for topic {message.topic} needs a body: on the wire, an empty one is none"
        )
    if len(body) > max_bytes:
        raise ClientError(
            f"a body of {len(body)} bytes for topic {message.topic}: max_message_bytes is {max_bytes} here, "
            f"and maxMessageSize at the broker must allow it too"
        )
    if "/" in message.properties.get(properties.INNER_MULTI_DISPATCH, ""):
        raise ClientError(f"{properties.INNER_MULTI_DISPATCH} names queues, in which '/' is not allowed")
    return body


def check_not_delayed(message: Message, what: str) -> None:
    """Raises ClientError if a message has a delay, which `what` cannot."""
    for name in DELAYS:
        if message.properties.get(name, "0") != "0":
            raise ClientError(f"{what} cannot be delayed: property {name} is {message.properties[name]}")


def _check_name(kind: str, name: str, max_length: int) -> None:
    if not isinstance(name, str):
        raise ClientError(f"the name of a {kind} is a str, not {name!r}")
    if not name or name.isspace():
        raise ClientError(f"a {kind} needs a name")
    if len(name) > max_length:
        raise ClientError(f"{kind} {name[:40]}… has {len(name)} characters: {max_length} are allowed")
    illegal = _find_illegal(name)
    if illegal is not None:
        raise ClientError(
            f"{kind} {name!r} has {illegal.group()!r} in it: letters, digits and %|_- are allowed"
        )

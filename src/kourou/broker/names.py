"""Names of topics and groups: what RocketMQ reserves, and what a name may be (TopicValidator, MixAll)."""

from __future__ import annotations

import re

from kourou.message.topics import (
    BROKER_TOPICS,
    DELETION_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    TIMER_TOPIC,
)

REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"

# Topics that only the broker may put messages into
NOT_ALLOWED_SEND_TOPICS = BROKER_TOPICS | {DELETION_TOPIC}

# Groups of the broker and of tools
TOOLS_GROUP = "TOOLS_CONSUMER"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
PREDEFINED_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255  # a retry topic has the names of a group and of a topic in it
MAX_GROUP_LENGTH = 120  # so that a topic made of it is not too long

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_TEXT = "^[%|a-zA-Z0-9_-]+$"


def check_topic_name(name: str) -> str | None:
    """Why this cannot be the name of a topic, in Java's words; None if it can."""
    error = _check_characters("topic", name)
    if error is not None:
        return error
    if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(name) > MAX_RETRY_TOPIC_LENGTH:
            return (
                f"The specified topic is DLQ or Retry topic: {name}, "
                f"and it's longer than topic max length: {MAX_RETRY_TOPIC_LENGTH}"
            )
    elif len(name) > MAX_TOPIC_LENGTH:
        return f"The specified topic: {name}, is longer than topic max length: {MAX_TOPIC_LENGTH}"
    return None


def check_group_name(name: str) -> str | None:
    """Why this cannot be the name of a group, in Java's words; None if it can."""
    error = _check_characters("group", name)
    if error is None and len(name) > MAX_GROUP_LENGTH:
        error = f"The specified group: {name}, is longer than group max length: {MAX_GROUP_LENGTH}"
    return error


def _check_characters(kind: str, name: str) -> str | None:
    if not name or name.isspace():
        return f"The specified {kind} is blank."
    if not _ALLOWED.fullmatch(name):
        return f"The specified {kind}: {name}, contains illegal characters, allowing only {_ALLOWED_TEXT}"
    return None


def is_send_forbidden(topic: str) -> bool:
    """Whether clients may not send to a topic, whatever its permissions.

    Java lets them send to the timers' topic, whose messages go on to whichever topic they name, and to the
    revive topic, whose messages acknowledge those of others.
    """
    return topic in NOT_ALLOWED_SEND_TOPICS or topic == TIMER_TOPIC or topic.startswith(REVIVE_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether a group belongs to the broker."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """The topic of messages that a group sent back."""
    return RETRY_PREFIX + group

"""Names of topics and groups: what RocketMQ reserves, and what a name may be (TopicValidator, MixAll)."""

from __future__ import annotations

import re

from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.store.queue.queue_store import DELETION_TOPIC

# Topics of the broker itself
AUTO_CREATE_TOPIC = "TBW102"  # the pattern of topics that a send creates
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANS_OP_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
ROCKSDB_OFFSET_TOPIC = "CHECKPOINT_TOPIC"

SYSTEM_TOPIC_PREFIX = "rmq_sys_"
TIMER_TOPIC = SYSTEM_TOPIC_PREFIX + "wheel_timer"
REVIVE_TOPIC_PREFIX = SYSTEM_TOPIC_PREFIX + "REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX = SYSTEM_TOPIC_PREFIX + "SYNC_BROKER_MEMBER_"
REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        ROCKSDB_OFFSET_TOPIC,
    }
)

# Topics that only the broker may put messages into
NOT_ALLOWED_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        DELETION_TOPIC,
    }
)

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

    Java lets them send to the timers' topic: the messages there go on to whichever topic they name.
    """
    return topic in NOT_ALLOWED_SEND_TOPICS or topic == TIMER_TOPIC


def is_system_group(group: str) -> bool:
    """Whether a group belongs to the broker."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """The topic of messages that a group sent back."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of messages that a group gave up."""
    return DLQ_PREFIX + group

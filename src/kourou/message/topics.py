"""Names of topics: those that RocketMQ keeps for itself, and those that belong to a consumer group."""

from __future__ import annotations

RETRY_PREFIX = "%RETRY%"  # what the group could not consume, to be tried again
DLQ_PREFIX = "%DLQ%"  # what it never could

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

SYSTEM_PREFIX = "rmq_sys_"
TIMER_TOPIC = SYSTEM_PREFIX + "wheel_timer"
REVIVE_TOPIC_PREFIX = SYSTEM_PREFIX + "REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX = SYSTEM_PREFIX + "SYNC_BROKER_MEMBER_"
# Kourou's own. A message of this topic says that the topic named by its KEYS ends there in the log: recovery
# and slaves remove the topic's queues when they come to it, and records after it begin new ones.
DELETION_TOPIC = SYSTEM_PREFIX + "KOUROU_TOPIC_DELETED"

# Topics that only brokers put messages into
BROKER_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
SYSTEM_TOPICS = BROKER_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, ROCKSDB_OFFSET_TOPIC}


def is_system_topic(topic: str) -> bool:
    """Whether a topic belongs to brokers."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)

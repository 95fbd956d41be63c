"""The metrics of a broker: Java's names, units and labels (BrokerMetricsConstant, RemotingMetricsConstant,
DefaultStoreMetricsConstant, PopMetricsConstant), and a few of ours, which begin with kourou.

Each has the labels cluster, node_type and node_id, too. Those of RocksDB are not here. docs/metrics.md has a
table of all, which a test compares with this.
"""

from __future__ import annotations

from kourou.remoting.metrics import CONNECTIONS, READY, REFUSALS, RPC_LATENCY, Family

_STORAGE = ("storage_type", "storage_medium")
_IN = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_system")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")

# enableStatsMetrics
WATERMARK = Family(
    "rocketmq_processor_watermark", "gauge", "Requests that wait, by what they ask for.", ("processor",)
)
PERMISSION = Family(
    "rocketmq_broker_permission", "gauge", "What the broker allows: 4 reading, 2 writing, 6 both."
)
TOPICS = Family("rocketmq_topic_number", "gauge", "Topics.")
GROUPS = Family("rocketmq_consumer_group_number", "gauge", "Subscription groups.")

# enableRequestMetrics
MESSAGES_IN = Family("rocketmq_messages_in_total", "counter", "Messages put.", _IN)
MESSAGES_OUT = Family("rocketmq_messages_out_total", "counter", "Messages got.", _OUT)
THROUGHPUT_IN = Family("rocketmq_throughput_in_total", "counter", "Bytes of messages put.", _IN)
THROUGHPUT_OUT = Family("rocketmq_throughput_out_total", "counter", "Bytes of messages got.", _OUT)
MESSAGE_SIZE = Family("rocketmq_message_size", "histogram", "Bytes of a message put, with its header.", _IN)
TOPIC_CREATE = Family(
    "rocketmq_topic_create_execution_time_milliseconds",
    "histogram",
    "Time to make or change a topic.",
    ("invocation_status", "is_system"),
)
GROUP_CREATE = Family(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    "histogram",
    "Time to make or change a subscription group.",
    ("invocation_status",),
)

# enableConnectionMetrics
PRODUCERS = Family(
    "rocketmq_producer_connections",
    "gauge",
    "Producers that are connected.",
    ("language", "version", "protocol_type"),
)
CONSUMERS = Family(
    "rocketmq_consumer_connections",
    "gauge",
    "Consumers that are connected.",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
)

# enableLagAndDlqMetrics
LAG_MESSAGES = Family(
    "rocketmq_consumer_lag_messages", "gauge", "Messages a group has not consumed yet.", _LAG
)
LAG_LATENCY = Family(
    "rocketmq_consumer_lag_latency_milliseconds", "gauge", "Age of the first message not consumed yet.", _LAG
)
INFLIGHT = Family(
    "rocketmq_consumer_inflight_messages", "gauge", "Messages a group has got and not yet consumed.", _LAG
)
QUEUEING_LATENCY = Family(
    "rocketmq_consumer_queueing_latency_milliseconds", "gauge", "Age of the first message not got yet.", _LAG
)
READY_MESSAGES = Family(
    "rocketmq_consumer_ready_messages", "gauge", "Messages a group has not got yet.", _LAG
)
DEAD_LETTERS = Family(
    "rocketmq_send_to_dlq_messages_total",
    "counter",
    "Messages that a group gave up.",
    ("consumer_group", "topic", "is_system"),
)

# enableTransactionMetrics
COMMITS = Family("rocketmq_commit_messages_total", "counter", "Transactions committed.", ("topic",))
ROLLBACKS = Family("rocketmq_rollback_messages_total", "counter", "Transactions rolled back.", ("topic",))
FINISH_LATENCY = Family(
    "rocketmq_finish_message_latency_milliseconds",
    "histogram",
    "Time from a prepared message to its commit, in seconds: Java's name says otherwise.",
    ("topic",),
)
HALF_MESSAGES = Family(
    "rocketmq_half_messages", "gauge", "Prepared messages that nobody has ended.", ("topic",)
)

# enableMessageStoreMetrics
STORAGE_SIZE = Family("rocketmq_storage_size_bytes", "gauge", "Used bytes of the store's disk.", _STORAGE)
FLUSH_BEHIND = Family(
    "rocketmq_storage_flush_behind_bytes", "gauge", "Bytes of the log that are not on the disk.", _STORAGE
)
DISPATCH_BEHIND = Family(
    "rocketmq_storage_dispatch_behind_bytes", "gauge", "Bytes of the log that no queue knows of.", _STORAGE
)
RESERVE_TIME = Family(
    "rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest message.", _STORAGE
)
TIMER_ENQUEUE_LAG = Family(
    "rocketmq_timer_enqueue_lag", "gauge", "Timer messages that are not in the wheel yet.", _STORAGE
)
TIMER_ENQUEUE_LATENCY = Family(
    "rocketmq_timer_enqueue_latency_milliseconds", "gauge", "Age of the first of these.", _STORAGE
)
TIMER_DEQUEUE_LAG = Family(
    "rocketmq_timer_dequeue_lag", "gauge", "Timer messages that are in the wheel.", _STORAGE
)
TIMER_DEQUEUE_LATENCY = Family(
    "rocketmq_timer_dequeue_latency_milliseconds", "gauge", "How late the delivery is.", _STORAGE
)
TIMING_MESSAGES = Family(
    "rocketmq_timing_messages", "gauge", "Timer messages that wait, by topic.", (*_STORAGE, "topic")
)
TIMER_DEQUEUED = Family(
    "rocketmq_timer_dequeue_total", "counter", "Timer messages delivered.", (*_STORAGE, "topic")
)
TIMER_ENQUEUED = Family(
    "rocketmq_timer_enqueue_total", "counter", "Timer messages entered.", (*_STORAGE, "topic")
)
TIMER_SNAPSHOT = Family(
    "rocketmq_timer_message_snapshot",
    "gauge",
    "Timer messages due within so many seconds, and not within the bound before.",
    (*_STORAGE, "timer_bound_s"),
)
DELAY_LATENCY = Family(
    "rocketmq_delay_message_latency_seconds",
    "histogram",
    "How long timer messages are to wait.",
    (*_STORAGE, "topic"),
)

# POP
_REVIVE = ("consumer_group", "topic", "revive_message_type")
POP_SCAN_TIME = Family(
    "rocketmq_pop_buffer_scan_time_consume_milliseconds",
    "histogram",
    "Time to write check points that stayed too long in memory.",
)
POP_REVIVE_IN = Family(
    "rocketmq_pop_revive_in_message_total",
    "counter",
    "Check points and acknowledgements put.",
    (*_REVIVE, "put_status"),
)
POP_REVIVE_OUT = Family(
    "rocketmq_pop_revive_out_message_total",
    "counter",
    "Check points and acknowledgements that were due and read.",
    (*_REVIVE, "queue_id"),
)
POP_RETRIES = Family(
    "rocketmq_pop_revive_retry_messages_total",
    "counter",
    "Messages that were not acknowledged in time and put again.",
    ("consumer_group", "topic", "put_status"),
)
POP_OFFSETS = Family("rocketmq_pop_offset_buffer_size", "gauge", "Pops in memory, and what was passed.")
POP_CHECK_POINTS = Family("rocketmq_pop_checkpoint_buffer_size", "gauge", "Check points in memory.")
POP_LAG = Family(
    "rocketmq_pop_revive_lag_milliseconds",
    "gauge",
    "Records of a revive queue that are not read yet: Java's name says otherwise.",
    ("queue_id",),
)
POP_LATENCY = Family(
    "rocketmq_pop_revive_latency_milliseconds",
    "gauge",
    "How late what is read of a revive queue is.",
    ("queue_id",),
)

# Ours
HELD_PULLS = Family("kourou_held_pulls", "gauge", "Pulls that wait for a message.")
SLOW_REQUESTS = Family(
    "kourou_slow_requests_total", "counter", "Requests that took longer than slowRequestThresholdMs."
)
INDEX_BEHIND = Family(
    "kourou_index_behind_bytes", "gauge", "Bytes of the log whose keys the index lacks, after a crash."
)
SLAVES = Family("kourou_slaves", "gauge", "Slaves that are connected to this master.")
REGISTERED = Family("kourou_registered_name_servers", "gauge", "Name servers that know this broker.")

FAMILIES = (
    WATERMARK, PERMISSION, TOPICS, GROUPS, MESSAGES_IN, MESSAGES_OUT, THROUGHPUT_IN, THROUGHPUT_OUT,
    MESSAGE_SIZE, TOPIC_CREATE, GROUP_CREATE, PRODUCERS, CONSUMERS, LAG_MESSAGES, LAG_LATENCY, INFLIGHT,
    QUEUEING_LATENCY, READY_MESSAGES, DEAD_LETTERS, COMMITS, ROLLBACKS, FINISH_LATENCY, HALF_MESSAGES,
    RPC_LATENCY, STORAGE_SIZE, FLUSH_BEHIND, DISPATCH_BEHIND, RESERVE_TIME, TIMER_ENQUEUE_LAG,
    TIMER_ENQUEUE_LATENCY, TIMER_DEQUEUE_LAG, TIMER_DEQUEUE_LATENCY, TIMING_MESSAGES, TIMER_DEQUEUED,
    TIMER_ENQUEUED, TIMER_SNAPSHOT, DELAY_LATENCY, POP_SCAN_TIME, POP_REVIVE_IN, POP_REVIVE_OUT, POP_RETRIES,
    POP_OFFSETS, POP_CHECK_POINTS, POP_LAG, POP_LATENCY, HELD_PULLS, CONNECTIONS, SLOW_REQUESTS,
    REFUSALS, READY, SLAVES, REGISTERED, INDEX_BEHIND,
)  # fmt: skip

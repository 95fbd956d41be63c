"""The headers of requests and responses, by the names of what they ask (Java's protocol.header package).

A response header that has one number in it, an offset say, is written where it is answered.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from kourou.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kourou.remoting.header import Header, Long, header

# Messages


@header
class SendMessage(Header):
    """SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324): the long names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False


@header
class SendMessageV2(SendMessage):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): the short names."""

    _wire_names: ClassVar[str] = "abcdefghijklm"
    _is_strict: ClassVar[bool] = True


@header
class PullMessage(Header):
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361)."""

    _is_strict: ClassVar[bool] = True
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: Long
    max_msg_nums: int
    sys_flag: int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_froward_client_id: str | None = None  # the spelling is Java's


@header
class ConsumerSendMsgBack(Header):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Long
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@header
class RecallMessage(Header):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@header
class ReplyMessage(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply on its way to who asked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False


@header
class QueryMessage(Header):
    """QUERY_MESSAGE (12): by key."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: Long
    end_timestamp: Long
    index_type: str | None = None
    last_key: str | None = None


@header
class ViewMessage(Header):
    """VIEW_MESSAGE_BY_ID (33): by physical offset."""

    offset: Long
    topic: str | None = None


@header
class QueryConsumeQueue(Header):
    """QUERY_CONSUME_QUEUE (321): the entries of a queue."""

    topic: str
    queue_id: int = 0
    index: Long = 0
    count: int = 0
    consumer_group: str | None = None


# Transactions


@header
class EndTransaction(Header):
    """END_TRANSACTION (37): a producer commits, rolls back, or does not know yet."""

    _allowed: ClassVar = {"commit_or_rollback": (0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)}
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: int
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


@header
class CheckTransactionState(Header):
    """CHECK_TRANSACTION_STATE (39): asked of a producer."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


@header
class ResumeCheckHalfMessage(Header):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    topic: str | None = None
    msg_id: str | None = None


# Offsets


@header
class QueueOfTopic(Header):
    """GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int


@header
class GetMaxOffset(Header):
    """GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: int
    committed: bool = True


@header
class SearchOffset(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: int
    timestamp: Long
    boundary_type: str | None = None


@header
class QueryConsumerOffset(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@header
class UpdateConsumerOffset(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: Long


@header
class ResetOffset(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220)."""

    group: str
    topic: str
    timestamp: Long
    is_force: bool = False
    queue_id: int = -1
    offset: Long | None = None


@header
class GetConsumerStatus(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


@header
class CloneGroupOffset(Header):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@header
class QueryCorrectionOffset(Header):
    """QUERY_CORRECTION_OFFSET (308)."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


# Topics


@header
class CreateTopic(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    _allowed: ClassVar = {"topic_filter_type": ("SINGLE_TAG", "MULTI_TAG")}
    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    order: bool = False
    topic_sys_flag: int = 0
    attributes: str | None = None
    force: bool = False


@header
class TopicName(Header):
    """Requests about one topic: 202, 215, 300, 351."""

    topic: str


@header
class GetAllTopicConfig(Header):
    """GET_ALL_TOPIC_CONFIG (21): all at once, or a part from topic_seq on."""

    topic_seq: int | None = None
    max_topic_num: int | None = None
    data_version: str | None = None


# Groups and their clients


@header
class GroupName(Header):
    """Requests about one group: 343, 352."""

    group: str


@header
class ConsumerGroupName(Header):
    """Requests about one consumer group: 38, 203, and the notice 40."""

    consumer_group: str


@header
class ProducerGroupName(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@header
class DeleteSubscriptionGroup(Header):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


@header
class GetAllSubscriptionGroup(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all at once, or a part from group_seq on."""

    group_seq: int | None = None
    max_group_num: int | None = None
    data_version: str | None = None


@header
class UpdateGroupForbidden(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool | None = None


@header
class UnregisterClient(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(metadata={"wire": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


@header
class GetConsumerRunningInfo(Header):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@header
class ConsumeMessageDirectly(Header):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


@header
class QuerySubscriptionByConsumer(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


# Statistics


@header
class GetConsumeStats(Header):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@header
class GetConsumeStatsInBroker(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


@header
class QueryConsumeTimeSpan(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


@header
class ViewBrokerStatsData(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


# Brokers and their name servers


@header
class UnregisterBroker(Header):
    """UNREGISTER_BROKER (104)."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: Long


@header
class RegisterBroker(UnregisterBroker):
    """REGISTER_BROKER (103)."""

    ha_server_addr: str
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


# Brokers among themselves


@header
class ExchangeHAInfo(Header):
    """EXCHANGE_BROKER_HA_INFO (906), the question and the answer."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@header
class ResetMasterFlushOffset(Header):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Long | None = None


@header
class NotifyMinBrokerIdChange(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905)."""

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None

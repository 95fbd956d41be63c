"""The headers of requests and responses, by the names of what they ask (Java's protocol.header package).

A response header that has one number in it, an offset say, is written where it is answered.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kourou.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.header import Header, Int, Long, read_at_once

# Messages


class SendMessage(Header):
    """SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324): the long names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False


class SendMessageV2(SendMessage):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): the short names."""

    _is_strict: ClassVar[bool] = True
    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int = field(name="d")
    queue_id: Int = field(name="e")
    sys_flag: Int = field(name="f")
    born_timestamp: Long = field(name="g")
    flag: Int = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Int = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int | None = field(name="l", default=None)
    batch: bool = field(name="m", default=False)


class PullMessage(Header):
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361)."""

    _is_strict: ClassVar[bool] = True
    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    request_source: Int | None = None
    proxy_froward_client_id: str | None = None  # the spelling is Java's


class PopMessage(Header):
    """POP_MESSAGE (200050). Numbers that are of no use are 0, as in Java."""

    consumer_group: str
    topic: str
    queue_id: Int = 0
    max_msg_nums: Int = 0
    invisible_time: Long = 0
    poll_time: Long = 0
    born_time: Long = 0
    init_mode: Int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PeekMessage(Header):
    """PEEK_MESSAGE (200052). Numbers that are of no use are 0, as in Java."""

    consumer_group: str
    topic: str
    queue_id: Int = 0
    max_msg_nums: Int = 0


class AckMessage(Header):
    """ACK_MESSAGE (200051)."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    lite_topic: str | None = None


class ChangeInvisibleTime(Header):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    suspend: bool = False


class Notification(Header):
    """NOTIFICATION (200054). Numbers that are of no use are 0, as in Java."""

    consumer_group: str
    topic: str
    queue_id: Int = 0
    poll_time: Long = 0
    born_time: Long = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class PollingInfo(Header):
    """POLLING_INFO (200055). A number that is of no use is 0, as in Java."""

    consumer_group: str
    topic: str
    queue_id: Int = 0


class ConsumerSendMsgBack(Header):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


class RecallMessage(Header):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class ReplyMessage(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply on its way to who asked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False


class QueryMessage(Header):
    """QUERY_MESSAGE (12): by key."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    index_type: str | None = None
    last_key: str | None = None


class ViewMessage(Header):
    """VIEW_MESSAGE_BY_ID (33): by physical offset."""

    offset: Long
    topic: str | None = None


class QueryConsumeQueue(Header):
    """QUERY_CONSUME_QUEUE (321): the entries of a queue."""

    topic: str
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


# Transactions


class EndTransaction(Header):
    """END_TRANSACTION (37): a producer commits, rolls back, or does not know yet."""

    _allowed: ClassVar = {"commit_or_rollback": (0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)}
    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


class CheckTransactionState(Header):
    """CHECK_TRANSACTION_STATE (39): asked of a producer."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class ResumeCheckHalfMessage(Header):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    topic: str | None = None
    msg_id: str | None = None


# Offsets


class QueueOfTopic(Header):
    """GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int


class GetMaxOffset(Header):
    """GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int
    committed: bool = True


class SearchOffset(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None


class QueryConsumerOffset(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


class ResetOffset(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220)."""

    group: str
    topic: str
    timestamp: Long
    is_force: bool = False
    queue_id: Int = -1
    offset: Long | None = None


class GetConsumerStatus(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffset(Header):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffset(Header):
    """QUERY_CORRECTION_OFFSET (308)."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


# Topics


class CreateTopic(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    _allowed: ClassVar = {"topic_filter_type": ("SINGLE_TAG", "MULTI_TAG")}
    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    order: bool = False
    topic_sys_flag: Int = 0
    attributes: str | None = None
    force: bool = False


class TopicName(Header):
    """Requests about one topic: 202, 215, 300, 351."""

    topic: str


class GetAllTopicConfig(Header):
    """GET_ALL_TOPIC_CONFIG (21): all at once, or a part from topic_seq on."""

    topic_seq: Int | None = None
    max_topic_num: Int | None = None
    data_version: str | None = None


# Groups and their clients


class GroupName(Header):
    """Requests about one group: 343, 352."""

    group: str


class ConsumerGroupName(Header):
    """Requests about one consumer group: 38, 203, and the notice 40."""

    consumer_group: str


class ProducerGroupName(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class DeleteSubscriptionGroup(Header):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


class GetAllSubscriptionGroup(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all at once, or a part from group_seq on."""

    group_seq: Int | None = None
    max_group_num: Int | None = None
    data_version: str | None = None


class UpdateGroupForbidden(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool | None = None


class UnregisterClient(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerRunningInfo(Header):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectly(Header):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


class QuerySubscriptionByConsumer(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


# Statistics


class GetConsumeStats(Header):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBroker(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class QueryConsumeTimeSpan(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class ViewBrokerStatsData(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


# Brokers and their name servers


class UnregisterBroker(Header):
    """UNREGISTER_BROKER (104)."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: Long


class RegisterBroker(UnregisterBroker):
    """REGISTER_BROKER (103)."""

    ha_server_addr: str
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


# Brokers among themselves


class ExchangeHAInfo(Header):
    """EXCHANGE_BROKER_HA_INFO (906), the question and the answer."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class ResetMasterFlushOffset(Header):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Long | None = None


class NotifyMinBrokerIdChange(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905)."""

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


# What a busy broker is asked all the time
read_at_once(RequestCode.SEND_MESSAGE, SendMessage)
read_at_once(RequestCode.SEND_MESSAGE_V2, SendMessageV2)
read_at_once(RequestCode.SEND_BATCH_MESSAGE, SendMessageV2)
read_at_once(RequestCode.PULL_MESSAGE, PullMessage)
read_at_once(RequestCode.LITE_PULL_MESSAGE, PullMessage)
read_at_once(RequestCode.END_TRANSACTION, EndTransaction)

"""Pulls: records of a queue from an offset on, and the pulls that wait for them (PullMessageProcessor).

A pull that finds nothing is held until a message arrives in its queue or its time is up. Nothing polls: the
store tells of each message that arrived, the holds of its queue that want it are tried again when the turn of
the event loop that appended it ends, and one timer ends the holds whose time is up.
"""

from __future__ import annotations

import asyncio
import logging
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, TypeVar

from kourou.broker.messages.filters import AnyFilter, filter_of, wants
from kourou.broker.messages.sql92 import BadExpressionError
from kourou.remoting.connection import Answer, Connection, Pieces
from kourou.remoting.protocol.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, RESPONSE_FLAG, VERSION, RemotingCommand, frame_head
from kourou.remoting.protocol.headers import PullMessage
from kourou.remoting.protocol.subscription import BadSubscriptionError, SubscriptionData
from kourou.remoting.protocol.topic_config import PERM_READ, TopicConfig
from kourou.store.config import BrokerRole
from kourou.store.status import GetMessageResult, GetMessageStatus

if TYPE_CHECKING:
    from kourou.broker.metrics.stats import GroupStats
    from kourou.broker.server import Broker
    from kourou.broker.state.groups import SubscriptionGroupConfig

log = logging.getLogger(__name__)

_Key = TypeVar("_Key")

COMMIT_OFFSET_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG = 1, 2, 4  # of a pull's sysFlag
MAX_HOLD_MS = 600_000  # whatever a client asks for
_SWEEP_AT = 1024
MAX_ACCESSES = 100_000
# From here on, all together and each, handing over slices of the log is not dearer than copying them.
PIECES_FROM_BYTES = 64 * 1024
PIECE_BYTES = 4 * 1024
COMPENSATE_S = 60.0  # subscriptions of pulls are forgotten after ten minutes

FOUND = GetMessageStatus.FOUND
_CODES = {
    FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND_JSON = (
    b'{"code":0,"extFields":{"groupSysFlag":"%d","maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d","topicSysFlag":"%d"},"flag":1,"language":"PYTHON","opaque":%d,'
    b'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":513}'
)
assert (RESPONSE_FLAG, VERSION) == (1, 513)

# ForbiddenType: what forbids a pull
_BY_BROKER, _BY_GROUP, _BY_TOPIC, _BY_BROADCAST, _BY_SUBSCRIPTION = "1", "2", "3", "4", "5"


class _Access:
    """What the checks of a group that pulls a topic found."""

    __slots__ = ("compensate_again", "expression", "filter", "group", "stats", "topic")

    def __init__(self, topic: TopicConfig, group: SubscriptionGroupConfig, stats: GroupStats) -> None:
        self.topic = topic
        self.group = group
        self.stats = stats
        # The last subscription that came with a pull, and when it is told to the table of consumers again
        self.expression: tuple[str | None, str | None] | None = None
        self.filter: AnyFilter | None = None
        self.compensate_again = 0.0


class _Hold:
    """A pull that waits."""

    __slots__ = ("connection", "deadline", "filter", "key", "offset", "request")

    def __init__(
        self,
        connection: Connection,
        request: RemotingCommand,
        key: tuple[str, int],
        offset: int,
        deadline: float,
        message_filter: AnyFilter | None,
    ) -> None:
        self.connection = connection
        self.request = request
        self.key = key  # topic and queue
        self.offset = offset
        self.deadline = deadline
        self.filter = message_filter

    def __lt__(self, other: _Hold) -> bool:
        return self.deadline < other.deadline


class MessagePuller:
    """What the requests that fetch messages do, and those that wait."""

    HANDLERS: ClassVar = {RequestCode.PULL_MESSAGE: "pull", RequestCode.LITE_PULL_MESSAGE: "pull"}

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        # Ordered sets: who has waited longest is answered first
        self._by_queue: dict[tuple[str, int], dict[_Hold, None]] = {}
        self._by_connection: dict[Connection, dict[_Hold, None]] = {}
        self._deadlines: list[_Hold] = []  # a heap; those that are over lie in it until it is swept
        self.held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._woken: list[_Hold] = []  # what they wait for is there
        self._stopping = False
        self._accesses: dict[tuple[str, str], _Access] = {}
        self.configure()
        broker.store.dispatcher.awaited = self._by_queue
        broker.store.dispatcher.on_arrive_many = self.wake_all

    def pull(self, connection: Connection, request: RemotingCommand, may_hold: bool = True) -> Answer:
        """PULL_MESSAGE, LITE_PULL_MESSAGE. Hot."""
        header = PullMessage.read(request)
        group, topic, queue_id, sys_flag = (
            header.consumer_group, header.topic, header.queue_id, header.sys_flag
        )  # fmt: skip
        access = self._accesses.get((group, topic))
        if access is None:
            found = self._admit(request, group, topic)
            if isinstance(found, RemotingCommand):
                return found
            access = found
        if not 0 <= queue_id < access.topic.read_queue_nums:
            return _bad_queue(connection, request, access.topic, queue_id)
        if sys_flag & SUBSCRIPTION_FLAG:
            message_filter = self._own_filter(request, header, access)
        else:
            message_filter = self._group_filter(request, access, header.sub_version)
        if isinstance(message_filter, RemotingCommand):
            return message_filter
        broker = self._broker
        offsets, store = broker.offsets, broker.store
        reset_to = offsets.take_reset(topic, group, queue_id) if self._takes_resets else None
        if reset_to is not None:
            low, high = max(store.min_offset(topic, queue_id), 0), store.max_offset(topic, queue_id)
            result = GetMessageResult(GetMessageStatus.OFFSET_RESET, reset_to, low, high)
        else:
            result = store.get_message(
                topic, queue_id, header.queue_offset, header.max_msg_nums, message_filter=message_filter
            )
        if may_hold and sys_flag & COMMIT_OFFSET_FLAG:
            offsets.commit(connection.peer, group, topic, queue_id, header.commit_offset)
        offsets.commit_pull(connection.peer, group, topic, queue_id, result.next_begin_offset)
        if result.status is not FOUND:
            return self._answer_other(connection, request, header, access, result, message_filter, may_hold)
        return self._found(request, access, result, self._count(access, queue_id, result))

    def _found(
        self, request: RemotingCommand, access: _Access, result: GetMessageResult, suggested: int
    ) -> bytes | Pieces:
        """The frame of an answer with messages. Hot."""
        if request.serialize_type == JSON:
            header = _FOUND_JSON % (
                access.group.group_sys_flag, result.max_offset, result.min_offset, result.next_begin_offset,
                suggested, access.topic.topic_sys_flag, request.opaque,
            )  # fmt: skip
        else:
            fields = self._fields(access, result, suggested)
            header = request.response(0, fields, remark="FOUND").encode_header()
        head, blocks = frame_head(request.serialize_type, header, result.buffer_total_size), result.blocks
        if result.buffer_total_size < max(PIECES_FROM_BYTES, PIECE_BYTES * len(blocks)):
            return head + blocks[0] if len(blocks) == 1 else b"".join((head, *blocks))
        return [head, *blocks]

    def _count(self, access: _Access, queue_id: int, result: GetMessageResult) -> int:
        """Count what was found; the broker that the next pull should go to."""
        gets = access.stats.queue(queue_id)
        gets.messages += result.message_count
        gets.calls += 1
        gets.size_bytes += result.buffer_total_size
        gets.fall_behind_bytes = result.behind_bytes
        return 0 if self._is_simple else self._suggested_broker(result, access.group, 0)[0]

    def _answer_other(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessage,
        access: _Access,
        result: GetMessageResult,
        message_filter: AnyFilter | None,
        may_hold: bool,
    ) -> Answer:
        """Nothing was found: hold the pull, or say why."""
        status = result.status
        if status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE:
            status = GetMessageStatus.NO_MESSAGE_IN_QUEUE  # a queue of the topic that nobody has written to
        code = int(_CODES[status])
        if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE and header.queue_offset != 0:
            code = ResponseCode.PULL_OFFSET_MOVED
        suggested, code = self._suggested_broker(result, access.group, code)
        if (
            code == ResponseCode.PULL_NOT_FOUND
            and may_hold
            and header.sys_flag & SUSPEND_FLAG
            and self._hold(connection, request, header, message_filter)
        ):
            return None
        return request.response(code, self._fields(access, result, suggested), remark=status.name)

    def _fields(self, access: _Access, result: GetMessageResult, suggested: int) -> dict[str, str]:
        return {
            "groupSysFlag": str(access.group.group_sys_flag),
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "nextBeginOffset": str(result.next_begin_offset),
            "suggestWhichBrokerId": str(suggested),
            "topicSysFlag": str(access.topic.topic_sys_flag),
        }

    def _suggested_broker(
        self, result: GetMessageResult, group: SubscriptionGroupConfig, code: int
    ) -> tuple[int, int]:
        config = self._broker.config
        suggested = 0
        if config.slave_read_enable:
            slow = result.suggest_pulling_from_slave
            suggested = group.which_broker_when_consume_slowly if slow else group.broker_id
        is_slave = config.broker_id != 0
        if is_slave and not result.suggest_pulling_from_slave and self._broker.master_is_up:
            suggested = 0
            if result.status is not FOUND:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        if code == ResponseCode.PULL_OFFSET_MOVED:
            store = config.store
            if store.broker_role is BrokerRole.SLAVE and not store.offset_check_in_slave:
                return group.broker_id, ResponseCode.PULL_RETRY_IMMEDIATELY
        return suggested, code

    # Who may pull what

    def configure(self) -> None:
        """Take what is needed of the configuration, and check everybody again."""
        config = self._broker.config
        self._takes_resets = config.use_server_side_reset_offset
        self._is_simple = not config.slave_read_enable and config.broker_id == 0
        self._filters_for_retry = self._broker.filters if config.filter_support_retry else None
        self._accesses.clear()

    def _admit(self, request: RemotingCommand, group_name: str, topic_name: str) -> _Access | RemotingCommand:
        """Check who asks for what; kept until topics, groups or the configuration change."""
        broker, config = self._broker, self._broker.config
        if not config.broker_permission & PERM_READ:
            remark = f"the broker[{config.broker_ip1}] pulling message is forbidden"
            return _forbidden(request, _BY_BROKER, remark)
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            remark = f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            return _forbidden(request, _BY_BROKER, remark)
        group = broker.groups.find(group_name)
        if group is None:
            remark = f"subscription group [{group_name}] does not exist, {ADVICE}"
            return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, {}, remark=remark)
        if not group.consume_enable:
            return _forbidden(request, _BY_GROUP, f"subscription group no permission, {group_name}")
        topic = broker.topics.get(topic_name)
        if topic is None:
            remark = f"topic[{topic_name}] not exist, apply first please! {ADVICE}"
            return request.response(ResponseCode.TOPIC_NOT_EXIST, {}, remark=remark)
        if not topic.perm & PERM_READ:
            return _forbidden(request, _BY_TOPIC, f"the topic[{topic_name}] pulling message is forbidden")
        access = _Access(topic, group, broker.stats.group(topic_name, group_name))
        if len(self._accesses) >= MAX_ACCESSES:
            self._accesses.clear()
        if config.lite_pull_message_enable:
            self._accesses[group_name, topic_name] = access
        return access

    def _own_filter(
        self, request: RemotingCommand, header: PullMessage, access: _Access
    ) -> AnyFilter | RemotingCommand | None:
        """What the request itself says that it wants; None for all."""
        expression, kind = header.subscription, header.expression_type
        now = self._loop.time()
        if access.expression == (expression, kind) and now < access.compensate_again:
            return access.filter
        topic, group = access.topic.name, access.group.group_name
        try:
            subscription = SubscriptionData.build(topic, expression, kind, self._broker.clock.now_ms())
            message_filter = filter_of(subscription, filters_for_retry=self._filters_for_retry)
        except (BadSubscriptionError, BadExpressionError) as error:
            remark = f"parse the consumer's subscription failed: {error}"
            return request.response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, {}, remark=remark)
        self._broker.consumers.compensate(group, subscription)
        if not (subscription.is_tag_type or self._broker.config.enable_property_filter):
            return _cannot_filter(request, subscription)
        access.expression, access.filter = (expression, kind), message_filter
        access.compensate_again = now + COMPENSATE_S
        return message_filter

    def _group_filter(
        self, request: RemotingCommand, access: _Access, sub_version: int
    ) -> AnyFilter | RemotingCommand | None:
        """What the group's heartbeats say that it wants; None for all."""
        name = access.group.group_name
        group = self._broker.consumers.get(name)
        if group is None:
            remark = f"the consumer's group info not exist{ADVICE}"
            return request.response(ResponseCode.SUBSCRIPTION_NOT_EXIST, {}, remark=remark)
        if not access.group.consume_broadcast_enable and group.is_broadcasting:
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            return _forbidden(request, _BY_BROADCAST, remark)
        topic = access.topic.name
        if self._broker.groups.is_forbidden(name, topic):
            remark = f"the consumer group[{name}] is forbidden for topic[{topic}]"
            return _forbidden(request, _BY_SUBSCRIPTION, remark)
        subscription = group.subscriptions.get(topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist{ADVICE}"
            return request.response(ResponseCode.SUBSCRIPTION_NOT_EXIST, {}, remark=remark)
        if subscription.sub_version < sub_version:
            remark = "the consumer's subscription not latest"
            return request.response(ResponseCode.SUBSCRIPTION_NOT_LATEST, {}, remark=remark)
        if subscription.is_tag_type:
            return filter_of(subscription)
        data = self._broker.filters.get(topic, name)
        if data is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            return request.response(ResponseCode.FILTER_DATA_NOT_EXIST, {}, remark=remark)
        if data.client_version < sub_version:
            remark = "the consumer's consumer filter data not latest"
            return request.response(ResponseCode.FILTER_DATA_NOT_LATEST, {}, remark=remark)
        if not self._broker.config.enable_property_filter:
            return _cannot_filter(request, subscription)
        return filter_of(subscription, data, self._filters_for_retry)

    # Holds

    def _hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessage,
        message_filter: AnyFilter | None,
    ) -> bool:
        """Keep a pull; False where it must be answered now."""
        config = self._broker.config
        wait_ms = header.suspend_timeout_millis
        if not config.long_polling_enable:
            wait_ms = config.short_polling_time_mills
        if self._stopping or wait_ms <= 0 or self.held >= config.pull_thread_pool_queue_capacity:
            return False
        request.body = None  # it would keep the bytes of its read
        deadline = self._loop.time() + min(wait_ms, MAX_HOLD_MS) / 1000
        key = (header.topic, header.queue_id)
        hold = _Hold(connection, request, key, header.queue_offset, deadline, message_filter)
        self._by_queue.setdefault(key, {})[hold] = None
        self._by_connection.setdefault(connection, {})[hold] = None
        self.held += 1
        if len(self._deadlines) > 2 * self.held + _SWEEP_AT:
            self._deadlines = [other for other in self._deadlines if self._is_held(other)]
            heapify(self._deadlines)
        heappush(self._deadlines, hold)
        self._set_timer()
        return True

    def _is_held(self, hold: _Hold) -> bool:
        return hold in self._by_connection.get(hold.connection, ())

    def _release(self, hold: _Hold) -> bool:
        """Take a hold out of the tables; False if it is over already."""
        if not self._is_held(hold):
            return False
        _take_out(self._by_connection, hold.connection, hold)
        _take_out(self._by_queue, hold.key, hold)
        self.held -= 1
        return True

    def on_arrive(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        timestamp: int,
        properties: dict[str, str] | None,
    ) -> None:
        """A message is in its queue. Hot: most find nobody waiting."""
        key = topic, queue_id
        holds = self._by_queue.get(key)
        if holds is None:
            return
        woken = [
            hold for hold in holds if hold.offset < next_offset and wants(hold.filter, tags_code, properties)
        ]
        if not woken:
            return
        # They leave their queue at once: the next messages of this turn need not look at them again.
        if len(woken) == len(holds):
            del self._by_queue[key]
        else:
            for hold in woken:
                del holds[hold]
        if not self._woken:
            self._loop.call_soon(self._wake)
        self._woken += woken

    def _wake(self) -> None:
        """Try the holds whose messages came: at the end of the turn, for all its messages at once."""
        woken, self._woken = self._woken, []
        for hold in woken:
            self._finish(hold)

    def _finish(self, hold: _Hold) -> None:
        """Try a held pull again; whatever it finds is its answer."""
        if self._release(hold):
            hold.connection.answer_again(hold.request, self._pull_again)

    def _pull_again(self, connection: Connection, request: RemotingCommand) -> Answer:
        self._broker.guard.check_again(request, connection.peer)  # it may have waited for minutes
        return self.pull(connection, request, may_hold=False)

    def connection_lost(self, connection: Connection) -> None:
        """Nobody waits on that connection any more."""
        for hold in list(self._by_connection.get(connection, ())):
            self._release(hold)

    def wake_all(self) -> None:
        """Answer every pull that waits: the broker stops, or its role changed."""
        for hold in [hold for holds in self._by_connection.values() for hold in holds]:
            self._finish(hold)

    def stop(self) -> None:
        """Hold nothing any more."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake_all()

    def _set_timer(self) -> None:
        first = self._deadlines[0].deadline
        if self._timer is not None:
            if self._timer_at <= first:
                return
            self._timer.cancel()
        self._timer_at = first
        self._timer = self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._deadlines and self._deadlines[0].deadline <= now:
            self._finish(heappop(self._deadlines))
        if self._deadlines:
            self._set_timer()


def _take_out(table: dict[_Key, dict[_Hold, None]], key: _Key, hold: _Hold) -> None:
    holds = table.get(key)
    if holds is not None:
        holds.pop(hold, None)
        if not holds:
            del table[key]


def _bad_queue(
    connection: Connection, request: RemotingCommand, topic: TopicConfig, queue_id: int
) -> RemotingCommand:
    remark = (
        f"queueId[{queue_id}] is illegal, topic:[{topic.name}]"
        f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.peer}]"
    )
    return request.response(ResponseCode.INVALID_PARAMETER, {}, remark=remark)


def _forbidden(request: RemotingCommand, by: str, remark: str) -> RemotingCommand:
    return request.response(ResponseCode.NO_PERMISSION, {"forbiddenType": by}, remark=remark)


def _cannot_filter(request: RemotingCommand, subscription: SubscriptionData) -> RemotingCommand:
    remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
    return request.response(ResponseCode.SYSTEM_ERROR, {}, remark=remark)

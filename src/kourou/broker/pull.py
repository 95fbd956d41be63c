"""Pulls: records of a queue from an offset on, and the pulls that wait for them (PullMessageProcessor).

A pull that finds nothing is held until a message arrives in its queue or its time is up. Nothing polls: the
store tells of each message that arrived, the holds of its queue are tried again when the turn of the event
loop that appended it ends, and one timer ends the holds whose time is up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from kourou.broker.filters import TagFilter, filter_of
from kourou.broker.subscription import BadSubscriptionError, SubscriptionData
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import JSON, RESPONSE_FLAG, VERSION, RemotingCommand, frame
from kourou.remoting.connection import Answer, Connection
from kourou.remoting.headers import PullMessage
from kourou.remoting.registration import PERM_READ
from kourou.store.config import BrokerRole
from kourou.store.status import GetMessageResult, GetMessageStatus

if TYPE_CHECKING:
    from kourou.broker.clients import ConsumerGroup
    from kourou.broker.groups import SubscriptionGroupConfig
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

COMMIT_OFFSET_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG = 1, 2, 4  # of a pull's sysFlag
MAX_HOLD_MS = 600_000  # whatever a client asks for
_SWEEP_AT = 1024
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

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
        message_filter: TagFilter | None,
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._by_queue: dict[tuple[str, int], set[_Hold]] = {}
        self._by_connection: dict[Connection, set[_Hold]] = {}
        self._deadlines: list[_Hold] = []  # a heap; those that are over lie in it until it is swept
        self.held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._arrived: set[tuple[str, int]] = set()
        self._stopping = False
        broker.store.dispatcher.on_arrive = self._on_arrive

    def handlers(self) -> dict[int, Callable[[Connection, RemotingCommand], Answer]]:
        """By request code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, request: RemotingCommand, may_hold: bool = True) -> Answer:
        """PULL_MESSAGE, LITE_PULL_MESSAGE. Hot."""
        header = PullMessage.read(request)
        refusal = self._refusal(connection, request, header)
        if refusal is not None:
            return refusal
        broker = self._broker
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        subscription = self._subscription(request, header)
        if isinstance(subscription, RemotingCommand):
            return subscription
        message_filter = filter_of(subscription)
        reset_to = None
        if broker.config.use_server_side_reset_offset:
            reset_to = broker.offsets.take_reset(topic, group, queue_id)
        store = broker.store
        if reset_to is not None:
            low, high = max(store.min_offset(topic, queue_id), 0), store.max_offset(topic, queue_id)
            result = GetMessageResult(GetMessageStatus.OFFSET_RESET, reset_to, low, high)
        else:
            result = store.get_message(
                topic, queue_id, header.queue_offset, header.max_msg_nums, message_filter=message_filter
            )
        if may_hold and header.sys_flag & COMMIT_OFFSET_FLAG:
            broker.offsets.commit(connection.peer, group, topic, queue_id, header.commit_offset)
        broker.offsets.commit_pull(connection.peer, group, topic, queue_id, result.next_begin_offset)
        return self._answer(connection, request, header, result, message_filter, may_hold)

    def _answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessage,
        result: GetMessageResult,
        message_filter: TagFilter | None,
        may_hold: bool,
    ) -> Answer:
        broker = self._broker
        topic_config = broker.topics.topics[header.topic]
        group_config = broker.groups.find(header.consumer_group)
        assert group_config is not None
        code = _CODES[result.status]
        if code == ResponseCode.PULL_NOT_FOUND and header.queue_offset != 0 and result.status in (
            GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE,
        ):  # fmt: skip
            code = ResponseCode.PULL_OFFSET_MOVED
        suggested, code = self._suggested_broker(result, group_config, code)
        if code == ResponseCode.SUCCESS:
            gets = broker.stats.group(header.topic, header.consumer_group).queue(header.queue_id)
            gets.messages += result.message_count
            gets.calls += 1
            gets.size_bytes += result.buffer_total_size
            if request.serialize_type == JSON:
                text = _FOUND_JSON % (
                    group_config.group_sys_flag, result.max_offset, result.min_offset,
                    result.next_begin_offset, suggested, topic_config.topic_sys_flag, request.opaque,
                )  # fmt: skip
                return frame(JSON, text, result.records, result.buffer_total_size)
        elif (
            code == ResponseCode.PULL_NOT_FOUND
            and may_hold
            and header.sys_flag & SUSPEND_FLAG
            and self._hold(connection, request, header, message_filter)
        ):
            return None
        fields = {
            "groupSysFlag": str(group_config.group_sys_flag),
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "nextBeginOffset": str(result.next_begin_offset),
            "suggestWhichBrokerId": str(suggested),
            "topicSysFlag": str(topic_config.topic_sys_flag),
        }
        body = b"".join(result.records) if code == ResponseCode.SUCCESS else None
        return request.response(code, fields, body, remark=result.status.name)

    def _suggested_broker(
        self, result: GetMessageResult, group: SubscriptionGroupConfig, code: ResponseCode
    ) -> tuple[int, ResponseCode]:
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

    def _refusal(
        self, connection: Connection, request: RemotingCommand, header: PullMessage
    ) -> RemotingCommand | None:
        broker, config = self._broker, self._broker.config
        if not config.broker_permission & PERM_READ:
            return _forbidden(
                request, _BY_BROKER, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            return _forbidden(
                request, _BY_BROKER, f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            )
        group = broker.groups.find(header.consumer_group)
        if group is None:
            return request.response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                {},
                remark=f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            return _forbidden(
                request, _BY_GROUP, f"subscription group no permission, {header.consumer_group}"
            )
        topic = broker.topics.get(header.topic)
        if topic is None:
            return request.response(
                ResponseCode.TOPIC_NOT_EXIST,
                {},
                remark=f"topic[{header.topic}] not exist, apply first please! {FAQ}",
            )
        if not topic.perm & PERM_READ:
            return _forbidden(request, _BY_TOPIC, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            return request.response(
                ResponseCode.INVALID_PARAMETER,
                {},
                remark=f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.peer}]",
            )
        return None

    def _subscription(
        self, request: RemotingCommand, header: PullMessage
    ) -> SubscriptionData | RemotingCommand:
        """What the group wants of the topic: as the request says it, or the group's heartbeats."""
        broker = self._broker
        if header.sys_flag & SUBSCRIPTION_FLAG:
            try:
                subscription = SubscriptionData.build(
                    header.topic, header.subscription, header.expression_type, header.sub_version
                )
            except BadSubscriptionError:
                return request.response(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    {},
                    remark="parse the consumer's subscription failed",
                )
            broker.consumers.compensate(header.consumer_group, subscription)
        else:
            group = broker.consumers.get(header.consumer_group)
            found = self._subscription_of_group(request, header, group)
            if isinstance(found, RemotingCommand):
                return found
            subscription = found
        if not subscription.is_tag_type:
            # Only what every broker does: filters by property are refused as Java's does without them.
            return request.response(
                ResponseCode.SYSTEM_ERROR,
                {},
                remark="The broker does not support consumer to filter message by "
                + subscription.expression_type,
            )
        return subscription

    def _subscription_of_group(
        self, request: RemotingCommand, header: PullMessage, group: ConsumerGroup | None
    ) -> SubscriptionData | RemotingCommand:
        if group is None:
            return request.response(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, {}, remark=f"the consumer's group info not exist{FAQ}"
            )
        groups = self._broker.groups
        config = groups.find(header.consumer_group)
        assert config is not None
        if not config.consume_broadcast_enable and group.message_model == "BROADCASTING":
            return _forbidden(
                request,
                _BY_BROADCAST,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        if groups.is_forbidden(header.consumer_group, header.topic):
            return _forbidden(
                request,
                _BY_SUBSCRIPTION,
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            return request.response(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, {}, remark=f"the consumer's subscription not exist{FAQ}"
            )
        if subscription.sub_version < header.sub_version:
            return request.response(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, {}, remark="the consumer's subscription not latest"
            )
        return subscription

    # Holds

    def _hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessage,
        message_filter: TagFilter | None,
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
        self._by_queue.setdefault(key, set()).add(hold)
        self._by_connection.setdefault(connection, set()).add(hold)
        self.held += 1
        if len(self._deadlines) > 2 * self.held + _SWEEP_AT:
            self._deadlines = [other for other in self._deadlines if self._is_held(other)]
            heapify(self._deadlines)
        heappush(self._deadlines, hold)
        self._set_timer()
        return True

    def _is_held(self, hold: _Hold) -> bool:
        return hold in self._by_queue.get(hold.key, ())

    def _release(self, hold: _Hold) -> bool:
        """Take a hold out of the tables; False if it is over already."""
        if not self._is_held(hold):
            return False
        for table, key in ((self._by_queue, hold.key), (self._by_connection, hold.connection)):
            holds = table[key]  # type: ignore[index]  # each table with its own key
            holds.discard(hold)
            if not holds:
                del table[key]  # type: ignore[arg-type]
        self.held -= 1
        return True

    def _on_arrive(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        timestamp: int,
        properties: dict[str, str] | None,
    ) -> None:
        """A message is in its queue. Hot: most find nobody waiting."""
        holds = self._by_queue.get((topic, queue_id))
        if holds is None or (topic, queue_id) in self._arrived:
            return
        if any(hold.filter is None or hold.filter.matches_queue(tags_code, None) for hold in holds):
            if not self._arrived:
                self._loop.call_soon(self._wake)
            self._arrived.add((topic, queue_id))

    def _wake(self) -> None:
        """Try the holds of queues that grew: at the end of the turn, for all its messages at once."""
        arrived, self._arrived = self._arrived, set()
        for key in arrived:
            high = self._broker.store.max_offset(*key)
            for hold in list(self._by_queue.get(key, ())):
                if hold.offset < high:
                    self._finish(hold)

    def _finish(self, hold: _Hold) -> None:
        """Try a held pull again; whatever it finds is its answer."""
        if self._release(hold):
            hold.connection.answer(hold.request, self._pull_again)

    def _pull_again(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self.pull(connection, request, may_hold=False)

    def connection_lost(self, connection: Connection) -> None:
        """Nobody waits on that connection any more."""
        for hold in list(self._by_connection.get(connection, ())):
            self._release(hold)

    def wake_all(self) -> None:
        """Answer every pull that waits: the broker stops, or its role changed."""
        for hold in [hold for holds in self._by_queue.values() for hold in holds]:
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


def _forbidden(request: RemotingCommand, by: str, remark: str) -> RemotingCommand:
    return request.response(ResponseCode.NO_PERMISSION, {"forbiddenType": by}, remark=remark)

"""Admission: which requests for messages are served, and what they want of a topic."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kourou.broker.messages.filters import AnyFilter
from kourou.broker.messages.filters import filter_of as made_filter
from kourou.broker.messages.pull import COMPENSATE_S
from kourou.broker.messages.sql92 import BadExpressionError
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import ADVICE, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import RETRY_V1, RETRY_V2, retry_topic
from kourou.remoting.protocol.headers import PopMessage
from kourou.remoting.protocol.subscription import ALL, BadSubscriptionError, SubscriptionData
from kourou.remoting.protocol.topic_config import PERM_READ

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

MAX_MESSAGES = 32
TOO_LATE_MS = 500  # after its time: nobody waits for the answer any more
MAX_FILTERS = 10_000
MAX_KEPT_EXPRESSION = 4096  # characters; a longer one is read each time
MAX_ATTEMPT_ID = 256  # characters: it is kept for each queue of an ordered group


class RefusedError(Exception):
    """A request that is not served."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self._code = code

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        """What its client is told."""
        return request.response(self._code, {}, remark=str(self))


class Admission:
    """Checks requests, and remembers their filters."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        # By topic, group and expression: the filter, and when the table of consumers is told again
        self._filters: dict[tuple[str, str, str | None, str | None], tuple[AnyFilter | None, float]] = {}

    def forget(self) -> None:
        """Make filters anew: the configuration has changed."""
        self._filters.clear()

    def admit(self, connection: Connection, header: PopMessage, now_ms: int) -> AnyFilter | None:
        """What a pop wants of its topic; RefusedError if it is not served."""
        config = self._broker.config
        address = config.broker_ip1
        if now_ms - header.born_time - header.poll_time > TOO_LATE_MS:
            raise RefusedError(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{address}] pop message is timeout too much"
            )
        if not config.broker_permission & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{address}] pop message is forbidden")
        if header.max_msg_nums > MAX_MESSAGES:
            remark = f"the broker[{address}] pop message's num is greater than {MAX_MESSAGES}"
            raise RefusedError(ResponseCode.INVALID_PARAMETER, remark)
        mistake = self.check_invisible(header.invisible_time)
        if mistake is not None:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, mistake)
        if header.attempt_id is not None and len(header.attempt_id) > MAX_ATTEMPT_ID:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER, f"the attemptId is longer than {MAX_ATTEMPT_ID} characters"
            )
        if not self._broker.timers.enabled:
            remark = f"the broker[{address}] pop message is forbidden because timerWheelEnable is false"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, remark)
        self.check(connection, header.topic, header.consumer_group, header.queue_id, "pop")
        return self.filter_of(header.topic, header.consumer_group, header.exp, header.exp_type)

    def check_invisible(self, invisible_ms: int) -> str | None:
        """Why messages cannot be invisible for so long; None if they can."""
        most_ms = self._broker.config.store.timer_max_delay_sec * 1000
        if abs(invisible_ms) <= most_ms:
            return None
        return f"the invisible time {invisible_ms} is above timerMaxDelaySec, {most_ms} ms"

    def check(self, connection: Connection, topic: str, group: str, queue_id: int, what: str) -> None:
        """RefusedError unless there is such a topic, queue and group, and it may be read."""
        broker = self._broker
        if not broker.config.broker_permission & PERM_READ:
            remark = f"the broker[{broker.config.broker_ip1}] {what} message is forbidden"
            raise RefusedError(ResponseCode.NO_PERMISSION, remark)
        found = broker.topics.get(topic)
        if found is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {ADVICE}"
            )
        if not found.perm & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
        if queue_id >= found.read_queue_nums:
            remark = (
                f"queueId[{queue_id}] is illegal, topic:[{topic}]"
                f" topicConfig.readQueueNums:[{found.read_queue_nums}] consumer:[/{connection.peer}]"
            )
            raise RefusedError(ResponseCode.INVALID_PARAMETER, remark)
        config = broker.groups.find(group)
        if config is None:
            remark = f"subscription group [{group}] does not exist, {ADVICE}"
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not config.consume_enable:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")

    def filter_of(self, topic: str, group: str, expression: str | None, kind: str | None) -> AnyFilter | None:
        """What the request wants of a topic; None for all. The table of consumers is told."""
        key = topic, group, expression, kind
        known, now = self._filters.get(key), self._loop.time()
        if known is not None and now < known[1]:
            return known[0]
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        try:
            subscription = SubscriptionData.build(
                topic, expression or ALL, kind if expression else None, now_ms
            )
            message_filter = made_filter(subscription)
        except (BadSubscriptionError, BadExpressionError) as error:
            remark = "parse the consumer's subscription failed"
            log.warning("group %s: %s: %s", group, remark, error)
            raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
        own_retries = retry_topic(topic, group, self.retry_kind())
        broker.consumers.compensate(group, subscription)
        broker.consumers.compensate(group, SubscriptionData.build(own_retries, ALL, None, now_ms))
        if len(self._filters) >= MAX_FILTERS:
            self._filters.clear()
        if len(expression or "") <= MAX_KEPT_EXPRESSION:
            self._filters[key] = message_filter, now + COMPENSATE_S
        return message_filter

    def retry_kind(self) -> str:
        """The kind of the retry topics that are written."""
        return RETRY_V2 if self._broker.config.enable_retry_topic_v2 else RETRY_V1

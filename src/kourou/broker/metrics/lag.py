"""How far the groups that consume now are behind (ConsumerLagCalculator)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kourou.broker.messages.filters import AnyFilter, filter_of
from kourou.broker.messages.sql92 import BadExpressionError
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol.subscription import BadSubscriptionError, SubscriptionData
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, TopicConfig

if TYPE_CHECKING:
    from kourou.broker.server import Broker

TURN_S = 0.003  # then others have theirs


class Lag(NamedTuple):
    """How far a group is behind in a topic."""

    group: str
    topic: str
    lag_messages: int
    lag_latency_ms: int
    inflight_messages: int
    queueing_latency_ms: int
    ready_messages: int


async def lags(broker: Broker) -> list[Lag]:
    """Of all groups that are connected, in all topics that they subscribe to."""
    found = []
    turn_ends = time.perf_counter() + TURN_S
    for group, topic, subscription in list(_subscriptions(broker)):
        found.append(_lag(broker, group, topic, subscription))
        if time.perf_counter() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.perf_counter() + TURN_S
    return found


def _subscriptions(broker: Broker) -> Iterator[tuple[str, TopicConfig, SubscriptionData]]:
    for name, group in broker.consumers.groups.items():
        if name not in broker.groups.groups:
            continue
        for topic_name, subscription in group.subscriptions.items():
            topic = broker.topics.get(topic_name)
            if topic is None or topic_name.startswith(RETRY_PREFIX):
                continue
            if topic.perm & broker.config.broker_permission & (PERM_READ | PERM_WRITE):
                yield name, topic, subscription


def _lag(broker: Broker, group: str, config: TopicConfig, subscription: SubscriptionData) -> Lag:
    store, offsets, topic = broker.store, broker.offsets, config.name
    message_filter = _filter(broker, group, subscription)
    lag = inflight = ready = 0
    unconsumed_ms: list[int] = []  # when the first messages were stored that were not consumed
    unpulled_ms: list[int] = []
    for queue_id in range(config.write_queue_nums):
        end = max(store.max_offset(topic, queue_id), 0)
        consumed = offsets.query(group, topic, queue_id)
        pulled = offsets.query_pull(group, topic, queue_id)

        def count(low: int, high: int, queue_id: int = queue_id) -> int:
            if message_filter is not None and high > low:
                estimated = store.estimate_message_count(topic, queue_id, low, high, message_filter)
                return estimated if estimated >= 0 else high - low
            return max(high - low, 0)

        lag += count(end if consumed < 0 else consumed, end)
        ready += count(end if pulled < 0 else pulled, end)
        inflight += count(max(pulled, 0) if consumed < 0 else consumed, max(pulled, 0))
        unconsumed_ms.append(
            store.message_store_timestamp(topic, queue_id, end if consumed < 0 else consumed)
        )
        unpulled_ms.append(store.message_store_timestamp(topic, queue_id, max(pulled, 0)))
    now_ms = broker.clock.now_ms()
    lag_ms, queueing_ms = _age_ms(unconsumed_ms, now_ms), _age_ms(unpulled_ms, now_ms)
    return Lag(group, topic, lag, lag_ms, inflight, queueing_ms, ready)


def _age_ms(stored_ms: list[int], now_ms: int) -> int:
    return max((now_ms - one for one in stored_ms if one > 0), default=0)


def _filter(broker: Broker, group: str, subscription: SubscriptionData) -> AnyFilter | None:
    """What a group takes of a topic, for estimates; None for all, and where it cannot be told."""
    if not broker.config.estimate_accumulation:
        return None
    data = None if subscription.is_tag_type else broker.filters.get(subscription.topic, group)
    try:
        return filter_of(subscription, data)
    except (BadExpressionError, BadSubscriptionError):
        return None

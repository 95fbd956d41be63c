"""ConsumerFilters: the expressions that groups filter topics by (ConsumerFilterManager, ConsumerFilterData),
kept in consumerFilter.json:

    {"filterDataByTopic": {topic: {"topic": topic, "groupFilterData": {group:
        {"bloomFilterData": {"bitNum": 112, "bitPos": [77, 19, 27]}, "bornTime": 1794748511669,
         "clientVersion": 12, "consumerGroup": group, "dead": false, "deadTime": 0,
         "expression": "a > 5", "expressionType": "SQL92", "topic": topic}}}}}

An expression outlives its consumers by a day (filterDataCleanTimeSpan): as long as it is here, the bit maps
of messages that come are made with it, so that they are of use to the consumers when they are back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kourou.broker.messages.bloom import BloomData, BloomFilter
from kourou.broker.messages.sql92 import BadExpressionError, Sql92, compile_sql
from kourou.clock import Clock
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol.bodies import as_int, as_object, read_int, read_list, read_text
from kourou.remoting.protocol.subscription import SQL92, BadSubscriptionError, SubscriptionData

log = logging.getLogger(__name__)

FILE_NAME = "consumerFilter.json"
DEAD_BEFORE_LOAD_MS = (
    30_000  # consumers of a file that was loaded have been gone for so long, as far as is known
)


def compile_filter(subscription: SubscriptionData) -> Sql92:
    """The expression of a subscription; BadExpressionError or BadSubscriptionError if it cannot be used."""
    if subscription.expression_type != SQL92:
        raise BadSubscriptionError(f"there is no filter of type {subscription.expression_type[:40]}")
    return compile_sql(subscription.sub_string)


@dataclass(slots=True, eq=False)
class FilterData:
    """What a group wants of a topic, since when, and whether it has consumers."""

    group: str
    topic: str
    sql: Sql92
    client_version: int  # the client's clock when it subscribed
    bloom: BloomData
    born_time_ms: int  # messages stored after it have a bit map that knows of it
    dead_time_ms: int = 0
    dead_since_ms: int = 0  # elapsed time then

    @property
    def is_dead(self) -> bool:
        """Whether its consumers are gone."""
        return self.dead_time_ms >= self.born_time_ms

    def to_json(self) -> dict[str, Any]:
        """The data as Java's file has it."""
        return {
            "bloomFilterData": {"bitNum": self.bloom.bit_num, "bitPos": list(self.bloom.positions)},
            "bornTime": self.born_time_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_time_ms,
            "expression": self.sql.expression,
            "expressionType": SQL92,
            "topic": self.topic,
        }


class ConsumerFilters:
    """The expressions of all groups. Subscriptions by tags are none of its business."""

    def __init__(
        self, clock: Clock, bloom: BloomFilter, clean_time_span_ms: int, *, bound: Bound = UNBOUND
    ) -> None:
        self._clock = clock
        self.bloom = bloom
        self._clean_time_span_ms = clean_time_span_ms
        self._bound = bound
        # A time that no message says which was stored before, though the clock may have been set back since
        self.latest_ms: Callable[[], int] = clock.now_ms
        self._newest_ms = 0  # of the messages that have a bit map
        self._by_topic: dict[str, dict[str, FilterData]] = {}  # topic -> group -> data
        self._count = 0
        self.dirty = False

    def get(self, topic: str, group: str) -> FilterData | None:
        """What a group wants of a topic."""
        groups = self._by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def of_topic(self, topic: str) -> Collection[FilterData]:
        """What all groups want of a topic."""
        return self._by_topic.get(topic, {}).values()

    # Consumers come and go

    def register_group(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        """Take the subscriptions of a heartbeat. A bad one is logged, and hinders no other."""
        for subscription in subscriptions:
            self.register(group, subscription)
        topics = {subscription.topic for subscription in subscriptions}
        for data in self._of_group(group):
            if data.topic not in topics:
                self._bury(data)

    def register(self, group: str, subscription: SubscriptionData) -> bool:
        """Take a subscription; False if nothing came of it: not by an expression, old, or not to be used."""
        if subscription.is_tag_type or not subscription.sub_string:
            return False
        topic, version = subscription.topic, subscription.sub_version
        old = self.get(topic, group)
        if old is None:
            return self._put(group, subscription)
        same = old.sql.expression == subscription.sub_string and subscription.expression_type == SQL92
        if version < old.client_version or (version == old.client_version and not old.is_dead):
            if not same:
                log.info(
                    "group %s, topic %s: %r is older than %r", group, topic, subscription.sub_string, old
                )
            return False
        if version == old.client_version or same:
            old.client_version = version
            old.dead_time_ms = 0
            self.dirty = True
            return True
        # One that cannot be used takes the place of the old one: its client is to hear of it.
        self._remove(old)
        return self._put(group, subscription)

    def _put(self, group: str, subscription: SubscriptionData) -> bool:
        if not self._bound.fits(self._count + 1):
            return False
        try:
            sql = compile_filter(subscription)
        except (BadExpressionError, BadSubscriptionError) as error:
            log.error("group %s, topic %s: %r: %s", group, subscription.topic, subscription.sub_string, error)
            return False
        topic = subscription.topic
        data = FilterData(
            group,
            topic,
            sql,
            subscription.sub_version,
            self.bloom.data_of(group, topic),
            max(self.latest_ms(), self._newest_ms),
        )
        log.info("new filter: %s", data)
        self._add(self._by_topic, data)
        self._count += 1
        self.dirty = True
        return True

    def unregister(self, group: str) -> None:
        """The last consumer of a group is gone."""
        for data in self._of_group(group):
            self._bury(data)

    def _of_group(self, group: str) -> list[FilterData]:
        return [groups[group] for groups in self._by_topic.values() if group in groups]

    def _bury(self, data: FilterData) -> None:
        if not data.is_dead:
            data.dead_time_ms = max(self._clock.now_ms(), data.born_time_ms)  # a clock may have been set back
            data.dead_since_ms = self._clock.elapsed_ms()
            self.dirty = True
            log.info("filter without consumers: %s", data)

    def expire(self) -> None:
        """Forget what has had no consumers for too long."""
        oldest_ms = self._clock.elapsed_ms() - self._clean_time_span_ms
        for groups in list(self._by_topic.values()):
            for data in list(groups.values()):
                if data.is_dead and data.dead_since_ms <= oldest_ms:
                    log.info("filter is forgotten: %s", data)
                    self._remove(data)

    def _remove(self, data: FilterData) -> None:
        groups = self._by_topic[data.topic]
        del groups[data.group]
        if not groups:
            del self._by_topic[data.topic]
        self._count -= 1
        self.dirty = True

    # Bit maps

    def bitmap_of(self, topic: str, properties: Mapping[str, str], store_timestamp: int) -> bytes:
        """The bits of the groups that want a message (CommitLogDispatcherCalcBitMap); none if none filters.

        For ConsumeQueueStore.bitmap_of. Hot where it is set: called for each message.
        """
        groups = self._by_topic.get(topic)
        if not groups:
            return b""
        mask = 0
        if store_timestamp > self._newest_ms:
            self._newest_ms = store_timestamp
        for data in groups.values():
            if data.sql.matches(properties):
                mask |= data.bloom.mask
        return self.bloom.bitmap(mask)

    # The file

    def encode(self) -> bytes:
        """The JSON of the table."""
        table = {
            topic: {
                "groupFilterData": {group: data.to_json() for group, data in groups.items()},
                "topic": topic,
            }
            for topic, groups in self._by_topic.items()
        }
        return orjson.dumps({"filterDataByTopic": table})

    def decode(self, value: Any) -> None:
        """Take the table of a file. If its positions are of another bloom filter, all of it is void."""
        value = as_object(value, FILE_NAME)
        loaded: dict[str, dict[str, FilterData]] = {}
        count = 0
        for topic, by_group in as_object(value.get("filterDataByTopic") or {}, "filterDataByTopic").items():
            found = as_object(by_group or {}, topic).get("groupFilterData") or {}
            for group, item in as_object(found, "groupFilterData").items():
                if item is None:
                    continue
                item = as_object(item, group)
                bloom = as_object(item.get("bloomFilterData") or {}, "bloomFilterData")
                bit_num = read_int(bloom, "bitNum", 0)
                positions = tuple(as_int(position, "bitPos") for position in read_list(bloom, "bitPos"))
                if not self.bloom.is_valid(bit_num, positions):
                    log.warning("the bloom filter has changed: what %s holds is void", FILE_NAME)
                    return
                data = self._read(topic, group, item, BloomData(bit_num, positions))
                if data is not None:
                    self._add(loaded, data)
                    count += 1
        self._by_topic, self._count = loaded, count

    def _read(self, topic: str, group: str, value: Mapping[str, Any], bloom: BloomData) -> FilterData | None:
        version = read_int(value, "clientVersion", 0)
        expression, kind = read_text(value, "expression"), read_text(value, "expressionType", SQL92)
        try:
            sql = compile_filter(SubscriptionData(topic, expression, version, expression_type=kind))
        except (BadExpressionError, BadSubscriptionError) as error:
            log.error("group %s, topic %s: %r: %s", group, topic, expression, error)
            return None
        born_ms = read_int(value, "bornTime", 0)
        now_ms = self._clock.now_ms()
        dead_ms = read_int(value, "deadTime", 0) or max(born_ms, now_ms - DEAD_BEFORE_LOAD_MS)
        dead_since_ms = self._clock.elapsed_ms() - max(now_ms - dead_ms, 0)
        return FilterData(group, topic, sql, version, bloom, born_ms, dead_ms, dead_since_ms)

    @staticmethod
    def _add(table: dict[str, dict[str, FilterData]], data: FilterData) -> None:
        table.setdefault(data.topic, {})[data.group] = data

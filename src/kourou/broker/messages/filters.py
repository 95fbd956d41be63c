"""Filters: what a subscription lets through (ExpressionMessageFilter, ExpressionForRetryMessageFilter).

By tags the broker compares the hash of the tags, which lies in the queue entry; the consumer compares the
tags. By an expression it asks the bit map of the queue entry, where there is one, and then the properties of
the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

from kourou.broker.messages.filter_data import ConsumerFilters, FilterData, compile_filter
from kourou.broker.messages.sql92 import Sql92
from kourou.message import properties as names
from kourou.message.codec import HEADER_SIZES, INT, MAGIC_V2
from kourou.message.properties import decode_properties
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol.subscription import ALL, SubscriptionData
from kourou.store.queue.consume_queue import Run
from kourou.store.queue.consume_queue_ext import ExtUnit
from kourou.store.reads import MessageFilter
from kourou.store.status import as_list

POP_RETRY_SEPARATOR = "+"  # %RETRY%group+topic
# Up to so many names are looked for one by one; beyond, cutting up all properties is cheaper.
_MAX_PICKED = 8
_MAGIC_FLAG_BODY = Struct(">4xi28xi44xi")  # with addresses of IPv4


class TagFilter(MessageFilter):
    """By the hash of tags."""

    __slots__ = ("_codes",)

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
        """Whether an entry may match."""
        return (ext.tags_code if ext is not None else tags_code) in self._codes

    def choose(self, run: Run) -> Sequence[int]:
        """Which entries of a run may match. Hot. Those with ext units have the hashes of these already."""
        wanted = self._codes
        return [number for number, code in enumerate(as_list(run.tags_codes)) if code in wanted]

    def matches_record(self, record: memoryview) -> bool:
        """The hash is all that the broker looks at."""
        return True

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        """The hash is all that the broker looks at."""
        return True


class SqlFilter(MessageFilter):
    """By an expression over the properties."""

    __slots__ = ("_data", "_keys", "_names", "_sql")

    def __init__(self, sql: Sql92, data: FilterData | None = None) -> None:
        self._sql = sql
        self._data = data
        self._names = sorted(sql.names) if len(sql.names) <= _MAX_PICKED else ()
        self._keys = [b"\x02%s\x01" % name.encode() for name in self._names]

    def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
        """Whether an entry may match: its bit map says no, if it was made when this filter was known."""
        data = self._data
        if data is None or ext is None or ext.store_timestamp <= data.born_time_ms:
            return True
        return data.bloom.is_hit(ext.bitmap)

    def choose(self, run: Run) -> Sequence[int]:
        """Which entries of a run may match: all, where there are no bit maps. Hot."""
        data = self._data
        if run.ext is None or data is None:
            return range(len(run.offsets))
        born_ms, is_hit = data.born_time_ms, data.bloom.is_hit
        hits = {unit.bitmap: is_hit(unit.bitmap) for unit in run.ext if unit is not None}
        return [
            number
            for number, unit in enumerate(run.ext)
            if unit is None or unit.store_timestamp <= born_ms or hits[unit.bitmap]
        ]

    def matches_record(self, record: memoryview) -> bool:
        """Whether the expression holds for a record. Hot: only the properties it names are read, and it is
        not asked again about values that it was asked about before."""
        text = _property_bytes(record)
        if not self._keys:
            return self._sql.matches(_all(text))
        values = tuple([_value_of(text, key) for key in self._keys])
        known = self._sql.decisions.get(values)
        if known is None:
            given = zip(self._names, values)
            picked = {name: value.decode("utf-8", "replace") for name, value in given if value is not None}
            known = self._sql.matches(picked)
            self._sql.remember(values, known)
        return known

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        """Whether the expression holds for a message with these properties."""
        return self._sql.matches(properties)


class RetrySqlFilter(SqlFilter):
    """For a retry topic: what comes back is filtered as the topic it comes from (filterSupportRetry)."""

    __slots__ = ("_filters", "_group")

    def __init__(
        self, sql: Sql92, data: FilterData | None, retry_topic: str, filters: ConsumerFilters
    ) -> None:
        super().__init__(sql, data)
        self._filters = filters
        self._group = group_of_retry_topic(retry_topic)

    def matches_record(self, record: memoryview) -> bool:
        """Whether the expression of its first topic holds for a record."""
        return self.matches_properties(_all(_property_bytes(record)))

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        """Whether the expression of its first topic holds for a message; True if it has none."""
        data = self._filters.get(properties.get(names.RETRY_TOPIC, ""), self._group)
        return data is None or data.sql.matches(properties)


AnyFilter = TagFilter | SqlFilter


def filter_of(
    subscription: SubscriptionData,
    data: FilterData | None = None,
    filters_for_retry: ConsumerFilters | None = None,
) -> AnyFilter | None:
    """The filter of a subscription; None where it takes all.

    `data` is what the group's heartbeats registered; without it, the subscription's own expression counts,
    and BadExpressionError or BadSubscriptionError says why it cannot. `filters_for_retry` is given where
    filterSupportRetry is set.
    """
    if subscription.class_filter_mode:
        return None
    if subscription.is_tag_type:
        return None if subscription.sub_string == ALL else TagFilter(subscription.codes)
    sql = compile_filter(subscription) if data is None else data.sql
    if filters_for_retry is not None and subscription.topic.startswith(RETRY_PREFIX):
        return RetrySqlFilter(sql, data, subscription.topic, filters_for_retry)
    return SqlFilter(sql, data)


def wants(message_filter: AnyFilter | None, tags_code: int, properties: Mapping[str, str] | None) -> bool:
    """Whether somebody may wait for a message that came; of a batch, the properties are not known."""
    if message_filter is None:
        return True
    if not message_filter.matches_queue(tags_code, None):
        return False
    return properties is None or message_filter.matches_properties(properties)


def group_of_retry_topic(topic: str) -> str:
    """The group that a retry topic belongs to (KeyBuilder.parseGroup)."""
    parts = topic.split(POP_RETRY_SEPARATOR)
    return (parts[0] if len(parts) == 2 else topic).removeprefix(RETRY_PREFIX)


def _property_bytes(record: memoryview) -> bytes:
    """The property string of a record, with a separator before it; only that where the record is damaged."""
    size = len(record)
    if size < HEADER_SIZES[0]:
        return b"\x02"
    magic, sys_flag, body_length = _MAGIC_FLAG_BODY.unpack_from(record)
    topic_at = HEADER_SIZES[sys_flag >> 4 & 3]
    if topic_at > HEADER_SIZES[0]:  # an address of IPv6
        if topic_at > size:
            return b"\x02"
        (body_length,) = INT.unpack_from(record, topic_at - INT.size)
    if body_length > 0:
        topic_at += body_length
    if topic_at + 2 > size:
        return b"\x02"
    if magic == MAGIC_V2:
        return b"\x02" + record[topic_at + 4 + (record[topic_at] << 8 | record[topic_at + 1]) :]
    return b"\x02" + record[topic_at + 3 + record[topic_at] :]


def _value_of(text: bytes, key: bytes) -> bytes | None:
    """The property of a name, by the rules of decode_properties: the last that is not empty counts."""
    at = text.rfind(key)
    while at >= 0:
        begin = at + len(key)
        end = text.find(b"\x02", begin)
        if value := text[begin : end if end >= 0 else None]:
            return value
        at = text.rfind(key, 0, at + 1)
    return None


def _all(text: bytes) -> dict[str, str]:
    return decode_properties(text.decode("utf-8", "replace"))

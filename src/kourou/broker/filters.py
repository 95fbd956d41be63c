"""Filters: what a subscription lets through (ExpressionMessageFilter).

The broker compares the hash of the tags, which lies in the queue entry; the consumer compares the tags.
"""

from __future__ import annotations

from kourou.broker.subscription import ALL, SubscriptionData
from kourou.store.consume_queue_ext import ExtUnit


class TagFilter:
    """By the hash of tags."""

    __slots__ = ("_codes",)

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
        """Whether an entry may match."""
        return (ext.tags_code if ext is not None else tags_code) in self._codes

    def matches_record(self, record: memoryview) -> bool:
        """The hash is all that the broker looks at."""
        return True


def filter_of(subscription: SubscriptionData) -> TagFilter | None:
    """The filter of a subscription by tags; None where it takes all."""
    if subscription.sub_string == ALL or subscription.class_filter_mode:
        return None
    return TagFilter(subscription.codes)

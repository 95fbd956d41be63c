"""Wanted: which messages a reader is asked for, from its options and from the filters that Spark pushes down.

A filter that is taken is applied exactly, so Spark need not look again; one that cannot be is left to
Spark. Spark joins filters by AND, so each one can only narrow what is wanted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

MAX_LONG = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# Columns that are never null: to ask for the ones that are not is to ask for all.
_NEVER_NULL = frozenset(("topic", "queueId", "queueOffset", "storeTimestamp"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages; None of a set is any."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    first_offset: int = 0  # queue offsets, the last included
    last_offset: int = MAX_LONG
    begin_ms: int = 0  # store times, the end not included
    end_ms: int = MAX_LONG
    tags: frozenset[str] | None = None
    uniq_keys: frozenset[str] | None = None
    keys: frozenset[str] | None = None  # any of these among KEYS, or as UNIQ_KEY

    @property
    def nothing(self) -> bool:
        """Whether no message can be meant."""
        sets = (self.topics, self.queue_ids, self.tags, self.uniq_keys, self.keys)
        return (
            any(values is not None and not values for values in sets)
            or self.first_offset > self.last_offset
            or self.begin_ms >= self.end_ms
        )

    @property
    def has_time(self) -> bool:
        """Whether store times count."""
        return self.begin_ms > 0 or self.end_ms < MAX_LONG

    @property
    def index_keys(self) -> frozenset[str] | None:
        """The keys by which the index finds everything that is wanted; None where it cannot."""
        return self.uniq_keys if self.uniq_keys is not None else self.keys

    def narrow(self, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
        """What is wanted with these filters, and the filters that could not be taken."""
        wanted, left = self, []
        for item in filters:
            narrowed = wanted._with(item)
            if narrowed is None:
                left.append(item)
                wanted = wanted._with_keys(item)._with_any_offset(item)
            else:
                wanted = narrowed
        return wanted, left

    def _with(self, item: Filter) -> Wanted | None:
        path: tuple[str, ...] = getattr(item, "attribute", ())
        if len(path) != 1:
            return None
        column, kind, value = path[0], type(item).__name__, getattr(item, "value", None)
        if kind == "IsNotNull":
            return self if column in _NEVER_NULL else None
        values = _values(kind, value)
        if values is not None and column in _SETS:
            field = _SETS[column]
            before: frozenset[Any] | None = getattr(self, field)
            both = values if before is None else values & before
            return dataclasses.replace(self, **{field: both})  # type: ignore[arg-type]
        if column == "queueOffset":
            return self._with_offsets(kind, value)
        if column == "storeTimestamp" and isinstance(value, datetime):
            return self._with_time(kind, value)
        return None

    def _with_keys(self, item: Filter) -> Wanted:
        """What `keys = array('a', 'b')` is sure to need, one of these keys; the rest of it is Spark's."""
        value = getattr(item, "value", None)
        if (
            getattr(item, "attribute", None) != ("keys",)
            or not isinstance(value, list)
            or self.keys is not None
        ):
            return self
        kind = type(item).__name__
        if kind not in ("EqualTo", "EqualNullSafe", "In"):
            return self
        lists = value if kind == "In" else [value]
        if not all(isinstance(keys, list) and keys and isinstance(keys[0], str) for keys in lists):
            return self
        return dataclasses.replace(self, keys=frozenset(keys[0] for keys in lists))

    def _with_any_offset(self, item: Filter) -> Wanted:
        """What `queueOffset IN (…)` is sure to need: nothing outside of its numbers; the rest is Spark's."""
        value = getattr(item, "value", None)
        if getattr(item, "attribute", None) != ("queueOffset",) or type(item).__name__ != "In":
            return self
        numbers = [number for number in value or () if number is not None]
        if not numbers or not all(isinstance(number, int) for number in numbers):
            return self
        return dataclasses.replace(
            self,
            first_offset=max(self.first_offset, min(numbers)),
            last_offset=min(self.last_offset, max(numbers)),
        )

    def _with_offsets(self, kind: str, value: Any) -> Wanted | None:
        if not isinstance(value, int):
            return None
        low, high = {
            "EqualTo": (value, value),
            "EqualNullSafe": (value, value),
            "GreaterThan": (value + 1, None),
            "GreaterThanOrEqual": (value, None),
            "LessThan": (None, value - 1),
            "LessThanOrEqual": (None, value),
        }.get(kind, (None, None))
        if low is None and high is None:
            return None
        return dataclasses.replace(
            self,
            first_offset=self.first_offset if low is None else max(self.first_offset, low),
            last_offset=self.last_offset if high is None else min(self.last_offset, high),
        )

    def _with_time(self, kind: str, value: datetime) -> Wanted | None:
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        micros = (moment - _EPOCH) // _MICROSECOND
        at_least, after = -(-micros // 1000), micros // 1000 + 1
        begin, end = {
            "EqualTo": (at_least, after),
            "GreaterThan": (after, None),
            "GreaterThanOrEqual": (at_least, None),
            "LessThan": (None, at_least),
            "LessThanOrEqual": (None, after),
        }.get(kind, (None, None))
        if begin is None and end is None:
            return None
        return dataclasses.replace(
            self,
            begin_ms=self.begin_ms if begin is None else max(self.begin_ms, begin),
            end_ms=self.end_ms if end is None else min(self.end_ms, end),
        )


_SETS = {"topic": "topics", "queueId": "queue_ids", "tags": "tags", "uniqKey": "uniq_keys"}


def _values(kind: str, value: Any) -> frozenset[Any] | None:
    if kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str | int):
        return frozenset((value,))
    if kind == "In" and all(isinstance(item, str | int | None) for item in value):
        return frozenset(item for item in value if item is not None)
    return None

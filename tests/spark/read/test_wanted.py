"""What a reader makes of the filters that Spark pushes: no more than they say, and never an error."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

datasource = pytest.importorskip("pyspark.sql.datasource")

from kourou.spark.read.wanted import Wanted  # noqa: E402

COLUMNS = (
    "queueOffset",
    "queueId",
    "topic",
    "tags",
    "uniqKey",
    "keys",
    "storeTimestamp",
    "body",
    "bodyError",
)
VALUES: tuple[Any, ...] = (
    None, 0, -1, 7, 1 << 62, True, 1.5, "", "a", b"a", [], ["a"], [1], datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip
ONE_VALUE = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")


def filters() -> list[Any]:
    made: list[Any] = []
    for column, kind, value in product(COLUMNS, ONE_VALUE, VALUES):
        made.append(getattr(datasource, kind)((column,), value))
    for column, value in product(COLUMNS, VALUES):
        made += [datasource.In((column,), (value, value)), datasource.In((column,), [value, None, 3])]
        made.append(datasource.In((column,), []))
    for column in COLUMNS:
        made += [
            datasource.IsNull((column,)),
            datasource.IsNotNull((column,)),
            datasource.IsNotNull((column, "x")),
        ]
        made += [datasource.Not(datasource.EqualTo((column,), 1))]
    return made


def test_no_filter_is_an_error() -> None:
    for item in filters():
        wanted, left = Wanted().narrow([item])
        assert isinstance(wanted, Wanted)
        assert left in ([], [item])


def test_offsets_in_a_list_narrow_the_range_and_spark_does_the_rest() -> None:
    item = datasource.In(("queueOffset",), (1, 2, None, 99_999))
    wanted, left = Wanted().narrow([item])
    assert left == [item]
    assert (wanted.first_offset, wanted.last_offset) == (1, 99_999)
    narrower, _ = wanted.narrow([datasource.GreaterThan(("queueOffset",), 5)])
    assert (narrower.first_offset, narrower.last_offset) == (6, 99_999)

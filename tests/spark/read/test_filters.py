"""Filters that Spark pushes, generated: what a road takes and what it leaves mean together what they say.

Both roads, brokers and files, are asked without Spark, whose part (the filters that are left) is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import datasource

from kourou.spark import session
from kourou.spark.channel import close_channels
from kourou.spark.read.broker_road import BrokerRoad
from kourou.spark.schema import ALL_COLUMNS
from kourou.spark.session import PUSH_DOWN
from kourou.spark.source import StoreRoad
from kourou.testing import Cluster
from support.proof import proof
from support.spark import send

COLUMNS = tuple(name for name in ALL_COLUMNS if name != "brokerName")  # which files do not know
FILTERED = (
    "topic", "queueId", "queueOffset", "physicalOffset", "tags", "keys", "uniqKey", "storeTimestamp", "body",
    "sysFlag", "bodyError",
)  # fmt: skip
COMPARE = {
    "EqualTo": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "StringStartsWith": lambda a, b: a.startswith(b),
    "StringEndsWith": lambda a, b: a.endswith(b),
    "StringContains": lambda a, b: b in a,
}


@pytest.fixture(scope="module")
def roads():
    """Two topics with all kinds of properties, as they come from brokers and from files."""
    with Cluster() as cluster:
        for topic in ("a", "b"):
            cluster.create_topic(topic, queues=2)
            send(cluster, topic, (b"%d" % n for n in range(12)), queues=2, properties=properties)
        store = f"{cluster.directory}/broker-a"
        made = (
            lambda: BrokerRoad({"namesrv": cluster.namesrv, "topics": "a,b"}, COLUMNS),
            lambda: StoreRoad({"path": store, "topics": "a,b"}, COLUMNS),
        )
        yield [(make, rows_of(make())) for make in made]
    close_channels()


def properties(number: int) -> dict[str, str]:
    found = {"UNIQ_KEY": f"U{number}", "n": str(number)}
    if number % 3:
        found["TAGS"] = "red" if number % 3 == 1 else "re"
    if number % 4:
        found["KEYS"] = " ".join(f"k{one}" for one in range(number % 4))
    return found


def rows_of(road) -> list[dict[str, Any]]:
    rows = [row for part in road.plan() for batch in road.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["physicalOffset"])


def holds(item: Any, row: dict[str, Any]) -> bool | None:
    """What SQL says of a row: True, False or null."""
    if isinstance(item, datasource.Not):
        inner = holds(item.child, row)
        return None if inner is None else not inner
    value = row[item.attribute[0]]
    if isinstance(item, datasource.IsNull):
        return value is None
    if isinstance(item, datasource.IsNotNull):
        return value is not None
    if isinstance(item, datasource.EqualNullSafe):
        return value == item.value
    if isinstance(item, datasource.In):
        if value is None:
            return None
        return True if value in item.value else None if None in item.value else False
    if value is None or item.value is None:
        return None
    return COMPARE[type(item).__name__](value, item.value)


def values_for(rows: list[dict[str, Any]], column: str) -> list[Any]:
    """Values of a column, their neighbours, and what no row has."""
    found = [row[column] for row in rows if row[column] is not None][::5]
    if isinstance(found[0], datetime):
        steps = (timedelta(microseconds=1), timedelta(milliseconds=-1), timedelta(days=400))
        return [
            *found,
            *(found[0] + step for step in steps),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
        ]
    if isinstance(found[0], int):
        return [*found, found[-1] + 1, -1, 99_999, (1 << 63) - 1, -(1 << 63)]
    if isinstance(found[0], list):
        return [*found, ["k0"], ["nobody", "k0"], []]
    return [
        *found,
        found[0] + type(found[0])(),
        type(found[0])(),
        "none" if isinstance(found[0], str) else b"x",
    ]


KINDS = (
    "EqualTo", "EqualNullSafe", "In", "IsNull", "IsNotNull", "GreaterThan", "GreaterThanOrEqual", "LessThan",
    "LessThanOrEqual",
)  # fmt: skip
OF_TEXTS = ("StringStartsWith", "StringEndsWith", "StringContains")


def one_by_one(rows: list[dict[str, Any]]) -> Iterator[Any]:
    """Every kind of filter on every column, with some of its values, and the opposite of each."""
    for column in FILTERED:
        for kind in (*KINDS, *(OF_TEXTS if isinstance(rows[0][column], str) else ())):
            make = getattr(datasource, kind)
            if kind in ("IsNull", "IsNotNull"):
                made = [make((column,))]
            else:
                values = (
                    values_for(rows, column)[:: proof(quick=3, full=1)] if column != "bodyError" else ["x"]
                )
                made = [make((column,), [value, None] if kind == "In" else value) for value in values]
            yield from made
            yield from map(datasource.Not, made)


@st.composite
def filters(draw: Any, rows: list[dict[str, Any]]) -> list[Any]:
    made = []
    for _ in range(draw(st.integers(1, 3))):
        column = draw(st.sampled_from(FILTERED))
        choice = values_for(rows, column) if column != "bodyError" else ["x"]
        value = draw(st.sampled_from(choice))
        kind = draw(st.sampled_from((*KINDS, *(OF_TEXTS if isinstance(value, str) else ()))))
        path = (column,)
        if kind in ("IsNull", "IsNotNull"):
            item = getattr(datasource, kind)(path)
        elif kind == "In":
            several = draw(st.lists(st.sampled_from([*choice, None]), min_size=1, max_size=4))
            item = datasource.In(path, several)
        else:
            item = getattr(datasource, kind)(path, None if draw(st.integers(0, 9)) == 0 else value)
        made.append(datasource.Not(item) if draw(st.booleans()) and draw(st.booleans()) else item)
    return made


@pytest.mark.parametrize("which", [0, 1], ids=["brokers", "files"])
def test_a_pushed_filter_says_what_it_says(roads, which):
    make, rows = roads[which]
    assert len(rows) == 24
    all_wanted = make().wanted

    def same(items: list[Any]) -> None:
        road = make()
        left = road.narrow(items)
        assert all(any(one is item for item in items) for one in left)
        if len(left) == len(items) and road.wanted == all_wanted:
            return  # nothing was taken
        found = [row for row in rows_of(road) if all(holds(item, row) for item in left)]
        assert found == [row for row in rows if all(holds(item, row) for item in items)], items

    for item in one_by_one(rows):
        same([item])

    @given(filters(rows))
    @example([datasource.In(("queueOffset",), (1, 2, 99_999))])
    @example([datasource.In(("queueOffset",), (1, None, 4)), datasource.GreaterThan(("queueOffset",), 3)])
    def together(items: list[Any]) -> None:
        same(items)

    together()


@pytest.mark.slow
@pytest.mark.parametrize("road", ["brokers", "files"])
def test_spark_says_the_same_with_and_without_pushing(spark, tmp_path, road):
    """The generated filters, as SQL, on a frame that pushes and on a copy that Spark keeps."""
    with Cluster() as cluster:
        cluster.create_topic("a", queues=2)
        send(cluster, "a", (b"%d" % n for n in range(12)), queues=2, properties=properties)
        given = (
            {"namesrv": cluster.namesrv} if road == "brokers" else {"path": f"{cluster.directory}/broker-a"}
        )

        def frame():
            return spark.read.format("rocketmq").options(**given, topic="a").load().drop("brokerName")

        copy = frame().cache()
        assert copy.count() == 12
        for where in SQL[:: proof(quick=2, full=1)]:
            pushed = sorted(map(str, frame().where(where).collect()))
            assert pushed == sorted(map(str, copy.where(where).collect())), where
        copy.unpersist()
    close_channels()


SQL = (
    "queueOffset IN (1, 2, 99999)", "queueOffset IN (1, NULL)", "queueOffset NOT IN (1, 2)",
    "queueOffset > 2 AND queueOffset <= 4 OR tags = 'red'", "NOT (queueOffset = 1)",
    "tags IS NULL", "tags <=> NULL", "tags <=> 're'", "tags IN ('red', NULL)",
    "tags LIKE 're%' AND queueId = 1",
    "`keys` = array('k0')", "`keys` IN (array('k0'), array('k0', 'k1'))", "array_contains(`keys`, 'k1')",
    "storeTimestamp <= current_timestamp() AND NOT (tags = 'red' AND queueOffset < 3)",
    "properties['n'] = '3'", "body = X'33'", "queueId = 1 AND queueId = 0", "uniqKey IN ('U1', 'U2', 'none')",
)  # fmt: skip


def test_a_session_pushes_only_if_it_was_asked_to_last(spark):
    """The setting of one session stayed for those that were made after it in the same program."""
    assert session(push_filters=False).conf.get(PUSH_DOWN) == "false"
    assert session(push_filters=True).conf.get(PUSH_DOWN) == "true"

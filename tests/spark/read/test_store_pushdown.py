"""Filters reach partitions and scans: the same answers as without, and less that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.spark import read_store
from kourou.spark.read.rows import RowMaker
from kourou.spark.read.store_plan import StoreOptions, StorePlaces, StoreRange, plan
from kourou.spark.read.store_read import DataLossError, read_part
from kourou.spark.read.wanted import Wanted
from kourou.spark.schema import ALL_COLUMNS
from kourou.store import InnerMessage, MessageStore, MessageStoreConfig
from support.stores.store import ManualClock

RECORDS = 600


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Ten topics, four queues each, over ten hours, in several files."""
    root = tmp_path_factory.mktemp("stepped") / "store"
    clock = ManualClock()
    config = MessageStoreConfig(
        store_path_root_dir=str(root), mapped_file_size_commit_log=32 * 1024,
        mapped_file_size_consume_queue=20 * 100, max_hash_slot_num=100, max_index_num=400,
    )  # fmt: skip
    with MessageStore(config, clock=clock) as opened:
        for number in range(RECORDS):
            clock.advance(60_000)  # a minute goes by with every message
            properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01k-{number} same\x02TAGS\x01tag{number % 3}\x02"
            message = InnerMessage.of(f"t{number % 10}", number // 10 % 4, b"%d" % number, properties)
            opened.put_message(message)
    return str(root)


def read(store, wanted, **options):
    """(bodies, bytes of the log that were read, parts of the plan)"""
    settings = StoreOptions(paths=(store,), **options)
    maker = RowMaker(ALL_COLUMNS, wanted=wanted)
    parts = plan(settings, wanted)
    bodies = []
    for part in parts:
        for batch in read_part(part, settings, maker, fail_on_data_loss=True):
            bodies += batch.column("body").to_pylist()
    return sorted(map(int, bodies)), maker.read_bytes, parts


def times(first, last):
    return 1_700_000_000_000 + (first + 1) * 60_000, 1_700_000_000_000 + (last + 1) * 60_000


QUERIES = [
    (Wanted(topics=frozenset(["t3"])), lambda n: n % 10 == 3, 0.15),
    (Wanted(topics=frozenset(["t3", "t5"]), queue_ids=frozenset([2])),
     lambda n: n % 10 in (3, 5) and n // 10 % 4 == 2, 0.1),
    (Wanted(topics=frozenset(["t3"]), first_offset=3, last_offset=5),
     lambda n: n % 10 == 3 and 3 <= n // 40 <= 5, 0.1),
    (Wanted(begin_ms=times(300, 0)[0], end_ms=times(0, 340)[1]), lambda n: 300 <= n < 340, 0.45),
    (Wanted(tags=frozenset(["tag1"])), lambda n: n % 3 == 1, 1.0),
    (Wanted(keys=frozenset(["k-77", "k-78"])), lambda n: n in (77, 78), 0.02),
    (Wanted(uniq_keys=frozenset(["U500"])), lambda n: n == 500, 0.02),
    (Wanted(keys=frozenset(["same"]), topics=frozenset(["t1"])), lambda n: n % 10 == 1, 0.15),
    (Wanted(topics=frozenset(["nobody"])), lambda n: False, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "is_wanted", "share"), QUERIES)
def test_what_is_not_wanted_is_not_read(store, wanted, is_wanted, share):
    _, everything, _ = read(store, Wanted())
    bodies, read_bytes, _ = read(store, wanted)

    assert bodies == [number for number in range(RECORDS) if is_wanted(number)]
    assert read_bytes <= share * everything


@pytest.mark.parametrize(("wanted", "is_wanted", "share"), QUERIES)
@pytest.mark.parametrize("read_by", ["log", "queues", "index"])
def test_every_way_to_read_gives_the_same(store, wanted, is_wanted, share, read_by):
    bodies, _, _ = read(store, wanted, read_by=read_by, range_bytes=5000)

    assert bodies == [number for number in range(RECORDS) if is_wanted(number)]


def test_queues_are_read_where_they_name_little_and_the_log_where_they_name_much(store):
    few = read(store, Wanted(topics=frozenset(["t1"])))[2]
    many = read(store, Wanted(topics=frozenset(f"t{n}" for n in range(9))))[2]

    assert {type(part) for part in few} == {StorePlaces}
    assert {type(part) for part in many} == {StoreRange}


def test_queues_of_a_store_that_was_not_closed_are_not_trusted(store, tmp_path):
    import shutil

    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    (copy / "abort").touch()
    shutil.rmtree(copy / "consumequeue" / "t1")

    bodies, _, _ = read(str(copy), Wanted(topics=frozenset(["t1"])))

    assert bodies == list(range(1, RECORDS, 10))


def test_what_queues_do_not_know_yet_is_read_from_the_log(store, tmp_path):
    """A broker of Java's makes its queues a moment after the log."""
    import shutil

    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    for path in copy.glob("consumequeue/*/*"):
        files = sorted(path.iterdir())
        data = bytearray(files[-1].read_bytes())
        used = len(bytes(data).rstrip(b"\0")) // 20 + 1
        data[(used - 3) * 20 : used * 20] = bytes(60)
        files[-1].write_bytes(data)

    bodies, _, parts = read(str(copy), Wanted(topics=frozenset(["t1"])))

    assert bodies == list(range(1, RECORDS, 10))
    assert {type(part) for part in parts} == {StorePlaces, StoreRange}


def test_a_file_that_was_deleted_meanwhile_is_data_loss(store, tmp_path):
    import shutil

    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    options = StoreOptions(paths=(str(copy),))
    parts = plan(options, Wanted())
    first = sorted(Path(copy, "commitlog").iterdir())[0]
    first.unlink()

    with pytest.raises(DataLossError, match=first.name):
        list(read_part(parts[0], options, RowMaker(["body"]), fail_on_data_loss=True))
    assert list(read_part(parts[0], options, RowMaker(["body"]), fail_on_data_loss=False)) == []


FILTERS = [
    "topic = 't4'",
    "topic IN ('t4', 't5')",
    "queueId = 3",
    "queueOffset > 2 AND queueOffset <= 5 AND topic = 't0'",
    "storeTimestamp < timestamp'2023-11-15 00:00:00'",
    "storeTimestamp BETWEEN timestamp'2023-11-15 00:00:20' AND timestamp'2023-11-15 03:00:20.0005'",
    "storeTimestamp = timestamp'2023-11-14 22:23:20'",
    "tags = 'tag2'",
    "uniqKey IN ('U5', 'U7', 'nobody')",
    "keys = array('k-9', 'same')",
    "array_contains(keys, 'k-9')",
    "tags = 'tag2' OR queueId = 1",
    "topic <> 't4'",
    "tags LIKE 'tag1%' AND body IS NOT NULL",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_spark_gets_the_same_rows_with_and_without_pushdown(spark, store, condition):
    def bodies(frame):
        return sorted(int(bytes(row.body)) for row in frame.where(condition).select("body").collect())

    pushed = bodies(spark.read.format("rocketmq").load(store))
    plain = bodies(read_store(spark, store))

    assert pushed == plain != []


def test_spark_hands_over_only_what_the_scan_left(spark, store):
    frame = (
        spark.read.format("rocketmq").load(store).where("topic = 't4' AND queueOffset < 3 AND queueId = 1")
    )

    plan_text = frame._jdf.queryExecution().executedPlan().toString()

    assert frame.count() == 3
    assert "Filter (" not in plan_text  # Spark looks at nothing again

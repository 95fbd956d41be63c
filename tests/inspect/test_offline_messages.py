"""Messages of a store directory by topic, queue, offset, key, time, place and id."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import ConfigError, KourouError, StoreError
from kourou.inspect import StoreDirectory
from kourou.inspect.arrow_file import write_file
from kourou.inspect.messages import MessageReader, Selection


@pytest.fixture
def plain(golden_store) -> tuple[StoreDirectory, list[dict[str, Any]]]:
    path, expected = golden_store("plain")
    return StoreDirectory.open(path), expected["commitlog"]["records"]


def offsets(store: StoreDirectory, **selection: Any) -> list[int]:
    return [message.physical_offset for message in MessageReader(store, Selection(**selection)).messages()]


def places(records: list[dict[str, Any]], **wanted: Any) -> list[int]:
    return [r["physicalOffset"] for r in records if all(r[name] == value for name, value in wanted.items())]


@pytest.mark.parametrize("scan", [False, True])
def test_by_topic_and_queue(plain, scan):
    store, records = plain

    assert offsets(store, scan=scan) == places(records)
    assert offsets(store, topic="GoldenAlpha", scan=scan) == places(records, topic="GoldenAlpha")
    assert offsets(store, topic="GoldenAlpha", queue_id=2, scan=scan) == places(
        records, topic="GoldenAlpha", queueId=2
    )


@pytest.mark.parametrize("scan", [False, True])
def test_by_offset(plain, scan):
    store, records = plain
    of_queue = places(records, topic="GoldenAlpha", queueId=2)
    selection = {"topic": "GoldenAlpha", "queue_id": 2, "scan": scan}

    assert offsets(store, first_offset=20, **selection) == of_queue[20:]
    assert offsets(store, end_offset=3, **selection) == of_queue[:3]
    assert offsets(store, first_offset=19, end_offset=21, **selection) == of_queue[19:21]
    assert offsets(store, first_offset=1000, **selection) == []


@pytest.mark.parametrize("topic", [None, "GoldenAlpha"])
@pytest.mark.parametrize("scan", [False, True])
def test_by_store_time(plain, topic, scan):
    store, records = plain
    wanted = [record for record in records if topic in (None, record["topic"])]
    begin, end = records[100]["storeTimestamp"], records[250]["storeTimestamp"]

    found = offsets(store, topic=topic, begin_ms=begin, end_ms=end, scan=scan)

    assert found == [r["physicalOffset"] for r in wanted if begin <= r["storeTimestamp"] < end]
    assert offsets(store, topic=topic, end_ms=records[0]["storeTimestamp"], scan=scan) == []
    assert offsets(store, topic=topic, begin_ms=records[-1]["storeTimestamp"] + 1, scan=scan) == []


@pytest.mark.parametrize("topic", [None, "GoldenAlpha"])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("count", [0, 1, 70, 1000])
def test_the_first_and_the_last(plain, topic, scan, count):
    store, records = plain
    all_of_it = [r["physicalOffset"] for r in records if topic in (None, r["topic"])]

    assert offsets(store, topic=topic, scan=scan, limit=count) == all_of_it[:count]
    last = all_of_it[-count:] if count else []
    assert offsets(store, topic=topic, scan=scan, tail=count) == last


@pytest.mark.parametrize("scan", [False, True])
def test_by_key(plain, scan):
    store, records = plain
    for key in ("ключ0", "dup"):
        having = [r for r in records if key in r["properties"].get("KEYS", "").split()]
        assert having
        assert offsets(store, key=key, scan=scan) == places(having)
        assert offsets(store, key=key, topic="GoldenAlpha", scan=scan) == places(having, topic="GoldenAlpha")
        assert offsets(store, key=key, topic="GoldenAlpha", queue_id=1, scan=scan) == places(
            having, topic="GoldenAlpha", queueId=1
        )
    assert offsets(store, key="no such key", scan=scan) == []


def test_by_key_without_an_index(plain):
    store, records = plain
    shutil.rmtree(f"{store.root}/index")

    assert offsets(store, key=records[5]["properties"]["UNIQ_KEY"]) == [records[5]["physicalOffset"]]


def test_by_place(plain):
    store, records = plain

    assert offsets(store, physical_offset=records[77]["physicalOffset"]) == [records[77]["physicalOffset"]]
    with pytest.raises(StoreError, match="no record begins at 5"):
        offsets(store, physical_offset=5)
    with pytest.raises(StoreError, match="no record begins at -1"):
        offsets(store, physical_offset=-1)


@pytest.mark.parametrize("index", [True, False])
def test_by_id(plain, index):
    store, records = plain
    if not index:
        shutil.rmtree(f"{store.root}/index")
    record = records[9]

    for message_id in (record["offsetMsgId"], record["msgId"], record["msgId"].lower()):
        assert offsets(store, message_id=message_id) == [record["physicalOffset"]]
    with pytest.raises(StoreError, match="no message with the id"):
        offsets(store, message_id="C0" * 16)
    with pytest.raises(StoreError, match="no message with the id"):
        offsets(store, message_id="x")


def test_messages_of_batch_queues(golden_store):
    path, expected = golden_store("batchcq")
    store = StoreDirectory.open(path)
    entries = expected["batchconsumequeue"]["GoldenBatchCq"]["1"]["entries"]

    found = offsets(store, topic="GoldenBatchCq", queue_id=1, first_offset=3, end_offset=8)

    assert found == [entry[1] for entry in entries if entry[5] + entry[6] > 3 and entry[5] < 8]


def test_an_unknown_topic_names_those_that_are_there(plain):
    store, _ = plain

    with pytest.raises(StoreError, match="no queue of Nope here; topics with queues: GoldenAlpha, "):
        offsets(store, topic="Nope")


def test_selections_that_make_no_sense():
    with pytest.raises(ConfigError, match="--topic"):
        Selection(queue_id=1)
    with pytest.raises(ConfigError, match="exclude each other"):
        Selection(limit=1, tail=1)


def test_records_that_cannot_be_read_are_noted(golden_store):
    path, expected = golden_store("crash_torn")
    end = expected["commitlog"]["endOffset"]
    store = StoreDirectory.open(path)

    for selection in (Selection(topic="GoldenBeta_2-x"), Selection()):
        reader = MessageReader(store, selection)
        assert end not in [message.physical_offset for message in reader.messages()]
        assert reader.unreadable == [end]


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
def test_a_file_of_messages(golden_store, tmp_path, ending):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, expected = golden_store("batch")
    records = expected["commitlog"]["records"]
    target = str(tmp_path / f"messages{ending}")

    count = write_file(MessageReader(StoreDirectory.open(path), Selection()).records(), target)

    table = pq.read_table(target) if ending == ".parquet" else pa.ipc.open_file(target).read_all()
    assert count == len(records) == table.num_rows
    assert table["physical_offset"].to_pylist() == places(records)
    compressed = [number for number, record in enumerate(records) if "compression" in record]
    assert len(compressed) > 5
    for number in compressed:
        assert len(table["body"][number].as_py()) == records[number]["decompressedLength"]
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".part"] == []


def test_a_file_without_messages_has_the_columns(tmp_path):
    import pyarrow.parquet as pq

    target = str(tmp_path / "none.parquet")

    assert write_file(iter(()), target) == 0
    assert "body" in pq.read_table(target).column_names


def test_files_need_pyarrow_and_a_known_name(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"\.parquet, \.arrow, \.feather"):
        write_file(iter(()), str(tmp_path / "messages.csv"))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(KourouError, match=r"kourou\[arrow\]"):
        write_file(iter(()), str(tmp_path / "messages.parquet"))
    assert list(Path(tmp_path).iterdir()) == []


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(KourouError, match="cannot write"):
        write_file(iter(()), str(tmp_path / "no" / "such" / "messages.parquet"))

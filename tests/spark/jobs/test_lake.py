"""Archives as Delta and Iceberg tables, read back with deltalake and pyiceberg."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from kourou.errors import ConfigError
from kourou.spark.jobs import lake
from kourou.spark.jobs.archive import archive
from kourou.spark.jobs.inputs import Input, read_archive
from kourou.spark.schema import ALL_COLUMNS
from support.stores.store import message, open_store, put, small_config

FORMATS = ["delta", "iceberg"]


def read_table(path, format):
    """A table as others read it."""
    if format == "delta":
        return DeltaTable(path).to_pyarrow_table()
    catalog = SqlCatalog("kourou", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    return catalog.load_table("kourou.messages").scan().to_arrow()


def bodies(path, format):
    return sorted(bytes(body) for body in read_table(path, format)["body"].to_pylist())


def fill(config, topic, found):
    with open_store(config) as store:
        put(store, *(message(topic, 0, body, KEYS="a b", TAGS="t") for body in found))


def sorted_rows(frame):
    return sorted(map(str, frame.select(*ALL_COLUMNS).collect()))


@pytest.mark.parametrize("format", FORMATS)
def test_a_store_becomes_a_table(spark, golden_store, tmp_path, format):
    store, target = golden_store("retry_dlq"), tmp_path / "archive"
    records = store.expected["commitlog"]["records"]
    report = archive(spark, str(store.path), target, format=format)

    assert report.rows == len(records)
    table = read_table(target, format)
    assert sorted(table["topic"].to_pylist()) == sorted(record["topic"] for record in records)
    days = {str(day) for day in table["day"].to_pylist()}
    assert days == {str(time.date()) for time in table["storeTimestamp"].to_pylist()}
    # The same rows as by every other road, and by the source of the jobs.
    assert sorted_rows(read_archive(spark, str(target))) == sorted_rows(
        Input.parse(str(store.path)).frame(spark)
    )
    assert archive(spark, str(store.path), target).rows == 0  # the format is known
    assert read_table(target, format).num_rows == len(records)


@pytest.mark.parametrize("format", FORMATS)
def test_runs_go_on_and_small_files_become_one(spark, tmp_path, format):
    config, target = small_config(tmp_path), tmp_path / "archive"
    store = config.store_path_root_dir
    for number in range(3):
        fill(config, "%DLQ%g", [b"m %d" % number])
        assert archive(spark, store, target, format=format, compact=False).rows == 1
        assert archive(spark, store, target, format=format, compact=False).rows == 0
    assert archive(spark, store, target, topics=["not there"], compact=False).rows == 0
    place = lake.open_place(target, None)
    assert len(place.files()) == 3
    report = archive(spark, store, target)

    assert report.compacted_files == 3
    assert len(place.files()) == 1
    fill(config, "%DLQ%g", [b"m 3"])
    archive(spark, store, target, compact=False)
    assert bodies(target, format) == [b"m 0", b"m 1", b"m 2", b"m 3"]
    assert {row.topic for row in read_archive(spark, str(target)).collect()} == {"%DLQ%g"}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("when", ["written down", "moved", "committed"])
def test_a_run_that_is_killed_was_or_was_not(spark, tmp_path, monkeypatch, format, when):
    """Between any two steps of the driver: the next run repeats nothing and misses nothing."""
    config, target = small_config(tmp_path), tmp_path / "archive"
    fill(config, "t", [b"first"])
    archive(spark, config.store_path_root_dir, target, format=format, compact=False)
    fill(config, "t", [b"second"])
    kind = {"delta": lake.DeltaPlace, "iceberg": lake.IcebergPlace}[format]
    commit, move = kind.commit, lake.move

    def killed(*arguments):
        if when != "written down":
            move(*arguments)
        raise KeyboardInterrupt

    def killed_behind(*arguments):
        commit(*arguments)
        raise KeyboardInterrupt

    if when == "committed":
        monkeypatch.setattr(kind, "commit", killed_behind)
    else:
        monkeypatch.setattr(lake, "move", killed)
    with pytest.raises(KeyboardInterrupt):
        archive(spark, config.store_path_root_dir, target, compact=False)
    monkeypatch.undo()

    assert bodies(target, format) == [b"first", *([b"second"] if when == "committed" else [])]
    again = archive(spark, config.store_path_root_dir, target, compact=False)
    assert again.rows == (0 if when == "committed" else 1)
    assert bodies(target, format) == [b"first", b"second"]
    on_disk = {str(path) for path in (target / "data").rglob("*.parquet")}
    assert on_disk == {file["path"] for file in lake.open_place(target, None).files()}
    assert len(list((target / "_kourou").glob("state-*.json"))) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_json_columns_grow_in_a_table(spark, tmp_path, format):
    config, target = small_config(tmp_path), tmp_path / "archive"
    types = []
    for found in ([b'{"n": 1, "s": "a"}', b"none"], [b'{"n": 2.5, "ok": true}'], [b'{"n": "many"}']):
        fill(config, "t", found)
        archive(spark, config.store_path_root_dir, target, format=format, json_columns=True, compact=False)
        types.append(read_table(target, format).schema.field("n").type)

    assert types[:2] == [pa.int64(), pa.float64()]
    assert pa.types.is_string(types[2]) or pa.types.is_large_string(types[2])
    table = read_table(target, format)
    rows = zip(*(table[name].to_pylist() for name in ("n", "s", "ok")))
    assert sorted(rows, key=str) == sorted(
        [("1", "a", None), ("2.5", None, True), ("many", None, None), (None, None, None)], key=str
    )
    asked = read_archive(spark, str(target)).where("ok").select("n", "topic").collect()
    assert [tuple(row) for row in asked] == [("2.5", "t")]


def test_a_format_is_for_life(spark, golden_store, tmp_path):
    store = str(golden_store("plain").path)
    archive(spark, store, tmp_path / "archive")
    with pytest.raises(ConfigError, match="is an archive in parquet: it cannot go on in delta"):
        archive(spark, store, tmp_path / "archive", format="delta")
    with pytest.raises(ConfigError, match="format orc: it is one of parquet, delta, iceberg"):
        archive(spark, store, tmp_path / "other", format="orc")


@pytest.mark.parametrize(
    ("format", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog.sql")]
)
def test_without_the_library_it_says_what_to_install(tmp_path, monkeypatch, format, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=r"needs? the library .*pip install 'kourou\[lake\]'"):
        lake.open_place(tmp_path, format)


def test_the_state_names_the_run_of_the_table(spark, tmp_path):
    config, target = small_config(tmp_path), tmp_path / "archive"
    fill(config, "t", [b"x"])
    archive(spark, config.store_path_root_dir, target, format="delta")
    (path,) = (target / "_kourou").glob("state-*.json")
    assert json.loads(path.read_bytes())["state"]["run"] == DeltaTable(target).transaction_version(
        "kourou-archive"
    )
    assert DeltaTable(target).history(1)[0]["kourou.run"] == "1"

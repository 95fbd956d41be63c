"""JSON bodies as columns of an archive: names, types, and types that grow from run to run."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kourou.errors import ConfigError
from kourou.spark.jobs.archive import archive
from kourou.spark.jobs.inputs import Input, read_archive
from kourou.spark.jobs.json_columns import (
    MAX_COLUMNS,
    Field,
    column_name,
    conform,
    merge,
    read_objects,
    to_columns,
    wider,
)
from support.stores.store import message, open_store, put, small_config


def columns(*bodies, known=()):
    found = to_columns(read_objects(pa.array(bodies, pa.binary())), merge({}, known))
    return {(field.name, field.kind): values.to_pylist() for field, values in found.items()}


def test_types_are_inferred():
    found = columns(
        b'{"ok": true, "n": 1, "x": 1.5, "s": "text", "list": [1, 2], "object": {"a": null}, "none": null}',
        b' {"n": 9223372036854775807}',
    )
    assert found == {
        ("ok", "boolean"): [True, None],
        ("n", "long"): [1, (1 << 63) - 1],
        ("x", "double"): [1.5, None],
        ("s", "string"): ["text", None],
        ("list", "string"): ["[1,2]", None],
        ("object", "string"): ['{"a":null}', None],
    }


def test_two_types_become_the_wider_one():
    assert columns(b'{"a": 1}', b'{"a": 2.5}') == {("a", "double"): [1.0, 2.5]}
    assert columns(b'{"a": 1}', b'{"a": "x"}', b'{"a": true}') == {("a", "string"): ["1", "x", "true"]}
    assert columns(b'{"a": 18446744073709551615}') == {("a", "double"): [1.8446744073709552e19]}
    assert columns(b'{"a": 1}', known=[("A", "double")]) == {("A", "double"): [1.0]}
    assert [wider("long", "double"), wider("boolean", "long"), wider("long", "long")] == [
        "double",
        "string",
        "long",
    ]


def test_what_is_no_object_gives_nothing():
    assert columns(b"text", b"[1]", b'{"a": ', b"", None, b"\xff{", b"17") == {}


def test_names():
    assert [column_name(name) for name in ("a", "Topic", "DAY", "a b.c", "", "ü")] == [
        "a", "json_Topic", "json_DAY", "a_b_c", "_", "ü",
    ]  # fmt: skip
    assert columns(b'{"Id": 1}', b'{"id": 2}', b'{"keys": "k"}') == {
        ("Id", "long"): [1, 2, None],
        ("json_keys", "string"): [None, None, "k"],
    }


def test_a_table_is_brought_to_other_columns():
    table = pa.table({"body": [b"x"], "N": [(1 << 60) + 1], "gone": ["x"], "ok": [True]})
    fields = [Field("n", "double"), Field("ok", "string"), Field("new", "long")]
    assert conform(table, fields).to_pylist() == [
        {"body": b"x", "bodyError": None, "n": float((1 << 60) + 1), "ok": "true", "new": None}
    ]


def test_too_many_fields_are_refused():
    body = json.dumps({f"f{number}": 1 for number in range(MAX_COLUMNS + 1)}).encode()
    with pytest.raises(ConfigError, match=f"more than {MAX_COLUMNS}"):
        merge({}, columns(body))


# The archive

RUNS: list[dict[str, list[bytes]]] = [
    {"orders": [b'{"id": 1, "price": 10, "paid": true}', b"no json"], "other": [b'{"id": "x-1"}']},
    {"orders": [b'{"id": 2, "price": 9.5, "items": [{"sku": "a"}]}'], "other": [b'{"topic": "t"}']},
    {"orders": [b'{"id": 3, "price": "free"}']},
]
EXPECTED = [
    # body, id, price, paid, items, json_topic
    (b'{"id": "x-1"}', "x-1", None, None, None, None),
    (b'{"id": 1, "price": 10, "paid": true}', "1", "10", True, None, None),
    (b'{"id": 2, "price": 9.5, "items": [{"sku": "a"}]}', "2", "9.5", None, '[{"sku":"a"}]', None),
    (b'{"id": 3, "price": "free"}', "3", "free", None, None, None),
    (b'{"topic": "t"}', None, None, None, None, "t"),
    (b"no json", None, None, None, None, None),
]


def fill(config, bodies):
    with open_store(config) as store:
        for topic, found in bodies.items():
            put(store, *(message(topic, 0, body) for body in found))


def test_columns_grow_from_run_to_run(spark, tmp_path):
    config, target = small_config(tmp_path), tmp_path / "archive"
    rewritten, types = [], []
    for bodies in RUNS:
        fill(config, bodies)
        report = archive(spark, config.store_path_root_dir, target, json_columns=True, compact=False)
        rewritten.append(report.rewritten_files)
        types.append(dict(read_archive(spark, str(target)).dtypes))

    assert [found.get("price") for found in types] == ["bigint", "double", "string"]
    assert types[0]["id"] == "string"  # two topics, two types: known when the first run ends
    assert rewritten == [0, 1, 2]
    rows = (
        read_archive(spark, str(target))
        .select("body", "id", "price", "paid", "items", "json_topic")
        .collect()
    )
    assert sorted(tuple(row) for row in rows) == sorted(EXPECTED)
    # Any other reader of Parquet sees one schema, too.
    paths = sorted(target.glob("topic=*/day=*/*.parquet"))
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    assert schema.field("price").type == pa.string()

    archive(spark, config.store_path_root_dir, target)  # now made fewer
    assert len(list(target.glob("topic=*/day=*/*.parquet"))) == 2
    Input.parse(str(target)).frame(spark).createOrReplaceTempView("messages")
    asked = spark.sql("SELECT price FROM messages WHERE topic = 'orders' AND paid").collect()
    assert [row.price for row in asked] == ["10"]


def test_bodies_can_be_dropped(spark, tmp_path):
    config, target = small_config(tmp_path), tmp_path / "archive"
    fill(config, RUNS[0])
    with pytest.raises(ConfigError, match="json_columns"):
        archive(spark, config.store_path_root_dir, target, drop_body=True)
    archive(spark, config.store_path_root_dir, target, json_columns=True, drop_body=True)

    rows = read_archive(spark, str(target)).collect()
    assert {(row.id, row.body and bytes(row.body)) for row in rows} == {
        ("1", None),
        ("x-1", None),
        (None, b"no json"),
    }


def test_columns_that_come_while_a_file_is_written(spark, tmp_path):
    """A task meets new and wider fields behind its first row group: it goes on in another file."""
    config, target = small_config(tmp_path), tmp_path / "archive"
    numbers = [b'{"n": %d}' % number for number in range(10)]
    fill(config, {"t": [*numbers, b'{"n": 0.5, "more": 1}', *numbers]})
    archive(spark, config.store_path_root_dir, target, json_columns=True, compact=False, row_group_rows=1)

    frame = read_archive(spark, str(target))
    assert dict(frame.dtypes)["n"] == "double"
    assert sorted(row.n for row in frame.collect()) == sorted(
        [0.5, *map(float, range(10)), *map(float, range(10))]
    )

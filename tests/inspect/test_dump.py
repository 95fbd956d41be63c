"""`dump` reads in each golden store exactly what Java reads in it, and recovers what Java recovers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kourou.inspect import StoreDirectory
from kourou.inspect.dump import dump
from kourou.inspect.json_stream import Parts, stream_json
from kourou.store import MessageStoreConfig
from support.recorded.golden import GOLDEN_STORES

# Java notes its version and what was done to the store; a dump does not.
NOT_OURS = {"rocketmq", "note"}
# They lack the files that would tell these sizes.
SIZES_NOT_IN_THE_FILES = {"batchcq", "crash_lostcq"}
MOST_ANSWERS = 64


def read(store: StoreDirectory, **options: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(b"".join(dump(store, **options)))
    return document


def config_of(expected: dict[str, Any], path: Path) -> MessageStoreConfig:
    keys = {key: str(value).lower() for key, value in expected["config"].items()}
    for file in (path / "batchconsumequeue").rglob("0" * 20):
        keys["mapperFileSizeBatchConsumeQueue"] = str(file.stat().st_size)
    return MessageStoreConfig.from_properties(keys, store_path_root_dir=str(path))


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_a_golden_store_is_read_and_recovered_as_java_does(name, golden_store):
    path, expected = golden_store(name)
    config = config_of(expected, path) if name in SIZES_NOT_IN_THE_FILES else None

    found = read(StoreDirectory.open(path, config), recovered=True)

    expected = {key: value for key, value in expected.items() if key not in NOT_OURS}
    if name.startswith("crash"):
        ours, java = (part["recovered"].pop("indexQueries", []) for part in (found, expected))
        assert_answers_hold_all_of_java(ours, java)
    assert found == expected
    assert list(found) == list(expected)
    for ours, java in zip(found["commitlog"]["records"], expected["commitlog"]["records"], strict=True):
        assert list(ours) == list(java)
        assert list(ours["properties"]) == list(java["properties"])


def assert_answers_hold_all_of_java(ours: list[dict[str, Any]], java: list[dict[str, Any]]) -> None:
    """After a crash Java leaves keys out of the index; we find these too, and nothing less."""
    assert [(q["topic"], q["key"], q["type"]) for q in ours] == [
        (q["topic"], q["key"], q["type"]) for q in java
    ]
    for our, its in zip(ours, java, strict=True):
        offsets = our["phyOffsets"]
        assert offsets == sorted(offsets, reverse=True)
        assert len(offsets) == MOST_ANSWERS or set(its["phyOffsets"]) <= set(offsets)


@pytest.mark.parametrize("name", ["plain", "crash_torn", "timer"])
def test_a_dump_changes_nothing(name, golden_store):
    path, _ = golden_store(name)
    before = snapshot(path)

    read(StoreDirectory.open(path), recovered=True)

    assert snapshot(path) == before


def snapshot(path: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.stat().st_ino, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def test_the_recovered_copy_is_gone_afterwards(golden_store, tmp_path, monkeypatch):
    path, _ = golden_store("plain")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    parts = dump(StoreDirectory.open(path), recovered=True)

    next(parts)
    assert [entry.name.startswith("kourou-dump-") for entry in temporary.iterdir()] == [True]
    for _ in parts:
        pass
    assert list(temporary.iterdir()) == []


def test_an_index_file_of_another_size_is_told_as_java_tells_it(golden_store):
    path, _ = golden_store("plain")
    first, *_ = sorted(os.listdir(path / "index"))
    with open(path / "index" / first, "ab") as file:
        file.write(b"x")

    files = read(StoreDirectory.open(path))["index"]["files"]

    assert files[0] == {"name": first, "size": 8441, "error": "size does not fit --hash-slots/--index-num"}
    assert "entries" in files[1]


def test_json_is_streamed_in_one_piece():
    document = Parts(
        empty=iter(()),
        arrays=iter([number, -number] for number in range(3000)),
        objects=iter({"n": number} for number in range(3)),
        nested=Parts(a=iter([Parts(b=iter([1])), Parts()]), c=None),
        text="ünï",
    )

    assert json.loads(b"".join(stream_json(document))) == {
        "empty": [],
        "arrays": [[number, -number] for number in range(3000)],
        "objects": [{"n": 0}, {"n": 1}, {"n": 2}],
        "nested": {"a": [{"b": [1]}, {}], "c": None},
        "text": "ünï",
    }

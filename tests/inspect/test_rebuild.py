"""`rebuild` makes from the log what the store itself wrote, and replaces it so that a crash does no harm."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import struct
from pathlib import Path

import pytest

from kourou.errors import ConfigError, StoreDamagedError, StoreError, StoreLockedError
from kourou.inspect import StoreDirectory
from kourou.inspect import rebuild as module
from kourou.inspect.check.whole import check
from kourou.inspect.rebuild import rebuild_in_place, rebuild_into
from kourou.store import MessageStore
from support.stores.store import bodies, message, open_store, put, small_config

WHOLE_STORES = [
    "batch", "batchcq", "crash", "crash_garbage", "delay_after", "delay_before", "ipv6", "lmq", "plain",
    "pop", "propcrc", "retry_dlq", "timer", "transaction",
]  # fmt: skip


def files(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def index_content(root: Path) -> list[bytes]:
    """The files of an index in order; their names are the times they were made."""
    return [file.read_bytes() for file in sorted((root / "index").iterdir())]


def is_clean(path: Path) -> bool:
    with StoreDirectory.open(path) as store:
        return check(store).findings == []


@pytest.mark.parametrize("name", WHOLE_STORES)
def test_what_java_wrote_is_made_again_byte_by_byte(name, golden_store, tmp_path):
    path, expected = golden_store(name)

    report = rebuild_into(StoreDirectory.open(path), str(tmp_path / "out"))

    for folder in ("consumequeue", "batchconsumequeue"):
        assert files(tmp_path / "out" / folder) == files(path / folder)
    assert index_content(tmp_path / "out") == index_content(path)
    assert report.records == len(expected["commitlog"]["records"])
    assert report.index_entries == sum(len(file["entries"]) for file in expected["index"]["files"])


def test_a_torn_tail_gets_no_entries(golden_store, tmp_path):
    path, expected = golden_store("crash_torn")

    report = rebuild_into(StoreDirectory.open(path), str(tmp_path / "out"))

    assert report.records == len(expected["commitlog"]["records"])
    assert f"the log ends at {expected['commitlog']['endOffset']} with a torn tail" in report.notes[0]


def test_lost_queues_and_index_come_back(golden_store):
    path, _ = golden_store("plain")
    queues, index = files(path / "consumequeue"), index_content(path)
    shutil.rmtree(path / "consumequeue" / "GoldenAlpha")
    (path / "consumequeue" / "GoldenBeta_2-x" / "1" / ("0" * 20)).write_bytes(bytes(400))
    for file in (path / "index").iterdir():
        (path / "index" / file.name).write_bytes(bytes(8440))

    report = rebuild_in_place(StoreDirectory.open(path))

    assert files(path / "consumequeue") == queues
    assert index_content(path) == index
    assert is_clean(path)
    assert [Path(backup).name.split(".bak-")[0] for backup in report.backups] == ["consumequeue", "index"]
    assert all(Path(backup).is_dir() for backup in report.backups)
    assert not [entry for entry in path.iterdir() if entry.name.startswith(".rebuild-")]


def test_without_a_backup_nothing_old_is_left(golden_store):
    path, _ = golden_store("plain")
    before = {entry.name for entry in path.iterdir()}

    report = rebuild_in_place(StoreDirectory.open(path), backup=False)

    assert report.backups == []
    assert {entry.name for entry in path.iterdir()} == before | {"lock"}
    assert is_clean(path)


def test_a_store_that_is_open_is_left_alone(tmp_path):
    config = small_config(tmp_path)
    with open_store(config) as store:
        put(store, message())

        with pytest.raises(StoreLockedError):
            rebuild_in_place(StoreDirectory.open(config.store_path_root_dir))

    assert not list(Path(config.store_path_root_dir).glob("*.bak-*"))


@pytest.mark.parametrize("exchange", [True, False])
def test_a_crash_while_changing_places_leaves_old_or_new(golden_store, monkeypatch, exchange):
    """The process dies after each step in turn; each time the store opens with all its messages."""
    source, expected = golden_store("plain")
    config = StoreDirectory.open(source).config
    counts = {
        (topic, int(queue)): len(content["entries"])
        for topic, queues in expected["consumequeue"].items()
        for queue, content in queues.items()
    }
    for steps in range(5):
        path = source.parent / f"crash-{exchange}-{steps}"
        shutil.copytree(source, path)
        with monkeypatch.context() as patched:
            die_after(patched, steps, exchange)
            try:
                rebuild_in_place(StoreDirectory.open(path))
            except SystemExit:
                pass
            else:
                assert steps >= 4
        log = f"{path}/commitlog"
        store = MessageStore(
            dataclasses.replace(config, store_path_root_dir=str(path), store_path_commit_log=log)
        )
        store.load()
        store.start(threads=False)
        assert {key: store.max_offset(*key) for key in counts} == counts
        store.shutdown()
        assert is_clean(path)


def die_after(patched: pytest.MonkeyPatch, steps: int, exchange: bool) -> None:
    real_rename, real_exchange = module.os.rename, module._exchange
    left = [steps]

    def step() -> None:
        if left[0] == 0:
            raise SystemExit("killed")
        left[0] -= 1

    def rename(source, target):
        step()
        real_rename(source, target)

    def trade(one, other):
        if not exchange:
            return False
        step()
        return real_exchange(one, other)

    patched.setattr(module.os, "rename", rename)
    patched.setattr(module, "_exchange", trade)


def test_what_a_killed_rebuild_left_is_removed(golden_store):
    path, _ = golden_store("plain")
    (path / ".rebuild-20200101000000" / "consumequeue").mkdir(parents=True)

    rebuild_in_place(StoreDirectory.open(path))

    assert not [entry for entry in path.iterdir() if entry.name.startswith(".rebuild-")]


def test_a_record_with_a_damaged_body_keeps_its_entry(golden_store, tmp_path):
    path, expected = golden_store("plain")
    offset = expected["commitlog"]["records"][3]["physicalOffset"]
    patch(path / "commitlog" / ("0" * 20), offset + 90, b"~")

    report = rebuild_into(StoreDirectory.open(path), str(tmp_path / "out"))

    assert files(tmp_path / "out" / "consumequeue") == files(path / "consumequeue")
    assert [f"the record at {offset} is damaged" in note for note in report.notes] == [True]


def test_a_record_that_cannot_be_placed_stops_the_rebuild_and_nothing_is_changed(golden_store):
    path, expected = golden_store("plain")
    record = expected["commitlog"]["records"][3]
    patch(path / "commitlog" / ("0" * 20), record["physicalOffset"], bytes(record["storeSize"]))
    before = files(path)

    with pytest.raises(StoreDamagedError, match=f"damaged at {record['physicalOffset']}"):
        rebuild_in_place(StoreDirectory.open(path))

    assert {name: data for name, data in files(path).items() if name != "lock"} == before


def test_queues_of_which_no_record_is_left_keep_their_offsets(tmp_path):
    config = small_config(tmp_path)
    root = Path(config.store_path_root_dir)
    with open_store(config) as store:
        put(store, *(message("early", 1, b"x") for _ in range(7)))
        put(store, *(message("late", 0, bytes(4096)) for _ in range(40)))
    (root / "commitlog" / ("0" * 20)).unlink()

    report = rebuild_in_place(StoreDirectory.open(root))

    assert report.notes == ["queue early-1 is kept as it was: no record of it is left in the log"]
    with open_store(config) as store:
        assert store.max_offset("early", 1) == 7
        assert (store.max_offset("late", 0), store.min_offset("late", 0)) == (40, 15)
        assert len(bodies(store, "late", 0, 15)) == 25
    assert is_clean(root)


@pytest.mark.parametrize("is_said", [True, False], ids=["said in the log", "as Java does it"])
def test_a_topic_that_was_deleted_and_made_anew_has_its_new_records_only(tmp_path, caplog, is_said):
    config = small_config(tmp_path)
    root = Path(config.store_path_root_dir)
    with open_store(config) as store:
        put(store, *(message("topic", 0, b"old") for _ in range(30)))
        store.delete_topics({"topic"}) if is_said else store.queues.delete_topic("topic")
        put(store, *(message("topic", 0, b"new") for _ in range(10)))
    queues = files(root / "consumequeue")

    with caplog.at_level(logging.WARNING):
        report = rebuild_in_place(StoreDirectory.open(root))

    assert files(root / "consumequeue") == queues
    assert [note.startswith("queue topic-0 begins anew") for note in report.notes] == [True] * (not is_said)
    assert caplog.records == []


def test_a_new_directory_must_be_empty(golden_store, tmp_path):
    path, _ = golden_store("plain")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    with pytest.raises(StoreError, match="not empty"):
        rebuild_into(StoreDirectory.open(path), str(tmp_path / "full"))


def test_an_index_of_unknown_sizes_is_refused_before_anything_is_done(golden_store):
    path, _ = golden_store("plain")
    for file in (path / "index").iterdir():
        file.write_bytes(bytes(1234))

    with pytest.raises(ConfigError, match="maxHashSlotNum"):
        rebuild_in_place(StoreDirectory.open(path))


def patch(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def test_entries_before_the_first_are_blank(tmp_path, golden_store):
    """As in a queue whose first files are gone with the log's."""
    path, _ = golden_store("plain")
    (path / "commitlog" / ("0" * 20)).unlink()

    rebuild_into(StoreDirectory.open(path), str(tmp_path / "out"))

    first = (tmp_path / "out" / "consumequeue" / "GoldenAlpha" / "0" / ("0" * 20)).read_bytes()
    assert struct.unpack_from(">qiq", first) == (0, 0x7FFFFFFF, 0)

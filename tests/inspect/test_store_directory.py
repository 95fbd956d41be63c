"""Opening a store directory for reading: what is none, file sizes, damaged files, the lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kourou.errors import ConfigError, NotAStoreError
from kourou.inspect import StoreDirectory
from kourou.inspect import directory as module
from kourou.inspect.check.whole import check
from kourou.inspect.info import describe
from kourou.store import MessageStoreConfig
from support.recorded.golden import GOLDEN_STORES
from support.stores.store import bodies, open_store, put, small_config
from support.stores.store import message as new_message

# These lack the files that would tell the sizes of queues or index.
SIZES_NOT_IN_THE_FILES = {"batchcq", "crash_lostcq"}


# What is a store


def test_a_directory_that_is_no_store(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(NotAStoreError, match="is no RocketMQ store: there is no commitlog in it"):
        StoreDirectory.open(tmp_path)
    with pytest.raises(NotAStoreError, match="is no directory"):
        StoreDirectory.open(tmp_path / "nothing")
    with pytest.raises(NotAStoreError, match="is no directory"):
        StoreDirectory.open(tmp_path / "file")


def test_the_log_itself_is_no_store(golden_store):
    path, _ = golden_store("plain")

    with pytest.raises(NotAStoreError, match="name the directory above it"):
        StoreDirectory.open(path / "commitlog")


def test_a_store_whose_log_lies_elsewhere_asks_for_the_configuration(golden_store, tmp_path):
    path, _ = golden_store("plain")
    (path / "commitlog").rename(tmp_path / "log")

    with pytest.raises(NotAStoreError, match="storePathCommitLog"):
        StoreDirectory.open(path)
    config = MessageStoreConfig(store_path_root_dir=str(path), store_path_commit_log=str(tmp_path / "log"))
    assert len(StoreDirectory.open(path, config).log_files) == 6


def test_an_empty_store_is_one(tmp_path):
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "checkpoint").write_bytes(bytes(4096))

    described = describe(StoreDirectory.open(tmp_path))

    assert described["log"]["files"] == 0
    assert described["health"] == [{"severity": "note", "message": "the log is empty"}]


# File sizes


@pytest.mark.parametrize("name", sorted(set(GOLDEN_STORES) - SIZES_NOT_IN_THE_FILES))
def test_file_sizes_and_options_are_taken_from_the_files(name, golden_store):
    path, expected = golden_store(name)

    config = StoreDirectory.open(path).config

    assert {
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
        "enabledAppendPropCRC": config.enabled_append_prop_crc,
        "enableLmq": config.enable_lmq,
    } == expected["config"]


def test_where_no_file_tells_a_size_it_is_javas_default(golden_store):
    path, _ = golden_store("crash_lostcq")

    config = StoreDirectory.open(path).config

    assert config.mapped_file_size_consume_queue == 6_000_000
    assert (config.max_hash_slot_num, config.max_index_num) == (5_000_000, 20_000_000)


def test_an_index_file_of_default_size_is_known(golden_store):
    path, _ = golden_store("plain")
    for file in (path / "index").iterdir():
        file.unlink()
    with open(path / "index" / "20260101000000000", "wb") as file:
        file.truncate(420_000_040)

    store = StoreDirectory.open(path)

    assert store.index_size_problem is None
    assert store.config.max_index_num == 20_000_000


def test_an_index_file_whose_size_tells_nothing_asks_for_the_configuration(golden_store):
    path, _ = golden_store("plain")
    for file in (path / "index").iterdir():
        file.write_bytes(file.read_bytes()[:40] + bytes(4 * 50 + 20 * 70))
    store = StoreDirectory.open(path)

    with pytest.raises(ConfigError, match="name maxHashSlotNum and maxIndexNum"):
        store.index_file(store.index_paths[0])
    assert any("maxHashSlotNum" in item["message"] for item in describe(store)["health"])
    config = MessageStoreConfig(store_path_root_dir=str(path), max_hash_slot_num=50, max_index_num=70)
    assert StoreDirectory.open(path, config).index_file(store.index_paths[0]) is not None


def test_a_configuration_gives_the_sizes(golden_store):
    path, _ = golden_store("plain")
    config = MessageStoreConfig(store_path_root_dir=str(path), mapped_file_size_commit_log=131072)

    store = StoreDirectory.open(path, config)

    assert [finding.kind for finding in check(store).findings][:6] == ["log-file-size"] * 6


def test_the_paths_of_a_configuration_do_not_lead_away_from_a_copy(golden_store, tmp_path):
    path, _ = golden_store("plain")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = MessageStoreConfig(
        store_path_root_dir=str(elsewhere), store_path_commit_log=str(elsewhere / "log")
    )

    assert len(StoreDirectory.open(path, config).log_files) == 6


def test_a_log_on_several_paths(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    config = small_config(tmp_path, store_path_commit_log=f"{one},{other}")
    with open_store(config) as store:
        put(store, *(new_message("topic", 0, bytes(4000)) for _ in range(60)))
        assert len(bodies(store)) == 60
    assert list(one.iterdir())
    assert list(other.iterdir())

    directory = StoreDirectory.open(config.store_path_root_dir, config)

    assert [file.base for file in directory.log_files] == [0, 65536, 131072, 196608]
    report = check(directory)
    assert (report.findings, report.records) == ([], 60)


# Damaged files


def test_a_last_log_file_of_odd_length_is_read_up_to_its_end(golden_store):
    path, expected = golden_store("crash_short")

    store = StoreDirectory.open(path)

    assert store.log_files[-1].size == 40223
    for record in expected["commitlog"]["records"][-3:]:
        message = store.message(record["physicalOffset"])
        assert message is not None
        assert message.queue_offset == record["queueOffset"]
    assert store.message(expected["commitlog"]["endOffset"]) is None
    assert describe(store)["log"]["maxOffset"] == expected["commitlog"]["endOffset"]


def test_empty_files_are_left_out(golden_store):
    path, _ = golden_store("plain")
    (path / "commitlog" / "00000000000000393216").touch()
    (path / "consumequeue" / "GoldenAlpha" / "0" / "00000000000000000800").touch()

    store = StoreDirectory.open(path)

    assert len(store.log_files) == 6
    queue = store.queue("GoldenAlpha", 0)
    assert queue is not None
    assert queue.max_offset == 27


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_the_end_of_the_log_is_found_without_reading_it_all(name, golden_store):
    path, expected = golden_store(name)

    assert describe(StoreDirectory.open(path))["log"]["maxOffset"] == expected["commitlog"]["endOffset"]


@pytest.mark.parametrize("name", ["plain", "batchcq", "lmq", "delay_after"])
def test_offsets_of_queues_are_those_that_java_recovers(name, golden_store):
    path, expected = golden_store(name)

    found = {
        topic["topic"]: {
            str(queue["queueId"]): (queue["minOffset"], queue["maxOffset"]) for queue in topic["queues"]
        }
        for topic in describe(StoreDirectory.open(path))["topics"]
    }

    assert found == {
        topic: {number: (queue["minOffset"], queue["maxOffset"]) for number, queue in queues.items()}
        for topic, queues in expected["recovered"]["queues"].items()
    }


def test_many_files_need_few_descriptors(golden_store, monkeypatch):
    monkeypatch.setattr(module, "MAX_MAPPED_FILES", 3)
    path, _ = golden_store("plain")

    with StoreDirectory.open(path) as store:
        assert check(store).findings == []
        assert len(store._maps) == 3


# In use


def test_who_has_the_store_open_is_told_and_it_is_read_all_the_same(tmp_path):
    config = small_config(tmp_path)
    root = Path(config.store_path_root_dir)
    program = (
        "import sys; from kourou.store import *;"
        "store = MessageStore(MessageStoreConfig(store_path_root_dir=sys.argv[1]));"
        "store.load(); store.start(threads=False); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "open\n"
        (root / "commitlog").mkdir(exist_ok=True)

        described = describe(StoreDirectory.open(root))
        other.stdin.close()

    assert described["lock"] == f"process {other.pid}"
    assert described["health"][0]["message"].startswith(f"in use by process {other.pid}")
    assert StoreDirectory.open(root).lock_holder is None


def test_looking_at_a_store_of_this_very_process_does_not_free_its_lock(tmp_path):
    """A POSIX lock is lost when the process closes any descriptor of the file."""
    config = small_config(tmp_path)
    root = config.store_path_root_dir
    with open_store(config) as store:
        put(store, new_message())

        assert StoreDirectory.open(root).lock_holder is not None
        from kourou.inspect.dump import dump

        assert b"".join(dump(StoreDirectory.open(root), recovered=True))

        program = "import sys; from kourou.store.log.disk import OsDisk; OsDisk().lock(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", program, f"{root}/lock"], capture_output=True, text=True, check=False
        )
        assert "StoreLockedError" in done.stderr

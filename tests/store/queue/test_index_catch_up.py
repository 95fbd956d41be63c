"""After a crash a store takes messages before its index is complete. The index catches up: no key is lost,
whatever happens meanwhile, and until then a query by key says that it is not complete."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kourou.inspect.check.whole import check
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.messages import MessageReader, Selection
from kourou.inspect.rebuild import rebuild_in_place
from kourou.store import FlushDiskType, MessageStore, MessageStoreConfig
from kourou.store.index import index_catch_up
from support import loops
from support.stores.fault_disk import FaultDisk
from support.stores.replication import caught_up, node, slave
from support.stores.store import bodies, message, put, small_config

COUNT = 300
STEP_BYTES = 2000  # a dozen messages
LOG_FILE = 16 * 1024
SIZES: dict[str, Any] = {"max_index_num": 100, "mapped_file_size_commit_log": LOG_FILE}

MODES: dict[str, dict[str, Any]] = {
    "async flush": {},
    "sync flush": {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    "transient pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    "property crc": {"enabled_append_prop_crc": True, "force_verify_prop_crc": True},
}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a small store needs many steps, too."""
    monkeypatch.setattr(index_catch_up, "STEP_BYTES", STEP_BYTES)


@pytest.fixture(params=MODES)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> MessageStoreConfig:
    return small_config(tmp_path, **SIZES, **MODES[request.param])


@pytest.fixture
def plain(tmp_path: Path) -> MessageStoreConfig:
    return small_config(tmp_path, **SIZES)


def opened(config: MessageStoreConfig, **more: Any) -> MessageStore:
    store = MessageStore(config, **more)
    store.load()
    store.start(threads=False)
    return store


def put_keys(store: MessageStore, name: str, count: int = COUNT, topic: str = "topic") -> dict[str, int]:
    """Put messages with two keys each; the physical offset of each key."""
    places = {}
    for number in range(count):
        keys = f"{name}{number}", f"also-{name}{number}"
        (offset,) = put(store, message(topic, body=keys[0].encode(), KEYS=" ".join(keys)))
        places.update(dict.fromkeys(keys, offset))
    store.flusher.flush()  # with SYNC_FLUSH or a pool they are dispatched when the disk or the file has them
    store.dispatcher.reput()
    return places


def crashed(config: MessageStoreConfig) -> dict[str, int]:
    """The keys of a store whose process was killed."""
    store = opened(config)
    places = put_keys(store, "old")
    store.abandon()
    return places


def lose_index(root: Path) -> None:
    """As if it had crashed, and nothing of the index was on the disk for sure."""
    (root / "abort").touch()
    shutil.rmtree(root / "index")


def assert_complete(store: MessageStore, places: dict[str, int], topic: str = "topic") -> None:
    """Each key is found, and the entries are in the order of the log; at a seam of two files one message may
    be there twice."""
    assert {key: store.query_message(topic, key).physical_offsets for key in places} == {
        key: [offset] for key, offset in places.items()
    }
    assert store.query_message(topic, "old0").incomplete is None
    entries = [
        (int(entry["offset"]), int(entry["hash"]))
        for file in store.index.files
        for entry in file.entries[1 : file.count]
    ]
    offsets = [offset for offset, _ in entries]
    assert offsets == sorted(offsets)
    twice = {offset for (offset, _), count in Counter(entries).items() if count > 1}
    assert len(twice) <= len(store.index.files)


def test_a_store_takes_messages_before_its_index_is_complete(config):
    places = crashed(config)
    store = opened(config)
    try:
        assert store.index_catch_up.is_behind
        places |= put_keys(store, "new", 5)
        assert bodies(store)[-1] == b"new4"  # queues are right from the start
        answer = store.query_message("topic", "new0")
        assert answer.physical_offsets == []
        assert answer.incomplete is not None
        assert answer.incomplete.startswith("not complete")
        assert store.query_message("topic", "old0").physical_offsets == [0]  # what is there is found
        store.index_catch_up.finish()
        assert store.index_catch_up.behind_bytes == 0
        places |= put_keys(store, "later", 5)
        assert_complete(store, places)
    finally:
        store.shutdown()


def test_keys_that_are_put_between_the_steps_are_in_the_index_once(plain):
    places = crashed(plain)
    store = opened(plain)
    while store.index_catch_up.is_behind:
        places |= put_keys(store, f"at{store.index_catch_up.offset}-", 2)
        store.index.try_write_pending()
        places |= put_keys(store, f"then{store.index_catch_up.offset}-", 1)
        behind = store.index_catch_up.behind_bytes
        store.index_catch_up.step()
        assert store.index_catch_up.behind_bytes < behind
    assert_complete(store, places)
    store.shutdown()


@pytest.mark.parametrize("steps", [1, 5, 20])
@pytest.mark.parametrize("end", [MessageStore.shutdown, MessageStore.abandon], ids=["stop", "kill"])
def test_a_store_that_ends_on_the_way_goes_on_at_its_next_start(config, end, steps):
    places = crashed(config)
    for name in ("first", "second"):
        store = opened(config)
        for _ in range(steps):
            store.index_catch_up.step()
        store._queue_flusher.run_once()  # full files are on the disk
        places |= put_keys(store, name, 10)
        assert store.index_catch_up.is_behind or steps == 20
        end(store)
    store = opened(config)
    store.index_catch_up.finish()
    assert_complete(store, places)
    store.shutdown()


def test_after_a_stop_on_the_way_no_step_is_done_twice(plain):
    crashed(plain)
    store = opened(plain)
    for _ in range(5):
        store.index_catch_up.step()
    reached = store.index_catch_up.offset
    store.shutdown()
    assert not Path(store.root, "abort").exists()
    store = MessageStore(plain)
    store.index_catch_up.step = lambda: None  # type: ignore[method-assign]
    store.load()
    assert store.index_catch_up.offset == reached
    store.abandon()


def test_a_clean_start_with_a_complete_index_has_nothing_to_do(plain):
    crashed(plain)
    store = opened(plain)
    store.index_catch_up.finish()
    store.shutdown()
    store = opened(plain)
    assert not store.index_catch_up.is_behind
    assert store.index_catch_up.offset == store.commit_log.max_offset
    store.shutdown()


def test_a_topic_that_is_deleted_meanwhile_is_not_found_by_its_keys(plain):
    store = opened(plain)
    places = put_keys(store, "old")
    gone = put_keys(store, "gone", 20, "gone")
    store.abandon()
    store = opened(plain)
    assert store.index_catch_up.is_behind
    store.delete_topics({"gone"})
    again = put_keys(store, "again", 3, "gone")
    store.index_catch_up.finish()
    assert_complete(store, places)
    assert_complete(store, again, "gone")
    assert not any(store.query_message("gone", key).physical_offsets for key in gone)
    store.shutdown()


def test_old_log_files_may_go_meanwhile(plain):
    places = crashed(plain)
    store = opened(plain)
    first = store.commit_log.files.files[0]
    assert store.index_catch_up.offset < first.size < store.commit_log.max_offset
    assert store.commit_log.files.remove_files([first]) == 1
    store.index_catch_up.finish()
    assert_complete(store, {key: offset for key, offset in places.items() if offset >= first.size})
    store.shutdown()


def test_an_index_that_has_no_room_is_tried_again(plain, clock):
    places = crashed(plain)
    disk = FaultDisk()
    store = opened(plain, disk=disk, clock=clock)
    disk.fill("/index/")
    store.index_catch_up.finish()
    assert store.index_catch_up.is_behind
    assert store.index_catch_up.failure
    places |= put_keys(store, "new", 5)  # messages are taken all the same
    disk.heal()
    store.index_catch_up.step()
    store.index_catch_up.finish()
    assert_complete(store, places)
    store.shutdown()


def test_a_stop_while_the_index_has_no_room_loses_no_key(plain):
    places = crashed(plain)
    disk = FaultDisk()
    disk.fill("/index/")
    store = opened(plain, disk=disk)
    assert store.index_catch_up.failure
    store.shutdown()
    store = opened(plain)
    store.index_catch_up.finish()
    assert_complete(store, places)
    store.shutdown()


def test_damage_in_an_old_file_costs_only_the_keys_of_that_file(plain):
    store = opened(plain)
    places = put_keys(store, "old")
    store._queue_flusher.flush_all()  # recovery need not look at the old files
    store.abandon()
    lose_index(Path(store.root))
    damaged = next(offset for offset in places.values() if offset > LOG_FILE // 2)
    log_file = Path(store.root, "commitlog", "0" * 20)
    data = bytearray(log_file.read_bytes())
    data[damaged + 4 : damaged + 8] = b"none"  # its magic
    log_file.write_bytes(data)

    store = opened(plain)
    store.index_catch_up.finish()
    assert_complete(store, {key: at for key, at in places.items() if at < damaged or at >= LOG_FILE})
    store.shutdown()


def test_the_log_tells_of_the_progress(plain, caplog):
    crashed(plain)
    caplog.set_level(logging.INFO)
    store = opened(plain)
    store.index_catch_up.finish()
    store.shutdown()
    said = [text for text in caplog.messages if "index" in text]
    assert any("the index lacks the keys of" in text for text in said)
    assert 5 <= sum("the index is being made anew: " in text for text in said) <= 10
    assert any("the index is complete again" in text for text in said)


def test_a_worker_has_the_owner_do_it(plain):
    places = crashed(plain)
    store = MessageStore(plain)
    store.load()
    store.start()
    assert store.index_catch_up.behind_bytes > 0
    while store.index_catch_up.is_behind:
        store.wait(1)
    assert_complete(store, places)
    store.shutdown()


def test_without_an_index_nothing_is_behind(tmp_path):
    config = small_config(tmp_path, message_index_enable=False)
    crashed(config)
    store = opened(config)
    assert not store.index_catch_up.is_behind
    assert not store.index.files
    store.shutdown()


@pytest.mark.parametrize("count", [3, 3000], ids="{} messages".format)
async def test_a_slave_catches_up_while_it_follows_its_master(tmp_path, count):
    """One by one, and many at once."""

    async with node(tmp_path / "master", from_start=True, **SIZES) as master:
        places = put_keys(master.store, "old")
        async with slave(tmp_path / "slave", master.port, **SIZES) as follower:
            await caught_up(master, follower)
        lose_index(tmp_path / "slave" / "store")
        places |= put_keys(master.store, "new", count)
        async with slave(tmp_path / "slave", master.port, **SIZES) as follower:
            assert follower.store.index_catch_up.is_behind
            await caught_up(master, follower)
            await loops.until(lambda: not follower.store.index_catch_up.is_behind, "the index")
            assert_complete(follower.store, places)


def test_the_files_of_a_store_tell_that_its_index_is_not_complete(plain):
    places = crashed(plain)
    store = opened(plain)
    running = StoreDirectory.open(plain.store_path_root_dir, plain)
    assert running.lacks_keys
    running.close()
    store.shutdown()
    with StoreDirectory.open(plain.store_path_root_dir, plain) as left:
        assert left.lacks_keys
        reader = MessageReader(left, Selection(topic="topic", key="old200"))
        assert len(list(reader.messages())) == 1  # from the log
        assert check(left).faults == 0
        rebuild_in_place(left, backup=False)
    with StoreDirectory.open(plain.store_path_root_dir, plain) as rebuilt:
        assert not rebuilt.lacks_keys
    store = opened(plain)
    assert not store.index_catch_up.is_behind
    assert_complete(store, places)
    store.shutdown()

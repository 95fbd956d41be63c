"""What the simulator found in stores that lost their power, were killed, or had no room, as small tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from kourou.store import MessageStore, PutMessageStatus
from kourou.store.config import FlushDiskType
from support.stores.fault_disk import FaultDisk
from support.stores.store import LOG_FILE, QUEUE_FILE, bodies, message, open_store, put, small_config

BLANK = 8


def killed(store: MessageStore, directory: Path) -> Path:
    """What is left of the files of a store whose process is killed now."""
    return Path(shutil.copytree(store.root, directory / "killed" / "store")).parent


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [f"{number} ".encode().ljust(size, b".") for number in range(count)]


def test_records_behind_a_blank_of_eight_bytes_are_recovered(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        overhead = store.put_message(message(body=b"first")).wrote_bytes - len(b"first")
        used = store.commit_log.max_offset
        fitting = bytes(LOG_FILE - BLANK - used - overhead)
        put(store, message(body=fitting))
        assert store.commit_log.max_offset == LOG_FILE - BLANK
        put(store, message(body=b"behind"), message(body=b"last"))
        left = killed(store, tmp_path)

    with open_store(small_config(left)) as again:
        assert bodies(again) == [b"first", fitting, b"behind", b"last"]


def test_holes_in_queues_are_filled_from_the_log(tmp_path):
    sent = numbered(70)
    with open_store(small_config(tmp_path)) as store:
        put(store, *(message(body=body) for body in sent))
        left = killed(store, tmp_path)
    queue = left / "store" / "consumequeue" / "topic" / "0"
    first, second, third = sorted(queue.iterdir())[:3]
    with open(first, "r+b") as file:  # a page in the middle that never got to the disk
        file.seek(3 * 20)
        file.write(bytes(5 * 20))
    second.unlink()
    third.write_bytes(bytes(QUEUE_FILE))

    with open_store(small_config(left)) as again:
        assert bodies(again) == sent


def test_empty_files_that_were_made_ahead_do_no_harm(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, message(body=b"kept"))
        left = killed(store, tmp_path)
    (left / "store" / "commitlog" / f"{LOG_FILE:020d}").touch()
    (left / "store" / "consumequeue" / "topic" / "0" / f"{QUEUE_FILE:020d}").touch()

    with open_store(small_config(left)) as again:
        put(again, message(body=b"new"))
        assert bodies(again) == [b"kept", b"new"]


def test_what_a_killed_process_wrote_is_synced_before_more_is_taken(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, *(message(body=bytes(30_000)) for _ in range(5)))
        files = len(store.commit_log.files.files)
        left = killed(store, tmp_path)

    disk = FaultDisk()
    again = MessageStore(small_config(left), disk=disk)
    again.load()
    again.abandon()

    assert files > 1
    assert {Path(path).name for path in disk.syncs if "/commitlog/" in path} == {
        path.name for path in (left / "store" / "commitlog").iterdir()
    }


def test_queues_that_had_no_room_get_their_entries_and_the_store_takes_messages_again(tmp_path):
    disk = FaultDisk()
    config = small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with open_store(config, disk=disk) as store:
        disk.fill("/consumequeue/")
        put(store, message(body=b"no room"))
        store.flusher.flush()
        store.wait(0)
        assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE

        disk.heal()
        store._queue_flusher.run_once()
        store.wait(0)
        put(store, message(body=b"room"))
        store.flusher.flush()
        store.wait(0)

        assert bodies(store) == [b"no room", b"room"]


def test_an_index_that_had_no_room_gets_its_keys_and_the_store_takes_messages_again(tmp_path):
    disk = FaultDisk()
    with open_store(small_config(tmp_path), disk=disk) as store:
        disk.fill("/index/")
        (at,) = put(store, message(KEYS="k"))
        store.index.try_write_pending()
        assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE

        disk.heal()
        store._queue_flusher.run_once()
        store.wait(0)

        put(store, message(body=b"room"))
        assert store.index.query("topic", "k", 64, 0, 1 << 62) == [at]


def test_room_for_the_index_does_not_heal_a_log_that_cannot_be_flushed(tmp_path):
    disk = FaultDisk()
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.load()
    store.start(threads=False)
    put(store, message(KEYS="k"))
    disk.fail_syncs("/commitlog/")
    store.flusher.flush()
    store.wait(0)
    disk.fill("/index/")
    store.index.try_write_pending()
    disk.heal()
    store.index.try_write_pending()

    assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.shutdown()


def test_an_index_that_lost_a_file_with_the_power_is_made_again_behind_it(tmp_path):
    config = small_config(tmp_path, max_index_num=10)
    with open_store(config) as store:
        offsets = put(store, *(message(KEYS=f"k{number}") for number in range(40)))
        store.index.write_pending()
        store.checkpoint.index_msg_timestamp = store.index.flush_full()
        store.checkpoint.flush()
        left = killed(store, tmp_path)
    files = sorted((left / "store" / "index").iterdir())
    files[1].write_bytes(bytes(files[1].stat().st_size))  # its bytes never got to the disk

    with open_store(small_config(left, max_index_num=10)) as again:
        found = [set(again.index.query("topic", f"k{number}", 64, 0, 1 << 62)) for number in range(40)]
        assert found == [{offset} for offset in offsets]
        assert again.index.files[0].end_offset <= again.index.files[1].begin_offset
        assert len(again.index.files) == len(files)


def test_an_index_file_whose_times_are_torn_is_made_again(tmp_path):
    """It looks older than the checkpoint, as if it had been on the disk."""
    config = small_config(tmp_path, max_index_num=10)
    with open_store(config) as store:
        offsets = put(store, *(message(KEYS=f"k{number}") for number in range(23)))
        store.index.write_pending()
        store.checkpoint.index_msg_timestamp = store.index.flush_full()
        store.checkpoint.flush()
        left = killed(store, tmp_path)
    last = max((left / "store" / "index").iterdir())
    data = bytearray(last.read_bytes())
    data[8:16] = (int.from_bytes(data[8:16], "big") - 1000).to_bytes(8, "big")  # the time of its last entry
    data[40:] = bytes(len(data) - 40)
    last.write_bytes(data)

    with open_store(small_config(left, max_index_num=10)) as again:
        found = [set(again.index.query("topic", f"k{number}", 64, 0, 1 << 62)) for number in range(23)]
        assert found == [{offset} for offset in offsets]


def test_an_index_that_was_ahead_of_the_log_goes_back_durably(tmp_path):
    """Its full files were on the disk, and the log was not. What is put in the place of the lost messages is
    indexed, also after a second power cut."""
    config = small_config(tmp_path, max_index_num=10)
    with open_store(config) as store:
        put(store, *(message(KEYS=f"lost{number}") for number in range(9)))
        store.index.write_pending()
        store.checkpoint.index_msg_timestamp = store.index.flush_full()
        store.checkpoint.flush()
        left = killed(store, tmp_path)
    log = left / "store" / "commitlog" / ("0" * 20)
    log.write_bytes(bytes(log.stat().st_size))

    config, disk = small_config(left, max_index_num=10), FaultDisk()
    with open_store(config, disk=disk) as store:
        assert [path for path in disk.syncs if "/index/" in path]
        offsets = put(store, *(message(KEYS=f"k{number}") for number in range(5)))
        twice = killed(store, left)
    with open_store(small_config(twice, max_index_num=10)) as again:
        found = [set(again.index.query("topic", f"k{number}", 64, 0, 1 << 62)) for number in range(5)]
        assert found == [{offset} for offset in offsets]

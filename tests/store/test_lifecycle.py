"""The life of a store: lock, abort file, restart, release of everything it had open."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from kourou.errors import StoreDamagedError, StoreLockedError
from kourou.message import Message, encode_batch, sysflag
from kourou.store import BrokerRole, FlushDiskType, InnerMessage, MessageStore, PutMessageStatus
from kourou.store.log.disk import OsDisk
from support.stores.fault_disk import FaultDisk
from support.stores.store import (
    ManualClock,
    bodies,
    files_below,
    message,
    open_files_below,
    open_store,
    put,
    small_config,
)

PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from kourou.errors import StoreLockedError
from kourou.store import MessageStore
from support.stores.store import message, put, small_config

store = MessageStore(small_config(Path({directory!r})))
{body}
"""


def program(directory: Path, body: str) -> list[str]:
    tests = str(Path(__file__).resolve().parent.parent)
    text = PROGRAM.format(tests=tests, directory=str(directory), body=textwrap.dedent(body))
    return [sys.executable, "-c", text]


def run(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(directory, body), capture_output=True, text=True, check=False, timeout=30)


TRY_TO_OPEN = """
    try:
        store.load()
    except StoreLockedError as error:
        sys.exit(f"locked: {error}")
    store.start()
    put(store, message(body=b"theirs"))
    store.shutdown()
"""


# Lock


def test_a_second_process_is_told_that_the_store_is_in_use(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, message(body=b"ours"))
        before = files_below(tmp_path)
        done = run(tmp_path, TRY_TO_OPEN)
        assert done.returncode == 1
        assert done.stderr.startswith("locked: ")
        assert str(tmp_path / "store") in done.stderr
        assert files_below(tmp_path) == before
        put(store, message(body=b"ours again"))
    done = run(tmp_path, TRY_TO_OPEN)
    assert done.returncode == 0, done.stderr
    with open_store(small_config(tmp_path)) as store:
        assert bodies(store) == [b"ours", b"ours again", b"theirs"]


def test_a_second_store_of_the_same_process_is_told_too(tmp_path):
    """The locks of POSIX are per process: without care the second would get it, and its end free it."""
    with open_store(small_config(tmp_path)) as store:
        with pytest.raises(StoreLockedError):
            MessageStore(small_config(tmp_path)).load()
        put(store, message())
        done = run(tmp_path, TRY_TO_OPEN)
        assert done.stderr.startswith("locked: ")


def test_the_lock_is_free_after_a_shutdown_and_after_a_failed_load(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, message())
    with pytest.raises(StoreDamagedError):
        MessageStore(small_config(tmp_path, mapped_file_size_commit_log=8192)).load()
    with open_store(small_config(tmp_path)) as store:
        assert bodies(store) == [b"body"]


def test_the_lock_file_is_javas(tmp_path):
    with open_store(small_config(tmp_path)):
        assert (tmp_path / "store" / "lock").read_bytes() == b"lock"


def test_a_lock_file_that_cannot_be_written_is_not_called_a_lock(tmp_path, monkeypatch):
    def no_room(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_room)
    with pytest.raises(OSError, match="No space left"):
        OsDisk().lock(str(tmp_path / "lock"))


# Abort file


def test_the_abort_file_is_there_while_the_store_is_open(tmp_path):
    abort = tmp_path / "store" / "abort"
    store = MessageStore(small_config(tmp_path))
    report = store.load()
    assert report.clean
    assert not abort.exists()
    store.start()
    assert abort.read_text() == str(os.getpid())
    put(store, message())
    store.shutdown()
    assert not abort.exists()
    store.shutdown()  # a second time is fine


def test_after_a_kill_the_abort_file_stays_and_the_next_start_recovers(tmp_path):
    process = subprocess.Popen(
        program(
            tmp_path,
            """
            store.load()
            store.start()
            put(store, *[message(body=b"%d" % number, KEYS="k") for number in range(100)])
            print("ready", flush=True)
            sys.stdin.read()
            """,
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "store" / "abort").exists()
    with open_store(small_config(tmp_path)) as store:
        assert store.recovery is not None
        assert not store.recovery.clean
        assert bodies(store) == [b"%d" % number for number in range(100)]
        assert len(store.query_message("topic", "k", 64).records) == 64
        assert store.put_message(message()).queue_offset == 100
    assert not (tmp_path / "store" / "abort").exists()


def test_a_store_that_could_not_flush_its_queues_keeps_the_abort_file(tmp_path):
    disk = FaultDisk()
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.load()
    store.start(threads=False)
    put(store, message())
    disk.fail_syncs("consumequeue")
    with pytest.raises(OSError, match="sync failed"):
        store.shutdown()
    assert (tmp_path / "store" / "abort").exists()
    with open_store(small_config(tmp_path)) as again:  # and its lock is free
        assert bodies(again) == [b"body"]


def test_an_index_that_cannot_be_written_at_shutdown_keeps_the_abort_file_and_frees_the_rest(tmp_path):
    disk = FaultDisk()
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.load()
    store.start(threads=False)
    put(store, message(KEYS="k"))
    disk.fail_maps("/index/")
    with pytest.raises(OSError, match="cannot make"):
        store.shutdown()
    assert (tmp_path / "store" / "abort").exists()
    with open_store(small_config(tmp_path)) as again:
        assert len(again.query_message("topic", "k").records) == 1


def test_an_abandoned_store_is_as_after_a_crash(tmp_path):
    store = MessageStore(small_config(tmp_path))
    store.load()
    store.start()
    put(store, message())
    store.abandon()
    assert (tmp_path / "store" / "abort").exists()
    with open_store(small_config(tmp_path)) as again:
        assert bodies(again) == [b"body"]


def test_a_store_loaded_and_never_started_leaves_no_trace_of_a_crash(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, message())
    store = MessageStore(small_config(tmp_path))
    store.load()
    assert bodies(store) == [b"body"]
    store.shutdown()
    assert not (tmp_path / "store" / "abort").exists()


def test_a_slave_that_stops_cleanly_leaves_no_abort_file(tmp_path):
    with open_store(small_config(tmp_path, broker_role=BrokerRole.SLAVE)):
        pass
    assert not (tmp_path / "store" / "abort").exists()


# Restart


def inner_batch() -> InnerMessage:
    body = encode_batch([Message("batch", b"x")] * 3)
    return message("batch", 0, body, sys_flag=sysflag.INNER_BATCH, INNER_NUM="3")


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_messages_offsets_keys_and_queues_survive_a_restart(tmp_path, flush, threads):
    config = small_config(tmp_path, flush_disk_type=flush)
    batch_topics = {"batch"}.__contains__
    with open_store(config, threads=threads, is_batch_topic=batch_topics) as store:
        for number in range(90):
            put(store, message(f"t{number % 3}", number % 2, b"%d" % number + bytes(2000), KEYS=f"k{number}"))
        put(store, inner_batch())
        end = store.commit_log.max_offset
    for _ in range(2):
        with open_store(config, threads=threads, is_batch_topic=batch_topics) as store:
            assert store.recovery is not None
            assert store.recovery.clean
            assert store.recovery.cut_bytes == 0
            assert store.commit_log.max_offset == end
            for topic in range(3):
                for queue in range(2):
                    numbers = [n for n in range(90) if n % 3 == topic and n % 2 == queue]
                    found = [int(body.rstrip(b"\0")) for body in bodies(store, f"t{topic}", queue)]
                    assert found == numbers
            assert store.max_offset("batch", 0) == 3
            assert len(store.query_message("t2", "k50").records) == 1
    with open_store(config, is_batch_topic=batch_topics) as store:
        assert store.put_message(message("t0", 0)).queue_offset == 15
        assert store.put_message(inner_batch()).queue_offset == 3


def test_an_empty_store_can_be_opened_again_and_again(tmp_path):
    for _ in range(3):
        with open_store(small_config(tmp_path), threads=True) as store:
            assert store.commit_log.max_offset == 0
    assert set(files_below(tmp_path / "store")) == {"lock", "checkpoint", "clock"}


def test_the_checkpoint_survives_a_restart(tmp_path):
    clock = ManualClock()
    with open_store(small_config(tmp_path), clock=clock) as store:
        put(store, message())
        clock.advance(77)
        (last,) = put(store, message())
    words = struct.unpack_from(">6q", (tmp_path / "store" / "checkpoint").read_bytes())
    assert words == (clock.now_ms(), clock.now_ms(), 0, 0, words[4], last)
    assert (tmp_path / "store" / "checkpoint").stat().st_size == 4096
    with open_store(small_config(tmp_path), clock=clock) as store:
        assert store.checkpoint.physic_msg_timestamp == clock.now_ms()
    after = struct.unpack_from(">6q", (tmp_path / "store" / "checkpoint").read_bytes())
    assert after[:4] == words[:4]
    assert after[5] == words[5]


def test_a_with_statement_opens_and_closes(tmp_path):
    with MessageStore(small_config(tmp_path)) as store:
        put(store, message())
        assert (tmp_path / "store" / "abort").exists()
        assert store.put_and_wait(message()).ok
    assert not (tmp_path / "store" / "abort").exists()
    assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE


def test_a_store_closed_by_an_exception_is_closed_cleanly(tmp_path):
    def fail() -> None:
        with MessageStore(small_config(tmp_path)) as store:
            put(store, message())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not (tmp_path / "store" / "abort").exists()
    with open_store(small_config(tmp_path)) as again:
        assert bodies(again) == [b"body"]


def test_a_store_that_cannot_start_lets_go_of_its_lock(tmp_path, monkeypatch):
    disk = FaultDisk()

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write", no_room)
    with pytest.raises(OSError, match="No space left"):
        MessageStore(small_config(tmp_path), disk=disk).__enter__()
    assert open_files_below(tmp_path) == []
    with open_store(small_config(tmp_path)) as store:
        put(store, message())


def test_one_store_object_can_be_opened_again(tmp_path):
    store = MessageStore(small_config(tmp_path))
    for _ in range(3):
        with store:
            put(store, message(KEYS="k"))
            assert store.put_and_wait(message()).ok
    with store:
        assert len(bodies(store)) == 6
        assert len(store.query_message("topic", "k").records) == 3


# What is left behind


def fill_all_kinds(store: MessageStore) -> None:
    for number in range(30):
        put(store, message(f"t{number % 3}", 0, bytes(5000), KEYS=f"a{number} b{number} c{number}", TAGS="t"))
    store.get_message("t0", 0, 0, 32)


def test_a_closed_store_has_nothing_open(tmp_path):
    """Not even while someone still holds the store object."""
    store = MessageStore(small_config(tmp_path))
    store.load()
    store.start()
    fill_all_kinds(store)
    assert open_files_below(tmp_path) != []
    store.shutdown()
    assert open_files_below(tmp_path) == []


def test_twenty_openings_leak_no_file_and_no_thread(tmp_path):
    gc.disable()  # nothing may depend on the collector: a broker freezes it
    try:
        with open_store(small_config(tmp_path), threads=True) as store:
            fill_all_kinds(store)
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for _ in range(20):
            with open_store(small_config(tmp_path), threads=True) as store:
                fill_all_kinds(store)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert threading.active_count() == threads
        assert open_files_below(tmp_path) == []
    finally:
        gc.enable()


def test_a_failed_load_leaves_nothing_open(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        fill_all_kinds(store)
    store = MessageStore(small_config(tmp_path, max_index_num=10))
    with pytest.raises(Exception, match="maxIndexNum"):
        store.load()
    assert open_files_below(tmp_path) == []


def test_records_read_before_a_shutdown_stay_readable(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, message(body=b"held"))
        (record,) = store.get_message("topic", 0, 0, 1).records
    assert bytes(record[88:92]) == b"held"


def test_the_first_flush_of_a_file_brings_its_directories_to_the_disk(tmp_path, monkeypatch):
    """A file whose directory is lost in a power cut is lost with it."""
    synced: set[str] = set()
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with open_store(small_config(tmp_path)) as store:
        put(store, message("fresh", 3))
        store.flusher.flush()
        root = tmp_path / "store"
        assert {str(path) for path in (tmp_path, root, root / "commitlog")} <= synced
    queues = root / "consumequeue"
    assert {str(path) for path in (queues, queues / "fresh", queues / "fresh" / "3")} <= synced

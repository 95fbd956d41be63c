"""Flush: when bytes are on the disk, who is told, and what may be seen before."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kourou.message import Message, encode_batch
from kourou.store import BrokerRole, FlushDiskType, MessageStore, MessageStoreConfig, PutMessageStatus
from kourou.store.service import Inbox
from support.stores.fault_disk import FaultDisk
from support.stores.store import (
    LOG_FILE,
    START_MS,
    ManualClock,
    bodies,
    decoded,
    message,
    open_store,
    put,
    small_config,
)

PUT_OK, TIMEOUT = PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT
PAGE = 4096


def sync_config(tmp_path: Path, **overrides: object) -> MessageStoreConfig:
    return small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, **overrides)


@pytest.fixture
def sync_store(tmp_path: Path, clock: ManualClock, disk: FaultDisk) -> Iterator[MessageStore]:
    """SYNC_FLUSH, no threads: a flush happens when the test says so."""
    with open_store(sync_config(tmp_path), clock=clock, disk=disk) as opened:
        yield opened


@pytest.fixture
def async_store(tmp_path: Path, clock: ManualClock, disk: FaultDisk) -> Iterator[MessageStore]:
    """ASYNC_FLUSH, no threads."""
    with open_store(small_config(tmp_path), clock=clock, disk=disk) as opened:
        yield opened


def wait_for(store: MessageStore, condition: Callable[[], bool]) -> None:
    """Let workers speak until a condition holds."""
    for _ in range(500):
        if condition():
            return
        store.wait(0.01)
    raise AssertionError("it did not happen within 5 s")


def send(store: MessageStore, told: list[PutMessageStatus], **properties: Any) -> int:
    """Put a message and note what its sender is told; where its record ends."""
    sent = message(**properties)
    result = store.put_message(sent)
    assert result.ok
    store.when_stored(result, sent, told.append)
    return result.physical_offset + result.wrote_bytes


def flush(store: MessageStore) -> None:
    """The worker flushes, and the owner hears what it has to tell."""
    store.flusher.run_once()
    store.wait(0)


# SYNC_FLUSH


def test_a_sender_is_told_only_when_its_record_is_on_the_disk(sync_store, disk):
    told: list[PutMessageStatus] = []
    end = send(sync_store, told)
    sync_store.wait(0)
    assert (told, disk.count_syncs("commitlog")) == ([], 0)

    sync_store.flusher.run_once()
    assert told == []  # the worker has posted it; the owner of the store calls
    sync_store.wait(0)
    assert told == [PUT_OK]
    assert sync_store.commit_log.files.flushed_where == end
    assert disk.count_syncs("commitlog") == 1


def test_one_sync_answers_all_it_covered(sync_store, disk):
    told: list[PutMessageStatus] = []
    for _ in range(100):
        send(sync_store, told)
    flush(sync_store)
    assert told == [PUT_OK] * 100
    assert disk.count_syncs("commitlog") == 1


def test_waiters_are_answered_in_the_order_of_their_records(sync_store):
    order: list[int] = []
    for number in range(10):
        sent = message()
        result = sync_store.put_message(sent)
        sync_store.when_stored(result, sent, lambda _, number=number: order.append(number))
    flush(sync_store)
    assert order == list(range(10))


def test_a_record_appended_during_a_sync_waits_for_the_next(tmp_path, disk):
    with open_store(sync_config(tmp_path), disk=disk, threads=True) as store:
        told_first: list[PutMessageStatus] = []
        told_second: list[PutMessageStatus] = []
        with disk.held_syncs("commitlog") as gate:
            first_end = send(store, told_first)
            assert gate.reached.wait(5)
            second_ends = [send(store, told_second) for _ in range(5)]
            store.wait(0.05)
            assert (told_first, told_second) == ([], [])
            assert store.commit_log.files.flushed_where < first_end
            gate.open()
            wait_for(store, lambda: bool(told_first) and len(told_second) == 5)
        assert (told_first, told_second) == ([PUT_OK], [PUT_OK] * 5)
        assert store.commit_log.files.flushed_where >= second_ends[-1]
        assert disk.count_syncs("commitlog") == 2  # one for the first, one for the five that came meanwhile


def test_who_need_not_wait_is_told_at_once(sync_store, disk, tmp_path):
    told: list[PutMessageStatus] = []
    send(sync_store, told, WAIT="false")
    with open_store(small_config(tmp_path / "async"), disk=disk) as async_store:
        send(async_store, told)
        assert (told, disk.count_syncs("commitlog")) == ([PUT_OK] * 2, 0)
    refused, stored = message(k="v" * 40_000), message()
    sync_store.when_stored(sync_store.put_message(refused), refused, told.append)
    result = sync_store.put_message(stored)
    sync_store.flusher.flush()
    sync_store.when_stored(result, stored, told.append)
    assert told[2:] == [PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, PUT_OK]


def test_a_batch_waits_for_its_last_record(sync_store):
    batch = message(body=encode_batch([Message("topic", bytes(100)) for _ in range(5)]))
    result = sync_store.put_messages(batch)
    told: list[PutMessageStatus] = []
    sync_store.when_stored(result, batch, told.append)
    assert sync_store.flusher.waiting == 1
    flush(sync_store)
    assert told == [PUT_OK]


def test_a_record_in_a_new_file_is_covered_by_the_flush_of_both(sync_store, disk):
    told: list[PutMessageStatus] = []
    put(sync_store, message(body=bytes(40_000)))
    sent = message(body=bytes(40_000))
    result = sync_store.put_message(sent)
    assert result.physical_offset == LOG_FILE
    sync_store.when_stored(result, sent, told.append)
    flush(sync_store)
    assert told == [PUT_OK]
    assert {Path(path).name for path in disk.syncs if "commitlog" in path} == {
        f"{0:020d}",
        f"{LOG_FILE:020d}",
    }


def test_too_long_a_wait_is_told(sync_store, clock):
    told: list[PutMessageStatus] = []
    send(sync_store, told)
    clock.advance(4999)
    sync_store.flusher.expire()
    sync_store.wait(0)
    assert told == []
    later: list[PutMessageStatus] = []
    send(sync_store, later)
    clock.advance(1)
    sync_store.flusher.expire()
    sync_store.wait(0)
    assert (told, later) == ([TIMEOUT], [])

    sync_store.flusher.run_once()  # the late sync must not tell again
    sync_store.wait(0)
    assert (told, later) == ([TIMEOUT], [PUT_OK])
    assert len(bodies(sync_store)) == 2  # both are stored all the same


def test_a_hanging_disk_does_not_keep_senders_waiting(tmp_path, disk):
    with (
        open_store(sync_config(tmp_path, sync_flush_timeout=150), disk=disk, threads=True) as store,
        disk.held_syncs("commitlog"),
    ):
        told: list[PutMessageStatus] = []
        send(store, told)
        wait_for(store, lambda: bool(told))
        assert told == [TIMEOUT]


def test_consumers_see_a_message_only_when_it_is_on_the_disk(sync_store):
    arrived: list[int] = []
    sync_store.dispatcher.awaited = ["somebody"]
    sync_store.dispatcher.on_arrive = lambda topic, queue, following, *_: arrived.append(following)
    results = [sync_store.put_message(message(body=b"%d" % number, KEYS="k")) for number in range(3)]
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert (bodies(sync_store), arrived) == ([], [])
    assert sync_store.max_offset("topic", 0) == 0
    assert sync_store.max_offset("topic", 0, committed=False) == 3
    assert sync_store.query_message("topic", "k").records == []
    sync_store.flusher.run_once()
    assert (bodies(sync_store), arrived) == ([b"0", b"1", b"2"], [1, 2, 3])
    assert len(sync_store.query_message("topic", "k").records) == 3


def test_with_read_uncommitted_dispatch_does_not_wait_for_the_disk(tmp_path, disk, clock):
    with open_store(sync_config(tmp_path, read_un_committed=True), disk=disk, clock=clock) as store:
        put(store, message())
        store.dispatcher.reput()
        assert bodies(store) == [b"body"]
        assert disk.count_syncs("commitlog") == 0


def test_dispatch_goes_on_over_blank_tails_and_many_kept_requests(sync_store):
    for number in range(40):
        put(sync_store, message(body=b"%d" % number + bytes(5000)))
    assert len(sync_store.commit_log.files.files) > 2
    sync_store.flusher.run_once()
    found = [int(body.rstrip(b"\0")) for body in bodies(sync_store)]
    assert found == list(range(40))


def test_dispatch_reads_the_log_where_requests_were_not_kept(sync_store, monkeypatch):
    monkeypatch.setattr("kourou.store.dispatch.MAX_RECENT_REQUESTS", 7)
    put(sync_store, *[message(body=b"%d" % number, TAGS="t", KEYS=f"k{number}") for number in range(20)])
    put(sync_store, message("SCHEDULE_TOPIC_XXXX", 0, DELAY="2"))
    put(sync_store, *[message(body=b"%d" % number) for number in range(20, 30)])
    sync_store.flusher.run_once()
    assert bodies(sync_store) == [b"%d" % number for number in range(30)]
    assert len(sync_store.query_message("topic", "k3").records) == 1
    queue = sync_store.queues.get("SCHEDULE_TOPIC_XXXX", 0)
    assert queue is not None
    entry = queue.get(0)
    assert entry is not None
    assert entry.tags_code == START_MS + 5000


def test_messages_put_after_their_topic_was_deleted_are_seen_and_those_before_are_not(sync_store):
    """The old ones still wait for the disk when the topic goes; queue offsets begin at 0 again."""
    put(sync_store, *[message(body=b"old") for _ in range(3)])
    sync_store.delete_topics({"topic"})
    put(sync_store, message(body=b"new 0"))
    sync_store.flusher.flush()
    put(sync_store, *[message(body=b"new %d" % number) for number in range(1, 5)])
    sync_store.flusher.flush()
    assert bodies(sync_store) == [b"new %d" % number for number in range(5)]
    assert sync_store.max_offset("topic", 0) == 5


def test_a_queue_whose_next_message_waits_for_the_disk_is_not_cleaned_away(sync_store):
    put(sync_store, message("idle"))
    for _ in range(3):
        put(sync_store, message(body=bytes(60_000)))
    sync_store.flusher.flush()
    sync_store.wait(0)
    put(sync_store, message("idle", 0, b"waits"))
    sync_store.commit_log.files.remove_files(sync_store.commit_log.files.files[:1])
    assert sync_store.queues.clean_expired(sync_store.commit_log.min_offset) == []
    put(sync_store, message("idle", 0, b"waits too"))
    sync_store.flusher.flush()
    assert bodies(sync_store, "idle", offset=1) == [b"waits", b"waits too"]


def test_records_that_expire_before_they_are_dispatched_are_passed_over(sync_store):
    for number in range(6):
        put(sync_store, message(body=b"%d" % number + bytes(30_000)))
    sync_store.commit_log.files.remove_files(sync_store.commit_log.files.files[:1])
    sync_store.flusher.flush()
    sync_store.wait(0)
    assert [body[:1] for body in bodies(sync_store, offset=2)] == [b"2", b"3", b"4", b"5"]
    assert sync_store.dispatcher.behind_bytes == 0


def test_a_slave_shows_what_its_master_wrote(tmp_path):
    """Raw bytes of the master's log, in pieces of any size; the queues come from reading them."""
    with open_store(small_config(tmp_path / "master")) as master:
        put(master, *[message(body=b"%d" % number + bytes(3000), KEYS=f"k{number}") for number in range(50)])
        end = master.commit_log.max_offset
        log = b"".join(bytes(file.view) for file in master.commit_log.files.files)[:end]
        expected = bodies(master)
    config = small_config(tmp_path / "slave", broker_role=BrokerRole.SLAVE)
    with open_store(config) as slave:
        for at in range(0, end, 10_007):
            slave.commit_log.append_raw(at, log[at : at + 10_007])
            slave.dispatcher.reput()
        assert slave.commit_log.max_offset == end
        assert bodies(slave) == expected
        assert len(slave.query_message("topic", "k33").records) == 1
    with open_store(config) as slave:
        assert bodies(slave) == expected


# A disk that fails


def test_a_failed_sync_is_told_and_ends_the_taking_of_messages(tmp_path, disk):
    told: list[PutMessageStatus] = []
    with open_store(sync_config(tmp_path), disk=disk) as store:
        put(store, message(body=b"safe"))
        store.flusher.run_once()
        disk.fail_syncs("commitlog")
        for _ in range(3):
            send(store, told)
        flush(store)
        assert told == [TIMEOUT] * 3
        refused = store.put_message(message())
        assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "disk" in refused.reason
        assert bodies(store) == [b"safe"]

        # After a failed sync the kernel may have dropped the pages: a later success would mean nothing.
        disk.heal()
        synced = disk.count_syncs("commitlog")
        flush(store)
        assert bodies(store) == [b"safe"]
        assert not store.put_message(message()).ok
        assert disk.count_syncs("commitlog") == synced
    assert (tmp_path / "store" / "abort").exists()


def test_after_a_failed_sync_a_new_waiter_is_told_at_once(tmp_path, disk):
    with open_store(sync_config(tmp_path), disk=disk) as store:
        sent = message()
        result = store.put_message(sent)
        disk.fail_syncs("commitlog")
        store.flusher.run_once()
        told: list[PutMessageStatus] = []
        store.when_stored(result, sent, told.append)
        assert told == [TIMEOUT]
        disk.heal()


def test_a_failed_sync_with_async_flush_ends_the_taking_of_messages_too(tmp_path, disk):
    with open_store(small_config(tmp_path), disk=disk) as store:
        put(store, message())
        disk.fail_syncs("commitlog")
        store.flusher.flush()
        assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        disk.heal()
    assert (tmp_path / "store" / "abort").exists()


def test_a_store_with_a_failed_disk_recovers_what_is_there(tmp_path, disk):
    with open_store(sync_config(tmp_path), disk=disk) as store:
        put(store, message(body=b"1"), message(body=b"2"))
        disk.fail_syncs("commitlog")
        store.flusher.run_once()
        disk.heal()
    with open_store(sync_config(tmp_path)) as store:
        assert store.recovery is not None
        assert not store.recovery.clean
        assert bodies(store) == [b"1", b"2"]  # not acknowledged, but the file has them
        put(store, message(body=b"3"))
        store.flusher.flush()
        assert bodies(store) == [b"1", b"2", b"3"]
    assert not (tmp_path / "store" / "abort").exists()


def test_queues_that_cannot_be_written_stop_the_store_but_lose_nothing(tmp_path, disk):
    with open_store(sync_config(tmp_path), disk=disk) as store:
        put(store, message())
        disk.fill("consumequeue")
        flush(store)
        assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        disk.heal()
    with open_store(sync_config(tmp_path)) as store:
        assert bodies(store) == [b"body"]


@pytest.mark.parametrize("flushes_between", [False, True])
def test_what_a_callback_raises_does_not_keep_others_from_being_told(sync_store, flushes_between):
    def careless(_: PutMessageStatus) -> None:
        raise RuntimeError("a bug of whoever waits")

    told: list[PutMessageStatus] = []
    sent = message()
    sync_store.when_stored(sync_store.put_message(sent), sent, careless)
    if flushes_between:
        sync_store.flusher.run_once()
    send(sync_store, told)
    flush(sync_store)
    assert told == [PUT_OK]


# ASYNC_FLUSH


def test_async_flush_waits_for_enough_pages(async_store, disk):
    put(async_store, message(body=bytes(4 * PAGE - 97)))  # ends one byte before the fifth page
    async_store.flusher.run_once()
    assert disk.count_syncs("commitlog") == 0
    put(async_store, message(body=b""))
    async_store.flusher.run_once()
    assert disk.count_syncs("commitlog") == 1
    assert async_store.commit_log.files.flushed_where == async_store.commit_log.max_offset


def test_async_flush_brings_everything_after_the_thorough_interval(async_store, disk, clock):
    put(async_store, message())
    clock.advance(9_999)
    async_store.flusher.run_once()
    assert disk.count_syncs("commitlog") == 0
    clock.advance(1)
    async_store.flusher.run_once()
    assert disk.count_syncs("commitlog") == 1
    put(async_store, message())
    async_store.flusher.run_once()  # the interval begins again
    assert disk.count_syncs("commitlog") == 1


def test_nothing_new_is_not_synced(async_store, disk, clock):
    put(async_store, message())
    async_store.flusher.flush()
    for _ in range(3):
        clock.advance(60_000)
        async_store.flusher.run_once()
    assert disk.count_syncs("commitlog") == 1


def test_a_full_file_is_flushed_whatever_its_pages(async_store, disk):
    async_store.flusher.flush()
    put(async_store, message(body=bytes(LOG_FILE - 3 * PAGE)))
    async_store.flusher.flush()
    put(async_store, message(body=bytes(PAGE * 3)))  # rolls: the first file ends with a blank
    async_store.flusher.run_once()
    assert async_store.commit_log.files.flushed_where == LOG_FILE


def test_queues_are_flushed_by_pages_and_thoroughly_by_time(tmp_path, disk, clock):
    config = small_config(tmp_path, mapped_file_size_consume_queue=20 * 1000)
    with open_store(config, disk=disk, clock=clock) as store:
        flusher = store._queue_flusher
        put(store, *[message() for _ in range(400)])  # 8000 bytes: one page and something
        flusher.run_once()
        assert disk.count_syncs("consumequeue") == 0
        put(store, *[message() for _ in range(20)])  # the second page begins at 8192
        flusher.run_once()
        assert disk.count_syncs("consumequeue") == 1
        put(store, message())
        clock.advance(60_000)
        flusher.run_once()
        assert disk.count_syncs("consumequeue") == 2
        assert disk.count_syncs("checkpoint") == 1


def test_threads_flush_without_being_asked(tmp_path, disk):
    config = small_config(tmp_path, flush_interval_commit_log=10, flush_commit_log_thorough_interval=20)
    with open_store(config, disk=disk, threads=True) as store:
        (_,) = put(store, message())
        wait_for(store, lambda: store.commit_log.files.flushed_where == store.commit_log.max_offset)
        assert disk.count_syncs("commitlog") >= 1


# Checkpoint


def words(tmp_path: Path) -> tuple[int, ...]:
    return struct.unpack_from(">6q", (tmp_path / "store" / "checkpoint").read_bytes())


def test_the_checkpoint_speaks_of_what_is_on_the_disk(async_store, clock, tmp_path):
    put(async_store, message())
    clock.advance(5)
    (second,) = put(async_store, message())
    assert words(tmp_path) == (0, 0, 0, 0, 0, 0)
    async_store.flusher.flush()
    clock.advance(60_000)
    async_store._queue_flusher.run_once()
    assert words(tmp_path)[:3] == (START_MS + 5, START_MS + 5, 0)
    assert words(tmp_path)[5] == second
    clock.advance(7)
    (third,) = put(async_store, message())
    assert words(tmp_path)[5] == second
    async_store.shutdown()
    assert words(tmp_path)[:2] == (START_MS + 60_012, START_MS + 60_012)
    assert words(tmp_path)[5] == third


def test_what_is_dispatched_during_the_flush_of_queues_is_not_in_the_checkpoint(tmp_path, disk, clock):
    with open_store(small_config(tmp_path), disk=disk, clock=clock) as store:
        (first,) = put(store, message())
        store.flusher.flush()
        with disk.held_syncs("consumequeue") as gate:
            thread = threading.Thread(target=store._queue_flusher.flush_all)
            thread.start()
            assert gate.reached.wait(5)
            clock.advance(9)
            put(store, message())
            gate.open()
            thread.join()
        assert words(tmp_path)[1] == START_MS
        assert words(tmp_path)[5] == first


def test_a_full_index_file_moves_the_checkpoint(tmp_path, disk, clock):
    with open_store(small_config(tmp_path, max_index_num=10), disk=disk, clock=clock) as store:
        for number in range(12):  # nine fill the first file
            put(store, message(KEYS=f"k{number}"))
            clock.advance(1000)
        store.index.write_pending()
        store._queue_flusher.flush_all()
        assert words(tmp_path)[2] == START_MS + 8000
        assert disk.count_syncs("/index/") == 1


# TransientStorePool


@pytest.fixture
def pool_config(tmp_path: Path) -> MessageStoreConfig:
    return small_config(tmp_path, transient_store_pool_enable=True, transient_store_pool_size=2)


def test_with_a_pool_a_message_is_seen_only_when_committed(pool_config, clock):
    with open_store(pool_config, clock=clock) as store:
        (offset,) = put(store, message(KEYS="k"))
        assert bodies(store) == []
        assert store.look_message(offset) is None
        assert store.commit_log.max_offset == 0
        log_file = Path(store.commit_log.files.files[0].path)
        assert not any(log_file.read_bytes())
        store._committer.run_once()
        assert bodies(store) == [b"body"]
        assert store.look_message(offset) is not None
        assert any(log_file.read_bytes())


def test_commit_waits_for_pages_or_for_its_interval(pool_config, clock):
    with open_store(pool_config, clock=clock) as store:
        store._committer.run_once()
        put(store, message())
        store._committer.run_once()
        assert bodies(store) == []
        clock.advance(200)
        store._committer.run_once()
        assert bodies(store) == [b"body"]
        put(store, message(body=bytes(5 * PAGE)))
        store._committer.run_once()
        assert len(bodies(store)) == 2


def test_with_a_pool_everything_survives_a_clean_restart(pool_config):
    sent = [b"%d" % number + bytes(5000) for number in range(60)]  # five files, two buffers
    with open_store(pool_config) as store:
        for body in sent:
            put(store, message(body=body))
        store._committer.run_once()
        assert bodies(store) == sent
        put(store, message(body=b"not committed yet"))
    pool_config.transient_store_pool_enable = False
    with open_store(pool_config) as store:
        assert store.recovery is not None
        assert (store.recovery.clean, store.recovery.cut_bytes) == (True, 0)
        assert bodies(store) == [*sent, b"not committed yet"]


@pytest.mark.parametrize("commits", [False, True])
def test_buffers_of_full_files_are_used_again_and_without_one_the_file_is_written_directly(
    pool_config, commits
):
    with open_store(pool_config) as store:
        assert store._pool is not None
        assert store._pool.available == 2
        for number in range(40):
            put(store, message(body=b"%d" % number + bytes(5000)))
            if commits:
                store._committer.run_once()
                assert store._pool.available == 1
        assert len(store.commit_log.files.files) == 4
        store._committer.run_once()
        assert [int(body.rstrip(b"\0")) for body in bodies(store)] == list(range(40))


def test_with_a_pool_and_threads_all_is_stored(pool_config):
    sent = [b"%d" % number + bytes(1000) for number in range(500)]
    with open_store(pool_config, threads=True) as store:
        for body in sent:
            put(store, message(body=body))
        wait_for(store, lambda: store.max_offset("topic", 0) == 500)
        assert bodies(store) == sent
    with open_store(pool_config) as store:
        assert bodies(store) == sent


def test_two_threads_that_commit_give_a_buffer_back_once(pool_config, monkeypatch):
    """The flush of SYNC_FLUSH commits, and so does the commit service."""
    with open_store(pool_config) as store:
        pool = store._pool
        assert pool is not None
        put(store, message(body=bytes(LOG_FILE - 200)))
        put(store, message(body=b"next"))
        assert pool.available == 0
        first = store.commit_log.files.files[0]
        together = threading.Barrier(2)

        def meet(then: Callable[..., None]) -> Callable[..., None]:
            def wait_for_the_other(*args: object) -> None:
                with contextlib.suppress(threading.BrokenBarrierError):
                    together.wait(0.2)  # in vain, if there is a lock
                then(*args)

            return wait_for_the_other

        monkeypatch.setattr(first.mapping, "write", meet(first.mapping.write))
        monkeypatch.setattr(pool, "give_back", meet(pool.give_back))
        threads = [threading.Thread(target=store.commit_log.files.commit) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.available == 1


def test_with_a_pool_and_sync_flush_the_sender_is_told_after_commit_and_sync(tmp_path, disk):
    config = sync_config(tmp_path, transient_store_pool_enable=True, transient_store_pool_size=2)
    with open_store(config, disk=disk) as store:
        told: list[PutMessageStatus] = []
        send(store, told)
        flush(store)
        assert (told, disk.count_syncs("commitlog")) == ([PUT_OK], 1)
        assert bodies(store) == [b"body"]
        assert any(Path(store.commit_log.files.files[0].path).read_bytes())


# All services at once


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_under_load_every_message_answered_ok_is_read_in_order(tmp_path, flush, pool):
    config = small_config(
        tmp_path, flush_disk_type=flush, transient_store_pool_enable=pool, transient_store_pool_size=3,
        flush_interval_commit_log=1, commit_interval_commit_log=1, flush_interval_consume_queue=1,
        clean_resource_interval=1, flush_consume_queue_thorough_interval=5, max_index_num=400,
    )  # fmt: skip
    topics, count = 5, 4000
    answered: list[int] = []
    with open_store(config, threads=True) as store:
        for number in range(count):
            sent = message(f"t{number % topics}", number % 2, b"%d" % number + bytes(300), KEYS=f"k{number}")
            result = store.put_message(sent)
            assert result.ok, result

            def told(status: PutMessageStatus, number: int = number) -> None:
                assert status is PUT_OK
                answered.append(number)

            store.when_stored(result, sent, told)
        wait_for(store, lambda: len(answered) == count and store.dispatcher.behind_bytes == 0)
        wait_for(store, lambda: sum(map(len, all_numbers(store, topics).values())) == count)
        assert sorted(answered) == list(range(count))
        assert all(numbers == sorted(numbers) for numbers in all_numbers(store, topics).values())
        assert store.refusal is None
    assert not (tmp_path / "store" / "abort").exists()
    with open_store(config) as store:
        assert store.recovery is not None
        assert (store.recovery.clean, store.recovery.cut_bytes) == (True, 0)
        found = all_numbers(store, topics)
        assert sorted(number for numbers in found.values() for number in numbers) == list(range(count))
        for number in range(0, count, 97):
            assert len(store.query_message(f"t{number % topics}", f"k{number}").records) == 1


def all_numbers(store: MessageStore, topics: int) -> dict[tuple[int, int], list[int]]:
    return {
        (topic, queue): [int(body.rstrip(b"\0")) for body in bodies(store, f"t{topic}", queue)]
        for topic in range(topics)
        for queue in range(2)
    }


def test_under_load_on_a_full_disk_what_is_left_is_whole(tmp_path, disk):
    """Retention deletes as fast as it can while messages come in; flush and dispatch must not stumble."""
    disk.ratio = 0.88
    config = small_config(tmp_path, flush_interval_commit_log=1, clean_resource_interval=1)
    with open_store(config, disk=disk, threads=True) as store:
        for number in range(3000):
            put(store, message(body=b"%d" % number + bytes(2000), KEYS=f"k{number}"))
            if number % 20 == 0:
                found = consumed(store)  # files may go while it reads: then it goes on behind them
                assert found == sorted(set(found))
                assert found[-1] == number
        wait_for(store, lambda: len(store.commit_log.files.files) == 1)
        assert store.refusal is None
        assert not store.flusher.failed
    assert not (tmp_path / "store" / "abort").exists()
    with open_store(config) as store:
        first = store.min_offset("topic", 0)
        assert first > 2000
        assert consumed(store) == list(range(first, 3000))


def consumed(store: MessageStore) -> list[int]:
    """What a consumer gets that begins with the first message there is and goes where it is sent."""
    offset, found = store.min_offset("topic", 0), list[int]()
    while offset < store.max_offset("topic", 0):
        result = store.get_message("topic", 0, offset, 32)
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
        found += [int(bytes(item.body).rstrip(b"\0")) for item in decoded(result)]
    return found


# put_and_wait


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("sync", [False, True])
def test_put_and_wait_comes_back_with_the_answer(tmp_path, disk, sync, threads):
    config = sync_config(tmp_path) if sync else small_config(tmp_path)
    with open_store(config, disk=disk, threads=threads) as store:
        result = store.put_and_wait(message())
        assert result.ok
        assert disk.count_syncs("commitlog") == (1 if sync else 0)
        assert bodies(store) == [b"body"]
        assert store.put_and_wait(message("..")).status is PutMessageStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize("threads", [False, True])
def test_put_and_wait_tells_of_a_failed_disk(tmp_path, disk, threads):
    with open_store(sync_config(tmp_path), disk=disk, threads=threads) as store:
        disk.fail_syncs("commitlog")
        assert store.put_and_wait(message()).status is TIMEOUT
        assert store.put_and_wait(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        disk.heal()


def test_a_broker_gets_answers_through_its_own_loop(tmp_path):
    """With `post` given, workers' results wait there and nowhere else."""
    loop = Inbox()
    store = MessageStore(sync_config(tmp_path), post=loop.post)
    store.load()
    store.start()
    try:
        told: list[PutMessageStatus] = []
        send(store, told)
        while not told:
            loop.wait(5)
        assert told == [PUT_OK]
        assert bodies(store) == [b"body"]
    finally:
        store.shutdown()


def test_shutdown_with_an_own_loop_dispatches_what_was_flushed(tmp_path):
    store = MessageStore(sync_config(tmp_path), post=Inbox().post)
    store.load()
    store.start(threads=False)
    put(store, message(KEYS="k"))
    store.shutdown()
    assert not (tmp_path / "store" / "abort").exists()
    with open_store(sync_config(tmp_path)) as again:
        assert bodies(again) == [b"body"]
        assert len(again.query_message("topic", "k").records) == 1


def test_times_until_answered_are_in_the_statistics(sync_store, clock):
    told: list[PutMessageStatus] = []
    send(sync_store, told)
    clock.advance(30)
    flush(sync_store)
    assert told == [PUT_OK]
    assert sync_store.stats.put_time_max_ms == 30
    assert sync_store.stats.put_distribution[2] == 1  # 10 to 50 ms


def test_recovery_begins_no_later_than_what_is_on_the_disk_of_the_log(async_store):
    """Given queues on the disk whose newest records are not, then the checkpoint vouches for the others only:
    a power cut may take them, and recovery has to find out."""
    put(async_store, message())
    (second,) = put(async_store, message())
    async_store.flusher.flush()
    async_store._queue_flusher.flush_all()
    flushed = async_store.commit_log.files.flushed_where
    assert async_store.checkpoint.logics_physical_offset == second < flushed
    put(async_store, message(), message())
    async_store._queue_flusher.flush_all()
    assert async_store.checkpoint.logics_physical_offset == flushed

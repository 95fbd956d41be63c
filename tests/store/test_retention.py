"""Retention: which files go, when, and what follows them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.store import GetMessageStatus, MessageStore, PutMessageStatus
from support.stores.fault_disk import FaultDisk
from support.stores.store import (
    LOG_FILE,
    START_MS,
    ManualClock,
    bodies,
    files_below,
    message,
    open_store,
    put,
    small_config,
)

HOUR_MS = 3_600_000
RESERVED_MS = 72 * HOUR_MS
QUIET_HOUR = (time.localtime(START_MS / 1000).tm_hour + 12) % 24  # not the hour of START_MS


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: FaultDisk) -> Iterator[MessageStore]:
    """Six log files of two messages each, all last written at START_MS."""
    with filled(tmp_path, clock, disk) as opened:
        yield opened


@contextmanager
def filled(tmp_path: Path, clock: ManualClock, disk: FaultDisk, **overrides: Any) -> Iterator[MessageStore]:
    settings = {"delete_when": f"{QUIET_HOUR:02d}", **overrides}
    with open_store(small_config(tmp_path, **settings), clock=clock, disk=disk) as store:
        put(store, *[message(body=b"%d" % number + bytes(30_000), KEYS=f"k{number}") for number in range(12)])
        touch(store, START_MS)
        yield store


def touch(store: MessageStore, modified_ms: int) -> None:
    for file in store.commit_log.files.files:
        os.utime(file.path, (modified_ms / 1000, modified_ms / 1000))


def log_files(store: MessageStore) -> list[int]:
    return [file.base // LOG_FILE for file in store.commit_log.files.files]


# When


def test_nothing_goes_before_its_time(store, clock):
    clock.advance(RESERVED_MS * 10)
    store.retention.run_once()
    assert log_files(store) == [0, 1, 2, 3, 4, 5]


def test_in_the_hour_of_deletion_what_has_expired_goes(store, clock):
    clock.advance(RESERVED_MS - 1)
    store.config.delete_when = f"{time.localtime(clock.now_ms() / 1000).tm_hour:02d}"
    store.retention.run_once()
    assert log_files(store) == [0, 1, 2, 3, 4, 5]
    clock.advance(1)
    store.config.delete_when = f"{time.localtime(clock.now_ms() / 1000).tm_hour:02d}"
    store.retention.run_once()
    assert log_files(store) == [5]  # never the last


YEAR_MS = 365 * 24 * HOUR_MS


def delete_at_any_hour(store: MessageStore) -> None:
    store.config.delete_when = ";".join(map(str, range(24)))


ALL = [0, 1, 2, 3, 4, 5]


def assert_go_after(store: MessageStore, clock: ManualClock, ms: int, before: list[int] = ALL) -> None:
    """All files but the last go when so much time has passed, and not a millisecond before."""
    clock.advance(ms - 1)
    store.retention.run_once()
    assert log_files(store) == before
    clock.advance(1)
    store.retention.run_once()
    assert log_files(store) == before[-1:]


@contextmanager
def reopened(
    tmp_path: Path, clock: ManualClock, disk: FaultDisk, boot: str = "second"
) -> Iterator[MessageStore]:
    """The store after another start of the machine, which deletes at any hour."""
    clock.boot = boot
    with open_store(small_config(tmp_path), clock=clock, disk=disk) as store:
        delete_at_any_hour(store)
        yield store


def expire(store: MessageStore, clock: ManualClock) -> None:
    """Have the time pass that files are kept, and an operator ask for a deletion."""
    clock.advance(RESERVED_MS)
    store.retention.delete_now()
    store.retention.run_once()


def test_a_clock_that_is_a_year_ahead_for_a_while_deletes_nothing(store, clock):
    """Given log files of today, when the clock is set a year ahead, then they are of today all the same, and
    go in their time after it is set back."""
    delete_at_any_hour(store)
    clock.set_by(YEAR_MS)
    clock.advance(HOUR_MS)
    store.retention.run_once()
    assert log_files(store) == ALL
    clock.set_by(-YEAR_MS)
    assert_go_after(store, clock, RESERVED_MS - HOUR_MS)


def test_files_of_a_clock_that_was_ahead_go_in_their_time(tmp_path, clock, disk):
    """Given log files that were written while the clock was a year ahead, when it is right again, then they
    do not stay for a year."""
    clock.set_by(YEAR_MS)
    with filled(tmp_path, clock, disk) as store:
        touch(store, clock.now_ms())
        store.retention.run_once()
        delete_at_any_hour(store)
        clock.set_by(-YEAR_MS)
        assert_go_after(store, clock, RESERVED_MS)


@pytest.mark.parametrize("boot", ["first", "second"])
def test_a_clock_that_was_set_ahead_while_the_store_was_closed_deletes_nothing(tmp_path, clock, disk, boot):
    """Given log files of today, when the store is opened by a clock that is ten years ahead, which a machine
    that starts has too, then they stay for as long as they should."""
    with filled(tmp_path, clock, disk):
        pass
    clock.set_by(10 * YEAR_MS)
    with reopened(tmp_path, clock, disk, boot) as store:
        for _ in range(72):
            store.retention.run_once()
            assert log_files(store) == ALL
            clock.advance(HOUR_MS)
        store.retention.run_once()
        assert log_files(store) == [5]


@pytest.mark.parametrize("ratio", [0.1, 0.76, 0.86])
def test_a_machine_that_was_off_for_a_month_deletes_what_is_old_after_a_while(tmp_path, clock, disk, ratio):
    """Given log files of a month ago, when the machine starts and runs for the time that files are kept, then
    they go; at once if the disk has no room for them."""
    with filled(tmp_path, clock, disk):
        pass
    clock.advance(30 * 24 * HOUR_MS)
    disk.ratio = ratio
    with reopened(tmp_path, clock, disk) as store:
        assert_go_after(store, clock, RESERVED_MS, [5] if ratio > 0.85 else ALL)


def test_files_that_lost_their_times_are_as_old_as_their_records(store, clock):
    """Given log files that a restore left with times of 1970, then what their records say counts."""
    delete_at_any_hour(store)
    touch(store, 0)
    assert_go_after(store, clock, RESERVED_MS)


def test_what_was_stored_by_a_clock_that_was_ahead_protects_nothing_for_ever(tmp_path, clock, disk):
    """Given log files of a clock ten years ahead, and no note of it, when it is right again and more is
    stored, then they go with what came after them."""
    clock.set_by(10 * YEAR_MS)
    with filled(tmp_path, clock, disk) as store:
        touch(store, clock.now_ms())
    clock.set_by(-10 * YEAR_MS)
    (tmp_path / "store" / "clock").unlink()
    with reopened(tmp_path, clock, disk) as store:
        put(store, *[message(body=bytes(30_000)) for _ in range(6)])
        for file in store.commit_log.files.files[6:]:
            os.utime(file.path, (clock.now_ms() / 1000, clock.now_ms() / 1000))
        assert_go_after(store, clock, RESERVED_MS, list(range(9)))


def test_a_clock_that_is_put_right_after_a_start_of_the_machine_deletes_nothing(tmp_path, clock, disk):
    with filled(tmp_path, clock, disk):
        pass
    clock.set_by(YEAR_MS)
    with reopened(tmp_path, clock, disk) as store:
        clock.set_by(-YEAR_MS)
        clock.advance(RESERVED_MS - 1)
        store.retention.run_once()
        assert log_files(store) == ALL


def test_a_machine_that_starts_again_with_a_clock_that_is_not_trusted_yet_deletes_nothing(
    tmp_path, clock, disk
):
    """Given a machine that started with a clock a year ahead, when it starts again and again, then what the
    clock says is believed when it ran for as long as files are kept, all starts together."""
    with filled(tmp_path, clock, disk):
        pass
    clock.set_by(YEAR_MS)
    for number in range(36):
        with reopened(tmp_path, clock, disk, f"boot {number}") as store:
            store.retention.run_once()
            assert log_files(store) == ALL
            clock.advance(2 * HOUR_MS)
            put(store, message())
        clock.advance(HOUR_MS)
    with reopened(tmp_path, clock, disk, "boot 35") as store:
        store.retention.run_once()
        assert log_files(store) == [5]


def test_an_operator_may_say_that_the_clock_is_right(tmp_path, clock, disk):
    """Given a machine that was off for a year, when a deletion is asked for, then what has expired goes."""
    with filled(tmp_path, clock, disk):
        pass
    clock.advance(YEAR_MS)
    clock.boot = "second"
    with open_store(small_config(tmp_path), clock=clock, disk=disk) as store:
        store.retention.delete_now()
        store.retention.run_once()
        assert log_files(store) == [5]


def test_several_hours_of_deletion(store, clock):
    clock.advance(RESERVED_MS)
    now = time.localtime(clock.now_ms() / 1000).tm_hour
    store.config.delete_when = f"{(now + 5) % 24:02d};{now:02d}"
    assert store.retention.delete_log_files() == 5


def test_the_reserved_time_counts_from_the_last_write(store, clock):
    clock.advance(RESERVED_MS)
    files = store.commit_log.files.files
    os.utime(files[2].path, (START_MS / 1000 + 1, START_MS / 1000 + 1))
    store.retention.delete_now()
    assert store.retention.delete_log_files() == 2
    assert log_files(store) == [2, 3, 4, 5]  # what is behind a file that stays, stays


def test_a_deletion_by_hand_is_tried_for_some_rounds(store, clock):
    store.retention.delete_now()
    for _ in range(20):
        store.retention.run_once()  # nothing has expired yet
    clock.advance(RESERVED_MS)
    store.retention.run_once()
    assert log_files(store) == [0, 1, 2, 3, 4, 5]
    store.retention.delete_now()
    for _ in range(19):
        clock.time_ms = START_MS
        store.retention.run_once()
    clock.advance(RESERVED_MS)
    store.retention.run_once()
    assert log_files(store) == [5]


def test_at_most_a_batch_of_files_goes_in_one_round(store, clock):
    store.config.delete_file_batch_max = 2
    expire(store, clock)
    assert log_files(store) == [2, 3, 4, 5]
    store.retention.run_once()
    assert log_files(store) == [4, 5]


def test_a_log_file_that_someone_else_removed_does_not_stop_retention(store, clock):
    os.unlink(store.commit_log.files.files[0].path)
    expire(store, clock)
    assert log_files(store) == [5]


# How full the disk is


def test_above_the_first_ratio_what_has_expired_goes_at_any_hour(store, disk, clock):
    disk.ratio = 0.85
    assert store.retention.delete_log_files() == 0  # what has not stays
    assert store.put_message(message()).ok
    touch(store, START_MS)
    disk.ratio = 0.75
    clock.advance(RESERVED_MS)
    assert store.retention.delete_log_files() == 0
    disk.ratio = 0.76
    assert store.retention.delete_log_files() == 5


def test_above_the_second_ratio_files_go_before_their_time_unless_the_operator_does_not_want_that(
    store, disk
):
    disk.ratio = 0.89
    store.config.clean_file_forcibly_enable = False
    assert store.retention.delete_log_files() == 0
    store.config.clean_file_forcibly_enable = True
    disk.ratio = 0.86
    store.config.delete_file_batch_max = 3
    assert store.retention.delete_log_files() == 3
    assert log_files(store) == [3, 4, 5]
    assert store.put_message(message()).ok


def test_above_the_third_ratio_no_message_is_taken_until_it_is_below_the_second(store, disk):
    """As in Java: else the store would open and close with each file."""
    disk.ratio = 0.91
    store.retention.run_once()
    assert log_files(store) == [5]
    refused = store.put_message(message())
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "full" in refused.reason
    assert len(bodies(store, offset=10)) == 2  # reading goes on
    disk.ratio = 0.87
    store.retention.run_once()
    assert not store.put_message(message()).ok
    disk.ratio = 0.85
    store.retention.run_once()
    assert store.put_message(message()).ok


def test_room_on_the_disk_does_not_reopen_a_store_that_stopped_for_another_reason(store, disk):
    put(store, message())
    disk.fail_syncs("commitlog")
    store.flusher.flush()
    store.wait(0)
    disk.heal()
    disk.ratio = 0.95
    store.retention.run_once()
    disk.ratio = 0.10
    store.retention.run_once()
    refused = store.put_message(message())
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "full" not in refused.reason


def test_the_disk_of_the_queues_counts_too(tmp_path, clock, disk):
    with filled(tmp_path, clock, disk, store_path_commit_log=str(tmp_path / "log")) as store:
        disk.ratio = lambda path: 0.1 if path == str(tmp_path / "log") else 0.95
        assert store.retention.disk_state().full
        disk.ratio = lambda path: 0.95 if path == str(tmp_path / "log") else 0.1
        assert store.retention.disk_state().full
        disk.ratio = 0.5
        assert not store.retention.disk_state().reclaim


@pytest.mark.parametrize(
    ("setting", "ratio", "expected"),
    [
        ({"disk_space_warning_level_ratio": 99}, 0.91, "full"),  # no higher than 90
        ({"disk_space_warning_level_ratio": 10}, 0.34, ""),  # no lower than 35
        ({"disk_space_warning_level_ratio": 10}, 0.36, "full"),
        ({"disk_space_clean_forcibly_ratio": 99}, 0.86, "forcibly"),  # no higher than 85
        ({"disk_space_clean_forcibly_ratio": 10}, 0.29, ""),  # no lower than 30
        ({"disk_space_clean_forcibly_ratio": 10}, 0.31, "forcibly"),
    ],
)
def test_ratios_are_kept_within_bounds(store, disk, setting, ratio, expected):
    for name, value in setting.items():
        setattr(store.config, name, value)
    disk.ratio = ratio
    state = store.retention.disk_state()
    assert (state.full, state.forcibly and not state.full) == (expected == "full", expected == "forcibly")


# What follows


def test_queues_and_index_follow_the_log(tmp_path, clock, disk):
    with filled(tmp_path, clock, disk, max_index_num=5, mapped_file_size_consume_queue=60) as store:
        assert len(store.query_message("topic", "k0").records) == 1
        queue = store.queues.get("topic", 0)
        assert queue is not None
        assert (len(queue.files.files), len(store.index.files)) == (4, 3)
        clock.advance(RESERVED_MS)
        store.config.delete_file_batch_max = 4
        store.retention.delete_now()
        store.retention.run_once()

        assert log_files(store) == [4, 5]
        assert store.commit_log.min_offset == 4 * LOG_FILE
        assert (store.min_offset("topic", 0), store.max_offset("topic", 0)) == (8, 12)
        assert [file.base // 20 for file in queue.files.files] == [6, 9]
        assert [file.begin_offset for file in store.index.files] == [4 * LOG_FILE]
        result = store.get_message("topic", 0, 3, 32)
        assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 8)
        assert [body.rstrip(b"\0") for body in bodies(store, offset=8)] == [b"8", b"9", b"10", b"11"]
        assert store.query_message("topic", "k3").records == []
        assert len(store.query_message("topic", "k9").records) == 1
    assert len(files_below(tmp_path / "store" / "commitlog")) == 2
    with open_store(small_config(tmp_path, max_index_num=5, mapped_file_size_consume_queue=60)) as store:
        assert (store.min_offset("topic", 0), store.max_offset("topic", 0)) == (8, 12)
        assert len(bodies(store, offset=8)) == 4


def test_queues_are_not_looked_at_while_the_log_begins_where_it_did(store, clock, monkeypatch):
    calls: list[int] = []

    def delete_expired(offset: int) -> int:
        calls.append(offset)
        return 0

    monkeypatch.setattr(store.queues, "delete_expired", delete_expired)
    store.retention.run_once()
    clock.advance(RESERVED_MS)
    store.retention.delete_now()
    store.retention.run_once()
    store.retention.run_once()
    assert calls == [5 * LOG_FILE]


def test_a_queue_without_messages_in_the_log_keeps_its_offset_until_it_is_removed(store, clock):
    put(store, message("idle"), message("rmq_sys_idle"))  # lie in the last file; then two files more
    put(store, *[message(body=bytes(60_000)) for _ in range(2)])
    touch(store, START_MS)
    expire(store, clock)
    assert (store.min_offset("idle", 0), store.max_offset("idle", 0)) == (1, 1)
    assert store.queues.clean_expired(store.commit_log.min_offset) == ["idle-0"]
    assert store.queues.get("idle", 0) is None
    assert store.put_message(message("idle")).queue_offset == 0
    assert store.put_message(message("rmq_sys_idle")).queue_offset == 1
    assert bodies(store, "idle") == bodies(store, "rmq_sys_idle", offset=1) == [b"body"]


def test_a_reader_keeps_its_records_when_their_file_goes(store, clock):
    record = store.get_message("topic", 0, 0, 1).records[0]
    expire(store, clock)
    assert bytes(record[88:89]) == b"0"


# A file that cannot be removed


def test_a_hanged_file_is_not_read_and_deleted_again(store, disk, clock):
    clock.advance(RESERVED_MS)
    disk.refuse_removes(f"{0:020d}")
    store.retention.delete_now()
    store.retention.run_once()
    assert log_files(store) == [0, 1, 2, 3, 4, 5]
    assert store.commit_log.min_offset == LOG_FILE
    assert store.min_offset("topic", 0) == 2
    assert store.look_message(0) is None

    disk.heal()
    store.retention._manual_rounds = 0
    clock.advance(119_999)
    store.retention.run_once()
    assert log_files(store) == [0, 1, 2, 3, 4, 5]
    clock.advance(1)
    store.retention.run_once()
    assert log_files(store) == [1, 2, 3, 4, 5]


def test_files_behind_a_hanged_one_stay_in_order(store, disk, clock):
    disk.refuse_removes(f"{LOG_FILE:020d}")
    expire(store, clock)
    assert log_files(store) == [1, 2, 3, 4, 5]
    disk.heal()
    store.retention.run_once()
    assert log_files(store) == [5]


def test_retention_runs_in_the_background(tmp_path, disk):
    config = small_config(tmp_path, clean_resource_interval=10)
    with open_store(config, disk=disk, threads=True) as store:
        put(store, *[message(body=bytes(30_000)) for _ in range(12)])
        disk.ratio = 0.88
        for _ in range(500):
            if len(store.commit_log.files.files) == 1 and store.min_offset("topic", 0) == 10:
                break
            store.wait(0.01)
        assert log_files(store) == [5]
        assert (store.min_offset("topic", 0), len(bodies(store, offset=10))) == (10, 2)

"""A clock that is set: what lasts lasts as long, and intervals come when they should."""

from __future__ import annotations

import pytest

from kourou.clock import SystemClock
from support.stores.store import ManualClock, message, open_store, put, small_config

HOUR_MS = 3_600_000


@pytest.mark.parametrize("ms", [-HOUR_MS, HOUR_MS])
def test_the_log_is_flushed_in_time_after_the_clock_was_set(tmp_path, ms):
    """Given a little to flush, when the clock is set by an hour, then it is flushed in its interval."""
    clock = ManualClock()
    with open_store(small_config(tmp_path), clock=clock) as store:
        store.flusher.run_once()
        put(store, message())
        clock.set_by(ms)
        store.flusher.run_once()
        assert store.commit_log.files.flushed_where == 0
        clock.advance(60_000)
        store.flusher.run_once()
        store._queue_flusher.run_once()
        assert store.commit_log.files.flushed_where == store.commit_log.max_offset
        assert store.checkpoint.logics_msg_timestamp == store.commit_log.files.store_timestamp > 0


def test_a_sender_that_waits_for_the_disk_is_not_told_too_early(tmp_path):
    """Given a send that waits for the disk, when the clock is set an hour ahead, then it still waits."""
    clock = ManualClock()
    with open_store(small_config(tmp_path), clock=clock) as store:
        put(store, message())
        told: list[object] = []
        store.flusher.wait_for(store.commit_log.max_offset, told.append)
        clock.set_by(HOUR_MS)
        store.flusher.expire()
        store.wait(0)
        assert told == []
        clock.advance(store.config.sync_flush_timeout)
        store.flusher.expire()
        store.wait(0)
        assert len(told) == 1


def test_elapsed_time_counts_from_the_same_moment_in_each_process_of_a_boot():
    clock = SystemClock()
    first, second = clock.elapsed_ms(), clock.elapsed_ms()
    assert 0 < first <= second
    assert clock.boot_id() == clock.boot_id()

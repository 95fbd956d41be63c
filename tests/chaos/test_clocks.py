"""A clock that is set back: what comes by the clock comes all the same."""

from __future__ import annotations

from pathlib import Path

from support.store import ManualClock, message, open_store, put, small_config

HOUR_MS = 3_600_000


def test_the_log_is_flushed_in_time_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """Given a little to flush, when the clock goes back by an hour, then it does not wait for an hour."""
    clock = ManualClock()
    with open_store(small_config(tmp_path), clock=clock) as store:
        store.flusher.run_once()
        put(store, message())
        clock.advance(-HOUR_MS)
        store.flusher.run_once()
        store._queue_flusher.run_once()
        assert store.commit_log.files.flushed_where == store.commit_log.max_offset
        assert store.checkpoint.logics_msg_timestamp == store.commit_log.files.store_timestamp > 0

"""The steps of a clock: what records say of time after it was set, and what a file remembers of it."""

from __future__ import annotations

import pytest

from kourou.store import MessageStore
from kourou.store.clock_steps import MAX_STEPS, STEP_MS
from support.stores.store import START_MS, message, open_store, put, small_config

HOUR_MS = 3_600_000


def stored(store: MessageStore) -> int:
    """Store a record, as one that says when something is due is stored; where it is."""
    store.look_at_clock()
    (where,) = put(store, message())
    store.look_at_clock()
    return where


def test_what_a_record_says_is_by_the_clock_of_the_moment_it_was_stored(tmp_path, clock):
    with open_store(small_config(tmp_path), clock=clock) as store:
        first = stored(store)
        clock.set_by(HOUR_MS)
        second = stored(store)
        clock.set_by(-3 * HOUR_MS)
        third = stored(store)
        steps = store.look_at_clock()
        assert steps.today(START_MS, first) == START_MS - 2 * HOUR_MS
        assert steps.today(START_MS, second) == START_MS - 3 * HOUR_MS
        assert steps.today(START_MS, third) == START_MS


def test_steps_are_remembered_by_the_next_process(tmp_path, clock):
    with open_store(small_config(tmp_path), clock=clock) as store:
        first = stored(store)
        clock.set_by(HOUR_MS)
        second = stored(store)
    clock.set_by(HOUR_MS)
    with open_store(small_config(tmp_path), clock=clock) as store:
        assert store.clock_steps.today(0, first) == 2 * HOUR_MS
        assert store.clock_steps.today(0, second) == HOUR_MS


def test_a_clock_that_is_put_right_after_more_starts_of_the_machine_was_never_ahead(tmp_path, clock):
    with open_store(small_config(tmp_path), clock=clock) as store:
        first = stored(store)
    for boot, set_by_ms in (("second", HOUR_MS), ("third", 0), ("fourth", -HOUR_MS)):
        clock.boot = boot
        clock.set_by(set_by_ms)
        with open_store(small_config(tmp_path), clock=clock) as store:
            assert store.clock_steps.today(START_MS, first) == START_MS


def test_a_clock_that_ticks_is_not_set(tmp_path, clock):
    with open_store(small_config(tmp_path), clock=clock) as store:
        first = stored(store)
        for _ in range(100):
            clock.advance(HOUR_MS)
            clock.set_by(STEP_MS - 1)
            clock.set_by(1 - STEP_MS)
            store.look_at_clock()
        assert store.clock_steps.today(START_MS, first) == START_MS


def test_what_was_stored_around_a_step_is_taken_for_what_waits_longer(tmp_path, clock):
    """Given records between two looks, then it is not known which clock they went by."""
    with open_store(small_config(tmp_path), clock=clock) as store:
        (first,) = put(store, message())
        clock.set_by(-HOUR_MS)
        store.look_at_clock()
        assert store.clock_steps.today(START_MS, first) == START_MS
        clock.set_by(HOUR_MS)
        (second,) = put(store, message())
        store.look_at_clock()
        assert store.clock_steps.today(START_MS, second) == START_MS + HOUR_MS


def test_a_file_that_cannot_be_written_is_written_later(tmp_path, clock, disk, monkeypatch):
    """Given a disk that takes nothing, when the clock is set, then that is known, and on the disk later."""
    with open_store(small_config(tmp_path), clock=clock, disk=disk) as store:
        first = stored(store)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "rename", refuse)
            clock.set_by(-HOUR_MS)
            assert store.look_at_clock().today(START_MS, first) == START_MS - HOUR_MS
        store.look_at_clock()
    with open_store(small_config(tmp_path), clock=clock, disk=disk) as store:
        assert store.clock_steps.today(START_MS, first) == START_MS - HOUR_MS


def refuse(*_: object) -> None:
    raise OSError(28, "no room")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\0" * 100, b'{"bootId":1}'])
def test_a_file_that_is_damaged_is_made_again(tmp_path, clock, damage):
    for _ in range(2):
        with open_store(small_config(tmp_path), clock=clock) as store:
            assert store.clock_steps.today(START_MS, stored(store)) == START_MS
        (tmp_path / "store" / "clock").write_bytes(damage)


def test_a_log_that_lost_its_end_keeps_steps_before_what_is_stored_now(tmp_path, clock):
    """Given a step beyond the end of the log, as after a power cut, then it is before all new records."""
    with open_store(small_config(tmp_path), clock=clock) as store:
        stored(store)
        clock.set_by(HOUR_MS)
        store.look_at_clock()
    for path in ("commitlog", "consumequeue", "index"):
        for file in sorted((tmp_path / "store" / path).rglob("*")):
            if file.is_file():
                file.unlink()
    with open_store(small_config(tmp_path), clock=clock) as store:
        first = stored(store)
        assert store.clock_steps.today(START_MS, first) == START_MS


def test_a_clock_that_is_set_all_the_time_is_bounded_and_makes_nothing_early(tmp_path, clock):
    with open_store(small_config(tmp_path), clock=clock) as store:
        first, steps = stored(store), store.clock_steps
        for number in range(MAX_STEPS + 10):
            clock.set_by(1000 if number % 2 else -1000)
            stored(store)
        assert len(steps._state.steps) <= MAX_STEPS
        assert steps.today(START_MS, first) >= START_MS

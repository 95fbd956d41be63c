"""Queue locks: one client of a group holds a queue, as long as it says so."""

from __future__ import annotations

import pytest

from kourou.broker.state.locks import MAX_LIVE_MS, QueueLocks
from kourou.message.model import MessageQueue
from support.stores.store import ManualClock

YEAR_MS = 365 * 24 * 3_600_000
Q0, Q1, Q2 = (MessageQueue("t", "b", queue_id) for queue_id in range(3))


@pytest.fixture
def locks(clock: ManualClock) -> QueueLocks:
    return QueueLocks(clock)


def test_a_free_queue_is_locked_and_a_locked_one_is_not(locks):
    assert locks.try_lock_batch("g", [Q0, Q1], "c1") == {Q0, Q1}
    assert locks.try_lock_batch("g", [Q1, Q2], "c2") == {Q2}
    assert locks.try_lock_batch("g", [Q0, Q1, Q2], "c1") == {Q0, Q1}
    assert [locks.holder("g", queue) for queue in (Q0, Q1, Q2)] == ["c1", "c1", "c2"]
    assert locks.holder("g", Q0) == "c1"
    assert locks.holder("g", Q0) != "c2"


def test_groups_do_not_see_each_other(locks):
    assert locks.try_lock("g", Q0, "c1")
    assert locks.try_lock("h", Q0, "c2")
    assert not locks.try_lock("g", Q0, "c2")


def test_a_lock_ends_when_it_is_not_renewed(locks, clock):
    locks.try_lock("g", Q0, "c1")
    clock.advance(MAX_LIVE_MS)
    assert not locks.try_lock("g", Q0, "c2")
    clock.advance(1)
    assert locks.holder("g", Q0) is None
    assert not locks.has_locks("g")
    assert locks.try_lock("g", Q0, "c2")
    assert not locks.try_lock("g", Q0, "c1")


def test_a_lock_that_is_renewed_goes_on(locks, clock):
    for _ in range(5):
        assert locks.try_lock("g", Q0, "c1")
        clock.advance(MAX_LIVE_MS)
    assert locks.holder("g", Q0) == "c1"


@pytest.mark.parametrize("ms", [-YEAR_MS, -5000, 5000, MAX_LIVE_MS + 1, YEAR_MS])
def test_a_lock_lasts_as_long_as_it_should_whichever_way_the_clock_is_set(locks, clock, ms):
    assert locks.try_lock("g", Q0, "c1")
    clock.set_by(ms)
    clock.advance(MAX_LIVE_MS)
    assert not locks.try_lock("g", Q0, "c2")
    clock.advance(1)
    assert locks.try_lock("g", Q0, "c2")


def test_asking_for_the_holder_does_not_renew(locks, clock):
    locks.try_lock("g", Q0, "c1")
    clock.advance(MAX_LIVE_MS)
    assert locks.holder("g", Q0) == "c1"
    clock.advance(1)
    assert locks.holder("g", Q0) != "c1"


def test_a_client_gives_up_its_own_locks_only(locks):
    locks.try_lock_batch("g", [Q0, Q1], "c1")
    locks.try_lock("g", Q2, "c2")
    locks.unlock_batch("g", [Q0, Q2], "c1")
    assert [locks.holder("g", queue) for queue in (Q0, Q1, Q2)] == [None, "c1", "c2"]
    locks.unlock_batch("nothing", [Q0], "c1")


def test_nothing_stays_of_locks_that_ended(locks, clock):
    locks.try_lock_batch("g", [Q0], "c1")
    clock.advance(MAX_LIVE_MS)
    locks.try_lock_batch("h", [Q0], "c1")
    locks.try_lock_batch("g", [Q1], "c1")
    clock.advance(1)
    locks.expire()
    assert locks._groups.keys() == {"g", "h"}
    assert locks._groups["g"].keys() == {Q1}
    clock.advance(MAX_LIVE_MS)
    locks.expire()
    assert locks._groups == {}


def test_nothing_stays_of_locks_that_were_given_up_or_never_got(locks):
    locks.try_lock_batch("g", [], "c1")
    locks.try_lock_batch("h", [Q0], "c1")
    locks.unlock_batch("h", [Q0], "c1")
    assert locks._groups == {}

"""The simulator itself: the same seed is the same run, seeds pass, planted bugs are found, failures are told.

`make simulate` runs as many seeds as one wants.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.mutations import PLANTED
from simulator.runner import Outcome, describe, first_failure, play, shrink
from support.proof import proof

TESTS = Path(__file__).resolve().parent.parent
CHUNK = 10  # seeds of one test, so that they are spread over workers
SEEDS = proof(quick=30, full=500)
FEWEST_PLANTED = 12
PRINT_DIGEST = "from simulator.runner import play; print(play({seed}).digest)"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_that_was_promised_is_lost(first):
    failed = first_failure(range(first, min(first + CHUNK, SEEDS)))

    if failed is not None:
        pytest.fail(describe(failed))


@pytest.mark.parametrize("seed", [2, 9])
def test_a_seed_is_one_run(seed):
    command = [sys.executable, "-c", PRINT_DIGEST.format(seed=seed)]
    other = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True, timeout=400)

    assert play(seed).digest == play(seed).digest == other.stdout.strip() != ""


def test_another_seed_is_another_run():
    assert play(2).digest != play(3).digest


def test_enough_bugs_are_planted():
    assert len(PLANTED) >= FEWEST_PLANTED


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name):
    bug = PLANTED[name]

    assert play(bug.seed, planted=bug.applied()).error is not None, f"not found: {bug.what}"
    assert play(bug.seed).error is None


def test_a_failure_says_how_to_see_it_again():
    bug = PLANTED["delay"]
    with bug.applied():
        failed = play(bug.seed)
        text = describe(failed)

    assert f"seed {bug.seed} failed: AssertionError: delayed-0 came" in text
    assert "with 0 of its" in text  # it takes no fault to find that one
    assert f"make simulate SEED={bug.seed} ROUNDS=1" in text


def test_the_shortest_schedule_has_the_faults_that_it_takes():
    bug = PLANTED["early-ack"]
    with bug.applied():
        failed = play(bug.seed)
        smallest = shrink(failed)

    assert 0 < len(smallest.schedule) < len(failed.schedule)
    assert any("power" in fault.kind or fault.kind == "sync fails" for fault in smallest.schedule)


def test_counts_say_what_happened():
    outcome: Outcome = play(1)

    assert outcome.error is None
    assert outcome.counts["messages acknowledged"] > 0
    assert sum(n for what, n in outcome.counts.items() if what.startswith("fault: ")) == len(outcome.schedule)

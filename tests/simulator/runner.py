"""Runs seeds, counts what happened in them, and makes the schedule of one that failed as short as can be."""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

from simulator.faults import Fault
from simulator.scenario import Scenario


@dataclass
class Outcome:
    """What became of a seed."""

    seed: int
    schedule: list[Fault]
    error: str | None = None
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)


def play(
    seed: int, schedule: list[Fault] | None = None, planted: AbstractContextManager[object] | None = None
) -> Outcome:
    """Run a seed, with other faults than its own or with a bug that is planted."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a broker that is killed a hundred times has a lot to say
    try:
        with planted or nullcontext():
            scenario = Scenario(seed, schedule)
            outcome = Outcome(seed, scenario.schedule)
            try:
                outcome.digest = scenario.run()
            except Exception as error:
                outcome.error = f"{type(error).__name__}: {error}"
        with mock.patch.object(sys, "unraisablehook", _nothing):
            gc.collect()  # what the failure kept of a world that is over ends badly
        outcome.counts = scenario.counts + scenario.world.power.counts
        outcome.counts += Counter({f"fault: {kind}": n for kind, n in scenario.faults.counts.items()})
        outcome.counts["runs"] = 1
    finally:
        logging.disable(disabled)
    return outcome


def _nothing(_: object) -> None:
    pass


def shrink(failed: Outcome) -> Outcome:
    """Leave out one fault after the other, as long as it still fails."""
    smallest = failed
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for number in range(len(smallest.schedule)):
            less = smallest.schedule[:number] + smallest.schedule[number + 1 :]
            outcome = play(smallest.seed, less)
            if outcome.error is not None:
                smallest, is_smaller = outcome, True
                break
    return smallest


def describe(failed: Outcome) -> str:
    """What failed, the faults that it takes, and how to see it again."""
    smallest = shrink(failed)
    return "\n".join(
        (
            f"seed {failed.seed} failed: {failed.error}",
            f"with {len(smallest.schedule)} of its {len(failed.schedule)} faults: {smallest.error}",
            *(f"    {fault}" for fault in smallest.schedule),
            f"replay it with: make simulate SEED={failed.seed} ROUNDS=1",
        )
    )


def first_failure(seeds: Iterable[int]) -> Outcome | None:
    """The first of some seeds that fails."""
    return next((outcome for seed in seeds if (outcome := play(seed)).error is not None), None)

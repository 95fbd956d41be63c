"""`python -m simulator [--seed N] [--rounds N] [--workers N]`, in the directory of the tests: `make
simulate`.

Runs seeds one after the other, from the one that is told or from one by chance, for as long as told: 0 rounds
go on until Ctrl-C. Says how far it is, prints each seed that failed with the shortest schedule that fails,
and in the end what happened how often.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable

from simulator.runner import Outcome, describe, play

SAY_EVERY_S = 10.0


def main() -> int:
    """Run; 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="make simulate", description="Faults in a world of their own")
    parser.add_argument("--seed", type=int, help="the first seed; one by chance where none is told")
    parser.add_argument("--rounds", type=int, default=500, help="how many seeds, 0 for no end")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    told = parser.parse_args()
    first = random.randrange(1_000_000_000) if told.seed is None else told.seed
    seeds: Iterable[int] = itertools.count(first) if told.rounds == 0 else range(first, first + told.rounds)
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    started = said = time.monotonic()
    print(f"seeds from {first}, {told.rounds or 'no'} rounds, {told.workers} workers", flush=True)
    with multiprocessing.get_context("spawn").Pool(told.workers, maxtasksperchild=200) as pool:
        try:
            for outcome in pool.imap_unordered(play, seeds):
                counts += outcome.counts
                if outcome.error is not None:
                    failed.append(outcome)
                    print(describe(outcome), flush=True)
                if time.monotonic() - said > SAY_EVERY_S:
                    said = time.monotonic()
                    print(f"{counts['runs']} seeds, {len(failed)} failed, {said - started:.0f} s", flush=True)
        except KeyboardInterrupt:
            pool.terminate()
    for what, count in sorted(counts.items()):
        print(f"{count:>12,}  {what}")
    print(f"{counts['runs']} seeds from {first}, {len(failed)} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

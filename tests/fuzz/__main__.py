"""`python -m fuzz [--frames N] [--files N] [--expressions N] [--messages N] [--seed N] [--workers N]
[--guided S]`, in the directory of the tests: `make fuzz`.

Tries so many of each, says how far it is, and in the end what was tried how often and what went wrong. With
--guided, and where atheris is installed, inputs are also looked for that reach code which none reached
before, for so many seconds each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time

from fuzz import guided
from fuzz.watch import Findings
from fuzz.worker import run, tasks

STORE_SHARE = 0.3  # of the files; the others are tables, timers and configurations
SAY_EVERY_S = 15.0


def main() -> int:
    """Run; 1 if something went wrong."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Inputs that are nearly right")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--expressions", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000_000))
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument(
        "--guided", type=int, default=0, metavar="SECONDS", help="with atheris, for each target"
    )
    told = parser.parse_args()
    in_stores = int(told.files * STORE_SHARE)
    counts = {
        "frames": told.frames, "stores": in_stores, "files": told.files - in_stores,
        "expressions": told.expressions, "messages": told.messages,
    }  # fmt: skip
    print(f"seed {told.seed}, {told.workers} workers", flush=True)
    started = said = time.monotonic()
    findings, most_bytes = Findings(), 0
    with multiprocessing.get_context("spawn").Pool(told.workers) as pool:
        for part, resident in pool.imap_unordered(run, tasks(counts, told.seed)):
            findings.counts += part.counts
            findings.wrong += part.wrong
            most_bytes = max(most_bytes, resident)
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                done = ", ".join(f"{findings.counts[f'{what} tried']:,} {what}" for what in
                                 ("frames", "files", "expressions", "messages"))  # fmt: skip
                print(f"{done}, {len(findings.wrong)} wrong, {said - started:.0f} s", flush=True)
    print(findings.report())
    print(f"{time.monotonic() - started:.0f} s, at most {most_bytes >> 20} MiB, seed {told.seed}", flush=True)
    is_well = not findings.wrong
    if told.guided:
        is_well &= guided.run_all(told.guided)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())

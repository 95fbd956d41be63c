"""Soak: a cluster under load and faults for as long as told, with a verdict. `make soak MINUTES=… SEED=…`

    python -m chaos.soak [--minutes N] [--seed N]

A name server, a SYNC_MASTER with its slave and a master with SYNC_FLUSH, as processes. Clients send and
consume, faults come at moments by chance, and in the end every promise is looked at: what was acknowledged is
there, in its place, once; it was consumed; the slave has it; the stores are whole; memory and descriptors of
broker-b, which is not killed in the second half, have not grown without end. The exit code says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from chaos import mounts
from chaos.cluster import Cluster
from chaos.faults import LAST_KILL, Faults
from chaos.load import Load
from chaos.recorder import Found, Recorder

DISK_MB = 2048
SAMPLE_S = 1.0
SETTLE_S = 90.0
WARM_UP_S = 5.0
GROWTH_BYTES = 64 << 20  # that nobody minds
GROWTH_FILES = 64
SAY_EVERY_S = 15.0


@dataclass
class Growth:
    """Memory and descriptors of a process over its life."""

    pid: int = 0
    samples: list[tuple[float, int, int]] = field(default_factory=list)  # when, bytes, descriptors

    def take(self, pid: int, resident: int, files: int) -> None:
        """One more sample; another process begins anew."""
        if pid != self.pid:
            self.pid, self.samples = pid, []
        self.samples.append((time.monotonic(), resident, files))

    def describe(self) -> tuple[str, list[str]]:
        """How much there is, and what is wrong with it."""
        if not self.samples:
            return "no samples", []
        began = self.samples[0][0]
        warm = next((one for one in self.samples if one[0] - began >= WARM_UP_S), self.samples[0])
        last = self.samples[-1]
        minutes = max(last[0] - warm[0], 1.0) / 60
        slope = (last[1] - warm[1]) / 1024**2 / minutes
        text = (
            f"{warm[1] >> 20} to {last[1] >> 20} MiB ({slope:+.1f} MiB a minute), {warm[2]} to {last[2]}"
            f" descriptors in {minutes:.1f} minutes"
        )
        wrong = []
        if last[1] > 2 * warm[1] + GROWTH_BYTES:
            wrong.append(f"broker-b grows: {text}")
        if last[2] > 2 * warm[2] + GROWTH_FILES:
            wrong.append(f"broker-b keeps descriptors: {text}")
        return text, wrong


class Soak:
    """One run."""

    def __init__(self, seconds: float, seed: int, directory: Path) -> None:
        self.seed = seed
        self._seconds = seconds
        self._directory = directory
        self._chance = random.Random(seed)
        self.recorder = Recorder()
        self.faults: Counter[str] = Counter()
        self.growth = Growth()
        self.wrong: list[str] = []
        self.phase = "starts"
        self._last_fault = ""
        self._began = time.monotonic()

    def run(self) -> list[str]:
        """All of it; what went wrong."""
        with ExitStack() as stack:
            disk = None
            if mounts.can_mount():
                disk = stack.enter_context(mounts.small_disk(self._directory / "broker-b" / "store", DISK_MB))
            cluster = Cluster(self._directory)
            with cluster.running():
                found = asyncio.run(self._work(cluster, disk))
                self.wrong += self.recorder.judge(found)
                self.wrong += [f"{name} was never consumed" for name in sorted(self.recorder.unconsumed())]
                self.wrong += self._judge_slave(cluster, found)
                self.phase = "stops"
            self.wrong += self.growth.describe()[1]
            self.wrong += cluster.damage()
            self.wrong += _surprises(cluster)
        return self.wrong

    async def _work(self, cluster: Cluster, disk: Path | None) -> dict[str, list[Found]]:
        watching = asyncio.create_task(self._watch(cluster))
        try:
            async with Load(cluster.namesrv, self.recorder, self.seed) as load:
                self.phase = "runs"
                faults = Faults(cluster, load, self._chance, disk)
                self.faults = faults.counts
                began = time.monotonic()
                while (passed := time.monotonic() - began) < self._seconds:
                    faults.spares_b = passed > self._seconds * LAST_KILL
                    await asyncio.to_thread(faults.strike)
                    self._last_fault = faults.last
                self.phase = "settles"
                await load.stop_sending()
                await asyncio.to_thread(cluster.revive)
                return await self._settle(cluster)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _settle(self, cluster: Cluster) -> dict[str, list[Found]]:
        """Wait until all that was promised is there and consumed, or for as long as is fair."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = await asyncio.to_thread(cluster.read, cluster.a, cluster.b)
            settled = not self.recorder.expected() - found.keys() and not self.recorder.unconsumed()
            if settled or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.5)

    def _judge_slave(self, cluster: Cluster, found: dict[str, list[Found]]) -> list[str]:
        """The slave has every message of its master, at the same place."""
        mine = {copy.place: name for name, copies in cluster.read(cluster.slave).items() for copy in copies}
        theirs = {copy.place: name for name, copies in found.items() for copy in copies}
        lacking = [
            place for place, name in theirs.items() if place.broker == "broker-a" and mine.get(place) != name
        ]
        return [f"the slave lacks what is at {place}" for place in sorted(lacking)]

    async def _watch(self, cluster: Cluster) -> None:
        while True:
            with contextlib.suppress(OSError, AssertionError, StopIteration):  # it is not running just now
                node = cluster.b
                self.growth.take(node.pid, node.resident_bytes(), node.open_count())
            await asyncio.sleep(SAMPLE_S)

    # For people

    def summary(self) -> Table:
        """How it goes."""
        table = Table(title=f"soak, seed {self.seed}: {self.phase}, {time.monotonic() - self._began:.0f} s")
        table.add_column("what")
        table.add_column("how often", justify="right")
        for name, count in self.counts().items():
            table.add_row(name, f"{count:,}")
        table.add_row("broker-b", self.growth.describe()[0])
        table.add_row("last fault", self._last_fault)
        return table

    def counts(self) -> dict[str, int]:
        """What happened how often."""
        recorder = self.recorder
        return {
            "messages tried": len(recorder.bodies), "messages acknowledged": len(recorder.promised),
            "messages consumed": len(recorder.consumed),
            "consumed again": recorder.consumed.total() - len(recorder.consumed),
            "sends refused or unanswered": recorder.refusals.total(), "faults": self.faults.total(),
            **{f"fault: {name}": count for name, count in sorted(self.faults.items())},
        }  # fmt: skip


def _surprises(cluster: Cluster) -> list[str]:
    """Errors that nobody foresaw are logged with a traceback."""
    wrong = []
    for node in cluster.nodes:
        said = node.said()
        at = said.find("Traceback")
        if at >= 0:
            wrong.append(f"{node.name} was surprised: {said[max(at - 300, 0) : at + 2500]}")
    return wrong


def show(soak: Soak) -> Callable[[], None]:
    """Have a run shown while it lasts: live in a terminal, else by a line now and then; a call ends it."""
    console = Console()
    if console.is_terminal:
        live = Live(get_renderable=soak.summary, console=console, refresh_per_second=2)
        live.start()
        return live.stop
    stack = ExitStack()
    import threading

    over = threading.Event()

    def say() -> None:
        while not over.wait(SAY_EVERY_S):
            counts = soak.counts()
            few = ", ".join(f"{counts[name]:,} {name}" for name in list(counts)[:3])
            print(f"{soak.phase}: {few}, {counts['faults']} faults; {soak.growth.describe()[0]}", flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)
    return stack.close


def main() -> int:
    """Run; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="make soak", description="A cluster under load and faults")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000_000))
    told = parser.parse_args()
    logging.getLogger("kourou").setLevel(logging.CRITICAL)  # clients have a lot to say of brokers that die
    print(f"seed {told.seed}, {told.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        soak = Soak(told.minutes * 60, told.seed, Path(directory))
        end = show(soak)
        try:
            wrong = soak.run()
        finally:
            end()
    for name, count in soak.counts().items():
        print(f"{count:>12,}  {name}")
    print(f"broker-b: {soak.growth.describe()[0]}")
    print(f"refusals: {dict(soak.recorder.refusals)}")
    print(f"{len(wrong)} promises broken, seed {told.seed}")
    for line in wrong[:50]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

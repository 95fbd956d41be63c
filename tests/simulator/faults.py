"""The faults of a scenario: when, which, for how long; and what each does to the world.

They come one after the other. After each, what was stopped runs again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from kourou.broker.services.schedule import LOOK_S
from simulator.world import HOSTS, World

FROM_S, UNTIL_S = 0.5, 12.0
MOST = 6
WAIT_FOR_SYNC_S = 3.0


class Fault(NamedTuple):
    """Something that happens at a time."""

    at_s: float
    kind: str
    for_s: float  # until it is over

    def __str__(self) -> str:
        return f"{self.at_s:.3f} s {self.kind} for {self.for_s:.3f} s"


KINDS = (
    "kill", "power", "power", "power in a sync", "power in a sync", "reset", "cut", "sync fails", "slow disk",
    "disk full", "namesrv killed",
)  # fmt: skip
# A master that loses its power may have less than its slave, which then waits for an operator: not here.
KINDS_OF_A_PAIR = (
    "kill", "slave killed", "slave power", "reset", "cut", "cut slave", "slow disk", "disk full",
    "namesrv killed",
)  # fmt: skip


CLOCK_KINDS = ("clock set", "clock set", "clock set at start", "namesrv clock set", "power and clock back")
SETTINGS_MS = [sign * ms for ms in (1000, 5000, 3_600_000, 365 * 24 * 3_600_000) for sign in (1, -1)]


def make_schedule(seed: int, has_slave: bool, has_pops: bool) -> list[Fault]:
    """The faults of a seed. Where groups pop, brokers are stopped and started too, and clocks are right."""
    chance = random.Random(f"faults {seed}")
    kinds = KINDS_OF_A_PAIR if has_slave else KINDS
    faults = [
        Fault(chance.uniform(FROM_S, UNTIL_S), chance.choice(kinds), chance.uniform(0.05, 2.5))
        for _ in range(chance.randrange(1, MOST + 1))
    ]
    return sorted(faults + (_restarts(seed) if has_pops else _clock_faults(seed, has_slave)))


def _restarts(seed: int) -> list[Fault]:
    chance = random.Random(f"restarts {seed}")
    return [
        Fault(chance.uniform(FROM_S, UNTIL_S), "restart", chance.uniform(0.05, 1.0))
        for _ in range(chance.randrange(3))
    ]


def _clock_faults(seed: int, has_slave: bool) -> list[Fault]:
    """Clocks that are set, in a part of the seeds. By a lot of its own, so that the other faults stay."""
    chance = random.Random(f"clocks {seed}")
    count = chance.choice((0, 0, 1, 2))
    kinds = CLOCK_KINDS[:-1] if has_slave else CLOCK_KINDS
    return [
        Fault(chance.uniform(FROM_S, UNTIL_S), chance.choice(kinds), chance.uniform(0.05, 2.5))
        for _ in range(count)
    ]


class Faults:
    """Does them. `on_power_lost` hears of it before the broker's machine is off."""

    def __init__(self, world: World, seed: int, on_power_lost: Callable[[], None]) -> None:
        self._world = world
        self._chance = random.Random(f"chance of faults {seed}")
        self._on_power_lost = on_power_lost
        self.running: set[str] = set()  # those whose start came to its end
        self.power_cuts = 0  # of the broker
        self.lives: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.ends: list[tuple[float, bool]] = []  # of the broker: when, and whether it was stopped
        world.power.on_power_lost = self._lose_power

    async def start(self, name: str) -> None:
        """Start a process, again if its machine goes off meanwhile."""
        while not await self._world.start(name):
            await asyncio.sleep(0.3)
        self.running.add(name)
        self.lives[name] += 1

    async def inflict(self, faults: list[Fault], note: Callable[..., None]) -> None:
        """Do them all."""
        for fault in faults:
            await asyncio.sleep(max(0.0, fault.at_s - asyncio.get_running_loop().time()))
            note("fault", fault.kind)
            self.counts[fault.kind] += 1
            await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault.for_s)

    def now_s(self) -> float:
        """The true time."""
        return self._world.loop.time()

    def _end(self, name: str, *, lost_power: bool, is_clean: bool = False) -> None:
        self.running.discard(name)
        if name == "broker":
            self.ends.append((self.now_s(), is_clean))
        self._world.kill(name, lost_power=lost_power)

    def _lose_power(self, name: str) -> None:
        if name == "broker":
            self.power_cuts += 1
            if name in self.running:
                self._on_power_lost()
        self._end(name, lost_power=True)

    async def _kill(self, for_s: float) -> None:
        self._end("broker", lost_power=False)
        await asyncio.sleep(for_s)
        await self.start("broker")

    async def _restart(self, for_s: float) -> None:
        """The broker is stopped, and started again."""
        await self._world.stop("broker")
        self._end("broker", lost_power=False, is_clean=True)
        await asyncio.sleep(for_s)
        await self.start("broker")

    async def _power(self, for_s: float) -> None:
        self._lose_power("broker")
        await asyncio.sleep(for_s)
        await self.start("broker")

    async def _power_in_a_sync(self, for_s: float) -> None:
        """At one of the next syncs; half of the time also at one of those of the recovery."""
        left = self._world.power.syncs_left
        left["broker"] = self._chance.randrange(40)
        give_up = asyncio.get_running_loop().time() + WAIT_FOR_SYNC_S
        while "broker" in left and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(0.01)
        if left.pop("broker", None) is not None:
            self._lose_power("broker")
        await asyncio.sleep(for_s)
        if self._chance.random() < 0.5:
            left["broker"] = self._chance.randrange(20)
        await self.start("broker")
        left.pop("broker", None)

    async def _reset(self, for_s: float) -> None:
        self._world.network.reset_one()

    async def _cut(self, for_s: float, one: str = "client") -> None:
        pair = frozenset((HOSTS[one], HOSTS["broker"]))
        self._world.network.cuts.add(pair)
        await asyncio.sleep(for_s)
        self._world.network.cuts.discard(pair)

    async def _cut_slave(self, for_s: float) -> None:
        await self._cut(for_s, "slave")

    async def _sync_fails(self, for_s: float) -> None:
        self._world.power.failing_syncs.add("broker")
        await asyncio.sleep(for_s)
        # A disk that failed is replaced: what it had is what counts.
        self._lose_power("broker")
        self._world.power.failing_syncs.discard("broker")
        await self.start("broker")

    async def _slow_disk(self, for_s: float) -> None:
        self._world.power.slow.add("broker")
        await asyncio.sleep(for_s)
        self._world.power.slow.discard("broker")

    async def _disk_full(self, for_s: float) -> None:
        self._world.power.full.add("broker")
        await asyncio.sleep(for_s)
        self._world.power.full.discard("broker")

    async def _namesrv_killed(self, for_s: float) -> None:
        self._end("namesrv", lost_power=True)
        await asyncio.sleep(for_s)
        await self.start("namesrv")

    # Clocks: ahead or back, by seconds, an hour or a year. In the end they are right, and the broker knows:
    # a clock that is put right in the last second before the power goes looks like time that passed.

    async def _put_clock_right(self) -> None:
        self._world.set_by_ms["broker"] = 0
        await asyncio.sleep(2 * LOOK_S)

    async def _clock_set(self, for_s: float) -> None:
        """While the broker runs, and put right in one or two steps."""
        self._world.set_by_ms["broker"] += self._chance.choice(SETTINGS_MS)
        await asyncio.sleep(for_s)
        if self._chance.random() < 0.3:
            self._world.set_by_ms["broker"] += self._chance.choice(SETTINGS_MS)
            await asyncio.sleep(self._chance.uniform(0.05, 1.5))
        await self._put_clock_right()

    async def _clock_set_at_start(self, for_s: float) -> None:
        """While the broker is away, and put right when it runs or when it is away again."""
        self._end("broker", lost_power=False)
        self._world.set_by_ms["broker"] += self._chance.choice(SETTINGS_MS)
        await self.start("broker")
        await asyncio.sleep(for_s)
        if self._chance.random() < 0.5:
            self._end("broker", lost_power=False)
            self._world.set_by_ms["broker"] = 0
            await self.start("broker")
        await self._put_clock_right()

    async def _power_and_clock_back(self, for_s: float) -> None:
        """The machine starts with a clock in the past; one that is ahead cannot be told from time that
        passed."""
        self._world.set_by_ms["broker"] -= abs(self._chance.choice(SETTINGS_MS))
        await self._power(for_s)
        await asyncio.sleep(for_s)
        await self._put_clock_right()

    async def _namesrv_clock_set(self, for_s: float) -> None:
        self._world.set_by_ms["namesrv"] += self._chance.choice(SETTINGS_MS)
        await asyncio.sleep(for_s)
        self._world.set_by_ms["namesrv"] = 0

    async def _slave_killed(self, for_s: float) -> None:
        self._end("slave", lost_power=False)
        await asyncio.sleep(for_s)
        await self.start("slave")

    async def _slave_power(self, for_s: float) -> None:
        self._end("slave", lost_power=True)
        await asyncio.sleep(for_s)
        await self.start("slave")

"""Backend: one poller for a cluster, and the questions that pages ask, shared among all tabs.

Two loops: one asks every broker for its figures, often; one asks for topics and groups, seldom, and never
takes more than a tenth of the time, however many there are. A broker that does not answer is not asked more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from kourou.admin import Admin
from kourou.admin.model import BrokerState
from kourou.client.routes import MASTER_ID
from kourou.console.config import ConsoleConfig
from kourou.console.contents import Contents, GroupRow, TopicRow, read_contents
from kourou.errors import KourouError

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 3.0  # of one request to one server
ANSWER_TIMEOUT_S = 8.0  # of what a page asks, which may take several
ANSWER_TTL_S = 2.0  # how long an answer is good for other tabs
MAX_ANSWERS = 512
BROKERS_INTERVAL_S = 5.0
CONTENTS_INTERVAL_S = 10.0
CONTENTS_PAUSE_FACTOR = 9  # the pause after a round, in times of what the round took
MAX_CONTENTS_INTERVAL_S = 300.0
HISTORY_S = 30 * 60
GONE_S = 3600.0  # how long a broker that is not registered any more is shown

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Point:
    """The whole cluster at one time."""

    time_s: float
    in_tps: float
    out_tps: float
    lag: int
    disk_ratio: float


@dataclass(slots=True)
class Snapshot:
    """What the poller saw last; `error` says why it sees nothing now."""

    brokers: list[BrokerState] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents)
    error: str | None = None
    version: int = 0  # grows with each change

    @property
    def topics(self) -> dict[str, TopicRow]:
        """Topics by name."""
        return self.contents.topics

    @property
    def groups(self) -> dict[str, GroupRow]:
        """Consumer groups by name."""
        return self.contents.groups

    @property
    def clusters(self) -> list[str]:
        """The names of the clusters."""
        return sorted({state.cluster for state in self.brokers})

    @property
    def masters(self) -> dict[str, str]:
        """Name -> address of the masters that answer."""
        return {
            state.broker_name: state.address
            for state in self.brokers
            if state.broker_id == MASTER_ID and state.error is None
        }


class Backend:
    """What the console knows of its cluster. Use it in an `async with`."""

    def __init__(self, config: ConsoleConfig) -> None:
        self.admin = Admin(
            config.namesrv,
            timeout_s=REQUEST_TIMEOUT_S,
            tls=config.cluster_tls,
            credentials=config.credentials,
        )
        self.snapshot = Snapshot()
        self.history: deque[Point] = deque(maxlen=int(HISTORY_S / BROKERS_INTERVAL_S))
        self._first = asyncio.Event()
        self._last_seen_s: dict[str, float] = {}
        # Until when an answer counts, once it is there
        self._answers: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.admin.__aenter__()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch_brokers()), loop.create_task(self._watch_contents())]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks, *(task for _, task in self._answers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.admin.__aexit__()

    # Questions

    async def ask(
        self,
        key: Hashable,
        work: Callable[[Admin], Awaitable[_T]],
        *,
        ttl_s: float = ANSWER_TTL_S,
        within_s: float = ANSWER_TIMEOUT_S,
    ) -> _T:
        """The answer to a question; who asks the same at the same time, or soon after, gets the same."""
        self._drop_old()
        known = self._answers.get(key)
        if known is not None:
            task = known[1]
        else:
            task = asyncio.get_running_loop().create_task(self.do(work, within_s=within_s))
            task.add_done_callback(lambda done: self._forget_failure(key, done))
            self._answers[key] = (time.monotonic() + ttl_s, task)
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        found: _T = await asyncio.shield(task)
        return found

    def _drop_old(self) -> None:
        """Keep no answer longer than it counts: some are large."""
        now = time.monotonic()
        for key in [key for key, (end, task) in self._answers.items() if end < now and task.done()]:
            del self._answers[key]

    def _forget_failure(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            known = self._answers.get(key)
            if known is not None and known[1] is task:
                del self._answers[key]

    async def do(self, work: Callable[[Admin], Awaitable[_T]], *, within_s: float = ANSWER_TIMEOUT_S) -> _T:
        """The result of some work, which has to end in time."""
        try:
            async with asyncio.timeout(within_s):
                return await work(self.admin)
        except TimeoutError:
            raise KourouError(
                f"the cluster did not answer within {within_s:g} s: see whether its brokers are up"
            ) from None

    def forget(self) -> None:
        """Answer no question with what was found before; what is being asked now still counts."""
        for key in [key for key, (_, task) in self._answers.items() if task.done()]:
            del self._answers[key]

    async def changed(self) -> None:
        """Something was changed: have it seen now, and forget what was known."""
        self._answers.clear()
        with contextlib.suppress(KourouError):
            await self.do(lambda _: self._poll_contents())

    async def ready(self) -> None:
        """Wait until something is known, or known not to be."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._first.wait()

    # The poller

    async def _watch_brokers(self) -> None:
        while True:
            try:
                await self._poll_brokers()
            except Exception:
                log.exception("the brokers could not be asked; they are asked again")
            await asyncio.sleep(BROKERS_INTERVAL_S)

    async def _poll_brokers(self) -> None:
        self._drop_old()
        snapshot = self.snapshot
        try:
            states = await self.do(lambda admin: admin.clusters.states())
        except KourouError as error:
            snapshot.error = str(error)
            snapshot.brokers = [_without_answer(state, str(error)) for state in snapshot.brokers]
        else:
            snapshot.error = None
            snapshot.brokers = self._with_gone(states)
        snapshot.version += 1
        self.history.append(self._point())

    def _with_gone(self, states: list[BrokerState]) -> list[BrokerState]:
        """The brokers that are registered, and those that were until lately."""
        now = time.monotonic()
        known = {state.address for state in states}
        self._last_seen_s |= {state.address: now for state in states}
        why = "it is not registered at the name server any more: start it again, or see its log"
        gone = [
            _without_answer(state, why)
            for state in self.snapshot.brokers
            if state.address not in known and now - self._last_seen_s.get(state.address, 0) < GONE_S
        ]
        return sorted([*states, *gone], key=lambda one: (one.cluster, one.broker_name, one.broker_id))

    def _point(self) -> Point:
        up = [state for state in self.snapshot.brokers if state.error is None]
        return Point(
            time.time(),
            sum(state.in_tps for state in up),
            sum(state.out_tps for state in up),
            sum(group.lag for group in self.snapshot.groups.values()),
            max((state.disk_ratio for state in up), default=0.0),
        )

    async def _watch_contents(self) -> None:
        while True:
            started = time.monotonic()
            try:
                await self._poll_contents()
            except KourouError as error:
                log.info("topics and groups could not be asked for: %s", error)
            except Exception:
                log.exception("topics and groups could not be asked for; they are asked for again")
            self._first.set()
            pause_s = (time.monotonic() - started) * CONTENTS_PAUSE_FACTOR
            await asyncio.sleep(min(max(pause_s, CONTENTS_INTERVAL_S), MAX_CONTENTS_INTERVAL_S))

    async def _poll_contents(self) -> None:
        brokers = await self.admin.clusters.brokers()
        down = {state.address for state in self.snapshot.brokers if state.error is not None}
        masters = {
            info.broker_name: info.master
            for info in brokers
            if info.master is not None and info.master not in down
        }
        self.snapshot.contents = await read_contents(self.admin, masters, self.snapshot.contents)
        self.snapshot.version += 1


def _without_answer(state: BrokerState, why: str) -> BrokerState:
    return BrokerState(state.cluster, state.broker_name, state.broker_id, state.address, error=why)

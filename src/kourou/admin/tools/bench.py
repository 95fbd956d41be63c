"""Bench: producers and consumers at work on a topic, and what they manage.

bench = Bench("127.0.0.1:9876", topic="bench", seconds=10)
report = await bench.run(on_tick=print)
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kourou.admin.admin import Admin
from kourou.client.consume.consumer import Consumer
from kourou.client.core import NoRouteError
from kourou.client.produce.producer import Producer
from kourou.errors import KourouError
from kourou.message import Message
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig

TICK_S = 0.25
DRAIN_S = 10.0  # how long consumers may take for the rest
WARM_UP_S = 15.0  # how long consumers may take to start
EARLIER = timedelta(seconds=5)  # by which clocks may differ


@dataclass(frozen=True, slots=True)
class Tick:
    """How it goes: totals, and rates since the tick before."""

    seconds: float
    sent: int
    received: int
    failed: int
    send_rate: float
    receive_rate: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds: of half, of all but one in a hundred, and of the slowest."""

    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0

    @classmethod
    def of(cls, values_ms: array[float]) -> Latency:
        """The latency of what was measured."""
        if not values_ms:
            return cls()
        ordered = sorted(values_ms)
        return cls(
            ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)], ordered[-1]
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What was managed."""

    topic: str
    producers: int
    consumers: int
    size_bytes: int
    seconds: float
    sent: int
    failed: int
    received: int
    send_rate: float
    receive_rate: float
    send_mib_per_s: float
    send_latency: Latency
    end_to_end_latency: Latency
    error: str | None = None  # the first that a send met


@dataclass(slots=True)
class Bench:
    """A run of so many producers, each with so many messages under way, and consumers of one group."""

    namesrv: str
    topic: str = "kourou-bench"
    producers: int = 4
    in_flight: int = 8
    consumers: int = 1
    size_bytes: int = 1024
    seconds: float = 10.0
    rate: float | None = None  # messages a second in all; as fast as it goes without
    queues: int = 8
    tls: TlsConfig | None = None
    credentials: Credentials | None = None
    _begun: int = 0
    _sent: int = 0
    _failed: int = 0
    _received: int = 0
    _error: str | None = None
    _send_ms: array[float] = field(default_factory=lambda: array("d"))
    _way_ms: array[float] = field(default_factory=lambda: array("d"))

    async def run(self, on_tick: Callable[[Tick], None] | None = None) -> Report:
        """Do it, and tell how it goes on the way."""
        async with Admin(self.namesrv, tls=self.tls, credentials=self.credentials) as admin:
            try:
                await admin.core.fetch_route(self.topic)
            except NoRouteError:
                await admin.topics.create(self.topic, queues=self.queues)
        loop = asyncio.get_running_loop()
        ready = [asyncio.Event() for _ in range(self.consumers)]
        group = f"kourou-bench-{time.time_ns()}"
        readers = [loop.create_task(self._consume(group, one)) for one in ready]
        try:
            async with asyncio.timeout(WARM_UP_S):
                await asyncio.gather(*(one.wait() for one in ready))
            started = loop.time()
            async with Producer(
                self.namesrv, group=f"{group}-producer", tls=self.tls, credentials=self.credentials
            ) as producer:
                senders = [
                    loop.create_task(self._produce(producer, started))
                    for _ in range(self.producers * self.in_flight)
                ]
                ticker = loop.create_task(self._tick(started, on_tick))
                await asyncio.gather(*senders)
                took_s = loop.time() - started
                if self.consumers:
                    await self._drain()
            ticker.cancel()
            end_s = loop.time() - started
        finally:
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return Report(
            self.topic,
            self.producers,
            self.consumers,
            self.size_bytes,
            took_s,
            self._sent,
            self._failed,
            self._received,
            self._sent / took_s,
            self._received / end_s,
            self._sent * self.size_bytes / took_s / 1024 / 1024,
            Latency.of(self._send_ms),
            Latency.of(self._way_ms),
            self._error,
        )

    async def _produce(self, producer: Producer, started: float) -> None:
        body = b"k" * self.size_bytes
        loop = asyncio.get_running_loop()
        end = started + self.seconds
        clock = time.perf_counter
        while loop.time() < end:
            if self.rate is not None:
                due = started + self._begun / self.rate
                self._begun += 1
                if due >= end:
                    return
                await asyncio.sleep(max(due - loop.time(), 0))
            begin = clock()
            try:
                await producer.send(Message(self.topic, body))
            except KourouError as error:
                self._failed += 1
                self._error = self._error or str(error)
                await asyncio.sleep(TICK_S)
                continue
            self._send_ms.append((clock() - begin) * 1000)
            self._sent += 1

    async def _consume(self, group: str, ready: asyncio.Event) -> None:
        # Queues may come to a consumer when the first messages are there already: it begins before now, and
        # what was sent before is not counted.
        began = datetime.now()
        began_ms = began.timestamp() * 1000
        async with Consumer(
            self.namesrv,
            group=group,
            subscribe=self.topic,
            consume_from=began - EARLIER,
            tls=self.tls,
            credentials=self.credentials,
        ) as consumer:
            ready.set()
            async for batch in consumer.batches():
                now_ms = time.time() * 1000
                for message in batch:
                    if message.born_timestamp >= began_ms:
                        self._received += 1
                        self._way_ms.append(now_ms - message.born_timestamp)

    async def _tick(self, started: float, on_tick: Callable[[Tick], None] | None) -> None:
        loop = asyncio.get_running_loop()
        before, sent, received = loop.time(), 0, 0
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            span = max(now - before, 1e-6)
            if on_tick is not None:
                rates = (self._sent - sent) / span, (self._received - received) / span
                on_tick(Tick(now - started, self._sent, self._received, self._failed, *rates))
            before, sent, received = now, self._sent, self._received

    async def _drain(self) -> None:
        """Wait until consumers have everything, as long as they go on."""
        loop = asyncio.get_running_loop()
        end = loop.time() + DRAIN_S
        while self._received < self._sent and loop.time() < end:
            await asyncio.sleep(0.02)

"""Load: producers of every kind of message and a group of consumers, which work whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable

from chaos.recorder import BATCH, COMMITTED, DELAYED, PLAIN, ROLLED_BACK, Place, Recorder, name_of
from kourou.client import Consumer, Message, Producer, ReceivedMessage, TransactionState
from kourou.errors import KourouError

TOPIC = "chaos"
GROUP = "chaos-consumers"
DELAYS_MS = {1: 1000, 2: 2000, 3: 3000}
SEND_TIMEOUT_S = 2.0
PAUSE_S = 0.05  # after a failure
SETTLE_MS = 30_000  # a delayed message may wait for its broker longer than for its time

_Send = Callable[[Producer, random.Random], Awaitable[None]]


class Load:
    """Producers and consumers, for as long as the context lasts."""

    def __init__(self, namesrv: str, recorder: Recorder, seed: int, *, rate: float = 40.0) -> None:
        self._namesrv = namesrv
        self._recorder = recorder
        self._seed = seed
        self._rate = rate  # sends a second, of each producer
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()
        self._clock_is_set = False  # delayed messages that are sent now may come at any time

    async def __aenter__(self) -> Load:
        for number in range(2):
            consumer = Consumer(
                self._namesrv, group=GROUP, subscribe=TOPIC, consume_from="first", instance=f"chaos-{number}",
                start_timeout_s=None,
            )  # fmt: skip
            consumer.handler(self._consume)
            await self._stack.enter_async_context(consumer)
        sends: list[_Send] = [self._plain, self._plain, self._batch, self._delayed, self._transaction]
        for number, send in enumerate(sends):
            self._tasks.append(asyncio.create_task(self._produce(send, number)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_sending()
        await self._stack.aclose()

    async def stop_sending(self) -> None:
        """Send nothing more; what waits for its time still comes."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def clock_changes(self) -> None:
        """A broker's clock is not right from now on: when delayed messages are due is not known."""
        self._clock_is_set = True
        now_ms = time.time_ns() // 1_000_000
        known = dict(self._recorder.due_ms)  # called from another thread than the one that sends
        pending = {name for name, due_ms in known.items() if due_ms > now_ms - SETTLE_MS}
        self._recorder.excused |= pending

    def clock_is_right(self) -> None:
        """All clocks are right again."""
        self._clock_is_set = False

    async def _consume(self, message: ReceivedMessage) -> None:
        self._recorder.consume(bytes(message.body))

    async def _produce(self, send: _Send, number: int) -> None:
        chance = random.Random(self._seed * 100 + number)
        # Without retries a message is stored once at most, so that a second one is a fault.
        producer = Producer(
            self._namesrv, group=f"chaos-producer-{number}", retries=0, timeout_s=SEND_TIMEOUT_S,
            checker=self._check, instance=f"chaos-producer-{number}",
        )  # fmt: skip
        # Open until the process ends: the brokers ask what became of the last transactions.
        await self._stack.enter_async_context(producer)
        while True:
            try:
                await send(producer, chance)
            except KourouError as error:
                self._recorder.refusals[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(chance.expovariate(self._rate))

    def _payload(self, chance: random.Random) -> bytes:
        return chance.randbytes(chance.choice((0, 20, 100, 100, 500, 6000)))

    async def _plain(self, producer: Producer, chance: random.Random) -> None:
        name, body = self._recorder.make(PLAIN, self._payload(chance))
        receipt = await producer.send(Message(TOPIC, body, keys=name))
        if receipt.status == "SEND_OK":
            place = Place(receipt.queue.broker_name, receipt.queue.queue_id, receipt.queue_offset)
            self._recorder.acknowledge(name, place, producer.group)

    async def _batch(self, producer: Producer, chance: random.Random) -> None:
        made = [self._recorder.make(BATCH, self._payload(chance)) for _ in range(chance.randrange(2, 9))]
        receipts = await producer.send_batch([Message(TOPIC, body) for _, body in made])
        if all(receipt.status == "SEND_OK" for receipt in receipts):
            for name, _ in made:
                self._recorder.acknowledge(name)

    async def _delayed(self, producer: Producer, chance: random.Random) -> None:
        name, body = self._recorder.make(DELAYED, self._payload(chance))
        level = chance.choice(list(DELAYS_MS))
        self._recorder.due_ms[name] = time.time_ns() // 1_000_000 + DELAYS_MS[level]
        if self._clock_is_set:
            self._recorder.excused.add(name)
        receipt = await producer.send(Message(TOPIC, body, delay_level=level))
        if receipt.status == "SEND_OK":
            self._recorder.acknowledge(name)

    async def _transaction(self, producer: Producer, chance: random.Random) -> None:
        kind = chance.choice((COMMITTED, ROLLED_BACK))
        name, body = self._recorder.make(kind, self._payload(chance))
        says = chance.random() < 0.6  # otherwise the broker has to ask

        def execute(message: Message) -> TransactionState:
            return self._outcome(name) if says else TransactionState.UNKNOWN

        done = await producer.send_in_transaction(Message(TOPIC, body), execute)
        if done.receipt.status == "SEND_OK":
            self._recorder.acknowledge(name)

    def _check(self, message: ReceivedMessage) -> TransactionState:
        return self._outcome(name_of(bytes(message.body)))

    def _outcome(self, name: str) -> TransactionState:
        if self._recorder.kinds[name] == COMMITTED:
            return TransactionState.COMMIT
        return TransactionState.ROLLBACK

"""What the tests of the clients share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from kourou.client import Consumer, Message, MessageQueue, Producer, PullConsumer, ReceivedMessage

LONG_S = 60.0  # nothing that is waited for here takes that long

numbers = itertools.count()


def run(work: Awaitable[Any], timeout_s: float = LONG_S) -> Any:
    """The result of a coroutine, which must come to an end."""

    async def bounded() -> Any:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded())


async def send(target: Any, topic: str, bodies: Iterable[bytes], **kwargs: Any) -> None:
    """Send a message for each body."""
    async with Producer(target.namesrv, group="PG") as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **kwargs))


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def reader(target: Any, topic: str, **options: Any) -> Consumer:
    """A consumer of all messages of a topic, in a group of its own."""
    return Consumer(
        target.namesrv, **{"group": f"G{topic}", "subscribe": topic, "consume_from": "first", **options}
    )


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """So many messages, all of which are consumed."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found.append(await anext(consumer))
    await consumer.acknowledge()
    return found


def of_topic(consumer: Consumer | PullConsumer, topic: str) -> list[MessageQueue]:
    """The queues of a topic that a consumer reads."""
    return [queue for queue in consumer.queues if queue.topic == topic]

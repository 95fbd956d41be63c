"""Consumers that pop, where no second broker and no Java is needed: restarts, lost answers, slow handlers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest

from kourou.client import Consumer, Message, Producer, ReceivedMessage, SimpleConsumer
from kourou.remoting.connection import ConnectionLostError
from kourou.remoting.protocol.codes import RequestCode
from kourou.testing import Cluster
from support.loops import until

TOPIC, GROUP, QUEUES = "T", "G", 4


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as found:
        found.create_topic(TOPIC, queues=QUEUES)
        set_mode(found, "POP")
        yield found


def set_mode(cluster: Cluster, mode: str, shared: int = 0) -> None:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": shared}
    for address in cluster.broker_addresses:
        cluster.call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=orjson.dumps(body))


@asynccontextmanager
async def popping(cluster: Cluster, **options: Any) -> AsyncIterator[tuple[Consumer, Producer]]:
    given: dict[str, Any] = {
        "group": GROUP,
        "subscribe": TOPIC,
        "consume_from": "first",
        "client_rebalance": False,
    }
    async with (
        Consumer(cluster.namesrv, **given | options) as consumer,
        Producer(cluster.namesrv) as producer,
    ):
        yield consumer, producer


def lose_answers(monkeypatch: pytest.MonkeyPatch, consumer: Any, code: int, times: int) -> list[Any]:
    """Have the answers to some requests lost after the broker gave them."""
    remoting = consumer.core._remoting
    lost: list[Any] = []
    call = remoting.call

    async def losing(address: str, request: Any, *others: Any) -> Any:
        answer = await call(address, request, *others)
        if request.code == code and len(lost) < times:
            lost.append(answer)
            raise ConnectionLostError("the answer is lost")
        return answer

    monkeypatch.setattr(remoting, "call", losing)
    return lost


async def test_an_acknowledgement_that_got_lost_is_sent_again(cluster, monkeypatch):
    async with popping(cluster) as (consumer, producer):
        lost = lose_answers(monkeypatch, consumer, RequestCode.ACK_MESSAGE, 2)
        await producer.send(Message(TOPIC, b"x"))
        assert (await anext(consumer)).body == b"x"
        await consumer.acknowledge()
        assert len(lost) == 2
        assert not any(queue.count for queue in consumer.pops.queues.values())


async def test_a_message_that_waits_here_too_long_is_not_given_out(cluster):
    async with popping(cluster, pop_invisible_s=1, concurrency=1) as (consumer, producer):
        seen: Counter[bytes] = Counter()
        is_first = True

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            nonlocal is_first
            seen[bytes(message.body)] += 1
            if is_first:
                is_first = False
                await asyncio.sleep(1.5)

        await producer.send_batch([Message(TOPIC, b"%d" % number) for number in range(3)])
        await until(lambda: len(seen) == 3 and sum(seen.values()) == 4)
    # The slow one was given out again, the others only when they came again.
    assert sorted(seen.values()) == [1, 1, 2]


async def test_a_broker_that_starts_again(cluster):
    async with popping(cluster, pop_invisible_s=5) as (consumer, producer):
        seen: set[bytes] = set()

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            seen.add(bytes(message.body))

        for number in range(60):
            if number == 30:
                broker = cluster.brokers[0]
                await asyncio.to_thread(cluster.stop_broker, broker)
                await asyncio.to_thread(cluster.restart_broker, broker)
            await producer.send(Message(TOPIC, b"%d" % number), timeout_s=30)
        await until(lambda: len(seen) == 60)


async def test_a_receive_goes_on_where_a_broker_starts_again(cluster):
    options: dict[str, Any] = {"group": "other", "subscribe": TOPIC, "consume_from": "first"}
    async with SimpleConsumer(cluster.namesrv, **options) as consumer, Producer(cluster.namesrv) as producer:
        waiting = asyncio.ensure_future(consumer.receive(await_s=60))
        broker = cluster.brokers[0]
        await until(lambda: broker.popper.polls.count == 1)
        await asyncio.to_thread(cluster.stop_broker, broker)
        await asyncio.to_thread(cluster.restart_broker, broker)
        await producer.send(Message(TOPIC, b"x"), timeout_s=30)
        (message,) = await waiting
        assert message.body == b"x"
        await consumer.ack(message)


async def test_clients_may_have_queues_of_some_others_only(cluster):
    """With popShareQueueNum 1, each of four clients pops its own queue and that of the next."""
    set_mode(cluster, "POP", shared=1)
    seen: Counter[bytes] = Counter()
    async with AsyncExitStack() as stack, Producer(cluster.namesrv) as producer:
        consumers = []
        for _ in range(4):
            consumer, _ = await stack.enter_async_context(popping(cluster))

            @consumer.handler
            async def handle(message: ReceivedMessage) -> None:
                seen[bytes(message.body)] += 1

            consumers.append(consumer)
        await until(lambda: all(len(consumer.pops.queues) == 2 for consumer in consumers))
        held = Counter(queue.queue_id for consumer in consumers for queue in consumer.pops.queues)
        assert held == dict.fromkeys(range(QUEUES), 2)
        for number in range(40):
            await producer.send(Message(TOPIC, b"%d" % number))
        await until(lambda: len(seen) == 40)
    assert set(seen.values()) == {1}

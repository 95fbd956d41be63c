"""SimpleConsumer: what is received, acknowledged, and comes again, at our brokers and at Java's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou import sync
from kourou.client import (
    ExpiredHandleError,
    Message,
    MessageQueue,
    PopBatch,
    Producer,
    RefusedError,
    SimpleConsumer,
    Sql,
)
from support.sites.clients import bodies, send


def simple(target: Any, topic: str, **options: Any) -> SimpleConsumer:
    """A consumer of all messages of a topic, in a group of its own."""
    return SimpleConsumer(
        target.namesrv,
        **{"group": f"G{topic}", "subscribe": topic, "consume_from": "first", "await_s": 60, **options},
    )


async def drain(
    consumer: SimpleConsumer,
    count: int,
    then: Callable[[PopBatch], Awaitable[object]] | None = None,
    **how: Any,
) -> list[Any]:
    """So many messages, each batch given to `then`."""
    found: list[Any] = []
    while len(found) < count:
        batch = await consumer.receive(**how)
        if then is not None and len(batch):
            await then(batch)
        found += batch
    return found


def sorted_bodies(messages: Any) -> list[bytes]:
    return sorted(bytes(message.body) for message in messages)


async def test_what_is_acknowledged_is_done_and_the_rest_comes_again(target, topic):
    await send(target, topic, bodies(40), tags="paid", keys=["k"])
    async with simple(target, topic) as consumer:
        first = await drain(consumer, 40, invisible_s=8)
        assert sorted_bodies(first) == sorted(bodies(40))
        assert {message.topic for message in first} == {topic}
        assert {message.delivery_attempt for message in first} == {1}
        assert {message.queue.broker_name for message in first} == {"broker-a", "broker-b"}
        late = first[:3]
        await consumer.ack(first[3])  # one
        await consumer.ack(first[4:])  # several, of both brokers
        again = await drain(consumer, 3, consumer.ack)
        assert sorted_bodies(again) == sorted_bodies(late)
        for message in again:
            assert (message.topic, message.tags, message.keys) == (topic, "paid", ["k"])
            assert message.delivery_attempt == 2
            assert message.queue.topic == f"%RETRY%G{topic}_{topic}"
            assert 0 < message.first_pop_time_ms < message.pop_time_ms
        assert len(await consumer.receive(await_s=3)) == 0


async def test_a_receive_waits_for_a_message_at_whichever_broker(target, topic):
    async with simple(target, topic) as consumer, Producer(target.namesrv, group="PG") as producer:
        for broker in ("broker-b", "broker-a", "broker-b"):
            waiting = asyncio.ensure_future(consumer.receive(1))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await producer.send(Message(topic, broker.encode()), queue=MessageQueue(topic, broker, 1))
            (message,) = await waiting
            assert message.body == broker.encode()
            assert message.queue == MessageQueue(topic, broker, 1)
            await consumer.ack(message)


async def test_topics_take_turns_and_tags_and_sql_filter(target, topic):
    other = target.create_topic(f"{topic}_other"[:100], queues=1)
    subscribe = {topic: "paid || AaAa", other: Sql("amount > 10")}
    async with Producer(target.namesrv, group="PG") as producer:
        for number, tag in enumerate(["paid", "open", "BBBB", "AaAa"]):  # BBBB has the hash of AaAa
            await producer.send(Message(topic, tag.encode(), tags=tag))
            await producer.send(Message(other, b"%d" % number, {"amount": str(number * 8)}))
    async with simple(target, topic, subscribe=subscribe) as consumer:
        found = await drain(consumer, 4, consumer.ack)
        assert sorted_bodies(found) == [b"2", b"3", b"AaAa", b"paid"]
        assert {message.topic for message in found} == {topic, other}
        assert len(await consumer.receive(await_s=0.5)) == 0


async def test_an_expression_that_is_wrong_is_refused_at_the_start(target, topic):
    with pytest.raises(RefusedError):
        async with simple(target, topic, subscribe={topic: Sql("amount >")}):
            pass


async def test_a_message_may_come_again_sooner_or_later(target, topic):
    queue = MessageQueue(topic, "broker-a", 0)
    async with Producer(target.namesrv, group="PG") as producer:
        for body in (b"one", b"two"):
            await producer.send(Message(topic, body), queue=queue)
    async with simple(target, topic, invisible_s=600) as consumer:
        one, two = await consumer.receive()
        await consumer.change_invisible(two, 3)
        await consumer.ack(two)  # by its new handle, of a check point of its own
        handle = one.receipt_handle
        changed = await consumer.change_invisible(one, 2)
        assert one.receipt_handle == changed != handle
        (again,) = await consumer.receive()
        assert (again.body, again.delivery_attempt) == (b"one", 2)
        await consumer.ack(again)
        assert len(await consumer.receive(await_s=5)) == 0


async def test_in_order_a_queue_waits_for_its_acknowledgements(target, topic):
    queue = MessageQueue(topic, "broker-a", 0)
    async with Producer(target.namesrv, group="PG") as producer:
        for body in bodies(4):
            await producer.send(Message(topic, body), queue=queue)
    async with simple(target, topic, orderly=True) as consumer, simple(target, topic, orderly=True) as other:
        first = await consumer.receive(2, invisible_s=60)
        assert [message.body for message in first] == [b"0", b"1"]
        assert len(await other.receive(await_s=0.3)) == 0  # blocked
        await consumer.ack(first[0])
        await consumer.change_invisible(first[1], 0.5)
        again = await drain(other, 2, max_messages=2, invisible_s=60, await_s=3)
        assert [message.body for message in again] == [b"1", b"2"]
        assert again[0].delivery_attempt == 2
        await other.ack(again)
        rest = await consumer.receive()
        assert [message.body for message in rest] == [b"3"]
        await consumer.ack(rest)


async def test_large_messages_come_as_they_were_sent_and_as_columns(target, topic):
    large = [bytes([65 + number]) * 200_000 for number in range(3)]
    await send(target, topic, [*large, *bodies(50)])  # large ones are compressed
    async with simple(target, topic) as consumer:
        (message,) = await consumer.receive(1, invisible_s=2)
        found: list[bytes] = []
        while len(found) < 53:
            rows = await consumer.fetch_arrow()
            found += rows.column("body").to_pylist()
            assert set(rows.column("topic").to_pylist()) == {topic}
            assert rows.schema.names[-2:] == ["broker_name", "receipt_handle"]
            await consumer.ack(rows.select(["topic", "receipt_handle"]))
        assert sorted(found) == sorted([*large, *bodies(50)])  # one of them as a retry
        with pytest.raises(ExpiredHandleError, match="come again"):
            await consumer.ack(message)
        assert (await consumer.fetch_arrow(await_s=3)).num_rows == 0


async def test_messages_of_a_namespace(target):
    topic = f"ns{target.kind}"
    target.create_topic(f"N%{topic}", queues=1, brokers=("broker-a",))
    async with Producer(target.namesrv, group="PG", namespace="N") as producer:
        await producer.send(Message(topic, b"one"))
    async with simple(target, topic, namespace="N") as consumer:
        (message,) = await consumer.receive(invisible_s=2)
        assert message.topic == topic
        (again,) = await consumer.receive()
        assert (again.topic, again.delivery_attempt) == (topic, 2)
        await consumer.ack([again])
        assert len(await consumer.receive(await_s=1)) == 0


def test_the_same_without_an_event_loop(target, topic):
    with sync.Producer(target.namesrv, group="PG") as producer:
        for body in bodies(3):
            producer.send(Message(topic, body))
    with sync.SimpleConsumer(
        target.namesrv, group=f"G{topic}", subscribe=topic, consume_from="first", await_s=60
    ) as consumer:
        found: list[bytes] = []
        while len(found) < 3:
            batch = consumer.receive()
            found += [bytes(message.body) for message in batch]
            consumer.ack(batch)
        assert sorted(found) == bodies(3)
        assert consumer.fetch_arrow(await_s=0.2).num_rows == 0
        assert {queue.queue_id for queue in consumer.queues} == {-1}

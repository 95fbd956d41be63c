"""The consumer that asks for what it reads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from kourou.client import ClientError, Message, MessageQueue, Producer, PullConsumer
from support.sites.clients import bodies, of_topic, send, until


async def drain(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [bytes(message.body) for message in await consumer.poll(timeout_s=30)]
    return found


async def test_polls_give_everything_and_a_commit_keeps_it(target, topic):
    await send(target, topic, bodies(60))
    options = {"group": f"G{topic}", "subscribe": topic, "consume_from": "first", "auto_commit": False}
    async with PullConsumer(target.namesrv, **options) as consumer:
        assert sorted(await drain(consumer, 60)) == sorted(bodies(60))
    async with PullConsumer(target.namesrv, **options) as consumer:
        assert len(await drain(consumer, 60)) == 60  # nothing was kept
        await consumer.commit()
        committed = [await consumer.committed(queue) for queue in consumer.queues]
        assert sum(offset or 0 for offset in committed) == 60
    async with PullConsumer(target.namesrv, **options) as consumer:
        assert await consumer.poll(timeout_s=0.5) == []


async def test_what_is_consumed_is_kept_by_itself(target, topic):
    options = {"group": f"G{topic}", "subscribe": topic, "consume_from": "first"}
    await send(target, topic, bodies(20))
    async with PullConsumer(target.namesrv, **options) as consumer:
        await drain(consumer, 20)
        assert await consumer.poll(timeout_s=0.1) == []
    async with PullConsumer(target.namesrv, **options) as consumer:
        assert await consumer.poll(timeout_s=0.5) == []


async def test_queues_may_be_assigned_and_read_from_anywhere(target, topic):
    queue = MessageQueue(topic, "broker-b", 1)
    async with Producer(target.namesrv, group="PG") as producer:
        for body in bodies(10):
            await producer.send(Message(topic, body), queue=queue)
        await asyncio.sleep(0.05)
        moment = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await producer.send(Message(topic, b"late"), queue=queue)
    async with PullConsumer(target.namesrv, group=f"G{topic}", assign=[queue]) as consumer:
        assert consumer.queues == [queue]
        assert queue in await consumer.fetch_queues(topic)
        await consumer.seek_to_begin(queue)
        assert await drain(consumer, 11) == [*bodies(10), b"late"]
        assert consumer.position(queue) == 11
        consumer.seek(queue, 4)
        assert (await drain(consumer, 7))[0] == b"4"
        offset = await consumer.offset_for_timestamp(queue, moment)
        consumer.seek(queue, offset)
        assert await drain(consumer, 1) == [b"late"]
        await consumer.seek_to_end(queue)
        assert await consumer.poll(timeout_s=0.3) == []
        await consumer.commit({queue: 7})
        assert await consumer.committed(queue) == 7
        assert consumer.lag == {queue: 0}


async def test_queues_may_be_paused(target, topic):
    first, second = MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-a", 1)
    async with PullConsumer(
        target.namesrv, group=f"G{topic}", assign=[first, second], consume_from="first"
    ) as consumer:
        consumer.pause(first)
        async with Producer(target.namesrv, group="PG") as producer:
            await producer.send(Message(topic, b"first"), queue=first)
            await producer.send(Message(topic, b"second"), queue=second)
        assert await drain(consumer, 1) == [b"second"]
        assert await consumer.poll(timeout_s=0.5) == []
        consumer.resume(first)
        assert await drain(consumer, 1) == [b"first"]


async def test_pull_consumers_share_queues_too(target, topic):
    options = {"group": f"G{topic}", "subscribe": topic}
    async with PullConsumer(target.namesrv, **options) as one:
        await until(lambda: len(of_topic(one, topic)) == 4)
        async with PullConsumer(target.namesrv, **options) as other:
            await until(lambda: len(of_topic(one, topic)) == len(of_topic(other, topic)) == 2)
            with pytest.raises(ClientError, match="subscribes"):
                await one.assign([MessageQueue(topic, "broker-a", 0)])


async def test_what_is_not_there_is_refused(target, topic):
    async with PullConsumer(target.namesrv, group=f"G{topic}", assign=[]) as consumer:
        with pytest.raises(ClientError, match="not read"):
            consumer.seek(MessageQueue(topic, "broker-a", 0), 1)
        with pytest.raises(ClientError, match="cannot be read"):
            await consumer.assign([MessageQueue(topic, "no-such-broker", 0)])
    with pytest.raises(ClientError, match="either"):
        PullConsumer("127.0.0.1:1", group="G", subscribe="t", assign=[])


async def test_queues_may_be_assigned_after_the_start(target, topic):
    await send(target, topic, bodies(3))
    async with PullConsumer(target.namesrv, group=f"G{topic}", consume_from="first") as consumer:
        queues = await consumer.fetch_queues(topic)
        await consumer.assign(queues)
        consumer.assignment.request_rebalance()  # as a broker says when another client comes
        await asyncio.sleep(1.5)
        assert consumer.queues == queues
        assert sorted(await drain(consumer, 3)) == bodies(3)

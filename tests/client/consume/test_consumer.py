"""Consumers against a cluster of ours and one of Java's."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from kourou.client import (
    ClientError,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    ReconsumeLater,
    RefusedError,
    Sql,
)
from kourou.client.consume.strategies import AVERAGE_BY_CIRCLE, CONSISTENT_HASH
from support.sites.clients import bodies, numbers, of_topic, reader, send, take, until


async def test_messages_come_one_by_one_with_what_they_had(target, topic):
    await send(target, topic, bodies(20), properties={"color": "red"}, tags="paid", keys=["a", "b"])
    async with reader(target, topic) as consumer:
        found = await take(consumer, 20)
    assert sorted(bytes(message.body) for message in found) == sorted(bodies(20))
    for message in found:
        assert (message.topic, message.tags, message.keys) == (topic, "paid", ["a", "b"])
        assert message.properties["color"] == "red"
        assert message.queue.topic == topic
        assert message.broker_name in target.brokers


async def test_a_group_goes_on_where_it_was(target, topic):
    options = {"group": f"G{topic}", "subscribe": topic, "consume_from": "first"}
    await send(target, topic, bodies(10))
    async with Consumer(target.namesrv, **options) as consumer:
        first = await take(consumer, 10)
    await send(target, topic, [b"more"] * 4)
    async with Consumer(target.namesrv, **options) as consumer:
        second = await take(consumer, 4)
    assert {bytes(message.body) for message in first} == set(bodies(10))
    assert [bytes(message.body) for message in second] == [b"more"] * 4


async def test_what_was_not_consumed_comes_again(target, topic):
    options = {"group": f"G{topic}", "subscribe": topic, "consume_from": "first"}
    await send(target, topic, bodies(6))
    async with Consumer(target.namesrv, **options) as consumer:
        taken = [bytes((await anext(consumer)).body) for _ in range(3)]
    async with Consumer(target.namesrv, **options) as consumer:
        rest = [bytes(message.body) for message in await take(consumer, 4)]
    assert taken[2] in rest  # nobody asked for the one behind it
    assert sorted(taken[:2] + rest) == bodies(6)


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_handler_is_called_with_each_message(target, topic, is_coroutine):
    await send(target, topic, bodies(50))
    found: list[bytes] = []
    consumer = Consumer(
        target.namesrv, group=f"G{topic}{is_coroutine}", subscribe=topic, consume_from="first"
    )
    if is_coroutine:

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            found.append(bytes(message.body))

    else:

        @consumer.handler
        def handle_in_thread(message: ReceivedMessage) -> None:
            found.append(bytes(message.body))

    async with consumer:
        await until(lambda: len(found) >= 50)
    assert sorted(found) == sorted(bodies(50))


async def test_a_handler_may_take_several(target, topic):
    await send(target, topic, bodies(40))
    sizes: list[int] = []
    found: list[bytes] = []
    consumer = reader(target, topic, batch_size=8)

    @consumer.handler
    async def handle(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        found.extend(bytes(message.body) for message in messages)

    async with consumer:
        await until(lambda: len(found) >= 40)
    assert sorted(found) == sorted(bodies(40))
    assert 1 < max(sizes) <= 8


async def test_tags_and_their_collisions(target, topic):
    async with Producer(target.namesrv, group="PG") as producer:
        for tag in ("paid", "refunded", "lost", "Aa", "BB"):  # Aa and BB have the same hash
            await producer.send(Message(topic, tag.encode(), tags=tag))
    subscribe = {topic: "paid || refunded||Aa"}
    async with Consumer(
        target.namesrv, group=f"G{topic}", subscribe=subscribe, consume_from="first"
    ) as consumer:
        found = await take(consumer, 3)
        assert {message.tags for message in found} == {"paid", "refunded", "Aa"}
        await consumer.commit()


async def test_an_expression_selects_by_properties(target, topic):
    async with Producer(target.namesrv, group="PG") as producer:
        for number in range(20):
            await producer.send(Message(topic, b"%d" % number, {"amount": str(number)}))
    async with Consumer(
        target.namesrv,
        group=f"G{topic}",
        subscribe={topic: Sql("amount BETWEEN 5 AND 8")},
        consume_from="first",
    ) as consumer:
        found = await take(consumer, 4)
        assert sorted(bytes(message.body) for message in found) == [b"5", b"6", b"7", b"8"]


async def test_an_expression_that_is_wrong_is_refused_at_once(target, topic):
    consumer = Consumer(target.namesrv, group=f"G{topic}", subscribe={topic: Sql("amount >")})
    with pytest.raises(RefusedError, match="CHECK_CLIENT_CONFIG"):
        async with consumer:
            pass


async def test_a_new_group_begins_first_last_or_at_a_time(target, topic):
    await send(target, topic, [b"old"] * 8)
    await asyncio.sleep(0.05)
    moment = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await send(target, topic, [b"new"] * 8)
    for where, expected in (("first", 16), (moment, 8)):
        name = f"G{topic}{expected}"
        async with Consumer(target.namesrv, group=name, subscribe=topic, consume_from=where) as consumer:
            found = await take(consumer, expected)
            assert sum(bytes(message.body) == b"new" for message in found) == 8


async def test_a_failed_message_comes_again_and_ends_as_a_dead_letter(target, topic):
    group = f"G{topic}"
    await send(target, topic, [b"bad", b"good"], keys=["k"])
    seen: list[tuple[bytes, int, str]] = []
    consumer = Consumer(
        target.namesrv, group=group, subscribe=topic, consume_from="first", max_reconsume_times=2
    )

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        seen.append((bytes(message.body), message.reconsume_times, message.topic))
        if message.body == b"bad":
            raise ReconsumeLater(delay_level=1)

    async with consumer:
        await until(lambda: len([1 for body, *_ in seen if body == b"bad"]) >= 3)
        bad = [entry for entry in seen if entry[0] == b"bad"]
        assert bad == [(b"bad", times, topic) for times in range(3)]
        assert [entry for entry in seen if entry[0] == b"good"] == [(b"good", 0, topic)]
        await asyncio.sleep(1.5)
    async with Consumer(
        target.namesrv, group=f"D{topic}", subscribe=f"%DLQ%{group}", consume_from="first"
    ) as dead:
        (letter,) = await take(dead, 1)
        assert letter.body == b"bad"
        assert letter.keys == ["k"]


async def test_a_message_may_be_sent_back_by_hand(target, topic):
    await send(target, topic, [b"x"])
    async with reader(target, topic) as consumer:
        first = await anext(consumer)
        await consumer.reconsume_later(first, 1)
        again = await anext(consumer)
        assert (again.body, again.reconsume_times, again.message_id) == (b"x", 1, first.message_id)
        assert again.queue.topic == f"%RETRY%G{topic}"


async def test_batches_and_columns(target, topic):
    await send(target, topic, bodies(100), tags="paid")
    options = {"subscribe": topic, "consume_from": "first"}
    async with Consumer(target.namesrv, group=f"B{topic}", **options) as consumer:
        found: list[bytes] = []
        async for batch in consumer.batches():
            assert {message.queue for message in batch} == {batch.queue}
            found += [bytes(body) for body in batch.bodies()]
            if len(found) == 100:
                break
        assert sorted(found) == sorted(bodies(100))
    async with Consumer(target.namesrv, group=f"A{topic}", **options) as consumer:
        rows: list[dict[str, Any]] = []
        while len(rows) < 100:
            rows += (await consumer.fetch_arrow(columns=["body", "tags", "broker_name", "topic"])).to_pylist()
        assert sorted(row["body"] for row in rows) == sorted(bodies(100))
        assert {row["tags"] for row in rows} == {"paid"}
        assert {row["broker_name"] for row in rows} == set(target.brokers)
        assert (await consumer.fetch_arrow(timeout_s=0.01)).num_rows == 0
    async with Consumer(target.namesrv, group=f"A{topic}", **options) as consumer:
        # All of it was asked for past, so nothing comes again.
        assert (await consumer.fetch_arrow(timeout_s=1.0)).num_rows == 0


async def test_columns_leave_out_tags_that_only_have_the_same_hash(target, topic):
    for tag in ("Aa", "BB", "Aa"):
        await send(target, topic, [tag.encode()], tags=tag)
    async with Consumer(
        target.namesrv, group=f"G{topic}", subscribe={topic: "Aa"}, consume_from="first"
    ) as consumer:
        found: list[str] = []
        while len(found) < 2:
            found += (await consumer.fetch_arrow(columns=["tags"])).column("tags").to_pylist()
        assert found == ["Aa", "Aa"]


async def test_compressed_bodies_are_as_they_were_sent(target, topic):
    body = b"kourou " * 2000

    await send(target, topic, [body] * 3)
    async with reader(target, topic) as consumer:
        assert all(message.body == body for message in await take(consumer, 3))
    async with Consumer(target.namesrv, group=f"A{topic}", subscribe=topic, consume_from="first") as consumer:
        found: list[bytes] = []
        while len(found) < 3:
            found += (await consumer.fetch_arrow(columns=["body"])).column("body").to_pylist()
        assert found == [body] * 3


async def test_clients_of_a_group_share_its_queues(target, topic):
    group = f"G{topic}"
    options = {"group": group, "subscribe": topic, "consume_from": "first"}
    async with Consumer(target.namesrv, **options) as first:
        await until(lambda: len(of_topic(first, topic)) == 4)
        async with Consumer(target.namesrv, **options) as second:
            await until(lambda: len(of_topic(first, topic)) == len(of_topic(second, topic)) == 2)
            assert not set(of_topic(first, topic)) & set(of_topic(second, topic))
        await until(lambda: len(of_topic(first, topic)) == 4)


async def test_a_broadcast_reaches_everybody_and_is_remembered(target, topic, tmp_path):
    def consumer(name: str) -> Consumer:
        return reader(target, topic, broadcast=True, instance=name, offsets_directory=tmp_path)  # fmt: skip

    await send(target, topic, bodies(10))
    async with consumer("one") as one, consumer("two") as two:
        for client in (one, two):
            found = await take(client, 10)
            assert sorted(bytes(message.body) for message in found) == bodies(10)
    await send(target, topic, [b"more"])
    async with consumer("one") as one:
        assert [bytes(message.body) for message in await take(one, 1)] == [b"more"]


async def test_messages_in_order_are_consumed_one_after_the_other(target, topic):
    async with Producer(target.namesrv, group="PG") as producer:
        for number in range(60):
            await producer.send(Message(topic, b"%d" % number, sharding_key=str(number % 5)))
    active: dict[MessageQueue, int] = {}
    found: dict[MessageQueue, list[int]] = {}
    failed_once: set[int] = set()
    consumer = reader(target, topic, orderly=True, suspend_s=0.05)

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        active[message.queue] = active.get(message.queue, 0) + 1
        assert active[message.queue] == 1
        await asyncio.sleep(0.001)
        active[message.queue] -= 1
        number = int(bytes(message.body))
        if number % 7 == 0 and number not in failed_once:
            failed_once.add(number)
            raise RuntimeError("once")
        found.setdefault(message.queue, []).append(number)

    async with consumer:
        await until(lambda: sum(map(len, found.values())) >= 60)
    assert sorted(itertools.chain(*found.values())) == list(range(60))
    assert all(own == sorted(own) for own in found.values())
    assert failed_once == set(range(0, 60, 7))


async def test_in_order_a_message_that_never_succeeds_leaves_its_queue(target, topic):
    await send(target, topic, [b"bad", b"good"], sharding_key="one")
    found: list[bytes] = []
    consumer = reader(target, topic, orderly=True, suspend_s=0.05, max_reconsume_times=1)  # fmt: skip

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise RuntimeError("always")
        found.append(bytes(message.body))

    async with consumer:
        await until(lambda: found == [b"good"])


async def test_a_queue_that_moves_while_it_is_read_in_order_keeps_its_order(target, topic):
    count = 300
    found: dict[MessageQueue, list[int]] = {}
    busy: set[MessageQueue] = set()

    def consumer() -> Consumer:
        made = reader(target, topic, orderly=True)

        @made.handler
        async def handle(message: ReceivedMessage) -> None:
            assert message.queue not in busy  # nobody else has it at the same time
            busy.add(message.queue)
            await asyncio.sleep(0.002)
            busy.discard(message.queue)
            found.setdefault(message.queue, []).append(int(bytes(message.body)))

        return made

    async def produce() -> None:
        async with Producer(target.namesrv, group="PG") as producer:
            for number in range(count):
                await producer.send(Message(topic, b"%d" % number, sharding_key=str(number % 7)))

    async with consumer():
        sending = asyncio.create_task(produce())
        await until(lambda: sum(map(len, found.values())) > 20)
        async with consumer() as second:
            await until(lambda: len(of_topic(second, topic)) == 2)
            await until(lambda: sum(map(len, found.values())) > 150)
        await sending
        await until(lambda: len(set(itertools.chain(*found.values()))) == count)
    for own in found.values():
        # Repeats are allowed, disorder is not.
        assert list(dict.fromkeys(own)) == sorted(set(own))


async def test_no_more_is_pulled_than_may_wait(target, topic):
    await send(target, topic, bodies(400), sharding_key="one")
    async with reader(target, topic, max_cached_messages=50) as consumer:
        await until(lambda: any(queue.count for queue in consumer.assignment.queues.values()))
        await asyncio.sleep(0.3)
        assert 50 < max(queue.count for queue in consumer.assignment.queues.values()) <= 50 + 32
        found = await take(consumer, 400)
        assert [bytes(message.body) for message in found] == bodies(400)


@pytest.mark.parametrize("limit", [{"max_cached_bytes": 20_000}, {"max_span": 100}], ids=["bytes", "span"])
async def test_nor_more_bytes_nor_further_ahead(target, topic, limit):
    body = b"x" * 200
    await send(target, topic, [body] * 300, sharding_key="one")
    async with reader(target, topic, **limit) as consumer:
        first = await anext(consumer)
        await asyncio.sleep(0.3)
        (queue,) = [queue for queue in consumer.assignment.queues.values() if queue.count]
        assert 32 <= queue.count < 200  # and not all there is
        found = await take(consumer, 299)
        assert [message.queue_offset for message in (first, *found)] == list(range(300))


@pytest.mark.parametrize("strategy", [AVERAGE_BY_CIRCLE, CONSISTENT_HASH], ids=["circle", "hash"])
async def test_other_strategies_share_all_queues_too(target, topic, strategy):
    options = {"group": f"G{topic}", "subscribe": topic, "strategy": strategy}
    async with Consumer(target.namesrv, **options) as one, Consumer(target.namesrv, **options) as two:
        await until(
            lambda: (
                len(of_topic(one, topic)) + len(of_topic(two, topic)) == 4
                and not set(of_topic(one, topic)) & set(of_topic(two, topic))
            )
        )


async def test_messages_whose_handler_does_not_end_are_sent_back(target, topic, monkeypatch):
    monkeypatch.setattr("kourou.client.consume.consumer.TIMEOUT_CHECK_S", 0.1)

    await send(target, topic, [b"x"])
    times: list[int] = []
    consumer = reader(target, topic, consume_timeout_s=0.3, close_timeout_s=0.1)

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        times.append(message.reconsume_times)
        if message.reconsume_times == 0:
            await asyncio.sleep(1000)

    async with consumer:
        await until(lambda: times == [0, 1])


async def test_messages_of_inner_batches_come_one_by_one(target):
    topic = target.create_topic(f"inner{next(numbers)}", queues=1, attributes="+queue.type=BatchCQ")
    async with Producer(target.namesrv, group="PG") as producer:
        for start in (0, 5):
            batch = [Message(topic, body, tags="t") for body in bodies(start + 5)[start:]]
            await producer.send_batch(batch, queue=MessageQueue(topic, "broker-a", 0))
    options = {"subscribe": topic, "consume_from": "first"}
    async with Consumer(target.namesrv, group=f"G{topic}", **options) as consumer:
        found = await take(consumer, 10)
        assert [(bytes(message.body), message.queue_offset) for message in found] == [
            (body, offset) for offset, body in enumerate(bodies(10))
        ]
    async with Consumer(target.namesrv, group=f"A{topic}", **options) as consumer:
        rows: list[Any] = []
        while len(rows) < 10:
            rows += (await consumer.fetch_arrow(columns=["body", "queue_offset", "tags"])).to_pylist()
        expected = [
            {"body": body, "queue_offset": offset, "tags": "t"} for offset, body in enumerate(bodies(10))
        ]
        assert sorted(rows, key=lambda row: row["queue_offset"]) == expected


async def test_a_consumer_may_pause(target, topic):
    async with reader(target, topic) as consumer:
        consumer.pause()
        await send(target, topic, bodies(4))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.5)
        consumer.resume()
        assert len(await take(consumer, 4)) == 4


async def test_a_namespace_keeps_topics_and_groups_apart(target, topic):
    target.create_topic(f"NS%{topic}", queues=1)
    async with Producer(target.namesrv, group="PG", namespace="NS") as producer:
        await producer.send(Message(topic, b"inside"))
    async with reader(target, topic, namespace="NS") as consumer:
        (message,) = await take(consumer, 1)
        assert (message.topic, message.body) == (topic, b"inside")
        assert message.queue.topic == f"NS%{topic}"


async def test_a_topic_that_comes_later_is_read_when_it_is_there(target):
    topic = f"later{next(numbers)}"
    async with reader(target, topic, start_timeout_s=None) as consumer:
        assert of_topic(consumer, topic) == []
        target.create_topic(topic, queues=1)
        await send(target, topic, [b"x"])
        assert [bytes(message.body) for message in await take(consumer, 1)] == [b"x"]


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ClientError, match="consume_from"):
        Consumer("127.0.0.1:1", group="G", subscribe="t", consume_from="middle")
    with pytest.raises(ClientError, match="group"):
        Consumer("127.0.0.1:1", group="no spaces", subscribe="t")
    with pytest.raises(ClientError, match="name server"):
        Consumer("", group="G", subscribe="t")

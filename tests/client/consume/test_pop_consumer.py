"""The push consumer that follows the broker's request mode, POP or PULL, at our brokers and at Java's."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from kourou.client import Consumer, Message, MessageQueue, Producer, ReceivedMessage, ReconsumeLater, Sql
from kourou.remoting.protocol.codes import RequestCode
from support.java import RUN, java
from support.sites.clients import bodies, of_topic, reader, run, send, take, until
from support.sites.servers import java_environment, report_of
from support.targets import BROKERS


def set_mode(target: Any, topic: str, mode: str, group: str = "") -> None:
    """Say how a group takes a topic."""
    body = {"topic": topic, "consumerGroup": group or f"G{topic}", "mode": mode, "popShareQueueNum": 0}
    for broker in BROKERS:
        target.call(broker, RequestCode.SET_MESSAGE_REQUEST_MODE, body=orjson.dumps(body))


def follower(target: Any, topic: str, **options: Any) -> Consumer:
    """A consumer of a topic that does as the broker says."""
    quick = {"client_rebalance": False, "pop_invisible_s": 30, "pop_retry_delays_s": [1.5]}
    return reader(target, topic, **(quick | options))


def of_all_brokers(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, -1) for broker in BROKERS]


async def test_a_handler_has_each_message_and_what_it_failed_on_again(target, topic):
    set_mode(target, topic, "POP")
    seen: Counter[bytes] = Counter()
    attempts: dict[bytes, int] = {}
    large = [b"%d" % number * 20_000 for number in range(2)]  # these are compressed
    await send(target, topic, [*bodies(40), *large])
    async with follower(target, topic, concurrency=4, pop_invisible_s=6) as consumer:

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            body = bytes(message.body)
            assert message.topic == topic
            seen[body] += 1
            if body in (b"3", b"5") and seen[body] == 1:
                raise ReconsumeLater
            attempts[body] = message.delivery_attempt

        await until(lambda: len(attempts) == 42)
        assert of_topic(consumer, topic) == of_all_brokers(topic)
        assert {body for body, times in seen.items() if times > 1} == {b"3", b"5"}
        assert {attempts[b"3"], attempts[b"5"]} == {2}
    async with follower(target, topic) as other:  # everything was acknowledged
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(other), 8)


async def test_tags_and_sql_filter_what_is_popped(target, topic):
    other = target.create_topic(f"{topic}_other"[:100], queues=1)
    for name in (topic, other):
        set_mode(target, name, "POP", f"G{topic}")
    async with Producer(target.namesrv, group="PG") as producer:
        for number, tag in enumerate(["paid", "open", "BBBB", "AaAa"]):  # BBBB has the hash of AaAa
            await producer.send(Message(topic, tag.encode(), tags=tag))
            await producer.send(Message(other, b"%d" % number, {"amount": str(number * 8)}))
    subscribe = {topic: "paid || AaAa", other: Sql("amount > 10")}
    async with follower(target, topic, subscribe=subscribe) as consumer:
        found = await take(consumer, 4)
    assert sorted(bytes(message.body) for message in found) == [b"2", b"3", b"AaAa", b"paid"]


async def test_what_fails_too_often_is_a_dead_letter(target, topic):
    set_mode(target, topic, "POP")
    async with Producer(target.namesrv, group="PG") as producer:
        for body in (b"bad", b"worse"):  # at one broker, which makes the dead-letter topic
            await producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 0))
    seen: Counter[bytes] = Counter()
    async with follower(target, topic, max_reconsume_times=1) as consumer:

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            seen[bytes(message.body)] += 1
            raise ReconsumeLater(-1 if message.body == b"worse" else 0)

        async with reader(target, f"%DLQ%G{topic}", group=f"D{topic}", start_timeout_s=None) as dead:
            letters = await take(dead, 2)
        assert sorted(bytes(letter.body) for letter in letters) == [b"bad", b"worse"]
    assert seen == {b"bad": 2, b"worse": 1}


async def test_messages_batches_and_columns_are_acknowledged_when_the_next_are_asked_for(target, topic):
    set_mode(target, topic, "POP")
    await send(target, topic, bodies(30))
    found: list[bytes] = []
    async with follower(target, topic, pop_batch_size=4) as consumer:
        async for message in consumer:
            found.append(bytes(message.body))
            if len(found) == 5:
                break
        async for batch in consumer.batches():
            found += [bytes(body) for body in batch.bodies()]
            if len(found) >= 15:
                break
        while len(found) < 30:
            found += (await consumer.fetch_arrow(timeout_s=10)).column("body").to_pylist()
        await consumer.acknowledge()
        assert sorted(found) == sorted(bodies(30))
        assert all(not queue.count for queue in consumer.pops.queues.values())


async def test_what_a_consumer_has_not_begun_when_it_closes_comes_again_soon(target, topic):
    set_mode(target, topic, "POP")
    await send(target, topic, bodies(12))
    async with follower(target, topic, pop_invisible_s=3600) as consumer:
        first = [await anext(consumer), await anext(consumer)]  # the first is done, the second is not
        await until(lambda: sum(queue.count for queue in consumer.pops.queues.values()) == 11)
    async with follower(target, topic) as other:
        found = await take(other, 11)
    assert sorted(bytes(message.body) for message in found) == sorted(
        set(bodies(12)) - {bytes(first[0].body)}
    )
    assert {message.delivery_attempt for message in found} == {1}  # it does not count as a failure


async def test_the_mode_changes_while_messages_come(target, topic):
    seen: Counter[bytes] = Counter()
    sent: list[bytes] = []
    failed: set[bytes] = set()
    async with follower(target, topic, pop_invisible_s=5) as consumer, Producer(target.namesrv) as producer:

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            assert message.topic == topic
            body = bytes(message.body)
            seen[body] += 1
            if int(body) % 10 >= 8 and body not in failed:
                failed.add(body)
                raise ReconsumeLater  # so that some are in flight when the mode changes

        for mode in ("PULL", "POP", "PULL", "POP", "PULL"):
            set_mode(target, topic, mode)
            consumer.assignment.request_rebalance()
            is_popped = mode == "POP"
            await until(lambda is_popped=is_popped: bool(consumer.pops.queues) == is_popped)  # type: ignore[misc]
            for _ in range(30):
                body = b"%d" % len(sent)
                sent.append(body)
                # At one broker: Java's tell the name server of the retry topic after half a minute.
                queue = MessageQueue(topic, "broker-a", len(sent) % 2)
                await producer.send(Message(topic, body), queue=queue)
        await until(lambda: len(seen) == len(sent))
        assert len(failed) == len(sent) // 5
        # What failed while it was popped comes again in a topic that is pulled from now on.
        while not all(seen[body] > 1 for body in failed):
            consumer.assignment.request_rebalance()  # instead of every 20 s
            await asyncio.sleep(0.2)
        assert {queue.topic for queue in consumer.queues} >= {topic, f"%RETRY%G{topic}_{topic}"}


@pytest.mark.interop
def test_java_and_python_pop_in_one_group(target, topic, tmp_path):
    java()
    set_mode(target, topic, "POP")
    arguments = ["--namesrv", target.namesrv, "--topic", topic, "--group", f"G{topic}", "--count", "1"]

    def run_java(directory: Path) -> dict[str, int]:
        """A push consumer for three seconds after its first message; how often it saw each."""
        done = subprocess.run(
            [RUN, "Pop", "push", *arguments, "--timeout", "120", "--linger", "3"], capture_output=True,
            encoding="utf-8", errors="replace", env=java_environment(directory), timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.splitlines()[-15:]
        seen: dict[str, int] = report_of(done)["seen"]
        return seen

    async def main() -> None:
        here: Counter[bytes] = Counter()
        sent = 0
        async with follower(target, topic) as consumer, Producer(target.namesrv) as producer:

            @consumer.handler
            async def handle(message: ReceivedMessage) -> None:
                here[bytes(message.body)] += 1

            running = asyncio.ensure_future(asyncio.to_thread(run_java, tmp_path))
            while not running.done():
                await producer.send(Message(topic, b"%d" % sent))
                sent += 1
                await asyncio.sleep(0.02)
            there = {body.encode() for body in running.result()}
            await until(lambda: {*here, *there} == set(bodies(sent)))
            assert here
            assert there

    run(main(), 300)

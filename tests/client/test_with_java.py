"""Clients of ours beside Java's, on a cluster of ours and on one of Java's."""

from __future__ import annotations

import asyncio
import json

import pytest

from kourou.client import Consumer, Message, MessageQueue, Producer, ReceivedMessage
from kourou.message.compression import CompressionType
from support.java import java
from support.sites.clients import numbers, of_topic, reader, run, take, until
from support.sites.servers import interop

pytestmark = pytest.mark.interop

MINUTES_S = 180.0  # a Java client needs seconds to begin, more on a loaded machine


@pytest.fixture(autouse=True)
def _java() -> None:
    java()


@pytest.fixture
def topic(target, request: pytest.FixtureRequest) -> str:
    """Four queues on one broker: what Java's program checks tells queues apart by their numbers."""
    name = f"t{next(numbers)}_{request.node.originalname}"
    return str(target.create_topic(name, queues=4, brokers=("broker-a",)))


@pytest.mark.parametrize(
    "mode",
    [
        ["sync", "--count", "20"],
        ["sync", "--count", "5", "--size", "20000", "--compress", "LZ4"],
        ["sync", "--count", "5", "--size", "20000", "--compress", "ZSTD"],
        ["batch", "--count", "32"],
        ["ordered", "--count", "20"],
        ["delay", "--count", "5", "--delay-level", "1"],
        ["timer", "--count", "5", "--delay-sec", "2"],
    ],
    ids=["sync", "lz4", "zstd", "batch", "ordered", "delay", "timer"],
)
def test_what_java_sends_is_consumed(target, topic, tmp_path, mode):
    async def main():
        out = tmp_path / "sent.json"
        arguments = ["produce", "--topic", topic, "--mode", *mode, "--out", str(out)]
        await asyncio.to_thread(interop, tmp_path, target.namesrv, *arguments)
        sent = {message["key"]: message for message in json.loads(out.read_text())["messages"]}
        async with reader(target, topic) as consumer:
            found = await take(consumer, len(sent))
        assert {message.keys[0] for message in found} == set(sent)
        for message in found:
            expected = sent[message.keys[0]]
            assert message.tags == expected["tag"]
            assert message.message_id == expected["msgId"]

    run(main(), MINUTES_S)


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_what_is_sent_here_is_consumed_by_java(target, topic, tmp_path, mode):
    async def main():
        expected: dict[str, str] = {}
        for compression in CompressionType:
            async with Producer(target.namesrv, group="PG", compression=compression) as producer:
                for number in range(10):
                    body = (f"body {number} " * (1000 if number % 3 == 0 else 1)).encode()
                    key = f"{compression.name}-{number}"
                    message = Message(
                        topic, body, {"color": "red"}, tags="paid", keys=[key], sharding_key=str(number % 3)
                    )
                    expected[key] = (await producer.send(message)).message_id
        async with Producer(target.namesrv, group="PG") as producer:
            batch = [Message(topic, b"in a batch", keys=[f"batch-{number}"]) for number in range(10)]
            await producer.send_batch(batch)
            expected |= {message.keys[0]: message.properties["UNIQ_KEY"] for message in batch}
        arguments = ["--topic", topic, "--group", f"J{topic}{mode}", "--mode", mode]
        report = await asyncio.to_thread(
            interop, tmp_path, target.namesrv, "consume", *arguments, "--count", str(len(expected))
        )
        assert {message["key"]: message["msgId"] for message in report["messages"]} == expected

    run(main(), MINUTES_S)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_group_of_both_shares_its_queues(target, topic, tmp_path, orderly):
    async def main():
        group = f"G{topic}{orderly}"
        ours: list[str] = []
        consumer = Consumer(
            target.namesrv, group=group, subscribe=topic, consume_from="first", orderly=orderly
        )

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            ours.append(message.keys[0])

        async with consumer, Producer(target.namesrv, group="PG") as producer:
            await until(lambda: len(of_topic(consumer, topic)) == 4)
            mode = "orderly" if orderly else "concurrent"
            arguments = ["--topic", topic, "--group", group, "--mode", mode, "--count", "30"]
            theirs = asyncio.create_task(
                asyncio.to_thread(interop, tmp_path, target.namesrv, "consume", *arguments)
            )
            await until(lambda: len(of_topic(consumer, topic)) == 2)
            await asyncio.sleep(1.5)  # Java begins to pull what it was given
            left = set(of_topic(consumer, topic))
            queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
            for number in range(60):
                await producer.send(Message(topic, b"x", keys=[str(number)]), queue=queues[number % 4])
            report = await theirs
            java_has = {message["key"] for message in report["messages"]}
            assert java_has == {str(number) for number in range(60) if queues[number % 4] not in left}
            await until(lambda: len(set(ours)) >= 30)
            assert set(ours) | java_has == set(map(str, range(60)))
            await until(lambda: len(of_topic(consumer, topic)) == 4)  # Java has left
            await producer.send(Message(topic, b"x", keys=["last"]))
            await until(lambda: "last" in ours)

    run(main(), MINUTES_S)

"""What brokers and operators ask a consumer: through Java's mqadmin, as they would."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client import Consumer, ReceivedMessage
from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    ResetOffset,
)
from support.sites.clients import bodies, of_topic, run, send, take, until
from support.sites.servers import mqadmin


async def test_a_consumer_says_what_it_does(target, topic):
    await send(target, topic, bodies(8))
    group = f"G{topic}"
    consumer = Consumer(target.namesrv, group=group, subscribe={topic: "*"}, consume_from="first")
    found: list[bytes] = []

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        found.append(bytes(message.body))

    async with consumer:
        await until(lambda: len(found) == 8)
        header = GetConsumerRunningInfo(group, consumer.core.client_id, True)
        answer = await asyncio.to_thread(
            target.call, "broker-a", RequestCode.GET_CONSUMER_RUNNING_INFO, header.fields()
        )
        info = lenient_json.loads(answer.body)
        assert {item["topic"] for item in info["subscriptionSet"]} == {topic, f"%RETRY%{group}"}
        queues = {MessageQueue.from_json(text): value for text, value in info["mqTable"].items()}
        assert set(of_topic(consumer, topic)) <= set(queues)
        assert sum(queues[queue]["commitOffset"] for queue in of_topic(consumer, topic)) == 8
        assert info["statusTable"][topic]["consumeOKTPS"] > 0
        assert "pytest_pyfunc_call" in info["jstack"]  # what the main thread does
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"

        answer = await asyncio.to_thread(
            target.call,
            "broker-a",
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            GetConsumerStatus(topic, group).fields(),
        )
        (table,) = lenient_json.loads(answer.body)["consumerTable"].values()
        assert sum(table.values()) == 8


@pytest.mark.interop
async def test_mqadmin_reads_what_it_says(target, topic):
    group = f"G{topic}"
    async with Consumer(target.namesrv, group=group, subscribe=topic) as consumer:
        await until(lambda: len(of_topic(consumer, topic)) == 4)
        (listed, shown) = await asyncio.to_thread(
            mqadmin,
            target.directory,
            ["consumerStatus", "-n", target.namesrv, "-g", group],
            ["consumerStatus", "-n", target.namesrv, "-g", group, "-i", consumer.core.client_id],
        )
        assert consumer.core.client_id in listed
        assert "#Consumer Subscription#" in shown
        assert topic in shown


async def test_offsets_are_reset_while_it_runs(target, topic):
    group = f"G{topic}"
    await send(target, topic, bodies(20))
    async with Consumer(target.namesrv, group=group, subscribe=topic, consume_from="first") as consumer:
        await take(consumer, 20)
        await consumer.commit()
        for broker in target.brokers:
            header = ResetOffset(group, topic, 0, True)
            await asyncio.to_thread(
                target.call, broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.fields()
            )
        again = await take(consumer, 20)
        assert sorted(bytes(message.body) for message in again) == sorted(bodies(20))


def test_a_message_is_consumed_directly(target, topic):
    async def main():
        group = f"G{topic}"
        found: list[str] = []
        consumer = Consumer(target.namesrv, group=group, subscribe=topic, consume_from="first")

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            found.append(message.offset_message_id)
            if len(found) > 1:
                raise RuntimeError("not again")

        await send(target, topic, [b"x"])
        async with consumer:
            await until(lambda: len(found) == 1)
            address, _, _ = found[0], None, None
            for broker in target.brokers:
                port = f"{target.brokers[broker].port:08X}"
                if found[0][8:16] != port:
                    continue
                header = ConsumeMessageDirectly(
                    group, client_id=consumer.core.client_id, msg_id=address, topic=topic
                )
                answer = await asyncio.to_thread(
                    target.call, broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, header.fields()
                )
                result = lenient_json.loads(answer.body)
                assert result["consumeResult"] == "CR_THROW_EXCEPTION"
                assert "not again" in result["remark"]
                assert len(found) == 2
                return
        raise AssertionError("no broker has the message")

    run(main())

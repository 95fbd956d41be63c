"""Request and reply through a cluster of two brokers, ours and Java's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kourou.client import ClientError, Message, Producer
from kourou.client.produce.requests import RequestTimeoutError, make_reply
from support.sites.servers import Server
from support.stores.reading import read_stored


async def answer_all(
    brokers: Mapping[str, Server], topic: str, count: int, replier: Producer, body: bytes = b""
) -> None:
    """What a consumer does: once so many requests are there, reply to each."""
    for request in await read_stored(brokers, topic, count):
        reply = make_reply(request, body or b"reply to " + bytes(request.body))
        reply.properties["color"] = "red"
        await replier.send(reply)


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_request_gets_its_reply(target, size):
    topic = target.create_topic(f"asked-{size}", queues=2)
    body = b"y" * size

    async with (
        Producer(target.namesrv, group="PG_ASK", timeout_s=20) as asker,
        Producer(target.namesrv, group="PG_REPLY", timeout_s=20) as replier,
    ):
        answering = asyncio.create_task(answer_all(target.brokers, topic, 1, replier, body))
        reply = await asker.request(Message(topic, b"question"), timeout_s=20)
        await answering
        assert reply.body == body
        assert reply.properties["color"] == "red"
        assert reply.topic == "DefaultCluster_REPLY_TOPIC"
        assert int(reply.properties["ARRIVE_TIME"]) >= int(reply.properties["PUSH_REPLY_TIME"])


async def test_many_requests_get_their_own_replies(target):
    topic = target.create_topic("asked-many", queues=2)

    async with (
        Producer(target.namesrv, group="PG_ASK", timeout_s=20) as asker,
        Producer(target.namesrv, group="PG_REPLY", timeout_s=20) as replier,
    ):
        answering = asyncio.create_task(answer_all(target.brokers, topic, 20, replier))
        second = Producer(group="PG_ASK_2", core=asker.core)
        questions = [b"question %d" % number for number in range(20)]
        replies = await asyncio.gather(
            *(
                (asker if number % 2 else second).request(Message(topic, question), timeout_s=20)
                for number, question in enumerate(questions)
            )
        )
        await answering
        assert [bytes(reply.body) for reply in replies] == [b"reply to " + q for q in questions]


async def test_a_request_without_a_reply_ends(target):
    topic = target.create_topic("asked-in-vain", queues=1)

    async with Producer(target.namesrv, group="PG_ASK") as asker:
        with pytest.raises(RequestTimeoutError, match=f"topic {topic}, and no reply came within 0.5 s"):
            await asker.request(Message(topic, b"question"), timeout_s=0.5)
        (late,) = await read_stored(target.brokers, topic, 1)
        assert late.properties["TTL"] == "500"
        assert late.properties["REPLY_TO_CLIENT"] == asker.core.client_id
        await asker.send(make_reply(late, b"too late"))  # it harms nobody


def test_only_a_request_has_a_reply():
    with pytest.raises(ClientError, match="no CLUSTER"):
        make_reply(Message("T", b"x"), b"reply")
    with pytest.raises(ClientError, match="no CORRELATION_ID"):
        make_reply(Message("T", b"x", {"CLUSTER": "c"}), b"reply")

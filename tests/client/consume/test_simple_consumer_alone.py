"""SimpleConsumer where no second broker and no Java is needed: mistakes, stops, answers that get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from kourou.client import ClientError, Message, NoRouteError, Producer, SimpleConsumer
from kourou.remoting.connection import ConnectionLostError
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.handles import BadHandleError, Handle, read_counts, read_handles
from kourou.testing import Cluster


@asynccontextmanager
async def consuming(**options: Any) -> AsyncIterator[tuple[SimpleConsumer, Producer]]:
    """A consumer and a producer of topic T, of one queue."""
    with Cluster() as cluster:
        cluster.create_topic("T", queues=1)
        given = {"group": "G", "subscribe": "T", "consume_from": "first", **options}
        async with (
            SimpleConsumer(cluster.namesrv, **given) as consumer,
            Producer(cluster.namesrv) as producer,
        ):
            yield consumer, producer


async def test_mistakes_are_named():
    consumer: Any  # whose calls would not pass a type checker
    async with consuming() as (consumer, producer):
        await producer.send(Message("T", b"x"))
        (message,) = await consumer.receive()
        rows = pa.record_batch({"topic": ["T"], "receipt_handle": ["x y"]})
        for call, why in (
            (lambda: consumer.receive(0), "max_messages is a whole number, 1 to 32, not 0"),
            (lambda: consumer.receive(33), "max_messages is"),
            (lambda: consumer.receive(invisible_s=-1), "invisible_s is"),
            (lambda: consumer.receive(await_s="1"), "await_s is"),
            (lambda: consumer.fetch_arrow(0), "max_messages is a whole number from 1 on"),
            (lambda: consumer.ack(5), "messages of receive are acknowledged, not 5"),
            (lambda: consumer.ack([5]), "5 has no receipt handle"),
            (lambda: consumer.ack(rows.select(["topic"])), "have the columns topic and receipt_handle"),
            (lambda: consumer.change_invisible(message, 0), "invisible_s is"),
            (lambda: consumer.change_invisible(Message("T", b"x"), 1), "has no receipt handle"),
        ):
            with pytest.raises(ClientError, match=why):
                await call()
        with pytest.raises(BadHandleError, match="'x y' is no receipt handle"):
            await consumer.ack(rows)
        await consumer.ack([])
        await consumer.ack(message)


async def test_a_topic_that_is_not_there_is_named():
    with Cluster() as cluster, pytest.raises(NoRouteError, match="T"):
        async with SimpleConsumer(cluster.namesrv, group="G", subscribe="T", start_timeout_s=0.2):
            pass


async def test_a_topic_that_comes_later_is_received_then():
    with Cluster() as cluster:
        options: dict[str, Any] = {"group": "G", "subscribe": "late", "start_timeout_s": None}
        async with SimpleConsumer(cluster.namesrv, **options) as consumer:
            with pytest.raises(NoRouteError, match="late"):
                await consumer.receive(await_s=0.2)
            waiting = asyncio.ensure_future(consumer.receive(await_s=60))
            await asyncio.sleep(0.1)
            cluster.create_topic("late", queues=1)
            async with Producer(cluster.namesrv) as producer:
                await producer.send(Message("late", b"x"))
            assert [message.body for message in await waiting] == [b"x"]


async def test_a_stop_ends_a_receive_that_waits():
    async with consuming() as (consumer, _):
        waiting = asyncio.ensure_future(consumer.receive(await_s=3600))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        consumer.stop()
        assert len(await waiting) == 0
        assert consumer.is_stopped
        assert len(await consumer.receive(await_s=3600)) == 0


async def test_in_order_an_answer_that_got_lost_is_given_again(monkeypatch):
    async with consuming(orderly=True) as (consumer, producer):
        await producer.send(Message("T", b"x"))
        call = consumer.core.call
        lost: list[object] = []

        async def losing(address: str, request: Any, *others: Any) -> Any:
            answer = await call(address, request, *others)
            if request.code == RequestCode.POP_MESSAGE and not lost:
                lost.append(answer)
                raise ConnectionLostError("the answer is lost")
            return answer

        monkeypatch.setattr(consumer.core, "call", losing)
        (message,) = await consumer.receive(invisible_s=600)
        assert lost
        assert (message.body, message.delivery_attempt) == (b"x", 1)
        await consumer.ack(message)


def test_handles_and_offsets_are_read_as_java_writes_them():
    text = "3 1700000000000 60000 5 1 broker-a 0 7"
    handle = Handle.read(text)
    assert handle == (3, 1_700_000_000_000, 60_000, 5, "1", "broker-a", 0, 7)
    assert handle.text == text
    assert Handle.read(f"{text} 4711") == handle  # gRPC adds the place in the log
    assert handle.ends_ms == 1_700_000_060_000
    for bad in ("", "1 2 3", text.replace(" 1 ", " 9 "), text.replace("60000", "x")):
        with pytest.raises(BadHandleError):
            Handle.read(bad)
    fields = {
        "startOffsetInfo": "0 2 10;1 0 3",
        "msgOffsetInfo": "0 2 10,12;1 0 3",
        "orderCountInfo": "0 qo2%12 4;0 2 1",
    }
    assert [(handle.kind, *handle[-2:], handle.start_offset) for handle in read_handles(fields, "a")] == [
        ("0", 2, 10, 10), ("0", 2, 12, 10), ("1", 0, 3, 3),
    ]  # fmt: skip
    assert read_counts(fields) == {(2, 12): 4, (2, -1): 1}
    with pytest.raises(BadHandleError):
        read_handles({"msgOffsetInfo": "0 2 10"}, "a")

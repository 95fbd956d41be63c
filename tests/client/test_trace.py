"""Traces: what is gathered, and what Java's mqadmin finds of it. tests/interop looks at their form."""

from __future__ import annotations

import asyncio
import time

import pytest

from kourou.client import ClientError, Producer
from kourou.client import trace as trace_module
from kourou.client.produce.producer import start_tracer
from kourou.client.produce.transactions import TransactionState
from kourou.client.trace import TraceBean, TraceContext, Tracer, TraceType
from kourou.message import Message
from support.java import java
from support.sites.servers import mqadmin
from support.stores.reading import read_stored


class Keeper:
    """A sender that keeps what it is given."""

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.sent: list[Message] = []

    async def send(self, message: Message) -> None:
        if self.failing:
            raise ClientError("no broker")
        self.sent.append(message)

    def contexts(self) -> list[int]:
        return [bytes(message.body).count(b"\x02") for message in self.sent]


def context(number: int, topic: str = "T", keys: str | None = None) -> TraceContext:
    return TraceContext(TraceType.PUB, [TraceBean(topic, f"id-{number}", keys=keys)])


async def test_contexts_of_a_topic_go_together_ten_at_most():
    keeper = Keeper()
    tracer = Tracer(keeper, "PG", "traces")
    for number in range(25):
        tracer.record(context(number, keys="a b"))
    tracer.record(context(99, topic="other"))
    await tracer.stop()
    assert keeper.contexts() == [10, 10, 5, 1]
    assert {message.topic for message in keeper.sent} == {"traces"}
    assert keeper.sent[3].keys == ["id-99"]
    assert set(keeper.sent[2].keys) == {"a", "b", *(f"id-{number}" for number in range(20, 25))}
    assert b"\x01PG\x01" in bytes(keeper.sent[0].body)
    assert tracer.dropped == 0


async def test_a_trace_message_is_not_too_large(monkeypatch):
    monkeypatch.setattr(trace_module, "MAX_TRACE_BYTES", 1000)

    keeper = Keeper()
    tracer = Tracer(keeper, "PG")
    for number in range(9):
        tracer.record(context(number, keys="k" * 400))
    await tracer.stop()
    assert sum(keeper.contexts()) == 9
    assert max(len(message.body) for message in keeper.sent) <= 1000


async def test_some_are_sent_at_once_and_few_after_a_while(monkeypatch):
    keeper = Keeper()
    tracer = Tracer(keeper, "PG")
    await tracer.start()
    for number in range(10):
        tracer.record(context(number))
    while not keeper.sent:
        await asyncio.sleep(0.01)
    assert keeper.contexts() == [10]
    monkeypatch.setattr(trace_module, "FLUSH_INTERVAL_S", 0.05)
    await tracer.stop()
    await tracer.start()
    tracer.record(context(11))
    while len(keeper.sent) == 1:
        await asyncio.sleep(0.01)
    assert keeper.contexts() == [10, 1]
    await tracer.stop()


async def test_what_cannot_be_sent_is_dropped_and_counted(caplog):
    keeper = Keeper(failing=True)
    tracer = Tracer(keeper, "PG")
    for number in range(trace_module.MAX_WAITING_CONTEXTS + 5):
        tracer.record(context(number))
    assert tracer.dropped == 5
    await tracer.stop()
    assert tracer.dropped == trace_module.MAX_WAITING_CONTEXTS + 5
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_stopping_waits_for_nobody_without_end(monkeypatch):
    monkeypatch.setattr(trace_module, "STOP_TIMEOUT_S", 0.05)

    class Silent:
        async def send(self, message: Message) -> None:
            await asyncio.sleep(1000)

    tracer = Tracer(Silent(), "PG")
    for number in range(100):
        tracer.record(context(number))
    await tracer.stop()
    assert tracer.dropped > 0


@pytest.mark.interop
@pytest.mark.parametrize("trace", [True, "my-traces"])
async def test_mqadmin_finds_what_was_sent(target, trace):
    java()
    topic = target.create_topic(f"traced-{trace}", queues=1)
    trace_topic = "RMQ_SYS_TRACE_TOPIC" if trace is True else target.create_topic(trace, queues=1)
    ids: list[str] = []

    async with Producer(target.namesrv, group="PG_TRACED", trace=trace, timeout_s=10) as producer:
        receipt = await producer.send(Message(topic, b"x", tags="t", keys="k-1"))
        ids.append(receipt.message_id)
        await producer.send_oneway(Message(topic, b"not traced"))
        done = await producer.send_in_transaction(Message(topic, b"x"), lambda _: TransactionState.COMMIT)
        ids.append(done.receipt.message_id)
        timer = await producer.send(Message(topic, b"x", delay_s=30))
        assert timer.recall_handle is not None
        await producer.recall(topic, timer.recall_handle)
        ids.append(timer.message_id)
        consumer = await start_tracer(producer.core, "CG_TRACED", "CONSUME", trace_topic)
        consumed = TraceContext(TraceType.SUB_BEFORE, [TraceBean(topic, receipt.message_id, keys="k-1")])
        consumer.record(consumed)
        consumer.record(
            TraceContext(
                TraceType.SUB_AFTER, consumed.beans, request_id=consumed.request_id, is_success=False
            )
        )
        await consumer.stop()
        assert consumer.dropped == 0
    # Three Pub, EndTransaction and Recall in one, both Sub in the other
    if trace is not True:
        found = await read_stored(target.brokers, trace_topic, 2)
        assert sorted(bytes(message.body).count(b"\x02") for message in found) == [2, 5]
    verbs = [["queryMsgTraceById", "-n", target.namesrv, "-i", i, "-t", trace_topic] for i in ids]
    outputs = wait_for_traces(target, verbs)
    told = [[line.split() for line in output.splitlines()] for output in outputs]  # as in `ids`
    assert ["Pub", "PG_TRACED"] in [line[:2] for line in told[0]]
    assert ("Sub", "CG_TRACED", "failed") in [
        (line[0], line[1], line[-1]) for line in told[0] if len(line) > 3
    ]
    for lines in told:
        (pub,) = [line for line in lines if line[:1] == ["Pub"]]
        assert pub[-1] == "success"
        assert abs(time.time() - time.mktime(time.strptime(" ".join(pub[3:5]), "%Y-%m-%d %H:%M:%S"))) < 300


def wait_for_traces(target, verbs: list[list[str]]) -> list[str]:
    """What mqadmin finds, once it is there: Java dispatches a little later."""
    for _ in range(10):
        outputs = mqadmin(target.directory, *verbs)
        if all("Pub" in output for output in outputs):
            break
    return outputs

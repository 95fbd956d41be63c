"""The clients without an event loop."""

from __future__ import annotations

import threading

import pytest

from kourou.sync import ClientError, Consumer, Message, Producer, PullConsumer, ReceivedMessage
from support.sites.clients import bodies


def test_a_producer_and_the_ways_to_consume(target, topic):
    with Producer(target.namesrv, group="PG") as producer:
        receipts = [producer.send(Message(topic, body)) for body in bodies(10)]
        assert {receipt.status for receipt in receipts} == {"SEND_OK"}
        futures = [producer.send_async(Message(topic, body)) for body in bodies(20)[10:]]
        assert all(future.result(30).status == "SEND_OK" for future in futures)
        producer.send_batch([Message(topic, body) for body in bodies(30)[20:]])
        producer.send_oneway(Message(topic, b"30"))

    options = {"subscribe": topic, "consume_from": "first"}
    with Consumer(target.namesrv, group=f"I{topic}", **options) as consumer:
        assert len(consumer.queues) >= 4
        found = []
        for message in consumer:
            found.append(bytes(message.body))
            if len(found) == 31:
                break
        assert sorted(found) == sorted(bodies(31))
    with Consumer(target.namesrv, group=f"B{topic}", **options) as consumer:
        found = []
        for batch in consumer.batches():
            found += [bytes(body) for body in batch.bodies()]
            if len(found) == 31:
                break
        assert sorted(found) == sorted(bodies(31))
    with Consumer(target.namesrv, group=f"A{topic}", **options) as consumer:
        rows = 0
        while rows < 31:
            rows += consumer.fetch_arrow(timeout_s=30, columns=["body"]).num_rows
        assert rows == 31
    with PullConsumer(target.namesrv, group=f"P{topic}", **options) as puller:
        polled: list[bytes] = []
        while len(polled) < 31:
            polled += [bytes(message.body) for message in puller.poll(timeout_s=30)]
        assert sorted(polled) == sorted(bodies(31))
        puller.commit()


def test_a_handler_runs_in_threads(target, topic):
    with Producer(target.namesrv, group="PG") as producer:
        for body in bodies(10):
            producer.send(Message(topic, body))
    everything = threading.Event()
    seen: set[bytes] = set()
    threads: set[str] = set()
    consumer = Consumer(target.namesrv, group=f"G{topic}", subscribe=topic, consume_from="first")

    @consumer.handler
    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        seen.add(bytes(message.body))
        if len(seen) == 10:
            everything.set()

    with consumer:
        assert everything.wait(30)
    assert seen == set(bodies(10))
    assert all(name.startswith("kourou-consumer") for name in threads)


def test_threads_end_with_their_clients(target, topic):
    before = set(threading.enumerate())
    with (
        Producer(target.namesrv, group="PG") as producer,
        Consumer(target.namesrv, group=f"G{topic}", subscribe=topic),
    ):
        producer.send(Message(topic, b"x"))
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClientError, match="closed"):
        producer.send(Message(topic, b"x"))
    with pytest.raises(ClientError, match="name server"):
        Producer("", group="PG")
    assert set(threading.enumerate()) <= before


def test_arguments_that_do_not_fit_are_told(target, topic):
    with Producer(target.namesrv, group="PG") as producer:
        with pytest.raises(TypeError, match="tags"):
            producer.send(Message(topic, b"x"), tags="paid")
        with pytest.raises(TypeError, match="tags"):
            producer.send_async(Message(topic, b"x"), tags="paid").result(30)
        cancelled = producer.send_async(Message(topic, b"x" * 1000))
        assert cancelled.cancel() or cancelled.done()
        assert producer.send(Message(topic, b"x")).status == "SEND_OK"

"""Mistakes of a newcomer: each is an error that says what is wrong, at the line that makes it."""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import Any

import pytest

from kourou import client, sync
from kourou import message as records
from kourou.client import ClientError, Consumer, Message, Producer, PullConsumer, ReconsumeLater, Sql
from kourou.client.consume.strategies import CONSISTENT_HASH
from kourou.message.compression import CompressionType
from kourou.testing import Cluster
from support.sites.clients import run

NOWHERE = "127.0.0.1:1"

unchecked: Any = records.Message

MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"topic": 5}, "topic of a message is a str, not 5"),
    ({"body": "text"}, r"body of a message is bytes .*not 'text'"),
    ({"body": None}, "body of a message is bytes"),
    ({"body": 5}, "body of a message is bytes"),
    ({"properties": ["a"]}, "properties are a mapping"),
    ({"properties": {"amount": 5}}, "properties are a mapping from str to str, not {'amount': 5}"),
    ({"properties": {5: "a"}}, "properties are a mapping from str to str"),
    ({"flag": "1"}, "flag is a whole number of 32 bits"),
    ({"flag": 1 << 31}, "flag is a whole number of 32 bits"),
    ({"tags": ["a"]}, r"tags is a str, the one tag of the message, not \['a'\]"),
    ({"tags": 5}, "tags is a str"),
    ({"keys": ["a b"]}, r"keys is a str, or several without a blank, .*, not \['a b'\]"),
    ({"keys": ["a", ""]}, "keys is a str, or several without a blank"),
    ({"keys": ["a", 5]}, "keys is a str, or several"),
    ({"keys": b"ab"}, "keys is a str, or several"),
    ({"keys": 5}, "keys is a str, or several without a blank, .*, not 5"),
    ({"sharding_key": 7}, "sharding_key is a str, not 7"),
    ({"delay_level": -1}, "delay_level is a whole number from 0 on, not -1"),
    ({"delay_level": "3"}, "delay_level is a whole number"),
    ({"delay_level": 1.5}, "delay_level is a whole number"),
    ({"delay_level": True}, "delay_level is a whole number"),
    ({"delay_s": -3}, "delay_s is a number of seconds from 0 on, not -3"),
    ({"delay_s": "3"}, "delay_s is a number"),
    ({"delay_s": float("nan")}, "delay_s is a number"),
    ({"delay_s": float("inf")}, "delay_s is a number"),
    ({"deliver_at": "tomorrow"}, "deliver_at is a datetime or whole milliseconds"),
    ({"deliver_at": 1.5}, "deliver_at is a datetime or whole milliseconds"),
    ({"deliver_at": -1}, "deliver_at is in milliseconds"),
    ({"deliver_at": 1_900_000_000}, "deliver_at is in milliseconds since 1970: .* in seconds"),
]

OF_ALL: list[tuple[dict[str, Any], str]] = [
    ({"namesrv": 9876}, "namesrv is a str"),
    ({"namesrv": ["127.0.0.1:9876"]}, "namesrv is a str"),
    ({"namesrv": "localhost"}, "'localhost' is no address of a name server: it is host:port"),
    ({"namesrv": "127.0.0.1:99999"}, "is no address of a name server"),
    ({"namesrv": "http://127.0.0.1"}, "is no address of a name server"),
    ({"group": 5}, "group is a str, not 5"),
    ({"group": None}, "group is a str"),
    ({"namespace": 5}, "namespace is a str, or None"),
    ({"instance": 5}, "instance is a str, or None"),
    ({"ip": 5}, "ip is a str, or None"),
    ({"tls": True}, "tls is a TlsConfig, or None, not True"),
    ({"credentials": ("a", "b")}, "credentials is Credentials, or None"),
]

OF_PRODUCERS: list[tuple[dict[str, Any], str]] = [
    ({"core": "x"}, "core is the core of another client"),
    ({"unit": 1}, "unit is a str"),
    ({"unit_mode": "no"}, "unit_mode is True or False"),
    ({"timeout_s": 0}, "timeout_s is a number of seconds above 0, not 0"),
    ({"timeout_s": "3"}, "timeout_s is a number"),
    ({"timeout_per_try_s": -1}, "timeout_per_try_s is a number"),
    ({"retries": -1}, "retries is a whole number from 0 on, not -1"),
    ({"retry_codes": 1}, "retry_codes is a collection of response codes"),
    ({"retry_codes": "1"}, "retry_codes is a collection of response codes"),
    ({"retry_not_stored": 1}, "retry_not_stored is True or False"),
    ({"compression": "zstd"}, "compression is a CompressionType, not 'zstd'"),
    ({"compress_level": 10}, "compress_level is a whole number, 0 to 9, not 10"),
    ({"compress_from_bytes": -1}, "compress_from_bytes is a whole number"),
    ({"max_message_bytes": 0}, "max_message_bytes is a whole number from 1 on"),
    ({"create_topic_key": None}, "create_topic_key is a str"),
    ({"default_queues": 0}, "default_queues is a whole number from 1 on"),
    ({"latency_fault_tolerance": "yes"}, "latency_fault_tolerance is True or False"),
    ({"checker": "x"}, "checker is a function, or None"),
    ({"on_send": 5}, "on_send is a function, or None"),
    ({"trace": 1}, "trace is True, False or the name of a topic"),
]

OF_READERS: list[tuple[dict[str, Any], str]] = [
    ({"subscribe": {"t": 1}}, r'topic t is subscribed with "\*", tags joined by \|\| or Sql\("…"\), not 1'),
    ({"subscribe": {"t": ["a", "b"]}}, "topic t is subscribed with"),
    ({"subscribe": 5}, "subscribe is a topic, several, or a mapping"),
    ({"subscribe": ["t", 5]}, "the name of a topic is a str, not 5"),
    ({"subscribe": "a b"}, "' ' in it"),
    ({"consume_from": "middle"}, 'consume_from is "first", "last" or a datetime'),
    ({"strategy": "average"}, "strategy is one of kourou.client.consume.strategies"),
    ({"pull_batch_size": 0}, "pull_batch_size is a whole number, 1 to 1024"),
    ({"pull_batch_size": 2000}, "pull_batch_size is a whole number, 1 to 1024"),
    ({"max_cached_messages": 0}, "max_cached_messages is"),
    ({"max_cached_bytes": 0}, "max_cached_bytes is"),
    ({"start_timeout_s": 0}, "start_timeout_s is a number of seconds above 0, or None"),
    ({"stop_on_signals": "SIGINT"}, "stop_on_signals is True or False"),
    ({"on_rebalance": 5}, "on_rebalance is a function"),
]

OF_CONSUMERS: list[tuple[dict[str, Any], str]] = [
    ({"subscribe": []}, "subscribe needs a topic"),
    ({"subscribe": None}, "subscribe is a topic, several"),
    ({"broadcast": 1}, "broadcast is True or False"),
    ({"orderly": "no"}, "orderly is True or False"),
    ({"concurrency": 0}, "concurrency is a whole number from 1 on"),
    ({"batch_size": 0}, "batch_size is a whole number from 1 on"),
    ({"max_reconsume_times": -1}, "max_reconsume_times is a whole number from 0 on, or None"),
    ({"consume_timeout_s": 0}, "consume_timeout_s is"),
    ({"suspend_s": -1}, "suspend_s is"),
    ({"max_span": 0}, "max_span is"),
    ({"close_timeout_s": "1"}, "close_timeout_s is"),
    ({"offsets_directory": 5}, "offsets_directory is a path, or None"),
    ({"trace": 1}, "trace is"),
    ({"on_consume": "x"}, "on_consume is a function"),
    ({"client_rebalance": "no"}, "client_rebalance is True or False"),
    ({"pop_invisible_s": 0}, "pop_invisible_s is a number of seconds above 0"),
    ({"pop_batch_size": 33}, "pop_batch_size is a whole number, 1 to 32, not 33"),
    ({"pop_max_unacked": 0}, "pop_max_unacked is a whole number from 1 on"),
    ({"pop_retry_delays_s": []}, "pop_retry_delays_s is a list of seconds above 0"),
    ({"pop_retry_delays_s": [0]}, "pop_retry_delays_s is a list of seconds above 0"),
]

OF_PULLERS: list[tuple[dict[str, Any], str]] = [
    ({"subscribe": None, "assign": "orders"}, "assign takes several MessageQueue"),
    ({"subscribe": None, "assign": client.MessageQueue("t", "b", 0)}, "assign takes several MessageQueue"),
    ({"subscribe": None, "assign": 5}, "assign takes several MessageQueue"),
    ({"assign": []}, "either subscribe"),
    ({"auto_commit": "no"}, "auto_commit is True or False"),
]

OF_SIMPLE: list[tuple[dict[str, Any], str]] = [
    ({"subscribe": []}, "subscribe needs a topic"),
    ({"subscribe": {"t": 1}}, "topic t is subscribed with"),
    ({"consume_from": datetime(2020, 1, 1)}, 'consume_from is "first" or "last"'),
    ({"orderly": 1}, "orderly is True or False"),
    ({"invisible_s": 0}, "invisible_s is a number of seconds above 0, at most 43200, not 0"),
    ({"invisible_s": 50_000}, "invisible_s is a number of seconds above 0, at most 43200"),
    ({"await_s": -1}, "await_s is a number of seconds above 0"),
    ({"start_timeout_s": 0}, "start_timeout_s is"),
    ({"stop_on_signals": "SIGINT"}, "stop_on_signals is True or False"),
]


@pytest.mark.parametrize(("wrong", "why"), MESSAGES, ids=str)
def test_of_a_message(wrong, why):
    with pytest.raises(ClientError, match=why):
        Message(**({"topic": "t", "body": b"x"} | wrong))


def test_what_is_legal_stays_so():
    message = Message("t", memoryview(b"x"), {"a": "b"}, tags="a", keys=("k1", "k-2"), delay_s=0)
    assert (message.tags, message.keys, message.delay_s) == ("a", ["k1", "k-2"], 0)
    assert Message("t", b"x", keys="k1 k2").keys == ["k1", "k2"]  # as Java's setKeys(String)
    assert Message("t", b"x", delay_level=0).delay_level == 0
    assert Message("t", b"x", delay_level=30).delay_level == 30  # a broker may have more than the usual 18
    assert Message("t", b"x", delay_s=1.5).delay_s == 1.5
    assert Message("t", b"x", deliver_at=datetime(2020, 1, 1)).deliver_at_ms  # in the past: at once
    Producer("a:1;b:2", retries=0, compression=CompressionType.LZ4, trace="my-traces", timeout_s=1)
    Producer("[::1]:9876")
    subscribe: Any
    for subscribe in ("t", ["t"], ("t", "u"), {"t": "*"}, {"t": "a || b"}, {"t": Sql("a > 1")}, {"t"}):
        Consumer(NOWHERE, group="G", subscribe=subscribe, start_timeout_s=None, max_reconsume_times=0)
    PullConsumer(NOWHERE, group="G", assign=iter([client.MessageQueue("t", "b", 0)]))


def cases() -> list[Any]:
    found = []
    for kind, wrongs in (
        ("Producer", OF_ALL + OF_PRODUCERS),
        ("Consumer", OF_ALL + OF_READERS + OF_CONSUMERS),
        ("PullConsumer", OF_ALL + OF_READERS + OF_PULLERS),
        ("SimpleConsumer", OF_ALL + OF_SIMPLE),
    ):
        for face in (client, sync):
            given = {"namesrv": NOWHERE, "group": "G"} | ({} if kind == "Producer" else {"subscribe": "t"})
            made = getattr(face, kind)
            found += [pytest.param(made, given | wrong, why, id=f"{made.__module__}.{kind} {wrong}")
                      for wrong, why in wrongs]  # fmt: skip
    return found


@pytest.mark.parametrize(("make", "given", "why"), cases())
def test_of_an_option(make, given, why):
    with pytest.raises(ClientError, match=why):
        make(**given)


def test_brokers_share_queues_in_two_ways_only():
    given: dict[str, Any] = {"group": "G", "subscribe": "t", "client_rebalance": False}
    for face in (client, sync):
        with pytest.raises(ClientError, match="brokers share queues by AVG or AVG_BY_CIRCLE, not by CONSIST"):
            face.Consumer(NOWHERE, strategy=CONSISTENT_HASH, **given)


def test_an_option_that_there_is_not_is_named():
    for face in (client, sync):
        with pytest.raises(TypeError, match="concurency"):
            face.Consumer(NOWHERE, group="G", subscribe="t", concurency=5)
        with pytest.raises(TypeError, match="subscribe"):
            face.Consumer(NOWHERE, group="G")


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "PullConsumer", "SimpleConsumer"])
def test_both_faces_have_the_same_options_and_every_one_is_checked(kind):
    asynchronous, plain = (inspect.signature(getattr(face, kind)).parameters for face in (client, sync))
    assert list(asynchronous) == list(plain)
    assert next(iter(asynchronous)) == "namesrv"
    options = getattr(client, f"{kind}Options")
    given = {"namesrv": NOWHERE, "group": "G"} | ({} if kind == "Producer" else {"subscribe": "t"})
    made = options(**given)
    assert {*made._rules(), "namesrv", "group", "namespace", "instance", "ip", "tls", "credentials"} | {
        "subscribe", "assign"
    } >= set(asynchronous)  # fmt: skip


async def test_of_a_call():
    producer: Any  # whose calls would not pass a type checker
    consumer: Any
    with Cluster() as cluster:
        cluster.create_topic("orders", queues=1)
        async with Producer(cluster.namesrv, group="PG") as producer:
            good = Message("orders", b"x")
            for call, why in (
                (lambda: producer.send(b"x"), "a Message is sent, not b'x'"),
                (lambda: producer.send(good, timeout_s=-1), "timeout_s is"),
                (lambda: producer.send(good, select=5), "select is a function"),
                (lambda: producer.send(good, queue=0), "queue is a MessageQueue"),
                (lambda: producer.send_oneway("x"), "a Message is sent"),
                (lambda: producer.send_batch(good), "takes several messages"),
                (lambda: producer.send_batch([b"x"]), "a batch is of Messages"),
                (lambda: producer.send_in_transaction(good, "commit"), "execute is a function"),
                (lambda: producer.request(good, timeout_s=0), "timeout_s is"),
                (lambda: producer.recall("orders", None), "None is no recall handle"),
                (
                    lambda: producer.send(unchecked("orders", b"x", tags=["a"])),
                    "are str, tags and keys too",
                ),
                (
                    lambda: producer.send(unchecked("orders", b"x", delay_level=-1)),
                    "delay_level is",
                ),
            ):
                with pytest.raises(ClientError, match=why):
                    await call()
        async with PullConsumer(cluster.namesrv, group="GP", subscribe="orders") as consumer:
            queue = consumer.queues[0]
            for poll, why in (
                (consumer.poll(timeout_s=-1), "timeout_s is"),
                (consumer.poll(timeout_s=0, max_messages=0), "max_messages is"),
                (consumer.offset_for_timestamp(queue, "yesterday"), "a time is a datetime"),
                (consumer.committed(0), "a queue is a MessageQueue"),
            ):
                with pytest.raises(ClientError, match=why):
                    await poll
            with pytest.raises(ClientError, match="an offset is a whole number"):
                consumer.seek(queue, -5)
            assert await consumer.poll(timeout_s=0) == []
    with pytest.raises(ClientError, match="a handler is a function"):
        Consumer(NOWHERE, group="G", subscribe="t").handler("x")  # type: ignore[arg-type]
    for level in (-2, "3"):
        with pytest.raises(ClientError, match="delay_level is a whole number from -1 on"):
            ReconsumeLater(level)  # type: ignore[arg-type]


async def test_a_delay_level_that_the_broker_does_not_have_is_refused(target, topic):
    async with Producer(target.namesrv, group="PG") as producer:
        with pytest.raises(ClientError, match=r"delay_level 99 .* has levels 1 to 18"):
            await producer.send(Message(topic, b"x", delay_level=99))
        with pytest.raises(ClientError, match="delay_level 99"):
            await producer.send_oneway(Message(topic, b"x", delay_level=99))
        assert (await producer.send(Message(topic, b"x", delay_level=18))).status == "SEND_OK"


def test_a_broker_may_have_more_delay_levels():
    async def main(namesrv: str) -> None:
        async with Producer(namesrv, group="PG") as producer:
            assert (await producer.send(Message("orders", b"x", delay_level=20))).status == "SEND_OK"
            with pytest.raises(ClientError, match=r"delay_level 21 .* has levels 1 to 20"):
                await producer.send(Message("orders", b"x", delay_level=21))

    with Cluster(config={"messageDelayLevel": " ".join(["1s"] * 20)}) as cluster:
        run(main(cluster.namesrv))

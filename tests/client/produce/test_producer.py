"""The producer against a cluster of two brokers, ours and Java's."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kourou import message as records
from kourou.client import ClientError, Message, NoRouteError, Producer, RefusedError
from kourou.client.core import ClientCore, make_client_id
from kourou.client.produce.receipts import NotSentError, SendEvent
from kourou.errors import BadMessageError
from kourou.message.compression import CompressionType
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.protocol.topic_config import PERM_READ
from kourou.testing import Cluster
from support.recorded.wire import Caller
from support.stores.reading import read_stored

Test = Callable[[Producer], Awaitable[None]]


@asynccontextmanager
async def produce(namesrv: str, **options: Any) -> AsyncIterator[Producer]:
    async with Producer(namesrv, **{"group": "PG", "timeout_s": 10, **options}) as producer:
        yield producer


async def test_a_message_is_stored_with_what_it_has(target):
    topic = target.create_topic("plain", queues=2)

    async with produce(target.namesrv) as producer:
        message = Message(topic, b"body", {"color": "red"}, 7, tags="paid", keys=["o-1", "o-2"])
        receipt = await producer.send(message)
        assert receipt.status == "SEND_OK"
        assert receipt.region == "DefaultRegion"
        assert receipt.recall_handle is None
        (found,) = await read_stored(target.brokers, topic, 1)
        assert bytes(found.body) == b"body"
        assert found.flag == 7
        assert found.properties["TAGS"] == "paid"
        assert found.properties["KEYS"] == "o-1 o-2"
        assert found.properties["color"] == "red"
        assert found.properties["WAIT"] == "true"
        assert found.message_id == receipt.message_id == receipt.transaction_id
        assert found.offset_message_id == receipt.offset_message_id
        assert (found.queue_id, found.queue_offset) == (receipt.queue.queue_id, receipt.queue_offset)


async def test_any_text_is_kept_as_it_is(target):
    topic = target.create_topic("text", queues=1)
    odd = {"é中𝟓": '"\\/\t\n\x00 é', "quote": "'", "percent": "100%d %s"}

    async with produce(target.namesrv) as producer:
        await producer.send(Message(topic, memoryview(b"x"), odd))
        (found,) = await read_stored(target.brokers, topic, 1)
        assert {name: found.properties[name] for name in odd} == odd


async def test_messages_go_to_all_queues_in_turn(target):
    topic = target.create_topic("turn", queues=2)

    async with produce(target.namesrv) as producer:
        receipts = [await producer.send(Message(topic, b"x")) for _ in range(8)]
        queues = [receipt.queue for receipt in receipts]
        assert len(set(queues)) == 4  # two brokers of two
        assert queues[:4] == queues[4:]
        assert sorted(set(queues)) == await producer.queues(topic)


async def test_messages_of_a_key_go_to_one_queue_in_their_order(target):
    topic = target.create_topic("ordered", queues=4)

    async with produce(target.namesrv) as producer:
        receipts = [
            await producer.send(Message(topic, b"%d" % number, sharding_key="customer-8"))
            for number in range(10)
        ]
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == list(range(10))
        # "customer-8".hashCode() is -1581185527: the queue that Java's SelectMessageQueueByHash takes
        assert receipts[0].queue == (await producer.queues(topic))[1581185527 % 8]


async def test_a_caller_may_name_the_queue(target):
    topic = target.create_topic("chosen", queues=4)

    async with produce(target.namesrv) as producer:
        queue = MessageQueue(topic, "broker-b", 3)
        assert (await producer.send(Message(topic, b"x"), queue=queue)).queue == queue
        last = await producer.send(Message(topic, b"x"), select=lambda queues: queues[-1])
        assert last.queue == queue
        await producer.send_oneway(Message(topic, b"x"), queue=queue)
        await producer.send_oneway(Message(topic, b"x"), select=lambda queues: queues[-1])
        (batched,) = await producer.send_batch([Message(topic, b"x"), Message(topic, b"y")], queue=queue)
        assert batched.queue == queue
        found = await read_stored(target.brokers, topic, 6)
        assert {message.queue_id for message in found} == {3}
        with pytest.raises(ClientError, match="queue of other"):
            await producer.send(Message(topic, b"x"), queue=MessageQueue("other", "broker-b", 3))
        with pytest.raises(ClientError, match="must give one of the queues"):
            await producer.send(Message(topic, b"x"), select=lambda queues: None)  # type: ignore[arg-type, return-value]
        with pytest.raises(NoRouteError, match="broker-z"):
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-z", 3))


async def test_a_topic_is_made_by_its_first_message(target):
    async with produce(target.namesrv, default_queues=2) as producer:
        receipt = await producer.send(Message("made", b"x"))
        assert receipt.queue.queue_id < 2
        await read_stored(target.brokers, "made", 1)
        await asyncio.gather(*(producer.send(Message("made", b"x")) for _ in range(20)))
        await read_stored(target.brokers, "made", 21)
        route = None
        while route is None:  # brokers tell the name server a little later
            with contextlib.suppress(NoRouteError):
                route = await producer.core.fetch_route("made")
        assert {queue.queue_id for queue in route.write_queues} == {0, 1}


async def test_a_topic_may_be_made_after_another_than_the_usual(target):
    key = target.create_topic("pattern", queues=3)
    header = CreateTopic(key, "TBW102", 3, 3, 7, "SINGLE_TAG")  # 7: with the right to inherit from it
    for broker in target.brokers:
        target.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())

    async with produce(target.namesrv, create_topic_key=key) as producer:
        await producer.send(Message("made-after", b"x"))
        await read_stored(target.brokers, "made-after", 1)


async def test_a_batch_is_sent_in_parts_that_fit(target):
    topic = target.create_topic("batch", queues=1)

    async with produce(target.namesrv, max_message_bytes=4000) as producer:
        messages = [Message(topic, bytes(1000), {"n": str(number)}) for number in range(10)]
        receipts = await producer.send_batch(messages)
        assert len(receipts) == 4
        ids = [message.properties["UNIQ_KEY"] for message in messages]
        assert ",".join(receipt.message_id for receipt in receipts) == ",".join(ids)
        found = await read_stored(target.brokers, topic, 10)
        assert sorted(message.message_id for message in found) == sorted(ids)
        assert {message.properties["n"] for message in found} == {str(number) for number in range(10)}
        assert await producer.send_batch([]) == []
        for wrong, why in (
            ([Message(topic, b"x"), Message("other", b"x")], "one topic"),
            ([Message(topic, b"x", delay_s=5)], "cannot be delayed"),
            ([Message(topic, b"x"), Message(topic, b"x", {"WAIT": "false"})], "wait_store_msg_ok"),
            ([Message("%RETRY%g", b"x")], "retry topic"),
            ([Message(topic, bytes(4001))], "max_message_bytes"),
            ([Message(topic, b"")], "needs a body"),
        ):
            with pytest.raises(ClientError, match=why):
                await producer.send_batch(wrong)


@pytest.mark.parametrize("kind", CompressionType)
@pytest.mark.parametrize("size", [4096, 300_000])
async def test_a_large_body_is_compressed(target, kind, size):
    topic = target.create_topic(f"large-{kind.name}-{size}", queues=1)
    body = (b"abc" * size)[:size]

    async with produce(target.namesrv, compression=kind, compress_level=9) as producer:
        await producer.send(Message(topic, body[:-1] if size == 4096 else body))
        await producer.send_oneway(Message(topic, body))
        found = await read_stored(target.brokers, topic, 2)
        found.sort(key=lambda message: len(message.body), reverse=True)
        assert found[0].compression is (None if size == 4096 else kind)
        assert found[1].compression is kind
        assert len(found[1].body) < size / 10
        assert found[1].decompressed_body == body


async def test_a_oneway_message_arrives(target):
    topic = target.create_topic("oneway", queues=1)

    async with produce(target.namesrv) as producer:
        for number in range(20):
            await producer.send_oneway(Message(topic, b"%d" % number))
        found = await read_stored(target.brokers, topic, 20)
        assert {bytes(message.body) for message in found} == {b"%d" % number for number in range(20)}


async def test_many_sends_at_once(target):
    topic = target.create_topic("many", queues=4)

    async with produce(target.namesrv, timeout_s=30) as producer:
        receipts = await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(500)))
        assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 500
        assert len({receipt.message_id for receipt in receipts}) == 500


async def test_one_set_of_properties_serves_for_many_messages(target):
    topic = target.create_topic("shared-properties", queues=1)
    shared = {"color": "red"}

    async with produce(target.namesrv) as producer:
        receipts = [await producer.send(Message(topic, b"x", shared)) for _ in range(3)]
        assert len({receipt.message_id for receipt in receipts}) == 3
        assert shared == {"color": "red"}


async def test_a_namespace_is_part_of_names_on_the_wire_only(target):
    target.create_topic("NS%orders", queues=2)

    async with produce(target.namesrv, namespace="NS") as producer:
        message = Message("orders", b"x", sharding_key="k")
        receipt = await producer.send(message)
        assert receipt.queue.topic == message.topic == "orders"
        assert (await producer.queues("orders"))[0].topic == "orders"
        await producer.send(Message("orders", b"x"), queue=receipt.queue)
        found = await read_stored(target.brokers, "NS%orders", 2)
        assert {message.topic for message in found} == {"NS%orders"}
        assert {message.properties["INSTANCE_ID"] for message in found} == {"NS"}
        assert producer.group == "NS%PG"


async def test_a_delayed_message_comes_later(target):
    topic = target.create_topic("delayed", queues=1)

    async with produce(target.namesrv) as producer:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        sent = [
            Message(topic, b"level", delay_level=1),
            Message(topic, b"seconds", delay_s=2),
            Message(topic, b"milliseconds", delay_s=2.5),
            Message(topic, b"at", deliver_at=soon),
            Message(topic, b"at ms", deliver_at=int(soon.timestamp() * 1000)),
        ]
        receipts = [await producer.send(message) for message in sent]
        assert [receipt.recall_handle is not None for receipt in receipts] == [False, *[True] * 4]
        found = await read_stored(target.brokers, topic, 5)
        assert {message.message_id for message in found} == {receipt.message_id for receipt in receipts}
        for message in found:
            assert message.store_timestamp - message.born_timestamp >= 900


async def test_a_message_is_recalled(target):
    topic = target.create_topic("recalled", queues=1)

    async with produce(target.namesrv) as producer:
        receipt = await producer.send(Message(topic, b"never", delay_s=4))
        assert receipt.recall_handle is not None
        assert await producer.recall(topic, receipt.recall_handle) == receipt.message_id
        later = await producer.send(Message(topic, b"later", delay_s=5))
        found = await read_stored(target.brokers, topic, 1)
        assert [message.message_id for message in found] == [later.message_id]
        with pytest.raises(BadMessageError, match="recall handle is invalid"):
            await producer.recall(topic, "nonsense")
        with pytest.raises(ClientError, match="cannot be recalled"):
            await producer.recall("%RETRY%g", receipt.recall_handle)
        with pytest.raises(RefusedError, match=f"refused the recall of a message for topic {topic}"):
            await producer.recall(topic, receipt.recall_handle)  # its time is over


async def test_a_message_of_a_retry_topic_says_how_often_it_was_consumed(target):
    async with produce(target.namesrv) as producer:
        again = Message(
            "%RETRY%again", b"x", {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "DELAY": "1"}
        )
        await producer.send(again)
        (found,) = await read_stored(target.brokers, "%RETRY%again", 1)
        assert found.reconsume_times == 3
        assert "RECONSUME_TIME" not in found.properties
        assert again.properties["RECONSUME_TIME"] == "3"


async def test_on_send_is_told_of_each_try(target):
    topic = target.create_topic("watched", queues=1)
    events: list[SendEvent] = []

    def watch(event: SendEvent) -> None:
        events.append(event)
        raise RuntimeError("what a watcher raises harms nobody")

    async with produce(target.namesrv, on_send=watch) as producer:
        receipt = await producer.send(Message(topic, b"x"))
        await producer.send_oneway(Message(topic, b"x"))
        first, oneway = events
        assert (first.receipt, first.error, first.attempt) == (receipt, None, 1)
        assert first.address == target.brokers[receipt.queue.broker_name].address
        assert first.duration_s > 0
        assert (oneway.receipt, oneway.error) == (None, None)


async def test_a_core_is_shared(target):
    topic = target.create_topic("shared", queues=1)

    core = ClientCore(target.namesrv, client_id=make_client_id("127.0.0.1"))
    async with core:
        async with Producer(group="first", core=core) as producer:
            await producer.send(Message(topic, b"x"))
        second = Producer(group="second", core=core)  # nothing of its own is to be opened
        await second.send(Message(topic, b"x"))
        assert core.producer_groups == {"first", "second"}
        await read_stored(target.brokers, topic, 2)


async def test_what_a_broker_refuses_is_told_with_where_and_why(target):
    topic = target.create_topic("refused", queues=1)

    async with produce(target.namesrv) as producer:
        with pytest.raises(RefusedError) as caught:
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-b", 99))
        assert caught.value.code == ResponseCode.INVALID_PARAMETER
        address = target.brokers["broker-b"].address
        for word in (
            f"broker broker-b at {address}",
            f"topic {topic}",
            "INVALID_PARAMETER (29)",
            "99",
            "has that queue",
        ):
            assert word in str(caught.value)


async def test_a_topic_that_cannot_be_written_to_is_told(target):
    header = CreateTopic("read-only", "TBW102", 1, 1, PERM_READ, "SINGLE_TAG")
    for broker in target.brokers:
        target.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())

    async with produce(target.namesrv) as producer:
        with pytest.raises(NoRouteError, match="no broker takes messages for topic read-only"):
            await producer.send(Message("read-only", b"x"))
        with pytest.raises(NoRouteError, match="no broker takes messages for topic read-only"):
            await producer.send(Message("read-only", b"x", sharding_key="k"))


async def test_a_topic_that_is_gone_is_made_again(target):
    topic = target.create_topic("gone", queues=1)

    async with produce(target.namesrv) as producer:
        await producer.send(Message(topic, b"x"))
        for broker in target.brokers:
            target.call(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        with Caller(target.name_server.port) as caller:
            answer = caller.call(RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}))
        assert answer.code == ResponseCode.SUCCESS
        with pytest.raises(NoRouteError):
            await producer.core.fetch_route(topic)
        await producer.send(Message(topic, b"again"))


async def test_a_message_that_the_broker_finds_too_large_is_not_tried_elsewhere(target):
    topic = target.create_topic("too-large", queues=1)
    events: list[SendEvent] = []

    options = {"max_message_bytes": 8 * 1024 * 1024, "compress_from_bytes": 1 << 30}
    async with produce(target.namesrv, on_send=events.append, **options) as producer:
        with pytest.raises(RefusedError, match="maxMessageSize"):
            await producer.send(Message(topic, bytes(5 * 1024 * 1024)))
        assert len(events) == 1


# What needs a cluster of its own


async def test_a_broker_that_is_gone_is_left_out():
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("retry", queues=2)
        events: list[SendEvent] = []
        async with produce(cluster.namesrv, on_send=events.append) as producer:
            await producer.send(Message("retry", b"x"))
            gone = cluster.brokers.pop()
            cluster._run(gone.stop())
            for _ in range(8):
                receipt = await producer.send(Message("retry", b"x"))
                assert receipt.queue.broker_name == cluster.brokers[0].config.broker_name
            failed = [event for event in events if event.error is not None]
            assert {event.queue.broker_name for event in failed} <= {gone.config.broker_name}
            last = cluster.brokers.pop()
            cluster._run(last.stop())
            with pytest.raises(
                NotSentError, match=r"no broker took a message for topic retry in [23] tries: "
            ):
                await producer.send(Message("retry", b"x"))


async def test_a_slow_broker_is_left_out_with_fault_tolerance():
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("slow", queues=2)
        async with produce(cluster.namesrv, latency_fault_tolerance=True) as producer:
            assert producer._sender._faults is not None
            producer._sender._faults.record("broker-a", 0.6)  # as if a send had taken so long
            receipts = [await producer.send(Message("slow", b"x")) for _ in range(8)]
            assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}
            assert len({receipt.queue for receipt in receipts}) == 2


async def test_mistakes_are_told(target):
    async with produce(target.namesrv) as producer:
        for message, why in (
            (Message("plain", bytes(5 * 1024 * 1024)), "max_message_bytes"),
            (Message("plain"), "needs a body"),
            (records.Message("plain", "text"), "is bytes"),  # type: ignore[arg-type]
            (Message("", b"x"), "a topic needs a name"),
            (Message("a b", b"x"), "' ' in it"),
            (Message("t" * 128, b"x"), "127 are allowed"),
            (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the brokers"),
            (Message("plain", b"x", {"a": "b\x02c\x01d"}), r"U\+0001 or U\+0002"),
            (Message("plain", b"x", {"a": "\ud800"}), "properties of a message"),
            (Message("plain", b"x", {"INNER_MULTI_DISPATCH": "a/b"}), "not allowed"),
        ):
            with pytest.raises(ClientError, match=why):
                await producer.send(message)
            with pytest.raises(ClientError, match=why):
                await producer.send_oneway(message)


async def test_mistakes_of_a_producer_are_told():
    for group, why in (
        ("", "needs a name"),
        ("a/b", "'/' in it"),
        ("g" * 121, "120 are allowed"),
        ("DEFAULT_PRODUCER", "not for use"),
    ):
        with pytest.raises(ClientError, match=why):
            Producer("127.0.0.1:1", group=group)
    with pytest.raises(ClientError, match="no name server was given"):
        Producer("")
    with pytest.raises(BadMessageError, match="one of delay_level"):
        Message("T", b"x", delay_level=1, delay_s=3)

    with pytest.raises(ClientError, match="not open"):
        await Producer("127.0.0.1:1").send(Message("T", b"x"))
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ClientError, match="no name server answers"):
            await producer.send(Message("T", b"x"))


def test_the_id_of_a_client_is_made_as_in_java():
    producer = Producer("127.0.0.1:1", ip="192.0.2.7", instance="one", unit="u")
    assert producer.core.client_id == "192.0.2.7@one@u"
    assert re.fullmatch(r"192\.0\.2\.7@\d+#\d+", Producer("127.0.0.1:1", ip="192.0.2.7").core.client_id)


async def test_without_a_default_topic_a_new_topic_is_no_route():
    with Cluster(config={"autoCreateTopicEnable": "false"}) as cluster:
        async with produce(cluster.namesrv) as producer:
            with pytest.raises(NoRouteError, match="no broker makes topics by itself"):
                await producer.send(Message("nowhere", b"x"))

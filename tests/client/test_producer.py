"""The producer against a cluster of two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from kourou.client import ClientError, Message, NoRouteError, Producer
from kourou.message.codec import StoredMessage
from kourou.remoting.lenient_json import MessageQueue
from kourou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


def produce(cluster: Cluster, test: Callable[[Producer], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        async with Producer(cluster.namesrv, group="PG", **options) as producer:  # type: ignore[arg-type]
            await asyncio.wait_for(test(producer), 30)

    asyncio.run(main())


def stored(cluster: Cluster, topic: str) -> list[StoredMessage]:
    """All messages of a topic, on all brokers."""
    found = []
    for broker in cluster.brokers:
        for queue in (broker.store.queues.table.get(topic) or {}).values():
            looked = (broker.store.look_message(entry.physical_offset) for entry in queue.iterate(0))
            found += [message for message in looked if message is not None]
    return found


def test_a_message_is_stored_with_what_it_has(cluster):
    cluster.create_topic("plain", queues=2)

    async def test(producer: Producer) -> None:
        message = Message("plain", b"body", {"color": "red"})
        message.tags, message.keys = "paid", ["o-1", "o-2"]
        receipt = await producer.send(message)
        assert receipt.status == "SEND_OK"
        (found,) = stored(cluster, "plain")
        assert bytes(found.body) == b"body"
        assert found.properties["TAGS"] == "paid"
        assert found.properties["KEYS"] == "o-1 o-2"
        assert found.properties["color"] == "red"
        assert found.message_id == receipt.message_id
        assert found.offset_message_id == receipt.offset_message_id
        assert (found.queue_id, found.queue_offset) == (receipt.queue.queue_id, receipt.queue_offset)

    produce(cluster, test)


def test_messages_go_to_all_queues_in_turn(cluster):
    cluster.create_topic("turn", queues=2)

    async def test(producer: Producer) -> None:
        receipts = [await producer.send(Message("turn", b"x")) for _ in range(8)]
        queues = [receipt.queue for receipt in receipts]
        assert len(set(queues)) == 4  # two brokers of two
        assert queues[:4] == queues[4:]

    produce(cluster, test)


def test_messages_of_a_key_go_to_one_queue_in_their_order(cluster):
    cluster.create_topic("ordered", queues=4)

    async def test(producer: Producer) -> None:
        receipts = [
            await producer.send(Message("ordered", b"%d" % number, {"__SHARDINGKEY": "customer-7"}))
            for number in range(10)
        ]
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == list(range(10))

    produce(cluster, test)


def test_a_caller_may_name_the_queue(cluster):
    cluster.create_topic("chosen", queues=4)

    async def test(producer: Producer) -> None:
        queue = MessageQueue("chosen", "broker-b", 3)
        assert (await producer.send(Message("chosen", b"x"), queue=queue)).queue == queue
        last = await producer.send(Message("chosen", b"x"), select=lambda queues: queues[-1])
        assert last.queue == queue

    produce(cluster, test)


def test_a_topic_is_made_by_its_first_message(cluster):
    async def test(producer: Producer) -> None:
        await producer.send(Message("made", b"x"))
        assert len(stored(cluster, "made")) == 1

    produce(cluster, test)


def test_a_batch_is_sent_in_parts_that_fit(cluster):
    cluster.create_topic("batch", queues=1)

    async def test(producer: Producer) -> None:
        messages = [Message("batch", bytes(1000)) for _ in range(10)]
        receipts = await producer.send_batch(messages)
        assert len(receipts) == 4
        found = stored(cluster, "batch")
        assert sorted(message.message_id for message in found) == sorted(
            message.properties["UNIQ_KEY"] for message in messages
        )
        with pytest.raises(ClientError, match="one topic"):
            await producer.send_batch([Message("batch"), Message("other")])

    produce(cluster, test, max_message_bytes=4000)


def test_a_large_body_is_compressed(cluster):
    cluster.create_topic("large", queues=1)

    async def test(producer: Producer) -> None:
        await producer.send(Message("large", b"abc" * 4000))
        (found,) = stored(cluster, "large")
        assert len(found.body) < 1000
        assert found.decompressed_body == b"abc" * 4000

    produce(cluster, test)


def test_a_oneway_message_arrives(cluster):
    cluster.create_topic("oneway", queues=1)

    async def test(producer: Producer) -> None:
        await producer.send_oneway(Message("oneway", b"x"))
        while not stored(cluster, "oneway"):
            await asyncio.sleep(0.01)

    produce(cluster, test)


def test_many_sends_at_once(cluster):
    cluster.create_topic("many", queues=4)

    async def test(producer: Producer) -> None:
        receipts = await asyncio.gather(*(producer.send(Message("many", b"x")) for _ in range(500)))
        assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 500

    produce(cluster, test)


def test_a_broker_that_is_gone_is_left_out():
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("retry", queues=2)

        async def test(producer: Producer) -> None:
            await producer.send(Message("retry", b"x"))
            gone = cluster.brokers.pop()
            cluster._run(gone.stop())
            for _ in range(8):
                receipt = await producer.send(Message("retry", b"x"), timeout_s=10)
                assert receipt.queue.broker_name == cluster.brokers[0].config.broker_name

        produce(cluster, test)


def test_mistakes_are_told(cluster):
    async def test(producer: Producer) -> None:
        with pytest.raises(ClientError, match="max_message_bytes"):
            await producer.send(Message("plain", bytes(5 * 1024 * 1024)))
        with pytest.raises(ClientError, match="needs a body"):
            await producer.send(Message("plain"))
        with pytest.raises(ClientError, match="needs a topic"):
            await producer.send(Message("", b"x"))

    produce(cluster, test)


def test_a_name_server_that_is_not_there_is_told():
    async def main() -> None:
        async with Producer("127.0.0.1:1") as producer:
            with pytest.raises(ClientError, match="no name server answers"):
                await producer.send(Message("T", b"x"))

    asyncio.run(main())
    with pytest.raises(ClientError, match="no name server was given"):
        Producer("")


def test_without_a_default_topic_a_new_topic_is_no_route():
    with Cluster(config={"autoCreateTopicEnable": "false"}) as cluster:

        async def test(producer: Producer) -> None:
            with pytest.raises(NoRouteError):
                await producer.send(Message("nowhere", b"x"))

        produce(cluster, test)

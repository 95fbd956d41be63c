"""Transactions against a cluster of two brokers, ours and Java's."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client import ClientError, Message, Producer
from kourou.client.consume.received import ReceivedMessage
from kourou.client.produce.transactions import TransactionState
from support.stores.reading import read_ids, read_stored

COMMIT, ROLLBACK, UNKNOWN = TransactionState


async def test_consumers_see_what_was_committed_and_nothing_else(target):
    topic = target.create_topic("transactions", queues=1)

    async with Producer(target.namesrv, group="PG_TX", timeout_s=10) as producer:
        seen: list[Message] = []

        async def commit(message: Message) -> TransactionState:
            seen.append(message)
            await asyncio.sleep(0)
            return COMMIT

        committed = await producer.send_in_transaction(Message(topic, b"committed", keys="k"), commit)
        assert (committed.state, committed.error) == (COMMIT, None)
        assert committed.receipt.transaction_id == committed.receipt.message_id
        assert seen[0].properties["__transactionId__"] == committed.receipt.message_id
        dropped = await producer.send_in_transaction(Message(topic, b"dropped"), lambda _: ROLLBACK)
        assert dropped.state is ROLLBACK
        last = await producer.send_in_transaction(Message(topic, b"last"), lambda _: COMMIT)

        found = await read_stored(target.brokers, topic, 2)
        ids = {message.message_id for message in found}
        assert ids == {committed.receipt.message_id, last.receipt.message_id}
        assert {message.properties["PGROUP"] for message in found} == {"PG_TX"}


async def test_the_broker_asks_for_what_it_was_not_told(target):
    topic = target.create_topic("checked", queues=1)
    asked: list[ReceivedMessage] = []
    large = bytes(10_000)

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        if message.tags == "fails" and len([m for m in asked if m.tags == "fails"]) == 1:
            raise RuntimeError("not known yet")
        return ROLLBACK if message.tags == "dropped" else COMMIT

    def fail(message: Message) -> TransactionState:
        raise RuntimeError("the work failed")

    target.create_topic(f"TX%{topic}", queues=1)
    async with Producer(
        target.namesrv, group="PG_CHECKED", namespace="TX", checker=check, timeout_s=10
    ) as producer:
        unknown = await producer.send_in_transaction(
            Message(topic, large, {"color": "red"}, tags="unknown"), lambda _: UNKNOWN
        )
        failed = await producer.send_in_transaction(Message(topic, b"x", tags="fails"), fail)
        dropped = await producer.send_in_transaction(
            Message(topic, b"x", tags="dropped"),
            lambda _: None,  # type: ignore[arg-type, return-value]
        )
        assert [item.state for item in (unknown, failed, dropped)] == [UNKNOWN] * 3
        assert isinstance(failed.error, RuntimeError)
        ids = await read_ids(target.brokers, f"TX%{topic}", 2)
        assert ids == {unknown.receipt.message_id, failed.receipt.message_id}
        while {message.tags for message in asked} != {"unknown", "fails", "dropped"}:
            await asyncio.sleep(0.05)
        first = next(message for message in asked if message.tags == "unknown")
        assert bytes(first.body) == large
        assert first.topic == topic
        assert first.properties["color"] == "red"
        assert first.message_id == unknown.receipt.message_id


async def test_producers_that_share_a_core_are_asked_for_their_own(target):
    topic = target.create_topic("checked-shared", queues=1)
    asked: dict[str, list[str]] = {"first": [], "second": []}

    def note(who: str, message: ReceivedMessage) -> TransactionState:
        asked[who].append(message.message_id)
        return COMMIT

    async with (
        Producer(target.namesrv, group="PG_FIRST", timeout_s=10, checker=lambda m: note("first", m)) as first,
        Producer(
            group="PG_SECOND", core=first.core, timeout_s=10, checker=lambda m: note("second", m)
        ) as second,
    ):
        one = await first.send_in_transaction(Message(topic, b"x"), lambda _: UNKNOWN)
        two = await second.send_in_transaction(Message(topic, b"x"), lambda _: UNKNOWN)
        await read_ids(target.brokers, topic, 2)
        assert set(asked["first"]) == {one.receipt.message_id}
        assert set(asked["second"]) == {two.receipt.message_id}


async def test_mistakes_are_told(target):
    topic = target.create_topic("mistakes", queues=1)

    async with Producer(target.namesrv, group="PG_WRONG") as producer:
        for delayed in (
            Message(topic, b"x", delay_level=1),
            Message(topic, b"x", delay_s=1),
            Message(topic, b"x", delay_s=0.5),
            Message(topic, b"x", deliver_at=1_700_000_000_000),
        ):
            with pytest.raises(ClientError, match="cannot be delayed"):
                await producer.send_in_transaction(delayed, lambda _: COMMIT)
        wrong = await producer.send_in_transaction(
            Message(topic, b"x"),
            lambda _: "commit",  # type: ignore[arg-type, return-value]
        )
        assert wrong.state is UNKNOWN
        assert "TransactionState" in str(wrong.error)

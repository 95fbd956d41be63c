"""What the console knows of a cluster: asked once for all tabs, with an end, whatever brokers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kourou.admin import Admin
from kourou.client import Message
from kourou.console import reading
from kourou.console.backend import Backend
from kourou.console.config import ConsoleConfig
from kourou.console.contents import Contents, kind_of, read_contents
from kourou.errors import KourouError
from kourou.testing import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as found:
        yield found


def run(namesrv: str, work: Callable[[Backend], Awaitable[Any]]) -> Any:
    """Some work with a backend; in a thread, since a browser may have its event loop in this one."""

    async def main() -> Any:
        async with Backend(ConsoleConfig(namesrv)) as backend:
            return await work(backend)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, main()).result()


def test_tabs_that_ask_the_same_get_one_answer(cluster):
    calls: list[str] = []

    async def names(admin: Admin) -> list[str]:
        calls.append("names")
        return await admin.topics.names()

    async def work(backend: Backend) -> None:
        answers = await asyncio.gather(*(backend.ask("names", names) for _ in range(10)))
        assert all(answer is answers[0] for answer in answers)
        assert await backend.ask("names", names) is answers[0]
        assert calls == ["names"]
        await backend.ask("others", names)
        await backend.ask("names", names, ttl_s=-1)
        assert calls == ["names", "names"]
        backend.forget()
        await backend.ask("names", names, ttl_s=-1)
        await backend.ask("names", names)
        assert calls == ["names"] * 4

    run(cluster.namesrv, work)


def test_a_failure_is_told_to_all_and_not_kept(cluster):
    calls = 0

    async def fail(_: Admin) -> None:
        nonlocal calls
        calls += 1
        raise KourouError("no")

    async def work(backend: Backend) -> None:
        found = await asyncio.gather(*(backend.ask("it", fail) for _ in range(3)), return_exceptions=True)
        assert [str(one) for one in found] == ["no"] * 3
        assert calls == 1
        with pytest.raises(KourouError):
            await backend.ask("it", fail)
        assert calls == 2

    run(cluster.namesrv, work)


def test_who_leaves_does_not_take_the_answer_from_others(cluster):
    async def slow(_: Admin) -> str:
        await asyncio.sleep(0.05)
        return "found"

    async def work(backend: Backend) -> None:
        leaving = asyncio.ensure_future(backend.ask("it", slow))
        staying = asyncio.ensure_future(backend.ask("it", slow))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == "found"

    run(cluster.namesrv, work)


def test_every_question_has_an_end(cluster):
    async def work(backend: Backend) -> None:
        with pytest.raises(KourouError, match="did not answer within"):
            await backend.ask("it", lambda _: asyncio.sleep(60), within_s=0.05)

    run(cluster.namesrv, work)


def test_the_poller_sees_topics_groups_and_rates(cluster):
    cluster.create_topic("orders", queues=3, attributes="+message.type=FIFO")

    async def work(backend: Backend) -> None:
        await backend.ready()
        async with backend.admin.messages.producer() as producer:
            for _ in range(5):
                await producer.send(Message("orders", b"x"))
        await backend.admin.groups.create("billing")
        await backend.admin.offsets.reset("billing", "orders", 0)
        await backend.changed()
        topic, group = backend.snapshot.topics["orders"], backend.snapshot.groups["billing"]
        assert (topic.kind, topic.messages, topic.write_queues, topic.brokers) == ("fifo", 5, 3, ["broker-a"])
        assert topic.tps > 0
        assert (group.lag, group.topics, group.clients) == (5, {"orders"}, set())
        assert backend.snapshot.topics["SCHEDULE_TOPIC_XXXX"].kind == "system"
        assert backend.snapshot.masters == {"broker-a": cluster.broker_addresses[0]}

    run(cluster.namesrv, work)


def test_a_broker_that_does_not_answer_does_not_keep_the_others_from_being_read(cluster):
    cluster.create_topic("orders")

    async def work(backend: Backend) -> None:
        masters = {"broker-a": cluster.broker_addresses[0], "gone": "127.0.0.1:1"}
        found = await read_contents(backend.admin, masters, Contents())
        assert "orders" in found.topics
        assert set(found.failed) == {"gone"}

    run(cluster.namesrv, work)


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("orders", {}, "normal"),
        ("orders", {"message.type": "UNSPECIFIED"}, "normal"),
        ("orders", {"message.type": "TRANSACTION"}, "transaction"),
        ("%RETRY%billing", {}, "retry"),
        ("%DLQ%billing", {}, "dlq"),
        ("rmq_sys_wheel_timer", {}, "system"),
        ("TBW102", {}, "system"),
    ],
)
def test_topics_have_kinds(name, attributes, kind):
    assert kind_of(name, attributes) == kind


def test_the_newest_messages_are_read_first(cluster, monkeypatch):
    cluster.create_topic("orders", queues=2)

    async def work(backend: Backend) -> None:
        admin = backend.admin
        async with admin.messages.producer() as producer:
            for number in range(120):
                tags = "odd" if number % 2 else "even"
                await producer.send(Message("orders", str(number).encode(), tags=tags))
        found = await reading.browse(admin, "orders", most=50)
        assert sorted(int(bytes(one.body)) for one in found.messages) == list(range(70, 120))
        assert [one.store_timestamp for one in found.messages] == sorted(
            (one.store_timestamp for one in found.messages), reverse=True
        )
        found = await reading.browse(admin, "orders", expression="odd", most=10)
        assert sorted(int(bytes(one.body)) for one in found.messages) == list(range(101, 120, 2))
        assert not found.is_partial
        monkeypatch.setattr(reading, "MAX_READ_BYTES", 1)
        found = await reading.browse(admin, "orders", most=120)
        assert found.is_partial
        assert 0 < len(found.messages) < 120

    run(cluster.namesrv, work)

"""What runs beside a user's calls: nothing of it ends unseen, and a normal close prints nothing."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap

import pytest

from kourou.client import Consumer, Message, Producer
from kourou.client.background import Background
from kourou.client.core import ClientCore, NoRouteError
from kourou.client.repeated import RepeatedWarnings
from support.sites.clients import bodies, reader, send, until

CLOSES_SOON = """
    import gc, sys
    from kourou.sync import Consumer
    for number in range(4):
        with Consumer(sys.argv[1], group=f"soon-{sys.argv[2]}-{number}", subscribe=sys.argv[2]):
            pass
    gc.collect()
"""


async def test_a_task_that_fails_is_logged(caplog):
    async def fail(error: Exception) -> None:
        raise error

    background = Background()
    background.start(fail(NoRouteError("no such topic")), "looking for a topic")
    background.start(fail(KeyError("offset")), "reading an answer")
    forever = background.start(asyncio.sleep(3600), "sleeping")
    await until(lambda: len(background) == 1)
    await background.close()
    assert forever.cancelled()
    told = [(record.levelno, record.getMessage(), record.exc_info is not None) for record in caplog.records]
    assert sorted(told) == [
        (logging.WARNING, "looking for a topic: no such topic", False),
        (logging.ERROR, "reading an answer failed", True),
    ]


async def test_the_error_of_a_route_that_nobody_waits_for_is_seen():
    lost: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    core = ClientCore("127.0.0.1:1", client_id="c")

    async def fail(topic: str) -> None:
        await asyncio.sleep(0.01)
        raise NoRouteError(topic)

    core._fetch_route = fail  # type: ignore[method-assign, assignment]
    waiting = asyncio.ensure_future(core.fetch_route("%RETRY%G"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0.05)
    del waiting
    assert lost == []


def test_a_consumer_of_a_new_group_that_closes_soon_prints_nothing(target, topic):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLOSES_SOON), target.namesrv, topic],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_observers_that_fail_do_not_stop_a_consumer(target, topic, caplog):
    await send(target, topic, bodies(3))
    seen = []

    def fail(*event: object) -> None:
        raise RuntimeError("my metrics are broken")

    consumer = reader(target, topic, concurrency=1, on_consume=fail, on_rebalance=fail)  # fmt: skip

    @consumer.handler
    async def handle(message: Message) -> None:
        seen.append(bytes(message.body))

    async with consumer:
        await until(lambda: len(seen) == 3)
    assert "my metrics are broken" in caplog.text


async def test_a_pull_goes_on_after_an_error_that_nobody_thought_of(target, topic, caplog):
    async with reader(target, topic) as consumer:
        puller = consumer.assignment._puller
        pull = puller.pull

        async def fail_once(*args: object, **options: object) -> object:
            puller.pull = pull  # type: ignore[method-assign]
            raise TypeError("a broker of tomorrow")

        puller.pull = fail_once  # type: ignore[method-assign, assignment]
        await send(target, topic, bodies(20))
        seen = [bytes((await anext(consumer)).body) for _ in range(20)]
        assert sorted(seen) == sorted(bodies(20))
        await until(lambda: "a broker of tomorrow" in caplog.text)


def test_warnings_that_repeat_come_at_growing_intervals(caplog):
    now_s = 0.0
    warnings = RepeatedWarnings(lambda: now_s)
    log = logging.getLogger("kourou.client.test")
    at = []
    for tick in range(2 * 1000):  # twice a second, for 1,000 s
        now_s = tick / 2
        before = len(caplog.records)
        warnings.warn(log, "orders", "%s is nowhere", "orders")
        if len(caplog.records) > before:
            at.append(now_s)
    assert at == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811]
    warnings.warn(log, "bills", "%s is nowhere", "bills")
    assert caplog.records[-1].getMessage() == "bills is nowhere"
    now_s = 2000.0  # it was away in between
    for _ in range(3):
        warnings.warn(log, "orders", "%s is nowhere", "orders")
        now_s += 1
    assert len(caplog.records) == len(at) + 1 + 2


@pytest.mark.parametrize("kind", ["wrong address", "unknown topic"])
async def test_a_consumer_that_cannot_start_says_why_and_fails(target, kind, caplog):
    if kind == "wrong address":
        namesrv, why = "127.0.0.1:1", r"no name server answers: 127.0.0.1:1 cannot be reached"
    else:
        namesrv, why = target.namesrv, "no name server knows topic nowhere: create it, or send to it first"

    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    started = loop.time()
    with pytest.raises(Exception, match=f"{why}.*gave up after 2 s: start_timeout_s"):
        async with Consumer(namesrv, group="GW", subscribe="nowhere", start_timeout_s=2):
            pass
    assert 1 < loop.time() - started < 20
    assert asyncio.all_tasks() == before
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 <= len(warned) <= 2, warned


async def test_a_topic_that_is_made_while_a_consumer_starts_is_waited_for(target):
    async def make() -> None:
        await asyncio.sleep(0.5)
        async with Producer(target.namesrv, group="PG") as producer:
            await producer.send(Message("soon-there", b"x"))

    making = asyncio.ensure_future(make())
    async with Consumer(
        target.namesrv, group="GSoon", subscribe="soon-there", consume_from="first"
    ) as consumer:
        assert bytes((await anext(consumer)).body) == b"x"
    await making


async def test_a_consumer_that_waits_for_ever_warns_less_and_less(caplog):
    async with Consumer("127.0.0.1:1", group="GW", subscribe="nowhere", start_timeout_s=None):
        await asyncio.sleep(5.5)  # it tries every second
    told = [record.getMessage().partition(": 127")[0] for record in caplog.records if record.levelno >= 30]
    told = [text for text in told if "nowhere" in text]
    assert 2 <= len(told) <= 4, told

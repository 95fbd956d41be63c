"""POP: what is given out, acknowledged, given out again, and what waits."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import orjson
import pytest

from kourou.broker import Broker, BrokerConfig
from kourou.broker.pop.checkpoints import REVIVE_GROUP, read_ack, read_check_point
from kourou.message.codec import StoredMessage, decode
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import ORDER_QUEUE, Handle
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.store.put import InnerMessage
from kourou.testing.cluster import SMALL_STORE
from support.loops import until
from support.stores.store import ManualClock

TOPIC, GROUP = "T", "G"
RETRIES = f"%RETRY%{GROUP}_{TOPIC}"
QUEUES = 3
INVISIBLE_MS = 10_000
TURNS = 200


@dataclass
class Popped:
    """An answer to POP_MESSAGE."""

    code: int
    fields: dict[str, str]
    messages: list[StoredMessage]

    @property
    def bodies(self) -> list[str]:
        return sorted(bytes(message.body).decode() for message in self.messages)

    def handles(self) -> list[tuple[StoredMessage, str]]:
        """What a client makes of it: each message with its handle, and where it lies."""
        starts = {
            tuple(one.split(" ")[:2]): one.split(" ")[2] for one in self.fields["startOffsetInfo"].split(";")
        }
        found = []
        for message in self.messages:
            own = message.properties.get("POP_CK")
            if own is None:
                key = "0", str(message.queue_id)
                shared = [self.fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
                parts = (starts[key], *shared, "0", "B", message.queue_id, message.queue_offset)
                own = " ".join(map(str, parts))
            found.append((message, own))
        return found


class Site:
    """A broker, its clock, and a client."""

    def __init__(self, broker: Broker, clock: ManualClock, client: RemotingClient) -> None:
        self.broker, self.clock, self._client = broker, clock, client
        self.address = f"127.0.0.1:{broker.config.listen_port}"

    async def ask(self, code: RequestCode, body: Any = None, **fields: object) -> RemotingCommand:
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }
        encoded = None if body is None else orjson.dumps(body)
        return await self._client.call(self.address, RemotingCommand(code, texts, encoded), 20)

    def put(self, body: str, queue_id: int = 0, topic: str = TOPIC, **properties: str) -> None:
        message = InnerMessage.of(topic, queue_id, body.encode(), {"UNIQ_KEY": body, **properties})
        assert self.broker.put(message).ok

    async def pop(
        self, number: int = 32, *, queue_id: int = -1, poll_ms: int = 0, **fields: object
    ) -> Popped:
        wanted = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "maxMsgNums": number,
            "invisibleTime": INVISIBLE_MS, "pollTime": poll_ms, "bornTime": self.clock.now_ms(),
            "initMode": 0, **fields,
        }  # fmt: skip
        answer = await self.ask(RequestCode.POP_MESSAGE, **wanted)
        return Popped(answer.code, answer.ext_fields, _records(bytes(answer.body or b"")))

    async def ack(self, message: StoredMessage, handle: str) -> RemotingCommand:
        return await self.ask(RequestCode.ACK_MESSAGE, **_place(message, handle))

    async def passes(self, ms: int) -> None:
        """Let time pass, with the timer and what was not acknowledged keeping up."""
        for _ in range(ms // 500):
            self.clock.advance(500)
            self.broker.timers.deliver_due()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            await self.broker.revive.revive()

    def offset(self, topic: str, queue_id: int = 0, group: str = GROUP) -> int:
        return self.broker.offsets.query(group, topic, queue_id)


def _place(message: StoredMessage, handle: str) -> dict[str, object]:
    kind = Handle.read(handle).kind
    return {
        "consumerGroup": GROUP, "topic": RETRIES if kind == "1" else TOPIC, "queueId": message.queue_id,
        "extraInfo": handle, "offset": message.queue_offset,
    }  # fmt: skip


def _records(data: bytes) -> list[StoredMessage]:
    found, at = [], 0
    while at < len(data):
        found.append(decode(data, at))
        at += found[-1].store_size
    return found


@asynccontextmanager
async def running(path: Path, clock: ManualClock | None = None, **options: Any) -> AsyncIterator[Site]:
    clock = clock or ManualClock()
    properties = {
        **SMALL_STORE, "storePathRootDir": str(path / "store"), "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1", "listenPort": "0", "brokerName": "B", **options,
    }  # fmt: skip
    config = BrokerConfig.from_properties(properties)
    broker = Broker(config, clock=clock)
    await broker.start()
    client = RemotingClient()
    try:
        broker.topics.create_if_absent(TopicConfig(TOPIC, QUEUES, QUEUES))
        broker.groups.find(GROUP)
        yield Site(broker, clock, client)
    finally:
        await client.close()
        await broker.stop()


def on_a_site(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is given a Site of its own."""

    @wraps(test)
    def run(tmp_path: Path, **arguments: Any) -> None:
        async def main() -> None:
            async with running(tmp_path) as site:
                await test(site, **arguments)

        asyncio.run(main())

    del run.__wrapped__  # pytest looks at the parameters
    return run


@on_a_site
async def test_messages_of_all_queues_come_in_one_answer(site: Site) -> None:
    for number in range(6):
        site.put(f"m{number}", number % QUEUES)

    found = await site.pop()

    assert (found.code, found.bodies) == (0, [f"m{number}" for number in range(6)])
    assert sorted(found.fields["startOffsetInfo"].split(";")) == ["0 0 0", "0 1 0", "0 2 0"]
    assert sorted(found.fields["msgOffsetInfo"].split(";")) == ["0 0 0,1", "0 1 0,1", "0 2 0,1"]
    assert (found.fields["restNum"], found.fields["invisibleTime"]) == ("0", str(INVISIBLE_MS))
    assert [site.offset(TOPIC, queue) for queue in range(QUEUES)] == [2, 2, 2]
    assert (await site.pop()).code == ResponseCode.POLLING_TIMEOUT


@on_a_site
async def test_an_answer_has_no_more_than_was_asked_for(site: Site) -> None:
    for number in range(9):
        site.put(f"m{number}", number % QUEUES)

    found = await site.pop(4)

    assert len(found.messages) == 4
    assert found.fields["restNum"] == "5"
    assert len((await site.pop(32)).messages) == 5


@on_a_site
async def test_what_is_acknowledged_does_not_come_again(site: Site) -> None:
    site.put("done")
    site.put("open")
    found = await site.pop()
    for message, handle in found.handles():
        if bytes(message.body) == b"done":
            assert (await site.ack(message, handle)).code == 0

    await site.passes(INVISIBLE_MS + 4000)

    again = await site.pop()
    assert again.bodies == ["open"]
    (message,) = again.messages
    assert (message.topic, message.reconsume_times) == (TOPIC, 1)
    assert message.properties["1ST_POP_TIME"] == found.fields["popTime"]
    assert message.properties["ORIGIN_GROUP"] == GROUP
    assert again.fields["startOffsetInfo"] == "1 0 0"
    await site.ack(*again.handles()[0])
    await site.passes(INVISIBLE_MS + 4000)
    assert (await site.pop()).messages == []


@on_a_site
async def test_nothing_comes_again_before_its_time(site: Site) -> None:
    site.put("m")
    await site.pop()

    await site.passes(INVISIBLE_MS - 500)

    assert (await site.pop()).messages == []


@on_a_site
async def test_a_batch_acknowledges_messages_of_several_queues(site: Site) -> None:
    for number in range(6):
        site.put(f"m{number}", number % QUEUES)
    found = await site.pop()
    acks = [
        {
            "b": base64.b64encode(bits).decode(), "c": GROUP, "it": INVISIBLE_MS,
            "pt": int(found.fields["popTime"]), "q": queue, "r": "0", "rq": int(found.fields["reviveQid"]),
            "so": 0, "t": TOPIC,
        }
        for queue, bits in enumerate((b"\x03", b"\x01", b"\x02"))
    ]  # fmt: skip

    answer = await site.ask(RequestCode.BATCH_ACK_MESSAGE, {"brokerName": "B", "acks": acks})

    assert answer.code == 0
    await site.passes(INVISIBLE_MS + 4000)
    assert (await site.pop()).bodies == ["m2", "m4"]


@on_a_site
async def test_a_message_comes_again_when_its_client_says(site: Site) -> None:
    site.put("m")
    ((message, handle),) = (await site.pop()).handles()

    answer = await site.ask(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **_place(message, handle), invisibleTime=3000
    )

    assert answer.code == 0
    assert answer.ext_fields["invisibleTime"] == "3000"
    await site.passes(8000)
    assert (await site.pop()).bodies == ["m"]
    await site.passes(INVISIBLE_MS)  # the first handle is void: it does not come a second time by it
    assert site.broker.store.max_offset(RETRIES, 0) == 1


@on_a_site
async def test_a_pop_waits_for_a_message(site: Site) -> None:
    waiting = asyncio.create_task(site.pop(poll_ms=15_000))
    await until(lambda: site.broker.popper.polls.count == 1)
    info = await site.ask(RequestCode.POLLING_INFO, consumerGroup=GROUP, topic=TOPIC, queueId=-1)
    assert info.ext_fields == {"pollingNum": "1"}

    site.put("m", 2)

    assert (await waiting).bodies == ["m"]
    assert not site.broker.popper.awaited


@on_a_site
async def test_a_retry_wakes_who_waits(site: Site) -> None:
    site.put("m")
    await site.pop()
    waiting = asyncio.create_task(
        site.pop(poll_ms=15_000, bornTime=site.clock.now_ms() + INVISIBLE_MS + 5000)
    )
    await until(lambda: site.broker.popper.polls.count == 1)

    await site.passes(INVISIBLE_MS + 4000)

    assert (await waiting).bodies == ["m"]


@on_a_site
async def test_a_filter_chooses_and_others_are_passed(site: Site) -> None:
    for number in range(4):
        site.put(f"m{number}", TAGS="a" if number % 2 else "b")

    found = await site.pop(exp="a", expType="TAG")

    assert found.bodies == ["m1", "m3"]
    assert site.offset(TOPIC) == 4
    waiting = asyncio.create_task(site.pop(poll_ms=15_000, exp="a", expType="TAG"))
    await until(lambda: site.broker.popper.polls.count == 1)
    site.put("other", TAGS="b")
    site.put("wanted", TAGS="a")
    assert (await waiting).bodies == ["wanted"]


@on_a_site
async def test_a_notification_says_that_there_is_something(site: Site) -> None:
    def ask(poll_ms: int) -> Awaitable[RemotingCommand]:
        return site.ask(
            RequestCode.NOTIFICATION, consumerGroup=GROUP, topic=TOPIC, queueId=-1, pollTime=poll_ms,
            bornTime=site.clock.now_ms(), order=False,
        )  # fmt: skip

    assert (await ask(0)).ext_fields == {"hasMsg": "false", "pollingFull": "false"}
    waiting = asyncio.ensure_future(ask(15_000))
    await until(lambda: site.broker.popper.notifications.count == 1)
    site.put("m")
    assert (await waiting).ext_fields["hasMsg"] == "true"
    assert (await ask(0)).ext_fields["hasMsg"] == "true"


class TestOrder:
    @staticmethod
    async def pop(site: Site, attempt: str = "", **fields: object) -> Popped:
        attempts = {"attemptId": attempt} if attempt else {}
        return await site.pop(order=True, **attempts, **fields)  # type: ignore[arg-type]

    def test_a_queue_is_blocked_while_messages_of_it_are_in_flight(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as site:
                for number in range(3):
                    site.put(f"m{number}")
                first = await self.pop(site, number=2)
                assert (first.bodies, first.fields["reviveQid"]) == (["m0", "m1"], str(ORDER_QUEUE))
                assert first.fields["orderCountInfo"] == "0 0 0"
                assert (await self.pop(site)).messages == []
                assert site.offset(TOPIC) == 0

                second, first_one = sorted(first.handles(), key=lambda pair: -pair[0].queue_offset)
                await site.ack(*second)
                assert site.offset(TOPIC) == 0
                waiting = asyncio.create_task(self.pop(site, poll_ms=15_000))
                await until(lambda: site.broker.popper.polls.count == 1)
                await site.ack(*first_one)
                assert site.offset(TOPIC) == 2
                assert (await waiting).bodies == ["m2"]

        asyncio.run(main())

    def test_what_is_not_done_in_time_is_first_again_and_counted(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as site:
                site.put("m0")
                site.put("m1")
                await self.pop(site)
                site.clock.advance(INVISIBLE_MS + 1)
                again = await self.pop(site)
                assert again.bodies == ["m0", "m1"]
                assert sorted(again.fields["orderCountInfo"].split(";")) == [
                    "0 0 1",
                    "0 qo0%0 1",
                    "0 qo0%1 1",
                ]

        asyncio.run(main())

    def test_the_same_attempt_gets_the_same_again(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with running(tmp_path) as site:
                site.put("m0")
                await self.pop(site, "try-1")
                again = await self.pop(site, "try-1")
                assert (again.bodies, again.fields["orderCountInfo"]) == (["m0"], "0 0 0")
                assert (await self.pop(site, "try-2")).messages == []

        asyncio.run(main())

    def test_it_is_known_after_a_restart(self, tmp_path: Path) -> None:
        async def main() -> None:
            clock = ManualClock()
            async with running(tmp_path, clock) as site:
                site.put("m0")
                site.put("m1")
                found = await self.pop(site, number=1)
            async with running(tmp_path, clock) as site:
                assert (await self.pop(site)).messages == []
                await site.ack(*found.handles()[0])
                assert (await self.pop(site)).bodies == ["m1"]

        asyncio.run(main())


def test_what_is_in_flight_at_a_restart_comes_again_unless_it_was_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with running(tmp_path, clock) as site:
            site.put("done")
            site.put("open")
            for message, handle in (await site.pop()).handles():
                if bytes(message.body) == b"done":
                    await site.ack(message, handle)
        async with running(tmp_path, clock) as site:
            assert (await site.pop()).messages == []
            await site.passes(INVISIBLE_MS + 4000)
            assert (await site.pop()).bodies == ["open"]

    asyncio.run(main())


@on_a_site
async def test_check_points_and_acknowledgements_are_what_java_writes(site: Site) -> None:
    """The bodies, tags and keys of the golden store `pop`."""
    site.put("m")
    found = await site.pop()
    await site.ack(*found.handles()[0])
    time = found.fields["popTime"]
    wheel = site.broker.store.queues.get("rmq_sys_wheel_timer", 0)
    assert wheel is not None
    point, ack = (site.broker.store.look_message(entry.physical_offset) for entry in wheel.iterate(0))

    assert point is not None
    assert ack is not None
    assert bytes(point.body).decode() == (
        f'{{"bm":0,"bn":"B","c":"G","d":[0],"it":10000,"n":1,"pt":{time},"q":0,'
        f'"reviveTime":{int(time) + 10000},"ro":0,"so":0,"sp":false,"t":"T"}}'
    )
    assert point.properties["UNIQ_KEY"] == f"T@0@0@G@{time}@B@ck"
    assert point.properties["TIMER_DELIVER_MS"] == str(int(time) + 9000)
    assert bytes(ack.body).decode() == f'{{"ao":0,"bn":"B","c":"G","pt":{time},"q":0,"so":0,"t":"T"}}'
    assert (ack.properties["TAGS"], ack.properties["UNIQ_KEY"]) == ("ack", f"T@0@0@G@{time}@B@ack")
    assert read_ack(ack.body, "B").key == read_check_point(point.body, "B").key


@on_a_site
async def test_the_revive_group_is_at_the_last_check_point_that_is_done(site: Site) -> None:
    for number in range(3):
        site.put(f"m{number}")
    found = await site.pop()
    for message, handle in found.handles()[1:]:
        await site.ack(message, handle)

    await site.passes(INVISIBLE_MS + 4000)

    queue, topic = int(found.fields["reviveQid"]), site.broker.popper.revive_topic
    last = site.broker.store.max_offset(topic, queue) - 1
    assert (last, site.offset(topic, queue, REVIVE_GROUP)) == (2, 2)


@on_a_site
async def test_what_was_popped_of_a_deleted_topic_does_not_come_from_the_one_made_again(site: Site) -> None:
    site.put("old", 1)
    found = await site.pop()
    await site.pop(order=True)
    site.clock.advance(1000)
    assert (await site.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC)).code == 0
    site.clock.advance(1000)
    site.broker.topics.create_if_absent(TopicConfig(TOPIC, QUEUES, QUEUES))
    site.put("new", 1)

    await site.passes(INVISIBLE_MS + 4000)

    assert found.bodies == ["old"]
    assert site.broker.orders.table == {}
    again = await site.pop()
    assert (again.bodies, [message.reconsume_times for message in again.messages]) == (["new"], [0])


REFUSALS: list[tuple[dict[str, object], int]] = [
    ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
    ({"topic": "nope"}, ResponseCode.TOPIC_NOT_EXIST),
    ({"queueId": QUEUES}, ResponseCode.INVALID_PARAMETER),
    ({"exp": "a BETWEEN", "expType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
]


@pytest.mark.parametrize(("fields", "code"), REFUSALS)
def test_what_cannot_be_popped_is_refused(tmp_path: Path, fields: dict[str, object], code: int) -> None:
    async def main() -> None:
        async with running(tmp_path) as site:
            site.put("m")
            found = await site.pop(**{"number": 1, **fields} if "maxMsgNums" not in fields else fields)  # type: ignore[arg-type]
            assert (found.code, found.messages) == (code, [])

    asyncio.run(main())


async def test_a_notification_in_order_is_told_when_a_block_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        site.put("m")
        await site.pop(order=True, invisibleTime=300)
        waiting = asyncio.ensure_future(
            site.ask(
                RequestCode.NOTIFICATION, consumerGroup=GROUP, topic=TOPIC, queueId=-1, pollTime=60_000,
                bornTime=site.clock.now_ms(), order=True,
            )
        )  # fmt: skip
        await until(lambda: site.broker.popper.notifications.count == 1)
        site.clock.advance(400)
        assert (await waiting).ext_fields["hasMsg"] == "true"

"""POP: peeks, limits, priorities, light queues, slaves, and requests that ask for too much."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from broker.pop.test_pop import GROUP, INVISIBLE_MS, QUEUES, TOPIC, Site, _records, running
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.store.put import InnerMessage

DAY_MS = 24 * 3_600_000


async def peek(
    site: Site, number: int = 32, queue_id: int = -1, group: str = GROUP
) -> tuple[int, list[str], str]:
    answer = await site.ask(
        RequestCode.PEEK_MESSAGE, consumerGroup=group, topic=TOPIC, queueId=queue_id, maxMsgNums=number
    )
    bodies = [bytes(message.body).decode() for message in _records(bytes(answer.body or b""))]
    return answer.code, sorted(bodies), answer.ext_fields.get("restNum", "")


async def test_what_is_peeked_stays(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        for number in range(4):
            site.put(f"m{number}", number % QUEUES)

        assert await peek(site) == (0, ["m0", "m1", "m2", "m3"], "4")
        assert await peek(site, 1, queue_id=1) == (0, ["m1"], "1")
        assert len((await site.pop()).messages) == 4
        assert await peek(site) == (ResponseCode.PULL_NOT_FOUND, [], "0")


async def test_what_may_not_be_peeked_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateSubscriptionGroup="false") as site:
        assert (await peek(site, queue_id=QUEUES))[0] == ResponseCode.INVALID_PARAMETER
        assert (await peek(site, group="unknown"))[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_group_with_too_much_in_flight_gets_no_more(tmp_path: Path) -> None:
    options: dict[str, Any] = {"enablePopMessageThreshold": "true", "popInflightMessageThreshold": "1"}
    async with running(tmp_path, **options) as site:
        for number in range(4):
            site.put(f"m{number}")
        found = await site.pop(2)
        assert found.bodies == ["m0", "m1"]

        limited = await site.pop(2)
        assert (limited.messages, limited.fields["restNum"]) == ([], "2")
        for message, handle in found.handles():
            await site.ack(message, handle)
        assert (await site.pop(2)).bodies == ["m2", "m3"]


async def test_what_comes_again_is_not_in_flight(tmp_path: Path) -> None:
    options: dict[str, Any] = {"enablePopMessageThreshold": "true", "popInflightMessageThreshold": "0"}
    async with running(tmp_path, **options) as site:
        site.put("m0")
        site.put("m1")
        assert len((await site.pop(1)).messages) == 1
        assert (await site.pop(1)).messages == []

        await site.passes(INVISIBLE_MS + 4000)
        assert len((await site.pop(2)).messages) == 2


async def test_the_highest_priority_comes_first(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        topic = TopicConfig("P", 8, 8, attributes={"message.type": "PRIORITY"})
        site.broker.topics.create_if_absent(topic)
        for queue_id in (3, 7, 0):
            site.put(f"m{queue_id}", queue_id, topic="P")

        found = [(await site.pop(1, topic="P")).bodies for _ in range(3)]

        assert found == [["m7"], ["m3"], ["m0"]]


async def test_light_queues_are_popped(tmp_path: Path) -> None:
    async with running(tmp_path, enableLmq="true", enableMultiDispatch="true") as site:
        properties = {"UNIQ_KEY": "m0", "INNER_MULTI_DISPATCH": "%LMQ%light"}
        assert site.broker.put(InnerMessage.of(TOPIC, 0, b"m0", properties)).ok

        found = await site.pop(topic="%LMQ%light")

        assert (found.bodies, found.fields["msgOffsetInfo"]) == (["m0"], "0 0 0")
        assert (await site.pop(topic="%LMQ%light")).messages == []


async def test_a_slave_gives_nothing_out_and_takes_no_acknowledgement(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        site.put("m0")
        found = await site.pop()
        site.put("m1")
        site.broker.slave = object()  # type: ignore[assignment]
        try:
            for order in (False, True):
                assert (await site.pop(order=order)).messages == []
            (message, handle), *_ = found.handles()
            assert (await site.ack(message, handle)).code == ResponseCode.SYSTEM_ERROR
            assert site.offset(TOPIC) == 1
        finally:
            site.broker.slave = None


@pytest.mark.parametrize(
    "fields",
    [{"invisibleTime": 4 * DAY_MS}, {"invisibleTime": -4 * DAY_MS}, {"attemptId": "a" * 257, "order": True}],
)
async def test_a_pop_that_asks_for_too_much_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with running(tmp_path) as site:
        site.put("m0")

        assert (await site.pop(**fields)).code == ResponseCode.INVALID_PARAMETER
        assert len((await site.pop()).messages) == 1


async def test_a_poll_waits_no_longer_than_the_broker_lets_it(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        task = site.pop(poll_ms=(1 << 62))
        site.broker._loop.call_later(0.05, site.put, "m0")

        assert (await task).bodies == ["m0"]


@pytest.mark.parametrize("count", [33, 40_000])
async def test_a_batch_that_names_more_than_a_check_point_has_is_refused(tmp_path: Path, count: int) -> None:
    async with running(tmp_path) as site:
        site.put("m0")
        await site.pop()
        bits = (1 << count) - 1
        text = base64.b64encode(bits.to_bytes(count // 8 + 1, "little")).decode()
        entry = {"b": text, "c": GROUP, "it": 1000, "pt": 1, "q": 0, "r": "0", "rq": 0, "so": 0, "t": TOPIC}

        answer = await site.ask(RequestCode.BATCH_ACK_MESSAGE, {"brokerName": "B", "acks": [entry]})

        assert answer.code == ResponseCode.SYSTEM_ERROR

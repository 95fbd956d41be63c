"""Check points that wait in memory for their acknowledgements (enablePopBufferMerge)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.pop.test_pop import GROUP, INVISIBLE_MS, QUEUES, RETRIES, TOPIC, Site, running
from kourou.message.topics import TIMER_TOPIC
from support.stores.store import ManualClock

BUFFERED: dict[str, Any] = {"enablePopBufferMerge": "true"}
LONG_MS = 60_000


def written(site: Site) -> list[tuple[str, str]]:
    """Tags and keys of what waits for its time."""
    queue = site.broker.store.queues.get(TIMER_TOPIC, 0)
    found = (
        [] if queue is None else [site.broker.store.look_message(e.physical_offset) for e in queue.iterate(0)]
    )
    return [(one.properties["TAGS"], one.properties["UNIQ_KEY"]) for one in found if one is not None]


async def test_what_is_acknowledged_in_time_is_never_written(tmp_path: Path) -> None:
    async with running(tmp_path, **BUFFERED) as site:
        site.put("m0")
        found = await site.pop()
        assert site.offset(TOPIC) == 0  # nothing of it is in the log

        for message, handle in found.handles():
            assert (await site.ack(message, handle)).code == 0

        assert (written(site), site.offset(TOPIC), len(site.broker.pop_buffer)) == ([], 1, 0)
        await site.passes(INVISIBLE_MS + 4000)
        assert (await site.pop()).messages == []


async def test_nobody_gets_what_is_in_memory(tmp_path: Path) -> None:
    async with running(tmp_path, **BUFFERED) as site:
        site.put("m0")
        site.put("m1")

        first, second = await site.pop(1), await site.pop(1)

        assert first.bodies + second.bodies == ["m0", "m1"]
        assert (await site.pop()).messages == []
        for message, handle in second.handles():
            await site.ack(message, handle)
        assert site.offset(TOPIC) == 0  # the first is open
        for message, handle in first.handles():
            await site.ack(message, handle)
        assert site.offset(TOPIC) == 2


async def test_what_stays_open_is_written_as_java_does_and_comes_again(tmp_path: Path) -> None:
    async with running(tmp_path, **BUFFERED) as site:
        for number in range(3):
            site.put(f"m{number}")
        found = await site.pop(invisibleTime=LONG_MS)
        done, *_ = found.handles()
        await site.ack(*done)

        site.clock.advance(11_000)
        site.broker.pop_buffer._look()

        popped = found.fields["popTime"]
        assert written(site) == [
            ("ck", f"{TOPIC}@0@0@{GROUP}@{popped}@B@ck"),
            ("ack", f"{TOPIC}@0@0@{GROUP}@{popped}@B@ack"),
        ]
        assert site.offset(TOPIC) == 3
        await site.passes(LONG_MS)
        assert (await site.pop()).bodies == ["m1", "m2"]


async def test_a_broker_that_stops_writes_all(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, **BUFFERED) as site:
        for number in range(QUEUES):
            site.put(f"m{number}", number)
        found = await site.pop()
        done, *_ = found.handles()
        await site.ack(*done)
    async with running(tmp_path, clock, **BUFFERED) as site:
        assert (await site.pop()).messages == []
        await site.passes(INVISIBLE_MS + 4000)
        again = await site.pop()
        assert again.bodies == sorted({"m0", "m1", "m2"} - {bytes(done[0].body).decode()})
        assert {message.reconsume_times for message in again.messages} == {1}


async def test_an_offset_that_is_reset_counts_from_there(tmp_path: Path) -> None:
    async with running(tmp_path, **BUFFERED) as site:
        for number in range(3):
            site.put(f"m{number}")
        await site.pop()
        site.broker.offsets.assign_reset(TOPIC, GROUP, 0, 1)

        assert (await site.pop()).bodies == ["m1", "m2"]


async def test_a_topic_that_is_made_again_begins_with_its_first_message(tmp_path: Path) -> None:
    async with running(tmp_path, **BUFFERED) as site:
        site.put("old")
        await site.pop()
        site.broker.forget_topic(TOPIC)

        assert (len(site.broker.pop_buffer), site.broker.pop_buffer.next_offset(TOPIC, GROUP, 0)) == (0, -1)


@pytest.mark.parametrize("limit", ["popCkMaxBufferSize", "popCkOffsetMaxQueueSize"])
async def test_what_finds_no_room_is_written_after_what_was_before_it(tmp_path: Path, limit: str) -> None:
    limited = {**BUFFERED, limit: "1"}
    async with running(tmp_path, **limited) as site:
        site.put("m0")
        site.put("m1")
        await site.pop(1)
        await site.pop(1)

        assert [tag for tag, _ in written(site)] == ["ck", "ck"]
        assert site.offset(TOPIC) == 2
        assert site.offset(RETRIES) == -1

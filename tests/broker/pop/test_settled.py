"""Check points that are acknowledged before they are due come to no revive queue; the others do, with all
their acknowledgements."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.pop import test_pop
from broker.pop.test_pop import INVISIBLE_MS, Popped, Site, running
from kourou.broker.pop import settled
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.handles import Handle
from support.stores.store import ManualClock

LONG_MS = INVISIBLE_MS + 4000


def revived_records(site: Site) -> int:
    topic = site.broker.popper.revive_topic
    return sum(
        site.broker.store.max_offset(topic, number) for number in range(site.broker.config.revive_queue_num)
    )


def kept(site: Site) -> int:
    known = site.broker.popper.settled
    return len(known._open) + len(known._keys) + len(known._needless)


async def popped(site: Site, count: int) -> Popped:
    for number in range(count):
        site.put(f"m{number}")
    return await site.pop()


async def ack(site: Site, found: Popped) -> None:
    for message, handle in found.handles():
        assert (await site.ack(message, handle)).code == 0


async def test_what_is_acknowledged_in_time_is_read_by_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await ack(site, await popped(site, 3))
        await site.passes(LONG_MS)
        assert (revived_records(site), kept(site)) == (0, 0)
        assert (await site.pop()).messages == []
        assert site.broker.timers.metrics.count(site.broker.popper.revive_topic) == 0


async def test_a_broker_that_starts_again_reads_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock) as site:
        await ack(site, await popped(site, 1))
    async with running(tmp_path, clock) as site:
        await site.passes(LONG_MS)
        assert revived_records(site) == 2
        assert (await site.pop()).messages == []


async def test_an_acknowledgement_after_the_check_point_came_comes_too(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        found = await popped(site, 1)
        await site.passes(INVISIBLE_MS - 500)
        assert revived_records(site) == 1
        await ack(site, found)
        await site.passes(LONG_MS)
        assert (revived_records(site), kept(site)) == (2, 0)
        assert (await site.pop()).messages == []


async def test_a_check_point_with_an_open_message_comes_with_all_acknowledgements(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        found = await popped(site, 3)
        for message, handle in found.handles()[:2]:
            await site.ack(message, handle)
        await site.passes(LONG_MS)
        assert (revived_records(site), kept(site)) == (3, 0)
        assert (await site.pop()).bodies == ["m2"]


async def test_an_acknowledgement_with_another_time_settles_nothing(tmp_path: Path) -> None:
    """It lies in another slot: after a crash one could come without the other."""
    async with running(tmp_path) as site:
        ((message, handle),) = (await popped(site, 1)).handles()
        await site.ack(message, Handle.read(handle)._replace(invisible_ms=INVISIBLE_MS + 500).text)
        await site.passes(LONG_MS)
        assert (revived_records(site), kept(site)) == (2, 0)


async def test_a_changed_time_settles_the_first_check_point(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        ((message, handle),) = (await popped(site, 1)).handles()
        fields = test_pop._place(message, handle)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        assert (await site.ask(code, invisibleTime=2 * INVISIBLE_MS, **fields)).code == 0
        await site.passes(LONG_MS)
        assert revived_records(site) == 0
        await site.passes(INVISIBLE_MS)
        assert revived_records(site) == 1
        assert (await site.pop()).bodies == ["m0"]


async def test_what_is_beyond_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "MAX_OPEN", 0)
    async with running(tmp_path) as site:
        await ack(site, await popped(site, 1))
        assert kept(site) == 0
        await site.passes(LONG_MS)
        assert revived_records(site) == 2
        assert (await site.pop()).messages == []


async def test_a_time_that_is_changed_in_the_moment_of_the_pop_is_kept(tmp_path: Path) -> None:
    """Given a clock that stands still, then both check points are told apart, and the message comes again."""
    async with running(tmp_path) as site:
        ((message, handle),) = (await popped(site, 1)).handles()
        fields = test_pop._place(message, handle)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        assert (await site.ask(code, invisibleTime=INVISIBLE_MS - 500, **fields)).code == 0
        await site.passes(LONG_MS)
        assert (await site.pop()).bodies == ["m0"]

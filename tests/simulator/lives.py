"""Topics and groups that are deleted and made again under load, and what must hold of them.

One topic lives several lives: messages are sent, the topic is deleted, the next send makes it again. In some
of them a group commits an offset, and is deleted with its offsets before the topic is. In a fifth of the
seeds a delayed message waits when its topic is deleted.

What must hold in the end, at the master and at its slave:
- of the last life, every message that was acknowledged is there;
- of the lives before, no message that was acknowledged is, nor one that waited: a deletion that was answered
  stays;
- a group that was deleted, and has committed nothing since, has no offset.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.broker import Broker
from kourou.client import Message, MessageQueue, Producer
from kourou.errors import KourouError
from kourou.message.ids import decode_offset_message_id
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.header import Header
from kourou.remoting.protocol.headers import (
    CreateTopic,
    DeleteSubscriptionGroup,
    TopicName,
    UpdateConsumerOffset,
)
from simulator.model import Model

TOPIC = "lives"
LASTING_TOPIC = "orders"  # offsets in a topic that is deleted go with it
GROUP = "doomed"
QUEUES = 4  # most lives are so short that some get no message
RETRY_S = 0.3

Ask = Callable[..., Coroutine[Any, Any, Any]]  # a request code, its header, its body


class Lives:
    """The load, and what it was promised."""

    def __init__(self, seed: int, broker_name: str, cuts_that_lose: Callable[[], int]) -> None:
        self._chance = random.Random(f"lives {seed}")
        self._has_late = seed % 10 in (6, 8)  # the others are the runs that they were
        self._broker_name = broker_name
        self._cuts_that_lose = cuts_that_lose  # power cuts that what was acknowledged may not survive
        self.model = Model()  # what is promised there is of this life
        self.is_over = False
        self.deletions = 0
        self._deleted: set[str] = set()
        self._is_group_deleted = False

    async def run(self, producer: Producer, ask: Ask) -> None:
        """Lives, one after the other."""
        life = 0
        while not self._is_over():
            has_group = self._chance.random() < 0.4
            if has_group:
                await self._make_group(ask)
            for number in range(self._chance.choice((1, 3, 20))):
                await self._send(producer, f"life{life}-{number}", self._chance.randrange(QUEUES))
                await asyncio.sleep(self._chance.expovariate(8))
                if self._is_over():
                    return
            late = f"life{life}-late"
            if self._has_late:
                await self._send_late(producer, late)
            if has_group:
                code, deleted = RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroup(GROUP, True)
                self._is_group_deleted = await self._until_answered(ask, code, deleted)
            # Until it is answered nobody knows whether it was done: no message of the next life goes before.
            sent = dict(self.model.promised)
            self.model.promised.clear()
            if await self._until_answered(ask, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(TOPIC)):
                self._deleted.update((*sent, late))
                self.deletions += 1
                life += 1
            if self._chance.random() < 0.5:
                header = CreateTopic(TOPIC, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
                await self._until_answered(ask, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def _is_over(self) -> bool:
        return self.is_over

    async def _send(self, producer: Producer, name: str, queue_id: int) -> None:
        self.model.bodies[name] = f"{name} ".encode()
        queue = MessageQueue(TOPIC, self._broker_name, queue_id)
        cuts = self._cuts_that_lose()
        try:
            receipt = await producer.send(Message(TOPIC, self.model.bodies[name]), queue=queue, timeout_s=4.0)
        except KourouError:
            return
        if receipt.status == "SEND_OK":
            place = decode_offset_message_id(receipt.offset_message_id)
            self.model.promised[name] = place.physical_offset
            if cuts != self._cuts_that_lose():
                self.model.lost_with_power.add(name)  # the answer was still under way when the power went

    async def _send_late(self, producer: Producer, name: str) -> None:
        """A message that comes when its topic may be gone: it is promised only that it goes with it."""
        self.model.bodies[name] = f"{name} ".encode()
        with contextlib.suppress(KourouError):
            await producer.send(Message(TOPIC, self.model.bodies[name], delay_level=1), timeout_s=4.0)

    async def _make_group(self, ask: Ask) -> None:
        """Make it and have it commit. Where that is refused there is nothing that could come back."""
        self._is_group_deleted = False
        group = b'{"groupName":"%b"}' % GROUP.encode()
        await self._until_answered(ask, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
        with contextlib.suppress(KourouError):
            await ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, LASTING_TOPIC, 0, 1))

    async def _until_answered(
        self, ask: Ask, code: RequestCode, header: Header | None, body: bytes | None = None
    ) -> bool:
        """Whether it was answered before the end of the load."""
        while not self._is_over():
            try:
                await ask(code, header, body)
                return True
            except KourouError:
                await asyncio.sleep(RETRY_S)
        return False

    def check(self, broker: Broker, now_ms: int) -> None:
        """Every promise is kept."""
        found = self.model.look(broker.store, TOPIC)
        self.model.check(found, now_ms)
        back = self._deleted & found.keys()
        assert not back, f"{sorted(back)[:3]} were deleted with their topic and are back ({len(back)})"
        if self._is_group_deleted:
            offset = broker.offsets.query(GROUP, LASTING_TOPIC, 0)
            assert offset == -1, f"group {GROUP} was deleted and has offset {offset}"

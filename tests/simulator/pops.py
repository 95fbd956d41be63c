"""Groups that pop under load, and what must hold of them.

One group pops without order: its clients acknowledge most messages, one by one or in batches, give some more
time or less, and forget the rest. Another pops a topic of one queue in order. When the load is over, all
clients acknowledge what they get.

What must hold, where no clock is set:
- every message that was acknowledged to its producer is given out until a client has acknowledged it;
- nobody gets a message while another has it and its invisible time is not over;
- what was acknowledged in time is never given out again, whatever happened to the broker;
- in order, nothing is given out before what came before it is acknowledged.

Real processes that are killed are asked the same: tests/chaos/tests/test_kill_pop.py.

A broker with ASYNC_FLUSH whose power goes may forget what it answered, check points too: what it gave out
just before does not come again. One with the buffer of check points that is killed may forget as well. A
change of the invisible time that is refused, on a full disk say, or whose answer is lost, may leave two check
points. What an ordered group has in flight is saved every second; a broker that is killed may forget the last
of it, one that is stopped may not.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from kourou.errors import KourouError
from kourou.message.codec import StoredMessage, decode
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.handles import Handle, retry_topic
from kourou.remoting.protocol.headers import AckMessage, ChangeInvisibleTime, CreateTopic, PopMessage
from simulator.model import Model, name_of

QUEUES = 2
RETRY_S = 0.3
POLL_MS = 1000
SAVED_AFTER_S = 4.0  # the state of an ordered group is on the disk, where that works
CLIENTS = 3

INVISIBLE_MS = (1500, 3000, 5000)

Ask = Callable[..., Coroutine[Any, Any, Any]]  # a request code, its header, its body
Send = Callable[[str, int, bytes], Coroutine[Any, Any, int | None]]  # topic, queue, body -> place in the log


class Ends(Protocol):
    """What happened to the broker."""

    ends: list[tuple[float, bool]]  # when its process ended, and whether it was stopped

    def now_s(self) -> float:
        """The time of these."""
        ...


@dataclass
class Delivery:
    """A message that a client was given."""

    name: str
    topic: str  # where it lies
    queue_id: int
    offset: int
    handle: str
    attempt: str | None
    pop_ms: int
    due_ms: int
    known_s: float  # when the client knew it
    power_cuts: int  # before it was asked for
    is_ack_tried: bool = False


class Popping:
    """A group that pops a topic, its load, and what it was promised."""

    def __init__(
        self,
        seed: int,
        topic: str,
        now_ms: Callable[[], int],
        faults: Ends,
        *,
        in_order: bool,
        power_cuts: Callable[[], int] = lambda: 0,
        saves: bool = True,
        has_buffer: bool = False,
        invisible_ms: tuple[int, ...] = INVISIBLE_MS,
    ) -> None:
        self._seed = seed
        self._chance = random.Random(f"{topic} {seed}")
        self.topic, self.group = topic, f"{topic}-group"
        self._in_order = in_order
        self._queues = 1 if in_order else QUEUES
        self._now_ms = now_ms
        self._faults = faults
        self._power_cuts = power_cuts  # those that what was answered may not survive
        self._has_buffer = has_buffer
        self._invisible_ms = invisible_ms
        self._saves = saves  # whether nothing keeps the broker from saving its tables
        self.model = Model()
        self.is_over = False
        self._sent = 0
        self._last: dict[str, Delivery] = {}  # the latest of each message
        self._acked: dict[str, tuple[int, Delivery]] = {}  # in time, and when
        self._doubled: set[str] = set()  # had a change that was not answered: may have two check points
        self.deliveries = self.acks = self.again = 0

    # The load

    async def produce(self, send: Send, ask: Ask) -> None:
        """Send, until the load is over."""
        header = CreateTopic(self.topic, "TBW102", self._queues, self._queues, 6, "SINGLE_TAG")
        while True:
            try:
                await ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                break
            except KourouError:
                await asyncio.sleep(RETRY_S)
        while not self.is_over:
            await self._send(send, f"{self.topic}-{self._sent}", self._sent % self._queues)
            await asyncio.sleep(self._chance.expovariate(12))

    async def _send(self, send: Send, name: str, queue_id: int) -> None:
        self._sent += 1
        self.model.bodies[name] = f"{name} ".encode()
        cuts = self._power_cuts()
        try:
            place = await send(self.topic, queue_id, self.model.bodies[name])
        except KourouError:
            return
        if place is not None:
            self.model.promised[name] = place
            if cuts != self._power_cuts():
                self.model.lost_with_power.add(name)

    async def consume(self, number: int | str, ask: Ask) -> None:
        """One of the clients, for as long as the world lasts."""
        chance = random.Random(f"{self.topic} client {number} {self._seed}")
        attempt = 0
        while True:
            attempt_id = f"{number}-{attempt}" if self._in_order else None
            invisible_ms = chance.choice(self._invisible_ms)
            header = PopMessage(
                self.group, self.topic, -1, chance.choice((1, 4, 16)), invisible_ms, POLL_MS, 0, 0,
                order=self._in_order, attempt_id=attempt_id,
            )  # fmt: skip
            cuts = self._power_cuts()
            try:
                answer = await ask(RequestCode.POP_MESSAGE, header)
            except KourouError:
                attempt += chance.random() < 0.5  # otherwise the same is tried again
                await asyncio.sleep(RETRY_S)
                continue
            attempt += 1
            given = list(self._read(answer, attempt_id, cuts))
            self._take(given)
            await self._work(chance, ask, given)
            await asyncio.sleep(chance.expovariate(20))

    def _read(self, answer: Any, attempt_id: str | None, cuts: int) -> Iterator[Delivery]:
        fields = answer.ext_fields
        starts = {
            tuple(one.split(" ")[:2]): one.split(" ")[2] for one in fields["startOffsetInfo"].split(";")
        }
        shared = [fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
        for message in _records(bytes(answer.body)):
            text = message.properties.get("POP_CK")
            if text is None:
                start = starts["0", str(message.queue_id)]
                parts = (start, *shared, "0", "broker-a", message.queue_id, message.queue_offset)
                text = " ".join(map(str, parts))
            handle = Handle.read(text)
            yield Delivery(
                name_of(message.body), retry_topic(self.topic, self.group, handle.kind), message.queue_id,
                message.queue_offset, text, attempt_id, handle.pop_time_ms,
                handle.pop_time_ms + handle.invisible_ms, self._faults.now_s(), cuts,
            )  # fmt: skip

    async def _work(self, chance: random.Random, ask: Ask, given: list[Delivery]) -> None:
        """What a client does with what it got."""
        if not self._in_order and len(given) > 1 and chance.random() < 0.4:
            await self._ack_batch(ask, given)
            return
        for each in given:
            lot = 0.0 if self.is_over else chance.random()
            await asyncio.sleep(chance.expovariate(30))
            if lot < 0.75:
                await self._ack(ask, each)
            elif lot < 0.85:
                await self._change(ask, each, chance.choice((500, 4000)))
                if chance.random() < 0.5:
                    await self._ack(ask, each)
            elif self._in_order:
                return  # what follows comes after it

    async def _ack(self, ask: Ask, each: Delivery) -> None:
        each.is_ack_tried = True
        header = AckMessage(self.group, each.topic, each.queue_id, each.handle, each.offset)
        try:
            await ask(RequestCode.ACK_MESSAGE, header)
        except KourouError:
            return
        self._is_acked(each)

    async def _ack_batch(self, ask: Ask, given: list[Delivery]) -> None:
        entries: dict[tuple[Any, ...], int] = {}
        for each in given:
            each.is_ack_tried = True
            handle = Handle.read(each.handle)
            shared = handle[:-1]  # all but the offset of the message
            entries[shared] = entries.get(shared, 0) | 1 << each.offset - handle.start_offset
        acks = []
        for (start, popped, invisible, revive, kind, _, queue_id), bits in entries.items():
            text = base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()
            acks.append(
                {
                    "b": text, "c": self.group, "it": invisible, "pt": popped, "q": queue_id, "r": kind,
                    "rq": revive, "so": start, "t": self.topic,
                }
            )  # fmt: skip
        body = orjson.dumps({"brokerName": "broker-a", "acks": acks})
        try:
            await ask(RequestCode.BATCH_ACK_MESSAGE, None, body)
        except KourouError:
            return
        for each in given:
            self._is_acked(each)

    async def _change(self, ask: Ask, each: Delivery, invisible_ms: int) -> None:
        header = ChangeInvisibleTime(
            self.group, each.topic, each.queue_id, each.handle, each.offset, invisible_ms
        )
        asked_ms, was_due_ms = self._now_ms(), each.due_ms
        each.due_ms = min(was_due_ms, asked_ms + invisible_ms)  # until it is known which of them counts
        try:
            answer = await ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except KourouError:
            self._doubled.add(each.name)
            return
        if self._now_ms() >= was_due_ms:
            return  # it may have come again before
        fields = answer.ext_fields
        handle = Handle.read(each.handle)
        popped, invisible = int(fields["popTime"]), int(fields["invisibleTime"])
        each.due_ms = popped + invisible
        start = handle.start_offset if self._in_order else each.offset
        changed = handle._replace(start_offset=start, pop_time_ms=popped, invisible_ms=invisible)
        each.handle = changed.text

    # What must hold

    def _is_acked(self, each: Delivery) -> None:
        """An acknowledgement was answered."""
        self.acks += 1
        if self._now_ms() < each.due_ms and self._counts(each):
            each.known_s = self._faults.now_s()
            self._acked.setdefault(each.name, (self._now_ms(), each))

    def _take(self, given: list[Delivery]) -> None:
        for each in given:
            self.deliveries += 1
            acked, before = self._acked.get(each.name), self._last.get(each.name)
            if acked is not None and each.pop_ms > acked[0] and self._counts(acked[1]):
                raise AssertionError(f"{each.name} was acknowledged in time and came again")
            if before is not None:
                self.again += 1
                first, second = sorted((before, each), key=lambda one: one.pop_ms)
                if self._counts(first) and (first.attempt is None or first.attempt != second.attempt):
                    assert second.pop_ms >= first.due_ms, (
                        f"{each.name} was given out {first.due_ms - second.pop_ms} ms early"
                    )
            if before is None or each.pop_ms >= before.pop_ms:
                self._last[each.name] = each
        if self._in_order and given:
            first_offset = min(each.offset for each in given)
            for each in self._last.values():
                is_done = each.is_ack_tried or each.offset >= first_offset or not self._counts(each)
                assert is_done, f"{each.name} is not acknowledged, and what comes after it was given out"

    def _counts(self, each: Delivery) -> bool:
        """Whether a broker that does what it should still knows what it was told then."""
        if each.power_cuts != self._power_cuts() or each.name in self._doubled:
            return False
        ends = [(at_s, is_clean) for at_s, is_clean in self._faults.ends if at_s >= each.known_s]
        if not self._in_order:
            return not self._has_buffer or all(is_clean for _, is_clean in ends)
        return all(
            is_clean or (self._saves and at_s - each.known_s > SAVED_AFTER_S) for at_s, is_clean in ends
        )

    def open_ones(self) -> list[str]:
        """Messages that nobody has acknowledged yet."""
        wanted = self.model.promised.keys() - self.model.lost_with_power
        cuts = self._power_cuts()
        return sorted(
            name
            for name in wanted
            if (last := self._last.get(name)) is None or not (last.is_ack_tried or last.power_cuts != cuts)
        )

    def check(self) -> None:
        """Every message was given out until it was acknowledged."""
        left = self.open_ones()
        assert not left, f"{left[0]} was not acknowledged and did not come (again) ({len(left)})"
        assert self.acks > 0, f"nobody acknowledged a message of {self.topic}"


def _records(data: bytes) -> Iterator[StoredMessage]:
    at = 0
    while at < len(data):
        message = decode(data, at)
        yield message
        at += message.store_size

"""OrderTable: which messages of a queue an ordered group has in flight (ConsumerOrderInfoManager).

Kept in consumerOrderInfo.json, in Java's form:

    {"orderInfoCount": 1, "orderedConsumptionLevel": "QUEUE", "table": {"topic@group": {0: {
        "a": attempt, "cm": bits of what is acknowledged, "i": invisible time, "l": last use, "o": offsets,
        "oc": {offset: times given out before}, "ot": {offset: visible again at}, "popTime": …}}}}

The first offset of `o` is a queue offset, the others are distances to it. `done` is Kourou's own, and Java
ignores it: offsets that were acknowledged while one before them was not. They are not given out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kourou.broker.state.offsets import SEPARATOR
from kourou.clock import Clock
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol import lenient_json

FILE_NAME = "consumerOrderInfo.json"
UNUSED_MS = 24 * 3_600_000  # then an entry goes

NOT_IN_FLIGHT, NOT_OURS = -1, -2  # in place of an offset


@dataclass(slots=True)
class OrderInfo:
    """What was given out last of a queue."""

    attempt_id: str | None
    pop_time_ms: int
    invisible_ms: int
    offsets: list[int]
    used_ms: int
    acked: int = 0  # bits
    counts: dict[int, int] = field(default_factory=dict)  # by offset: how often it was given out before
    visible_ms: dict[int, int] = field(default_factory=dict)  # by offset, where that was changed
    done: set[int] = field(default_factory=set)  # acknowledged in earlier batches, and not passed yet

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """Until when messages are in flight; None if none is."""
        for number, offset in enumerate(self.offsets):
            if not self.acked >> number & 1:
                until_ms = self.visible_ms.get(offset, self.pop_time_ms + self.invisible_ms)
                if now_ms < until_ms:
                    return until_ms
        return None

    @property
    def next_offset(self) -> int:
        """The first offset that is not acknowledged."""
        for number, offset in enumerate(self.offsets):
            if not self.acked >> number & 1:
                return offset
        return self.after_done(self.offsets[-1] + 1)

    def after_done(self, offset: int) -> int:
        """The first offset from one on that was not acknowledged before."""
        while offset in self.done:
            offset += 1
        return offset

    @property
    def all_done(self) -> set[int]:
        """All offsets that are known to be acknowledged."""
        return self.done.union(
            offset for number, offset in enumerate(self.offsets) if self.acked >> number & 1
        )

    def to_json(self) -> dict[str, Any]:
        """As Java's file has it."""
        first = self.offsets[0]
        found: dict[str, Any] = {
            "cm": self.acked, "i": self.invisible_ms, "l": self.used_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])], "oc": self.counts,
            "popTime": self.pop_time_ms,
        }  # fmt: skip
        if self.attempt_id is not None:
            found["a"] = self.attempt_id
        if self.visible_ms:
            found["ot"] = self.visible_ms
        if self.done:
            found["done"] = sorted(self.done)
        return dict(sorted(found.items()))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> OrderInfo:
        """From Java's file."""
        first, *others = (int(each) for each in value["o"])
        return cls(
            value.get("a"), int(value["popTime"]), int(value.get("i") or 0),
            [first, *(first + other for other in others)], int(value.get("l") or 0),
            int(value.get("cm") or 0), _by_offset(value.get("oc")), _by_offset(value.get("ot")),
            {int(each) for each in value.get("done") or ()},
        )  # fmt: skip


class OrderTable:
    """The messages in flight of all ordered groups."""

    def __init__(self, clock: Clock, *, bound: Bound = UNBOUND) -> None:
        self._clock = clock
        self._bound = bound
        self.table: dict[str, dict[int, OrderInfo]] = {}  # topic@group -> queue
        self.dirty = False
        self.is_known: Callable[[str, str], bool] = lambda topic, group: True  # whether both are there

    def get(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        """What is in flight of a queue; None if nothing was since long."""
        return self.table.get(topic + SEPARATOR + group, {}).get(queue_id)

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt_id: str | None) -> bool:
        """Whether a pop gets nothing of a queue: messages are in flight, and it is not the same attempt."""
        info = self.get(topic, group, queue_id)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        return info.blocked_until_ms(self._clock.now_ms()) is not None

    def open_offsets(self, topic: str, group: str, queue_id: int, offsets: list[int]) -> list[int]:
        """Of some offsets, those that are not acknowledged."""
        info = self.get(topic, group, queue_id)
        done = set() if info is None else info.all_done
        return [each for each in offsets if each not in done] if done else offsets

    def update(
        self,
        topic: str,
        group: str,
        queue_id: int,
        attempt_id: str | None,
        pop_time_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
    ) -> OrderInfo:
        """Messages are given out. BudgetSpentError where there are too many queues already."""
        key = topic + SEPARATOR + group
        before = self.table.get(key, {}).get(queue_id)
        if before is None:
            self._bound.check(sum(map(len, self.table.values())) + 1)
        info = OrderInfo(attempt_id, pop_time_ms, invisible_ms, list(offsets), self._clock.now_ms())
        if before is not None:
            if attempt_id is not None and before.attempt_id == attempt_id:
                info.counts = before.counts
            else:
                again = set(before.offsets)
                info.counts = {each: before.counts.get(each, 0) + 1 for each in offsets if each in again}
            info.done = {each for each in before.all_done if each > offsets[0]}
        self.table.setdefault(key, {})[queue_id] = info
        self.dirty = True
        return info

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> int:
        """A message is done: the offset that the group is at then; NOT_IN_FLIGHT for one that was not given
        out, NOT_OURS for one of another pop."""
        info = self.get(topic, group, queue_id)
        if info is None:
            return offset + 1
        if info.pop_time_ms != pop_time_ms:
            return NOT_OURS
        if offset not in info.offsets:
            return NOT_IN_FLIGHT
        info.acked |= 1 << info.offsets.index(offset)
        self.dirty = True
        return info.next_offset

    def hide(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, until_ms: int
    ) -> None:
        """A message comes again at another time."""
        info = self.get(topic, group, queue_id)
        if info is not None and info.pop_time_ms == pop_time_ms and offset in info.offsets:
            info.visible_ms[offset] = until_ms
            self.dirty = True

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Nothing is in flight any more: the group was told to go on elsewhere."""
        if self.table.get(topic + SEPARATOR + group, {}).pop(queue_id, None) is not None:
            self.dirty = True

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        for key in [key for key in self.table if key.partition(SEPARATOR)[0] == topic]:
            del self.table[key]
            self.dirty = True

    def clean(self) -> None:
        """Forget what nobody uses, and what is of topics and groups that are gone."""
        now_ms = self._clock.now_ms()
        for key, queues in list(self.table.items()):
            topic, _, group = key.partition(SEPARATOR)
            known = self.is_known(topic, group)
            kept = {
                queue_id: info
                for queue_id, info in queues.items()
                if known and now_ms - info.used_ms <= UNUSED_MS
            }
            if kept:
                self.table[key] = kept
            else:
                del self.table[key]

    # The file

    def encode(self) -> bytes:
        """The table as Java's file has it."""
        self.clean()
        table = {
            key: {queue_id: info.to_json() for queue_id, info in queues.items()}
            for key, queues in self.table.items()
        }
        count = sum(map(len, table.values()))
        return lenient_json.dumps(
            {"orderInfoCount": count, "orderedConsumptionLevel": "QUEUE", "table": table}
        )

    def decode(self, value: Any) -> None:
        """Take the table of a file."""
        self.table = {
            key: {int(queue_id): OrderInfo.from_json(info) for queue_id, info in queues.items()}
            for key, queues in (value.get("table") or {}).items()
            if queues
        }


def _by_offset(value: Any) -> dict[int, int]:
    return {int(offset): int(number) for offset, number in (value or {}).items()}

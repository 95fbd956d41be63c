"""Recorder: every message that was tried, what was promised of it, and whether that is kept."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

PLAIN, BATCH, DELAYED, COMMITTED, ROLLED_BACK = "plain", "batch", "delayed", "committed", "rolled-back"


class Place(NamedTuple):
    """Where a message is."""

    broker: str
    queue_id: int
    offset: int


class Found(NamedTuple):
    """A message as it was read in the end."""

    place: Place
    body: bytes
    stored_ms: int


@dataclass
class Recorder:
    """What was tried and promised; names are the first words of bodies."""

    bodies: dict[str, int] = field(
        default_factory=dict
    )  # name -> CRC of the body, of everything that was tried
    kinds: dict[str, str] = field(default_factory=dict)
    promised: dict[str, Place | None] = field(default_factory=dict)  # what SEND_OK was said of
    order: dict[tuple[str, str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    due_ms: dict[str, int] = field(default_factory=dict)  # of delayed ones: not before
    excused: set[str] = field(default_factory=set)  # delayed, while a clock was set
    consumed: Counter[str] = field(default_factory=Counter)
    invented: set[str] = field(default_factory=set)  # consumed, and nobody sent it
    refusals: Counter[str] = field(default_factory=Counter)
    _number: int = 0

    # What happens

    def make(self, kind: str, payload: bytes) -> tuple[str, bytes]:
        """A new message: its name and its body."""
        self._number += 1
        name = f"{kind}-{self._number}"
        body = f"{name} ".encode() + payload
        self.bodies[name], self.kinds[name] = zlib.crc32(body), kind
        return name, body

    def acknowledge(self, name: str, place: Place | None = None, who: str = "") -> None:
        """A broker said SEND_OK; `who` sends one message after the other."""
        self.promised[name] = place
        if place is not None and who:
            self.order[who, place.broker, place.queue_id].append(name)

    def consume(self, body: bytes) -> None:
        """A consumer was given a message."""
        name = name_of(body)
        if self.bodies.get(name) != zlib.crc32(body):
            self.invented.add(name)
        self.consumed[name] += 1

    # What must hold

    def expected(self) -> set[str]:
        """What must be there in the end."""
        return {name for name in self.promised if self.kinds[name] != ROLLED_BACK}

    def judge(self, found: dict[str, list[Found]], *, crashes: bool = True) -> list[str]:
        """Every promise that is broken, for a person to read."""
        wrong = [f"{name} was acknowledged and is lost" for name in sorted(self.expected() - found.keys())]
        wrong += [f"a consumer was given {name}, which nobody sent" for name in sorted(self.invented)]
        for name, copies in found.items():
            kind = self.kinds.get(name)
            if kind is None or any(self.bodies[name] != zlib.crc32(copy.body) for copy in copies):
                wrong.append(f"{name} was not sent like this")
                continue
            if kind == ROLLED_BACK:
                wrong.append(f"{name} was rolled back and is there")
            # What waits for its time is delivered again if the broker dies before it has noted the delivery.
            if len(copies) > 1 and (kind in (PLAIN, BATCH) or not crashes):
                wrong.append(f"{name} was sent once and is there {len(copies)} times")
            promised = self.promised.get(name)
            if promised is not None and kind == PLAIN and promised != copies[0].place:
                wrong.append(f"{name} was promised at {promised} and is at {copies[0].place}")
            due_ms = self.due_ms.get(name)
            if due_ms is not None and name not in self.excused and copies[0].stored_ms < due_ms:
                wrong.append(f"{name} came {due_ms - copies[0].stored_ms} ms early")
        for (who, broker, queue_id), names in self.order.items():
            offsets = [found[name][0].place.offset for name in names if name in found]
            if offsets != sorted(offsets):
                wrong.append(f"the messages of {who} in queue {queue_id} of {broker} are out of order")
        return wrong

    def unconsumed(self) -> set[str]:
        """What should have been consumed and was not."""
        return self.expected() - self.consumed.keys()


def name_of(body: bytes) -> str:
    """A message says its name with the first word of its body."""
    return body.split(b" ", 1)[0].decode("utf-8", "replace")

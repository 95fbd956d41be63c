"""Texts of POP that go to clients and come back (ExtraInfoUtil, KeyBuilder).

A receipt handle, with one blank between its parts:

    check point offset, pop time, invisible time, revive queue, kind of topic, broker, queue[, queue offset]

The kind is 0 for the topic itself, 1 for `%RETRY%group_topic`, 2 for `%RETRY%group+topic`. Where an answer
has messages of several queues, it says of each (`startOffsetInfo`, `msgOffsetInfo`, `orderCountInfo`):

    kind queue start;…     kind queue offset,offset,…;…     kind qo{queue}%{offset} times;kind queue least;…
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kourou.errors import KourouError
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol.header import to_number

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"  # kinds of topics
ORDER_QUEUE = 999  # in place of a revive queue: the messages are of an ordered group
_PARTS = 8


class BadHandleError(KourouError):
    """A text that is no receipt handle, or an answer whose offsets cannot be read."""


class Handle(NamedTuple):
    """A receipt handle of one message."""

    start_offset: int  # of the check point
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker: str
    queue_id: int
    queue_offset: int

    @property
    def text(self) -> str:
        """The handle as it is sent."""
        return " ".join(map(str, self))

    @property
    def ends_ms(self) -> int:
        """When the message comes again, by the clock of its broker."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def is_ordered(self) -> bool:
        """Whether its group consumes in order."""
        return self.revive_queue == ORDER_QUEUE

    @classmethod
    def read(cls, text: str) -> Handle:
        """The handle that a text is, also one without an offset; BadHandleError if it is none."""
        parts = text.split(" ")[:_PARTS]
        if len(parts) == _PARTS - 1:
            parts.append("-1")  # a broker is told the offset beside it
        if len(parts) == _PARTS and parts[4] in (NORMAL, RETRY_V1, RETRY_V2):
            first, popped, hidden, revived, queue, offset = (
                to_number(part) for part in (*parts[:4], *parts[6:])
            )
            if not (
                first is None or popped is None or hidden is None
                or revived is None or queue is None or offset is None
            ):  # fmt: skip
                return cls(first, popped, hidden, revived, parts[4], parts[5], queue, offset)
        raise BadHandleError(f"{text[:80]!r} is no receipt handle")


def retry_topic(topic: str, group: str, kind: str) -> str:
    """The topic that a message of a kind is in."""
    if kind == NORMAL:
        return topic
    return f"{RETRY_PREFIX}{group}{'+' if kind == RETRY_V2 else '_'}{topic}"


def kind_of(topic: str) -> str:
    """What an answer says of the topic that a message lies in."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def normal_topic(topic: str, group: str) -> str | None:
    """The topic whose retries, in POP mode, a topic has; None if it is no such topic."""
    for kind in (RETRY_V2, RETRY_V1):
        prefix = retry_topic("", group, kind)
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


class OffsetTexts:
    """What an answer says of the queues that its messages are of."""

    def __init__(self) -> None:
        self._starts: list[str] = []
        self._offsets: list[str] = []
        self._counts: list[str] = []

    def add(self, topic: str, queue_id: int, start_offset: int, offsets: Iterable[int]) -> None:
        """Messages of a queue."""
        kind = kind_of(topic)
        self._starts.append(f"{kind} {queue_id} {start_offset}")
        self._offsets.append(f"{kind} {queue_id} {','.join(map(str, offsets))}")

    def add_counts(self, topic: str, queue_id: int, counts: Mapping[int, int], number: int) -> None:
        """How often messages of a queue, of which there are a number, were given out before."""
        kind = kind_of(topic)
        self._counts += [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
        least = min(counts.values()) if counts and len(counts) == number else 0
        self._counts.append(f"{kind} {queue_id} {least}")

    def fields(self) -> dict[str, str]:
        """The fields of the answer."""
        found = {"msgOffsetInfo": ";".join(self._offsets), "startOffsetInfo": ";".join(self._starts)}
        if self._counts:
            found["orderCountInfo"] = ";".join(self._counts)
        return found


def read_handles(fields: Mapping[str, str], broker_name: str) -> list[Handle]:
    """The handles of the messages of an answer to POP_MESSAGE, in order; BadHandleError if unreadable."""
    try:
        popped, hidden, revived = (
            int(fields.get(name, 0)) for name in ("popTime", "invisibleTime", "reviveQid")
        )
        starts = {
            (kind, queue): int(start) for kind, queue, start in _entries(fields.get("startOffsetInfo", ""))
        }
        return [
            Handle(starts[kind, queue], popped, hidden, revived, kind, broker_name, int(queue), int(offset))
            for kind, queue, offsets in _entries(fields.get("msgOffsetInfo", ""))
            for offset in offsets.split(",")
        ]
    except (KeyError, ValueError) as error:
        raise BadHandleError(f"the offsets of an answer cannot be read: {dict(fields)}") from error


def read_counts(fields: Mapping[str, str]) -> dict[tuple[int, int], int]:
    """How often messages of an ordered group were given out before, by queue and offset.

    What is said of a queue as a whole has offset -1.
    """
    found: dict[tuple[int, int], int] = {}
    try:
        for _, place, times in _entries(fields.get("orderCountInfo", "")):
            queue, _, offset = place.removeprefix("qo").partition("%")
            found[int(queue), int(offset or -1)] = int(times)
    except ValueError as error:
        raise BadHandleError(f"the counts of an answer cannot be read: {dict(fields)}") from error
    return found


def _entries(text: str) -> Iterator[list[str]]:
    return (entry.split(" ") for entry in text.split(";") if entry)

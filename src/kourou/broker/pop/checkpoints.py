"""What is written of messages in flight (PopCheckPoint, AckMsg, BatchAckMsg).

All are timer messages to the revive topic, rmq_sys_REVIVE_LOG_<cluster>. A check point comes there a second
before its invisible time ends, the acknowledgements of its messages when it ends. Bodies are JSON with sorted
keys; nothing is written for what is none:

| tag  | body | UNIQ_KEY |
|------|------|----------|
| ck   | bm bits that are acknowledged, bn broker, c group, d offsets - so, it invisible time, n number, pt pop time, q queue, reviveTime, ro 0, rp times written again, so first offset, sp not counted as a retry, t topic | t@q@so@c@pt@bn@ck |
| ack  | ao offset, bn, c, pt, q, so, t | t@q@ao@c@pt@bn@ack |
| bAck | ao -1, aol offsets, bn, c, pt, q, so, t | t@q@-1@c@pt@bn@ack |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.store.put import InnerMessage, with_host_flags

CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
ACK_INTERVAL_MS = 1000  # from a check point to its acknowledgements
MAX_MESSAGES = 32  # of a check point: Java has an int for its bits

# Topic, group, queue, first offset, pop time, broker: what a check point and its acknowledgements share
CheckPointKey = tuple[str, str, int, int, int, str]


@dataclass(slots=True)
class CheckPoint:
    """Messages of a queue that were given out together."""

    topic: str  # where they lie: the topic itself, or a retry topic
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    broker: str
    differences: list[int]  # of each message's offset to the first
    acked: int = 0  # bits
    written_again: int = 0
    is_suspended: bool = False  # coming again does not count as a retry
    revive_offset: int = field(default=-1, compare=False)  # where it lies in its revive queue

    @property
    def key(self) -> CheckPointKey:
        """What its acknowledgements have in common with it."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms, self.broker

    @property
    def due_ms(self) -> int:
        """When what is not acknowledged comes again."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def is_acked(self) -> bool:
        """Whether all of its messages are acknowledged."""
        return self.acked == (1 << len(self.differences)) - 1

    def ack(self, offset: int) -> bool:
        """Note that a message is acknowledged; False if it is none of these."""
        difference = offset - self.start_offset
        if difference not in self.differences:
            return False
        self.acked |= 1 << self.differences.index(difference)
        return True

    @property
    def offsets(self) -> list[int]:
        """The offsets of its messages."""
        return [self.start_offset + difference for difference in self.differences]

    def open_offsets(self) -> list[int]:
        """The offsets of messages that are not acknowledged."""
        return [
            self.start_offset + difference
            for number, difference in enumerate(self.differences)
            if not self.acked >> number & 1
        ]

    def encode(self) -> bytes:
        """The body."""
        body: dict[str, Any] = {
            "bm": self.acked, "bn": self.broker, "c": self.group, "d": self.differences,
            "it": self.invisible_ms, "n": len(self.differences), "pt": self.pop_time_ms, "q": self.queue_id,
            "reviveTime": self.due_ms, "ro": 0, "so": self.start_offset, "sp": self.is_suspended,
            "t": self.topic,
        }  # fmt: skip
        if self.written_again:
            body["rp"] = str(self.written_again)
        return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)

    def message(self, revive_topic: str, revive_queue: int, host: bytes, now_ms: int) -> InnerMessage:
        """The message that has it come to the revive topic."""
        parts = (self.topic, self.queue_id, self.start_offset, self.group, self.pop_time_ms, self.broker)
        key = "@".join(map(str, (*parts, CK_TAG)))
        due_ms = self.due_ms - ACK_INTERVAL_MS
        return _message(revive_topic, revive_queue, self.encode(), CK_TAG, key, due_ms, host, now_ms)


@dataclass(slots=True)
class Ack:
    """Messages of a check point that are done."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker: str
    offsets: list[int]
    is_batch: bool = False

    @property
    def key(self) -> CheckPointKey:
        """The same as that of the check point."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms, self.broker

    def message(
        self, revive_topic: str, revive_queue: int, invisible_ms: int, host: bytes, now_ms: int
    ) -> InnerMessage:
        """The message that has it come to the revive topic."""
        first = -1 if self.is_batch else self.offsets[0]
        body: dict[str, Any] = {
            "ao": first, "bn": self.broker, "c": self.group, "pt": self.pop_time_ms, "q": self.queue_id,
            "so": self.start_offset, "t": self.topic,
        }  # fmt: skip
        if self.is_batch:
            body["aol"] = self.offsets
        encoded = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
        tag = BATCH_ACK_TAG if self.is_batch else ACK_TAG
        key = f"{self.topic}@{self.queue_id}@{first}@{self.group}@{self.pop_time_ms}@{self.broker}@ack"
        due_ms = self.pop_time_ms + invisible_ms
        return _message(revive_topic, revive_queue, encoded, tag, key, due_ms, host, now_ms)


def _message(
    topic: str, queue_id: int, body: bytes, tag: str, key: str, due_ms: int, host: bytes, now_ms: int
) -> InnerMessage:
    properties = {names.TIMER_DELIVER_MS: str(due_ms), names.UNIQ_KEY: key, names.TAGS: tag}
    flags = with_host_flags(0, host, host)
    return InnerMessage(topic, queue_id, body, None, properties, flags, now_ms, host, host)


def read_check_point(body: bytes | memoryview, own_broker: str) -> CheckPoint:
    """A check point, also as older brokers write it; CorruptRecordError if it is none."""
    found = _read_object(body)
    start, number = _int(found, "so", "startOffset"), _int(found, "n", "num")
    differences = found.get("d", found.get("queueOffsetDiff"))
    if not differences:
        differences = list(range(number))  # older ones: those that follow each other
    if not (isinstance(differences, list) and all(isinstance(each, int) for each in differences)):
        raise CorruptRecordError("the offsets of a check point are no numbers")
    again = found.get("rp") or 0
    return CheckPoint(
        _text(found, "t", "topic"), _text(found, "c", "cId"), _int(found, "q", "queueId"), start,
        _int(found, "pt", "popTime"), _int(found, "it", "invisibleTime"), found.get("bn") or own_broker,
        differences[:MAX_MESSAGES], _int(found, "bm", "bitMap", 0) & 0xFFFFFFFF,
        int(again) if str(again).isdecimal() else 0, found.get("sp") is True,
    )  # fmt: skip


def read_ack(body: bytes | memoryview, own_broker: str) -> Ack:
    """An acknowledgement, of one message or of several; CorruptRecordError if it is none."""
    found = _read_object(body)
    offsets = found.get("aol", found.get("ackOffsetList"))
    is_batch = offsets is not None
    if not is_batch:
        offsets = [_int(found, "ao", "ackOffset")]
    if not (isinstance(offsets, list) and all(isinstance(each, int) for each in offsets)):
        raise CorruptRecordError("the offsets of an acknowledgement are no numbers")
    return Ack(
        _text(found, "t", "topic"), _text(found, "c", "consumerGroup"), _int(found, "q", "queueId"),
        _int(found, "so", "startOffset"), _int(found, "pt", "popTime"),
        found.get("bn") or found.get("brokerName") or own_broker, offsets, is_batch,
    )  # fmt: skip


def _read_object(body: bytes | memoryview) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except ValueError as error:
        raise CorruptRecordError(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptRecordError("the body is no object")
    return found


def _text(found: dict[str, Any], name: str, long_name: str) -> str:
    value = found.get(name, found.get(long_name))
    if not isinstance(value, str) or not value:
        raise CorruptRecordError(f"{name} is no text")
    return value


def _int(found: dict[str, Any], name: str, long_name: str, default: int | None = None) -> int:
    value = found.get(name, found.get(long_name, default))
    if not isinstance(value, int):
        raise CorruptRecordError(f"{name} is no number")
    return value

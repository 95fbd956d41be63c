"""Message: what a user sends; MessageQueue: where it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from kourou.errors import BadMessageError
from kourou.message import properties as names


class MessageQueue(NamedTuple):
    """A queue of a topic on a broker; a key of many bodies."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        """The queue as bodies have it."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Any) -> MessageQueue:
        """The queue of a body, or of the text of a key."""
        value = orjson.loads(value) if isinstance(value, str) else value
        return cls(value["topic"], value["brokerName"], int(value["queueId"]))


@dataclass(slots=True, init=False)
class Message:
    """A message before it is sent: topic, body, and properties with their reserved ones by name.

        Message("orders", b"...", {"color": "red"}, tags="paid", keys=["o-1"], sharding_key="c-7")

    It is delivered later with one of: `delay_level`, a level of the broker; `delay_s`, seconds from when the
    broker has it; `deliver_at`, a time, or milliseconds since 1970.
    """

    topic: str
    body: bytes | bytearray | memoryview
    properties: dict[str, str]
    flag: int

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        # A copy: the message is given properties of its own, an id above all, that no other may have.
        self.properties = dict(properties) if properties else {}
        self.flag = flag
        if tags is not None:
            self.tags = tags
        if keys is not None:
            self.keys = keys
        if sharding_key is not None:
            self.sharding_key = sharding_key
        if (delay_level is not None) + (delay_s is not None) + (deliver_at is not None) > 1:
            raise BadMessageError("a message is delivered by one of delay_level, delay_s and deliver_at")
        if delay_level is not None:
            self.delay_level = delay_level
        if delay_s is not None:
            self.delay_s = delay_s
        if deliver_at is not None:
            self.deliver_at_ms = (
                deliver_at if isinstance(deliver_at, int) else round(deliver_at.timestamp() * 1000)
            )

    @property
    def tags(self) -> str | None:
        """The tag that consumers filter by."""
        return self.properties.get(names.TAGS)

    @tags.setter
    def tags(self, value: str) -> None:
        self.properties[names.TAGS] = value

    @property
    def keys(self) -> list[str]:
        """The keys that the index finds this message by."""
        return self.properties.get(names.KEYS, "").split()

    @keys.setter
    def keys(self, value: str | Iterable[str]) -> None:
        self.properties[names.KEYS] = value if isinstance(value, str) else names.KEY_SEPARATOR.join(value)

    @property
    def sharding_key(self) -> str | None:
        """What the order is kept by: messages of one key go to one queue."""
        return self.properties.get(names.SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value: str) -> None:
        self.properties[names.SHARDING_KEY] = value

    @property
    def delay_level(self) -> int:
        """The delay level, 0 for none."""
        return int(self.properties.get(names.DELAY_TIME_LEVEL, 0))

    @delay_level.setter
    def delay_level(self, value: int) -> None:
        self.properties[names.DELAY_TIME_LEVEL] = str(value)

    @property
    def delay_s(self) -> float:
        """Seconds until it is delivered, from when the broker has it; 0 for at once."""
        milliseconds = self.properties.get(names.TIMER_DELAY_MS)
        if milliseconds is not None:
            return int(milliseconds) / 1000
        return int(self.properties.get(names.TIMER_DELAY_SEC, 0))

    @delay_s.setter
    def delay_s(self, value: float) -> None:
        whole = int(value)
        if whole == value:
            self.properties[names.TIMER_DELAY_SEC] = str(whole)
        else:
            self.properties[names.TIMER_DELAY_MS] = str(round(value * 1000))

    @property
    def deliver_at_ms(self) -> int:
        """When it is delivered, in milliseconds since 1970; 0 for at once."""
        return int(self.properties.get(names.TIMER_DELIVER_MS, 0))

    @deliver_at_ms.setter
    def deliver_at_ms(self, value: int) -> None:
        self.properties[names.TIMER_DELIVER_MS] = str(value)

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the sender waits for the disk and the slaves where the broker is set so."""
        return self.properties.get(names.WAIT_STORE_MSG_OK, "true").lower() == "true"

    @wait_store_msg_ok.setter
    def wait_store_msg_ok(self, value: bool) -> None:
        self.properties[names.WAIT_STORE_MSG_OK] = "true" if value else "false"

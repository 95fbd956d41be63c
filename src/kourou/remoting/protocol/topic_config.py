"""TopicConfig: a topic as brokers keep it and tell of it, and DataVersion, how old a table of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
# Of a topic's sysFlag: it belongs to a unit; consumers of units subscribe to it
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
SINGLE_TAG = "SINGLE_TAG"


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How old a broker's topics are: equal versions, equal topics."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DataVersion:
        """The version in a body."""
        return cls(
            as_long(value.get("counter", 0)),
            as_long(value.get("stateVersion", 0)),
            as_long(value.get("timestamp", 0)),
        )

    def to_json(self) -> dict[str, int]:
        """The version as a body has it."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic of a broker. Order and attributes are kept as received; routes do not carry them."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    topic_filter_type: str = SINGLE_TAG

    @classmethod
    def from_json(cls, value: Mapping[str, Any], name: str = "") -> TopicConfig:
        """A topic of topics.json or of a body; TypeError or ValueError if it is not one."""
        return cls(
            _text(value.get("topicName") or name),
            as_long(value.get("readQueueNums", 16)),
            as_long(value.get("writeQueueNums", 16)),
            as_long(value.get("perm", PERM_READ | PERM_WRITE)),
            as_long(value.get("topicSysFlag", 0)),
            bool(value.get("order", False)),
            texts(value.get("attributes") or {}),
            _text(value.get("topicFilterType") or SINGLE_TAG),
        )

    def to_json(self) -> dict[str, Any]:
        """The topic as topics.json and bodies have it."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


def as_long(value: Any) -> int:
    """A number of 64 bits, as Java's are; raises ValueError if it is more. JSON has no more either."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{str(value)[:40]} is more than 64 bits hold")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:80]!r} is no text")
    return value


def texts(value: Any) -> dict[str, str]:
    """An object whose values are texts; raises TypeError if it is not one."""
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:80]!r} is no object")
    return {str(name): str(text) for name, text in value.items() if text is not None}

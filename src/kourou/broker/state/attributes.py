"""Attributes of topics and groups: which there are, and how a request changes them.

A request names changes, not values: `+key=value` sets one, `-key` removes one (AttributeParser); what the
changes are allowed to do is AttributeUtil's, what a value may be TopicAttributes' and
SubscriptionGroupAttributes'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kourou.errors import KourouError

MAX_LONG = (1 << 63) - 1

QUEUE_TYPE = "queue.type"
CLEANUP_POLICY = "cleanup.policy"
MESSAGE_TYPE = "message.type"
BATCH_CQ = "BatchCQ"


class BadAttributeError(KourouError):
    """A change of attributes that cannot be made."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What an attribute may be, and whether it may change after its topic or group was made."""

    verify: Callable[[str], None]
    changeable: bool = True


def _one_of(*values: str) -> Callable[[str], None]:
    def verify(value: str) -> None:
        if value not in values:
            raise BadAttributeError(f"value is not in set: [{', '.join(values)}]")

    return verify


def _between(least: int, most: int) -> Callable[[str], None]:
    def verify(value: str) -> None:
        try:
            number = int(value)
        except ValueError:
            raise BadAttributeError(f'For input string: "{value}"') from None
        if not least <= number <= most:
            raise BadAttributeError(f"value is not in range({least}, {most})")

    return verify


def _any_text(value: str) -> None:
    """Every text will do."""


def _boolean(value: str) -> None:
    if value.lower() not in ("true", "false"):
        raise BadAttributeError("boolean attribute format is wrong.")


TOPIC_ATTRIBUTES = {
    QUEUE_TYPE: Attribute(_one_of(BATCH_CQ, "SimpleCQ"), changeable=False),
    CLEANUP_POLICY: Attribute(_one_of("DELETE", "COMPACTION"), changeable=False),
    MESSAGE_TYPE: Attribute(
        _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
    ),
    "reserve.time": Attribute(_between(-1, MAX_LONG)),
    "lite.topic.expiration": Attribute(_between(-1, 30 * 24 * 60)),  # minutes
}

GROUP_ATTRIBUTES = {
    "priority.factor": Attribute(_between(0, 100)),
    "lite.bind.topic": Attribute(_any_text),
    "lite.sub.client.quota": Attribute(_between(-1, MAX_LONG)),
    "lite.sub.model": Attribute(_one_of("Shared", "Exclusive")),
    "lite.sub.reset.offset.exclusive": Attribute(_boolean),
    "lite.sub.reset.offset.unsubscribe": Attribute(_boolean),
    "lite.sub.client.max.event.cnt": Attribute(_between(10, MAX_LONG)),
    "lite.sub.wildcard": Attribute(_any_text),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """The changes of a request: `+key=value,-key` as {"+key": "value", "-key": ""}."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if equals and (not value or "+" not in key):
            raise BadAttributeError(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise BadAttributeError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise BadAttributeError(f"key duplication: {key}")
        changes[key] = value
    return changes


def apply_changes(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after changes; `current` is None for a topic or group that is made now."""
    result = dict(current or {})
    seen = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise BadAttributeError("kv string format wrong.")
        if key in seen:
            raise BadAttributeError(f"alter duplication key. key: {key}")
        seen.add(key)
        if current is None and sign != "+":
            raise BadAttributeError(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise BadAttributeError(f"wrong format key: {key}")
        if sign == "-" and key not in result:
            raise BadAttributeError(f"attempt to delete a nonexistent key: {key}")
        if key not in known:
            raise BadAttributeError(f"unsupported key: {key}")
        if current is not None and not known[key].changeable:
            raise BadAttributeError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            del result[key]
        else:
            known[key].verify(value)
            result[key] = value
    return result

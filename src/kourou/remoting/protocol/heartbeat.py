"""Heartbeat: the body of HEART_BEAT (34), by which a client says who it is and what it wants.

    {"clientID": "192.0.2.2@c1", "heartbeatFingerprint": 0, "withoutSub": false,
     "producerDataSet": [{"groupName": "p"}],
     "consumerDataSet": [{"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                          "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": false,
                          "subscriptionDataSet": [SubscriptionData]}]}

With a fingerprint it is a heartbeat of version 2: a client that knows that the broker has its subscriptions
leaves them out (withoutSub). Clients in C++ send the places of names in Java's enums, and numbers as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kourou.remoting.budgets import BudgetSpentError
from kourou.remoting.protocol.bodies import (
    as_int,
    as_object,
    read_body,
    read_bool,
    read_int,
    read_list,
    read_text,
)
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.subscription import SubscriptionData

MAX_GROUPS = 10_000  # of a client, whatever maxGroupsPerClient says

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"  # pull
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"  # push
CONSUME_POP = "CONSUME_POP"
CONSUME_TYPES = (CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP)

BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"
MESSAGE_MODELS = (BROADCASTING, CLUSTERING, "LITE_SELECTIVE")

CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    def to_json(self) -> dict[str, Any]:
        """The group as a heartbeat has it."""
        return {
            "groupName": self.group,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "consumeFromWhere": self.consume_from_where,
            "subscriptionDataSet": [subscription.to_json() for subscription in self.subscriptions],
            "unitMode": self.unit_mode,
        }


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a client says of itself."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False

    def to_json(self) -> dict[str, Any]:
        """The body of the request."""
        return {
            "clientID": self.client_id,
            "heartbeatFingerprint": self.fingerprint,
            "withoutSub": self.without_sub,
            "producerDataSet": [{"groupName": group} for group in self.producer_groups],
            "consumerDataSet": [consumer.to_json() for consumer in self.consumers],
        }


def read_heartbeat(body: bytes | memoryview | None, now_ms: int, max_groups: int = MAX_GROUPS) -> Heartbeat:
    """The heartbeat of a body; BadRequestError names the field that is missing or invalid."""
    value = read_body(body, "a heartbeat")
    producers, consumers = read_list(value, "producerDataSet"), read_list(value, "consumerDataSet")
    if max(len(producers), len(consumers)) > max_groups:
        raise BudgetSpentError(f"a heartbeat of more than {max_groups} groups", "maxGroupsPerClient")
    producers = [as_object(item, "producerDataSet") for item in producers]
    consumers = [as_object(item, "consumerDataSet") for item in consumers]
    return Heartbeat(
        read_text(value, "clientID"),
        tuple(read_text(item, "groupName") for item in producers),
        tuple(_consumer(item, now_ms) for item in consumers),
        read_int(value, "heartbeatFingerprint", 0),
        read_bool(value, "withoutSub", False),
    )


def _consumer(value: Mapping[str, Any], now_ms: int) -> ConsumerData:
    subscriptions = read_list(value, "subscriptionDataSet")
    return ConsumerData(
        read_text(value, "groupName"),
        _enum(value, "consumeType", CONSUME_TYPES),
        _enum(value, "messageModel", MESSAGE_MODELS),
        _enum(value, "consumeFromWhere", CONSUME_FROM_WHERE),
        tuple(
            SubscriptionData.from_json(as_object(item, "subscriptionDataSet"), now_ms)
            for item in subscriptions
        ),
        read_bool(value, "unitMode", False),
    )


def _enum(value: Mapping[str, Any], name: str, names: tuple[str, ...]) -> str | None:
    found = value.get(name)
    if found is None or found in names:
        return found
    if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()):
        place = as_int(found, name)
        if 0 <= place < len(names):
            return names[place]
    raise BadRequestError(f"the field <{name}> is {str(found)[:80]!r}, not one of {', '.join(names)}")

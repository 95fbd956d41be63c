"""SubscriptionData: what a consumer group wants of a topic.

{"classFilterMode": false, "codeSet": [2598919], "expressionType": "TAG", "subString": "TagA",
 "subVersion": 1794723925739, "tagsSet": ["TagA"], "topic": "t"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kourou.errors import KourouError
from kourou.message.properties import java_hash
from kourou.remoting.protocol.bodies import as_int, read_bool, read_int, read_list, read_text
from kourou.remoting.protocol.codes import ResponseCode

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"


class BadSubscriptionError(KourouError):
    """An expression that says nothing about which messages are wanted."""

    response_code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a group wants of a topic: all, some tags, or what an expression lets through."""

    topic: str
    sub_string: str = ALL
    sub_version: int = 0  # the client's clock when it subscribed
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()  # hashes of the tags, as the queues hold them
    expression_type: str = TAG
    class_filter_mode: bool = False

    @property
    def is_tag_type(self) -> bool:
        """Whether tags decide."""
        return self.expression_type == TAG

    @classmethod
    def build(
        cls, topic: str, expression: str | None, expression_type: str | None, sub_version: int
    ) -> SubscriptionData:
        """The subscription of an expression, as the clients make it (FilterAPI)."""
        if expression_type not in (None, "", TAG):
            if not expression:
                raise BadSubscriptionError(f"Expression can't be null! {expression_type}")
            return cls(topic, expression, sub_version, expression_type=expression_type or TAG)
        if not expression or expression == ALL:
            return cls(topic, ALL, sub_version)
        tags = frozenset(tag for tag in map(str.strip, expression.split("||")) if tag)
        if not tags and not expression.replace("|", ""):
            raise BadSubscriptionError("subString split error")
        return cls(topic, expression, sub_version, tags, frozenset(map(java_hash, tags)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any], now_ms: int) -> SubscriptionData:
        """A subscription of a heartbeat; BadRequestError names the field that is missing or invalid."""
        return cls(
            read_text(value, "topic"),
            read_text(value, "subString", ALL),
            read_int(value, "subVersion", now_ms),
            frozenset(map(str, read_list(value, "tagsSet"))),
            frozenset(as_int(code, "codeSet") for code in read_list(value, "codeSet")),
            read_text(value, "expressionType", "") or TAG,
            read_bool(value, "classFilterMode", False),
        )

    def to_json(self) -> dict[str, Any]:
        """The subscription as bodies have it."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }

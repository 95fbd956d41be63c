"""JSON as fastjson writes it: the keys of a map may be bare numbers or whole objects.

    {0:"127.0.0.1:10911"}
    {{"brokerName":"b","queueId":0,"topic":"t"}:{"offset":7}}

`dumps` writes int keys and keys that are a MessageQueue so; `loads` reads all forms.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

MAX_DEPTH = 64  # no body of RocketMQ nests deeper than a handful


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
        value = loads(value.encode()) if isinstance(value, str) else value
        return cls(value["topic"], value["brokerName"], int(value["queueId"]))


def dumps(value: Any) -> bytes:
    """The JSON of a value. Entries that are None are left out, as fastjson does."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # other keys than strings, or something else of ours
        return _dumps(value)
    return text if b"null" not in text else _dumps(value)


def _dumps(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"{%b}" % b",".join(
            _key(key) + b":" + _dumps(item) for key, item in value.items() if item is not None
        )
    if isinstance(value, MessageQueue):
        return orjson.dumps(value.to_json())
    if isinstance(value, list | tuple | set | frozenset):
        return b"[%b]" % b",".join(map(_dumps, value))
    return orjson.dumps(value)


def _key(key: Any) -> bytes:
    if isinstance(key, int):
        return b"%d" % key
    return orjson.dumps(key.to_json() if isinstance(key, MessageQueue) else key)


def loads(data: bytes | memoryview) -> Any:
    """The value of JSON whose keys may be numbers or objects; both become strings. ValueError if none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _Parser(bytes(data)).parse()


class _Parser:
    """A strict parser but for the keys."""

    _TOKEN = re.compile(rb'\s*("(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+)', re.DOTALL)

    def __init__(self, data: bytes) -> None:
        self._tokens = self._TOKEN.findall(data)
        self._at = 0

    def parse(self) -> Any:
        try:
            value = self._value(0)
        except IndexError:
            raise ValueError("JSON ends early") from None
        if self._at != len(self._tokens):
            raise ValueError(f"JSON is followed by {self._tokens[self._at][:20]!r}")
        return value

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"JSON nests deeper than {MAX_DEPTH}")
        token = self._next()
        if token == b"{":
            return self._object(depth)
        if token == b"[":
            return self._array(depth)
        return orjson.loads(token)

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._ends(b"}", bool(found)):
            key = self._value(depth + 1)
            if not isinstance(key, str):
                key = dumps(key).decode()
            self._expect(b":")
            found[key] = self._value(depth + 1)
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._ends(b"]", bool(found)):
            found.append(self._value(depth + 1))
        return found

    def _ends(self, end: bytes, needs_comma: bool) -> bool:
        if self._tokens[self._at] == end:
            self._at += 1
            return True
        if needs_comma:
            self._expect(b",")
        return False

    def _expect(self, wanted: bytes) -> None:
        token = self._next()
        if token != wanted:
            raise ValueError(f"JSON has {token[:20]!r} where {wanted!r} should be")

    def _next(self) -> bytes:
        token: bytes = self._tokens[self._at]
        self._at += 1
        return token

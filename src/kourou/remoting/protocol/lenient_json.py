"""JSON as fastjson writes it: the keys of a map may be bare numbers or whole objects.

    {0:"127.0.0.1:10911"}
    {{"brokerName":"b","queueId":0,"topic":"t"}:{"offset":7}}

`dumps` writes int keys and keys that are a MessageQueue so; `loads` reads all forms.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import orjson

from kourou.message.model import MessageQueue

MAX_DEPTH = 64  # no body of RocketMQ nests deeper than a handful


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


def loads(data: bytes | memoryview, max_tokens: int = sys.maxsize) -> Any:
    """The value of JSON whose keys may be numbers or objects; both become strings. ValueError if none.

    Such keys are read in Python, token by token, about a microsecond each: whoever reads what anybody may
    send says how many there may be.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _Parser(bytes(data), max_tokens).parse()


class _Parser:
    """A strict parser but for the keys. It stops where the first thing is wrong."""

    # Possessive: a string that does not end is looked through once, not once for each character.
    _TOKEN = re.compile(rb'\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]++)', re.DOTALL)

    def __init__(self, data: bytes, max_tokens: int) -> None:
        self._data = data
        self._end = len(data.rstrip())
        self._max_tokens = self._left = max_tokens
        self._at = 0

    def parse(self) -> Any:
        value = self._value(self._next(), 0)
        if self._at < self._end:
            raise ValueError(f"JSON is followed by {self._next()[:20]!r}")
        return value

    def _value(self, token: bytes, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"JSON nests deeper than {MAX_DEPTH}")
        if token == b"{":
            return self._object(depth)
        if token == b"[":
            return self._array(depth)
        return orjson.loads(token)

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        token = self._next()
        while token != b"}":
            key = self._value(token, depth + 1)
            if not isinstance(key, str):
                key = dumps(key).decode()
            self._expect(self._next(), b":")
            found[key] = self._value(self._next(), depth + 1)
            token = self._following(b"}")
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        token = self._next()
        while token != b"]":
            found.append(self._value(token, depth + 1))
            token = self._following(b"]")
        return found

    def _following(self, end: bytes) -> bytes:
        """The token after a comma, or the end. As before it, the end may stand after a comma."""
        token = self._next()
        if token == end:
            return token
        self._expect(token, b",")
        return self._next()

    def _expect(self, token: bytes, wanted: bytes) -> None:
        if token != wanted:
            raise ValueError(f"JSON has {token[:20]!r} where {wanted!r} should be")

    def _next(self) -> bytes:
        if self._left <= 0:
            raise ValueError(f"JSON is not strict, and has more than {self._max_tokens} tokens")
        self._left -= 1
        match = self._TOKEN.match(self._data, self._at)
        if match is None:
            rest = self._data[self._at : self._at + 20].lstrip()
            raise ValueError(f"JSON has {rest!r}, which is no token" if rest else "JSON ends early")
        self._at = match.end()
        return match[1]

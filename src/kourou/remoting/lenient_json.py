"""JSON as fastjson writes it: keys of maps that are numbers stand without quotes, `{0:"127.0.0.1:10911"}`.

Bodies of requests and responses may hold such maps (brokers by id, queues by number). `dumps` writes int keys
so; `loads` reads both forms.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

# Either a whole string, which is left as it is, or a bare number in the place of a key.
_STRING_OR_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)', re.DOTALL)


def dumps(value: Any) -> bytes:
    """The JSON of a value; int keys without quotes. Entries that are None are left out, as fastjson does."""
    if isinstance(value, dict):
        return b"{%b}" % b",".join(
            (b"%d" % key if isinstance(key, int) else orjson.dumps(key)) + b":" + dumps(item)
            for key, item in value.items()
            if item is not None
        )
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join(map(dumps, value))
    return orjson.dumps(value)


def loads(data: bytes | memoryview) -> Any:
    """The value of JSON whose keys may be bare numbers, which become strings. ValueError if it is no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(_STRING_OR_KEY.sub(_quoted, bytes(data)))


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[0] if match[2] is None else b'%b"%b"' % (match[1], match[2])

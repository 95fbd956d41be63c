"""JSON that is written as it is made, so that a document larger than memory can be printed.

A document is made of dicts, of iterators, which become arrays, and of anything else that orjson writes.
Only an iterator's current item is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson


def stream_json(value: Any) -> Iterator[bytes]:
    """The parts of a document, one behind the other."""
    if isinstance(value, Iterator):
        yield b"["
        comma = b""
        for item in value:
            yield comma
            yield from stream_json(item)
            comma = b","
        yield b"]"
    elif isinstance(value, dict) and any(isinstance(part, Iterator | dict) for part in value.values()):
        yield b"{"
        comma = b""
        for name, part in value.items():
            yield comma + orjson.dumps(name) + b":"
            yield from stream_json(part)
            comma = b","
        yield b"}"
    else:
        yield orjson.dumps(value)

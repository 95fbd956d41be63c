"""JSON that is written as it is made, so that a document larger than memory can be printed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import orjson

# So many items that are arrays themselves, such as queue entries, are written together: one call costs less
# than many. An object may be a record with a large body, and goes alone.
_ARRAYS_AT_ONCE = 1024


class Parts(dict[str, Any]):
    """An object of which some values are iterators, which become arrays, or Parts themselves."""


def stream_json(value: Any) -> Iterator[bytes]:
    """The pieces of a document, one after the other. Of an iterator only a few items are held."""
    if isinstance(value, Parts):
        yield b"{"
        comma = b""
        for name, part in value.items():
            yield comma + orjson.dumps(name) + b":"
            yield from stream_json(part)
            comma = b","
        yield b"}"
    elif isinstance(value, Iterator):
        yield b"["
        yield from _stream_items(value)
        yield b"]"
    else:
        yield orjson.dumps(value)


def _stream_items(items: Iterator[Any]) -> Iterator[bytes]:
    comma = b""
    for item in items:
        if isinstance(item, list | tuple):
            chunk = [item, *itertools.islice(items, _ARRAYS_AT_ONCE)]
            yield comma + orjson.dumps(chunk)[1:-1]
        else:
            yield comma
            yield from stream_json(item)
        comma = b","

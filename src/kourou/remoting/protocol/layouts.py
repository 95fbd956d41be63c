"""Layouts: ROCKETMQ headers of a peer that differ from its last ones in a few values.

A peer writes the fields of a request in the same order each time, and most of their values are the same.
Where two headers of one code differ, and in what, is remembered as a layout: stretches of bytes that are the
same, and between them the values that are not. A header that follows a layout is read in half the time of one
that is taken apart field by field. What is read is the same either way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_INT = struct.Struct(">i")

# Where a peer never writes the same way twice, nothing is gained by comparing on and on.
MAX_LEARNED = 64
MAX_CODES = 16
MAX_REMEMBERED_BYTES = 4096

Spans = list[tuple[str, int, int]]  # name of a field, and where its value begins and ends


class _Layout:
    """The fields of one request code."""

    __slots__ = ("_base", "_fields", "_holes", "_names", "_parts", "_spans", "_tail", "learned")

    def __init__(self) -> None:
        self._base = b""  # the bytes of a header's fields, and where each value stands in them
        self._spans: Spans = []
        self._holes: set[str] = set()
        self._fields: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._names: list[str] = []
        self._tail = b""
        self.learned = 0

    def read(self, data: bytes, at: int, end: int) -> dict[str, str] | None:
        """The fields, if the header follows this layout. Hot."""
        values = []
        unpack_length = _INT.unpack_from
        try:
            for part in self._parts:
                if not data.startswith(part, at):
                    return None
                at += len(part)
                (length,) = unpack_length(data, at)
                at += 4
                values.append(data[at : at + length].decode())
                at += length
                if length < 0 or at > end:
                    return None
        except (struct.error, UnicodeDecodeError):
            return None
        if data[at:end] != self._tail:
            return None
        fields = self._fields.copy()
        fields.update(zip(self._names, values))
        return fields

    def learn(self, data: bytes, fields: dict[str, str], spans: Spans) -> None:
        """Compare with the last header that was taken apart."""
        self.learned += 1
        base, before = self._base, self._spans
        self._base, self._spans, self._fields = data, spans, fields
        names = [name for name, _, _ in spans]
        if names != [name for name, _, _ in before] or len(set(names)) < len(names):
            self._holes, self._parts, self._names, self._tail = set(), [], [], b"\0"  # follows nothing
            return
        self._holes |= {
            name
            for (name, start, end), (_, was, until) in zip(spans, before)
            if data[start:end] != base[was:until]
        }
        at = 0
        self._parts, self._names = [], []
        for name, start, end in spans:
            if name in self._holes:
                self._parts.append(data[at : start - 4])
                self._names.append(name)
                at = end
        self._tail = data[at:]


class Layouts:
    """What is known of the headers of one peer. `take_apart` reads fields that follow no layout."""

    def __init__(self, take_apart: Callable[[bytes, int, int, Spans], dict[str, str]]) -> None:
        self._take_apart = take_apart
        self._by_code: dict[int, _Layout] = {}

    def read(self, code: int, data: bytes, at: int, end: int) -> dict[str, str]:
        """The fields of a header whose bytes lie between two places."""
        layout = self._by_code.get(code)
        if layout is not None:
            found = layout.read(data, at, end)
            if found is not None:
                return found
        spans: Spans = []
        fields = self._take_apart(data, at, end, spans)
        if layout is None and len(self._by_code) < MAX_CODES:
            layout = self._by_code[code] = _Layout()
        if layout is not None and layout.learned < MAX_LEARNED and end - at <= MAX_REMEMBERED_BYTES:
            own = [(name, start - at, stop - at) for name, start, stop in spans]
            layout.learn(data[at:end], dict(fields), own)
        return fields

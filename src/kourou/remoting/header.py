"""Header: the fields of a request or a response, declared once and used at both ends.

A header is a frozen dataclass; the name of a field on the wire is its own in camel case, a field without a
default is required, and its type is str, int or bool (or one of these or None). `read` makes one of a
command, `fields` makes the extFields of one:

    @header
    class QueryConsumerOffset(Header):
        consumer_group: str
        topic: str
        queue_id: int

The two hottest requests, a send (310) and a pull (11), are read field by field where they are handled.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from kourou.errors import KourouError
from kourou.remoting.command import RemotingCommand

_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1
_WANTED = {"int": "a whole number", "bool": "true or false"}


_T = TypeVar("_T", bound="type[Header]")


class BadRequestError(KourouError):
    """A request without a field that it must have, or with one of no use."""


class Header:
    """What all headers can do."""

    __slots__ = ()
    _plan: ClassVar[tuple[tuple[str, str, str, bool], ...]]  # name, name on the wire, type, required

    @classmethod
    def read(cls, command: RemotingCommand) -> Self:
        """The header of a command; BadRequestError names the field that is missing or of no use."""
        given = command.ext_fields
        values: dict[str, Any] = {}
        for name, wire_name, kind, required in cls._plan:
            text = given.get(wire_name)
            if text is None and required:
                raise BadRequestError(f"the custom field <{wire_name}> is null")
            if text is None or (not text and kind == "str" and not required):
                continue  # an empty text is as one that is missing: no signature tells the two apart
            values[name] = text if kind == "str" else _convert(wire_name, text, kind)
        return cls(**values)

    def fields(self) -> dict[str, str]:
        """The extFields of this header: those that have a value, as text."""
        found = {}
        for name, wire_name, kind, _ in self._plan:
            value = getattr(self, name)
            if value is not None:
                found[wire_name] = str(value).lower() if kind == "bool" else str(value)
        return found


@dataclass_transform(frozen_default=True)
def header(cls: _T) -> _T:
    """Declare a header."""
    made: Any = dataclasses.dataclass(frozen=True, slots=True)(cls)
    plan = []
    for item in dataclasses.fields(made):
        head, *rest = item.name.split("_")
        wire_name = item.metadata.get("wire") or head + "".join(part.capitalize() for part in rest)
        required = item.default is dataclasses.MISSING
        plan.append((item.name, wire_name, str(item.type).partition(" |")[0], required))
    made._plan = tuple(plan)
    return cast("_T", made)


def _convert(wire_name: str, text: str, kind: str) -> int | bool:
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        value = int(text)
        if _MIN_LONG <= value <= _MAX_LONG:
            return value
    except (ValueError, KeyError):
        pass
    raise BadRequestError(f"the custom field <{wire_name}> is {text[:80]!r}, not {_WANTED[kind]}")

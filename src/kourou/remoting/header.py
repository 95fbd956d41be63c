"""Header: the fields of a request or a response, declared once and used at both ends.

A header is a frozen dataclass; the name of a field on the wire is its own in camel case, a field without a
default is required, and its type is str, int (32 bits), Long (64 bits) or bool (or one of these or None).
`read` makes one of a command, `fields` makes the extFields of one:

    @header
    class QueryConsumerOffset(Header):
        consumer_group: str
        topic: str
        queue_id: int

Values are read as Java reads them: any text but "true" is false, and a number of no use in an optional field
is as one that is missing. In a required field it is refused, where Java goes on without one.

The two hottest requests, a send (310) and a pull (11), are read field by field where they are handled.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from kourou.errors import KourouError
from kourou.remoting.command import ROCKETMQ, RemotingCommand

Long = int  # as the type of a field: 64 bits, where int has 32
MAX_INT, MAX_LONG = (1 << 31) - 1, (1 << 63) - 1
_MOST = {"int": MAX_INT, "Long": MAX_LONG}
# What Java reads as a number: digits of any script whose characters have 16 bits
_NUMBER = re.compile(r"[+-]?(?:(?![\U00010000-\U0010FFFF])\d)+")

_T = TypeVar("_T", bound="type[Header]")


class BadRequestError(KourouError):
    """A request without a field that it must have, or with one of no use."""


class Header:
    """What all headers can do."""

    __slots__ = ()
    _plan: ClassVar[tuple[tuple[str, str, str, bool], ...]]  # name, name on the wire, type, required
    _wire_names: ClassVar[str] = ""  # a letter for each field, in their order, where the wire has such names
    _allowed: ClassVar[Mapping[str, tuple[str | int, ...]]] = {}  # values of a field (Java's checkFields)
    _is_strict: ClassVar[bool] = False  # refuses bad numbers in optional fields too (Java's FastCodesHeader)

    @classmethod
    def read(cls, command: RemotingCommand) -> Self:
        """The header of a command; BadRequestError names the field that is missing or of no use."""
        given = command.ext_fields
        values: dict[str, Any] = {}
        for name, wire_name, kind, required in cls._plan:
            text = given.get(wire_name)
            if not (text or required):
                continue  # an empty text is as one that is missing: no signature tells the two apart
            if text is None or (not text and command.serialize_type == ROCKETMQ):
                raise BadRequestError(f"the custom field <{wire_name}> is null")
            if kind == "str":
                values[name] = text
            elif kind == "bool":
                values[name] = is_true(text)
            elif (number := to_number(text, _MOST[kind])) is not None:
                values[name] = number
            elif required or cls._is_strict:
                bits = "32" if kind == "int" else "64"
                raise BadRequestError(
                    f"the custom field <{wire_name}> is {text[:80]!r}, not a whole number of {bits} bits"
                )
        for name, allowed in cls._allowed.items():
            if values[name] not in allowed:
                raise BadRequestError(f"the field {name} is {str(values[name])[:80]!r}, not one of {allowed}")
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
    for at, item in enumerate(dataclasses.fields(made)):
        head, *rest = item.name.split("_")
        wire_name = item.metadata.get("wire") or head + "".join(part.capitalize() for part in rest)
        if made._wire_names:
            wire_name = made._wire_names[at]
        required = item.default is dataclasses.MISSING
        plan.append((item.name, wire_name, str(item.type).partition(" |")[0], required))
    made._plan = tuple(plan)
    return cast("_T", made)


def is_true(text: str | None) -> bool:
    """What Java's Boolean.parseBoolean makes of a text."""
    return text is not None and text.lower() == "true"


def to_number(text: str, most: int = MAX_LONG) -> int | None:
    """The number that Java's Long.parseLong (or Integer.parseInt, by `most`) reads; None if it reads none."""
    if not (text.isascii() and text.isdigit()) and _NUMBER.fullmatch(text) is None:
        return None
    try:
        value = int(text)
    except ValueError:  # more digits than Python converts
        return None
    return value if -most - 1 <= value <= most else None

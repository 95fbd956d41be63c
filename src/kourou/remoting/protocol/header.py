"""Header: the fields of a request or a response, declared once and used at both ends.

A header is a msgspec Struct; the name of a field on the wire is its own in camel case, a field without a
default is required, and its type is str, Int (32 bits), Long (64 bits) or bool (or one of these or None).
`read` makes one of a command, `fields` makes the extFields of one:

    class QueryConsumerOffset(Header):
        consumer_group: str
        topic: str
        queue_id: Int

Values are read as Java reads them: any text but "true" is false, and a number of no use in an optional field
is as one that is missing. In a required field it is refused, where Java goes on without one. All fields come
as text. What busy servers are asked most is read by msgspec at once (`read_at_once`), the rest from its
fields as most peers write them, and what is odd there field by field: the answer is the same each time.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from msgspec import Meta, Struct, defstruct, field
from msgspec.json import Decoder
from msgspec.structs import fields as struct_fields

from kourou.errors import KourouError
from kourou.remoting.protocol.command import (
    ROCKETMQ,
    TYPED_PREFIX_BYTES,
    UNREADABLE,
    NotRead,
    ReadCommand,
    RemotingCommand,
    typed_readers,
)

MAX_INT, MAX_LONG = (1 << 31) - 1, (1 << 63) - 1
if TYPE_CHECKING:
    Int = int
    Long = int
else:  # a text with a point or an exponent becomes a float, which tells it from what Java reads as a number
    Int = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)] | float
    Long = Annotated[int, Meta(ge=-MAX_LONG - 1, le=MAX_LONG)] | float
# What Java reads as a number: digits of any script whose characters have 16 bits
_TRUTH = {"true": True, "false": False}
_NUMBER = re.compile(r"[+-]?(?:(?![\U00010000-\U0010FFFF])\d)+")


class BadRequestError(KourouError):
    """A request without a field that it must have, or with one of no use."""


class HeaderField(NamedTuple):
    """A field of a header."""

    name: str
    wire_name: str
    kind: str  # the name of its type
    required: bool
    default: Any


class Header(Struct, rename="camel", gc=False):
    """What all headers can do."""

    _allowed: ClassVar[Mapping[str, tuple[str | int, ...]]] = {}  # values of a field (Java's checkFields)
    _is_strict: ClassVar[bool] = False  # refuses bad numbers in optional fields too (Java's FastCodesHeader)

    @classmethod
    def read(cls, command: RemotingCommand) -> Self:
        """The header of a command; BadRequestError names the field that is missing or of no use. Hot."""
        made = command.header
        if made.__class__ is cls:
            return made
        try:
            return _reader(cls)(command.ext_fields)  # type: ignore[no-any-return]
        except (KeyError, ValueError):
            return cls._read_fields(command)

    @classmethod
    def _read_fields(cls, command: RemotingCommand) -> Self:
        """The same, field by field."""
        given = command.ext_fields
        values: dict[str, Any] = {}
        for name, wire_name, kind, required, _ in plan_of(cls):
            text = given.get(wire_name)
            if not (text or required):
                continue  # an empty text is as one that is missing: no signature tells the two apart
            if text is None or (not text and command.serialize_type == ROCKETMQ):
                raise BadRequestError(f"the custom field <{wire_name}> is null")
            if kind == "str":
                values[name] = text
            elif kind == "bool":
                values[name] = is_true(text)
            elif (number := to_number(text, MAX_INT if kind == "Int" else MAX_LONG)) is not None:
                values[name] = number
            elif required or cls._is_strict:
                bits = "32" if kind == "Int" else "64"
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
        for name, wire_name, kind, *_ in plan_of(type(self)):
            value = getattr(self, name)
            if value is not None:
                found[wire_name] = str(value).lower() if kind == "bool" else str(value)
        return found


@cache
def plan_of(cls: type[Header]) -> tuple[HeaderField, ...]:
    """The fields of a header."""
    kinds: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        kinds |= inspect.get_annotations(base)
    return tuple(
        HeaderField(
            item.name, item.encode_name, kinds[item.name].partition(" |")[0], item.required, item.default
        )
        for item in struct_fields(cls)
    )


@cache
def _is_doubtful(cls: type[Header]) -> Callable[[Any], bool]:
    """Whether a header that msgspec read is to be read field by field: it takes "1" for true, an empty text
    for one, and takes values that are not allowed. TypeError where it took "1.0" for a number.
    Hot: an expression of all fields costs a fifth of a loop."""
    looks = [f"h.{name} not in {allowed!r}" for name, allowed in cls._allowed.items()]
    numbers = []
    for name, _, kind, required, default in plan_of(cls):
        if kind == "bool":
            looks.append(f"h.{name}")
        elif kind == "str" and not required and default != "":
            looks.append(f"h.{name} == ''")
        elif kind in ("Int", "Long"):
            numbers.append(f"(0 if h.{name} is None else h.{name})" if default is None else f"h.{name}")
    if numbers:
        looks.append(f"({' | '.join(['0', *numbers])}) is None")  # only whole numbers have a |
    return eval(f"lambda h: {' or '.join(looks) or 'False'}")  # type: ignore[no-any-return]


@cache
def _reader(cls: type[Header]) -> Callable[[Mapping[str, str]], Any]:
    """Reads a header from its fields as nearly all peers write them: nothing empty, numbers of digits alone.
    KeyError or ValueError for anything else. Hot with binary headers: the fields are taken apart by code made
    for them, in a third of the time that a loop over the plan takes."""
    given, texts, lines, values = [], {}, [], []
    for name, wire_name, kind, required, default in plan_of(cls):
        value = f"f[{wire_name!r}]" if required else f"f.get({wire_name!r})"
        given.append(f"{name} = {value}")
        if kind == "bool":
            lines.append(f"{name} = {default!r} if {name} is None else TRUTH[{name}]")
        elif kind != "str":
            texts[name] = name if required else f"({name} or '')"
            lines.append(
                f"{name} = int({name})" if required else f"{name} = int({name}) if {name} else {default!r}"
            )
            most = "MAX_INT" if kind == "Int" else "MAX_LONG"
            lines.append(f"if {name} is not None and {name} > {most}: raise ValueError")
        elif not required:
            lines.append(f"if {name} is None: {name} = {default!r}")
        values.append(name)
    if texts:
        lines.insert(0, f"digits = '0' + {' + '.join(texts.values())}")
        lines.insert(1, "if not (digits.isdigit() and digits.isascii()): raise ValueError")
    for name, allowed in cls._allowed.items():
        lines.append(f"if {name} not in {allowed!r}: raise ValueError")
    body = "\n    ".join(
        ("if '' in f.values(): raise ValueError", *given, *lines, f"return cls({', '.join(values)})")
    )
    made: dict[str, Any] = {}
    exec(f"def read(f):\n    {body}", {**globals(), "cls": cls, "TRUTH": _TRUTH}, made)
    return made["read"]  # type: ignore[no-any-return]


def read_at_once(code: int, header: type[Header]) -> None:
    """Have requests of a code read together with their fields, where their JSON header begins with the code
    and has nothing odd. Who asks `header.read` for them gets what was read. Hot."""
    typed: Any = defstruct(
        f"{header.__name__}Command",
        [
            ("_ext_fields", NotRead, field(default=None, name="-fields")),
            ("header", header, field(name="extFields")),
        ],
        bases=(ReadCommand,),
        kw_only=True,
        eq=False,
        gc=False,
    )
    decode, is_doubtful = Decoder(typed, strict=False).decode, _is_doubtful(header)
    unreadable = (*UNREADABLE, TypeError)

    def read(source: memoryview) -> RemotingCommand | None:
        try:
            command: RemotingCommand = decode(source)
            if command.code != code or is_doubtful(command.header):  # a code may be said twice
                return None
        except unreadable:
            return None
        command.source = source
        return command

    typed_readers[(b'{"code":%d,"' % code)[:TYPED_PREFIX_BYTES]] = read


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

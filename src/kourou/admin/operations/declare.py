"""How an operation is declared: a coroutine with a plain signature, and `operation`, which says the rest.
`kourou admin`, `kourou mqadmin` and the console are made from these declarations.

    @operation("topic create", Done("{topic} is on {found}"), role=ADMIN, java="updateTopic t!topic …")
    async def create(admin: Admin, topic: str, queues: int = 8) -> list[str]:
        \"""Make a topic, or change it.\"""

What people read of a parameter is in `parameters`, by its name; `operation` takes another Param for one that
is special. The docstring is the help. What the coroutine returns is shown as its `Shown` says.

`java` is the verb of Java's mqadmin that does the same, and its flags: letter, kind, name. Kinds: `!` is
required, of those with `|` one is, `:` has a value, `-` has none. A flag fills the parameter of its name, or
of the name that JAVA_NAMES has for it, or that after `=`; with nothing after `=` it is for the verb alone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kourou.admin.operations.parameters import PARAMETERS, BadInputError, Param

if TYPE_CHECKING:
    from kourou.admin import Admin

VIEWER, OPERATOR, ADMIN = "viewer", "operator", "admin"  # who may do it in the console

JAVA_NAMES = {
    "brokerAddr": "broker", "brokerName": "broker", "clusterName": "cluster", "groupName": "group",
    "consumerGroup": "group", "producerGroup": "group", "topicName": "topic", "msgId": "message_id",
    "beginTimestamp": "begin", "endTimestamp": "end", "queueId": "queue", "clientId": "client",
}  # fmt: skip
# What may be left out, for short
Text = str | None
Number = int | None
_TYPES: dict[str, type] = {
    "str": str, "Text": str, "int": int, "Number": int, "float": float, "bool": bool, "list": list,
    "dict": dict,
}  # fmt: skip


# What is given


class Parameter(NamedTuple):
    """A parameter of an operation: what its signature and its Param say."""

    name: str
    type: type
    default: Any
    about: Param

    @property
    def is_required(self) -> bool:
        """Whether it has to be given."""
        return self.default is inspect.Parameter.empty

    @property
    def is_argument(self) -> bool:
        """Whether the command takes it without the name of an option."""
        return self.is_required if self.about.argument is None else self.about.argument

    @property
    def label(self) -> str:
        """What a dialog calls it."""
        return self.about.label or self.about.help.rstrip(".")

    def value(self, given: Any) -> Any:
        """What the operation gets, of what somebody typed or chose; BadInputError if it is no such value."""
        if given is None or (given == "" and not self.is_required):
            if self.is_required:
                raise BadInputError(f"{self.label} is missing")
            return self.default
        if self.about.read is not None:
            return given if isinstance(given, int) else self.about.read(str(given).strip())
        if self.type is dict:
            return _pairs(given.splitlines() if isinstance(given, str) else given)
        if self.type is list:
            words = re.split(r"[,\s]+", given.strip(", ")) if isinstance(given, str) else given
            return [self._chosen(word) for word in words]
        if self.type is bool:
            return given.lower() == "true" if isinstance(given, str) else bool(given)  # as Java reads it
        return self._number(given) if self.type in (int, float) else self._chosen(str(given))

    def _chosen(self, text: str) -> str:
        if not self.about.choices:
            return text
        for choice in self.about.choices:
            if choice.lower() == text.strip().lower():
                return choice
        raise BadInputError(f"{text!r} is no {self.name}: say {', '.join(self.about.choices)}")

    def _number(self, given: Any) -> Any:
        try:
            number = self.type(given)
        except ValueError:
            raise BadInputError(f"{given!r} is no number") from None
        if self.about.least is not None and number < self.about.least:
            raise BadInputError(f"{self.name} is {self.about.least} or more, not {number}")
        return number


def _pairs(texts: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(texts, Mapping):
        return dict(texts)
    found = {}
    for text in filter(str.strip, texts):
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise BadInputError(f"{text!r} is no NAME=VALUE")
        found[key.strip()] = value
    return found


# What is shown


class Column(NamedTuple):
    """A column: an attribute or key of a row, or what a function makes of it. Kinds: text, number, time (ms),
    percent (of 0 to 1), perm, yes (or no), badge, topic and group (links in the console), code (which is
    wrapped there). A minor one is left out on a narrow screen."""

    label: str
    source: str | Callable[[Any], object]
    kind: str = "text"
    minor: bool = False

    def of(self, row: Any) -> Any:
        """Its value in a row."""
        if callable(self.source):
            return self.source(row)
        return row.get(self.source) if isinstance(row, Mapping) else getattr(row, self.source)


def columns(text: str, **made: Callable[[Any], object]) -> tuple[Column, ...]:
    """Columns of a text: `Queue=queue_id:number, Last message=last_ms:time-` are a label, where the value is,
    its kind, and `-` for a minor one. `made` has what is no attribute of a row."""
    found = []
    for part in text.split(", "):
        label, _, rest = part.partition("=")
        source, _, kind = rest.rstrip("-").partition(":")
        found.append(Column(label, made.get(source, source), kind or "text", part.endswith("-")))
    return tuple(found)


@dataclass(frozen=True)
class Shown:
    """How an answer is shown. `fails` tells an answer that is exit code 1; an empty one is too where there is
    something to say of it (`nothing`)."""

    fails: Callable[[Any], bool] | None = field(default=None, kw_only=True)
    nothing: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Table(Shown):
    """Rows in columns; `rows` finds them in the answer. The title is made from what was given and `found`.

    whole: JSON is the answer as it is, not a line for each row.
    below: another table of the same answer; notes: lines after it.
    """

    columns: tuple[Column, ...]
    title: str = ""
    rows: Callable[[Any], Iterable[Any]] = list
    whole: bool = False
    below: Table | None = None
    notes: Callable[[Any], Iterable[str]] | None = None


@dataclass(frozen=True)
class Names(Shown):
    """Names, a line each; in JSON they have a key."""

    key: str


@dataclass(frozen=True)
class Done(Shown):
    """A sentence made from what was given and from what was `found`, mostly addresses."""

    text: str


@dataclass(frozen=True)
class Document(Shown):
    """JSON, whoever reads it."""


@dataclass(frozen=True)
class Values(Shown):
    """Names and values; the value alone where a `key` was given."""


@dataclass(frozen=True)
class Messages(Shown):
    """Messages: a line each, or each whole with all its fields. With tracks the answer is one message, and
    which groups have consumed it."""

    whole: bool = False
    tracks: bool = False


@dataclass(frozen=True)
class Either(Shown):
    """One way where a parameter was given, another where it was not."""

    parameter: str
    given: Shown
    absent: Shown


# The operation


@dataclass(frozen=True)
class Operation:
    """Something that an operator asks or orders."""

    name: str
    run: Callable[..., Awaitable[Any]]
    shown: Shown
    role: str = VIEWER
    confirm: str = ""  # what is asked before, with {names} of parameters
    needs: str = ""  # the parameter that names something which must be there: a topic, a group, …
    options: tuple[str, ...] = ()  # required parameters that are options all the same
    java: str = ""
    special: Mapping[str, Param] = field(default_factory=dict)

    @property
    def help(self) -> str:
        """What it does, in words, and examples."""
        return inspect.getdoc(self.run) or ""

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """What it is given, by name."""
        found = {}
        for one in list(inspect.signature(self.run).parameters.values())[1:]:
            about = self.special.get(one.name) or PARAMETERS[one.name]
            if one.name in self.options:
                about = replace(about, argument=False)
            kind = _TYPES[str(one.annotation).partition(" ")[0].partition("[")[0]]
            found[one.name] = Parameter(one.name, kind, one.default, about)
        return found

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Its parameters, read from what was given."""
        return {name: parameter.value(given.get(name)) for name, parameter in self.parameters.items()}

    async def check(self, admin: Admin, values: Mapping[str, Any]) -> None:
        """Raises AdminError where there is nothing to work on: brokers answer for names that nobody has."""
        wanted = values.get(self.needs)
        if wanted is None:
            return
        if self.needs == "topic":
            await admin.link.topic_brokers(wanted)
        elif self.needs == "broker":
            await admin.link.require_broker(wanted)
        elif self.needs == "key":
            await admin.name_servers.get_kv(values["namespace"], wanted)
        elif self.needs == "user":
            await admin.access.require(await admin.link.targets(values["cluster"], values["broker"]), wanted)
        else:
            await admin.groups.require(wanted)


OPERATIONS: dict[str, Operation] = {}

_About = Callable[[Callable[..., Awaitable[Any]]], Operation]


def operation(name: str, shown: Shown, *, options: str = "", **about: Any) -> _About:
    """Declare a coroutine as an operation. A keyword that no field of Operation has is a special Param."""
    special = {key: about.pop(key) for key in list(about) if isinstance(about[key], Param)}

    def declare(run: Callable[..., Awaitable[Any]]) -> Operation:
        made = Operation(name, run, shown, options=tuple(options.split()), special=special, **about)
        return OPERATIONS.setdefault(name, made)

    return declare

"""The verbs of `kourou mqadmin`: flags as Java takes them, and what each verb does with them.

Most verbs are operations (`kourou.admin.operations`): the declaration has their flags, and here they only
get Java's words (`shows`, `tells`). Verbs that do several things, or what only Java's tool does, are declared
where they are (`verb`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kourou.admin.operations.declare import JAVA_NAMES, Operation
from kourou.admin.operations.parameters import BadInputError, read_time
from kourou.cli.mqadmin.words import line

if TYPE_CHECKING:
    from kourou.admin import Admin

REQUIRED, ONE_OF, SWITCH, VALUE = "!", "|", "-", ":"


class Flag(NamedTuple):
    """A flag: its letter, its kind, its long name, and the parameter of the operation that it fills."""

    short: str
    kind: str
    long: str
    parameter: str


def read_flags(text: str) -> tuple[Flag, ...]:
    """Flags from a text, as `kourou.admin.operations.declare` tells it."""
    found = []
    for part in text.split():
        kind = next(character for character in part if character in "!|:-")
        short, long = part.split(kind, 1)
        long, has_parameter, parameter = long.partition("=")
        found.append(Flag(short, kind, long, parameter if has_parameter else JAVA_NAMES.get(long, long)))
    return tuple(found)


_COMMON = read_flags("h-help= n:namesrvAddr=")


class Given:
    """The flags that were given. Values are without the blanks around them, as Java takes them."""

    def __init__(self, verb: Verb, values: Mapping[str, str]) -> None:
        self._verb = verb
        self._values = values

    async def found(self, admin: Admin) -> Any:
        """The answer of the operation that the verb is."""
        assert self._verb.operation is not None
        given = {
            one.parameter: self._values[one.short] if one.kind != SWITCH else True
            for one in self._verb.flags
            if one.parameter and one.short in self._values
        }
        return await self._verb.operation.run(admin, **self._verb.operation.values(given))

    def has(self, short: str) -> bool:
        """Whether a flag was given."""
        return short in self._values

    def get(self, short: str) -> str | None:
        """The value of a flag, None if it was not given."""
        return self._values.get(short)

    def text(self, short: str, default: str = "") -> str:
        """The value of a flag, or a default."""
        return self._values.get(short, default)

    def number(self, short: str, default: int = 0) -> int:
        """The value of a flag that is a whole number."""
        value = self._values.get(short)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise BadInputError(f"-{short} {value} is no number") from None

    def truth(self, short: str, default: bool = False) -> bool:
        """The value of a flag that is true or false; what is neither is false, as in Java."""
        value = self._values.get(short)
        return default if value is None else value.lower() == "true"

    def time(self, short: str) -> int | None:
        """The value of a flag that is a time."""
        value = self._values.get(short)
        return None if value is None else read_time(value)


Run = Callable[["Admin", Given], Awaitable[None]]


class Verb(NamedTuple):
    """A verb of mqadmin; `operation` is what it does, where that is one."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    run: Run
    operation: Operation | None = None

    def usage(self) -> str:
        """How to use it."""
        marks = {REQUIRED: "  (required)", ONE_OF: "  (one of these)"}
        lines = [f"usage: mqadmin {self.name}"]
        for flag in sorted((*_COMMON, *self.flags), key=lambda one: one.short):
            value = "" if flag.kind == SWITCH else " <arg>"
            lines.append(f" -{flag.short},--{flag.long}{value}{marks.get(flag.kind, '')}")
        return "\n".join(lines)

    def parse(self, arguments: list[str]) -> Given:
        """The flags in arguments: -t T, -tT, --topic T, --topic=T, -topic T."""
        known = {name: one for one in (*_COMMON, *self.flags) for name in (one.short, one.long)}
        values: dict[str, str] = {}
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            name, _, inline = word.lstrip("-").partition("=")
            value: str | None = inline if "=" in word else None
            if not word.startswith("-") or not name:
                raise BadInputError(f"what is {word}? Every value has a flag before it")
            flag = known.get(name) or known.get(word.lstrip("-"))
            if flag is None and not word.startswith("--") and name[0] in known:
                flag, value = known[name[0]], word[2:]
            if flag is None:
                raise BadInputError(f"Unrecognized option: {word}")
            if flag.kind == SWITCH:
                values[flag.short] = ""
                continue
            if value is None:
                if not rest or (rest[0].startswith("-") and rest[0].lstrip("-").partition("=")[0] in known):
                    raise BadInputError(f"Missing argument for option: {flag.short}")
                value = rest.pop(0)
            values[flag.short] = value.strip()
        if "h" not in values:
            self._check(values)
        return Given(self, values)

    def _check(self, values: Mapping[str, str]) -> None:
        missing = [one.short for one in self.flags if one.kind == REQUIRED and one.short not in values]
        if missing:
            raise BadInputError(f"Missing required option: {', '.join(missing)}")
        one_of = [one.short for one in self.flags if one.kind == ONE_OF]
        if one_of and not any(short in values for short in one_of):
            raise BadInputError(f"Missing required option: one of {', '.join(f'-{one}' for one in one_of)}")

    async def __call__(self, admin: Admin, given: Given) -> None:
        """Do it once, or where -i is an interval again and again after so many seconds."""
        await self.run(admin, given)
        while given.has("i") and any(one.long == "interval" for one in self.flags):
            await asyncio.sleep(max(given.number("i", 10), 1))
            await self.run(admin, given)


VERBS: dict[str, Verb] = {}

_NO_CONTAINER = "Several brokers in one process are Java's way; `kourou up --brokers N` runs processes."
_NO_STATIC = "Static topics, with queues that move between brokers, are not served yet."
_NO_ROCKSDB = "There is no RocksDB: tables are JSON, and queues are files, which `kourou store` shows."
_NO_CONTROLLER = "There is no controller yet: a slave does not become a master by itself."
_NO_LITE = "Lite topics of POP are not served yet."
# The verbs of Java 5.5 that are not here, and why
NOT_THERE = {
    "addBroker": _NO_CONTAINER, "removeBroker": _NO_CONTAINER,
    "updateStaticTopic": _NO_STATIC, "remappingStaticTopic": _NO_STATIC,
    "exportMetadataInRocksDB": _NO_ROCKSDB, "rocksDBConfigToJson": _NO_ROCKSDB,
    "checkRocksdbCqWriteProgress": _NO_ROCKSDB,
    "exportPopRecord": "Records of POP are in the log: the key-value service that it exports is not there.",
    "getSyncStateSet": _NO_CONTROLLER, "getBrokerEpoch": _NO_CONTROLLER,
    "getControllerMetaData": _NO_CONTROLLER, "getControllerConfig": _NO_CONTROLLER,
    "updateControllerConfig": _NO_CONTROLLER,
    "electMaster": _NO_CONTROLLER, "cleanBrokerMetadata": _NO_CONTROLLER,
    "getBrokerLiteInfo": _NO_LITE, "getParentTopicInfo": _NO_LITE, "getLiteTopicInfo": _NO_LITE,
    "getLiteClientInfo": _NO_LITE, "getLiteGroupInfo": _NO_LITE, "triggerLiteDispatch": _NO_LITE,
}  # fmt: skip


def _add(declared: str, help: str, run: Run, operation: Operation | None = None) -> None:
    name, _, flags = declared.partition(" ")
    VERBS[name] = Verb(name, help, read_flags(flags), run, operation)


def verb(declared: str, help: str) -> Callable[[Run], Run]:
    """Declare a verb that is no single operation: its name and flags, and what it does."""

    def add(run: Run) -> Run:
        _add(declared, help, run)
        return run

    return add


def shows(operation: Operation) -> Callable[[Run], Run]:
    """Declare the verb of an operation, with a coroutine that prints its answer in Java's words."""

    def add(run: Run) -> Run:
        _add(operation.java, operation.help.partition("\n")[0], run, operation)
        return run

    return add


def tells(operation: Operation, form: str) -> None:
    """Declare the verb of an operation that prints a line for each address in its answer, or one where it has
    none."""

    async def tell(admin: Admin, given: Given) -> None:
        for address in await given.found(admin) or [None]:
            line(form, *([address] if address else []))

    shows(operation)(tell)

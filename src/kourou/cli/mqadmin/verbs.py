"""What the verbs of `kourou mqadmin` share: flags as Java takes them, and Java's ways to print."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kourou.cli.output import printable
from kourou.message.host import format_host
from kourou.message.model import MessageQueue

if TYPE_CHECKING:
    from kourou.admin import Admin
    from kourou.client.consume.received import ReceivedMessage
    from kourou.client.produce.receipts import SendReceipt


class BadFlagsError(Exception):
    """Flags that a verb does not take, or lacks."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag: its letter, its long name, whether it has a value and whether it must be there."""

    short: str
    long: str
    has_value: bool = True
    required: bool = False


def flags(text: str) -> tuple[Flag, ...]:
    """Flags from a text: `t!topic r:readQueueNums l-list` are a required one, one with a value, a switch."""
    found = []
    for part in text.split():
        kind = next(character for character in part if character in "!:-")
        short, long = part.split(kind, 1)
        found.append(Flag(short, long, kind != "-", kind == "!"))
    return tuple(found)


_COMMON = flags("h-help n:namesrvAddr")


class Flags:
    """The flags that were given. Values are without the blanks around them, as Java takes them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

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
            raise BadFlagsError(f"-{short} {value} is no number") from None

    def truth(self, short: str, default: bool = False) -> bool:
        """The value of a flag that is true or false; what is neither is false, as in Java."""
        value = self._values.get(short)
        return default if value is None else value.lower() == "true"

    def time(self, short: str) -> int | None:
        """The value of a flag that is a time: milliseconds, `now`, or yyyy-MM-dd#HH:mm:ss:SSS."""
        value = self._values.get(short)
        if value is None:
            return None
        if value == "now":
            return time.time_ns() // 1_000_000
        try:
            return int(value)
        except ValueError:
            pass
        try:
            return round(datetime.strptime(value, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)
        except ValueError:
            raise BadFlagsError(f"-{short} {value} is no time: give ms or yyyy-MM-dd#HH:mm:ss:SSS") from None


Run = Callable[["Admin", Flags], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: what it does, which flags it takes, and which of some flags one must be there."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    run: Run
    one_of: str = ""

    def usage(self) -> str:
        """How to use it."""
        lines = [f"usage: mqadmin {self.name}"]
        for flag in sorted((*_COMMON, *self.flags), key=lambda one: one.short):
            value = " <arg>" if flag.has_value else ""
            mark = (
                "  (required)" if flag.required else "  (one of these)" if flag.short in self.one_of else ""
            )
            lines.append(f" -{flag.short},--{flag.long}{value}{mark}")
        return "\n".join(lines)

    def parse(self, arguments: list[str]) -> Flags:
        """The flags in arguments: -t T, -tT, --topic T, --topic=T, -topic T."""
        known = {name: one for one in (*_COMMON, *self.flags) for name in (one.short, one.long)}
        values: dict[str, str] = {}
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            name, _, inline = word.lstrip("-").partition("=")
            value: str | None = inline if "=" in word else None
            if not word.startswith("-") or not name:
                raise BadFlagsError(f"what is {word}? Every value has a flag before it")
            flag = known.get(name) or known.get(word.lstrip("-"))
            if flag is None and not word.startswith("--") and name[0] in known:
                flag, value = known[name[0]], word[2:]
            if flag is None:
                raise BadFlagsError(f"Unrecognized option: {word}")
            if not flag.has_value:
                values[flag.short] = ""
                continue
            if value is None:
                if not rest or (rest[0].startswith("-") and rest[0].lstrip("-").partition("=")[0] in known):
                    raise BadFlagsError(f"Missing argument for option: {flag.short}")
                value = rest.pop(0)
            values[flag.short] = value.strip()
        if "h" not in values:
            self._check(values)
        return Flags(values)

    def _check(self, values: Mapping[str, str]) -> None:
        missing = [flag.short for flag in self.flags if flag.required and flag.short not in values]
        if missing:
            raise BadFlagsError(f"Missing required option: {', '.join(missing)}")
        if self.one_of and not any(short in values for short in self.one_of):
            raise BadFlagsError(
                f"Missing required option: one of {', '.join(f'-{one}' for one in self.one_of)}"
            )


# Java's ways to print


def line(form: str, *values: object) -> None:
    """A line as printf makes it, or several that are made already. What could steer a terminal becomes a dot,
    and so does the end of a line in a value."""
    text = form % tuple(printable(v) if isinstance(v, str) else v for v in values) if values else form
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)
    typer.echo(text)


def fit(text: str, most: int) -> str:
    """As much of a text as a column has (UtilAll.frontStringAtLeast)."""
    return text[:most]


def human_time(when_ms: int) -> str:
    """2026-11-15 08:30:00,123."""
    return f"{datetime.fromtimestamp(when_ms // 1000):%Y-%m-%d %H:%M:%S},{when_ms % 1000:03d}"


def plain_time(when_ms: int) -> str:
    """2026-11-15 08:30:00."""
    return f"{datetime.fromtimestamp(when_ms // 1000):%Y-%m-%d %H:%M:%S}"


def java_value(value: object) -> str:
    """A value as Java's toString has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={java_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(java_value, value)) + "]"
    return str(value)


def java_queue(queue: MessageQueue) -> str:
    """A queue as Java's toString has it."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def java_receipt(receipt: SendReceipt) -> str:
    """A SendResult as Java's toString has it."""
    return (
        f"SendResult [sendStatus={receipt.status}, msgId={receipt.message_id}, "
        f"offsetMsgId={receipt.offset_message_id}, messageQueue={java_queue(receipt.queue)}, "
        f"queueOffset={receipt.queue_offset}, recallHandle={java_value(receipt.recall_handle)}]"
    )


def java_message(message: ReceivedMessage) -> str:
    """A MessageExt as Java's toString has it."""
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in bytes(message.body))
    return (
        f"MessageExt [brokerName={message.broker_name}, queueId={message.queue_id}, "
        f"storeSize={message.store_size}, queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, "
        f"bornTimestamp={message.born_timestamp}, bornHost=/{format_host(message.born_host)}, "
        f"storeTimestamp={message.store_timestamp}, storeHost=/{format_host(message.store_host)}, "
        f"msgId={message.offset_message_id}, commitLogOffset={message.physical_offset}, "
        f"bodyCRC={message.body_crc}, reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={java_value(message.properties)}, body=[{body}], transactionId='null'}}]"
    )


def pretty_json(value: Any) -> str:
    """JSON for people, as fastjson indents it."""
    import json

    return json.dumps(value, indent="\t", ensure_ascii=False, separators=(",", ":"))


def file_name(text: str) -> str:
    """A name that others chose, an id of a message or a client, as that of a file: it leads nowhere else."""
    return re.sub(r"^\.+", "_", re.sub(r"[^\w.@#-]", "_", text)) or "_"


def temporary(*parts: str) -> Path:
    """A place in the system's directory for temporary files, below `rocketmq`."""
    return Path(tempfile.gettempdir(), "rocketmq", *parts)

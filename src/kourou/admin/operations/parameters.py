"""What operations are given, by name: what people read of it, and how a text is read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kourou.errors import KourouError

_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BadInputError(KourouError):
    """A value that an operation does not take; the message says what it takes."""


@dataclass(frozen=True, slots=True)
class Param:
    """What people read of a parameter. Required ones are arguments of the command, others options.

    long: the option, where it is not named as the parameter; `--a/--b` for a switch that is on or off.
    choices: the values that count, with the words of the console for them.
    read: makes the value from a text, or raises BadInputError.
    label: of the field in a dialog, where the help is too long for it.
    """

    help: str
    short: str = ""
    long: str = ""
    metavar: str = ""
    argument: bool | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    least: int | None = None
    secret: bool = False
    read: Callable[[str], Any] | None = None
    label: str = ""


def read_time(text: str) -> int:
    """Milliseconds since 1970: of such a number, a date and time, `now`, or `10m` for ten minutes ago."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    now_ms = time.time_ns() // 1_000_000
    if text == "now":
        return now_ms
    ago = re.fullmatch(r"(\d+)([smhd])", text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNITS[ago[2]]
    try:
        form = "%Y-%m-%d#%H:%M:%S:%f"  # Java's
        when = datetime.strptime(text, form) if "#" in text else datetime.fromisoformat(text)
    except ValueError:
        raise BadInputError(
            f"{text!r} is no time: give 2026-11-15T08:30, milliseconds since 1970, or 10m for ten minutes ago"
        ) from None
    return round(when.timestamp() * 1000)


def _read_moment(text: str) -> int:
    return {"first": 0, "last": -1}[text] if text in ("first", "last") else read_time(text)


_PERM_NUMBERS = {"r": 4, "w": 2, "rw": 6, "wr": 6, "none": 0, "0": 0, "2": 2, "4": 4, "6": 6}


def _read_perm(text: str) -> int:
    if text.lower() not in _PERM_NUMBERS:
        raise BadInputError(f"{text!r} is no permission: say r, w, rw or none")
    return _PERM_NUMBERS[text.lower()]


def _same(*values: str) -> dict[str, str]:
    return dict(zip(values, values))


PERMS = {"rw": "read, write", "r": "read", "w": "write", "none": "none"}

PARAMETERS = {
    "topic": Param("The topic.", "-t", metavar="TOPIC", label="Topic"),
    "group": Param("The consumer group.", "-g", metavar="GROUP", label="Group"),
    "cluster": Param("Only this cluster.", "-c", metavar="NAME"),
    "broker": Param("The broker: its name, or an address.", "-b", metavar="BROKER"),
    "queue": Param("The queue.", "-q", argument=False, least=0),
    "offset": Param("The offset.", "-o", metavar="OFFSET", least=0),
    "client": Param("The id of a client.", "-i", metavar="ID", argument=False, label="Client"),
    "everything": Param("Also those of brokers and tools.", long="--all"),
    "route_of": Param("The topic whose brokers are asked, of a light one.", metavar="TOPIC"),
    "file": Param("A file of JSON.", metavar="FILE"),
    "begin": Param("Stored at this time or later.", metavar="TIME", read=read_time, label="From"),
    "end": Param("Stored before this time.", metavar="TIME", read=read_time, label="To"),
    "limit": Param("So many messages.", least=1),
    "count": Param("So many.", least=1),
    "tags": Param("The tag, or several joined by ||.", metavar="TAGS", label="Tag"),
    "changes": Param("What to change.", metavar="KEY=VALUE…"),
    "key": Param("The key.", metavar="KEY", argument=True),
    # Topics
    "queues": Param("Queues on each broker.", "-q", least=0),
    "read_queues": Param("Queues to read, if other.", least=0, label="Read queues"),
    "write_queues": Param("Queues to write, if other.", least=0, label="Write queues"),
    "perm": Param("r, w, rw or none.", metavar="PERM", choices=PERMS, read=_read_perm, label="Permission"),
    "order": Param("Keep order even when a broker is gone."),
    "type": Param("Message type.", choices=_same("NORMAL", "DELAY", "TRANSACTION", "FIFO")),
    "attributes": Param("Such as +message.type=FIFO,-old.", metavar="CHANGES"),
    "unit": Param("It is a topic of a unit."),
    "unit_subscriber": Param("Units subscribe to it."),
    "clients": Param("Ids of clients.", metavar="CLIENT…"),
    "value": Param("The value.", metavar="VALUE", argument=True),
    "remove": Param("Forget it."),
    # Groups
    "retry_times": Param(
        "How often a message comes again before it is dead.", least=-1, label="Retries before dead letter"
    ),
    "retry_queues": Param("Queues of the retry topic.", least=0, label="Retry queues"),
    "enable": Param("Whether it may consume.", long="--enable/--disable", label="It may consume"),
    "broadcast": Param(
        "Whether each client may have all messages.", long="--broadcast/--no-broadcast",
        label="Each client may have all messages (broadcasting)",
    ),
    "from_min": Param(
        "Whether it may begin at the oldest message.", long="--from-min/--no-from-min",
        label="It may begin at the oldest message",
    ),
    "orderly": Param("It consumes in order."),
    "setting": Param(
        "A field of SubscriptionGroupConfig, such as brokerId=1; again for more.", long="--set",
        metavar="FIELD=VALUE",
    ),
    "clean_offset": Param("Delete its offsets too.", long="--offsets"),
    "with_clients": Param("Also who reads each queue.", long="--clients"),
    "stack": Param("Also what its threads do."),
    "mode": Param("How clients take messages.", metavar="PULL|POP", choices=_same("PULL", "POP")),
    "pop_queues": Param("Queues that clients share with POP.", least=0),
    # Offsets
    "to": Param(
        "first, last, 2026-11-15T08:30, milliseconds, or 10m for 10 min ago.", metavar="TIME", argument=False,
        read=_read_moment, label="Time",
    ),
    "only_back": Param("Never go forward."),
    "source": Param("The group whose offsets are taken.", metavar="FROM", label="Group to copy from"),
    "target": Param("The group that gets them.", metavar="TO"),
    # Messages
    "message_id": Param("An offset message id, or the unique id.", metavar="ID"),
    "body": Param("The body, as text.", metavar="BODY", label="Body"),
    "keys": Param("Keys, with spaces.", metavar="KEYS"),
    "sharding_key": Param("What the order is kept by.", metavar="TEXT", label="Sharding key, for order"),
    "delay": Param("Deliver so many seconds later.", metavar="SECONDS", least=0, label="Delay in seconds"),
    "properties": Param(
        "Again for more.", "-p", "--property", metavar="NAME=VALUE", label="Properties, a NAME=VALUE a line"
    ),
    "trace": Param("Trace it."),
    "trace_topic": Param("Where traces are.", "-t", metavar="TOPIC"),
    "tag": Param("It is a tag."),
    "first": Param("From this offset on.", long="--from", least=0),
    # Brokers
    "at_least": Param("Only queues so many messages behind.", least=0),
    "only_ordered": Param("Only topics in order.", long="--ordered"),
    "what": Param(
        "Queues without messages, queues of topics that are no more, or log files past their time.",
        metavar="queues|topics|log", choices=_same("queues", "topics", "log"),
    ),
    "engine": Param("The time wheel in files (F), or RocksDB (R).", metavar="F|R", choices=_same("F", "R")),
    "bytes_per_s": Param("Bytes a second.", metavar="BYTES", least=0),
    "read_mode": Param("0 as usual, 1 at random.", metavar="0|1", choices=_same("0", "1")),
    "active": Param("Only where something came or went."),
    "size": Param("Bytes of a message.", least=1),
    "namespace": Param("The namespace.", metavar="NAMESPACE"),
    "part": Param(
        "topics, groups, config or offsets; again for more.", metavar="PART",
        choices=_same("topics", "groups", "config", "offsets"),
    ),
    # Access
    "user": Param("The name of the user.", metavar="USER", label="Name"),
    "text": Param("Only names that contain this.", metavar="TEXT", argument=True),
    "password": Param("The secret.", metavar="TEXT", argument=False, secret=True, label="Secret"),
    "super_user": Param("A user who may do everything.", long="--super"),
    "user_type": Param(
        "Super or Normal.", long="--type", metavar="TYPE", choices=_same("Normal", "Super"), label="Type"
    ),
    "status": Param(
        "enable or disable.", metavar="STATUS", choices=_same("enable", "disable"), label="Status"
    ),
    "subject": Param("Only of this user.", metavar="USER", argument=True),
    "resource": Param(
        "Topic:name, Topic:prefix*, Group:name, Cluster:name or *.", metavar="RESOURCE", label="Resources"
    ),
    "actions": Param(
        "What it may do, or not.", metavar="ACTION…", label="Actions",
        choices=_same("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"),
    ),
    "decision": Param("Allow or Deny.", metavar="WORD", choices=_same("Allow", "Deny"), label="Decision"),
    "source_ips": Param(
        "Only from here; again for more.", long="--from", metavar="NETWORK",
        label="Only from (addresses or networks)",
    ),
}  # fmt: skip

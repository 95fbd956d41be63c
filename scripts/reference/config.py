"""The keys of the configuration: names and defaults from the code, meanings from config_meanings.py."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from kourou.auth.config import KEYS as AUTH_KEYS
from kourou.broker import BrokerConfig
from kourou.broker.config import _AT_START_ONLY
from kourou.java_config import java_keys, to_properties
from kourou.namesrv import NameServerConfig
from kourou.namesrv.config import JAVA_ONLY
from kourou.remoting.metrics import WatchConfig
from kourou.remoting.tls import TlsConfig
from kourou.store import MessageStoreConfig
from reference import config_meanings as told
from reference.text import MADE, table

HEAD = f"""# Configuration keys

{MADE}
Java's keys with Java's defaults, in Java's files: `kourou broker -c broker.conf`, `kourou namesrv -c
namesrv.conf`. Keys that are not here (Java's threads and buffers) are kept and shown, and have no effect.
Values are whole numbers, `true` or `false`, or text; times are milliseconds unless the meaning says
otherwise.

The last column says whether a running server takes another value, by `kourou admin broker set` or `mqadmin
updateBrokerConfig`: `yes`; `start`, where it counts at the start only and another value is refused; `file`,
where no request may change it at all ([why](../security.md#what-no-request-changes)).
"""

COLUMNS = ("key", "default", "meaning", "changes")


def sections(cls: type) -> dict[str, list[str]]:
    """Heading -> fields, as comments in the class divide them."""
    found: dict[str, list[str]] = {}
    names = {item.name for item in fields(cls)}
    heading = ""
    for line in inspect.getsource(cls).splitlines():
        if comment := re.fullmatch(r"    # (\w[\w ]*).*", line):
            heading = comment[1]
        elif (field := re.match(r"    (\w+): ", line)) and field[1] in names:
            found.setdefault(heading, []).append(field[1])
    return found


def rows_of(
    cls: type, names: list[str], meanings: Mapping[str, str], changes: Callable[[str], str]
) -> list[tuple[str, ...]]:
    """The rows of some fields."""
    keys = {name: key for key, name in java_keys(cls).items()}
    defaults = to_properties(cls())
    rows: list[tuple[str, ...]] = []
    for name in names:
        if name in keys:
            key = keys[name]
            shown = told.MACHINE_DEFAULTS.get(key) or (f"`{defaults[key]}`" if defaults[key] else "")
            rows.append((f"`{key}`", shown, meanings[key], changes(key)))
    return rows


def of_class(cls: type, meanings: Mapping[str, str], changes: Callable[[str], str]) -> str:
    """The tables of a class, each below its heading."""
    differ = java_keys(cls).keys() ^ meanings.keys()
    if differ:
        sys.exit(
            f"scripts/reference/config_meanings.py and {cls.__name__} differ in {', '.join(sorted(differ))}"
        )
    parts = []
    for heading, names in sections(cls).items():
        rows = rows_of(cls, names, meanings, changes)
        if rows:
            parts += [f"### {heading}"] if heading else []
            parts.append(table(COLUMNS, rows))
    return "\n\n".join(parts)


def broker_changes(key: str) -> str:
    """Whether a running broker takes another value."""
    if key == "brokerRole":
        return "between masters"
    if key in _AT_START_ONLY:
        return "start"
    return "file" if BrokerConfig().forbids_update_of(key) else "yes"


def namesrv_changes(key: str) -> str:
    """Whether a running name server takes another value."""
    return "file" if NameServerConfig().forbids_update_of(key) else "yes"


def of_dict(values: Mapping[str, tuple[str, str]], changes: str) -> str:
    """A table of keys that are no fields."""
    return table(COLUMNS, ((f"`{key}`", *texts, changes) for key, texts in values.items()))


def page() -> str:
    """The whole page."""
    assert told.AUTH.keys() == AUTH_KEYS
    only_file: Callable[[Any], str] = lambda _: "file"  # noqa: E731  # one word for all keys of a class
    parts = {
        "Broker": of_class(BrokerConfig, told.BROKER, broker_changes),
        "Store": "In broker.conf, too; `kourou store -c` reads them there.\n\n"
        + of_class(MessageStoreConfig, told.STORE, broker_changes),
        "Keys of Kourou's own, for brokers": of_dict(told.OWN, "start"),
        "Name server": of_class(NameServerConfig, told.NAMESRV, namesrv_changes),
        "Keys of Kourou's own, for name servers": of_class(WatchConfig, told.WATCH, lambda _: "start"),
        "Keys of Java's name server without effect": ", ".join(f"`{key}`" for key in JAVA_ONLY) + ".",
        "Users": "For brokers and name servers: [Security](../security.md).\n\n" + of_dict(told.AUTH, "file"),
        "TLS": "In `tls.properties` (`--tls FILE`, `KOUROU_TLS`), or in a server's own file.\n\n"
        + of_class(TlsConfig, told.TLS, only_file),
    }
    return HEAD + "".join(f"\n## {heading}\n\n{text}\n" for heading, text in parts.items())

"""Configuration as Java has it: dataclasses whose fields are Java's keys in snake case.

`brokerClusterName` is the field `broker_cluster_name`; where Java's spelling does not follow from that, the
field says so: `field(default=…, metadata={"key": "brokerIP1"})`. Values are text in files and requests; the
field's type says what they are: int, bool, str or an Enum by its names; `bool | None` is None if not given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, get_type_hints

from kourou.errors import ConfigError

# Files and directories, classes to load, where a server listens and how it is found, how it speaks; and what
# made Java start programs (CVE-2023-33246). `namesrvAddr` is not among them: name servers are moved by it.
_PLACE = re.compile(
    r"tls\..*|ha(?:Tls|Plaintext)\w*|storePath\w*|\w*(?:Paths?|Dir|Home|Provider|Strategy|PlugIn)|filterServer\w*"
    r"|bindAddress|listenPort|brokerIP\d|haMasterAddress|haListenPort|metrics\w*(?:Host|Port|Target|Header)"
)

_KEY = re.compile(r"[A-Za-z0-9_.-]+")

_kinds_by_class: dict[type, dict[str, Any]] = {}  # a class has hundreds of keys: a look-up takes milliseconds


def java_keys(cls: type) -> dict[str, str]:
    """Java's key -> name of the field, for the fields that are keys."""
    kinds, found = _kinds(cls), {}
    for item in fields(cls):
        if _is_key(kinds[item.name]):
            head, *rest = item.name.split("_")
            key = item.metadata.get("key") or head + "".join(part.capitalize() for part in rest)
            found[key] = item.name
    return found


def names_a_place(key: str) -> bool:
    """Whether a key says where files are, where a server listens or how it speaks: such are for its own file,
    and no request changes them. So is what no key looks like, with a blank at its end say: whoever trims what
    it reads would take it for the key."""
    return _PLACE.fullmatch(key) is not None or _KEY.fullmatch(key) is None


def _kinds(cls: type) -> dict[str, Any]:
    if cls not in _kinds_by_class:
        _kinds_by_class[cls] = get_type_hints(cls)
    return _kinds_by_class[cls]


def _is_key(kind: Any) -> bool:
    return kind in (int, bool, str, bool | None) or (isinstance(kind, type) and issubclass(kind, Enum))


def convert_known(cls: type, properties: Mapping[str, str]) -> dict[str, Any]:
    """Field -> value, of the keys that a class has. ConfigError if a value is invalid."""
    kinds, names = _kinds(cls), java_keys(cls)
    return {
        names[key]: _convert(key, text.strip(), kinds[names[key]])
        for key, text in properties.items()
        if key in names
    }


def _convert(key: str, text: str, kind: Any) -> Any:
    try:
        if kind is int:
            return int(text)
        if kind in (bool, bool | None):
            return {"true": True, "false": False}[text.lower()]
        if kind is not str:
            return kind[text]
    except (ValueError, KeyError):
        if kind is int:
            wanted = "a whole number"
        elif isinstance(kind, type) and issubclass(kind, Enum):
            wanted = "one of " + ", ".join(kind.__members__)
        else:
            wanted = "true or false"
        raise ConfigError(f"{key}={text}: expected {wanted}") from None
    return text


def to_properties(config: Any) -> dict[str, str]:
    """Java's key -> value as text."""
    found = {}
    for key, name in java_keys(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, bool):
            found[key] = str(value).lower()
        elif value is None:
            found[key] = ""
        else:
            found[key] = value.name if isinstance(value, Enum) else str(value)
    return found

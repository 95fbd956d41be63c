"""Data versions of tables, and tables that are asked for part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import DataVersion

T = TypeVar("T")


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """The version after a change. The state version is the controller's; without one it is 0."""
    return DataVersion(version.counter + 1, 0, now_ms)


def page_of(
    table: Mapping[str, T], version: DataVersion, asked_version: str | None, first: int, count: int
) -> dict[str, T]:
    """`count` entries from place `first` on, in the order of their names. Whoever goes on with another
    version than the table has now, starts again."""
    if first and not _is_version(asked_version, version):
        first = 0
    names = sorted(table)[max(first, 0) : max(first, 0) + max(count, 0)]
    return {name: table[name] for name in names}


def _is_version(text: str | None, version: DataVersion) -> bool:
    if not text:
        return False
    try:
        return DataVersion.from_json(lenient_json.loads(text.encode())) == version
    except (ValueError, TypeError, AttributeError):
        return False

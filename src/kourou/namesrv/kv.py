"""KvConfig: strings by namespace and key, kept in a file.

The file is Java's kvConfig.json: {"configTable": {namespace: {key: value}}}.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kourou.errors import ConfigError
from kourou.files import write_atomically
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol import lenient_json

log = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"  # the namespace of ordered topics: topic -> "broker:queues;…"

Table = dict[str, dict[str, str]]


class KvConfig:
    """The KV config; every change is on the disk before it counts."""

    def __init__(self, path: str | Path, *, bound: Bound = UNBOUND) -> None:
        self._path = Path(path)
        self._bound = bound  # of its bytes
        self._table: Table = _load(self._path)

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def get_namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace; None if there never was one."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. BudgetSpentError if there are too many, or too long ones."""
        table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        self._bound.check(
            sum(
                len(name) + sum(len(key) + len(value) for key, value in entries.items())
                for name, entries in table.items()
            )
        )
        self._replace(table)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value; its namespace stays, even if empty."""
        if namespace in self._table:
            rest = {name: value for name, value in self._table[namespace].items() if name != key}
            self._replace({**self._table, namespace: rest})

    def _replace(self, table: Table) -> None:
        write_atomically(self._path, lenient_json.dumps({"configTable": table}))
        self._table = table


def _load(path: Path) -> Table:
    """What the file holds; what its backup holds, with a warning, if the file is damaged."""
    backup = path.with_name(path.name + ".bak")
    if not path.exists() and not backup.exists():
        return {}
    for file in (path, backup):
        try:
            return _parse(file.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("cannot read %s: %s", file, error)
    raise ConfigError(f"neither {path} nor {backup} can be read: repair or remove them")


def _parse(data: bytes) -> Table:
    table = lenient_json.loads(data)["configTable"]
    return {
        str(namespace): {str(key): str(value) for key, value in entries.items()}
        for namespace, entries in table.items()
    }

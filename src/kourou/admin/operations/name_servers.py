"""Name servers: their configuration, their table of keys and values, and where messages may be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import ADMIN, Done, Names, Table, Text, columns, operation

if TYPE_CHECKING:
    from kourou.admin import Admin

CONFIG = Table(columns("Name server=address, Key=key, Value=value"))
PAIRS = Table(
    columns("Key=key, Value=value"),
    rows=lambda found: [{"key": key, "value": value} for key, value in found.items()],
)
COUNTS = Table(
    columns("Name server=address, Topics=topics:number"),
    rows=lambda found: [{"address": address, "topics": count} for address, count in found.items()],
)


@operation("namesrv config", CONFIG)
async def config(admin: Admin, key: Text = None) -> Any:
    """Show the configuration of each name server."""
    return [
        {"address": address, "key": name, "value": value}
        for address, table in (await admin.name_servers.config()).items()
        for name, value in sorted(table.items())
        if key in (None, name)
    ]


@operation("namesrv set", Done("changed at {found}"), role=ADMIN)
async def set_config(admin: Admin, changes: dict[str, str]) -> list[str]:
    """Change the configuration of all name servers."""
    return await admin.name_servers.set_config(changes)


@operation("namesrv kv-list", PAIRS)
async def kv_list(admin: Admin, namespace: str) -> Any:
    """List the keys and values of a namespace."""
    return await admin.name_servers.list_kv(namespace)


@operation("namesrv kv-get", Names("value"))
async def kv_get(admin: Admin, namespace: str, key: str) -> list[str]:
    """Print a value."""
    return [await admin.name_servers.get_kv(namespace, key)]


@operation(
    "namesrv kv-put",
    Done("{namespace} {key} is {value}"),
    role=ADMIN,
    java="updateKvConfig s!namespace k!key v!value",
)
async def kv_put(admin: Admin, namespace: str, key: str, value: str) -> None:
    """Set a value in the table of the name servers."""
    await admin.name_servers.put_kv(namespace, key, value)


@operation(
    "namesrv kv-delete",
    Done("{namespace} {key} is forgotten"),
    role=ADMIN,
    confirm="Forget {key} of {namespace}?",
    needs="key",
    java="deleteKvConfig s!namespace k!key",
)
async def kv_delete(admin: Admin, namespace: str, key: str) -> None:
    """Remove a value from the table of the name servers."""
    await admin.name_servers.delete_kv(namespace, key)


@operation(
    "namesrv wipe-write",
    COUNTS,
    role=ADMIN,
    confirm="Have nothing sent to {broker} any more?",
    needs="broker",
    java="wipeWritePerm b!brokerName",
)
async def wipe_write(admin: Admin, broker: str) -> Any:
    """Have nothing sent to a broker any more, before it is stopped."""
    return await admin.name_servers.wipe_write(broker)


@operation("namesrv add-write", COUNTS, role=ADMIN, needs="broker", java="addWritePerm b!brokerName")
async def add_write(admin: Admin, broker: str) -> Any:
    """Have a broker sent to again."""
    return await admin.name_servers.add_write(broker)

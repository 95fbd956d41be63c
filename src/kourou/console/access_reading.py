"""Users and access control lists of all masters together (ACL 2.0), without any secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kourou.admin import Admin

USER_TYPES = ("Normal", "Super")
STATUSES = ("enable", "disable")
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
DECISIONS = ("Allow", "Deny")
USER_PREFIX = "User:"
_ON = "true"


@dataclass(slots=True)
class UserRow:
    """A user: what the brokers that know it say of it."""

    name: str
    kinds: set[str] = field(default_factory=set)
    statuses: set[str] = field(default_factory=set)
    brokers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AclRow:
    """What is said of a subject and a resource."""

    subject: str
    policy: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str


@dataclass(slots=True)
class AccessTable:
    """All of it; `unguarded` are the masters that check nobody."""

    masters: list[str] = field(default_factory=list)
    unguarded: list[str] = field(default_factory=list)
    users: dict[str, UserRow] = field(default_factory=dict)
    acls: dict[AclRow, list[str]] = field(default_factory=dict)


async def read_access(admin: Admin) -> AccessTable:
    """The users and lists of all masters."""
    table = AccessTable(masters=await admin.link.targets(None, None))
    configs = await admin.link.each(table.masters, admin.brokers.config)
    table.unguarded = [
        address
        for address, config in configs.items()
        if str(config.get("authenticationEnabled", "")).lower() != _ON
    ]
    for address, users in (await admin.link.each(table.masters, admin.access.users)).items():
        for user in users:
            row = table.users.setdefault(str(user.get("username")), UserRow(str(user.get("username"))))
            row.kinds.add(str(user.get("userType") or ""))
            row.statuses.add(str(user.get("userStatus") or ""))
            row.brokers.append(address)
    for address, acls in (await admin.link.each(table.masters, admin.access.acls)).items():
        for acl in acls:
            for one in _rows(acl):
                table.acls.setdefault(one, []).append(address)
    return table


def _rows(acl: dict[str, Any]) -> list[AclRow]:
    return [
        AclRow(
            str(acl.get("subject") or ""),
            str(policy.get("policyType") or ""),
            str(entry.get("resource") or ""),
            tuple(str(action) for action in entry.get("actions") or ()),
            tuple(str(ip) for ip in entry.get("sourceIps") or ()),
            str(entry.get("decision") or ""),
        )
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]

"""Users of brokers, and what they may do (ACL 2.0). Each broker has its own: a change goes to the one that is
named, to the masters of a cluster, or to all masters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import ADMIN, Done, Table, Text, columns, operation
from kourou.admin.operations.parameters import BadInputError, Param

if TYPE_CHECKING:
    from kourou.admin import Admin

USERS = Table(columns("Broker=address:code-, User=user:code, Type=type:badge, Status=status:badge"))
ACLS = Table(
    columns(
        "Subject=subject:code, Resource=resource:code, Actions=actions:code, Decision=decision:badge, "
        "From=from:code-, Policy=policy-, Broker=broker:code-"
    )
)


@operation("user list", USERS, role=ADMIN)
async def list_users(admin: Admin, text: str = "", broker: Text = None, cluster: Text = None) -> Any:
    """List users, broker by broker; secrets are not shown."""
    targets = await admin.link.targets(cluster, broker)
    found = await admin.link.each(targets, lambda address: admin.access.users(address, text))
    names = {"user": "username", "type": "userType", "status": "userStatus"}
    return [
        {"address": address, **{name: user.get(key) for name, key in names.items()}}
        for address, users in found.items()
        for user in users
    ]


@operation("user create", Done("{user} is known to {found}"), role=ADMIN)
async def create_user(
    admin: Admin, user: str, password: str, super_user: bool = False, broker: Text = None,
    cluster: Text = None,
) -> list[str]:  # fmt: skip
    """Make a user. The secret is asked for if it is not given.

    \b
    Example:
      kourou admin user create app
      kourou admin acl allow app Topic:orders Pub
    """
    targets = await admin.link.targets(cluster, broker)
    return await admin.access.create_user(targets, user, password, "Super" if super_user else "Normal")


@operation(
    "user update",
    Done("{user} is changed at {found}"),
    role=ADMIN,
)
async def update_user(
    admin: Admin, user: str, password: Text = None, user_type: Text = None, status: Text = None,
    broker: Text = None, cluster: Text = None,
) -> list[str]:  # fmt: skip
    """Change the secret, the type or the status of a user."""
    if password is None and user_type is None and status is None:
        raise BadInputError("give --password, --type or --status")
    targets = await admin.link.targets(cluster, broker)
    return await admin.access.update_user(targets, user, password=password, kind=user_type, status=status)


@operation(
    "user delete",
    Done("{user} is forgotten at {found}"),
    role=ADMIN,
    confirm="Forget user {user}?",
    needs="user",
)
async def delete_user(admin: Admin, user: str, broker: Text = None, cluster: Text = None) -> list[str]:
    """Forget a user, and what it was allowed."""
    return await admin.access.delete_user(await admin.link.targets(cluster, broker), user)


@operation("acl list", ACLS, role=ADMIN, resource=Param("Only resources that contain this.", metavar="TEXT"))
async def list_acls(
    admin: Admin, subject: str = "", resource: str = "", broker: Text = None, cluster: Text = None
) -> Any:
    """List what users may and may not do, broker by broker."""
    targets = await admin.link.targets(cluster, broker)
    found = await admin.link.each(targets, lambda address: admin.access.acls(address, subject, resource))
    return [
        {
            "broker": address, "subject": acl.get("subject", ""), "policy": policy.get("policyType", ""),
            "resource": entry.get("resource", ""), "actions": ", ".join(entry.get("actions") or ()),
            "from": ", ".join(entry.get("sourceIps") or ()), "decision": entry.get("decision", ""),
        }
        for address, acls in found.items()
        for acl in acls
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]  # fmt: skip


def _subject(user: str) -> str:
    return user if ":" in user else f"User:{user}"


@operation("acl put", Done("{decision} {actions} of {resource} to {user} at {found}"), role=ADMIN)
async def put(
    admin: Admin, user: str, resource: str, actions: list[str], decision: str = "Allow",
    source_ips: list[str] | None = None, broker: Text = None, cluster: Text = None,
) -> list[str]:  # fmt: skip
    """Allow or deny a user something with resources, in place of what was said of these before.

    \b
    Example: a user that may send to all topics of orders, from one network
      kourou admin acl put app 'Topic:orders*' Pub --from 10.0.0.0/8
    """
    targets = await admin.link.targets(cluster, broker)
    resources = [one for one in re.split(r"[,\s]+", resource) if one]
    return await admin.access.put_acl(targets, _subject(user), resources, actions, decision, source_ips or ())


@operation("acl allow", Done("Allow {actions} of {resource} to {user} at {found}"), role=ADMIN)
async def allow(
    admin: Admin, user: str, resource: str, actions: list[str], source_ips: list[str] | None = None,
    broker: Text = None, cluster: Text = None,
) -> Any:  # fmt: skip
    """Let a user do something with a resource."""
    return await put.run(admin, user, resource, actions, "Allow", source_ips, broker, cluster)


@operation("acl deny", Done("Deny {actions} of {resource} to {user} at {found}"), role=ADMIN)
async def deny(
    admin: Admin, user: str, resource: str, actions: list[str], source_ips: list[str] | None = None,
    broker: Text = None, cluster: Text = None,
) -> Any:  # fmt: skip
    """Keep a user from doing something with a resource."""
    return await put.run(admin, user, resource, actions, "Deny", source_ips, broker, cluster)


@operation(
    "acl delete",
    Done("forgotten at {found}"),
    role=ADMIN,
    confirm="Forget what is said for {user}?",
    resource=Param("Only this one.", metavar="RESOURCE", argument=True),
)
async def delete_acl(
    admin: Admin, user: str, resource: Text = None, broker: Text = None, cluster: Text = None
) -> list[str]:  # fmt: skip
    """Forget what is said of a resource, or all that is said of a user."""
    return await admin.access.delete_acl(await admin.link.targets(cluster, broker), _subject(user), resource)

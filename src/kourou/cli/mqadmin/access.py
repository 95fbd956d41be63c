"""Verbs about users and access control lists (ACL 2.0).

As in Java each broker has its own: with -c a change goes to all brokers of a cluster, slaves too, and what is
shown comes from its masters. Secrets are shown as stars, where Java's tool prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kourou.admin.operations.parameters import BadInputError
from kourou.cli.mqadmin.verbs import Given, verb
from kourou.cli.mqadmin.words import java_value, line, table

if TYPE_CHECKING:
    from kourou.admin import Admin

_WHERE = "b|brokerAddr c|clusterName"
_ENTRY = f"{_WHERE} s!subject r!resources a!actions d!decision i:sourceIp"


async def _all(admin: Admin, given: Given) -> list[str]:
    """Where a change goes."""
    if given.has("b"):
        return [given.text("b")]
    brokers = await admin.link.brokers(given.text("c"))
    return [address for info in brokers for address in info.addresses.values()]


async def _shown(admin: Admin, given: Given) -> list[str]:
    """Who is asked what there is."""
    return [given.text("b")] if given.has("b") else await admin.link.targets(given.text("c"), None)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _success(form: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        line(form, address)


# Users


@verb(f"createUser {_WHERE} u!username p!password t:userType", "Make a user.")
async def create_user(admin: Admin, given: Given) -> None:
    kind = given.text("t", "Normal")
    done = await admin.access.create_user(await _all(admin, given), given.text("u"), given.text("p"), kind)
    _success("create user to %s success.", done)


@verb(
    f"updateUser {_WHERE} u!username p:password t:userType s:userStatus",
    "Change the secret, the type or the status of a user.",
)
async def update_user(admin: Admin, given: Given) -> None:
    if not any(map(given.has, "pts")):
        raise BadInputError("Missing required option: one of -p, -t, -s")
    changes = {"password": given.get("p"), "kind": given.get("t"), "status": given.get("s")}
    done = await admin.access.update_user(await _all(admin, given), given.text("u"), **changes)
    _success("update user to %s success.", done)


@verb(f"deleteUser {_WHERE} u!username", "Forget a user.")
async def delete_user(admin: Admin, given: Given) -> None:
    done = await admin.access.delete_user(await _all(admin, given), given.text("u"))
    _success("delete user to %s success.", done)


@verb(f"getUser {_WHERE} u:username", "Show a user.")
async def get_user(admin: Admin, given: Given) -> None:
    for address in await _shown(admin, given):
        user = await admin.access.user(address, given.text("u"))
        if user is not None:
            _print_users([user])
            return


@verb(f"listUser {_WHERE} f:filter", "List users.")
async def list_user(admin: Admin, given: Given) -> None:
    for address in await _shown(admin, given):
        users = await admin.access.users(address, given.text("f"))
        if users:
            _print_users(users)
            if not given.has("b"):
                line("get user from %s success.", address)
            return


@verb(
    "copyUser f!fromBroker t!toBroker u:usernames", "Copy users from a broker to another, with their secrets."
)
async def copy_user(admin: Admin, given: Given) -> None:
    source, target = given.text("f"), given.text("t")
    names = _split(given.text("u")) if given.has("u") else None
    for name in await admin.access.copy_users(source, target, names):
        line("copy user of %s from %s to %s success.", name, source, target)


def _print_users(users: list[dict[str, Any]]) -> None:
    shown = ({**user, "password": "******"} for user in users)
    heads = "#UserName|#Password|#UserType|#UserStatus"
    table("%-16s  %-22s  %-22s  %-22s", heads, shown, "username password userType:java userStatus:java")


# Access control lists


async def _put_acl(admin: Admin, given: Given, *, is_new: bool) -> list[str]:
    return await admin.access.put_acl(
        await _all(admin, given), given.text("s"), _split(given.text("r")), _split(given.text("a")),
        given.text("d"), _split(given.text("i")), is_new=is_new,
    )  # fmt: skip


@verb(f"createAcl {_ENTRY}", "Allow or deny a user something.")
async def create_acl(admin: Admin, given: Given) -> None:
    _success("create acl to %s success.", await _put_acl(admin, given, is_new=True))


@verb(f"updateAcl {_ENTRY}", "Change what a user is allowed or denied.")
async def update_acl(admin: Admin, given: Given) -> None:
    _success("update acl to %s success.", await _put_acl(admin, given, is_new=False))


@verb(
    f"deleteAcl {_WHERE} s!subject r:resources",
    "Forget what is said of a resource, or all that is said of a user.",
)
async def delete_acl(admin: Admin, given: Given) -> None:
    done = await admin.access.delete_acl(await _all(admin, given), given.text("s"), given.get("r"))
    _success("delete acl to %s success.", done)


@verb(f"getAcl {_WHERE} s:subject", "Show what a user may and may not do.")
async def get_acl(admin: Admin, given: Given) -> None:
    for address in await _shown(admin, given):
        acl = await admin.access.acl(address, given.text("s"))
        if acl is not None:
            _print_acls([acl])


@verb(f"listAcl {_WHERE} s:subject r:resource", "List what users may and may not do.")
async def list_acl(admin: Admin, given: Given) -> None:
    for address in await _shown(admin, given):
        acls = await admin.access.acls(address, given.text("s"), given.text("r"))
        if acls:
            _print_acls(acls)


@verb(
    "copyAcl f!fromBroker t!toBroker s:subjects",
    "Copy what users may and may not do from a broker to another.",
)
async def copy_acl(admin: Admin, given: Given) -> None:
    source, target = given.text("f"), given.text("t")
    subjects = _split(given.text("s")) if given.has("s") else None
    for subject in await admin.access.copy_acls(source, target, subjects):
        line("copy acl of %s from %s to %s success.", subject, source, target)


def _print_acls(acls: list[dict[str, Any]]) -> None:
    form = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"
    line(form, "#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")
    for acl in acls:
        if not acl.get("policies"):
            line(form, acl.get("subject"), "", "", "", "", "")
        for policy in acl.get("policies") or ():
            for entry in policy.get("entries") or ():
                values = [entry.get(key) for key in ("resource", "actions", "sourceIps", "decision")]
                line(form, acl.get("subject"), *map(java_value, (policy.get("policyType"), *values)))

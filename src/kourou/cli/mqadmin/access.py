"""Verbs of `kourou mqadmin` about users and access control lists (ACL 2.0).

As in Java each broker has its own: with -c a change goes to all brokers of a cluster, slaves too, and what is
shown comes from its masters. Secrets are shown as stars, where Java's tool prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kourou.cli.mqadmin.verbs import BadFlagsError, Flags, Verb, flags, java_value, line

if TYPE_CHECKING:
    from kourou.admin import Admin

_USERS = "%-16s  %-22s  %-22s  %-22s"
_ACLS = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"
_STARS = "******"
_WHERE = "b:brokerAddr c:clusterName"


# Which brokers


async def _all(admin: Admin, given: Flags) -> list[str]:
    """Where a change goes."""
    if given.has("b"):
        return [given.text("b")]
    brokers = await admin.link.brokers(given.text("c"))
    return [address for info in brokers for address in info.addresses.values()]


async def _shown(admin: Admin, given: Flags) -> list[str]:
    """Who is asked what there is."""
    return [given.text("b")] if given.has("b") else await admin.link.targets(given.text("c"), None)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _success(form: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        line(form, address)


# Users


async def _create_user(admin: Admin, given: Flags) -> None:
    name, password, kind = given.text("u"), given.text("p"), given.text("t", "Normal")
    done = await admin.access.create_user(await _all(admin, given), name, password, kind)
    _success("create user to %s success.", done)


async def _update_user(admin: Admin, given: Flags) -> None:
    if not any(map(given.has, "pts")):
        raise BadFlagsError("Missing required option: one of -p, -t, -s")
    done = await admin.access.update_user(
        await _all(admin, given),
        given.text("u"),
        password=given.get("p"),
        kind=given.get("t"),
        status=given.get("s"),
    )
    _success("update user to %s success.", done)


async def _delete_user(admin: Admin, given: Flags) -> None:
    done = await admin.access.delete_user(await _all(admin, given), given.text("u"))
    _success("delete user to %s success.", done)


async def _get_user(admin: Admin, given: Flags) -> None:
    for address in await _shown(admin, given):
        user = await admin.access.user(address, given.text("u"))
        if user is not None:
            _print_users([user])
            return


async def _list_user(admin: Admin, given: Flags) -> None:
    for address in await _shown(admin, given):
        users = await admin.access.users(address, given.text("f"))
        if users:
            _print_users(users)
            if not given.has("b"):
                line("get user from %s success.", address)
            return


async def _copy_user(admin: Admin, given: Flags) -> None:
    source, target = given.text("f"), given.text("t")
    names = _split(given.text("u")) if given.has("u") else None
    for name in await admin.access.copy_users(source, target, names):
        line("copy user of %s from %s to %s success.", name, source, target)


def _print_users(users: list[dict[str, Any]]) -> None:
    line(_USERS, "#UserName", "#Password", "#UserType", "#UserStatus")
    for user in users:
        kind, status = java_value(user.get("userType")), java_value(user.get("userStatus"))
        line(_USERS, user.get("username"), _STARS, kind, status)


# Access control lists


async def _put_acl(admin: Admin, given: Flags, *, is_new: bool) -> list[str]:
    return await admin.access.put_acl(
        await _all(admin, given),
        given.text("s"),
        _split(given.text("r")),
        _split(given.text("a")),
        given.text("d"),
        _split(given.text("i")),
        is_new=is_new,
    )


async def _create_acl(admin: Admin, given: Flags) -> None:
    _success("create acl to %s success.", await _put_acl(admin, given, is_new=True))


async def _update_acl(admin: Admin, given: Flags) -> None:
    _success("update acl to %s success.", await _put_acl(admin, given, is_new=False))


async def _delete_acl(admin: Admin, given: Flags) -> None:
    done = await admin.access.delete_acl(await _all(admin, given), given.text("s"), given.get("r"))
    _success("delete acl to %s success.", done)


async def _get_acl(admin: Admin, given: Flags) -> None:
    for address in await _shown(admin, given):
        acl = await admin.access.acl(address, given.text("s"))
        if acl is not None:
            _print_acls([acl])


async def _list_acl(admin: Admin, given: Flags) -> None:
    for address in await _shown(admin, given):
        acls = await admin.access.acls(address, given.text("s"), given.text("r"))
        if acls:
            _print_acls(acls)


async def _copy_acl(admin: Admin, given: Flags) -> None:
    source, target = given.text("f"), given.text("t")
    subjects = _split(given.text("s")) if given.has("s") else None
    for subject in await admin.access.copy_acls(source, target, subjects):
        line("copy acl of %s from %s to %s success.", subject, source, target)


def _print_acls(acls: list[dict[str, Any]]) -> None:
    line(_ACLS, "#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")
    for acl in acls:
        subject = acl.get("subject")
        if not acl.get("policies"):
            line(_ACLS, subject, "", "", "", "", "")
        for policy in acl.get("policies") or ():
            for entry in policy.get("entries") or ():
                line(
                    _ACLS,
                    subject,
                    java_value(policy.get("policyType")),
                    java_value(entry.get("resource")),
                    java_value(entry.get("actions")),
                    java_value(entry.get("sourceIps")),
                    java_value(entry.get("decision")),
                )


_ENTRY = f"{_WHERE} s!subject r!resources a!actions d!decision i:sourceIp"

VERBS = (
    Verb(
        "createUser", "Make a user.", flags(f"{_WHERE} u!username p!password t:userType"), _create_user, "bc"
    ),
    Verb(
        "updateUser",
        "Change the secret, the type or the status of a user.",
        flags(f"{_WHERE} u!username p:password t:userType s:userStatus"),
        _update_user,
        "bc",
    ),
    Verb("deleteUser", "Forget a user.", flags(f"{_WHERE} u!username"), _delete_user, "bc"),
    Verb("getUser", "Show a user.", flags(f"{_WHERE} u:username"), _get_user, "bc"),
    Verb("listUser", "List users.", flags(f"{_WHERE} f:filter"), _list_user, "bc"),
    Verb(
        "copyUser",
        "Copy users from a broker to another, with their secrets.",
        flags("f!fromBroker t!toBroker u:usernames"),
        _copy_user,
    ),
    Verb("createAcl", "Allow or deny a user something.", flags(_ENTRY), _create_acl, "bc"),
    Verb("updateAcl", "Change what a user is allowed or denied.", flags(_ENTRY), _update_acl, "bc"),
    Verb(
        "deleteAcl",
        "Forget what is said of a resource, or all that is said of a user.",
        flags(f"{_WHERE} s!subject r:resources"),
        _delete_acl,
        "bc",
    ),
    Verb("getAcl", "Show what a user may and may not do.", flags(f"{_WHERE} s:subject"), _get_acl, "bc"),
    Verb(
        "listAcl",
        "List what users may and may not do.",
        flags(f"{_WHERE} s:subject r:resource"),
        _list_acl,
        "bc",
    ),
    Verb(
        "copyAcl",
        "Copy what users may and may not do from a broker to another.",
        flags("f!fromBroker t!toBroker s:subjects"),
        _copy_acl,
    ),
)

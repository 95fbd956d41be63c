"""`kourou admin user` and `kourou admin acl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kourou.cli.admin.run import (
    DEFAULT_NAMESRV,
    AsJson,
    Broker,
    Cluster,
    Namesrv,
    Yes,
    confirm,
    run,
    said,
)
from kourou.cli.output import print_json_lines, print_table

if TYPE_CHECKING:
    from kourou.admin import Admin

user_app = typer.Typer(name="user", no_args_is_help=True, help="Users of brokers (ACL 2.0).")
acl_app = typer.Typer(name="acl", no_args_is_help=True, help="What users may do (ACL 2.0).")

UserName = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]
Password = Annotated[
    str | None,
    typer.Option(
        envvar="KOUROU_NEW_PASSWORD", help="The secret; asked for if it is not given.", show_default=False
    ),
]


@user_app.command("list")
def user_list(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only names that contain this.")] = "",
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """List users, broker by broker; secrets are not shown."""

    async def work(admin: Admin) -> dict[str, list[dict[str, Any]]]:
        targets = await admin.link.targets(cluster, broker)
        return await admin.link.each(targets, lambda address: admin.access.users(address, text))

    found = run(namesrv, work)
    rows = [
        (address, user.get("username"), user.get("userType"), user.get("userStatus"))
        for address, users in found.items()
        for user in users
    ]
    if json:
        print_json_lines({"address": a, "user": n, "type": t, "status": s} for a, n, t, s in rows)
    else:
        print_table(("broker", "user", "type", "status"), rows)


@user_app.command("create")
def user_create(
    name: UserName,
    password: Password = None,
    super_user: Annotated[
        bool, typer.Option("--super", help="A user who may do everything.", show_default=False)
    ] = False,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Make a user.

    \b
    Example:
      kourou admin user create app
      kourou admin acl allow app Topic:orders Pub
    """
    secret = password or typer.prompt("Secret", hide_input=True, confirmation_prompt=True)
    kind = "Super" if super_user else "Normal"

    async def work(admin: Admin) -> list[str]:
        targets = await admin.link.targets(cluster, broker)
        return await admin.access.create_user(targets, name, secret, kind)

    said(f"{name} is known to {', '.join(run(namesrv, work))}")


@user_app.command("update")
def user_update(
    name: UserName,
    password: Password = None,
    kind: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Super or Normal.", show_default=False)
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="enable or disable.", show_default=False)
    ] = None,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Change the secret, the type or the status of a user."""
    if password is None and kind is None and status is None:
        raise typer.BadParameter("give --password, --type or --status")

    async def work(admin: Admin) -> list[str]:
        targets = await admin.link.targets(cluster, broker)
        return await admin.access.update_user(targets, name, password=password, kind=kind, status=status)

    said(f"{name} is changed at {', '.join(run(namesrv, work))}")


@user_app.command("delete")
def user_delete(
    name: UserName,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Forget a user, and what it was allowed."""
    from kourou.admin import AdminError

    confirm(f"Forget user {name}?", yes)

    async def work(admin: Admin) -> list[str]:
        targets = await admin.link.targets(cluster, broker)
        if not any((await admin.link.each(targets, lambda one: admin.access.user(one, name))).values()):
            raise AdminError(f"there is no user {name}: `kourou admin user list` has those that there are")
        return await admin.access.delete_user(targets, name)

    said(f"{name} is forgotten at {', '.join(run(namesrv, work))}")


@acl_app.command("list")
def acl_list(
    subject: Annotated[str, typer.Argument(metavar="[USER]", help="Only of this user.")] = "",
    resource: Annotated[str, typer.Option(metavar="TEXT", help="Only resources that contain this.")] = "",
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: AsJson = False,
) -> None:
    """List what users may and may not do, broker by broker."""

    async def work(admin: Admin) -> dict[str, list[dict[str, Any]]]:
        targets = await admin.link.targets(cluster, broker)
        return await admin.link.each(targets, lambda address: admin.access.acls(address, subject, resource))

    rows = [
        (
            address, acl.get("subject", ""), policy.get("policyType", ""), entry.get("resource", ""),
            ", ".join(entry.get("actions") or ()), ", ".join(entry.get("sourceIps") or ()),
            entry.get("decision", ""),
        )
        for address, acls in run(namesrv, work).items()
        for acl in acls
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]  # fmt: skip
    headings = ("broker", "subject", "policy", "resource", "actions", "from", "decision")
    if json:
        print_json_lines(dict(zip(headings, row)) for row in rows)
    else:
        print_table(headings, rows)


Resources = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Topic:name, Topic:prefix*, Group:name, Cluster:name or *.")
]
Actions = Annotated[
    list[str],
    typer.Argument(metavar="ACTION…", help="All, Pub, Sub, Create, Update, Delete, Get or List."),
]
SourceIps = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="NETWORK", help="Only from here; again for more.", show_default=False),
]


def _put(
    decision: str,
    name: str,
    resource: str,
    actions: list[str],
    source_ips: list[str] | None,
    where: tuple[str | None, str | None, str],
) -> None:
    cluster, broker, namesrv = where

    async def work(admin: Admin) -> list[str]:
        targets = await admin.link.targets(cluster, broker)
        return await admin.access.put_acl(
            targets, f"User:{name}", [resource], actions, decision, source_ips or ()
        )

    said(f"{decision} {', '.join(actions)} of {resource} to {name} at {', '.join(run(namesrv, work))}")


@acl_app.command("allow")
def acl_allow(
    name: UserName,
    resource: Resources,
    actions: Actions,
    source_ips: SourceIps = None,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Let a user do something with a resource."""
    _put("Allow", name, resource, actions, source_ips, (cluster, broker, namesrv))


@acl_app.command("deny")
def acl_deny(
    name: UserName,
    resource: Resources,
    actions: Actions,
    source_ips: SourceIps = None,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Keep a user from doing something with a resource."""
    _put("Deny", name, resource, actions, source_ips, (cluster, broker, namesrv))


@acl_app.command("delete")
def acl_delete(
    name: UserName,
    resource: Annotated[
        str | None, typer.Argument(metavar="[RESOURCE]", help="Only this one.", show_default=False)
    ] = None,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    yes: Yes = False,
) -> None:
    """Forget what is said of a resource, or all that is said of a user."""
    confirm(f"Forget what is said of {resource or 'everything'} for {name}?", yes)

    async def work(admin: Admin) -> list[str]:
        targets = await admin.link.targets(cluster, broker)
        return await admin.access.delete_acl(targets, f"User:{name}", resource)

    said(f"forgotten at {', '.join(run(namesrv, work))}")

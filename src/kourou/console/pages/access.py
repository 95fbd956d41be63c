"""Users and lists: who may do what at the brokers (ACL 2.0), for administrators."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.console.access_reading import (
    ACTIONS,
    DECISIONS,
    STATUSES,
    USER_PREFIX,
    USER_TYPES,
    AccessTable,
    AclRow,
    read_access,
)
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views.components import (
    Section,
    card,
    confirm_by_name,
    dialog,
    dialog_buttons,
    empty,
    page_title,
)
from kourou.console.views.table import Column, DataTable, RowAction
from kourou.console.views.view import View

_SEPARATORS = re.compile(r"[,\s]+")


async def draw(view: View) -> None:
    """Draw the page."""
    page_title(t("Users and ACLs"), t("Who may do what at the brokers; secrets are never shown"))
    if not view.may(Role.ADMIN):
        with card():
            empty(
                "admin_panel_settings",
                t("This is for administrators"),
                t("Ask an administrator of the console"),
            )
        return
    _Page(view).draw()


class _Page:
    """Users and lists, and what changes them."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._section: Section | None = None

    def draw(self) -> None:
        """Draw what is known, or why nothing is."""
        self._section = Section(self._read, self._draw_tables)

    async def _read(self) -> AccessTable:
        self._view.access.check(self._view.session, Role.ADMIN)
        return await self._view.backend.ask("access", read_access, ttl_s=0)

    async def _change(self, work: Callable[[Admin, list[str]], Awaitable[Any]], done: str) -> bool:
        async def run(admin: Admin) -> bool:
            await work(admin, await admin.link.targets(None, None))
            return True

        is_done = await self._view.change(Role.ADMIN, run, done, is_content=False)
        if is_done and self._section is not None:
            await self._section.load()
        return bool(is_done)

    def _draw_tables(self, table: AccessTable) -> None:
        if table.unguarded:
            with ui.element("div").classes("k-banner k-warn").props("role=alert"):
                ui.icon("gpp_maybe").classes("text-lg")
                ui.label(
                    t(
                        "Authentication is off at {brokers}: there everybody may do everything. Users and"
                        " lists count once authenticationEnabled and authorizationEnabled are true.",
                        brokers=", ".join(table.unguarded),
                    )
                )
        self._draw_users(table)
        self._draw_acls(table)

    # Users

    def _draw_users(self, table: AccessTable) -> None:
        rows = [
            {
                "name": row.name,
                "type": ", ".join(sorted(row.kinds)),
                "type_color": "info" if "Super" in row.kinds else "mute",
                "status": ", ".join(sorted(row.statuses)),
                "status_color": "good" if row.statuses == {"enable"} else "bad",
                "brokers": _where(row.brokers, table),
            }
            for row in table.users.values()
        ]
        with card(t("Users"), t("of the brokers, not of this console")):
            ui.button(t("Create user"), icon="person_add", on_click=lambda: self._edit_user(None)).props(
                "unelevated"
            ).classes("mb-3")
            DataTable(
                [
                    Column("name", t("User"), "code"),
                    Column("type", t("Type"), "badge"),
                    Column("status", t("Status"), "badge"),
                    Column("brokers", t("Brokers"), "code", minor=True),
                ],
                rows,
                export="users",
                sort="name",
                actions=[
                    RowAction("edit", t("Edit user"), self._edit_user),
                    RowAction("delete", t("Delete user"), self._delete_user),
                ],
                nothing=t("No users yet"),
            )

    def _edit_user(self, row: dict[str, Any] | None) -> None:
        with dialog(t("Edit user") if row else t("Create user")) as box:
            name = ui.input(t("Name"), value=row["name"] if row else "").props(
                "outlined dense autocomplete=off" + (" readonly" if row else " autofocus")
            )
            secret = ui.input(
                t("New secret (empty: as it is)") if row else t("Secret"), password=True,
                password_toggle_button=True,
            ).props("outlined dense autocomplete=new-password")  # fmt: skip
            kind = ui.select(
                list(USER_TYPES), value=_one(row, "type", USER_TYPES), label=t("Type")
            ).props(f'outlined dense aria-label="{t("Type")}"')  # fmt: skip
            status = ui.select(
                list(STATUSES), value=_one(row, "status", STATUSES), label=t("Status")
            ).props(f'outlined dense aria-label="{t("Status")}"')  # fmt: skip
            status.set_visibility(row is not None)

            async def save() -> bool:
                user = (name.value or "").strip()
                if row is None:
                    return await self._change(
                        lambda admin, brokers: admin.access.create_user(
                            brokers, user, str(secret.value or ""), str(kind.value)
                        ),
                        t("User {name} is created", name=user),
                    )
                return await self._change(
                    lambda admin, brokers: admin.access.update_user(
                        brokers, user, password=secret.value or None, kind=str(kind.value),
                        status=str(status.value),
                    ),
                    t("User {name} is changed", name=user),
                )  # fmt: skip

            dialog_buttons(box, t("Save"), save)

    def _delete_user(self, row: dict[str, Any]) -> None:
        name = str(row["name"])
        confirm_by_name(
            t("Delete user"),
            t("Clients that sign as {name} are refused from now on.", name=name),
            name,
            t("Delete"),
            lambda: self._change(
                lambda admin, brokers: admin.access.delete_user(brokers, name),
                t("User {name} is deleted", name=name),
            ),
        )

    # Lists

    def _draw_acls(self, table: AccessTable) -> None:
        known = dict(enumerate(table.acls))
        rows = [
            {
                "id": at,
                "subject": row.subject,
                "resource": row.resource,
                "actions": ", ".join(row.actions),
                "from": ", ".join(row.source_ips) or t("anywhere"),
                "decision": row.decision,
                "decision_color": "good" if row.decision == DECISIONS[0] else "bad",
                "policy": row.policy,
                "brokers": _where(table.acls[row], table),
            }
            for at, row in known.items()
        ]
        with card(t("Access control lists")):
            ui.button(t("Create entry"), icon="add", on_click=lambda: self._edit_acl(None)).props(
                "unelevated"
            ).classes("mb-3")
            DataTable(
                [
                    Column("subject", t("Subject"), "code"),
                    Column("resource", t("Resource"), "code"),
                    Column("actions", t("Actions"), "code"),
                    Column("decision", t("Decision"), "badge"),
                    Column("from", t("From"), "code", minor=True),
                    Column("policy", t("Policy"), minor=True),
                    Column("brokers", t("Brokers"), "code", minor=True),
                ],
                rows,
                key="id",
                export="acls",
                sort="subject",
                actions=[
                    RowAction("edit", t("Edit entry"), lambda row: self._edit_acl(known[int(row["id"])])),
                    RowAction(
                        "delete", t("Delete entry"), lambda row: self._delete_acl(known[int(row["id"])])
                    ),
                ],
                nothing=t("No lists yet: with authorization on, only super users may do anything"),
            )

    def _edit_acl(self, row: AclRow | None) -> None:
        with dialog(t("Edit entry") if row else t("Create entry")) as box:
            fixed = " readonly" if row else ""
            subject = ui.input(
                t("User"), value=row.subject.removeprefix(USER_PREFIX) if row else ""
            ).props(f"outlined dense{fixed}")  # fmt: skip
            resources = ui.input(
                t("Resources"), value=row.resource if row else "",
                placeholder="Topic:orders, Group:billing*, *",
            ).props(f"outlined dense stack-label{fixed}")  # fmt: skip
            chosen = [one for one in ACTIONS if row and one.lower() in {a.lower() for a in row.actions}]
            actions = ui.select(list(ACTIONS), value=chosen, label=t("Actions"), multiple=True).props(
                f'outlined dense use-chips aria-label="{t("Actions")}"'
            )
            ips = ui.input(
                t("Only from (addresses or networks)"), value=", ".join(row.source_ips) if row else "",
                placeholder=t("anywhere"),
            ).props("outlined dense stack-label")  # fmt: skip
            decision = ui.select(
                list(DECISIONS), value=row.decision if row and row.decision in DECISIONS else DECISIONS[0],
                label=t("Decision"),
            ).props(f'outlined dense aria-label="{t("Decision")}"')  # fmt: skip

            async def save() -> bool:
                wanted = _words(resources.value)
                user = (subject.value or "").strip()
                if not user or not wanted or not actions.value:
                    ui.notify(t("A user, resources and actions are needed"), type="warning")
                    return False
                return await self._change(
                    lambda admin, brokers: admin.access.put_acl(
                        brokers, _subject(user), wanted, list(actions.value), str(decision.value),
                        _words(ips.value), is_new=row is None,
                    ),
                    t("The list of {name} is saved", name=user),
                )  # fmt: skip

            dialog_buttons(box, t("Save"), save)

    def _delete_acl(self, row: AclRow) -> None:
        with dialog(t("Delete entry")) as box:
            ui.label(
                t(
                    "What is said of {resource} for {subject} is forgotten.",
                    resource=row.resource, subject=row.subject,
                )
            ).style("overflow-wrap: anywhere")  # fmt: skip

            async def delete() -> bool:
                return await self._change(
                    lambda admin, brokers: admin.access.delete_acl(brokers, row.subject, row.resource),
                    t("The entry is deleted"),
                )

            dialog_buttons(box, t("Delete"), delete, is_dangerous=True)


def _where(brokers: list[str], table: AccessTable) -> str:
    return t("All masters") if len(brokers) == len(table.masters) else ", ".join(sorted(brokers))


def _one(row: dict[str, Any] | None, name: str, values: tuple[str, ...]) -> str:
    return str(row[name]) if row and row[name] in values else values[0]


def _subject(user: str) -> str:
    return user if ":" in user else f"{USER_PREFIX}{user}"


def _words(text: str | None) -> list[str]:
    return [word for word in _SEPARATORS.split(text or "") if word]

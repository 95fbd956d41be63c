"""Users and lists: who may do what at the brokers (ACL 2.0), for administrators."""

from __future__ import annotations

from typing import Any, NamedTuple

from nicegui import ui

from kourou.admin import Admin
from kourou.admin.operations import access
from kourou.admin.operations.parameters import PARAMETERS
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views.components import Section, card, dialog, dialog_buttons, empty, page_title
from kourou.console.views.operations import AnswerTable, ask, change, destroy
from kourou.console.views.table import RowAction
from kourou.console.views.view import View


class AccessTable(NamedTuple):
    """Users and lists of all masters, as rows; `unguarded` are the masters that check nobody."""

    unguarded: list[str]
    users: list[dict[str, Any]]
    acls: list[dict[str, Any]]


async def read_access(admin: Admin) -> AccessTable:
    """The users and lists of all masters. What all of them say the same is one row."""
    masters = await admin.link.targets(None, None)
    configs = await admin.link.each(masters, admin.brokers.config)
    unguarded = [
        address for address, config in configs.items()
        if str(config.get("authenticationEnabled", "")).lower() != "true"
    ]  # fmt: skip
    users = _merged(await access.list_users.run(admin), "address", len(masters))
    return AccessTable(unguarded, users, _merged(await access.list_acls.run(admin), "broker", len(masters)))


def _merged(rows: list[dict[str, Any]], broker: str, masters: int) -> list[dict[str, Any]]:
    brokers: dict[tuple[Any, ...], list[str]] = {}
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(value for name, value in row.items() if name != broker)
        known[key] = row
        brokers.setdefault(key, []).append(row[broker])
    return [
        {**row, broker: "" if len(brokers[key]) == masters else ", ".join(sorted(brokers[key]))}
        for key, row in known.items()
    ]


def _named(rows: list[dict[str, Any]], broker: str) -> list[dict[str, Any]]:
    return [{**row, broker: row[broker] or t("All masters")} for row in rows]


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

    async def _again(self, *_: object) -> None:
        if self._section is not None:
            await self._section.load()

    def _draw_tables(self, found: AccessTable) -> None:
        if found.unguarded:
            with ui.element("div").classes("k-banner k-warn").props("role=alert"):
                ui.icon("gpp_maybe").classes("text-lg")
                ui.label(
                    t(
                        "Authentication is off at {brokers}: there everybody may do everything. Users and"
                        " lists count once authenticationEnabled and authorizationEnabled are true.",
                        brokers=", ".join(found.unguarded),
                    )
                )
        with card(t("Users"), t("of the brokers, not of this console")):
            ui.button(t("Create user"), icon="person_add", on_click=self._create_user).props(
                "unelevated"
            ).classes("mb-3")
            AnswerTable(
                access.USERS, _named(found.users, "address"), export="users", sort="User",
                nothing=t("No users yet"),
                actions=[
                    RowAction("edit", t("Edit user"), self._edit_user),
                    RowAction("delete", t("Delete user"), self._delete_user),
                ],
            )  # fmt: skip
        with card(t("Access control lists")):
            ui.button(t("Create entry"), icon="add", on_click=lambda: self._edit_acl({})).props(
                "unelevated"
            ).classes("mb-3")
            AnswerTable(
                access.ACLS, _named(found.acls, "broker"), export="acls", sort="Subject",
                nothing=t("No lists yet: with authorization on, only super users may do anything"),
                actions=[
                    RowAction("edit", t("Edit entry"), self._edit_acl),
                    RowAction("delete", t("Delete entry"), self._delete_acl),
                ],
            )  # fmt: skip

    def _create_user(self) -> None:
        ask(
            self._view, access.create_user, t("Create user"), t("Save"),
            t("User {name} is created", name="{user}"), fields="user, password, super_user",
            then=self._again, is_content=False,
        )  # fmt: skip

    def _edit_user(self, row: dict[str, Any]) -> None:
        ask(
            self._view, access.update_user, t("Edit user"), t("Save"),
            t("User {name} is changed", name="{user}"),
            fields="password=New secret (empty: as it is), user_type, status",
            fixed={"user": row["user"]}, known={"user_type": row["type"], "status": row["status"]},
            notes=[row["user"]], then=self._again, is_content=False,
        )  # fmt: skip

    def _delete_user(self, row: dict[str, Any]) -> None:
        name = str(row["user"])
        destroy(
            self._view, access.delete_user, name, t("Delete user"),
            t("Clients that sign as {name} are refused from now on.", name=name),
            t("User {name} is deleted", name=name), {"user": name}, self._again, is_content=False,
        )  # fmt: skip

    def _edit_acl(self, row: dict[str, Any]) -> None:
        fixed = {"user": row["subject"], "resource": row["resource"]} if row else {}
        actions = {word.lower() for word in row.get("actions", "").split(", ")}
        known = {
            "actions": [one for one in PARAMETERS["actions"].choices if one.lower() in actions],
            "source_ips": row.get("from", ""),
            "decision": row.get("decision"),
        }
        fields = "actions, source_ips, decision"
        ask(
            self._view, access.put, t("Edit entry") if row else t("Create entry"), t("Save"),
            t("The list of {name} is saved", name="{user}"), fixed=fixed, known=known,
            fields=fields if row else f"user=User, resource, {fields}", notes=list(fixed.values()),
            then=self._again, is_content=False,
        )  # fmt: skip

    def _delete_acl(self, row: dict[str, Any]) -> None:
        said = {"resource": row["resource"], "subject": row["subject"]}
        with dialog(t("Delete entry")) as box:
            text = t("What is said of {resource} for {subject} is forgotten.", **said)
            ui.label(text).style("overflow-wrap: anywhere")
            given = {"user": row["subject"], "resource": row["resource"]}
            dialog_buttons(
                box, t("Delete"), is_dangerous=True,
                action=lambda: change(
                    self._view, access.delete_acl, given, t("The entry is deleted"), self._again,
                    is_content=False,
                ),
            )  # fmt: skip

"""A consumer group: how far it is, who is in it, its settings; where it goes on is changed, it is deleted."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin.model import GroupConnections, GroupProgress, PopProgress
from kourou.admin.operations import groups
from kourou.admin.operations.declare import Table, columns
from kourou.client.core import RefusedError
from kourou.console.door.users import Role
from kourou.console.pages.groups.all import OFFLINE, ONLINE, settings_dialog
from kourou.console.pages.groups.client import client_dialog
from kourou.console.pages.groups.offsets import clone_dialog, reset_dialog, skip_dialog
from kourou.console.texts import t
from kourou.console.views.components import (
    Stat,
    badge,
    card,
    empty,
    grid,
    live,
    number,
    page_title,
    refresh_button,
    tab_sections,
)
from kourou.console.views.operations import AnswerTable, destroy
from kourou.console.views.table import RowAction
from kourou.console.views.view import View, from_path
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode

SETTINGS = Table(columns("Broker=broker-, Name=name:code, Value=value:code"))


async def draw(view: View, name: str) -> None:
    """Draw the page of a group."""
    group = from_path(name)
    await view.backend.ready()
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(group, parent=(t("Consumer groups"), "/groups"))
        with ui.row().classes("gap-2 items-center") as actions:
            state = badge("")
            _draw_actions(view, group)
    with grid():
        lag, clients, rate, dead = (
            Stat(t("Lag"), mark="lag"),
            Stat(t("Clients"), mark="clients"),
            Stat(t("Out / s"), mark="rate"),
            Stat(t("Dead letters"), mark="dead"),
        )

    def refresh() -> None:
        now = view.snapshot.groups.get(group)
        is_online = now is not None and bool(now.clients)
        state.set_text(t(ONLINE if is_online else OFFLINE))
        state.classes(remove="k-good k-mute", add="k-good" if is_online else "k-mute")
        if now is not None:
            lag.show(number(now.lag))
            clients.show(number(len(now.clients)), " ".join((now.consume_type, now.message_model.lower())))
            rate.show(number(now.tps))
            dead.show(number(now.dead))

    live(view, refresh)
    sections = tab_sections(
        {
            "progress": (t("Progress"), lambda: _progress(view, group), _draw_progress),
            "pops": (t("POP"), lambda: view.answer(groups.pops, {"group": group}), _draw_pops),
            "clients": (
                t("Clients"), lambda: _connections(view, group),
                lambda found: _draw_clients(view, group, found),
            ),
            "settings": (
                t("Settings"), lambda: _settings(view, group),
                lambda found: _draw_settings(view, group, found),
            ),
        }
    )  # fmt: skip
    with actions:
        refresh_button(view, sections)


async def _progress(view: View, group: str) -> Any:
    """How far a group is, with the clients of its queues; without them where one does not answer."""
    try:
        return await view.answer(groups.progress, {"group": group, "with_clients": True})
    except KourouError:
        return await view.answer(groups.progress, {"group": group})


def _draw_actions(view: View, group: str) -> None:
    if view.may(Role.OPERATOR):
        with ui.button(t("Offsets"), icon="history").props("unelevated"), ui.menu():
            ui.menu_item(t("Reset offsets by time"), lambda: reset_dialog(view, group))
            ui.menu_item(t("Skip accumulated messages"), lambda: skip_dialog(view, group))
            ui.menu_item(t("Clone offsets of another group"), lambda: clone_dialog(view, group))
    if view.may(Role.ADMIN):
        with ui.button(icon="more_vert").props(f'flat round dense aria-label="{t("More")}"'), ui.menu():
            ui.menu_item(t("Delete group"), lambda: _delete(view, group))


def _delete(view: View, group: str) -> None:
    destroy(
        view, groups.delete, group, t("Delete group"),
        t("Its offsets, its retries and its dead letters are lost for good."),
        t("Group {name} is deleted", name=group), {"group": group, "clean_offset": True},
        lambda *_: ui.navigate.to("/groups"),
    )  # fmt: skip


# What the tabs show


def _draw_progress(progress: GroupProgress) -> None:
    with card():
        if not progress.queues:
            empty("timeline", t("It has consumed nothing yet"), t("Its offsets appear with its first client"))
            return
        AnswerTable(groups.PROGRESS, progress, export=f"{progress.group}-progress")


def _draw_pops(found: list[PopProgress]) -> None:
    with card():
        nothing = t("It has consumed nothing yet")
        AnswerTable(groups.POPS, found, export="pops", nothing=nothing)


async def _connections(view: View, group: str) -> GroupConnections | None:
    try:
        found: GroupConnections = await view.answer(groups.connections, {"group": group})
    except RefusedError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        raise
    return found


def _draw_clients(view: View, group: str, found: GroupConnections | None) -> None:
    if found is None or not found.clients:
        with card():
            empty("cloud_off", t("Nobody is online"), t("Start a client of the group, and look again"))
        return
    with card(t("Clients"), f"{found.consume_type} · {found.message_model} · {found.consume_from_where}"):
        look = RowAction(
            "monitor_heart", t("Running info"), lambda one: client_dialog(view, group, one.client_id)
        )
        AnswerTable(groups.CONNECTIONS, found, export=f"{group}-clients", actions=[look])
    with card(t("Subscriptions")):
        AnswerTable(groups.SUBSCRIPTIONS, found, export=f"{group}-subscriptions")


async def _settings(view: View, group: str) -> dict[str, dict[str, Any]]:
    return await view.backend.ask(("group config", group), lambda admin: admin.groups.config(group))


def _draw_settings(view: View, group: str, configs: dict[str, dict[str, Any]]) -> None:
    if not configs:
        with card():
            empty("settings", t("No broker has settings of it"), t("They come with its first client"))
        return
    if view.may(Role.ADMIN):
        with ui.row():
            first = next(iter(configs.values()))
            ui.button(
                t("Edit group"), icon="edit", on_click=lambda: settings_dialog(view, group, first)
            ).props("outline")
    rows = [
        {"broker": broker, "name": key, "value": str(value)}
        for broker, config in configs.items()
        for key, value in sorted(config.items())
    ]
    with card():
        AnswerTable(SETTINGS, rows, export=f"{group}-settings", per_page=50)

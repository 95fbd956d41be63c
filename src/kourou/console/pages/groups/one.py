"""A consumer group: how far it is, who is in it, its settings; where it goes on is changed, it is deleted."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.admin.model import GroupConnections, GroupProgress
from kourou.client.core import RefusedError
from kourou.console.door.users import Role
from kourou.console.pages.groups.all import settings_dialog
from kourou.console.pages.groups.client import client_dialog
from kourou.console.pages.groups.offsets import clone_dialog, reset_dialog, skip_dialog
from kourou.console.texts import t
from kourou.console.views.components import (
    Section,
    Stat,
    badge,
    card,
    confirm_by_name,
    empty,
    grid,
    live,
    number,
    page_title,
    refresh_button,
)
from kourou.console.views.table import Column, DataTable, RowAction
from kourou.console.views.view import View, from_path, topic_url
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode


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
        state.set_text(t("online") if is_online else t("offline"))
        state.classes(remove="k-good k-mute", add="k-good" if is_online else "k-mute")
        if now is not None:
            lag.show(number(now.lag))
            clients.show(number(len(now.clients)), " ".join((now.consume_type, now.message_model.lower())))
            rate.show(number(now.tps))
            dead.show(number(now.dead))

    live(view, refresh)
    ask = view.backend.ask
    with ui.tabs().props("align=left no-caps") as tabs:
        first = ui.tab("progress", t("Progress"))
        ui.tab("clients", t("Clients"))
        ui.tab("settings", t("Settings"))
    sections: list[Section] = []
    with ui.tab_panels(tabs, value=first, animated=False):
        with ui.tab_panel("progress"):
            sections += [
                Section(
                    lambda: ask(("progress with clients", group), lambda admin: _progress(admin, group)),
                    _draw_progress,
                )
            ]
        with ui.tab_panel("clients"):
            sections += [
                Section(
                    lambda: ask(("connections", group), lambda admin: _connections(admin, group)),
                    lambda found: _draw_clients(view, group, found),
                )
            ]
        with ui.tab_panel("settings"):
            sections += [
                Section(
                    lambda: ask(("group config", group), lambda admin: admin.groups.config(group)),
                    lambda found: _draw_settings(view, group, found),
                )
            ]
    with actions:
        refresh_button(view, sections)


async def _progress(admin: Admin, group: str) -> GroupProgress:
    """How far a group is, with the clients of its queues; without them where one does not answer."""
    try:
        return await admin.groups.progress(group, with_clients=True)
    except KourouError:
        return await admin.groups.progress(group)


def _draw_actions(view: View, group: str) -> None:
    if view.may(Role.OPERATOR):
        with ui.button(t("Offsets"), icon="history").props("unelevated"), ui.menu():
            ui.menu_item(t("Reset offsets by time"), lambda: reset_dialog(view, group))
            ui.menu_item(t("Skip accumulated messages"), lambda: skip_dialog(view, group))
            ui.menu_item(t("Clone offsets of another group"), lambda: clone_dialog(view, group))
    if view.may(Role.ADMIN):
        with ui.button(icon="more_vert").props(f'flat round dense aria-label="{t("More")}"'), ui.menu():
            ui.menu_item(t("Delete group"), lambda: _delete_dialog(view, group))


def _delete_dialog(view: View, group: str) -> None:
    async def work(admin: Admin) -> list[str]:
        return await admin.groups.delete(group, clean_offset=True)

    async def delete() -> bool:
        done = await view.change(Role.ADMIN, work, t("Group {name} is deleted", name=group))
        if done is not None:
            ui.navigate.to("/groups")
        return done is not None

    confirm_by_name(
        t("Delete group"),
        t("Its offsets, its retries and its dead letters are lost for good."),
        group,
        t("Delete"),
        delete,
    )


# What the tabs show


def _draw_progress(progress: GroupProgress) -> None:
    with card():
        if not progress.queues:
            empty("timeline", t("It has consumed nothing yet"), t("Its offsets appear with its first client"))
            return
        rows = [
            {
                "id": f"{one.topic} {one.broker_name} {one.queue_id}",
                "topic": one.topic,
                "topic_href": topic_url(one.topic),
                "broker": one.broker_name,
                "queue": one.queue_id,
                "end": one.broker_offset,
                "offset": one.consumer_offset,
                "lag": one.lag,
                "in_flight": one.in_flight,
                "client": one.client_ip or "",
                "last": one.last_consumed_ms,
            }
            for one in progress.queues
        ]
        columns = [
            Column("topic", t("Topic"), "link"),
            Column("broker", t("Broker"), minor=True),
            Column("queue", t("Queue"), "number"),
            Column("end", t("End offset"), "number", minor=True),
            Column("offset", t("Offset"), "number"),
            Column("lag", t("Lag"), "number"),
            Column("in_flight", t("In flight"), "number", minor=True),
            Column("client", t("Client"), minor=True),
            Column("last", t("Last consumed"), "time", minor=True),
        ]
        DataTable(columns, rows, key="id", export=f"{progress.group}-progress")


async def _connections(admin: Admin, group: str) -> GroupConnections | None:
    try:
        return await admin.groups.connections(group)
    except RefusedError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        raise


def _draw_clients(view: View, group: str, found: GroupConnections | None) -> None:
    if found is None or not found.clients:
        with card():
            empty("cloud_off", t("Nobody is online"), t("Start a client of the group, and look again"))
        return
    with card(t("Clients"), f"{found.consume_type} · {found.message_model} · {found.consume_from_where}"):
        rows = [
            {"name": one.client_id, "address": one.address, "language": one.language, "version": one.version}
            for one in found.clients
        ]

        def show(row: dict[str, Any]) -> None:
            client_dialog(view, group, str(row["name"]))

        DataTable(
            [
                Column("name", t("Client"), "code"),
                Column("address", t("Address"), "code", minor=True),
                Column("language", t("Language"), minor=True),
                Column("version", t("Version"), minor=True),
            ],
            rows,
            export=f"{group}-clients",
            actions=[RowAction("monitor_heart", t("Running info"), show)],
        )
    with card(t("Subscriptions")):
        subscriptions = [
            {
                "topic": one.topic,
                "topic_href": topic_url(one.topic),
                "expression": one.expression,
                "type": one.expression_type,
            }
            for one in found.subscriptions
        ]
        columns = [
            Column("topic", t("Topic"), "link"),
            Column("expression", t("Expression"), "code"),
            Column("type", t("Type"), minor=True),
        ]
        DataTable(columns, subscriptions, key="topic", export=f"{group}-subscriptions")


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
        {"id": f"{broker} {key}", "broker": broker, "name": key, "value": str(value)}
        for broker, config in configs.items()
        for key, value in sorted(config.items())
    ]
    columns = [
        Column("broker", t("Broker"), minor=True),
        Column("name", t("Name"), "code"),
        Column("value", t("Value"), "code"),
    ]
    with card():
        DataTable(columns, rows, key="id", export=f"{group}-settings", per_page=50)

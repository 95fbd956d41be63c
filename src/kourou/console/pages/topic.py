"""A topic: its queues, route, consumers and settings; a message is sent to it, it is changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.admin.model import TopicOfBroker, TopicStatus
from kourou.console.contents import kind_of
from kourou.console.door.users import Role
from kourou.console.pages.sending import send_dialog
from kourou.console.pages.topics import COLORS, MAX_QUEUES, kind_names, permission
from kourou.console.texts import t
from kourou.console.views.components import (
    Section,
    Stat,
    badge,
    card,
    confirm_by_name,
    dialog,
    dialog_buttons,
    empty,
    grid,
    live,
    number,
    page_title,
    refresh_button,
)
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View, from_path, group_url, to_path
from kourou.remoting.protocol.topic_config import TopicConfig


async def draw(view: View, name: str) -> None:
    """Draw the page of a topic."""
    topic = from_path(name)
    await view.backend.ready()
    row = view.snapshot.topics.get(topic)
    kind = row.kind if row is not None else kind_of(topic, {})
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(topic, parent=(t("Topics"), "/topics"))
        with ui.row().classes("gap-2 items-center") as actions:
            badge(kind_names()[kind], COLORS.get(kind, "mute"))
            ui.button(
                t("Messages"),
                icon="mail",
                on_click=lambda: ui.navigate.to(f"/messages?topic={to_path(topic)}"),
            ).props("outline")
            _draw_actions(view, topic, kind)
    with grid():
        messages, rate, queues, groups = (
            Stat(t("Messages"), mark="messages"),
            Stat(t("In / s"), mark="rate"),
            Stat(t("Queues"), mark="queues"),
            Stat(t("Consumer groups"), mark="groups"),
        )

    def refresh() -> None:
        now = view.snapshot.topics.get(topic)
        if now is not None:
            messages.show(number(now.messages))
            rate.show(number(now.tps))
            queues.show(number(now.write_queues), permission(now.perm))
            groups.show(number(sum(topic in group.topics for group in view.snapshot.groups.values())))

    live(view, refresh)
    ask = view.backend.ask
    with ui.tabs().props("align=left no-caps") as tabs:
        first = ui.tab("queues", t("Queues"))
        ui.tab("route", t("Route"))
        ui.tab("consumers", t("Consumers"))
        ui.tab("settings", t("Settings"))
    sections: list[Section] = []
    with ui.tab_panels(tabs, value=first, animated=False):
        with ui.tab_panel("queues"):
            sections += [
                Section(
                    lambda: ask(("topic status", topic), lambda admin: admin.topics.status(topic)),
                    _draw_queues,
                )
            ]
        with ui.tab_panel("route"):
            sections += [
                Section(lambda: ask(("route", topic), lambda admin: admin.topics.route(topic)), _draw_route)
            ]
        with ui.tab_panel("consumers"):
            sections += [
                Section(
                    lambda: ask(("topic groups", topic), lambda admin: _consumers(admin, topic)),
                    _draw_consumers,
                )
            ]
        with ui.tab_panel("settings"):
            sections += [
                Section(
                    lambda: ask(("topic config", topic), lambda admin: admin.topics.config(topic)),
                    _draw_settings,
                )
            ]
    with actions:
        refresh_button(view, sections)


def _draw_actions(view: View, topic: str, kind: str) -> None:
    if view.may(Role.OPERATOR) and kind not in ("system", "dlq"):
        ui.button(t("Send"), icon="send", on_click=lambda: send_dialog(view, topic)).props("unelevated")
    if not view.may(Role.ADMIN) or kind == "system":
        return
    with ui.button(icon="more_vert").props(f'flat round dense aria-label="{t("More")}"'), ui.menu():
        ui.menu_item(t("Edit topic"), lambda: _edit_dialog(view, topic))
        ui.menu_item(t("Delete topic"), lambda: _delete_dialog(view, topic))


def _edit_dialog(view: View, topic: str) -> None:
    row = view.snapshot.topics.get(topic)
    brokers = max(len(row.brokers), 1) if row is not None else 1
    with dialog(t("Edit topic")) as box:
        ui.label(topic).classes("k-mono")
        with ui.row().classes("w-full gap-3 no-wrap"):
            read = ui.number(
                t("Read queues"), value=(row.read_queues // brokers if row else 8), min=1, max=MAX_QUEUES
            ).props("outlined dense")
            write = ui.number(
                t("Write queues"), value=(row.write_queues // brokers if row else 8), min=1, max=MAX_QUEUES
            ).props("outlined dense")
        perm = ui.select(
            {value: permission(value) for value in (6, 4, 2)},
            value=row.perm & 6 if row else 6,
            label=t("Permission"),
        ).props("outlined dense")
        ui.label(t("On each broker that has the topic. Fewer queues leave messages of the others unread."))

        async def work(admin: Admin) -> None:
            configs = await admin.topics.config(topic)
            for broker, config in configs.items():
                await admin.topics.create(
                    topic,
                    broker=broker,
                    read_queues=int(read.value),
                    write_queues=int(write.value),
                    perm=int(perm.value),
                    order=config.order,
                    sys_flag=config.topic_sys_flag,
                )

        async def save() -> bool:
            before = view.snapshot.version
            await view.change(Role.ADMIN, work, t("Topic {name} is changed", name=topic))
            return view.snapshot.version != before

        dialog_buttons(box, t("Save"), save)


def _delete_dialog(view: View, topic: str) -> None:
    async def work(admin: Admin) -> list[str]:
        found: list[str] = []
        for cluster in await admin.topics.clusters(topic):
            found += await admin.topics.delete(topic, cluster=cluster)
        return found

    async def delete() -> bool:
        done = await view.change(Role.ADMIN, work, t("Topic {name} is deleted", name=topic))
        if done is not None:
            ui.navigate.to("/topics")
        return done is not None

    confirm_by_name(
        t("Delete topic"),
        t("Its messages and the offsets of its groups are lost for good."),
        topic,
        t("Delete"),
        delete,
    )


# What the tabs show


def _draw_queues(status: TopicStatus) -> None:
    with card():
        if not status.queues:
            empty("inbox", t("No queue of it has a message yet"), t("Send one with the button above"))
            return
        rows = [
            {
                "id": f"{one.broker_name}:{one.queue_id}",
                "broker": one.broker_name,
                "queue": one.queue_id,
                "first": one.min_offset,
                "end": one.max_offset,
                "messages": one.max_offset - one.min_offset,
                "last": one.last_update_ms,
            }
            for one in status.queues
        ]
        columns = [
            Column("broker", t("Broker")),
            Column("queue", t("Queue"), "number"),
            Column("first", t("First offset"), "number", minor=True),
            Column("end", t("End offset"), "number"),
            Column("messages", t("Messages"), "number"),
            Column("last", t("Last message"), "time", minor=True),
        ]
        DataTable(columns, rows, key="id", export=f"{status.topic}-queues")


def _draw_route(route: list[TopicOfBroker]) -> None:
    rows = [
        {
            "broker": one.broker_name,
            "cluster": one.cluster,
            "addresses": ", ".join(f"{number}: {text}" for number, text in one.addresses.items()),
            "read": one.read_queue_nums,
            "write": one.write_queue_nums,
            "perm": permission(one.perm),
        }
        for one in route
    ]
    columns = [
        Column("broker", t("Broker")),
        Column("cluster", t("Cluster"), minor=True),
        Column("addresses", t("Addresses"), "code"),
        Column("read", t("Read queues"), "number"),
        Column("write", t("Write queues"), "number"),
        Column("perm", t("Permission"), minor=True),
    ]
    with card():
        DataTable(columns, rows, key="broker", export="route")


async def _consumers(admin: Admin, topic: str) -> list[dict[str, Any]]:
    rows = []
    for group in await admin.topics.groups(topic):
        progress = await admin.groups.progress(group, topic)
        last_ms = max((queue.last_consumed_ms for queue in progress.queues), default=0)
        rows.append(
            {
                "name": group,
                "name_href": group_url(group),
                "lag": progress.lag,
                "tps": round(progress.tps, 1),
                "last": last_ms,
            }
        )
    return rows


def _draw_consumers(rows: list[dict[str, Any]]) -> None:
    with card():
        if not rows:
            empty("groups", t("Nobody consumes it"), t("A group appears here with its first offset"))
            return
        columns = [
            Column("name", t("Group"), "link"),
            Column("lag", t("Lag"), "number"),
            Column("tps", t("Out / s"), "number"),
            Column("last", t("Last consumed"), "time", minor=True),
        ]
        DataTable(columns, rows, export="consumers", sort="lag", descending=True)


def _draw_settings(configs: Mapping[str, TopicConfig]) -> None:
    rows = [
        {
            "broker": broker,
            "read": config.read_queue_nums,
            "write": config.write_queue_nums,
            "perm": permission(config.perm),
            "order": t("yes") if config.order else t("no"),
            "attributes": ", ".join(f"{key}={value}" for key, value in config.attributes.items()),
        }
        for broker, config in configs.items()
    ]
    columns = [
        Column("broker", t("Broker")),
        Column("read", t("Read queues"), "number"),
        Column("write", t("Write queues"), "number"),
        Column("perm", t("Permission")),
        Column("order", t("In order"), minor=True),
        Column("attributes", t("Attributes"), "code", minor=True),
    ]
    with card():
        DataTable(columns, rows, key="broker", export="topic-settings")

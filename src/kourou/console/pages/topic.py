"""A topic: its queues, route, consumers and settings; a message is sent to it, it is changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from kourou.admin.model import TopicStatus
from kourou.admin.operations import messages, topics
from kourou.admin.operations.declare import Table
from kourou.console.contents import kind_of
from kourou.console.door.users import Role
from kourou.console.pages.topics import KIND_NAMES
from kourou.console.texts import t
from kourou.console.views.components import (
    Stat,
    card,
    empty,
    grid,
    live,
    number,
    page_title,
    refresh_button,
    tab_sections,
)
from kourou.console.views.operations import AnswerTable, ask, badge_of, destroy, permission
from kourou.console.views.view import View, from_path, message_url, to_path
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
            badge_of(KIND_NAMES[kind])
            ui.button(
                t("Messages"), icon="mail",
                on_click=lambda: ui.navigate.to(f"/messages?topic={to_path(topic)}"),
            ).props("outline")  # fmt: skip
            _draw_actions(view, topic, kind)
    with grid():
        stats = {
            mark: Stat(label, mark=mark)
            for mark, label in (
                ("messages", t("Messages")), ("rate", t("In / s")), ("queues", t("Queues")),
                ("groups", t("Consumer groups")),
            )
        }  # fmt: skip

    def refresh() -> None:
        now = view.snapshot.topics.get(topic)
        if now is not None:
            stats["messages"].show(number(now.messages))
            stats["rate"].show(number(now.tps))
            stats["queues"].show(number(now.write_queues), permission(now.perm))
            groups = sum(topic in group.topics for group in view.snapshot.groups.values())
            stats["groups"].show(number(groups))

    live(view, refresh)
    given = {"topic": topic}
    sections = tab_sections(
        {
            "queues": (t("Queues"), lambda: view.answer(topics.status, given), _draw_queues),
            "route": (
                t("Route"),
                lambda: view.answer(topics.route, given),
                lambda found: _draw(topics.ROUTE, found, "route"),
            ),
            "consumers": (t("Consumers"), lambda: view.answer(topics.consumers, given), _draw_consumers),
            "settings": (t("Settings"), lambda: view.answer(topics.config, given), _draw_settings),
        }
    )
    with actions:
        refresh_button(view, sections)


def _draw_actions(view: View, topic: str, kind: str) -> None:
    if view.may(Role.OPERATOR) and kind not in ("system", "dlq"):
        ui.button(t("Send"), icon="send", on_click=lambda: _send(view, topic)).props("unelevated")
    if not view.may(Role.ADMIN) or kind == "system":
        return
    with ui.button(icon="more_vert").props(f'flat round dense aria-label="{t("More")}"'), ui.menu():
        ui.menu_item(t("Edit topic"), lambda: _edit(view, topic))
        ui.menu_item(t("Delete topic"), lambda: _delete(view, topic))


def _send(view: View, topic: str) -> None:
    ask(
        view, messages.send, t("Send a message"), t("Send"), t("The message is sent"), fixed={"topic": topic},
        fields="body, tags, keys, sharding_key, delay, properties, trace", notes=[topic],
        then=lambda _, sent: ui.navigate.to(message_url(topic, sent.offset_message_id or sent.message_id)),
    )  # fmt: skip


def _edit(view: View, topic: str) -> None:
    row = view.snapshot.topics.get(topic)
    known: dict[str, Any] = {"read_queues": 8, "write_queues": 8, "perm": 6}
    if row is not None:
        brokers = max(len(row.brokers), 1)
        known = {
            "read_queues": row.read_queues // brokers, "write_queues": row.write_queues // brokers,
            "perm": row.perm,
        }  # fmt: skip
    note = t("On each broker that has the topic. Fewer queues leave messages of the others unread.")
    ask(
        view, topics.update, t("Edit topic"), t("Save"), t("Topic {name} is changed", name=topic),
        fields="read_queues, write_queues, perm", fixed={"topic": topic}, known=known, notes=[topic, note],
    )  # fmt: skip


def _delete(view: View, topic: str) -> None:
    destroy(
        view, topics.delete, topic, t("Delete topic"),
        t("Its messages and the offsets of its groups are lost for good."),
        t("Topic {name} is deleted", name=topic), {"topic": topic}, lambda *_: ui.navigate.to("/topics"),
    )  # fmt: skip


# What the tabs show


def _draw(shown: Table, found: Any, export: str, **options: Any) -> None:
    with card():
        AnswerTable(shown, found, export=export, **options)


def _draw_queues(status: TopicStatus) -> None:
    if not status.queues:
        with card():
            empty("inbox", t("No queue of it has a message yet"), t("Send one with the button above"))
        return
    _draw(topics.QUEUES, status, f"{status.topic}-queues")


def _draw_consumers(found: list[Any]) -> None:
    if not found:
        with card():
            empty("groups", t("Nobody consumes it"), t("A group appears here with its first offset"))
        return
    _draw(topics.CONSUMERS, found, "consumers", sort="Lag", descending=True)


def _draw_settings(configs: Mapping[str, TopicConfig]) -> None:
    rows = [{"broker": broker, **config.to_json()} for broker, config in configs.items()]
    _draw(Table(topics.CONFIG), rows, "topic-settings")

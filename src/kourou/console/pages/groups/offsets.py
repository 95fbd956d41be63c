"""Dialogs that change where a consumer group goes on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from nicegui import ui

from kourou.admin.model import OffsetChange
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views.components import dialog, dialog_buttons
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View
from kourou.errors import KourouError
from kourou.message.topics import RETRY_PREFIX

FORM = "%Y-%m-%dT%H:%M"  # of an input for dates and times


def time_input(label: str, ago: timedelta = timedelta(hours=1)) -> ui.input:
    """An input for a date and a time, in the time zone of the console."""
    value = (datetime.now() - ago).strftime(FORM)
    return ui.input(label, value=value).props("outlined dense type=datetime-local stack-label")


def read_time(text: str) -> int:
    """Milliseconds of what was put in."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, TypeError):
        raise KourouError(f"{text!r} is no time: give a date and a time") from None


async def _topics(view: View, group: str) -> list[str]:
    """The topics of a group: those that it has offsets in, and those that its clients subscribe to."""
    row = view.snapshot.groups.get(group)
    try:
        progress = await view.backend.ask(("progress", group), lambda admin: admin.groups.progress(group))
    except KourouError:
        return sorted(row.topics) if row is not None else []
    found = {queue.topic for queue in progress.queues if not queue.topic.startswith(RETRY_PREFIX)}
    return sorted(found | (row.topics if row is not None else set()))


def _topic_select(view: View, topics: list[str]) -> ui.select:
    """Ask for a topic: one of these, or of all where there are none."""
    names = topics or [one.name for one in view.snapshot.topics.values() if one.kind != "system"]
    chosen = topics[0] if topics else None
    return ui.select(names, value=chosen, label=t("Topic"), with_input=True).props("outlined dense")


def _chosen(select: ui.select) -> str:
    if not select.value:
        raise KourouError(t("Choose a topic first"))
    return str(select.value)


async def reset_dialog(view: View, group: str) -> None:
    """Let a group go on at a time."""
    topics = await _topics(view, group)
    with dialog(t("Reset offsets by time")) as box:
        ui.label(group).classes("k-mono")
        topic = _topic_select(view, topics)
        when = time_input(t("Time"))
        ui.label(t("What was sent since then is consumed again, whether clients are online or not."))

        async def reset() -> bool:
            changes = await view.change(
                Role.OPERATOR,
                lambda admin: admin.offsets.reset(group, _chosen(topic), read_time(str(when.value))),
                t("The offsets are reset"),
            )
            if changes is not None:
                _show(changes)
            return changes is not None

        dialog_buttons(box, t("Reset"), reset)


async def skip_dialog(view: View, group: str) -> None:
    """Let a group go on behind the last message."""
    topics = await _topics(view, group)
    with dialog(t("Skip accumulated messages")) as box:
        ui.label(group).classes("k-mono")
        topic = _topic_select(view, topics)
        with ui.element("div").classes("k-banner k-warn"):
            ui.icon("warning").classes("text-lg")
            ui.label(t("Messages that wait now are not consumed by this group."))

        async def skip() -> bool:
            changes = await view.change(
                Role.OPERATOR,
                lambda admin: admin.offsets.skip(group, _chosen(topic)),
                t("The group goes on behind the last message"),
            )
            if changes is not None:
                _show(changes)
            return changes is not None

        dialog_buttons(box, t("Skip"), skip, is_dangerous=True)


def clone_dialog(view: View, group: str) -> None:
    """Let a group go on where another one is."""
    with dialog(t("Clone offsets of another group")) as box:
        ui.label(group).classes("k-mono")
        others = [name for name, row in view.snapshot.groups.items() if name != group and not row.is_system]
        source = ui.select(others, label=t("Group to copy from"), with_input=True).props("outlined dense")
        ui.label(t("In all topics of that group. Stop the clients of this one first."))

        async def clone() -> bool:
            found = await view.change(
                Role.OPERATOR,
                lambda admin: admin.offsets.clone(str(source.value), group),
                t("The offsets are cloned"),
            )
            return found is not None

        dialog_buttons(box, t("Clone"), clone)


def _show(changes: list[OffsetChange]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "id": f"{one.broker_name} {one.queue_id}",
            "broker": one.broker_name,
            "queue": one.queue_id,
            "offset": one.offset,
        }
        for one in changes
    ]
    with dialog(t("New offsets")) as box:
        columns = [
            Column("broker", t("Broker")),
            Column("queue", t("Queue"), "number"),
            Column("offset", t("Offset"), "number"),
        ]
        DataTable(columns, rows, key="id", export="offsets", per_page=10)
        with ui.row().classes("w-full justify-end"):
            ui.button(t("Close"), on_click=box.close).props("flat")

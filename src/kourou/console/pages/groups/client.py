"""What a client of a consumer group does now: queues, speed, properties, the stacks of its threads."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.console.texts import t
from kourou.console.views.components import Section, code, dialog, facts
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View
from kourou.message.model import MessageQueue


def client_dialog(view: View, group: str, client_id: str) -> None:
    """Show what a client does now."""
    with dialog(client_id, wide=True) as box:
        with ui.tabs().props("align=left no-caps dense") as tabs:
            first = ui.tab("queues", t("Queues"))
            ui.tab("speed", t("Speed"))
            ui.tab("properties", t("Properties"))
            ui.tab("stack", t("Threads"))

        def draw(info: dict[str, Any]) -> None:
            with ui.tab_panels(tabs, value=first, animated=False):
                with ui.tab_panel("queues"):
                    _draw_queues(info)
                with ui.tab_panel("speed"):
                    _draw_speed(info)
                with ui.tab_panel("properties"):
                    facts({str(key): value for key, value in sorted((info.get("properties") or {}).items())})
                with ui.tab_panel("stack"):
                    code(str(info.get("jstack") or t("The client tells no stacks")))

        Section(
            lambda: view.backend.ask(
                ("running", group, client_id),
                lambda admin: admin.groups.running_info(group, client_id, with_stack=True),
            ),
            draw,
        )
        with ui.row().classes("w-full justify-end"):
            ui.button(t("Close"), on_click=box.close).props("flat")


def _draw_queues(info: dict[str, Any]) -> None:
    rows = []
    for key, queue in (info.get("mqTable") or {}).items():
        place = MessageQueue.from_json(key)
        rows.append(
            {
                "id": f"{place.topic} {place.broker_name} {place.queue_id}",
                "topic": place.topic,
                "broker": place.broker_name,
                "queue": place.queue_id,
                "cached": int(queue.get("cachedMsgCount") or 0),
                "offset": int(queue.get("commitOffset") or 0),
                "last": int(queue.get("lastConsumeTimestamp") or 0),
            }
        )
    columns = [
        Column("topic", t("Topic")),
        Column("broker", t("Broker"), minor=True),
        Column("queue", t("Queue"), "number"),
        Column("cached", t("Cached"), "number"),
        Column("offset", t("Offset"), "number"),
        Column("last", t("Last consumed"), "time", minor=True),
    ]
    DataTable(columns, rows, key="id", export="client-queues", per_page=10, nothing=t("It reads no queues"))


def _draw_speed(info: dict[str, Any]) -> None:
    rows = [
        {
            "name": topic,
            "pull_ms": float(one.get("pullRT") or 0),
            "pull": float(one.get("pullTPS") or 0),
            "ms": float(one.get("consumeRT") or 0),
            "good": float(one.get("consumeOKTPS") or 0),
            "bad": float(one.get("consumeFailedTPS") or 0),
        }
        for topic, one in (info.get("statusTable") or {}).items()
    ]
    columns = [
        Column("name", t("Topic")),
        Column("pull_ms", t("Pull, ms"), "number", minor=True),
        Column("pull", t("Pulled / s"), "number"),
        Column("ms", t("Consume, ms"), "number", minor=True),
        Column("good", t("Consumed / s"), "number"),
        Column("bad", t("Failed / s"), "number"),
    ]
    DataTable(columns, rows, export="client-speed", per_page=10)

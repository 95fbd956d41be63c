"""What a client of a consumer group does now: queues, speed, properties, the stacks of its threads."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin.operations import groups
from kourou.admin.operations.declare import Table, columns
from kourou.console.texts import t
from kourou.console.views.components import Section, code, dialog, facts
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View

QUEUES = Table(groups.RUNNING, rows=groups.running_rows)
SPEED = Table(
    columns(
        "Topic=topic, Pull ms=pullRT:number-, Pulled / s=pullTPS:number, Consume ms=consumeRT:number-, "
        "Consumed / s=consumeOKTPS:number, Failed / s=consumeFailedTPS:number"
    ),
    rows=lambda info: [{"topic": topic, **one} for topic, one in (info.get("statusTable") or {}).items()],
)


def client_dialog(view: View, group: str, client_id: str) -> None:
    """Show what a client does now."""
    with dialog(client_id, wide=True) as box:
        with ui.tabs().props("align=left no-caps dense") as tabs:
            first = ui.tab("queues", t("Queues"))
            ui.tab("speed", t("Speed"))
            ui.tab("properties", t("Properties"))
            ui.tab("stack", t("Threads"))

        def draw(found: dict[str, dict[str, Any]]) -> None:
            info = found[client_id]
            with ui.tab_panels(tabs, value=first, animated=False):
                with ui.tab_panel("queues"):
                    AnswerTable(
                        QUEUES, found, export="client-queues", per_page=10, nothing=t("It reads no queues")
                    )
                with ui.tab_panel("speed"):
                    AnswerTable(SPEED, info, export="client-speed", per_page=10)
                with ui.tab_panel("properties"):
                    facts({str(key): value for key, value in sorted((info.get("properties") or {}).items())})
                with ui.tab_panel("stack"):
                    code(str(info.get("jstack") or t("The client tells no stacks")))

        given = {"group": group, "client": client_id, "stack": True}
        Section(lambda: view.answer(groups.status, given), draw)
        with ui.row().classes("w-full justify-end"):
            ui.button(t("Close"), on_click=box.close).props("flat")

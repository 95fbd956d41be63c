"""Cluster: its brokers with their roles, and its name servers."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.admin.operations.declare import Table, columns
from kourou.console.pages.overview import BROKERS
from kourou.console.texts import later, t
from kourou.console.views.components import Section, card, live, page_title
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import RequestCode

TODAY = columns(
    "In today=today:number-",
    today=lambda state: state.difference("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
)
SERVERS = Table(columns("Address=address:code, State=state:badge, Problem=why:code"))
UP, DOWN = later("up"), later("down")


async def draw(view: View) -> None:
    """Draw the page."""
    await view.backend.ready()
    page_title(t("Cluster"), t("Brokers, their roles and replication, and name servers"))
    with card(t("Brokers")):
        several = columns("Cluster=cluster-") if len(view.snapshot.clusters) > 1 else ()
        table = AnswerTable(
            Table((*several, *BROKERS.columns, *TODAY)), export="brokers", nothing=t("No brokers")
        )
        problems = ui.column().classes("w-full gap-2 mt-2")
    with card(t("Name servers")):
        Section(
            lambda: view.backend.ask("name servers", _name_servers),
            lambda found: AnswerTable(SERVERS, found, export="name-servers"),
        )

    def refresh() -> None:
        table.show(view.snapshot.brokers)
        with problems.clear():
            for state in view.snapshot.brokers:
                if state.error is not None:
                    with ui.element("div").classes("k-banner k-bad w-full").props("role=alert"):
                        ui.icon("error_outline").classes("text-lg")
                        ui.label(f"{state.broker_name} {state.address}: {state.error}")

    live(view, refresh)


async def _name_servers(admin: Admin) -> list[dict[str, Any]]:
    found = []
    for address in sorted(admin.core.name_servers):
        try:
            await admin.link.ask(address, RequestCode.GET_NAMESRV_CONFIG)
            found.append({"address": address, "state": UP, "why": ""})
        except KourouError as error:
            found.append({"address": address, "state": DOWN, "why": str(error)})
    return found

"""Cluster: its brokers with their roles, and its name servers."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.console.pages.overview import broker_columns, broker_rows
from kourou.console.texts import t
from kourou.console.views.components import Section, card, live, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import RequestCode


async def draw(view: View) -> None:
    """Draw the page."""
    await view.backend.ready()
    page_title(t("Cluster"), t("Brokers, their roles and replication, and name servers"))
    with card(t("Brokers")):
        columns = [*broker_columns(), Column("today", t("In today"), "number", minor=True)]
        if len(view.snapshot.clusters) > 1:
            columns.insert(0, Column("cluster", t("Cluster"), minor=True))
        table = DataTable(columns, key="address", export="brokers", nothing=t("No brokers"))
        problems = ui.column().classes("w-full gap-2 mt-2")
    with card(t("Name servers")):
        Section(lambda: view.backend.ask("name servers", _name_servers), _draw_name_servers)

    def rows() -> list[dict[str, Any]]:
        extra = {
            state.address: {
                "cluster": state.cluster,
                "today": state.difference("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
            }
            for state in view.snapshot.brokers
        }
        return [{**row, **extra[row["address"]]} for row in broker_rows(view)]

    def refresh() -> None:
        table.show(rows())
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
        except KourouError as error:
            found.append({"address": address, "is_up": False, "why": str(error)})
        else:
            found.append({"address": address, "is_up": True, "why": ""})
    return found


def _draw_name_servers(servers: list[dict[str, Any]]) -> None:
    rows = [
        {
            **server,
            "state": t("up") if server["is_up"] else t("down"),
            "state_color": "good" if server["is_up"] else "bad",
        }
        for server in servers
    ]
    columns = [
        Column("address", t("Address"), "code"),
        Column("state", t("State"), "badge"),
        Column("why", t("Problem"), "code"),
    ]
    DataTable(columns, rows, key="address", export="name-servers")

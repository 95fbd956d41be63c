"""Clients: the producers and consumers that are connected now."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.client.core import RefusedError
from kourou.console.texts import t
from kourou.console.views.components import Section, card, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View, group_url

AT_ONCE = 8


async def draw(view: View) -> None:
    """Draw the page."""
    await view.backend.ready()
    page_title(t("Clients"), t("Producers and consumers that are connected now"))
    ask = view.backend.ask
    masters = dict(view.snapshot.masters)
    groups = [name for name, row in view.snapshot.groups.items() if row.clients]
    with ui.tabs().props("align=left no-caps") as tabs:
        first = ui.tab("producers", t("Producers"))
        ui.tab("consumers", t("Consumers"))
    with ui.tab_panels(tabs, value=first, animated=False):
        with ui.tab_panel("producers"):
            Section(
                lambda: ask(("producers", *masters), lambda admin: _producers(admin, masters)),
                lambda rows: _draw(rows, t("No producer is connected"), "producers"),
            )
        with ui.tab_panel("consumers"):
            Section(
                lambda: ask(("consumers", *groups), lambda admin: _consumers(admin, groups)),
                lambda rows: _draw(rows, t("No consumer is connected"), "consumers"),
            )


async def _producers(admin: Admin, masters: dict[str, str]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for broker, address in masters.items():
        for group, clients in (await admin.producers.at_broker(address)).items():
            for client in clients:
                key = f"{group} {client.get('clientId')}"
                row = rows.setdefault(
                    key,
                    {
                        "id": key,
                        "group": group,
                        "client": client.get("clientId"),
                        "address": client.get("remoteIP") or "",
                        "language": client.get("language") or "",
                        "version": client.get("versionDesc") or "",
                        "brokers": "",
                    },
                )
                row["brokers"] = ", ".join(sorted({*filter(None, row["brokers"].split(", ")), broker}))
    return list(rows.values())


async def _consumers(admin: Admin, groups: list[str]) -> list[dict[str, Any]]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(group: str) -> list[dict[str, Any]]:
        async with slots:
            try:
                found = await admin.groups.connections(group)
            except RefusedError:
                return []  # gone meanwhile
        return [
            {
                "id": f"{group} {one.client_id}",
                "group": group,
                "group_href": group_url(group),
                "client": one.client_id,
                "address": one.address,
                "language": one.language,
                "version": one.version,
                "brokers": ", ".join(subscription.topic for subscription in found.subscriptions),
            }
            for one in found.clients
        ]

    return [row for rows in await asyncio.gather(*map(ask, groups)) for row in rows]


def _draw(rows: list[dict[str, Any]], nothing: str, export: str) -> None:
    columns = [
        Column("group", t("Group"), "link"),
        Column("client", t("Client"), "code"),
        Column("address", t("Address"), "code", minor=True),
        Column("language", t("Language"), minor=True),
        Column("version", t("Version"), minor=True),
        Column("brokers", t("Brokers") if export == "producers" else t("Topics"), minor=True),
    ]
    with card():
        DataTable(columns, rows, key="id", export=export, nothing=nothing)

"""Clients: the producers and consumers that are connected now."""

from __future__ import annotations

import asyncio
from typing import Any

from kourou.admin import Admin
from kourou.admin.operations.declare import Table, columns
from kourou.client.core import RefusedError
from kourou.console.texts import t
from kourou.console.views.components import card, page_title, tab_sections
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View

AT_ONCE = 8
PRODUCERS = Table(
    columns(
        "Group=group, Client=clientId:code, Address=remoteIP:code-, Language=language-, "
        "Version=versionDesc-, Brokers=brokers-",
        brokers=lambda row: ", ".join(sorted(row["brokers"])),
    )
)
CONSUMERS = Table(
    columns(
        "Group=group:group, Client=client:code, Address=address:code-, Language=language-, Version=version-, "
        "Topics=topics-"
    )
)


async def draw(view: View) -> None:
    """Draw the page."""
    await view.backend.ready()
    page_title(t("Clients"), t("Producers and consumers that are connected now"))
    ask = view.backend.ask
    masters = dict(view.snapshot.masters)
    groups = [name for name, row in view.snapshot.groups.items() if row.clients]
    tab_sections(
        {
            "producers": (
                t("Producers"),
                lambda: ask(("producers", *masters), lambda admin: _producers(admin, masters)),
                lambda rows: _draw(PRODUCERS, rows, t("No producer is connected"), "producers"),
            ),
            "consumers": (
                t("Consumers"),
                lambda: ask(("consumers", *groups), lambda admin: _consumers(admin, groups)),
                lambda rows: _draw(CONSUMERS, rows, t("No consumer is connected"), "consumers"),
            ),
        }
    )


async def _producers(admin: Admin, masters: dict[str, str]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for broker, address in masters.items():
        for group, clients in (await admin.producers.at_broker(address)).items():
            for client in clients:
                key = group, str(client.get("clientId"))
                rows.setdefault(key, {**client, "group": group, "brokers": set()})["brokers"].add(broker)
    return list(rows.values())


async def _consumers(admin: Admin, groups: list[str]) -> list[dict[str, Any]]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(group: str) -> list[dict[str, Any]]:
        async with slots:
            try:
                found = await admin.groups.connections(group)
            except RefusedError:
                return []  # gone meanwhile
        topics = ", ".join(subscription.topic for subscription in found.subscriptions)
        return [
            {
                "group": group, "client": one.client_id, "address": one.address, "language": one.language,
                "version": one.version, "topics": topics,
            }
            for one in found.clients
        ]  # fmt: skip

    return [row for rows in await asyncio.gather(*map(ask, groups)) for row in rows]


def _draw(shown: Table, rows: list[dict[str, Any]], nothing: str, export: str) -> None:
    with card():
        AnswerTable(shown, rows, export=export, nothing=nothing)

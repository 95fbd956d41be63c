"""Groups: all consumer groups with their lag, and new ones."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.console.door.users import Role
from kourou.console.pages.topics import where_select
from kourou.console.texts import t
from kourou.console.views.components import card, dialog, dialog_buttons, live, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View, group_url

MAX_RETRY_TIMES = 1000


async def draw(view: View) -> None:
    """Draw the page."""
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(t("Consumer groups"))
        if view.may(Role.ADMIN):
            ui.button(t("Create group"), icon="add", on_click=lambda: settings_dialog(view)).props(
                "unelevated"
            )
    with card():
        with_system = ui.switch(t("Show groups of the system")).classes("mb-2")
        table = DataTable(
            [
                Column("name", t("Group"), "link"),
                Column("state", t("State"), "badge"),
                Column("lag", t("Lag"), "number"),
                Column("clients", t("Clients"), "number"),
                Column("tps", t("Out / s"), "number"),
                Column("type", t("Type"), minor=True),
                Column("model", t("Model"), minor=True),
                Column("topics", t("Topics"), "code", minor=True),
                Column("dead", t("Dead letters"), "number", minor=True),
            ],
            export="groups",
            sort="lag",
            descending=True,
            nothing=t("No consumer groups yet: they come with their first client"),
        )

    def refresh() -> None:
        table.show(
            {
                "name": row.name,
                "name_href": group_url(row.name),
                "state": t("online") if row.clients else t("offline"),
                "state_color": "good" if row.clients else "mute",
                "lag": row.lag,
                "clients": len(row.clients),
                "tps": round(row.tps, 1),
                "type": row.consume_type,
                "model": row.message_model.lower(),
                "topics": ", ".join(sorted(row.topics)),
                "dead": row.dead,
            }
            for row in view.snapshot.groups.values()
            if with_system.value or not row.is_system
        )

    with_system.on_value_change(refresh)
    await view.backend.ready()
    live(view, refresh)


def settings_dialog(view: View, group: str = "", known: dict[str, Any] | None = None) -> None:
    """Ask for the settings of a group: a new one, or one that is known with its SubscriptionGroupConfig."""
    settings = known or {}
    with dialog(t("Edit group") if known else t("Create group")) as box:
        name = ui.input(t("Name"), value=group).props(
            "outlined dense" + (" readonly" if known else " autofocus")
        )
        with ui.row().classes("w-full gap-3 no-wrap"):
            retries = ui.number(
                t("Retries before dead letter"),
                value=int(settings.get("retryMaxTimes", 16)), min=0, max=MAX_RETRY_TIMES, format="%d",
            ).props("outlined dense").classes("grow")  # fmt: skip
            retry_queues = ui.number(
                t("Retry queues"), value=int(settings.get("retryQueueNums", 1)), min=0, format="%d"
            ).props("outlined dense").classes("grow")  # fmt: skip
        enabled = ui.switch(t("It may consume"), value=bool(settings.get("consumeEnable", True)))
        broadcast = ui.switch(
            t("Each client may have all messages (broadcasting)"),
            value=bool(settings.get("consumeBroadcastEnable", True)),
        )
        from_min = ui.switch(
            t("It may begin at the oldest message"), value=bool(settings.get("consumeFromMinEnable", True))
        )
        orderly = ui.switch(
            t("It consumes in order"), value=bool(settings.get("consumeMessageOrderly", False))
        )
        where = where_select(view)

        async def save() -> bool:
            wanted = (name.value or "").strip()
            values = {
                **settings,
                "consumeEnable": bool(enabled.value),
                "consumeBroadcastEnable": bool(broadcast.value),
                "consumeFromMinEnable": bool(from_min.value),
                "consumeMessageOrderly": bool(orderly.value),
                "retryMaxTimes": int(retries.value or 0),
                "retryQueueNums": int(retry_queues.value or 0),
            }
            done = await view.change(
                Role.ADMIN,
                lambda admin: admin.groups.create(wanted, values, **where()),
                t("Group {name} is saved", name=wanted),
            )
            if done is not None:
                ui.navigate.to(group_url(wanted))
            return done is not None

        dialog_buttons(box, t("Save"), save)

"""Groups: all consumer groups with their lag, and new ones."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin.operations import groups
from kourou.admin.operations.declare import Table, columns
from kourou.console.door.users import Role
from kourou.console.texts import later, t
from kourou.console.views.components import card, live, page_title
from kourou.console.views.operations import AnswerTable, ask
from kourou.console.views.view import View, group_url

ONLINE, OFFLINE = later("online"), later("offline")
GROUPS = Table(
    columns(
        "Group=name:group, State=state:badge, Lag=lag:number, Clients=clients:number, Out / s=tps:number, "
        "Type=consume_type-, Model=model-, Topics=topics:code-, Dead letters=dead:number-",
        state=lambda row: ONLINE if row.clients else OFFLINE,
        clients=lambda row: len(row.clients),
        model=lambda row: row.message_model.lower(),
        topics=lambda row: ", ".join(sorted(row.topics)),
    )
)
# Parameter -> field of SubscriptionGroupConfig
FIELDS = {
    "retry_times": "retryMaxTimes", "retry_queues": "retryQueueNums", "enable": "consumeEnable",
    "broadcast": "consumeBroadcastEnable", "from_min": "consumeFromMinEnable",
    "orderly": "consumeMessageOrderly",
}  # fmt: skip


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
        nothing = t("No consumer groups yet: they come with their first client")
        table = AnswerTable(GROUPS, export="groups", sort="Lag", descending=True, nothing=nothing)

    def refresh() -> None:
        rows = view.snapshot.groups.values()
        table.show(row for row in rows if with_system.value or not row.is_system)

    with_system.on_value_change(refresh)
    await view.backend.ready()
    live(view, refresh)


def settings_dialog(view: View, group: str = "", settings: dict[str, Any] | None = None) -> None:
    """Ask for the settings of a group: a new one, or one that is known with its SubscriptionGroupConfig."""
    known = {name: settings[field] for name, field in FIELDS.items() if field in settings} if settings else {}
    others = {key: value for key, value in (settings or {}).items() if key not in FIELDS.values()}
    fields = "retry_times, retry_queues, enable, broadcast, from_min, orderly"
    ask(
        view, groups.create, t("Edit group") if settings else t("Create group"), t("Save"),
        t("Group {name} is saved", name="{group}"), fields=fields if settings else f"group=Name, {fields}",
        fixed={"setting": others, **({"group": group} if group else {})}, known=known, where=True,
        notes=[group] if group else [], then=lambda given, _: ui.navigate.to(group_url(given["group"])),
    )  # fmt: skip

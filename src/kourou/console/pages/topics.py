"""Topics: all of them by kind, and new ones."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.console.contents import KINDS
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views.components import card, dialog, dialog_buttons, live, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View, topic_url

COLORS = {
    "delay": "warn",
    "transaction": "info",
    "fifo": "good",
    "retry": "mute",
    "dlq": "bad",
    "system": "mute",
}
SHOWN_AT_FIRST = ("normal", "delay", "transaction", "fifo")
MAX_QUEUES = 1024
TYPES = ("NORMAL", "DELAY", "TRANSACTION", "FIFO")


def kind_names() -> dict[str, str]:
    """The kinds of topics, by their names."""
    return {
        "normal": t("normal"),
        "delay": t("delay"),
        "transaction": t("transaction"),
        "fifo": "FIFO",
        "retry": t("retry"),
        "dlq": t("dead letters"),
        "system": t("system"),
    }


def permission(perm: int) -> str:
    """A permission in words."""
    return {6: t("read, write"), 4: t("read"), 2: t("write")}.get(perm & 6, t("none"))


async def draw(view: View) -> None:
    """Draw the page."""
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(t("Topics"))
        if view.may(Role.ADMIN):
            ui.button(t("Create topic"), icon="add", on_click=lambda: create_dialog(view)).props("unelevated")
    names = kind_names()
    with card():
        kinds = (
            ui.select({kind: names[kind] for kind in KINDS}, value=list(SHOWN_AT_FIRST), multiple=True)
            .props(f'outlined dense use-chips label="{t("Kinds")}"')
            .classes("w-full mb-3")
        )
        table = DataTable(
            [
                Column("name", t("Topic"), "link"),
                Column("kind", t("Kind"), "badge"),
                Column("messages", t("Messages"), "number"),
                Column("tps", t("In / s"), "number"),
                Column("queues", t("Queues"), "number", minor=True),
                Column("perm", t("Permission"), minor=True),
                Column("brokers", t("Brokers"), minor=True),
                Column("last", t("Last message"), "time", minor=True),
            ],
            export="topics",
            sort="name",
            nothing=t("No topics of these kinds. They come with their first message, or are created here."),
        )

    def refresh() -> None:
        wanted = set(kinds.value or KINDS)
        table.show(
            {
                "name": row.name,
                "name_href": topic_url(row.name),
                "kind": names[row.kind],
                "kind_color": COLORS.get(row.kind, "mute"),
                "messages": row.messages,
                "tps": round(row.tps, 1),
                "queues": row.write_queues,
                "perm": permission(row.perm),
                "brokers": ", ".join(row.brokers),
                "last": row.last_update_ms,
            }
            for row in view.snapshot.topics.values()
            if row.kind in wanted
        )

    kinds.on_value_change(refresh)
    await view.backend.ready()
    live(view, refresh)


def create_dialog(view: View) -> None:
    """Ask for what a new topic is to be."""
    with dialog(t("Create topic")) as box:
        name = ui.input(t("Name")).props("outlined dense autofocus")
        kind = ui.select({one: one for one in TYPES}, value="NORMAL", label=t("Message type")).props(
            "outlined dense"
        )
        with ui.row().classes("w-full gap-3 no-wrap"):
            queues = (
                ui.number(t("Queues on each broker"), value=8, min=1, max=MAX_QUEUES, format="%d")
                .props("outlined dense")
                .classes("grow")
            )
            perm = (
                ui.select(
                    {6: permission(6), 4: permission(4), 2: permission(2)}, value=6, label=t("Permission")
                )
                .props("outlined dense")
                .classes("grow")
            )
        where = where_select(view)

        async def save() -> bool:
            topic = (name.value or "").strip()
            done = await view.change(
                Role.ADMIN,
                lambda admin: admin.topics.create(
                    topic,
                    queues=int(queues.value or 1),
                    perm=int(perm.value),
                    attributes=f"+message.type={kind.value}",
                    **where(),
                ),
                t("Topic {name} is created", name=topic),
            )
            if done is not None:
                ui.navigate.to(topic_url(topic))
            return done is not None

        dialog_buttons(box, t("Create"), save)


def where_select(view: View) -> Any:
    """Ask whether something is for all masters, a cluster, or one broker; what was chosen, for Admin."""
    options: dict[str, str] = {"": t("All masters")}
    options |= {f"cluster {name}": t("Cluster {name}", name=name) for name in view.snapshot.clusters}
    options |= {f"broker {name}": t("Broker {name}", name=name) for name in view.snapshot.masters}
    chosen = ui.select(options, value="", label=t("Where")).props("outlined dense")

    def read() -> dict[str, str]:
        what, _, name = str(chosen.value or "").partition(" ")
        return {what: name} if what else {}

    return read

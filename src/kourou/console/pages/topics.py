"""Topics: all of them by kind, and new ones."""

from __future__ import annotations

from nicegui import ui

from kourou.admin.operations import topics
from kourou.admin.operations.declare import Table, columns
from kourou.console.contents import KINDS
from kourou.console.door.users import Role
from kourou.console.texts import later, t
from kourou.console.views.components import card, live, page_title
from kourou.console.views.operations import AnswerTable, ask
from kourou.console.views.view import View, topic_url

KIND_NAMES = {
    "normal": later("normal"), "delay": later("delay"), "transaction": later("transaction"),
    "fifo": later("FIFO"),
    "retry": later("retry"), "dlq": later("dead letters"), "system": later("system"),
}  # fmt: skip
SHOWN_AT_FIRST = ("normal", "delay", "transaction", "fifo")
TOPICS = Table(
    columns(
        "Topic=name:topic, Kind=kind:badge, Messages=messages:number, In / s=tps:number, "
        "Queues=write_queues:number-, Permission=perm:perm-, Brokers=brokers-, "
        "Last message=last_update_ms:time-",
        kind=lambda row: KIND_NAMES[row.kind],
        brokers=lambda row: ", ".join(row.brokers),
    )
)


async def draw(view: View) -> None:
    """Draw the page."""
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(t("Topics"))
        if view.may(Role.ADMIN):
            ui.button(t("Create topic"), icon="add", on_click=lambda: _create(view)).props("unelevated")
    with card():
        kinds = (
            ui.select(
                {kind: t(KIND_NAMES[kind]) for kind in KINDS}, value=list(SHOWN_AT_FIRST), multiple=True
            )
            .props(f'outlined dense use-chips label="{t("Kinds")}"')
            .classes("w-full mb-3")
        )
        nothing = t("No topics of these kinds. They come with their first message, or are created here.")
        table = AnswerTable(TOPICS, export="topics", sort="Topic", nothing=nothing)

    def refresh() -> None:
        wanted = set(kinds.value or KINDS)
        table.show(row for row in view.snapshot.topics.values() if row.kind in wanted)

    kinds.on_value_change(refresh)
    await view.backend.ready()
    live(view, refresh)


def _create(view: View) -> None:
    ask(
        view, topics.create, t("Create topic"), t("Create"), t("Topic {name} is created", name="{topic}"),
        fields="topic=Name, type, queues, perm", where=True,
        then=lambda given, _: ui.navigate.to(topic_url(given["topic"])),
    )  # fmt: skip

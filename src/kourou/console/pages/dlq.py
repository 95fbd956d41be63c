"""Dead letters: what groups could never consume; sent again to them, one or many, or exported."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from nicegui import ui

from kourou.admin import Admin
from kourou.admin.operations.declare import Table, columns
from kourou.client.consume.received import ReceivedMessage
from kourou.console.contents import TopicRow
from kourou.console.door.users import Role
from kourou.console.reading import MESSAGES, OF_THE_WAY, Found, as_json, browse
from kourou.console.texts import t
from kourou.console.views.components import Section, card, dialog, dialog_buttons, empty, live, page_title
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View, from_path, to_path
from kourou.message import Message
from kourou.message import properties as names
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX

RESEND_S = 30.0


def _link(row: TopicRow) -> tuple[str, str]:
    group = row.name.removeprefix(DLQ_PREFIX)
    return group, f"/dlq/{to_path(group)}"


GROUPS = Table(
    columns("Group=group:link, Dead letters=messages:number, Last message=last_update_ms:time", group=_link)
)


async def draw(view: View) -> None:
    """Draw the page: the groups that have dead letters."""
    page_title(t("Dead letters"), t("Messages that a group has given up after its last try"))
    with card():
        nothing = t("No group has dead letters. Good.")
        table = AnswerTable(
            GROUPS, export="dead-letters", sort="Dead letters", descending=True, nothing=nothing
        )

    def refresh() -> None:
        table.show(row for row in view.snapshot.topics.values() if row.kind == "dlq")

    await view.backend.ready()
    live(view, refresh)


async def draw_group(view: View, name: str) -> None:
    """Draw the page of the dead letters of one group."""
    group = from_path(name)
    topic = DLQ_PREFIX + group
    page_title(group, t("Dead letters"), parent=(t("Dead letters"), "/dlq"))
    Section(
        lambda: view.backend.ask(("dlq", topic), lambda admin: browse(admin, topic)),
        lambda found: _draw_letters(view, group, found),
    )


def _draw_letters(view: View, group: str, found: Found) -> None:
    with card():
        if not found.messages:
            empty("mark_email_read", t("No dead letters"))
            return
        with ui.row().classes("k-toolbar mb-2"):
            if view.may(Role.OPERATOR):
                ui.button(t("Send again"), icon="replay", on_click=lambda: resend()).props("unelevated")
            ui.button(t("Export JSON"), icon="data_object", on_click=lambda: export()).props("outline")
            ui.label(t("The selected ones, or all")).classes("k-subtitle")
        table = AnswerTable(
            MESSAGES, found.messages, export=f"{group}-dead-letters", sort="Stored", descending=True,
            selection=True,
        )  # fmt: skip

    def export() -> None:
        text = b"".join(orjson.dumps(as_json(message)) + b"\n" for message in table.chosen)
        ui.download.content(text, f"{group}-dead-letters.jsonl", "application/x-ndjson")

    def resend() -> None:
        wanted = table.chosen
        with dialog(t("Send again")) as box:
            ui.label(
                t(
                    "{count} messages go to group {group} again, and to no other.",
                    count=len(wanted),
                    group=group,
                )
            )

            async def send() -> bool:
                sent = await view.change(
                    Role.OPERATOR,
                    lambda admin: send_again(admin, group, wanted),
                    t("{count} messages are sent", count=len(wanted)),
                    within_s=RESEND_S,
                )
                return sent is not None

            dialog_buttons(box, t("Send"), send)


async def send_again(admin: Admin, group: str, messages: Iterable[ReceivedMessage]) -> int:
    """Send dead letters to the retry topic of their group, where no other group reads; how many."""
    count = 0
    async with admin.messages.producer() as producer:
        for message in messages:
            properties = {key: value for key, value in message.properties.items() if key not in OF_THE_WAY}
            origin = message.properties.get(names.DLQ_ORIGIN_TOPIC)
            if origin and names.RETRY_TOPIC not in properties:
                properties[names.RETRY_TOPIC] = origin
            await producer.send(Message(RETRY_PREFIX + group, bytes(message.body), properties, message.flag))
            count += 1
    return count

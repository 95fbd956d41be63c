"""A message: its body and properties, who has consumed it, its trace; it is sent or consumed again."""

from __future__ import annotations

from datetime import datetime

from nicegui import ui

from kourou.admin.model import DirectResult, MessageTrack
from kourou.admin.operations import messages
from kourou.admin.operations.declare import Table, columns
from kourou.client.consume.received import ReceivedMessage
from kourou.console.door.users import Role
from kourou.console.pages.timeline import draw_trace
from kourou.console.reading import MAX_SHOWN_BYTES, body_forms
from kourou.console.texts import later, t
from kourou.console.views.components import (
    Section,
    card,
    code,
    dialog,
    dialog_buttons,
    empty,
    facts,
    page_title,
    size,
)
from kourou.console.views.operations import AnswerTable, ask, change
from kourou.console.views.view import View, from_path, message_url, to_path, topic_url
from kourou.message.host import format_host

_STATES = {
    "CONSUMED": later("consumed"), "CONSUMED_BUT_FILTERED": later("left out by its filter"),
    "NOT_CONSUME_YET": later("not consumed yet"), "NOT_ONLINE": later("offline"),
    "PULL": later("pulls, not known"), "CONSUME_BROADCASTING": later("broadcasting, not known"),
    "UNKNOWN": later("not known"),
}  # fmt: skip
TRACKS = Table(
    columns(
        "Group=group:group, State=state:badge, Reason=reason:code-",
        state=lambda one: _STATES.get(one.track_type, one.track_type),
    )
)
PROPERTIES = Table(
    columns("Name=name:code, Value=value:code"),
    rows=lambda found: [{"name": name, "value": value} for name, value in sorted(found.items())],
)


async def draw(view: View, topic: str, message_id: str) -> None:
    """Draw the page of a message."""
    name = from_path(topic)
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(message_id, name, parent=(t("Messages"), f"/messages?topic={to_path(name)}"))
        if view.may(Role.OPERATOR):
            with ui.row().classes("gap-2"):
                ui.button(
                    t("Send again"), icon="replay", on_click=lambda: _resend_dialog(view, name, message_id)
                ).props("outline")
                ui.button(
                    t("Consume directly"),
                    icon="play_arrow",
                    on_click=lambda: _consume_dialog(view, name, message_id),
                ).props("outline")
    Section(
        lambda: view.backend.ask(
            ("message", name, message_id), lambda admin: admin.messages.by_id(name, message_id)
        ),
        lambda message: _draw(view, name, message),
    )


def _draw(view: View, topic: str, message: ReceivedMessage) -> None:
    with ui.element("div").classes("k-grid-2"):
        with card(t("Message")):
            facts(
                {
                    t("Topic"): lambda: ui.link(topic, topic_url(topic)).classes("k-link"),
                    t("Message id"): lambda: ui.label(message.message_id).classes("k-mono"),
                    t("Offset message id"): lambda: ui.label(message.offset_message_id).classes("k-mono"),
                    t("Tag"): message.tags,
                    t("Keys"): " ".join(message.keys),
                    t("Queue, offset"): f"{message.queue_id}, {message.queue_offset:,}",
                    t("Born"): f"{_time(message.born_timestamp)} · {format_host(message.born_host)}",
                    t("Stored"): f"{_time(message.store_timestamp)} · {format_host(message.store_host)}",
                    t("Size"): size(len(message.body)),
                    t("Tries"): str(message.reconsume_times),
                }
            )
        with card(t("Body")):
            _draw_body(message)
    with card(t("Properties")):
        AnswerTable(PROPERTIES, message.properties, export="properties", per_page=10)
    with card(t("Who has consumed it")):
        Section(
            lambda: view.backend.ask(
                ("tracks", message.offset_message_id), lambda admin: admin.messages.tracks(message)
            ),
            _draw_tracks,
        )
    with card(t("Trace")):
        unique_id = message.message_id
        Section(
            lambda: view.backend.ask(("trace", unique_id), lambda admin: admin.messages.trace(unique_id)),
            draw_trace,
        )


def _draw_body(message: ReceivedMessage) -> None:
    body, name = bytes(message.body), message.message_id
    if message.body_error is not None:
        ui.label(t("The body cannot be read: {error}", error=message.body_error)).classes("k-subtitle")
    if not body:
        empty("short_text", t("The body is empty"))
        return
    forms = body_forms(body)
    names = {"json": "JSON", "text": t("Text"), "hex": "Hex"}
    with ui.tabs().props("align=left no-caps dense") as tabs:
        for form in forms:
            ui.tab(form, names[form])
    with ui.tab_panels(tabs, value=next(iter(forms)), animated=False):
        for form, text in forms.items():
            with ui.tab_panel(form):
                code(text)
    with ui.row().classes("w-full items-center justify-between gap-2 mt-2"):
        is_cut = len(body) > MAX_SHOWN_BYTES
        ui.label(t("The first {size}", size=size(MAX_SHOWN_BYTES)) if is_cut else "").classes("k-subtitle")
        ui.button(
            t("Download"),
            icon="download",
            on_click=lambda: ui.download.content(body, f"{name}.bin", "application/octet-stream"),
        ).props("flat dense")


def _draw_tracks(tracks: list[MessageTrack]) -> None:
    if not tracks:
        empty("groups", t("No group consumes this topic"))
        return
    AnswerTable(TRACKS, tracks, export="tracks", per_page=10)


def _resend_dialog(view: View, topic: str, message_id: str) -> None:
    ask(
        view, messages.resend, t("Send again"), t("Send"), t("The message is sent"), fields="",
        fixed={"topic": topic, "message_id": message_id},
        notes=[t("A new message with the same body and properties goes to {topic}.", topic=topic)],
        then=lambda _, sent: ui.navigate.to(message_url(topic, sent.offset_message_id)),
    )  # fmt: skip


def _consume_dialog(view: View, topic: str, message_id: str) -> None:
    groups = view.snapshot.groups
    online = [name for name, row in groups.items() if row.clients and topic in row.topics] or [
        name for name, row in groups.items() if row.clients
    ]
    if not online:
        with dialog(t("Consume directly")):
            empty("cloud_off", t("Nobody is online"), t("Start a client of the group, and look again"))
        return
    clients = {
        f"{client} · {name}": (name, client) for name in online for client in sorted(groups[name].clients)
    }
    with dialog(t("Consume directly")) as box:
        chosen = ui.select(list(clients), value=next(iter(clients)), label=t("Client")).props(
            "outlined dense"
        )
        ui.label(t("This client consumes it now, whatever became of it before."))

        async def consume() -> bool:
            group, client = clients[str(chosen.value)]
            given = {"topic": topic, "message_id": message_id, "group": group, "client": client}
            return await change(view, messages.consume, given, t("The client has answered"), _show_result)

        dialog_buttons(box, t("Consume directly"), consume)


def _show_result(_: object, result: DirectResult) -> None:
    with dialog(t("The client has answered")):
        facts(
            {
                t("Result"): result.consume_result,
                t("Remark"): result.remark,
                t("Milliseconds"): str(result.spent_ms),
            }
        )


def _time(when_ms: int) -> str:
    return datetime.fromtimestamp(when_ms / 1000).isoformat(" ", "milliseconds")

"""The dialog that sends a message."""

from __future__ import annotations

from nicegui import ui

from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views.components import dialog, dialog_buttons
from kourou.console.views.view import View, message_url
from kourou.errors import BadMessageError
from kourou.message import Message


def send_dialog(view: View, topic: str, body: str = "") -> None:
    """Ask for a message, and send it."""
    with dialog(t("Send a message")) as box:
        ui.label(topic).classes("k-mono").style("overflow-wrap: anywhere")
        text = ui.textarea(t("Body"), value=body).props("outlined dense autofocus rows=6")
        with ui.row().classes("w-full gap-3 no-wrap"):
            tags = ui.input(t("Tag")).props("outlined dense").classes("grow")
            keys = ui.input(t("Keys, with spaces")).props("outlined dense").classes("grow")
        with ui.row().classes("w-full gap-3 no-wrap"):
            sharding = ui.input(t("Sharding key, for order")).props("outlined dense").classes("grow")
            delay = ui.number(t("Delay in seconds"), min=0).props("outlined dense").classes("grow")
        properties = ui.textarea(t("Properties, a NAME=VALUE a line")).props("outlined dense rows=2")
        trace = ui.switch(t("Trace it"))

        async def send() -> bool:
            receipt = await view.change(
                Role.OPERATOR,
                lambda admin: admin.messages.send(
                    Message(
                        topic,
                        (text.value or "").encode(),
                        _pairs(properties.value or ""),
                        tags=tags.value or None,
                        keys=keys.value or None,
                        sharding_key=sharding.value or None,
                        delay_s=float(delay.value) if delay.value else None,
                    ),
                    trace=bool(trace.value),
                ),
                t("The message is sent"),
            )
            if receipt is None:
                return False
            ui.navigate.to(message_url(topic, receipt.offset_message_id or receipt.message_id))
            return True

        dialog_buttons(box, t("Send"), send)


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if not line.strip():
            continue
        if not separator or not name.strip():
            raise BadMessageError(f"{line!r} is no NAME=VALUE")
        found[name.strip()] = value
    return found

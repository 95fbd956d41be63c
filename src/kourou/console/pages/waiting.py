"""Waiting: messages that brokers keep until they are due (delays, timers), or decided (half messages)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.client.consume.received import ReceivedMessage
from kourou.client.core import NoRouteError
from kourou.console.reading import browse, row_of
from kourou.console.texts import t
from kourou.console.views.components import Section, card, empty, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View
from kourou.message import properties as names
from kourou.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_LEVEL = "scheduleMessageOffset_"


@dataclass(slots=True)
class Waiting:
    """What waits: messages, and for delay levels how many wait of each at each broker."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    levels: list[tuple[str, int, int]] = field(default_factory=list)  # broker, level, messages


async def draw(view: View) -> None:
    """Draw the page."""
    await view.backend.ready()
    page_title(
        t("Waiting messages"), t("Kept by the brokers until they are due, or their transaction is decided")
    )
    ask = view.backend.ask
    masters = dict(view.snapshot.masters)
    with ui.tabs().props("align=left no-caps") as tabs:
        first = ui.tab("delayed", t("Delayed by level"))
        ui.tab("timer", t("Timers"))
        ui.tab("half", t("Half messages"))
    with ui.tab_panels(tabs, value=first, animated=False):
        with ui.tab_panel("delayed"):
            Section(lambda: ask("delayed", lambda admin: _delayed(admin, masters)), _draw_delayed)
        with ui.tab_panel("timer"):
            Section(lambda: ask("timer", _timers), _draw_messages)
        with ui.tab_panel("half"):
            Section(lambda: ask("half", _half), _draw_messages)


async def _delayed(admin: Admin, masters: dict[str, str]) -> Waiting:
    found = Waiting()
    delivered: dict[tuple[str, int], int] = {}
    for name, address in masters.items():
        for key, value in (await admin.brokers.runtime(address)).items():
            if key.startswith(_LEVEL):
                level = int(key.removeprefix(_LEVEL))
                offset, _, end = value.partition(",")
                delivered[name, level - 1] = int(offset)
                if int(end) > int(offset):
                    found.levels.append((name, level, int(end) - int(offset)))
    found.messages = [
        message
        for message in await _read(admin, SCHEDULE_TOPIC)
        if message.queue_offset >= delivered.get((message.broker_name, message.queue_id), 0)
    ]
    return found


async def _timers(admin: Admin) -> Waiting:
    now_ms = time.time() * 1000
    messages = await _read(admin, TIMER_TOPIC)
    return Waiting([one for one in messages if int(one.properties.get(names.TIMER_OUT_MS, 0)) > now_ms])


async def _half(admin: Admin) -> Waiting:
    """The half messages behind the last that was decided with all before it; some may be decided too."""
    messages = await _read(admin, TRANS_HALF_TOPIC)
    if not messages:
        return Waiting()
    progress = await admin.groups.progress(TRANSACTION_GROUP, TRANS_HALF_TOPIC)
    decided = {(one.broker_name, one.queue_id): one.consumer_offset for one in progress.queues}
    return Waiting(
        [one for one in messages if one.queue_offset >= decided.get((one.broker_name, one.queue_id), 0)]
    )


async def _read(admin: Admin, topic: str) -> list[ReceivedMessage]:
    try:
        return (await browse(admin, topic)).messages
    except NoRouteError:
        return []  # a broker makes such a topic when it first needs it


def _draw_delayed(found: Waiting) -> None:
    if found.levels:
        with card(t("By delay level")):
            rows: list[dict[str, Any]] = [
                {"id": f"{broker} {level}", "broker": broker, "level": level, "messages": count}
                for broker, level, count in found.levels
            ]
            columns = [
                Column("broker", t("Broker")),
                Column("level", t("Level"), "number"),
                Column("messages", t("Messages"), "number"),
            ]
            DataTable(columns, rows, key="id", export="delay-levels", per_page=10)
    _draw_messages(found)


def _draw_messages(found: Waiting) -> None:
    with card():
        if not found.messages:
            empty("hourglass_empty", t("Nothing waits"))
            return
        columns = [
            Column("stored", t("Stored"), "time"),
            Column("message", t("Message id"), "id"),
            Column("goes_to", t("Goes to")),
            Column("due", t("Due"), "time"),
            Column("keys", t("Keys"), "code", minor=True),
            Column("body", t("Body"), "line", minor=True),
        ]
        rows = [
            {
                **row_of(message),
                "goes_to": message.properties.get(names.REAL_TOPIC, ""),
                "due": int(message.properties.get(names.TIMER_OUT_MS, 0)),
            }
            for message in found.messages
        ]
        DataTable(columns, rows, key="id", export="waiting", sort="stored", descending=True)

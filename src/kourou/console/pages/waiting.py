"""Waiting: messages that brokers keep until they are due (delays, timers), or decided (half messages)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kourou.admin import Admin
from kourou.admin.operations.declare import Table, columns
from kourou.client.consume.received import ReceivedMessage
from kourou.client.core import NoRouteError
from kourou.console.reading import CONTENT, STORED, browse
from kourou.console.texts import t
from kourou.console.views.components import card, empty, page_title, tab_sections
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View
from kourou.message import properties as names
from kourou.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_LEVEL = "scheduleMessageOffset_"
LEVELS = Table(columns("Broker=broker, Level=level:number, Messages=messages:number"))
MESSAGES = Table(
    (
        *STORED,
        *columns(
            "Goes to=topic, Due=due:time",
            topic=lambda message: message.properties.get(names.REAL_TOPIC, ""),
            due=lambda message: int(message.properties.get(names.TIMER_OUT_MS, 0)),
        ),
        *CONTENT,
    )
)


@dataclass(slots=True)
class Waiting:
    """What waits: messages, and for delay levels how many wait of each at each broker."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    levels: list[dict[str, Any]] = field(default_factory=list)


async def draw(view: View) -> None:
    """Draw the page."""
    await view.backend.ready()
    page_title(
        t("Waiting messages"), t("Kept by the brokers until they are due, or their transaction is decided")
    )
    ask = view.backend.ask
    masters = dict(view.snapshot.masters)
    tab_sections(
        {
            "delayed": (
                t("Delayed by level"),
                lambda: ask("delayed", lambda admin: _delayed(admin, masters)),
                _draw_delayed,
            ),
            "timer": (t("Timers"), lambda: ask("timer", _timers), _draw_messages),
            "half": (t("Half messages"), lambda: ask("half", _half), _draw_messages),
        }
    )


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
                    waits = int(end) - int(offset)
                    found.levels.append({"broker": name, "level": level, "messages": waits})
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
            AnswerTable(LEVELS, found.levels, export="delay-levels", per_page=10)
    _draw_messages(found)


def _draw_messages(found: Waiting) -> None:
    with card():
        if not found.messages:
            empty("hourglass_empty", t("Nothing waits"))
            return
        AnswerTable(MESSAGES, found.messages, export="waiting", sort="Stored", descending=True)

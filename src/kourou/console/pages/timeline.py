"""A trace drawn as a timeline: a bar for each thing that happened to a message."""

from __future__ import annotations

from datetime import datetime

from nicegui import ui

from kourou.admin.model import TraceEntry
from kourou.console.texts import t
from kourou.console.views.components import empty

MIN_SPAN_MS = 1


def draw_trace(entries: list[TraceEntry]) -> None:
    """Draw what clients that trace have told of a message."""
    if not entries:
        empty("timeline", t("No trace of it"), t("Clients tell what becomes of a message if they trace"))
        return
    names = {
        "Pub": t("sent"),
        "SubBefore": t("handed to a client"),
        "SubAfter": t("consumed"),
        "EndTransaction": t("transaction ended"),
        "Recall": t("recalled"),
    }
    spans = [_span(entry) for entry in entries]
    first = min(start for start, _ in spans)
    whole = max(max(end for _, end in spans) - first, MIN_SPAN_MS)
    with ui.element("div").classes("w-full flex flex-col gap-2").props("data-timeline"):
        for entry, (start, end) in zip(entries, spans):
            left, width = (start - first) / whole * 97, max((end - start) / whole * 97, 0.6)
            with ui.element("div").classes("k-timeline-row"):
                with ui.element("div"):
                    ui.label(names.get(entry.type, entry.type)).classes("font-medium")
                    ui.label(entry.group).classes("k-subtitle").style("overflow-wrap: anywhere")
                with ui.element("div"):
                    with ui.element("div").classes("k-track"):
                        color = "" if entry.type == "Pub" else "k-subscribed"
                        color = color if entry.is_success else "k-failed"
                        ui.element("div").classes(f"k-span {color}").style(
                            f"left: {left:.2f}%; width: {min(width, 100 - left):.2f}%"
                        )
                    when = datetime.fromtimestamp(entry.timestamp_ms / 1000).isoformat(" ", "milliseconds")
                    state = t("succeeded") if entry.is_success else t("failed")
                    ui.label(f"{when} · {entry.cost_ms} ms · {state} · {entry.client_host}").classes(
                        "k-subtitle"
                    ).style("font-size: 12px; overflow-wrap: anywhere")


def _span(entry: TraceEntry) -> tuple[int, int]:
    """From when to when: the time of what was consumed is its end, of all else its beginning."""
    if entry.type == "SubAfter":
        return entry.timestamp_ms - entry.cost_ms, entry.timestamp_ms
    return entry.timestamp_ms, entry.timestamp_ms + entry.cost_ms

"""Components that pages share: titles, cards, figures, badges, empty and error states, dialogs, charts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, TypeVar

from nicegui import ui
from nicegui.element import Element

from kourou.console.backend import Point
from kourou.console.texts import t
from kourou.console.views.view import View
from kourou.errors import KourouError

_T = TypeVar("_T")

MIN_CHART_S = 300
LOOK_S = 1.0  # how often a tab looks whether the poller has seen something

IN_COLOR, OUT_COLOR, LAG_COLOR = "#4f74f0", "#27a37a", "#e0912f"
_AXIS = {"axisLabel": {"color": "#8592a8"}, "splitLine": {"lineStyle": {"color": "rgba(130,145,170,0.18)"}}}


# Structure


def page_title(title: str, subtitle: str = "", *, parent: tuple[str, str] | None = None) -> None:
    """The heading of a page, and the page that it belongs to (text, address)."""
    with ui.column().classes("gap-1 min-w-0"):
        if parent is not None:
            with ui.row().classes("k-crumbs items-center gap-1"):
                ui.link(parent[0], parent[1]).classes("k-link")
                ui.icon("chevron_right")
        ui.html(f"<h1 class='k-title'>{escape(title)}</h1>", sanitize=False)
        if subtitle:
            ui.label(subtitle).classes("k-subtitle")


@contextmanager
def card(title: str = "", note: str = "") -> Iterator[Element]:
    """A box with a title."""
    with ui.element("section").classes("k-card") as box:
        if title:
            with ui.row().classes("items-baseline gap-3 mb-3"):
                ui.label(title).classes("k-card-title")
                if note:
                    ui.label(note).classes("k-subtitle")
        yield box


@contextmanager
def grid(*, wide: bool = False) -> Iterator[Element]:
    """Boxes beside each other, as many as fit."""
    with ui.element("div").classes("k-grid-2" if wide else "k-grid") as box:
        yield box


class Stat:
    """A figure with its name, and a note below it."""

    def __init__(self, label: str, *, mark: str = "") -> None:
        with ui.element("section").classes("k-card"):
            ui.label(label).classes("k-stat-label")
            self._value = ui.label("—").classes("k-stat-value")
            self._note = ui.label("").classes("k-stat-note")
        if mark:
            self._value.mark(mark).props(f"data-stat={mark}")

    def show(self, value: str, note: str = "") -> None:
        """Show a value."""
        self._value.set_text(value)
        self._note.set_text(note)


def badge(text: str, color: str = "mute") -> ui.label:
    """A word in a colour by its meaning: good, warn, bad, info, mute."""
    return ui.label(text).classes(f"k-badge k-{color}")


def facts(values: Mapping[str, object]) -> None:
    """Names and values, a line each."""
    with ui.element("dl").classes("k-facts m-0"):
        for name, value in values.items():
            with ui.element("dt"):
                ui.label(name)
            with ui.element("dd"):
                if callable(value):
                    value()
                else:
                    ui.label("—" if value in (None, "") else str(value))


def code(text: str) -> None:
    """Text as it is, in a box that scrolls."""
    with ui.element("pre").classes("k-code"):
        ui.label(text).style("white-space: pre-wrap")


# States


def empty(icon: str, title: str, advice: str = "") -> None:
    """There is nothing, and what to do about it."""
    with ui.element("div").classes("k-empty"):
        ui.icon(icon)
        ui.label(title).classes("k-empty-title")
        if advice:
            ui.label(advice)


def failure(error: KourouError, again: Callable[[], Any] | None = None) -> None:
    """Something failed: why, and a button to try again."""
    with ui.element("section").classes("k-card k-error").props("role=alert"):
        with ui.row().classes("items-center gap-2 mb-1"):
            ui.icon("error_outline").style("color: var(--k-bad); font-size: 22px")
            ui.label(t("This could not be loaded")).classes("k-card-title")
        ui.label(str(error)).classes("k-subtitle").style("overflow-wrap: anywhere")
        if again is not None:
            ui.button(t("Try again"), icon="refresh", on_click=again).props("flat dense").classes("mt-2")


class Section:
    """A part of a page that is asked for: it shows that it waits, then what was found, or why nothing was."""

    def __init__(self, work: Callable[[], Awaitable[_T]], render: Callable[[_T], Any]) -> None:
        self._work: Callable[[], Awaitable[Any]] = work
        self._render: Callable[[Any], Any] = render
        self._box = ui.element("div").classes("w-full flex flex-col gap-4")
        with self._box, ui.row().classes("w-full justify-center p-6"):
            ui.spinner(size="lg")
        ui.timer(0.01, self.load, once=True)

    async def load(self) -> None:
        """Ask, and show what was found."""
        try:
            found = await self._work()
        except KourouError as error:
            if not self._box.is_deleted:
                with self._box.clear():
                    failure(error, self.load)
            return
        if not self._box.is_deleted:
            with self._box.clear():
                self._render(found)


Tab = tuple[str, Callable[[], Awaitable[Any]], Callable[[Any], Any]]


def tab_sections(tabs: Mapping[str, Tab]) -> list[Section]:
    """Tabs by name: what each is called, what is asked for it, and what draws the answer."""
    with ui.tabs().props("align=left no-caps") as bar:
        for name, (title, _, _) in tabs.items():
            ui.tab(name, title)
    sections = []
    with ui.tab_panels(bar, value=next(iter(tabs)), animated=False):
        for name, (_, work, render) in tabs.items():
            with ui.tab_panel(name):
                sections.append(Section(work, render))
    return sections


def refresh_button(view: View, sections: Sequence[Section]) -> None:
    """A button that asks for sections again."""

    async def load() -> None:
        view.backend.forget()
        await asyncio.gather(*(section.load() for section in sections))

    with ui.button(icon="refresh", on_click=load).props(f'flat round dense aria-label="{t("Refresh")}"'):
        ui.tooltip(t("Refresh"))


def live(view: View, refresh: Callable[[], Any]) -> None:
    """Have something drawn now, and again whenever the poller has seen something."""
    seen = -1

    def look() -> None:
        nonlocal seen
        if view.snapshot.version != seen:
            seen = view.snapshot.version
            refresh()

    look()
    ui.timer(LOOK_S, look)


# Dialogs


@contextmanager
def dialog(title: str, *, wide: bool = False) -> Iterator[ui.dialog]:
    """A dialog with a title; it is gone when it closes. It belongs to the page, not to what opened it, which
    may be a dialog that closes now."""
    look = f"k-dialog {'k-wide-dialog' if wide else ''}"
    with ui.context.client.content, ui.dialog() as box, ui.element("div").classes(look):
        ui.label(title).classes("k-dialog-title")
        yield box
    box.on("hide", box.delete)
    box.open()


def dialog_buttons(
    box: ui.dialog, text: str, action: Callable[[], Awaitable[bool]], *, is_dangerous: bool = False
) -> ui.button:
    """Cancel, and what the dialog is for; it closes when that was done."""

    async def run() -> None:
        confirm.disable()
        try:
            if await action():
                box.close()
        finally:
            if not confirm.is_deleted:
                confirm.enable()

    with ui.row().classes("w-full justify-end gap-2 mt-2"):
        ui.button(t("Cancel"), on_click=box.close).props("flat")
        confirm = ui.button(text, on_click=run).props(
            f"unelevated color={'negative' if is_dangerous else 'primary'}"
        )
    return confirm


def confirm_by_name(
    title: str, warning: str, name: str, text: str, action: Callable[[], Awaitable[bool]]
) -> None:
    """Ask before something is deleted: its name has to be typed."""
    with dialog(title) as box:
        with ui.element("div").classes("k-banner k-bad"):
            ui.icon("warning").classes("text-lg")
            ui.label(warning)
        ui.label(t("Type {name} to confirm.", name=name)).style("overflow-wrap: anywhere")
        typed = ui.input(t("Name")).props("outlined dense autofocus")
        confirm = dialog_buttons(box, text, action, is_dangerous=True)
        confirm.set_enabled(False)
        typed.on_value_change(lambda event: confirm.set_enabled(event.value == name))


# Charts


def line_chart(title: str, series: Sequence[tuple[str, str]]) -> Callable[[list[Point]], None]:
    """A chart of the last half hour; what is returned draws it. `series` are (name, attribute of Point)."""
    colors = {"in_tps": IN_COLOR, "out_tps": OUT_COLOR, "lag": LAG_COLOR}
    has_legend = len(series) > 1
    options: dict[str, Any] = {
        "animation": False,
        "backgroundColor": "transparent",
        "textStyle": {"fontFamily": "inherit"},
        "grid": {"left": 8, "right": 12, "top": 34 if has_legend else 14, "bottom": 4, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True},
        "legend": {
            "show": has_legend, "top": 0, "left": 0, "icon": "roundRect", "itemWidth": 12, "itemHeight": 4,
            "textStyle": {"color": "#8592a8"},
        },
        "xAxis": {"type": "time", **_AXIS, "splitLine": {"show": False}, "axisLine": {"show": False}},
        "yAxis": {"type": "value", "min": 0, "minInterval": 1, **_AXIS},
        "series": [
            {
                "name": name, "type": "line", "showSymbol": False, "data": [],
                "color": colors[attribute], "lineStyle": {"width": 2}, "areaStyle": {"opacity": 0.08},
            }
            for name, attribute in series
        ],
    }  # fmt: skip
    with card(title):
        chart = ui.echart(options).classes("w-full").style("height: 220px")

    def draw(points: list[Point]) -> None:
        for number, (_, attribute) in enumerate(series):
            chart.options["series"][number]["data"] = [
                [int(point.time_s * 1000), round(getattr(point, attribute), 2)] for point in points
            ]
        if points:
            end_s = points[-1].time_s
            chart.options["xAxis"]["min"] = int(min(points[0].time_s, end_s - MIN_CHART_S) * 1000)
            chart.options["xAxis"]["max"] = int(end_s * 1000)

    return draw


def number(value: float) -> str:
    """A number for people: 1,234; of a rate one place, where it is small."""
    return (
        f"{value:,.1f}"
        if isinstance(value, float) and value < 100 and value != int(value)
        else f"{value:,.0f}"
    )


def size(value_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value_bytes < 1024:
            return f"{value_bytes:,.0f} {unit}" if unit == "B" else f"{value_bytes:,.1f} {unit}"
        value_bytes /= 1024
    return f"{value_bytes:,.1f} TiB"

"""Store: a store directory with no broker asked: its files drawn to scale, and the way into each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from nicegui import ui

from kourou.admin.operations.declare import Table, columns
from kourou.console.backend import ANSWER_TIMEOUT_S
from kourou.console.pages.store import checks as store_checks
from kourou.console.pages.store import index as store_index
from kourou.console.pages.store import queue as store_queue
from kourou.console.pages.store import record as store_record
from kourou.console.store.hex import light_css
from kourou.console.store.reading import READ_S, check_path, is_free, read, store_url
from kourou.console.texts import later, t
from kourou.console.views.components import (
    Section,
    Stat,
    badge,
    card,
    empty,
    failure,
    grid,
    number,
    page_title,
    size,
)
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View
from kourou.errors import KourouError
from kourou.inspect import StoreDirectory
from kourou.inspect.info import describe
from kourou.inspect.log_scan import log_end
from kourou.inspect.look.files import Bar, Drawing, draw_files

MOST_QUEUE_ROWS = 2000
QUEUES = Table(
    columns(
        "Queue=name:link, Messages=messages:number, First offset=low:number, End offset=high:number, "
        "Files=files:number-, Type=type-"
    )
)
_STYLED = "tools_css"

# What the parts of a file are, by their kind
PARTS = {
    "used": later("used"),
    "unflushed": later("used, behind the checkpoint"),
    "header": later("header"),
    "slots": later("slots"),
    "blank": later("blank"),
    "damaged": later("damaged, or cut off"),
    "free": later("free"),
}


@dataclass(frozen=True, slots=True)
class _Found:
    info: dict[str, Any]
    drawing: Drawing
    queues: list[dict[str, Any]]
    queues_left_out: int


def add_style() -> None:
    """The style of these pages, once for a tab."""
    storage = ui.context.client.storage
    if not storage.get(_STYLED):
        storage[_STYLED] = True
        style = resources.files("kourou.console").joinpath("assets/tools.css").read_text(encoding="utf-8")
        ui.add_css(f"{style}\n{light_css()}")


async def draw(
    view: View,
    path: str = "",
    file: str = "",
    offset: str = "",
    begin: str = "",
    topic: str = "",
    key: str = "",
    kind: str = "",
    show: str = "",
) -> None:
    """Draw the page: a store, a file of it, or a place in that file, as its address says."""
    add_style()
    stores = [str(one) for one in view.config.stores]
    path = path or (stores[0] if len(stores) == 1 else "")
    if not path:
        page_title(t("Store"), t("The files of a store, down to their bytes; nothing in them is changed"))
        _draw_chooser(view, path, stores)
        return
    try:
        root = check_path(view, path)
    except KourouError as error:
        page_title(t("Store"))
        _draw_chooser(view, path, stores)
        failure(error)
        return
    if offset:
        store_record.draw(view, root, to_number(offset), show_all=show == "all")
    elif file.startswith(("consumequeue/", "batchconsumequeue/")):
        store_queue.draw(view, root, file, to_number(begin) if begin else None)
    elif file.startswith("index/") or (topic and key):
        store_index.draw(view, root, file.removeprefix("index/"), topic, key, is_tag=kind == "tag")
    elif file in ("checkpoint", "timerwheel") or file.startswith("timerlog/"):
        store_checks.draw_small_file(view, root, file)
    elif file:
        store_record.draw_list(view, root, file, to_number(begin) if begin else None)
    else:
        _draw_store(view, path, root, stores, is_check=show == "check")


def to_number(text: str) -> int:
    """A number of an address; 0 where it is none."""
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def _draw_chooser(view: View, path: str, stores: Sequence[str]) -> None:
    with card():
        if not stores and not is_free(view):
            empty(
                "folder_off",
                t("This console has no stores"),
                t("Start it with `--store DIRECTORY`, on the machine of the broker"),
            )
            return
        for one in stores:
            with ui.row().classes("items-center gap-2 mb-2"):
                ui.icon("folder").classes("text-lg")
                ui.link(one, store_url(one)).classes("k-link k-mono")
        if is_free(view):
            with ui.row().classes("k-toolbar"):
                typed = ui.input(t("Store directory"), value=path, placeholder="/data/rocketmq/store")
                typed.props("outlined dense").classes("grow")

                def go() -> None:
                    if typed.value:
                        ui.navigate.to(store_url(str(typed.value).strip()))

                typed.on("keydown.enter", go)
                ui.button(t("Open"), icon="folder_open", on_click=go).props("unelevated")


def _draw_store(view: View, path: str, root: str, stores: Sequence[str], *, is_check: bool) -> None:
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(t("Store"), root)
    if is_free(view) or len(stores) > 1:
        _draw_chooser(view, path, stores)

    def look() -> Awaitable[_Found]:
        # Once for both tabs that show it, and for other browsers.
        return view.backend.ask(
            ("store", root), lambda _: read(view, root, _look), within_s=READ_S + ANSWER_TIMEOUT_S
        )

    with ui.tabs().props("align=left no-caps") as tabs:
        files = ui.tab("files", t("Files"))
        queues = ui.tab("queues", t("Queues"))
        keys = ui.tab("keys", t("Keys"))
        checks = ui.tab("check", t("Recovery and check"))
    with ui.tab_panels(tabs, value=checks if is_check else files, animated=False):
        with ui.tab_panel(files):
            Section(look, lambda found: _draw_files(root, found))
        with ui.tab_panel(queues):
            Section(look, _draw_queues)
        with ui.tab_panel(keys):
            store_index.draw_search(root, "", "", is_tag=False)
        with ui.tab_panel(checks):
            store_checks.draw(view, root)


def _look(store: StoreDirectory) -> _Found:
    queues = [
        {
            "name": (str(queue), store_url(
                store.root, file=store.relative(queue.files[-1].path if queue.files else queue.path)
            )),
            "low": queue.min_offset, "high": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "files": len(queue.files), "type": "BatchCQ" if queue.batch else "SimpleCQ",
        }
        for queue in store.queues[:MOST_QUEUE_ROWS]
    ]  # fmt: skip
    return _Found(describe(store), draw_files(store, log_end(store)), queues, len(store.queues) - len(queues))


def _draw_files(root: str, found: _Found) -> None:
    info, drawing = found.info, found.drawing
    with grid():
        Stat(t("Log"), mark="store-log").show(
            size(info["log"]["maxOffset"] - info["log"]["minOffset"]),
            f"{number(info['log']['minOffset'])} – {number(info['log']['maxOffset'])}",
        )
        Stat(t("Messages"), mark="store-messages").show(
            number(sum(topic["messages"] for topic in info["topics"])),
            t("{count} topics", count=len(info["topics"])),
        )
        Stat(t("Keys in the index")).show(
            number(info["index"]["entries"]), t("{count} files", count=info["index"]["files"])
        )
        with ui.element("section").classes("k-card"):
            ui.label(t("State")).classes("k-stat-label mb-2")
            if info["lock"]:
                badge(t("in use by {who}", who=info["lock"]), "info")
            elif info["abort"]:
                badge(t("not closed"), "warn")
            else:
                badge(t("closed"), "good")
            faults = sum(item["severity"] == "fault" for item in info["health"])
            if faults:
                badge(t("{count} faults", count=faults), "bad").classes("mt-1")
    _draw_bars(root, t("Commit log"), drawing.log)
    _draw_bars(root, t("Consume queues"), drawing.queues, unit=t("entries"))
    _draw_bars(root, t("Index"), drawing.index, unit=t("keys"))
    _draw_bars(root, t("Other files"), drawing.others, is_scaled=False)
    if drawing.left_out:
        ui.label(t("{count} older or further files are not drawn", count=drawing.left_out)).classes(
            "k-subtitle"
        )


def _draw_bars(root: str, title: str, bars: Sequence[Bar], *, unit: str = "", is_scaled: bool = True) -> None:
    if not bars:
        return
    largest = max(bar.size_bytes for bar in bars)
    kinds = list(dict.fromkeys(kind for bar in bars for kind, _ in bar.parts))
    with card(title, size(sum(bar.size_bytes for bar in bars))):
        lines = "".join(_bar_html(root, bar, largest if is_scaled else bar.size_bytes, unit) for bar in bars)
        legend = "".join(
            f"<span><i class='k-key-box kp-{kind}'></i>{escape(t(PARTS[kind]))}</span>"
            for kind in [*kinds, "free"]
        )
        ui.html(
            f"<div class='k-files'>{lines}</div><div class='k-keys'>{legend}</div>", sanitize=False
        ).classes("w-full")


def _bar_html(root: str, bar: Bar, largest: int, unit: str) -> str:
    parts = "".join(
        f"<i class='kp-{kind}' style='width:{100 * length / max(bar.size_bytes, 1):.4f}%'"
        f" title='{escape(t(PARTS[kind]))}: {length:,} B'></i>"
        for kind, length in bar.parts
    )
    width = max(100 * bar.size_bytes / max(largest, 1), 0.5)
    note = f"{number(bar.entries)} {unit}, {size(bar.size_bytes)}" if unit else size(bar.size_bytes)
    name = escape(bar.name)
    if bar.name not in ("abort", "lock") and not bar.name.startswith("cut/"):
        name = f"<a class='k-link' href='{escape(store_url(root, file=bar.name), quote=True)}'>{name}</a>"
    return (
        f"<div class='k-file'><span class='k-file-name'>{name}</span><span class='k-file-room'>"
        f"<span class='k-file-bar' style='width:{width:.3f}%'>{parts}</span></span>"
        f"<span class='k-file-note'>{escape(note)}</span></div>"
    )


def _draw_queues(found: _Found) -> None:
    with card():
        AnswerTable(QUEUES, found.queues, export="store-queues", nothing=t("No queues"))
        if found.queues_left_out > 0:
            ui.label(t("{count} further queues are not shown", count=found.queues_left_out)).classes(
                "k-subtitle"
            )

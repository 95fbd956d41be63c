"""A file of a consume queue: its entries, and the records that they lead to."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from kourou.admin.operations.declare import Column, Table, columns
from kourou.console.pages.store.record import crumbs, place_of
from kourou.console.store.reading import read, store_url
from kourou.console.texts import later, t
from kourou.console.views.components import Section, card, empty, number, page_title
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View
from kourou.inspect.look.pages import ENTRIES_A_PAGE, NO_RECORD, OK, EntryPage, read_entries

MOST_FILES = 40  # of a queue that are named
_WORDS = {OK: later("ok"), NO_RECORD: later("there is no record")}


def _state(row: dict[str, Any]) -> tuple[str, str]:
    color = "good" if row["state"] == OK else "mute" if row["is_expired"] else "bad"
    return _WORDS.get(row["state"], row["state"]), color


STATE = columns("Record=state:badge", state=_state)


def draw(view: View, root: str, file: str, begin: int | None) -> None:
    """Draw the entries of a file of a queue from a place on."""
    Section(
        lambda: read(view, root, lambda store: read_entries(store, file, begin)),
        lambda page: _draw_page(root, file, page),
    )


def _draw_page(root: str, file: str, page: EntryPage) -> None:
    kind = "BatchConsumeQueue" if page.is_batch else "ConsumeQueue"
    page_title(f"{page.topic} · {page.queue_id}", f"{kind}, {page.file}", parent=crumbs(root))
    note = t("{first} to {last} of {count}", first=number(page.begin),
             last=number(page.begin + len(page.rows) - 1), count=number(page.end - page.first))  # fmt: skip
    if len(page.files) > 1:
        with ui.row().classes("gap-3"):
            for one in page.files[-MOST_FILES:]:
                link = ui.link(one.rpartition("/")[2], store_url(root, file=one)).classes("k-link k-mono")
                if one == page.file:
                    link.classes("font-bold")
    with card(t("Entries"), note if page.rows else ""):
        if not page.rows:
            empty("hourglass_empty", t("No entries"))
            return
        shown = Table((*_entry_columns(root, page), *STATE))
        AnswerTable(shown, page.rows, export="queue-entries", per_page=2 * ENTRIES_A_PAGE)
        with ui.row().classes("k-toolbar mt-2"):
            if page.begin > page.first:
                _go(
                    t("Previous page"),
                    "chevron_left",
                    root,
                    file,
                    max(page.begin - ENTRIES_A_PAGE, page.first),
                )
            if page.begin + len(page.rows) < page.end:
                _go(t("Next page"), "chevron_right", root, file, page.begin + len(page.rows))
                _go(t("Last page"), "last_page", root, file, max(page.end - ENTRIES_A_PAGE, page.first))


def _entry_columns(root: str, page: EntryPage) -> tuple[Column, ...]:
    count = "Messages=count:number, " if page.is_batch else ""
    return columns(
        f"Queue offset=place:number, Physical offset=offset:id, Bytes=size:number, Tags code=tags-, {count}"
        "Stored=stored:time-, Keys=keys:code-",
        offset=lambda row: place_of(root, row),
    )


def _go(text: str, icon: str, root: str, file: str, begin: int) -> None:
    url = store_url(root, file=file, begin=begin)
    ui.button(text, icon=icon, on_click=lambda: ui.navigate.to(url)).props("outline")

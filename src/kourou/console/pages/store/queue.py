"""A file of a consume queue: its entries, and the records that they lead to."""

from __future__ import annotations

from nicegui import ui

from kourou.console.pages.store.record import crumbs
from kourou.console.store.reading import (
    ENTRIES_A_PAGE,
    NO_RECORD,
    OK,
    EntryPage,
    read,
    read_entries,
    store_url,
)
from kourou.console.texts import t
from kourou.console.views.components import Section, card, empty, number, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View

MOST_FILES = 40  # of a queue that are named


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
    words = {OK: t("ok"), NO_RECORD: t("there is no record")}
    rows = [{**row, "state": words.get(row["state"], row["state"])} for row in page.rows]
    with card(t("Entries"), note if rows else ""):
        if not rows:
            empty("hourglass_empty", t("No entries"))
            return
        columns = [
            Column("place", t("Queue offset"), "number"),
            Column("offset", t("Physical offset"), "id"),
            Column("size", t("Bytes"), "number"),
            Column("tags", t("Tags code"), minor=True),
            Column("stored", t("Stored"), "time", minor=True),
            Column("keys", t("Keys"), "code", minor=True),
            Column("state", t("Record"), "badge"),
        ]
        if page.is_batch:
            columns.insert(4, Column("count", t("Messages"), "number"))
        DataTable(columns, rows, key="place", export="queue-entries", per_page=2 * ENTRIES_A_PAGE)
        with ui.row().classes("k-toolbar mt-2"):
            if page.begin > page.first:
                _go(
                    t("Previous page"),
                    "chevron_left",
                    root,
                    file,
                    max(page.begin - ENTRIES_A_PAGE, page.first),
                )
            if page.begin + len(rows) < page.end:
                _go(t("Next page"), "chevron_right", root, file, page.begin + len(rows))
                _go(t("Last page"), "last_page", root, file, max(page.end - ENTRIES_A_PAGE, page.first))


def _go(text: str, icon: str, root: str, file: str, begin: int) -> None:
    url = store_url(root, file=file, begin=begin)
    ui.button(text, icon=icon, on_click=lambda: ui.navigate.to(url)).props("outline")

"""Records of a store: those of a log file, page by page, and one of them down to its bytes."""

from __future__ import annotations

from html import escape
from typing import Any

from nicegui import ui

from kourou.admin.operations.declare import Table, columns
from kourou.console.reading import body_forms
from kourou.console.store.hex import HEAD_BYTES, TAIL_BYTES, fields_html, hex_html
from kourou.console.store.reading import read, store_url
from kourou.console.texts import later, t
from kourou.console.views.components import Section, badge, card, code, empty, page_title, size
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View, message_url
from kourou.errors import KourouError
from kourou.inspect import StoreDirectory
from kourou.inspect.look.fields import dissect
from kourou.inspect.look.pages import (
    BLANK,
    RECORDS_A_PAGE,
    Record,
    RecordPage,
    find_log_file,
    read_record,
    read_records,
)

STRIP_PARTS = 64


def crumbs(root: str) -> tuple[str, str]:
    """The page that a page of a store belongs to."""
    return t("Store"), store_url(root)


# A file of the log


def draw_list(view: View, root: str, file: str, begin: int | None) -> None:
    """Draw the records of a log file from a physical offset on."""
    page_title(file, root, parent=crumbs(root))

    def work(store: StoreDirectory) -> tuple[int, int, int, RecordPage]:
        found = find_log_file(store, file)
        return found.base, found.size, store.data_end(found.path), read_records(store, file, begin)

    Section(lambda: read(view, root, work), lambda found: _draw_page(root, file, *found))


def _draw_page(root: str, file: str, base: int, file_size: int, data_end: int, page: RecordPage) -> None:
    with card(t("Records"), t("Click into the file to go to a place of it")):
        segments = []
        for part in range(STRIP_PARTS):
            low, high = file_size * part // STRIP_PARTS, file_size * (part + 1) // STRIP_PARTS
            share = min(max((data_end - low) / max(high - low, 1), 0), 1)
            here = any(low <= row["offset"] - base < high for row in page.rows)
            link = escape(store_url(root, file=file, begin=base + low), quote=True)
            color = 100 if here else 45 * share
            segments.append(f"<a href='{link}' title='{base + low:,}' style='--on:{color:.0f}%'></a>")
        ui.html(f"<div class='k-strip'>{''.join(segments)}</div>", sanitize=False).classes("w-full mb-3")
        rows = page.rows
        if not rows:
            empty("hourglass_empty", t("No records from here on"))
        else:
            _record_table(root, rows)
        with ui.row().classes("k-toolbar mt-2"):
            if rows and rows[0]["offset"] > base:
                _button(t("First page"), "first_page", store_url(root, file=file))
            if page.following is not None:
                _button(t("Next page"), "chevron_right", store_url(root, file=file, begin=page.following))
            ui.space()
            typed = ui.input(t("Physical offset")).props("outlined dense")

            def go() -> None:
                text = str(typed.value or "").replace(",", "").strip()
                if text.isdecimal():
                    ui.navigate.to(store_url(root, file=file, begin=text))

            typed.on("keydown.enter", go)
            ui.button(t("Go"), on_click=go).props("outline")


def place_of(root: str, row: dict[str, Any]) -> tuple[int, str]:
    """Where a record lies, and the page that shows it; none where there is no such file."""
    url = store_url(root, file=row["file"], offset=row["offset"]) if row["file"] else ""
    return row["offset"], url


def _state(row: dict[str, Any]) -> tuple[str, str]:
    return (later("blank"), "mute") if row["state"] == BLANK else (row["state"], "bad")


def _record_table(root: str, rows: list[dict[str, Any]]) -> None:
    state = ", State=state:badge" if any(row["state"] for row in rows) else ""
    shown = columns(
        "Physical offset=offset:id, Topic=topic, Queue=queue-, Offset=place-, Bytes=size:number, "
        f"Stored=stored:time, Tag=tags-, Keys=keys:code-{state}",
        offset=lambda row: place_of(root, row),
        state=_state,
    )
    AnswerTable(Table(shown), rows, export="records", per_page=2 * RECORDS_A_PAGE)


def _button(text: str, icon: str, url: str) -> None:
    ui.button(text, icon=icon, on_click=lambda: ui.navigate.to(url)).props("outline")


# One record


def draw(view: View, root: str, offset: int, *, show_all: bool) -> None:
    """Draw the record at a physical offset."""
    Section(
        lambda: read(view, root, lambda store: read_record(store, offset)),
        lambda found: _draw_record(view, root, found, show_all),
    )


def _draw_record(view: View, root: str, record: Record, show_all: bool) -> None:
    message = record.message
    fields = dissect(record.data, record.offset)
    with ui.row().classes("w-full items-end justify-between gap-3"):
        subtitle = (
            t("No record can be told here")
            if message is None
            else f"{message.topic} · {t('Queue')} {message.queue_id} · {t('Offset')} {message.queue_offset:,}"
        )
        page_title(
            t("Record at {offset}", offset=f"{record.offset:,}"),
            subtitle,
            parent=(record.file, store_url(root, file=record.file)),
        )
        with ui.row().classes("gap-2 items-center"):
            if any(field.verdict is False for field in fields):
                badge(t("damaged"), "bad")
            elif message is not None:
                badge(t("CRC is right"), "good")
            _draw_links(view, root, record)
    with card(t("Bytes"), t("{size}; point at a field to see where it is", size=size(len(record.data)))):
        ui.html(
            f"<div class='k-record'>{hex_html(record.data, fields, record.offset, show_all=show_all)}"
            f"{fields_html(fields)}</div>",
            sanitize=False,
        ).classes("w-full")
        is_long = any(field.end - field.start > HEAD_BYTES + 2 * TAIL_BYTES for field in fields)
        if is_long and not show_all:
            url = store_url(root, file=record.file, offset=record.offset, show="all")
            ui.button(t("Show more bytes"), on_click=lambda: ui.navigate.to(url)).props("flat dense")
    if message is not None:
        _draw_body(record)


def _draw_links(view: View, root: str, record: Record) -> None:
    message = record.message
    if record.queue_file is not None:
        url = store_url(root, file=record.queue_file, begin=record.queue_index)
        _button(t("Its queue entry"), "format_list_numbered", url)
    if message is not None and message.topic in view.snapshot.topics:
        _button(t("In the cluster"), "mail", message_url(message.topic, message.offset_message_id))
    if record.following is not None:
        following = store_url(root, file=record.file, offset=record.following)
        _button(t("Next record"), "chevron_right", following)


def _draw_body(record: Record) -> None:
    message = record.message
    assert message is not None
    try:
        body = bytes(message.decompressed_body)
    except KourouError as error:
        with card(t("Body")):
            empty("broken_image", t("The body cannot be decompressed"), str(error))
        return
    kind = f", {message.compression.name}" if message.compression is not None else ""
    forms = body_forms(body)
    with card(t("Body"), f"{size(len(body))}{kind}"):
        name = next(iter(forms))
        code(forms[name])

"""Messages: by topic and time, by key, by id."""

from __future__ import annotations

from datetime import timedelta

from nicegui import ui

from kourou.admin.operations.parameters import read_time
from kourou.console.reading import MESSAGES, MOST_MESSAGES, Found, browse
from kourou.console.texts import t
from kourou.console.views.components import card, empty, failure, page_title
from kourou.console.views.operations import AnswerTable, time_input
from kourou.console.views.view import View, from_path
from kourou.errors import KourouError


async def draw(view: View, topic: str = "", key: str = "") -> None:
    """Draw the page; a topic and a key may be in its address."""
    await view.backend.ready()
    page_title(t("Messages"), t("Nobody's offset moves when messages are looked at here"))
    names = [row.name for row in view.snapshot.topics.values()]
    wanted = from_path(topic)
    if wanted and wanted not in names:
        names.append(wanted)
    with card():
        topic_select = (
            ui.select(names, value=wanted or None, label=t("Topic"), with_input=True)
            .props(f'outlined dense aria-label="{t("Topic")}"')
            .classes("w-full")
        )
        with ui.tabs().props("align=left no-caps dense") as tabs:
            ui.tab("time", t("By time"))
            ui.tab("key", t("By key"))
            ui.tab("id", t("By id"))
        with ui.tab_panels(tabs, value="key" if key else "time", animated=False):
            with ui.tab_panel("time"), ui.row().classes("k-toolbar"):
                begin = time_input(t("From")).classes("grow")
                end = time_input(t("To"), -timedelta(days=1)).classes("grow")
                how = ui.select({"tag": t("Tag"), "sql": "SQL"}, value="tag").props("outlined dense")
                expression = (
                    ui.input(t("Filter expression"), placeholder="paid || refunded")
                    .props("outlined dense")
                    .classes("grow")
                )
                ui.button(t("Search"), icon="search", on_click=lambda: search("time")).props("unelevated")
            with ui.tab_panel("key"), ui.row().classes("k-toolbar"):
                key_input = ui.input(t("Key"), value=key).props("outlined dense").classes("grow")
                ui.button(t("Search"), icon="search", on_click=lambda: search("key")).props("unelevated")
            with ui.tab_panel("id"), ui.row().classes("k-toolbar"):
                id_input = ui.input(t("Message id, or unique key")).props("outlined dense").classes("grow")
                ui.button(t("Search"), icon="search", on_click=lambda: search("id")).props("unelevated")
    results = ui.element("div").classes("w-full flex flex-col gap-4")

    async def work(mode: str) -> Found:
        name = str(topic_select.value or "")
        if not name:
            raise KourouError(t("Choose a topic first"))
        do = view.backend.do
        if mode == "key":
            return Found(await do(lambda admin: admin.messages.by_key(name, str(key_input.value).strip())))
        if mode == "id":
            return Found([await do(lambda admin: admin.messages.by_id(name, str(id_input.value).strip()))])
        begin_ms, end_ms = read_time(str(begin.value)), read_time(str(end.value))
        return await do(
            lambda admin: browse(
                admin,
                name,
                begin_ms=begin_ms,
                end_ms=end_ms,
                expression=str(expression.value or ""),
                is_sql=how.value == "sql",
            )
        )

    async def search(mode: str) -> None:
        with results.clear(), ui.row().classes("w-full justify-center p-6"):
            ui.spinner(size="lg")
        try:
            found = await work(mode)
        except KourouError as error:
            with results.clear():
                failure(error)
            return
        with results.clear():
            _draw_found(found, str(topic_select.value))

    expression.on("keydown.enter", lambda: search("time"))
    key_input.on("keydown.enter", lambda: search("key"))
    id_input.on("keydown.enter", lambda: search("id"))
    if key or wanted:
        await search("key" if key else "time")
    else:
        with results, card():
            empty("manage_search", t("Choose a topic, then search"))


def _draw_found(found: Found, topic: str) -> None:
    if found.error:
        failure(KourouError(found.error))
    if found.is_partial:
        with ui.element("div").classes("k-banner k-warn"):
            ui.icon("timer").classes("text-lg")
            ui.label(t("Time was up: not all queues were read. Ask for a shorter time."))
    with card():
        if not found.messages:
            empty("inbox", t("No messages"), t("Ask for another time, key or filter"))
            return
        if len(found.messages) >= MOST_MESSAGES:
            ui.label(
                t("The newest {count}; ask for a shorter time to see others.", count=MOST_MESSAGES)
            ).classes("k-subtitle mb-2")
        AnswerTable(MESSAGES, found.messages, export=f"{topic}-messages", sort="Stored", descending=True)

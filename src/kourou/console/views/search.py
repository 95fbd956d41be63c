"""Search: topics, groups, brokers and pages by a part of their names, with `/` or Ctrl-K from anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from nicegui import ui

from kourou.console.pages import PAGES
from kourou.console.texts import t
from kourou.console.views.view import View, broker_url, group_url, topic_url

MAX_RESULTS = 12
EVENT = "kourou_search"

# Not where somebody types: there a slash is a slash.
SCRIPT = f"""<script>
document.addEventListener("keydown", (e) => {{
  const typing = e.target.closest && e.target.closest("input, textarea, select, [contenteditable]");
  if ((e.key === "/" && !typing) || (e.key === "k" && (e.ctrlKey || e.metaKey))) {{
    e.preventDefault();
    emitEvent("{EVENT}");
  }}
}});
</script>"""


@dataclass(frozen=True, slots=True)
class Result:
    """Something that was found."""

    text: str
    kind: str
    icon: str
    url: str
    is_minor: bool = False  # of the system: last


def find(view: View, wanted: str) -> list[Result]:
    """What has a text in its name: that which begins with it first."""
    snapshot = view.snapshot
    everything = [Result(t(page.title), t("Page"), page.icon, page.path) for page in PAGES if page.title]
    everything += [
        Result(name, t("Topic"), "topic", topic_url(name), row.kind == "system")
        for name, row in snapshot.topics.items()
    ]
    everything += [
        Result(name, t("Group"), "groups", group_url(name), row.is_system)
        for name, row in snapshot.groups.items()
    ]
    everything += [
        Result(f"{state.broker_name} {state.address}", t("Broker"), "dns", broker_url(state.address))
        for state in snapshot.brokers
    ]
    text = wanted.strip().lower()
    found = [one for one in everything if text in one.text.lower()]
    found.sort(key=lambda one: (one.is_minor, not one.text.lower().startswith(text), len(one.text), one.text))
    return found[:MAX_RESULTS] if text else everything[:MAX_RESULTS]


def add_search(view: View) -> ui.dialog:
    """The dialog, which keys open."""
    ui.add_head_html(SCRIPT)
    with ui.dialog().props("position=top") as box, ui.element("div").classes("k-dialog"):
        wanted = (
            ui.input(placeholder=t("Topics, groups, brokers, pages"))
            .props("outlined dense autofocus clearable debounce=80")
            .props(f'aria-label="{t("Search")}"')
        )
        results = ui.column().classes("w-full gap-0")

    def show() -> None:
        with results.clear():
            found = find(view, wanted.value or "")
            for one in found:
                with ui.link(target=one.url).classes("k-nav w-full").on("click", box.close):
                    ui.icon(one.icon)
                    ui.label(one.text).classes("grow ellipsis")
                    ui.label(one.kind).classes("k-subtitle")
            if not found:
                ui.label(t("Nothing found")).classes("k-subtitle p-3")

    def open_first() -> None:
        found = find(view, wanted.value or "")
        if found:
            box.close()
            ui.navigate.to(found[0].url)

    wanted.on_value_change(show)
    wanted.on("keydown.enter", open_first)
    ui.on(EVENT, box.open)
    box.on("before-show", show)
    box.on("hide", lambda: wanted.set_value(""))
    return box

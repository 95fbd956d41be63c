"""Operations of `kourou.admin` in the console: answers as tables, parameters as fields of dialogs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from nicegui import ui

from kourou.admin import Admin
from kourou.admin.operations.declare import Column, Operation, Parameter, Table
from kourou.console.backend import ANSWER_TIMEOUT_S
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views import table
from kourou.console.views.components import badge, confirm_by_name, dialog, dialog_buttons
from kourou.console.views.table import DataTable, RowAction
from kourou.console.views.view import View, group_url, topic_url

_LINKS = {"topic": topic_url, "group": group_url}
_KINDS = {"topic": "link", "group": "link", "perm": "text", "yes": "text"}
_COLORS = {
    "good": ("Allow", "enable", "FIFO", "online", "up", "consumed"),
    "bad": ("Deny", "disable", "dead letters", "down"),
    "warn": ("delay", "not consumed yet"),
    "info": ("Super", "transaction", "master"),
}
_COLOR_OF = {word: color for color, words in _COLORS.items() for word in words}
_PERMS = {6: "rw", 4: "r", 2: "w", 0: "none"}
_TIME_FORM = "%Y-%m-%dT%H:%M"  # of an input for dates and times


def role_of(operation: Operation) -> Role:
    """Who may do it."""
    return Role[operation.role.upper()]


def permission(perm: int) -> str:
    """A permission in words."""
    return {6: t("read, write"), 4: t("read"), 2: t("write")}.get(perm & 6, t("none"))


def badge_of(word: str) -> None:
    """A word in the colour that it has in tables."""
    badge(t(word), _COLOR_OF.get(word, "mute"))


# Answers


class AnswerTable(DataTable):
    """The rows of an answer, in the columns that are declared for it."""

    def __init__(
        self,
        shown: Table,
        found: Any = None,
        *,
        actions: Sequence[RowAction] = (),
        sort: str = "",
        **options: Any,
    ) -> None:
        self._shown = shown
        self._found: dict[str, Any] = {}
        names = {column.label: f"c{at}" for at, column in enumerate(shown.columns)}
        super().__init__(
            [table.Column(f"c{at}", t(one.label), _KINDS.get(one.kind, one.kind), one.minor)
             for at, one in enumerate(shown.columns)],
            key="id",
            sort=names.get(sort),
            actions=[RowAction(one.icon, one.label, self._of_row(one)) for one in actions],
            **options,
        )  # fmt: skip
        if found is not None:
            self.show(found)

    def show(self, found: Any) -> None:
        """Show another answer."""
        rows = list(self._shown.rows(found))
        cells = [self._cells(row) for row in rows]
        # By its first column, so that a row is the same one when others come or go
        firsts = Counter(str(one["c0"]) for one in cells)
        for at, one in enumerate(cells):
            one["id"] = str(one["c0"]) if firsts[str(one["c0"])] == 1 else f"{one['c0']} {at}"
        self._found = {one["id"]: row for one, row in zip(cells, rows)}
        super().show(cells)

    def _of_row(self, action: RowAction) -> Callable[[dict[str, Any]], Any]:
        return lambda cells: action.run(self._found[cells["id"]])

    @property
    def chosen(self) -> list[Any]:
        """The rows of the answer that are ticked; all of them where none is."""
        return [self._found[cells["id"]] for cells in self.selected] or list(self._found.values())

    def _cells(self, row: Any) -> dict[str, Any]:
        cells: dict[str, Any] = {}
        for at, column in enumerate(self._shown.columns):
            value = column.of(row)
            cells[f"c{at}"] = _cell(column, value)
            if column.kind in _LINKS and value:
                cells[f"c{at}_href"] = _LINKS[column.kind](str(value))
            elif column.kind in ("link", "id"):  # the text, and where it leads
                cells[f"c{at}"], cells[f"c{at}_href"] = value
            elif column.kind == "badge":  # a word, or a word and its colour
                word, color = (
                    value if isinstance(value, tuple) else (value, _COLOR_OF.get(str(value), "mute"))
                )
                cells[f"c{at}"], cells[f"c{at}_color"] = _badge(word), color
        return cells


def _cell(column: Column, value: Any) -> Any:
    if column.kind == "perm":
        return permission(int(value))
    if column.kind == "yes":
        return t("yes") if value else t("no")
    # What changes where nobody sees it would have the table drawn again.
    return round(value, 3 if column.kind == "percent" else 1) if isinstance(value, float) else value


def _badge(word: Any) -> str:
    text, _, slave_id = str(word or "").partition("slave ")
    return t("slave {id}", id=slave_id) if slave_id else t(text) if text else ""


# Dialogs

Then = Callable[[Mapping[str, Any], Any], Any]


def time_input(label: str, ago: timedelta = timedelta(hours=1)) -> ui.input:
    """An input for a date and a time, in the time zone of the console."""
    value = (datetime.now() - ago).strftime(_TIME_FORM)
    return ui.input(label, value=value).props("outlined dense type=datetime-local stack-label")


def _field(one: Parameter, label: str, value: Any, options: Any, *, is_first: bool) -> Any:
    """The widget that asks for a parameter."""
    look = "outlined dense" + (" autofocus" if is_first else "")
    if options is not None or one.about.choices:
        known = options if options is not None else {key: t(word) for key, word in one.about.choices.items()}
        value = _PERMS[value & 6] if one.name == "perm" and value is not None else value
        is_several = one.type is list
        chosen = value if is_several or value in known else next(iter(known), None)
        found: Any = ui.select(
            known, value=chosen or None, label=label, multiple=is_several, with_input=options is not None
        )
        return found.props(f'{look} aria-label="{label}"' + (" use-chips" if is_several else ""))
    if one.about.metavar == "TIME":
        return time_input(label)
    if one.type is bool:
        return ui.switch(label, value=bool(value))
    if one.type in (int, float):
        return ui.number(
            label, value=value, min=one.about.least, format="%d" if one.type is int else None
        ).props(look)
    if one.type is dict or one.name == "body":
        return ui.textarea(label, value=value or "").props(f"{look} rows={2 if one.type is dict else 6}")
    if one.about.secret:
        hidden = ui.input(label, password=True, password_toggle_button=True)
        return hidden.props("outlined dense autocomplete=new-password")
    return ui.input(label, value=value or "").props(f"{look} autocomplete=off")


def _where(view: View) -> Callable[[], dict[str, str]]:
    """Ask whether something is for all masters, a cluster, or one broker."""
    options: dict[str, str] = {"": t("All masters")}
    options |= {f"cluster {name}": t("Cluster {name}", name=name) for name in view.snapshot.clusters}
    options |= {f"broker {name}": t("Broker {name}", name=name) for name in view.snapshot.masters}
    chosen = ui.select(options, value="", label=t("Where")).props("outlined dense")

    def read() -> dict[str, str]:
        what, _, name = str(chosen.value or "").partition(" ")
        return {what: name} if what else {}

    return read


async def change(
    view: View,
    operation: Operation,
    given: Mapping[str, Any],
    done: str,
    then: Then | None = None,
    *,
    is_content: bool = True,
) -> bool:
    """Have an operation done, if the user may; whether it was. `then` is told what was given and found."""

    async def work(admin: Admin) -> tuple[Any]:
        return (await operation.run(admin, **operation.values(given)),)

    found = await view.change(
        role_of(operation), work, done, within_s=ANSWER_TIMEOUT_S, is_content=is_content
    )
    if found is None:
        return False
    if then is not None:
        result = then(given, found[0])
        if isinstance(result, Awaitable):
            await result
    return True


def ask(
    view: View,
    operation: Operation,
    title: str,
    button: str,
    done: str,
    *,
    fields: str,
    fixed: Mapping[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
    options: Mapping[str, Iterable[str]] | None = None,
    where: bool = False,
    notes: Sequence[str] = (),
    warning: str = "",
    then: Then | None = None,
    is_content: bool = True,
) -> None:
    """A dialog for an operation. `fields` are the parameters that it asks for, each with a label where it has
    another there (`topic=Name, queues`); `fixed` has others, `known` what is in the fields at first."""
    with dialog(title) as box:
        for note in notes:
            ui.label(note).style("overflow-wrap: anywhere")
        inputs: dict[str, Any] = {}
        for name, _, label in (part.partition("=") for part in fields.split(", ") if part):
            one = operation.parameters[name]
            value = (known or {}).get(name, None if one.is_required else one.default)
            offered = (options or {}).get(name)
            inputs[name] = _field(
                one,
                t(label or one.label),
                value,
                None if offered is None else list(offered),
                is_first=not inputs,
            )
        place = _where(view) if where else dict
        if warning:
            with ui.element("div").classes("k-banner k-warn"):
                ui.icon("warning").classes("text-lg")
                ui.label(warning)

        async def save() -> bool:
            typed = {name: _typed(name, one.value) for name, one in inputs.items()}
            given = {**(fixed or {}), **typed, **place()}
            return await change(view, operation, given, done.format(**given), then, is_content=is_content)

        dialog_buttons(box, button, save, is_dangerous=bool(warning))


def _typed(name: str, value: Any) -> Any:
    text = value.strip() if isinstance(value, str) and name != "body" else value
    return None if text in ("", []) else text


def destroy(
    view: View,
    operation: Operation,
    name: str,
    title: str,
    warning: str,
    done: str,
    given: Mapping[str, Any],
    then: Then,
    *,
    is_content: bool = True,
) -> None:
    """Have something deleted: its name has to be typed before."""
    confirm_by_name(
        title, warning, name, t("Delete"),
        lambda: change(view, operation, given, done, then, is_content=is_content),
    )  # fmt: skip


def show_answer(title: str, shown: Table, found: Any, export: str) -> None:
    """An answer in a dialog of its own."""
    with dialog(title) as box:
        AnswerTable(shown, found, export=export, per_page=10)
        with ui.row().classes("w-full justify-end"):
            ui.button(t("Close"), on_click=box.close).props("flat")

"""DataTable: the table of all pages, to be sorted, filtered, and exported as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from kourou.console.texts import t

Row = Mapping[str, Any]

# How a cell is drawn, by the kind of its column. `X` is the name of the column; what Vue puts in is escaped.
_CELLS = {
    "text": '<span :title="props.value">{{ props.value ?? "" }}</span>',
    "line": '<span class="k-mono" :title="props.value">{{ props.value }}</span>',
    "code": '<span class="k-mono">{{ props.value }}</span>',
    "link": '<a v-if="props.row.X_href" class="k-link" :href="props.row.X_href" :title="props.value">'
    "{{ props.value }}</a>"
    "<span v-else>{{ props.value }}</span>",
    "badge": "<span v-if=\"props.value\" :class=\"'k-badge k-' + (props.row.X_color || 'mute')\">"
    "{{ props.value }}</span>",
    "number": "{{ Number(props.value ?? 0).toLocaleString('en-US', {maximumFractionDigits: 1}) }}",
    "percent": '<span class="k-bar" :class="{\'k-full\': props.value > 0.85}">'
    "<i :style=\"{width: Math.min(props.value * 100, 100) + '%'}\"></i></span>"
    "{{ (props.value * 100).toFixed(0) }} %",
    "time": "{{ props.value ? new Date(props.value).toLocaleString('sv-SE') : '—' }}",
}
_CELLS |= {"id": _CELLS["link"], "address": _CELLS["text"]}
_CLASSES = {
    "link": "k-name",
    "id": "k-id",
    "number": "k-number",
    "code": "k-wide",
    "address": "k-address",
    "line": "k-line",
    "time": "k-time",
}
_RIGHT = ("number",)
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `kind`: text, code (which is wrapped), line (which is cut), address, link and id (to the
    row's NAME_href), badge (in the row's NAME_color), number, percent (of 0 to 1), time (milliseconds). A
    `minor` one is left out on a narrow screen."""

    name: str
    label: str
    kind: str = "text"
    minor: bool = False


@dataclass(frozen=True, slots=True)
class RowAction:
    """A button in each row."""

    icon: str
    label: str
    run: Callable[[Any], Any]


class DataTable:
    """A table with a filter, and a button that exports what the filter leaves."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Iterable[Row] = (),
        *,
        key: str = "name",
        export: str,
        sort: str | None = None,
        descending: bool = False,
        selection: bool = False,
        actions: Sequence[RowAction] = (),
        per_page: int = 25,
        nothing: str = "",
    ) -> None:
        self.columns = list(columns)
        self._export = export
        self._per_page = per_page
        self._key = key
        self._rows = [dict(row) for row in rows]
        with ui.element("div").classes("w-full min-w-0"):
            with ui.element("div").classes("k-table-tools"):
                self.filter = ui.input(placeholder=t("Filter")).props(
                    f'outlined dense clearable debounce=150 aria-label="{t("Filter")}"'
                )
                with self.filter.add_slot("prepend"):
                    ui.icon("search")
                ui.space()
                self.toolbar = ui.row().classes("gap-2 items-center")
                with ui.button(icon="download", on_click=self._download).props(
                    f'flat round dense aria-label="{t("Export CSV")}"'
                ):
                    ui.tooltip(t("Export CSV"))
            self.table = (
                ui.table(
                    columns=[self._quasar(column) for column in self.columns]
                    + (
                        [{"name": "_actions", "label": "", "field": key, "align": "right"}] if actions else []
                    ),
                    rows=self._rows,
                    row_key=key,
                    selection="multiple" if selection else None,
                    pagination={"rowsPerPage": per_page, "sortBy": sort, "descending": descending},
                )
                .classes("k-table w-full")
                .props("flat binary-state-sort")
            )
            self._settle_pages()
            self.table.props["rows-per-page-label"] = t("Rows per page")
            self.table.props["no-data-label"] = nothing or t("Nothing here")
            self.table.props["no-results-label"] = t("Nothing fits the filter")
        self.filter.on_value_change(lambda event: self.table.set_filter(event.value or ""))
        for column in self.columns:
            cell = _CELLS[column.kind].replace("X_", f"{column.name}_")
            self.table.add_slot(f"body-cell-{column.name}", f'<q-td :props="props">{cell}</q-td>')
        if actions:
            self._add_actions(actions)

    def _quasar(self, column: Column) -> dict[str, Any]:
        hidden = "k-hide-small" if column.minor else ""
        return {
            "name": column.name,
            "label": column.label,
            "field": column.name,
            "sortable": True,
            "align": "right" if column.kind in _RIGHT else "left",
            "classes": f"{_CLASSES.get(column.kind, '')} {hidden}".strip(),
            "headerClasses": hidden,
        }

    def _add_actions(self, actions: Sequence[RowAction]) -> None:
        buttons = "".join(
            f'<q-btn flat dense round size="sm" icon="{action.icon}" aria-label="{action.label}"'
            f" @click.stop=\"() => $parent.$emit('act{number}', props.row)\">"
            f"<q-tooltip>{action.label}</q-tooltip></q-btn>"
            for number, action in enumerate(actions)
        )
        self.table.add_slot("body-cell-_actions", f'<q-td :props="props">{buttons}</q-td>')
        for number, action in enumerate(actions):
            self.table.on(f"act{number}", lambda event, action=action: action.run(event.args))

    def show(self, rows: Iterable[Row]) -> None:
        """Show other rows, if they are others."""
        found = [dict(row) for row in rows]
        if found != self._rows:
            self._rows = found
            self.table.rows = found
            self._settle_pages()

    def _settle_pages(self) -> None:
        """Have pages to turn only where there are several."""
        self.table.props["hide-pagination"] = len(self._rows) <= self._per_page

    @property
    def selected(self) -> list[dict[str, Any]]:
        """The rows that are ticked."""
        return list(self.table.selected)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return self._rows

    def _download(self) -> None:
        wanted = (self.filter.value or "").lower()
        names = [column.name for column in self.columns]
        kept = [
            row
            for row in self._rows
            if not wanted or any(wanted in str(row.get(name, "")).lower() for name in names)
        ]
        text = to_csv(
            [column.label for column in self.columns], ([row.get(n) for n in names] for row in kept)
        )
        ui.download.content(text.encode("utf-8-sig"), f"{self._export}.csv", "text/csv")


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV text. What a spreadsheet would take for a formula is given as text."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return "" if value is None else value

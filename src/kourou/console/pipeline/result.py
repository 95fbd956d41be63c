"""The rows of a query as a table, and as bars where they have a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from nicegui import ui

from kourou.console.texts import t
from kourou.console.views.components import IN_COLOR, empty
from kourou.console.views.table import Column, DataTable

MAX_BARS = 50
MAX_CELL_CHARACTERS = 300
_GREY = "#8592a8"


def draw_result(rows: Sequence[dict[str, Any]]) -> None:
    """Draw rows, with bars of the last number by the first column that is none."""
    if not rows:
        empty("hourglass_empty", t("No rows"))
        return
    names = list(rows[0])
    numbers = [name for name in names if all(_is_number(row.get(name)) for row in rows)]
    others = [name for name in names if name not in numbers]
    if numbers and len(rows) > 1:
        _draw_bars(rows, others[0] if others else names[0], numbers[-1])
    # Columns get names of ours: those of a query may have any sign in them.
    columns = [
        Column(f"c{at}", name, "number" if name in numbers else "code") for at, name in enumerate(names)
    ]
    DataTable(
        columns,
        [
            {"row": row_at, **{f"c{at}": _cell(row.get(name)) for at, name in enumerate(names)}}
            for row_at, row in enumerate(rows)
        ],
        key="row",
        export="result",
    )


def _draw_bars(rows: Sequence[dict[str, Any]], name: str, value: str) -> None:
    shown = rows[:MAX_BARS]
    axis = {"axisLabel": {"color": _GREY}}
    ui.echart(
        {
            "animation": False,
            "backgroundColor": "transparent",
            "grid": {"left": 8, "right": 40, "top": 8, "bottom": 24, "containLabel": True},
            "tooltip": {"trigger": "axis", "confine": True},
            "xAxis": {"type": "value", "name": value, "nameTextStyle": {"color": _GREY},
                      "nameLocation": "middle", "nameGap": 26, **axis,
                      "splitLine": {"lineStyle": {"color": "rgba(130,145,170,0.18)"}}},
            "yAxis": {"type": "category", "inverse": True, "data": [str(row.get(name))[:40] for row in shown],
                      **axis},
            "series": [
                {
                    "type": "bar", "data": [row.get(value) for row in shown], "color": IN_COLOR,
                    "barMaxWidth": 22, "name": value, "itemStyle": {"borderRadius": [0, 4, 4, 0]},
                }
            ],
        }
    ).classes("w-full mb-3").style(f"height: {80 + 28 * len(shown)}px")  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> Any:
    if _is_number(value) or value is None:
        return value
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[:MAX_CELL_CHARACTERS]}…"

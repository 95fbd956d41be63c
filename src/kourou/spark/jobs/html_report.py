"""The audit as one HTML file that needs nothing else: tables, and plots as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_TITLES = {
    "findings": "Damage in the files",
    "gaps": "Gaps in queues",
    "repeats": "Repeats by unique id",
    "disorder": "Store times that go back",
    "bodies": "Bodies that cannot be read",
    "latency": "From born to stored, in milliseconds",
    "rates": "By topic and hour",
    "queues": "Queues",
    "keys": "Keys that come most",
    "hosts": "Hosts that send most",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #d8dee4; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } .bad { color: #b42318; } .good { color: #067647; }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; } rect { fill: #3b6ea8; } text { font: 11px system-ui, sans-serif; fill: #57606a; }
@media (prefers-color-scheme: dark) { body { background: #14181d; color: #e6edf3; } td, th { border-color: #30363d; } rect { fill: #7aa7dc; } text { fill: #9da7b3; } }
"""  # noqa: E501
MAX_ROWS = 200
_WIDTH, _HEIGHT, _BOTTOM = 900, 180, 24


def render(report: Mapping[str, Any]) -> str:
    """The HTML of an audit, given as the JSON of it."""
    verdict = (
        f'<span class="bad">{report["faults"]} faults</span>'
        if report["faults"]
        else '<span class="good">no faults</span>'
    )
    parts = [
        f"<h1>Audit of {escape(report['source'])}</h1>",
        f"<p>{report['messages']:,} messages, {report['body_bytes']:,} bytes of bodies, stored from"
        f" {escape(report['first_time'])} to {escape(report['last_time'])}: {verdict}.</p>",
    ]
    tables: dict[str, Sequence[Mapping[str, Any]]] = {"findings": report["findings"], **report["tables"]}
    for name, title in _TITLES.items():
        rows = tables.get(name, ())
        if name == "rates" and rows:
            parts.append(f"<h2>Messages an hour</h2>{bars(_per_hour(rows))}")
        parts.append(f"<h2>{title}</h2>{_table(rows)}")
    body = "\n".join(parts)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Audit</title>'
        f"<style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = [f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows[:MAX_ROWS]]
    more = f"<p>and {len(rows) - MAX_ROWS} more in report.json</p>" if len(rows) > MAX_ROWS else ""
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>{more}'


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"


def _per_hour(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[str(row["hour"])] = found.get(str(row["hour"]), 0) + int(row["messages"])
    return found


def bars(values: Mapping[str, float]) -> str:
    """A bar for each value, with the first, the last and the largest named."""
    if not values:
        return ""
    most = max(values.values()) or 1
    step = _WIDTH / len(values)
    shapes = []
    for number, (name, value) in enumerate(values.items()):
        height = (_HEIGHT - 2 * _BOTTOM) * value / most
        title = f"<title>{escape(name)}: {value:,}</title>"
        shapes.append(
            f'<rect x="{number * step:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}"'
            f' width="{max(step - 1, 0.5):.1f}" height="{height:.1f}">{title}</rect>'
        )
    names = list(values)
    labels = f'<text x="0" y="{_HEIGHT - 8}">{escape(names[0])}</text><text x="0" y="14">{most:,}</text>'
    if len(names) > 1:
        labels += f'<text x="{_WIDTH}" y="{_HEIGHT - 8}" text-anchor="end">{escape(names[-1])}</text>'
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(shapes)}{labels}</svg>'

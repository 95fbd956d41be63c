"""The report: what is in results/*.json as one page with plots, and the plots as pictures.

results/report.html     everything, in one file
results/ratios.png      Kourou : Java, for each way to load a broker
results/cost.png        processor time of a message, Kourou's and Java's
results/growth.png      the cost of a message as things grow
"""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

from benchmarks.beside_java.brokers import BROKERS
from benchmarks.beside_java.figures import Line, figure

KOUROU, JAVA, MISSED = "#2563eb", "#f59e0b", "#dc2626"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #111 }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left } td:first-child { white-space: normal }
.met { color: #15803d } .missed { color: #b91c1c; font-weight: 600 } img { max-width: 100% }
@media (prefers-color-scheme: dark) { body { background: #111; color: #eee } th, td { border-color: #333 }
  .met { color: #4ade80 } .missed { color: #f87171 } img { background: white } }
"""


def write(results: Path) -> str:
    """Make the report of a directory; where it is."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))
    }
    lines = {name: lines_of(name, document) for name, document in found.items()}
    pictures = {
        "ratios": _ratios(lines.get("brokers", []) + lines.get("services", []), results / "ratios.png"),
        "cost": _cost(lines.get("brokers", []), results / "cost.png"),
        "growth": _growth(found.get("growth", {}).get("growth", {}), results / "growth.png"),
    }
    parts = [_heading(found)]
    for name, path in pictures.items():
        if path is not None:
            data = base64.b64encode(path.read_bytes()).decode()
            parts.append(f'<img alt="{name}" src="data:image/png;base64,{data}">')
    for name, document in found.items():
        parts.append(f"<h2>{html.escape(name)}</h2>")
        if lines[name]:
            parts.append(_table(lines[name]))
        if document.get("rows"):
            parts.append(_rows(document["rows"]))
        if name == "growth":
            parts.append(_points(document))
        if name == "scale":
            parts.append(_brokers(document["brokers"]))
    target = results / "report.html"
    body = "\n".join(parts)
    target.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Kourou benchmarks</title>'
        f"<style>{_STYLE}</style><body>{body}</body></html>\n",
        encoding="utf-8",
    )
    return str(target)


def lines_of(name: str, document: dict[str, Any]) -> list[Line]:
    """The figures of both brokers in the result of a comparison."""
    if "lines" in document:
        return [Line(**{key: line.get(key) for key in Line._fields}) for line in document["lines"]]
    if name == "services":
        return _of_services(document)
    if name == "replication":
        return _of_tables(document["results"])
    return _of_tables({key: value for key, value in document.items() if key in BROKERS})


_UNITS = {
    "rate": "msg/s",
    "cpu_us": "µs/msg",
    "mb_per_s": "MB/s",
    "lag_kb": "KB",
    "most_lag_kb": "KB",
    "mb": "MB",
}


def _of_services(document: dict[str, Any]) -> list[Line]:
    titles = {
        "due": "delayed messages due at once",
        "precision": "10,000 delayed messages due a second, lateness",
        "transactions": "transactions",
    }
    return [
        line._replace(what=titles.get(line.what, line.what))
        for line in _of_tables({name: document[name] for name in BROKERS if name in document})
        if line.metric != "rate" or line.what != "precision"
    ]


def _of_tables(tables: dict[str, dict[str, dict[str, float]]]) -> list[Line]:
    first = next(iter(tables.values()), {})
    lines = []
    for what, figures in first.items():
        for metric in figures:
            kourou, java = (tables.get(name, {}).get(what, {}).get(metric) for name in BROKERS)
            unit = _UNITS.get(metric, "ms" if metric.endswith("_ms") else "")
            name = {"cpu_us": "CPU"}.get(metric, metric.removesuffix("_ms"))
            lines.append(Line(what, name, unit, kourou, java))
    return lines


# ---------------------------------------------------------------- text


def _heading(found: dict[str, Any]) -> str:
    machines = [document["machine"] for document in found.values() if "machine" in document]
    where = ""
    if machines:
        one = machines[0]
        where = (
            f"<p>{one['cpus']} cores, {one.get('memory_gb', '?')} GB of memory, Linux {one['kernel']}, "
            f"Python {one['python']}. Both brokers in one run, on the same disk, under the same load.</p>"
        )
    return f"<h1>Kourou beside Apache RocketMQ 5.5</h1>{where}"


def _table(lines: list[Line]) -> str:
    rows = []
    before = None
    for line in lines:
        state = {True: "met", False: "missed", None: ""}[line.met]
        cells = [
            html.escape(line.what) if line.what != before else "", html.escape(line.metric),
            figure(line.kourou, line.unit), figure(line.java, line.unit),
            "" if line.ratio is None else f"{line.ratio:.2f}", html.escape(line.target),
            f'<span class="{state}">{state}</span>',
            "" if line.limit is None else figure(line.limit, line.unit),
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        before = line.what
    head = "".join(
        f"<th>{text}</th>" for text in ("", "", "Kourou", "Java", "Kourou : Java", "target", "", "limit")
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _rows(rows: list[dict[str, Any]]) -> str:
    body = "".join(
        f"<tr><td>{html.escape(row['what'])}</td><td>{html.escape(row['limit_is'])}</td>"
        f"<td>{figure(row['measured'], row['unit'])}</td><td>{figure(row['limit'], row['unit'])}</td></tr>"
        for row in rows
    )
    return f"<table><tr><th></th><th>the limit is</th><th>measured</th><th>limit</th></tr>{body}</table>"


def _points(document: dict[str, Any]) -> str:
    parts = []
    for name, points in document["growth"].items():
        body = "".join(
            f"<tr><td>{point['value']:,}</td><td></td><td>{point['cpu_us']:.2f} µs</td>"
            f"<td>{point['rate']:,.0f}/s</td><td>{point['p99_ms']:.2f} ms</td>"
            f"<td>{point['memory_mb']:.0f} MB</td></tr>"
            for point in points
        )
        head = "<th></th><th>CPU</th><th>rate</th><th>p99</th><th>memory</th>"
        parts.append(f"<table><tr><th>{name}</th>{head}</tr>{body}</table>")
    for name, point in document.get("rolls", {}).items():
        parts.append(
            f"<p>{html.escape(name)}: p50 {point['p50_ms']:.2f}, p99 {point['p99_ms']:.2f}, "
            f"p99.9 {point['p999_ms']:.2f}, most {point['max_ms']:.2f} ms</p>"
        )
    return "".join(parts)


def _brokers(points: dict[str, dict[str, float]]) -> str:
    body = "".join(
        f"<tr><td>{count} brokers</td><td></td><td>{point['rate']:,.0f} msg/s</td>"
        f"<td>{point['times']:.2f} times</td>"
        f"<td>{point['cpu_us']:.2f} µs/msg</td><td>{point['cores']:.2f} cores</td></tr>"
        for count, point in points.items()
    )
    return f"<table>{body}</table>"


# ---------------------------------------------------------------- pictures


def _plot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _ratios(lines: list[Line], target: Path) -> Path | None:
    """How many times Java's rate, or how small a part of its latency as a factor."""
    chosen = [line for line in lines if line.metric == "rate" and line.ratio]
    if not chosen:
        return None
    pyplot = _plot()
    figure_, axes = pyplot.subplots(figsize=(9, 0.45 * len(chosen) + 1.2), layout="constrained")
    names = [line.what for line in chosen]
    values = [line.ratio or 0.0 for line in chosen]
    bars = axes.barh(names, values, color=KOUROU)
    axes.bar_label(bars, [f" {value:.2f}×" for value in values])
    for place, line in enumerate(chosen):
        if line.at_least is not None:
            axes.plot([line.at_least] * 2, [place - 0.4, place + 0.4], color=MISSED, linewidth=2)
    axes.axvline(1, color="#666", linewidth=1, linestyle=":")
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.15)
    axes.set_xlabel("messages a second, Kourou : Java 5.5 (red: the goal)")
    axes.spines[["top", "right"]].set_visible(False)
    figure_.savefig(target, dpi=130)
    pyplot.close(figure_)
    return target


def _cost(lines: list[Line], target: Path) -> Path | None:
    chosen = [line for line in lines if line.metric == "CPU" and line.kourou and line.java]
    if not chosen:
        return None
    pyplot = _plot()
    figure_, axes = pyplot.subplots(figsize=(9, 0.55 * len(chosen) + 1.2), layout="constrained")
    places = range(len(chosen))
    for shift, label, color, values in (
        (-0.2, "Kourou", KOUROU, [line.kourou for line in chosen]),
        (0.2, "Java 5.5", JAVA, [line.java for line in chosen]),
    ):
        bars = axes.barh([place + shift for place in places], values, height=0.38, label=label, color=color)
        axes.bar_label(bars, [f" {value:.1f}" for value in values], fontsize=8)
    axes.set_yticks(list(places), [line.what for line in chosen])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("µs of processor for each message, logarithmic")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure_.savefig(target, dpi=130)
    pyplot.close(figure_)
    return target


def _growth(growth: dict[str, list[dict[str, float]]], target: Path) -> Path | None:
    if not growth:
        return None
    pyplot = _plot()
    figure_, all_axes = pyplot.subplots(1, len(growth), figsize=(3.2 * len(growth), 3), layout="constrained")
    for axes, (name, points) in zip(all_axes if len(growth) > 1 else [all_axes], growth.items(), strict=True):
        axes.plot([max(point["value"], 1) for point in points], [point["cpu_us"] for point in points],
                  marker="o", color=KOUROU)  # fmt: skip
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(name)
        axes.spines[["top", "right"]].set_visible(False)
    (all_axes[0] if len(growth) > 1 else all_axes).set_ylabel("µs of processor a message")
    figure_.savefig(target, dpi=130)
    pyplot.close(figure_)
    return target

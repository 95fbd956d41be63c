"""Figures of both brokers side by side: lines, their table, and what is asked of them."""

from __future__ import annotations

import os
import platform
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Line(NamedTuple):
    """A figure of both brokers and what is asked of it: of the ratio, or of Kourou's figure itself."""

    what: str
    metric: str
    unit: str
    kourou: float | None
    java: float | None
    at_least: float | None = None  # of the ratio
    at_most: float | None = None  # of the ratio
    below: float | None = None  # of Kourou's figure
    limit: float | None = None  # what the machine itself allows, in the same unit
    ratio_of_rounds: float | None = None  # the median of their ratios; else the ratio is that of the medians

    @property
    def ratio(self) -> float | None:
        """Kourou : Java."""
        if self.ratio_of_rounds is not None:
            return self.ratio_of_rounds
        return self.kourou / self.java if self.kourou is not None and self.java else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none, or no figure to hold against it."""
        if self.below is not None:
            return None if self.kourou is None else self.kourou < self.below
        if self.ratio is None or (self.at_least is None and self.at_most is None):
            return None
        return self.ratio >= self.at_least if self.at_least is not None else self.ratio <= (self.at_most or 0)

    @property
    def target(self) -> str:
        """What is asked, for people."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.below is None else f"< {self.below:g} {self.unit}"

    def as_json(self) -> dict[str, Any]:
        """Everything for scripts."""
        return {**self._asdict(), "ratio": self.ratio, "met": self.met, "target": self.target}


def print_lines(lines: list[Line], title: str) -> None:
    """The table for people."""
    table = Table(title=title)
    for heading, justify in (
        ("what", "left"), ("", "left"), ("Kourou", "right"), ("Java", "right"), ("Kourou : Java", "right"),
        ("target", "right"), ("", "left"), ("limit", "right"), ("of limit", "right"),
    ):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    before = None
    for line in lines:
        if before is not None and line.what != before:
            table.add_section()
        table.add_row(
            line.what if line.what != before else "", line.metric, figure(line.kourou, line.unit),
            figure(line.java, line.unit), "" if line.ratio is None else f"{line.ratio:.2f}", line.target,
            {True: "met", False: "missed", None: ""}[line.met],
            "" if line.limit is None else figure(line.limit, line.unit),
            "" if not line.limit or line.kourou is None else f"{line.kourou / line.limit:.2f}",
        )  # fmt: skip
        before = line.what
    Console(width=140).print(table)


def figure(value: float | None, unit: str) -> str:
    """A figure with its unit, as precise as it matters."""
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"


def machine() -> dict[str, Any]:
    """Where it was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": os.cpu_count(), "memory_gb": round(memory / 1e9, 1), "python": platform.python_version(),
        "kernel": platform.release(),
    }  # fmt: skip

"""python -m benchmarks brokers: Kourou's broker and Java's, under the same load, side by side.

Both write to the same disk and are reached over loopback; one generator (mqload) loads them in alternating
rounds, and while one is measured the other is paused. A figure is the median of the rounds. Java first gets
the time that its compiler needs, and the heap and collector that its distribution advises.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.broker_processes import JAVA_OPTIONS, Broker, CannotRunError, check_tools, generate, running

BROKERS = ["kourou", "java"]
SIZES = [128, 1024]
RAMP_S = 1.0  # load before each measured stretch
SETTLE_S = 0.5  # for the timers that a paused broker has missed
MAX_STARTS = 3
MEMORY_LIMIT_MB = 120.0
STARTUP_LIMIT_S = 1.0
USED_DISK_LIMIT = 0.70  # Java begins to delete at 75 %


class Mode(NamedTuple):
    """A way to load a broker, and what is asked of Kourou in parts of Java's figure."""

    title: str
    rate_at_least: float
    cpu_at_most: float
    options: dict[str, Any]
    most_per_s: int  # messages that a fast broker might store; only for the question if the disk has room


MODES = {
    "send": Mode("pipelined send", 1.2, 0.6, {}, 80_000),
    "sendsync": Mode("sync send, 32 connections", 1.5, 0.6, {"conns": 32}, 40_000),
    "batch": Mode("batch of 32", 0.8, 1.0, {"batch": 32}, 250_000),
    "pull": Mode("pull of 32", 1.5, 0.4, {"max-nums": 32}, 0),
}
PREFILL = 200_000  # messages in a topic that is pulled from
RECORD_EXTRA_BYTES = 250  # header, properties, queue and index entry of a message


@dataclass(slots=True)
class Results:
    """What was measured: reports of mqload by broker, mode and body size, and how long starts took."""

    reports: dict[tuple[str, str, int], list[dict[str, Any]]] = field(default_factory=dict)
    startups: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def figures(self, broker: str, mode: str, size: int) -> dict[str, float]:
        """Medians of the rounds that succeeded; empty if none did."""
        reports = [report for report in self.reports.get((broker, mode, size), []) if report["ok"]]
        if not reports:
            return {}
        return {
            "rate": statistics.median(report["msgs_per_s"] for report in reports),
            "cpu_us": statistics.median(report["broker"].get("cpu_us_per_msg", 0.0) for report in reports),
            "p50_ms": statistics.median(report["p50_ms"] for report in reports),
            "p99_ms": statistics.median(report["p99_ms"] for report in reports),
            "memory_mb": max(_memory_mb(report) for report in reports),
        }

    def startup_s(self, broker: str) -> float | None:
        """The median start, in seconds."""
        return statistics.median(self.startups[broker]) if broker in self.startups else None


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

    @property
    def ratio(self) -> float | None:
        """Kourou : Java."""
        return self.kourou / self.java if self.kourou is not None and self.java else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none, or no figure to hold against it."""
        if self.below is not None:
            return None if self.kourou is None else self.kourou < self.below
        if self.ratio is None or (self.at_least is None and self.at_most is None):
            return None
        return self.ratio >= self.at_least if self.at_least is not None else self.ratio <= (self.at_most or 0)


def main(arguments: list[str]) -> int:
    """Measure, print, and write the JSON; the exit status."""
    options = _parser().parse_args(arguments)
    return report(options, run(options))


def run(options: argparse.Namespace) -> Results:
    """All of the rounds. Whatever happens, no process and no file is left."""
    names = [options.only] if options.only else BROKERS
    _say("mqload and the brokers …")
    check_tools(names)
    results = Results()
    with _interrupted_by_sigterm(), _scratch(options.dir) as root, contextlib.ExitStack() as stack:
        _check_disk(root, options, names)
        brokers = _start(stack, root, names, options, results)
        _warm_up(brokers, options, results)
        _measure(brokers, options, results)
        _say("stopping …")
    return results


def report(options: argparse.Namespace, results: Results) -> int:
    """Print the table, or write JSON where it is asked for; 1 if a run failed."""
    lines = all_lines(options, results)
    if options.json == "-":
        print(json.dumps(as_json(options, results, lines), indent=2))
    else:
        print_lines(lines, options)
        if options.json:
            text = json.dumps(as_json(options, results, lines), indent=2)
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    for failure in results.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if results.failures else 0


def default_options() -> argparse.Namespace:
    """The options of a plain run."""
    return _parser().parse_args([])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks brokers", description=__doc__.split("\n\n")[0] if __doc__ else None
    )
    positive, natural = _number(float, 0.1), _number(int, 1)
    parser.add_argument("--seconds", type=positive, default=6.0, help="measured in each round (%(default)s)")
    parser.add_argument("--rounds", type=natural, default=3, help="rounds of each broker (%(default)s)")
    parser.add_argument(
        "--warmup", type=_number(float, 0), default=30.0, help="seconds of load on Java first (%(default)s)"
    )
    parser.add_argument("--only", choices=BROKERS, help="one broker alone")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES), help="all by default")
    parser.add_argument("--sizes", nargs="+", type=natural, default=SIZES, help="bytes in a body (128 1024)")
    parser.add_argument(
        "--header", choices=["json", "rocketmq"], default="json", help="form of headers (json)"
    )
    parser.add_argument(
        "--java-options", default=JAVA_OPTIONS, help="options of the broker's JVM (%(default)s)"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=os.environ.get("BENCH_DIR"),
        help="where the stores lie ($BENCH_DIR or temporary)",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="JSON, to a file or instead of the table"
    )
    return parser


def _number(kind: Any, least: float) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    parse.__name__ = kind.__name__
    return parse


# ---------------------------------------------------------------- the run


def _start(
    stack: contextlib.ExitStack, root: Path, names: list[str], options: argparse.Namespace, results: Results
) -> list[Broker]:
    """Start each broker some times; the last ones stay, paused."""
    brokers = []
    starts = min(options.rounds, MAX_STARTS)
    for number in range(starts):
        for name in names:
            _say(f"start {number + 1} of {starts}, {name} … ", end="")
            once = running(name, root / f"{name}-{number}", options.java_options)
            with contextlib.ExitStack() as short:
                broker = short.enter_context(once)
                results.startups.setdefault(name, []).append(broker.startup_s)
                _say(f"{broker.startup_s:.2f} s")
                if number == starts - 1:
                    broker.pause()
                    brokers.append(broker)
                    stack.push(short.pop_all())
    return brokers


def _warm_up(brokers: list[Broker], options: argparse.Namespace, results: Results) -> None:
    """Every mode for its part of the time, so that each finds its code compiled."""
    java = next((broker for broker in brokers if broker.name == "java"), None)
    if java is None or options.warmup == 0:
        return
    _say(f"java: {options.warmup:g} s of load to warm up … ", end="")
    seconds = options.warmup / len(options.modes)
    with _awake(java):
        for mode in options.modes:
            report = _load(java, mode, max(options.sizes), options, seconds, warm_up=0)
            if not report["ok"]:
                results.failures.append(f"java, {mode}, warming up: {report['error']}")
    _say("done")


def _measure(brokers: list[Broker], options: argparse.Namespace, results: Results) -> None:
    plan = [
        (size, mode, number, broker)
        for size in options.sizes
        for mode in options.modes
        for number in range(1, options.rounds + 1)
        for broker in brokers
    ]
    for done, (size, mode, number, broker) in enumerate(plan, start=1):
        _say(f"[{done}/{len(plan)}] {broker.name}, {mode}, {size} B, round {number} … ", end="")
        os.sync()  # what one broker wrote must not be paid for by the other
        with _awake(broker):
            time.sleep(SETTLE_S)
            report = _load(broker, mode, size, options, options.seconds, warm_up=RAMP_S)
        results.reports.setdefault((broker.name, mode, size), []).append(report)
        if report["ok"]:
            cpu_us = report["broker"].get("cpu_us_per_msg", 0.0)
            _say(f"{report['msgs_per_s']:,.0f} msg/s, {cpu_us:.2f} µs CPU")
        else:
            results.failures.append(f"{broker.name}, {mode}, {size} B, round {number}: {report['error']}")
            _say("failed")


def _load(
    broker: Broker, mode: str, size: int, options: argparse.Namespace, seconds: float, *, warm_up: float
) -> dict[str, Any]:
    load = {
        "topic": f"bench_{mode}_{size}", "body-size": size, "header": options.header, "prefill": PREFILL,
        "seconds": seconds, "warmup": warm_up, **MODES[mode].options,
    }  # fmt: skip
    return generate(broker, mode, load, seconds + warm_up)


@contextlib.contextmanager
def _awake(broker: Broker) -> Iterator[None]:
    broker.resume()
    try:
        yield
    finally:
        broker.pause()


@contextlib.contextmanager
def _scratch(directory: Path | None) -> Iterator[Path]:
    if directory is not None and not Path(directory).is_dir():
        raise CannotRunError(f"there is no directory {directory}")
    path = Path(tempfile.mkdtemp(prefix="kourou-bench-", dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _check_disk(root: Path, options: argparse.Namespace, names: list[str]) -> None:
    """Room for everything that fast brokers would write: on a full disk a broker deletes and refuses."""
    seconds = options.rounds * (options.seconds + RAMP_S) + options.warmup / len(options.modes)
    each = sum(
        (MODES[mode].most_per_s * seconds or PREFILL) * (size + RECORD_EXTRA_BYTES)
        for mode in options.modes
        for size in options.sizes
    )
    needed = len(names) * (each + 3 * (1 << 30))  # the files that are made ahead
    disk = shutil.disk_usage(root)
    room = max(0.0, USED_DISK_LIMIT * (disk.used + disk.free) - disk.used)
    if needed > room:
        raise CannotRunError(
            f"this may write {needed / 1e9:.0f} GB; {root.parent} has room for {room / 1e9:.0f} GB "
            f"until it is {USED_DISK_LIMIT:.0%} full. Another --dir, or fewer --seconds, --rounds or --modes"
        )


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends this as Ctrl-C does, with everything cleaned up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def _memory_mb(report: dict[str, Any]) -> float:
    return float(report["broker"]["rss_anon_mb"]) * (1 << 20) / 1e6  # mqload counts in MiB


# ---------------------------------------------------------------- what is shown


def all_lines(options: argparse.Namespace, results: Results) -> list[Line]:
    """Every figure of both, in the order of the table."""
    lines = []
    for size in options.sizes:
        for name in options.modes:
            mode = MODES[name]
            what = f"{mode.title}, {size} B"
            kourou, java = (results.figures(broker, name, size).get for broker in BROKERS)
            lines += [
                Line(what, "rate", "msg/s", kourou("rate"), java("rate"), at_least=mode.rate_at_least),
                Line(what, "CPU", "µs/msg", kourou("cpu_us"), java("cpu_us"), at_most=mode.cpu_at_most),
                Line(what, "p50", "ms", kourou("p50_ms"), java("p50_ms")),
                Line(what, "p99", "ms", kourou("p99_ms"), java("p99_ms")),
                Line(what, "memory", "MB", kourou("memory_mb"), java("memory_mb"), below=MEMORY_LIMIT_MB),
            ]
    kourou_s, java_s = (results.startup_s(broker) for broker in BROKERS)
    lines.append(
        Line("start to the first accepted send", "time", "s", kourou_s, java_s, below=STARTUP_LIMIT_S)
    )
    return lines


def print_lines(lines: list[Line], options: argparse.Namespace) -> None:
    """The table for people."""
    table = Table(title=f"Brokers, {options.header} headers, medians of {options.rounds} rounds")
    for heading, justify in (
        ("what", "left"), ("", "left"), ("Kourou", "right"), ("Java", "right"), ("Kourou : Java", "right"),
        ("target", "right"), ("", "left"),
    ):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    before = None
    for line in lines:
        if before is not None and line.what != before:
            table.add_section()
        table.add_row(
            line.what if line.what != before else "", line.metric, _figure(line.kourou, line.unit),
            _figure(line.java, line.unit), "" if line.ratio is None else f"{line.ratio:.2f}", _target(line),
            {True: "met", False: "missed", None: ""}[line.met],
        )  # fmt: skip
        before = line.what
    Console(width=120).print(table)
    print("CPU and memory are the broker's; memory is anonymous (RssAnon), the most of all rounds.")


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"


def _target(line: Line) -> str:
    if line.at_least is not None:
        return f"≥ {line.at_least:g}"
    if line.at_most is not None:
        return f"≤ {line.at_most:g}"
    return "" if line.below is None else f"< {line.below:g} {line.unit}"


def as_json(options: argparse.Namespace, results: Results, lines: list[Line]) -> dict[str, Any]:
    """Everything for scripts: the lines, and each round as mqload reported it."""
    return {
        "machine": {
            "cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release(),
        },
        "options": {
            "seconds": options.seconds, "rounds": options.rounds, "warmup": options.warmup,
            "header": options.header, "java_options": options.java_options,
        },
        "lines": [{**line._asdict(), "ratio": line.ratio, "met": line.met} for line in lines],
        "rounds": [
            {"broker": broker, "mode": mode, "body_size": size, "reports": reports}
            for (broker, mode, size), reports in results.reports.items()
        ],
        "startups_s": results.startups,
        "failures": results.failures,
    }  # fmt: skip

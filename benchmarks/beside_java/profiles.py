"""python -m benchmarks profiles: Kourou's broker and Java's as people use them: signed, metered, filtered, …

A row is a profile: messages with other properties, or brokers with another configuration. For each
configuration both brokers are started anew, with empty stores; rows that need the same share them while the
disk has room. For each of four loads, with bodies of 1 KiB, a cell has the rate of Kourou in parts of Java's,
and the processor time of both for a message. Both are loaded in alternating rounds, one paused while the
other is measured; a ratio is the median of the rounds' ratios. That a profile is in effect is checked on
both. The goals of all rows are listed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import JAVA_OPTIONS, CannotRunError, check_tools, generate
from benchmarks.beside_java.brokers import (
    BROKERS,
    MODES,
    RECORD_EXTRA_BYTES,
    add_shared_options,
    awake,
    check_room,
    interrupted_by_sigterm,
    number,
    room_on_disk,
    say,
)
from benchmarks.beside_java.figures import Line, machine
from benchmarks.beside_java.profile_rows import CPU_AT_MOST, LOADS, PLAIN, PROFILES, RATE_AT_LEAST
from benchmarks.beside_java.profile_sites import USER, Site, check, running_site
from benchmarks.common import scratch

BODY_BYTES = 1024
RAMP_S = 0.5  # of load before each measured stretch, also for the timers that a paused broker has missed
PREFILL = 50_000
KOUROU_WARM_UP_S = 0.5  # enough for the checks; it compiles nothing
LATER_WARM_UPS = 4  # a row on brokers that are warm already needs so much less
FILES_AHEAD_BYTES = 3 << 30
PART_TOLERANCE = 0.02
COST = "CPU beside plain"


@dataclass(slots=True)
class Results:
    """Reports of mqload by row, load and broker, one for each round, and what failed."""

    reports: dict[tuple[str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, row: str, load: str, broker: str, metric: str) -> float | None:
        """Of the rounds that succeeded."""
        values = [_figure(report, metric) for report in self.reports.get((row, load, broker), [])]
        return statistics.median(found) if (found := [value for value in values if value]) else None

    def ratio(self, row: str, load: str, metric: str) -> float | None:
        """The median of the ratios of the rounds in which both succeeded."""
        rounds = zip(*(self.reports.get((row, load, broker), []) for broker in BROKERS), strict=False)
        pairs = [(_figure(kourou, metric), _figure(java, metric)) for kourou, java in rounds]
        ratios = [kourou / java for kourou, java in pairs if kourou and java]
        return statistics.median(ratios) if ratios else None


def _figure(report: dict[str, Any], metric: str) -> float | None:
    if not report["ok"]:
        return None
    return float(report["msgs_per_s"] if metric == "rate" else report["broker"]["cpu_us_per_msg"])


def main(arguments: list[str]) -> int:
    """Measure, print, and write the JSON; the exit status."""
    options = parse(arguments)
    results = run(options)
    found = as_json(options, results)
    if options.json == "-":
        print(json.dumps(found, indent=2))
    else:
        lines = all_lines(options.rows, results)
        _print_table(options, lines)
        _print_goals(lines)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for failure in results.failures:
        say(f"failed: {failure}")
    return 1 if results.failures else 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts. CannotRunError if a round failed."""
    options = parse(arguments)
    results = run(options)
    if results.failures:
        raise CannotRunError("\n".join(results.failures))
    return as_json(options, results)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks profiles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rows = list(PROFILES)
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows, help="all by default")
    parser.add_argument(
        "--seconds", type=number(float, 0.1), default=1.0, help="measured in each round (%(default)s)"
    )
    parser.add_argument("--rounds", type=number(int, 1), default=3, help="of each broker (%(default)s)")
    parser.add_argument(
        "--warmup",
        type=number(float, 0.1),
        default=3.0,
        help="seconds of each load on Java after its start (%(default)s)",
    )
    add_shared_options(parser)
    return parser.parse_args(arguments)


# ---------------------------------------------------------------- the run


def run(options: argparse.Namespace) -> Results:
    """All rows. Whatever happens, no process and no file is left."""
    names = [options.only] if options.only else BROKERS
    check_tools(names)
    results = Results()
    with interrupted_by_sigterm(), scratch(options.dir) as root:
        left = list(options.rows)
        while left:
            left = _run_some(left, root, names, options, results)
    return results


def _run_some(
    rows: list[str], root: Path, names: list[str], options: argparse.Namespace, results: Results
) -> list[str]:
    """The first row, and those that can share its brokers while the disk has room; the rows that are left."""
    check_room(root, _needed(rows[0], options, len(names)) + len(names) * FILES_AHEAD_BYTES)
    done: list[str] = []
    with contextlib.ExitStack() as stack:
        sites: list[Site] = []
        for row in rows:
            profile = PROFILES[row]
            if not profile.shares_brokers_with(PROFILES[rows[0]]):
                continue
            if done and _needed(row, options, len(names)) > room_on_disk(root):
                break
            done.append(row)
            say(f"{row}: ", end="")
            try:
                for name in names[len(sites) :]:
                    say(f"{name} starts … ", end="")
                    started = running_site(name, root / rows[0] / name, profile, JAVA_OPTIONS)
                    sites.append(stack.enter_context(started))
                warm_up_s = options.warmup if len(done) == 1 else options.warmup / LATER_WARM_UPS
                _run_row(row, [site._replace(profile=profile) for site in sites], warm_up_s, options, results)
            except CannotRunError as error:
                results.failures.append(f"{row}: {error}")
                say("failed")
    return [row for row in rows if row not in done]


def _run_row(
    row: str, sites: list[Site], warm_up_s: float, options: argparse.Namespace, results: Results
) -> None:
    for site in sites:
        say(f"{site.broker.name} warms up … ", end="")
        _warm_up(row, site, warm_up_s if site.broker.name == "java" else KOUROU_WARM_UP_S)
    for load in PROFILES[row].loads:
        say(f"{load} … ", end="")
        for _ in range(options.rounds):
            for site in sites:
                os.sync()  # what one broker wrote must not be paid for by the other
                with awake(site.broker):
                    report = _load(row, load, site, options.seconds, RAMP_S)
                results.reports.setdefault((row, load, site.broker.name), []).append(report)
                if not report["ok"]:
                    results.failures.append(f"{row}, {load}, {site.broker.name}: {report['error']}")
    say("done")


def _warm_up(row: str, site: Site, seconds: float) -> None:
    """Each load once, and then a look whether the profile is in effect."""
    with awake(site.broker):
        for load in site.profile.loads:
            report = _load(row, load, site, seconds, ramp_s=0)
            if not report["ok"]:
                raise site.wrong(f"{load}, warming up: {report['error']}")
        check(site, _topic(row, site.profile.loads[0]))


def _load(row: str, load: str, site: Site, seconds: float, ramp_s: float) -> dict[str, Any]:
    """What mqload reports of a load. It is not ok if anything was refused, or the wrong messages pulled."""
    profile, mode = site.profile, MODES[load]
    wanted = {
        "topic": _topic(row, load), "body-size": BODY_BYTES, "prefill": PREFILL, "seconds": seconds,
        "warmup": ramp_s, **mode.options, **profile.options,
    }  # fmt: skip
    if load == "pull":
        wanted |= profile.pull
    if profile.access_control:
        wanted |= {"ak": USER.access_key, "sk": USER.secret_key}
    report = generate(site.broker, mode.generator, wanted, seconds + ramp_s)
    if refused := report.get("warmup_errors"):
        report |= {"ok": False, "error": f"{refused} requests were refused outside the measured time"}
    if load == "pull" and report["ok"]:
        part = report["pulled"] / report["passed"]
        if abs(part - profile.pulled_part) > PART_TOLERANCE:
            said = f"{part:.3f} of the messages were pulled, not {profile.pulled_part}"
            report |= {"ok": False, "error": said}
    return report


def _topic(row: str, load: str) -> str:
    return f"bench_{row}_{load}"


def _needed(row: str, options: argparse.Namespace, brokers: int) -> float:
    """Bytes that fast brokers write for a row: on a full disk a broker deletes and refuses."""
    seconds = options.rounds * (options.seconds + RAMP_S) + options.warmup
    records = sum(MODES[load].most_per_s * seconds or PREFILL for load in PROFILES[row].loads)
    return brokers * records * (BODY_BYTES + RECORD_EXTRA_BYTES)


# ---------------------------------------------------------------- what is shown


def all_lines(rows: list[str], results: Results) -> list[Line]:
    """Every figure of both, in the order of the table."""
    return [line for row in rows for load in PROFILES[row].loads for line in _lines_of(row, load, results)]


def _lines_of(row: str, load: str, results: Results) -> list[Line]:
    profile = PROFILES[row]
    what = _what(row, load)
    rate, java_rate = (results.median(row, load, broker, "rate") for broker in BROKERS)
    cost, java_cost = (results.median(row, load, broker, "CPU") for broker in BROKERS)
    lines = [
        Line(
            what, "rate", "msg/s", rate, java_rate, at_least=profile.rate_at_least or RATE_AT_LEAST[load],
            ratio_of_rounds=results.ratio(row, load, "rate"),
        ),
        Line(
            what, "CPU", "µs/msg", cost, java_cost, at_most=CPU_AT_MOST.get(load),
            ratio_of_rounds=results.ratio(row, load, "CPU"),
        ),
    ]  # fmt: skip
    plain = results.median(PLAIN, load, "kourou", "CPU")
    if row != PLAIN and plain is not None:
        lines.append(Line(what, COST, "µs/msg", cost, None, below=plain * profile.cost_at_most))
    return lines


def _what(row: str, load: str) -> str:
    return f"{PROFILES[row].title}, {MODES[load].title}"


def _print_table(options: argparse.Namespace, lines: list[Line]) -> None:
    rounds = f"{options.rounds} rounds of {options.seconds:g} s"
    table = Table(title=f"Rate Kourou : Java, and CPU µs a message, Kourou : Java; {rounds}")
    table.add_column("profile")
    for load in LOADS:
        table.add_column(MODES[load].title, justify="right")
    by_name = {(line.what, line.metric): line for line in lines}
    for row in options.rows:
        cells = [_cell(by_name, _what(row, load)) for load in LOADS]
        table.add_row(PROFILES[row].title, *cells)
    Console(width=140).print(table)


def _cell(by_name: dict[tuple[str, str], Line], what: str) -> str:
    rate, cpu = by_name.get((what, "rate")), by_name.get((what, "CPU"))
    if rate is None or cpu is None:
        return "–"
    ratio = "?" if rate.ratio is None else f"{rate.ratio:.2f}"
    kourou, java = ("?" if value is None else f"{value:.1f}" for value in (cpu.kourou, cpu.java))
    return f"{ratio}  {kourou} : {java}"


def _print_goals(lines: list[Line]) -> None:
    """What was missed, then what was met."""
    for state, title in ((False, "missed"), (True, "met")):
        chosen = [line for line in lines if line.met is state]
        print(f"\nGoals {title}: {len(chosen)}")
        for line in chosen:
            value = f"{line.kourou:.1f} µs" if line.below is not None else f"{line.ratio:.2f}"
            print(f"  {line.what}: {line.metric} {value}, {line.target}")


def as_json(options: argparse.Namespace, results: Results) -> dict[str, Any]:
    """Everything for scripts: the lines, and each round as mqload reported it."""
    return {
        "machine": machine(),
        "options": {"seconds": options.seconds, "rounds": options.rounds, "warmup": options.warmup},
        "lines": [line.as_json() for line in all_lines(options.rows, results)],
        "rounds": [
            {"row": row, "load": load, "broker": broker, "reports": reports}
            for (row, load, broker), reports in results.reports.items()
        ],
        "failures": results.failures,
    }

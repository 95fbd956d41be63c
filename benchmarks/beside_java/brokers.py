"""python -m benchmarks brokers: Kourou's broker and Java's, under the same load, side by side.

Both write to the same disk and are reached over loopback; the same generators (mqload, and Java's own client
with 64 threads) load them in alternating rounds, and while one is measured the other is paused. A figure is
the median of the rounds. Java first gets the time that its compiler needs, and the heap and collector that
its distribution advises. Beside them stands the limit: an echo server on Kourou's loop that reads the same
frames and stores nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.beside_java.broker_processes import (
    JAVA_OPTIONS,
    RUN_JAVA,
    Broker,
    CannotRunError,
    anonymous_mb,
    check_tools,
    cpu_s,
    generate,
    running,
)
from benchmarks.beside_java.figures import Line, machine, print_lines
from benchmarks.common import scratch
from benchmarks.echo import running_echo

BROKERS = ["kourou", "java"]
ECHO = "echo"
SETTLE_S = 0.5  # for the timers that a paused broker has missed
MAX_STARTS = 3
IDLE_LIMIT_MB = 60.0
MEMORY_LIMIT_MB = 120.0
STARTUP_AT_MOST = 0.1
USED_DISK_LIMIT = 0.70  # Java begins to delete at 75 %
PREFILL = 200_000  # messages in a topic that is pulled from
RECORD_EXTRA_BYTES = 250  # header, properties, queue and index entry of a message
JAVA_CLIENT = "java client"
JAVA_CLIENT_MESSAGES = 60_000
JAVA_CLIENT_TIMEOUT_S = 300
SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}


class Mode(NamedTuple):
    """A way to load a broker, and what is asked of Kourou in parts of Java's figure."""

    title: str
    generator: str  # mode of mqload, or JAVA_CLIENT
    options: dict[str, Any]
    sizes: tuple[int, ...]  # of bodies
    most_per_s: int  # messages that a fast broker might store; only for the question if the disk has room
    rate_at_least: float | None = None
    cpu_at_most: float | None = None
    p50_at_most: float | None = None
    p99_at_most: float | None = None
    is_paced: bool = False  # the rate is the generator's
    has_limit: bool = False  # the echo server can answer it
    ramp_s: float = 1.0  # load before each measured stretch
    config: dict[str, str] = {}  # noqa: RUF012  # of the broker


MODES = {
    "send": Mode(
        "pipelined send", "send", {}, (128, 1024), 100_000, rate_at_least=2.0, cpu_at_most=0.35,
        has_limit=True,
    ),
    "sendsync": Mode(
        "sync send, 32 connections", "sendsync", {"conns": 32}, (128, 1024), 50_000,
        rate_at_least=2.5, cpu_at_most=0.33, p99_at_most=0.5, has_limit=True,
    ),
    "sendsync64": Mode(
        "sync send, 64 connections", "sendsync", {"conns": 64}, (1024,), 50_000, has_limit=True
    ),
    "one": Mode(
        "one sync sender", "sendsync", {"conns": 1}, (128,), 20_000, rate_at_least=3.0, p50_at_most=0.33,
        has_limit=True,
    ),
    "client": Mode("Java's client, 64 threads", JAVA_CLIENT, {}, (1024,), 40_000),
    "batch": Mode(
        "batch of 32", "batch", {"batch": 32}, (1024,), 250_000, rate_at_least=1.2, cpu_at_most=0.6
    ),
    "pull": Mode("pull of 32", "pull", {"max-nums": 32}, (1024,), 0, rate_at_least=2.0, cpu_at_most=0.3),
    "tail": Mode(
        "end to end, 5,000 a second", "tail", {"rate": 5000}, (1024,), 5_000, is_paced=True,
        p50_at_most=0.5, p99_at_most=0.5,
    ),
    "topics": Mode(
        "pipelined send, 1,000 topics", "send", {"topics": 1000, "queues": 1}, (128,), 100_000, ramp_s=5.0
    ),
    "holds": Mode(
        "10,000 long-polling consumers", "tail", {"conns": 10_000, "queues": 1000, "rate": 100}, (128,), 100,
        is_paced=True, ramp_s=10.0,
    ),
    "flush": Mode(
        "sync send, 32 connections, SYNC_FLUSH", "sendsync", {"conns": 32}, (1024,), 20_000,
        rate_at_least=1.5, config=SYNC_FLUSH,
    ),
}  # fmt: skip


@dataclass(slots=True)
class Results:
    """What was measured: reports of the generators by broker, mode and body size, and of the starts."""

    reports: dict[tuple[str, str, int], list[dict[str, Any]]] = field(default_factory=dict)
    startups: dict[str, list[float]] = field(default_factory=dict)
    namesrv_startups: dict[str, list[float]] = field(default_factory=dict)
    idle_mb: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def figures(self, broker: str, mode: str, size: int) -> dict[str, float]:
        """Medians of the rounds that succeeded; empty if none did."""
        reports = [report for report in self.reports.get((broker, mode, size), []) if report["ok"]]
        if not reports:
            return {}
        found = {
            "rate": statistics.median(report["msgs_per_s"] for report in reports),
            "cpu_us": statistics.median(report["broker"].get("cpu_us_per_msg", 0.0) for report in reports),
            "memory_mb": max(_memory_mb(report) for report in reports),
        }
        for name in ("p50_ms", "p99_ms", "p999_ms"):
            if name in reports[0]:
                found[name] = statistics.median(report[name] for report in reports)
        return found

    def started(self, broker: Broker) -> None:
        """Note how a start went."""
        self.startups.setdefault(broker.name, []).append(broker.startup_s)
        self.namesrv_startups.setdefault(broker.name, []).append(broker.namesrv_startup_s)
        self.idle_mb.setdefault(broker.name, []).append(broker.idle_mb)


def main(arguments: list[str]) -> int:
    """Measure, print, and write the JSON; the exit status."""
    options = _parser().parse_args(arguments)
    return report(options, run(options))


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts. CannotRunError if a round failed."""
    options = _parser().parse_args(arguments)
    results = run(options)
    if results.failures:
        raise CannotRunError("\n".join(results.failures))
    return as_json(options, results, all_lines(options, results))


def run(options: argparse.Namespace) -> Results:
    """All of the rounds. Whatever happens, no process and no file is left."""
    names = [options.only] if options.only else BROKERS
    say("mqload and the brokers …")
    check_tools(names)
    results = Results()
    plain = [mode for mode in options.modes if not MODES[mode].config]
    others = [mode for mode in options.modes if MODES[mode].config]
    with interrupted_by_sigterm(), scratch(options.dir) as root:
        _check_disk(root, options, names)
        for number, modes in enumerate([plain, *([mode] for mode in others)]):
            if not modes:
                continue
            with contextlib.ExitStack() as stack:
                brokers = _start(stack, root / str(number), names, modes, options, results)
                _warm_up(brokers, modes, options, results)
                _measure(brokers, modes, options, results)
                say("stopping …")
    return results


def report(options: argparse.Namespace, results: Results) -> int:
    """Print the table, or write JSON where it is asked for; 1 if a run failed."""
    lines = all_lines(options, results)
    if options.json == "-":
        print(json.dumps(as_json(options, results, lines), indent=2))
    else:
        print_lines(lines, f"Brokers, {options.header} headers, medians of {options.rounds} rounds")
        print("CPU and memory are the broker's; memory is anonymous (RssAnon), the most of all rounds.")
        print("The limit is an echo server that reads the same frames on the same loop.")
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
        prog="python -m benchmarks brokers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    positive, natural = number(float, 0.1), number(int, 1)
    parser.add_argument("--seconds", type=positive, default=6.0, help="measured in each round (%(default)s)")
    parser.add_argument("--rounds", type=natural, default=3, help="rounds of each broker (%(default)s)")
    parser.add_argument(
        "--warmup", type=number(float, 0), default=40.0, help="seconds of load on Java first (%(default)s)"
    )
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES), help="all by default")
    parser.add_argument(
        "--sizes", nargs="+", type=natural, help="bytes in a body, instead of each mode's own"
    )
    parser.add_argument(
        "--header", choices=["json", "rocketmq"], default="json", help="form of headers (json)"
    )
    parser.add_argument(
        "--java-options", default=JAVA_OPTIONS, help="options of the broker's JVM (%(default)s)"
    )
    add_shared_options(parser)
    return parser


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """What every table of both brokers takes."""
    parser.add_argument("--only", choices=BROKERS, help="one broker alone")
    parser.add_argument(
        "--dir",
        type=Path,
        default=os.environ.get("BENCH_DIR"),
        help="where the stores lie ($BENCH_DIR or temporary)",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="JSON, to a file or instead of the table"
    )


def number(kind: Any, least: float) -> Any:
    """A type for an option: a number that is at least so large."""

    def parse(text: str) -> Any:
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    parse.__name__ = kind.__name__
    return parse


# ---------------------------------------------------------------- the run


def _start(
    stack: contextlib.ExitStack,
    root: Path,
    names: list[str],
    modes: list[str],
    options: argparse.Namespace,
    results: Results,
) -> list[Broker]:
    """Start each broker some times; the last ones stay, paused."""
    brokers = []
    config = MODES[modes[0]].config
    starts = 1 if config else min(options.rounds, MAX_STARTS)
    for number in range(starts):
        for name in names:
            say(f"start {number + 1} of {starts}, {name} … ", end="")
            once = running(name, root / f"{name}-{number}", options.java_options, config)
            with contextlib.ExitStack() as short:
                broker = short.enter_context(once)
                say(f"{broker.startup_s:.2f} s")
                if not config:
                    results.started(broker)
                if number == starts - 1:
                    broker.pause()
                    brokers.append(broker)
                    stack.push(short.pop_all())
    if any(MODES[mode].has_limit for mode in modes):
        echo = stack.enter_context(running_echo())
        echo.pause()
        brokers.append(echo)
    return brokers


def _warm_up(brokers: list[Broker], modes: list[str], options: argparse.Namespace, results: Results) -> None:
    """Every mode for its part of the time, so that each finds its code compiled."""
    java = next((broker for broker in brokers if broker.name == "java"), None)
    if java is None or options.warmup == 0:
        return
    say(f"java: {options.warmup:g} s of load to warm up … ", end="")
    seconds = options.warmup / len(modes)
    with awake(java):
        for mode in modes:
            report = _load(java, mode, max(_sizes(mode, options)), options, seconds, warm_up=0)
            if not report["ok"]:
                results.failures.append(f"java, {mode}, warming up: {report['error']}")
    say("done")


def _sizes(mode: str, options: argparse.Namespace) -> tuple[int, ...]:
    return tuple(options.sizes or MODES[mode].sizes)


def _measure(brokers: list[Broker], modes: list[str], options: argparse.Namespace, results: Results) -> None:
    plan = [
        (size, mode, number, broker)
        for mode in modes
        for size in _sizes(mode, options)
        for number in range(1, options.rounds + 1)
        for broker in brokers
        if broker.name != ECHO or MODES[mode].has_limit
    ]
    for done, (size, mode, number, broker) in enumerate(plan, start=1):
        say(f"[{done}/{len(plan)}] {broker.name}, {mode}, {size} B, round {number} … ", end="")
        os.sync()  # what one broker wrote must not be paid for by the other
        with awake(broker):
            time.sleep(SETTLE_S)
            report = _load(broker, mode, size, options, options.seconds, warm_up=MODES[mode].ramp_s)
        results.reports.setdefault((broker.name, mode, size), []).append(report)
        if report["ok"]:
            cpu_us = report["broker"].get("cpu_us_per_msg", 0.0)
            say(f"{report['msgs_per_s']:,.0f} msg/s, {cpu_us:.2f} µs CPU")
        else:
            results.failures.append(f"{broker.name}, {mode}, {size} B, round {number}: {report['error']}")
            say("failed")


def _load(
    broker: Broker, mode: str, size: int, options: argparse.Namespace, seconds: float, *, warm_up: float
) -> dict[str, Any]:
    topic = f"bench_{mode}_{size}"
    if MODES[mode].generator == JAVA_CLIENT:
        return _java_client(broker, topic, size, seconds)
    load = {
        "topic": topic, "body-size": size, "header": options.header, "prefill": PREFILL,
        "seconds": seconds, "warmup": warm_up, **MODES[mode].options,
    }  # fmt: skip
    if broker.name == ECHO:
        load["verify"] = "false"
    return generate(broker, MODES[mode].generator, load, seconds + warm_up)


def _java_client(broker: Broker, topic: str, size: int, seconds: float) -> dict[str, Any]:
    """A round of Java's own producer; it warms up by itself."""
    count = int(JAVA_CLIENT_MESSAGES * max(seconds / 6, 0.2))
    command = [
        str(RUN_JAVA),
        "ClientBench",
        "threads",
        broker.namesrv_address,
        topic,
        str(count),
        str(size),
        "64",
    ]
    before = cpu_s(broker.process.pid)
    done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_CLIENT_TIMEOUT_S, check=False)
    used_s = cpu_s(broker.process.pid) - before
    if done.returncode != 0:
        return {"ok": False, "error": done.stderr.strip()[-500:] or "Java's client failed"}
    measured = json.loads(done.stdout.splitlines()[-1])
    sent = count + count // 5  # with what it warmed up with
    memory_mib = anonymous_mb(broker.process.pid) * 1e6 / (1 << 20)
    cpu = {"cpu_us_per_msg": used_s / sent * 1e6, "rss_anon_mb": memory_mib}
    return {"ok": True, "msgs_per_s": measured["rate"], "broker": cpu}


@contextlib.contextmanager
def awake(broker: Broker) -> Iterator[None]:
    """The broker runs only in this block."""
    broker.resume()
    try:
        yield
    finally:
        broker.pause()


def _check_disk(root: Path, options: argparse.Namespace, names: list[str]) -> None:
    """Room for everything that fast brokers would write: on a full disk a broker deletes and refuses."""
    seconds = options.rounds * (options.seconds + 1) + options.warmup / len(options.modes)
    each = sum(
        (MODES[mode].most_per_s * seconds or PREFILL) * (size + RECORD_EXTRA_BYTES)
        for mode in options.modes
        for size in _sizes(mode, options)
    )
    check_room(root, len(names) * (each + 3 * (1 << 30)))  # and the files that are made ahead


def room_on_disk(root: Path) -> float:
    """Bytes that can be written without being refused."""
    disk = shutil.disk_usage(root)
    return max(0.0, USED_DISK_LIMIT * (disk.used + disk.free) - disk.used)


def check_room(root: Path, needed: float) -> None:
    """Refuse to begin what would fill the disk."""
    room = room_on_disk(root)
    if needed > room:
        raise CannotRunError(
            f"this may write {needed / 1e9:.0f} GB; {root.parent} has room for {room / 1e9:.0f} GB "
            f"until it is {USED_DISK_LIMIT:.0%} full. Another --dir, or fewer --seconds, --rounds or --modes"
        )


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends this as Ctrl-C does, with everything cleaned up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(text: str, end: str = "\n") -> None:
    """Progress, where the results do not go."""
    print(text, end=end, file=sys.stderr, flush=True)


def _memory_mb(report: dict[str, Any]) -> float:
    return float(report["broker"]["rss_anon_mb"]) * (1 << 20) / 1e6  # mqload counts in MiB


# ---------------------------------------------------------------- what is shown


def all_lines(options: argparse.Namespace, results: Results) -> list[Line]:
    """Every figure of both, in the order of the table."""
    lines = []
    for name in options.modes:
        for size in _sizes(name, options):
            lines += _lines_of(name, size, results)
    for what, table in (
        ("start of the name server until it listens", results.namesrv_startups),
        ("start of the broker to the first accepted send", results.startups),
    ):
        kourou_s, java_s = (statistics.median(table[name]) if name in table else None for name in BROKERS)
        lines.append(Line(what, "time", "s", kourou_s, java_s, at_most=STARTUP_AT_MOST))
    kourou_mb, java_mb = (max(results.idle_mb.get(name, []), default=None) for name in BROKERS)
    lines.append(Line("idle broker", "memory", "MB", kourou_mb, java_mb, below=IDLE_LIMIT_MB))
    return lines


def _lines_of(name: str, size: int, results: Results) -> list[Line]:
    mode = MODES[name]
    what = f"{mode.title}, {size} B"
    kourou, java = (results.figures(broker, name, size).get for broker in BROKERS)
    limit = results.figures(ECHO, name, size).get
    lines = []
    if not mode.is_paced:
        rates = kourou("rate"), java("rate")
        lines.append(Line(what, "rate", "msg/s", *rates, at_least=mode.rate_at_least, limit=limit("rate")))
    costs = kourou("cpu_us"), java("cpu_us")
    lines.append(Line(what, "CPU", "µs/msg", *costs, at_most=mode.cpu_at_most, limit=limit("cpu_us")))
    for metric, at_most in (("p50", mode.p50_at_most), ("p99", mode.p99_at_most), ("p999", None)):
        times = kourou(f"{metric}_ms"), java(f"{metric}_ms")
        if any(times):
            lines.append(Line(what, metric, "ms", *times, at_most=at_most, limit=limit(f"{metric}_ms")))
    memory = kourou("memory_mb"), java("memory_mb")
    lines.append(Line(what, "memory", "MB", *memory, below=MEMORY_LIMIT_MB))
    return lines


def as_json(options: argparse.Namespace, results: Results, lines: list[Line]) -> dict[str, Any]:
    """Everything for scripts: the lines, and each round as the generator reported it."""
    return {
        "machine": machine(),
        "options": {
            "seconds": options.seconds, "rounds": options.rounds, "warmup": options.warmup,
            "header": options.header, "java_options": options.java_options,
        },
        "lines": [line.as_json() for line in lines],
        "rounds": [
            {"broker": broker, "mode": mode, "body_size": size, "reports": reports}
            for (broker, mode, size), reports in results.reports.items()
        ],
        "startups_s": results.startups,
        "failures": results.failures,
    }  # fmt: skip

"""python -m benchmarks growth: what a message costs Kourou's broker as everything around it grows.

topics      pipelined sends spread over 1 to 50,000 topics
queues      the same over the queues of one topic
sizes       pipelined sends of bodies from 16 bytes to 1 MiB
backlog     pulls from a topic with ever more messages in it
consumers   long polls that are held while others send
rolls       latency of sends while log files, of a size that is rolled every second, come and go; beside it
            the same with files that last

The cost is the broker's processor time for a message; where lines should be straight, they are shown to be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import (
    GENERATOR,
    JAVA_OPTIONS,
    Broker,
    CannotRunError,
    check_tools,
    generate,
    running,
)
from benchmarks.beside_java.brokers import check_room, say
from benchmarks.beside_java.figures import machine
from benchmarks.common import scratch

TOPICS = [1, 10, 100, 1_000, 5_000, 10_000, 50_000]
QUEUES = [1, 8, 64, 512, 4_096]
SIZES = [16, 128, 1024, 16 * 1024, 128 * 1024, 1024 * 1024]
BACKLOGS = [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]
CONSUMERS = [0, 100, 1_000, 10_000]
ROLLING_BYTES = 64 * 1024 * 1024
TAIL_AT_MOST = 3.0  # p99.9 with rolls, in parts of the one without
RECORD_BYTES = 380  # of the backlog's messages, with their queue and index entries
SPREADS = {"topics": TOPICS, "queues": QUEUES, "sizes": SIZES, "backlog": BACKLOGS, "consumers": CONSUMERS}
NAMES = [*SPREADS, "rolls"]

Point = dict[str, float]


def main(arguments: list[str]) -> int:
    """Run and print; the exit status."""
    options = parse(arguments)
    found = run(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        _print(found)
    return 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts."""
    return run(parse(arguments))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; all by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured at each point (%(default)s)")
    parser.add_argument("--most", type=int, default=10_000_000, help="no point above this (%(default)s)")
    parser.add_argument("--dir", type=Path, default=os.environ.get("BENCH_DIR"), help="where the stores lie")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Points by what grows."""
    check_tools(["kourou"])
    names = options.names or NAMES
    found: dict[str, Any] = {"machine": machine(), "growth": {}}
    with scratch(options.dir) as root:
        check_room(root, min(options.most, max(BACKLOGS)) * RECORD_BYTES + 30e9 / 4)
        for name in names:
            if name == "rolls":
                found["rolls"] = _rolls(root, options)
                continue
            points = [(value, _measure(name, value, root, options)) for value in _values(name, options)]
            found["growth"][name] = [{"value": value, **point} for value, point in points]
    return found


def _values(name: str, options: argparse.Namespace) -> list[int]:
    most = options.most
    if name in ("topics", "queues"):  # each queue is a mapping
        most = min(most, int(Path("/proc/sys/vm/max_map_count").read_text(encoding="utf-8")) - 5000)
    return [value for value in SPREADS[name] if value <= most]


def _measure(name: str, value: int, root: Path, options: argparse.Namespace) -> Point:
    say(f"{name} {value:,} … ", end="")
    config = {"maxMessageSize": 8 * 1024 * 1024}
    with running("kourou", root / "broker", JAVA_OPTIONS, config) as broker, contextlib.ExitStack() as stack:
        if name == "backlog":
            load: dict[str, Any] = {"body-size": 128, "prefill": value, "max-nums": 32, "batch": 256}
            report = _generate(broker, "pull", load, options.seconds, fill_s=value / 20_000)
        else:
            if name == "consumers" and value:
                stack.enter_context(_held(broker, value, options))
            loads: dict[str, dict[str, Any]] = {
                "topics": {"topics": value, "queues": 1, "warmup": 2 + value / 1000},
                "queues": {"queues": value, "warmup": 2 + value / 1000},
                "sizes": {"body-size": value, "inflight": 64 if value <= 16 * 1024 else 4},
                "consumers": {"warmup": 2},
            }
            making_s = value / 500 if name == "topics" else 0.0
            report = _generate(broker, "send", {"body-size": 128, **loads[name]}, options.seconds, making_s)
    point = {
        "cpu_us": report["broker"]["cpu_us_per_msg"], "rate": report["msgs_per_s"],
        "p99_ms": report["p99_ms"], "memory_mb": report["broker"]["rss_anon_mb"] * (1 << 20) / 1e6,
    }  # fmt: skip
    say(f"{point['cpu_us']:.2f} µs, {point['rate']:,.0f} msg/s")
    return point


@contextlib.contextmanager
def _held(broker: Broker, count: int, options: argparse.Namespace) -> Iterator[None]:
    """Consumers that hold long polls on queues of their own while the block runs."""
    command = [
        str(GENERATOR), "tail", "--broker", broker.address, "--pid=none", "--topic=held",
        f"--queues={min(count, 1000)}", f"--conns={count}", "--rate=1", "--body-size=128", "--warmup=1",
        f"--seconds={options.seconds + 12}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(2 + count / 2000)  # until all are there
            yield
        finally:
            process.terminate()
            process.wait()


def _generate(
    broker: Broker, mode: str, load: dict[str, Any], seconds: float, fill_s: float = 0
) -> dict[str, Any]:
    settings = {"topic": "growth", "seconds": seconds, "warmup": 2, **load}
    report = generate(broker, mode, settings, seconds + settings["warmup"] + fill_s)
    if not report["ok"]:
        raise CannotRunError(f"{mode} {load}: {report['error']}")
    return report


def _rolls(root: Path, options: argparse.Namespace) -> dict[str, Point]:
    """Latencies of 1 KiB sends, with files that last and with files that are full within a second."""
    found = {}
    for name, config in (
        ("files that last", {}),
        ("a file each second", {"mappedFileSizeCommitLog": ROLLING_BYTES}),
    ):
        say(f"rolls, {name} … ", end="")
        with running("kourou", root / "broker", JAVA_OPTIONS, config) as broker:
            load = {"body-size": 1024, "conns": 8, "inflight": 4}
            report = _generate(broker, "send", load, 3 * options.seconds)
        found[name] = {key: report[key] for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms", "msgs_per_s")}
        say(f"p99.9 {report['p999_ms']:.2f} ms")
    return found


def _print(found: dict[str, Any]) -> None:
    for name, points in found["growth"].items():
        table = Table(title=name)
        for heading in ("", "CPU", "rate", "p99", "memory"):
            table.add_column(heading, justify="right")
        for point in points:
            table.add_row(
                f"{point['value']:,}", f"{point['cpu_us']:.2f} µs", f"{point['rate']:,.0f}/s",
                f"{point['p99_ms']:.2f} ms", f"{point['memory_mb']:.0f} MB",
            )  # fmt: skip
        Console().print(table)
    if "rolls" in found:
        table = Table(title="file rolls, 1 KiB sends")
        for heading in ("", "p50", "p99", "p99.9", "most"):
            table.add_column(heading, justify="right")
        for name, point in found["rolls"].items():
            figures = (f"{point[key]:.2f} ms" for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms"))
            table.add_row(name, *figures)
        Console().print(table)
        quiet, rolling = (point["p999_ms"] for point in found["rolls"].values())
        print(f"p99.9 with rolls: {rolling / quiet:.2f} of the one without (at most {TAIL_AT_MOST:g})")

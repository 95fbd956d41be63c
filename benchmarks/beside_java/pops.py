"""python -m benchmarks pops: consumption by POP, on Kourou's broker and on Java's.

pop 32      four clients that pop up to 32 messages and acknowledge them together
pop 1       32 clients that pop a message and acknowledge it
polls       pops that wait for a message: what they cost while they wait, and how fast they are woken
revive      messages that were popped one by one and never acknowledged: the broker is stopped (SIGSTOP) until
            all are due, then how many a second come to the retry topic

mqload puts the load on both. The invisible time is short, so that the check points and acknowledgements of
most messages come due and are read while it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import (
    JAVA_OPTIONS,
    Broker,
    CannotRunError,
    build_generator,
    check_java,
    cpu_s,
    generate,
    running,
)
from benchmarks.beside_java.services import Wire

GOAL_RATE, GOAL_CPU = 1.3, 0.6  # of Java's
QUEUES = 8
REVIVE_POPS_PER_S = 4_000  # at least: all are popped before the first is due
REVIVE_TIMEOUT_S = 900.0
RETRY_QUEUES = 1

Figures = dict[str, dict[str, float]]


def main(arguments: list[str]) -> int:
    """Run and print; the exit status."""
    options = parse(arguments)
    figures = run(options)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures, options)
    return 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts."""
    return run(parse(arguments))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks pops",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=20, help="measured, of each load")
    parser.add_argument("--warmup", type=float, default=10)
    parser.add_argument("--prefill", type=int, default=500_000, help="messages in the topic")
    parser.add_argument("--size", type=int, default=128, help="bytes in a body")
    parser.add_argument("--polls", type=int, default=10_000, help="pops that wait")
    parser.add_argument("--revive", type=int, default=1_000_000, help="check points that expire")
    parser.add_argument("--only", choices=["kourou", "java"], help="only this broker")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Figures]:
    """Figures of each load, by broker."""
    names = [options.only] if options.only else ["kourou", "java"]
    if "java" in names:
        check_java()
    build_generator()
    more = {"timerWheelEnable": "true", "timerCongestNumEachSlot": options.revive}
    figures: dict[str, Figures] = {}
    root = Path(tempfile.mkdtemp(prefix="kourou-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        for name in names:
            with running(name, root / name, JAVA_OPTIONS, more) as broker:
                figures[name] = {
                    "pop 32": _pop(broker, options, 32, 4),
                    "pop 1": _pop(broker, options, 1, 32),
                    "polls": _polls(broker, options),
                    "revive": _revive(broker, options),
                }
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return figures


def _print(figures: dict[str, Figures], options: argparse.Namespace) -> None:
    rate, cpu = f"≥ {GOAL_RATE:g} × Java", f"≤ {GOAL_CPU:g} × Java"
    rows: list[tuple[str, str, Callable[[Figures], str], str]] = []
    for load in ("pop 32", "pop 1"):
        rows += [
            (load, "acknowledged", lambda f, load=load: f"{f[load]['rate']:,.0f}/s", rate),  # type: ignore[misc]
            ("", "CPU", lambda f, load=load: f"{f[load]['cpu_us']:.1f} µs", cpu),  # type: ignore[misc]
            ("", "p99", lambda f, load=load: f"{f[load]['p99_ms']:.1f} ms", ""),  # type: ignore[misc]
        ]
    rows += [
        (
            f"{options.polls:,} polls",
            "cores while they wait",
            lambda f: f"{f['polls']['idle_cores']:.3f}",
            "",
        ),
        ("", "woken", lambda f: f"{f['polls']['rate']:,.0f}/s", ""),
        ("", "CPU", lambda f: f"{f['polls']['cpu_us']:.1f} µs", ""),
        (f"{options.revive:,} expired", "revived", lambda f: f"{f['revive']['rate']:,.0f}/s", ""),
        ("", "CPU", lambda f: f"{f['revive']['cpu_us']:.1f} µs", ""),
    ]
    table = Table(title=f"POP, {options.size} B bodies; CPU is the broker's, for each message")
    table.add_column("what")
    table.add_column("")
    for name in figures:
        table.add_column(f"{name} broker", justify="right")
    table.add_column("expected", justify="right")
    for what, unit, figure, goal in rows:
        table.add_row(what, unit, *(figure(figures[name]) for name in figures), goal)
    Console().print(table)


def _pop(broker: Broker, options: argparse.Namespace, number: int, clients: int) -> dict[str, float]:
    report = _generate(
        broker, "pop", options.seconds + options.warmup,
        {
            "topic": "bench_pops", "queues": QUEUES, "max-nums": number, "conns": clients,
            "prefill": options.prefill, "body-size": options.size, "seconds": options.seconds,
            "warmup": options.warmup, "group": f"pop_{number}",
        },
    )  # fmt: skip
    return {
        "rate": report["msgs_per_s"],
        "cpu_us": report["broker"]["cpu_us_per_msg"],
        "p50_ms": report["p50_ms"],
        "p99_ms": report["p99_ms"],
    }


def _polls(broker: Broker, options: argparse.Namespace) -> dict[str, float]:
    conns = max(options.polls // 100, 1)
    report = _generate(
        broker, "polls", options.seconds,
        {
            "topic": "bench_polls", "queues": QUEUES, "conns": conns, "inflight": 100,
            "body-size": options.size, "seconds": options.seconds, "group": "polls",
        },
    )  # fmt: skip
    return {
        "idle_cores": report["idle_cores"],
        "rate": report["woken_per_s"],
        "cpu_us": report["cpu_us_per_msg"],
        "rss_anon_mb": report["rss_anon_mb"],
    }


def _revive(broker: Broker, options: argparse.Namespace) -> dict[str, float]:
    """Pop without acknowledging, wait, and count what comes to the retry topic."""
    began, invisible_s = time.monotonic(), max(options.revive // REVIVE_POPS_PER_S, 10)
    report = _generate(
        broker, "pop", invisible_s,
        {
            "topic": "bench_revive", "queues": QUEUES, "max-nums": 1, "conns": 32, "ack": "false",
            "prefill": options.revive, "body-size": options.size, "seconds": invisible_s,
            "warmup": 0, "invisible": invisible_s * 1000, "group": "revive",
        },
    )  # fmt: skip
    popped = int(report["pulled"])
    if popped < options.revive:
        raise CannotRunError(f"only {popped} of {options.revive} messages could be popped in time")
    broker.pause()
    time.sleep(max(began + 2 * invisible_s - time.monotonic(), 0))
    broker.resume()
    cpu, began = cpu_s(broker.process.pid), time.perf_counter()
    deadline, retries = time.monotonic() + REVIVE_TIMEOUT_S, f"%RETRY%{report['group']}_bench_revive"
    with Wire(broker) as wire:
        while (found := wire.messages_in(retries, RETRY_QUEUES)) < popped:
            if time.monotonic() > deadline:
                raise CannotRunError(f"only {found} of {popped} messages were revived")
            time.sleep(0.1)
    wall, used = time.perf_counter() - began, cpu_s(broker.process.pid) - cpu
    return {"rate": popped / wall, "cpu_us": used / popped * 1e6}


def _generate(broker: Broker, mode: str, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    print(f"{broker.name} broker: {mode} {options['topic']} …", file=sys.stderr, flush=True)
    report = generate(broker, mode, options, seconds)
    if not report["ok"]:
        raise CannotRunError(f"{broker.name}: {report['error']}")
    return report

"""python -m benchmarks replication: a master and its slave, Kourou's pair and Java's, one after the other.

Sends to an ASYNC_MASTER and to a SYNC_MASTER that waits for its slave, how far the slave is behind meanwhile,
and how fast an empty slave catches up, beside what a socket of this machine carries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import (
    HOST,
    JAVA_OPTIONS,
    Broker,
    CannotRunError,
    ask,
    check_tools,
    generate,
    running,
    slave_of,
)
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode

PAIRS = ["kourou", "java"]
ROLES = ["ASYNC_MASTER", "SYNC_MASTER"]
RATE_AT_LEAST = 1.5  # of Java's
SAMPLE_S = 0.05
CONNECT_TIMEOUT_S = 60.0
CATCH_UP_TIMEOUT_S = 300.0
SOCKET_BYTES = 1 << 30

Figures = dict[str, float]


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status."""
    found = document(arguments)
    if "--json" in arguments:
        print(json.dumps(found, indent=2))
    else:
        _print(found["results"], found["socket_mb_per_s"])
    return 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts."""
    options = _parser().parse_args(arguments)
    names = [options.only] if options.only else PAIRS
    check_tools(names)
    directory = Path(tempfile.mkdtemp(prefix="kourou-replication-", dir=options.dir))
    results: dict[str, dict[str, Figures]] = {}
    try:
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            results[name] = _measure(name, directory / name, options)
        limit = _socket_mb_per_s()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"results": results, "socket_mb_per_s": limit}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks replication", description=__doc__)
    parser.add_argument("--only", choices=PAIRS, help="one pair alone")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement; the median counts")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before the first measurement")
    parser.add_argument("--dir", type=Path, default=None, help="where the stores are")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _measure(name: str, root: Path, options: argparse.Namespace) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    with running(name, root / "master", JAVA_OPTIONS) as master:
        with slave_of(master, root / "slave", JAVA_OPTIONS):
            _wait_for_slave(master)
            _load(master, "send", options, options.warmup)
            for role in ROLES:
                _configure(master, f"brokerRole={role}\ninSyncReplicas=2\n")
                for mode in ("send", "sendsync"):
                    found[f"{role} {mode}"] = _rounds(master, mode, options)
        _configure(master, "brokerRole=ASYNC_MASTER\n")
        size = _status(master)["masterCommitLogMaxOffset"] % (1 << 30)  # of the last file
        began = time.perf_counter()
        with slave_of(master, root / "empty", JAVA_OPTIONS):
            _wait_for_slave(master)
            began = time.perf_counter()
            _wait_until_caught_up(master)
            seconds = time.perf_counter() - began
        found["catch-up"] = {"mb": size / 1e6, "mb_per_s": size / 1e6 / max(seconds, 1e-3)}
    return found


def _rounds(master: Broker, mode: str, options: argparse.Namespace) -> Figures:
    reports = []
    for _ in range(options.rounds):
        with _lag(master) as lags:
            report = _load(master, mode, options, options.seconds)
        if not report["ok"]:
            raise CannotRunError(f"{master.name}, {mode}: {report['error']}")
        reports.append(
            {**report, "lag_kb": statistics.median(lags or [0]) / 1e3, "most": max(lags or [0]) / 1e3}
        )
        _wait_until_caught_up(master)
    return {
        "rate": statistics.median(report["msgs_per_s"] for report in reports),
        "p50_ms": statistics.median(report["p50_ms"] for report in reports),
        "p99_ms": statistics.median(report["p99_ms"] for report in reports),
        "lag_kb": statistics.median(report["lag_kb"] for report in reports),
        "most_lag_kb": max(report["most"] for report in reports),
    }


def _load(master: Broker, mode: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    settings = {"topic": f"bench_{mode}", "body-size": options.size, "seconds": seconds, "warmup": 1}
    return generate(master, mode, settings, seconds)


@contextlib.contextmanager
def _lag(master: Broker) -> Iterator[list[int]]:
    """Bytes that the slave is behind, sampled while the block runs."""
    found: list[int] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            with contextlib.suppress(OSError):
                found.extend(one["diff"] for one in _status(master)["haConnectionInfo"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _status(master: Broker) -> dict[str, Any]:
    answer = ask(master.address, RequestCode.GET_BROKER_HA_STATUS)
    return dict(lenient_json.loads(bytes(answer.body or b"{}")))


def _configure(master: Broker, text: str) -> None:
    answer = ask(master.address, RequestCode.UPDATE_BROKER_CONFIG, text.encode())
    if answer.code != 0:
        raise CannotRunError(f"{master.name} does not take {text!r}: {answer.remark}")


def _wait_for_slave(master: Broker) -> None:
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while not _status(master)["haConnectionInfo"]:
        if time.monotonic() > deadline:
            raise CannotRunError(f"the slave of {master.name} did not connect")
        time.sleep(0.002)


def _wait_until_caught_up(master: Broker) -> None:
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    while not all(one["diff"] == 0 for one in _status(master)["haConnectionInfo"]):
        if time.monotonic() > deadline:
            raise CannotRunError(f"the slave of {master.name} did not catch up")
        time.sleep(0.002)


def _socket_mb_per_s() -> float:
    """What one connection over loopback carries, in blocks of replication's size."""
    block = bytes(32 * 1024)
    with socket.create_server((HOST, 0)) as server:
        sender = threading.Thread(target=_send_all, args=(server.getsockname()[1], block))
        began = time.perf_counter()
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer, got = bytearray(256 * 1024), 0
            while count := connection.recv_into(buffer):
                got += count
        sender.join()
    return got / 1e6 / (time.perf_counter() - began)


def _send_all(port: int, block: bytes) -> None:
    with socket.create_connection((HOST, port)) as connection:
        for _ in range(SOCKET_BYTES // len(block)):
            connection.sendall(block)


def _print(results: dict[str, dict[str, Figures]], limit: float) -> None:
    table = Table(title="A master and its slave")
    for column in ("what", "figure", *results, "ratio", "asked"):
        table.add_column(column)
    keys = next(iter(results.values())).keys()
    for what in keys:
        for figure in next(iter(results.values()))[what]:
            values = [results[name][what][figure] for name in results]
            ratio = f"{values[0] / values[1]:.2f}" if len(values) == 2 and values[1] else ""
            asked = f"{RATE_AT_LEAST} or more" if figure == "rate" else ""
            table.add_row(what, figure, *(f"{value:,.2f}" for value in values), ratio, asked)
    Console().print(table)
    print(f"a socket of this machine carries {limit:,.0f} MB/s")

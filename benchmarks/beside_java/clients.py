"""python -m benchmarks clients: what a message costs the clients, Kourou's and Java's, on both brokers.

Each client is a process of its own, on the same machine as the broker: a figure is what that one process does
a second, and the time of its processor for each message. 128 bytes, 256 sends in flight; all is consumed from
the start of a topic that was filled before. Pulls bring 32 messages, the brokers' own limit; with
`--pull-batch-size` it is raised at both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import (
    JAVA_OPTIONS,
    RUN_JAVA,
    Broker,
    CannotRunError,
    check_java,
    running,
)
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE

TOPIC = "clients-bench"
QUEUES = 8
SIZE_BYTES = 128
IN_FLIGHT = 256
MODES = ["send", "async for", "batches", "fetch_arrow"]
ARROW_COLUMNS = [
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "tags",
    "keys",
    "body",
]
GOALS = {"send": 15_000, "batches": 100_000, "fetch_arrow": 500_000}
CLIENT_TIMEOUT_S = 300


def main(arguments: list[str]) -> int:
    """Run and print; the exit status."""
    options = parse(arguments)
    if options.client:
        mode, namesrv, count = options.client
        print(json.dumps(_run_client(mode, namesrv, int(count), options.pull_batch_size)))
        return 0
    figures = run(options)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)
    return 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts."""
    return run(parse(arguments))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=200_000, help="messages of each round")
    parser.add_argument("--rounds", type=int, default=3, help="the median of which is printed")
    parser.add_argument("--only", choices=["kourou", "java"], help="only on this broker")
    parser.add_argument("--pull-batch-size", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)  # the process of one client
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Figures of each client, by broker."""
    check_java()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    root = Path(tempfile.mkdtemp(prefix="kourou-bench-"))
    more = {
        "maxTransferCountOnMessageInMemory": options.pull_batch_size,
        "maxTransferBytesOnMessageInMemory": max(256 * 1024, options.pull_batch_size * 1024),
    }
    try:
        for name in [options.only] if options.only else ["kourou", "java"]:
            with running(name, root / name, JAVA_OPTIONS, more) as broker:
                figures[name] = _measure(broker, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return figures


def _measure(broker: Broker, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    asyncio.run(_create_topic(broker))
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for mode in ["java send", *MODES, "java consume"]:
            print(f"{broker.name} broker, round {number + 1}: {mode} …", file=sys.stderr, flush=True)
            client = _java_client if mode.startswith("java") else _python_client
            found.setdefault(mode, []).append(client(mode, broker, options))
    return {
        mode: {key: statistics.median(report[key] for report in reports) for key in ("rate", "cpu_us")}
        for mode, reports in found.items()
    }


async def _create_topic(broker: Broker) -> None:
    client = RemotingClient()
    header = CreateTopic(TOPIC, "TBW102", QUEUES, QUEUES, PERM_READ | PERM_WRITE, "SINGLE_TAG")
    request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())
    try:
        answer = await client.call(broker.address, request, 10.0)
    finally:
        await client.close()
    if answer.code != ResponseCode.SUCCESS:
        raise CannotRunError(f"{broker.name} makes no topic: {answer.remark}")


def _python_client(mode: str, broker: Broker, options: argparse.Namespace) -> dict[str, float]:
    command = [
        sys.executable, "-m", "benchmarks", "clients", "--client", mode, broker.namesrv_address,
        str(options.count), "--pull-batch-size", str(options.pull_batch_size),
    ]  # fmt: skip
    return _report_of(command, dict(os.environ))


def _java_client(mode: str, broker: Broker, options: argparse.Namespace) -> dict[str, float]:
    command = [
        str(RUN_JAVA), "ClientBench", mode.removeprefix("java "), broker.namesrv_address, TOPIC,
        str(options.count), str(SIZE_BYTES), str(IN_FLIGHT),
    ]  # fmt: skip
    home = tempfile.mkdtemp(prefix="kourou-bench-java-")
    try:
        return _report_of(command, {**os.environ, "INTEROP_HOME": home, "TMPDIR": home})
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _report_of(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=CLIENT_TIMEOUT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise CannotRunError(f"{' '.join(command[:4])} failed:\n{done.stderr[-2000:]}")
    report: dict[str, float] = json.loads(lines[-1])
    return report


def _print(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    table = Table(
        title=f"clients, {SIZE_BYTES} B bodies: messages a second, and µs of the client's processor"
    )
    table.add_column("client")
    for name in figures:
        table.add_column(f"{name} broker", justify="right")
    table.add_column("expected", justify="right")
    for mode in ["java send", "send", "java consume", *MODES[1:]]:
        row = [mode if mode.startswith("java") else f"kourou {mode}"]
        for name in figures:
            figure = figures[name][mode]
            row.append(f"{figure['rate']:,.0f}/s  {figure['cpu_us']:.2f} µs")
        goal = GOALS.get(mode)
        row.append(f"≥ {goal:,}/s" if goal else "")
        table.add_row(*row)
    Console().print(table)


# The process of a client of ours


def _run_client(mode: str, namesrv: str, count: int, pull_batch_size: int) -> dict[str, float]:
    import uvloop

    work = _send(namesrv, count) if mode == "send" else _consume(mode, namesrv, count, pull_batch_size)
    report: dict[str, float] = uvloop.run(work)
    return report


class _Meter:
    """The rate and the processor's time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_s()

    def report(self, count: int) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, _cpu_s() - self._cpu
        return {"rate": count / wall, "cpu_us": cpu / count * 1e6}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _send(namesrv: str, count: int) -> dict[str, float]:
    from kourou.client import Message, Producer

    body = bytes(SIZE_BYTES)
    async with Producer(namesrv, group="bench") as producer:

        async def send_some(numbers: Any) -> None:
            for _ in numbers:  # shared: each takes the next
                await producer.send(Message(TOPIC, body, tags="paid", keys="k"))

        async def send_all(total: int) -> None:
            numbers = iter(range(total))
            await asyncio.gather(*(send_some(numbers) for _ in range(IN_FLIGHT)))

        await send_all(count // 20)
        meter = _Meter()
        await send_all(count)
        return meter.report(count)


async def _consume(mode: str, namesrv: str, count: int, pull_batch_size: int) -> dict[str, float]:
    import kourou.client.consume.arrow  # noqa: F401  # its import is not what is measured
    from kourou.client import Consumer

    async with Consumer(
        namesrv,
        group=f"bench-{time.time_ns()}",
        subscribe=TOPIC,
        consume_from="first",
        pull_batch_size=pull_batch_size,
        max_cached_messages=max(4096, 4 * pull_batch_size),
        max_span=1 << 40,
    ) as consumer:
        seen, warm = 0, count // 20
        meter: _Meter | None = None
        began = 0

        def note(messages: int) -> bool:
            nonlocal seen, meter, began
            seen += messages
            if meter is None and seen >= warm:
                meter, began = _Meter(), seen
            return seen >= count

        if mode == "async for":
            async for _ in consumer:
                if note(1):
                    break
        elif mode == "batches":
            async for batch in consumer.batches():
                if note(len(batch.bodies())):
                    break
        else:
            while not note((await consumer.fetch_arrow(columns=ARROW_COLUMNS)).num_rows):
                pass
        assert meter is not None
        return meter.report(seen - began)

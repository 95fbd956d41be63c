"""python -m benchmarks scale: several brokers on one machine, and one name server for very many.

brokers     `kourou up --brokers N`, each broker loaded at the same time: together they should do N times what
            one does, as long as there are cores for them and for the generators
name server Kourou's and Java's, with 1,000 brokers and 10,000 topics, each on ten of them: what a
            registration costs, what a route query costs, and how long one takes while brokers register
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.beside_java.broker_processes import (
    GENERATOR,
    HOST,
    CannotRunError,
    anonymous_mb,
    check_tools,
    cpu_s,
    free_ports,
    running_namesrv,
)
from benchmarks.beside_java.brokers import BROKERS, say
from benchmarks.beside_java.figures import Line, machine, print_lines
from benchmarks.common import scratch
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand, decode
from kourou.remoting.protocol.registration import Registration, encode_registration
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig

CLUSTER_BROKERS = 1_000
CLUSTER_TOPICS = 10_000
BROKERS_OF_A_TOPIC = 10
QUERIES = 20_000
PORT_STEP = 10  # of `kourou up`
START_TIMEOUT_S = 60


def main(arguments: list[str]) -> int:
    """Run and print; the exit status."""
    options = parse(arguments)
    found = run(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for count, point in found["brokers"].items():
        print(
            f"{count} brokers: {point['rate']:,.0f} msg/s, {point['times']:.2f} times one; "
            f"{point['cpu_us']:.2f} µs CPU a message, {point['cores']:.2f} cores"
        )
    print_lines(_lines(found["name_servers"]), f"A name server with {CLUSTER_BROKERS:,} brokers")
    return 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts."""
    return run(parse(arguments))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of load (%(default)s)")
    parser.add_argument(
        "--brokers", type=int, nargs="+", default=[1, 2], help="numbers of brokers (%(default)s)"
    )
    parser.add_argument("--only", choices=BROKERS, help="one name server alone")
    parser.add_argument("--dir", type=Path, default=os.environ.get("BENCH_DIR"), help="where the stores lie")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Both parts."""
    names = [options.only] if options.only else BROKERS
    check_tools(names)
    found: dict[str, Any] = {"machine": machine(), "brokers": {}, "name_servers": {}}
    with scratch(options.dir) as root:
        for count in options.brokers:
            point = _brokers(root / f"up-{count}", count, options.seconds)
            first = next(iter(found["brokers"].values()), point)
            found["brokers"][count] = {**point, "times": point["rate"] / first["rate"]}
        for name in names:
            with running_namesrv(name, root / name) as (process, port):
                found["name_servers"][name] = _name_server(name, process.pid, port)
    found["lines"] = [line.as_json() for line in _lines(found["name_servers"])]
    return found


def _brokers(directory: Path, count: int, seconds: float) -> dict[str, float]:
    """The load of as many generators as there are brokers."""
    say(f"{count} brokers … ", end="")
    port, broker_port = (
        free_ports(0),
        free_ports(*(PORT_STEP * n + more for n in range(count) for more in (-2, 0, 1))),
    )
    command = [
        sys.executable, "-m", "kourou", "up", "--dir", str(directory), "--brokers", str(count),
        "--no-console", "--port", str(port), "--broker-port", str(broker_port),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            addresses = [f"{HOST}:{broker_port + PORT_STEP * number}" for number in range(count)]
            for address in addresses:
                _wait_for(address)
            before = cpu_s(process.pid)
            loads = [
                subprocess.Popen(
                    [
                        str(GENERATOR), "send", "--broker", address, "--topic=scale", "--body-size=128",
                        "--pid=none", "--warmup=1", f"--seconds={seconds}",
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for address in addresses
            ]  # fmt: skip
            reports = [json.loads(load.communicate(timeout=seconds + 120)[0]) for load in loads]
            used_s = cpu_s(process.pid) - before
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    if not all(report["ok"] for report in reports):
        raise CannotRunError(f"a load of {count} brokers failed: {reports}")
    rate = sum(report["msgs_per_s"] for report in reports)
    acked = sum(report["acked"] for report in reports)
    say(f"{rate:,.0f} msg/s")
    return {"rate": rate, "cpu_us": used_s / acked * 1e6, "cores": used_s / (seconds + 1)}


def _wait_for(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise CannotRunError(f"no broker at {address}") from None
            time.sleep(0.05)


# ---------------------------------------------------------------- the name server


def _name_server(name: str, pid: int, port: int) -> dict[str, float]:
    say(f"{name} name server: {CLUSTER_BROKERS:,} brokers register … ", end="")
    requests = [_registration(number) for number in range(CLUSTER_BROKERS)]
    with _Link(port) as link:
        for request in requests[:20]:
            link.ask(request)  # and again below, as brokers do
        used_s, began = cpu_s(pid), time.perf_counter()
        for request in requests:
            link.ask(request)
        wall_s, used_s = time.perf_counter() - began, cpu_s(pid) - used_s
        found = {
            "register_ms": wall_s / CLUSTER_BROKERS * 1e3, "register_cpu_ms": used_s / CLUSTER_BROKERS * 1e3,
            "memory_mb": anonymous_mb(pid),
        }  # fmt: skip
        say("routes … ", end="")
        queries = [_query(number) for number in range(CLUSTER_TOPICS)]
        _timed(link, queries, QUERIES // 4)  # warms Java up
        used_s, began = cpu_s(pid), time.perf_counter()
        quiet = _timed(link, queries, QUERIES)
        wall_s, used_s = time.perf_counter() - began, cpu_s(pid) - used_s
        found |= {
            "route_rate": QUERIES / wall_s, "route_cpu_us": used_s / QUERIES * 1e6,
            "route_p50_ms": statistics.median(quiet), "route_p99_ms": _p99(quiet),
        }  # fmt: skip
        with _Registering(port, requests):
            found["busy_route_p99_ms"] = _p99(_timed(link, queries, QUERIES // 4))
    say("done")
    return found


def _registration(number: int) -> bytes:
    """What a broker sends when it is one of very many and has its part of the topics."""
    address = f"10.0.{number // 250}.{number % 250 + 1}:10911"
    each = CLUSTER_TOPICS * BROKERS_OF_A_TOPIC // CLUSTER_BROKERS
    names = [f"topic-{(number * each + i) % CLUSTER_TOPICS}" for i in range(each)]
    topics = {topic: TopicConfig(topic, 8, 8) for topic in names}
    body = encode_registration(
        Registration(DataVersion(0, 1, 1), topics, filter_servers=[]), compressed=False
    )
    fields = {
        "brokerName": f"broker-{number}", "brokerAddr": address, "clusterName": "DefaultCluster",
        "haServerAddr": "", "brokerId": "0", "bodyCrc32": "0", "compressed": "false",
        "enableActingMaster": "false",
    }  # fmt: skip
    return RemotingCommand(RequestCode.REGISTER_BROKER, fields, body, opaque=1).encode()


def _query(number: int) -> bytes:
    return RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": f"topic-{number}"}, opaque=1
    ).encode()


def _timed(link: _Link, queries: list[bytes], count: int) -> list[float]:
    """Milliseconds of each query, whose answers name as many brokers as hold the topic."""
    found = []
    for number in range(count):
        query = queries[number * 7919 % len(queries)]
        began = time.perf_counter()
        answer = link.ask(query)
        found.append((time.perf_counter() - began) * 1e3)
        if number % 1000 == 0 and bytes(answer.body or b"").count(b'"brokerAddrs"') != BROKERS_OF_A_TOPIC:
            raise CannotRunError(f"a route is wrong: {bytes(answer.body or b'')[:200]!r}")
    return found


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


class _Link:
    """One connection that asks and waits."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def ask(self, request: bytes) -> RemotingCommand:
        self._socket.sendall(request)
        answer = decode(self._stream.read(int.from_bytes(self._stream.read(4), "big")))
        if answer.code != 0:
            raise CannotRunError(f"the name server refuses: {answer}")
        return answer


class _Registering:
    """Brokers that register all the time, as many in 30 seconds as there are, while a block runs."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._port, self._requests = port, requests
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        pause_s = 30 / len(self._requests)
        with _Link(self._port) as link:
            for request in self._requests:
                if self._done.wait(pause_s):
                    return
                link.ask(request)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _lines(servers: dict[str, dict[str, float]]) -> list[Line]:
    def of(key: str) -> tuple[float | None, float | None]:
        kourou, java = (servers.get(name, {}).get(key) for name in BROKERS)
        return kourou, java

    topics = f"{CLUSTER_TOPICS:,} topics"
    return [
        Line(f"registration of a broker with 100 of {topics}", "time", "ms", *of("register_ms")),
        Line(f"registration of a broker with 100 of {topics}", "CPU", "ms", *of("register_cpu_ms")),
        Line("route query", "rate", "/s", *of("route_rate")),
        Line("route query", "CPU", "µs", *of("route_cpu_us")),
        Line("route query", "p50", "ms", *of("route_p50_ms")),
        Line("route query", "p99", "ms", *of("route_p99_ms")),
        Line("route query while brokers register", "p99", "ms", *of("busy_route_p99_ms")),
        Line("name server", "memory", "MB", *of("memory_mb")),
    ]

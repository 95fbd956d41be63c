"""python -m benchmarks services: delayed messages and transactions, on Kourou's broker and on Java's.

due         messages of one delay level that are all due at once: the broker is stopped (SIGSTOP) until they
            are, then how many a second come to their own queues
precision   messages that become due at a constant rate: how late each is in its own queue, by the times of
            the stores themselves
transactions  prepared messages, each committed as soon as it is acknowledged, 256 under way

The same process puts the load on both, over one connection, with frames that are made beforehand; the time of
the processor is the broker's. Each broker runs alone, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.beside_java.broker_processes import (
    JAVA_OPTIONS,
    Broker,
    CannotRunError,
    check_java,
    cpu_s,
    running,
)
from kourou.message.codec import decode
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import ONEWAY_FLAG, RemotingCommand
from kourou.remoting.protocol.headers import EndTransaction, PullMessage

GROUP = "services_bench"
QUEUES = 4
IN_FLIGHT = 256
TRANSACTIONS_TOPIC, DUE_TOPIC, PRECISION_TOPIC = "bench_transactions", "bench_due", "bench_precision"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PRECISION_LEVEL, PRECISION_DELAY_S = 1, 5
DUE_LEVEL = 2
FILL_PER_S = 8_000  # at least, also on a loaded machine
TICK_S = 0.005
ANSWER_TIMEOUT_S = 60.0
DELIVERY_TIMEOUT_S = 600.0
LATENESS_GOAL_MS = 100
PULL_SIZE = 512
COMMIT = 8

OPAQUE = 1_000_000_000  # numbers of the same width, so that frames keep their length
_OPAQUE_TEXT, _NUMBER_TEXT, _TIME_TEXT = b"1000000000", b"%032d" % 7, b"1111111111111"
_SUCCESS = b'"code":0,'

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
        prog="python -m benchmarks services",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=200_000, help="messages that are due at once")
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second, for precision")
    parser.add_argument("--seconds", type=float, default=10, help="of precision")
    parser.add_argument("--transactions", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=128, help="bytes in a body")
    parser.add_argument("--only", choices=["kourou", "java"], help="only this broker")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Figures]:
    """Figures of each service, by broker."""
    names = [options.only] if options.only else ["kourou", "java"]
    if "java" in names:
        check_java()
    due_s = max(20, options.count // FILL_PER_S)
    more = {
        "defaultTopicQueueNums": QUEUES,
        "messageDelayLevel": f"{PRECISION_DELAY_S}s {due_s}s",
        "maxTransferCountOnMessageInMemory": PULL_SIZE,
        "maxTransferBytesOnMessageInMemory": 1 << 20,
    }
    figures: dict[str, Figures] = {}
    root = Path(tempfile.mkdtemp(prefix="kourou-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        for name in names:
            with running(name, root / name, JAVA_OPTIONS, more) as broker, Wire(broker) as wire:
                figures[name] = {
                    "transactions": _transactions(broker, wire, options),
                    "precision": _precision(broker, wire, options),
                    "due": _due(broker, wire, options, due_s),
                }
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return figures


def _print(figures: dict[str, Figures], options: argparse.Namespace) -> None:
    rows: list[tuple[str, str, Callable[[Figures], str], str]] = [
        (f"{options.count:,} due at once", "delivered", lambda f: f"{f['due']['rate']:,.0f}/s", ""),
        ("", "CPU", lambda f: f"{f['due']['cpu_us']:.1f} µs", ""),
        (f"{options.rate:,} due a second", "late, p50", lambda f: f"{f['precision']['p50_ms']:.0f} ms", ""),
        ("", "p99", lambda f: f"{f['precision']['p99_ms']:.0f} ms", ""),
        ("", "most", lambda f: f"{f['precision']['max_ms']:.0f} ms", f"≤ {LATENESS_GOAL_MS} ms"),
        ("", "sent", lambda f: f"{f['precision']['rate']:,.0f}/s", ""),
        ("", "CPU", lambda f: f"{f['precision']['cpu_us']:.1f} µs", ""),
        (
            f"{options.transactions:,} transactions",
            "committed",
            lambda f: f"{f['transactions']['rate']:,.0f}/s",
            "",
        ),
        ("", "CPU", lambda f: f"{f['transactions']['cpu_us']:.1f} µs", ""),
    ]
    table = Table(title=f"services, {options.size} B bodies; CPU is the broker's, for each message")
    table.add_column("what")
    table.add_column("")
    for name in figures:
        table.add_column(f"{name} broker", justify="right")
    table.add_column("expected", justify="right")
    for what, unit, figure, goal in rows:
        table.add_row(what, unit, *(figure(figures[name]) for name in figures), goal)
    Console().print(table)


# What is measured


def _transactions(broker: Broker, wire: Wire, options: argparse.Namespace) -> dict[str, float]:
    _say(f"{broker.name} broker: {options.transactions:,} transactions …")
    more = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    prepare = _sends(TRANSACTIONS_TOPIC, options.size, more, sys_flag=4)

    def run_some(first: int, count: int) -> None:
        wire.transact(prepare, range(first, first + count))
        _wait_for(wire, TRANSACTIONS_TOPIC, first + count)

    warm = options.transactions // 2
    run_some(0, warm)
    meter = _Meter(broker)
    run_some(warm, options.transactions)
    return meter.report(options.transactions)


def _precision(broker: Broker, wire: Wire, options: argparse.Namespace) -> dict[str, float]:
    _say(f"{broker.name} broker: {options.rate:,} due messages a second, for {options.seconds:g} s …")
    count = int(options.rate * options.seconds)
    frame = _sends(PRECISION_TOPIC, options.size, f"DELAY\x01{PRECISION_LEVEL}\x02")
    meter = _Meter(broker)
    began = time.perf_counter()
    sent = 0
    while sent < count:
        ready = min(int((time.perf_counter() - began) * options.rate) + 1, count)
        ready = min(ready, sent + IN_FLIGHT)  # more would fill the buffers of both ends
        wire.exchange(frame(number) for number in range(sent, ready))
        sent = ready
        if ready < (time.perf_counter() - began) * options.rate:
            continue
        time.sleep(TICK_S)
    send_s = time.perf_counter() - began
    _wait_for(wire, PRECISION_TOPIC, count)
    cpu_us = meter.report(count)["cpu_us"]
    put_ms = dict(wire.times(SCHEDULE_TOPIC, PRECISION_LEVEL - 1))
    late_ms = sorted(
        delivered - put_ms[name] - PRECISION_DELAY_S * 1000
        for queue_id in range(QUEUES)
        for name, delivered in wire.times(PRECISION_TOPIC, queue_id)
    )
    if len(late_ms) != count:
        raise CannotRunError(f"{count} messages were delayed, {len(late_ms)} delivered")
    return {
        "p50_ms": late_ms[count // 2], "p99_ms": late_ms[count * 99 // 100], "max_ms": late_ms[-1],
        "rate": count / send_s, "cpu_us": cpu_us,
    }  # fmt: skip


def _due(broker: Broker, wire: Wire, options: argparse.Namespace, due_s: int) -> dict[str, float]:
    _say(f"{broker.name} broker: {options.count:,} messages that are due at once …")
    frame = _sends(DUE_TOPIC, options.size, f"DELAY\x01{DUE_LEVEL}\x02")
    began = time.perf_counter()
    for first in range(0, options.count, IN_FLIGHT):
        wire.exchange(frame(number) for number in range(first, min(first + IN_FLIGHT, options.count)))
    if time.perf_counter() - began > due_s:
        raise CannotRunError(f"{options.count} messages could not be sent within {due_s} s")
    broker.pause()
    time.sleep(due_s + 0.1)
    broker.resume()
    meter = _Meter(broker)
    wire.renew()
    _wait_for(wire, DUE_TOPIC, options.count)
    return meter.report(options.count)


def _wait_for(wire: Wire, topic: str, count: int) -> None:
    deadline = time.monotonic() + DELIVERY_TIMEOUT_S
    while (found := wire.messages_in(topic)) < count:
        if time.monotonic() > deadline:
            raise CannotRunError(f"{topic}: only {found} of {count} messages came")
        time.sleep(0.02)
    if found > count:
        raise CannotRunError(f"{topic}: {found} messages, and only {count} were sent")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Meter:
    """The rate, and the time of the broker's processor, since it was made."""

    def __init__(self, broker: Broker) -> None:
        self._pid = broker.process.pid
        self._wall, self._cpu = time.perf_counter(), cpu_s(self._pid)

    def report(self, count: int) -> dict[str, float]:
        """Both, for so many messages."""
        wall, cpu = time.perf_counter() - self._wall, cpu_s(self._pid) - self._cpu
        return {"rate": count / wall, "cpu_us": cpu / count * 1e6}


# The wire


def _sends(topic: str, size_bytes: int, more: str, sys_flag: int = 0) -> Callable[[int], bytes]:
    """The frame of the message of a number: the same each time but for its number, id, queue and time."""
    templates = []
    for queue_id in range(QUEUES):
        fields = {
            "a": GROUP, "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": str(sys_flag),
            "g": _TIME_TEXT.decode(), "h": "0", "i": f"UNIQ_KEY\x01{_NUMBER_TEXT.decode()}\x02{more}",
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bytes(size_bytes), opaque=OPAQUE)
        templates.append(command.encode())

    def frame(number: int) -> bytes:
        return (
            templates[number % QUEUES]
            .replace(_OPAQUE_TEXT, b"%d" % (OPAQUE + number), 1)
            .replace(_NUMBER_TEXT, b"%032d" % number, 1)
            .replace(_TIME_TEXT, b"%d" % (time.time_ns() // 1_000_000), 1)
        )

    return frame


class Wire:
    """One connection to a broker."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.address.rpartition(":")
        self._address = host, int(port)
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 20)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._stream.close()
        self._socket.close()

    def renew(self) -> None:
        """Connect again: brokers close what was silent for two minutes."""
        self._close()
        self._connect()

    def _answer(self) -> tuple[bytes, bytes]:
        """The header and the body of the next answer, which must be one of success."""
        header, body = self._any_answer()
        if _SUCCESS not in header:
            raise CannotRunError(f"the broker refuses: {header!r}")
        return header, body

    def _any_answer(self) -> tuple[bytes, bytes]:
        size = int.from_bytes(self._stream.read(4), "big")
        frame = self._stream.read(size)
        if size == 0 or len(frame) < size:
            raise CannotRunError("the broker hung up")
        header_size = int.from_bytes(frame[1:4], "big")
        return frame[4 : 4 + header_size], frame[4 + header_size :]

    def exchange(self, frames: Iterable[bytes]) -> None:
        """Send frames at once, and read the answers of all."""
        together = list(frames)
        self._socket.sendall(b"".join(together))
        for _ in together:
            self._answer()

    def transact(self, prepare: Callable[[int], bytes], numbers: range) -> None:
        """Prepare messages and commit each that is acknowledged, some under way at any time."""
        half = IN_FLIGHT // 2
        groups = [numbers[first : first + half] for first in range(0, len(numbers), half)]
        self._socket.sendall(b"".join(map(prepare, groups[0])))
        for group, following in zip(groups, [*groups[1:], range(0)], strict=True):
            self._socket.sendall(b"".join(map(prepare, following)))
            self._socket.sendall(b"".join([self._commit(self._answer()[0]) for _ in group]))

    @staticmethod
    def _commit(header: bytes) -> bytes:
        fields = orjson.loads(header)["extFields"]
        offset, unique_id = int(fields["msgId"][-16:], 16), fields["transactionId"]
        end = EndTransaction(
            GROUP, int(fields["queueOffset"]), offset, COMMIT, unique_id, TRANSACTIONS_TOPIC,
            transaction_id=unique_id,
        )  # fmt: skip
        return RemotingCommand(RequestCode.END_TRANSACTION, end.fields(), flag=ONEWAY_FLAG).encode()

    def _call(self, code: int, fields: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        self._socket.sendall(RemotingCommand(code, fields).encode())
        header, body = self._any_answer()
        return orjson.loads(header), body

    def messages_in(self, topic: str, queues: int = QUEUES) -> int:
        """How many are in the queues of a topic."""
        total = 0
        for queue_id in range(queues):
            answer, _ = self._call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
            if answer["code"] == ResponseCode.SUCCESS:
                total += int(answer["extFields"]["offset"])
        return total

    def times(self, topic: str, queue_id: int) -> Iterator[tuple[str, int]]:
        """The unique ids in a queue, and when each was stored."""
        offset = 0
        while True:
            header = PullMessage(GROUP, topic, queue_id, offset, PULL_SIZE, 4, 0, 0, 0, "*")
            answer, body = self._call(RequestCode.PULL_MESSAGE, header.fields())
            if answer["code"] != ResponseCode.SUCCESS:
                return
            offset = int(answer["extFields"]["nextBeginOffset"])
            at = 0
            while at < len(body):
                size = int.from_bytes(body[at : at + 4], "big")
                message = decode(memoryview(body)[at : at + size], copy_body=False)
                yield message.properties["UNIQ_KEY"], message.store_timestamp
                at += size

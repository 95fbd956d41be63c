"""python -m benchmarks crash: how long each broker takes to serve again after a crash, with a long log.

A log is written once (10 GiB of 1 KiB messages), then both brokers recover the same files, one after the
other: once as a killed broker leaves them, and once with the log alone left (consume queues, index and
checkpoint lost), so that all of it has to be read. Before each the files are dropped from the page cache. The
time goes from the start of the process to the first accepted send; then the broker is asked for its last
offsets, which must be those of the log. The index need not be complete by then: Kourou's catches up later,
Java's stays without the messages of the file that was open. The limit is a raw read of the log.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.beside_java.broker_processes import (
    JAVA_OPTIONS,
    Broker,
    CannotRunError,
    ask,
    check_tools,
    generate,
    running,
)
from benchmarks.beside_java.brokers import BROKERS, check_room, say
from benchmarks.beside_java.figures import Line, machine, print_lines
from benchmarks.common import read_seconds, scratch
from kourou.remoting.protocol.codes import RequestCode

TOPIC = "bench_crash"
QUEUES = 8
TIMEOUT_S = 1800.0
AS_LEFT, LOG_ALONE = "as a killed broker leaves it", "the log alone left"
CASES = [AS_LEFT, LOG_ALONE]


def main(arguments: list[str]) -> int:
    """Run and print; the exit status."""
    options = parse(arguments)
    found = run(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        lines = [_line(case, found) for case in _cases(options)]
        print_lines(lines, f"Recovery of {options.gib:g} GiB, from the process to the first accepted send")
    return 0


def document(arguments: list[str]) -> dict[str, Any]:
    """Measure; everything for scripts."""
    return run(parse(arguments))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gib", type=float, default=10.0, help="size of the log (%(default)s)")
    parser.add_argument("--only", choices=BROKERS, help="one broker alone")
    parser.add_argument("--case", choices=CASES, help="one case alone")
    parser.add_argument("--dir", type=Path, default=os.environ.get("BENCH_DIR"), help="where the store lies")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds by broker and case, and those of a raw read."""
    names = [options.only] if options.only else BROKERS
    check_tools(names)
    seconds: dict[str, dict[str, float]] = {name: {} for name in names}
    with scratch(options.dir) as root:
        check_room(root, (options.gib * 1.2 + 3) * (1 << 30))
        store = root / "store"
        at = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        expected = _fill(root, at, options.gib)
        _forget(store)
        read_s = read_seconds(*sorted((store / "commitlog").iterdir()))
        for case in _cases(options):
            for name in names:
                _set_up(store, case)
                say(f"{name}, {case} … ", end="")
                with running(name, root / name, JAVA_OPTIONS, at, TIMEOUT_S) as broker:
                    seconds[name][case] = broker.startup_s
                    _check(broker, expected)
                    broker.process.send_signal(signal.SIGKILL)
                    broker.process.wait()
                say(f"{seconds[name][case]:.1f} s")
    found = {"machine": machine(), "gib": options.gib, "seconds": seconds, "raw_read_s": read_s}
    return {**found, "lines": [_line(case, found).as_json() for case in _cases(options)]}


def _cases(options: argparse.Namespace) -> list[str]:
    return [options.case] if options.case else CASES


def _line(case: str, found: dict[str, Any]) -> Line:
    kourou, java = (found["seconds"].get(name, {}).get(case) for name in BROKERS)
    what = f"recovery of {found['gib']:g} GiB, {case}"
    return Line(what, "time", "s", kourou, java, at_most=1.0, limit=found["raw_read_s"])


def _fill(root: Path, at: dict[str, Any], gib: float) -> list[int]:
    """Write the log and kill the broker; the last offsets of the queues."""
    log = at["storePathCommitLog"]
    with running("kourou", root / "filling", JAVA_OPTIONS, at) as broker:
        while (size := sum(file.stat().st_blocks * 512 for file in log.iterdir())) < gib * (1 << 30):
            say(f"\rfilling: {size / (1 << 30):.1f} of {gib:g} GiB ", end="")
            load = {"topic": TOPIC, "queues": QUEUES, "body-size": 1024, "seconds": 5, "warmup": 0}
            report = generate(broker, "batch", load, 5)
            if not report["ok"]:
                raise CannotRunError(f"the log could not be written: {report['error']}")
        say("")
        offsets = _offsets(broker)
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait()
    return offsets


def _offsets(broker: Broker) -> list[int]:
    answers = [
        ask(broker.address, RequestCode.GET_MAX_OFFSET, topic=TOPIC, queueId=str(queue_id))
        for queue_id in range(QUEUES)
    ]
    return [int(answer.ext_fields["offset"]) for answer in answers]


def _check(broker: Broker, expected: list[int]) -> None:
    """Java's queues follow its log: they get a moment."""
    deadline = time.monotonic() + 60
    while (found := _offsets(broker)) != expected:
        if time.monotonic() > deadline:
            raise CannotRunError(f"{broker.name} has the queue ends {found}, the log has {expected}")
        time.sleep(0.1)


def _set_up(store: Path, case: str) -> None:
    if case == LOG_ALONE:
        for name in ("consumequeue", "index"):
            shutil.rmtree(store / name, ignore_errors=True)
        (store / "checkpoint").unlink(missing_ok=True)
    (store / "abort").touch()
    _forget(store)


def _forget(store: Path) -> None:
    """Have the system write and drop the pages of all files."""
    os.sync()
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write a store, crash it, recover it, and look inside.

    python examples/demo_store.py [--keep DIR]

A process appends orders, payments and events until it is killed with SIGKILL; the last record is then torn
in half, as a power cut may do. The store recovers, every acknowledged message but the torn one is there,
and `kourou store` shows what is in it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from kourou.message import UniqueIdGenerator, encode_properties
from kourou.store import InnerMessage, MessageStore, MessageStoreConfig

MESSAGES = 50_000
TOPICS = ["orders", "payments", "events"]
console = Console()


def main() -> None:
    """The demonstration."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", metavar="DIR", help="write the store here and leave it")
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)  # the process that is killed
    arguments = parser.parse_args()
    if arguments.write:
        write_until_killed(arguments.write)
        return
    logging.getLogger("kourou").setLevel(logging.CRITICAL)  # the demonstration tells it in its own words
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="kourou-demo-"))
    try:
        demonstrate(root)
    finally:
        if not arguments.keep:
            shutil.rmtree(root, ignore_errors=True)


def demonstrate(root: Path) -> None:
    """Write, crash, tear, recover, look."""
    console.rule("1. Write, and crash")
    acknowledged, seconds = write_and_kill(root)
    console.print(
        f"{len(acknowledged):,} messages acknowledged in {seconds:.1f} s, then the process was killed"
        " (SIGKILL): no flush, no checkpoint, and the abort file is still there."
    )
    torn = max(acknowledged)
    acknowledged.pop(torn)
    tear(root, torn)
    console.print(f"The last record, at {torn:,}, is torn in its middle, as a power cut may leave it.")

    console.rule("2. Recover")
    store = MessageStore(MessageStoreConfig(store_path_root_dir=str(root)))
    start = time.perf_counter()
    report = store.load()
    console.print(
        f"{report.records:,} records checked in {time.perf_counter() - start:.1f} s; the log ends at"
        f" {report.end_offset:,}: {report.reason}."
    )
    console.print(f"Cut: {report.cut_bytes} bytes, kept in {Path(report.kept[0]).relative_to(root)}.")
    found = sum(store.look_message(offset) is not None for offset in acknowledged)
    store.start()
    key = f"order-{min(acknowledged.values())}"
    by_key = store.query_message("orders", key)
    store.shutdown()
    if found != len(acknowledged) or len(by_key.records) != 1:
        sys.exit(
            f"LOST: {len(acknowledged) - found} acknowledged messages, {len(by_key.records)} found by key"
        )
    console.print(f"All {found:,} other acknowledged messages are there, and found by key ({key}).")

    console.rule("3. Look inside, with no broker running")
    for arguments in (
        ["info", str(root)],
        ["cat", str(root), "--topic", "orders", "--limit", "5"],
        ["check", str(root)],
    ):
        console.print(f"[bold]$ kourou store {' '.join(arguments)}")
        subprocess.run([sys.executable, "-m", "kourou", "store", *arguments], check=True)


def write_and_kill(root: Path) -> tuple[dict[int, int], float]:
    """Run the writer, kill it in mid-flight; (physical offset: number) of what it acknowledged."""
    acknowledged: dict[int, int] = {}
    start = time.perf_counter()
    with (
        subprocess.Popen([sys.executable, __file__, "--write", str(root)], stdout=subprocess.PIPE) as writer,
        Progress(console=console, transient=True) as progress,
    ):
        assert writer.stdout is not None
        task = progress.add_task("writing", total=MESSAGES)
        for line in writer.stdout:
            offset, number = line.split()
            acknowledged[int(offset)] = int(number)
            if len(acknowledged) % 1000 == 0:
                progress.update(task, completed=len(acknowledged))
            if len(acknowledged) >= MESSAGES:
                break
        seconds = time.perf_counter() - start
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")[:-1]
    for line in rest:
        offset, number = line.split()
        acknowledged[int(offset)] = int(number)
    return acknowledged, seconds


def write_until_killed(root: str) -> None:
    """Append messages and acknowledge each on standard output."""
    rng, unique = random.Random(1), UniqueIdGenerator("127.0.0.1")
    store = MessageStore(MessageStoreConfig(store_path_root_dir=root))
    store.load()
    store.start()
    number = 0
    while True:
        lines = []
        for _ in range(100):
            topic = rng.choice(TOPICS)
            body = json.dumps(
                {"number": number, "amount": rng.randrange(10_000), "note": "✓" * rng.randrange(40)}
            )
            properties = {"UNIQ_KEY": unique(), "KEYS": f"{topic[:-1]}-{number}", "TAGS": rng.choice("ABC")}
            result = store.put_message(
                InnerMessage.of(topic, number % 4, body.encode(), encode_properties(properties))
            )
            if topic == "orders":
                lines.append(f"{result.physical_offset} {number}\n")
            else:
                lines.append(f"{result.physical_offset} {sys.maxsize}\n")
            number += 1
        os.write(1, "".join(lines).encode())


def tear(root: Path, offset: int) -> None:
    """Zero the second half of the record at an offset, and everything behind it."""
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(offset)
        size = int.from_bytes(file.read(4), "big")
        file.seek(offset + size // 2)
        file.write(bytes(64 * 1024))


if __name__ == "__main__":
    main()

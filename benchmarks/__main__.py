"""python -m benchmarks [NAME…] [--json]: run the benchmarks, all or those named."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sys

from benchmarks.common import Row, print_rows

NAMES = ["append", "flush", "read", "scan", "recovery", "memory"]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    rows: list[Row] = []
    for name in arguments.names or NAMES:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    if arguments.json:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
        print(json.dumps({"machine": machine, "rows": [dataclasses.asdict(row) for row in rows]}, indent=2))
    else:
        print_rows(rows)


if __name__ == "__main__":
    main()

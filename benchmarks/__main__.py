"""python -m benchmarks [NAME…] [--json]: run the benchmarks, all or those named.

`brokers`, `clients`, `replication` and `services`, which compare with Java's, take options when alone:
python -m benchmarks brokers --help
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sys
from typing import Any

from benchmarks import brokers, clients, replication, services
from benchmarks.broker_processes import CannotRunError
from benchmarks.common import Row, print_rows

NAMES = ["append", "flush", "read", "scan", "recovery", "memory", "sql_filter", "pipeline"]
COMPARISONS = {
    "brokers": brokers.main,
    "clients": clients.main,
    "replication": replication.main,
    "services": services.main,
}
ALL_NAMES = [*NAMES, *COMPARISONS]
INTERRUPTED = 130


def main() -> int:
    """Run and print; the exit status."""
    try:
        if sys.argv[1:2] and sys.argv[1] in COMPARISONS:
            return COMPARISONS[sys.argv[1]](sys.argv[2:])
        return _main()
    except CannotRunError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED


def _main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(ALL_NAMES)}; all by default"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(ALL_NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(ALL_NAMES)}")
    names = arguments.names or ALL_NAMES
    rows: list[Row] = []
    for name in names:
        if name not in COMPARISONS:
            print(f"{name} …", file=sys.stderr, flush=True)
            rows += importlib.import_module(f"benchmarks.{name}").run()
    if not arguments.json:
        print_rows(rows)
        statuses = [compare([]) for name, compare in COMPARISONS.items() if name in names]
        return max(statuses, default=0)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    document: dict[str, Any] = {"machine": machine, "rows": [dataclasses.asdict(row) for row in rows]}
    failed = False
    if "brokers" in names:
        options = brokers.default_options()
        results = brokers.run(options)
        document["brokers"] = brokers.as_json(options, results, brokers.all_lines(options, results))
        failed = bool(results.failures)
    if "clients" in names:
        document["clients"] = clients.run(clients.parse([]))
    if "services" in names:
        document["services"] = services.run(services.parse([]))
    print(json.dumps(document, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

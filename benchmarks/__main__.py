"""python -m benchmarks [NAME…]: run the benchmarks, all or those named, and write results/ with a report.

Each benchmark leaves results/NAME.json; the report, results/report.html, shows whatever is there, so that one
benchmark can be run again alone. `report` makes the report only. The comparisons with Java's take options
when they are alone, print their table and write nothing: python -m benchmarks brokers --help
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.beside_java import (
    brokers,
    clients,
    crash,
    growth,
    pops,
    profiles,
    replication,
    scale,
    services,
)
from benchmarks.beside_java.broker_processes import CannotRunError
from benchmarks.beside_java.figures import machine
from benchmarks.common import Row, print_rows

NAMES = ["append", "flush", "read", "scan", "recovery", "memory", "sql_filter", "pipeline"]
COMPARISONS: dict[str, Any] = {
    "brokers": brokers,
    "services": services,
    "pops": pops,
    "replication": replication,
    "clients": clients,
    "crash": crash,
    "growth": growth,
    "scale": scale,
    "profiles": profiles,
}
ALL_NAMES = [*NAMES, *COMPARISONS]
RESULTS = Path("results")
INTERRUPTED = 130


def main() -> int:
    """Run and print; the exit status."""
    try:
        if len(sys.argv) > 2 and sys.argv[1] in COMPARISONS and sys.argv[2].startswith("-"):
            return int(COMPARISONS[sys.argv[1]].main(sys.argv[2:]))
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
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(ALL_NAMES)}, report; all by default"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where they go (%(default)s)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {*ALL_NAMES, "report"}
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(ALL_NAMES)}")
    arguments.results.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in [name for name in ALL_NAMES if name in (arguments.names or ALL_NAMES)]:
        print(f"── {name}", file=sys.stderr, flush=True)
        try:
            found = COMPARISONS[name].document([]) if name in COMPARISONS else _rows(name)
        except CannotRunError as error:
            failed = True
            print(f"{name}: {error}", file=sys.stderr)
            continue
        found.setdefault("machine", machine())
        text = json.dumps(found, indent=2)
        (arguments.results / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(report.write(arguments.results))
    return 1 if failed else 0


def _rows(name: str) -> dict[str, Any]:
    rows: list[Row] = importlib.import_module(f"benchmarks.{name}").run()
    print_rows(rows)
    return {"rows": [dataclasses.asdict(row) for row in rows]}


if __name__ == "__main__":
    sys.exit(main())

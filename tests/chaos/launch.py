"""A server of Kourou in a process whose clock and limits can be others than the machine's.

    python -m chaos.launch broker -c broker.conf

CHAOS_CLOCK names a file of eight bytes: milliseconds that are added to the time of day, from the moment they
are written. The monotonic clock stays, as on a machine whose date is set. CHAOS_OPEN_FILES is how many files
and sockets the process may have open.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import time

_REAL_NS = time.time_ns


def shift_clock(path: str) -> None:
    """Have the time of day shifted by what a file says."""
    with open(path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)

    def shifted_ns() -> int:
        return _REAL_NS() + int.from_bytes(shared[:8], "big", signed=True) * 1_000_000

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9


def main() -> None:
    """Set what is to be set, and be that server."""
    clock, most = os.environ.get("CHAOS_CLOCK"), os.environ.get("CHAOS_OPEN_FILES")
    if clock:
        shift_clock(clock)
    if most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), int(most)))
    from kourou.cli import main as kourou

    sys.argv[0] = "kourou"
    kourou()


if __name__ == "__main__":
    main()

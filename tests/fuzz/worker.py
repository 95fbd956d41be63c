"""Parts of the work, each for a process that has room for it."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import NamedTuple

from fuzz.frames import FrameFuzz
from fuzz.poison import PoisonFuzz
from fuzz.stores import StoreFuzz
from fuzz.texts import TextFuzz
from fuzz.watch import Findings, MemoryWatch, resident_bytes

MEMORY_BYTES = 8 * 1024**3  # of addresses: what asks for more fails, and is found
STEPS = {  # in one go
    "frames": 10_000, "stores": 1000, "files": 2500, "expressions": 50_000, "messages": 2000,
}  # fmt: skip


class Task(NamedTuple):
    """A part of the work; its seed is its own."""

    kind: str
    size: int
    seed: int


_memory: list[MemoryWatch] = []  # of this process, from its first task on


def tasks(counts: dict[str, int], seed: int) -> list[Task]:
    """The work in parts, of all kinds in turn."""
    rest = dict(counts)
    found: list[Task] = []
    while any(rest.values()):
        for kind, left in rest.items():
            if left:
                count = min(left, STEPS[kind])
                rest[kind] -= count
                found.append(Task(kind, count, seed * 1000 + len(found)))
    return found


def run(task: Task) -> tuple[Findings, int]:
    """Do a part; what was found, and the memory of the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    findings = Findings()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        directory = Path(name)
        if task.kind == "frames":
            FrameFuzz(task.seed, findings).run(task.size, directory)
        elif task.kind == "stores":
            StoreFuzz(task.seed, findings).run(task.size, directory)
        elif task.kind == "files":
            TextFuzz(task.seed, findings).run_files(task.size, directory)
        elif task.kind == "messages":
            PoisonFuzz(task.seed, findings).run(task.size)
        else:
            TextFuzz(task.seed, findings).run_expressions(task.size)
    if not _memory:
        _memory.append(MemoryWatch(findings))
    _memory[0].findings = findings
    _memory[0].look()
    return findings, resident_bytes()

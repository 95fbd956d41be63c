"""What must not happen while something is fuzzed: errors that nobody foresaw, hangs, memory without end."""

from __future__ import annotations

import base64
import logging
import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_SHOWN_BYTES = 3000
GROWTH_BYTES = 256 * 1024 * 1024


class HangError(BaseException):
    """An input took longer than any may. Not an Exception: nobody on the way may take it for an answer."""


@dataclass
class Findings:
    """What was tried how often, and what went wrong with which input."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, data: bytes = b"") -> None:
        """Note something that must not be; `data` is what it happened with."""
        shown = base64.b64encode(data[:MOST_SHOWN_BYTES]).decode()
        self.wrong.append(f"{what}\n    input: {shown}" if data else what)

    def add_error(self, what: str, error: BaseException, data: bytes = b"") -> None:
        """Note an error that nobody foresaw, with where it came from."""
        trace = "".join(traceback.format_exception(error)[-4:])
        self.add(f"{what}: {type(error).__name__}: {error}\n{trace}", data)

    def report(self) -> str:
        """All of it, for a person."""
        lines = [f"{count:>12,}  {what}" for what, count in sorted(self.counts.items())]
        return "\n".join([*lines, f"{len(self.wrong):>12,}  wrong", *self.wrong[:20]])


class LogWatch(logging.Handler):
    """Errors that are logged with a traceback were not foreseen."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.WARNING)
        self._findings = findings
        self.input = b""  # what is being tried

    def emit(self, record: logging.LogRecord) -> None:
        self._findings.counts["warnings and errors in the log"] += 1
        if record.exc_info and record.exc_info[1] is not None:
            self._findings.add_error(record.getMessage(), record.exc_info[1], self.input)


@contextmanager
def watched_log(findings: Findings) -> Iterator[LogWatch]:
    """Have Kourou's log looked at, and not printed."""
    logger = logging.getLogger("kourou")
    handler, level, propagates = LogWatch(findings), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


@contextmanager
def no_hang(seconds: float) -> Iterator[None]:
    """HangError in what takes longer. For the main thread; cheap enough for a batch, not for each input."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class MemoryWatch:
    """Memory may be taken once, for caches, and not again and again."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._first = 0

    def look(self) -> None:
        """Compare with the first look."""
        now = resident_bytes()
        self._first = self._first or now
        if now - self._first > GROWTH_BYTES:
            self.findings.add(f"the memory has grown by {now - self._first >> 20} MiB")
            self._first = now


def resident_bytes(pid: int | str = "self") -> int:
    """The memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES

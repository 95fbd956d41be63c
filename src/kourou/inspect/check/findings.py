"""What a check finds: faults and warnings, each with its file and its place in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from kourou.inspect.directory import StoreDirectory

# Findings of one kind in one file that are reported one by one; the others are only counted.
DEFAULT_LIMIT = 100


class Severity(Enum):
    """Whether it is wrong, or only worth knowing."""

    FAULT = "fault"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found."""

    severity: Severity
    kind: str
    file: str  # from the store's root on
    position: int  # byte in the file, -1 where it is about the file as a whole
    message: str

    def __str__(self) -> str:
        place = self.file if self.position < 0 else f"{self.file} at byte {self.position}"
        return f"{place}: {self.message}"


@dataclass
class Findings:
    """All findings of a check, told one by one to `on_finding` and counted."""

    store: StoreDirectory
    on_finding: Callable[[Finding], None] | None = None
    limit: int = DEFAULT_LIMIT  # 0 for no limit
    told: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[Severity, str, str]] = field(default_factory=Counter)

    def add(
        self, severity: Severity, kind: str, path: str, position: int, message: str, *, count: int = 1
    ) -> None:
        """Add a finding; one message may stand for `count` findings of its kind in the same file."""
        file = self.store.relative(path)
        key = (severity, kind, file)
        self.counts[key] += count
        if not self.limit or self.counts[key] - count < self.limit:
            self._tell(Finding(severity, kind, file, position, message))

    def fault(self, kind: str, path: str, position: int, message: str, *, count: int = 1) -> None:
        """Take a fault."""
        self.add(Severity.FAULT, kind, path, position, message, count=count)

    def warning(self, kind: str, path: str, position: int, message: str, *, count: int = 1) -> None:
        """Take a warning."""
        self.add(Severity.WARNING, kind, path, position, message, count=count)

    def _tell(self, finding: Finding) -> None:
        self.told.append(finding)
        if self.on_finding is not None:
            self.on_finding(finding)

    def close(self) -> None:
        """Report the number of findings that were not reported one by one."""
        for (severity, kind, file), count in self.counts.items():
            if self.limit and count > self.limit:
                rest = f"{count - self.limit} more findings of the kind {kind} in this file"
                self._tell(Finding(severity, kind, file, -1, rest))

    def total(self, severity: Severity) -> int:
        """How many of them were found."""
        return sum(count for key, count in self.counts.items() if key[0] is severity)

"""What tests need beyond Python: each tool is a mark. Where it is missing its tests are skipped, and one line
at the end says how many, and how to get it."""

from __future__ import annotations

import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from support.ci import skip_reason

TESTS = Path(__file__).resolve().parent.parent
JARS = TESTS.parent / "interop" / "target" / "lib" / ".complete"
LIBRARIES = "make setup"
OF_DIRECTORIES = {"interop": "interop", "spark": "spark"}
OF_FIXTURES = {"spark": "spark", "browser": "browser"}


class Tool(NamedTuple):
    """What is missing where `is_here` says no, and what brings it."""

    name: str
    is_here: Callable[[], bool]
    install: str


def has(*programs: str) -> bool:
    """Whether all of these are on PATH."""
    return all(map(shutil.which, programs))


def has_spark() -> bool:
    """Whether there is a Spark, and a Java for it."""
    if find_spec("pyspark") is None:
        return False
    from kourou.spark.java import java_home

    return java_home() is not None


def chromium() -> str | None:
    """The path of a Chromium."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


TOOLS = {
    "interop": Tool("JDK 17 and Maven", lambda: has("java", "javac") and (has("mvn") or has_jars()),
                    "apt-get install openjdk-17-jdk-headless maven"),
    "spark": Tool("Spark with Java 17", has_spark, LIBRARIES),
    "browser": Tool("Chromium with Playwright", lambda: bool(chromium() and find_spec("playwright")),
                    f"apt-get install chromium; {LIBRARIES}"),
    "go": Tool("Go", lambda: has("go"), "apt-get install golang-go"),
    "node": Tool("Node.js with npm", lambda: has("node", "npm"), "apt-get install nodejs npm"),
    "openssl": Tool("openssl", lambda: has("openssl"), "apt-get install openssl"),
}  # fmt: skip


def has_jars() -> bool:
    """Whether the jars of RocketMQ are here already."""
    return JARS.exists() or "ROCKETMQ_LIB" in os.environ


@functools.cache
def what_is_missing(mark: str) -> str | None:
    """The reason for which tests with a mark are skipped; None if their tool is here."""
    tool = TOOLS[mark]
    return None if tool.is_here() else f"no {tool.name}; {tool.install}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in marks_of(item):
            item.add_marker(mark)
        for mark in TOOLS:
            if item.get_closest_marker(mark) and (reason := what_is_missing(mark)):
                item.add_marker(pytest.mark.skip(reason=reason))
                break


def marks_of(item: pytest.Item) -> list[str]:
    """The marks that a test has by its place, or by the fixtures that it takes."""
    room = item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else ""
    found = [OF_DIRECTORIES[room]] if room in OF_DIRECTORIES else []
    return found + [OF_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in OF_FIXTURES]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(map(skip_reason, terminalreporter.stats.get("skipped", [])))
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} test{'s' * (count > 1)} skipped: {reason}", yellow=True)

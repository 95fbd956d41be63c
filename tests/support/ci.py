"""The rule for build machines: under CI=true a skipped test fails the run.

A test may still be skipped for something that no build machine can have; its reason then starts with
"needs:" and names it.
"""

from __future__ import annotations

import os

import pytest

EXCUSE = "needs:"
UNEXCUSED = pytest.StashKey[list[str]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:  # only the process that reports has one
        return
    unexcused = [
        f"{report.nodeid}: {reason}"
        for report in reporter.stats.get("skipped", [])
        if not (reason := skip_reason(report)).startswith(EXCUSE)
    ]
    session.config.stash[UNEXCUSED] = unexcused
    if unexcused:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    unexcused = config.stash.get(UNEXCUSED, [])
    if not unexcused:
        return
    terminalreporter.section("skipped under CI=true: the run fails", red=True)
    for line in unexcused:
        terminalreporter.line(line)


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    # longrepr of a skip is (path, line, "Skipped: <reason>")
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")

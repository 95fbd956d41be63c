"""The command `kourou`: what it lists is there, and says how it is used."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kourou.cli import app

GROUPS = [group.typer_instance.info.name for group in app.registered_groups if group.typer_instance]
NAMES = [*(command.name for command in app.registered_commands), *GROUPS]


def kourou(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kourou", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_alone_it_lists_its_commands() -> None:
    assert "namesrv" in NAMES
    assert "store" in NAMES
    for done in (kourou(), kourou("--help")):
        assert [name for name in NAMES if f" {name} " not in done.stdout + done.stderr] == []


@pytest.mark.parametrize("name", ["namesrv", "broker", "store", "admin", "spark"])
def test_a_command_explains_itself(name: str) -> None:
    done = kourou(name, "--help")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"Usage: .*kourou {name}", done.stdout)


def test_mqadmin_lists_its_verbs() -> None:
    assert kourou("mqadmin", "--help").stdout == kourou("mqadmin").stdout == kourou("mqadmin", "help").stdout
    assert "updateTopic" in kourou("mqadmin").stdout


def test_a_command_that_is_not_there_is_refused() -> None:
    done = kourou("nonsense")
    assert done.returncode == 2
    assert "No such command 'nonsense'" in done.stderr

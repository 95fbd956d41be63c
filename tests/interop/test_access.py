"""Users, access control lists and signatures by the real Java client and its hook: on Kourou as on Java."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.java import RUN, Java
from support.sites.guarded import guarded_broker
from support.sites.servers import java_environment

STEPS = (
    "users", "topics", "signatures", "nothing is allowed", "send", "deny", "addresses", "consume",
    "a super user",
)  # fmt: skip
TIMEOUT_S = 240


@pytest.fixture(scope="module", params=["kourou", "java"])
def report(
    request: pytest.FixtureRequest, java: Java, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What did not fit, by step."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    with guarded_broker(request.param, directory) as (name_server, broker):
        done = subprocess.run(
            [RUN, "Access", name_server.address, broker.address], capture_output=True, encoding="utf-8",
            errors="replace", env=java_environment(directory), timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("step", STEPS)
def test_what_java_asks_for(report, step):
    assert report[step] == []


def test_everything_was_tried(report):
    assert set(report) == set(STEPS)

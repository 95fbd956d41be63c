"""The services of a broker by the real Java client, and again after the store went to the other broker.

The same program runs against Kourou's broker and Java's, so that what it asks for is what Java does.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.java import RUN, Java
from support.servers import (
    Server,
    java_broker,
    java_environment,
    kourou_broker,
    kourou_name_server,
    report_of,
)

BROKERS = {"kourou": kourou_broker, "java": java_broker}
MAX_CHECKS = 15
CONFIG = {
    "messageDelayLevel": "1s 5s 30s 1m 2m",
    "recallMessageEnable": "true",
    "transactionCheckInterval": 2000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": MAX_CHECKS,
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mappedFileSizeCommitLog": 1 << 20,
    "cleanResourceInterval": 1000,
    "maxHashSlotNum": 50,  # several index files
    "maxIndexNum": 100,
}
TIMEOUT_S = 300
STEPS = [
    ("before", "lock"),
    ("before", "lock closed"),
    ("before", "lock expired"),
    ("before", "recall"),
    ("before", "recalled"),
    ("before", "checks"),
    ("before", "checks given up"),
    ("before", "lmq"),
    ("before", "dlq"),
    ("before", "query"),
    ("before", "query found"),
    ("before", "consume from"),
    ("before", "broadcast"),
    ("before", "retry pending"),
    ("before", "transaction open"),
    ("after", "lmq"),
    ("after", "dlq"),
    ("after", "query found"),
    ("after", "broadcast"),
    ("after", "retry pending"),
    ("after", "transaction open"),
    ("after", "consume from"),
]


@pytest.fixture(scope="module", params=["kourou-java", "java-kourou"])
def reports(
    request: pytest.FixtureRequest, java: Java, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What did not fit, by part and step; `index files` is how many of them there were."""
    first, second = request.param.split("-")
    directory = tmp_path_factory.mktemp(first)
    found: dict[str, Any] = {}
    with kourou_name_server(directory) as name_server:
        for part, broker in (("before", first), ("after", second)):
            with BROKERS[broker](directory, name_server.port, CONFIG):
                found[part] = _services(directory, name_server, part, broker)
                files = len(list((directory / "store" / "index").iterdir()))
                found.setdefault("index files", files)  # the last step deletes some
    return found


def _services(directory: Path, name_server: Server, part: str, broker: str) -> dict[str, Any]:
    done = subprocess.run(
        [RUN, "Services", part, "--namesrv", name_server.address, "--state", directory / "state.json",
         "--broker", broker, "--checks", str(MAX_CHECKS)],
        capture_output=True, encoding="utf-8", errors="replace", env=java_environment(directory),
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return report_of(done)


@pytest.mark.parametrize(("part", "step"), STEPS, ids=[f"{part}-{step}" for part, step in STEPS])
def test_a_service(reports: dict[str, Any], part: str, step: str) -> None:
    assert reports[part][step] == []


def test_everything_was_tried(reports: dict[str, Any]) -> None:
    assert {(part, step) for part in ("before", "after") for step in reports[part]} == set(STEPS)
    assert reports["index files"] > 2

"""The services of a broker by the real Java client, and again after the store went to the other broker.

The same program runs against Kourou's broker and Java's, so that what it asks for is what Java does.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.java import RUN
from support.sites.servers import (
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


# One test for each direction: the steps of a program that takes minutes are not worth another run of it.
@pytest.mark.parametrize("direction", ["kourou-java", "java-kourou"])
def test_the_services_before_and_after_a_handover(direction, java, tmp_path):
    first, second = direction.split("-")
    found: dict[str, Any] = {}
    with kourou_name_server(tmp_path) as name_server:
        for part, broker in (("before", first), ("after", second)):
            with BROKERS[broker](tmp_path, name_server.port, CONFIG):
                found[part] = _services(tmp_path, name_server, part, broker)
                if part == "before":  # the last step deletes some
                    assert len(list((tmp_path / "store" / "index").iterdir())) > 2
    assert {(part, step) for part, steps in found.items() for step in steps} == set(STEPS)
    wrong = {(part, step): what for part, steps in found.items() for step, what in steps.items() if what}
    assert wrong == {}


def _services(directory: Path, name_server: Server, part: str, broker: str) -> dict[str, Any]:
    done = subprocess.run(
        [RUN, "Services", part, "--namesrv", name_server.address, "--state", directory / "state.json",
         "--broker", broker, "--checks", str(MAX_CHECKS)],
        capture_output=True, encoding="utf-8", errors="replace", env=java_environment(directory),
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return report_of(done)

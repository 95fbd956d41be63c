"""Users, access control lists and signatures by the real Java client and its hook: on Kourou as on Java."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.java import RUN, Java
from support.servers import java_broker, java_environment, kourou_broker, kourou_name_server

BROKERS = {"kourou": kourou_broker, "java": java_broker}
KNOWN = "org.apache.rocketmq.auth.authentication.provider"
ALLOWED = "org.apache.rocketmq.auth.authorization.provider"
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
    config = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProvider": f"{KNOWN}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{KNOWN}.LocalAuthenticationMetadataProvider",
        "authorizationProvider": f"{ALLOWED}.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{ALLOWED}.LocalAuthorizationMetadataProvider",
        "initAuthenticationUser": '{"username":"admin","password":"12345678"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"admin","secretKey":"12345678"}',
        "authConfigPath": directory / "auth",
    }  # fmt: skip
    with (
        kourou_name_server(directory) as name_server,
        BROKERS[request.param](directory, name_server.port, config) as broker,
    ):
        done = subprocess.run(
            [RUN, "Access", name_server.address, broker.address], capture_output=True, encoding="utf-8",
            errors="replace", env=java_environment(directory), timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("step", STEPS)
def test_what_java_asks_for(report: dict[str, Any], step: str) -> None:
    assert report[step] == []


def test_everything_was_tried(report: dict[str, Any]) -> None:
    assert set(report) == set(STEPS)

"""`kourou doctor`: what it finds on this machine, and that a cluster answers."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kourou.admin.tools import doctor
from kourou.admin.tools.doctor import FAIL, OK, WARN, Check, examine
from support.scenes import Scene


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_everything_is_looked_at(tmp_path: Path) -> None:
    checks = by_name(examine(tmp_path / "not" / "there"))
    assert {"python", "kourou", "java", "open files", "disk", "memory", "clock", "port 9876"} <= checks.keys()
    assert {check.state for check in checks.values()} <= {OK, WARN, FAIL}
    assert str(tmp_path) in checks["disk"].found
    for check in checks.values():
        assert check.advice or check.state == OK, check


def test_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {port: "broker"})
        assert by_name(examine(tmp_path))[f"port {port}"].state == WARN


def test_a_full_disk_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_FULL", -1.0)
    check = by_name(examine(tmp_path))["disk"]
    assert check.state == FAIL
    assert check.advice


def test_a_cluster_answers(scene: Scene, tmp_path: Path) -> None:
    result = scene.run("doctor", "-d", str(tmp_path), "--json")
    checks = [json.loads(line) for line in result.stdout.splitlines()]
    failed = [one for one in checks if one["state"] == FAIL]
    assert result.exit_code == (1 if failed else 0)
    found = {one["name"]: one for one in checks}
    assert found["name server"]["state"] == OK
    assert "V5_5_0" in found["broker broker-b 0"]["found"]
    assert "name server" in scene.run("doctor", "-d", str(tmp_path)).stdout


def test_no_cluster_is_no_failure(scene: Scene, tmp_path: Path) -> None:
    printed = scene.run("doctor", "-d", str(tmp_path), "-n", "127.0.0.1:1", "--json").stdout
    (found,) = [one for one in map(json.loads, printed.splitlines()) if one["name"] == "name server"]
    assert found["state"] == WARN
    assert "kourou up" in found["advice"]

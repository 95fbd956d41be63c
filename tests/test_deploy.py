"""deploy/: what its files say is run here, with other paths and ports. It comes up, is well and ends well."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from kourou.auth.config import KEYS as AUTH_KEYS
from kourou.broker import BrokerConfig
from kourou.java_config import java_keys
from kourou.namesrv import NameServerConfig
from kourou.properties_file import parse_properties
from kourou.remoting.tls import TlsConfig
from kourou.store import MessageStoreConfig
from support.recorded.wire import free_ports
from support.sites.servers import START_TIMEOUT_S, stop

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
KOUROU = [sys.executable, "-m", "kourou"]
PORTS = ("9876", "10911", "10912", "10921", "10922", "5556", "5557", "5558")
OF_BOTH = {*AUTH_KEYS, *java_keys(TlsConfig), "haTlsEnable", "haPlaintextAllowed"}
METRICS = {"metricsExporterType", "metricsPromExporterHost", "metricsPromExporterPort"}
KNOWN = {
    "namesrv.conf": {*java_keys(NameServerConfig), *OF_BOTH, *METRICS},
    "broker.conf": {*java_keys(BrokerConfig), *java_keys(MessageStoreConfig), *OF_BOTH},
    "slave.conf": {*java_keys(BrokerConfig), *java_keys(MessageStoreConfig), *OF_BOTH},
}
HARDENED = (
    "NoNewPrivileges",
    "PrivateTmp",
    "ProtectHome",
    "ProtectSystem",
    "RestrictSUIDSGID",
    "LimitNOFILE",
)


class Elsewhere:
    """Another place for what lies in /etc, /var and /opt, and other ports: names and numbers are replaced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports: dict[str, str] = {}
        while len(self._ports) < len(PORTS):
            port = str(free_ports(-2, 0))  # a broker may listen on two
            if port not in self._ports.values():
                self._ports[PORTS[len(self._ports)]] = port
        shutil.copytree(DEPLOY / "conf", directory / "etc" / "kourou")
        for file in (directory / "etc" / "kourou").iterdir():
            file.write_text(
                self.text(file.read_text())
                + "brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n" * (file.name != "namesrv.conf")
            )

    def text(self, text: str) -> str:
        text = re.sub(r"\b(" + "|".join(PORTS) + r")\b", lambda match: self._ports[match[1]], text)
        return re.sub(r"(?<![\w.])/(etc|var)/", rf"{self.directory}/\1/", text)

    def words(self, words: list[str]) -> list[str]:
        return [self.text(word) for word in words]

    def port(self, number: int) -> str:
        return self._ports[str(number)]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A server, as its command says; it must end well."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})}, text=True
    ) as process:
        try:
            yield process
        finally:
            stop(process)
        assert process.returncode == 0


def wait_until(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert all(process.poll() is None for process in processes), "a server ended"
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.1)


def is_well(port: str) -> bool:
    """What the health check of the image says, run as the image runs it."""
    check = [sys.executable, str(DEPLOY / "docker" / "health.py"), f"http://127.0.0.1:{port}/ready"]
    return subprocess.run(check, capture_output=True, timeout=30, check=False).returncode == 0


def kourou(namesrv_port: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NAMESRV_ADDR": f"127.0.0.1:{namesrv_port}"}
    return subprocess.run(
        [*KOUROU, *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def assert_is_a_pair(namesrv_port: str) -> None:
    """Master and slave are there; what is sent to the master, which waits for its slave, can be read."""
    listed = kourou(namesrv_port, "admin", "cluster", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert len(listed.stdout.splitlines()) == 2
    assert kourou(namesrv_port, "admin", "topic", "create", "orders", "-c", "DefaultCluster").returncode == 0
    wait_until(lambda: kourou(namesrv_port, "send", "orders", "one").returncode == 0)
    tail = kourou(namesrv_port, "tail", "orders", "--from", "first", "--count", "1")
    assert "one" in tail.stdout, tail.stderr
    status = kourou(namesrv_port, "admin", "ha", "status", "--json")
    assert json.loads(status.stdout.splitlines()[0]), status.stderr


# Configuration


@pytest.mark.parametrize("name", KNOWN)
def test_every_key_is_one_that_the_server_knows(name: str) -> None:
    text = (DEPLOY / "conf" / name).read_text()
    commented = re.sub(r"(?m)^#(?=[\w.]+=)", "", text)  # examples count as well
    assert set(parse_properties(commented)) - KNOWN[name] == set()
    (NameServerConfig if name == "namesrv.conf" else BrokerConfig).load(DEPLOY / "conf" / name)
    assert "…" not in text.replace('"…"', "")


# systemd


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # case counts
    parser.read(DEPLOY / "systemd" / name)
    return parser


UNITS = ("kourou-namesrv.service", "kourou-broker@.service")


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened_and_well_formed(name: str, tmp_path: Path) -> None:
    service = unit(name)["Service"]
    assert service["User"] not in ("", "root")
    assert service["Restart"] == "on-failure"
    assert [key for key in HARDENED if key not in service] == []
    assert service["ReadWritePaths"] == "/etc/kourou"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    copy = tmp_path / name.replace("@.", "@broker.")
    copy.write_text((DEPLOY / "systemd" / name).read_text().replace("/opt/kourou/bin/kourou", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_run_a_pair(elsewhere: Elsewhere) -> None:
    def command(name: str, instance: str = "") -> list[str]:
        text = unit(name)["Service"]["ExecStart"].replace("%i", instance)
        program, *arguments = shlex.split(text)
        assert program == "/opt/kourou/bin/kourou"
        return [*KOUROU, *elsewhere.words(arguments)]

    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(command(name, instance)))
            for name, instance in ((UNITS[0], ""), (UNITS[1], "broker"), (UNITS[1], "slave"))
        ]
        for port in (5556, 5557, 5558):
            wait_until(lambda port=port: is_well(elsewhere.port(port)), *servers)  # type: ignore[misc]
        assert_is_a_pair(elsewhere.port(9876))
    var = elsewhere.directory / "var"
    assert {file.name for file in (var / "log" / "kourou").iterdir()} == {
        "namesrv.log",
        "broker.log",
        "slave.log",
    }
    for name in ("broker", "slave"):
        assert (var / "lib" / "kourou" / name / "commitlog").is_dir()
        assert not (var / "lib" / "kourou" / name / "abort").exists()


# Containers


def instructions() -> dict[str, str]:
    """The instructions of the last stage; of several of a kind the last."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    stage = text[text.rindex("\nFROM ") :]
    return dict(line.split(None, 1) for line in stage.splitlines() if line and not line.startswith("#"))


def test_the_image_runs_what_it_says_without_rights(elsewhere: Elsewhere) -> None:
    found = instructions()
    assert found["USER"] == "kourou"
    command = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    assert command[0] == "kourou"
    check = json.loads(found["HEALTHCHECK"].partition(" CMD ")[2])
    assert check[:2] == ["python", "/opt/kourou/health.py"]
    assert check[2].endswith(":5557/ready")
    with running([*KOUROU, *elsewhere.words(command[1:])]) as server:
        wait_until(lambda: is_well(elsewhere.port(5557)), server)
    assert not is_well(elsewhere.port(5557))


def test_what_the_image_copies_is_there() -> None:
    root = DEPLOY.parent
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    kept = tuple(line[1:] for line in ignored if line.startswith("!"))
    for line in (DEPLOY / "docker" / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from=" not in line:
            for name in [word for word in line.split()[1:-1] if not word.startswith("--")]:
                assert (root / name).exists(), name
                assert name.rstrip("/").startswith(kept), f"{name} is left out by the dockerignore"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    return found


def test_services_of_the_composition_fit_together() -> None:
    found = compose()
    for name, service in found["services"].items():
        assert service["volumes"] == [f"{name}:/var/lib/kourou"]
        assert name in found["volumes"]
        for published in service["ports"]:
            outside, inside = published.split(":")
            assert outside == inside, "clients are told the port that the broker listens on"
        for config in service.get("configs", ()):
            properties = parse_properties(found["configs"][config["source"]]["content"])
            assert set(properties) - KNOWN["broker.conf"] == set()
            assert properties["brokerIP1"].startswith("${KOUROU_HOST:?")
            assert service["ports"] == [f"{properties['listenPort']}:{properties['listenPort']}"]
            assert properties["brokerIP2"] == name
            assert properties["namesrvAddr"] == "namesrv:9876"
    assert found["services"]["slave"]["depends_on"]["master"] == {"condition": "service_healthy"}


def test_the_composition_runs_a_pair(elsewhere: Elsewhere) -> None:
    """Each container is a process here: names of hosts are this one, and metrics have ports of their own."""
    found, metrics = compose(), {"namesrv": 5556, "master": 5557, "slave": 5558}
    with ExitStack() as stack:
        servers = []
        for name in ("namesrv", "master", "slave"):
            service = found["services"][name]
            for config in service.get("configs", ()):
                content = found["configs"][config["source"]]["content"]
                content = re.sub(r"\$\{KOUROU_HOST:.*\}", "127.0.0.1", content)
                content = re.sub(r"(?m)(?<==)(namesrv|master|slave)(?=:|$)", "127.0.0.1", content)
                Path(elsewhere.text(config["target"])).write_text(elsewhere.text(content))
            words = [word.replace("5557", str(metrics[name])) for word in service["command"]]
            words = [word.replace("/var/lib/kourou", f"/var/lib/kourou/{name}") for word in words]
            home = {"HOME": str(elsewhere.directory / name)}
            servers.append(stack.enter_context(running([*KOUROU, *elsewhere.words(words)], home)))
            wait_until(lambda name=name: is_well(elsewhere.port(metrics[name])), *servers)  # type: ignore[misc]
        assert_is_a_pair(elsewhere.port(9876))
    assert (elsewhere.directory / "var" / "lib" / "kourou" / "slave" / "store" / "commitlog").is_dir()

"""TLS with real peers: Java's client, its hook that signs, and Java's broker.

That Java's client proves who it is at servers that enforce TLS is in tests/interop/test_broker.py.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kourou.cli import app
from kourou.client import Message
from kourou.errors import KourouError
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig
from kourou.sync import Consumer, Producer, ReceivedMessage
from support.java import RUN, Java, java
from support.recorded.wire import free_ports
from support.sites.certificates import certificates, needs_openssl
from support.sites.clients import LONG_S
from support.sites.guarded import ADMIN, SECRET
from support.sites.servers import (
    HOST,
    interop,
    java_broker,
    java_environment,
    kourou,
    kourou_name_server,
    run_interop,
    write_broker_conf,
)

pytestmark = [needs_openssl, pytest.mark.interop]

TIMEOUT_S = 240


class Properties:
    """The files of a server in a mode, and of a client that verifies it."""

    def __init__(self, directory: Path, mode: str) -> None:
        made = certificates()
        self.client, self.server = directory / "client.properties", directory / "server.properties"
        self.client.write_text(
            "tls.test.mode.enable=false\ntls.client.authServer=true\n"
            f"tls.client.trustCertPath={made.authority.cert}\n"
        )
        self.server.write_text(
            f"tls.server.mode={mode}\ntls.server.certPath={made.server.cert}\n"
            f"tls.server.keyPath={made.server.key}\n" + self.client.read_text()
        )

    @property
    def java_client(self) -> str:
        return f"-Dtls.enable=true -Dtls.config.file={self.client}"


@pytest.fixture(scope="module")
def real_java() -> Java:
    return java()


def ours(stack: ExitStack, directory: Path, files: Properties, more: dict[str, Any]) -> tuple[str, str]:
    """A name server and a broker of ours that speak TLS as the files say; their addresses."""
    port = free_ports(0)
    name_server = stack.enter_context(
        kourou("namesrv", "--port", str(port), "--host", HOST, "--tls", str(files.server))
    )
    conf = write_broker_conf(directory, port, {"tls.config.file": files.server, **more})
    return name_server.address, stack.enter_context(kourou("broker", "-c", str(conf))).address


def test_javas_hook_signs_in_tls_too(real_java, tmp_path):
    """The first half of the program of tests/interop/test_access.py, at servers that enforce TLS."""
    files = Properties(tmp_path, "enforcing")
    guarded = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": f'{{"username":"{ADMIN}","password":"{SECRET}"}}',
        "innerClientAuthenticationCredentials": f'{{"accessKey":"{ADMIN}","secretKey":"{SECRET}"}}',
    }
    with ExitStack() as stack:
        address, broker = ours(stack, tmp_path, files, guarded)
        done = subprocess.run(
            [RUN, "Access", address, broker, "send"], capture_output=True, encoding="utf-8", errors="replace",
            env=java_environment(tmp_path, files.java_client), timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    steps = ("users", "topics", "signatures", "nothing is allowed", "send")
    assert report == {step: [] for step in steps}


def test_java_clients_in_tls_and_in_plain_text_meet_at_permissive_servers(real_java, tmp_path):
    files, sent = Properties(tmp_path, "permissive"), str(tmp_path / "sent.json")
    with ExitStack() as stack:
        address, _ = ours(stack, tmp_path, files, {})
        tls = files.java_client
        interop(tmp_path, address, "produce", "--topic", "T", "--count", "10", "--out", sent, options=tls)
        interop(tmp_path, address, "consume", "--topic", "T", "--group", "G", "--expect", sent)


@pytest.mark.parametrize("mode", [{}, {"tls.server.mode": "enforcing"}])
def test_java_clients_need_nothing_but_tls_at_servers_without_a_certificate(real_java, tmp_path, mode):
    sent, tls, port = str(tmp_path / "sent.json"), "-Dtls.enable=true", free_ports(0)
    name_server_conf = tmp_path / "namesrv.conf"
    name_server_conf.write_text("".join(f"{key}={value}\n" for key, value in mode.items()))
    with (
        kourou("namesrv", "-c", str(name_server_conf), "--port", str(port), "--host", HOST) as name_server,
        kourou("broker", "-c", str(write_broker_conf(tmp_path, port, mode))),
    ):
        address = name_server.address
        interop(tmp_path, address, "produce", "--topic", "T", "--count", "10", "--out", sent, options=tls)
        interop(tmp_path, address, "consume", "--topic", "T", "--group", "G", "--expect", sent, options=tls)


def test_a_java_client_in_tls_gets_nothing_from_a_server_without(real_java, tmp_path):
    files = Properties(tmp_path, "disabled")
    with ExitStack() as stack:
        address, _ = ours(stack, tmp_path, files, {})
        done = run_interop(tmp_path, address, "topic", "--topic", "T", options=files.java_client)
    assert done.returncode != 0


# Java's broker


@pytest.fixture(scope="module")
def java_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Properties]]:
    """The address of a name server of ours, and a broker of Java's that speaks TLS alone."""
    java()
    directory = tmp_path_factory.mktemp("java-tls")
    permissive, enforcing = directory / "namesrv", directory / "broker"
    permissive.mkdir()
    enforcing.mkdir()
    files = Properties(enforcing, "enforcing")
    name_server_tls = Properties(permissive, "permissive").server
    options = f"-Dtls.server.mode=enforcing -Dtls.enable=true -Dtls.config.file={files.server}"
    with (
        kourou("namesrv", "--port", "0", "--host", HOST, "--tls", str(name_server_tls)) as name_server,
        java_broker(directory, name_server.port, options=options),
    ):
        yield name_server.address, files


def test_javas_broker_and_our_servers_and_clients_meet_in_tls_with_nothing_configured(real_java, tmp_path):
    """Java's broker registers in TLS at our name server, and makes its own certificate for our clients."""
    tls = TlsConfig(enable=True)
    with (
        kourou_name_server(tmp_path) as name_server,
        java_broker(tmp_path, name_server.port, options="-Dtls.server.mode=enforcing"),
        Producer(name_server.address, group="P", tls=tls) as producer,
    ):
        assert producer.send(Message("T", b"encrypted")).message_id
        with (
            Producer(name_server.address, group="P", retries=0) as plain,
            pytest.raises(KourouError),
        ):
            plain.send(Message("T", b"never"))


def test_our_clients_speak_tls_to_javas_broker(java_server):
    address, files = java_server
    tls = TlsConfig.from_properties({"tls.enable": "true", "tls.config.file": str(files.client)})
    with Producer(address, group="P", tls=tls, credentials=Credentials("a", "b")) as producer:
        sent = {producer.send(Message("T", f"body-{n}".encode())).message_id for n in range(10)}
    seen: set[str] = set()
    everything = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        seen.add(message.message_id)
        if len(seen) == len(sent):
            everything.set()

    with Consumer(address, group="G", subscribe="T", consume_from="first", tls=tls) as consumer:
        consumer.handler(handle)
        assert everything.wait(LONG_S)
    assert seen == sent
    with Producer(address, group="P", retries=0) as plain, pytest.raises(KourouError):
        plain.send(Message("T", b"never"))
    wrong = TlsConfig(
        enable=True, client_auth_server=True, client_trust_cert_path=certificates().stranger.cert
    )
    with Producer(address, group="P", tls=wrong, retries=0) as strange, pytest.raises(KourouError):
        strange.send(Message("T", b"never"))


def test_our_commands_speak_tls_to_javas_broker(java_server):
    address, files = java_server

    def run(tls: str, *arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments), env={"NAMESRV_ADDR": address, "KOUROU_TLS": tls})

    assert (
        run(str(files.client), "admin", "topic", "create", "by-command", "-c", "DefaultCluster").exit_code
        == 0
    )
    assert run(str(files.client), "send", "by-command", "hello").exit_code == 0
    tail = run("true", "tail", "by-command", "--from", "first", "--count", "1")
    assert (tail.exit_code, "hello" in tail.stdout) == (0, True)
    assert run("false", "mqadmin", "brokerStatus", "-c", "DefaultCluster").exit_code == 1

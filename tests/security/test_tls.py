"""TLS of whole servers: certificates that are renewed while they run, nobody who is talked down to plain
text, and the command line."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.broker import Broker
from kourou.client import Message, Producer
from kourou.client.core import ClientCore, make_client_id
from kourou.errors import KourouError
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting import tls as tls_module
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import ClientAuth, TlsConfig, TlsMode
from kourou.store.put import InnerMessage
from support.loops import until
from support.recorded.wire import free_ports
from support.sites.broker import broker_config
from support.sites.certificates import RenewedFiles, certificates, fingerprint, needs_openssl
from support.sites.servers import HOST, kourou, kourou_broker, kourou_name_server, write_broker_conf

pytestmark = needs_openssl


class Files(RenewedFiles):
    def tls(self, **others) -> TlsConfig:
        """Everybody proves who it is, and plain text is spoken nowhere."""
        client = certificates().client
        return TlsConfig(
            server_mode=TlsMode.enforcing, enable=True, server_cert_path=str(self.cert),
            server_key_path=str(self.key), server_auth_client=True,
            server_need_client_auth=ClientAuth.require, client_auth_server=True,
            server_trust_cert_path=certificates().authority.cert,
            client_trust_cert_path=certificates().authority.cert, client_cert_path=client.cert,
            client_key_path=client.key, **others,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def pair(directory: Path, tls: TlsConfig) -> AsyncIterator[tuple[NameServer, Broker, Broker]]:
    """A name server, a master and its slave, that speak TLS to each other."""
    name_server = NameServer(
        NameServerConfig(bind_address=HOST, listen_port=0, kv_config_path=str(directory / "kv.json")), tls=tls
    )
    await name_server.start()
    common = {"haTlsEnable": "true", "namesrvAddr": f"{HOST}:{name_server.port}"}
    master = Broker(broker_config(directory / "m", common), tls=tls)
    await master.start()
    role = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.config.ha_address}
    slave = Broker(broker_config(directory / "s", {**common, **role}), tls=tls)
    await slave.start()
    try:
        yield name_server, master, slave
    finally:
        await slave.stop()
        await master.stop()
        await name_server.stop()


async def shown(port: int, tls: TlsConfig) -> str:
    """The certificate that a new connection to a port is shown."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=tls.client_context(), server_hostname="")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    assert reader is not None
    return hashlib.sha256(found).hexdigest()


async def test_renewed_certificates_count_for_new_connections_everywhere(tmp_path, monkeypatch):
    """At a broker, a name server and the link to a slave; connections that stand go on."""
    monkeypatch.setattr(tls_module, "RELOAD_CHECK_S", 0.0)
    files, made = Files(tmp_path), certificates()
    tls = files.tls()

    async with pair(tmp_path, tls) as (name_server, master, slave):
        master.topics.update(TopicConfig("t", 4, 4))
        ports = (master.config.listen_port, name_server.port, master.config.store.ha_listen_port)
        assert master.put(InnerMessage.of("t", 0, b"before")).ok
        await until(lambda: slave.store.max_offset("t", 0) == 1)
        client = RemotingClient(tls=tls)
        address = f"{HOST}:{ports[0]}"
        await client.call(address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert {await shown(port, tls) for port in ports} == {fingerprint(Path(made.server.cert))}
        follower = slave.replication.client
        assert follower is not None
        link = follower._connection
        files.put(made.renewed)
        assert {await shown(port, tls) for port in ports} == {fingerprint(Path(made.renewed.cert))}
        (old,) = client._connections
        assert (await client.call(address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))).code == 0
        assert client._connections == {old}
        assert master.put(InnerMessage.of("t", 0, b"after")).ok
        await until(lambda: slave.store.max_offset("t", 0) == 2)
        assert follower._connection is link
        await client.close()


async def test_whoever_does_not_prove_who_it_is_reaches_no_server(tmp_path):
    """Neither in plain text, nor without a certificate, nor with one of somebody else's authority."""
    tls = Files(tmp_path).tls()
    strange = certificates().strange_client
    refused = (
        None,
        replace(tls, client_cert_path="", client_key_path=""),
        replace(tls, client_cert_path=strange.cert, client_key_path=strange.key),
    )

    async with pair(tmp_path, tls) as (name_server, master, slave):
        ports = (master.config.listen_port, name_server.port, slave.config.listen_port)
        for port in ports:
            for config in refused:
                client = RemotingClient(tls=config)
                with pytest.raises(KourouError):
                    await client.call(
                        f"{HOST}:{port}", RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 5
                    )
                await client.close()
        reader, writer = await asyncio.open_connection(HOST, master.config.store.ha_listen_port)
        writer.write(bytes(8))  # a slave that has nothing, in plain text
        assert await reader.read(1) == b""
        writer.close()
        await until(lambda: len(master.replication.slaves) == 1)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_client_in_tls_never_speaks_plain(loop):
    """To a server without TLS: it says so, and what it sends is a hello of TLS each time."""
    heard: list[bytes] = []

    async def serve(reader, writer):
        heard.append(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    client_id = make_client_id(HOST)
    secret = Credentials("app", "app-secret")
    core = ClientCore(address, client_id=client_id, tls=TlsConfig(enable=True), credentials=secret)
    async with core:
        with pytest.raises(KourouError, match="TLS is wanted here"):
            await core.call(address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 5)
    async with Producer(address, group="P", tls=TlsConfig(enable=True), credentials=secret) as producer:
        with pytest.raises(KourouError):
            await producer.send(Message("t", b"secret body"))
    server.close()
    await server.wait_closed()
    assert len(heard) >= 2
    assert all(data[0] == tls_module.HELLO_BYTE for data in heard)
    assert not any(b"app" in data or b"secret" in data for data in heard)


# The command line


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a name server that speaks TLS alone, as its broker does, and a file for clients."""
    directory = tmp_path_factory.mktemp("enforcing")
    made = certificates()
    theirs, ours = directory / "client.properties", directory / "server.properties"
    theirs.write_text(f"tls.client.authServer=true\ntls.client.trustCertPath={made.authority.cert}\n")
    ours.write_text(
        "tls.server.mode=enforcing\n"
        f"tls.server.certPath={made.server.cert}\ntls.server.keyPath={made.server.key}\n" + theirs.read_text()
    )
    port = free_ports(0)
    conf = write_broker_conf(directory, port, {"tls.config.file": ours})
    with (
        kourou("namesrv", "--port", str(port), "--host", HOST, "--tls", str(ours)) as name_server,
        kourou("broker", "-c", str(conf)),
    ):
        yield name_server.address, theirs


@pytest.fixture(scope="module")
def unconfigured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a name server and a broker, for which nothing of TLS is configured."""
    directory = tmp_path_factory.mktemp("unconfigured")
    with kourou_name_server(directory) as name_server, kourou_broker(directory, name_server.port):
        yield name_server.address


def command(address: str, tls: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"NAMESRV_ADDR": address, "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    if tls is not None:
        environment["KOUROU_TLS"] = tls
    return subprocess.run(
        [sys.executable, "-m", "kourou", *arguments], capture_output=True, text=True, env=environment,
        timeout=60, check=False,
    )  # fmt: skip


def test_every_command_speaks_tls_if_it_is_told_to(enforcing):
    address, file = enforcing
    for arguments, printed in (
        (("admin", "topic", "create", "orders", "-c", "DefaultCluster"), ""),
        (("send", "orders", "one"), ""),
        (("tail", "orders", "--from", "first", "--count", "1"), "one"),
        (("mqadmin", "clusterList"), "broker-a"),
        (("bench", "--seconds", "0.2", "--producers", "1", "--json"), '"failed"'),
    ):
        done = command(address, str(file), *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert printed in done.stdout
    assert command(address, "true", "admin", "cluster", "list").returncode == 0


def test_servers_speak_tls_and_plain_with_nothing_configured(unconfigured, tmp_path):
    for tls in ("true", "false"):
        topic = f"orders-{tls}"
        for arguments in (
            ("admin", "topic", "create", topic, "-c", "DefaultCluster"),
            ("send", topic, "one"),
            ("tail", topic, "--from", "first", "--count", "1"),
        ):
            done = command(unconfigured, tls, *arguments)
            assert done.returncode == 0, (arguments, done.stderr)
        assert "one" in done.stdout
    verifies = tmp_path / "verifies.properties"
    verifies.write_text("tls.client.authServer=true\n")
    done = command(unconfigured, str(verifies), "admin", "cluster", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_a_command_that_is_not_told_so_or_trusts_others_gets_no_answer(enforcing, tmp_path):
    address, _ = enforcing
    others = tmp_path / "others.properties"
    others.write_text(
        f"tls.client.authServer=true\ntls.client.trustCertPath={certificates().stranger.cert}\n"
    )
    for tls, says in ((None, "lost"), ("false", "lost"), (str(others), "CERTIFICATE_VERIFY_FAILED")):
        done = command(address, tls, "admin", "cluster", "list")
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr
    missing = command(address, str(tmp_path / "none.properties"), "admin", "cluster", "list")
    assert missing.returncode != 0
    assert "none.properties" in missing.stderr

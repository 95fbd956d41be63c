"""TLS: Java's keys, what a server speaks in each mode, who is trusted, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.errors import ConfigError
from kourou.remoting import client as client_module
from kourou.remoting import self_signed
from kourou.remoting import server as server_module
from kourou.remoting import tls as tls_module
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection, ConnectionLostError
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from kourou.remoting.tls import ClientAuth, TlsConfig, TlsMode
from support.loops import LOOPS, until
from support.sites.certificates import PASSWORD, RenewedFiles, certificates, fingerprint, needs_openssl

ECHO = 1

both_loops = pytest.mark.parametrize("loop", list(LOOPS))


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    return request.response(body=request.body)


def server_tls(mode: TlsMode = TlsMode.permissive, **others) -> TlsConfig:
    ours = certificates().server
    return TlsConfig(server_mode=mode, server_cert_path=ours.cert, server_key_path=ours.key, **others)


@asynccontextmanager
async def a_server(tls: TlsConfig | None, **options) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer({ECHO: echo}, tls=tls, **options)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop()


async def asked(address: str, tls: TlsConfig | None = None, size: int = 10) -> bool:
    """Whether a client of its own gets an answer."""
    client = RemotingClient(tls=tls)
    try:
        answer = await client.call(address, RemotingCommand(ECHO, body=bytes(size)), timeout_s=20)
        assert answer.body == bytes(size)
        return True
    except ConnectionLostError:
        return False
    finally:
        await client.close()


IN_TLS = TlsConfig(enable=True)


# Keys


def test_the_keys_are_those_of_java(tmp_path):
    file = tmp_path / "tls.properties"
    file.write_text(
        """
        tls.server.mode=Enforcing
        tls.enable=false
        tls.test.mode.enable=true
        tls.ciphers=A,B
        tls.protocols=TLSv1.3
        tls.server.need.client.auth=REQUIRE
        tls.server.keyPath=sk
        tls.server.keyPassword=sp
        tls.server.certPath=sc
        tls.server.authClient=true
        tls.server.trustCertPath=st
        tls.client.keyPath=ck
        tls.client.keyPassword=cp
        tls.client.certPath=cc
        tls.client.authServer=true
        tls.client.trustCertPath=ct
        something.else=1
        """
    )
    config = TlsConfig.load(file)
    assert config == TlsConfig(
        server_mode=TlsMode.enforcing,
        enable=False,
        test_mode=True,
        ciphers="A,B",
        protocols="TLSv1.3",
        server_need_client_auth=ClientAuth.require,
        server_key_path="sk",
        server_key_password="sp",
        server_cert_path="sc",
        server_auth_client=True,
        server_trust_cert_path="st",
        client_key_path="ck",
        client_key_password="cp",
        client_cert_path="cc",
        client_auth_server=True,
        client_trust_cert_path="ct",
    )
    assert "sp" not in repr(config).split("'")
    assert "cp" not in repr(config).split("'")


def test_defaults_are_those_of_java():
    config = TlsConfig.from_properties({})
    assert config == TlsConfig()
    assert (config.server_mode, config.server_need_client_auth) == (TlsMode.permissive, ClientAuth.none)
    assert (config.enable, config.server_auth_client, config.client_auth_server) == (False, False, False)
    assert (config.is_self_signed, config.has_server_certificate) == (True, False)


def test_an_enforcing_process_uses_tls_as_a_client_unless_it_is_told_otherwise():
    assert TlsConfig.from_properties({"tls.server.mode": "enforcing"}).enable
    assert not TlsConfig.from_properties({"tls.server.mode": "enforcing", "tls.enable": "false"}).enable


def test_the_file_that_is_named_goes_before_the_keys_beside_it(tmp_path):
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=of the file\n")
    properties = {
        "tls.config.file": str(file), "tls.server.certPath": "beside", "tls.server.keyPath": "beside"
    }  # fmt: skip
    config = TlsConfig.from_properties(properties)
    assert (config.server_cert_path, config.server_key_path) == ("of the file", "beside")


def test_a_file_that_is_not_there_is_an_error_but_for_javas_own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tls_module, "DEFAULT_FILE", str(tmp_path / "none.properties"))
    assert TlsConfig.load() == TlsConfig()
    (tmp_path / "none.properties").write_text("tls.enable=true\n")
    assert TlsConfig.load().enable
    with pytest.raises(ConfigError, match=r"cannot read .*other.properties"):
        TlsConfig.load(tmp_path / "other.properties")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("tls.server.mode", "enforced", "one of disabled, permissive, enforcing"),
        ("tls.server.need.client.auth", "yes", "one of none, optional, require"),
        ("tls.server.authClient", "yes", "true or false"),
    ],
)
def test_a_value_of_no_use_is_an_error_and_not_a_default(key, value, wanted):
    with pytest.raises(ConfigError, match=f"{key}={value}: expected {wanted}"):
        TlsConfig.from_properties({key: value})


# Contexts


def test_a_client_trusts_anybody_unless_it_has_to_verify():
    for config in (TlsConfig(), TlsConfig(client_auth_server=True, test_mode=True)):
        assert config.client_context().verify_mode == ssl.CERT_NONE
    context = TlsConfig(client_auth_server=True).client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_javas_names_of_protocols_and_ciphers_are_understood():
    java = (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,"
        "TLS_RSA_WITH_AES_128_CBC_SHA256"
    )
    context = TlsConfig(ciphers=java, protocols="TLSv1.2").client_context()
    names = [cipher["name"] for cipher in context.get_ciphers() if not cipher["name"].startswith("TLS_")]
    assert names == ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "AES128-SHA256"]
    assert context.maximum_version == context.minimum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match=r"tls.ciphers=NONSENSE: none of them is known"):
        TlsConfig(ciphers="NONSENSE").client_context()
    with pytest.raises(ConfigError, match="SSLv3 is neither"):
        TlsConfig(protocols="SSLv3").client_context()


@needs_openssl
def test_a_key_with_a_password():
    ours = certificates().server
    config = TlsConfig(server_cert_path=ours.cert, server_key_path=ours.encrypted_key)
    replace(config, server_key_password=PASSWORD).server_context()
    for wrong in ("", "wrong"):  # and nobody is asked at the terminal
        with pytest.raises(ConfigError, match=r"certificate .*server.pem with key .*server.enc.key"):
            replace(config, server_key_password=wrong).server_context()


@needs_openssl
def test_certificates_that_cannot_be_used_are_an_error(tmp_path):
    ours, other = certificates().server, certificates().client
    with pytest.raises(ConfigError, match="No such file"):
        TlsConfig(server_cert_path=str(tmp_path / "none.pem"), server_key_path=ours.key).server_context()
    with pytest.raises(ConfigError, match="mismatch"):
        TlsConfig(server_cert_path=ours.cert, server_key_path=other.key).server_context()
    with pytest.raises(ConfigError, match=r"trusted certificates .*none.pem: .*No such file"):
        server_tls(
            server_auth_client=True, server_trust_cert_path=str(tmp_path / "none.pem")
        ).server_context()


@needs_openssl
def test_a_certificate_that_nobody_would_verify_is_not_asked_for(caplog):
    context = server_tls(server_need_client_auth=ClientAuth.require).server_context()
    assert context.verify_mode == ssl.CERT_NONE
    assert "tls.server.need.client.auth=require has no effect" in caplog.text


# What a server speaks


@needs_openssl
@both_loops
async def test_permissive_speaks_both_on_one_port(loop):
    async with a_server(server_tls()) as (_, address):
        assert await asked(address)
        assert await asked(address, IN_TLS)
        assert await asked(address, IN_TLS, size=5_000_000)


@needs_openssl
@both_loops
async def test_enforcing_speaks_tls_alone(loop, caplog):
    async with a_server(server_tls(TlsMode.enforcing)) as (server, address):
        assert await asked(address, IN_TLS)
        assert not await asked(address)
        await until(lambda: not server.connections)
    assert "does not speak TLS, and tls.server.mode=enforcing" in caplog.text


@needs_openssl
@both_loops
async def test_disabled_speaks_plain_alone(loop):
    for tls in (None, server_tls(TlsMode.disabled)):
        async with a_server(tls) as (_, address):
            assert await asked(address)
            assert not await asked(address, IN_TLS)


# Without a certificate


@pytest.fixture
def making(monkeypatch) -> list[bytes]:
    """The certificates that are made from now on, as if the process had just started."""
    made: list[bytes] = []
    make = self_signed.self_signed_pair.__wrapped__

    def note() -> tuple[bytes, bytes]:
        pair = make()
        made.append(pair[0])
        return pair

    monkeypatch.setattr(self_signed, "self_signed_pair", functools.cache(note))
    return made


@pytest.mark.parametrize("tls", [TlsConfig(), TlsConfig(test_mode=True, server_cert_path="of no use")])
@both_loops
async def test_permissive_without_a_certificate_makes_one_at_the_first_hello_and_keeps_it(loop, tls, making):
    async with a_server(tls) as (_, address), a_server(tls) as (_, another):
        assert await asked(address)
        assert making == []  # neither for the start, nor for who speaks plain
        assert await asked(address, IN_TLS)
        assert await asked(another, IN_TLS, size=5_000_000)
        assert len(making) == 1
        assert {await shown(address), await shown(another)} == {fingerprint(making[0].decode())}


@both_loops
async def test_all_who_come_while_the_certificate_is_made_are_served_and_hold_up_nobody(
    loop, making, monkeypatch
):
    is_free, renewed = threading.Event(), server_module._renewed

    def slow(tls):
        assert is_free.wait(60)
        return renewed(tls)

    monkeypatch.setattr(server_module, "_renewed", slow)
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 60)  # a hundred at once take a while

    async with a_server(TlsConfig()) as (server, address), asyncio.TaskGroup() as group:
        waiting = [group.create_task(asked(address, IN_TLS)) for _ in range(100)]
        await until(lambda: len(server._accepting) == 100)
        assert await asked(address)  # the loop goes on
        assert not any(task.done() for task in waiting)
        is_free.set()
        assert all(await asyncio.gather(*waiting))
    assert len(making) == 1


@both_loops
async def test_enforcing_without_a_certificate_makes_one_and_says_what_that_means(loop, making, caplog):
    async with a_server(TlsConfig(server_mode=TlsMode.enforcing)) as (_, address):
        assert "encrypts, but nobody can verify that this is the server" in caplog.text
        assert making == []
        assert await asked(address, IN_TLS)
        assert not await asked(address)


@pytest.mark.parametrize("mode", [TlsMode.permissive, TlsMode.enforcing])
@pytest.mark.parametrize("wrong", [{"test_mode": False}, {"server_key_path": "half of it"}])
async def test_a_certificate_that_may_not_be_made_is_missed_at_the_start(mode, wrong):
    server = RemotingServer({}, tls=TlsConfig(server_mode=mode, **wrong))
    with pytest.raises(ConfigError, match=r"set tls.server.certPath"):
        await server.start("127.0.0.1", 0)
    await server.stop()


async def test_disabled_needs_no_certificate_and_makes_none(making):
    async with a_server(TlsConfig(server_mode=TlsMode.disabled, test_mode=False)) as (_, address):
        assert not await asked(address, IN_TLS)
        assert await asked(address)
    assert making == []


@needs_openssl
@both_loops
async def test_a_made_certificate_encrypts_and_convinces_nobody_who_verifies(loop):
    known = certificates().authority.cert
    async with a_server(TlsConfig()) as (_, address):
        assert await asked(address, IN_TLS)
        for trusted in (known, ""):  # the latter is the system's
            verifies = TlsConfig(enable=True, client_auth_server=True, client_trust_cert_path=trusted)
            assert not await asked(address, verifies)


@needs_openssl
@both_loops
async def test_clients_are_verified_also_by_a_server_that_made_its_certificate(loop, tmp_path):
    made = certificates()
    tls = TlsConfig(
        server_auth_client=True,
        server_trust_cert_path=made.authority.cert,
        server_need_client_auth=ClientAuth.require,
    )
    ours = TlsConfig(enable=True, client_cert_path=made.client.cert, client_key_path=made.client.key)
    async with a_server(tls) as (_, address):
        assert await asked(address, ours)
        assert not await asked(address, IN_TLS)
    async with a_server(replace(tls, test_mode=True)) as (_, address):  # which puts the check aside
        assert await asked(address, IN_TLS)
    wrong = RemotingServer({}, tls=replace(tls, server_trust_cert_path=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match=r"trusted certificates .*none.pem"):
        await wrong.start("127.0.0.1", 0)
    await wrong.stop()


# Peers that do not go on


@needs_openssl
@both_loops
async def test_peers_that_do_not_begin_or_do_not_go_on_hold_up_nobody_and_are_let_go(loop, monkeypatch):
    monkeypatch.setattr(server_module, "HANDSHAKE_TIMEOUT_S", 0.5)
    hello = b"\x16\x03\x01\x02\x00\x01"  # the beginning of one

    async with a_server(server_tls(), idle_timeout_s=0.5) as (server, address):
        host, port = address.split(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(20)]
        for stranger in strangers[::2]:
            stranger.sendall(hello)
        await until(lambda: len(server._accepting) == 20)
        assert await asked(address)
        assert await asked(address, IN_TLS)
        await until(lambda: not server._accepting, "the strangers to be let go")
        for stranger in strangers:
            stranger.close()


@needs_openssl
@both_loops
@pytest.mark.parametrize("peer", ["silent", "in the handshake", "connected, and says no good-bye"])
async def test_stopping_comes_to_an_end_whatever_peers_in_tls_do(loop, peer):
    async with a_server(server_tls(TlsMode.enforcing)) as (server, address):
        host, port = address.split(":")
        sock = socket.create_connection((host, int(port)))
        if peer == "in the handshake":
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        elif peer != "silent":
            context = IN_TLS.client_context()
            sock.settimeout(20)
            sock = await asyncio.to_thread(context.wrap_socket, sock)
        await until(
            lambda: server._accepting if peer != "connected, and says no good-bye" else server.connections
        )
        await asyncio.sleep(0.02)
        await server.stop()
        assert (server.connections, server._accepting) == (set(), {})
        sock.close()


# Who is trusted


@needs_openssl
@both_loops
async def test_a_client_that_verifies_talks_only_to_servers_that_its_authority_knows(loop):
    known = certificates().authority.cert
    verifies = TlsConfig(enable=True, client_auth_server=True, client_trust_cert_path=known)
    async with a_server(server_tls()) as (_, address):
        assert await asked(address, verifies)
        stranger = certificates().stranger.cert
        assert not await asked(address, replace(verifies, client_trust_cert_path=stranger))
        assert not await asked(address, replace(verifies, client_trust_cert_path=""))  # the system's


@needs_openssl
@both_loops
@pytest.mark.parametrize(
    ("need", "without", "with_a_strange_one"),
    [(ClientAuth.none, True, True), (ClientAuth.optional, True, False), (ClientAuth.require, False, False)],
)
async def test_clients_prove_who_they_are_as_far_as_it_is_asked(loop, need, without, with_a_strange_one):
    made = certificates()
    tls = server_tls(
        TlsMode.enforcing,
        server_auth_client=True,
        server_trust_cert_path=made.authority.cert,
        server_need_client_auth=need,
    )
    ours, strange = (
        TlsConfig(enable=True, client_cert_path=one.cert, client_key_path=one.key)
        for one in (made.client, made.strange_client)
    )
    async with a_server(tls) as (server, address):
        assert await asked(address, ours)
        assert await asked(address, IN_TLS) is without
        assert await asked(address, strange) is with_a_strange_one
        await until(lambda: not server.connections)
        assert await asked(address, ours)


# Renewal


class Files(RenewedFiles):
    @property
    def tls(self) -> TlsConfig:
        return TlsConfig(server_cert_path=str(self.cert), server_key_path=str(self.key))


async def shown(address: str) -> str:
    """The certificate that a new connection is shown."""
    host, port = address.split(":")
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), timeout=20)
    return fingerprint(pem)


@needs_openssl
@both_loops
async def test_new_connections_get_a_renewed_certificate_and_old_ones_stay(loop, tmp_path, monkeypatch):
    monkeypatch.setattr(tls_module, "RELOAD_CHECK_S", 0.0)
    files, made = Files(tmp_path), certificates()

    async with a_server(files.tls) as (_, address):
        client = RemotingClient(tls=IN_TLS)
        await client.call(address, RemotingCommand(ECHO))
        assert await shown(address) == fingerprint(Path(made.server.cert))
        files.put(made.renewed)
        assert await shown(address) == fingerprint(Path(made.renewed.cert))
        (old,) = client._connections
        assert (await client.call(address, RemotingCommand(ECHO))).code == 0
        assert client._connections == {old}
        await client.close()


@needs_openssl
async def test_while_files_do_not_fit_or_are_gone_the_old_certificate_stays(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tls_module, "RELOAD_CHECK_S", 0.0)
    files, made = Files(tmp_path), certificates()
    caplog.set_level(logging.INFO)

    async with a_server(files.tls) as (_, address):
        shutil.copyfile(made.renewed.cert, files.cert)  # the key is to follow
        for _ in range(3):
            assert await shown(address) == fingerprint(Path(made.server.cert))
        warned = [record for record in caplog.records if "the old ones stay" in record.message]
        assert len(warned) == 1
        files.cert.unlink()
        assert await shown(address) == fingerprint(Path(made.server.cert))
        files.put(made.renewed)
        assert await shown(address) == fingerprint(Path(made.renewed.cert))
        assert "new connections get the new ones" in caplog.text


@needs_openssl
def test_files_are_not_looked_at_for_every_connection(tmp_path, monkeypatch):
    files, made = Files(tmp_path), certificates()
    context = tls_module.RenewedContext(files.tls.server_context, files.tls.server_files())
    first = context.get()
    files.put(made.renewed)
    monkeypatch.setattr(tls_module, "RELOAD_CHECK_S", 1000.0)
    assert context.get() is first
    monkeypatch.setattr(tls_module, "RELOAD_CHECK_S", 0.0)
    assert context.get() is not first

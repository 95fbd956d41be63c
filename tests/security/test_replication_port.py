"""The port that slaves come to: who is given the log, whose word counts for a SYNC_MASTER, which master a
slave believes, and what connections that say nothing can do."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.auth import AuthConfig
from kourou.broker import Broker
from kourou.errors import ConfigError
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig, TlsMode
from kourou.store import InnerMessage
from kourou.store.replication import master as replication_master
from kourou.store.replication.proof import Admission, Entrance, ProofError
from support import loops
from support.loops import until
from support.sites.broker import HOST, broker_config, send_request
from support.sites.certificates import Authority, needs_openssl

ADMIN, INNER = Credentials("admin", "admin-secret"), Credentials("inner", "inner-secret")
INNER_KEY = {"innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}'}
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    **INNER_KEY,
}
HELLO, CHALLENGE = b"\xffKOUROU\x01", b"\xfeKOUROU\x01"
OF_SLAVE, OF_MASTER = b"Kourou HA 1: slave\n", b"Kourou HA 1: master\n"
NONCE = bytes(range(32))

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(main: Coroutine[Any, Any, None]) -> None:
    loops.run("uvloop", main)


@asynccontextmanager
async def master_of(
    directory: Path, config: dict[str, str], tls: TlsConfig | None = None
) -> AsyncIterator[Broker]:
    """A master with one message in its log."""
    broker = Broker(broker_config(directory / "m", config), tls=tls)
    await broker.start()
    try:
        broker.topics.update(TopicConfig("t", 4, 4))
        assert broker.put(InnerMessage.of("t", 0, b"of the log", {"WAIT": "false"})).ok
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def slave_of(
    directory: Path, ha_address: str, config: dict[str, str], tls: TlsConfig | None = None
) -> AsyncIterator[Broker]:
    role = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": ha_address}
    broker = Broker(broker_config(directory / "s", {**config, **role}), tls=tls)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def end_of(broker: Broker) -> int:
    return broker.store.commit_log.files.max_wrote


@asynccontextmanager
async def connected(broker: Broker, **more: Any) -> AsyncIterator[Connected]:
    reader, writer = await asyncio.open_connection(HOST, broker.config.store.ha_listen_port, **more)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other end closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(65536):
            found += data
    return found


# A slave by the table of store/replication/service.py


def said_by(user: str, nonce: bytes = NONCE, name: str = "broker-a:1") -> bytes:
    return struct.pack(">32sBB", nonce, len(user), len(name)) + user.encode() + name.encode()


def proof(secret: str, side: bytes, master_nonce: bytes, said: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + master_nonce + said, "sha256")


async def challenge_of(at: Connected) -> bytes:
    """Send the hello; the master's nonce."""
    reader, writer = at
    writer.write(HELLO)
    answer = await reader.readexactly(40)
    assert answer[:8] == CHALLENGE
    return answer[8:]


async def proved(at: Connected, credentials: Credentials) -> bytes:
    """Prove who one is, and check the master; the master's proof."""
    nonce, said = await challenge_of(at), said_by(credentials.access_key)
    at[1].write(said + proof(credentials.secret_key, OF_SLAVE, nonce, said) + bytes(8))
    given = await at[0].readexactly(32)
    assert given == proof(credentials.secret_key, OF_MASTER, nonce, said)
    return given


# Who is given the log


@pytest.mark.parametrize(
    "said",
    [
        bytes(8),
        b"",
        b"\xff" * 8,
        HELLO[:7] + b"\x02",
        HELLO[:4],
        bytes(7),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(65536),
    ],
    ids=["report", "nothing", "-1", "other version", "half a hello", "half a report", "http", "many reports"],
)
async def test_whoever_does_not_prove_who_it_is_reads_no_byte(tmp_path, monkeypatch, said):
    monkeypatch.setattr(replication_master, "PENDING_TIMEOUT_S", 0.2)

    async with master_of(tmp_path, GUARDED) as master, connected(master) as (reader, writer):
        writer.write(said)
        assert await all_of(reader) == b""
        assert not master.replication.slaves


def _short(nonce: bytes) -> bytes:
    return said_by("inner")[:-1]


def _wrong(user: str, secret: str) -> Callable[[bytes], bytes]:
    def make(nonce: bytes) -> bytes:
        return said_by(user) + proof(secret, OF_SLAVE, nonce, said_by(user))

    return make


def _other_names(nonce: bytes) -> bytes:
    """A proof of one user under the name of another, with the border of the names moved."""
    said = said_by("inner", name="broker-a:1")
    return said_by("innerb", name="roker-a:1") + proof("inner-secret", OF_SLAVE, nonce, said)


@pytest.mark.parametrize(
    "answer",
    [
        _wrong("inner", "wrong"), _wrong("stranger", "inner-secret"), _wrong("stranger", ""), _wrong("", ""),
        _wrong("normal", "normal-secret"), _wrong("off", "off-secret"), _other_names, _short,
        lambda nonce: said_by("inner") + proof("inner-secret", OF_MASTER, nonce, said_by("inner")),
        lambda nonce: said_by("inner") + proof("inner-secret", OF_SLAVE, NONCE, said_by("inner")),
        lambda nonce: said_by("inner", b"\0" * 32) + proof("inner-secret", OF_SLAVE, nonce, said_by("inner")),
        lambda nonce: said_by("inner") + bytes(32),
        lambda nonce: b"\xff" * 100_000,
    ],
    ids=[
        "wrong secret", "stranger", "stranger with no secret", "nobody", "normal user", "disabled super user",
        "names cut differently", "cut", "the master's side", "other nonce of the master",
        "other nonce of the slave", "zeros", "flood",
    ],
)  # fmt: skip
async def test_a_wrong_proof_is_closed_and_reads_no_byte(tmp_path, monkeypatch, caplog, answer):
    monkeypatch.setattr(replication_master, "PENDING_TIMEOUT_S", 0.2)

    async with master_of(tmp_path, GUARDED) as master:
        master.access.create_user({"username": "normal", "password": "normal-secret"})
        off = {"username": "off", "password": "off-secret", "userType": "Super", "userStatus": "disable"}
        master.access.create_user(off)
        async with connected(master) as at:
            at[1].write(answer(await challenge_of(at)) + bytes(8))
            assert await all_of(at[0]) == b""
        assert not master.replication.slaves
    assert "is turned away" in caplog.text
    assert "inner-secret" not in caplog.text


async def test_proofs_that_were_heard_are_of_no_use_again(tmp_path):
    """Neither those of a slave on another connection, nor those of a master sent back to it."""

    async with master_of(tmp_path, GUARDED) as master, connected(master) as at:
        nonce, said = await challenge_of(at), said_by("inner")
        heard = said + proof("inner-secret", OF_SLAVE, nonce, said)
        at[1].write(heard + bytes(8))
        of_master = await at[0].readexactly(32)
        assert len(await at[0].readexactly(12 + end_of(master))) > 12
        for again in (heard, said + of_master):
            async with connected(master) as other:
                assert await challenge_of(other) != nonce
                other[1].write(again + bytes(8))
                assert await all_of(other[0]) == b""
        assert len(master.replication.slaves) == 1


@pytest.mark.parametrize("user", [INNER, ADMIN], ids=["inner", "super"])
async def test_the_inner_user_and_super_users_are_given_the_log_until_they_are_disabled(
    tmp_path, caplog, user
):
    async with master_of(tmp_path, GUARDED) as master, connected(master) as at:
        await proved(at, user)
        block = await at[0].readexactly(12 + end_of(master))
        assert struct.unpack(">qi", block[:12]) == (0, end_of(master))
        assert b"of the log" in block
        await until(lambda: master.replication.slaves)
        master.access.update_user({"username": user.access_key, "userStatus": "disable"})
        await all_of(at[0])
        await until(lambda: not master.replication.slaves)
        async with connected(master) as again:
            nonce, said = await challenge_of(again), said_by(user.access_key)
            again[1].write(said + proof(user.secret_key, OF_SLAVE, nonce, said) + bytes(8))
            assert await all_of(again[0]) == b""
    assert "its user is no longer accepted" in caplog.text


def test_any_bytes_in_any_pieces_are_a_right_proof_or_refused():
    """What comes in one piece or byte by byte is judged the same, and nothing of it is kept."""
    chance = random.Random(7)
    admission = Admission({"inner": "inner-secret"}.get, lambda host: False)
    for _ in range(2000):
        entrance = Entrance(admission, HOST)
        data = b"" if chance.random() < 0.2 else HELLO
        data += chance.randbytes(chance.randrange(700))
        try:
            while data:
                size = chance.randrange(1, 80)
                entrance.receive(data[:size])
                data = data[size:]
        except ProofError:
            pass
        assert not entrance.passed
        assert len(entrance.rest) < 1000
    entrance, answers = Entrance(admission, HOST), b""
    for byte in HELLO:
        answers += entrance.receive(bytes([byte]))
    said = said_by("inner")
    whole = said + proof("inner-secret", OF_SLAVE, answers[8:], said)
    for byte in whole:
        assert not entrance.passed
        answers += entrance.receive(bytes([byte]))
    assert entrance.passed
    assert answers[40:] == proof("inner-secret", OF_MASTER, answers[8:40], said)


# Whose word counts


async def statuses(broker: Broker, count: int, credentials: Credentials | None = ADMIN) -> list[int]:
    """What sends are answered with."""
    client = RemotingClient(credentials=credentials)
    try:
        address = f"{HOST}:{broker.config.listen_port}"
        return [(await client.call(address, send_request(), 10)).code for _ in range(count)]
    finally:
        await client.close()


async def acknowledge(at: Connected) -> None:
    """A slave that keeps nothing: it says that it has whatever it was sent."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
        while True:
            offset, size = struct.unpack(">qi", await at[0].readexactly(12))
            await at[0].readexactly(size)
            at[1].write(struct.pack(">q", offset + size))


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, ResponseCode.SLAVE_NOT_AVAILABLE),
        ({"minInSyncReplicas": "2", "inSyncReplicas": "2"}, ResponseCode.SYSTEM_ERROR),
        ({"haTrustedSlaves": "10.0.0.0/8,192.0.2.1"}, ResponseCode.SLAVE_NOT_AVAILABLE),
        ({"haTrustedSlaves": "10.0.0.1, 127.0.0.0/8"}, ResponseCode.SUCCESS),
        ({"haTrustedSlaves": "0.0.0.0/0"}, ResponseCode.SUCCESS),
        (
            {"haTrustedSlaves": "10.0.0.1", "haAuthenticationEnable": "false"},
            ResponseCode.SLAVE_NOT_AVAILABLE,
        ),
    ],
    ids=["guarded", "least replicas", "trusted elsewhere", "trusted", "open", "not proved by itself"],
)
async def test_a_slave_without_a_proof_counts_only_where_a_setting_says_so(tmp_path, more, wanted):
    config = {**GUARDED, "brokerRole": "SYNC_MASTER", **more}
    async with master_of(tmp_path, config) as master, connected(master) as at:
        at[1].write(bytes(8))
        lying = asyncio.ensure_future(acknowledge(at))
        if wanted == ResponseCode.SUCCESS:
            await until(lambda: master.replication.slaves)
        else:
            await lying
        found = await statuses(master, 20)
        assert [code == wanted for code in found] == [True] * 20, found
        lying.cancel()


async def test_a_pair_with_access_control_replicates_and_its_slave_counts(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    config = {**GUARDED, "brokerRole": "SYNC_MASTER"}
    async with (
        master_of(tmp_path, config) as master,
        slave_of(tmp_path, master.config.ha_address, GUARDED) as slave,
    ):
        await until(lambda: end_of(slave) == end_of(master))
        assert await statuses(master, 20) == [ResponseCode.SUCCESS] * 20
        assert end_of(slave) == end_of(master)
        assert slave.master_is_up
    assert "('broker-a:1', user 'inner') has the log up to 0" in caplog.text


@needs_openssl
async def test_proofs_go_in_tls_too(tmp_path):
    authority = Authority(tmp_path, "authority")
    certificate = authority.sign("broker")
    tls = TlsConfig(
        server_cert_path=certificate.cert, server_key_path=certificate.key,
        client_auth_server=True, client_trust_cert_path=authority.cert,
    )  # fmt: skip
    config = {**GUARDED, "haTlsEnable": "true"}

    async with master_of(tmp_path, config, tls) as master:
        async with slave_of(tmp_path, master.config.ha_address, config, tls) as slave:
            await until(lambda: end_of(slave) == end_of(master))
        async with connected(master, ssl=tls.client_context(), server_hostname="") as at:
            at[1].write(bytes(8))
            assert await all_of(at[0]) == b""


# Which master a slave believes


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("wrong proof", "does not know the secret of user 'inner'"),
        ("reflected proof", "does not know the secret of user 'inner'"),
        ("other proof", "does not know the secret of user 'inner'"),
        ("no challenge", "does not prove who it is"),
        ("java's heartbeat", "does not prove who it is"),
        ("closes", "does not prove who it is"),
        ("closes after the proof", "does not accept user 'inner'"),
    ],
)
async def test_a_slave_takes_nothing_from_a_master_without_the_secret(tmp_path, caplog, kind, wanted):
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == HELLO
        block = struct.pack(">qi", 0, 100) + bytes(100)
        if kind == "no challenge":
            writer.write(block)
        elif kind == "java's heartbeat":
            writer.write(HELLO + bytes(4))
        elif kind != "closes":
            writer.write(CHALLENGE + NONCE)
            said = await reader.readexactly(34 + len("inner") + len("broker-a:1"))
            given = await reader.readexactly(32)
            assert given == proof("inner-secret", OF_SLAVE, NONCE, said)
            proofs = {
                "wrong proof": bytes(32),
                "reflected proof": given,
                "other proof": proof("inner-secret", OF_MASTER, bytes(32), said),
            }
            writer.write(proofs[kind] + block if kind in proofs else b"")
        if not kind.startswith("closes"):
            await all_of(reader)
        writer.close()

    server = await asyncio.start_server(play, HOST, 0)
    address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with slave_of(tmp_path, address, GUARDED) as slave:
        await until(lambda: wanted in caplog.text)
        assert end_of(slave) == 0
        assert not slave.master_is_up
    server.close()
    assert "nothing is replicated" in caplog.text
    assert "inner-secret" not in caplog.text


async def test_a_slave_under_a_master_without_access_control_needs_one_setting(tmp_path, caplog):
    async with master_of(tmp_path, {}) as master:
        async with slave_of(tmp_path, master.config.ha_address, GUARDED) as slave:
            await until(lambda: "set haAuthenticationEnable=false here" in caplog.text)
            assert end_of(slave) == 0
        alone = {**GUARDED, "haAuthenticationEnable": "false"}
        async with slave_of(tmp_path, master.config.ha_address, alone) as slave:
            await until(lambda: end_of(slave) == end_of(master))


async def test_slaves_may_be_given_access_control_before_their_master(tmp_path):
    """A master that knows the user proves itself, whether it wants proofs or not."""

    async with (
        master_of(tmp_path, INNER_KEY) as master,
        slave_of(tmp_path, master.config.ha_address, GUARDED) as slave,
    ):
        await until(lambda: end_of(slave) == end_of(master))


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        (
            {"authenticationEnabled": "true"},
            "cannot prove who it is: set innerClientAuthenticationCredentials",
        ),
        ({}, "set authenticationEnabled=true and innerClientAuthenticationCredentials here"),
        (INNER_KEY, "set authenticationEnabled=true and innerClientAuthenticationCredentials here"),
    ],
    ids=["no credentials", "no access control", "credentials alone"],
)
async def test_a_slave_that_cannot_prove_who_it_is_says_what_to_set(tmp_path, caplog, config, advice):
    async with (
        master_of(tmp_path, GUARDED) as master,
        slave_of(tmp_path, master.config.ha_address, config) as slave,
    ):
        await until(lambda: advice in caplog.text)
        assert end_of(slave) == 0


def test_settings_of_the_port_are_checked_at_the_start():
    assert not AuthConfig.read({}).ha_authentication_enabled
    assert AuthConfig.read({"authenticationEnabled": "true"}).ha_authentication_enabled
    assert AuthConfig.read({"haAuthenticationEnable": "true"}).ha_authentication_enabled
    off = {"authenticationEnabled": "true", "haAuthenticationEnable": "false"}
    assert not AuthConfig.read(off).ha_authentication_enabled
    with pytest.raises(ConfigError, match="haTrustedSlaves: my-slave is no address"):
        AuthConfig.read({"haTrustedSlaves": "10.0.0.7,my-slave"})
    with pytest.raises(ConfigError, match="haAuthenticationEnable"):
        AuthConfig.read({"haAuthenticationEnable": "yes"})


ROLES = {
    "ASYNC_MASTER": {},
    "SYNC_MASTER": {"brokerRole": "SYNC_MASTER"},
    "SLAVE": {"brokerRole": "SLAVE", "brokerId": "1"},
}
ENFORCING = TlsConfig(server_mode=TlsMode.enforcing)
ANYWHERE = {"bindAddress": "0.0.0.0"}


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_master_with_access_control_does_not_start_with_a_port_for_anybody(tmp_path, role):
    config = {**GUARDED, **ROLES[role], "haAuthenticationEnable": "false"}
    with pytest.raises(ConfigError, match="haTrustedSlaves") as refused:
        Broker(broker_config(tmp_path, config))
    assert "innerClientAuthenticationCredentials" in str(refused.value)
    assert Broker(broker_config(tmp_path, {**config, "haTrustedSlaves": "0.0.0.0/0,::/0"})) is not None


async def test_a_slave_that_believes_its_master_gives_the_log_to_nobody(tmp_path):
    """Under Java's master: what it takes without a proof, it does not hand on without one."""

    alone = {**GUARDED, "haAuthenticationEnable": "false"}
    async with (
        master_of(tmp_path, {}) as master,
        slave_of(tmp_path, master.config.ha_address, alone) as slave,
        connected(slave) as at,
    ):
        await until(lambda: end_of(slave) == end_of(master))
        at[1].write(bytes(8))
        assert await at[0].read() == b""


@pytest.mark.parametrize("role", ROLES)
def test_a_broker_in_tls_alone_does_not_send_its_log_in_the_clear_unless_it_is_told_so(tmp_path, role):
    config = {**ROLES[role], **ANYWHERE}
    for more in ({}, {"haTlsEnable": "false"}, {"haPlaintextAllowed": "false"}):
        with pytest.raises(ConfigError, match="haPlaintextAllowed=true") as refused:
            Broker(broker_config(tmp_path, {**config, **more}), tls=ENFORCING)
        assert "haTlsEnable=true" in str(refused.value)
    for more in ({"haTlsEnable": "true"}, {"haPlaintextAllowed": "true"}):
        assert Broker(broker_config(tmp_path, {**config, **more}), tls=ENFORCING) is not None
    assert Broker(broker_config(tmp_path, config), tls=TlsConfig()) is not None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_what_does_not_leave_the_machine_may_be_in_the_clear(tmp_path, address):
    """A slave's master may be anywhere, wherever the slave listens."""
    at = {"bindAddress": address}
    assert Broker(broker_config(tmp_path, at), tls=ENFORCING) is not None
    with pytest.raises(ConfigError, match="haPlaintextAllowed=true"):
        Broker(broker_config(tmp_path, {**ROLES["SLAVE"], **at}), tls=ENFORCING)


@pytest.mark.parametrize("key", ["haTlsEnable", "haPlaintextAllowed"])
def test_a_key_of_the_port_that_is_neither_true_nor_false_is_an_error(tmp_path, key):
    """`haTlsEnable=yes` was taken for false."""
    with pytest.raises(ConfigError, match=f"{key}=yes"):
        Broker(broker_config(tmp_path, {**ANYWHERE, key: "yes"}), tls=ENFORCING)


# Connections that say nothing


@asynccontextmanager
async def idle(master: Broker, count: int, said: bytes = b"") -> AsyncIterator[None]:
    """Connections from another address than the slaves'."""
    port, writers = master.config.store.ha_listen_port, []
    try:
        for _ in range(count):
            _, writer = await asyncio.open_connection(HOST, port, local_addr=("127.0.0.2", 0))
            writers.append(writer)
            writer.write(said)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("config", [{}, GUARDED], ids=["open", "guarded"])
@pytest.mark.parametrize(
    ("said", "count"),
    [(b"", 64), (b"", 1000), (b"\0", 64), (HELLO, 64)],
    ids=["nothing", "a thousand", "a byte", "the hello"],
)
async def test_idle_connections_keep_no_slave_out(tmp_path, config, said, count):
    """A slave is taken on its first try, whether it came before them or after."""

    async def enter(at: Connected) -> None:
        if config:
            await proved(at, INNER)
        else:
            at[1].write(bytes(8))

    async with (
        master_of(tmp_path, config) as master,
        connected(master) as before,
        idle(master, count, said),
        connected(master) as after,
    ):
        for number, at in enumerate((before, after)):
            await enter(at)
            assert len(await at[0].readexactly(12 + end_of(master))) > 12
            await until(lambda number=number: len(master.replication.slaves) == number + 1)  # type: ignore[misc]


@needs_openssl
async def test_connections_that_do_not_begin_tls_keep_no_slave_out(tmp_path):
    authority = Authority(tmp_path, "authority")
    certificate = authority.sign("broker")
    tls = TlsConfig(
        server_cert_path=certificate.cert, server_key_path=certificate.key,
        client_auth_server=True, client_trust_cert_path=authority.cert,
    )  # fmt: skip
    client = tls.client_context()

    async with (
        master_of(tmp_path, {"haTlsEnable": "true"}, tls) as master,
        idle(master, 200),
        connected(master, ssl=client, server_hostname="") as (reader, writer),
    ):
        writer.write(bytes(8))
        assert len(await reader.readexactly(12 + end_of(master))) > 12


async def test_a_connection_has_little_time_even_if_it_speaks_byte_by_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(replication_master, "PENDING_TIMEOUT_S", 0.5)

    async def trickle(at: Connected) -> None:
        with contextlib.suppress(OSError):
            at[1].write(HELLO)
            while not at[1].transport.is_closing():
                at[1].write(b"\x01")
                await asyncio.sleep(0.05)

    async with master_of(tmp_path, {**GUARDED}) as master, connected(master) as at:
        slow = asyncio.ensure_future(trickle(at))
        assert len(await all_of(at[0])) == 40
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_many_wrong_reports_of_one_address_are_one_line_of_the_log(tmp_path, caplog):
    async with master_of(tmp_path, {}) as master:
        for number in range(20):
            async with connected(master) as (reader, writer):
                writer.write(struct.pack(">q", 1 << 40 | number))
                assert await all_of(reader) == b""
    assert caplog.text.count("is turned away") == 1

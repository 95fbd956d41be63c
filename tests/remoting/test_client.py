"""RemotingClient: one connection an address, made again when lost, and a pause after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from kourou.errors import KourouError
from kourou.remoting import client as client_module
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import CallTimeoutError, Connection, ConnectionLostError, Handler
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from kourou.remoting.tls import TlsConfig
from support.loops import LOOPS, until

ECHO, NEVER, ASK_BACK = 1, 2, 3

pytestmark = pytest.mark.parametrize("loop", list(LOOPS))


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    return request.response(ext_fields=dict(request.ext_fields))


def never(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    return None


def ask_back(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    async def ask() -> None:
        answer = await connection.call(RemotingCommand(ECHO, {"from": "server"}))
        connection.send(request.response(ext_fields=answer.ext_fields))

    task = asyncio.get_running_loop().create_task(ask())
    task.add_done_callback(lambda done: done.result())
    return None


HANDLERS: dict[int, Handler] = {ECHO: echo, NEVER: never, ASK_BACK: ask_back}


@asynccontextmanager
async def a_server(port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(HANDLERS)
    port = await server.start(host, port)
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def a_client(**options) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(**options)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def a_listener_that_only_listens() -> Iterator[tuple[socket.socket, str]]:
    """The kernel makes connections to it; nobody reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, f"127.0.0.1:{listener.getsockname()[1]}"


async def test_calls_to_one_address_share_a_connection(loop):
    async with a_server() as (server, address), a_client() as client:
        calls = [client.call(address, RemotingCommand(ECHO, {"n": str(n)})) for n in range(50)]
        answers = await asyncio.gather(*calls)
        assert [answer.ext_fields["n"] for answer in answers] == [str(n) for n in range(50)]
        assert len(server.connections) == 1


async def test_each_address_has_its_own_connection(loop):
    async with a_server() as (one, first), a_server() as (two, second), a_client() as client:
        for address in (first, second, first):
            assert (await client.call(address, RemotingCommand(ECHO))).code == 0
        assert (len(one.connections), len(two.connections)) == (1, 1)


async def test_a_lost_connection_is_told_and_made_again(loop):
    lost: list[str] = []

    async with a_client(on_close=lost.append) as client:
        async with a_server() as (_, address):
            await client.call(address, RemotingCommand(ECHO))
            assert lost == []
        await until(lambda: lost == [address])
        async with a_server(int(address.rpartition(":")[2])):
            assert (await client.call(address, RemotingCommand(ECHO))).code == 0


async def test_an_address_that_refuses_is_left_alone_for_a_while(loop, monkeypatch):
    monkeypatch.setattr(client_module, "BACK_OFF_FIRST_S", 1000.0)
    monkeypatch.setattr(client_module, "BACK_OFF_MOST_S", 1000.0)

    async with a_server() as (_, address):
        pass
    async with a_client() as client:
        with pytest.raises(ConnectionLostError, match=f"{address} cannot be reached: .*"):
            await client.call(address, RemotingCommand(ECHO))
        async with a_server(int(address.rpartition(":")[2])) as (server, _):
            for send in (client.call, client.send_oneway):
                with pytest.raises(ConnectionLostError, match="is tried again in"):
                    await send(address, RemotingCommand(ECHO))
            assert len(server.connections) == 0


async def test_an_address_that_refused_is_tried_again_after_the_pause(loop):
    async with a_server() as (_, address):
        pass
    async with a_client() as client:
        with pytest.raises(ConnectionLostError, match="cannot be reached"):
            await client.call(address, RemotingCommand(ECHO))
        async with a_server(int(address.rpartition(":")[2])):
            answer = None
            while answer is None:
                await asyncio.sleep(0.01)
                with contextlib.suppress(ConnectionLostError):
                    answer = await client.call(address, RemotingCommand(ECHO))
            assert answer.code == 0


async def test_the_pause_doubles_up_to_its_limit(loop):
    peer = client_module._Peer("127.0.0.1:1")
    pauses = []
    for _ in range(9):
        peer.failed()
        pauses.append(peer.pause_s)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]


async def test_a_server_that_hangs_up_without_a_word_is_left_alone_too(loop, monkeypatch):
    monkeypatch.setattr(client_module, "BACK_OFF_FIRST_S", 1000.0)
    monkeypatch.setattr(client_module, "BACK_OFF_MOST_S", 1000.0)

    hang_up = lambda reader, writer: writer.close()  # noqa: E731
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with a_client() as client:
        with pytest.raises(ConnectionLostError, match=r"was lost|is closed|cannot be reached"):
            await client.call(address, RemotingCommand(ECHO))
        with pytest.raises(ConnectionLostError, match="is tried again in"):
            await client.call(address, RemotingCommand(ECHO))
    server.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:none", "127.0.0.1:70000", ":9876", ":", ""])
async def test_an_address_that_is_none_is_a_clear_error(loop, address):
    async with a_client() as client:
        with pytest.raises(ConnectionLostError, match="cannot be reached: an address is ip:port"):
            await client.call(address, RemotingCommand(ECHO))


async def test_the_time_of_a_call_covers_its_connection(loop):
    with a_listener_that_only_listens() as (_, address):
        # A connection in TLS, and the handshake never comes to its end.
        async with a_client(tls=TlsConfig(enable=True)) as client:
            with pytest.raises(CallTimeoutError, match=r"no connection to .* within 0.1 s"):
                await client.call(address, RemotingCommand(ECHO), timeout_s=0.1)


async def test_a_connection_that_takes_too_long_fails_and_is_left_alone(loop, monkeypatch):
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(client_module, "BACK_OFF_FIRST_S", 5.0)

    with a_listener_that_only_listens() as (_, address):
        async with a_client(tls=TlsConfig(enable=True)) as client:
            with pytest.raises(ConnectionLostError, match=r"no connection within 0.1 s"):
                await client.call(address, RemotingCommand(ECHO), timeout_s=20)
            with pytest.raises(ConnectionLostError, match="is tried again in"):
                await client.call(address, RemotingCommand(ECHO), timeout_s=20)


async def test_a_caller_that_gives_up_leaves_the_connection_to_the_others(loop):
    asking = set()

    def note(connection, request):
        asking.add(connection)
        return request.response()

    server = RemotingServer({ECHO: note})
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with a_client() as client:
        first = asyncio.ensure_future(client.call(address, RemotingCommand(ECHO)))
        second = asyncio.ensure_future(client.call(address, RemotingCommand(ECHO)))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).code == 0
        with pytest.raises(asyncio.CancelledError):
            await first
        await client.call(address, RemotingCommand(ECHO))
        assert asking == server.connections
        assert len(asking) == 1
    await server.stop()


async def test_servers_may_ask_clients(loop):
    async with a_server() as (_, address), a_client(handlers={ECHO: echo}) as client:
        answer = await client.call(address, RemotingCommand(ASK_BACK))
        assert answer.ext_fields == {"from": "server"}


async def test_a_oneway_request_arrives(loop):
    heard = []

    server = RemotingServer({ECHO: lambda _, request: heard.append(request.is_oneway)})
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with a_client() as client:
        await client.send_oneway(address, RemotingCommand(ECHO))
        await until(lambda: heard == [True])
    await server.stop()


async def test_closing_tells_those_who_wait_and_leaves_nothing_open(loop):
    lost: list[str] = []

    async with a_server() as (server, address):
        client = RemotingClient(on_close=lost.append)
        waiting = [asyncio.ensure_future(client.call(address, RemotingCommand(NEVER))) for _ in range(3)]
        await until(lambda: client._standing(address) and server.connections)
        await client.close()
        for call in waiting:
            with pytest.raises(ConnectionLostError):
                await call
        assert client._connections == set()
        await until(lambda: server.connections == set())
        assert lost == [address]
        with pytest.raises(ConnectionLostError, match="the client is closed"):
            await client.call(address, RemotingCommand(ECHO))
        await client.close()  # again


async def test_closing_while_connections_are_being_made_tells_those_who_wait(loop):
    with a_listener_that_only_listens() as (_, address):
        client = RemotingClient(tls=TlsConfig(enable=True))
        waiting = asyncio.ensure_future(client.call(address, RemotingCommand(ECHO), timeout_s=20))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ConnectionLostError, match="the connection was dropped"):
            await waiting
        assert client._connections == set()


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_a_peer_that_does_not_read_is_cut(loop, how):
    with a_listener_that_only_listens() as (_, address):
        client = RemotingClient()
        body = bytes(8_000_000)  # more than the kernel takes
        waiting = asyncio.ensure_future(client.call(address, RemotingCommand(ECHO, body=body), timeout_s=20))
        await until(lambda: client._connections)
        await asyncio.sleep(0)
        if how == "drop":
            client.drop(address)
        else:
            await client.close()
        with pytest.raises(ConnectionLostError):
            await waiting
        assert client._connections == set()
        await client.close()


async def test_dropping_closes_one_connection_and_the_next_call_makes_it_again(loop):
    lost: list[str] = []

    async with (
        a_server() as (one, first),
        a_server() as (two, second),
        a_client(on_close=lost.append) as client,
    ):
        client.drop(first)  # there is none yet
        await client.call(second, RemotingCommand(ECHO))
        waiting = asyncio.ensure_future(client.call(first, RemotingCommand(NEVER)))
        await until(lambda: client._standing(first) and one.connections)
        client.drop(first)
        with pytest.raises(ConnectionLostError):
            await waiting
        await until(lambda: not one.connections)
        assert (lost, len(two.connections)) == ([first], 1)
        assert (await client.call(first, RemotingCommand(ECHO))).code == 0


async def test_nothing_piles_up_for_a_peer_that_does_not_read(loop, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_UNSENT_BYTES", 1_000_000)

    with a_listener_that_only_listens() as (_, address):
        async with a_client() as client:
            request = RemotingCommand(ECHO, body=bytes(500_000))
            sends = [client.send_oneway(address, request) for _ in range(100)]
            refusals = await asyncio.gather(*sends, return_exceptions=True)
            assert refusals[0] is None
            assert isinstance(refusals[-1], KourouError)
            assert f"{address} does not read: " in str(refusals[-1])
            (connection,) = client._connections
            assert connection.unsent_bytes < 3_000_000


async def test_a_socket_that_is_connected_to_itself_is_no_server(loop):
    narcissus = socket.socket()
    narcissus.bind(("127.0.0.1", 0))
    narcissus.connect(narcissus.getsockname())
    narcissus.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=narcissus)
    with pytest.raises(ConnectionRefusedError, match="nobody listens there"):
        client_module._prepare(transport)
    transport.abort()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs: TCP_USER_TIMEOUT, of Linux")
async def test_the_kernel_is_told_to_give_up_on_a_machine_that_is_gone(loop):
    async with a_server() as (_, address), a_client() as client:
        await client.call(address, RemotingCommand(ECHO))
        (connection,) = client._connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        timeout_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert timeout_ms == client_module.UNACKNOWLEDGED_TIMEOUT_MS


async def test_addresses_without_a_connection_are_forgotten_when_there_are_many(loop, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_ADDRESSES", 10)

    async with a_server() as (_, address), a_client() as client:
        await client.call(address, RemotingCommand(ECHO))
        for port in range(1, 51):
            with pytest.raises(ConnectionLostError):
                await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))
            assert len(client._peers) <= 10
        assert client._standing(address) is not None

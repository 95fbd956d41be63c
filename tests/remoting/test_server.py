"""RemotingServer: ports, limits, peers that say nothing or read nothing, and an end that always comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.remoting import server as server_module
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from kourou.remoting.tls import TlsConfig
from support.loops import LOOPS, until

ECHO = 1

pytestmark = pytest.mark.parametrize("loop", list(LOOPS))


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    return request.response(body=request.body)


@asynccontextmanager
async def a_client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    try:
        yield client
    finally:
        await client.close()


async def ends(sock: socket.socket) -> None:
    """Wait until the other end of a socket is gone."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while await loop.sock_recv(sock, 65536):
            pass


async def test_one_server_listens_on_several_ports(loop):
    server = RemotingServer({ECHO: echo})
    ports = [await server.start("127.0.0.1", 0) for _ in range(3)]
    async with a_client() as client:
        for port in ports:
            assert (await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))).code == 0
        assert len(server.connections) == 3
    await server.stop()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


async def test_a_port_that_is_taken_is_a_clear_error_and_the_others_stay(loop):
    server = RemotingServer({ECHO: echo})
    port = await server.start("127.0.0.1", 0)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        await server.start("127.0.0.1", port)
    async with a_client() as client:
        assert (await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))).code == 0
    await server.stop()


async def test_ipv6(loop):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("needs: IPv6 on the loopback")

    server = RemotingServer({ECHO: echo})
    port = await server.start("::1", 0)
    async with a_client() as client:
        for address in (f"[::1]:{port}", f"::1:{port}"):
            assert (await client.call(address, RemotingCommand(ECHO))).code == 0
    await server.stop()


async def test_answers_do_not_wait_for_more_of_them(loop):
    server = RemotingServer({ECHO: echo})
    port = await server.start("127.0.0.1", 0)
    async with a_client() as client:
        await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))
        for connection in (*server.connections, *client._connections):
            assert connection._transport is not None
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()


@pytest.mark.parametrize("tls", [None, TlsConfig()], ids=["plain", "permissive"])
async def test_beyond_the_limit_connections_are_turned_away_until_there_is_room(loop, tls, caplog):
    server = RemotingServer({ECHO: echo}, max_connections=3, tls=tls)
    port = await server.start("127.0.0.1", 0)
    first = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    await until(lambda: len(server.connections) + len(server._accepting) == 3)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as beyond:
            await ends(beyond)
    assert [r.message for r in caplog.records] == ["more than 3 connections: one is turned away"]
    first.pop().close()
    await until(lambda: len(server.connections) + len(server._accepting) == 2)
    async with a_client() as client:
        assert (await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))).code == 0
    await server.stop()
    for sock in first:
        sock.close()


@pytest.mark.parametrize("tls", [None, TlsConfig()], ids=["plain", "permissive"])
async def test_who_says_nothing_is_let_go_and_who_talks_stays(loop, tls):
    server = RemotingServer({ECHO: echo}, idle_timeout_s=3.0, tls=tls)
    port = await server.start("127.0.0.1", 0)
    async with a_client() as client:
        await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))
        (talker,) = server.connections
        with socket.create_connection(("127.0.0.1", port)) as silent:
            gone = asyncio.ensure_future(ends(silent))
            while not gone.done():
                assert (await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))).code == 0
                await asyncio.sleep(0.01)
        assert server.connections == {talker}
    await server.stop()


async def test_a_peer_that_takes_no_answers_is_cut_when_it_was_idle_for_long(loop):
    server = RemotingServer({ECHO: echo}, idle_timeout_s=0.4)
    port = await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as stalled:
        await fill(stalled)
        await until(lambda: server.connections == set(), "the connection to be cut")
    await server.stop()


async def fill(stalled: socket.socket) -> None:
    """Send requests and read no answer, until nothing more is taken."""
    stalled.setblocking(False)
    frame = RemotingCommand(ECHO, body=bytes(1_000_000)).encode()
    with contextlib.suppress(TimeoutError, ConnectionError):
        while True:
            await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(stalled, frame), 0.2)


@pytest.mark.parametrize("tls", [None, TlsConfig()], ids=["plain", "permissive"])
@pytest.mark.parametrize("peer", ["reads nothing", "says nothing", "in the middle of a frame", "just came"])
async def test_stopping_comes_to_an_end_whatever_peers_do(loop, tls, peer):
    gone: list[Connection] = []

    server = RemotingServer({ECHO: echo}, on_close=gone.append, tls=tls)
    port = await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        if peer == "reads nothing":
            await fill(sock)
        elif peer == "in the middle of a frame":
            sock.sendall(RemotingCommand(ECHO).encode()[:-3])
        if peer != "just came":
            await until(lambda: server.connections or server._accepting)
        await server.stop()
        assert (server.connections, server._accepting) == (set(), {})
        await ends(sock)
    assert len(gone) <= 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_stopping_at_any_moment_of_a_crowd_arriving_leaves_nothing_open(loop):
    for turns in range(12):
        server = RemotingServer({ECHO: echo}, tls=TlsConfig() if turns % 2 else None)
        port = await server.start("127.0.0.1", 0)
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for sock in crowd[::2]:
            sock.sendall(RemotingCommand(ECHO).encode())
        for _ in range(turns // 2):
            await asyncio.sleep(0)
        await server.stop()
        assert (server.connections, server._accepting) == (set(), {})
        for sock in crowd:
            await ends(sock)
            sock.close()


async def test_a_server_may_be_stopped_twice_or_never_started_and_started_again(loop):
    server = RemotingServer({ECHO: echo})
    await server.stop()
    port = await server.start("127.0.0.1", 0)
    await server.stop()
    await server.stop()
    assert await server.start("127.0.0.1", port) == port
    async with a_client() as client:
        assert (await client.call(f"127.0.0.1:{port}", RemotingCommand(ECHO))).code == 0
    await server.stop()


async def test_without_free_descriptors_connections_wait_and_are_served_later(loop, monkeypatch):
    """The process may open no file: no spinning, and whoever is connected is answered."""
    monkeypatch.setattr(server_module, "ACCEPT_PAUSE_S", 0.1)
    pauses = []

    class Counting(RemotingServer):
        def _pause(self, listener, error):
            pauses.append(error.errno)
            super()._pause(listener, error)

    server = Counting({ECHO: echo})
    port = await server.start("127.0.0.1", 0)
    async with a_client() as client:
        address = f"127.0.0.1:{port}"
        await client.call(address, RemotingCommand(ECHO))
        late = [socket.socket() for _ in range(3)]
        with no_free_descriptors():
            for sock in late:
                sock.connect(("127.0.0.1", port))
            calls = 0
            while len(pauses) < 3:
                assert (await client.call(address, RemotingCommand(ECHO))).code == 0
                calls += 1
                assert calls < 500_000
            assert calls > len(pauses)  # a loop that spins on accept would pause in every turn
            assert len(server.connections) == 1
        await until(lambda: len(server.connections) == 4)
        for sock in late:
            sock.close()
    await server.stop()


@contextlib.contextmanager
def no_free_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""Connections over real sockets: frames however they come, answers, calls in both directions, bad bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.errors import BadMessageError
from kourou.remoting.connection import CallTimeoutError, Connection, ConnectionLostError, Handler
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import JSON, MAX_FRAME_BYTES, ROCKETMQ, RemotingCommand, decode
from kourou.remoting.server import RemotingServer

ECHO, FAIL, REFUSE, LATER, ASK_BACK = 1, 2, 3, 4, 5


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    return request.response(ext_fields=dict(request.ext_fields), body=request.body)


def fail(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    raise ZeroDivisionError("a bug")


def refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    raise BadMessageError("not like this")


def later(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    asyncio.get_running_loop().call_later(0.01, connection.send, request.response(remark="later"))
    return None


def ask_back(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    async def ask() -> None:
        answer = await connection.call(RemotingCommand(ECHO, {"from": "server"}))
        connection.send(request.response(ext_fields=answer.ext_fields))

    task = asyncio.get_running_loop().create_task(ask())
    task.add_done_callback(lambda done: done.result())
    return None


HANDLERS: dict[int, Handler] = {ECHO: echo, FAIL: fail, REFUSE: refuse, LATER: later, ASK_BACK: ask_back}


@asynccontextmanager
async def a_server() -> AsyncIterator[tuple[RemotingServer, int]]:
    """A server on a free port of the loopback."""
    server = RemotingServer(HANDLERS)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        for connection in clients:
            connection.close()
        clients.clear()
        await server.stop()


clients: list[Connection] = []


async def connect(port: int) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection({ECHO: echo}), "127.0.0.1", port)
    clients.append(connection)
    return connection


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
async def test_a_request_is_answered_in_the_form_it_was_asked(form):
    async with a_server() as (_, port):
        connection = await connect(port)
        request = RemotingCommand(ECHO, {"a": "b"}, b"body", serialize_type=form)
        response = await connection.call(request)
        assert (response.code, response.ext_fields, response.body) == (0, {"a": "b"}, b"body")
        assert (response.opaque, response.serialize_type) == (request.opaque, form)
        assert response.is_response


async def test_frames_split_into_single_bytes_and_joined_in_one_write_are_all_answered():
    async with a_server() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frames = [RemotingCommand(ECHO, {"n": str(n)}, opaque=n).encode() for n in range(20)]
        for byte in frames[0]:
            writer.write(bytes([byte]))
            await writer.drain()
        writer.write(b"".join(frames[1:]))
        for number in range(20):
            length = int.from_bytes(await reader.readexactly(4), "big")
            response = decode(await reader.readexactly(length))
            assert (response.opaque, response.ext_fields["n"]) == (number, str(number))
        writer.close()
        await writer.wait_closed()


async def test_what_handlers_raise_becomes_an_answer_and_the_connection_stays():
    async with a_server() as (_, port):
        connection = await connect(port)
        refused = await connection.call(RemotingCommand(REFUSE))
        assert (refused.code, refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, "not like this")
        failed = await connection.call(RemotingCommand(FAIL))
        assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
        unknown = await connection.call(RemotingCommand(999))
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert unknown.remark == " request type 999 not supported"
        assert (await connection.call(RemotingCommand(ECHO))).code == 0


async def test_answers_may_come_later_and_servers_may_ask_clients():
    async with a_server() as (_, port):
        connection = await connect(port)
        assert (await connection.call(RemotingCommand(LATER))).remark == "later"
        assert (await connection.call(RemotingCommand(ASK_BACK))).ext_fields == {"from": "server"}


async def test_a_oneway_request_gets_no_answer():
    async with a_server() as (_, port):
        connection = await connect(port)
        connection.send_oneway(RemotingCommand(ECHO))
        response = await connection.call(RemotingCommand(ECHO, {"second": "1"}))
        assert response.ext_fields == {"second": "1"}


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff\xff" + b"x" * 40,
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"x" * 40,
        (3).to_bytes(4, "big") + b"xyz",
        (8).to_bytes(4, "big") + b"\x00\xff\xff\xffabcd",
        (8).to_bytes(4, "big") + b"\x07\x00\x00\x04abcd",
        (8).to_bytes(4, "big") + b"\x00\x00\x00\x04abcd",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_frame_close_that_connection_alone(bad):
    async with a_server() as (_, port):
        good = await connect(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(RemotingCommand(ECHO, opaque=7).encode() + bad)
        answered = await reader.read(-1)  # to the end: the server closes
        assert decode(answered[4:]).opaque == 7
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        assert (await good.call(RemotingCommand(ECHO))).code == 0


async def test_calls_end_with_the_connection_or_with_their_time():
    async with a_server() as (server, port):
        connection = await connect(port)
        HANDLERS[6] = lambda _connection, _request: None
        with pytest.raises(CallTimeoutError, match="did not answer request 6 in"):
            await connection.call(RemotingCommand(6), timeout_s=0.05)
        waiting = asyncio.ensure_future(connection.call(RemotingCommand(6)))
        await asyncio.sleep(0.05)
        for other in list(server.connections):
            other.close()
        with pytest.raises(ConnectionLostError):
            await waiting
        with pytest.raises(ConnectionLostError):
            await connection.call(RemotingCommand(ECHO))
        assert server.connections == set()
        del HANDLERS[6]


async def test_nothing_more_is_read_from_a_peer_that_does_not_read():
    async with a_server() as (_, port):
        stalled = socket.create_connection(("127.0.0.1", port))
        stalled.setblocking(False)
        frame = RemotingCommand(ECHO, body=bytes(1_000_000)).encode()
        sent = 0
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            while sent < 200 * len(frame):
                await asyncio.wait_for(loop.sock_sendall(stalled, frame), 0.5)
                sent += len(frame)
        # The kernel's buffers and one paused transport hold what was sent: a few megabytes, not 200.
        assert 0 < sent < 60 * len(frame)
        other = await connect(port)
        assert (await other.call(RemotingCommand(ECHO))).code == 0
        stalled.close()

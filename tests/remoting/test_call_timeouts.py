"""Calls without an answer end in their time, all of a connection with one timer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import CallTimeoutError, Connection
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from support.loops import LOOPS

SILENT, ECHO = 1, 2
LONG_S = 600

pytestmark = pytest.mark.parametrize("loop", LOOPS)


@asynccontextmanager
async def connected() -> AsyncIterator[Connection]:
    server = RemotingServer({SILENT: lambda *_: None, ECHO: lambda _, request: request.response()})
    client = RemotingClient()
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        await client.call(address, RemotingCommand(ECHO))
        (connection,) = client._connections
        yield connection
    finally:
        await client.close()
        await server.stop()


async def ends(connection: Connection, timeout_s: float) -> None:
    with pytest.raises(CallTimeoutError, match=f"did not answer request {SILENT} in {timeout_s:g} s"):
        await connection.call(RemotingCommand(SILENT), timeout_s)


async def test_each_ends_in_its_own_time_whichever_came_first(loop):
    async with connected() as connection:
        patient = asyncio.create_task(connection.call(RemotingCommand(SILENT), LONG_S))
        await asyncio.gather(*(ends(connection, timeout_s) for timeout_s in (0.2, 0.05, 0.1, 0.3)))
        assert not patient.done()
        assert len(connection._calls) == 1
        await ends(connection, 0.05)  # after the timer was set for the patient one
        patient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await patient
        assert not connection._calls


async def test_no_call_ends_before_its_time(loop):
    async with connected() as connection:
        started = asyncio.get_running_loop().time()
        await ends(connection, 0.1)
        assert asyncio.get_running_loop().time() - started > 0.095


async def test_a_call_that_is_answered_or_cancelled_ends_no_other(loop):
    async with connected() as connection:
        cancelled = asyncio.create_task(connection.call(RemotingCommand(SILENT), LONG_S))
        other = asyncio.create_task(ends(connection, 0.1))
        await asyncio.sleep(0)
        cancelled.cancel()
        while not other.done():
            assert (await connection.call(RemotingCommand(ECHO), LONG_S)).is_response
            await asyncio.sleep(0.005)
        await other
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await ends(connection, 0.01)


async def test_calls_that_have_no_time_end_too(loop):
    async with connected() as connection:
        await asyncio.gather(*(ends(connection, timeout_s) for timeout_s in (0, 0.0001, 0, 0.05)))
        assert not connection._calls

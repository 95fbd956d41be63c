"""Slow peers: a frame that never ends does not keep a connection for ever, one that ends is answered."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kourou.remoting.connection import Connection
from kourou.remoting.protocol.command import RemotingCommand, decode
from kourou.remoting.server import RemotingServer
from support.loops import LOOPS

ECHO = 1
IDLE_S = 0.4
FRAME = RemotingCommand(ECHO, {"slow": "1"}, bytes(2000)).encode()


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.response(ext_fields=dict(request.ext_fields))


async def drip(port: int, data: bytes, pause_s: float, at_once: int = 1) -> bytes:
    """Send data byte by byte until all is sent or the server hangs up; what came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(reader.read(100_000))
    with contextlib.suppress(ConnectionError):
        for at in range(0, len(data), at_once):
            if reading.done():
                break
            writer.write(data[at : at + at_once])
            await writer.drain()
            await asyncio.sleep(pause_s)
    try:
        found = await reading
    except ConnectionError:  # it hung up while bytes were on their way
        found = b""
    writer.close()
    return found


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_frame_that_drips_in_is_given_up(loop):
    """Given peers that send a byte now and then, when their frame takes too long, then they are closed; one
    whose whole frames come slowly is answered."""

    server = RemotingServer({ECHO: echo}, idle_timeout_s=IDLE_S)
    port = await server.start("127.0.0.1", 0)
    answers = await asyncio.gather(
        drip(port, FRAME, IDLE_S / 10),
        # A whole frame and a piece of the next, again and again: nothing but a frame that begins is new.
        drip(port, FRAME * 20, IDLE_S / 10, len(FRAME) + len(FRAME) // 20),
        drip(port, FRAME[:-1], IDLE_S / 10, len(FRAME)),
    )
    assert answers[0] == b""
    assert decode(answers[1][4 : 4 + int.from_bytes(answers[1][:4], "big")]).ext_fields == {"slow": "1"}
    assert answers[2] == b""
    await server.stop()

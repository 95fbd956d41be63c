"""An echo server: what a broker could do that had nothing to store.

It has Kourou's event loop, reads the same frames with the same code and answers each send with a header of
the size that a broker's has. What a broker takes more than this goes to checking, storing and counting.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.beside_java.broker_processes import HOST, Broker, wait_for_port
from kourou.remoting.connection import Answer, Connection, Handler
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import JSON, RemotingCommand, frame_head
from kourou.remoting.server import RemotingServer

_ANSWER = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true",'
    b'"msgId":"7F00000100002A9F0000000000000000","queueId":"0","queueOffset":"0",'
    b'"transactionId":"7F0000014E2073D10000000000000000"},"flag":1,"language":"PYTHON","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":453}'
)


def _send(connection: Connection, request: RemotingCommand) -> Answer:
    return frame_head(JSON, _ANSWER % request.opaque)


def _offset(connection: Connection, request: RemotingCommand) -> Answer:
    return request.response(0, {"offset": "0"})


async def _serve() -> None:
    handlers: dict[int, Handler] = {
        RequestCode.SEND_MESSAGE_V2: _send,
        RequestCode.SEND_BATCH_MESSAGE: _send,
        RequestCode.UPDATE_AND_CREATE_TOPIC: lambda connection, request: request.response(),
        RequestCode.GET_MAX_OFFSET: _offset,
        RequestCode.GET_MIN_OFFSET: _offset,
    }
    server = RemotingServer(handlers)
    print(await server.start(HOST, 0), flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop()


@contextlib.contextmanager
def running_echo() -> Iterator[Broker]:
    """The server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            wait_for_port(process, port, "echo server", None)
            yield Broker("echo", f"{HOST}:{port}", "", process, process, 0.0, 0.0, 0.0, None)
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait()


if __name__ == "__main__":
    from kourou.cli.servers.serve import run, settle_memory

    settle_memory()
    run(_serve())

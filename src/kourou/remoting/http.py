"""HttpEndpoint: a few paths that answer GET, for monitoring: Prometheus, Kubernetes, a browser.

It runs on the event loop of the server and must not slow it down. So it supports little of HTTP: one request
a connection, only GET, no body. A request head is limited by MAX_HEAD_BYTES and REQUEST_TIMEOUT_S, an answer
by ANSWER_TIMEOUT_S. MAX_CONNECTIONS are served at a time; as many more get an error, the rest is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

import orjson

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 8192
MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
LINGER_S = 1.0  # how long unread input is drained: closing earlier would lose the answer
MAX_LINGER_BYTES = 1024 * 1024
BACKLOG = 64

JSON_TYPE = "application/json"


class HttpAnswer(NamedTuple):
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = JSON_TYPE

    @classmethod
    def of(cls, value: object, status: HTTPStatus = HTTPStatus.OK) -> HttpAnswer:
        """An answer in JSON."""
        return cls(status, orjson.dumps(value) + b"\n")

    def encode(self) -> bytes:
        """The answer as it goes out."""
        allow = "Allow: GET\r\n" if self.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            f"{allow}Connection: close\r\n\r\n"
        )
        return head.encode() + self.body


Route = Callable[[], Awaitable[HttpAnswer]]


class HttpEndpoint:
    """Paths and what answers them, behind a listening socket."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.exchanges: set[_Exchange] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is of the system's choice for port 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Exchange(self), host or None, port, backlog=BACKLOG, reuse_address=True
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = [exchange.task for exchange in self.exchanges if exchange.task is not None]
        for exchange in list(self.exchanges):
            exchange.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the loop to close the descriptors


class _Exchange(asyncio.Protocol):
    """One connection: a request and its answer."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._is_read = False  # what comes now is of no interest
        self._unread_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        count = len(self._endpoint.exchanges)
        if count >= 2 * MAX_CONNECTIONS:  # that many are being told already
            self._transport.abort()
            return
        is_full = count >= MAX_CONNECTIONS
        self._endpoint.exchanges.add(self)
        self._allow(REQUEST_TIMEOUT_S)
        if is_full:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"more than {MAX_CONNECTIONS} connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._endpoint.exchanges.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """A piece of the request."""
        if self._is_read:
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_LINGER_BYTES:
                self.abort()
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            end = self._head.find(b"\n\n")
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._head) > MAX_HEAD_BYTES):
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has at most {MAX_HEAD_BYTES} bytes"
            )
        elif end >= 0:
            self._answer(bytes(self._head).split(b"\n", 1)[0].split())

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, line: list[bytes]) -> None:
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1")
            return
        method, target = line[0], line[1].partition(b"?")[0].decode("latin-1")
        if method != b"GET":
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "GET is all that is served here")
            return
        route = self._endpoint.routes.get(target)
        if route is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is {', '.join(self._endpoint.routes)}")
            return
        self._is_read = True
        self._head.clear()
        self._allow(ANSWER_TIMEOUT_S)
        self.task = asyncio.get_running_loop().create_task(self._serve(route))

    async def _serve(self, route: Route) -> None:
        try:
            answer = await route()
        except Exception as error:
            log.exception("a path that answers HTTP failed")
            answer = HttpAnswer.of({"error": type(error).__name__}, HTTPStatus.INTERNAL_SERVER_ERROR)
        if self._transport is not None:
            self._transport.write(answer.encode())
            self._transport.close()

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Refuse, and drain the input for a moment: a socket closed with unread bytes loses its answer."""
        self._is_read = True
        self._head.clear()
        self._allow(LINGER_S)
        if self._transport is not None:
            self._transport.write(HttpAnswer.of({"error": reason}, status).encode())
            self._transport.write_eof()

    def _allow(self, seconds: float) -> None:
        """Cut the connection after so long."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

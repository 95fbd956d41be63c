"""Connection: one TCP connection that speaks RemotingCommand, the same at both ends.

Every complete frame of a read is handled, and what a turn of the loop sends goes out in one write. A handler
is a plain function of (connection, request) that returns the response, or None if it answers later with
`connection.send` (or if nobody waits). Both ends may ask: `call` sends a request and gives its response.

Limits: a frame is at most MAX_FRAME_BYTES, its header MAX_HEADER_BYTES; bytes that are no frame close this
connection alone; while a peer does not read what it is sent, nothing more is read from it, nor done for it.
What a server keeps for all its peers is bounded by `Buffers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Callable, Collection, Mapping
from typing import cast

from kourou.errors import KourouError
from kourou.message.host import pack_host
from kourou.message.sysflag import BORN_HOST_V6
from kourou.remoting.buffers import Buffers
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import (
    MAX_FRAME_BYTES,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    BadFrameError,
    RemotingCommand,
    decode_frame,
    new_layouts,
)

log = logging.getLogger(__name__)

Pieces = list[bytes | memoryview]
# A response, the frame of one, a frame in pieces, or None if it is sent later or never.
Answer = RemotingCommand | bytes | Pieces | None
Handler = Callable[["Connection", RemotingCommand], Answer]
# Who waits for an answer, until when; for whom no answer came: the code of the request, and the time it had
_Call = tuple[asyncio.Future[RemotingCommand], float, int, float]

_FRAME_HEAD = struct.Struct(">iI")

# For what was sent to go out, and for TLS to say good-bye; then a connection is cut.
CLOSE_TIMEOUT_S = 1.0
_TURN_S = 0.005
_TIMER_EARLY_S = 0.001  # uvloop's timers count whole milliseconds

# More than a message has: its properties are at most 32 KiB, six times that if every character is escaped.
MAX_HEADER_BYTES = 1 << 20
# A frame up to this size is not accounted for.
SMALL_FRAME_BYTES = 16 * 1024
# How much is answered to a peer before it has to show that it reads.
UNSENT_BYTES = 1 << 20

# Calls under way on one connection; Java's semaphore for asynchronous calls has the same.
MAX_CALLS = 65535
# How often calls without an answer are looked through at most: one may run that much over its time.
EXPIRY_STEP_S = 0.01


class ConnectionLostError(KourouError):
    """The peer is gone, or never was there."""


class CallTimeoutError(KourouError):
    """No answer within the time that the caller gave."""


class Outbox:
    """Connections that have something to write. They do when this turn of the loop ends, so that all requests
    that are there are handled before the first peer is woken: a third more small requests a second."""

    def __init__(self) -> None:
        self._waiting: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Have a connection flushed."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(connection)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.flush()


class Connection(asyncio.Protocol):
    """One connection and what is under way on it."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        outbox: Outbox | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self._handlers = handlers
        self._on_open = on_open
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []  # of a frame that is not complete
        self._missing = 0  # bytes until it is, or until its length is known
        self._part_since = 0.0  # when its first bytes came
        self._outbox = outbox or Outbox()
        self._buffers = buffers
        self._is_large = False  # the frame that is not complete
        self._has_room = True  # for more of it
        self._is_stalled = False  # the peer does not read
        self._out: Pieces = []  # what is written when this turn of the loop ends
        self._out_bytes = 0  # of the large ones among it
        self._request_bytes = 0  # of the requests among it
        self._layouts = new_layouts()
        self._calls: dict[int, _Call] = {}
        self._expiry: asyncio.Handle | None = None  # of the call whose time is up first
        self._expires_at = 0.0  # when it is; uvloop's handle of a time that has come does not know
        self.peer = self.host = ""  # ip:port, ip
        self.peer_host = b""  # the same, as records have it
        self.peer_flag = 0  # what the system flag of a record says of it
        self.last_seen = self._opened_at = time.monotonic()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        host, port = (self._transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.peer, self.host = f"{host}:{port}", host
        with contextlib.suppress(ValueError):  # a scope in an IPv6 address is left out
            self.peer_host = pack_host(host.partition("%")[0], port)
        self.peer_flag = BORN_HOST_V6 if len(self.peer_host) == 20 else 0
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: whoever waits for an answer is told."""
        self._transport = None
        self._parts = []
        if self._buffers is not None:
            self._buffers.forget(self)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        calls, self._calls = self._calls, {}
        for future, *_ in calls.values():
            if not future.done():
                future.set_exception(ConnectionLostError(f"connection to {self.peer} was lost"))
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        """The peer does not read: read nothing from it either."""
        self._is_stalled = True
        if self._buffers is not None:
            self._buffers.keep(self, self._buffered_bytes)
        self._pause_or_resume()

    def resume_writing(self) -> None:
        """The peer reads again: do what it had asked for, and read on."""
        self._is_stalled = False
        if self._buffers is not None:
            self._buffers.keep(self, 0)
        if self._parts and self._missing <= 0:
            data, self._parts = b"".join(self._parts), []
            self._take(data, self._part_since)
        self._pause_or_resume()

    def go_on(self) -> None:
        """There is room for the frame that waited for it."""
        self._has_room = True
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_stalled or not self._has_room:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Handle every complete frame, and answer with one write. Hot."""
        self.last_seen = began = time.monotonic()
        if self._parts:
            # Parts are joined once, not with each read: a frame may come byte by byte.
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0 or self._is_stalled:
                self._keep_part(len(data))
                return
            data = b"".join(self._parts)
            self._parts = []
            began = self._part_since
        self._take(data, began)

    def _take(self, data: bytes, began: float) -> None:
        """Handle what has come; its first bytes came at `began`. Hot."""
        view = memoryview(data)
        at, end = 0, len(data)
        wanted = 8  # what a frame needs at least; known better once its length is there
        unpack_head, find_handler, layouts = _FRAME_HEAD.unpack_from, self._handlers.get, self._layouts
        try:
            while end - at >= 8:
                length, word = unpack_head(data, at)
                if not 4 <= length <= MAX_FRAME_BYTES:
                    raise BadFrameError(f"frame of {length} bytes")
                following = at + 4 + length
                if following > end:
                    if word & 0xFFFFFF > MAX_HEADER_BYTES:
                        raise BadFrameError(f"header of {word & 0xFFFFFF} bytes")
                    wanted = 4 + length
                    break
                if self._out_bytes > UNSENT_BYTES and self._has_to_read():
                    wanted = 0
                    break
                command = decode_frame(data, view, at + 8, following, word, layouts)
                at = following
                if command.flag & RESPONSE_FLAG:
                    self._take_answer(command)
                else:
                    self.answer(command, find_handler(command.code, _not_supported))
            if (
                4 <= end - at < 8
                and not 4 <= (length := int.from_bytes(view[at : at + 4], "big")) <= MAX_FRAME_BYTES
            ):
                raise BadFrameError(f"frame of {length} bytes")
        except BadFrameError as error:
            log.warning("closing the connection of %s: %s", self.peer, error)
            if self._buffers is not None:
                self._buffers.refusals.count("badFrame")
            self.close()
            return
        if at and self._is_large:
            self._is_large = False
            if self._buffers is not None:
                self._buffers.release(self)
        if at < end and self._transport is not None:
            self._part_since = self.last_seen if at else began
            self._parts = [data[at:]]
            self._missing = wanted - (end - at)
            self._is_large = wanted > SMALL_FRAME_BYTES
            self._keep_part(end - at)

    def _keep_part(self, size: int) -> None:
        """Account for a part of a frame, and read no more of it while there is no room."""
        if self._is_large and self._buffers is not None:
            self._has_room = self._buffers.grow(self, size)
            if not self._has_room:
                self._pause_or_resume()

    def _has_to_read(self) -> bool:
        """Whether the peer has to take its answers before it gets more."""
        self.flush()
        return self._is_stalled

    def _take_answer(self, command: RemotingCommand) -> None:
        call = self._calls.pop(command.opaque, None)
        if call is not None and not call[0].done():
            if command.body is not None:
                command.body = bytes(command.body)  # the buffer of the read is not kept for it
            call[0].set_result(command)

    def answer(self, command: RemotingCommand, handler: Handler) -> None:
        """Have a request handled, and send what its handler returns, or the error that it raises. Hot."""
        try:
            response = handler(self, command)
        except Exception as error:
            response = self.failure(command, error)
        if response is None:
            command.detach()
        elif not command.flag & ONEWAY_FLAG:
            self.send(response)

    # For a request that was held. A connection that is timed tells the two apart.
    answer_again = answer

    def failure(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        """What is answered to a request whose handler raised an error."""
        if isinstance(error, KourouError):
            return command.response(error.response_code, remark=str(error))
        log.error("request %s of %s failed", command, self.peer, exc_info=error)
        return command.response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def reply(self, request: RemotingCommand, answer: RemotingCommand | bytes | Pieces) -> None:
        """Answer a request whose handler returned None before, if somebody waits for it."""
        if not request.flag & ONEWAY_FLAG:
            self.send(answer)

    # What others do with a connection

    @property
    def is_open(self) -> bool:
        """Whether it stands."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def local_address(self) -> str:
        """The end of it that is here, as host:port: what the peer called."""
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def send(self, command: RemotingCommand | bytes | Pieces) -> None:
        """Send a request that nobody waits for, or an answer."""
        out = self._out
        if not out:
            self._outbox.add(self)
        if isinstance(command, bytes):
            out.append(command)
        elif isinstance(command, list):
            out += command
            self._out_bytes += int.from_bytes(command[0][:4], "big")  # the length of the frame
        else:
            frame = command.encode()
            out.append(frame)
            self._out_bytes += len(frame)

    def flush(self) -> None:
        """Write what was sent: many small answers as one, slices of the log as they are."""
        pieces, self._out = self._out, []
        self._request_bytes = self._out_bytes = 0
        if self._transport is None or not pieces:
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif pieces[-1].__class__ is bytes and pieces[1].__class__ is bytes:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)
        if self._is_stalled and self._buffers is not None:
            self._buffers.keep(self, self._buffered_bytes)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Send a request that nobody answers."""
        request.flag |= ONEWAY_FLAG
        self._send_request(request)

    def _send_request(self, request: RemotingCommand) -> None:
        frame = request.encode()
        self._request_bytes += len(frame)
        self.send(frame)

    async def call(self, request: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Send a request; its response. Hot: one timer for all calls costs a tenth of one for each."""
        if not self.is_open:
            raise ConnectionLostError(f"connection to {self.peer} is closed")
        calls = self._calls
        if len(calls) >= MAX_CALLS:
            raise KourouError(f"more than {MAX_CALLS} calls to {self.peer} are under way")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        deadline = loop.time() + timeout_s
        calls[request.opaque] = (future, deadline, request.code, timeout_s)
        if self._expiry is None or deadline < self._expires_at:
            self._expire_at(deadline)
        self._send_request(request)
        try:
            return await future
        finally:
            calls.pop(request.opaque, None)

    def _expire_at(self, deadline: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = deadline
        self._expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        """End the calls whose time is up."""
        self._expiry = None
        now = asyncio.get_running_loop().time() + _TIMER_EARLY_S
        following = None
        for opaque, (future, deadline, code, timeout_s) in list(self._calls.items()):
            if deadline > now:
                following = deadline if following is None else min(following, deadline)
                continue
            del self._calls[opaque]
            if not future.done():
                error = f"{self.peer} did not answer request {code} in {timeout_s:g} s"
                future.set_exception(CallTimeoutError(error))
        if following is not None:
            self._expire_at(max(following, now + EXPIRY_STEP_S))

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come on it yet."""
        return self.last_seen == self._opened_at

    def has_waited_since(self, moment: float) -> bool:
        """Whether nothing has come since then, or only pieces of one frame: who sends a byte now and then is
        as good as silent, and keeps more."""
        return self.last_seen < moment or (bool(self._parts) and self._part_since < moment)

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return self._buffered_bytes + sum(map(len, self._out))

    @property
    def unsent_request_bytes(self) -> int:
        """The same, but of what waits for the end of the turn the requests alone. Hot: asked before each."""
        return self._buffered_bytes + self._request_bytes

    @property
    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close at once; what has not gone out is lost. To close alone is to wait for the peer to read."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after what was sent has gone out."""
        self.flush()
        if self._transport is not None:
            self._transport.close()


async def close_all(connections: Collection[Connection]) -> None:
    """Close connections, and wait until their owner, who holds this collection, has let go of them.

    It never takes more than twice CLOSE_TIMEOUT_S.
    """
    for connection in list(connections):
        connection.close()
    await _until_empty(connections)
    for connection in list(connections):
        connection.abort()
    await _until_empty(connections)
    await asyncio.sleep(0)  # uvloop closes the descriptor in the turn after the protocol was told


async def _until_empty(connections: Collection[Connection]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CLOSE_TIMEOUT_S
    while connections and loop.time() < deadline:
        await asyncio.sleep(_TURN_S)


def _not_supported(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    remark = f" request type {request.code} not supported"
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

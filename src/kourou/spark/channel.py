"""Channel: a blocking connection that has several requests under way, and the channels of a worker process.

Spark's tasks are plain blocking code, so this is a plain socket with the frames of `kourou.remoting`.
Requests are told apart by their opaque: `submit` many, then `wait` for each. A worker keeps its channels
from one task to the next (`channel_to`); one that failed, or that still owes answers, is closed.

A server that is away may be back a moment later: `Wait` is how long everybody here tries again.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import MAX_FRAME_BYTES, RemotingCommand, decode
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

READ_BUFFER_BYTES = 1024 * 1024
BACK_OFF_FIRST_S = 0.1
BACK_OFF_MOST_S = 5.0
CONNECT_TIMEOUT_S = 3.0
LOG_REPEAT_S = 30.0  # what is waited for is said again
# What a query has seen is waited for through a restart; what it never saw is rather a wrong address.
WAIT_S = 300.0
FIRST_WAIT_S = 15.0

# A broker that is busy, or that is starting or stopping, may answer the same request a moment later.
RETRY_CODES = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))

_T = TypeVar("_T")
_LENGTH = struct.Struct(">I")


class AwayError(KourouError):
    """Something that is not there, and may be a moment later."""


class ChannelError(AwayError):
    """A server that cannot be reached, or that hung up."""


class AnsweredError(KourouError):
    """A server that said no."""

    def __init__(self, address: str, what: str, answer: RemotingCommand) -> None:
        super().__init__(
            f"{address} refused {what}: {answer.remark or 'no reason given'} (code {answer.code})"
        )
        self.code = answer.code


@dataclass(frozen=True, slots=True, kw_only=True)
class NetSettings:
    """How to talk to servers. It travels to the workers, and is the key of their channels."""

    timeout_s: float = 10.0
    wait_s: float = WAIT_S
    first_wait_s: float = FIRST_WAIT_S
    retries: int | None = None  # as many as there is time for
    retry_interval_s: float = BACK_OFF_FIRST_S
    tls: TlsConfig | None = None
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None

    def sign(self, request: RemotingCommand) -> RemotingCommand:
        """Add who asks."""
        if self.access_key is None or self.secret_key is None:
            return request
        return Credentials(self.access_key, self.secret_key, self.security_token).sign(request)


class Channel:
    """One connection."""

    def __init__(self, address: str, settings: NetSettings) -> None:
        self.address = address
        self._settings = settings
        host, _, port = address.rpartition(":")
        try:
            plain = socket.create_connection(
                (host.strip("[]"), int(port)), min(settings.timeout_s, CONNECT_TIMEOUT_S)
            )
            plain.settimeout(settings.timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.tls is not None and settings.tls.enable:
                plain = settings.tls.client_context().wrap_socket(plain)
        except (OSError, ValueError) as error:
            raise ChannelError(f"cannot connect to {address}: {error}") from error
        self._socket = plain
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._begin = self._end = 0  # of what was received and not looked at
        self.kept: dict[int, RemotingCommand] = {}  # answers that came before somebody waited for them
        self.owed = 0
        self.closed = False

    def submit(self, request: RemotingCommand) -> int:
        """Send a request; what `wait` takes."""
        self.send([self._settings.sign(request).encode()])
        return request.opaque

    def send(self, requests: Sequence[bytes]) -> None:
        """Send requests that are encoded, at once: each by itself would cost two calls of the system."""
        try:
            self._socket.sendall(b"".join(requests))
        except OSError as error:
            self.close()
            raise ChannelError(f"{self.address} is gone: {error}") from error
        self.owed += len(requests)

    def wait(self, opaque: int) -> RemotingCommand:
        """The answer to a request."""
        while opaque not in self.kept:
            self.keep(self.next_frame())
        self.owed -= 1
        return self.kept.pop(opaque)

    def keep(self, frame: memoryview) -> None:
        """Keep an answer until somebody waits for it."""
        answer = decode(frame)
        if answer.is_response:  # a broker may ask its clients something; nobody here has an answer
            if answer.body is not None:
                answer.body = bytes(answer.body)
            self.kept[answer.opaque] = answer

    def call(self, request: RemotingCommand) -> RemotingCommand:
        """Send a request and wait for its answer."""
        return self.wait(self.submit(request))

    def next_frame(self) -> memoryview:
        """The next frame without its length, in a buffer: good until the next call. Hot."""
        if self.closed:  # by somebody else who waited for an answer
            raise ChannelError(f"the connection to {self.address} was lost")
        try:
            if self._end - self._begin < 4:
                self._receive(4)
            (length,) = _LENGTH.unpack_from(self._buffer, self._begin)
            if self._end - self._begin < 4 + length:
                if length > 4 * MAX_FRAME_BYTES:
                    raise OSError(f"a frame of {length} bytes")
                self._receive(4 + length)
        except OSError as error:
            self.close()
            raise ChannelError(f"no answer from {self.address}: {error}") from error
        at = self._begin + 4
        self._begin = at + length
        return memoryview(self._buffer)[at : self._begin]

    def _receive(self, size: int) -> None:
        """Receive until there are so many bytes in the buffer; move what is there to its front if need be."""
        if self._begin + size > len(self._buffer):
            left = self._buffer[self._begin : self._end]
            if size > len(self._buffer):
                self._buffer = bytearray(size)
            self._buffer[: len(left)] = left
            self._begin, self._end = 0, len(left)
        view = memoryview(self._buffer)
        while self._end - self._begin < size:
            received = self._socket.recv_into(view[self._end :])
            if received == 0:
                raise OSError("it hung up")
            self._end += received

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self._socket.close()


class _OwnChannels(threading.local):
    """The channels of a thread: two threads must not read from one connection."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, str, NetSettings], Channel] = {}


_own = _OwnChannels()


def channel_to(address: str, settings: NetSettings) -> Channel:
    """The channel of this process and thread to an address."""
    key = (os.getpid(), address, settings)  # a fork must not use the connections of its parent
    channel = _own.by_key.get(key)
    if channel is not None and (channel.closed or channel.owed):
        channel.close()
        channel = None
    if channel is None:
        channel = _own.by_key[key] = Channel(address, settings)
    return channel


def close_channels() -> None:
    """Hang up everywhere, in this thread."""
    while _own.by_key:
        _own.by_key.popitem()[1].close()


class Wait:
    """Tries that go on, after pauses that grow, until it has taken too long. The log says for what."""

    def __init__(self, settings: NetSettings, what: str, limit_s: float | None = None) -> None:
        self._what = what
        self._limit_s = settings.wait_s if limit_s is None else limit_s
        self._tries_left = settings.retries
        self._pause_s = settings.retry_interval_s
        self._started = time.monotonic()
        self._log_at = self._started

    def pause(self, error: KourouError) -> None:
        """Sleep before the next try; an error where there is to be none."""
        now = time.monotonic()
        waited = now - self._started
        if waited >= self._limit_s or self._tries_left == 0:
            raise ChannelError(
                f"{error} (waited {waited:.0f} s for {self._what}; see waitTimeout)"
            ) from error
        if self._tries_left is not None:
            self._tries_left -= 1
        if now >= self._log_at:
            log.warning("waiting for %s, up to %.0f s: %s", self._what, self._limit_s - waited, error)
            self._log_at = now + LOG_REPEAT_S
        time.sleep(min(self._pause_s, max(self._limit_s - waited, 0.0)))
        self._pause_s = min(2 * self._pause_s, BACK_OFF_MOST_S)


def retrying(settings: NetSettings, what: str, work: Callable[[], _T], *, limit_s: float | None = None) -> _T:
    """What `work` gives; it is tried again while something is away or a server is busy."""
    wait = Wait(settings, what, limit_s)
    while True:
        try:
            return work()
        except (AwayError, AnsweredError) as error:
            if isinstance(error, AnsweredError) and error.code not in RETRY_CODES:
                raise
            wait.pause(error)


def _on_channel(address: str, settings: NetSettings, work: Callable[[Channel], _T]) -> _T:
    """What `work` gives on a channel; on a new one, if that of before turns out to be dead."""
    known = _own.by_key.get((os.getpid(), address, settings))
    channel = channel_to(address, settings)
    try:
        return work(channel)
    except ChannelError as error:
        if channel is not known or isinstance(error.__cause__, TimeoutError):
            raise
    return work(channel_to(address, settings))


def call(
    address: str,
    settings: NetSettings,
    code: int,
    fields: Mapping[str, str],
    what: str,
    body: bytes | None = None,
) -> RemotingCommand:
    """A request that must be answered with success."""
    return _on_channel(address, settings, lambda channel: _ask(channel, [(code, fields, body)], what)[0])


def call_all(
    address: str, settings: NetSettings, requests: list[tuple[int, Mapping[str, str]]], what: str
) -> list[RemotingCommand]:
    """Many requests to one server, all under way at once; each must be answered with success."""
    asked = [(code, fields, None) for code, fields in requests]
    return _on_channel(address, settings, lambda channel: _ask(channel, asked, what))


def _ask(
    channel: Channel, requests: Sequence[tuple[int, Mapping[str, str], bytes | None]], what: str
) -> list[RemotingCommand]:
    opaques = [channel.submit(RemotingCommand(code, dict(fields), body)) for code, fields, body in requests]
    answers = [channel.wait(opaque) for opaque in opaques]
    for answer in answers:
        if answer.code != ResponseCode.SUCCESS:
            raise AnsweredError(channel.address, what, answer)
    return answers

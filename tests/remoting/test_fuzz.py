"""A server in bad company: bytes that are no frames, or only nearly, in whatever pieces they come.

Whatever a peer sends, its connection alone may end; others are answered, and nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import socket
import struct
import tracemalloc
import weakref
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message.host import pack_host
from kourou.remoting.connection import Connection, Handler
from kourou.remoting.protocol.command import JSON, MAX_FRAME_BYTES, ROCKETMQ, RemotingCommand, decode
from kourou.remoting.server import RemotingServer
from kourou.remoting.tls import TlsConfig
from support.loops import LOOPS, until

ECHO = 1


def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    return request.response(ext_fields=dict(request.ext_fields), body=request.body)


class Remembering(RemotingServer):
    """Knows which of its connections are still in memory."""

    def __init__(self, handlers: Mapping[int, Handler], tls: TlsConfig | None) -> None:
        super().__init__(handlers, tls=tls)
        self.seen: weakref.WeakSet[Connection] = weakref.WeakSet()

    def _opened(self, connection: Connection) -> None:
        self.seen.add(connection)
        super()._opened(connection)


class Victim:
    """A server on a loop of its own, and a peer that behaves, which must be answered all the time."""

    def __init__(self, runner: asyncio.Runner, tls: TlsConfig | None) -> None:
        self._runner = runner
        self.server = Remembering({ECHO: echo}, tls=tls)
        self.port = runner.run(self.server.start("127.0.0.1", 0))
        self.reader, self.writer = runner.run(asyncio.open_connection("127.0.0.1", self.port))

    def attack(self, *pieces: bytes, then: str = "wait") -> bytes:
        """Send pieces on a connection of their own; what came back until its end."""
        return bytes(self._runner.run(asyncio.wait_for(self._attack(pieces, then), 30)))

    async def _attack(self, pieces: tuple[bytes, ...], then: str) -> bytes:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.setblocking(False)
            reading = loop.create_task(read_to_the_end(sock))
            with contextlib.suppress(OSError):  # the server may have had enough
                for piece in pieces:
                    await loop.sock_sendall(sock, piece)
                    await asyncio.sleep(0)
                await self.is_well()
                if then == "wait":
                    sock.shutdown(socket.SHUT_WR)
                    await reading
                elif then == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if not reading.done():
                reading.cancel()
            await asyncio.wait((reading,))
        await self.is_well()
        await until(lambda: len(self.server.connections) == 1 and not self.server._accepting)
        return b"" if reading.cancelled() else reading.result()

    async def is_well(self) -> None:
        """Another connection is answered."""
        request = RemotingCommand(ECHO, {"how": "are you"})
        self.writer.write(request.encode())
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        answer = decode(await self.reader.readexactly(length))
        assert (answer.opaque, answer.ext_fields) == (request.opaque, {"how": "are you"})

    def assert_keeps_nothing(self) -> None:
        """All connections but one are let go of, also by whoever else held them."""

        def nothing_is_kept() -> bool:
            gc.collect()
            return len(self.server.connections) == len(self.server.seen) == 1 and not self.server._accepting

        self._runner.run(until(nothing_is_kept))

    def stop(self) -> None:
        self.writer.close()
        self._runner.run(self.server.stop())
        self._runner.run(asyncio.sleep(0.01))


async def read_to_the_end(sock: socket.socket) -> bytes:
    loop, parts = asyncio.get_running_loop(), []
    with contextlib.suppress(ConnectionError):
        while part := await loop.sock_recv(sock, 1 << 20):
            parts.append(part)
    return b"".join(parts)


@pytest.fixture(scope="module", params=list(LOOPS))
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner


@pytest.fixture(scope="module", params=[None, TlsConfig()], ids=["plain", "permissive"])
def victim(runner: asyncio.Runner, request: pytest.FixtureRequest) -> Iterator[Victim]:
    logging.getLogger("kourou.remoting").setLevel(logging.CRITICAL)  # there is much to complain of
    victim = Victim(runner, request.param)
    yield victim
    victim.assert_keeps_nothing()
    victim.stop()
    logging.getLogger("kourou.remoting").setLevel(logging.NOTSET)


def frame(payload: bytes, length: int | None = None) -> bytes:
    return struct.pack(">i", len(payload) if length is None else length) + payload


def headed(header: bytes, form: int = JSON, length: int | None = None, body: bytes = b"") -> bytes:
    """A frame around a header, true or not."""
    word = form << 24 | (len(header) if length is None else length) & 0xFFFFFF
    return frame(struct.pack(">I", word) + header + body)


def json_header(**fields: object) -> bytes:
    return json.dumps(
        {"code": ECHO, "opaque": 1, "flag": 0, "language": "JAVA", "version": 0} | fields
    ).encode()


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
numbers = st.integers(-(2**31), 2**31 - 1)
names = ("code", "opaque", "flag", "language", "version", "remark", "extFields", "serializeTypeCurrentRPC")


@st.composite
def bad_frames(draw: st.DrawFn) -> bytes:
    """Frames that are wrong somewhere, or right by chance."""
    kind = draw(st.sampled_from(["noise", "lengths", "garbage", "fields", "binary", "cut", "flipped"]))
    if kind == "noise":
        return draw(st.binary(min_size=1, max_size=200))
    if kind == "lengths":
        return frame(struct.pack(">i", draw(numbers)) + draw(st.binary(max_size=100)), draw(numbers))
    if kind == "garbage":
        return headed(draw(st.binary(max_size=100)), draw(st.integers(0, 255)))
    if kind == "fields":
        fields = draw(st.dictionaries(st.sampled_from(names), any_json, max_size=6))
        return headed(json_header(**fields), body=draw(st.binary(max_size=20)))
    good = RemotingCommand(
        draw(numbers) & 0x7FFF, {"k": "v", "é": "ü"}, b"body", serialize_type=ROCKETMQ
    ).encode()
    if kind == "binary":
        head = struct.pack(">hBhiii", *(draw(st.integers(0, 127)) for _ in range(5)), draw(numbers))
        return headed(head + draw(st.binary(max_size=60)), ROCKETMQ)
    if kind == "cut":
        return good[: draw(st.integers(1, len(good)))]
    at = draw(st.integers(0, len(good) - 1))
    return good[:at] + bytes([draw(st.integers(0, 255))]) + good[at + 1 :]


@given(
    frames=st.lists(bad_frames(), min_size=1, max_size=5), then=st.sampled_from(["wait", "close", "reset"])
)
def test_no_frame_does_harm_to_others(victim, frames, then):
    victim.attack(*frames, then=then)


@given(data=st.data())
def test_no_way_to_cut_frames_changes_what_is_answered(victim, data):
    whole = b"".join(RemotingCommand(ECHO, {"n": str(n)}, bytes(n), opaque=n).encode() for n in range(20))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=30)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)])]
    answers = list(answers_in(victim.attack(*pieces)))
    assert [(a.opaque, a.ext_fields, len(a.body or b"")) for a in answers] == [
        (n, {"n": str(n)}, n) for n in range(20)
    ]


def answers_in(data: bytes) -> Iterator[RemotingCommand]:
    view, at = memoryview(data), 0
    while at < len(data):
        end = at + 4 + int.from_bytes(view[at : at + 4], "big")
        yield decode(view[at + 4 : end])
        at = end


HUGE = "x" * 1_000_000
CASES = {
    "nothing at all": (b"",),
    "a length of zero": (frame(b""),),
    "a negative length": (frame(b"abc", -1),),
    "the largest length, and little behind it": (frame(b"abc", MAX_FRAME_BYTES),),
    "a length beyond the largest": (frame(b"abc", MAX_FRAME_BYTES + 1),),
    "a header longer than its frame": (headed(b"{}", length=100),),
    "a header without end": (headed(json_header()[:-4]),),
    "a header that is no object": (headed(b"[1,2]"), headed(b"null")),
    "invalid UTF-8": (headed(b'{"code":1,"opaque":1,"remark":"\xff\xfe"}'),),
    "half a surrogate": (headed(b'{"code":1,"opaque":1,"extFields":{"k":"\\ud800"}}'),),
    "deep nesting": (headed(b'{"code":1,"opaque":1,"extFields":' + b"[" * 500_000),),
    "deep nesting that is closed": (headed(json_header()[:-1] + b',"x":' + b"[" * 900 + b"]" * 900 + b"}"),),
    "numbers without end": (headed(b'{"code":1,"opaque":' + b"9" * 100_000 + b"}"),),
    "an opaque that fits no header": (headed(json_header(opaque=2**63)),),
    "a code that is a text": (headed(json_header(code="one")),),
    "a code that is none": (headed(json_header(code=True)),),
    "huge fields": (headed(json_header(extFields={HUGE: HUGE})),),
    "many fields": (headed(json_header(extFields={str(n): "" for n in range(50_000)})),),
    "fields that are no texts": (headed(json_header(extFields={"a": [1], "b": {"c": None}})),),
    "an unknown serialisation": (headed(json_header(), form=7),),
    "unknown codes": tuple(headed(json_header(code=code)) for code in (0, -1, 65536, 2**31 - 1)),
    "responses to nobody": tuple(headed(json_header(flag=1, opaque=n)) for n in range(1000)),
    "half a frame": (RemotingCommand(ECHO, body=bytes(1000)).encode()[:500],),
    "a flood of frames without a header": (frame(b"\0\0\0\0") * 10_000,),
    "a hello of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),),
    "a request of HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",),
}


@pytest.mark.parametrize("then", ["wait", "close", "reset"])
@pytest.mark.parametrize("case", CASES)
def test_known_mischief_does_no_harm_to_others(victim, case, then):
    victim.attack(*CASES[case], then=then)


def test_a_flood_of_small_requests_is_answered_to_the_last(victim):
    flood = b"".join(headed(json_header(opaque=n)) for n in range(20_000))
    answers = list(answers_in(victim.attack(flood)))
    assert [answer.opaque for answer in answers] == list(range(20_000))


def test_a_frame_that_comes_byte_by_byte_is_answered(victim):
    data = RemotingCommand(ECHO, {"slow": "1"}).encode()
    (answer,) = answers_in(victim.attack(*(bytes([byte]) for byte in data)))
    assert answer.ext_fields == {"slow": "1"}


def test_nothing_is_kept_of_hundreds_of_bad_connections(victim):
    bad = [pieces for case, pieces in CASES.items() if sum(map(len, pieces)) < 100_000]

    def round_of_attacks() -> int:
        for pieces in bad * 3:
            for then in ("wait", "close", "reset"):
                victim.attack(*pieces, then=then)
        victim.assert_keeps_nothing()
        pack_host.cache_clear()  # a cache of peers, which has its own limit
        ours = tracemalloc.Filter(True, "*/kourou/remoting/*")  # whatever else this process does meanwhile
        found = tracemalloc.take_snapshot().filter_traces([ours])
        return sum(trace.size for trace in found.traces)

    tracemalloc.start()
    try:
        round_of_attacks()  # what is made once
        before = round_of_attacks()
        after = round_of_attacks()
    finally:
        tracemalloc.stop()
    connections = len(bad) * 9
    assert after - before < 100 * connections  # bytes; a connection that is kept has more than 1,000

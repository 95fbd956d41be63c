"""Pulls of a task: whatever way a broker's answers come, the records are those of the range, in order."""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

pytest.importorskip("pyspark")

from kourou.message.codec import encode
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import ROCKETMQ, RemotingCommand, decode
from kourou.spark import channel
from kourou.spark.channel import Channel, ChannelError, NetSettings
from kourou.spark.cluster import ClusterView
from kourou.spark.read import pull
from kourou.spark.read.pull import PullSettings, QueuePuller, QueueRange, Source
from support.stores.records import simple_message

COUNT = 500


class Server:
    """A broker of one queue that answers pulls as slowly, in pieces and out of order, as a test wants it."""

    def __init__(self, records: list[bytes], *, most: int, shuffled: bool, chunk: int, **answer: int) -> None:
        self.records = records
        self.most = most
        self.chunk = chunk
        self.answer = answer  # what all answers have
        self.chance = random.Random(3) if shuffled else None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        read = b""
        while data := peer.recv(1 << 20):
            read += data
            answers = []
            while len(read) >= 4 and len(read) >= 4 + (size := int.from_bytes(read[:4], "big")):
                answers.append(self._answer(decode(read[4 : 4 + size])))
                read = read[4 + size :]
            if self.chance:
                self.chance.shuffle(answers)
            whole = b"".join(answers)
            for at in range(0, len(whole), self.chunk):
                peer.sendall(whole[at : at + self.chunk])

    def _answer(self, request: RemotingCommand) -> bytes:
        first = int(request.ext_fields["queueOffset"])
        following = min(first + min(int(request.ext_fields["maxMsgNums"]), self.most), len(self.records))
        fields = {"nextBeginOffset": str(following), "minOffset": "0", "maxOffset": str(len(self.records))}
        body = b"".join(self.records[first:following])
        answer = request.response(ResponseCode.SUCCESS, fields, body, remark="FOUND")
        for name, value in self.answer.items():
            setattr(answer, name, value)
        asked = RemotingCommand(40, {"topic": "t"}, opaque=request.opaque)  # of a broker to its clients
        return asked.encode() + answer.encode()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@contextmanager
def serving(records: list[bytes], **how: object) -> Iterator[Server]:
    server = Server(records, **{"most": 32, "shuffled": False, "chunk": 1 << 20} | how)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()


def stored(sizes: Iterator[int], count: int = COUNT) -> list[bytes]:
    return [
        encode(simple_message(b"%05d" % number + bytes(size), queue_offset=number))
        for number, size in zip(range(count), sizes)
    ]


class Watched(Channel):
    """A channel that notes how many answers are owed to it after each send."""

    def __init__(self, address: str, settings: NetSettings) -> None:
        super().__init__(address, settings)
        self.owed_then: list[int] = []

    def send(self, requests: Sequence[bytes]) -> None:
        super().send(requests)
        self.owed_then.append(self.owed)


def pulled(server: Server, start: int, end: int, depth: int = pull.DEPTH) -> tuple[list[bytes], list[int]]:
    """The pieces of a range, and how many pulls were under way after each send."""
    settings = PullSettings(net=NetSettings(timeout_s=30), group="g", depth=depth)
    wanted = QueueRange("t", "broker-a", 0, start, end)
    watched = Watched(server.address, settings.net)
    source = Source(ClusterView("", settings.net), wanted, ())
    source.connect = lambda: watched  # type: ignore[method-assign]
    try:
        pieces = [bytes(piece) for piece in QueuePuller(wanted, settings, source).pieces()]
        assert watched.owed == 0
        return pieces, watched.owed_then
    finally:
        watched.close()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("chunk", [1 << 20, 37])
@pytest.mark.parametrize("most", [1, 32, 1000])
@pytest.mark.parametrize("depth", [1, 2, 64])
def test_the_records_come_in_order(shuffled, chunk, most, depth):
    records = stored(itertools.cycle([0, 300, 20]), 120)
    with serving(records, most=most, shuffled=shuffled, chunk=chunk) as server:
        pieces, owed = pulled(server, 7, 118, depth)
    assert b"".join(pieces) == b"".join(records[7:118])
    assert max(owed) <= depth


@pytest.mark.parametrize("serialize_type", [0, ROCKETMQ])
def test_records_that_are_larger_than_the_buffers(monkeypatch, serialize_type):
    """Given buffers that hold a few records, when some are larger than these, then nothing is lost."""
    monkeypatch.setattr(channel, "READ_BUFFER_BYTES", 2000)
    monkeypatch.setattr(pull, "PIECE_BYTES", 5000)
    records = stored(itertools.cycle([10, 900, 7000, 3, 1900]))
    with serving(records, chunk=1700, serialize_type=serialize_type) as server:
        pieces, _ = pulled(server, 0, COUNT)
    assert b"".join(pieces) == b"".join(records)
    assert len(pieces) > 10


@pytest.mark.parametrize(("size", "count", "expected"), [(1, 5000, pull.DEPTH), (9_000, 1000, 4)])
def test_large_answers_are_fewer_at_a_time(monkeypatch, size, count, expected):
    monkeypatch.setattr(pull, "IN_FLIGHT_BYTES", 1_250_000)  # answers of 32 have 4 and 290 kB
    with serving(stored(itertools.repeat(size), count)) as server:
        _, owed = pulled(server, 0, count)
    assert owed[0] == pull.FIRST_DEPTH  # nobody knows yet how large they are
    assert max(owed[1:]) == expected


def test_what_is_no_frame_ends_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = Channel(f"127.0.0.1:{listening.getsockname()[1]}", NetSettings(timeout_s=10))
        peer, _ = listening.accept()
        with peer:
            peer.sendall(b"\xff\xff\xff\xff")
            with pytest.raises(ChannelError, match="a frame of 4294967295 bytes"):
                one.next_frame()
            with pytest.raises(ChannelError, match="was lost"):
                one.next_frame()


def test_a_server_that_hangs_up_in_the_middle_of_a_frame():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = Channel(f"127.0.0.1:{listening.getsockname()[1]}", NetSettings(timeout_s=10))
        peer, _ = listening.accept()
        peer.sendall(b"\0\0\0\x20abc")
        peer.close()
        with pytest.raises(ChannelError, match="it hung up"):
            one.next_frame()
        assert one.closed

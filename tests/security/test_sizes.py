"""Requests that are too large for anybody, at a broker and at a name server: the connection ends or an error
is answered, memory does not grow with them, and others are served."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Iterator

import pytest

from kourou.namesrv import NameServer
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import MAX_FRAME_BYTES, RemotingCommand
from support.sites.broker import Peer, Site, send_request

HUNDRED_MIB = 100 * 1024 * 1024
MOST_GROWTH_BYTES = 96 * 1024 * 1024  # less than what is sent in each case
UNKNOWN = 29_999


@pytest.fixture(params=["broker", "name server"])
def port(request: pytest.FixtureRequest, site: Site, name_server: NameServer) -> Iterator[int]:
    """A port that is attacked, and at which somebody else is served afterwards."""
    found = site.port if request.param == "broker" else name_server.port
    yield found
    with contextlib.closing(Peer(found)) as peer:
        assert peer.call(RemotingCommand(UNKNOWN)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def is_hung_up_on(peer: Peer) -> bool:
    with contextlib.suppress(ConnectionError):
        return peer.socket.recv(1) == b""
    return True


def test_who_announces_much_and_sends_little_costs_little(port):
    """Two hundred frames of 16 MiB are announced: room is made for what comes, not for what is said."""
    before = resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", port), 20)))
            peer.sendall(struct.pack(">I", MAX_FRAME_BYTES) + bytes(1000))
        with contextlib.closing(Peer(port)) as other:
            other.call(RemotingCommand(UNKNOWN))
        assert resident_bytes() - before < MOST_GROWTH_BYTES


def test_many_large_headers_do_not_pile_up(port):
    """Each is answered, one after the other, and is gone then."""
    fields = {f"field-{number}": "v" * 1000 for number in range(1000)}
    frame = RemotingCommand(UNKNOWN, fields).encode()
    before = resident_bytes()
    with contextlib.closing(Peer(port)) as peer:
        for _ in range(HUNDRED_MIB // len(frame)):
            peer.socket.sendall(frame)
            assert peer.receive().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert resident_bytes() - before < MOST_GROWTH_BYTES


def test_a_header_longer_than_any_ends_its_connection(port):
    fields = {f"field-{number}": "v" * 1000 for number in range(1100)}
    with contextlib.closing(Peer(port)) as peer:
        with contextlib.suppress(ConnectionError):
            peer.socket.sendall(RemotingCommand(UNKNOWN, fields).encode())
        assert is_hung_up_on(peer)


def test_a_registration_that_inflates_without_end_is_refused(name_server):
    packer = zlib.compressobj(1)
    body = b"".join(packer.compress(bytes(1024 * 1024)) for _ in range(1024)) + packer.flush()
    assert len(body) < MAX_FRAME_BYTES
    fields = {
        "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0",
        "compressed": "true", "bodyCrc32": "0",
    }  # fmt: skip
    before = resident_bytes()
    with contextlib.closing(Peer(name_server.port)) as peer:
        answer = peer.call(RemotingCommand(RequestCode.REGISTER_BROKER, fields, body))
    assert answer.code != ResponseCode.SUCCESS
    assert resident_bytes() - before < 400 * 1024 * 1024


@pytest.mark.parametrize(
    "properties",
    [
        "".join(f"k{number}\x01v\x02" for number in range(20_000)),
        "k\x01" + "v" * 40_000 + "\x02",
        "INNER_MULTI_DISPATCH\x01" + ",".join(f"%LMQ%{number}" for number in range(25_000)) + "\x02",
    ],
    ids=["many", "long", "many light queues"],
)
def test_properties_beyond_their_room_are_refused(site, properties):
    site.make_topic("t")
    before = site.log_end()
    with contextlib.closing(Peer(site.port)) as peer:
        answer = peer.call(send_request(properties=properties))
    assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.LMQ_QUOTA_EXCEEDED), answer
    assert site.log_end() == before

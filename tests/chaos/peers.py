"""Peers that behave badly: they do not read, send half frames, come by the thousand, or inflate."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kourou.message.compression import CompressionType
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import pull_request, send_request
from support.sites.servers import HOST


@contextmanager
def flood(port: int, count: int, begin: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections at once, each of which sends `begin` and no more; those that came about."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            peer = stack.enter_context(socket.socket())
            peer.settimeout(2)
            try:
                peer.connect((HOST, port))
                peer.sendall(begin)
            except OSError:
                continue  # it is not served, or no more
            made.append(peer)
        yield made


def half_frame() -> bytes:
    """The begin of a large frame, whose rest never comes."""
    return send_request("t", bytes(100_000)).encode()[:2000]


def ask_and_do_not_read(port: int, topic: str, requests: int = 3000) -> socket.socket:
    """A connection on which much is asked for, and nothing is read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((HOST, port))
    peer.settimeout(0.2)
    asks = [pull_request(topic, count=1000), RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)]
    with contextlib.suppress(OSError):  # the broker reads no more: that is the point
        for number in range(requests):
            peer.sendall(asks[number % 2].encode())
    return peer


def send_bomb(kind: CompressionType, body: bytes, topic: str) -> RemotingCommand:
    """A message with such a body."""
    return send_request(topic, body, f=str(kind.sys_flag))


def registration_bomb(size_bytes: int) -> RemotingCommand:
    """A broker registers at a name server with topics that inflate."""
    body = zlib.compress(struct.pack(">i", size_bytes) + bytes(size_bytes), 9)
    fields = {
        "brokerName": "bomb", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "127.0.0.1:2",
        "brokerId": "0", "compressed": "true", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }  # fmt: skip
    return RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)

"""Clients that break off, and floods of requests of no use: nobody else notices, nothing grows, and the store
is whole afterwards. Requests that are nearly right, of every code, are in tests/fuzz."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.inspect import StoreDirectory
from kourou.inspect.check.findings import Severity
from kourou.inspect.check.whole import check
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import (
    SUBSCRIPTION,
    SUSPEND,
    Peer,
    Site,
    heartbeat,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)


# A header of each request as it should be, so that what is of no use is seldom all of it
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker that all of these attack, one after the other; in the end its store is whole."""
    directory = tmp_path_factory.mktemp("attacked")
    with running(directory) as made:
        for topic in ("t", "steady"):
            made.make_topic(topic)
        made.make_topic("b", attributes={"+queue.type": "BatchCQ"})

        yield made

    assert not (directory / "store" / "abort").exists()
    with StoreDirectory.open(directory / "store") as store:
        report = check(store)
    assert report.records > 0
    # One of the attacks may delete a topic, whose records stay in the log.
    faults = [found for found in report.findings if found.severity is Severity.FAULT]
    assert [found for found in faults if found.kind != "missing-queue"] == []


@pytest.fixture(scope="module")
def steady(site: Site) -> Peer:
    """Somebody else, who sends and pulls all the while."""
    return site.connect()


def answers_to(peer: Peer, asked: list[RemotingCommand]) -> None:
    """Read until all are answered; what the broker asks meanwhile is refused."""
    waiting = {request.opaque: request for request in asked}
    while waiting:
        try:
            command = peer.receive()
        except TimeoutError:
            raise AssertionError(f"not answered: {waiting}") from None
        if command.is_response:
            waiting.pop(command.opaque, None)
        else:
            peer.send(command.response(ResponseCode.SYSTEM_ERROR))


def assert_goes_on(steady: Peer) -> None:
    """Somebody else is served as ever."""
    offset = int(steady.ask(send_request("steady", b"still here")).ext_fields["queueOffset"])
    (found,) = messages_in(steady.ask(pull_request("steady", offset)))
    assert bytes(found.body) == b"still here"


def test_connections_that_break_off_leave_nothing_behind(site, steady):
    """Given clients that join groups, hold pulls and ask, then all that was theirs goes with them."""
    for number in range(40):
        peer = Peer(site.port)
        client = heartbeat(
            f"c{number}", f"g{number % 7}", [{"topic": "t", "subString": "*"}], producers=(f"p{number}",)
        )
        peer.ask(client)
        high = site.max_offset("steady", 3)
        for queue_id in range(4):
            flag = SUBSCRIPTION | SUSPEND
            peer.send(pull_request("steady", high, queue_id=3, flag=flag, suspend_ms=10**9))
            peer.send(RemotingCommand(RequestCode.QUERY_ASSIGNMENT, {}, b'{"topic":"t"}'))
            peer.send(pull_request("t", 10**6, queue_id=queue_id, flag=flag, suspend_ms=10**9))
        if number % 3 == 0:  # in the middle of a frame, and not politely
            peer.socket.sendall(send_request("t", bytes(5000)).encode()[:-1])
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    broker = site.broker
    until(lambda: site.do(lambda: len(broker.server.connections)) == 1, "only the steady one")

    def left() -> tuple[int, int, int]:
        return site.do(lambda: (broker.puller.held, broker._later, broker.sender.waiting))

    until(lambda: left() == (0, 0, 0), "nothing that waits for a peer that is gone")
    assert not site.do(lambda: broker.puller._by_queue or broker.puller._by_connection)
    assert not site.do(lambda: [group for group in broker.producers.groups.values() if group])
    assert not site.do(lambda: broker.producers._by_client_id)
    assert_goes_on(steady)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_refused_requests_is_not_remembered(site, steady):
    """Given requests for ever new topics, groups and clients that are all refused, then nothing is kept."""

    def flood(rounds: range) -> None:
        with contextlib.closing(Peer(site.port)) as peer:
            for number in rounds:
                name = f"{number:06d}" + "x" * 100
                asked = [
                    send_request(name, bytes(1000), c="nothing"),
                    send_request("t", bytes(1000), e="9999", i=f"KEYS\x01{name}\x02"),
                    pull_request(name, group=f"group of {name}"),
                    RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": name}),
                    RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": name, "queueId": str(number)}),
                    RemotingCommand(
                        RequestCode.UPDATE_BROKER_CONFIG, {}, f"brokerPermission={name}".encode()
                    ),
                    RemotingCommand(RequestCode.HEART_BEAT, {}, b'{"clientID":"%d"' % number),
                ]
                peer.socket.sendall(b"".join(request.encode() for request in asked))
                answers_to(peer, asked)

    flood(range(300))
    before = resident_bytes()
    flood(range(300, 1500))
    assert resident_bytes() - before < 32 * 1024 * 1024
    assert not [topic for topic in site.do(lambda: list(site.broker.store.putter.topics)) if "xxx" in topic]
    assert_goes_on(steady)

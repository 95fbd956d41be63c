"""Greedy peers: what one asks for is bounded, and somebody else, who asks all the time, hardly notices it.

How long the bystander waits is compared with how long this machine takes, in the same run, for work that none
of the requests here may make the loop do at once.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
import zlib
from collections.abc import Iterator

import orjson
import pytest

from kourou.namesrv.handlers import HANDLERS as NAME_SERVER_HANDLERS
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import MAX_FRAME_BYTES, RemotingCommand
from support.sites.broker import Peer, Site, pull_request, running, send_request, until

MIB = 1 << 20
PROBE = 29_999
REFERENCE_TOKENS = 400_000
TIMES = 4  # the bystander shares its two cores with other tests


@pytest.fixture(scope="module")
def reference_s() -> float:
    """What a peer may not cost anybody else: the time of 400,000 tokens, a twentieth of a frame of them."""
    text = b"{%b}" % b",".join(b"%d:1" % number for number in range(REFERENCE_TOKENS // 4))
    began = time.monotonic()
    lenient_json.loads(text)
    return time.monotonic() - began


class Bystander:
    """Asks again and again, and notes the longest time it had to wait for an answer."""

    def __init__(self, port: int) -> None:
        self._peer = Peer(port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answers, self.longest_s = 0, 0.0

    def _ask(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._peer.call(RemotingCommand(PROBE))
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.answers += 1
            time.sleep(0.001)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._peer.close()


def connect(stack: contextlib.ExitStack, port: int) -> Peer:
    return stack.enter_context(contextlib.closing(Peer(port)))


# What is large, by code


def broken(size: int) -> bytes:
    return b'{"a":' + b'[{1:2},"x"],' * (size // 12)


def lenient(size: int) -> bytes:
    """The keys are bare numbers, as fastjson writes them."""
    one = b'"k":{1:1,2:2},'
    return b"{%b}" % (one * (size // len(one)))[:-1]


@pytest.mark.parametrize("make", [broken, lenient], ids=["broken", "lenient"])
@pytest.mark.parametrize("target", ["broker", "name server"])
def test_no_body_stops_the_loop_whatever_the_request(site, name_server, target, make, reference_s):
    if target == "broker":
        port, codes = site.port, sorted(site.broker.server._handlers)
    else:
        port, codes = name_server.port, sorted(map(int, NAME_SERVER_HANDLERS))
    bodies = [make(MIB - 100), make(8 * MIB)]
    with Bystander(port) as bystander:
        for code in codes:
            with contextlib.closing(Peer(port)) as peer:
                for body in bodies:
                    with contextlib.suppress(ConnectionError):
                        peer.call(RemotingCommand(code, {}, body))
    assert bystander.answers > len(codes)
    assert bystander.longest_s < TIMES * reference_s


def test_fifteen_mebibytes_of_broken_json_are_refused_unread(site, reference_s):
    before = site.broker.refusals.counts.get("maxRequestBodyBytes", 0)
    with contextlib.ExitStack() as stack:
        peer = connect(stack, site.port)
        bystander = stack.enter_context(Bystander(site.port))
        answer = peer.call(RemotingCommand(RequestCode.HEART_BEAT, {}, broken(15 * MIB)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "maxRequestBodyBytes" in (answer.remark or "")
        assert peer.call(RemotingCommand(PROBE)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert site.broker.refusals.counts["maxRequestBodyBytes"] == before + 1
    assert bystander.longest_s < TIMES * reference_s


def heartbeat(groups: int, prefix: str) -> RemotingCommand:
    body = {
        "clientID": prefix,
        "producerDataSet": [],
        "consumerDataSet": [{"groupName": f"{prefix}{number}"} for number in range(groups)],
    }
    return RemotingCommand(RequestCode.HEART_BEAT, {}, orjson.dumps(body))


def test_a_heartbeat_of_many_groups_is_refused_whole(site, reference_s):
    before = len(site.broker.groups.groups)
    with contextlib.ExitStack() as stack:
        peer = connect(stack, site.port)
        bystander = stack.enter_context(Bystander(site.port))
        answer = peer.call(heartbeat(30_000, "g"))
        assert "maxGroupsPerClient" in (answer.remark or "")
        assert len(site.broker.groups.groups) == before
        assert site.broker.refusals.counts["maxGroupsPerClient"] == 1
        assert peer.call(heartbeat(1000, "h")).code == ResponseCode.SUCCESS
        assert len(site.broker.groups.groups) == before + 1000
    assert bystander.longest_s < TIMES * reference_s


def registration(topics: int, name: str) -> RemotingCommand:
    def block(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    lines = b"".join(block(b"%b%d 8 8 6 SINGLE_TAG {}" % (name.encode(), i)) for i in range(topics))
    version = block(b'{"counter":1,"stateVersion":0,"timestamp":1}')
    body = zlib.compress(version + struct.pack(">i", topics) + lines + block(b"[]") + struct.pack(">i", 0), 1)
    fields = {
        "brokerName": name, "brokerAddr": f"127.0.0.1:{len(name)}", "clusterName": "c", "brokerId": "0",
        "haServerAddr": "127.0.0.1:2", "compressed": "true", "bodyCrc32": "0",
    }  # fmt: skip
    return RemotingCommand(RequestCode.REGISTER_BROKER, fields, body, version=500)


def test_registrations_of_many_topics_are_read_beside_others_or_refused(name_server, reference_s):
    before = name_server.routes.sizes()["topics"]
    with contextlib.ExitStack() as stack:
        peer = connect(stack, name_server.port)
        bystander = stack.enter_context(Bystander(name_server.port))
        answer = peer.call(registration(1_000_000, "million"))
        assert "maxRegisteredTopics" in (answer.remark or "")
        assert name_server.routes.sizes()["topics"] == before
        assert peer.call(registration(90_000, "many")).code == ResponseCode.SUCCESS
        assert name_server.routes.sizes()["topics"] == before + 90_000
    until(lambda: name_server.routes.sizes()["topics"] == before, "them to go with their connection")
    assert name_server.refusals.counts["maxRegisteredTopics"] == 1
    assert bystander.longest_s < TIMES * reference_s


def test_topics_of_brokers_are_bounded_in_all(name_server):
    with contextlib.ExitStack() as stack:
        peer = connect(stack, name_server.port)
        for number in range(6):
            assert peer.call(registration(99_999, "b" * (number + 1))).code == ResponseCode.SUCCESS
        assert name_server.routes.sizes()["topics"] == 500_000
        assert name_server.refusals.counts["maxRoutes"] > 0
    until(lambda: name_server.routes.sizes()["topics"] == 0, "them to go with their connection")


# What is kept for all together

SMALL_BUDGETS = {
    "maxBufferedBytes": str(24 * MIB),
    "maxBufferedBytesPerPeer": str(20 * MIB),
    "mappedFileSizeCommitLog": str(64 * MIB),
}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker with little room."""
    with running(tmp_path_factory.mktemp("tight"), SMALL_BUDGETS) as made:
        made.make_topic("t")
        yield made


def kept(site: Site) -> int:
    buffers = site.broker.server._buffers
    assert buffers is not None
    return site.do(lambda: buffers.total)


def pump(peer: Peer, data: bytes) -> None:
    with contextlib.suppress(OSError):
        peer.socket.sendall(data)


def test_frames_that_do_not_end_share_a_budget_and_honest_ones_come_through(tight):
    part = struct.pack(">II", MAX_FRAME_BYTES, 100) + bytes(15 * MIB)
    refused = dict(tight.broker.refusals.counts)
    most = 0
    with contextlib.ExitStack() as stack:
        greedy = [connect(stack, tight.port) for _ in range(12)]
        threads = [threading.Thread(target=pump, args=(peer, part)) for peer in greedy]
        for thread in threads:
            thread.start()
        until(lambda: kept(tight) > 20 * MIB, "the budget to be spent")
        honest = connect(stack, tight.port)
        for _ in range(3):
            request = send_request(body=bytes(3 * MIB))
            honest.send(request)
            most = max(most, kept(tight))
            assert honest.answer_to(request).code == ResponseCode.SUCCESS
        for peer in greedy:
            peer.socket.close()
        for thread in threads:
            thread.join()
    # One read of each connection may come on top, and the whole of the oldest frame.
    assert most < 24 * MIB + 16 * MIB + 13 * MIB // 4
    cut = sum(tight.broker.refusals.counts.values()) - sum(refused.values())
    assert cut >= 1
    until(lambda: kept(tight) == 0, "nothing to be kept any more")


def test_large_frames_of_many_at_once_all_come_through(tight):
    """More than the budget, and nobody is cut who sends what it has begun."""
    before = sum(tight.broker.refusals.counts.values())
    answers: list[int] = []

    def send(peer: Peer) -> None:
        answers.append(peer.call(send_request(body=bytes(3 * MIB))).code)

    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=send, args=(connect(stack, tight.port),)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [ResponseCode.SUCCESS] * 16
    assert sum(tight.broker.refusals.counts.values()) == before
    assert kept(tight) == 0


def test_peers_that_pull_and_never_read_are_kept_little_for(tight):
    with contextlib.closing(Peer(tight.port)) as peer:
        for _ in range(64):
            assert peer.call(send_request(body=bytes(64 * 1024))).code == ResponseCode.SUCCESS
    with contextlib.ExitStack() as stack:
        bystander = stack.enter_context(Bystander(tight.port))
        for _ in range(10):
            deaf = connect(stack, tight.port)
            pump(deaf, b"".join(pull_request().encode() for _ in range(500)))
        until(lambda: bystander.answers > 100, "somebody else to be served")
        assert 0 < kept(tight) < 24 * MIB
        # Who reads what it asked for gets all of it. (Asked for all at once, it might be the greediest.)
        late = connect(stack, tight.port)
        assert all(late.call(pull_request()).code == ResponseCode.SUCCESS for _ in range(100))
    until(lambda: kept(tight) == 0, "nothing to be kept any more")

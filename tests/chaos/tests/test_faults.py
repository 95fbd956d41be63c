"""One fault at a time: what a broker does, what it says, and that it goes on afterwards."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chaos import mounts, peers
from chaos.mounts import needs_mounts
from chaos.nodes import Node, broker, name_server, started
from kourou.message.compression import CompressionType
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.poison import bomb
from support.recorded.wire import Caller
from support.sites.broker import Peer, heartbeat, pull_request, send_request, until

HOUR_S = 3600
GIGABYTE = 1 << 30


class Client:
    """Somebody who sends one message after the other, and remembers what was acknowledged."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.acknowledged: list[bytes] = []
        self._number = 0
        self.last: RemotingCommand | None = None

    def send(self, properties: str = "", size: int = 100) -> bool:
        """Send a message; whether it was taken."""
        self._number += 1
        body = b"%d " % self._number + bytes(size)
        text = f"UNIQ_KEY\x01{self._number:032X}\x02{properties}"
        try:
            with contextlib.closing(Caller(self._node.port, timeout_s=5)) as caller:
                self.last = caller.call(send_request("t", body, text))
        except OSError:
            return False
        if self.last.code == ResponseCode.SUCCESS:
            self.acknowledged.append(body)
            return True
        return False

    def assert_nothing_lost(self) -> None:
        """All that was acknowledged is there, in its order, and nothing else that was not tried."""
        stored = [body for _, _, body, _ in self._node.read("t", 1)]
        assert [body for body in stored if body in set(self.acknowledged)] == self.acknowledged
        assert len(stored) <= self._number


def small(directory: Path, **more: Any) -> Node:
    """A broker that makes a new log file after a hundred messages."""
    return broker(directory, mappedFileSizeCommitLog=64 * 1024, mappedFileSizeConsumeQueue=20 * 50, **more)


# Disks


@needs_mounts
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_full_disk_refuses_messages_and_takes_them_again(tmp_path, flush):
    """Given a disk that fills up under load, then nothing acknowledged is lost, now and after a kill."""
    with mounts.small_disk(tmp_path / "broker-a" / "store", 32) as disk:
        node = small(tmp_path, flushDiskType=flush)
        with started(node):
            node.create_topic("t", 1)
            client = Client(node)
            assert client.send()
            mounts.fill(disk)
            until(lambda: not client.send(size=4000), "the disk to be full")
            assert client.last is not None
            assert client.last.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "disk" in (client.last.remark or "").lower()
            node.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="0")  # it is served all the same
            client.assert_nothing_lost()

            mounts.make_room(disk)
            until(client.send, "messages to be taken again")
            mounts.fill(disk)
            until(lambda: not client.send(size=4000), "the disk to be full again")
            node.kill()
            mounts.make_room(disk)
            node.start()
            assert client.send()
            client.assert_nothing_lost()


@needs_mounts
def test_a_broker_does_not_start_on_a_full_disk_and_says_so(tmp_path):
    with mounts.small_disk(tmp_path / "broker-a" / "store", 4) as disk:
        node = small(tmp_path)
        mounts.fill(disk)
        with pytest.raises(AssertionError, match="No space left on device"):
            node.start()
        assert "Traceback" not in node.said()


@needs_mounts
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index", "config"])
def test_a_directory_that_is_read_only_for_a_while(tmp_path, folder):
    """Given a part of the store that takes no new file, then the broker serves or refuses, and goes on when
    files can be made again."""
    node = small(tmp_path, maxIndexNum=60, maxHashSlotNum=20)
    with started(node):
        node.create_topic("t", 1)
        client = Client(node)
        for number in range(20):
            assert client.send(f"KEYS\x01k{number}\x02")
        place = node.directory / "store" / folder
        until(place.is_dir, "the directory to be made")  # that of the index comes a moment later
        with mounts.read_only(place):
            for number in range(150):
                client.send(f"KEYS\x01k{number}\x02", size=1000)
            node.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId="0")
            client.assert_nothing_lost()
        until(client.send, "messages to be taken again")
        node.kill()
        node.start()
        assert client.send()
        client.assert_nothing_lost()


@needs_mounts
def test_a_broker_does_not_start_in_a_read_only_directory_and_says_so(tmp_path):
    node = small(tmp_path)
    (node.directory / "store").mkdir()
    with (
        mounts.read_only(node.directory / "store"),
        pytest.raises(AssertionError, match="Read-only file system"),
    ):
        node.start()
    assert "Traceback" not in node.said()


def test_a_second_broker_on_a_store_says_so_and_leaves_the_first_alone(tmp_path):
    node = small(tmp_path)
    with started(node):
        node.create_topic("t", 1)
        client = Client(node)
        assert client.send()
        for _ in range(2):
            second = node.spawn()
            assert second.stdout is not None
            second.stdout.close()
            assert second.wait(30) != 0
            assert client.send()
        assert "is in use by another process" in node.said()
        assert "Traceback" not in node.said()
        node.kill()
        node.start()
        client.assert_nothing_lost()


# Processes


def test_a_broker_that_stands_still_goes_on_where_it_was(tmp_path):
    chance = random.Random(3)
    node = small(tmp_path)
    with started(node):
        node.create_topic("t", 1)
        client = Client(node)
        for _ in range(3):
            for _ in range(10):
                client.send()
            node.pause()
            with (
                pytest.raises(OSError, match="timed out"),
                contextlib.closing(Caller(node.port, timeout_s=1)) as one,
            ):
                one.call(pull_request("t"))
            time.sleep(chance.uniform(0, 0.5))
            node.resume()
            until(client.send, "messages to be taken again")
        client.assert_nothing_lost()


@pytest.mark.parametrize("shift_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_is_set(tmp_path, shift_s):
    """Given delayed messages, when the clock of the machine is set by an hour, while the broker runs and
    while it is away, then each comes, once, when its delay has elapsed: one of half an hour does not come in
    this test. The offsets of the queue have no gap."""
    node = small(tmp_path, messageDelayLevel="30m 1s")
    with started(node):
        node.create_topic("t", 1)
        client = Client(node)
        assert client.send("DELAY\x011\x02")
        (late,) = client.acknowledged
        for setting in (shift_s, 0):
            node.set_clock(setting)
            assert client.send("DELAY\x012\x02")
            assert client.send()
            here = len(client.acknowledged) - 1
            until(lambda here=here: len(list(node.read("t", 1))) == here, "what is due now")  # type: ignore[misc]
        assert client.send("DELAY\x012\x02")
        node.kill()
        node.set_clock(shift_s)
        node.start()
        here = len(client.acknowledged) - 1
        until(lambda: len(list(node.read("t", 1))) == here, "all but one")
        time.sleep(2.5)  # longer than a message that waits has no look at the clock
        found = sorted(body for _, _, body, _ in node.read("t", 1))
        assert found == sorted(body for body in client.acknowledged if body != late)


def test_transactions_are_checked_after_a_clock_was_ahead(tmp_path):
    """Given a half message that was stored while the clock was an hour ahead, when the clock is right again,
    then it and those behind it are asked for, and not in an hour."""
    node = small(tmp_path)
    with started(node):
        node.create_topic("t", 1)
        with contextlib.closing(Peer(node.port)) as producer:
            producer.ask(heartbeat(group="", producers=("p",)))
            node.set_clock(HOUR_S)
            send_half(producer, 1)
            node.set_clock(0)
            send_half(producer, 2)
            asked: set[str] = set()
            while asked < {"1", "2"}:  # the socket has a time limit
                question = producer.receive()
                if question.code == RequestCode.CHECK_TRANSACTION_STATE:
                    asked.add(question.ext_fields["msgId"])


def send_half(producer: Peer, number: int) -> None:
    properties = f"UNIQ_KEY\x01{number}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    born_ms = str(time.time_ns() // 1_000_000 - 5000)
    producer.ask(send_request("t", b"half", properties, f="4", g=born_ms))


# Descriptors and connections


def test_descriptors_that_run_out(tmp_path):
    """Given a broker that may open few files, when connections take them all, then those that stand are
    served, the broker says what is missing, and takes connections again when there is room."""
    node = small(tmp_path)
    node.open_files = 200
    with started(node):
        node.create_topic("t", 1)
        client = Client(node)
        with contextlib.closing(Caller(node.port)) as before:
            assert before.call(send_request("t", b"first")).code == ResponseCode.SUCCESS
            with peers.flood(node.port, 400):
                until(lambda: "Too many open files" in node.said(), "the broker to say so")
                assert before.call(pull_request("t")).code == ResponseCode.SUCCESS
                for _ in range(100):  # new files of the log and of the queue are made meanwhile
                    assert before.call(send_request("t", bytes(1000))).code == ResponseCode.SUCCESS
        until(client.send, "new connections to be served")
    assert "Traceback" not in node.said()


def test_floods_of_connections_and_half_frames(tmp_path):
    """Given thousands of connections that come, go or stop in the middle of a frame, then others are served,
    and memory and descriptors are what they were."""
    nodes = (small(tmp_path), name_server(tmp_path))
    with started(*nodes):
        nodes[0].create_topic("t", 1)
        for node in nodes:
            with peers.flood(node.port, 500):
                assert node.answers()
            until(lambda node=node: node.open_count() < 200, "the connections to be closed")  # type: ignore[misc]
            before = node.resident_bytes(), node.open_count()
            for begin in (b"", peers.half_frame(), b"\x00", b"GET / HTTP/1.1\r\n\r\n"):
                with peers.flood(node.port, 800, begin):
                    assert node.answers()
            until(lambda node=node: node.open_count() <= before[1] + 5, "the connections to be closed")  # type: ignore[misc]  # noqa: B023
            assert node.resident_bytes() - before[0] < 64 << 20
        assert Client(nodes[0]).send()


def test_clients_that_do_not_read(tmp_path):
    """Given clients that ask for megabytes and read none, then the broker keeps little of it for them."""
    node = small(tmp_path)
    with started(node):
        node.create_topic("t", 1)
        client = Client(node)
        for _ in range(50):
            assert client.send(size=20_000)
        before = node.resident_bytes()
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(peers.ask_and_do_not_read(node.port, "t"))
            until(client.send, "others to be served")
            grown = node.resident_bytes() - before
        assert grown < 200 << 20, f"{grown >> 20} MiB are kept for clients that do not read"
        client.assert_nothing_lost()


# Bodies that inflate


def test_bodies_that_inflate_cost_a_broker_nothing(tmp_path):
    """Given a message that inflates to gigabytes, then the broker stores it and inflates nothing, whatever it
    filters by; a registration that does is refused."""
    node, server = broker(tmp_path, enablePropertyFilter="true"), name_server(tmp_path)
    with started(server, node):
        node.create_topic("t", 1)
        before = node.resident_bytes()
        for kind in CompressionType:
            body = bomb(kind, GIGABYTE if kind is CompressionType.ZSTD else GIGABYTE // 4)
            answer = node_call(node, peers.send_bomb(kind, body, "t"))
            assert answer.code == ResponseCode.SUCCESS, answer
        pull = pull_request("t", subscription="a > 1 OR UNIQ_KEY IS NOT NULL", expressionType="SQL92")
        assert node_call(node, pull).code == ResponseCode.SUCCESS
        assert node.resident_bytes() - before < 64 << 20

        before = server.resident_bytes()
        answer = node_call(server, peers.registration_bomb(GIGABYTE // 2))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "RegisterBrokerBody" in (answer.remark or "")
        assert server.resident_bytes() - before < 128 << 20


PROGRAM = """
import resource, sys
limit = int(sys.argv[1])
from kourou.errors import CorruptRecordError
from kourou.message.compression import CompressionType, decompress
body = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    decompress(body, CompressionType[sys.argv[2]])
except CorruptRecordError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", list(CompressionType))
def test_a_body_that_inflates_costs_a_client_what_is_allowed(kind):
    """Given a body that inflates to a gigabyte, then a process that may have little more memory says so."""
    body = bomb(kind, GIGABYTE)
    command = [sys.executable, "-c", PROGRAM, str(GIGABYTE + (GIGABYTE >> 1)), kind.name]
    done = subprocess.run(command, input=body, capture_output=True, check=False, timeout=60)
    assert done.stdout == b"body inflates to more than 268435456 bytes\n", done.stderr.decode()


def node_call(node: Node, request: RemotingCommand) -> RemotingCommand:
    with contextlib.closing(Caller(node.port, timeout_s=30)) as caller:
        return caller.call(request)

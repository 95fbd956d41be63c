"""A SYNC_MASTER that is killed (SIGKILL) again and again while messages come, and now and then its slave too.

Every message that was acknowledged is on the slave, consumers go on from there, and in the end both logs are
the same.
"""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import ExitStack

from kourou.client import Consumer, ReceivedMessage
from kourou.errors import KourouError
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from support.proof import proof
from support.sites.broker import send_request
from support.sites.servers import kourou_name_server
from support.stores.pairs import Process, assert_same_logs, replicated, until
from support.stores.records import decode_all

ROUNDS = proof(quick=2, full=4)  # so often the master is killed
ROUND_S = (0.1, 0.6)  # of load, the shortest and the longest
SENDERS = 4
QUEUES = 2
FAIL_OVER_S = 30.0


class Load:
    """Messages that are sent, and what came of them."""

    def __init__(self) -> None:
        self._number = 0
        self.acknowledged: dict[str, tuple[int, int]] = {}  # unique id -> queue, queue offset
        self.statuses: set[int] = set()

    async def send(self, port: int, seconds: float, kill: Process) -> None:
        """Send from several connections at once, until the master is killed in the middle of it."""
        client = RemotingClient()
        before = len(self.acknowledged)
        work = [asyncio.ensure_future(self._send(client, port)) for _ in range(SENDERS)]
        async with asyncio.timeout(FAIL_OVER_S):
            while len(self.acknowledged) == before:
                await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)
        kill.kill()
        await asyncio.wait(work)
        await client.close()

    async def _send(self, client: RemotingClient, port: int) -> None:
        while True:
            self._number += 1
            unique_id = f"{self._number:032X}"
            request = send_request(
                "T", unique_id.encode() * 8, {"UNIQ_KEY": unique_id}, e=str(self._number % QUEUES)
            )
            try:
                answer = await client.call(f"127.0.0.1:{port}", request)
            except KourouError:
                return
            self.statuses.add(answer.code)
            if answer.code == ResponseCode.SUCCESS:
                place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
                self.acknowledged[unique_id] = place


class Member:
    """A consumer of a group, that goes wherever there is somebody to read from."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._consume()))
        self.seen: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    async def _consume(self) -> None:
        self._stopped = asyncio.Event()
        async with Consumer(
            self._namesrv, group="G", subscribe="T", consume_from="first", start_timeout_s=None
        ) as consumer:

            @consumer.handler
            async def consume(message: ReceivedMessage) -> None:
                self.seen.add(bytes(message.body[:32]).decode())

            await self._stopped.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._stopped.set())
        self._thread.join(60)
        self._loop.close()


class Reader:
    """Reads the slave's queues from where it was, whatever a master may say."""

    def __init__(self) -> None:
        self._offsets = dict.fromkeys(range(QUEUES), 0)
        self.seen: dict[str, tuple[int, int]] = {}

    def read(self, slave: Process) -> None:
        for queue_id in self._offsets:
            while (answer := slave.pull("T", queue_id, self._offsets[queue_id])).code == ResponseCode.SUCCESS:
                for message in decode_all(bytes(answer.body or b""))[0]:
                    unique_id = bytes(message.body[:32]).decode()
                    assert unique_id not in self.seen, "a message comes twice"
                    self.seen[unique_id] = message.queue_id, message.queue_offset
                self._offsets[queue_id] = int(answer.ext_fields["nextBeginOffset"])

    def has(self, slave: Process, wanted: dict[str, tuple[int, int]]) -> bool:
        self.read(slave)
        return wanted.items() <= self.seen.items()


def test_no_acknowledged_message_is_lost_with_the_master(tmp_path):
    chance = random.Random(8)
    load, reader = Load(), Reader()
    with kourou_name_server(tmp_path) as server, ExitStack() as stack:
        master = Process("kourou", tmp_path / "master", server.port, {"brokerRole": "SYNC_MASTER"})
        role = {"brokerRole": "SLAVE", "brokerId": 1}
        slave = Process("kourou", tmp_path / "slave", server.port, role)
        for process in (master, slave):
            stack.callback(process.kill)
            process.start()
        topic = {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        queues = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "order": "false"}
        master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", **topic, **queues)
        until(lambda: slave.has_topic("T"), "the slave to have the topic")
        member = Member(f"127.0.0.1:{server.port}")
        member.start()
        stack.callback(member.stop)
        for round_number in range(ROUNDS):
            until(lambda: _slaves(master), "the slave to connect")
            asyncio.run(load.send(master.port, chance.uniform(*ROUND_S), master))
            until(lambda: reader.has(slave, load.acknowledged), "what was acknowledged", FAIL_OVER_S)
            until(lambda: member.seen >= load.acknowledged.keys(), "the consumer to go on", FAIL_OVER_S)
            if round_number % 3 == 2:
                slave.kill()
                slave.start()
            master.start()
        until(lambda: _slaves(master), "the slave to connect")
        replicated(master, slave)
        assert_same_logs(master, slave, master.end())
        until(lambda: slave.queues() == master.queues(), "the queues to be the same")
        for unique_id in list(load.acknowledged)[:: max(len(load.acknowledged) // 20, 1)]:
            assert slave.by_key("T", unique_id) == master.by_key("T", unique_id) != b""
        allowed = {ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
        assert load.statuses <= allowed
        master.stop()
        slave.stop()


def _slaves(master: Process) -> list[object]:
    return list(master.json(RequestCode.GET_BROKER_HA_STATUS)["haConnectionInfo"])

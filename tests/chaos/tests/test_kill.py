"""A broker that is killed (SIGKILL) again and again in the middle of delays, transactions and retries.

What was acknowledged is there in the end; what was committed is seen, what was rolled back never is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from kourou.errors import KourouError
from kourou.message.codec import StoredMessage, decode
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import (
    CheckTransactionState,
    ConsumerSendMsgBack,
    EndTransaction,
    PullMessage,
)
from support.forked import start_broker
from support.proof import proof
from support.recorded.wire import free_ports
from support.sites.servers import SMALL_STORE

ROUNDS = proof(quick=20, full=200)  # so often it is killed
ROUND_S = (0.05, 0.35)  # the shortest and the longest
PAUSE_S = 0.02  # the longest between two messages: a broker that has much to recover starts slowly
QUEUES = 2
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HEARTBEAT = b'{"clientID":"c@kill","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[]}'
SETTLE_S = 60.0  # at most, for delays and checks at the end
CHECKS_S = 4.0  # at least, for checks


class Run:
    """What was sent, and what came of it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._port = free_ports(-2, 0)
        self._conf = directory / "broker.conf"
        lines = {
            "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": self._port,
            "storePathRootDir": directory / "store", "defaultTopicQueueNums": QUEUES, **SMALL_STORE,
            "messageDelayLevel": "1s 1s 1s 1s 1s", "transactionTimeOut": 300, "transactionCheckInterval": 200,
            "transactionCheckMax": 1000, "transactionOpBatchInterval": 200,
            "flushConsumerOffsetInterval": 300,
        }  # fmt: skip
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        self._number = 0
        self.plain: set[str] = set()  # acknowledged
        self.delayed: set[str] = set()
        self.halves: set[str] = set()
        self.outcomes: dict[str, int] = {}  # of halves, what their producer decides
        self.sent_back: set[str] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def committed(self) -> set[str]:
        """Of the acknowledged halves those that their producer commits, now or when it is asked."""
        return {name for name in self.halves if self.outcomes[name] == COMMIT}

    async def round(self) -> None:
        """Run the broker for a moment, and kill it while everything is under way."""
        process = await asyncio.to_thread(start_broker, self._conf)
        client = RemotingClient({int(RequestCode.CHECK_TRANSACTION_STATE): self._checked})
        work = [asyncio.ensure_future(self._send(client)) for _ in range(4)]
        await asyncio.sleep(self._random.uniform(*ROUND_S))
        process.kill()
        await asyncio.to_thread(process.join)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await client.close()

    async def _send(self, client: RemotingClient) -> None:
        try:
            await client.call(self.address, RemotingCommand(RequestCode.HEART_BEAT, {}, HEARTBEAT))
            while True:
                kind = self._random.choice(("plain", "delayed", "transaction", "back"))
                await getattr(self, f"_{kind}")(client)
                await asyncio.sleep(self._random.uniform(0, PAUSE_S))
        except KourouError:
            pass  # the broker is gone

    async def _plain(self, client: RemotingClient) -> None:
        name = self._next("plain")
        if await self._put(client, name):
            self.plain.add(name)

    async def _delayed(self, client: RemotingClient) -> None:
        name = self._next("delayed")
        if await self._put(client, name, "DELAY\x011\x02"):
            self.delayed.add(name)

    async def _transaction(self, client: RemotingClient) -> None:
        name = self._next("transaction")
        outcome = self._random.choice((COMMIT, ROLLBACK))
        self.outcomes[name] = outcome  # a check may ask before the answer is here
        answer = await self._put(client, name, "TRAN_MSG\x01true\x02PGROUP\x01PG\x02")
        if answer is None:
            return
        self.halves.add(name)
        if self._random.random() < 0.5:
            return  # the broker has to ask
        offset = int(answer["msgId"][16:], 16)
        header = EndTransaction("PG", int(answer["queueOffset"]), offset, outcome, name, "T")
        await client.call(self.address, RemotingCommand(RequestCode.END_TRANSACTION, header.fields()))

    async def _back(self, client: RemotingClient) -> None:
        """Send a message that was acknowledged back to be consumed again."""
        name = self._next("back")
        answer = await self._put(client, name)
        if answer is None:
            return
        header = ConsumerSendMsgBack(int(answer["msgId"][16:], 16), "G", 1)
        back = await client.call(
            self.address, RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.fields())
        )
        if back.code == ResponseCode.SUCCESS:
            self.sent_back.add(name)

    def _checked(self, connection: Connection, request: RemotingCommand) -> None:
        asked = CheckTransactionState.read(request)
        outcome = self.outcomes.get(asked.msg_id or "", UNKNOWN)
        header = EndTransaction(
            "PG",
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            outcome,
            asked.msg_id or "",
            "T",
            True,
        )
        connection.send_oneway(RemotingCommand(RequestCode.END_TRANSACTION, header.fields()))

    def _next(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    async def _put(self, client: RemotingClient, name: str, more: str = "") -> dict[str, str] | None:
        fields = {
            "a": "PG", "b": "T", "c": "TBW102", "d": str(QUEUES), "e": str(self._random.randrange(QUEUES)),
            "f": "4" if "TRAN_MSG" in more else "0", "g": str(time.time_ns() // 1_000_000), "h": "0",
            "i": f"UNIQ_KEY\x01{name}\x02{more}", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        answer = await client.call(
            self.address, RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"body")
        )
        return dict(answer.ext_fields) if answer.code == ResponseCode.SUCCESS else None

    async def settle(self) -> tuple[Counter[str], Counter[str]]:
        """Let everything that waits come; what is in the topic, and in the retries, in the end."""
        process = await asyncio.to_thread(start_broker, self._conf)
        client = RemotingClient({int(RequestCode.CHECK_TRANSACTION_STATE): self._checked})
        try:
            await client.call(self.address, RemotingCommand(RequestCode.HEART_BEAT, {}, HEARTBEAT))
            began = time.monotonic()
            wanted = self.plain | self.delayed | self.committed
            while True:
                await asyncio.sleep(0.5)
                seen = Counter(await self._all(client, "T", QUEUES))
                retried = Counter(await self._all(client, "%RETRY%G", 1))
                missing = (wanted - seen.keys()) | (self.sent_back - retried.keys())
                waited_s = time.monotonic() - began
                if waited_s > SETTLE_S or (not missing and waited_s > CHECKS_S):
                    return seen, retried
        finally:
            await client.close()
            process.terminate()
            await asyncio.to_thread(process.join)
            assert process.exitcode == 0

    async def _all(self, client: RemotingClient, topic: str, queues: int) -> list[str]:
        names = []
        for queue_id in range(queues):
            offset = 0
            while True:
                header = PullMessage("G", topic, queue_id, offset, 32, 4, 0, 0, 0, "*")
                answer = await client.call(
                    self.address, RemotingCommand(RequestCode.PULL_MESSAGE, header.fields()), 10
                )
                if answer.code != ResponseCode.SUCCESS:
                    break
                offset = int(answer.ext_fields["nextBeginOffset"])
                names += [message.properties["UNIQ_KEY"] for message in _records(answer.body or b"")]
        return names


def _records(body: bytes | memoryview) -> list[StoredMessage]:
    found, at, view = [], 0, memoryview(body)
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        found.append(decode(view[at : at + size]))
        at += size
    return found


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_comes_that_must_not(tmp_path):
    run = Run(tmp_path, seed=6)

    async def main() -> tuple[Counter[str], Counter[str]]:
        for _ in range(ROUNDS):
            await run.round()
        return await run.settle()

    seen, retried = asyncio.run(main())
    assert len(run.plain) > ROUNDS / 2
    assert run.delayed
    assert run.sent_back
    assert sorted(run.plain - seen.keys()) == []
    assert sorted(run.delayed - seen.keys()) == []
    assert sorted(run.sent_back - retried.keys()) == []
    rolled_back = {name for name, outcome in run.outcomes.items() if outcome == ROLLBACK}
    assert sorted(run.committed - seen.keys()) == []
    assert sorted(rolled_back & seen.keys()) == []
    assert [name for name, times in seen.items() if times > 1] == []

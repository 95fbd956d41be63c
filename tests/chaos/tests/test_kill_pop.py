"""A broker that is killed (SIGKILL) again and again while groups pop.

What must hold is what the simulator asks (simulator/pops.py): every message comes until it is acknowledged,
to one client at a time, and what was acknowledged in time never comes again.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import KourouError
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import Header
from simulator.pops import CLIENTS, Popping
from support.forked import start_broker
from support.proof import proof
from support.recorded.wire import free_ports
from support.sites.servers import SMALL_STORE

ROUNDS = proof(quick=5, full=100)  # so often it is killed
ROUND_S = (0.05, 0.6)  # the shortest and the longest
INVISIBLE_MS = (700, 2000)
SETTLE_S = 90.0  # at most, until all is acknowledged
LINGER_S = 5.0  # in which nothing comes again


class Run:
    """Groups that pop, and the broker that is killed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        port = free_ports(-2, 0)
        self._address = f"127.0.0.1:{port}"
        self._conf = directory / "broker.conf"
        lines = {
            "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": port,
            "brokerName": "broker-a", "storePathRootDir": directory / "store", **SMALL_STORE,
            "timerPrecisionMs": 100, "flushConsumerOffsetInterval": 300,
        }  # fmt: skip
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        self.ends: list[tuple[float, bool]] = []
        self._lives = 0
        self.pops = [
            Popping(seed, topic, _now_ms, self, in_order=in_order, invisible_ms=INVISIBLE_MS)
            for topic, in_order in (("pops", False), ("line", True))
        ]

    def now_s(self) -> float:
        return time.monotonic()

    async def round(self) -> None:
        """Run the broker for a moment, and kill it while everything is under way."""
        process = await asyncio.to_thread(start_broker, self._conf)
        client = RemotingClient()
        work = self._begin(client)
        await asyncio.sleep(self._chance.uniform(*ROUND_S))
        process.kill()
        self.ends.append((self.now_s(), False))
        await asyncio.to_thread(process.join)
        await self._end(client, work)

    async def settle(self) -> None:
        """Let everything come, and see that it does not come again."""
        process = await asyncio.to_thread(start_broker, self._conf)
        client = RemotingClient()
        for each in self.pops:
            each.is_over = True
        work = self._begin(client)
        try:
            deadline_s = self.now_s() + SETTLE_S
            while self.now_s() < deadline_s and any(each.open_ones() for each in self.pops):
                await asyncio.sleep(0.1)
            await asyncio.sleep(LINGER_S)
        finally:
            await self._end(client, work)
            process.terminate()
            await asyncio.to_thread(process.join)
        for each in self.pops:
            each.check()

    def _begin(self, client: RemotingClient) -> list[asyncio.Task[None]]:
        self._lives += 1

        async def ask(code: RequestCode, header: Header | None = None, body: bytes | None = None) -> Any:
            fields = header.fields() if header is not None else {}
            answer = await client.call(self._address, RemotingCommand(code, fields, body))
            if answer.code != ResponseCode.SUCCESS:
                raise KourouError(f"{code.name}: {answer.code} {answer.remark}")
            return answer

        async def send(topic: str, queue_id: int, body: bytes) -> int | None:
            name = body.decode().split(" ")[0]
            fields = {
                "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
                "g": str(_now_ms()), "h": "0", "i": f"UNIQ_KEY\x01{name}\x02", "j": "0", "k": "false",
                "m": "false",
            }  # fmt: skip
            answer = await client.call(
                self._address, RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
            )
            return int(answer.ext_fields["msgId"][16:], 16) if answer.code == ResponseCode.SUCCESS else None

        return [
            *(asyncio.create_task(each.produce(send, ask)) for each in self.pops),
            *(
                asyncio.create_task(each.consume(f"{self._lives}-{number}", ask))
                for each in self.pops
                for number in range(CLIENTS)
            ),
        ]

    async def _end(self, client: RemotingClient, work: list[asyncio.Task[None]]) -> None:
        for task in work:
            task.cancel()
        failed = [one for one in await asyncio.gather(*work, return_exceptions=True) if one is not None]
        await client.close()
        for one in failed:
            if not isinstance(one, asyncio.CancelledError):
                raise one


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.slow
def test_what_is_popped_comes_until_it_is_acknowledged_and_not_again(tmp_path: Path) -> None:
    run = Run(tmp_path, seed=23)

    async def main() -> None:
        for _ in range(ROUNDS):
            await run.round()
        await run.settle()

    asyncio.run(main())
    assert all(len(each.model.promised) >= ROUNDS for each in run.pops)
    assert sum(each.again for each in run.pops) > 0

"""Brokers and the name server are killed and come back while clients work: nothing that was acknowledged is
lost, what is read in order stays in order, and the clients leave no task and no socket behind."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.client import Consumer, Message, MessageQueue, Producer, ReceivedMessage
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from support.java import java
from support.recorded.wire import Caller, free_ports
from support.sites.clients import run, until
from support.sites.servers import (
    HOST,
    Mortal,
    broker_names,
    wait_until,
    write_broker_conf,
)

TOPIC = "orders"
KEYS = 8
MINUTES_S = 240.0


class MortalCluster:
    """A name server and two brokers."""

    def __init__(self, kind: str, directory: Path) -> None:
        port = free_ports(0)
        conf = directory / "namesrv.conf"
        lines = [f"listenPort={port}", f"kvConfigPath={directory}/kvConfig.json", f"bindAddress={HOST}"]
        conf.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.name_server = Mortal(kind, "namesrv", conf)
        self.brokers: dict[str, Mortal] = {}
        for name in ("broker-a", "broker-b"):
            (directory / name).mkdir()
            more = {
                "brokerName": name, "registerNameServerPeriod": 10_000, "waitTimeMillsInSendQueue": 20_000,
                "osPageCacheBusyTimeOutMills": 20_000,
            }  # fmt: skip
            self.brokers[name] = Mortal(kind, "broker", write_broker_conf(directory / name, port, more))

    @property
    def namesrv(self) -> str:
        return f"{HOST}:{self.name_server.port}"

    def create_topic(self) -> None:
        header = CreateTopic(TOPIC, "TBW102", 2, 2, 6, "SINGLE_TAG")
        for broker in self.brokers.values():
            with Caller(broker.port) as caller:
                caller.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields()))


@pytest.fixture(params=["kourou", pytest.param("java", marks=pytest.mark.interop)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalCluster]:
    if request.param == "java":
        java()
    made = MortalCluster(request.param, tmp_path)
    with ExitStack() as stack:
        for server in (made.name_server, *made.brokers.values()):
            stack.callback(server.stop)
            server.start()
        assert made.name_server.process is not None
        wait_until(
            lambda: set(broker_names(made.name_server.port)) == set(made.brokers), made.name_server.process
        )
        made.create_topic()
        yield made


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if link.startswith("socket:"):
            found.add(link)
    return found


class Load:
    """Messages that are sent for each of some keys, one after the other, and those that were consumed."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.acknowledged: set[tuple[int, int]] = set()
        self.is_over = False
        self.refused = 0
        self.seen: dict[str, dict[MessageQueue, list[tuple[int, int]]]] = {"in_order": {}, "any_order": {}}

    async def produce(self, producer: Producer, key: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            message = Message(TOPIC, b"%d %d" % (key, number), sharding_key=str(key))
            try:
                await producer.send(message, timeout_s=2.0)
                self.acknowledged.add((key, number))
            except KourouError:
                self.refused += 1
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.004)

    def consumer(self, group: str, orderly: bool) -> Consumer:
        consumer = Consumer(self.namesrv, group=group, subscribe=TOPIC, consume_from="first", orderly=orderly)

        @consumer.handler
        async def handle(message: ReceivedMessage) -> None:
            key, number = map(int, bytes(message.body).split())
            self.seen[group].setdefault(message.queue, []).append((key, number))

        return consumer

    def missing(self) -> int:
        return sum(
            len(self.acknowledged - {pair for pairs in queues.values() for pair in pairs})
            for queues in self.seen.values()
        )

    def check_order(self) -> None:
        for pairs in self.seen["in_order"].values():
            for key in range(KEYS):
                numbers = [number for own, number in dict.fromkeys(pairs) if own == key]
                assert numbers == sorted(numbers)


@pytest.mark.slow
def test_nothing_is_lost_while_servers_come_and_go(cluster):
    async def main() -> None:
        gc.collect()
        before = sockets()
        load = Load(cluster.namesrv)
        async with (
            load.consumer("in_order", True),
            load.consumer("any_order", False),
            Producer(cluster.namesrv, group="PG", retries=0) as producer,
        ):
            senders = [asyncio.create_task(load.produce(producer, key)) for key in range(KEYS)]
            for victim in (
                cluster.brokers["broker-a"],
                cluster.name_server,
                cluster.brokers["broker-b"],
            ):
                await asyncio.sleep(1.5)
                await asyncio.to_thread(victim.kill)
                await asyncio.sleep(1.5)
                await asyncio.to_thread(victim.start)
            enough = len(load.acknowledged) + 200
            await until(lambda: len(load.acknowledged) > enough)
            load.is_over = True
            await asyncio.gather(*senders)
            await until(lambda: load.missing() == 0)
        assert load.refused  # it did notice
        load.check_order()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(0)
        gc.collect()
        assert sockets() <= before

    run(main(), MINUTES_S)

"""What the simulator found in clients whose servers come back: each in a small world of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kourou.client import Message, Producer
from kourou.client.core import ClientCore, ClientError
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from simulator.world import HOSTS, NAMESRV, World

LIMIT_S = 300.0
SOON_S = 5.0
HEARTBEAT_S = 30.0


def play(what: Callable[[World, Producer], Awaitable[None]]) -> None:
    """A name server, a broker and a producer that has sent one message."""
    world = World(1)
    world.broker_config["broker"] = {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 65536,
        "maxHashSlotNum": 64,
        "maxIndexNum": 256,
        "timerWheelEnable": "false",
    }

    async def use() -> None:
        async with Producer(NAMESRV, group="PG", ip=HOSTS["client"]) as producer:
            await producer.send(Message("t", b"first"))
            await what(world, producer)

    async def main() -> None:
        await world.start("namesrv")
        await world.start("broker")
        while not world.brokers["broker"].registrar.registered_at:
            await asyncio.sleep(0.1)
        await world.run(world.add_node("client"), use())

    world.play(main(), LIMIT_S)


def test_a_name_server_that_is_back_and_knows_nothing_does_not_end_sending():
    async def restart(world: World, producer: Producer) -> None:
        await asyncio.sleep(2 * HEARTBEAT_S)
        await producer.send(Message("t", b"second"))  # by the topic's own route
        world.kill("namesrv", lost_power=True)
        await world.start("namesrv")
        for _ in range(int(2 * HEARTBEAT_S)):  # long enough for the client to ask for its routes
            await producer.send(Message("t", b"next"))
            await asyncio.sleep(1.0)

    play(restart)


def test_a_broker_that_is_back_knows_its_producers_soon():
    async def restart(world: World, producer: Producer) -> None:
        await asyncio.sleep(1.0)
        assert "PG" in world.brokers["broker"].producers.groups
        world.kill("broker", lost_power=False)
        await asyncio.sleep(1.0)
        await world.start("broker")

        await asyncio.sleep(SOON_S)

        assert "PG" in world.brokers["broker"].producers.groups

    play(restart)


def test_a_name_server_that_is_back_hears_of_the_brokers_soon():
    async def restart(world: World, producer: Producer) -> None:
        world.kill("namesrv", lost_power=True)
        await asyncio.sleep(2 * HEARTBEAT_S)  # a registration failed meanwhile
        await world.start("namesrv")

        await asyncio.sleep(2 * SOON_S)

        async with Producer(NAMESRV, group="other", ip=HOSTS["client"], instance="other") as other:
            await other.send(Message("t", b"found"))

    play(restart)


def test_a_name_server_that_is_back_at_once_hears_of_the_brokers_soon():
    async def restart(world: World, producer: Producer) -> None:
        await asyncio.sleep(5.0)  # registered just now: the next time would be far
        world.kill("namesrv", lost_power=True)
        await world.start("namesrv")

        await asyncio.sleep(SOON_S)

        async with Producer(NAMESRV, group="other", ip=HOSTS["client"], instance="other") as other:
            await other.send(Message("t", b"found"))

    play(restart)


async def test_a_name_server_that_hangs_is_asked_on_a_new_connection():
    """Given a name server that answers nothing any more, when another took its place, as behind a name, then
    the client does not wait on the old connection for ever."""
    hung: list[Connection] = []

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if not hung or connection in hung:
            hung.append(connection)
            return None
        return request.response()

    server = RemotingServer({int(RequestCode.GET_NAMESRV_CONFIG): answer})
    port = await server.start("127.0.0.1", 0)
    async with ClientCore(f"127.0.0.1:{port}", client_id="c") as core:
        with pytest.raises(ClientError):
            await core.ask_name_servers(lambda: RemotingCommand(RequestCode.GET_NAMESRV_CONFIG), 0.2)
        found = await core.ask_name_servers(lambda: RemotingCommand(RequestCode.GET_NAMESRV_CONFIG))
        assert found.code == 0
    await server.stop()

"""How soon name servers that were restarted, hung or moved know a broker and all of its topics again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from typing import Any
from unittest import mock

import pytest

from kourou.broker import Broker
from kourou.broker.services import registrar
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.remoting.server import RemotingServer
from support.recorded.wire import free_ports
from support.sites.broker import HOST, WAIT_S, Site, broker_config, loop_thread, run_on, running, until
from support.sites.name_server import name_server

TOPICS = 2000
# The longest there is: whoever waits for the next registration waits in vain here.
RARELY = {"registerNameServerPeriod": "60000"}
assert registrar._MAX_PERIOD_MS / 1000 > WAIT_S


@pytest.fixture(params=["none", "some"])
def changes(request: pytest.FixtureRequest) -> bool:
    """Whether topics are made while a name server knows nothing."""
    return bool(request.param == "some")


def make_topics(site: Site, prefix: str, count: int) -> None:
    topics = [TopicConfig(f"{prefix}{number}", 4, 4) for number in range(count)]
    site.do(site.broker.topics.update_all, topics)


def has_all(server: NameServer, broker: Broker) -> bool:
    return set(broker.topics.topics) <= set(server.routes.topics())


def test_a_name_server_of_2000_topics_that_is_restarted_has_all_routes_soon(tmp_path, changes):
    """Given a broker with 2,000 topics, when its name server is restarted, then it has them all long before
    the next registration; also if a change of some topics is the first that it hears."""
    port = free_ports(0)
    with running(tmp_path, {"namesrvAddr": f"{HOST}:{port}", **RARELY}) as site:
        make_topics(site, "t", TOPICS)
        with name_server(listen_port=port) as first:
            until(lambda: has_all(first, site.broker))
        with name_server(listen_port=port) as second:
            began = time.monotonic()
            if changes:
                make_topics(site, "more", 3)
            until(lambda: has_all(second, site.broker), "the routes")
            print(f"{TOPICS} routes were back after {time.monotonic() - began:.2f} s")


def test_each_name_server_is_told_for_itself(tmp_path, monkeypatch):
    """Given two name servers, when one is restarted, then it knows the broker soon, and the other, which was
    never away, was not told again."""
    port = free_ports(0)
    told: Counter[str] = Counter()
    with name_server() as stays, contextlib.ExitStack() as stack:
        first = stack.enter_context(name_server(listen_port=port))
        addresses = f"{HOST}:{stays.port};{HOST}:{port}"
        with running(tmp_path, {"namesrvAddr": addresses, **RARELY}) as site:
            until(lambda: has_all(stays, site.broker) and has_all(first, site.broker))
            call = site.broker.client.call

            async def counted(address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
                told[address] += request.code == RequestCode.REGISTER_BROKER
                return await call(address, request, timeout_s)

            monkeypatch.setattr(site.broker.client, "call", counted)
            stack.close()
            with name_server(listen_port=port) as second:
                until(lambda: has_all(second, site.broker))
                assert has_all(stays, site.broker)
            assert told[f"{HOST}:{stays.port}"] == 0


def test_a_name_server_that_forgot_the_broker_is_told_again(tmp_path):
    """Given a name server that keeps the connection but not the broker, then it knows it soon again."""
    with (
        name_server() as server,
        running(tmp_path, {"namesrvAddr": f"{HOST}:{server.port}", **RARELY}) as site,
    ):
        until(lambda: has_all(server, site.broker))
        (key,) = server.routes._live
        server.routes._forget({key})
        assert not has_all(server, site.broker)
        until(lambda: has_all(server, site.broker))


def test_name_servers_that_are_configured_later_are_told(tmp_path):
    """Given a broker whose `namesrvAddr` is changed while it runs, then the new one knows it soon."""
    with (
        name_server() as first,
        name_server() as second,
        running(tmp_path, {"namesrvAddr": f"{HOST}:{first.port}", **RARELY}) as site,
    ):
        until(lambda: has_all(first, site.broker))
        body = f"namesrvAddr={HOST}:{second.port}".encode()
        site.connect().ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, body))
        until(lambda: has_all(second, site.broker))
        until(lambda: list(site.broker.registrar.registered_at) == [f"{HOST}:{second.port}"])


def test_a_name_server_that_hangs_gets_a_new_connection(tmp_path, monkeypatch):
    """Given a name server that takes requests and answers none, when it answers on new connections only, as
    one that took its place does, then the broker registers there."""
    monkeypatch.setattr(registrar, "HANGS_AFTER_S", 0.2)
    hung: set[Any] = set()
    registered: list[Any] = []

    def answer(connection: Any, request: RemotingCommand) -> RemotingCommand | None:
        if connection in hung:
            return None
        if request.code == RequestCode.REGISTER_BROKER:
            registered.append(connection)
        return request.response(ext_fields={"changed": "false"})

    with loop_thread() as loop:

        async def listen() -> tuple[RemotingServer, int]:
            codes = (RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION)
            server = RemotingServer(dict.fromkeys(map(int, codes), answer))
            return server, await server.start(HOST, 0)

        server, port = run_on(loop, listen())
        with running(tmp_path, {"namesrvAddr": f"{HOST}:{port}", **RARELY}) as site:
            until(lambda: registered)
            hung.update(registered)
            until(lambda: registered[-1] not in hung, "a registration on another connection")
            until(lambda: list(site.broker.registrar.registered_at) == [f"{HOST}:{port}"], "its answer")
        run_on(loop, server.stop())


def test_a_name_server_that_moved_is_found_by_its_name(tmp_path):
    """Given a name of a name server, when it is back at another address of that name, then it knows the
    broker soon."""
    port = free_ports(0)
    addresses = ["127.0.0.1"]
    resolve = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **more: Any) -> Any:
        return resolve(addresses[0] if host == "namesrv.test" else host, *rest, **more)

    async def restart() -> None:
        broker = Broker(broker_config(tmp_path, {"namesrvAddr": f"namesrv.test:{port}", **RARELY}))
        await broker.start()
        try:
            for address in ("127.0.0.1", "127.0.0.2"):
                addresses[0] = address
                kv = str(tmp_path / "kvConfig.json")
                server = NameServer(
                    NameServerConfig(bind_address=address, listen_port=port, kv_config_path=kv)
                )
                await server.start()
                async with asyncio.timeout(WAIT_S):
                    while not has_all(server, broker):
                        await asyncio.sleep(0.01)
                await server.stop()
        finally:
            await broker.stop()

    with mock.patch("socket.getaddrinfo", resolved):
        asyncio.run(restart())


def test_a_slave_keeps_its_master_while_one_name_server_knows_it(tmp_path):
    """Given two name servers, of which one was restarted and has not heard of the master yet, then a slave
    goes by the other one."""
    port = free_ports(0)
    with name_server(listen_port=port) as forgets, name_server() as knows:
        names = f"{HOST}:{forgets.port};{HOST}:{knows.port}"
        config = {"namesrvAddr": names, "brokerName": "b", "brokerIP1": HOST, "brokerIP2": HOST, **RARELY}
        slave_config = {"brokerId": "1", "brokerRole": "SLAVE", **config}
        with (
            running(tmp_path / "m", {"brokerRole": "ASYNC_MASTER", **config}) as master,
            running(tmp_path / "s", slave_config) as slave,
        ):
            service = slave.broker.slave
            assert service is not None
            address = master.broker.config.address
            until(lambda: service.master_address == address)
            forgets.routes._forget({(master.broker.config.broker_cluster_name, address)})
            slave.run(slave.broker.registrar.register_all())
            assert service.master_address == address


def test_brokers_do_not_come_back_all_at_once(tmp_path):
    """Given a hundred brokers that lost their name server, then they try again at different moments."""

    def pauses(name: str) -> list[float]:
        broker = Broker(broker_config(tmp_path, {"brokerName": name, "namesrvAddr": f"{HOST}:1"}))
        chance = registrar.Registrar(broker)._chance
        return [chance.uniform(0.5, 1.0) for _ in range(5)]

    moments = [sum(pauses(f"broker-{number}")) for number in range(100)]
    fullest = max(Counter(int(moment * 10) for moment in moments).values())
    assert fullest < 25

"""Clients that speak remoting, through the proxy: they know its address alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kourou.admin import Admin
from kourou.client import Consumer, Message, Producer, SimpleConsumer, TransactionState
from kourou.errors import KourouError
from kourou.proxy.server import Proxy
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.testing import Cluster
from support.loops import until
from support.sites.proxy import HOST, proxied

QUICK = {"transactionTimeOut": "300", "transactionCheckInterval": "200"}


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with Cluster(brokers=2, config=QUICK) as cluster:
        yield cluster


def relay_of(proxy: Proxy) -> str:
    return f"{HOST}:{proxy.relay.port}"


async def ask(address: str, code: int, **fields: str) -> RemotingCommand:
    client = RemotingClient()
    try:
        return await client.call(address, RemotingCommand(code, fields), 30)
    finally:
        await client.close()


async def test_a_route_names_the_proxy_alone(pair):
    pair.create_topic("routed", queues=2)
    async with proxied(pair) as (proxy, _):
        answer = await ask(relay_of(proxy), RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="routed")
        brokers = lenient_json.loads(answer.body or b"")["brokerDatas"]
        assert {each["brokerName"] for each in brokers} == {"broker-a", "broker-b"}
        assert {tuple(each["brokerAddrs"].items()) for each in brokers} == {(("0", relay_of(proxy)),)}
        missing = await ask(relay_of(proxy), RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="nope")
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST


async def test_clients_are_told_the_address_of_the_configuration(pair):
    pair.create_topic("routed", queues=2)
    async with proxied(pair, remoting_access_addr="mq.example") as (proxy, _):
        answer = await ask(relay_of(proxy), RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="routed")
        told = lenient_json.loads(answer.body or b"")["brokerDatas"][0]["brokerAddrs"]
        assert told == {"0": f"mq.example:{proxy.relay.port}"}


async def test_messages_go_to_all_brokers_and_come_once(pair):
    pair.create_topic("both", queues=2)
    got: list[bytes] = []

    async with proxied(pair) as (proxy, _):
        address = relay_of(proxy)
        async with (
            Consumer(address, group="G-both", subscribe="both", consume_from="first") as consumer,
            Producer(address, group="PG") as producer,
        ):
            consumer.handler(lambda message: got.append(bytes(message.body)))
            receipts = [await producer.send(Message("both", b"%d" % number)) for number in range(20)]
            assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a", "broker-b"}
            await until(lambda: len(got) >= 20)
            async with Admin(pair.namesrv) as admin:
                connections = await admin.groups.connections("G-both")
                assert len(connections.clients) == 1
    assert sorted(got) == sorted(b"%d" % number for number in range(20))


async def test_what_brokers_ask_comes_to_the_client(pair):
    pair.create_topic("asked", queues=1)
    asked: list[str] = []

    def check(message) -> TransactionState:
        asked.append(message.topic)
        return TransactionState.COMMIT

    async with proxied(pair) as (proxy, _):
        async with Producer(relay_of(proxy), group="PG-asked", checker=check) as producer:
            await producer.send_in_transaction(
                Message("asked", b"later"), lambda *_: TransactionState.UNKNOWN
            )
            await until(lambda: asked)
        async with SimpleConsumer(relay_of(proxy), group="G-asked", subscribe="asked") as consumer:
            found: list[bytes] = []
            while not found:
                for message in await consumer.receive(await_s=5):
                    found.append(bytes(message.body))
                    await consumer.ack(message)
            assert found == [b"later"]


async def test_a_client_that_is_gone_is_gone_at_the_brokers(pair):
    pair.create_topic("gone", queues=1)
    async with proxied(pair) as (proxy, _):
        client = RemotingClient()
        body = b'{"clientID":"c-1","producerDataSet":[{"groupName":"PG-gone"}],"consumerDataSet":[]}'
        answer = await client.call(relay_of(proxy), RemotingCommand(RequestCode.HEART_BEAT, {}, body), 30)
        assert answer.code == ResponseCode.SUCCESS
        async with Admin(pair.namesrv) as admin:

            async def known() -> bool:
                try:
                    return bool(await admin.producers.connections("PG-gone", "gone"))
                except KourouError:
                    return False

            assert await known()
            await client.close()
            while await known():
                await asyncio.sleep(0.05)
        assert not proxy.relay._clients


async def test_what_cannot_be_passed_on_is_refused(pair):
    pair.create_topic("refused", queues=1)
    async with proxied(pair) as (proxy, _):
        address = relay_of(proxy)
        fields = {"topic": "refused", "queueId": "0"}
        unnamed = await ask(address, RequestCode.GET_MAX_OFFSET, **fields)
        assert (unnamed.code, unnamed.remark) == (
            ResponseCode.VERSION_NOT_SUPPORTED, "Request doesn't have field bname"
        )  # fmt: skip
        unknown = await ask(address, RequestCode.GET_MAX_OFFSET, bname="nope", **fields)
        assert "broker nope is not known" in (unknown.remark or "")
        named = await ask(address, RequestCode.GET_MAX_OFFSET, bname="broker-a", **fields)
        assert named.ext_fields["offset"] == "0"
        other = await ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, bname="broker-a", topic="refused")
        assert other.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_port_that_is_taken_is_said(pair):
    async with proxied(pair) as (first, _):
        with pytest.raises(KourouError, match=f"port {first.relay.port} of {HOST} cannot be used"):
            async with proxied(pair, remoting_listen_port=first.relay.port):
                pass

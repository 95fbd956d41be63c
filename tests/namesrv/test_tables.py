"""Tables of a name server that requests fill: bounded, and empty again when who filled them is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.namesrv import NameServer
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.registration import Registration, encode_registration
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig
from support.sites.broker import Peer, until
from support.sites.name_server import name_server

SMALL = {"maxBrokers": "20", "maxRoutes": "100", "maxKvConfigBytes": "2000"}
MANY = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NameServer]:
    with name_server(tmp_path, SMALL) as made:
        yield made


@pytest.fixture
def broker(server: NameServer) -> Iterator[Peer]:
    """The connection of a broker that was there before, with a topic."""
    with contextlib.closing(Peer(server.port)) as peer:
        register(peer, "steady", "10.0.0.1:1", topics=("orders", "bills"))
        yield peer
        assert register(peer, "steady", "10.0.0.1:1", topics=("orders", "bills")).code == 0
        assert server.routes.route("orders") is not None


def register(
    peer: Peer,
    name: str,
    address: str,
    *,
    cluster: str = "c",
    topics: tuple[str, ...] = (),
    version: int = 1,
    mappings: dict[str, dict[str, object]] | None = None,
) -> RemotingCommand:
    configs = {topic: TopicConfig(topic, 4, 4) for topic in topics}
    body = encode_registration(
        Registration(DataVersion(version), configs, mappings or {}, []), compressed=False
    )
    fields = {
        "brokerName": name, "brokerAddr": address, "clusterName": cluster, "brokerId": "0",
        "haServerAddr": address, "compressed": "false", "bodyCrc32": "0", "enableActingMaster": "false",
    }  # fmt: skip
    return peer.call(RemotingCommand(RequestCode.REGISTER_BROKER, fields, body))


def sizes(server: NameServer) -> dict[str, int]:
    return server.routes.sizes()


@pytest.mark.parametrize("varied", ["name", "address", "cluster", "name and cluster"])
def test_brokers_are_bounded_and_go_with_their_connection(server, broker, varied):
    """Given a peer that registers ever more brokers, by their names, addresses or clusters, then there are no
    more than the budget, and with its connection all of them are gone."""
    before = sizes(server)
    with contextlib.closing(Peer(server.port)) as peer:
        for number in range(MANY):
            register(
                peer,
                f"b-{number}" if "name" in varied else "b",
                f"10.0.1.1:{number}" if varied == "address" else "10.0.1.1:1",
                cluster=f"c-{number}" if "cluster" in varied else "c",
            )
        assert max(sizes(server).values()) <= 20
        assert sizes(server) != before
        assert server.refusals.counts["maxBrokers"] > 0
    until(lambda: sizes(server) == before)
    assert len(server.routes._clusters) == 1


def test_routes_are_bounded_and_go_with_their_broker(server, broker):
    """Given registrations of ever more topics, and topics that anybody registers at a broker that is known,
    then there are no more routes than the budget."""
    before = sizes(server)
    with contextlib.closing(Peer(server.port)) as peer:
        for number in range(5):
            topics = tuple(f"t-{number}-{place}" for place in range(40))
            mappings: dict[str, dict[str, object]] = {
                topic: {"bname": "b"} for topic in (*topics, *(f"none-{place}" for place in range(40)))
            }
            register(peer, "b", "10.0.1.1:1", topics=topics, version=number, mappings=mappings)
            body = lenient_json.dumps({"queueDatas": [{"brokerName": "b", "perm": 6}]})
            for place in range(40):
                fields = {"topic": f"own-{number}-{place}"}
                peer.ask(RemotingCommand(RequestCode.REGISTER_TOPIC_IN_NAMESRV, fields, body))
        assert sizes(server)["topics"] == server.routes._routes == 100
        assert len(server.routes._queue_mappings) <= 100
        assert server.refusals.counts["maxRoutes"] > 0
        peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "t-0-0"}))
        assert server.routes._routes == 99
    until(lambda: sizes(server) == before)
    assert (server.routes._routes, server.routes._queue_mappings) == (2, {})


def test_the_kv_config_is_bounded(server, broker):
    put = RequestCode.PUT_KV_CONFIG
    codes = [
        broker.call(RemotingCommand(put, {"namespace": f"n-{number}", "key": "k", "value": "v" * 90})).code
        for number in range(MANY)
    ]
    assert codes[0] == ResponseCode.SUCCESS
    assert codes[-1] == ResponseCode.SYSTEM_ERROR
    assert 15 <= codes.count(ResponseCode.SUCCESS) <= 21
    assert server.refusals.counts["maxKvConfigBytes"] == codes.count(ResponseCode.SYSTEM_ERROR)
    broker.ask(RemotingCommand(put, {"namespace": "n-0", "key": "k", "value": "shorter"}))
    assert server.kv.get("n-0", "k") == "shorter"

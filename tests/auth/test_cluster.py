"""A name server and a broker that want signed requests, and Kourou's clients."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from kourou.auth import Acl
from kourou.broker import Broker, BrokerConfig
from kourou.broker.state.groups import SubscriptionGroupConfig
from kourou.client import Consumer, Message, Producer
from kourou.client.core import ClientCore, RefusedError, make_client_id
from kourou.errors import KourouError
from kourou.message.ids import decode_offset_message_id
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.signing import Credentials
from support.sites.access import BROKER, NAME_SERVER, request_of
from support.sites.clients import take

ADMIN, APP = Credentials("admin", "12345678"), Credentials("app", "app-secret")
PROPERTIES = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"12345678"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}
ENTRIES = (("Topic:mine", ["Pub", "Sub"]), ("Group:readers", ["Sub"]))


def acl(*entries):
    values = [{"resource": text, "actions": actions, "decision": "Allow"} for text, actions in entries]
    return Acl.from_json({"subject": "User:app", "policies": [{"entries": values}]})


@asynccontextmanager
async def cluster(directory):
    config = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(directory / "ns" / "kv.json")
    )
    config.others.update(PROPERTIES)
    name_server = NameServer(config)
    await name_server.start()
    broker = Broker(
        BrokerConfig.from_properties(
            {
                **PROPERTIES, "namesrvAddr": f"127.0.0.1:{name_server.port}", "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1", "listenPort": "0", "storePathRootDir": str(directory / "store"),
                "mappedFileSizeCommitLog": str(1 << 20), "timerWheelEnable": "false",
                "brokerConfigPath": str(directory / "broker.conf"),
            }
        )
    )  # fmt: skip
    await broker.start()
    try:
        yield name_server, broker
    finally:
        await broker.stop()
        await name_server.stop()


@asynccontextmanager
async def core_of(name_server, credentials):
    core = ClientCore(
        f"127.0.0.1:{name_server.port}", client_id=make_client_id("127.0.0.1"), credentials=credentials
    )
    async with core:
        yield core


async def create(core, broker, topic):
    header = CreateTopic(topic, "TBW102", 2, 2, 6, "SINGLE_TAG")
    await core.ask(f"127.0.0.1:{broker.config.listen_port}", RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def test_clients_of_ours_sign_what_they_ask(tmp_path):
    async with cluster(tmp_path) as (name_server, broker):
        address = f"127.0.0.1:{name_server.port}"
        async with core_of(name_server, ADMIN) as core:
            for topic in ("mine", "theirs"):
                await create(core, broker, topic)
        for server in (broker, name_server):
            server.access.create_user({"username": APP.access_key, "password": APP.secret_key})
            server.access.put_acl(acl(*ENTRIES))
        async with Producer(address, group="PG", credentials=APP, retries=0) as producer:
            assert (await producer.send(Message("mine", b"1"))).status == "SEND_OK"
            with pytest.raises(KourouError, match="no permission"):
                await producer.send(Message("theirs", b"2"))
        async with Consumer(
            address, group="readers", subscribe="mine", consume_from="first", credentials=APP
        ) as consumer:
            assert [message.body for message in await take(consumer, 1)] == [b"1"]
        for wrong in (None, Credentials("app", "wrong")):
            async with Producer(address, group="PG", credentials=wrong, retries=0) as producer:
                with pytest.raises(KourouError):
                    await producer.send(Message("mine", b"3"))
        assert broker.store.max_offset("mine", 0) + broker.store.max_offset("mine", 1) == 1


async def test_a_name_server_takes_no_broker_that_is_not_allowed(tmp_path):
    async with cluster(tmp_path) as (name_server, _), core_of(name_server, APP) as core:
        for server in (name_server,):
            server.access.create_user({"username": APP.access_key, "password": APP.secret_key})
        address = f"127.0.0.1:{name_server.port}"
        for code in (
            RequestCode.REGISTER_BROKER,
            RequestCode.UPDATE_NAMESRV_CONFIG,
            RequestCode.PUT_KV_CONFIG,
        ):
            with pytest.raises(RefusedError) as refused:
                await core.ask(address, code, None, b"{}")
            assert refused.value.code == ResponseCode.NO_PERMISSION


async def test_secrets_do_not_leave_a_server_and_access_is_not_changed_from_outside(tmp_path):
    async with cluster(tmp_path) as (name_server, broker), core_of(name_server, ADMIN) as core:
        places = (
            (broker.config.listen_port, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG),
            (name_server.port, RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
        )
        for port, get, update in places:
            address = f"127.0.0.1:{port}"
            text = bytes((await core.ask(address, get, None)).body or b"").decode()
            assert "initAuthenticationUser=******" in text
            assert "12345678" not in text
            assert "inner-secret" not in text
            for change in (
                "authenticationEnabled=false",
                "authConfigPath=/tmp/x",
                "initAuthenticationUser=x",
            ):
                with pytest.raises(RefusedError):
                    await core.ask(address, update, None, change.encode())
        await core.ask(
            f"127.0.0.1:{broker.config.listen_port}", RequestCode.UPDATE_BROKER_CONFIG, None,
            b"maxMessageSize=1048576",
        )  # fmt: skip
        assert "12345678" in (tmp_path / "broker.conf").read_text()  # its own file keeps what it was told


async def test_a_refusal_does_not_end_the_connection(tmp_path):
    async with cluster(tmp_path) as (name_server, broker), core_of(name_server, None) as core:
        address = f"127.0.0.1:{broker.config.listen_port}"
        for _ in range(2):
            with pytest.raises(RefusedError, match="signed"):
                await core.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, None)
        assert len(broker.server.connections) == 1


async def test_no_request_that_is_served_passes_the_guard(tmp_path):
    """At the servers themselves: every code that they have a handler for, without a user and with one who may
    do nothing, whatever way a request takes through the server."""

    async def refusals(core, port, codes):
        found = {}
        for code in codes:
            answer = await core.call(f"127.0.0.1:{port}", request_of(code), 10)
            found[code] = answer.code
        return found

    async with cluster(tmp_path) as (name_server, broker):
        for server in (broker, name_server):
            server.access.create_user({"username": APP.access_key, "password": APP.secret_key})
        ports = (broker.config.listen_port, name_server.port)
        for credentials in (None, Credentials("app", "wrong"), Credentials("stranger", "x"), APP):
            async with core_of(name_server, credentials) as core:
                for port, codes in zip(ports, (sorted(BROKER), sorted(map(int, NAME_SERVER)))):
                    wanted = dict.fromkeys(codes, ResponseCode.NO_PERMISSION)
                    assert await refusals(core, port, codes) == wanted
        assert broker.store.commit_log.files.max_wrote == 0


async def test_a_message_that_is_named_by_its_place_is_its_topics(tmp_path):
    """Who may read a topic does not read another one by naming the place of its messages in the log."""

    async with cluster(tmp_path) as (name_server, broker):
        address = f"127.0.0.1:{broker.config.listen_port}"
        async with core_of(name_server, ADMIN) as core:
            for topic in ("mine", "theirs"):
                await create(core, broker, topic)
        places = {}
        async with Producer(f"127.0.0.1:{name_server.port}", group="PG", credentials=ADMIN) as producer:
            for topic in ("mine", "theirs"):
                receipt = await producer.send(Message(topic, topic.encode()))
                places[topic] = receipt.offset_message_id
        broker.access.create_user({"username": APP.access_key, "password": APP.secret_key})
        broker.access.put_acl(acl(("Topic:mine", ["Sub", "Get"]), ("Group:readers", ["Sub"])))
        broker.groups.update(SubscriptionGroupConfig("readers"))
        async with core_of(name_server, APP) as core:
            for topic, code in (("mine", ResponseCode.SUCCESS), ("theirs", ResponseCode.NO_PERMISSION)):
                place = decode_offset_message_id(places[topic]).physical_offset
                asked = {"topic": "mine", "offset": str(place), "group": "readers", "delayLevel": "0"}
                for request in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK):
                    answer = await core.call(address, RemotingCommand(request, asked), 10)
                    assert answer.code == code, (topic, request)
            directly = {
                "consumerGroup": "readers",
                "topic": "mine",
                "clientId": "c",
                "msgId": places["theirs"],
            }
            answer = await core.call(
                address, RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly), 10
            )
            assert answer.code == ResponseCode.NO_PERMISSION


async def test_secrets_of_users_are_shown_to_super_users_alone(tmp_path):
    async with cluster(tmp_path) as (name_server, broker):
        broker.access.create_user({"username": APP.access_key, "password": APP.secret_key})
        broker.access.put_acl(acl(("Cluster:DefaultCluster", ["All"])))
        address = f"127.0.0.1:{broker.config.listen_port}"
        for credentials, shows in ((ADMIN, True), (APP, False)):
            async with core_of(name_server, credentials) as core:
                for code in (RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER):
                    request = RemotingCommand(code, {"username": "admin"})
                    answer = await core.call(address, request, 10)
                    text = bytes(answer.body or b"").decode()
                    assert answer.code == ResponseCode.SUCCESS
                    assert (ADMIN.secret_key in text, '"admin"' in text) == (shows, True)
        async with core_of(name_server, APP) as core:  # nor does a user make itself a super user
            body = b'{"userType":"Super"}'
            with pytest.raises(RefusedError):
                await core.ask(address, RequestCode.AUTH_UPDATE_USER, None, body)
            answer = await core.call(
                address, RemotingCommand(RequestCode.AUTH_UPDATE_USER, {"username": "app"}, body), 10
            )
            assert answer.code == ResponseCode.NO_PERMISSION
        assert broker.access.users["app"].type == "Normal"

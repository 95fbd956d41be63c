"""A name server and a broker that want signed requests, and Kourou's clients."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from kourou.auth import Acl
from kourou.broker import Broker, BrokerConfig
from kourou.client import Consumer, Message, Producer
from kourou.client.core import ClientCore, RefusedError, make_client_id
from kourou.errors import KourouError
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.headers import CreateTopic
from kourou.remoting.signing import Credentials
from support.clients import run, take

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


def test_clients_of_ours_sign_what_they_ask(tmp_path):
    async def main():
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

    run(main())


def test_a_name_server_takes_no_broker_that_is_not_allowed(tmp_path):
    async def main():
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

    run(main())


def test_secrets_do_not_leave_a_server_and_access_is_not_changed_from_outside(tmp_path):
    async def main():
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

    run(main())


def test_a_refusal_does_not_end_the_connection(tmp_path):
    async def main():
        async with cluster(tmp_path) as (name_server, broker), core_of(name_server, None) as core:
            address = f"127.0.0.1:{broker.config.listen_port}"
            for _ in range(2):
                with pytest.raises(RefusedError, match="signed"):
                    await core.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, None)
            assert len(broker.server.connections) == 1

    run(main())

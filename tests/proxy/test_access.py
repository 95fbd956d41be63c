"""Who is served where a cluster has access control: calls that are signed, by users who may."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kourou.auth import Acl, User
from kourou.proxy.access import RULES, read_signature, sign
from kourou.proxy.protocol import duration, pb
from kourou.remoting.client import RemotingClient
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.signing import Credentials
from kourou.testing import Cluster
from support.sites.proxy import HOST, Client, message, proxied

Code = pb.Code
ADMIN = Credentials("admin", "admin-secret")
INNER = '{"accessKey":"admin","secretKey":"admin-secret"}'
GUARD = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "innerClientAuthenticationCredentials": INNER,
}
RIGHTS: dict[str, list[dict[str, Any]]] = {
    "writer": [{"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}],
    "reader": [
        {"resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow"},
        {"resource": "Group:g-*", "actions": ["Sub"], "decision": "Allow"},
    ],
    "elsewhere": [
        {"resource": "*", "actions": ["All"], "decision": "Allow", "sourceIps": ["10.0.0.0/8"]},
    ],
    "here": [{"resource": "*", "actions": ["All"], "decision": "Allow", "sourceIps": [HOST]}],
    "moving": [{"resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow"}],
}


def tell(cluster: Cluster, code: int, fields: dict[str, str], body: Any = None) -> RemotingCommand:
    """A request of the administrator."""
    data = None if body is None else lenient_json.dumps(body)
    signed = ADMIN.sign(RemotingCommand(code, fields, data))
    return cluster.call(cluster.broker_addresses[0], code, signed.ext_fields, data)


def allow(cluster: Cluster, name: str, entries: list[dict[str, Any]]) -> None:
    value = {"policies": [{"policyType": "Custom", "entries": entries}], "subject": f"User:{name}"}
    Acl.from_json(value)
    tell(cluster, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, value)


def add_user(cluster: Cluster, name: str, status: str = "enable") -> None:
    value = User(name, f"{name}-secret", status=status).to_json()
    tell(cluster, RequestCode.AUTH_CREATE_USER, {"username": name}, value)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A broker with access control, topics, and users with rights."""
    user = '{"username":"admin","password":"admin-secret"}'
    with Cluster(config={**GUARD, "initAuthenticationUser": user}) as cluster:
        for topic in ("orders", "secrets"):
            header = CreateTopic(
                topic, "TBW102", 2, 2, 6, "SINGLE_TAG", attributes="+message.type=NORMAL"
            )  # fmt: skip
            tell(cluster, RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())
        for name, entries in RIGHTS.items():
            add_user(cluster, name)
            allow(cluster, name, entries)
        add_user(cluster, "disabled", "disable")
        yield cluster


def as_user(client: Client, name: str, secret: str | None = None, **more: str) -> Client:
    """The client, which signs its calls from now on."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signature = sign(now, f"{name}-secret" if secret is None else secret).upper()
    values = {
        **dict(client.metadata),
        "x-mq-date-time": now,
        "authorization": f"MQv2-HMAC-SHA1 Credential={name}/cn/RocketMQ,"
        f" SignedHeaders=x-mq-date-time, Signature={signature}",
        **more,
    }
    client.metadata = tuple((key, value) for key, value in values.items() if value)
    return client


async def test_calls_that_are_signed_are_served(guarded):
    async with proxied(guarded, others=GUARD) as (_, client):
        await as_user(client, "reader").receive("orders", "g-one")
        sent = await as_user(client, "writer").send(message("orders", b"signed"))
        assert sent.status.code == Code.OK, sent
        status, (found,) = await as_user(client, "reader").receive("orders", "g-one")
        assert (status.code, found.body) == (Code.OK, b"signed")
        done = await client.ack("orders", "g-one", found.system_properties.receipt_handle)
        assert done.status.code == Code.OK


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("writer", {"secret": "wrong"}, "check signature failed"),
        ("nobody", {}, "check signature failed"),
        ("disabled", {}, "disabled"),
        ("writer", {"authorization": ""}, "username cannot be null"),
        ("writer", {"x-mq-date-time": ""}, "datetime is null"),
        ("writer", {"x-mq-date-time": "20990101T000000Z"}, "check signature failed"),
        ("writer", {"authorization": "MQv2-HMAC-SHA1"}, "header is incorrect"),
        ("writer", {"authorization": "MQv2-HMAC-SHA1 Credential=writer"}, "check signature failed"),
    ],
)
async def test_calls_that_are_not_signed_are_refused(guarded, name, more, reason):
    async with proxied(guarded, others=GUARD) as (_, client):
        answer = await as_user(client, name, **more).send(message("orders"))
        assert (answer.status.code, len(answer.entries)) == (Code.UNAUTHORIZED, 0)
        assert reason in answer.status.message


async def test_users_do_what_they_may_and_no_more(guarded):
    async with proxied(guarded, others=GUARD) as (_, client):
        endpoints, orders = client.endpoints, pb.Resource(name="orders")
        route = pb.QueryRouteRequest(topic=orders, endpoints=endpoints)
        assert (await as_user(client, "writer").call("QueryRoute", route)).status.code == Code.OK
        assert (await client.receive("orders", "g-two"))[0].code == Code.UNAUTHORIZED
        beat = pb.HeartbeatRequest(client_type=pb.ClientType.PUSH_CONSUMER, group=pb.Resource(name="g-two"))
        assert (await client.call("Heartbeat", beat)).status.code == Code.UNAUTHORIZED

        refused = await as_user(client, "reader").send(message("orders"))
        assert refused.status.code == Code.UNAUTHORIZED
        assert "User:reader has no permission to access Topic:orders from 127.0.0.1" in refused.status.message
        assert (await client.receive("orders", "other"))[0].code == Code.UNAUTHORIZED
        secrets = pb.QueryRouteRequest(topic=pb.Resource(name="secrets"), endpoints=endpoints)
        assert (await client.call("QueryRoute", secrets)).status.code == Code.UNAUTHORIZED
        assert (await client.receive("orders", "g-two"))[0].code in (Code.OK, Code.MESSAGE_NOT_FOUND)


async def test_a_telemetry_stream_is_told_that_it_may_not_and_ends(guarded):
    subscription = pb.Subscription(
        group=pb.Resource(name="g-tell"),
        subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name="orders"))],
    )
    settings = pb.TelemetryCommand(settings=pb.Settings(subscription=subscription))
    async with proxied(guarded, others=GUARD) as (proxy, client):
        stream = as_user(client, "writer").telemetry()
        await stream.write(settings)
        told = [command async for command in stream]
        assert [command.status.code for command in told] == [Code.UNAUTHORIZED]
        assert len(proxy.clients) == 0
        stream = as_user(client, "reader").telemetry()
        await stream.write(settings)
        assert (await stream.read()).settings.backoff_policy.max_attempts == 17


async def test_the_id_of_a_client_is_that_of_its_user_alone(guarded):
    """Given a client, when another user says that it is this one, then it is not."""
    publishing = pb.Settings(publishing=pb.Publishing(topics=[pb.Resource(name="orders")]))
    async with proxied(guarded, others=GUARD) as (proxy, client):
        stream, _ = await as_user(client, "writer").settle(publishing)
        beat = pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)
        assert (await client.call("Heartbeat", beat)).status.code == Code.OK
        answer = await as_user(client, "reader").call("Heartbeat", beat)
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        await client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        assert len(proxy.clients) == 1
        stream.cancel()


async def test_rights_may_depend_on_where_a_client_is(guarded):
    async with proxied(guarded, others=GUARD) as (_, client):
        assert (await as_user(client, "elsewhere").send(message("orders"))).status.code == Code.UNAUTHORIZED
        assert (await as_user(client, "here").send(message("orders"))).status.code == Code.OK


async def test_what_is_changed_at_the_brokers_counts(guarded):
    async with proxied(guarded, others=GUARD, user_cache_refresh_seconds=0) as (_, client):
        as_user(client, "moving")
        assert (await client.send(message("orders"))).status.code == Code.UNAUTHORIZED
        allow(guarded, "moving", [{"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}])
        assert (await client.send(message("orders"))).status.code == Code.OK
        tell(guarded, RequestCode.AUTH_DELETE_USER, {"username": "moving"})
        assert (await client.send(message("orders"))).status.code == Code.UNAUTHORIZED


async def test_who_may_not_send_any_more_is_not_asked_for_transactions(guarded):
    """Given a producer whose right is taken away, when it is there still, then commands of its topic, which
    have messages in them, are not for it."""
    add_user(guarded, "former")
    allow(guarded, "former", [{"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}])
    async with proxied(guarded, others=GUARD, user_cache_refresh_seconds=0) as (proxy, client):
        stream, _ = await as_user(client, "former").settle(
            pb.Settings(publishing=pb.Publishing(topics=[pb.Resource(name="orders")]))
        )
        assert proxy.clients.tell_producer("orders", pb.TelemetryCommand())
        tell(guarded, RequestCode.AUTH_DELETE_ACL, {"subject": "User:former"})
        await client.call("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER))
        assert not proxy.clients.tell_producer("orders", pb.TelemetryCommand())
        stream.cancel()


async def test_a_proxy_signs_what_it_asks_the_cluster(guarded):
    """Given a proxy that checks nothing, then its own user decides what is served."""
    inner = {"innerClientAuthenticationCredentials": INNER}
    async with proxied(guarded, others=inner) as (_, client):
        assert (await client.send(message("orders"))).status.code == Code.OK
    async with proxied(guarded) as (_, client):
        answer = await client.send(message("orders"))
        assert answer.status.code == Code.FORBIDDEN
        assert "innerClientAuthenticationCredentials" in answer.status.message


async def test_a_proxy_whose_user_may_not_see_secrets_says_so(guarded):
    weak = {**GUARD, "innerClientAuthenticationCredentials": '{"accessKey":"here","secretKey":"here-secret"}'}
    async with proxied(guarded, others=weak) as (_, client):
        answer = await as_user(client, "writer").send(message("orders"))
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert "super user" in answer.status.message


async def test_messages_of_the_whitelist_need_no_user(guarded):
    name = "apache.rocketmq.v2.SendMessageRequest"
    free = {**GUARD, "authenticationWhitelist": name, "authorizationWhitelist": f" {name},105"}
    async with proxied(guarded, others=free) as (_, client):
        assert (await client.send(message("orders"))).status.code == Code.OK
        assert (await client.receive("orders", "g-two"))[0].code == Code.UNAUTHORIZED


async def test_no_handle_makes_another_topics_message_a_dead_letter(guarded):
    """Given a handle whose place in the log is that of another topic's message, then nothing is moved."""
    async with proxied(guarded, others=GUARD) as (_, client):
        hour = duration(3_600_000)
        await as_user(client, "admin").receive("secrets", "g-admin")
        await client.send(message("secrets", b"secret"))
        _, (secret,) = await client.receive("secrets", "g-admin", invisible_duration=hour)
        await as_user(client, "reader").receive("orders", "g-forge")
        await as_user(client, "writer").send(message("orders", b"open"))
        _, (found,) = await as_user(client, "reader").receive("orders", "g-forge", invisible_duration=hour)
        handle = found.system_properties.receipt_handle
        head, place = handle.rpartition(" ")[0], secret.system_properties.receipt_handle.rpartition(" ")[2]
        forward = pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name="g-forge"), topic=pb.Resource(name="orders"),
            receipt_handle=f"{head} {place}", max_delivery_attempts=17,
        )  # fmt: skip
        answer = await client.call("ForwardMessageToDeadLetterQueue", forward)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
        forward.receipt_handle = handle
        answer = await client.call("ForwardMessageToDeadLetterQueue", forward)
        assert answer.status.code == Code.OK


async def test_every_call_that_is_served_has_a_rule(guarded):
    async with proxied(guarded) as (proxy, _):
        served = {"Telemetry", "ReceiveMessage", *proxy._handlers}
        requests = {pb.service.methods_by_name[name].input_type.name for name in served}
        assert requests == RULES.keys()


def test_the_parts_of_a_signature():
    text = "MQv2-HMAC-SHA1 Credential=a/b/c, SignedHeaders=x-mq-date-time, Signature=AB0C"
    assert read_signature(text) == ("a", "ab0c")
    assert read_signature("") == ("", None)
    assert sign("20200101T000000Z", "secret") == "3dd45e629ee934c38d921b957928dd4c3b28e6a1"  # by openssl


async def test_clients_that_speak_remoting_are_asked_as_well(guarded):
    """Given a name server that anybody may ask, then its proxy answers those who may."""
    async with proxied(guarded, others=GUARD) as (proxy, _):
        client = RemotingClient()
        try:
            for user, wanted in ((None, False), ("reader", True), ("here", True), ("elsewhere", False)):
                request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
                if user is not None:
                    request = Credentials(user, f"{user}-secret").sign(request)
                answer = await client.call(f"{HOST}:{proxy.relay.port}", request, 30)
                expected = ResponseCode.SUCCESS if wanted else ResponseCode.NO_PERMISSION
                assert answer.code == expected, (user, answer.remark)
        finally:
            await client.close()

"""What the calls of the interface do and answer."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from kourou.errors import KourouError
from kourou.proxy.handlers.receipts import Receipt
from kourou.proxy.handlers.sending import consistent_hash
from kourou.proxy.protocol import duration, pb, timestamp
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from support.loops import until
from support.sites.proxy import HOST, Client, message, proxied

Code = pb.Code


def topic(name: str):
    return pb.Resource(name=name)


async def test_a_route_has_the_queues_of_a_topic_at_the_proxy(cluster):
    async with proxied(cluster) as (proxy, client):
        answer = await client.call(
            "QueryRoute", pb.QueryRouteRequest(topic=topic("fifo"), endpoints=client.endpoints)
        )
        queues = answer.message_queues
        assert (answer.status.code, [queue.id for queue in queues]) == (Code.OK, [0, 1, 2, 3])
        assert {queue.permission for queue in queues} == {pb.Permission.READ_WRITE}
        assert {tuple(queue.accept_message_types) for queue in queues} == {(pb.MessageType.FIFO,)}
        assert {(a.host, a.port) for queue in queues for a in queue.broker.endpoints.addresses} == {
            (HOST, proxy.port)
        }


async def test_clients_are_told_the_advertised_endpoints(cluster):
    async with proxied(cluster, advertised_endpoints="mq.example:443; 10.0.0.7:9000") as (_, client):
        request = pb.QueryRouteRequest(topic=topic("mixed"), endpoints=client.endpoints)
        queue = (await client.call("QueryRoute", request)).message_queues[0]
        told = queue.broker.endpoints
        assert [(each.host, each.port) for each in told.addresses] == [
            ("mq.example", 443),
            ("10.0.0.7", 9000),
        ]
        assert told.scheme == pb.AddressScheme.DOMAIN_NAME
        assert len(queue.accept_message_types) == 4


async def test_a_message_comes_as_it_was_sent_and_is_gone_when_acknowledged(cluster):
    async with proxied(cluster) as (_, client):
        await client.receive("normal", "g-one")
        sent = message("normal", "语".encode(), {"颜色": "红"}, tag="paid", keys=["k1", "k2"])
        answer = await client.send(sent)
        assert (answer.status.code, answer.entries[0].message_id) == (
            Code.OK, sent.system_properties.message_id
        )  # fmt: skip
        status, (found,) = await client.receive("normal", "g-one")
        system = found.system_properties
        assert (status.code, found.body, dict(found.user_properties)) == (Code.OK, sent.body, {"颜色": "红"})
        assert (system.tag, list(system.keys), system.delivery_attempt) == ("paid", ["k1", "k2"], 1)
        assert system.message_id == sent.system_properties.message_id
        assert system.message_type == pb.MessageType.NORMAL
        done = await client.ack("normal", "g-one", system.receipt_handle)
        assert [done.status.code, done.entries[0].status.code] == [Code.OK, Code.OK]
        status, again = await client.receive("normal", "g-one")
        assert (status.code, again) == (Code.MESSAGE_NOT_FOUND, [])


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (message("normal", b""), Code.MESSAGE_BODY_EMPTY),
        (message("normal", b"x" * (4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (message("normal", message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (message("normal", tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message("normal", tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (message("normal", keys=["a\x01"]), Code.ILLEGAL_MESSAGE_KEY),
        (message("normal", user={"KEYS": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message("normal", user={"a": "b\x02c"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message("normal", user={str(n): "x" for n in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message("normal", user={"a": "x" * 17_000}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message("normal", message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("fifo", message_type=pb.MessageType.FIFO), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            message("fifo", message_type=pb.MessageType.FIFO, message_group="g" * 64),
            Code.ILLEGAL_MESSAGE_GROUP,
        ),
        (
            message(
                "delay", message_type=pb.MessageType.DELAY,
                delivery_timestamp=timestamp((int(time.time()) + 90_000) * 1000),
            ),
            Code.ILLEGAL_DELIVERY_TIME,
        ),
        (message("bad topic"), Code.ILLEGAL_TOPIC),
        (message("TBW102"), Code.ILLEGAL_TOPIC),
        (message("nowhere"), Code.TOPIC_NOT_FOUND),
    ],
)  # fmt: skip
async def test_a_message_that_is_not_right_is_refused(cluster, made, code):
    async with proxied(cluster) as (_, client):
        answer = await client.send(made)
        assert answer.status.code == code, answer
        assert answer.status.message


async def test_a_call_without_a_client_id_is_refused(cluster):
    async with proxied(cluster) as (_, client):
        client.metadata = ()
        answer = await client.call("QueryRoute", pb.QueryRouteRequest(topic=topic("normal")))
        assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_settings_are_merged_and_a_heartbeat_needs_them(cluster):
    async with proxied(cluster) as (_, client):
        beat = pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)
        assert (await client.call("Heartbeat", beat)).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        stream, settings = await client.settle(
            pb.Settings(publishing=pb.Publishing(topics=[topic("normal")]))
        )
        assert settings.backoff_policy.max_attempts == 3
        assert (settings.publishing.max_body_size, settings.publishing.validate_message_type) == (
            4 << 20,
            True,
        )
        assert (await client.call("Heartbeat", beat)).status.code == Code.OK
        await stream.done_writing()

        _, settings = await client.settle(
            pb.Settings(
                subscription=pb.Subscription(
                    group=topic("g-set"), subscriptions=[pb.SubscriptionEntry(topic=topic("normal"))]
                )
            )
        )
        assert settings.backoff_policy.max_attempts == 17
        assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:3] == [1, 5, 10]
        assert (settings.subscription.receive_batch_size, settings.subscription.fifo) == (32, False)


async def test_a_telemetry_stream_without_a_kind_of_client_is_ended(cluster):
    async with proxied(cluster) as (_, client):
        stream = client.telemetry()
        await stream.write(pb.TelemetryCommand(settings=pb.Settings()))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("invisible_ms", [0, 1000])
async def test_a_message_comes_again_at_another_time_if_its_invisible_time_is_changed(cluster, invisible_ms):
    """At once for 0 ms: Node's push consumer asks for that when a message fails."""
    group = f"g-change-{invisible_ms}"
    async with proxied(cluster) as (_, client):
        await client.receive("normal", group)
        await client.send(message("normal", b"again"))
        _, (found,) = await client.receive("normal", group, invisible_duration=duration(3_600_000))
        changed = await client.call(
            "ChangeInvisibleDuration",
            pb.ChangeInvisibleDurationRequest(
                group=topic(group), topic=topic("normal"), invisible_duration=duration(invisible_ms),
                receipt_handle=found.system_properties.receipt_handle,
            ),
        )  # fmt: skip
        assert changed.status.code == Code.OK
        again: list = []
        while not again:
            _, again = await client.receive("normal", group)
        assert (again[0].body, again[0].system_properties.delivery_attempt) == (b"again", 2)
        late = await client.ack("normal", group, changed.receipt_handle, "no handle")
        assert {entry.status.code for entry in late.entries} == {Code.INVALID_RECEIPT_HANDLE}


async def test_a_proxy_that_was_started_since_takes_acknowledgements_and_ends_transactions(cluster):
    """Given a message and a half message of one proxy, then another one knows both by their handles."""
    async with proxied(cluster) as (_, client):
        await client.receive("mixed", "g-other")
        half = message("mixed", b"half", message_type=pb.MessageType.TRANSACTION)
        begun = (await client.send(half)).entries[0]
        await client.send(message("mixed", b"whole"))
        _, (whole,) = await client.receive("mixed", "g-other")
    async with proxied(cluster) as (_, client):
        done = await client.ack("mixed", "g-other", whole.system_properties.receipt_handle)
        assert done.status.code == Code.OK
        ended = await client.call(
            "EndTransaction",
            pb.EndTransactionRequest(
                topic=topic("mixed"), message_id=begun.message_id, transaction_id=begun.transaction_id,
                resolution=pb.TransactionResolution.COMMIT,
            ),
        )  # fmt: skip
        assert ended.status.code == Code.OK
        status, (found,) = await client.receive("mixed", "g-other")
        assert (status.code, found.body) == (Code.OK, b"half")


async def test_a_producer_is_asked_what_became_of_its_transaction(cluster):
    async with proxied(cluster) as (_, client):
        stream, _ = await client.settle(pb.Settings(publishing=pb.Publishing(topics=[topic("halves")])))
        await client.send(message("halves", b"open", message_type=pb.MessageType.TRANSACTION))
        asked = (await stream.read()).recover_orphaned_transaction_command
        assert (asked.message.body, asked.message.topic.name) == (b"open", "halves")
        ended = await client.call(
            "EndTransaction",
            pb.EndTransactionRequest(
                topic=topic("halves"), message_id=asked.message.system_properties.message_id,
                transaction_id=asked.transaction_id, resolution=pb.TransactionResolution.ROLLBACK,
                source=pb.TransactionSource.SOURCE_SERVER_CHECK,
            ),
        )  # fmt: skip
        assert ended.status.code == Code.OK


async def test_what_a_client_has_comes_again_soon_when_it_goes(cluster):
    """Given a message whose handle is renewed, when its client says that it goes, then another has it."""
    async with proxied(cluster) as (_, client):
        await client.receive("normal", "g-goes")
        await client.send(message("normal", b"mine"))
        _, (found,) = await client.receive("normal", "g-goes", auto_renew=True)
        assert found.body == b"mine"
        await client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        again: list = []
        while not again:
            _, again = await client.receive("normal", "g-goes")
        assert (again[0].body, again[0].system_properties.delivery_attempt) == (b"mine", 1)


async def test_messages_for_a_client_that_went_while_it_waited_come_again_soon(cluster):
    async with proxied(cluster) as (proxy, client):
        await client.receive("normal", "g-waits")
        waiting = client.receiving("normal", "g-waits", long_polling_timeout=duration(20_000))
        first = asyncio.ensure_future(waiting.read())
        polls = cluster.brokers[0].popper.polls
        await until(lambda: polls.waiting(("normal", "g-waits", -1)), "a poll")
        first.cancel()
        waiting.cancel()
        await until(lambda: len(proxy._background) > 2, "a task that gives back")
        await client.send(message("normal", b"for nobody"))
        found: list = []
        while not found:
            _, found = await client.receive("normal", "g-waits")
        assert (found[0].body, found[0].system_properties.delivery_attempt) == (b"for nobody", 1)


async def test_a_handle_is_renewed_until_its_message_is_done(cluster):
    """Given handles that are renewed long before their end, then the first handle still acknowledges."""
    ahead = 10 * 3600 * 1000
    async with proxied(cluster, renew_ahead_time_millis=ahead, renew_schedule_period_millis=50) as (
        proxy,
        client,
    ):
        await client.receive("normal", "g-renew")
        await client.send(message("normal", b"long work"))
        _, (found,) = await client.receive("normal", "g-renew", auto_renew=True)
        handle = found.system_properties.receipt_handle
        (kept,) = proxy.receipts._kept.values()
        await until(lambda: kept.renewals >= 2, "two renewals")
        assert kept.receipt != Receipt.read("normal", "g-renew", handle)
        assert (await client.ack("normal", "g-renew", handle)).status.code == Code.OK
        assert not proxy.receipts._kept


async def test_what_a_client_acknowledges_as_it_goes_does_not_come_again(cluster):
    """Given acknowledgements that pass each other with the news that a client goes, then only what it did
    not acknowledge comes again."""
    async with proxied(cluster) as (_, client):
        await client.receive("normal", "g-goes")
        for body in (b"before", b"after", b"never"):
            await client.send(message("normal", body))
        given: dict[bytes, str] = {}
        while len(given) < 3:
            _, found = await client.receive("normal", "g-goes", auto_renew=True)
            given |= {each.body: each.system_properties.receipt_handle for each in found}
        goes = client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        await asyncio.gather(client.ack("normal", "g-goes", given[b"before"]), goes)
        assert (await client.ack("normal", "g-goes", given[b"after"])).status.code == Code.OK
        again: list[bytes] = []
        while b"never" not in again:
            again += [each.body for each in (await client.receive("normal", "g-goes"))[1]]
        again += [each.body for each in (await client.receive("normal", "g-goes"))[1]]
        assert again == [b"never"]


async def test_the_highest_priority_is_received_first(cluster):
    async with proxied(cluster) as (_, client):
        route = pb.QueryRouteRequest(topic=topic("ranks"), endpoints=client.endpoints)
        (types,) = {
            tuple(queue.accept_message_types)
            for queue in (await client.call("QueryRoute", route)).message_queues
        }
        assert types == (pb.MessageType.PRIORITY,)
        await client.receive("ranks", "g-ranks")
        for priority in (0, 3, 1, 9):
            made = message(
                "ranks", str(priority).encode(), message_type=pb.MessageType.PRIORITY, priority=priority
            )
            assert (await client.send(made)).status.code == Code.OK
        assert (await client.send(message("ranks"))).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        _, found = await client.receive("ranks", "g-ranks")
        # The last queue is that of all priorities from 3 on.
        assert [(int(each.body), each.system_properties.priority) for each in found] == [
            (3, 3), (9, 9), (1, 1), (0, 0),
        ]  # fmt: skip
        assert {each.system_properties.message_type for each in found} == {pb.MessageType.PRIORITY}


async def test_clients_of_lite_topics_are_told_that_their_group_is_none(cluster):
    """Given groups without `lite.bind.topic`, then the answers are those of Java's proxy."""
    async with proxied(cluster) as (_, client):
        sync = pb.SyncLiteSubscriptionRequest(
            topic=topic("lite"), group=topic("g-lite"), lite_topic_set=["one"]
        )
        answer = await client.call("SyncLiteSubscription", sync)
        assert answer.status.code == Code.ILLEGAL_TOPIC
        assert "is expected to bind topic null" in answer.status.message
        subscription = pb.Subscription(
            group=topic("g-lite"), subscriptions=[pb.SubscriptionEntry(topic=topic("lite"))]
        )
        stream = client.telemetry()
        kind = pb.ClientType.LITE_PUSH_CONSUMER
        settings = pb.Settings(client_type=kind, subscription=subscription)
        await stream.write(pb.TelemetryCommand(settings=settings))
        with pytest.raises(grpc.aio.AioRpcError, match="regular group cannot use LITE mode") as raised:
            await stream.read()
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_lite_group_is_told_that_lite_topics_are_not_served(cluster):
    body = lenient_json.dumps({"groupName": "g-bound", "attributes": {"+lite.bind.topic": "lite"}})
    cluster.call(cluster.broker_addresses[0], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    async with proxied(cluster) as (_, client):
        sync = pb.SyncLiteSubscriptionRequest(topic=topic("lite"), group=topic("g-bound"))
        assert (await client.call("SyncLiteSubscription", sync)).status.code == Code.NOT_IMPLEMENTED
        subscription = pb.Subscription(
            group=topic("g-bound"), subscriptions=[pb.SubscriptionEntry(topic=topic("lite"))]
        )
        stream = client.telemetry()
        await stream.write(pb.TelemetryCommand(settings=pb.Settings(subscription=subscription)))
        with pytest.raises(grpc.aio.AioRpcError, match="lite group must use LITE mode"):
            await stream.read()


async def test_one_port_takes_tls_and_plain_text(cluster):
    """Given no certificate, then a client that trusts any is served."""
    async with proxied(cluster) as (proxy, client):
        from kourou.remoting.self_signed import NAME, self_signed_pair

        trusted = grpc.ssl_channel_credentials(self_signed_pair()[0])
        options = (("grpc.ssl_target_name_override", NAME),)
        address = f"{HOST}:{proxy.port}"
        async with grpc.aio.secure_channel(address, trusted, options) as channel:
            try:
                async with asyncio.timeout(20):
                    await channel.channel_ready()
            except TimeoutError:
                pytest.fail("no TLS connection")
            answer = await Client(channel, proxy.port).send(message("normal"))
        assert answer.status.code == Code.OK
        assert (await client.send(message("normal"))).status.code == Code.OK


async def test_bytes_that_are_no_http_close_that_connection_alone(cluster):
    async with proxied(cluster) as (proxy, client):
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + b"\x00" * 100_000)
        while await reader.read(4096):
            pass
        writer.close()
        assert (await client.send(message("normal"))).status.code == Code.OK


def test_messages_of_a_group_go_to_the_queue_that_javas_proxy_takes():
    """Values of Guava's consistentHash."""
    assert consistent_hash(10863919174838991, 11) == 6
    assert consistent_hash(2016238256797177309, 11) == 3
    assert consistent_hash(1673758223894951030, 11) == 5
    assert consistent_hash(2, 100001) == 80343
    assert consistent_hash(2201, 100001) == 22152
    assert consistent_hash(2202, 100001) == 15018


async def test_a_request_with_a_message_that_is_not_right_sends_none(cluster):
    async with proxied(cluster) as (_, client):
        await client.receive("normal", "g-none")
        answer = await client.send(message("normal", b"good"), message("normal", b""))
        assert (answer.status.code, len(answer.entries)) == (Code.MESSAGE_BODY_EMPTY, 0)
        assert (await client.receive("normal", "g-none"))[1] == []


async def test_a_receipt_whose_acknowledgement_fails_is_still_renewed(cluster, monkeypatch):
    """Given a broker that does not answer, then the same handle acknowledges later."""
    async with proxied(cluster) as (proxy, client):
        await client.receive("normal", "g-twice")
        await client.send(message("normal", b"work"))
        _, (found,) = await client.receive("normal", "g-twice", auto_renew=True)
        handle = found.system_properties.receipt_handle
        with monkeypatch.context() as patched:

            async def fail(*_: object) -> None:
                raise KourouError("no answer")

            patched.setattr(proxy.receipts, "ack_message", fail)
            failed = await client.ack("normal", "g-twice", handle)
            assert failed.status.code == Code.INTERNAL_SERVER_ERROR
        assert len(proxy.receipts._kept) == 1
        assert (await client.ack("normal", "g-twice", handle)).status.code == Code.OK
        assert not proxy.receipts._kept

"""Clients that are broken, slow, or mean: they are refused, and others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from kourou.proxy.protocol import duration, pb
from kourou.proxy.server import Proxy
from support.loops import until
from support.proof import proof
from support.sites.proxy import HOST, Client, message, proxied

Code = pb.Code
NORMAL = pb.Resource(name="normal")
PUBLISHING = pb.Settings(publishing=pb.Publishing(topics=[NORMAL]))
HUGE = "9" * 5000


@asynccontextmanager
async def connected(proxy: Proxy, client_id: str, *options: tuple[str, Any]) -> AsyncIterator[Client]:
    """Another client, on a connection of its own."""
    alone = (("grpc.use_local_subchannel_pool", 1), *options)
    async with grpc.aio.insecure_channel(f"{HOST}:{proxy.port}", options=alone) as channel:
        yield Client(channel, proxy.port, client_id)


async def is_served(client: Client) -> bool:
    return (await client.send(message("normal"))).status.code == Code.OK


@pytest.mark.parametrize("name", ["SendMessage", "QueryRoute", "Heartbeat", "AckMessage"])
async def test_bytes_that_are_no_message_end_their_call_alone(cluster, name):
    async with proxied(cluster) as (proxy, client), connected(proxy, "bad") as bad:
        for data in (b"\xff" * 10, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05abc"):
            answer = await bad.call(name, BadMessage(data))
            assert answer.status.code == Code.BAD_REQUEST
        assert await is_served(client)


async def test_bytes_that_are_no_message_end_their_stream_alone(cluster):
    async with proxied(cluster) as (proxy, client), connected(proxy, "bad") as bad:
        status = [
            answer.status.code
            async for answer in bad._method("unary_stream", "ReceiveMessage")(
                BadMessage(b"\xff"), metadata=bad.metadata
            )
        ]
        assert status == [Code.BAD_REQUEST]
        stream = bad.telemetry()
        await stream.write(BadMessage(b"\xff"))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert await is_served(client)


class BadMessage(bytes):
    """Bytes in place of a message."""

    def SerializeToString(self) -> bytes:
        return bytes(self)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((), Code.CLIENT_ID_REQUIRED),
        ((("x-mq-client-id", ""),), Code.CLIENT_ID_REQUIRED),
        ((("x-mq-client-id-bin", b"\xff\x00"),), Code.CLIENT_ID_REQUIRED),
        ((("x-mq-client-id", "a"), ("x-mq-client-id", "b")), Code.OK),
        ((("x-mq-client-id", "a b/c%d"), ("x-mq-language", "KLINGON"), ("x-mq-bin", b"\xff")), Code.OK),
        ((("x-mq-client-id", "a"), ("authorization", "== , ==="), ("x-mq-date-time", "-")), Code.OK),
    ],
)
async def test_odd_metadata(cluster, metadata, code):
    async with proxied(cluster) as (_, client):
        client.metadata = metadata
        assert (await client.send(message("normal"))).status.code == code


async def test_metadata_that_is_too_large_ends_its_call_alone(cluster):
    async with proxied(cluster) as (proxy, client), connected(proxy, "large") as large:
        large.metadata = (*large.metadata, ("x-mq-much", "x" * 1_000_000))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await large.send(message("normal"))
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await is_served(client)


def odd_requests() -> list[tuple[str, Any]]:
    far = pb.Timestamp(seconds=1 << 62)
    ack = pb.AckMessageEntry(receipt_handle=f"1 2 3 4 0 broker-a 0 7 {HUGE}")
    half = {"topic": pb.Resource(name="halves"), "resolution": pb.TransactionResolution.COMMIT}
    group = pb.Resource(name="g-odd")
    return [
        ("SendMessage", pb.SendMessageRequest()),
        ("SendMessage", pb.SendMessageRequest(messages=[pb.Message()])),
        ("SendMessage", pb.SendMessageRequest(messages=[message("normal"), message("mixed")])),
        (
            "SendMessage",
            pb.SendMessageRequest(
                messages=[message("delay", message_type=pb.MessageType.DELAY, delivery_timestamp=far)]
            ),
        ),
        ("SendMessage", pb.SendMessageRequest(messages=[message("%RETRY%" + "x" * 300)])),
        ("RecallMessage", pb.RecallMessageRequest(topic=NORMAL, recall_handle="\u20ac" * 100)),
        ("EndTransaction", pb.EndTransactionRequest(**half, transaction_id="\u20ac")),
        ("EndTransaction", pb.EndTransactionRequest(**half, transaction_id="AAAA" * 10_000)),
        ("AckMessage", pb.AckMessageRequest(group=group, topic=NORMAL, entries=[ack])),
        ("AckMessage", pb.AckMessageRequest(entries=[ack])),
        (
            "ChangeInvisibleDuration",
            pb.ChangeInvisibleDurationRequest(
                group=group, topic=NORMAL, receipt_handle=HUGE,
                invisible_duration=pb.Duration(seconds=1 << 60),
            ),
        ),
        (
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(
                group=group, topic=NORMAL, receipt_handle=f"1 {10**15} 3 4 0 broker-a 0 7 -5"
            ),
        ),
        ("QueryRoute", pb.QueryRouteRequest(topic=NORMAL)),
        ("QueryAssignment", pb.QueryAssignmentRequest(topic=NORMAL)),
        ("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PULL_CONSUMER)),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "request_"), odd_requests())
async def test_values_that_mean_nothing_are_the_callers_fault(cluster, name, request_):
    async with proxied(cluster) as (_, client):
        answer = await client.call(name, request_)
        assert Code.BAD_REQUEST <= answer.status.code < Code.INTERNAL_ERROR, answer


async def test_values_that_mean_nothing_in_a_receive(cluster):
    async with proxied(cluster) as (_, client):
        for fields in (
            {"invisible_duration": pb.Duration(seconds=-(1 << 60))},
            {"invisible_duration": duration(10_000), "batch_size": -5},
            {"long_polling_timeout": pb.Duration(seconds=-1, nanos=-1)},
            {"attempt_id": "\x00" * 1000},
        ):
            status, _ = await client.receive("normal", "g-odd", **fields)
            assert status.code < Code.INTERNAL_ERROR, status
        assert await is_served(client)


async def test_what_a_client_was_not_asked_is_not_looked_at(cluster):
    async with proxied(cluster) as (_, client):
        stream, _ = await client.settle(PUBLISHING)
        for command in (
            pb.TelemetryCommand(),
            pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce="7", thread_stack_trace="x")),
            pb.TelemetryCommand(verify_message_result=pb.VerifyMessageResult(nonce=HUGE)),
            pb.TelemetryCommand(settings=PUBLISHING),
        ):
            await stream.write(command)
        assert (await stream.read()).settings.publishing.max_body_size == 4 << 20
        stream.cancel()


async def test_settings_that_are_too_large_are_not_kept(cluster):
    wide = pb.Publishing(topics=[pb.Resource(name=f"{n:0100}") for n in range(11_000)])
    async with proxied(cluster) as (_, client):
        stream = client.telemetry()
        await stream.write(pb.TelemetryCommand(settings=pb.Settings(publishing=wide)))
        with pytest.raises(grpc.aio.AioRpcError, match="settings have at most"):
            await stream.read()


async def test_a_telemetry_client_that_does_not_read_holds_up_nobody(cluster):
    """Given a client that writes and does not read, then what waits for it is limited."""
    wide = pb.Settings(
        publishing=pb.Publishing(topics=[pb.Resource(name=f"topic-{n}-{'x' * 80}") for n in range(200)])
    )
    async with proxied(cluster) as (proxy, client):
        async with connected(proxy, "deaf", ("grpc.http2.bdp_probe", 0)) as deaf:
            stream = deaf.telemetry()

            async def write() -> None:
                while True:
                    await stream.write(pb.TelemetryCommand(settings=wide))

            writing = asyncio.ensure_future(write())
            await until(lambda: ("", "deaf") in proxy.clients._clients, "the client")
            known = proxy.clients._clients["", "deaf"]
            small, large = pb.TelemetryCommand(), pb.TelemetryCommand()
            large.recover_orphaned_transaction_command.message.body = bytes(4 << 20)
            assert 0 < sum(iter(lambda: known.tell(large), False)) < 5
            assert 0 < sum(iter(lambda: known.tell(small), False)) < 65
            assert await is_served(client)
            other, _ = await client.settle(PUBLISHING)
            other.cancel()
            writing.cancel()
            stream.cancel()
        await until(lambda: known.outbox is None, "the end of the stream")


async def test_many_idle_streams_leave_others_served(cluster):
    many = proof(quick=200, full=1000)
    async with proxied(cluster) as (proxy, client):
        async with connected(proxy, "crowd") as crowd:
            streams = []
            for number in range(many):
                crowd.metadata = (("x-mq-client-id", f"idle-{number}"),)
                streams.append(crowd.telemetry())
                await streams[-1].write(pb.TelemetryCommand(settings=PUBLISHING))
            told = await asyncio.gather(*(stream.read() for stream in streams))
            assert {command.status.code for command in told} == {Code.OK}
            assert len(proxy.clients) == many
            assert await is_served(client)
        clients = list(proxy.clients._clients.values())
        await until(lambda: all(each.outbox is None for each in clients), "their end")
        for each in clients:
            each.seen_ms = 0
        proxy.clients.scan()
        assert len(proxy.clients) == 0


async def test_silent_connections_leave_others_served(cluster):
    async with proxied(cluster) as (proxy, client):
        pairs = [await asyncio.open_connection(HOST, proxy.port) for _ in range(100)]
        for _, writer in pairs[:50]:
            writer.write(b"PRI * HTTP/2.0\r\n")  # half of what begins a connection
        assert await is_served(client)
        for _, writer in pairs:
            writer.close()
        await until(lambda: len(proxy._door._sides) <= 2, "their end")  # type: ignore[union-attr]
        assert proxy.connections == 1

"""A proxy before a cluster of ours, and a client that speaks its interface without the official one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from kourou.proxy.config import ProxyConfig
from kourou.proxy.protocol import PACKAGE, duration, pb, timestamp
from kourou.proxy.server import Proxy
from kourou.testing import Cluster

HOST = "127.0.0.1"
TIMEOUT_S = 60.0
POLL_MS = 300


class Client:
    """Calls as a client makes them."""

    def __init__(self, channel: Any, port: int, client_id: str = "client-1") -> None:
        self._channel = channel
        self.metadata: tuple[tuple[str, str], ...] = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
        )
        self.endpoints = pb.Endpoints(
            scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host=HOST, port=port)]
        )

    async def call(self, name: str, request: Any, **options: Any) -> Any:
        """The answer to a call."""
        return await self._method("unary_unary", name)(
            request, timeout=TIMEOUT_S, metadata=self.metadata, **options
        )

    def _method(self, kind: str, name: str) -> Any:
        method = pb.service.methods_by_name[name]
        return getattr(self._channel, kind)(
            f"/{PACKAGE}.{pb.service.name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(pb, method.output_type.name).FromString,
        )

    def telemetry(self) -> Any:
        """A telemetry stream."""
        return self._method("stream_stream", "Telemetry")(metadata=self.metadata)

    async def settle(self, settings: Any) -> tuple[Any, Any]:
        """Say who this client is; the stream, and the settings that it is to have."""
        stream = self.telemetry()
        await stream.write(pb.TelemetryCommand(settings=settings))
        return stream, (await stream.read()).settings

    async def send(self, *messages: Any) -> Any:
        """SendMessage."""
        return await self.call("SendMessage", pb.SendMessageRequest(messages=messages))

    def receiving(self, topic: str, group: str, **fields: Any) -> Any:
        """ReceiveMessage, as a call under way."""
        fields.setdefault("invisible_duration", duration(10_000))
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(
                topic=pb.Resource(name=topic), id=-1, broker=pb.Broker(name="broker-a")
            ),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=32,
            long_polling_timeout=duration(POLL_MS),
        )
        for name, value in fields.items():
            if isinstance(value, int | str | bool):
                setattr(request, name, value)
            else:
                getattr(request, name).CopyFrom(value)
        return self._method("unary_stream", "ReceiveMessage")(
            request, timeout=TIMEOUT_S, metadata=self.metadata
        )

    async def receive(self, topic: str, group: str, **fields: Any) -> tuple[Any, list[Any]]:
        """ReceiveMessage: the status, and the messages."""
        answers = [answer async for answer in self.receiving(topic, group, **fields)]
        assert answers[-1].HasField("delivery_timestamp") or len(answers) == 1
        return answers[0].status, [answer.message for answer in answers if answer.HasField("message")]

    async def ack(self, topic: str, group: str, *handles: str) -> Any:
        """AckMessage."""
        request = pb.AckMessageRequest(
            group=pb.Resource(name=group), topic=pb.Resource(name=topic),
            entries=[pb.AckMessageEntry(message_id="m", receipt_handle=handle) for handle in handles],
        )  # fmt: skip
        return await self.call("AckMessage", request)


def message(topic: str, body: bytes = b"body", user: dict[str, str] | None = None, **system: Any) -> Any:
    """A message of type NORMAL, unless `system` says something else."""
    made = pb.Message(topic=pb.Resource(name=topic), body=body, user_properties=user or {})
    values = {
        "message_id": f"01{time.time_ns():032X}", "message_type": pb.MessageType.NORMAL,
        "body_encoding": pb.Encoding.IDENTITY, "born_host": "here",
        "born_timestamp": timestamp(time.time_ns() // 1_000_000), **system,
    }  # fmt: skip
    for name, value in values.items():
        if isinstance(value, int | str):
            setattr(made.system_properties, name, value)
        elif isinstance(value, list):
            getattr(made.system_properties, name).extend(value)
        else:
            getattr(made.system_properties, name).CopyFrom(value)
    return made


@asynccontextmanager
async def proxied(cluster: Cluster, **config: Any) -> AsyncIterator[tuple[Proxy, Client]]:
    """A proxy before a cluster, where polls may be short, and a client of it."""
    places: dict[str, Any] = {
        "namesrv_addr": cluster.namesrv, "bind_address": HOST, "grpc_server_port": 0,
        "remoting_listen_port": 0,
    }  # fmt: skip
    polls: dict[str, Any] = {"grpc_client_consumer_min_long_polling_timeout_millis": POLL_MS}
    proxy = Proxy(ProxyConfig(**{**places, **polls, **config}))
    await proxy.start()
    try:
        async with grpc.aio.insecure_channel(f"{HOST}:{proxy.port}") as channel:
            yield proxy, Client(channel, proxy.port)
    finally:
        await proxy.stop()

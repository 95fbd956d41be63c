"""Clients: who is there, what they said of themselves, and the streams by which they are told something
(GrpcClientSettingsManager, ClientActivity)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from kourou.auth import AccessError
from kourou.errors import KourouError
from kourou.proxy.access import CONSUMERS
from kourou.proxy.calls import Call, Owner, as_status
from kourou.proxy.protocol import duration, pb
from kourou.proxy.statuses import OK, StatusError

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

log = logging.getLogger(__name__)

MAX_CLIENTS = 50_000
MAX_COMMANDS = 64  # that wait for a client which does not read
MAX_COMMAND_BYTES = 16 << 20  # of these: a command may have a message in it
MAX_SETTINGS_BYTES = 1 << 20  # thousands of topics; they are kept as long as the client is there
LOOK_S = 10.0  # for clients that say nothing any more

# When a message that failed comes again, in milliseconds (CustomizedRetryPolicy)
_BACKOFF_MS = (
    1000, 5000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000,
    540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
)  # fmt: skip


class Outbox:
    """What waits to be written to a telemetry stream."""

    def __init__(self) -> None:
        self._commands: asyncio.Queue[Any] = asyncio.Queue()
        self._bytes = 0

    def put(self, command: Any) -> bool:
        """Add a command; False if too much waits already."""
        size = command.ByteSize()
        if self._commands.qsize() >= MAX_COMMANDS or self._bytes + size > MAX_COMMAND_BYTES:
            return False
        self._bytes += size
        self._commands.put_nowait(command)
        return True

    def end(self) -> None:
        """Nothing comes any more."""
        self._commands.put_nowait(None)

    async def write(self, context: Any) -> None:
        """Write what comes to a stream, until the end."""
        while (command := await self._commands.get()) is not None:
            await context.write(command)
            self._bytes -= command.ByteSize()
            self._commands.task_done()

    async def written(self) -> None:
        """Wait until all was written."""
        await self._commands.join()


@dataclass(slots=True, eq=False)
class Client:
    """A client that is there."""

    owner: Owner
    peer: str = ""  # where it was last
    settings: Any = None
    seen_ms: int = 0
    outbox: Outbox | None = None  # of its telemetry stream, if it has one
    topics: frozenset[str] = field(default_factory=frozenset)  # that it produces for

    def tell(self, command: Any) -> bool:
        """Send a command; False if there is no stream, or if it is not read."""
        if self.outbox is None:
            return False
        if not self.outbox.put(command):
            log.warning("client %s does not read its telemetry: a command is dropped", self.owner[1])
            return False
        return True


class Clients:
    """The clients of a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._clients: dict[Owner, Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def settings(self, call: Call) -> Any:
        """What a client said of itself; None if it said nothing."""
        client = self._clients.get(call.owner)
        return None if client is None else client.settings

    async def heartbeat(self, call: Call, request: Any) -> Any:
        """Heartbeat: the client is still there."""
        client = self._clients.get(call.owner)
        if client is None or client.settings is None:
            raise StatusError(
                pb.Code.UNRECOGNIZED_CLIENT_TYPE,
                f"cannot find client settings for this client: {call.client_id}",
            )
        if request.client_type in CONSUMERS:
            self._proxy.check_group(call.name_of(request.group))
        client.seen_ms = self._proxy.now_ms()
        return pb.HeartbeatResponse(status=OK)

    async def terminate(self, call: Call, request: Any) -> Any:
        """NotifyClientTermination: the client goes."""
        self._forget(call.owner)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def sync_lite(self, call: Call, request: Any) -> Any:
        """SyncLiteSubscription: refused, as no group here consumes lite topics."""
        topic, group = self._proxy.names_of(call, request)
        bound = _lite_topic(await self._proxy.cluster.group(group, topic))
        if bound != topic:
            raise StatusError(
                pb.Code.ILLEGAL_TOPIC,
                f"lite group {group} is expected to bind topic {bound or 'null'}, but actual is {topic}",
            )
        raise StatusError(pb.Code.NOT_IMPLEMENTED, "lite topics are not served")

    async def telemetry(self, commands: AsyncIterator[Any], context: Any) -> None:
        """Telemetry: what a client says of itself, and what it is told."""
        try:
            call = self._proxy.call(context)
        except StatusError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        outbox = Outbox()
        reader = asyncio.ensure_future(self._read(call, commands, outbox))
        try:
            await outbox.write(context)
            await reader
        except AccessError as error:
            await context.write(pb.TelemetryCommand(status=as_status(error)))
        except StatusError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except KourouError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        finally:
            reader.cancel()
            client = self._clients.get(call.owner)
            if client is not None and client.outbox is outbox:
                client.outbox = None

    async def _read(self, call: Call, commands: AsyncIterator[Any], outbox: Outbox) -> None:
        """What a client says, until it says no more. The next is read when it took the answer to the last."""
        try:
            async for command in commands:
                await self._proxy.check(call, command)
                client = self._client(call)
                client.outbox = outbox
                if command.WhichOneof("command") == "settings":
                    settings = await self._merged(call, command.settings)
                    client.settings = settings
                    client.topics = frozenset(call.name_of(topic) for topic in settings.publishing.topics)
                    client.tell(pb.TelemetryCommand(status=OK, settings=settings))
                    await outbox.written()
        finally:
            outbox.end()

    def tell_producer(self, topic: str, command: Any) -> bool:
        """Tell one of those who produce for a topic something; the last who came is the likeliest to live.

        The rights of a user may have changed since it said that it produces.
        """
        may_send = self._proxy.access.may_send
        return any(
            topic in client.topics and may_send(client.owner[0], client.peer, topic) and client.tell(command)
            for client in reversed(self._clients.values())
        )

    def scan(self) -> None:
        """Forget clients that say nothing any more."""
        oldest_ms = self._proxy.now_ms() - self._proxy.config.channel_expired_timeout
        for client in list(self._clients.values()):
            if client.outbox is None and client.seen_ms < oldest_ms:
                self._forget(client.owner)

    def _client(self, call: Call) -> Client:
        client = self._clients.get(call.owner)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise StatusError(pb.Code.TOO_MANY_REQUESTS, f"{MAX_CLIENTS} clients are here")
            client = self._clients[call.owner] = Client(call.owner)
        client.seen_ms, client.peer = self._proxy.now_ms(), call.peer
        return client

    def _forget(self, owner: Owner) -> None:
        self._clients.pop(owner, None)
        self._proxy.receipts.release(owner)

    async def _merged(self, call: Call, settings: Any) -> Any:
        """The settings of a client, with what this proxy decides."""
        if settings.ByteSize() > MAX_SETTINGS_BYTES:
            raise StatusError(pb.Code.PAYLOAD_TOO_LARGE, f"settings have at most {MAX_SETTINGS_BYTES} bytes")
        merged = pb.Settings()
        merged.CopyFrom(settings)
        merged.metric.on = False
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            self._merge_producer(merged)
        elif kind == "subscription":
            await self._merge_consumer(call, merged)
        else:
            raise StatusError(
                pb.Code.UNRECOGNIZED_CLIENT_TYPE, "there is no publishing or subscription data in settings"
            )
        return merged

    def _merge_producer(self, merged: Any) -> None:
        config, policy = self._proxy.config, merged.backoff_policy
        for topic in merged.publishing.topics:
            self._proxy.check_topic(topic.name)
        policy.max_attempts = config.grpc_client_producer_max_attempts
        backoff = policy.exponential_backoff
        backoff.initial.CopyFrom(duration(config.grpc_client_producer_backoff_initial_millis))
        backoff.max.CopyFrom(duration(config.grpc_client_producer_backoff_max_millis))
        backoff.multiplier = config.grpc_client_producer_backoff_multiplier
        merged.publishing.max_body_size = config.max_message_size
        merged.publishing.validate_message_type = config.enable_topic_message_type_check

    async def _merge_consumer(self, call: Call, merged: Any) -> None:
        config, subscription = self._proxy.config, merged.subscription
        group = call.name_of(subscription.group)
        self._proxy.check_group(group)
        topics = [call.name_of(entry.topic) for entry in subscription.subscriptions]
        known: Mapping[str, Any] = {}
        for topic in topics:
            try:
                known = await self._proxy.cluster.group(group, topic)
                break
            except KourouError as error:
                log.info("settings of group %s: %s", group, error)
        _check_lite(merged.client_type, group, known)
        subscription.fifo = bool(known.get("consumeMessageOrderly"))
        subscription.receive_batch_size = config.grpc_client_consumer_long_polling_batch_size
        subscription.long_polling_timeout.CopyFrom(
            duration(config.grpc_client_consumer_max_long_polling_timeout_millis)
        )
        merged.backoff_policy.max_attempts = int(known.get("retryMaxTimes", 16)) + 1
        _set_backoff(merged.backoff_policy, known.get("groupRetryPolicy") or {})


def _lite_topic(group: Mapping[str, Any]) -> str | None:
    """The topic whose lite topics a group consumes; None for most groups."""
    found = (group.get("attributes") or {}).get("lite.bind.topic")
    return None if not found else str(found)


def _check_lite(client_type: int, group: str, known: Mapping[str, Any]) -> None:
    """Raise StatusError for clients of lite topics, and for groups of such."""
    is_lite = client_type in (pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER)
    if is_lite and _lite_topic(known) is None:
        raise StatusError(pb.Code.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {group}")
    if is_lite:
        raise StatusError(pb.Code.NOT_IMPLEMENTED, "lite topics are not served")
    if _lite_topic(known) is not None:
        raise StatusError(pb.Code.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {group}")


def _set_backoff(policy: Any, configured: Mapping[str, Any]) -> None:
    exponential = configured.get("exponentialRetryPolicy") or {}
    if configured.get("type") == "EXPONENTIAL":
        backoff = policy.exponential_backoff
        backoff.initial.CopyFrom(duration(int(exponential.get("initial", 5000))))
        backoff.max.CopyFrom(duration(int(exponential.get("max", 7_200_000))))
        backoff.multiplier = float(exponential.get("multiplier", 2))
        return
    steps = (configured.get("customizedRetryPolicy") or {}).get("next") or _BACKOFF_MS
    del policy.customized_backoff.next[:]
    policy.customized_backoff.next.extend(duration(int(step)) for step in steps)

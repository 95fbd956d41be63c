"""Proxy: the gRPC server, and what its calls share."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from kourou.auth import AuthConfig
from kourou.client.background import Background
from kourou.client.core import ClientCore, local_ip, make_client_id
from kourou.client.namespace import SYSTEM_GROUP_PREFIX
from kourou.client.validators import check_group, check_topic
from kourou.errors import ConfigError, KourouError
from kourou.message.topics import is_system_topic
from kourou.proxy.access import Access
from kourou.proxy.calls import Call, as_status
from kourou.proxy.clients import LOOK_S, Clients
from kourou.proxy.cluster import Cluster
from kourou.proxy.config import ProxyConfig
from kourou.proxy.door import Door
from kourou.proxy.handlers.receipts import Receipts
from kourou.proxy.handlers.receiving import Receiving
from kourou.proxy.handlers.routes import Routes
from kourou.proxy.handlers.sending import Sending
from kourou.proxy.handlers.transactions import Transactions
from kourou.proxy.metrics import ProxyMetrics
from kourou.proxy.protocol import PACKAGE, pb
from kourou.proxy.relay import Relay
from kourou.proxy.statuses import StatusError
from kourou.remoting.metrics import exports
from kourou.remoting.self_signed import self_signed_pair
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

STOP_S = 3.0  # for calls under way
IDLE_MS = 120_000

Handler = Callable[[Call, Any], Awaitable[Any]]


class Proxy:
    """RocketMQ 5's interface, before a cluster."""

    def __init__(self, config: ProxyConfig, *, tls: TlsConfig | None = None) -> None:
        if not config.namesrv_addr:
            raise ConfigError("namesrvAddr is not set: a proxy needs the address of a name server")
        self.config = config
        client_id = make_client_id(local_ip(), None)
        auth = AuthConfig.read(config.others)
        self._core = ClientCore(config.namesrv_addr, client_id=client_id, tls=tls, credentials=auth.inner)
        self.cluster = Cluster(self._core, config.rocket_mq_cluster_name)
        self.access = Access(auth, config, self.cluster)
        self.clients = Clients(self)
        self.receipts = Receipts(self)
        self.transactions = Transactions(self)
        self.relay = Relay(config, self._core, self.access, tls)
        self.metrics = ProxyMetrics(self) if exports(config.metrics_exporter_type) else None
        self._background = Background()
        self._sockets: Path | None = None
        self._server: Any = None
        self._door: Door | None = None
        sending, receiving, routes = Sending(self), Receiving(self), Routes(self)
        self._receive = receiving.receive
        self._handlers: dict[str, Handler] = {
            "QueryRoute": routes.query,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": self.clients.heartbeat,
            "NotifyClientTermination": self.clients.terminate,
            "SyncLiteSubscription": self.clients.sync_lite,
            "SendMessage": sending.send,
            "RecallMessage": sending.recall,
            "EndTransaction": self.transactions.end,
            "AckMessage": self.receipts.ack,
            "ChangeInvisibleDuration": self.receipts.change,
            "ForwardMessageToDeadLetterQueue": self.receipts.forward,
        }

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._door is not None
        return self._door.port

    async def start(self) -> None:
        """Listen. OSError if the port is taken."""
        await self._core.__aenter__()
        self._sockets = Path(tempfile.mkdtemp(prefix="kourou-proxy-"))
        most = self.config.grpc_max_inbound_message_size
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", most),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((self._generic_handler(),))
        plain, tls = self._sockets / "plain", self._sockets / "tls"
        self._server.add_insecure_port(f"unix:{plain}")
        self._server.add_secure_port(f"unix:{tls}", grpc.ssl_server_credentials([self._certificate()]))
        self._door = Door(plain, tls)
        await self._server.start()
        try:
            await self._door.open(self.config.bind_address, self.config.grpc_server_port)
            if self.config.remoting_listen_port >= 0:
                await self.relay.start()
            if self.metrics is not None:
                await self.metrics.start()
        except (OSError, KourouError):
            await self.stop()
            raise
        period_s = self.config.renew_schedule_period_millis / 1000
        self.start_task(self._core.every(period_s, self.receipts.renew), "renewing receipts")
        self.start_task(self._look(), "looking for the cluster")
        self.start_task(self._core.every(LOOK_S, self._look), "looking for silent clients")

    async def stop(self) -> None:
        """End: calls under way have a moment."""
        if self.metrics is not None:
            await self.metrics.stop()
        if self._door is not None:
            await self._server.stop(STOP_S)
            await self._door.close()
        elif self._server is not None:
            await self._server.stop(None)
        await self.relay.stop()
        await self._background.close()
        await self._core.__aexit__(None, None, None)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def call(self, context: Any) -> Call:
        """The call of a context. Raises StatusError without the id of a client."""
        assert self._door is not None
        return Call.of(context, self._door)

    def now_ms(self) -> int:
        """The time."""
        return time.time_ns() // 1_000_000

    def start_task(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """Do something that no call waits for."""
        self._background.start(work, what)

    def check_topic(self, topic: str) -> None:
        """Raise StatusError if this is no name of a topic, or that of one that belongs to brokers."""
        try:
            check_topic(topic)
        except KourouError as error:
            raise StatusError(pb.Code.ILLEGAL_TOPIC, str(error)) from None
        if is_system_topic(topic):
            raise StatusError(pb.Code.ILLEGAL_TOPIC, "cannot access system topic")

    def check_group(self, group: str) -> None:
        """Raise StatusError if this is no name of a group, or that of one that belongs to brokers."""
        try:
            check_group(group)
        except KourouError as error:
            raise StatusError(pb.Code.ILLEGAL_CONSUMER_GROUP, str(error)) from None
        if group.startswith(SYSTEM_GROUP_PREFIX):
            raise StatusError(pb.Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")

    def names_of(self, call: Call, request: Any) -> tuple[str, str]:
        """The topic and the group of a request. Raises StatusError if one is no such name."""
        topic, group = call.name_of(request.topic), call.name_of(request.group)
        self.check_topic(topic)
        self.check_group(group)
        return topic, group

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return 0 if self._door is None else self._door.connections

    async def _look(self) -> None:
        self.clients.scan()
        await self.cluster.look()

    def _certificate(self) -> tuple[bytes, bytes]:
        """Key and certificate."""
        if self.config.tls_key_path and self.config.tls_cert_path and not self.config.tls_test_mode_enable:
            return Path(self.config.tls_key_path).read_bytes(), Path(self.config.tls_cert_path).read_bytes()
        certificate, key = self_signed_pair()
        return key, certificate

    # gRPC

    def _generic_handler(self) -> Any:
        found: dict[str, Any] = {}
        for method in pb.service.methods:
            request = getattr(pb, method.input_type.name)
            codecs = {
                "request_deserializer": partial(_read, request),
                "response_serializer": lambda message: message.SerializeToString(),
            }
            response = getattr(pb, method.output_type.name)
            if method.name == "Telemetry":
                handler = grpc.stream_stream_rpc_method_handler(self.clients.telemetry, **codecs)
            elif method.name == "ReceiveMessage":
                handler = grpc.unary_stream_rpc_method_handler(self._stream, **codecs)
            elif method.name in self._handlers:
                answer = self._unary(method.name, self._handlers[method.name], response)
                handler = grpc.unary_unary_rpc_method_handler(answer, **codecs)
            else:
                continue  # gRPC says UNIMPLEMENTED, as Java's does
            found[method.name] = handler
        return grpc.method_handlers_generic_handler(f"{PACKAGE}.{pb.service.name}", found)

    def _unary(self, name: str, handler: Handler, response: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            started = time.perf_counter()
            try:
                answered = await handler(await self._admitted(context, request), request)
            except Exception as error:
                self._note(name, error)
                answered = response(status=as_status(error))
            self._count(name, answered.status, started)
            return answered

        return answer

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        name, started = "ReceiveMessage", time.perf_counter()
        try:
            call = await self._admitted(context, request)
            async for answer in self._receive(call, request):
                if answer.HasField("status"):
                    self._count(name, answer.status, started)
                yield answer
        except Exception as error:
            self._note(name, error)
            failure = pb.ReceiveMessageResponse(status=as_status(error))
            self._count(name, failure.status, started)
            yield failure

    async def _admitted(self, context: Any, request: Any) -> Call:
        """The call of a request that may be served. Raises StatusError or AccessError if it may not."""
        call = self.call(context)
        await self.check(call, request)
        return call

    async def check(self, call: Call, request: Any) -> None:
        """Raise StatusError for bytes that were no message, AccessError for what is not allowed."""
        if isinstance(request, DecodeError):
            raise StatusError(pb.Code.BAD_REQUEST, str(request))
        await self.access.check(call, request)

    def _count(self, name: str, status: Any, started: float) -> None:
        if self.metrics is not None:
            self.metrics.count(name, status.code, started)

    def _note(self, name: str, error: Exception) -> None:
        if not isinstance(error, KourouError):
            log.exception("%s failed", name, exc_info=error)


def _read(kind: Any, data: bytes) -> Any:
    """The message of some bytes, or the error: if it were raised, gRPC would answer, without our codes."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        return error

"""ClientCore: what the producers and consumers of a process share (MQClientInstance).

It knows the name servers, keeps the routes of topics that are used, and tells every broker of these routes
with a heartbeat, every 30 s, who is there. Routes are fetched when they are needed, every 30 s while they are
used, and again when a broker cannot be reached.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Self

from kourou.client.background import Background
from kourou.client.repeated import RepeatedWarnings
from kourou.client.routes import MASTER_ID, TopicRoute
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import CallTimeoutError, Handler
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import Header
from kourou.remoting.protocol.headers import UnregisterClient
from kourou.remoting.protocol.heartbeat import ConsumerData, Heartbeat
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

ROUTE_INTERVAL_S = 30.0
HEARTBEAT_INTERVAL_S = 30.0
HEARTBEAT_AGAIN_S = 1.0  # after a connection was lost; it doubles
CALL_TIMEOUT_S = 3.0
ROUTE_PAUSE_FIRST_S = 0.1  # between tries to find a topic; it doubles
ROUTE_PAUSE_MOST_S = 1.0


class ClientError(KourouError):
    """Something that a client cannot do; the message says what, and where."""


class NoRouteError(ClientError):
    """No name server knows where a topic is."""


class RefusedError(ClientError):
    """A broker said no; `code` is its response code, `remark` its words."""

    def __init__(self, address: str, what: str, answer: RemotingCommand) -> None:
        self.code = answer.code
        self.remark = answer.remark
        try:
            name = ResponseCode(answer.code).name
        except ValueError:
            name = "unknown"
        super().__init__(f"{address} refused {what}: {name} ({answer.code}) {answer.remark or ''}".strip())


class ClientCore:
    """Name servers, routes, heartbeats.

    A producer puts its group into `producer_groups`, a consumer what it is into `consumers`: heartbeats tell
    the brokers of both, and `close` takes them back.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        client_id: str,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.name_servers = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
        if not self.name_servers:
            raise ClientError("no name server was given: it is an address, or several joined by ';'")
        for address in self.name_servers:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ClientError(f"{address!r} is no address of a name server: it is host:port")
        self.client_id = client_id
        self.producer_groups: set[str] = set()
        self.consumers: dict[str, Callable[[], ConsumerData]] = {}
        self._handlers: dict[int, Handler] = {}
        self._remoting = RemotingClient(
            self._handlers, on_close=self._forget, tls=tls, credentials=credentials
        )
        self._routes: dict[str, TopicRoute] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._with_heartbeat: set[str] = set()  # addresses that had a heartbeat on their current connection
        self._missing: dict[str, asyncio.Task[None]] = {}  # addresses that need another heartbeat
        self._is_closing = False
        self.background = Background()
        self.warnings = RepeatedWarnings()

    async def __aenter__(self) -> Self:
        self.background.start(self.every(ROUTE_INTERVAL_S, self.refresh_routes), "fetching routes")
        self.background.start(self.every(HEARTBEAT_INTERVAL_S, self.send_heartbeats), "sending heartbeats")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        await self.background.close()
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        await self._unregister()
        await self._remoting.close()

    async def every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Call something periodically; failures are logged."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                self.warnings.warn(
                    log, work, "a task of client %s failed; it is tried again", self.client_id, trace=True
                )

    def add_handler(self, code: int, handler: Handler) -> None:
        """Set the handler of a request that brokers send."""
        self._handlers[code] = handler

    # Calls

    async def call(
        self, address: str, request: RemotingCommand, timeout_s: float = CALL_TIMEOUT_S
    ) -> RemotingCommand:
        """The answer of a server, whatever it says."""
        return await self._remoting.call(address, request, timeout_s)

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        broker: str | None = None,
    ) -> RemotingCommand:
        """The answer of a server, which is a success; raises RefusedError if it is not.

        `broker` is the name of the one that is meant: a proxy has one address for all.
        """
        fields = header.fields() if header is not None else {}
        if broker is not None:
            fields["bname"] = broker
        request = RemotingCommand(code, fields, body)
        answer = await self._remoting.call(address, request, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RefusedError(address, f"{code.name} {request.ext_fields}", answer)
        return answer

    async def send_oneway(self, address: str, request: RemotingCommand) -> None:
        """Send a request that nobody answers."""
        await self._remoting.send_oneway(address, request)

    async def ask_name_servers(
        self, request: Callable[[], RemotingCommand], timeout_s: float = CALL_TIMEOUT_S
    ) -> RemotingCommand:
        """The answer of the first name server that gives one; the next one is asked where one is gone."""
        error: KourouError | None = None
        for _ in self.name_servers:
            try:
                return await self.call(self.name_servers[0], request(), timeout_s)
            except KourouError as failure:
                error = failure
                server = self.name_servers.pop(0)
                self.name_servers.append(server)
                if isinstance(failure, CallTimeoutError):
                    self._remoting.drop(server)  # it hangs, or its name has another address by now
        raise ClientError(f"no name server answers: {error}") from error

    # Routes

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic. Raises NoRouteError if no name server knows one."""
        found = self._routes.get(topic)
        return found if found is not None else await self.fetch_route(topic)

    async def fetch_route(self, topic: str) -> TopicRoute:
        """Fetch the route of a topic. Concurrent callers share one request."""
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch_route(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetched(topic, done))
        return await asyncio.shield(task)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # retrieve it even if nobody waits, or asyncio complains

    async def _fetch_route(self, topic: str) -> TopicRoute:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self.ask_name_servers(
            lambda: RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        )
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            raise RefusedError(self.name_servers[0], f"the route of {topic}", answer)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or answer.body is None:
            # What was known still counts: a name server that was started again knows nothing for a while.
            raise NoRouteError(f"no name server knows topic {topic}: create it, or send to it first")
        route = self._routes[topic] = TopicRoute.decode(topic, answer.body)
        return route

    async def wait_for_route(self, topic: str, deadline: float, timeout_s: float) -> None:
        """Fetch the route of a topic, again and again until the deadline; then raise why there is none."""
        loop = asyncio.get_running_loop()
        failure: KourouError | None = None
        pause_s = ROUTE_PAUSE_FIRST_S
        while True:
            try:
                await self.fetch_route(topic)
                return
            except KourouError as error:
                # The first of a kind has the cause. Those that follow only say that it was tried just now.
                if type(error) is not type(failure):
                    failure = error
            assert failure is not None
            if loop.time() + pause_s > deadline:
                failure.args = (f"{failure} (gave up after {timeout_s:g} s: start_timeout_s)",)
                raise failure
            self.warnings.warn(log, topic, "waiting for topic %s: %s", topic, failure)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, ROUTE_PAUSE_MOST_S)

    async def refresh_routes(self) -> None:
        """Fetch the routes that are used again."""
        for topic in list(self._routes):
            try:
                await self.fetch_route(topic)
            except KourouError as error:
                self.warnings.warn(log, topic, "the route of %s stays as it was: %s", topic, error)

    def known_routes(self) -> list[TopicRoute]:
        """The routes that are used."""
        return list(self._routes.values())

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Where a broker of the routes that are used is: this member of it, else its master, else any."""
        for route in self._routes.values():
            members = route.addresses.get(broker_name)
            if members:
                return members.get(broker_id) or members.get(MASTER_ID) or next(iter(members.values()))
        return None

    def address_of(self, queue: MessageQueue) -> str:
        """The address of a queue's broker. Raises NoRouteError if no route has it."""
        address = self.broker_address(queue.broker_name)
        if address is None:
            raise NoRouteError(f"broker {queue.broker_name} of {queue.topic} is not known at the name server")
        return address

    # Heartbeats

    async def send_heartbeats(self) -> None:
        """Send heartbeats to all brokers in use, and to their slaves if this client has consumers."""
        addresses = self._used_addresses()
        self._with_heartbeat &= addresses
        await asyncio.gather(*(self.ensure_heartbeat(address, again=True) for address in sorted(addresses)))

    def _used_addresses(self) -> set[str]:
        ids = None if self.consumers else MASTER_ID
        return {
            address
            for route in self._routes.values()
            for members in route.addresses.values()
            for broker_id, address in members.items()
            if ids is None or broker_id == ids
        }

    async def ensure_heartbeat(self, address: str, *, again: bool = False) -> None:
        """Send a heartbeat to a broker: once for each connection, unless `again`."""
        if address in self._with_heartbeat and not again:
            return
        self._with_heartbeat.add(address)
        beat = Heartbeat(
            self.client_id,
            tuple(sorted(self.producer_groups)),
            tuple(consumer() for consumer in self.consumers.values()),
        )
        if not beat.producer_groups and not beat.consumers:
            return
        request = RemotingCommand(RequestCode.HEART_BEAT, {}, lenient_json.dumps(beat.to_json()))
        try:
            answer = await self.call(address, request)
        except KourouError as error:
            self._with_heartbeat.discard(address)
            log.info("no heartbeat to %s: %s", address, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            self._with_heartbeat.discard(address)
            self.warnings.warn(
                log, address, "%s took no heartbeat: %s %s", address, answer.code, answer.remark
            )

    def has_heartbeat(self, address: str) -> bool:
        """Whether a broker had a heartbeat on its current connection."""
        return address in self._with_heartbeat

    def _forget(self, address: str) -> None:
        """A connection is gone: its broker needs a heartbeat again when it is back.

        This client may have no request for it, but the broker may: for the state of a transaction.
        """
        had_heartbeat = address in self._with_heartbeat
        self._with_heartbeat.discard(address)
        if had_heartbeat and not self._is_closing and address not in self._missing:
            task = self.background.start(self._restore_heartbeat(address), f"another heartbeat to {address}")
            self._missing[address] = task
            task.add_done_callback(lambda _: self._missing.pop(address, None))

    async def _restore_heartbeat(self, address: str) -> None:
        pause_s = HEARTBEAT_AGAIN_S
        while address not in self._with_heartbeat and address in self._used_addresses():
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, HEARTBEAT_INTERVAL_S)
            await self.ensure_heartbeat(address)

    async def _unregister(self) -> None:
        """Unregister from the brokers, so that others need not wait until this client times out."""
        headers = [UnregisterClient(self.client_id, producer_group=group) for group in self.producer_groups]
        headers += [UnregisterClient(self.client_id, consumer_group=group) for group in self.consumers]
        calls = [
            self.call(address, RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.fields()), 1.0)
            for address in sorted(self._with_heartbeat)
            for header in headers
        ]
        await asyncio.gather(*calls, return_exceptions=True)  # a dead broker forgets us anyway


def make_client_id(ip: str, instance: str | None = None) -> str:
    """The id of a client as Java makes it: address and instance; one without a name is made unique."""
    return f"{ip}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"


@lru_cache(maxsize=1)
def local_ip() -> str:
    """The address of this machine that others see, without asking anybody; the loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: the system only chooses a route
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address

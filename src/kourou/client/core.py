"""ClientCore: what the producers and consumers of a process share (MQClientInstance).

It knows the name servers, keeps the routes of topics that are used, and tells every broker of these routes
with a heartbeat, every 30 s, who is there. Routes are fetched when they are needed, every 30 s while they are
used, and again when a broker cannot be reached.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from kourou.client.routes import TopicRoute
from kourou.errors import KourouError
from kourou.remoting import lenient_json
from kourou.remoting.client import RemotingClient
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.connection import Handler
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

ROUTE_INTERVAL_S = 30.0
HEARTBEAT_INTERVAL_S = 30.0
CALL_TIMEOUT_S = 3.0
DEFAULT_TOPIC = "TBW102"  # whose route stands in for that of a topic that is made by its first message


class ClientError(KourouError):
    """Something that a client cannot do; the message says what, and where."""


class NoRouteError(ClientError):
    """No name server knows where a topic is."""


class RefusedError(ClientError):
    """A broker said no; `code` is its response code."""

    def __init__(self, address: str, what: str, answer: RemotingCommand) -> None:
        self.code = answer.code
        try:
            name = ResponseCode(answer.code).name
        except ValueError:
            name = "unknown"
        super().__init__(f"{address} refused {what}: {name} ({answer.code}) {answer.remark or ''}".strip())


class ClientCore:
    """Name servers, routes, heartbeats."""

    def __init__(
        self,
        namesrv: str,
        *,
        client_id: str,
        handlers: Mapping[int, Handler] | None = None,
        heartbeat: Callable[[], dict[str, Any]] | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        self._name_servers = [part.strip() for part in namesrv.split(";") if part.strip()]
        if not self._name_servers:
            raise ClientError("no name server was given: it is an address, or several joined by ';'")
        self.client_id = client_id
        self._make_heartbeat = heartbeat
        self._remoting = RemotingClient(handlers, tls=tls)
        self._routes: dict[str, TopicRoute] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._greeted: set[str] = set()  # addresses that had a heartbeat
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._every(ROUTE_INTERVAL_S, self.refresh_routes)),
            loop.create_task(self._every(HEARTBEAT_INTERVAL_S, self.send_heartbeats)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._fetching.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._fetching.values(), return_exceptions=True)
        await self._remoting.close()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                log.exception("a task of client %s failed; it is tried again", self.client_id)

    # Calls

    async def call(
        self, address: str, request: RemotingCommand, timeout_s: float = CALL_TIMEOUT_S
    ) -> RemotingCommand:
        """The answer of a server, whatever it says."""
        return await self._remoting.call(address, request, timeout_s)

    async def send_oneway(self, address: str, request: RemotingCommand) -> None:
        """Send a request that nobody answers."""
        await self._remoting.send_oneway(address, request)

    async def ask_name_servers(
        self, request: Callable[[], RemotingCommand], timeout_s: float = CALL_TIMEOUT_S
    ) -> RemotingCommand:
        """The answer of the first name server that gives one; the next one is asked where one is gone."""
        error: KourouError | None = None
        for _ in self._name_servers:
            try:
                return await self.call(self._name_servers[0], request(), timeout_s)
            except KourouError as failure:
                error = failure
                self._name_servers.append(self._name_servers.pop(0))
        raise ClientError(f"no name server answers: {error}") from error

    # Routes

    async def route(self, topic: str) -> TopicRoute:
        """Where a topic is. NoRouteError if nobody knows."""
        found = self._routes.get(topic)
        return found if found is not None else await self.fetch_route(topic)

    async def fetch_route(self, topic: str) -> TopicRoute:
        """Where a topic is now; whoever asks meanwhile waits for the same answer."""
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch_route(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        return await asyncio.shield(task)

    async def _fetch_route(self, topic: str) -> TopicRoute:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self.ask_name_servers(
            lambda: RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or answer.body is None:
            self._routes.pop(topic, None)
            raise NoRouteError(f"no name server knows topic {topic}: create it, or send to it first")
        if answer.code != ResponseCode.SUCCESS:
            raise RefusedError(self._name_servers[0], f"the route of {topic}", answer)
        route = self._routes[topic] = TopicRoute.decode(topic, answer.body)
        return route

    async def refresh_routes(self) -> None:
        """Fetch the routes that are used again."""
        for topic in list(self._routes):
            try:
                await self.fetch_route(topic)
            except KourouError as error:
                log.warning("the route of %s stays as it was: %s", topic, error)

    # Heartbeats

    async def send_heartbeats(self) -> None:
        """Tell all brokers that are used who is there."""
        if self._make_heartbeat is None:
            return
        addresses = {
            address
            for route in self._routes.values()
            for brokers in route.addresses.values()
            for address in brokers.values()
        }
        self._greeted &= addresses
        for address in addresses:
            await self.greet(address, again=True)

    async def greet(self, address: str, *, again: bool = False) -> None:
        """Tell a broker who is there, once or again."""
        if self._make_heartbeat is None or (address in self._greeted and not again):
            return
        self._greeted.add(address)
        body = {"clientID": self.client_id, **self._make_heartbeat()}
        request = RemotingCommand(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body))
        try:
            answer = await self.call(address, request)
        except KourouError as error:
            self._greeted.discard(address)
            log.info("no heartbeat to %s: %s", address, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            self._greeted.discard(address)
            log.warning("%s took no heartbeat: %s %s", address, answer.code, answer.remark)


def make_client_id(ip: str, instance: str | None = None) -> str:
    """The id of a client as Java makes it: address and instance, which is the process if it is not named."""
    return f"{ip}@{instance or f'{os.getpid()}#{os.urandom(6).hex()}'}"

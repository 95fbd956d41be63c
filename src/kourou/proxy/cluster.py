"""Cluster: the brokers of a proxy, and what they say of topics and groups (ClusterMetadataService)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from kourou.client.core import CALL_TIMEOUT_S, ClientCore, NoRouteError
from kourou.client.routes import TopicRoute
from kourou.errors import KourouError
from kourou.proxy.protocol import pb
from kourou.proxy.statuses import StatusError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import Header
from kourou.remoting.protocol.headers import GroupName, TopicName

log = logging.getLogger(__name__)

REFRESH_S = 20.0  # what brokers say of a topic or a group is asked for again
EXPIRE_S = 300.0  # and forgotten, if they cannot be asked
MAX_KEPT = 20_000


class Cluster:
    """Requests to brokers by their names, and the settings of topics and groups."""

    def __init__(self, core: ClientCore, name: str) -> None:
        self.core = core
        self._name = name
        self.missing: str | None = "the proxy is starting"  # why there is no cluster; None if there is
        self._topics = Kept(self._fetch_topic)
        self._groups = Kept(self._fetch_group)

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic. Raises StatusError if there is none."""
        try:
            return await self.core.route(topic)
        except NoRouteError as error:
            raise StatusError(pb.Code.TOPIC_NOT_FOUND, str(error)) from None

    async def look(self) -> None:
        """See whether the cluster is there: a name server answers, and knows a broker of it."""
        try:
            await self.core.fetch_route(self._name)
            self.missing = None
        except NoRouteError:
            self.missing = f"the name server knows no broker of cluster {self._name}"
        except KourouError as error:
            self.missing = str(error)

    async def call(
        self,
        broker_name: str,
        code: RequestCode,
        header: Header,
        body: bytes | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> RemotingCommand:
        """What the master of a broker answers."""
        address = await self.address_of(broker_name)
        fields = {**header.fields(), "bname": broker_name}
        return await self.core.call(address, RemotingCommand(code, fields, body), timeout_s)

    async def address_of(self, broker_name: str) -> str:
        """Where a broker is. Raises StatusError if no route has it."""
        address = self.core.broker_address(broker_name)
        if address is None:
            await self.core.refresh_routes()
            address = self.core.broker_address(broker_name)
        if address is None:
            raise StatusError(pb.Code.INTERNAL_SERVER_ERROR, f"broker {broker_name} is not known")
        return address

    async def message_type(self, topic: str) -> str:
        """What kind of messages a topic takes: its attribute `message.type`."""
        attributes = (await self._topics.get(topic)).get("attributes") or {}
        found = {str(name).lstrip("+"): value for name, value in attributes.items()}
        return str(found.get("message.type") or "NORMAL").upper()

    async def group(self, group: str, topic: str = "") -> dict[str, Any]:
        """The settings of a group; what is not said is as the defaults are."""
        return await self._groups.get(group, topic)

    async def ask(self, code: RequestCode, fields: Mapping[str, str]) -> dict[str, Any]:
        """What a broker of the cluster answers, an object; {} if it has none. Raises StatusError."""
        return await self._ask_any(await self.route(self._name), code, fields)

    async def _fetch_topic(self, topic: str) -> dict[str, Any]:
        route = await self.route(topic)
        found = await self._ask_any(route, RequestCode.GET_TOPIC_CONFIG, TopicName(topic).fields())
        return dict(found.get("topicConfig") or found)

    async def _fetch_group(self, group: str, topic: str) -> dict[str, Any]:
        if not topic:
            return {}
        route = await self.route(topic)
        return await self._ask_any(route, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupName(group).fields())

    async def _ask_any(
        self, route: TopicRoute, code: RequestCode, fields: Mapping[str, str]
    ) -> dict[str, Any]:
        """What the first broker of a route says that has it; {} if none has. Raises what a broker failed with
        if none of the others has it, and StatusError if this proxy may not ask."""
        failure: KourouError | None = None
        for broker_name in route.addresses:
            address = route.master(broker_name)
            if address is None:
                continue
            try:
                answer = await self.core.call(address, RemotingCommand(code, dict(fields)))
            except KourouError as error:
                failure = error
                continue
            if answer.code == ResponseCode.NO_PERMISSION:
                log.warning("%s refuses %s: %s", broker_name, code.name, answer.remark)
                raise StatusError(
                    pb.Code.FORBIDDEN,
                    f"{broker_name} refuses this proxy: innerClientAuthenticationCredentials say who it is",
                )
            found = lenient_json.loads(answer.body or b"{}") if answer.code == ResponseCode.SUCCESS else {}
            if isinstance(found, dict) and found:
                return found
        if failure is not None:
            raise failure
        return {}


_T = TypeVar("_T")


class Kept(Generic[_T]):
    """Answers that are kept for a while; those who ask at the same time share one question. Where nobody
    answers, what was known counts until it expires."""

    def __init__(
        self,
        fetch: Callable[..., Awaitable[_T]],
        refresh_s: float = REFRESH_S,
        expire_s: float = EXPIRE_S,
    ) -> None:
        self._fetch = fetch
        self._refresh_s, self._expire_s = refresh_s, expire_s
        self._known: dict[str, tuple[float, _T]] = {}
        self._asking: dict[str, asyncio.Future[_T]] = {}

    async def get(self, name: str, *more: str) -> _T:
        """What is known of a name."""
        known = self._known.get(name)
        if known is not None and time.monotonic() < known[0] + self._refresh_s:
            return known[1]
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.ensure_future(self._fetch(name, *more))
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        try:
            found = await asyncio.shield(asking)
        except StatusError:
            raise  # an answer, if not a good one
        except KourouError as error:
            if known is None or time.monotonic() > known[0] + self._expire_s:
                raise
            log.info("what is known of %s is used again: %s", name, error)
            return known[1]
        if len(self._known) >= MAX_KEPT:
            self._known.clear()
        self._known[name] = time.monotonic(), found
        return found

    async def get_fresh(self, name: str, *more: str) -> _T:
        """The same, asked for again."""
        self._known.pop(name, None)
        return await self.get(name, *more)

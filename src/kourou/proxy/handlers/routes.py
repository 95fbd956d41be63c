"""QueryRoute and QueryAssignment (RouteActivity)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kourou.client.routes import MASTER_ID, TopicRoute
from kourou.proxy import messages
from kourou.proxy.calls import Call
from kourou.proxy.protocol import pb
from kourou.proxy.statuses import OK, StatusError

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

ALL_QUEUES = -1

_TAKEN = {
    "MIXED": ("NORMAL", "FIFO", "DELAY", "TRANSACTION"),
    "UNSPECIFIED": ("NORMAL",),
}


class Routes:
    """What clients are told of where a topic is: at this proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def query(self, call: Call, request: Any) -> Any:
        """QueryRoute: the queues of a topic, and what messages it takes."""
        topic = call.name_of(request.topic)
        self._proxy.check_topic(topic)
        endpoints = self._endpoints(call, request.endpoints)
        route = await self._proxy.cluster.route(topic)
        kind = await self._proxy.cluster.message_type(topic)
        types = [getattr(pb.MessageType, name) for name in _TAKEN.get(kind, (kind,))]
        named = messages.resource(topic)
        queues: list[Any] = []
        for broker_name, members in sorted(route.addresses.items()):
            permissions = list(_permissions(route, broker_name))
            for broker_id in sorted(members):
                broker = pb.Broker(name=broker_name, id=broker_id, endpoints=endpoints)
                queues += [
                    pb.MessageQueue(
                        topic=named,
                        id=number,
                        permission=permission,
                        broker=broker,
                        accept_message_types=types,
                    )
                    for number, permission in enumerate(permissions)
                ]
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(self, call: Call, request: Any) -> Any:
        """QueryAssignment: each broker as a whole; its queues one by one where the group keeps an order."""
        topic, group = self._proxy.names_of(call, request)
        endpoints = self._endpoints(call, request.endpoints)
        route = await self._proxy.cluster.route(topic)
        settings = await self._proxy.cluster.group(group, topic)
        is_ordered = bool(settings.get("consumeMessageOrderly"))
        found: list[Any] = []
        for broker_name in sorted(route.addresses):
            numbers = [queue.queue_id for queue in route.read_queues if queue.broker_name == broker_name]
            if route.master(broker_name) is None or not numbers:
                continue
            broker = pb.Broker(name=broker_name, id=MASTER_ID, endpoints=endpoints)
            found += [
                pb.Assignment(
                    message_queue=pb.MessageQueue(
                        topic=messages.resource(topic),
                        id=number,
                        permission=pb.Permission.READ_WRITE,
                        broker=broker,
                    )
                )
                for number in (numbers if is_ordered else [ALL_QUEUES])
            ]
        if not found:
            raise StatusError(pb.Code.FORBIDDEN, "no readable queue")
        return pb.QueryAssignmentResponse(status=OK, assignments=found)

    def _endpoints(self, call: Call, asked: Any) -> Any:
        """Where clients find this proxy: as it is configured, or as they called it."""
        config = self._proxy.config
        if config.advertised_endpoints:
            pairs = [split_address(text) for text in config.advertised_endpoints.split(";") if text.strip()]
        else:
            if not asked.addresses or asked.scheme == pb.AddressScheme.ADDRESS_SCHEME_UNSPECIFIED:
                raise StatusError(pb.Code.ILLEGAL_ACCESS_POINT, "endpoint address is empty")
            port = self._proxy.port
            pairs = [
                (address.host, address.port if config.use_endpoint_port_from_request else port)
                for address in asked.addresses
            ]
        return pb.Endpoints(
            scheme=_scheme(host for host, _ in pairs),
            addresses=[pb.Address(host=host, port=port) for host, port in pairs],
        )


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, or `[host]:port`."""
    host, _, port = text.strip().rpartition(":")
    return host.strip("[]"), int(port)


def _scheme(hosts: Iterable[str]) -> int:
    kinds = set()
    for host in hosts:
        try:
            kinds.add("IPv4" if ipaddress.ip_address(host).version == 4 else "IPv6")
        except ValueError:
            kinds.add("DOMAIN_NAME")
    return int(getattr(pb.AddressScheme, kinds.pop() if len(kinds) == 1 else "DOMAIN_NAME"))


def _permissions(route: TopicRoute, broker_name: str) -> Iterable[int]:
    """The permission of each queue of a broker: those to read only, then to write only, then both."""
    readable = sum(queue.broker_name == broker_name for queue in route.read_queues)
    writable = sum(queue.broker_name == broker_name for queue in route.write_queues)
    both = min(readable, writable)
    yield from [pb.Permission.READ] * (readable - both)
    yield from [pb.Permission.WRITE] * (writable - both)
    yield from [pb.Permission.READ_WRITE] * both

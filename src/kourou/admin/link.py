"""Link: requests to the servers of a cluster, and which servers they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from kourou.admin.model import BrokerInfo
from kourou.client.core import ClientCore, ClientError, NoRouteError, RefusedError
from kourou.client.routes import MASTER_ID
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import Header

CALL_TIMEOUT_S = 10.0

# What to do about a refusal
_HINTS: dict[int, str] = {
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "make the group with `kourou admin group create`",
    ResponseCode.TOPIC_NOT_EXIST: "make the topic with `kourou admin topic create`",
    ResponseCode.CONSUMER_NOT_ONLINE: "start a client of the group, and ask again",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this server does not know such a request: see its version",
    ResponseCode.NO_PERMISSION: "see the rights of the user, and the keys that may be changed",
}

Fields = Header | Mapping[str, str] | None

_T = TypeVar("_T")


class AdminError(ClientError):
    """Something that cannot be done; the message says why, and what to do."""


class Link:
    """The way to the servers of a cluster."""

    def __init__(self, core: ClientCore, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.core = core
        self.timeout_s = timeout_s

    # Requests

    async def ask(
        self,
        address: str,
        code: RequestCode,
        fields: Fields = None,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """The answer of a server, which is a success; RefusedError where it is not."""
        request = RemotingCommand(code, _texts(fields), body)
        answer = await self.core.call(address, request, timeout_s or self.timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(address, code, answer)
        return answer

    async def ask_json(
        self,
        address: str,
        code: RequestCode,
        fields: Fields = None,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The object in the body of a server's answer; an empty one where there is none."""
        return _object(await self.ask(address, code, fields, body, timeout_s=timeout_s))

    async def ask_name_server(self, code: RequestCode, fields: Fields = None) -> RemotingCommand:
        """The answer of the first name server that gives one, which is a success."""
        texts = _texts(fields)
        answer = await self.core.ask_name_servers(lambda: RemotingCommand(code, texts), self.timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(self.core.name_servers[0], code, answer)
        return answer

    async def name_server_json(self, code: RequestCode, fields: Fields = None) -> dict[str, Any]:
        """The object in the answer of a name server."""
        return _object(await self.ask_name_server(code, fields))

    async def each(self, addresses: Iterable[str], work: Callable[[str], Awaitable[_T]]) -> dict[str, _T]:
        """What each of the servers says, all asked at once; the first error is raised when all are done."""
        wanted = list(dict.fromkeys(addresses))
        found = await asyncio.gather(*map(work, wanted), return_exceptions=True)
        results: dict[str, _T] = {}
        for address, result in zip(wanted, found):
            if isinstance(result, BaseException):
                raise result
            results[address] = result
        return results

    # Which servers

    async def brokers(self, cluster: str | None = None) -> list[BrokerInfo]:
        """The brokers of a cluster, or all; AdminError if there is no such cluster."""
        info = await self.name_server_json(RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters: dict[str, list[str]] = info.get("clusterAddrTable") or {}
        if cluster is not None and cluster not in clusters:
            known = ", ".join(sorted(clusters)) or "none"
            raise AdminError(f"there is no cluster {cluster}: the name server knows {known}")
        table = info.get("brokerAddrTable") or {}
        return [
            BrokerInfo(
                name,
                broker,
                {int(number): str(text) for number, text in sorted(table[broker]["brokerAddrs"].items())},
            )
            for name in sorted(clusters)
            if cluster is None or name == cluster
            for broker in sorted(clusters[name])
            if broker in table
        ]

    async def masters(self, cluster: str | None = None) -> list[str]:
        """The addresses of the masters of a cluster, or of all."""
        return [info.master for info in await self.brokers(cluster) if info.master is not None]

    async def targets(self, cluster: str | None, broker: str | None) -> list[str]:
        """Where a change goes: to one broker, or to the masters of a cluster, or to all masters."""
        if broker is not None:
            return [await self.address_of(broker)]
        masters = await self.masters(cluster)
        if not masters:
            raise AdminError("no master is registered at the name server: start a broker, or see its log")
        return masters

    async def address_of(self, broker: str) -> str:
        """The address of a broker that is named by its address, or by its name for its master."""
        if ":" in broker:
            return broker
        for info in await self.brokers():
            if info.broker_name == broker:
                if info.master is None:
                    raise AdminError(f"broker {broker} has no master now: name a slave by its address")
                return info.master
        raise _no_broker(broker)

    async def require_broker(self, name: str) -> None:
        """Raises AdminError where the name server knows no broker of this name."""
        if all(info.broker_name != name for info in await self.brokers()):
            raise _no_broker(name)

    async def topic_brokers(self, topic: str) -> dict[str, str]:
        """Name -> address of the brokers that have a topic: of their masters, else of a slave."""
        route = await self.core.fetch_route(topic)
        return {
            name: members.get(MASTER_ID) or next(iter(members.values()))
            for name, members in sorted(route.addresses.items())
            if members
        }

    async def group_brokers(self, group: str, topic: str | None = None) -> dict[str, str]:
        """Name -> address of the brokers that a group uses: those of its retry topic, else all."""
        for name in (RETRY_PREFIX + group, topic):
            if name is not None:
                try:
                    return await self.topic_brokers(name)
                except NoRouteError:
                    continue
        return {info.broker_name: info.master for info in await self.brokers() if info.master is not None}


def _no_broker(name: str) -> AdminError:
    return AdminError(f"no broker {name} is known at the name server: `kourou admin cluster list`")


def _refused(address: str, code: RequestCode, answer: RemotingCommand) -> RefusedError:
    error = RefusedError(address, code.name, answer)
    hint = _HINTS.get(answer.code)
    if hint is not None:
        error.args = (f"{error.args[0]}; {hint}",)
    return error


def _texts(fields: Fields) -> dict[str, str]:
    return fields.fields() if isinstance(fields, Header) else dict(fields or {})


def _object(answer: RemotingCommand) -> dict[str, Any]:
    if not answer.body:
        return {}
    value = lenient_json.loads(answer.body)
    return value if isinstance(value, dict) else {}

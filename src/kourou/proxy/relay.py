"""Relay: clients of RocketMQ 4 and 5 that speak remoting, through the proxy (RemotingProtocolServer).

To a client the proxy is a name server whose routes name the proxy alone, and all brokers. Each connection of
a client has connections of its own to the brokers: they know it as a client of theirs, and what they ask it
comes back the same way. Requests are passed on as they are, with their signature, which brokers check too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson

from kourou.client.background import Background
from kourou.client.core import ClientCore
from kourou.errors import KourouError
from kourou.proxy.access import Access
from kourou.proxy.cluster import Kept
from kourou.proxy.config import ProxyConfig
from kourou.remoting.budgets import Budgets, Refusals, within
from kourou.remoting.buffers import Buffers
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection, Handler
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import read_body
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

ANSWER_S = 120.0  # a pull or a pop may wait for a message
ASK_S = 10.0  # what brokers ask a client
ALL = "brokers"  # what is asked for

# Where a request says which broker it is for
BROKER_NAME = "bname"
_SHORT: dict[int, str] = {RequestCode.SEND_MESSAGE_V2: "n", RequestCode.SEND_BATCH_MESSAGE: "n"}

# For the broker that they name
TO_ONE = (
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.QUERY_ASSIGNMENT,
)  # fmt: skip
# For all of them: a client is to be known wherever its topics are
TO_ALL = (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)
# For any: they were told the same
TO_ANY = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.CHECK_CLIENT_CONFIG,
)  # fmt: skip
# What brokers ask clients
BACK = (
    RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)  # fmt: skip

Answering = Callable[[Connection, RemotingCommand], Awaitable[RemotingCommand]]


class NoBrokerError(KourouError):
    """It is not known which broker a request is for."""

    response_code = ResponseCode.VERSION_NOT_SUPPORTED


class Relay:
    """Listens for remoting, before a cluster."""

    def __init__(self, config: ProxyConfig, core: ClientCore, access: Access, tls: TlsConfig | None) -> None:
        self._config = config
        self._access = access
        self._core = core
        self._tls = tls
        self._background = Background()
        self._clients: dict[Connection, RemotingClient] = {}
        self._brokers = Kept(self._fetch_brokers)  # addresses of masters by name
        self.port = 0  # where it listens
        answering: dict[int, Answering] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            **dict.fromkeys(TO_ONE, self._to_one),
            **dict.fromkeys(TO_ALL, self._to_all),
            **dict.fromkeys(TO_ANY, self._to_any),
        }
        handlers: Mapping[int, Handler] = {
            code: partial(self._start, answer) for code, answer in answering.items()
        }
        budgets, refusals = Budgets(), Refusals()
        self._server = RemotingServer(
            within(budgets, refusals, handlers),
            on_close=self._lost,
            tls=tls,
            buffers=Buffers(budgets, refusals),
        )

    async def start(self) -> None:
        """Listen. KourouError if the port is taken."""
        host, port = self._config.bind_address, self._config.remoting_listen_port
        try:
            self.port = await self._server.start(host, port)
        except OSError as error:
            raise KourouError(
                f"port {port} of {host} cannot be used: {error.strerror or error}; take another one with"
                " remotingListenPort, or -1 for none"
            ) from error

    async def stop(self) -> None:
        """End, with all connections."""
        await self._server.stop()
        await self._background.close()
        for client in list(self._clients.values()):
            await client.close()

    # Requests of clients

    def _start(self, answer: Answering, connection: Connection, request: RemotingCommand) -> None:
        self._background.start(self._answer(answer, connection, request), f"request {request.code}")

    async def _answer(self, answer: Answering, connection: Connection, request: RemotingCommand) -> None:
        try:
            await self._access.check_request(request, connection.peer)
            found = await answer(connection, request)
        except KourouError as error:
            found = connection.failure(request, error)
        if connection.is_open:
            connection.reply(request, found)

    async def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The route of a topic, with the proxy as every broker."""
        fields = {**request.ext_fields}
        answer = await self._core.ask_name_servers(
            lambda: RemotingCommand(request.code, fields, version=request.version)
        )
        body = answer.body
        if answer.code == ResponseCode.SUCCESS and body:
            route = lenient_json.loads(body)
            for broker in route.get("brokerDatas") or ():
                broker["brokerAddrs"] = {"0": self._address(connection)}
            body = orjson.dumps(route, option=orjson.OPT_NON_STR_KEYS)
        return request.response(answer.code, answer.ext_fields, body, answer.remark)

    def _address(self, connection: Connection) -> str:
        """What a client is told: the address of the configuration, or the one that it called."""
        if self._config.remoting_access_addr:
            return f"{self._config.remoting_access_addr}:{self.port}"
        return connection.local_address

    async def _to_one(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = _broker_name(request)
        brokers = await self._brokers.get(ALL)
        if name not in brokers:
            brokers = await self._brokers.get_fresh(ALL)
        if name is None and len(brokers) == 1:
            (name,) = brokers
        if name is None:
            raise NoBrokerError(f"Request doesn't have field {BROKER_NAME}")
        if name not in brokers:
            raise KourouError(f"broker {name} is not known at the name server")
        return await self._pass_on(connection, request, brokers[name])

    async def _to_any(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return await self._ask_each(connection, request, is_enough=True)

    async def _to_all(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return await self._ask_each(connection, request, is_enough=False)

    async def _ask_each(
        self, connection: Connection, request: RemotingCommand, *, is_enough: bool
    ) -> RemotingCommand:
        """Ask the brokers, one after the other, or until one answers; the first answer that is a success."""
        found: RemotingCommand | None = None
        failure = KourouError("no broker is known at the name server")
        for address in (await self._brokers.get(ALL)).values():
            try:
                answer = await self._pass_on(connection, request, address)
            except KourouError as error:
                failure = error  # the others know of it
                continue
            if found is None or found.code != ResponseCode.SUCCESS:
                found = answer
            if is_enough and found.code == ResponseCode.SUCCESS:
                break
        if found is None:
            raise failure
        return found

    async def _pass_on(
        self, connection: Connection, request: RemotingCommand, address: str
    ) -> RemotingCommand:
        """What a broker answers, on a connection of this client's own. Its number is that of the request."""
        client = self._clients.get(connection)
        if client is None:
            if not connection.is_open:
                raise KourouError(f"{connection.peer} is gone")
            back: dict[int, Handler] = dict.fromkeys(BACK, partial(self._back, connection))
            client = self._clients[connection] = RemotingClient(back, tls=self._tls)
        if request.is_oneway:
            await client.send_oneway(address, request)
            return request.response()
        return await client.call(address, request, ANSWER_S)

    async def _fetch_brokers(self, _: str) -> dict[str, str]:
        """The brokers of the cluster: of each the master, or the slave that acts for it."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answer = await self._core.ask_name_servers(lambda: RemotingCommand(code, {}))
        found: Any = lenient_json.loads(answer.body or b"{}")
        addresses = {
            name: {int(number): str(address) for number, address in broker["brokerAddrs"].items()}
            for name, broker in (found.get("brokerAddrTable") or {}).items()
        }
        return {name: each[min(each)] for name, each in addresses.items() if each}

    # Requests of brokers

    def _back(self, client: Connection, broker: Connection, request: RemotingCommand) -> None:
        self._background.start(self._ask_client(client, broker, request), f"request {request.code}")

    async def _ask_client(self, client: Connection, broker: Connection, request: RemotingCommand) -> None:
        """Ask a client what a broker asks. Numbers of brokers may be the same: it gets one of ours."""
        asked = RemotingCommand(
            request.code, request.ext_fields, request.body, request.remark,
            language=request.language, version=request.version, serialize_type=request.serialize_type,
        )  # fmt: skip
        if request.is_oneway:
            if client.is_open:
                client.send_oneway(asked)
            return
        try:
            answer = await client.call(asked, ASK_S)
        except KourouError as error:
            broker.reply(request, broker.failure(request, error))
            return
        answer.opaque = request.opaque
        broker.reply(request, answer)

    def _lost(self, connection: Connection) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            self._background.start(client.close(), "closing connections to brokers")


def _broker_name(request: RemotingCommand) -> str | None:
    """Which broker a request is for; None where it does not say so."""
    name = request.ext_fields.get(_SHORT.get(request.code, BROKER_NAME))
    if name is None and request.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        queues = read_body(request.body, "LOCK_BATCH_MQ").get("mqSet")
        if isinstance(queues, list) and queues and isinstance(queues[0], dict):
            name = queues[0].get("brokerName")
    return name

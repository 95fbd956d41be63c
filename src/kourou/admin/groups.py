"""Consumer groups: listed, made, changed, deleted; how far they are and who is in them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from kourou.admin.link import AdminError, Link
from kourou.admin.model import (
    ClientConnection,
    GroupConnections,
    GroupProgress,
    GroupSummary,
    QueueProgress,
    SubscriptionOfGroup,
    version_name,
)
from kourou.client.core import NoRouteError, RefusedError
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import (
    ConsumerGroupName,
    DeleteSubscriptionGroup,
    GetConsumerRunningInfo,
    GetConsumeStats,
    TopicName,
)

# Groups of brokers and tools (MixAll.isSysConsumerGroup, isPredefinedGroup)
SYSTEM_PREFIX = "CID_RMQ_SYS_"
PREDEFINED = frozenset(
    {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS", "DEFAULT_CONSUMER",
    }
)  # fmt: skip

_TYPES = {"CONSUME_ACTIVELY": "PULL", "CONSUME_POP": "POP"}


class Groups:
    """The consumer groups of a cluster. `broker` is an address, or a name for its master."""

    def __init__(self, link: Link) -> None:
        self._link = link

    # Which, and how they are set

    async def all_configs(self, address: str) -> dict[str, dict[str, Any]]:
        """All groups of a broker by name, as Java's SubscriptionGroupConfig in JSON."""
        found = await self._link.ask_json(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return dict(sorted((found.get("subscriptionGroupTable") or {}).items()))

    async def user_configs(self, address: str) -> dict[str, dict[str, Any]]:
        """The groups of a broker that users made."""
        found = await self.all_configs(address)
        return {name: config for name, config in found.items() if not is_system_group(name)}

    async def names(self, cluster: str | None = None, *, with_system: bool = False) -> list[str]:
        """The names of all groups, or of those of a cluster."""
        masters = await self._link.masters(cluster)
        found = await self._link.each(masters, self.all_configs if with_system else self.user_configs)
        return sorted({name for table in found.values() for name in table})

    async def config(self, group: str) -> dict[str, dict[str, Any]]:
        """Broker name -> the group as that broker has it; brokers that do not have it are left out.

        All groups are asked for, since asking for one makes it where groups are made by their first use.
        """
        brokers = {info.broker_name: info.master for info in await self._link.brokers()}
        found = await self._link.each([address for address in brokers.values() if address], self.all_configs)
        return {
            name: found[address][group]
            for name, address in brokers.items()
            if address and group in found[address]
        }

    async def require(self, group: str) -> None:
        """Raises AdminError where there is no such group: no broker has it, nor its retry topic."""
        with contextlib.suppress(NoRouteError):
            await self._link.topic_brokers(RETRY_PREFIX + group)
            return
        if not await self.config(group):
            raise AdminError(
                f"there is no group {group}: `kourou admin group list` has those that there are, and "
                f"`kourou admin group create {group}` makes it"
            )

    # Changes

    async def create(
        self,
        group: str,
        settings: Mapping[str, Any] | None = None,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Make a group on a broker or on the masters of a cluster, or change it; the addresses.

        `settings` are fields of Java's SubscriptionGroupConfig (retryMaxTimes, consumeEnable, …); those that
        are left out have their defaults.
        """
        addresses = await self._link.targets(cluster, broker)
        body = lenient_json.dumps({**(settings or {}), "groupName": group})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._link.each(addresses, lambda address: self._link.ask(address, code, None, body))
        return addresses

    async def create_many(
        self, groups: Iterable[Mapping[str, Any]], *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Make or change groups that are given as Java's SubscriptionGroupConfig in JSON; the addresses."""
        configs = [dict(group) for group in groups]
        for config in configs:
            if not config.get("groupName"):
                raise AdminError('each group needs a "groupName"')
        addresses = await self._link.targets(cluster, broker)
        body = lenient_json.dumps({"groupConfigList": configs})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        await self._link.each(addresses, lambda address: self._link.ask(address, code, None, body))
        return addresses

    async def delete(
        self,
        group: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        clean_offset: bool = False,
    ) -> list[str]:
        """Delete a group from a broker, or from a cluster with its retry and dead-letter topics."""
        addresses = await self._link.targets(cluster, broker)
        header = DeleteSubscriptionGroup(group, clean_offset)
        await self._link.each(
            addresses, lambda address: self._link.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        )
        if broker is None:
            for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
                await self._delete_topic(topic, addresses)
        return addresses

    async def _delete_topic(self, topic: str, addresses: Iterable[str]) -> None:
        code, fields = RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic)
        await self._link.each(addresses, lambda address: self._link.ask(address, code, fields))
        await self._link.each(
            list(self._link.core.name_servers),
            lambda address: self._link.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields),
        )

    async def set_consume_mode(
        self,
        topic: str,
        group: str,
        mode: str,
        *,
        pop_share_queues: int = 0,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Have the clients of a group PULL a topic, or POP it; the addresses."""
        addresses = await self._link.targets(cluster, broker)
        body = lenient_json.dumps(
            {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": pop_share_queues}
        )
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await self._link.each(addresses, lambda address: self._link.ask(address, code, None, body))
        return addresses

    # How far they are

    async def progress(
        self, group: str, topic: str | None = None, *, with_clients: bool = False
    ) -> GroupProgress:
        """How far a group is in its topics, or in one."""
        brokers = await self._link.group_brokers(group, topic)
        header = GetConsumeStats(group, topic)
        found = await self._link.each(
            brokers.values(),
            lambda address: self._link.ask_json(address, RequestCode.GET_CONSUME_STATS, header),
        )
        parts = [read_progress(group, stats) for stats in found.values()]
        queues = [queue for part in parts for queue in part.queues]
        if with_clients:
            owners = await self._owners(group)
            queues = [
                replace(one, client_ip=owners.get(MessageQueue(one.topic, one.broker_name, one.queue_id)))
                for one in queues
            ]
        queues.sort(key=lambda one: (one.topic, one.broker_name, one.queue_id))
        return GroupProgress(group, queues, sum(part.tps for part in parts))

    async def _owners(self, group: str) -> dict[MessageQueue, str]:
        """Queue -> address of the client that reads it now."""
        try:
            infos = await self.status(group)
        except RefusedError:
            return {}
        return {
            MessageQueue.from_json(key): client_id.partition("@")[0]
            for client_id, info in infos.items()
            for key in info.get("mqTable") or {}
        }

    async def summaries(self) -> list[GroupSummary]:
        """All groups that ever consumed, a line each; the ones with clients first, then by their lag."""
        found = await self._link.name_server_json(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = set(found.get("topicList") or ())
        retried = {name.removeprefix(RETRY_PREFIX) for name in topics if name.startswith(RETRY_PREFIX)}
        names = sorted(name for name in retried if not _is_of_pops(name, retried, topics))
        summaries = await asyncio.gather(*map(self._summary, names))
        return sorted(summaries, key=lambda one: (-one.clients, -one.lag, one.group))

    async def _summary(self, group: str) -> GroupSummary:
        progress: GroupProgress | None = None
        connections: GroupConnections | None = None
        with contextlib.suppress(KourouError):  # a broker that does not answer leaves the figures out
            progress = await self.progress(group)
        with contextlib.suppress(KourouError):
            connections = await self.connections(group)
        tps, lag = (0.0, 0) if progress is None else (progress.tps, progress.lag)
        if connections is None or not connections.clients:
            return GroupSummary(group, 0, "OFFLINE", "", "", tps, lag)
        is_pull = connections.consume_type == "CONSUME_ACTIVELY"
        return GroupSummary(
            group,
            len(connections.clients),
            min(client.version for client in connections.clients),
            _TYPES.get(connections.consume_type, "PUSH"),
            "" if is_pull else connections.message_model,
            tps,
            lag,
        )

    # Who is in them

    async def connections(self, group: str, *, broker: str | None = None) -> GroupConnections:
        """The clients of a group and their subscriptions; RefusedError where nobody is online."""
        if broker is not None:
            addresses = [await self._link.address_of(broker)]
        else:
            addresses = list((await self._link.group_brokers(group)).values())
        found: dict[str, Any] | None = None
        refusal: RefusedError | None = None
        clients: dict[str, ClientConnection] = {}
        for address in addresses:
            try:
                answer = await self._link.ask_json(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupName(group)
                )
            except RefusedError as error:  # nobody of the group is at this broker
                refusal = error
                continue
            clients |= {one.client_id: one for one in read_connections(answer)}
            found = found or answer
        if found is None:
            raise refusal or AdminError(f"no broker is known for group {group}")
        subscriptions = [
            SubscriptionOfGroup(
                str(one["topic"]), str(one.get("subString", "*")), str(one.get("expressionType", "TAG"))
            )
            for _, one in sorted((found.get("subscriptionTable") or {}).items())
        ]
        return GroupConnections(
            group,
            [clients[name] for name in sorted(clients)],
            subscriptions,
            str(found.get("consumeType")),
            str(found.get("messageModel")),
            str(found.get("consumeFromWhere")),
        )

    async def running_info(self, group: str, client_id: str, *, with_stack: bool = False) -> dict[str, Any]:
        """What a client of a group does now (ConsumerRunningInfo)."""
        header = GetConsumerRunningInfo(group, client_id, with_stack)
        refusal: RefusedError | None = None
        for address in (await self._link.group_brokers(group)).values():
            try:
                return await self._link.ask_json(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            except RefusedError as error:
                refusal = error
        raise refusal or AdminError(f"no broker is known for group {group}")

    async def status(
        self, group: str, *, broker: str | None = None, with_stack: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Client id -> what it does now, of all clients of a group."""
        connections = await self.connections(group, broker=broker)
        return {
            client.client_id: await self.running_info(group, client.client_id, with_stack=with_stack)
            for client in connections.clients
        }


def is_system_group(name: str) -> bool:
    """Whether a group belongs to brokers or tools."""
    return name in PREDEFINED or name.startswith(SYSTEM_PREFIX)


def _is_of_pops(name: str, groups: Set[str], topics: Set[str]) -> bool:
    """Whether a retry topic is of a group and a topic, where pops look for what comes again."""
    return any(
        letter in "_+" and name[:at] in groups and name[at + 1 :] in topics for at, letter in enumerate(name)
    )


def read_progress(group: str, stats: Mapping[str, Any]) -> GroupProgress:
    """The progress in a ConsumeStats."""
    queues = []
    for key, entry in (stats.get("offsetTable") or {}).items():
        consumed = int(entry["consumerOffset"])
        queues.append(
            QueueProgress(
                *MessageQueue.from_json(key),
                int(entry["brokerOffset"]),
                consumed,
                int(entry.get("pullOffset") or consumed),
                int(entry.get("lastTimestamp") or 0),
            )
        )
    return GroupProgress(group, queues, float(stats.get("consumeTps") or 0))


def read_connections(answer: Mapping[str, Any]) -> list[ClientConnection]:
    """The clients in a ConsumerConnection or a ProducerConnection."""
    return [
        ClientConnection(
            str(one["clientId"]),
            str(one.get("clientAddr") or ""),
            str(one.get("language") or ""),
            version_name(int(one.get("version") or 0)),
        )
        for one in answer.get("connectionSet") or ()
    ]

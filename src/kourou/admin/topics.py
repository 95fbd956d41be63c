"""Topics: listed, made, changed, deleted; where they are and what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kourou.admin.link import AdminError, Link
from kourou.admin.model import PermissionChange, QueueState, TopicOfBroker, TopicStatus
from kourou.admin.name_servers import ORDER_TOPIC_CONFIG, NameServers, order_config
from kourou.client.consume.strategies import AVERAGE
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.message.topics import AUTO_CREATE_TOPIC, SYSTEM_PREFIX
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import CreateTopic, TopicName
from kourou.remoting.protocol.topic_config import TopicConfig

DEFAULT_QUEUES = 8


class Topics:
    """The topics of a cluster. `broker` is an address, or a name for its master."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._name_servers = NameServers(link)

    # Which, and where

    async def names(self, cluster: str | None = None) -> list[str]:
        """The names of all topics, or of those of a cluster."""
        if cluster is None:
            found = await self._link.name_server_json(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            fields = {"cluster": cluster}
            found = await self._link.name_server_json(RequestCode.GET_TOPICS_BY_CLUSTER, fields)
        return sorted(found.get("topicList") or ())

    async def route_data(self, topic: str) -> dict[str, Any]:
        """The route of a topic as the name server gives it (TopicRouteData)."""
        await self._link.core.fetch_route(topic)  # its error says what to do
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        return await self._link.name_server_json(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)

    async def route(self, topic: str) -> list[TopicOfBroker]:
        """The brokers that have a topic."""
        data = await self.route_data(topic)
        queues = {entry["brokerName"]: entry for entry in data.get("queueDatas") or ()}
        return [
            TopicOfBroker(
                str(broker.get("cluster") or ""),
                broker["brokerName"],
                {int(number): str(text) for number, text in sorted(broker["brokerAddrs"].items())},
                int(queues[broker["brokerName"]]["readQueueNums"]),
                int(queues[broker["brokerName"]]["writeQueueNums"]),
                int(queues[broker["brokerName"]]["perm"]),
            )
            for broker in sorted(data.get("brokerDatas") or (), key=lambda one: str(one["brokerName"]))
            if broker["brokerName"] in queues
        ]

    async def clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic."""
        return sorted({part.cluster for part in await self.route(topic)})

    async def groups(self, topic: str) -> list[str]:
        """The groups that consume a topic, or did."""
        brokers = await self._link.topic_brokers(topic)
        found = await self._link.each(
            brokers.values(),
            lambda address: self._link.ask_json(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicName(topic)
            ),
        )
        return sorted({group for part in found.values() for group in part.get("groupList") or ()})

    async def allocate(self, topic: str, client_ids: Iterable[str]) -> dict[str, list[MessageQueue]]:
        """Which queues each of these clients would take, by Java's AllocateMessageQueueAveragely."""
        route = await self._link.core.fetch_route(topic)
        clients = [client.strip() for client in client_ids]
        return {client: AVERAGE("", client, route.read_queues, clients) for client in clients}

    # What is in them

    async def status(self, topic: str, *, route_topic: str | None = None) -> TopicStatus:
        """The offsets of a topic's queues. `route_topic` has the route of a topic without one (LMQ)."""
        brokers = await self._link.topic_brokers(route_topic or topic)
        found = await self._link.each(
            brokers.values(),
            lambda address: self._link.ask_json(address, RequestCode.GET_TOPIC_STATS_INFO, TopicName(topic)),
        )
        queues = [queue for part in found.values() for queue in read_queues(part)]
        queues.sort(key=lambda one: (one.topic, one.broker_name, one.queue_id))
        return TopicStatus(topic, queues, sum(float(part.get("topicPutTps") or 0) for part in found.values()))

    async def config(self, topic: str) -> dict[str, TopicConfig]:
        """Broker name -> the topic as that broker has it."""
        brokers = await self._link.topic_brokers(topic)

        async def ask(address: str) -> TopicConfig:
            found = await self._link.ask_json(address, RequestCode.GET_TOPIC_CONFIG, TopicName(topic))
            return TopicConfig.from_json(found.get("topicConfig") or found, topic)

        found = await self._link.each(brokers.values(), ask)
        return {name: found[address] for name, address in brokers.items()}

    async def all_configs(self, address: str) -> dict[str, TopicConfig]:
        """All topics of a broker, the system's too."""
        found = await self._link.ask_json(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = found.get("topicConfigTable") or {}
        return {name: TopicConfig.from_json(value, name) for name, value in sorted(table.items())}

    async def user_configs(self, address: str, *, with_special: bool = False) -> dict[str, TopicConfig]:
        """The topics of a broker that users made; with retry and dead-letter topics where asked for."""
        topics, system = await asyncio.gather(
            self.all_configs(address),
            self._link.ask_json(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
        )
        hidden = set(system.get("topicList") or ())
        return {
            name: topic
            for name, topic in topics.items()
            if name not in hidden
            and not name.startswith(SYSTEM_PREFIX)
            and (with_special or not name.startswith("%"))
        }

    # Changes

    async def create(
        self,
        topic: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        queues: int | None = None,
        read_queues: int = DEFAULT_QUEUES,
        write_queues: int = DEFAULT_QUEUES,
        perm: int = 6,
        order: bool = False,
        sys_flag: int = 0,
        attributes: str | None = None,
    ) -> list[str]:
        """Make a topic on a broker or on the masters of a cluster, or change it; the addresses.

        `queues` is for reads and writes alike. `attributes` are changes, as `+message.type=FIFO,-old`. The
        queues of a topic in order are noted at the name servers too.
        """
        addresses = await self._link.targets(cluster, broker)
        config = TopicConfig(
            topic,
            read_queues if queues is None else queues,
            write_queues if queues is None else queues,
            perm,
            sys_flag,
            order,
        )
        await self._link.each(addresses, lambda address: self._put(address, config, attributes))
        if order:
            await self._note_order(topic, addresses, config.write_queue_nums, is_whole=broker is None)
        return addresses

    async def _put(self, address: str, config: TopicConfig, attributes: str | None = None) -> None:
        header = CreateTopic(
            config.name, AUTO_CREATE_TOPIC, config.read_queue_nums, config.write_queue_nums, config.perm,
            config.topic_filter_type, config.order, config.topic_sys_flag, attributes,
        )  # fmt: skip
        await self._link.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def _note_order(self, topic: str, addresses: list[str], queues: int, *, is_whole: bool) -> None:
        names = {
            info.broker_name: queues for info in await self._link.brokers() if info.master in set(addresses)
        }
        before: dict[str, int] = {}
        if not is_whole:
            try:
                text = await self._name_servers.get_kv(ORDER_TOPIC_CONFIG, topic)
                before = {
                    name: int(number) for name, _, number in (one.partition(":") for one in text.split(";"))
                }
            except (KourouError, ValueError):
                before = {}
        await self._name_servers.put_kv(ORDER_TOPIC_CONFIG, topic, order_config({**before, **names}))

    async def create_many(
        self, topics: Iterable[Mapping[str, Any]], *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Make or change topics that are given as Java's TopicConfig in JSON; the addresses."""
        configs = [dict(topic) for topic in topics]
        for config in configs:
            if not config.get("topicName"):
                raise AdminError('each topic needs a "topicName"')
        addresses = await self._link.targets(cluster, broker)
        body = lenient_json.dumps({"topicConfigList": configs})
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        await self._link.each(addresses, lambda address: self._link.ask(address, code, None, body))
        return addresses

    async def set_permission(
        self, topic: str, perm: int, *, broker: str | None = None, cluster: str | None = None
    ) -> list[PermissionChange]:
        """Let a topic be read (4), written (2) or both (6), and leave everything else of it as it is."""
        members = await self._link.topic_brokers(topic)
        if broker is not None:
            wanted = {await self._link.address_of(broker)}
        else:
            wanted = set(await self._link.masters(cluster))
        configs = await self.config(topic)
        changes = []
        for name, address in members.items():
            if address in wanted:
                await self._put(address, replace(configs[name], perm=perm))
                changes.append(PermissionChange(address, configs[name].perm, perm))
        if not changes:
            raise AdminError(f"topic {topic} is not there: see `kourou admin topic route {topic}`")
        return changes

    async def delete(self, topic: str, *, cluster: str) -> list[str]:
        """Delete a topic from the masters of a cluster, then from the name servers; the masters."""
        addresses = await self._link.targets(cluster, None)
        await self._link.each(
            addresses,
            lambda address: self._link.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic)),
        )
        fields = {"topic": topic, "clusterName": cluster}
        await self._link.each(
            list(self._link.core.name_servers),
            lambda address: self._link.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields),
        )
        return addresses


def read_queues(stats: Mapping[str, Any]) -> list[QueueState]:
    """The queues in a TopicStatsTable."""
    return [
        QueueState(
            *MessageQueue.from_json(key),
            int(entry["minOffset"]),
            int(entry["maxOffset"]),
            int(entry.get("lastUpdateTimestamp") or 0),
        )
        for key, entry in (stats.get("offsetTable") or {}).items()
    ]

"""Clients: who is connected, and for which groups (ProducerManager, ConsumerManager, ClientManageProcessor).

A connection belongs to one client, which may be in many groups. It leaves all of them when it closes, and
when the client has not sent a heartbeat for channelExpiredTimeout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from kourou.auth import AccessError
from kourou.broker.config import BrokerConfig
from kourou.broker.names import retry_topic
from kourou.broker.state.groups import SubscriptionGroups
from kourou.broker.state.topics import TopicTable
from kourou.clock import Clock
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.heartbeat import BROADCASTING, CONSUME_ACTIVELY, ConsumerData, Heartbeat
from kourou.remoting.protocol.subscription import SubscriptionData
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, UNIT_SUB_FLAG

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Client:
    """A client on a connection, in one group."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_update_ms: int  # the time of day of its last heartbeat, for answers
    last_seen_ms: int  # elapsed time then
    user: str | None = None  # who signed its heartbeat; None where nobody has to

    def __str__(self) -> str:
        return f"{self.client_id} at {self.connection.peer}"

    def to_json(self) -> dict[str, Any]:
        """The client as the answers to 203 and 204 have it."""
        return {
            "clientAddr": self.connection.peer,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    def to_producer_info(self) -> dict[str, Any]:
        """The client as the answer to 328 has it."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_ms,
            "remoteIP": f"/{self.connection.peer}",
            "version": self.version,
        }

    def heard_again(self, client: Client) -> None:
        """Another heartbeat came."""
        self.last_update_ms, self.last_seen_ms = client.last_update_ms, client.last_seen_ms


OnGroupChanged = Callable[[str, list[Client]], None]

_PRODUCER, _CONSUMER = "producer", "consumer"


class _Room:
    """Which groups the client of a connection is in, and whether it may be in one more."""

    def __init__(self, bound: Bound, bound_of_each: Bound) -> None:
        self._bound, self._bound_of_each = bound, bound_of_each
        self._groups: dict[Connection, dict[tuple[str, str], None]] = {}  # kind and name, as they came
        self.count = 0

    def of(self, connection: Connection) -> Collection[tuple[str, str]]:
        """Kind and name of the groups that a client is in."""
        return self._groups.get(connection, ())

    def take(self, connection: Connection, kind: str, group: str) -> bool:
        """A client comes into a group; False if there is no room for it."""
        groups = self._groups.get(connection, {})
        if not self._bound_of_each.fits(len(groups) + 1) or not self._bound.fits(self.count + 1):
            return False
        self._groups.setdefault(connection, groups)[kind, group] = None
        self.count += 1
        return True

    def give_back(self, connection: Connection, kind: str, group: str) -> None:
        """A client leaves a group."""
        groups = self._groups[connection]
        del groups[kind, group]
        self.count -= 1
        if not groups:
            del self._groups[connection]


class Producers:
    """The producers of all groups."""

    def __init__(self, config: BrokerConfig, clock: Clock, room: _Room) -> None:
        self._config = config
        self._clock = clock
        self._room = room
        self.groups: dict[str, dict[Connection, Client]] = {}
        self._by_client_id: dict[str, Client] = {}
        self._turn = 0

    def register(self, group: str, client: Client) -> None:
        """Take in a producer, or note that it lives."""
        clients = self.groups.get(group, {})
        known = clients.get(client.connection)
        if known is not None:
            known.heard_again(client)
            return
        if self._config.reject_transaction_message and not self._config.enable_register_producer:
            return
        if not self._room.take(client.connection, _PRODUCER, group):
            return
        log.info("new producer of group %s: %s", group, client)
        self.groups.setdefault(group, clients)[client.connection] = client
        self._by_client_id[client.client_id] = client

    def unregister(self, group: str, connection: Connection) -> None:
        """A producer leaves a group."""
        clients = self.groups.get(group)
        client = None if clients is None else clients.pop(connection, None)
        if clients is None or client is None:
            return
        log.info("producer of group %s is gone: %s", group, client)
        self._room.give_back(connection, _PRODUCER, group)
        if not clients:
            del self.groups[group]
        in_other_groups = any(kind == _PRODUCER for kind, _ in self._room.of(connection))
        known = self._by_client_id.get(client.client_id)
        if not in_other_groups and known is not None and known.connection is connection:
            del self._by_client_id[client.client_id]

    def connection_lost(self, connection: Connection) -> None:
        """Whoever was on a connection is gone."""
        for group in [name for kind, name in self._room.of(connection) if kind == _PRODUCER]:
            self.unregister(group, connection)

    def expire(self) -> None:
        """Forget producers that have been silent for too long, and close their connections."""
        for group, client in list(self._silent()):
            log.warning("producer of group %s is silent: %s", group, client)
            self.unregister(group, client.connection)
            client.connection.close()

    def _silent(self) -> Iterator[tuple[str, Client]]:
        latest_ms = self._clock.elapsed_ms() - self._config.channel_expired_timeout
        for group, clients in self.groups.items():
            for client in clients.values():
                if client.last_seen_ms < latest_ms:
                    yield group, client

    def find(self, client_id: str) -> Client | None:
        """The client with an id, on the connection that it came with last."""
        return self._by_client_id.get(client_id)

    def pick(self, group: str, may: Callable[[Client], bool] = lambda client: True) -> Connection | None:
        """A connection of a group, another one each time, that stands and whose client may be asked."""
        clients = list(self.groups.get(group, {}).values())
        self._turn += 1
        for place in range(len(clients)):
            client = clients[(self._turn + place) % len(clients)]
            if client.connection.is_open and may(client):
                return client.connection
        return None

    def connections_json(self, group: str) -> dict[str, Any] | None:
        """The answer to GET_PRODUCER_CONNECTION_LIST (204); None if there is no such group."""
        clients = self.groups.get(group)
        return None if clients is None else {"connectionSet": [c.to_json() for c in clients.values()]}

    def table_json(self) -> dict[str, Any]:
        """The answer to GET_ALL_PRODUCER_INFO (328)."""
        return {
            "data": {
                group: [client.to_producer_info() for client in clients.values()]
                for group, clients in self.groups.items()
            }
        }


class ConsumerGroup:
    """A group that consumes now: how, what, and with which clients (ConsumerGroupInfo)."""

    __slots__ = (
        "clients", "consume_from_where", "consume_type", "fingerprint", "last_update_ms", "message_model",
        "name", "subscriptions",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}  # by topic
        self.clients: dict[Connection, Client] = {}
        self.fingerprint: int | None = None  # of the last heartbeat
        self.last_update_ms = 0

    @property
    def is_broadcasting(self) -> bool:
        """Whether each client gets all messages."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """The ids of the clients, for the answer to GET_CONSUMER_LIST_BY_GROUP (38)."""
        return [client.client_id for client in self.clients.values()]

    def find(self, client_id: str) -> Client | None:
        """The client with an id."""
        return next((c for c in self.clients.values() if c.client_id == client_id), None)

    def to_json(self) -> dict[str, Any]:
        """The answer to GET_CONSUMER_CONNECTION_LIST (203)."""
        return {
            "connectionSet": [client.to_json() for client in self.clients.values()],
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": {topic: data.to_json() for topic, data in self.subscriptions.items()},
        }

    def take_client(self, client: Client, data: ConsumerData) -> bool:
        """Take in a client, or note that it lives; whether it is new."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        self.last_update_ms = client.last_update_ms
        known = self.clients.get(client.connection)
        if known is not None and known.client_id == client.client_id:
            known.heard_again(client)
            return False
        self.clients[client.connection] = client
        if known is None:
            log.info("new consumer of group %s: %s", self.name, client)
            return True
        log.error("consumer of group %s has another id on its connection: %s, %s", self.name, known, client)
        return False

    def take_subscriptions(self, data: ConsumerData) -> bool:
        """Take the subscriptions of a heartbeat; whether topics came or went."""
        changed = False
        for new in data.subscriptions:
            old = self.subscriptions.get(new.topic)
            if old is None or new.sub_version > old.sub_version:
                self.subscriptions[new.topic] = new
                log.info("subscription of group %s: old %s, new %s", self.name, old, new)
            changed = changed or old is None
        wanted = {subscription.topic for subscription in data.subscriptions}
        for topic in [topic for topic in self.subscriptions if topic not in wanted]:
            log.warning("group %s subscribes no more: %s", self.name, self.subscriptions.pop(topic))
            changed = True
        return changed


class Consumers:
    """The consumers of all groups. `on_group_changed` hears whom to tell when clients came or went."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        room: _Room,
        *,
        on_group_changed: OnGroupChanged | None = None,
        pairs: Bound = UNBOUND,
    ) -> None:
        self._config = config
        self._clock = clock
        self._room, self._pairs = room, pairs
        self.on_group_changed = on_group_changed
        self.groups: dict[str, ConsumerGroup] = {}
        self.on_group_gone: Callable[[str], None] | None = None  # when the last client of a group left
        # Subscriptions of consumers that send none in heartbeats, as their pulls tell them
        # and the elapsed time of the last one
        self._remembered: dict[tuple[str, str], tuple[SubscriptionData, int]] = {}  # by group and topic

    # Hot: every pull asks

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What a group wants of a topic."""
        found = self.groups.get(group)
        subscription = None if found is None else found.subscriptions.get(topic)
        if subscription is None and self._remembered:
            return self._remembered.get((group, topic), (None,))[0]
        return subscription

    def get(self, group: str) -> ConsumerGroup | None:
        """A group that consumes now."""
        return self.groups.get(group)

    def find_client(self, group: str, client_id: str) -> Client | None:
        """A client of a group."""
        found = self.groups.get(group)
        return None if found is None else found.find(client_id)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that subscribe to a topic now."""
        return [name for name, group in self.groups.items() if topic in group.subscriptions]

    def register(
        self, data: ConsumerData, client: Client, *, notify: bool = True, without_sub: bool = False
    ) -> bool:
        """Take in a consumer, or note that it lives; whether the group has changed by it."""
        group = self.groups.get(data.group)
        is_new = group is None or client.connection not in group.clients
        if is_new and not self._room.take(client.connection, _CONSUMER, data.group):
            return False
        if group is None:
            group = self.groups[data.group] = ConsumerGroup(data.group)
        changed = group.take_client(client, data)
        if not without_sub:
            changed = group.take_subscriptions(data) or changed
        if changed and notify:
            self._notify(group)
        return changed

    def unregister(self, group: str, connection: Connection, *, notify: bool = True) -> None:
        """A consumer leaves a group."""
        found = self.groups.get(group)
        client = None if found is None else found.clients.pop(connection, None)
        if found is None or client is None:
            return
        log.info("consumer of group %s is gone: %s", group, client)
        self._room.give_back(connection, _CONSUMER, group)
        if not found.clients:
            del self.groups[group]
            if self.on_group_gone is not None:
                self.on_group_gone(group)
        elif notify:
            self._notify(found)

    def connection_lost(self, connection: Connection) -> None:
        """Whoever was on a connection is gone."""
        for group in [name for kind, name in self._room.of(connection) if kind == _CONSUMER]:
            self.unregister(group, connection)

    def expire(self) -> None:
        """Forget consumers that have been silent for too long, and subscriptions that no pull repeats."""
        now_ms = self._clock.elapsed_ms()
        for name, group in list(self.groups.items()):
            for client in list(group.clients.values()):
                if now_ms - client.last_seen_ms > self._config.channel_expired_timeout:
                    log.warning("consumer of group %s is silent: %s", name, client)
                    self.unregister(name, client.connection)
                    client.connection.close()
        oldest_ms = now_ms - self._config.subscription_expired_timeout
        for key in [key for key, kept in self._remembered.items() if kept[1] < oldest_ms]:
            del self._remembered[key]

    def compensate(self, group: str, subscription: SubscriptionData) -> None:
        """Keep what a pull says of its subscription, for a while."""
        key = group, subscription.topic
        if key in self._remembered or self._pairs.fits(len(self._remembered) + 1):
            self._remembered[key] = subscription, self._clock.elapsed_ms()

    def _notify(self, group: ConsumerGroup) -> None:
        wanted = self._config.notify_consumer_ids_changed_enable and not group.is_broadcasting
        if wanted and self.on_group_changed is not None:
            self.on_group_changed(group.name, list(group.clients.values()))


@dataclass(slots=True)
class _Owner:
    """Whose a client id is, and the connections that came with it."""

    user: str | None
    connections: set[Connection] = field(default_factory=set)


class Clients:
    """Producers and consumers, as their heartbeats bring them."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: TopicTable,
        groups: SubscriptionGroups,
        *,
        on_group_changed: OnGroupChanged | None = None,
        bound: Callable[[str], Bound] = lambda name: UNBOUND,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._groups = groups
        room = _Room(bound("maxClients"), bound("maxGroupsPerClient"))
        self._subscriptions = bound("maxSubscriptionsPerGroup")
        self.producers = Producers(config, clock, room)
        self.consumers = Consumers(
            config, clock, room, on_group_changed=on_group_changed, pairs=bound("maxGroupTopics")
        )
        self._ids: dict[Connection, str] = {}
        self._owners: dict[str, _Owner] = {}  # by client id

    def heartbeat(
        self,
        connection: Connection,
        heartbeat: Heartbeat,
        language: str,
        version: int,
        user: str | None = None,
    ) -> bool:
        """Take a heartbeat; whether the client shall send its subscriptions again (IS_SUB_CHANGE).
        AccessError if its id is another user's."""
        self._bind(connection, heartbeat.client_id, user)
        resend = heartbeat.fingerprint == 0  # version 1 knows nothing else
        for data in heartbeat.consumers:
            if data.consume_type == CONSUME_ACTIVELY and self._config.reject_pull_consumer_enable:
                continue
            client = self._client(connection, heartbeat.client_id, language, version, user)
            resend = self._take_consumer(client, data, heartbeat) or resend
        for group in heartbeat.producer_groups:
            client = self._client(connection, heartbeat.client_id, language, version, user)
            self.producers.register(group, client)
        return resend

    def check_owner(self, client_id: str, user: str | None) -> None:
        """AccessError if a client id is another user's."""
        owner = self._owners.get(client_id)
        if owner is not None and owner.user != user:
            raise AccessError(f"client id {client_id} is in use by another user")

    def _bind(self, connection: Connection, client_id: str, user: str | None) -> None:
        """A client id is that of the user who comes with it first, while a connection of it stands: replies,
        locks and questions find a client by its id, and go to nobody else."""
        self.check_owner(client_id, user)
        if self._ids.get(connection) == client_id:
            return
        if connection in self._ids:
            self.connection_lost(connection)  # whoever it was before is gone, and leaves nothing to the next
        self._ids[connection] = client_id
        self._owners.setdefault(client_id, _Owner(user)).connections.add(connection)

    def _unbind(self, connection: Connection) -> None:
        client_id = self._ids.pop(connection, None)
        if client_id is None:
            return
        owner = self._owners[client_id]
        owner.connections.discard(connection)
        if not owner.connections:
            del self._owners[client_id]

    def _client(
        self, connection: Connection, client_id: str, language: str, version: int, user: str | None
    ) -> Client:
        now_ms, elapsed_ms = self._clock.now_ms(), self._clock.elapsed_ms()
        return Client(connection, client_id, language, version, now_ms, elapsed_ms, user)

    def _take_consumer(self, client: Client, data: ConsumerData, heartbeat: Heartbeat) -> bool:
        """Take one group of a heartbeat; whether it has other subscriptions than the one before."""
        if not self._subscriptions.fits(len(data.subscriptions)):
            return False
        config = self._groups.find(data.group)
        if config is None:
            return False
        ordered = any(self._topics.is_order_topic(item.topic) for item in data.subscriptions)
        self._topics.create_for_send_back(
            retry_topic(data.group),
            config.retry_queue_nums,
            PERM_READ | PERM_WRITE,
            UNIT_SUB_FLAG if data.unit_mode else 0,
            order=ordered,
        )
        without_sub = heartbeat.fingerprint != 0 and heartbeat.without_sub
        self.consumers.register(
            data, client, notify=config.notify_consumer_ids_changed_enable, without_sub=without_sub
        )
        group = self.consumers.groups.get(data.group)
        if group is None or client.connection not in group.clients:  # there is no room for it
            return False
        before, group.fingerprint = group.fingerprint, heartbeat.fingerprint
        if without_sub and not group.subscriptions:  # of a broker that was started since
            return True
        return before is not None and before != heartbeat.fingerprint

    def unregister(
        self, connection: Connection, producer_group: str | None, consumer_group: str | None
    ) -> None:
        """A client leaves groups (UNREGISTER_CLIENT)."""
        if producer_group is not None:
            self.producers.unregister(producer_group, connection)
        if consumer_group is not None:
            config = self._groups.get(consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            self.consumers.unregister(consumer_group, connection, notify=notify)

    def connection_lost(self, connection: Connection) -> None:
        """Whoever was on a connection is gone."""
        self._unbind(connection)
        self.producers.connection_lost(connection)
        self.consumers.connection_lost(connection)

    def expire(self) -> None:
        """Forget who has been silent for too long."""
        self.producers.expire()
        self.consumers.expire()

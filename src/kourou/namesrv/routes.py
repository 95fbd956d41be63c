"""RouteTable: the brokers that live, their topics, and the routes that follow (Java's RouteInfoManager).

Tables: queues of a topic by broker name; addresses of a broker name by broker id; broker names of a
cluster; what is known of each living address. One event loop owns them: there are no locks.

A broker of id 0 is the master of its name. Where a name has no master and its brokers allow it
(enableActingMaster), the lowest id acts for reading: its topics lose their write permission, and with
supportActingMaster routes show it as master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kourou.clock import Clock
from kourou.message.topics import SYNC_BROKER_MEMBER_PREFIX
from kourou.namesrv.config import NameServerConfig
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol.registration import Registration
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, DataVersion, TopicConfig

log = logging.getLogger(__name__)

MASTER_ID = 0
EXPIRY_MS = 120_000  # for brokers that name no heartbeat time-out of their own


class Closable(Protocol):
    """The connection of a broker, as far as it matters here."""

    def close(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who registers, unregisters or lives."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """Who is to be told that another broker has the lowest id of its name now."""

    notify: list[str]
    min_broker_id: int
    min_broker_address: str
    offline_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class QueueData:
    """The queues of a topic at a broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int

    @classmethod
    def of(cls, broker_name: str, topic: TopicConfig) -> QueueData:
        """The queues that a broker registers for a topic."""
        return cls(
            broker_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
        )

    def to_json(self) -> dict[str, Any]:
        """As a route has it."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(slots=True)
class BrokerData:
    """The brokers of one name."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)  # by broker id
    enable_acting_master: bool = False
    zone: str | None = None

    @property
    def has_master(self) -> bool:
        """Whether the master is there."""
        return MASTER_ID in self.addresses

    def to_json(self) -> dict[str, Any]:
        """As routes and the cluster info have it."""
        value = {
            "brokerAddrs": dict(sorted(self.addresses.items())),
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }
        return value if self.zone is None else {**value, "zoneName": self.zone}


@dataclass(slots=True)
class LiveBroker:
    """What is known of a living address."""

    last_seen_ms: int  # elapsed time
    timeout_ms: int
    data_version: DataVersion
    connection: Closable | None
    ha_address: str


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """What a broker learns when it registers: for a slave, where its master is."""

    master_address: str | None = None
    ha_address: str | None = None


class RouteTable:
    """The tables of a name server and their rules."""

    def __init__(
        self,
        config: NameServerConfig,
        clock: Clock,
        *,
        on_min_broker_id_change: Callable[[MinBrokerIdChange], None] | None = None,
        brokers: Bound = UNBOUND,
        routes: Bound = UNBOUND,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_min_broker_id_change = on_min_broker_id_change
        self._bound_of_brokers, self._bound_of_routes = brokers, routes
        self._routes = 0  # pairs of a topic and a broker
        self._topics: dict[str, dict[str, QueueData]] = {}  # by broker name
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}  # broker names, in the order they came
        self._live: dict[tuple[str, str], LiveBroker] = {}  # by cluster and address
        self._filter_servers: dict[tuple[str, str], list[str]] = {}
        self._queue_mappings: dict[str, dict[str, dict[str, Any]]] = {}  # of a topic, by broker name

    # Brokers

    def sizes(self) -> dict[str, int]:
        """How many clusters, broker names, addresses of live brokers and topics there are."""
        return {
            "clusters": len(self._clusters),
            "brokers": len(self._brokers),
            "addresses": len(self._live),
            "topics": len(self._topics),
        }

    def register(
        self,
        who: BrokerIdentity,
        registration: Registration,
        *,
        ha_address: str = "",
        zone: str | None = None,
        timeout_ms: int | None = None,
        enable_acting_master: bool | None = None,  # None: a broker that is too old to know of it
        connection: Closable | None = None,
    ) -> RegisterResult | None:
        """Take a broker and its topics in, or renew them. None if it is refused: a single topic is registered
        only for a broker that is known, and there may be too many brokers. Of its topics, those that there is
        no room for are left out."""
        broker = self._brokers.get(who.name)
        first = broker is None
        if broker is None:
            broker = BrokerData(who.cluster, who.name)
        min_id_changed = bool(broker.addresses) and who.broker_id < min(broker.addresses)

        # A slave that becomes master registers the same address with another id.
        stale = [i for i, a in broker.addresses.items() if a == who.address and i != who.broker_id]
        for broker_id in stale:
            del broker.addresses[broker_id]
        if self._is_outdated(who, broker, registration):
            self._live.pop((who.cluster, who.address), None)
            return RegisterResult()
        if who.broker_id not in broker.addresses and len(registration.topics) == 1:
            log.warning("%s registers one topic and is not known yet: refused", who)
            return None
        if not self._has_room_for(who, broker):
            return None

        self._clusters.setdefault(broker.cluster, {})[who.name] = None
        self._brokers[who.name] = broker
        broker.enable_acting_master = bool(enable_acting_master)
        broker.zone = zone
        first = first or who.broker_id not in broker.addresses
        broker.addresses[who.broker_id] = who.address
        is_prime_slave = (
            enable_acting_master is not None
            and who.broker_id != MASTER_ID
            and who.broker_id == min(broker.addresses)
        )
        if who.broker_id == MASTER_ID or is_prime_slave:
            self._take_topics(who, registration, first, is_prime_slave and broker.enable_acting_master)
        self._take_life_sign(who, registration, ha_address, timeout_ms, connection)
        if min_id_changed and self._config.notify_min_broker_id_changed:
            self._notify_min_broker_id(broker, None, ha_address)
        return self._master_of(who, broker)

    def _has_room_for(self, who: BrokerIdentity, broker: BrokerData) -> bool:
        known = who.broker_id in broker.addresses and (who.cluster, who.address) in self._live
        brokers = max(len(self._live), sum(len(other.addresses) for other in self._brokers.values()))
        return known or self._bound_of_brokers.fits(brokers + 1)

    def _is_outdated(self, who: BrokerIdentity, broker: BrokerData, registration: Registration) -> bool:
        """Whether another address holds this id with a later state."""
        holder = broker.addresses.get(who.broker_id)
        if holder is None or holder == who.address:
            return False
        live = self._live.get((who.cluster, holder))
        if live is None or live.data_version.state_version <= registration.data_version.state_version:
            return False
        log.warning("%s is ignored: %s holds its id with a later state", who, holder)
        return True

    def _take_topics(
        self, who: BrokerIdentity, registration: Registration, first: bool, read_only: bool
    ) -> None:
        changed = first or self.is_changed(who.cluster, who.address, registration.data_version)
        if self._config.delete_topic_with_broker_registration and not registration.queue_mappings:
            for topic in [t for t, queues in self._topics.items() if who.name in queues]:
                if topic not in registration.topics:
                    self._remove_queues(topic, who.name)
        for name, config in registration.topics.items():
            if changed or who.name not in self._topics.get(name, ()):
                data = QueueData.of(who.name, config)
                if read_only:
                    data.perm &= ~PERM_WRITE
                self._add_queues(name, data)
        if changed:
            for name, info in registration.queue_mappings.items():
                if who.name in self._topics.get(name, ()):
                    self._queue_mappings.setdefault(name, {})[who.name] = info

    def _take_life_sign(
        self,
        who: BrokerIdentity,
        registration: Registration,
        ha_address: str,
        timeout_ms: int | None,
        connection: Closable | None,
    ) -> None:
        key = (who.cluster, who.address)
        if key not in self._live:
            log.info("new broker registered: %s", who)
        self._live[key] = LiveBroker(
            self._clock.elapsed_ms(),
            EXPIRY_MS if timeout_ms is None else timeout_ms,
            registration.data_version,
            connection,
            ha_address,
        )
        if registration.filter_servers:
            self._filter_servers[key] = registration.filter_servers
        elif registration.filter_servers is not None:
            self._filter_servers.pop(key, None)

    def _master_of(self, who: BrokerIdentity, broker: BrokerData) -> RegisterResult:
        master = broker.addresses.get(MASTER_ID)
        if who.broker_id == MASTER_ID or master is None:
            return RegisterResult()
        live = self._live.get((who.cluster, master))
        return RegisterResult() if live is None else RegisterResult(master, live.ha_address)

    def unregister(self, *brokers: BrokerIdentity) -> None:
        """Forget brokers: their addresses, and with the last address of a name, its topics."""
        gone = {who.name for who in brokers if self._drop_address(who)}
        if gone:
            for topic in [t for t, queues in self._topics.items() if not gone.isdisjoint(queues)]:
                for name in gone.intersection(self._topics[topic]):
                    self._remove_queues(topic, name)

    def _drop_address(self, who: BrokerIdentity) -> bool:
        """Forget an address; whether its name has no other."""
        self._live.pop((who.cluster, who.address), None)
        self._filter_servers.pop((who.cluster, who.address), None)
        broker = self._brokers.get(who.name)
        if broker is None:
            return False
        min_id_changed = bool(broker.addresses) and who.broker_id == min(broker.addresses)
        broker.addresses = {i: a for i, a in broker.addresses.items() if a != who.address}
        if broker.addresses:
            if broker.enable_acting_master and not broker.has_master:
                self._change_perm(who.name, lambda perm: perm & ~PERM_WRITE)
            if min_id_changed and broker.enable_acting_master and self._config.notify_min_broker_id_changed:
                self._notify_min_broker_id(broker, who.address, None)
            return False
        log.info("the last broker of %s is gone: %s", who.name, who.address)
        del self._brokers[who.name]
        names = self._clusters.get(broker.cluster, {})
        names.pop(who.name, None)
        if not names:
            self._clusters.pop(broker.cluster, None)
        return True

    def connection_lost(self, connection: Closable) -> None:
        """Forget the brokers that registered on a connection."""
        self._forget({key for key, live in self._live.items() if live.connection is connection})

    def expire(self) -> None:
        """Forget brokers that have not been heard of for too long."""
        now_ms = self._clock.elapsed_ms()
        silent = {
            key: live for key, live in self._live.items() if live.last_seen_ms + live.timeout_ms < now_ms
        }
        for (cluster, address), live in silent.items():
            log.warning("broker %s of %s was silent for %d ms", address, cluster, live.timeout_ms)
            if live.connection is not None:
                live.connection.close()
        self._forget(set(silent))

    def _forget(self, keys: set[tuple[str, str]]) -> None:
        """Forget the brokers of some clusters and addresses, whatever their names: one may have several."""
        for key in keys:
            self._live.pop(key, None)
            self._filter_servers.pop(key, None)
        addresses = {address for _, address in keys}
        gone = [
            BrokerIdentity(broker.cluster, broker.name, broker_id, address)
            for broker in self._brokers.values()
            for broker_id, address in broker.addresses.items()
            if address in addresses and (broker.cluster, address) not in self._live
        ]
        if gone:
            self.unregister(*gone)

    def _notify_min_broker_id(self, broker: BrokerData, offline: str | None, ha_address: str | None) -> None:
        """Tell those that stay; or, where one came, those that were there."""
        lowest = min(broker.addresses)
        everyone = offline is not None or len(broker.addresses) == 1
        notify = [address for i, address in broker.addresses.items() if everyone or i != lowest]
        if self._on_min_broker_id_change is not None:
            self._on_min_broker_id_change(
                MinBrokerIdChange(notify, lowest, broker.addresses[lowest], offline, ha_address)
            )

    def seen(self, cluster: str, address: str) -> None:
        """A sign of life."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.last_seen_ms = self._clock.elapsed_ms()

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """How old the topics are that a broker registered."""
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def is_changed(self, cluster: str, address: str, version: DataVersion | None) -> bool:
        """Whether a broker has other topics than it registered."""
        known = self.data_version(cluster, address)
        return known is None or known != version

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take the write permission from the topics of a broker; how many there are."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let the topics of a broker be read and written; how many there are."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        found = [queues[broker_name] for queues in self._topics.values() if broker_name in queues]
        for data in found:
            data.perm = change(data.perm)
        return len(found)

    # Topics

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Take a topic in, unless it names a broker that is not known."""
        unknown = [data.broker_name for data in queues if data.broker_name not in self._brokers]
        if unknown:
            log.warning("topic %s names brokers that are not known: %s", topic, unknown)
        for data in queues if not unknown else ():
            self._add_queues(topic, data)

    def _add_queues(self, topic: str, data: QueueData) -> None:
        """Take the queues of a topic at a broker in, if there is room."""
        queues = self._topics.get(topic, {})
        if data.broker_name not in queues:
            if not self._bound_of_routes.fits(self._routes + 1):
                return
            self._routes += 1
        self._topics.setdefault(topic, queues)[data.broker_name] = data

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or at the brokers of a cluster."""
        names = self._clusters.get(cluster, {}) if cluster else self._topics.get(topic, {})
        for broker_name in list(names):
            self._remove_queues(topic, broker_name)

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic, {})
        if queues.pop(broker_name, None) is not None:
            self._routes -= 1
            self._queue_mappings.get(topic, {}).pop(broker_name, None)
            if not queues:
                del self._topics[topic]
                self._queue_mappings.pop(topic, None)

    # Answers

    def topics(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that a broker of a cluster holds."""
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, queues in self._topics.items() if names & queues.keys()]

    def topics_with_flags(self, wanted: int, unwanted: int = 0) -> list[str]:
        """The topics whose first broker registered some system flags, and not some others."""
        found = []
        for topic, queues in self._topics.items():
            flags = next(iter(queues.values())).topic_sys_flag
            if flags & wanted == wanted and not flags & unwanted:
                found.append(topic)
        return found

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and brokers, and the address of some broker."""
        names: dict[str, None] = {}
        for cluster, broker_names in self._clusters.items():
            names.update({cluster: None, **broker_names})
        addresses = (b.addresses[min(b.addresses)] for b in self._brokers.values() if b.addresses)
        return list(names), next(addresses, None)

    def cluster_info(self) -> dict[str, Any]:
        """All clusters and brokers."""
        return {
            "brokerAddrTable": {name: broker.to_json() for name, broker in self._brokers.items()},
            "clusterAddrTable": {cluster: list(names) for cluster, names in self._clusters.items()},
        }

    def clusters_of(self, *broker_names: str) -> set[str]:
        """The clusters that brokers are of, those that are known."""
        return {self._brokers[name].cluster for name in broker_names if name in self._brokers}

    def brokers_of(self, topic: str) -> list[str]:
        """The names of the brokers that hold a topic."""
        return list(self._topics.get(topic, ()))

    def member_group(self, cluster: str, broker_name: str) -> dict[str, Any]:
        """The addresses of a broker name."""
        broker = self._brokers.get(broker_name)
        addresses = {} if broker is None else dict(sorted(broker.addresses.items()))
        return {"brokerAddrs": addresses, "brokerName": broker_name, "cluster": cluster}

    def route(self, topic: str, zone: str | None = None) -> dict[str, Any] | None:
        """The route of a topic; None if no broker holds it. With a zone, brokers of other zones are left out
        as long as their master is there."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        brokers = [
            replace(self._brokers[name], addresses=dict(self._brokers[name].addresses))
            for name in queues
            if name in self._brokers
        ]
        if not brokers:
            return None
        if self._config.support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX):
            for broker in brokers:
                _let_act_as_master(broker, queues[broker.name])
        left_out: set[str] = set()
        if zone is not None:
            left_out = {b.name for b in brokers if b.has_master and (b.zone or "").lower() != zone.lower()}
        brokers = [broker for broker in brokers if broker.name not in left_out]
        route: dict[str, Any] = {
            "brokerDatas": [broker.to_json() for broker in brokers],
            "filterServerTable": {
                address: self._filter_servers[broker.cluster, address]
                for broker in brokers
                for address in broker.addresses.values()
                if (broker.cluster, address) in self._filter_servers
            },
            "queueDatas": [data.to_json() for name, data in queues.items() if name not in left_out],
        }
        if topic in self._queue_mappings:
            route["topicQueueMappingByBroker"] = self._queue_mappings[topic]
        return route


def _let_act_as_master(broker: BrokerData, queues: QueueData) -> None:
    """Show the lowest id as master, where there is none and nobody may write anyway."""
    leaderless = broker.addresses and not broker.has_master and broker.enable_acting_master
    if leaderless and not queues.perm & PERM_WRITE:
        broker.addresses[MASTER_ID] = broker.addresses.pop(min(broker.addresses))

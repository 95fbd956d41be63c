"""The rules of the tables: who is known, what routes show, when brokers are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from kourou.namesrv import NameServerConfig
from kourou.namesrv.routes import (
    EXPIRY_MS,
    BrokerIdentity,
    MinBrokerIdChange,
    QueueData,
    RouteTable,
)
from kourou.remoting.protocol.registration import Registration
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig
from support.stores.store import ManualClock

READ, WRITE = 4, 2
YEAR_MS = 365 * 24 * 3_600_000


class Wire:
    """A connection of which only its end matters."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Server:
    """A table with brokers that are easy to name."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.notices: list[MinBrokerIdChange] = []
        self.table = RouteTable(
            NameServerConfig(**config), self.clock, on_min_broker_id_change=self.notices.append
        )

    def register(
        self, broker_id: int = 0, name: str = "a", *, topics: str = "t u", version: int = 1, **options: Any
    ) -> Any:
        address = options.pop("address", f"{name}:{broker_id}")
        perm, flags = options.pop("perm", READ | WRITE), options.pop("topic_sys_flag", 0)
        state_version, filters = options.pop("state_version", 0), options.pop("filter_servers", [])
        mappings = options.pop("queue_mappings", {})
        configs = {t: TopicConfig(t, 4, 4, perm, flags) for t in topics.split()}
        return self.table.register(
            identity(broker_id, name, address),
            Registration(DataVersion(version, state_version), configs, mappings, filters),
            ha_address=f"ha-{address}",
            **options,
        )

    def unregister(self, broker_id: int = 0, name: str = "a") -> None:
        self.table.unregister(identity(broker_id, name))

    def route(self, topic: str = "t", zone: str | None = None) -> dict[str, Any]:
        route = self.table.route(topic, zone)
        assert route is not None
        return route

    def addresses(self, topic: str = "t", zone: str | None = None) -> dict[str, dict[int, str]]:
        return {b["brokerName"]: b["brokerAddrs"] for b in self.route(topic, zone)["brokerDatas"]}

    def perms(self, topic: str = "t") -> dict[str, int]:
        return {q["brokerName"]: q["perm"] for q in self.route(topic)["queueDatas"]}


def identity(broker_id: int, name: str, address: str | None = None) -> BrokerIdentity:
    return BrokerIdentity("cluster", name, broker_id, address or f"{name}:{broker_id}")


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_route_shows_the_queues_and_addresses_of_each_broker(server):
    server.register(name="a")
    server.register(name="b", topics="t v")

    assert server.route() == {
        "brokerDatas": [
            {"brokerAddrs": {0: "a:0"}, "brokerName": "a", "cluster": "cluster", "enableActingMaster": False},
            {"brokerAddrs": {0: "b:0"}, "brokerName": "b", "cluster": "cluster", "enableActingMaster": False},
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": n, "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
            for n in ("a", "b")
        ],
    }
    assert list(server.addresses("v")) == ["b"]
    assert server.table.route("none") is None


def test_a_slave_learns_where_its_master_is_and_adds_no_topics(server):
    assert server.register(0).master_address is None

    result = server.register(1, topics="t extra")

    assert (result.master_address, result.ha_address) == ("a:0", "ha-a:0")
    assert server.addresses() == {"a": {0: "a:0", 1: "a:1"}}
    assert server.table.route("extra") is None


def test_a_slave_of_an_old_version_brings_no_topics_even_alone(server):
    server.register(1)
    assert server.table.topics() == []


def test_a_slave_without_master_brings_its_topics(server):
    server.register(1, enable_acting_master=False)
    assert server.perms() == {"a": 6}


def test_an_address_has_one_id(server):
    server.register(0)
    server.register(1)
    server.unregister(0)

    server.register(0, address="a:1")

    assert server.addresses() == {"a": {0: "a:1"}}


def test_an_address_with_an_older_state_does_not_take_an_id_over(server):
    server.register(0, state_version=5)

    assert server.register(0, address="late:1", state_version=4) is not None
    assert server.addresses() == {"a": {0: "a:0"}}
    assert server.table.data_version("cluster", "late:1") is None

    server.register(0, address="late:1", state_version=5)
    assert server.addresses() == {"a": {0: "late:1"}}


def test_a_single_topic_is_refused_from_an_unknown_broker_and_leaves_no_trace(server):
    assert server.register(0, topics="t") is None
    assert server.table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}

    server.register(0)
    assert server.register(0, topics="new", version=2) is not None
    assert set(server.table.topics()) == {"t", "u", "new"}


def test_the_same_version_changes_no_topic_and_brings_those_that_are_missing(server):
    server.register(0, version=1)
    server.table.delete_topic("u")

    server.register(0, version=1, perm=READ)
    assert server.perms("t") == {"a": 6}
    assert server.perms("u") == {"a": 4}

    server.register(0, version=2, perm=READ)
    assert server.perms("t") == {"a": 4}


def test_whether_topics_have_changed_is_told_by_the_version(server):
    assert server.table.is_changed("cluster", "a:0", DataVersion(1))
    server.register(0, version=1)

    assert not server.table.is_changed("cluster", "a:0", DataVersion(1))
    assert server.table.is_changed("cluster", "a:0", DataVersion(2))
    assert server.table.is_changed("cluster", "a:0", None)
    assert server.table.data_version("cluster", "a:0") == DataVersion(1)


def test_topics_that_a_broker_no_longer_names_stay_unless_configured():
    kept, dropped = Server(), Server(delete_topic_with_broker_registration=True)
    for server in (kept, dropped):
        server.register(0, topics="t u v")
        server.register(0, topics="t u", version=2)
    assert kept.table.topics() == ["t", "u", "v"]
    assert dropped.table.topics() == ["t", "u"]


def test_with_its_last_address_a_broker_and_its_topics_are_gone(server):
    server.register(0)
    server.register(1)
    server.register(0, "b", topics="t v")

    server.unregister(0)
    assert server.addresses()["a"] == {1: "a:1"}
    assert server.perms("u") == {"a": 6}

    server.unregister(1)
    assert server.addresses() == {"b": {0: "b:0"}}
    assert set(server.table.topics()) == {"t", "v"}

    server.unregister(0, "b")
    assert server.table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert server.table.topics() == []


def test_an_unknown_broker_may_leave(server):
    server.register(0)
    server.unregister(0, "stranger")
    assert server.addresses() == {"a": {0: "a:0"}}


def test_a_silent_broker_is_forgotten_after_120_s_and_its_connection_closed(server):
    wire = Wire()
    server.register(0, connection=wire)

    server.clock.advance(EXPIRY_MS)
    server.table.expire()
    assert server.addresses() == {"a": {0: "a:0"}}

    server.clock.advance(1)
    server.table.expire()
    assert server.table.route("t") is None
    assert wire.closed


@pytest.mark.parametrize("ms", [-YEAR_MS, -5000, EXPIRY_MS + 1, YEAR_MS])
def test_a_clock_that_is_set_makes_no_broker_silent(server, ms):
    server.register(0)
    server.clock.set_by(ms)
    server.clock.advance(EXPIRY_MS)
    server.table.expire()
    assert server.addresses() == {"a": {0: "a:0"}}

    server.clock.advance(1)
    server.table.expire()
    assert server.table.route("t") is None


def test_a_heartbeat_is_a_sign_of_life(server):
    server.register(0)
    server.clock.advance(EXPIRY_MS)
    server.table.seen("cluster", "a:0")
    server.table.seen("cluster", "stranger")

    server.clock.advance(EXPIRY_MS)
    server.table.expire()
    assert server.addresses() == {"a": {0: "a:0"}}


def test_a_broker_may_name_its_own_time(server):
    server.register(0, timeout_ms=10_000)
    server.clock.advance(10_001)
    server.table.expire()
    assert server.table.route("t") is None


def test_a_lost_connection_takes_its_broker_with_it(server):
    first, second = Wire(), Wire()
    server.register(0, connection=first)
    server.register(0, "b", connection=second)

    server.table.connection_lost(first)

    assert server.addresses() == {"b": {0: "b:0"}}


def test_a_broker_that_reconnected_outlives_its_first_connection(server):
    first, second = Wire(), Wire()
    server.register(0, connection=first)
    server.register(0, connection=second)

    server.table.connection_lost(first)

    assert server.addresses() == {"a": {0: "a:0"}}


def test_write_permission_is_wiped_and_added(server):
    server.register(0, perm=7)
    server.register(0, "b")

    assert server.table.wipe_write_permission("a") == 2
    assert server.perms() == {"a": 5, "b": 6}
    assert server.table.add_write_permission("a") == 2
    assert server.perms() == {"a": 6, "b": 6}
    assert server.table.wipe_write_permission("stranger") == 0


def test_when_the_master_leaves_the_lowest_slave_acts_for_reading():
    server = Server(support_acting_master=True)
    server.register(0, enable_acting_master=True)
    server.register(2, enable_acting_master=True)
    server.register(1, enable_acting_master=True)

    server.unregister(0)
    assert server.perms() == {"a": 4}
    assert server.addresses() == {"a": {0: "a:1", 2: "a:2"}}

    server.register(1, enable_acting_master=True, version=2)
    assert server.perms() == {"a": 4}, "a prime slave is read-only"
    assert server.table.member_group("cluster", "a")["brokerAddrs"] == {1: "a:1", 2: "a:2"}

    server.register(0, enable_acting_master=True, version=3)
    assert server.perms() == {"a": 6}
    assert server.addresses() == {"a": {0: "a:0", 1: "a:1", 2: "a:2"}}


def test_nobody_acts_as_master_unless_the_name_server_supports_it(server):
    server.register(0, enable_acting_master=True)
    server.register(1, enable_acting_master=True)
    server.unregister(0)
    assert server.addresses() == {"a": {1: "a:1"}}


def test_nobody_acts_in_the_topic_by_which_brokers_find_each_other():
    server = Server(support_acting_master=True)
    topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    server.register(1, enable_acting_master=True, topics=f"{topic} t")
    assert server.addresses(topic) == {"a": {1: "a:1"}}
    assert server.addresses("t") == {"a": {0: "a:1"}}


def test_brokers_are_told_of_another_lowest_id():
    server = Server(notify_min_broker_id_changed=True)
    server.register(1, enable_acting_master=True)
    server.register(2, enable_acting_master=True)
    assert server.notices == []

    server.register(0, enable_acting_master=True)
    server.unregister(0)

    came, left = server.notices
    assert came == MinBrokerIdChange(["a:1", "a:2"], 0, "a:0", None, "ha-a:0")
    assert left == MinBrokerIdChange(["a:1", "a:2"], 1, "a:1", "a:0", None)


def test_a_client_of_a_zone_sees_its_brokers_and_those_without_master(server):
    server.register(0, "near", zone="z1")
    server.register(0, "far", zone="z2", filter_servers=["f:1"])
    server.register(1, "orphan", zone="z2", enable_acting_master=False)

    assert set(server.addresses()) == {"near", "far", "orphan"}
    assert set(server.addresses(zone="Z1")) == {"near", "orphan"}
    route = server.route(zone="z1")
    assert [q["brokerName"] for q in route["queueDatas"]] == ["near", "orphan"]
    assert route["brokerDatas"][0]["zoneName"] == "z1"
    assert route["filterServerTable"] == {}
    assert server.route()["filterServerTable"] == {"far:0": ["f:1"]}


def test_queue_mappings_of_static_topics_are_part_of_the_route(server):
    info = {"bname": "a", "currIdMap": {0: 0}, "topic": "t"}
    server.register(0, queue_mappings={"t": info})
    assert server.route()["topicQueueMappingByBroker"] == {"a": info}
    assert "topicQueueMappingByBroker" not in server.route("u")


def test_a_topic_is_registered_at_known_brokers_only(server):
    server.register(0)
    server.table.register_topic("new", [QueueData("a", 1, 1, 6, 0)])
    server.table.register_topic("bad", [QueueData("a", 1, 1, 6, 0), QueueData("stranger", 1, 1, 6, 0)])
    assert server.table.topics() == ["t", "u", "new"]


def test_a_topic_is_deleted_everywhere_or_from_a_cluster(server):
    server.register(0)
    server.table.delete_topic("t", "other")
    assert server.table.topics() == ["t", "u"]
    server.table.delete_topic("t", "cluster")
    server.table.delete_topic("u")
    assert server.table.topics() == []


def test_lists_of_topics(server):
    server.register(0, topics="unit unit2", topic_sys_flag=1)
    server.register(0, "b", topics="sub sub2", topic_sys_flag=2)
    server.register(0, "c", topics="both both2", topic_sys_flag=3)

    assert server.table.topics_with_flags(1) == ["unit", "unit2", "both", "both2"]
    assert server.table.topics_with_flags(2) == ["sub", "sub2", "both", "both2"]
    assert server.table.topics_with_flags(2, unwanted=1) == ["sub", "sub2"]
    assert len(server.table.topics_of_cluster("cluster")) == 6
    assert server.table.topics_of_cluster("other") == []
    assert server.table.system_topics() == (["cluster", "a", "b", "c"], "a:0")

"""Clients: heartbeats bring them, closed connections and silence take them away, others hear of it."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.state.clients import Clients
from kourou.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroups
from kourou.broker.state.topics import TopicTable
from kourou.message import java_hash
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.heartbeat import ConsumerData, Heartbeat, read_heartbeat
from kourou.remoting.protocol.subscription import BadSubscriptionError, SubscriptionData
from kourou.remoting.protocol.topic_config import TopicConfig
from support.stores.store import START_MS, ManualClock


class Wire:
    """A connection of which only its peer and its end matter."""

    def __init__(self, peer: str = "10.0.0.1:1000") -> None:
        self.peer = peer
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def wire(peer: str = "10.0.0.1:1000") -> Connection:
    return cast(Connection, Wire(peer))


def consumer(
    group: str = "g",
    *topics: str,
    model: str = "CLUSTERING",
    version: int = 1,
    kind: str = "CONSUME_PASSIVELY",
) -> ConsumerData:
    subscriptions = tuple(SubscriptionData(topic, sub_version=version) for topic in topics)
    return ConsumerData(group, kind, model, "CONSUME_FROM_LAST_OFFSET", subscriptions)


class Broker:
    """The tables of clients, and what they said of their changes."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.config = BrokerConfig(**config)
        self.topics = TopicTable(self.config, self.clock)
        self.groups = SubscriptionGroups(self.config, self.clock)
        self.heard: list[tuple[str, list[Connection]]] = []
        self.clients = Clients(
            self.config,
            self.clock,
            self.topics,
            self.groups,
            on_group_changed=lambda group, clients: self.heard.append(
                (group, [c.connection for c in clients])
            ),
        )
        self.producers, self.consumers = self.clients.producers, self.clients.consumers

    def beat(
        self,
        connection: Connection,
        *consumers: ConsumerData,
        client_id: str = "c1",
        producers: str = "",
        **v2: Any,
    ) -> bool:
        heartbeat = Heartbeat(client_id, tuple(producers.split()), consumers, **v2)
        return self.clients.heartbeat(connection, heartbeat, "JAVA", 513)


@pytest.fixture
def broker() -> Broker:
    return Broker()


# The body

JAVA_BODY = {
    "clientID": "192.0.2.2@c1",
    "consumerDataSet": [
        {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": "g",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {
                    "classFilterMode": False,
                    "codeSet": [2598919, 2598920],
                    "expressionType": "TAG",
                    "subString": "TagA || TagB",
                    "subVersion": 1794723925739,
                    "tagsSet": ["TagA", "TagB"],
                    "topic": "t",
                }
            ],
            "unitMode": False,
        }
    ],
    "heartbeatFingerprint": 0,
    "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    "withoutSub": False,
}


def read(body: Any) -> Heartbeat:
    return read_heartbeat(json.dumps(body).encode(), START_MS)


def changed(**fields: Any) -> dict[str, Any]:
    return {**JAVA_BODY, **fields}


def with_consumer(**fields: Any) -> dict[str, Any]:
    return changed(consumerDataSet=[{"groupName": "g", **fields}])


def test_a_heartbeat_of_java_is_read():
    heartbeat = read(JAVA_BODY)
    assert heartbeat.client_id == "192.0.2.2@c1"
    assert heartbeat.producer_groups == ("CLIENT_INNER_PRODUCER",)
    (data,) = heartbeat.consumers
    assert (data.group, data.consume_type, data.message_model) == ("g", "CONSUME_PASSIVELY", "CLUSTERING")
    (subscription,) = data.subscriptions
    assert subscription.codes == {java_hash("TagA"), java_hash("TagB")}
    assert subscription.to_json() == cast(Any, JAVA_BODY)["consumerDataSet"][0]["subscriptionDataSet"][0]
    assert subscription == SubscriptionData.build("t", "TagA || TagB", None, 1794723925739)


def test_a_heartbeat_of_cpp_has_numbers_for_names_and_texts_for_numbers():
    (data,) = read(
        with_consumer(
            consumeType=1,
            messageModel=0,
            consumeFromWhere="4",
            subscriptionDataSet=[{"topic": "t", "subVersion": "17", "codeSet": ["5"], "tagsSet": None}],
        )
    ).consumers
    assert (data.consume_type, data.message_model) == ("CONSUME_PASSIVELY", "BROADCASTING")
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert data.subscriptions == (SubscriptionData("t", sub_version=17, codes=frozenset({5})),)


def test_what_java_forgives_is_forgiven():
    assert read({"clientID": "c"}) == Heartbeat("c")
    (data,) = read(with_consumer(subscriptionDataSet=[{"topic": "t"}])).consumers
    assert data == ConsumerData("g", subscriptions=(SubscriptionData("t", sub_version=START_MS),))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "clientID"),
        (changed(clientID=7), "clientID"),
        (changed(producerDataSet={}), "producerDataSet"),
        (changed(producerDataSet=["g"]), "producerDataSet"),
        (changed(producerDataSet=[{}]), "groupName"),
        (changed(consumerDataSet=[{}]), "groupName"),
        (changed(heartbeatFingerprint="x"), "heartbeatFingerprint"),
        (changed(withoutSub=3), "withoutSub"),
        (with_consumer(consumeType="CONSUME_NEVER"), "consumeType"),
        (with_consumer(consumeType=3), "consumeType"),
        (with_consumer(messageModel=[]), "messageModel"),
        (with_consumer(messageModel=-1), "messageModel"),
        (with_consumer(subscriptionDataSet=[7]), "subscriptionDataSet"),
        (with_consumer(subscriptionDataSet=[{}]), "topic"),
        (with_consumer(subscriptionDataSet=[{"topic": "t", "codeSet": ["x"]}]), "codeSet"),
        (with_consumer(unitMode="perhaps"), "unitMode"),
        ([], "a heartbeat"),
    ],
)
def test_a_bad_field_of_a_heartbeat_is_named(body, field):
    with pytest.raises(BadRequestError, match=field):
        read(body)


@pytest.mark.parametrize("body", [None, b"", b"{", b"\xff"])
def test_a_heartbeat_without_a_body_is_refused(body):
    with pytest.raises(BadRequestError, match="the body of a heartbeat"):
        read_heartbeat(body, START_MS)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, set()),
        ("", set()),
        ("*", set()),
        ("a", {"a"}),
        (" a||b || ", {"a", "b"}),
        ("|", {"|"}),
        (" || ", set()),
    ],
)
def test_tags_of_an_expression(expression, tags):
    data = SubscriptionData.build("t", expression, "TAG", 1)
    assert data.tags == tags
    assert data.codes == {java_hash(tag) for tag in tags}
    assert data.is_tag_type


def test_expressions_of_other_types_are_kept_as_they_are():
    data = SubscriptionData.build("t", "a > 1 || b", "SQL92", 1)
    assert (data.sub_string, data.tags, data.is_tag_type) == ("a > 1 || b", set(), False)


@pytest.mark.parametrize(
    ("expression", "kind"), [("||", "TAG"), ("||||", None), ("", "SQL92"), (None, "SQL92")]
)
def test_expressions_that_say_nothing(expression, kind):
    with pytest.raises(BadSubscriptionError):
        SubscriptionData.build("t", expression, kind, 1)


# Producers


def test_a_producer_is_registered_and_shown(broker):
    connection = wire("10.0.0.1:7")
    broker.beat(connection, producers="p q")
    assert broker.producers.find("c1").connection is connection
    assert broker.producers.pick("p") is connection
    assert broker.producers.connections_json("p") == {
        "connectionSet": [{"clientAddr": "10.0.0.1:7", "clientId": "c1", "language": "JAVA", "version": 513}]
    }
    assert broker.producers.connections_json("nothing") is None
    info = {
        "clientId": "c1",
        "language": "JAVA",
        "lastUpdateTimestamp": START_MS,
        "remoteIP": "/10.0.0.1:7",
        "version": 513,
    }
    assert broker.producers.table_json() == {"data": {"p": [info], "q": [info]}}


def test_a_producer_leaves_one_group_after_the_other(broker):
    connection = wire()
    broker.beat(connection, producers="p q")
    broker.clients.unregister(connection, "p", None)
    assert broker.producers.groups.keys() == {"q"}
    assert broker.producers.find("c1").connection is connection  # Java forgets it already
    broker.clients.unregister(connection, "q", None)
    broker.clients.unregister(connection, "q", None)
    assert broker.producers.groups == {}
    assert broker.producers.find("c1") is None


def test_a_producer_that_came_back_on_another_connection_is_found_there(broker):
    old, new = wire(), wire()
    broker.beat(old, producers="p")
    broker.beat(new, producers="p")
    broker.clients.connection_lost(old)
    assert broker.producers.find("c1").connection is new
    broker.clients.connection_lost(new)
    assert broker.producers.find("c1") is None


def test_producers_of_a_group_take_turns(broker):
    first, second, third = wires = [wire(str(i)) for i in range(3)]
    for number, connection in enumerate(wires):
        broker.beat(connection, client_id=f"c{number}", producers="p")
    assert {broker.producers.pick("p") for _ in range(3)} == {first, second, third}
    second.close()
    assert {broker.producers.pick("p") for _ in range(6)} == {first, third}
    first.close()
    third.close()
    assert broker.producers.pick("p") is None
    assert broker.producers.pick("nothing") is None


def test_a_silent_producer_is_forgotten_and_its_connection_closed(broker):
    silent, live = wire(), wire()
    broker.beat(silent, producers="p q")
    broker.beat(live, client_id="c2", producers="p")
    broker.clock.advance(120_000)
    broker.clients.expire()
    assert broker.producers.find("c1").connection is silent
    broker.beat(live, client_id="c2", producers="p")
    broker.clock.advance(1)
    broker.clients.expire()
    assert list(broker.producers.groups["p"]) == [live]
    assert broker.producers.groups.keys() == {"p"}
    assert broker.producers.find("c1") is None
    assert (silent.is_open, live.is_open) == (False, True)


@pytest.mark.parametrize("ms", [-365 * 24 * 3_600_000, -5000, 120_001, 365 * 24 * 3_600_000])
def test_a_clock_that_is_set_makes_no_client_silent(broker, ms):
    """Given a producer, a consumer and a pull's subscription, when the clock is set, then they are known as
    long as they would be otherwise; what is told of them is by the clock of their last heartbeat."""
    connection = wire()
    broker.beat(connection, consumer("g", "t"), producers="p")
    broker.consumers.compensate("h", SubscriptionData.build("t", "*", None, 1))
    broker.clock.set_by(ms)
    broker.clients.expire()
    assert broker.producers.find("c1").connection is connection
    assert broker.consumers.get("g") is not None
    assert broker.consumers.find_subscription("h", "t") is not None
    broker.beat(connection, consumer("g", "t"), producers="p")
    assert broker.producers.table_json()["data"]["p"][0]["lastUpdateTimestamp"] == broker.clock.now_ms()
    broker.clock.advance(120_001)
    broker.clients.expire()
    assert broker.producers.find("c1") is None
    assert broker.consumers.get("g") is None
    broker.clock.advance(600_000)
    broker.clients.expire()
    assert broker.consumers.find_subscription("h", "t") is None


def test_producers_need_not_be_known_where_there_are_no_transactions():
    broker = Broker(enable_register_producer=False, reject_transaction_message=True)
    broker.beat(wire(), producers="p")
    assert broker.producers.groups == {}


# Consumers


def test_a_consumer_is_registered_and_shown(broker):
    connection = wire("10.0.0.1:7")
    broker.beat(connection, consumer("g", "t"))
    group = broker.consumers.get("g")
    assert group is not None
    assert group.client_ids() == ["c1"]
    assert group.to_json() == {
        "connectionSet": [{"clientAddr": "10.0.0.1:7", "clientId": "c1", "language": "JAVA", "version": 513}],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {"t": SubscriptionData("t", sub_version=1).to_json()},
    }
    found = broker.consumers.find_client("g", "c1")
    assert found is not None
    assert found.connection is connection
    assert broker.consumers.find_client("g", "c2") is None
    assert broker.consumers.find_client("h", "c1") is None
    assert broker.consumers.groups_of("t") == ["g"]
    assert broker.consumers.groups_of("u") == []


def test_a_heartbeat_makes_the_group_and_its_retry_topic(broker):
    broker.topics.update(TopicConfig("ordered", order=True))
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=3))
    unit = ConsumerData("unit", unit_mode=True)
    broker.beat(wire(), consumer("g", "ordered"), consumer("h", "t"), unit)
    assert broker.topics.topics["%RETRY%g"] == TopicConfig("%RETRY%g", 3, 3, 6, order=True)
    assert broker.topics.topics["%RETRY%h"] == TopicConfig("%RETRY%h", 1, 1, 6)
    assert broker.topics.topics["%RETRY%unit"].topic_sys_flag == 2
    assert broker.groups.get("h") is not None


def test_a_group_that_may_not_be_made_has_no_consumers():
    broker = Broker(auto_create_subscription_group=False)
    broker.beat(wire(), consumer("g", "t"), producers="p")
    assert broker.consumers.groups == {}
    assert broker.topics.get("%RETRY%g") is None
    assert broker.producers.groups.keys() == {"p"}


def test_pull_consumers_are_refused_where_that_is_wanted():
    broker = Broker(reject_pull_consumer_enable=True)
    broker.beat(wire(), consumer("g", "t", kind="CONSUME_ACTIVELY"), consumer("h", "t"))
    assert broker.consumers.groups.keys() == {"h"}


def test_others_hear_when_a_consumer_comes_or_goes(broker):
    first, second = wire(), wire()
    broker.beat(first, consumer("g", "t"))
    broker.beat(second, consumer("g", "t"), client_id="c2")
    broker.beat(first, consumer("g", "t"))  # nothing new
    broker.clients.unregister(second, None, "g")
    broker.clients.unregister(second, None, "g")
    assert broker.heard == [("g", [first]), ("g", [first, second]), ("g", [first])]
    broker.clients.connection_lost(first)
    assert broker.consumers.groups == {}
    assert len(broker.heard) == 3  # nobody is left to hear


def test_nobody_hears_of_broadcast_groups_or_where_it_is_switched_off(broker):
    broker.beat(wire(), consumer("b", "t", model="BROADCASTING"))
    broker.groups.update(SubscriptionGroupConfig("quiet", notify_consumer_ids_changed_enable=False))
    broker.beat(wire(), consumer("quiet", "t"))
    silent = Broker(notify_consumer_ids_changed_enable=False)
    silent.beat(wire(), consumer("g", "t"))
    assert broker.heard == silent.heard == []


def test_a_lost_connection_is_gone_from_all_groups(broker):
    lost, stays = wire(), wire()
    broker.beat(lost, consumer("g", "t"), consumer("h", "t"), producers="p")
    broker.beat(stays, consumer("g", "t"), client_id="c2")
    broker.heard.clear()
    broker.clients.connection_lost(lost)
    assert broker.heard == [("g", [stays])]
    assert broker.consumers.groups.keys() == {"g"}
    assert broker.producers.groups == {}


def test_a_silent_consumer_is_forgotten_and_the_others_hear_of_it(broker):
    silent, live = wire(), wire()
    broker.beat(silent, consumer("g", "t"))
    broker.beat(live, consumer("g", "t"), client_id="c2")
    broker.clock.advance(120_001)
    broker.beat(live, consumer("g", "t"), client_id="c2")
    broker.heard.clear()
    broker.clients.expire()
    assert broker.consumers.groups["g"].client_ids() == ["c2"]
    assert broker.heard == [("g", [live])]
    assert not silent.is_open


def test_a_client_may_change_its_id_on_its_connection(broker):
    connection = wire()
    broker.beat(connection, consumer("g", "t"))
    broker.beat(connection, consumer("g", "t"), client_id="c2")
    assert broker.consumers.groups["g"].client_ids() == ["c2"]


# Subscriptions


def subscription_version(broker: Broker, topic: str) -> int | None:
    data = broker.consumers.find_subscription("g", topic)
    return None if data is None else data.sub_version


def test_a_later_subscription_replaces_an_earlier_one(broker):
    connection = wire()
    for version, expected in ((5, 5), (3, 5), (7, 7)):
        broker.beat(connection, consumer("g", "t", version=version))
        assert subscription_version(broker, "t") == expected
    assert len(broker.heard) == 1  # the topics are the same


def test_topics_come_and_go_with_heartbeats(broker):
    connection = wire()
    broker.beat(connection, consumer("g", "t", "u"))
    broker.beat(connection, consumer("g", "u", "v"))
    assert broker.consumers.groups["g"].subscriptions.keys() == {"u", "v"}
    assert broker.consumers.groups_of("t") == []
    assert len(broker.heard) == 2


def test_a_subscription_of_a_pull_is_kept_for_a_while(broker):
    broker.consumers.compensate("g", SubscriptionData("t", sub_version=START_MS))
    assert subscription_version(broker, "t") == START_MS
    assert subscription_version(broker, "u") is None
    broker.beat(wire(), consumer("g", "t", version=9))
    assert subscription_version(broker, "t") == 9
    broker.clients.connection_lost(next(iter(broker.consumers.groups["g"].clients)))
    broker.clock.advance(600_000)
    broker.clients.expire()
    assert subscription_version(broker, "t") == START_MS
    broker.clock.advance(1)
    broker.clients.expire()
    assert subscription_version(broker, "t") is None


# Heartbeats of version 2


def test_a_heartbeat_of_version_1_always_has_subscriptions(broker):
    connection = wire()
    assert broker.beat(connection, consumer("g", "t"))
    assert broker.beat(connection, consumer("g", "t"))


def test_a_heartbeat_of_version_2_may_leave_them_out(broker):
    connection = wire()
    assert not broker.beat(connection, consumer("g", "t"), fingerprint=5)
    broker.clock.advance(1000)
    assert not broker.beat(connection, consumer("g"), fingerprint=5, without_sub=True)
    assert subscription_version(broker, "t") == 1
    assert broker.consumers.groups["g"].clients[connection].last_seen_ms == START_MS + 1000
    assert len(broker.heard) == 1


def test_another_fingerprint_asks_for_subscriptions(broker):
    first, second = wire(), wire()
    broker.beat(first, consumer("g", "t"), fingerprint=5)
    assert broker.beat(second, consumer("g", "t", "u"), client_id="c2", fingerprint=6)
    assert broker.beat(first, consumer("g"), fingerprint=5, without_sub=True)


def test_a_broker_that_does_not_know_the_subscriptions_asks_for_them(broker):
    connection = wire()
    assert broker.beat(connection, consumer("g"), fingerprint=5, without_sub=True)
    assert not broker.beat(connection, consumer("g", "t"), fingerprint=5)
    broker.clients.connection_lost(connection)
    assert broker.beat(wire(), consumer("g"), fingerprint=5, without_sub=True)

"""Topics: which every broker has, how they come into being, change and go, and their file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.config import BrokerConfig
from kourou.broker.names import check_group_name, check_topic_name, is_send_forbidden
from kourou.broker.state.attributes import BadAttributeError, parse_changes
from kourou.broker.state.topics import TopicTable
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import TopicConfig
from support.recorded.golden_config import config_files
from support.stores.store import START_MS, ManualClock

READ_WRITE, INHERIT = 6, 1
FILES = dict(config_files("topics.json"))


class Broker:
    """A table, and what it said of its changes."""

    def __init__(self, *, timer_wheel_enable: bool = False, **config: Any) -> None:
        self.clock = ManualClock()
        values = {"broker_cluster_name": "c", "broker_name": "b", **config}
        self.table = TopicTable(BrokerConfig(**values), self.clock, timer_wheel_enable=timer_wheel_enable)
        self.heard: list[set[str]] = []
        self.table.on_change = self.heard.append

    def send(self, topic: str = "t", default: str = "TBW102", queues: int = 4, flag: int = 0) -> Any:
        return self.table.create_for_send(topic, default, "10.0.0.1:1", queues, flag)


@pytest.fixture
def broker() -> Broker:
    return Broker()


# Topics of every broker


@pytest.mark.parametrize("file", FILES)
def test_a_broker_has_the_topics_that_java_gives_it(file):
    java = lenient_json.loads(FILES[file])["topicConfigTable"]
    name = next(topic.removeprefix("rmq_sys_SYNC_BROKER_MEMBER_") for topic in java if "MEMBER" in topic)
    own = Broker(
        broker_cluster_name="GoldenCluster",
        broker_name=name,
        timer_wheel_enable="rmq_sys_wheel_timer" in java,
    ).table
    for topic, config in own.topics.items():
        assert config.to_json() == java[topic]
    others = java.keys() - own.topics
    assert all(topic.startswith(("Golden", "%RETRY%", "%DLQ%", "TRANS_CHECK")) for topic in others), others


def test_topics_of_the_broker_are_known_by_name(broker):
    table = broker.table
    assert all(table.is_system_topic(name) for name in table.topics)
    for name in ("RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC", "rmq_sys_anything", "c", "b", "c_REPLY_TOPIC"):
        assert table.is_system_topic(name)
        assert name.startswith("rmq_sys_any") or name in table.system_topics()
    assert not table.is_system_topic("orders")
    assert not table.is_system_topic("%RETRY%g")


def test_switches_of_the_config_take_topics_away_or_their_permissions():
    table = Broker(
        auto_create_topic_enable=False, cluster_topic_enable=False, broker_topic_enable=False
    ).table
    assert table.get("TBW102") is None
    assert table.topics["c"].perm == table.topics["b"].perm == INHERIT
    traced = Broker(trace_topic_enable=True, msg_trace_topic_name="traces").table
    assert traced.topics["traces"].read_queue_nums == 1
    assert traced.is_system_topic("traces")


# Names


@pytest.mark.parametrize("name", ["orders", "a", "%RETRY%g", "a|b-c_d%0", "x" * 127, "%DLQ%" + "x" * 250])
def test_names_that_a_topic_may_have(name):
    assert check_topic_name(name) is None


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        ("a b", "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("orders\n", "contains illegal characters"),
        ("a/b", "contains illegal characters"),
        ("ü", "contains illegal characters"),
        ("a@b", "contains illegal characters"),
        ("x" * 128, "is longer than topic max length: 127"),
        ("%RETRY%" + "x" * 249, "and it's longer than topic max length: 255"),
    ],
)
def test_names_that_a_topic_may_not_have(name, error):
    assert error in (check_topic_name(name) or "")


def test_a_group_has_a_shorter_name():
    assert check_group_name("x" * 120) is None
    assert "longer than group max length: 120" in (check_group_name("x" * 121) or "")
    assert check_group_name("") == "The specified group is blank."
    assert "The specified group: a b" in (check_group_name("a b") or "")


def test_some_topics_take_messages_from_the_broker_alone():
    assert is_send_forbidden("SCHEDULE_TOPIC_XXXX")
    assert is_send_forbidden("RMQ_SYS_TRANS_HALF_TOPIC")
    assert not is_send_forbidden("TBW102")
    assert not is_send_forbidden("orders")


# Topics that come into being


def test_a_send_makes_its_topic_after_the_pattern_it_names(broker):
    made = broker.send(queues=4, flag=1)
    assert made == TopicConfig("t", 4, 4, READ_WRITE, 1)
    assert broker.table.get("t") is made
    assert broker.heard == [{"t"}]
    assert broker.table.dirty


def test_a_topic_has_no_more_queues_than_its_pattern(broker):
    assert broker.send("t", queues=100).write_queue_nums == 8
    assert broker.send("u", queues=-1).write_queue_nums == 0


def test_a_topic_that_is_there_stays_as_it_is(broker):
    made = broker.send(queues=4)
    assert broker.send(queues=2) is made
    assert broker.heard == [{"t"}]


def test_any_topic_that_may_be_inherited_from_is_a_pattern(broker):
    assert broker.send(default="c").read_queue_nums == 4
    assert broker.send("u", default="BenchmarkTest") is None
    assert broker.send("v", default="nothing") is None
    assert broker.heard == [{"t"}]


def test_no_topic_is_made_where_that_is_switched_off():
    broker = Broker(auto_create_topic_enable=False)
    assert broker.send() is None
    broker.table.decode({"topicConfigTable": {"TBW102": TopicConfig("TBW102", 8, 8, 7).to_json()}})
    assert broker.send() is None
    assert broker.table.topics["TBW102"].perm == READ_WRITE  # as Java leaves it


def test_a_retry_topic_is_made_once_and_marked_when_its_topics_are_ordered(broker):
    table = broker.table
    made = table.create_for_send_back("%RETRY%g", 1, READ_WRITE, 2)
    assert made == TopicConfig("%RETRY%g", 1, 1, READ_WRITE, 2)
    assert table.create_for_send_back("%RETRY%g", 5, READ_WRITE) is made
    assert table.create_for_send_back("%RETRY%g", 1, READ_WRITE, order=True).order
    assert table.create_for_send_back("%RETRY%g", 1, READ_WRITE).order  # who does not say, does not change
    assert table.is_order_topic("%RETRY%g")
    assert broker.heard == [{"%RETRY%g"}] * 2


# Changes


def test_every_change_has_a_version_of_its_own(broker):
    table = broker.table
    assert table.data_version.to_json() == {"counter": 0, "stateVersion": 0, "timestamp": START_MS}
    broker.clock.advance(5)
    broker.send()
    table.update_all([TopicConfig("u"), TopicConfig("v")])
    table.delete("u")
    assert table.data_version.to_json() == {"counter": 4, "stateVersion": 0, "timestamp": START_MS + 5}
    assert broker.heard == [{"t"}, {"u", "v"}, {"u"}]


def test_a_topic_that_is_not_there_cannot_be_deleted(broker):
    assert not broker.table.delete("t")
    assert broker.heard == []
    assert not broker.table.dirty


def test_the_name_server_says_which_topics_are_ordered(broker):
    broker.send("t")
    broker.send("u")
    broker.table.update_order(["t", "nothing"])
    broker.table.update_order(["t"])
    assert broker.table.is_order_topic("t")
    assert not broker.table.is_order_topic("u")
    assert not broker.table.is_order_topic("nothing")
    assert broker.heard == [{"t"}, {"u"}, {"t"}]


# Attributes


def update(table: TopicTable, changes: str, topic: str = "t") -> dict[str, str]:
    return dict(table.update(TopicConfig(topic, attributes=parse_changes(changes))).attributes)


def test_attributes_are_added_changed_and_removed(broker):
    table = broker.table
    assert update(table, "+message.type=FIFO,+queue.type=BatchCQ") == {
        "message.type": "FIFO",
        "queue.type": "BatchCQ",
    }
    assert table.is_batch_topic("t")
    assert update(table, "+message.type=DELAY,+reserve.time=5")["message.type"] == "DELAY"
    assert update(table, "-message.type") == {"queue.type": "BatchCQ", "reserve.time": "5"}
    assert update(table, "") == {"queue.type": "BatchCQ", "reserve.time": "5"}
    assert not table.is_batch_topic("TBW102")
    assert not table.is_batch_topic("nothing")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("-queue.type", "attempt to update an unchangeable attribute. key: queue.type"),
        ("-cleanup.policy", "attempt to delete a nonexistent key: cleanup.policy"),
        ("+message.type=ANY", "value is not in set: [UNSPECIFIED, NORMAL,"),
        ("+nothing=1", "unsupported key: nothing"),
        ("+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        ("+reserve.time=x", 'For input string: "x"'),
        ("+lite.topic.expiration=43201", "value is not in range(-1, 43200)"),
        ("+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
        ("+message.type=FIFO,+message.type=DELAY", "key duplication: +message.type"),
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type=", "add/alter attribute format is wrong: +message.type"),
        ("+message.type", "delete attribute format is wrong: +message.type"),
        ("message+type=FIFO", "kv string format wrong."),
        ("++a=1", "kv string format wrong."),
        ("-", "kv string format wrong."),
    ],
)
def test_changes_that_cannot_be_made_change_nothing(broker, changes, error):
    table = broker.table
    update(table, "+queue.type=BatchCQ")
    before, version = dict(table.topics), table.data_version
    with pytest.raises(BadAttributeError) as caught:
        update(table, changes)
    assert str(caught.value).startswith(error)
    assert table.topics == before
    assert table.data_version == version


def test_a_change_has_a_sign(broker):
    update(broker.table, "")
    with pytest.raises(BadAttributeError, match=r"wrong format key: essage\.type"):
        broker.table.update(TopicConfig("t", attributes={"message.type": "FIFO"}))


def test_a_new_topic_has_nothing_to_remove(broker):
    with pytest.raises(BadAttributeError, match="only add attribute is supported while creating topic"):
        update(broker.table, "-message.type")
    assert broker.table.get("t") is None


def test_several_topics_are_updated_or_none(broker):
    bad = TopicConfig("u", attributes={"+nothing": "1"})
    with pytest.raises(BadAttributeError):
        broker.table.update_all([TopicConfig("t"), bad])
    assert broker.table.get("t") is None
    assert broker.table.update_all([]) == []
    assert broker.heard == []


# The file


@pytest.mark.parametrize("file", FILES)
def test_what_java_wrote_is_read_and_written_again(file):
    java = lenient_json.loads(FILES[file])
    has_timer = "rmq_sys_wheel_timer" in java["topicConfigTable"]
    name = next(topic[27:] for topic in java["topicConfigTable"] if "SYNC_BROKER_MEMBER_" in topic)
    table = Broker(broker_cluster_name="GoldenCluster", broker_name=name, timer_wheel_enable=has_timer).table
    table.decode(java)
    assert lenient_json.loads(table.encode()) == java
    assert not table.dirty


def test_the_golden_stores_have_a_batch_topic():
    batch = [name for name, data in FILES.items() if b"BatchCQ" in data]
    assert batch
    for name in batch:
        table = Broker().table
        table.decode(lenient_json.loads(FILES[name]))
        assert [topic for topic in table.topics if table.is_batch_topic(topic)]


def test_a_file_counts_more_than_what_every_broker_has(broker):
    broker.table.decode({"topicConfigTable": {"TBW102": {"writeQueueNums": 3, "perm": 7}}})
    assert broker.send(queues=9).write_queue_nums == 3
    assert broker.table.get("SELF_TEST_TOPIC") is not None


@pytest.mark.parametrize("value", [{}, [], None, {"topicConfigTable": {"t": {"perm": "x"}}}])
def test_a_damaged_file_changes_nothing(broker, value):
    before = dict(broker.table.topics)
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        broker.table.decode(value)
    assert broker.table.topics == before


# Parts


def test_topics_are_handed_out_part_by_part(broker):
    table = broker.table
    version = lenient_json.dumps(table.data_version.to_json()).decode()
    parts: dict[str, TopicConfig] = {}
    for first in range(0, len(table.topics), 4):
        part = table.page(version, first, 4)
        assert len(part) <= 4
        parts.update(part)
    assert parts == table.topics
    assert list(parts) == sorted(table.topics)
    assert table.page(version, 1000, 4) == {}


@pytest.mark.parametrize("version", [None, "", "{", "[]", '{"counter":9}'])
def test_who_goes_on_with_another_version_starts_again(broker, version):
    assert broker.table.page(version, 4, 2) == broker.table.page(None, 0, 2)


@given(first=st.integers(-3, 60), count=st.integers(-3, 60))
def test_a_part_is_a_slice_of_the_names(first, count):
    table = Broker().table
    version = lenient_json.dumps(table.data_version.to_json()).decode()
    names = sorted(table.topics)
    assert list(table.page(version, first, count)) == names[max(first, 0) :][: max(count, 0)]


def test_what_is_encoded_follows_every_change(broker):
    """Given a table that was encoded before, then its text is that of a table that was not."""
    table = broker.table
    for step in range(6):
        if step == 4:
            table.delete("t1")
        else:
            table.update(TopicConfig(f"t{step % 3}", step + 1, 2))
        text = table.encode()
        assert lenient_json.loads(text) == table.to_json()
        assert text == lenient_json.dumps(table.to_json())

"""Consumer offsets: what is committed is found again, resets count once, and the file is Java's."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.config import BrokerConfig
from kourou.broker.state.offsets import ConsumerOffsets
from kourou.remoting.protocol import lenient_json
from kourou.store import MessageStoreConfig
from support.recorded.golden_config import config_files
from support.stores.store import START_MS, ManualClock

FILES = dict(config_files("consumerOffset.json"))
LMQ_FILES = dict(config_files("lmqConsumerOffset.json"))
CLIENT = "10.0.0.1:1"


def table(*, lmq: bool = False, **config: Any) -> ConsumerOffsets:
    return ConsumerOffsets(BrokerConfig(store=MessageStoreConfig(enable_lmq=lmq), **config), ManualClock())


@pytest.fixture
def offsets() -> ConsumerOffsets:
    return table()


def commit(offsets: ConsumerOffsets, key: str, *of_queues: int) -> None:
    """commit(offsets, "t@g", 3, 4): queue 0 is at 3, queue 1 at 4."""
    topic, _, group = key.partition("@")
    for queue_id, offset in enumerate(of_queues):
        offsets.commit(CLIENT, group, topic, queue_id, offset)


# Commit and query


def test_what_was_committed_is_found(offsets):
    assert offsets.query("g", "t", 0) == -1
    commit(offsets, "t@g", 5, 7)
    assert [offsets.query("g", "t", queue_id) for queue_id in range(3)] == [5, 7, -1]
    assert offsets.query("t", "g", 0) == -1
    assert offsets.query_all("g", "t") == {0: 5, 1: 7}
    assert offsets.query_all("h", "t") is None
    assert offsets.dirty


def test_an_offset_that_goes_back_counts_and_is_logged(offsets, caplog):
    commit(offsets, "t@g", 5)
    commit(offsets, "t@g", 5)
    assert caplog.text == ""
    commit(offsets, "t@g", 3)
    assert offsets.query("g", "t", 0) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "t@g, queue 0, goes back from 5 to 3" in caplog.text


def test_the_version_changes_with_every_so_many_commits():
    offsets = table(consumer_offset_update_version_step=3)
    for expected in (0, 0, 1, 1, 1, 2):
        commit(offsets, "t@g", 1)
        assert offsets.data_version.counter == expected
    assert offsets.data_version.timestamp == START_MS


def test_pull_offsets_are_ahead_or_those_that_were_committed(offsets):
    commit(offsets, "t@g", 5, 7)
    offsets.commit_pull(CLIENT, "g", "t", 0, 9)
    assert offsets.query_pull("g", "t", 0) == 9
    assert offsets.query_pull("g", "t", 1) == 7
    assert offsets.query_pull("h", "t", 0) == -1


@given(
    st.lists(st.tuples(st.sampled_from("tu"), st.sampled_from("gh"), st.integers(0, 2), st.integers(0, 9)))
)
def test_the_last_commit_counts(commits):
    offsets, expected = table(), {}
    for topic, group, queue_id, offset in commits:
        offsets.commit(CLIENT, group, topic, queue_id, offset)
        expected[topic, group, queue_id] = offset
    again = table()
    again.decode(lenient_json.loads(offsets.encode()))
    for known in (offsets, again):
        for (topic, group, queue_id), offset in expected.items():
            assert known.query(group, topic, queue_id) == offset


# Resets


def test_a_reset_counts_until_it_is_taken(offsets):
    commit(offsets, "t@g", 50)
    offsets.assign_reset("t", "g", 0, 10)
    assert offsets.has_reset("t", "g", 0)
    assert not offsets.has_reset("t", "g", 1)
    commit(offsets, "t@g", 60)  # of a client that does not know yet
    assert offsets.query("g", "t", 0) == 10
    assert offsets.take_reset("t", "g", 0) == 10
    assert offsets.take_reset("t", "g", 0) is None
    assert not offsets.has_reset("t", "g", 0)
    assert offsets.query("g", "t", 0) == 60


def test_a_reset_is_an_offset_too_for_groups_that_are_away(offsets):
    offsets.assign_reset("t", "g", 0, 10)
    offsets.take_reset("t", "g", 0)
    assert offsets.query("g", "t", 0) == 10
    assert offsets.dirty


def test_resets_of_queues_are_taken_one_by_one(offsets):
    offsets.assign_reset("t", "g", 0, 10)
    offsets.assign_reset("t", "g", 1, 11)
    assert offsets.take_reset("t", "g", 2) is None
    assert offsets.take_reset("t", "h", 0) is None
    assert offsets.take_reset("t", "g", 1) == 11
    assert offsets.has_reset("t", "g", 0)


def test_resets_are_not_asked_where_clients_do_them():
    offsets = table(use_server_side_reset_offset=False)
    offsets.assign_reset("t", "g", 0, 10)
    commit(offsets, "t@g", 60)
    assert offsets.query("g", "t", 0) == 60


@pytest.mark.parametrize("reset", [("", "g", 0, 1), ("t", "", 0, 1), ("t", "g", -1, 1), ("t", "g", 0, -1)])
def test_a_reset_to_nowhere_is_none(offsets, reset):
    offsets.assign_reset(*reset)
    assert not offsets.has_reset(*reset[:3])
    assert offsets.table == {}


# Many at once


def test_who_consumes_what(offsets):
    for key in ("t@g", "u@g", "t@h", "t@g@broadcast"):
        commit(offsets, key, 1)
    assert offsets.topics_of("g") == {"t", "u"}
    assert offsets.groups_of("t") == {"g", "h"}
    assert offsets.group_topics() == {"g": ["t", "u"], "h": ["t"]}
    assert offsets.topics_of("nobody") == offsets.groups_of("nothing") == set()


def test_the_least_offset_of_all_groups(offsets):
    commit(offsets, "t@g", 5, 9, 1)
    commit(offsets, "t@h", 7, 3, 1)
    commit(offsets, "u@g", 1, 1, 1)
    store_begins = {0: 0, 1: 4, 2: 2}

    def least(*left_out: str) -> dict[int, int]:
        return offsets.min_in_all_groups("t", set(left_out), lambda topic, queue_id: store_begins[queue_id])

    assert least() == {0: 5, 1: 9}  # queue 1 of h and queue 2 are behind what the store has
    assert least("g") == {0: 7}
    assert offsets.query("g", "t", 0) == 5  # to leave a group out is not to forget it, as in Java


def test_a_group_goes_on_where_another_one_is(offsets):
    commit(offsets, "t@g", 5, 7)
    offsets.clone("g", "h", "t")
    offsets.clone("g", "h", "u")
    assert offsets.query_all("h", "t") == {0: 5, 1: 7}
    assert offsets.query_all("h", "u") is None
    commit(offsets, "t@h", 9)
    assert offsets.query("g", "t", 0) == 5


@pytest.mark.parametrize(("remove", "left"), [("remove_group", "t@h"), ("remove_topic", "u@g")])
def test_offsets_of_a_group_or_a_topic_are_forgotten(offsets, remove, left):
    for key in ("t@g", "t@h", "u@g"):
        topic, group = key.split("@")
        commit(offsets, key, 1)
        offsets.commit_pull(CLIENT, group, topic, 0, 2)
        offsets.assign_reset(topic, group, 0, 3)
    offsets.dirty = False
    getattr(offsets, remove)({"remove_group": "g", "remove_topic": "t"}[remove])
    assert set(offsets.table) == set(offsets.pull_table) == {left}
    topic, group = left.split("@")
    assert offsets.has_reset(topic, group, 0)
    assert not offsets.has_reset("t", "g", 0)
    assert offsets.dirty


# Light queues


def test_light_queues_have_offsets_of_their_own():
    offsets = table(lmq=True)
    commit(offsets, "%LMQ%t@%LMQ%g", 5)
    commit(offsets, "t@g", 7)
    assert offsets.query("%LMQ%g", "%LMQ%t", 0) == 5
    assert offsets.query("%LMQ%h", "%LMQ%t", 0) == -1
    assert offsets.query_all("%LMQ%g", "%LMQ%t") == {0: 5}
    assert offsets.query_all("%LMQ%h", "%LMQ%t") == {}
    assert offsets.lmq_table == {"%LMQ%t@%LMQ%g": 5}
    assert offsets.table == {"t@g": {0: 7}}

    offsets.assign_reset("%LMQ%t", "%LMQ%g", 0, 2)
    assert offsets.query("%LMQ%g", "%LMQ%t", 0) == 2
    assert offsets.take_reset("%LMQ%t", "%LMQ%g", 0) == 2

    offsets.remove_group("%LMQ%g")
    assert offsets.lmq_table == {}
    assert offsets.query("g", "t", 0) == 7


def test_light_queues_have_a_file_of_their_own():
    assert table().file_name == "consumerOffset.json"
    offsets = table(lmq=True)
    assert offsets.file_name == "lmqConsumerOffset.json"
    commit(offsets, "%LMQ%t@%LMQ%g", 5)
    commit(offsets, "t@g", 7)
    again = table(lmq=True)
    again.decode(lenient_json.loads(offsets.encode()))
    assert again.lmq_table == {"%LMQ%t@%LMQ%g": 5}
    assert again.table == {"t@g": {0: 7}}


# The file


@pytest.mark.parametrize("file", [*FILES, *LMQ_FILES])
def test_what_java_wrote_is_read_and_written_again(file):
    java = lenient_json.loads({**FILES, **LMQ_FILES}[file])
    offsets = table(lmq=file in LMQ_FILES)
    offsets.decode(java)
    ours = lenient_json.loads(offsets.encode())
    # Java reads no pull offsets, and writes topics in any order.
    assert ours.pop("pullOffsetTable") == {}
    java.pop("pullOffsetTable")
    for form in (ours, java):
        form["groupTopicMap"] = {group: set(topics) for group, topics in form["groupTopicMap"].items()}
    assert ours == java
    assert not offsets.dirty


def test_golden_files_hold_offsets():
    assert any(lenient_json.loads(data)["offsetTable"] for data in FILES.values())


def test_keys_of_queues_are_bare_numbers(offsets):
    commit(offsets, "t@g", 5, 7)
    offsets.commit_pull(CLIENT, "g", "t", 0, 9)
    text = offsets.encode().replace(b" ", b"")
    assert b'"offsetTable":{"t@g":{0:5,1:7}},"pullOffsetTable":{"t@g":{0:9}}' in text
    assert b'"groupTopicMap":{"g":["t"]}' in text


@pytest.mark.parametrize(
    "value", [{}, [], None, {"offsetTable": {"t@g": [1]}}, {"offsetTable": {"t@g": {"x": 1}}}]
)
def test_a_damaged_file_changes_nothing(offsets, value):
    commit(offsets, "t@g", 5)
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        offsets.decode(value)
    assert offsets.table == {"t@g": {0: 5}}

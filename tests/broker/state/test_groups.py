"""Consumer groups: which every broker has, how they are made, what is forbidden to them, and their file."""

from __future__ import annotations

from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.state.attributes import BadAttributeError
from kourou.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroups
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.header import BadRequestError
from support.recorded.golden_config import config_files
from support.stores.store import START_MS, ManualClock

FILES = dict(config_files("subscriptionGroup.json"))
PREDEFINED = {
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
}


def table(**config: Any) -> SubscriptionGroups:
    return SubscriptionGroups(BrokerConfig(**config), ManualClock())


@pytest.fixture
def groups() -> SubscriptionGroups:
    return table()


def test_every_broker_has_some_groups(groups):
    assert groups.groups.keys() == PREDEFINED


def test_a_group_that_is_not_there_is_made(groups):
    heard: list[set[str]] = []
    groups.on_change = heard.append
    made = groups.find("g")
    assert made == SubscriptionGroupConfig("g")
    assert groups.find("g") is made
    assert groups.get("g") is made
    assert heard == [{"g"}]
    assert groups.dirty
    assert groups.data_version.counter == 1


@pytest.mark.parametrize("name", ["", "a b", "x" * 121])
def test_a_group_of_no_name_is_not_made(groups, name):
    assert groups.find(name) is None
    assert not groups.dirty


def test_without_auto_creation_only_groups_of_the_broker_are_made():
    groups = table(auto_create_subscription_group=False)
    assert groups.find("g") is None
    assert groups.find("CID_RMQ_SYS_REVIVE_GROUP") is not None
    strict = table(auto_create_subscription_group=False, enable_create_sys_group=False)
    assert strict.find("CID_RMQ_SYS_REVIVE_GROUP") is None
    assert strict.find("TOOLS_CONSUMER") is not None


def test_groups_are_updated_disabled_and_deleted(groups):
    groups.update(SubscriptionGroupConfig("g", retry_max_times=3, attributes={"+priority.factor": "7"}))
    groups.update(SubscriptionGroupConfig("g", retry_queue_nums=2, attributes={"+lite.sub.model": "Shared"}))
    assert groups.groups["g"] == SubscriptionGroupConfig(
        "g", retry_queue_nums=2, attributes={"priority.factor": "7", "lite.sub.model": "Shared"}
    )
    groups.disable_consume("g")
    groups.disable_consume("nothing")
    assert not groups.groups["g"].consume_enable
    assert groups.data_version.counter == 3
    assert groups.delete("g")
    assert not groups.delete("g")
    assert groups.get("g") is None
    assert groups.data_version.counter == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"+priority.factor": "101"},
        {"+lite.sub.model": "Other"},
        {"+lite.sub.reset.offset.exclusive": "maybe"},
        {"+lite.sub.client.max.event.cnt": "9"},
        {"+nothing": "1"},
        {"-priority.factor": ""},
    ],
)
def test_attributes_that_a_group_cannot_have(groups, changes):
    with pytest.raises(BadAttributeError):
        groups.update_all([SubscriptionGroupConfig("h"), SubscriptionGroupConfig("g", attributes=changes)])
    assert groups.groups.keys() == PREDEFINED


# Forbidden topics


def test_a_group_is_forbidden_to_read_a_topic_and_allowed_again(groups):
    assert not groups.is_forbidden("g", "t")
    groups.set_forbidden("g", "t", 2, True)
    groups.set_forbidden("g", "u", 1, True)
    assert groups.is_forbidden("g", "t")
    assert not groups.is_forbidden("g", "u")
    assert groups.is_forbidden("g", "u", 1)
    assert not groups.is_forbidden("h", "t")
    assert groups.to_json()["forbiddenTable"] == {"g": {"t": 4, "u": 2}}

    groups.set_forbidden("g", "t", 2, False)
    assert not groups.is_forbidden("g", "t")
    assert groups.is_forbidden("g", "u", 1)  # Java forgets all topics of the group here

    groups.set_forbidden("g", "u", 1, False)
    assert groups.forbidden == {}
    assert groups.data_version.counter == 4


def test_what_is_as_it_should_be_is_no_change(groups):
    groups.set_forbidden("g", "t", 2, False)
    assert groups.forbidden == {}
    assert not groups.dirty


def test_with_a_group_goes_what_was_forbidden_to_it(groups):
    groups.find("g")
    groups.set_forbidden("g", "t", 2, True)
    groups.delete("g")
    assert not groups.is_forbidden("g", "t")


# The file


@pytest.mark.parametrize("file", FILES)
def test_what_java_wrote_is_read_and_written_again(file):
    java = lenient_json.loads(FILES[file])
    groups = table()
    groups.decode(java)
    assert lenient_json.loads(groups.encode()) == java
    assert not groups.dirty


def test_all_fields_survive_the_file(groups):
    groups.update(
        SubscriptionGroupConfig(
            "g",
            False,
            False,
            False,
            True,
            2,
            3,
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1, "max": 2, "multiplier": 3}},
            4,
            5,
            False,
            6,
            7,
            ({"topic": "t", "expression": "*", "expressionType": "TAG", "version": 1},),
            {"+lite.bind.topic": "t"},
        )
    )
    groups.set_forbidden("g", "t", 2, True)
    again = table()
    again.decode(lenient_json.loads(groups.encode()))
    assert again.groups == groups.groups
    assert again.forbidden == groups.forbidden
    assert again.data_version == groups.data_version


def test_the_first_version_is_that_of_the_start(groups):
    assert groups.to_json()["dataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": START_MS}


def test_a_group_of_a_request_has_javas_defaults():
    assert SubscriptionGroupConfig.from_json({"groupName": "g"}) == SubscriptionGroupConfig("g")
    assert SubscriptionGroupConfig.from_json({"consumeEnable": "false"}, "g").consume_enable is False


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "subscription group"),
        ({"groupName": 1}, "groupName"),
        ({"consumeEnable": 1}, "consumeEnable"),
        ({"retryMaxTimes": "x"}, "retryMaxTimes"),
        ({"retryMaxTimes": True}, "retryMaxTimes"),
        ({"attributes": []}, "attributes"),
        ({"groupRetryPolicy": "x"}, "groupRetryPolicy"),
        ({"subscriptionDataSet": {}}, "subscriptionDataSet"),
    ],
)
def test_a_bad_field_of_a_request_is_named(value, field):
    with pytest.raises(BadRequestError, match=field):
        SubscriptionGroupConfig.from_json(value)


def test_groups_are_handed_out_part_by_part(groups):
    groups.set_forbidden("CID_ONS-HTTP-PROXY", "t", 2, True)
    groups.set_forbidden("TOOLS_CONSUMER", "t", 2, True)
    part = groups.page(None, 0, 3)
    assert list(part) == sorted(PREDEFINED)[:3]
    shown = groups.to_json(part)
    assert list(shown["subscriptionGroupTable"]) == list(part)
    assert shown["forbiddenTable"] == {"CID_ONS-HTTP-PROXY": {"t": 4}}

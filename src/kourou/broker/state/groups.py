"""SubscriptionGroups: the consumer groups of this broker (SubscriptionGroupManager), kept in
subscriptionGroup.json.

    {"dataVersion": {…}, "forbiddenTable": {group: {topic: bits}}, "subscriptionGroupTable": {name: …}}

A bit of the forbidden table is a place in the permissions: bit 2 forbids the group to read the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kourou.broker.config import MASTER_ID, BrokerConfig
from kourou.broker.names import PREDEFINED_GROUPS, check_group_name, is_system_group
from kourou.broker.state.attributes import GROUP_ATTRIBUTES, apply_changes
from kourou.broker.state.versions import next_version, page_of
from kourou.clock import Clock
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import (
    as_int,
    as_object,
    read_bool,
    read_int,
    read_list,
    read_text,
    read_texts,
)
from kourou.remoting.protocol.topic_config import DataVersion
from kourou.store.queue.queue_store import is_directory_name, is_lmq

log = logging.getLogger(__name__)

FILE_NAME = "subscriptionGroup.json"
READ_INDEX = 2  # the place of the read permission

OnChange = Callable[[set[str]], None]


def _default_retry_policy() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """What a consumer group may do."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=_default_retry_policy)
    broker_id: int = MASTER_ID
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: tuple[Mapping[str, Any], ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any, name: str = "") -> SubscriptionGroupConfig:
        """A group of subscriptionGroup.json or of a body; BadRequestError names the field of no use."""
        value = as_object(value, "subscription group")
        subscriptions = None
        if value.get("subscriptionDataSet") is not None:
            subscriptions = tuple(
                as_object(item, "subscriptionDataSet") for item in read_list(value, "subscriptionDataSet")
            )
        return cls(
            read_text(value, "groupName", name),
            read_bool(value, "consumeEnable", True),
            read_bool(value, "consumeFromMinEnable", True),
            read_bool(value, "consumeBroadcastEnable", True),
            read_bool(value, "consumeMessageOrderly", False),
            read_int(value, "retryQueueNums", 1),
            read_int(value, "retryMaxTimes", 16),
            as_object(value.get("groupRetryPolicy") or _default_retry_policy(), "groupRetryPolicy"),
            read_int(value, "brokerId", MASTER_ID),
            read_int(value, "whichBrokerWhenConsumeSlowly", 1),
            read_bool(value, "notifyConsumerIdsChangedEnable", True),
            read_int(value, "groupSysFlag", 0),
            read_int(value, "consumeTimeoutMinute", 15),
            subscriptions,
            read_texts(value, "attributes"),
        )

    def to_json(self) -> dict[str, Any]:
        """The group as subscriptionGroup.json and bodies have it."""
        found: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.group_name,
            "groupRetryPolicy": dict(self.group_retry_policy),
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        if self.subscription_data_set is not None:
            found["subscriptionDataSet"] = list(self.subscription_data_set)
        return found


class SubscriptionGroups:
    """The consumer groups. `on_change` hears the names of those that were made, changed or deleted."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, *, bound: Bound = UNBOUND, pairs: Bound = UNBOUND
    ) -> None:
        self._config = config
        self._clock = clock
        self._bound, self._pairs = bound, pairs
        self.groups = {name: SubscriptionGroupConfig(name) for name in PREDEFINED_GROUPS}
        self.forbidden: dict[str, dict[str, int]] = {}  # group -> topic -> bits
        self.data_version = DataVersion(0, 0, clock.now_ms())
        self.dirty = False
        self.on_change: OnChange | None = None

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """A group; None where there is none. Groups of light queues are there without being made."""
        found = self.groups.get(group)
        if found is None and is_lmq(group) and self._config.store.enable_lmq and is_directory_name(group):
            return SubscriptionGroupConfig(group)
        return found

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """A group; one that is not there is made, if it may be. Hot: every pull asks."""
        found = self.get(group)
        if found is not None:
            return found
        allowed = self._config.auto_create_subscription_group or (
            self._config.enable_create_sys_group and is_system_group(group)
        )
        if not allowed or check_group_name(group) is not None or not self._bound.fits(len(self.groups) + 1):
            return None
        made = SubscriptionGroupConfig(group)
        log.info("new group: %s", made)
        self._put(made)
        return made

    def update(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Make or replace a group; its attributes are changes: {"+key": value, "-key": ""}.

        BadAttributeError or BudgetSpentError if they cannot be made; then nothing is changed.
        """
        return self.update_all([group])[0]

    def update_all(self, groups: Iterable[SubscriptionGroupConfig]) -> list[SubscriptionGroupConfig]:
        """Make or replace several groups, or none of them."""
        updated = []
        for group in groups:
            old = self.groups.get(group.group_name)
            current = None if old is None else old.attributes
            attributes = apply_changes(GROUP_ATTRIBUTES, current, group.attributes)
            updated.append(replace(group, attributes=attributes))
        new = {group.group_name for group in updated} - self.groups.keys()
        if new:
            self._bound.check(len(self.groups) + len(new))
        for group in updated:
            log.info("group: old %s, new %s", self.groups.get(group.group_name), group)
        self._put(*updated)
        return updated

    def disable_consume(self, group: str) -> None:
        """Stop a group that reads too slowly."""
        found = self.groups.get(group)
        if found is not None and found.consume_enable:
            self._put(replace(found, consume_enable=False))

    def delete(self, group: str) -> bool:
        """Forget a group; False if there is none."""
        self.forbidden.pop(group, None)
        if self.groups.pop(group, None) is None:
            log.warning("group %s cannot be deleted: there is none", group)
            return False
        log.info("group deleted: %s", group)
        self._changed({group})
        return True

    def replace_all(
        self,
        groups: dict[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        version: DataVersion,
    ) -> None:
        """Take the groups of a master and their version."""
        self.groups = dict(groups)
        self.forbidden = {
            group: {topic: as_int(bits, "forbiddenTable") for topic, bits in topics.items()}
            for group, topics in forbidden.items()
        }
        self.data_version = version
        self.dirty = True

    def page(self, asked_version: str | None, first: int, count: int) -> dict[str, SubscriptionGroupConfig]:
        """A part of the groups, in the order of their names."""
        return page_of(self.groups, self.data_version, asked_version, first, count)

    def _put(self, *groups: SubscriptionGroupConfig) -> None:
        self.groups.update({group.group_name: group for group in groups})
        for _ in groups[1:]:  # a version for each, as in Java
            self.data_version = next_version(self.data_version, self._clock.now_ms())
        self._changed({group.group_name for group in groups})

    def _changed(self, changed: set[str]) -> None:
        if not changed:
            return
        self.data_version = next_version(self.data_version, self._clock.now_ms())
        self.dirty = True
        if self.on_change is not None:
            self.on_change(changed)

    # What a group may not do with a topic

    def set_forbidden(self, group: str, topic: str, index: int, forbid: bool) -> None:
        """Forbid a group to use a permission on a topic, or allow it again. BudgetSpentError if too much is
        forbidden already."""
        topics = self.forbidden.get(group, {})
        before = topics.get(topic, 0)
        bits = before | 1 << index if forbid else before & ~(1 << index)
        if bits == before:
            return
        if not before:
            self._pairs.check(1 + sum(map(len, self.forbidden.values())))
        topics = {**topics, topic: bits} if bits else {t: b for t, b in topics.items() if t != topic}
        if topics:
            self.forbidden[group] = topics
        else:
            del self.forbidden[group]
        log.info("forbidden to group %s on topic %s: old %d, new %d", group, topic, before, bits)
        self._changed({group})

    def is_forbidden(self, group: str, topic: str, index: int = READ_INDEX) -> bool:
        """Whether a group may not use a permission on a topic. Hot: every pull asks."""
        if not self.forbidden:
            return False
        return bool(self.forbidden.get(group, {}).get(topic, 0) & 1 << index)

    # The file

    def to_json(self, groups: Mapping[str, SubscriptionGroupConfig] | None = None) -> dict[str, Any]:
        """The table, or a part of it, as the file and the answer to 201 have it."""
        shown = self.groups if groups is None else groups
        return {
            "dataVersion": self.data_version.to_json(),
            "forbiddenTable": {
                group: dict(topics)
                for group, topics in self.forbidden.items()
                if groups is None or group in shown
            },
            "subscriptionGroupTable": {name: group.to_json() for name, group in shown.items()},
        }

    def encode(self) -> bytes:
        """The JSON of the table."""
        return lenient_json.dumps(self.to_json())

    def decode(self, value: Any) -> None:
        """Take the groups of a file; they count more than those that every broker has."""
        read = {
            name: SubscriptionGroupConfig.from_json(entry, name)
            for name, entry in value["subscriptionGroupTable"].items()
        }
        forbidden = {
            group: {topic: as_int(bits, "forbiddenTable") for topic, bits in topics.items()}
            for group, topics in (value.get("forbiddenTable") or {}).items()
        }
        version = DataVersion.from_json(value.get("dataVersion") or {})
        self.groups.update(read)
        self.forbidden.update(forbidden)
        self.data_version = version

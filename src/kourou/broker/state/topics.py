"""TopicTable: the topics of this broker (TopicConfigManager), kept in topics.json.

{"dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": …}, "topicConfigTable": {name: TopicConfig}}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kourou.broker import names
from kourou.broker.config import BrokerConfig
from kourou.broker.state.attributes import BATCH_CQ, QUEUE_TYPE, TOPIC_ATTRIBUTES, apply_changes
from kourou.broker.state.versions import next_version, page_of
from kourou.clock import Clock
from kourou.message import topics as known
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
)
from kourou.store.queue.queue_store import is_lmq

log = logging.getLogger(__name__)

FILE_NAME = "topics.json"

# topicSysFlag

_CLIENT_QUEUES = 4  # what clients ask for when a send makes a topic (defaultTopicQueueNums of producers)
_SCHEDULE_QUEUES = 18  # one for each of Java's delay levels
_READ_WRITE = PERM_READ | PERM_WRITE

OnChange = Callable[[set[str]], None]


class TopicTable:
    """The topics of this broker. `on_change` hears the names of those that were made, changed or deleted."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        *,
        timer_wheel_enable: bool = False,
        bound: Bound = UNBOUND,
    ) -> None:
        self._config = config
        self._clock = clock
        self._bound = bound
        self.data_version = DataVersion(0, 0, clock.now_ms())
        self.dirty = False
        self.on_change: OnChange | None = None
        own = list(_own_topics(config))
        if timer_wheel_enable:
            own.append(TopicConfig(known.TIMER_TOPIC, 1, 1))
        self.topics: dict[str, TopicConfig] = {topic.name: topic for topic in own}
        self._system_topics = known.SYSTEM_TOPICS | self.topics.keys()
        self._encoded: dict[str, tuple[TopicConfig, bytes]] = {}  # as `encode` found them last

    # Questions

    def get(self, name: str) -> TopicConfig | None:
        """A topic; None where there is none. A light queue is a topic of its own, which nobody made."""
        found = self.topics.get(name)
        if found is None and is_lmq(name) and self._config.store.enable_lmq:
            return TopicConfig(name, 1, 1)
        return found

    def is_system_topic(self, name: str) -> bool:
        """Whether a topic belongs to the broker."""
        return name in self._system_topics or name.startswith(known.SYSTEM_PREFIX)

    def system_topics(self) -> set[str]:
        """The names that belong to the broker, whether or not there is such a topic."""
        return set(self._system_topics)

    def is_order_topic(self, name: str) -> bool:
        """Whether a topic is marked as ordered."""
        topic = self.topics.get(name)
        return topic is not None and topic.order

    def is_batch_topic(self, name: str) -> bool:
        """Whether the queues of a topic hold batches (BatchCQ)."""
        topic = self.topics.get(name)
        return topic is not None and topic.attributes.get(QUEUE_TYPE) == BATCH_CQ

    def page(self, asked_version: str | None, first: int, count: int) -> dict[str, TopicConfig]:
        """A part of the topics, in the order of their names."""
        return page_of(self.topics, self.data_version, asked_version, first, count)

    # Topics that come into being

    def create_for_send(
        self, topic: str, default_topic: str, remote_address: str, client_queue_nums: int, sys_flag: int
    ) -> TopicConfig | None:
        """The topic of a message; one that is not there is made after the pattern of `default_topic`, if
        that one may be inherited from."""
        found = self.topics.get(topic)
        if found is not None:
            return found
        pattern = self.topics.get(default_topic)
        if pattern is None:
            log.warning("%s: no topic %s, for there is no %s", remote_address, topic, default_topic)
            return None
        if default_topic == known.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            pattern = self.topics[default_topic] = replace(pattern, perm=_READ_WRITE)
        if not pattern.perm & PERM_INHERIT:
            log.warning("%s: no topic %s, for %s has no heirs", remote_address, topic, default_topic)
            return None
        if not self._bound.fits(len(self.topics) + 1):
            return None
        queues = max(min(client_queue_nums, pattern.write_queue_nums), 0)
        made = TopicConfig(
            topic,
            queues,
            queues,
            pattern.perm & ~PERM_INHERIT,
            sys_flag,
            topic_filter_type=pattern.topic_filter_type,
        )
        log.info("%s: new topic after %s: %s", remote_address, default_topic, made)
        self._put(made)
        return made

    def create_for_send_back(
        self, topic: str, queue_nums: int, perm: int, sys_flag: int = 0, *, order: bool | None = None
    ) -> TopicConfig:
        """The retry or dead letter topic of a group; made if it is not there. With `order`, it is marked."""
        found = self.topics.get(topic)
        if found is None:
            made = TopicConfig(topic, queue_nums, queue_nums, perm, sys_flag, bool(order))
            return self.create_if_absent(made)
        if order is not None and order != found.order:
            found = replace(found, order=order)
            self._put(found)
        return found

    def restore(self, name: str, used_queues: int) -> None:
        """Make a topic again of which only messages are known, with as many queues as clients ask for."""
        is_of_group = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        usual = 1 if is_of_group else min(self._config.default_topic_queue_nums, _CLIENT_QUEUES)
        queues = max(used_queues, usual)
        log.warning("topic %s has messages and was not saved before the crash: made again", name)
        self._put(TopicConfig(name, queues, queues))

    def create_if_absent(self, topic: TopicConfig) -> TopicConfig:
        """A topic that is there, or this one."""
        found = self.topics.get(topic.name)
        if found is not None:
            return found
        log.info("new topic: %s", topic)
        self._put(topic)
        return topic

    # Topics that change

    def update(self, topic: TopicConfig) -> TopicConfig:
        """Make or replace a topic; its attributes are changes: {"+key": value, "-key": ""}.

        BadAttributeError or BudgetSpentError if they cannot be made; then nothing is changed.
        """
        return self.update_all([topic])[0]

    def update_all(self, topics: Iterable[TopicConfig]) -> list[TopicConfig]:
        """Make or replace several topics, or none of them."""
        updated = []
        for topic in topics:
            old = self.topics.get(topic.name)
            current = None if old is None else old.attributes
            attributes = apply_changes(TOPIC_ATTRIBUTES, current, topic.attributes)
            updated.append(replace(topic, attributes=attributes))
        new = {topic.name for topic in updated} - self.topics.keys()
        if new:
            self._bound.check(len(self.topics) + len(new))
        for topic in updated:
            log.info("topic: old %s, new %s", self.topics.get(topic.name), topic)
        self._put(*updated)
        return updated

    def replace_all(self, topics: dict[str, TopicConfig], version: DataVersion) -> set[str]:
        """Take the topics of a master and their version; the names of those that were made, changed or
        deleted."""
        before = self.topics
        changed = {name for name in before.keys() | topics.keys() if before.get(name) != topics.get(name)}
        if changed:
            log.info("topics of the master: %d, %d before", len(topics), len(before))
        self.topics = dict(topics)
        self.data_version = version
        self.dirty = True
        return changed

    def delete(self, name: str) -> bool:
        """Forget a topic; False if there is none."""
        if self.topics.pop(name, None) is None:
            log.warning("topic %s cannot be deleted: there is none", name)
            return False
        log.info("topic deleted: %s", name)
        self._changed({name})
        return True

    def update_order(self, order_topics: Iterable[str]) -> None:
        """Mark the topics that the name server's KV config calls ordered."""
        found = [self.topics[name] for name in order_topics if name in self.topics]
        marked = [replace(topic, order=True) for topic in found if not topic.order]
        if marked:
            self.topics.update({topic.name: topic for topic in marked})
            self._changed({topic.name for topic in marked})

    def _put(self, *topics: TopicConfig) -> None:
        self.topics.update({topic.name: topic for topic in topics})
        for _ in topics[1:]:  # a version for each, as in Java
            self.data_version = next_version(self.data_version, self._clock.now_ms())
        self._changed({topic.name for topic in topics})

    def _changed(self, changed: set[str]) -> None:
        if not changed:
            return
        self.data_version = next_version(self.data_version, self._clock.now_ms())
        self.dirty = True
        if self.on_change is not None:
            self.on_change(changed)

    # The file

    def to_json(self) -> dict[str, Any]:
        """The table as topics.json and the answer to GET_ALL_TOPIC_CONFIG have it."""
        return {
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in self.topics.items()},
        }

    def encode(self) -> bytes:
        """The JSON of the table. Of many topics few change at a time: the others are as they were encoded."""
        known, encoded = self._encoded, {}
        for name, topic in self.topics.items():
            entry = known.get(name)
            if entry is None or entry[0] is not topic:
                entry = topic, lenient_json.dumps({name: topic.to_json()})[1:-1]
            encoded[name] = entry
        self._encoded = encoded
        version = lenient_json.dumps(self.data_version.to_json())
        table = b",".join([text for _, text in encoded.values()])
        return b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (version, table)

    def decode(self, value: Any) -> None:
        """Take the topics of a file; they count more than those that every broker has."""
        read = {name: TopicConfig.from_json(entry, name) for name, entry in value["topicConfigTable"].items()}
        version = DataVersion.from_json(value.get("dataVersion") or {})
        self.topics.update(read)
        self.data_version = version


def _own_topics(config: BrokerConfig) -> Iterable[TopicConfig]:
    """The topics that every broker has."""

    def perm(enabled: bool) -> int:
        return PERM_INHERIT | _READ_WRITE if enabled else PERM_INHERIT

    cluster, broker = config.broker_cluster_name, config.broker_name
    default_queues, revive_queues = config.default_topic_queue_nums, config.revive_queue_num
    yield TopicConfig(known.SELF_TEST_TOPIC, 1, 1)
    if config.auto_create_topic_enable:
        yield TopicConfig(known.AUTO_CREATE_TOPIC, default_queues, default_queues, perm(True))
    yield TopicConfig(known.BENCHMARK_TOPIC, 1024, 1024)
    yield TopicConfig(cluster, perm=perm(config.cluster_topic_enable))
    yield TopicConfig(broker, 1, 1, perm(config.broker_topic_enable))
    yield TopicConfig(known.OFFSET_MOVED_EVENT, 1, 1)
    yield TopicConfig(known.SCHEDULE_TOPIC, _SCHEDULE_QUEUES, _SCHEDULE_QUEUES)
    if config.trace_topic_enable:
        yield TopicConfig(config.msg_trace_topic_name, 1, 1)
    yield TopicConfig(f"{cluster}_{names.REPLY_TOPIC_POSTFIX}", 1, 1)
    yield TopicConfig(known.REVIVE_TOPIC_PREFIX + cluster, revive_queues, revive_queues)
    yield TopicConfig(known.SYNC_BROKER_MEMBER_PREFIX + broker, 1, 1, PERM_INHERIT)
    yield TopicConfig(known.TRANS_HALF_TOPIC, 1, 1)
    yield TopicConfig(known.TRANS_OP_HALF_TOPIC, 1, 1)
    yield TopicConfig(known.ROCKSDB_TRANS_HALF_TOPIC, 1, 1)
    yield TopicConfig(known.ROCKSDB_TRANS_OP_HALF_TOPIC, 1, 1)

"""Contents: the topics and groups of a cluster, as the poller reads them from the masters that answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kourou.admin import Admin
from kourou.admin.groups import is_system_group, read_progress
from kourou.admin.topics import read_queues
from kourou.errors import KourouError
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import GetConsumeStats, TopicName
from kourou.remoting.protocol.topic_config import TopicConfig

REQUESTS_AT_ONCE = 8

# Kinds of topics: of users by their attribute message.type, and those that brokers make
KINDS = ("normal", "delay", "transaction", "fifo", "retry", "dlq", "system")

_T = TypeVar("_T")


@dataclass(slots=True)
class TopicRow:
    """A topic, on all masters together."""

    name: str
    kind: str
    brokers: list[str] = field(default_factory=list)
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 6
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    messages: int = 0
    end_offsets: int = 0
    tps: float = 0.0
    last_update_ms: int = 0


@dataclass(slots=True)
class GroupRow:
    """A consumer group, on all masters together."""

    name: str
    is_system: bool = False
    brokers: list[str] = field(default_factory=list)
    lag: int = 0
    tps: float = 0.0
    clients: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    consume_type: str = ""
    message_model: str = ""
    dead: int = 0  # messages in its dead-letter topic


@dataclass(slots=True)
class Contents:
    """Topics and groups; `failed` are brokers that did not tell theirs."""

    topics: dict[str, TopicRow] = field(default_factory=dict)
    groups: dict[str, GroupRow] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    read_s: float = 0.0


async def read_contents(admin: Admin, masters: Mapping[str, str], before: Contents) -> Contents:
    """All topics and groups of these masters (name -> address)."""
    reader = _Reader(admin, before)
    await asyncio.gather(*(reader.read(name, address) for name, address in masters.items()))
    return reader.finished()


class _Reader:
    def __init__(self, admin: Admin, before: Contents) -> None:
        self._admin = admin
        self._before = before
        self._slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._found = Contents()

    async def read(self, name: str, address: str) -> None:
        """Everything of one broker; one that fails is left out, with the reason."""
        try:
            topics, groups, system = await asyncio.gather(
                self._limited(lambda: self._admin.topics.all_configs(address)),
                self._limited(lambda: self._admin.groups.all_configs(address)),
                self._limited(
                    lambda: self._admin.link.ask_json(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
                ),
            )
        except KourouError as error:
            self._found.failed[name] = str(error)
            return
        hidden = {*SYSTEM_TOPICS, *(system.get("topicList") or ()), name}
        for config in topics.values():
            self._add_topic(name, config, hidden)
        for group in groups:
            row = self._found.groups.setdefault(group, GroupRow(group, is_system_group(group)))
            row.brokers.append(name)
        await asyncio.gather(
            *(self._count_topic(address, topic) for topic in topics),
            *(self._count_group(address, group) for group in groups if not is_system_group(group)),
        )

    def _add_topic(self, broker: str, config: TopicConfig, hidden: set[str]) -> None:
        row = self._found.topics.get(config.name)
        if row is None:
            kind = kind_of(config.name, config.attributes, hidden)
            row = self._found.topics[config.name] = TopicRow(config.name, kind, perm=config.perm)
        row.brokers.append(broker)
        row.read_queues += config.read_queue_nums
        row.write_queues += config.write_queue_nums
        row.order = row.order or config.order
        row.attributes = config.attributes

    async def _count_topic(self, address: str, topic: str) -> None:
        try:
            stats = await self._limited(
                lambda: self._admin.link.ask_json(address, RequestCode.GET_TOPIC_STATS_INFO, TopicName(topic))
            )
        except KourouError:
            return  # gone meanwhile, or one that the broker has no queues of
        row = self._found.topics[topic]
        for queue in read_queues(stats):
            row.messages += max(queue.max_offset - queue.min_offset, 0)
            row.end_offsets += queue.max_offset
            row.last_update_ms = max(row.last_update_ms, queue.last_update_ms)

    async def _count_group(self, address: str, group: str) -> None:
        row = self._found.groups[group]
        try:
            stats = await self._limited(
                lambda: self._admin.link.ask_json(
                    address, RequestCode.GET_CONSUME_STATS, GetConsumeStats(group, None)
                )
            )
        except KourouError:
            stats = {}
        progress = read_progress(group, stats)
        row.lag += max(progress.lag, 0)
        row.tps += progress.tps
        row.topics |= {queue.topic for queue in progress.queues if not queue.topic.startswith(RETRY_PREFIX)}
        try:
            connections = await self._limited(lambda: self._admin.groups.connections(group, broker=address))
        except KourouError:
            return  # nobody is online
        row.clients |= {client.client_id for client in connections.clients}
        row.topics |= {
            one.topic for one in connections.subscriptions if not one.topic.startswith(RETRY_PREFIX)
        }
        row.consume_type = "PULL" if connections.consume_type == "CONSUME_ACTIVELY" else "PUSH"
        row.message_model = connections.message_model

    def finished(self) -> Contents:
        """What was found, with the rates since the last time."""
        found = self._found
        found.read_s = time.monotonic()
        elapsed_s = found.read_s - self._before.read_s
        for row in found.topics.values():
            row.brokers.sort()
            old = self._before.topics.get(row.name)
            if old is not None and self._before.read_s:
                row.tps = max(row.end_offsets - old.end_offsets, 0) / elapsed_s
        for group in found.groups.values():
            group.brokers.sort()
            dead = found.topics.get(DLQ_PREFIX + group.name)
            group.dead = dead.messages if dead is not None else 0
        found.topics = dict(sorted(found.topics.items()))
        found.groups = dict(sorted(found.groups.items()))
        return found

    async def _limited(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        async with self._slots:
            return await ask()


def kind_of(name: str, attributes: Mapping[str, Any], hidden: Iterable[str] = SYSTEM_TOPICS) -> str:
    """Which of KINDS a topic is."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dlq"
    if name in hidden or name.startswith(SYSTEM_PREFIX):
        return "system"
    kind = str(attributes.get("message.type") or "NORMAL").lower()
    return kind if kind in KINDS else "normal"

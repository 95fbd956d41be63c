"""Offsets of consumer groups: reset by time, skipped to the end, cloned, set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kourou.admin.groups import Groups
from kourou.admin.link import AdminError, Link
from kourou.admin.model import OffsetChange
from kourou.client.core import RefusedError
from kourou.message.model import MessageQueue
from kourou.properties_file import parse_properties
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.headers import (
    GetMaxOffset,
    QueueOfTopic,
    ResetOffset,
    SearchOffset,
    TopicName,
    UpdateConsumerOffset,
)

END = -1  # as a time: behind the last message


class Offsets:
    """Where groups go on."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._groups = Groups(link)

    # Queues

    async def min_offset(self, address: str, topic: str, queue_id: int) -> int:
        """The offset of the first message of a queue."""
        header = QueueOfTopic(topic, queue_id)
        return await self._offset(address, RequestCode.GET_MIN_OFFSET, header.fields())

    async def max_offset(self, address: str, topic: str, queue_id: int) -> int:
        """The offset behind the last message of a queue."""
        header = GetMaxOffset(topic, queue_id)
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, header.fields())

    async def at_time(self, address: str, topic: str, queue_id: int, when_ms: int) -> int:
        """The offset of the first message of a queue that was stored at a time or later."""
        header = SearchOffset(topic, queue_id, when_ms)
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.fields())

    async def _offset(self, address: str, code: RequestCode, fields: Mapping[str, str]) -> int:
        return int((await self._link.ask(address, code, fields)).ext_fields["offset"])

    # Resets

    async def reset(
        self, group: str, topic: str, when_ms: int, *, force: bool = True, route_topic: str | None = None
    ) -> list[OffsetChange]:
        """Let a group go on at a time (END: behind the last message) in all queues of a topic.

        Brokers send a group that is online there. Where one says that nobody is, offsets are written, and
        count for the clients that come. Without `force` a group never goes forward.
        """
        changes = []
        for name, address in (await self._link.topic_brokers(route_topic or topic)).items():
            header = ResetOffset(group, topic, when_ms, is_force=force)
            try:
                found = await self._link.ask_json(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except RefusedError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                changes += await self._write(name, address, group, topic, when_ms, force=force)
                continue
            for key, offset in (found.get("offsetTable") or {}).items():
                queue = MessageQueue.from_json(key)
                changes.append(OffsetChange(queue.broker_name, queue.queue_id, int(offset)))
        return sorted(changes, key=lambda one: (one.broker_name, one.queue_id))

    async def skip(self, group: str, topic: str, *, force: bool = True) -> list[OffsetChange]:
        """Let a group go on behind the last message of a topic."""
        return await self.reset(group, topic, END, force=force)

    async def _write(
        self, broker_name: str, address: str, group: str, topic: str, when_ms: int, *, force: bool
    ) -> list[OffsetChange]:
        """Write the offsets of a group that is not online."""
        stats = await self._link.ask_json(address, RequestCode.GET_TOPIC_STATS_INFO, TopicName(topic))
        consumed = {
            MessageQueue(one.topic, one.broker_name, one.queue_id): one.consumer_offset
            for one in (await self._groups.progress(group, topic)).queues
        }
        changes = []
        for key, entry in (stats.get("offsetTable") or {}).items():
            queue = MessageQueue.from_json(key)
            old = consumed.get(queue, int(entry["minOffset"]))
            high = int(entry["maxOffset"])
            wanted = high if when_ms == END else await self.at_time(address, topic, queue.queue_id, when_ms)
            new = wanted if force else min(wanted, old)
            await self._update(address, group, topic, queue.queue_id, new)
            changes.append(OffsetChange(broker_name, queue.queue_id, new, old, high, wanted))
        return changes

    async def set(self, group: str, topic: str, broker: str, queue_id: int, offset: int) -> OffsetChange:
        """Let a group go on at an offset of one queue.

        Clients that are online are sent there by a broker with useServerSideResetOffset. One without would
        take the request for one about all queues, and clients would commit over the offset: AdminError.
        """
        address = await self._link.address_of(broker)
        low = await self.min_offset(address, topic, queue_id)
        high = await self.max_offset(address, topic, queue_id)
        if not low <= offset <= high:
            raise AdminError(f"offset {offset} is not in queue {queue_id} of {topic}: it has {low} to {high}")
        answer = await self._link.ask(address, RequestCode.GET_BROKER_CONFIG)
        config = parse_properties(str(answer.body or b"", "utf-8"))
        is_sent_there = config.get("useServerSideResetOffset") == "true"
        if not is_sent_there and await self._is_online(group):
            raise AdminError(
                f"group {group} is online, and this broker cannot send it to an offset of one queue: stop "
                "its clients first, or set useServerSideResetOffset=true"
            )
        await self._update(address, group, topic, queue_id, offset)
        if is_sent_there:
            header = ResetOffset(group, topic, 0, is_force=True, queue_id=queue_id, offset=offset)
            await self._link.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return OffsetChange(broker, queue_id, offset)

    async def _is_online(self, group: str) -> bool:
        try:
            return bool((await self._groups.connections(group)).clients)
        except RefusedError:
            return False

    async def _update(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        header = UpdateConsumerOffset(group, topic, queue_id, offset)
        await self._link.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    # Of other groups

    async def clone(self, source: str, target: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Let a group go on where another one is, in one topic or in all of its topics; queue -> offset."""
        progress = await self._groups.progress(source, topic)
        if not progress.queues:
            raise AdminError(
                f"group {source} has no offsets{f' in {topic}' if topic else ''}: nothing to clone"
            )
        brokers = {
            info.broker_name: info.master for info in await self._link.brokers() if info.master is not None
        }
        found = {}
        for one in progress.queues:
            address = brokers.get(one.broker_name)
            if address is not None and one.consumer_offset >= 0:
                await self._update(address, target, one.topic, one.queue_id, one.consumer_offset)
                found[MessageQueue(one.topic, one.broker_name, one.queue_id)] = one.consumer_offset
        return found

    async def table(self, broker: str) -> dict[str, dict[str, dict[int, int]]]:
        """Topic -> group -> queue -> offset, of everything that a broker keeps."""
        address = await self._link.address_of(broker)
        found = await self._link.ask_json(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table: dict[str, dict[str, dict[int, int]]] = {}
        for key, queues in sorted(_table(found).items()):
            topic, _, group = key.rpartition("@")
            table.setdefault(topic, {})[group] = {
                int(number): int(offset) for number, offset in queues.items()
            }
        return table


def _table(found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return dict(found.get("offsetTable") or {})

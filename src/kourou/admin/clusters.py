"""Clusters: their brokers and how they do, how long sends take, what comes in and goes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from kourou.admin.brokers import Brokers
from kourou.admin.groups import Groups
from kourou.admin.link import Link
from kourou.admin.messages import Messages
from kourou.admin.model import BrokerInfo, BrokerState, RoundTrip, TopicTraffic
from kourou.admin.topics import Topics
from kourou.client.core import RefusedError
from kourou.client.produce.receipts import SendReceipt
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX


class Clusters:
    """The clusters that the name servers know."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._brokers = Brokers(link)
        self._topics = Topics(link)
        self._groups = Groups(link)
        self._messages = Messages(link)

    async def brokers(self, cluster: str | None = None) -> list[BrokerInfo]:
        """The brokers of a cluster, or all."""
        return await self._link.brokers(cluster)

    async def states(self, cluster: str | None = None) -> list[BrokerState]:
        """All members of all brokers with their figures; one that does not answer has none."""
        members = [
            (info, number, address)
            for info in await self._link.brokers(cluster)
            for number, address in info.addresses.items()
        ]
        return await asyncio.gather(*(self._state(*member) for member in members))

    async def _state(self, info: BrokerInfo, number: int, address: str) -> BrokerState:
        try:
            runtime = await self._brokers.runtime(address)
        except KourouError as error:
            return BrokerState(info.cluster, info.broker_name, number, address, error=str(error))
        return BrokerState(info.cluster, info.broker_name, number, address, runtime)

    # Round trips

    async def round_trips(
        self, cluster: str | None = None, *, count: int = 100, size_bytes: int = 128
    ) -> list[RoundTrip]:
        """How long sends to each broker take, one after the other, to the topic of its own name."""
        found = []
        for info in await self._link.brokers(cluster):
            times = await self.send_timed(info.broker_name, count=count, size_bytes=size_bytes)
            # The first send also fetches the route and connects.
            counted = [duration for duration, _ in times[1:]] or [duration for duration, _ in times]
            average_ms = sum(counted) * 1000 / len(counted) if counted else 0.0
            failures = sum(isinstance(result, KourouError) for _, result in times)
            found.append(
                RoundTrip(info.cluster, info.broker_name, average_ms, len(times) - failures, failures)
            )
        return found

    async def send_timed(
        self, topic: str, *, count: int = 100, size_bytes: int = 128
    ) -> list[tuple[float, SendReceipt | KourouError]]:
        """Send so many messages to a topic one after the other; seconds and outcome of each."""
        body = b"a" * size_bytes
        times: list[tuple[float, SendReceipt | KourouError]] = []
        async with self._messages.producer() as producer:
            for _ in range(count):
                started = time.perf_counter()
                result: SendReceipt | KourouError
                try:
                    result = await producer.send(Message(topic, body))
                except KourouError as error:
                    result = error
                times.append((time.perf_counter() - started, result))
        return times

    # Traffic

    async def traffic(self, topic: str | None = None, *, only_active: bool = False) -> list[TopicTraffic]:
        """What comes into each topic and out to each of its groups; with `only_active`, where something
        did in the last day."""
        names = [
            name
            for name in await self._topics.names()
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, "", name)
        ]
        parts = await asyncio.gather(*map(self._traffic, names))
        return [one for part in parts for one in part if not only_active or one.in_24h > 0 or one.out_24h > 0]

    async def _traffic(self, topic: str) -> list[TopicTraffic]:
        try:
            addresses = list((await self._link.topic_brokers(topic)).values())
            groups = await self._topics.groups(topic)
        except KourouError:
            return []  # a topic that went meanwhile, or one whose broker is gone
        in_tps, in_24h = await self._counted(addresses, "TOPIC_PUT_NUMS", topic)
        if not groups:
            return [TopicTraffic(topic, "", 0, in_tps, 0.0, in_24h, 0)]
        found = []
        for group in groups:
            out_tps, out_24h = await self._counted(addresses, "GROUP_GET_NUMS", f"{topic}@{group}")
            try:
                lag = max((await self._groups.progress(group, topic)).lag, 0)
            except KourouError:
                lag = 0
            found.append(TopicTraffic(topic, group, lag, in_tps, out_tps, in_24h, out_24h))
        return found

    async def _counted(self, addresses: list[str], name: str, key: str) -> tuple[float, int]:
        """Messages a second, and in the last day, over these brokers."""
        tps, total = 0.0, 0
        for address in addresses:
            try:
                stats = await self._brokers.view_stats(address, name, key)
            except RefusedError:
                continue  # nothing was counted yet
            tps += float((stats.get("statsMinute") or {}).get("tps") or 0)
            total += day_sum(stats)
        return tps, total


def day_sum(stats: Mapping[str, Any]) -> int:
    """Messages of the last day; of the last hour or minute where a day is not over yet."""
    for name in ("statsDay", "statsHour", "statsMinute"):
        total = int((stats.get(name) or {}).get("sum") or 0)
        if total:
            return total
    return 0

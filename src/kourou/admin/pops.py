"""POP: how groups take their topics, what is in flight, who waits, and whether brokers keep up with it.

No broker says how many messages of a group are in flight: its clients do, those that are online. What was
not acknowledged in time waits in the group's retry topic of the topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

from kourou.admin.groups import Groups
from kourou.admin.link import Link
from kourou.admin.model import PopProgress, QueueProgress, ReviveState
from kourou.client.core import RefusedError
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX, REVIVE_TOPIC_PREFIX
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.handles import normal_topic
from kourou.remoting.protocol.headers import GetConsumeStats, PollingInfo

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
ANY_QUEUE = -1

Place = tuple[str, str]  # topic, broker name


class Pops:
    """What there is to know of POP in a cluster."""

    def __init__(self, link: Link, groups: Groups) -> None:
        self._link = link
        self._groups = groups

    async def of_group(self, group: str, topic: str | None = None) -> list[PopProgress]:
        """How a group takes its topics, or one, at each broker."""
        brokers = await self._link.group_brokers(group, topic)
        modes = await self._modes(group, brokers)
        queues: dict[Place, list[QueueProgress]] = defaultdict(list)
        retries: dict[Place, int] = defaultdict(int)
        for queue in (await self._groups.progress(group)).queues:
            retried = normal_topic(queue.topic, group)
            if retried is not None:
                retries[retried, queue.broker_name] += queue.lag
            elif not queue.topic.startswith(RETRY_PREFIX):
                queues[queue.topic, queue.broker_name].append(queue)
        in_flight = await self._in_flight(group)
        places = sorted(place for place in {*queues, *modes, *in_flight} if topic in (None, place[0]))
        waiting = await asyncio.gather(
            *(self._waiting(group, place, brokers.get(place[1]), queues[place]) for place in places)
        )
        return [
            PopProgress(
                *place, *modes.get(place, ("", 0)), polls, in_flight.get(place, 0),
                sum(queue.lag for queue in queues[place]), retries[place],
            )
            for place, polls in zip(places, waiting)
        ]  # fmt: skip

    async def _modes(self, group: str, brokers: dict[str, str]) -> dict[Place, tuple[str, int]]:
        """The request modes that were set for a group, and of how many clients each takes the queues."""
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        found = await self._link.each(brokers.values(), lambda address: self._link.ask_json(address, code))
        return {
            (topic, name): (str(modes[group]["mode"]), int(modes[group].get("popShareQueueNum") or 0))
            for name, address in brokers.items()
            for topic, modes in (found[address].get("messageRequestModeMap") or {}).items()
            if group in modes
        }

    async def _in_flight(self, group: str) -> dict[Place, int]:
        """What the clients of a group have popped and not acknowledged, as they say."""
        counts: dict[Place, int] = defaultdict(int)
        infos: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(KourouError):  # nobody is online, or one does not answer
            infos = await self._groups.status(group)
        for info in infos.values():
            for key, queue in (info.get("mqPopTable") or {}).items():
                name = MessageQueue.from_json(key)
                counts[name.topic, name.broker_name] += int(queue.get("waitAckCount") or 0)
        return counts

    async def _waiting(
        self, group: str, place: Place, address: str | None, queues: list[QueueProgress]
    ) -> int:
        """How many pops wait for messages of a topic at a broker, for any queue or for one."""
        if address is None:
            return 0
        topic, total = place[0], 0
        for number in (ANY_QUEUE, *(queue.queue_id for queue in queues)):
            header = PollingInfo(group, topic, number)
            with contextlib.suppress(RefusedError):  # the topic is gone, or has fewer queues
                answer = await self._link.ask(address, RequestCode.POLLING_INFO, header)
                total += int(answer.ext_fields.get("pollingNum") or 0)
        return total

    async def revive_state(self, address: str) -> ReviveState:
        """How far a broker is with what was not acknowledged, and how much waits until it is due."""
        header = GetConsumeStats(REVIVE_GROUP)
        stats = await self._link.ask_json(address, RequestCode.GET_CONSUME_STATS, header)
        behind = sum(
            max(
                int(one["brokerOffset"]) - 1 - int(one["consumerOffset"]), 0
            )  # it names the last that is done
            for one in (stats.get("offsetTable") or {}).values()
        )
        metrics = await self._link.ask_json(address, RequestCode.GET_TIMER_METRICS)
        waiting = sum(
            int(one.get("count") or 0)
            for topic, one in (metrics.get("timingCount") or {}).items()
            if topic.startswith(REVIVE_TOPIC_PREFIX)
        )
        return ReviveState(behind, waiting)

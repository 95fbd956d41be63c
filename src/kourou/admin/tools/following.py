"""Follow: the messages of a topic as they come, of all its queues, without a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kourou.admin.link import AdminError, Link
from kourou.admin.messages import TOOLS_GROUP
from kourou.admin.offsets import Offsets
from kourou.client.background import Background
from kourou.client.consume.pulling import Puller, PullStatus
from kourou.client.consume.received import ReceivedMessage
from kourou.client.consume.subscriptions import build_subscription
from kourou.client.core import NoRouteError, RefusedError
from kourou.client.routes import TopicRoute
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.subscription import ALL, SubscriptionData

SUSPEND_S = 5.0
NEW_QUEUES_S = 10.0  # how often is asked whether the topic has more queues
WAITING = 1000  # messages that are read ahead
TRIES = 5  # how often in a row a broker may fail before that is an error
TRY_PAUSE_S = 1.0
NEW_TOPIC_TRIES, NEW_TOPIC_PAUSE_S = 8, 0.25
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SERVICE_NOT_AVAILABLE)


async def follow(
    link: Link, topic: str, expression: str = ALL, *, start_ms: int | None = None
) -> AsyncIterator[ReceivedMessage]:
    """Messages that an expression lets through (tags, or a `kourou.client.Sql`): from a time on (0: from the
    oldest), or without one, from now on. It ends with an error, or with its reader."""
    follower = _Follower(link, topic, expression, start_ms)
    try:
        await follower.add_queues(is_first=True)
        while True:
            yield await follower.next()
    finally:
        await follower.close()


class _Follower:
    def __init__(self, link: Link, topic: str, expression: str, start_ms: int | None) -> None:
        self._link = link
        self._topic = topic
        self._wanted = build_subscription(topic, expression)
        self._start_ms = start_ms
        self._offsets = Offsets(link)
        self._puller = Puller(link.core, TOOLS_GROUP, tell_subscription=True)
        self._found: asyncio.Queue[ReceivedMessage | KourouError] = asyncio.Queue(WAITING)
        self._queues: set[MessageQueue] = set()  # that are read
        self._background = Background()
        self._watches = False

    async def add_queues(self, *, is_first: bool) -> None:
        """Read the queues that are not read yet; those that come later from their beginning."""
        route = await (self._first_route() if is_first else self._link.core.fetch_route(self._topic))
        for queue in sorted(set(route.read_queues) - self._queues):
            offset = await self._start(queue) if is_first else 0
            self._queues.add(queue)
            self._background.start(self._read(queue, offset, self._wanted), f"reading {queue}")
        if not self._watches:
            self._watches = True
            self._background.start(self._watch_route(), f"watching the route of {self._topic}")

    async def _first_route(self) -> TopicRoute:
        """Where the topic is; one that a message has just made is not known at once."""
        for _ in range(NEW_TOPIC_TRIES):
            with contextlib.suppress(NoRouteError):
                return await self._link.core.fetch_route(self._topic)
            await asyncio.sleep(NEW_TOPIC_PAUSE_S)
        return await self._link.core.fetch_route(self._topic)

    async def _start(self, queue: MessageQueue) -> int:
        address = self._link.core.broker_address(queue.broker_name) or await self._link.address_of(
            queue.broker_name
        )
        if self._start_ms is None:
            return await self._offsets.max_offset(address, queue.topic, queue.queue_id)
        if self._start_ms == 0:
            return await self._offsets.min_offset(address, queue.topic, queue.queue_id)
        return await self._offsets.at_time(address, queue.topic, queue.queue_id, self._start_ms)

    async def _watch_route(self) -> None:
        while True:
            await asyncio.sleep(NEW_QUEUES_S)
            try:
                await self.add_queues(is_first=False)
            except KourouError:
                continue  # the name server comes back, or the queues tell what is wrong

    async def _read(self, queue: MessageQueue, offset: int, wanted: SubscriptionData) -> None:
        failures = 0
        while True:
            try:
                pulled = await self._puller.pull(queue, offset, wanted, suspend_s=SUSPEND_S)
            except KourouError as error:
                failures += 1
                is_final = isinstance(error, RefusedError) and error.code not in _BUSY
                if is_final or failures >= TRIES:
                    await self._found.put(self._explained(error))
                    return
                await asyncio.sleep(TRY_PAUSE_S)
                continue
            failures = 0
            if pulled.status is PullStatus.FOUND and pulled.batch is not None:
                for message in pulled.batch.messages:
                    await self._found.put(message)
            offset = pulled.next_offset

    def _explained(self, error: KourouError) -> KourouError:
        if isinstance(error, RefusedError) and not self._wanted.is_tag_type:
            return AdminError(f"{error}; for SQL the broker needs enablePropertyFilter=true")
        return error

    async def next(self) -> ReceivedMessage:
        """The next message."""
        found = await self._found.get()
        if isinstance(found, KourouError):
            raise found
        return found

    async def close(self) -> None:
        """Read no more."""
        await self._background.close()

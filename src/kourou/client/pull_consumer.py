"""PullConsumer: messages when they are asked for, from queues and places of the caller's choice
(DefaultLitePullConsumer).

    async with PullConsumer("127.0.0.1:9876", group="audit", subscribe={"orders": "*"}) as consumer:
        while messages := await consumer.poll(timeout_s=5):
            ...

With `subscribe` the clients of the group share the queues; with `assign` the caller says which ones it reads.
What `poll` gave is consumed when the next is asked for, and kept every five seconds. With `auto_commit=False`
only `commit` keeps anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Self

from kourou.client.assignment import Assignment, ReadOptions
from kourou.client.consumer import PERSIST_INTERVAL_S, as_subscriptions, build_subscription
from kourou.client.core import ClientCore, ClientError, local_ip, make_client_id
from kourou.client.namespace import wrap
from kourou.client.offsets import RemoteOffsets
from kourou.client.process_queue import Delivery, Inbox, ProcessQueue
from kourou.client.pulling import Puller
from kourou.client.received import ReceivedMessage
from kourou.client.strategies import AVERAGE, Strategy
from kourou.client.validators import check_group
from kourou.remoting.codes import RequestCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.connection import Connection
from kourou.remoting.heartbeat import CLUSTERING, CONSUME_ACTIVELY, ConsumerData
from kourou.remoting.lenient_json import MessageQueue
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig


class PullConsumer:
    """Reads queues at the caller's pace. The options are those of Consumer."""

    def __init__(
        self,
        namesrv: str,
        *,
        group: str,
        subscribe: str | Sequence[str] | Mapping[str, str] | None = None,
        assign: Iterable[MessageQueue] | None = None,
        auto_commit: bool = True,
        consume_from: str | datetime = "last",
        strategy: Strategy = AVERAGE,
        pull_batch_size: int = 32,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 100 * 1024 * 1024,
        namespace: str | None = None,
        instance: str | None = None,
        ip: str | None = None,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
        on_rebalance: Callable[[str, list[MessageQueue]], None] | None = None,
    ) -> None:
        check_group(group)
        if subscribe is not None and assign is not None:
            raise ClientError("either subscribe, and share the queues of the group, or assign queues")
        self.namespace = namespace
        self.group = wrap(namespace, group)
        self._assigned = None if assign is None else list(assign)
        self._auto_commit = auto_commit
        self._given: list[Delivery] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._inbox = Inbox()
        client_id = make_client_id(ip or local_ip(), instance)
        self.core = ClientCore(namesrv, client_id=client_id, tls=tls, credentials=credentials)
        self.core.consumers[self.group] = self._heartbeat
        self.core.add_handler(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        self.assignment = Assignment(
            self.core,
            self.group,
            RemoteOffsets(self.core, self.group),
            ReadOptions(
                consume_from, pull_batch_size, max_cached_messages, max_cached_bytes, max_span=1 << 62,
                is_auto_commit=auto_commit,
            ),
            puller=Puller(self.core, self.group, tell_subscription=True, namespace=namespace),
            strategy=strategy,
            on_messages=self._inbox.offer,
            on_change=on_rebalance,
        )  # fmt: skip
        for topic, expression in as_subscriptions(subscribe or {}).items():
            name = wrap(namespace, topic)
            self.assignment.subscriptions[name] = build_subscription(name, expression)

    def _heartbeat(self) -> ConsumerData:
        where = "CONSUME_FROM_LAST_OFFSET"
        subscriptions = tuple(self.assignment.subscriptions.values())
        return ConsumerData(self.group, CONSUME_ACTIVELY, CLUSTERING, where, subscriptions)

    def _ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        self.assignment.want_rebalance()

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        try:
            if self._assigned is None:
                await self.assignment.start()
            else:
                await self.assign(self._assigned)
        except BaseException:
            await self.core.__aexit__()
            raise
        if self._auto_commit:
            work = self.core.every(PERSIST_INTERVAL_S, self.assignment.offsets.persist)
            self._tasks.append(asyncio.get_running_loop().create_task(work))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop; what was consumed is kept if that is automatic."""
        self._inbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._given.clear()
        await self.assignment.stop()
        await self.core.__aexit__()

    # Messages

    async def poll(self, timeout_s: float = 5.0, max_messages: int = 32) -> list[ReceivedMessage]:
        """Messages of one queue, or none if nothing came in this time. Queues take turns."""
        self._settle_given()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            queue = self._inbox.next_ready()
            if queue is None:
                try:
                    async with asyncio.timeout_at(deadline):
                        queue = await self._inbox.wait()
                except TimeoutError:
                    return []
            if queue is None:
                return []  # closed
            delivery = queue.take(max_messages)
            self._inbox.offer(queue)
            if delivery is not None:
                self._given.append(delivery)
                return delivery.messages
            self.assignment.consumed(queue)

    def _settle_given(self) -> None:
        for delivery in self._given:
            delivery.queue.done(delivery)
            self.assignment.consumed(delivery.queue)
        self._given.clear()

    # Queues

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self.assignment.queues)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, to choose from for `assign`."""
        return sorted((await self.core.fetch_route(wrap(self.namespace, topic))).read_queues)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues."""
        if self.assignment.subscriptions:
            raise ClientError("this consumer subscribes: its queues are shared out, and cannot be assigned")
        wanted: dict[str, list[MessageQueue]] = {queue.topic: [] for queue in self.assignment.queues}
        for queue in queues:
            topic = wrap(self.namespace, queue.topic)
            wanted.setdefault(topic, []).append(queue._replace(topic=topic))
        for topic, chosen in wanted.items():
            await self.core.route(topic)
            if not await self.assignment.assign(topic, chosen):
                missing = set(chosen) - set(self.assignment.queues)
                raise ClientError(f"queues of {topic} cannot be read: {', '.join(map(str, sorted(missing)))}")

    def _of(self, queue: MessageQueue) -> ProcessQueue:
        found = self.assignment.queues.get(queue._replace(topic=wrap(self.namespace, queue.topic)))
        if found is None:
            raise ClientError(f"{queue} is not read by this consumer now")
        return found

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue. What was polled before no longer counts."""
        found = self._of(queue)
        self._given = [delivery for delivery in self._given if delivery.queue is not found]
        self.assignment.seek(found, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message of a queue."""
        self.seek(queue, await self.assignment.min_offset(self._of(queue).queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the newest message of a queue."""
        self.seek(queue, await self.assignment.max_offset(self._of(queue).queue))

    async def offset_for_timestamp(self, queue: MessageQueue, when: datetime | int) -> int:
        """The offset of the first message that was stored at a time (datetime, or ms) or after it."""
        when_ms = when if isinstance(when, int) else int(when.timestamp() * 1000)
        return await self.assignment.offset_at(self._of(queue).queue, when_ms)

    def pause(self, *queues: MessageQueue) -> None:
        """Give nothing out of these queues, and pull no more of them."""
        self.assignment.pause([self._of(queue) for queue in queues])

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused."""
        self.assignment.resume([self._of(queue) for queue in queues])

    # Offsets

    def position(self, queue: MessageQueue) -> int:
        """The offset behind what `poll` gave of a queue."""
        return self._of(queue).given_offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group goes on at; None if there is none."""
        return await self.assignment.offsets.read(self._of(queue).queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Keep everything that `poll` gave, or these offsets; a ClientError if a broker did not."""
        if offsets is None:
            self._settle_given()
            offsets = {name: queue.commit_offset for name, queue in self.assignment.queues.items()}
        for queue, offset in offsets.items():
            self.assignment.offsets.update(self._of(queue).queue, offset)
        if not await self.assignment.offsets.persist():
            raise ClientError(f"not all offsets of group {self.group} were kept: commit again")

    @property
    def lag(self) -> dict[MessageQueue, int]:
        """How many messages each queue has that were not consumed, as of its last pull."""
        return {
            name: max(queue.max_offset - queue.commit_offset, 0)
            for name, queue in self.assignment.queues.items()
        }

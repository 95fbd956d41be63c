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
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Self

from kourou.client.background import Background
from kourou.client.consume.assignment import Assignment, ReadOptions
from kourou.client.consume.consumer import PERSIST_INTERVAL_S
from kourou.client.consume.offsets import RemoteOffsets
from kourou.client.consume.process_queue import Delivery, Inbox, ProcessQueue
from kourou.client.consume.pulling import Puller
from kourou.client.consume.received import ReceivedMessage
from kourou.client.consume.subscriptions import as_subscriptions, build_subscription
from kourou.client.core import ClientCore, ClientError, local_ip, make_client_id
from kourou.client.namespace import wrap
from kourou.client.options import PullConsumerOptions, check_queues, check_seconds, takes
from kourou.client.signals import stop_on_signals
from kourou.client.validators import is_whole
from kourou.message.model import MessageQueue
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.heartbeat import CLUSTERING, CONSUME_ACTIVELY, ConsumerData


class PullConsumer:
    """Reads queues at the caller's pace. Its options are those of PullConsumerOptions."""

    @takes(PullConsumerOptions)
    def __init__(self, options: PullConsumerOptions) -> None:
        self.options = options
        self.namespace = options.namespace
        self.group = wrap(options.namespace, options.group)
        self._background = Background()
        self._given: list[Delivery] = []
        self._inbox = Inbox()
        self._forget_signals: Callable[[], None] | None = None
        client_id = make_client_id(options.ip or local_ip(), options.instance)
        self.core = ClientCore(
            options.namesrv, client_id=client_id, tls=options.tls, credentials=options.credentials
        )
        self.core.consumers[self.group] = self._heartbeat
        self.core.add_handler(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        self.assignment = Assignment(
            self.core,
            self.group,
            RemoteOffsets(self.core, self.group),
            ReadOptions(
                options.consume_from, options.pull_batch_size, options.max_cached_messages,
                options.max_cached_bytes, max_span=1 << 62, is_auto_commit=options.auto_commit,
            ),
            puller=Puller(self.core, self.group, tell_subscription=True, namespace=options.namespace),
            strategy=options.strategy,
            on_messages=self._inbox.offer,
            on_change=options.on_rebalance,
        )  # fmt: skip
        for topic, expression in as_subscriptions(options.subscribe or {}).items():
            name = wrap(options.namespace, topic)
            self.assignment.subscriptions[name] = build_subscription(name, expression)

    def _heartbeat(self) -> ConsumerData:
        where = "CONSUME_FROM_LAST_OFFSET"
        subscriptions = tuple(self.assignment.subscriptions.values())
        return ConsumerData(self.group, CONSUME_ACTIVELY, CLUSTERING, where, subscriptions)

    def _ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        self.assignment.request_rebalance()

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        try:
            if self.options.stop_on_signals:
                self._forget_signals = stop_on_signals(asyncio.get_running_loop(), self.stop)
            if self.assignment.subscriptions:
                await self.assignment.find_routes(self.options.start_timeout_s)
                await self.assignment.start()
            else:
                await self.assign(self.options.assign or ())
        except BaseException:
            await self.close()
            raise
        if self.options.auto_commit:
            persist = self.core.every(PERSIST_INTERVAL_S, self.assignment.offsets.persist)
            self._background.start(persist, f"keeping the offsets of group {self.group}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop(self) -> None:
        """Give nothing more out: `poll` returns an empty list. Then close, or leave the `async with`."""
        self._inbox.close()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is given out, after `stop`, `close` or a signal."""
        return self._inbox.is_closed

    async def close(self) -> None:
        """Stop; what was consumed is kept if that is automatic."""
        self.stop()
        if self._forget_signals is not None:
            self._forget_signals()
        await self._background.close()
        self._given.clear()
        await self.assignment.stop()
        await self.core.__aexit__()

    # Messages

    async def poll(self, timeout_s: float = 5.0, max_messages: int = 32) -> list[ReceivedMessage]:
        """Messages of one queue, or none if nothing came in this time. Queues take turns."""
        check_seconds("timeout_s", timeout_s or None)  # 0 does not wait
        if not is_whole(max_messages) or max_messages < 1:
            raise ClientError(f"max_messages is a whole number from 1 on, not {max_messages!r}")
        self._finish_given()
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

    def _finish_given(self) -> None:
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
        for queue in check_queues("assign", queues):
            topic = wrap(self.namespace, queue.topic)
            wanted.setdefault(topic, []).append(queue._replace(topic=topic))
        for topic, chosen in wanted.items():
            await self.core.route(topic)
            if not await self.assignment.assign(topic, chosen):
                missing = set(chosen) - set(self.assignment.queues)
                raise ClientError(f"queues of {topic} cannot be read: {', '.join(map(str, sorted(missing)))}")

    def _of(self, queue: MessageQueue) -> ProcessQueue:
        if not isinstance(queue, MessageQueue):
            raise ClientError(
                f"a queue is a MessageQueue, as `queues` and fetch_queues give it, not {queue!r}"
            )
        found = self.assignment.queues.get(queue._replace(topic=wrap(self.namespace, queue.topic)))
        if found is None:
            raise ClientError(f"{queue} is not read by this consumer now")
        return found

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue. What was polled before no longer counts."""
        found = self._of(queue)
        if not is_whole(offset) or offset < 0:
            raise ClientError(f"an offset is a whole number from 0 on, not {offset!r}")
        self._given = [delivery for delivery in self._given if delivery.queue is not found]
        self.assignment.seek(found, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message of a queue."""
        self.seek(queue, await self.assignment.min_offset(self._of(queue).queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on after the newest message of a queue."""
        self.seek(queue, await self.assignment.max_offset(self._of(queue).queue))

    async def offset_for_timestamp(self, queue: MessageQueue, when: datetime | int) -> int:
        """The offset of the first message that was stored at a time (datetime, or ms) or after it."""
        if not isinstance(when, datetime) and not is_whole(when):
            raise ClientError(f"a time is a datetime or whole milliseconds since 1970, not {when!r}")
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
        """The offset after what `poll` gave of a queue."""
        return self._of(queue).given_offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group goes on at; None if there is none."""
        return await self.assignment.offsets.read(self._of(queue).queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Keep everything that `poll` gave, or these offsets; a ClientError if a broker did not."""
        if offsets is None:
            self._finish_given()
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

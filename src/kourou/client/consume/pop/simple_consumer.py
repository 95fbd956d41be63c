"""SimpleConsumer: messages when they are asked for, each acknowledged by the caller (SimpleConsumer).

    async with SimpleConsumer("127.0.0.1:9876", group="billing", subscribe={"orders": "paid"}) as consumer:
        while not consumer.is_stopped:
            for message in await consumer.receive(invisible_s=30):
                ...
                await consumer.ack(message)

There is no rebalance: every client of the group may get every message. What is not acknowledged within the
invisible time comes again, to any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self

from kourou.client.consume.pop.batches import PopBatch
from kourou.client.consume.pop.popping import ANY_QUEUE, Popper, Receipt
from kourou.client.consume.received import ReceivedMessage
from kourou.client.consume.requests import pop_info, running_info
from kourou.client.consume.subscriptions import as_subscriptions, build_subscription, check_expressions
from kourou.client.core import ClientCore, ClientError, NoRouteError, local_ip, make_client_id
from kourou.client.namespace import wrap
from kourou.client.options import MAX_POP, SimpleConsumerOptions, check_invisible, check_seconds, takes
from kourou.client.signals import stop_on_signals
from kourou.client.validators import is_whole
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import Handle
from kourou.remoting.protocol.headers import GetConsumerRunningInfo
from kourou.remoting.protocol.heartbeat import CLUSTERING, CONSUME_POP, ConsumerData
from kourou.remoting.protocol.subscription import SubscriptionData

MAX_OPEN = 100_000  # messages that are counted as in flight, before those whose time is over are left out
PAUSE_FIRST_S = 0.05  # before brokers are asked again that failed, or had less than they said; it doubles
PAUSE_MOST_S = 1.0
POLL_LEAST_S = 0.1  # brokers answer 50 ms before the time that they are given


class SimpleConsumer:
    """Receives and acknowledges messages. Its options are those of SimpleConsumerOptions."""

    @takes(SimpleConsumerOptions)
    def __init__(self, options: SimpleConsumerOptions) -> None:
        self.options = options
        self.namespace = options.namespace
        self.group = wrap(options.namespace, options.group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in as_subscriptions(options.subscribe).items():
            name = wrap(options.namespace, topic)
            self._subscriptions[name] = build_subscription(name, expression)
        client_id = make_client_id(options.ip or local_ip(), options.instance)
        self.core = ClientCore(
            options.namesrv, client_id=client_id, tls=options.tls, credentials=options.credentials
        )
        self.core.consumers[self.group] = self._heartbeat
        self.core.add_handler(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, _ignore)
        self.core.add_handler(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        self._popper = Popper(
            self.core,
            self.group,
            namespace=options.namespace,
            init_mode=0 if options.consume_from == "first" else 1,
            is_orderly=options.orderly,
        )
        self._queues: list[MessageQueue] = []
        self._attempts: dict[MessageQueue, str] = {}  # of pops whose answer did not come
        self._open: dict[str, MessageQueue] = {}  # by handle: what was received and not acknowledged
        self._popped_at: dict[MessageQueue, float] = {}
        self.started_ms = 0
        self._turn = 0
        self._stopped = asyncio.Event()
        self._forget_signals: Callable[[], None] | None = None

    def _heartbeat(self) -> ConsumerData:
        where = f"CONSUME_FROM_{self.options.consume_from.upper()}_OFFSET"
        return ConsumerData(self.group, CONSUME_POP, CLUSTERING, where, tuple(self._subscriptions.values()))

    # Life

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        try:
            if self.options.stop_on_signals:
                self._forget_signals = stop_on_signals(asyncio.get_running_loop(), self.stop)
            timeout_s = self.options.start_timeout_s
            if timeout_s is not None:
                deadline = asyncio.get_running_loop().time() + timeout_s
                for topic in self._subscriptions:
                    await self.core.wait_for_route(topic, deadline, timeout_s)
                await check_expressions(self.core, self.group, self.namespace, self._subscriptions)
            self.started_ms = time.time_ns() // 1_000_000
            await self.core.send_heartbeats()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop(self) -> None:
        """Give nothing more out: `receive` returns an empty batch. Then close, or leave the `async with`."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is given out, after `stop`, `close` or a signal."""
        return self._stopped.is_set()

    async def close(self) -> None:
        """Disconnect. What was received and not acknowledged comes again, to another client."""
        self.stop()
        if self._forget_signals is not None:
            self._forget_signals()
        await self.core.__aexit__()

    @property
    def queues(self) -> list[MessageQueue]:
        """The topics and brokers that were asked last, with -1 for all of their queues."""
        return sorted(self._queues)

    # Messages

    async def receive(
        self, max_messages: int = MAX_POP, *, invisible_s: float | None = None, await_s: float | None = None
    ) -> PopBatch:
        """Messages of one topic of one broker; without any after `await_s`, an empty batch.

        They are invisible to others for `invisible_s`. Topics and brokers take turns.
        """
        if not is_whole(max_messages) or not 1 <= max_messages <= MAX_POP:
            raise ClientError(f"max_messages is a whole number, 1 to {MAX_POP}, not {max_messages!r}")
        check_invisible("invisible_s", invisible_s)
        invisible_s = self.options.invisible_s if invisible_s is None else invisible_s
        check_seconds("await_s", await_s or None)  # 0 does not wait
        await_s = self.options.await_s if await_s is None else await_s
        nothing = PopBatch.none(MessageQueue(next(iter(self._subscriptions)), "", ANY_QUEUE))
        if self.is_stopped:
            return nothing
        work = asyncio.ensure_future(self._receive(max_messages, int(invisible_s * 1000), await_s))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else nothing
        finally:
            for task in (work, stopped):
                task.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)

    async def _receive(self, most: int, invisible_ms: int, await_s: float) -> PopBatch:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + await_s
        pause_s = PAUSE_FIRST_S
        told: MessageQueue | None = None  # who said that there is something
        while True:
            failures: list[KourouError] = []
            try:
                queues = [told] if told is not None else await self._next_queues()
            except KourouError as error:
                queues, failures = [], [error]
            # Where only one broker can have something it is asked to wait, and no other request is needed.
            is_only = told is None and len(queues) == 1
            for queue in queues:
                poll_s = max(deadline - loop.time(), 0.0) if is_only else 0.0
                try:
                    batch = await self._pop(queue, most, invisible_ms, poll_s)
                except KourouError as error:
                    failures.append(error)
                    continue
                if batch.size:
                    return batch
            left_s = deadline - loop.time()
            if left_s < POLL_LEAST_S:
                if len(failures) >= len(queues):
                    raise failures[0]
                return PopBatch.none(queues[0])
            can_wait = told is None and not is_only and len(failures) < len(queues)
            told = await self._wait_for_any(queues, left_s) if can_wait else None
            left_s = deadline - loop.time()
            if told is None and left_s > 0:
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 2, PAUSE_MOST_S)

    async def _pop(self, queue: MessageQueue, most: int, invisible_ms: int, poll_s: float) -> PopBatch:
        attempt = self._attempt_of(queue)
        batch = await self._popper.pop(
            queue, self._subscriptions[queue.topic], most=most, invisible_ms=invisible_ms, poll_s=poll_s,
            attempt_id=attempt,
        )  # fmt: skip
        self._attempts.pop(queue, None)
        self._popped_at[queue] = time.time()
        unwanted = batch.unwanted_handles
        if unwanted:  # else they would come again and again
            work = self._popper.ack([(queue.topic, handle) for handle in unwanted])
            self.core.background.start(work, f"acknowledging other tags of {queue.topic}")
        self._open.update(dict.fromkeys(batch.row_handles, queue))
        if len(self._open) > MAX_OPEN:
            self._forget_expired()
        return batch if batch.row_handles else PopBatch.none(queue)

    def _attempt_of(self, queue: MessageQueue) -> str | None:
        """In order: an answer that got lost is given again to who names the same attempt."""
        return self._attempts.setdefault(queue, uuid.uuid4().hex) if self.options.orderly else None

    async def _next_queues(self) -> list[MessageQueue]:
        """All brokers of all topics, each time beginning with another. NoRouteError if there are none."""
        found: list[MessageQueue] = []
        failure = NoRouteError(f"no broker of {', '.join(self._subscriptions)} has a master now")
        for topic in self._subscriptions:
            try:
                route = await self.core.route(topic)
            except NoRouteError as error:
                failure = error
                continue
            names = sorted({queue.broker_name for queue in route.read_queues})
            found += [MessageQueue(topic, name, ANY_QUEUE) for name in names if route.master(name)]
        if not found:
            raise failure
        self._queues = found
        self._turn = (self._turn + 1) % len(found)
        return found[self._turn :] + found[: self._turn]

    async def _wait_for_any(self, queues: list[MessageQueue], wait_s: float) -> MessageQueue | None:
        """The first that has something; None if none has after this time, or none can be asked."""

        async def ask(queue: MessageQueue) -> MessageQueue | None:
            wanted, attempt = self._subscriptions[queue.topic], self._attempts.get(queue)
            return queue if await self._popper.has_messages(queue, wanted, wait_s, attempt) else None

        tasks = [asyncio.ensure_future(ask(queue)) for queue in queues]
        try:
            for answer in asyncio.as_completed(tasks, timeout=wait_s):
                with contextlib.suppress(KourouError):
                    found = await answer
                    if found is not None:
                        return found
        except TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return None

    async def fetch_arrow(
        self,
        max_messages: int = 1024,
        *,
        invisible_s: float | None = None,
        await_s: float | None = None,
        columns: Iterable[str] | None = None,
    ) -> Any:
        """What there is now, as one RecordBatch; without any it waits as `receive` does (extra `arrow`).

        Columns are those of kourou.message.scan.columns, broker_name and receipt_handle. `ack` takes rows
        that have `topic` and `receipt_handle`.
        """
        from kourou.client.consume.arrow import popped_to_arrow

        if not is_whole(max_messages) or max_messages < 1:
            raise ClientError(f"max_messages is a whole number from 1 on, not {max_messages!r}")
        batches: list[PopBatch] = []
        left = max_messages
        while left > 0:
            batch = await self.receive(
                min(left, MAX_POP), invisible_s=invisible_s, await_s=0 if batches else await_s
            )
            if not batch.size:
                break
            batches.append(batch)
            left -= batch.size
        return popped_to_arrow(batches, None if columns is None else list(columns))

    # What becomes of them

    async def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage] | Any) -> None:
        """A message is done, or several: a list, a batch of `receive`, or rows of `fetch_arrow`.

        Raises ExpiredHandleError if the invisible time of one was over; the others are acknowledged.
        """
        receipts = self._receipts(messages)
        if receipts:
            await self._popper.ack(receipts)
        for _, handle in receipts:
            self._open.pop(handle, None)

    async def change_invisible(
        self, message: ReceivedMessage, invisible_s: float, *, suspend: bool = False
    ) -> str:
        """Have a message come again so long from now, sooner or later than it would; its new handle.

        The message has the new handle, too. With `suspend` the attempt is not counted.
        """
        check_invisible("invisible_s", invisible_s)
        receipt = self._receipt(message)
        handle = await self._popper.change_invisible(receipt, int(invisible_s * 1000), is_suspended=suspend)
        message.receipt_handle = handle
        queue = self._open.pop(receipt[1], None)
        if queue is not None:
            self._open[handle] = queue
        return handle

    def _receipts(self, messages: Any) -> list[Receipt]:
        if isinstance(messages, ReceivedMessage):
            return [self._receipt(messages)]
        if isinstance(messages, PopBatch):
            return [(messages.queue.topic, handle) for handle in dict.fromkeys(messages.row_handles)]
        if hasattr(messages, "schema"):
            if not {"topic", "receipt_handle"} <= set(messages.schema.names):
                raise ClientError("rows that are acknowledged have the columns topic and receipt_handle")
            topics, handles = (
                messages.column("topic").to_pylist(),
                messages.column("receipt_handle").to_pylist(),
            )
            return [self._popper.receipt_of(topic, handle) for topic, handle in zip(topics, handles)]
        if not isinstance(messages, Iterable):
            raise ClientError(f"messages of receive are acknowledged, not {messages!r}")
        return list(dict.fromkeys(self._receipt(message) for message in messages))

    def _receipt(self, message: ReceivedMessage) -> Receipt:
        handle = message.receipt_handle if isinstance(message, ReceivedMessage) else None
        if handle is None:
            raise ClientError(f"{message!r} has no receipt handle: it was not received by a SimpleConsumer")
        return self._popper.receipt_of(message.topic, handle)

    # What an operator is told

    def _running_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """GET_CONSUMER_RUNNING_INFO: what this consumer does."""
        self._forget_expired()
        counts = Counter(self._open.values())
        body = running_info(
            self.core,
            {
                "PROP_CONSUME_TYPE": CONSUME_POP,
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "PROP_CONSUMEORDERLY": str(self.options.orderly).lower(),
            },
            self._subscriptions.values(),
            queues={},
            pops={queue: pop_info(counts[queue], at) for queue, at in self._popped_at.items()},
            states={},
            with_stacks=GetConsumerRunningInfo.read(request).jstack_enable,
        )
        return request.response(body=body)

    def _forget_expired(self) -> None:
        """What was not acknowledged in time is somebody else's."""
        is_expired = self._popper.is_expired
        self._open = {text: queue for text, queue in self._open.items() if not is_expired(Handle.read(text))}


def _ignore(connection: Connection, request: RemotingCommand) -> None:
    """NOTIFY_CONSUMER_IDS_CHANGED: who else is in the group does not matter."""

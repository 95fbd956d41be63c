"""Consumer: messages of a group's topics, as they come (DefaultMQPushConsumer).

Three ways to take them, with the same rules:

    async for message in consumer: ...            # one by one
    async for batch in consumer.batches(): ...    # what a pull brought
    rows = await consumer.fetch_arrow()           # as Arrow columns

What was given is consumed when the next is asked for; what was not comes again, to this client or another.
Or a handler is called, for `concurrency` messages at a time:

    @consumer.handler
    async def handle(message): ...

A handler that returns has consumed the message. One that raises has it again later: it goes to the group's
retry topic with a growing delay, `max_reconsume_times` times, and then to its dead-letter topic. With
`orderly=True` the messages of a queue are given one after the other, each again until it is consumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from kourou.client.assignment import Assignment, ReadOptions
from kourou.client.consumer_requests import answer_brokers
from kourou.client.consumer_stats import ConsumerStats
from kourou.client.core import ClientCore, ClientError, local_ip, make_client_id
from kourou.client.namespace import TRACE_TOPIC, wrap
from kourou.client.offsets import LocalOffsets, Offsets, RemoteOffsets, local_offsets_path
from kourou.client.process_queue import Delivery, Inbox, ProcessQueue
from kourou.client.producer import Producer, start_tracer
from kourou.client.pulling import Puller
from kourou.client.received import MessageBatch, ReceivedMessage, ReconsumeLater
from kourou.client.strategies import AVERAGE, Strategy
from kourou.client.trace import Tracer, after_consume, of_consume
from kourou.client.validators import check_group
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message import properties as names
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting import lenient_json
from kourou.remoting.codes import RequestCode
from kourou.remoting.headers import ConsumerSendMsgBack
from kourou.remoting.heartbeat import BROADCASTING, CLUSTERING, CONSUME_PASSIVELY, ConsumerData
from kourou.remoting.lenient_json import MessageQueue
from kourou.remoting.signing import Credentials
from kourou.remoting.subscription import SQL92, TAG, SubscriptionData
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

PERSIST_INTERVAL_S = 5.0
TIMEOUT_CHECK_S = 60.0
DEFAULT_RECONSUME_TIMES = 16
ENDLESS = 0x7FFFFFFF
SEND_BACK_PAUSE_S = 5.0  # after which a message that no broker took back is given to the handler again
TIMED_OUT_LEVEL = 3  # the delay of a message whose handler does not come to an end

Handler = Callable[[Any], Awaitable[object] | object]


class Sql(str):
    """A subscription by an SQL92 expression over properties: `subscribe={"orders": Sql("amount > 10")}`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ConsumeEvent:
    """What became of messages that were given to the handler, for metrics."""

    queue: MessageQueue
    count: int
    seconds: float
    is_success: bool


class Consumer:
    """Reads the topics that a group subscribes to.

    subscribe: topics, each with the tags that are wanted ("*", "paid || refunded") or an Sql expression.
    broadcast: every client has every message; what it consumed is remembered in a file of its own.
    consume_from: where a group that has no offsets yet begins: "first", "last" or a datetime.
    concurrency: how many calls of the handler are under way at once. Handlers that are no coroutines run in
        as many threads.
    batch_size: with more than one, the handler is given a list of up to this many messages.
    trace: whether what the handler does is traced, and in which topic if it is not the usual one.
    on_consume, on_rebalance: told of each call of the handler, and of the queues that are read of a topic.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str,
        subscribe: str | Sequence[str] | Mapping[str, str],
        broadcast: bool = False,
        orderly: bool = False,
        consume_from: str | datetime = "last",
        concurrency: int = 20,
        batch_size: int = 1,
        max_reconsume_times: int | None = None,
        consume_timeout_s: float = 15 * 60.0,
        suspend_s: float = 1.0,
        strategy: Strategy = AVERAGE,
        pull_batch_size: int = 32,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 100 * 1024 * 1024,
        max_span: int = 2000,
        close_timeout_s: float = 10.0,
        offsets_directory: str | Path | None = None,
        namespace: str | None = None,
        instance: str | None = None,
        ip: str | None = None,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
        trace: bool | str = False,
        on_consume: Callable[[ConsumeEvent], None] | None = None,
        on_rebalance: Callable[[str, list[MessageQueue]], None] | None = None,
    ) -> None:
        check_group(group)
        self.namespace = namespace
        self.group = wrap(namespace, group)
        self.orderly = orderly
        self.broadcast = broadcast
        self.consume_from = consume_from
        self.concurrency = concurrency
        self.started_ms = 0
        self._batch_size = batch_size
        self._max_reconsume_times = max_reconsume_times
        self._consume_timeout_s = consume_timeout_s
        self._suspend_s = suspend_s
        self._close_timeout_s = close_timeout_s
        self._on_consume = on_consume
        self._trace_topic = (TRACE_TOPIC if trace is True else trace) or None
        self._tracer: Tracer | None = None
        self._handler: Handler | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._given: list[Delivery] = []  # consumed when the next is asked for
        self._inbox = Inbox()
        self._closed = asyncio.Event()
        self.stats = ConsumerStats()
        # The offsets of a broadcast are found again by the client's id: it must stay the same.
        instance = instance or ("DEFAULT" if broadcast else None)
        client_id = make_client_id(ip or local_ip(), instance)
        self.core = ClientCore(namesrv, client_id=client_id, tls=tls, credentials=credentials)
        self.core.consumers[self.group] = self.heartbeat
        options = ReadOptions(
            consume_from, pull_batch_size, max_cached_messages, max_cached_bytes, max_span, broadcast, orderly
        )
        offsets: Offsets
        if broadcast:
            offsets = LocalOffsets(local_offsets_path(offsets_directory, self.core.client_id, self.group))
        else:
            offsets = RemoteOffsets(self.core, self.group)
        self.assignment = Assignment(
            self.core,
            self.group,
            offsets,
            options,
            puller=Puller(self.core, self.group, tell_subscription=False, namespace=namespace),
            strategy=strategy,
            on_messages=self._inbox.offer,
            on_change=on_rebalance,
        )
        for topic, expression in as_subscriptions(subscribe).items():
            name = wrap(namespace, topic)
            self.assignment.subscriptions[name] = build_subscription(name, expression)
        if not broadcast:
            name = RETRY_PREFIX + self.group
            self.assignment.subscriptions[name] = build_subscription(name, "*")
        self._producer = Producer(group="CLIENT_INNER_PRODUCER", core=self.core)
        answer_brokers(self)

    def heartbeat(self) -> ConsumerData:
        """What the brokers are told of this consumer."""
        where = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}
        return ConsumerData(
            self.group,
            CONSUME_PASSIVELY,
            BROADCASTING if self.broadcast else CLUSTERING,
            where.get(str(self.consume_from), "CONSUME_FROM_TIMESTAMP"),
            tuple(self.assignment.subscriptions.values()),
        )

    # Life

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        await self._producer.__aenter__()
        try:
            self.started_ms = time.time_ns() // 1_000_000
            await self._check_expressions()
            await self.assignment.start()
        except BaseException:
            await self.core.__aexit__()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.core.every(PERSIST_INTERVAL_S, self.assignment.offsets.persist)),
            loop.create_task(self.core.every(TIMEOUT_CHECK_S, self._send_back_timed_out)),
        ]
        if self._trace_topic is not None:
            self._tracer = await start_tracer(self.core, self.group, "CONSUME", self._trace_topic)
        if self._handler is not None:
            self._start_workers()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop: what is being handled may end, what is consumed is kept, queues are left to others."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._inbox.close()
        for task in self._tasks:
            task.cancel()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=self._close_timeout_s)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._given.clear()
        for queue in self.assignment.queues.values():
            if queue.oldest is not None and self.orderly:
                queue.idle.set()  # nobody works on it any more
        await self.assignment.stop()
        if self._tracer is not None:
            await self._tracer.stop()
        await self._producer.__aexit__()
        await self.core.__aexit__()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Have the handler called until the consumer is closed."""
        if self._handler is None:
            raise ClientError("there is no handler: give one with @consumer.handler before run()")
        await self._closed.wait()

    async def _check_expressions(self) -> None:
        """Have a broker look at SQL92 expressions before anything begins: its error says what is wrong."""
        for topic, subscription in self.assignment.subscriptions.items():
            if subscription.expression_type == TAG:
                continue
            route = await self.core.route(topic)
            for broker_name in route.addresses:
                address = self.core.broker_address(broker_name)
                if address is not None:
                    await self._check_expression(address, subscription)

    async def _check_expression(self, address: str, subscription: SubscriptionData) -> None:
        body = {
            "clientId": self.core.client_id,
            "group": self.group,
            "namespace": self.namespace,
            "subscriptionData": subscription.to_json(),
        }
        await self.core.ask(address, RequestCode.CHECK_CLIENT_CONFIG, None, lenient_json.dumps(body))

    # A handler

    def handler(self, function: Handler) -> Handler:
        """Have this function called with each message (or with lists of them, see batch_size)."""
        if self._handler is not None:
            raise ClientError("a consumer has one handler")
        self._handler = function
        if self.started_ms:
            self._start_workers()
        return function

    @property
    def has_handler(self) -> bool:
        """Whether messages are given to a handler."""
        return self._handler is not None

    def _start_workers(self) -> None:
        if not inspect.iscoroutinefunction(self._handler):
            self._threads = ThreadPoolExecutor(self.concurrency, "kourou-consumer")
        loop = asyncio.get_running_loop()
        self._workers = {loop.create_task(self._work()) for _ in range(self.concurrency)}

    async def _work(self) -> None:
        while (queue := await self._inbox.wait()) is not None:
            delivery = queue.take(self._batch_size)
            self._inbox.offer(queue)
            if delivery is None:
                self.assignment.consumed(queue)
            else:
                await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        """Call the handler until its messages are consumed, sent back, or somebody else's."""
        while not (delivery.queue.is_dropped and not self.orderly):
            failure = await self.call_handler(delivery.messages)
            if failure is None:
                return self._done(delivery)
            if self.orderly:
                return await self._suspend(delivery)
            level = failure.delay_level if isinstance(failure, ReconsumeLater) else 0
            if not delivery.counts or delivery.queue.is_dropped:
                return None
            if self.broadcast:
                log.error("%d messages of %s are dropped: a broadcast has no retries", len(delivery.messages),
                          delivery.queue.queue)  # fmt: skip
                return self._done(delivery)
            left = [message for message in delivery.messages if not await self._try_send_back(message, level)]
            if not left:
                return self._done(delivery)
            await asyncio.sleep(SEND_BACK_PAUSE_S)
            if self._closed.is_set():
                return None
            for message in left:
                message.reconsume_times += 1
            delivery.messages = left
        return None

    async def call_handler(self, messages: list[ReceivedMessage]) -> Exception | None:
        """Call the handler; what it raised."""
        assert self._handler is not None
        given: Any = messages if self._batch_size > 1 else messages[0]
        started = time.perf_counter()
        failure: Exception | None = None
        trace = of_consume(messages, self.group) if self._tracer is not None else None
        if self._tracer is not None and trace is not None:
            self._tracer.record(trace)
        try:
            if self._threads is None:
                result = self._handler(given)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._threads, self._handler, given)
            if inspect.isawaitable(result):
                await result
        except ReconsumeLater as later:
            failure = later
        except Exception as error:
            failure = error
            log.exception("the handler of group %s failed on %s", self.group, messages[0].message_id)
        seconds = time.perf_counter() - started
        if self._tracer is not None and trace is not None:
            self._tracer.record(after_consume(trace, seconds, failure, self._consume_timeout_s))
        self.stats.consumed(messages[0].topic, len(messages), seconds, failure is None)
        if self._on_consume is not None:
            self._on_consume(ConsumeEvent(messages[0].queue, len(messages), seconds, failure is None))
        return failure

    async def _suspend(self, delivery: Delivery) -> None:
        """In order: the queue waits, and begins with the same messages again, a number of times."""
        most = ENDLESS if self._max_reconsume_times is None else self._max_reconsume_times
        left = []
        for message in delivery.messages:
            if message.reconsume_times < most or not await self._try_produce_again(message, most):
                message.reconsume_times += 1
                left.append(message)
        if not left:
            return self._done(delivery)
        delivery.messages = left
        await asyncio.sleep(self._suspend_s)
        delivery.queue.give_back(delivery)
        self._inbox.offer(delivery.queue)
        return None

    def _done(self, delivery: Delivery) -> None:
        queue = delivery.queue
        queue.done(delivery)
        self.assignment.consumed(queue)
        self._inbox.offer(queue)

    # Messages that were not consumed

    async def reconsume_later(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Send a message back to its broker: the group has it again later, or, with -1, as a dead letter."""
        times = self._max_reconsume_times
        header = ConsumerSendMsgBack(
            message.physical_offset,
            self.group,
            delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=DEFAULT_RECONSUME_TIMES if times is None else times,
        )
        address = self.core.broker_address(message.broker_name)
        if address is None:
            raise ClientError(f"broker {message.broker_name} is not known at the name server")
        await self.core.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def _try_send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        try:
            await self.reconsume_later(message, delay_level)
        except KourouError as error:
            log.warning("%s was not taken back, it is sent anew: %s", message.message_id, error)
            times = self._max_reconsume_times
            return await self._try_produce_again(message, DEFAULT_RECONSUME_TIMES if times is None else times)
        return True

    async def _try_produce_again(self, message: ReceivedMessage, most: int) -> bool:
        """Put a message into the retry topic as a new one: any broker may take it."""
        again = Message(RETRY_PREFIX + self.group, message.body, dict(message.properties), message.flag)
        values = again.properties
        values.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        values[names.RETRY_TOPIC] = wrap(self.namespace, message.topic)
        values[names.RECONSUME_TIME] = str(message.reconsume_times + 1)
        values[names.MAX_RECONSUME_TIMES] = str(most)
        values[names.DELAY_TIME_LEVEL] = str(3 + message.reconsume_times)
        values.pop(names.TRANSACTION_PREPARED, None)
        try:
            await self._producer.send(again)
        except KourouError as error:
            log.warning("%s was not taken, it is given to the handler again: %s", message.message_id, error)
            return False
        return True

    async def _send_back_timed_out(self) -> None:
        """Messages whose handler does not come to an end are sent back, so that their queue can go on."""
        if self.orderly or self.broadcast or self._handler is None:
            return
        for queue in list(self.assignment.queues.values()):
            while (oldest := queue.oldest) is not None and oldest.counts:
                if time.monotonic() - oldest.started_at < self._consume_timeout_s:
                    break
                log.warning("%d messages of %s took too long", len(oldest.messages), queue.queue)
                for message in oldest.messages:
                    await self.reconsume_later(message, TIMED_OUT_LEVEL)
                self._done(oldest)

    # One by one, batches, columns

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._settle_given()
        while True:
            queue = self._inbox.next_ready() or await self._inbox.wait()
            if queue is None:
                raise StopAsyncIteration
            delivery = queue.take(1)
            self._inbox.offer(queue)
            if delivery is not None:
                self._given.append(delivery)
                return delivery.messages[0]
            self.assignment.consumed(queue)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """What each pull brought; consumed when the next is asked for."""
        while True:
            self._settle_given()
            queue = self._inbox.next_ready() or await self._inbox.wait()
            if queue is None:
                return
            batch = self._take_batch(queue)
            if batch is not None:
                yield batch

    def _take_batch(self, queue: ProcessQueue) -> MessageBatch | None:
        delivery = queue.take_batch()
        self._inbox.offer(queue)
        if delivery is None:
            self.assignment.consumed(queue)
            return None
        batch = delivery.batch
        if batch is None:  # of a queue whose messages were taken one by one before
            batch = MessageBatch.of(queue.queue, delivery.messages, delivery.start, delivery.end)
        elif batch.is_filtered and not batch.messages:  # tags of the same hash as one that is wanted
            self._done(delivery)
            return None
        self._given.append(delivery)
        return batch

    async def fetch_arrow(
        self,
        max_messages: int = 32 * 1024,
        timeout_s: float | None = None,
        columns: Sequence[str] | None = None,
        linger_s: float = 0.05,
    ) -> Any:
        """What has come, as one RecordBatch; consumed when the next is asked for (extra `arrow`).

        Where nothing has come it waits for `timeout_s` (for ever, if None) and gives a batch without rows.
        While the queues have more than was pulled it waits for `linger_s`, since a batch of many rows costs
        little more than one of few. Columns are those of kourou.message.columns, and broker_name.
        """
        from kourou.client.arrow import to_arrow

        self._settle_given()
        batches: list[MessageBatch] = []
        count = 0
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while count < max_messages and (queue := await self._next_until(deadline)) is not None:
            batch = self._take_batch(queue)
            if batch is not None:
                if not batches:
                    deadline = loop.time() + linger_s
                batches.append(batch)
                count += batch.size
                if self.assignment.is_caught_up:
                    deadline = loop.time()
        return to_arrow(batches, columns)

    async def _next_until(self, deadline: float | None) -> ProcessQueue | None:
        """The next queue that has something, if it has by then."""
        queue = self._inbox.next_ready()
        if queue is None and not (deadline is not None and deadline <= asyncio.get_running_loop().time()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    queue = await self._inbox.wait()
        return queue

    async def acknowledge(self) -> None:
        """What was given last is consumed, though no more is asked for; its offset is kept now."""
        self._settle_given()
        await self.commit()

    def _settle_given(self) -> None:
        for delivery in self._given:
            self._done(delivery)
        self._given.clear()

    # What a user may want to know or do

    async def commit(self) -> None:
        """Keep the offsets of what is consumed now, instead of within five seconds."""
        await self.assignment.offsets.persist()

    def pause(self) -> None:
        """Give nothing out, and pull no more, until `resume`."""
        self.assignment.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self.assignment.resume()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this client reads now."""
        return sorted(self.assignment.queues)


def build_subscription(topic: str, expression: str) -> SubscriptionData:
    """A subscription as of now, by tags or by an Sql expression."""
    kind = SQL92 if isinstance(expression, Sql) else TAG
    return SubscriptionData.build(topic, str(expression), kind, time.time_ns() // 1_000_000)


def as_subscriptions(subscribe: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Topics and the expressions that they are subscribed with."""
    if isinstance(subscribe, str):
        return {subscribe: "*"}
    if isinstance(subscribe, Mapping):
        return dict(subscribe)
    return dict.fromkeys(subscribe, "*")

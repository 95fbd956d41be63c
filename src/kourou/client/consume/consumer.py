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

With `client_rebalance=False` a broker shares the queues, and says whether the group pulls or pops a topic.
What is popped is given in the same ways. Consumed, it is acknowledged; what a handler failed on becomes
visible again after a growing delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from kourou.client.background import Background, notify
from kourou.client.consume.assignment import Assignment, ReadOptions
from kourou.client.consume.offsets import LocalOffsets, Offsets, RemoteOffsets, local_offsets_path
from kourou.client.consume.pop.popping import Popper
from kourou.client.consume.pop.queues import PopOptions, PopQueue, PopQueues
from kourou.client.consume.process_queue import Delivery, Inbox, ProcessQueue
from kourou.client.consume.pulling import Puller
from kourou.client.consume.received import MessageBatch, ReceivedMessage, ReconsumeLater
from kourou.client.consume.requests import answer_brokers
from kourou.client.consume.stats import ConsumeEvent, ConsumerStats
from kourou.client.consume.subscriptions import Sql as Sql
from kourou.client.consume.subscriptions import as_subscriptions, build_subscription, check_expressions
from kourou.client.core import ClientCore, ClientError, local_ip, make_client_id
from kourou.client.namespace import wrap
from kourou.client.options import ConsumerOptions, takes
from kourou.client.produce.producer import Producer, start_tracer
from kourou.client.signals import stop_on_signals
from kourou.client.trace import Tracer, after_consume, of_consume
from kourou.client.validators import check_delay_level
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message import properties as names
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX, TRACE_TOPIC
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import ConsumerSendMsgBack
from kourou.remoting.protocol.heartbeat import BROADCASTING, CLUSTERING, CONSUME_PASSIVELY, ConsumerData
from kourou.remoting.protocol.subscription import SubscriptionData

log = logging.getLogger(__name__)

PERSIST_INTERVAL_S = 5.0
TIMEOUT_CHECK_S = 60.0
DEFAULT_RECONSUME_TIMES = 16
ENDLESS = 0x7FFFFFFF
SEND_BACK_PAUSE_S = 5.0  # before a message that could not be sent back is handled again
TIMED_OUT_LEVEL = 3  # the delay of a message whose handler does not come to an end

Handler = Callable[[Any], Awaitable[object] | object]


class Consumer:
    """Reads the topics that a group subscribes to. Its options are those of ConsumerOptions."""

    @takes(ConsumerOptions)
    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.namespace = namespace = options.namespace
        self.group = wrap(namespace, options.group)
        self.started_ms = 0
        self._trace_topic = (TRACE_TOPIC if options.trace is True else options.trace) or None
        self._tracer: Tracer | None = None
        self._handler: Handler | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._background = Background()
        self._given: list[Delivery] = []  # consumed when the next is asked for
        self._inbox = Inbox()
        self._stopped = asyncio.Event()
        self._is_closed = False
        self._forget_signals: Callable[[], None] | None = None
        self.stats = ConsumerStats()
        # The offsets of a broadcast are found again by the client's id: it must stay the same.
        instance = options.instance or ("DEFAULT" if options.broadcast else None)
        client_id = make_client_id(options.ip or local_ip(), instance)
        self.core = ClientCore(
            options.namesrv, client_id=client_id, tls=options.tls, credentials=options.credentials
        )
        self.core.consumers[self.group] = self.heartbeat
        offsets: Offsets
        if options.broadcast:
            path = local_offsets_path(options.offsets_directory, self.core.client_id, self.group)
            offsets = LocalOffsets(path)
        else:
            offsets = RemoteOffsets(self.core, self.group)
        subscriptions: dict[str, SubscriptionData] = {}
        popper = Popper(
            self.core, self.group, namespace=namespace, init_mode=0 if options.consume_from == "first" else 1
        )
        self.pops = PopQueues(
            self.core,
            self.group,
            popper,
            PopOptions(
                int(options.pop_invisible_s * 1000), options.pop_batch_size, options.pop_max_unacked,
                tuple(options.pop_retry_delays_s),
            ),
            subscriptions=subscriptions,
            on_messages=self._inbox.offer,
        )  # fmt: skip
        # As in Java, what is read in order or by all clients is always pulled.
        follows = not (options.client_rebalance or options.orderly or options.broadcast)
        self.assignment = Assignment(
            self.core,
            self.group,
            offsets,
            ReadOptions(
                options.consume_from, options.pull_batch_size, options.max_cached_messages,
                options.max_cached_bytes, options.max_span, options.broadcast, options.orderly,
            ),
            puller=Puller(self.core, self.group, tell_subscription=False, namespace=namespace),
            strategy=options.strategy,
            on_messages=self._inbox.offer,
            on_change=options.on_rebalance,
            pops=self.pops if follows else None,
        )  # fmt: skip
        self.assignment.subscriptions = subscriptions
        for topic, expression in as_subscriptions(options.subscribe).items():
            name = wrap(namespace, topic)
            subscriptions[name] = build_subscription(name, expression)
        if not options.broadcast:
            name = RETRY_PREFIX + self.group
            subscriptions[name] = build_subscription(name, "*")
        self._producer = Producer(group="CLIENT_INNER_PRODUCER", core=self.core)
        answer_brokers(self)

    def heartbeat(self) -> ConsumerData:
        """What the brokers are told of this consumer."""
        where = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}
        return ConsumerData(
            self.group,
            CONSUME_PASSIVELY,
            BROADCASTING if self.options.broadcast else CLUSTERING,
            where.get(str(self.options.consume_from), "CONSUME_FROM_TIMESTAMP"),
            tuple(self.assignment.subscriptions.values()),
        )

    # Life

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        await self._producer.__aenter__()
        try:
            if self.options.stop_on_signals:
                self._forget_signals = stop_on_signals(asyncio.get_running_loop(), self.stop)
            await self.assignment.find_routes(self.options.start_timeout_s)
            subscriptions = self.assignment.subscriptions
            await check_expressions(self.core, self.group, self.namespace, subscriptions)
            self.started_ms = time.time_ns() // 1_000_000
            await self.assignment.start()
        except BaseException:
            await self.close()
            raise
        persist = self.core.every(PERSIST_INTERVAL_S, self.assignment.offsets.persist)
        self._background.start(persist, f"keeping the offsets of group {self.group}")
        check = self.core.every(TIMEOUT_CHECK_S, self._send_back_timed_out)
        self._background.start(check, f"looking for slow handlers of group {self.group}")
        if self._trace_topic is not None:
            self._tracer = await start_tracer(self.core, self.group, "CONSUME", self._trace_topic)
        if self._handler is not None:
            self._start_workers()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop(self) -> None:
        """Give nothing more out: `run` returns, `async for` ends. Then close, or leave the `async with`."""
        self._stopped.set()
        self._inbox.close()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is given out, after `stop`, `close` or a signal."""
        return self._stopped.is_set()

    async def close(self) -> None:
        """Stop: handlers finish, offsets are committed, the queues are left to other clients."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        if self._forget_signals is not None:
            self._forget_signals()
        if self._workers:
            await asyncio.wait(self._workers, timeout=self.options.close_timeout_s)
        await self._background.close()
        await self.pops.stop([one for one in self._given if isinstance(one.queue, PopQueue)])
        self._given.clear()
        for queue in self.assignment.queues.values():
            if queue.oldest is not None and self.options.orderly:
                queue.idle.set()  # no handler works on it any more
        await self.assignment.stop()
        if self._tracer is not None:
            await self._tracer.stop()
        await self._producer.__aexit__()
        await self.core.__aexit__()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Have the handler called until the consumer is stopped or closed, or a signal comes
        (`stop_on_signals`)."""
        if self._handler is None:
            raise ClientError("there is no handler: give one with @consumer.handler before run()")
        await self._stopped.wait()

    # A handler

    def handler(self, function: Handler) -> Handler:
        """Have this function called with each message (or with lists of them, see batch_size)."""
        if not callable(function):
            raise ClientError(f"a handler is a function, not {function!r}")
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
            self._threads = ThreadPoolExecutor(self.options.concurrency, "kourou-consumer")
        name = f"a worker of group {self.group}"
        self._workers = [self._background.start(self._work(), name) for _ in range(self.options.concurrency)]

    async def _work(self) -> None:
        while (queue := await self._inbox.wait()) is not None:
            delivery = queue.take(self.options.batch_size)
            self._inbox.offer(queue)
            if delivery is None:
                self._consumed(queue)
                continue
            try:
                if isinstance(queue, PopQueue):
                    await self._handle_popped(delivery, queue)
                else:
                    await self._handle(delivery)
            except Exception:  # the messages are sent back when their time is over
                log.exception("messages of %s were not handled", delivery.queue.queue)

    async def _handle(self, delivery: Delivery) -> None:
        """Call the handler until its messages are consumed, sent back, or belong to another client."""
        while not (delivery.queue.is_dropped and not self.options.orderly):
            failure = await self.call_handler(delivery.messages)
            if failure is None:
                return self._done(delivery)
            if self.options.orderly:
                return await self._suspend(delivery)
            level = failure.delay_level if isinstance(failure, ReconsumeLater) else 0
            if not delivery.counts or delivery.queue.is_dropped:
                return None
            if self.options.broadcast:
                log.error("%d messages of %s are dropped: a broadcast has no retries", len(delivery.messages),
                          delivery.queue.queue)  # fmt: skip
                return self._done(delivery)
            left = [message for message in delivery.messages if not await self._try_send_back(message, level)]
            if not left:
                return self._done(delivery)
            await asyncio.sleep(SEND_BACK_PAUSE_S)
            if self.is_stopped:
                return None
            for message in left:
                message.reconsume_times += 1
            delivery.messages = left
        return None

    async def _handle_popped(self, delivery: Delivery, queue: PopQueue) -> None:
        """Call the handler; what it fails on becomes visible again, or goes to the dead-letter topic."""
        failure = await self.call_handler(delivery.messages)
        if failure is None:
            return self._done(delivery)
        level = failure.delay_level if isinstance(failure, ReconsumeLater) else 0
        times = self.options.max_reconsume_times
        most = DEFAULT_RECONSUME_TIMES if times is None else times
        for message in delivery.messages:
            if level >= 0 and message.reconsume_times < most:
                await self.pops.hide(message, level)
            elif await self._try_send_back(message, -1):
                self.pops.acknowledge(message)
        queue.release(delivery)
        self._consumed(queue)
        return None

    async def call_handler(self, messages: list[ReceivedMessage]) -> Exception | None:
        """Call the handler. Returns what it raised, or None."""
        assert self._handler is not None
        given: Any = messages if self.options.batch_size > 1 else messages[0]
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
            self._tracer.record(after_consume(trace, seconds, failure, self.options.consume_timeout_s))
        self.stats.consumed(messages[0].topic, len(messages), seconds, failure is None)
        event = ConsumeEvent(messages[0].queue, len(messages), seconds, failure is None)
        notify(self.options.on_consume, event)
        return failure

    async def _suspend(self, delivery: Delivery) -> None:
        """In order: the queue waits, and begins with the same messages again, a number of times."""
        most = ENDLESS if self.options.max_reconsume_times is None else self.options.max_reconsume_times
        left = []
        for message in delivery.messages:
            if message.reconsume_times < most or not await self._try_produce_again(message, most):
                message.reconsume_times += 1
                left.append(message)
        if not left:
            return self._done(delivery)
        delivery.messages = left
        await asyncio.sleep(self.options.suspend_s)
        delivery.queue.give_back(delivery)
        self._inbox.offer(delivery.queue)
        return None

    def _done(self, delivery: Delivery) -> None:
        queue = delivery.queue
        queue.done(delivery)
        self._consumed(queue)

    def _consumed(self, queue: ProcessQueue) -> None:
        """Messages of a queue were consumed, or none was wanted: go on with it."""
        if isinstance(queue, PopQueue):
            self.pops.consumed(queue)
        else:
            self.assignment.consumed(queue)
        self._inbox.offer(queue)

    # Messages that were not consumed

    async def reconsume_later(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Send a message back to its broker: the group has it again later, or, with -1, as a dead letter."""
        check_delay_level(delay_level, least=-1)
        times = self.options.max_reconsume_times
        header = ConsumerSendMsgBack(
            message.physical_offset,
            self.group,
            delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=DEFAULT_RECONSUME_TIMES if times is None else times,
        )
        address, broker = self.core.address_of(message.queue), message.queue.broker_name
        await self.core.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, broker=broker)

    async def _try_send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        try:
            await self.reconsume_later(message, delay_level)
        except KourouError as error:
            log.warning("%s was not taken back, it is sent anew: %s", message.message_id, error)
            times = self.options.max_reconsume_times
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
        if self.options.orderly or self.options.broadcast or self._handler is None:
            return
        for queue in list(self.assignment.queues.values()):
            while (oldest := queue.oldest) is not None and oldest.counts:
                if time.monotonic() - oldest.started_at < self.options.consume_timeout_s:
                    break
                log.warning("%d messages of %s took too long", len(oldest.messages), queue.queue)
                for message in oldest.messages:
                    await self.reconsume_later(message, TIMED_OUT_LEVEL)
                self._done(oldest)

    # One by one, batches, columns

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._finish_given()
        while True:
            queue = self._inbox.next_ready() or await self._inbox.wait()
            if queue is None:
                raise StopAsyncIteration
            delivery = queue.take(1)
            self._inbox.offer(queue)
            if delivery is not None:
                self._given.append(delivery)
                return delivery.messages[0]
            self._consumed(queue)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """What each pull brought; consumed when the next is asked for."""
        while True:
            self._finish_given()
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
            self._consumed(queue)
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
        little more than one of few. Columns are those of kourou.message.scan.columns, and broker_name.
        """
        from kourou.client.consume.arrow import to_arrow

        self._finish_given()
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
                if self.assignment.is_caught_up and self.pops.is_caught_up:
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
        self._finish_given()
        await self.commit()

    def _finish_given(self) -> None:
        for delivery in self._given:
            self._done(delivery)
        self._given.clear()

    # What a user may want to know or do

    async def commit(self) -> None:
        """Keep the offsets of what is consumed now, instead of within five seconds."""
        await self.assignment.offsets.persist()
        await self.pops.flush()

    def pause(self) -> None:
        """Give nothing out, and pull no more, until `resume`."""
        self.assignment.pause()
        self.pops.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self.assignment.resume()
        self.pops.resume()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this client reads now; -1 for all of a broker, which are popped."""
        return sorted([*self.assignment.queues, *self.pops.queues])

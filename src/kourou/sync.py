"""The clients for programs without an event loop: the same API with blocking calls.

    with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = producer.send(Message("orders", b"...", tags="paid"))

    with Consumer("127.0.0.1:9876", group="billing", subscribe={"orders": "paid"}) as consumer:
        for message in consumer: ...

Each client has an event loop in a thread of its own, on which the asynchronous one of `kourou.client` runs;
options, rules and errors are those of that one. They may be used from several threads. A handler that is a
plain function runs in a thread, one that is a coroutine on the client's loop.

With `stop_on_signals=True`, in the main thread, Ctrl-C and SIGTERM end `for` and `run`, not the program.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar

from kourou import client
from kourou.client import (
    ClientError,
    ExpiredHandleError,
    Message,
    MessageBatch,
    MessageQueue,
    NoRouteError,
    PopBatch,
    ReceivedMessage,
    ReconsumeLater,
    RefusedError,
    SendReceipt,
    Sql,
    TransactionReceipt,
)
from kourou.client.options import (
    MAX_POP,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    PullConsumerOptions,
    SimpleConsumerOptions,
    keywords,
    takes,
)
from kourou.client.signals import stop_on_signals

__all__ = [
    "Producer",
    "Consumer",
    "PullConsumer",
    "SimpleConsumer",
    "Message",
    "MessageBatch",
    "MessageQueue",
    "PopBatch",
    "ReceivedMessage",
    "SendReceipt",
    "ReconsumeLater",
    "Sql",
    "ClientError",
    "ExpiredHandleError",
    "NoRouteError",
    "RefusedError",
]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_C = TypeVar("_C", client.Producer, client.Consumer, client.PullConsumer, client.SimpleConsumer)
_R = TypeVar("_R", client.Consumer, client.PullConsumer, client.SimpleConsumer)


SIGNAL_WAIT_S = 0.5


class _Loop:
    """An event loop in a thread."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_others())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    def submit(
        self, function: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_T]:
        """Have a coroutine function called on the loop.

        asyncio.run_coroutine_threadsafe takes a coroutine: one that a Ctrl-C leaves in this thread, where
        nobody awaits it, would be reported.
        """
        if not self._thread.is_alive():
            raise ClientError("the client is closed")
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def begin() -> None:
            try:
                task = self._loop.create_task(function(*args, **kwargs))
            except BaseException as error:  # of arguments that do not fit
                future.set_exception(error)
                return
            task.add_done_callback(partial(_hand_over, future))
            future.add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(task.cancel) if done.cancelled() else None
            )

        self._loop.call_soon_threadsafe(begin)
        return future

    def run(self, function: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What a coroutine function returns; if the caller is interrupted, it is cancelled."""
        future = self.submit(function, *args, **kwargs)
        try:
            while True:
                # A signal that comes just before a wait begins has its handler called when the wait ends.
                try:
                    return future.result(SIGNAL_WAIT_S)
                except TimeoutError:
                    if future.done():
                        return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._loop

    def call(self, function: Callable[[], _T]) -> _T:
        """The result of a function that is called on the loop."""

        async def work() -> _T:
            return function()

        return self.run(work)

    def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _hand_over(future: concurrent.futures.Future[_T], task: asyncio.Task[_T]) -> None:
    """Copy the result of a task to a future of another thread."""
    if task.cancelled():
        future.cancel()
    error = None if task.cancelled() else task.exception()
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


async def _cancel_others() -> None:
    """Cancel the remaining tasks of a client that was interrupted, as asyncio.run does."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


class _Facade(Generic[_C]):
    """What all clients have."""

    def __init__(self, make: Callable[..., _C], options: ClientOptions) -> None:
        self.options = options
        self._loop = _Loop(f"kourou-{type(self).__name__.lower()}")
        given = keywords(options)
        # Signals arrive in the main thread, and the client runs in another one.
        self._stops_on_signals = given.get("stop_on_signals", False)
        if self._stops_on_signals:
            given["stop_on_signals"] = False
        self._forget_signals: Callable[[], None] | None = None
        try:
            self._client: _C = self._loop.call(lambda: make(**given))
        except BaseException:
            self._loop.close()
            raise
        self._is_open = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Connect; `with` does it too."""
        if not self._is_open:
            try:
                if self._stops_on_signals:
                    self._forget_signals = stop_on_signals(self._loop.loop, self._stop)
                self._loop.run(self._client.__aenter__)
            except BaseException:
                self._end()
                raise
            self._is_open = True
        return self

    def _stop(self) -> None:
        """The reaction to a signal, on the event loop."""

    def close(self) -> None:
        """Disconnect, with what the asynchronous client does when it is left."""
        try:
            if self._is_open:
                self._is_open = False
                self._loop.run(self._client.__aexit__, None, None, None)
        finally:
            self._end()

    def _end(self) -> None:
        if self._forget_signals is not None:
            self._forget_signals()
        self._loop.close()

    @property
    def group(self) -> str:
        """The group of this client."""
        return self._client.group


class _Reader(_Facade[_R]):
    """What all consumers have in common."""

    def _stop(self) -> None:
        self._client.stop()

    def stop(self) -> None:
        """Give nothing more out; then close, or leave the `with`. From any thread."""
        self._loop.call(self._client.stop)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is given out, after `stop`, `close` or a signal."""
        return self._client.is_stopped

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this client reads now."""
        return self._loop.call(lambda: self._client.queues)


class Producer(_Facade[client.Producer]):
    """Sends messages. Its options are those of ProducerOptions."""

    @takes(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        super().__init__(client.Producer, options)

    def send(self, message: Message, **options: Any) -> SendReceipt:
        """Send a message, and wait until the broker has it."""
        return self._loop.run(self._client.send, message, **options)

    def send_async(self, message: Message, **options: Any) -> concurrent.futures.Future[SendReceipt]:
        """Send a message; the future has its receipt."""
        return self._loop.submit(self._client.send, message, **options)

    def send_batch(self, messages: Iterable[Message], **options: Any) -> list[SendReceipt]:
        """Send messages of one topic together, in as many requests as their size takes."""
        return self._loop.run(self._client.send_batch, messages, **options)

    def send_oneway(self, message: Message, **options: Any) -> None:
        """Send a message, and do not wait for anything."""
        self._loop.run(self._client.send_oneway, message, **options)

    def send_in_transaction(self, message: Message, execute: Any, **options: Any) -> TransactionReceipt:
        """Send a message that consumers see if `execute` says so."""
        send: Callable[..., Coroutine[Any, Any, TransactionReceipt]] = self._client.send_in_transaction
        return self._loop.run(send, message, execute, **options)

    def request(self, message: Message, **options: Any) -> Any:
        """Send a message, and wait for the reply of a consumer."""
        return self._loop.run(self._client.request, message, **options)

    def recall(self, topic: str, handle: str) -> str:
        """Take back a timer message that has not been delivered."""
        return self._loop.run(self._client.recall, topic, handle)


class Consumer(_Reader[client.Consumer]):
    """Reads the topics of a group. Its options are those of ConsumerOptions."""

    @takes(ConsumerOptions)
    def __init__(self, options: ConsumerOptions) -> None:
        super().__init__(client.Consumer, options)

    def handler(self, function: client.Handler) -> client.Handler:
        """Have this function called with each message."""
        return self._loop.call(lambda: self._client.handler(function))

    def run(self) -> None:
        """Have the handler called until the consumer is stopped or closed, or a signal comes
        (`stop_on_signals`)."""
        self._loop.run(self._client.run)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        iterator = self._client.__aiter__()

        async def following() -> ReceivedMessage | None:
            return await anext(iterator, None)

        while (message := self._loop.run(following)) is not None:
            yield message

    def batches(self) -> Iterator[MessageBatch]:
        """What each pull brought; consumed when the next is asked for."""
        iterator = self._client.batches()

        async def following() -> MessageBatch | None:
            return await anext(iterator, None)

        while (batch := self._loop.run(following)) is not None:
            yield batch

    def fetch_arrow(
        self,
        max_messages: int = 32 * 1024,
        timeout_s: float | None = None,
        columns: Sequence[str] | None = None,
        linger_s: float = 0.05,
    ) -> Any:
        """What has come, as one RecordBatch; consumed when the next is asked for."""
        return self._loop.run(self._client.fetch_arrow, max_messages, timeout_s, columns, linger_s)

    def reconsume_later(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Send a message back to its broker: the group has it again later."""
        self._loop.run(self._client.reconsume_later, message, delay_level)

    def acknowledge(self) -> None:
        """What was given last is consumed, though no more is asked for; its offset is kept now."""
        self._loop.run(self._client.acknowledge)

    def commit(self) -> None:
        """Keep the offsets of what is consumed now."""
        self._loop.run(self._client.commit)

    def pause(self) -> None:
        """Give nothing out, and pull no more, until `resume`."""
        self._loop.call(self._client.pause)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._loop.call(self._client.resume)


class PullConsumer(_Reader[client.PullConsumer]):
    """Reads queues at the caller's pace. Its options are those of PullConsumerOptions."""

    @takes(PullConsumerOptions)
    def __init__(self, options: PullConsumerOptions) -> None:
        super().__init__(client.PullConsumer, options)

    def poll(self, timeout_s: float = 5.0, max_messages: int = 32) -> list[ReceivedMessage]:
        """Messages of one queue, or none if nothing came in this time."""
        return self._loop.run(self._client.poll, timeout_s, max_messages)

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, to choose from for `assign`."""
        return self._loop.run(self._client.fetch_queues, topic)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues."""
        self._loop.run(self._client.assign, queues)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue."""
        self._loop.call(lambda: self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message of a queue."""
        self._loop.run(self._client.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on after the newest message of a queue."""
        self._loop.run(self._client.seek_to_end, queue)

    def offset_for_timestamp(self, queue: MessageQueue, when: Any) -> int:
        """The offset of the first message that was stored at a time or after it."""
        return self._loop.run(self._client.offset_for_timestamp, queue, when)

    def pause(self, *queues: MessageQueue) -> None:
        """Give nothing out of these queues, and pull no more of them."""
        self._loop.call(lambda: self._client.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused."""
        self._loop.call(lambda: self._client.resume(*queues))

    def position(self, queue: MessageQueue) -> int:
        """The offset after what `poll` gave of a queue."""
        return self._loop.call(lambda: self._client.position(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group goes on at."""
        return self._loop.run(self._client.committed, queue)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Keep everything that `poll` gave, or these offsets."""
        self._loop.run(self._client.commit, offsets)


class SimpleConsumer(_Reader[client.SimpleConsumer]):
    """Receives and acknowledges messages. Its options are those of SimpleConsumerOptions."""

    @takes(SimpleConsumerOptions)
    def __init__(self, options: SimpleConsumerOptions) -> None:
        super().__init__(client.SimpleConsumer, options)

    def receive(
        self, max_messages: int = MAX_POP, *, invisible_s: float | None = None, await_s: float | None = None
    ) -> PopBatch:
        """Messages of one topic of one broker; without any after `await_s`, an empty batch."""
        return self._loop.run(self._client.receive, max_messages, invisible_s=invisible_s, await_s=await_s)

    def fetch_arrow(
        self,
        max_messages: int = 1024,
        *,
        invisible_s: float | None = None,
        await_s: float | None = None,
        columns: Iterable[str] | None = None,
    ) -> Any:
        """What there is now, as one RecordBatch; without any it waits as `receive` does."""
        return self._loop.run(
            self._client.fetch_arrow, max_messages, invisible_s=invisible_s, await_s=await_s, columns=columns
        )

    def ack(self, messages: Any) -> None:
        """A message is done, or several: a list, a batch of `receive`, or rows of `fetch_arrow`."""
        self._loop.run(self._client.ack, messages)

    def change_invisible(self, message: ReceivedMessage, invisible_s: float, *, suspend: bool = False) -> str:
        """Have a message come again so long from now; its new handle."""
        return self._loop.run(self._client.change_invisible, message, invisible_s, suspend=suspend)

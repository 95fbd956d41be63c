"""PopQueues: what a push Consumer pops, where the broker's request mode is POP (PopProcessQueue).

For each broker of a topic (queue -1), or for single queues, a pop is under way, as long as not too much is
open. What is done is acknowledged: all that is done while an acknowledgement is under way goes with the next
one. A queue that is not ours any more is popped no more; what it gave is ours until its invisible time ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kourou.client.background import Background
from kourou.client.consume.pop.batches import PopBatch
from kourou.client.consume.pop.popping import ExpiredHandleError, Popper, Receipt
from kourou.client.consume.process_queue import Delivery, ProcessQueue
from kourou.client.consume.received import ReceivedMessage, held_bytes
from kourou.client.core import ClientCore, RefusedError
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.handles import Handle
from kourou.remoting.protocol.subscription import SubscriptionData

log = logging.getLogger(__name__)

POLL_S = 15.0  # how long a broker keeps a pop that finds nothing
PAUSE_FIRST_S = 0.1  # after a pop that failed; it doubles
PAUSE_MOST_S = 3.0
ACK_AGAIN_S = 1.0
GIVEN_BACK_MS = 1000  # when messages come again that a consumer has not begun when it closes


@dataclass(frozen=True, slots=True)
class PopOptions:
    """How a consumer pops."""

    invisible_ms: int
    batch_size: int
    max_unacked: int  # of a queue, popped and not acknowledged
    retry_delays_s: tuple[float, ...]  # by how often a message came before


class PopQueue(ProcessQueue):
    """What was popped of a broker, or of a queue. Its messages are done in any order."""

    def __init__(
        self, queue: MessageQueue, is_expired: Callable[[Handle], bool], on_done: Callable[[Delivery], None]
    ) -> None:
        super().__init__(queue, 0)
        self._is_expired = is_expired
        self.is_leaving = False
        self.rest = 0  # messages that the broker has left, by its last answer
        self._on_done = on_done

    def take(self, most: int) -> Delivery | None:
        """Up to `most` messages that are still invisible to others; None if there are none."""
        self._leave_out_expired()
        return super().take(most)

    def take_batch(self) -> Delivery | None:
        """What one pop brought, if it is still invisible to others; None if there is nothing."""
        self._leave_out_expired()
        return super().take_batch()

    def _leave_out_expired(self) -> None:
        """Messages that have waited here for too long come again, to whoever is faster."""
        before = self.count
        while self._messages and self._is_over(self._messages[0].receipt_handle):
            self._change(-1, -held_bytes([self._messages.popleft()]))
        while self._batches and self._is_over(batch_receipts(self._batches[0])[0][1]):
            batch = self._batches.popleft()
            self._change(-batch.size, -len(batch.body))
        if self.count < before:
            log.warning(
                "%d messages of %s waited for too long: they come again", before - self.count, self.queue
            )

    def _is_over(self, handle: str | None) -> bool:
        return handle is not None and self._is_expired(Handle.read(handle))

    def done(self, delivery: Delivery) -> bool:
        """A delivery is consumed: acknowledge its messages."""
        if not delivery.counts:
            return False
        self._on_done(delivery)
        return self.release(delivery)

    def release(self, delivery: Delivery) -> bool:
        """A delivery is over; what becomes of its messages was said before."""
        delivery.is_done = True
        self._deliveries.remove(delivery)
        self._change(-delivery.count, -delivery.size_bytes)
        self._note_idle()
        return True

    def take_waiting(self) -> list[Receipt]:
        """Everything that was not given out, which is not given out any more."""
        found = [receipt for batch in self._batches for receipt in batch_receipts(batch)]
        found += message_receipts(self.queue.topic, self._messages)
        self.drop()
        return found


class PopQueues:
    """The pops of one consumer."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        popper: Popper,
        options: PopOptions,
        *,
        subscriptions: Mapping[str, SubscriptionData],
        on_messages: Callable[[ProcessQueue], None],
    ) -> None:
        self._core = core
        self._group = group
        self._popper = popper
        self.options = options
        self._subscriptions = subscriptions
        self._on_messages = on_messages
        self.queues: dict[MessageQueue, PopQueue] = {}
        self._leaving: set[PopQueue] = set()
        self._is_paused = self._is_stopping = False
        self._readers = Background()
        self._done: list[Receipt] = []  # to be acknowledged
        self._acking: asyncio.Task[None] | None = None

    # Which queues

    def assign(self, topic: str, wanted: Collection[MessageQueue]) -> bool:
        """Pop exactly these queues of a topic. Returns whether that is a change."""
        before = {queue for queue in self.queues if queue.topic == topic}
        for name in before - set(wanted):
            queue = self.queues.pop(name)
            queue.is_leaving = True
            self._leaving.add(queue)
            queue.room.set()
        for name in set(wanted) - before:
            queue = self.queues[name] = PopQueue(name, self._popper.is_expired, self._acknowledge_soon)
            queue.is_paused = self._is_paused
            self._note_room(queue)
            self._readers.start(self._pop_on(queue), f"popping {name}")
        return before != set(wanted)

    async def stop(self, given: Iterable[Delivery]) -> None:
        """Pop no more, acknowledge what is done, and give back what is not begun and what was `given`."""
        self._is_stopping = True
        await self._readers.close()
        unused = [
            receipt for queue in (*self.queues.values(), *self._leaving) for receipt in queue.take_waiting()
        ]
        for delivery in given:
            topic = delivery.queue.queue.topic
            batch = delivery.batch
            unused += (
                batch_receipts(batch) if batch is not None else message_receipts(topic, delivery.messages)
            )
        self.queues.clear()
        if self._acking is not None:
            await self._acking
        calls = [self._popper.change_invisible(one, GIVEN_BACK_MS, is_suspended=True) for one in unused]
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.info("a message of group %s is not given back, it comes later: %s", self._group, failure)

    # Popping

    async def _pop_on(self, queue: PopQueue) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            await queue.room.wait()
            if queue.is_leaving:
                break
            try:
                await self._pop_once(queue)
                pause_s = PAUSE_FIRST_S
            except Exception as error:
                self._core.warnings.warn(
                    log, queue.queue, "group %s: a pop of %s failed: %s", self._group, queue.queue, error,
                    trace=not isinstance(error, KourouError),
                )  # fmt: skip
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MOST_S)
                await self._core.refresh_routes()
        self._forget_if_empty(queue)

    async def _pop_once(self, queue: PopQueue) -> None:
        name = queue.queue
        queue.last_pull_at = time.time()
        batch = await self._popper.pop(
            name, self._subscriptions[name.topic], most=self.options.batch_size,
            invisible_ms=self.options.invisible_ms, poll_s=POLL_S,
        )  # fmt: skip
        queue.rest = batch.rest
        self._acknowledge((name.topic, handle) for handle in batch.unwanted_handles)
        if batch.row_handles:
            queue.put(batch)
            self._note_room(queue)
            self._on_messages(queue)

    def _note_room(self, queue: PopQueue) -> None:
        """Flow control: pop no more while too much is not acknowledged."""
        has_room = not queue.is_paused and queue.count <= self.options.max_unacked
        if has_room or queue.is_leaving:
            queue.room.set()
        else:
            queue.room.clear()

    def consumed(self, queue: PopQueue) -> None:
        """Messages of a queue were consumed: pop again if there is room."""
        self._note_room(queue)
        self._forget_if_empty(queue)

    def _forget_if_empty(self, queue: PopQueue) -> None:
        if queue.is_leaving and not queue.count:
            self._leaving.discard(queue)

    def pause(self) -> None:
        """Give nothing out, and pop no more."""
        self._is_paused = True
        for queue in self.queues.values():
            queue.is_paused = True
            self._note_room(queue)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._is_paused = False
        for queue in self.queues.values():
            queue.is_paused = False
            self._note_room(queue)
            self._on_messages(queue)

    @property
    def is_caught_up(self) -> bool:
        """Whether the last pops left nothing at the brokers, or flow control stops them."""
        return all(not queue.rest or not queue.room.is_set() for queue in self.queues.values())

    # What becomes of messages

    async def hide(self, message: ReceivedMessage, delay_level: int) -> None:
        """A message was not consumed: it comes again after a delay, which grows with each time.

        Raises nothing: a message that cannot be hidden comes again when its invisible time is over.
        """
        delays = self.options.retry_delays_s
        level = delay_level or message.reconsume_times
        delay_ms = int(delays[min(level, len(delays) - 1)] * 1000)
        receipt = self._popper.receipt_of(message.topic, message.receipt_handle or "")
        try:
            await self._popper.change_invisible(receipt, delay_ms)
        except KourouError as error:
            log.warning("%s comes again after its invisible time: %s", message.message_id, error)

    def acknowledge(self, message: ReceivedMessage) -> None:
        """A message is done with."""
        self._acknowledge([self._popper.receipt_of(message.topic, message.receipt_handle or "")])

    def _acknowledge_soon(self, delivery: Delivery) -> None:
        batch = delivery.batch
        topic = delivery.queue.queue.topic
        self._acknowledge(
            batch_receipts(batch) if batch is not None else message_receipts(topic, delivery.messages)
        )

    def _acknowledge(self, receipts: Iterable[Receipt]) -> None:
        self._done.extend(receipts)
        if self._done and self._acking is None:
            # Not of _readers: acknowledgements of what was done go on while a consumer closes.
            self._acking = asyncio.get_running_loop().create_task(self._acknowledge_all())

    async def flush(self) -> None:
        """Wait until what is done is acknowledged."""
        if self._acking is not None:
            await self._acking

    async def _acknowledge_all(self) -> None:
        try:
            while self._done:
                receipts, self._done = list(dict.fromkeys(self._done)), []
                try:
                    await self._popper.ack(receipts)
                except (ExpiredHandleError, RefusedError) as error:
                    log.warning("group %s: %s", self._group, error)
                except KourouError as error:
                    self._core.warnings.warn(
                        log, self._group, "group %s: %d messages are not acknowledged yet: %s", self._group,
                        len(receipts), error,
                    )  # fmt: skip
                    if not self._is_stopping:
                        self._done += receipts  # those whose time is over are left out next time
                        await asyncio.sleep(ACK_AGAIN_S)
        finally:
            self._acking = None


def batch_receipts(batch: object) -> list[Receipt]:
    """The receipts of a batch that was popped."""
    assert isinstance(batch, PopBatch)
    return [(batch.queue.topic, handle) for handle in batch.row_handles]


def message_receipts(topic: str, messages: Iterable[ReceivedMessage]) -> list[Receipt]:
    """The receipts of messages that were popped of a topic."""
    return [(topic, message.receipt_handle) for message in messages if message.receipt_handle is not None]

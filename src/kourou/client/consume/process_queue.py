"""ProcessQueue: one queue that a consumer reads: messages pulled, in work, and done.

    pulled → `waiting` → `take` gives a Delivery → `done` → everything up to the first that is not is consumed

The committed offset is that of the oldest message that is not done, so that a crash of this process loses
nothing. `seek` moves the queue: pulled messages are dropped, and messages in work no longer count.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from kourou.client.consume.received import MessageBatch, ReceivedMessage, held_bytes
from kourou.message.model import MessageQueue

LOCK_LIVES_S = 30.0  # a lock that was not renewed for this long is not trusted (the broker's live 60 s)


class Delivery:
    """Messages that were given out together, from one queue."""

    __slots__ = (
        "batch", "count", "end", "epoch", "is_done", "messages", "queue", "size_bytes", "start", "started_at",
    )  # fmt: skip

    def __init__(
        self, queue: ProcessQueue, start: int, end: int, messages: list[ReceivedMessage], epoch: int
    ) -> None:
        self.queue = queue
        self.start = start  # the offset of the first
        self.end = end  # the offset after the last
        self.messages = messages
        self.batch: MessageBatch | None = None  # where a whole batch was given out
        self.count = len(messages)
        self.size_bytes = held_bytes(messages)
        self.epoch = epoch
        self.is_done = False
        self.started_at = time.monotonic()

    @property
    def counts(self) -> bool:
        """Whether what becomes of it still matters."""
        return self.epoch == self.queue.epoch and not self.is_done


class ProcessQueue:
    """A queue and what is under way of it."""

    def __init__(
        self, queue: MessageQueue, position: int, *, exclusive: bool = False, locked: bool = False
    ) -> None:
        self.queue = queue
        self.position = position  # the offset that is pulled next
        self.epoch = 0  # counts the seeks
        self.is_dropped = False
        self.is_paused = False
        self.is_exclusive = exclusive  # in order: one delivery at a time
        self.needs_lock = locked  # and only under a lock of the broker's
        self.is_listed = False  # whether the Inbox knows that it has messages
        self.room = asyncio.Event()  # set while more may be pulled
        self.idle = asyncio.Event()  # set while nothing is being worked on
        self.room.set()
        self.idle.set()
        self.max_offset = -1  # of the queue at the broker, as of the last pull
        self.count = 0  # records pulled and not done
        self.size_bytes = 0
        self._batches: deque[MessageBatch] = deque()
        self._messages: deque[ReceivedMessage] = deque()  # of the batch that was opened
        self._opened_end = 0  # the offset after that batch
        self._newest_end = position  # the offset after the last that was pulled
        self.done_offset = position  # the offset after the last that is done, with all before it
        self._deliveries: deque[Delivery] = deque()
        now = time.time()
        self.last_pull_at = self.last_consume_at = now
        self.locked_at = time.monotonic()

    # Pulled

    def put(self, batch: MessageBatch) -> None:
        """Take what a pull brought."""
        self._batches.append(batch)
        self.count += batch.size
        self.size_bytes += len(batch.body)
        self.position = self._newest_end = batch.next_offset

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to give out."""
        return bool(self._messages or self._batches)

    @property
    def can_deliver(self) -> bool:
        """Whether it may be given out now."""
        return (
            self.has_waiting
            and not self.is_dropped
            and not self.is_paused
            and not (self.is_exclusive and self._deliveries)
            and (not self.needs_lock or self.has_lock)
        )

    @property
    def has_lock(self) -> bool:
        """Whether the broker's lock is fresh enough to be trusted."""
        return time.monotonic() - self.locked_at < LOCK_LIVES_S

    # Given out

    def take(self, most: int) -> Delivery | None:
        """Up to `most` messages, in their order; None if what was pulled had no message that is wanted."""
        while not self._messages and self._batches:
            batch = self._batches.popleft()
            self._messages.extend(batch.messages)
            self._opened_end = batch.next_offset
            size_bytes = held_bytes(batch.messages)
            self._change(len(batch.messages) - batch.size, size_bytes - len(batch.body))
        waiting = self._messages
        if not waiting:
            return None
        messages = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        # The last message of a batch ends where the batch ends: records after it that are not wanted (other
        # tags, for example) are consumed with it, or the queue would never catch up.
        end = messages[-1].queue_offset + 1 if waiting else self._opened_end
        return self._give(Delivery(self, messages[0].queue_offset, end, messages, self.epoch))

    def take_batch(self) -> Delivery | None:
        """What one pull brought, as it is; what is left of one that was opened goes first."""
        if self._messages or not self._batches:
            return self.take(len(self._messages) or 1)
        batch = self._batches.popleft()
        delivery = Delivery(self, batch.start_offset, batch.next_offset, [], self.epoch)
        delivery.batch = batch
        delivery.count, delivery.size_bytes = batch.size, len(batch.body)
        return self._give(delivery)

    def _give(self, delivery: Delivery) -> Delivery:
        self._deliveries.append(delivery)
        self.idle.clear()
        self.last_consume_at = time.time()
        return delivery

    def give_back(self, delivery: Delivery) -> None:
        """Put what is left of the messages of a delivery back where they were: they are given out again."""
        if delivery.counts:
            size_bytes = held_bytes(delivery.messages)
            self._change(len(delivery.messages) - delivery.count, size_bytes - delivery.size_bytes)
            self._messages.extendleft(reversed(delivery.messages))
            self._deliveries.remove(delivery)
            self._note_idle()

    def done(self, delivery: Delivery) -> bool:
        """A delivery is consumed; whether the offset to commit has moved."""
        if not delivery.counts:
            return False
        delivery.is_done = True
        self._change(-delivery.count, -delivery.size_bytes)
        # Deliveries may be done in any order, but the offset moves only past the oldest of them. What came
        # after a delivery that is lost with this process is then delivered again: at least once.
        if self._deliveries[0] is not delivery:
            return False
        while self._deliveries and self._deliveries[0].is_done:
            self.done_offset = self._deliveries.popleft().end
        assert self.done_offset <= self.position, "an offset that was never pulled is not done"
        self._note_idle()
        return True

    def _note_idle(self) -> None:
        if not self._deliveries:
            self.idle.set()

    def _change(self, count_by: int, bytes_by: int) -> None:
        self.count += count_by
        self.size_bytes += bytes_by

    @property
    def oldest(self) -> Delivery | None:
        """What is being worked on for the longest time."""
        return self._deliveries[0] if self._deliveries else None

    @property
    def commit_offset(self) -> int:
        """The offset up to which everything is consumed."""
        return self._deliveries[0].start if self._deliveries else self.given_offset

    @property
    def given_offset(self) -> int:
        """The offset after the last message that was given out."""
        if self._messages:
            return self._messages[0].queue_offset
        return self._batches[0].start_offset if self._batches else self.position

    @property
    def span(self) -> int:
        """How far the newest message that was pulled is from the oldest that is not done."""
        return self._newest_end - self.commit_offset

    # Moved

    def seek(self, offset: int) -> None:
        """Go on at another offset."""
        self.epoch += 1
        self._batches.clear()
        self._messages.clear()
        self._deliveries.clear()
        self.count = self.size_bytes = 0
        self.position = self._newest_end = self.done_offset = offset
        self.room.set()
        self.idle.set()

    def drop(self) -> None:
        """The queue is not ours any more: nothing more is given out."""
        self.is_dropped = True
        self._batches.clear()
        self._messages.clear()
        self.room.set()


class Inbox:
    """The queues that have something to give out, and those who wait for it. Queues take turns."""

    def __init__(self) -> None:
        self._ready: deque[ProcessQueue] = deque()
        self.is_closed = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def offer(self, queue: ProcessQueue) -> None:
        """Tell that a queue has something, if it has."""
        if not queue.is_listed and queue.can_deliver and not self.is_closed:
            queue.is_listed = True
            self._ready.append(queue)
            self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def next_ready(self) -> ProcessQueue | None:
        """The next queue that has something; it is offered again by whoever took from it."""
        while self._ready:
            queue = self._ready.popleft()
            queue.is_listed = False
            if queue.can_deliver:
                return queue
        return None

    def close(self) -> None:
        """Close: everyone who waits gets None."""
        self.is_closed = True
        self._ready.clear()
        for _ in range(len(self._waiters)):
            self._wake()

    async def wait(self) -> ProcessQueue | None:
        """The next queue that has something, whenever that is; None when there will be no more."""
        while not self.is_closed:
            found = self.next_ready()
            if found is not None:
                return found
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # another task may have taken the queue
                raise
        return None

"""Buffer: check points that wait in memory for their acknowledgements (PopBufferMergeService).

With `enablePopBufferMerge`, which is off by default as in Java, a pop writes nothing. What is acknowledged
within seconds never comes to the log: its check point is forgotten, and the group's offset moves past it. A
check point that is still open after `popCkStayBufferTime`, or due within `popCkStayBufferTimeOut`, is written
with the acknowledgements that it has. Of a queue they are written in the order of the pops, each after all
before it, so that the offset of the group is never past a message of which nothing is known.

A broker that stops writes all of them. One that is killed forgets them: their messages are popped again from
the offset, which has not moved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from kourou.broker.pop.checkpoints import Ack, CheckPoint, CheckPointKey

if TYPE_CHECKING:
    from kourou.broker.server import Broker

LEAST_MS = 1500  # that a check point stays at least: what is due sooner is written at once
LOOK_S = 0.1

QueueKey = tuple[str, str, int]  # topic, group, queue


class _Step:
    """A pop of a queue, or messages that were passed: the offset that follows when it is done."""

    __slots__ = ("next_offset", "point", "revive_queue", "write_at_ms")

    def __init__(
        self, next_offset: int, point: CheckPoint | None, revive_queue: int, write_at_ms: int
    ) -> None:
        self.next_offset = next_offset
        self.point = point
        self.revive_queue = revive_queue
        self.write_at_ms = write_at_ms

    def __lt__(self, other: _Step) -> bool:
        return self.write_at_ms < other.write_at_ms

    @property
    def is_done(self) -> bool:
        return self.point is None or self.point.is_acked


class Buffer:
    """The check points of a broker that are in memory only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._steps: dict[CheckPointKey, _Step] = {}
        self._queues: dict[QueueKey, deque[_Step]] = {}
        self._to_write: list[_Step] = []
        self._timer: asyncio.TimerHandle | None = None
        self.on_look: Callable[[int], None] | None = None  # hears how many ms a look took

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def offset_count(self) -> int:
        """Pops that are here, and what was passed between them."""
        return sum(map(len, self._queues.values()))

    def next_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where the next pop of a queue begins; -1 if nothing of it is here."""
        queue = self._queues.get((topic, group, queue_id)) if self._queues else None
        return -1 if queue is None else queue[-1].next_offset

    def take(self, point: CheckPoint, revive_queue: int, next_offset: int) -> bool:
        """Keep a check point; False where it has to be written, after those of its queue."""
        config, now_ms = self._broker.config, self._broker.clock.now_ms()
        if not config.enable_pop_buffer_merge:
            return False
        queue = self._queues.get((point.topic, point.group, point.queue_id), ())
        if (
            point.due_ms - now_ms <= config.pop_ck_stay_buffer_time_out + LEAST_MS
            or len(self._steps) >= config.pop_ck_max_buffer_size
            or len(queue) >= config.pop_ck_offset_max_queue_size
            or point.key in self._steps
        ):
            return False
        write_at_ms = min(
            now_ms + config.pop_ck_stay_buffer_time, point.due_ms - config.pop_ck_stay_buffer_time_out
        )
        step = self._steps[point.key] = _Step(next_offset, point, revive_queue, write_at_ms)
        self._add(step, (point.topic, point.group, point.queue_id))
        heappush(self._to_write, step)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return True

    def passed(self, topic: str, group: str, queue_id: int, next_offset: int) -> bool:
        """Messages that no filter wants were passed; False if the offset may move at once."""
        key = topic, group, queue_id
        if key not in self._queues:
            return False
        self._add(_Step(next_offset, None, 0, 0), key)
        return True

    def _add(self, step: _Step, key: QueueKey) -> None:
        self._queues.setdefault(key, deque()).append(step)

    def ack(self, done: Ack) -> bool:
        """Note acknowledgements; False where their check point is not here."""
        step = self._steps.get(done.key) if self._steps else None
        if step is None or step.point is None:
            return False
        for offset in done.offsets:
            step.point.ack(offset)
        if step.point.is_acked:
            del self._steps[done.key]
            self._advance((done.topic, done.group, done.queue_id))
        return True

    def _advance(self, key: QueueKey) -> None:
        """Move the offset of a queue past what is done."""
        queue, moved = self._queues[key], -1
        while queue and queue[0].is_done:
            moved = queue.popleft().next_offset
        if not queue:
            del self._queues[key]
        if moved >= 0:
            topic, group, queue_id = key
            self._broker.offsets.commit("pop", group, topic, queue_id, moved)

    def write_queue(self, topic: str, group: str, queue_id: int) -> bool:
        """Write all check points of a queue; False where one could not be."""
        key = topic, group, queue_id
        queue = self._queues.get(key)
        return queue is None or self._write_up_to(key, queue[-1])

    def _write_up_to(self, key: QueueKey, last: _Step) -> bool:
        queue, is_last = self._queues[key], False
        while queue and not is_last:
            step = queue[0]
            is_last = step is last
            if not step.is_done and not self._write(step):
                return False
            self._advance(key)
        return True

    def _write(self, step: _Step) -> bool:
        point = step.point
        assert point is not None
        popper, left = self._broker.popper, set(point.open_offsets())
        # As in Java, acknowledgements follow it in records of their own.
        if not popper.put_check_point(replace(point, acked=0), step.revive_queue).ok:
            return False
        del self._steps[point.key]  # from here on acknowledgements are written
        for offset in point.offsets:
            if offset not in left:
                done = Ack(
                    *point.key[:2],
                    point.queue_id,
                    point.start_offset,
                    point.pop_time_ms,
                    point.broker,
                    [offset],
                )
                popper.put_ack(done, step.revive_queue, point.invisible_ms)
        point.acked = (1 << len(point.differences)) - 1
        return True

    def _look(self) -> None:
        """Write what has waited long enough."""
        now_ms, began_ms = self._broker.clock.now_ms(), self._broker.clock.elapsed_ms()
        self._timer = None
        while self._to_write and self._to_write[0].write_at_ms <= now_ms:
            step = heappop(self._to_write)
            point = step.point
            if point is None or self._steps.get(point.key) is not step:
                continue  # done before
            if not self._write_up_to((point.topic, point.group, point.queue_id), step):
                heappush(self._to_write, step)  # it is tried again with the next look
                break
        if self.on_look is not None:
            self.on_look(self._broker.clock.elapsed_ms() - began_ms)
        if self._to_write:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """A topic or a group was deleted."""
        for key in [key for key in self._queues if key[0] == topic or key[1] == group]:
            for step in self._queues.pop(key):
                if step.point is not None:
                    self._steps.pop(step.point.key, None)

    def stop(self) -> None:
        """Write all that is here."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._queues):
            self.write_queue(*key)

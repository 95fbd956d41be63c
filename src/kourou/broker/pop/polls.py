"""Polls: requests that wait for a message of a topic (PopLongPollingService).

They wait by topic, group and queue, -1 for any queue. A message that arrives wakes, of each group, who has
waited longest (or, for notifications, shortest) for any queue, and for its own; those whose filter does not
let it through go on waiting. One timer ends those whose time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from kourou.broker.messages.filters import AnyFilter, wants
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.command import RemotingCommand

ANY_QUEUE = -1
MAX_POLLS = 100_000  # Java's maxPopPollingSize
MAX_POLLS_OF_KEY = 1024  # Java's popPollingSize
FORCED_EVERY = (
    800  # each such offset wakes whatever the filter says: Java's popLongPollingForceNotifyInterval
)

_SWEEP_AT = 1024

PollKey = tuple[str, str, int]  # topic, group, queue
Again = Callable[[Connection, RemotingCommand, bool], None]  # try a request once more; True: its time is up


class Poll:
    """A request that waits."""

    __slots__ = ("connection", "deadline", "filter", "key", "request")

    def __init__(
        self,
        connection: Connection,
        request: RemotingCommand,
        key: PollKey,
        deadline: float,
        message_filter: AnyFilter | None,
    ) -> None:
        self.connection = connection
        self.request = request
        self.key = key
        self.deadline = deadline
        self.filter = message_filter

    def __lt__(self, other: Poll) -> bool:
        return self.deadline < other.deadline


class Polls:
    """All that wait for one kind of request. `newest_first` wakes who came last."""

    def __init__(self, again: Again, awaited: dict[Poll, None], *, newest_first: bool = False) -> None:
        self._again = again
        self._awaited = awaited  # those of all kinds
        self._newest_first = newest_first
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, dict[str, set[int]]] = {}  # by topic and group: what is waited for
        self._by_key: dict[PollKey, dict[Poll, None]] = {}
        self._by_connection: dict[Connection, dict[Poll, None]] = {}
        self._deadlines: list[Poll] = []
        self._timer: asyncio.TimerHandle | None = None
        self._woken: list[Poll] = []
        self.count = 0

    def waiting(self, key: PollKey) -> int:
        """How many wait for a queue of a topic."""
        return len(self._by_key.get(key, ()))

    def has_room(self, key: PollKey) -> bool:
        """Whether one more may wait."""
        return self.count < MAX_POLLS and self.waiting(key) <= MAX_POLLS_OF_KEY

    def add(self, poll: Poll) -> None:
        """Have a request wait."""
        poll.request.body = None
        self._by_key.setdefault(poll.key, {})[poll] = None
        self._by_connection.setdefault(poll.connection, {})[poll] = None
        topic, group, queue_id = poll.key
        self._queues.setdefault(topic, {}).setdefault(group, set()).add(queue_id)
        self.count += 1
        self._awaited[poll] = None
        if len(self._deadlines) > 2 * self.count + _SWEEP_AT:  # those that are over lie in it until then
            self._deadlines = [other for other in self._deadlines if other in self._by_key.get(other.key, ())]
            heapify(self._deadlines)
        heappush(self._deadlines, poll)
        if self._deadlines[0] is poll:
            self._set_timer()

    def arrived(
        self,
        topic: str,
        queue_id: int,
        tags_code: int,
        properties: Mapping[str, str] | None,
        offset: int,
    ) -> None:
        """A message is there: wake who waits for it. Of a batch, the properties are not known."""
        for group in list(self._queues.get(topic, ())):
            for queue in (ANY_QUEUE, queue_id):
                poll = self._first((topic, group, queue))
                if poll is None:
                    continue
                if offset % FORCED_EVERY == 0 or wants(poll.filter, tags_code, properties):
                    self._wake(poll)

    def wake_any(self, topic: str, group: str) -> None:
        """A retry of a group is there, which every poll of it looks for: wake one, for whichever queue."""
        queues = self._queues.get(topic, {}).get(group, ())
        poll = self._first((topic, group, min(queues))) if queues else None
        if poll is not None:
            self._wake(poll)

    def wake_one(self, topic: str, group: str, queue_id: int) -> None:
        """There is, or may be, something for a group: wake one who waits for any queue and one for this."""
        for queue in {ANY_QUEUE, queue_id}:
            poll = self._first((topic, group, queue))
            if poll is not None:
                self._wake(poll)

    def _first(self, key: PollKey) -> Poll | None:
        polls = self._by_key.get(key)
        if not polls:
            return None
        return next(reversed(polls)) if self._newest_first else next(iter(polls))

    def _wake(self, poll: Poll) -> None:
        """Try a request again when this turn of the loop ends."""
        self._remove(poll)
        if not self._woken:
            self._loop.call_soon(self._try_woken)
        self._woken.append(poll)

    def _try_woken(self) -> None:
        woken, self._woken = self._woken, []
        for poll in woken:
            if poll.connection.is_open:
                self._again(poll.connection, poll.request, False)

    def _remove(self, poll: Poll) -> bool:
        """Take a poll out of the tables; False if it is out already."""
        polls = self._by_key.get(poll.key)
        if polls is None or poll not in polls:
            return False
        del polls[poll]
        if not polls:
            del self._by_key[poll.key]
            topic, group, queue_id = poll.key
            groups = self._queues[topic]
            groups[group].discard(queue_id)
            if not groups[group]:
                del groups[group]
            if not groups:
                del self._queues[topic]
        of_connection = self._by_connection[poll.connection]
        del of_connection[poll]
        if not of_connection:
            del self._by_connection[poll.connection]
        self.count -= 1
        del self._awaited[poll]
        return True

    def connection_lost(self, connection: Connection) -> None:
        """Nobody waits on that connection any more."""
        for poll in list(self._by_connection.get(connection, ())):
            self._remove(poll)

    def stop(self) -> None:
        """Answer all who wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for poll in [poll for polls in self._by_key.values() for poll in polls]:
            self._end(poll)

    def _end(self, poll: Poll) -> None:
        if self._remove(poll):
            self._again(poll.connection, poll.request, True)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadlines[0].deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._deadlines and self._deadlines[0].deadline <= now:
            self._end(heappop(self._deadlines))
        if self._deadlines:
            self._set_timer()

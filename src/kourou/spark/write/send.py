"""BatchSender: many messages to many queues, in batches, with several requests under way.

Messages of a queue wait until they fill a batch. A queue has one request under way at a time, so that what
goes to one queue keeps its order; others are under way meanwhile. A batch that a broker does not take is
sent again, where the queue was not named by the caller also to another broker. It may then be stored twice:
unique ids tell. A sender that is given `stored`, which looks into a queue, sends only what is not there.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from kourou.client.routes import TopicRoute
from kourou.errors import BadMessageError, KourouError
from kourou.message import Message
from kourou.message.batch import encode_in_batch
from kourou.message.model import MessageQueue
from kourou.message.properties import DELAY_TIME_LEVEL, TIMER_DELIVER_MS, encode_properties, java_hash
from kourou.message.topics import AUTO_CREATE_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.spark.channel import (
    RETRY_CODES,
    AnsweredError,
    AwayError,
    Channel,
    ChannelError,
    Wait,
    channel_to,
    retrying,
)
from kourou.spark.cluster import ClusterView, UnknownTopicError

log = logging.getLogger(__name__)

DEFAULT_QUEUES = 4
BATCH_BYTES = 256 * 1024
BATCH_RECORDS = 1000
REQUESTS_UNDER_WAY = 16

_STORED = (
    ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)  # fmt: skip
# A message that is wrong stays wrong; anything else may be better a moment later or elsewhere.
_FINAL = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION)


@dataclass(slots=True)
class _Batch:
    queue: MessageQueue
    keys: list[str] = field(default_factory=list)  # the unique ids of its messages
    entries: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    named: bool = False  # the caller named the queue: no other will do
    single: Message | None = None  # a message in a request of its own
    sys_flag: int = 0
    wait: Wait | None = None
    doubtful: bool = False  # a broker may have it
    opaque: int = 0
    channel: Channel | None = None  # None: nothing is under way


class BatchSender:
    """Sends messages; `flush` when there are no more."""

    def __init__(
        self,
        cluster: ClusterView,
        *,
        group: str,
        batch_bytes: int = BATCH_BYTES,
        batch_records: int = BATCH_RECORDS,
        first_turn: int = 0,
        is_first: bool = True,
        stored: Callable[[MessageQueue, Collection[str]], Collection[str]] | None = None,
        allowed: Collection[MessageQueue] | None = None,
    ) -> None:
        """`is_first`: nobody has sent there before, and what is away may as well be wrong. `allowed`: queues
        that messages may go to; all by default."""
        self._is_first = is_first
        self._stored = stored
        self._allowed = allowed
        self.seen: set[str] = set()  # topics that exist
        self._unknown_since: dict[str, float] = {}
        self._cluster = cluster
        self._group = group
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._turn = itertools.count(first_turn)
        self._routes: dict[str, TopicRoute] = {}
        self._open: dict[MessageQueue, _Batch] = {}
        self._rolling: dict[str, MessageQueue] = {}  # of each topic the queue whose batch is being filled
        self._under_way: dict[MessageQueue, _Batch] = {}
        self._channels: dict[str, Channel] = {}
        self.sent = 0
        self.requests = 0

    # Messages in

    def add(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        sys_flag: int = 0,
    ) -> None:
        """Take a message, and send what is full."""
        if sys_flag or DELAY_TIME_LEVEL in message.properties or TIMER_DELIVER_MS in message.properties:
            queue, named = self._choose(message.topic, queue_id, sharding_key)
            # A batch takes none of these.
            keys = [message.properties["UNIQ_KEY"]]
            self._send(_Batch(queue, keys, named=named, single=message, sys_flag=sys_flag))
            return
        try:
            entry = encode_in_batch(
                message.body, encode_properties(message.properties).encode(), message.flag
            )
        except BadMessageError as error:
            raise KourouError(f"a message for {message.topic}: {error}") from error
        key = message.properties["UNIQ_KEY"]
        self.add_encoded(message.topic, entry, key, queue_id=queue_id, sharding_key=sharding_key)

    def add_encoded(
        self,
        topic: str,
        entry: bytes,
        unique_key: str,
        *,
        queue_id: int | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Take a message in the form that a batch has it in, and send what is full. Hot."""
        queue, named = self._choose(topic, queue_id, sharding_key)
        batch = self._open.get(queue)
        if batch is not None and batch.size_bytes + len(entry) > self._batch_bytes:
            self._close(batch)
            queue, named = self._choose(topic, queue_id, sharding_key)
            batch = self._open.get(queue)
        if batch is None:
            batch = self._open[queue] = _Batch(queue, named=named)
        batch.entries.append(entry)
        batch.keys.append(unique_key)
        batch.size_bytes += len(entry)
        if len(batch.entries) >= self._batch_records:
            self._close(batch)

    def flush(self) -> None:
        """Send everything, and wait until brokers have it."""
        for batch in list(self._open.values()):
            self._close(batch)
        while self._under_way:
            self._settle(next(iter(self._under_way.values())))

    # Queues

    def choose(self, topic: str, queue_id: int | None, sharding_key: str | None) -> MessageQueue:
        """The queue for the next message."""
        queues = self.write_queues(topic)
        if sharding_key is not None:
            return queues[abs(java_hash(sharding_key)) % len(queues)]
        if queue_id is not None:
            own = [queue for queue in queues if queue.queue_id == queue_id]
            if not own:
                raise KourouError(f"column queueId: topic {topic} has no queue {queue_id} to write to")
            return own[next(self._turn) % len(own)]
        return queues[next(self._turn) % len(queues)]

    def _choose(
        self, topic: str, queue_id: int | None, sharding_key: str | None
    ) -> tuple[MessageQueue, bool]:
        if queue_id is not None or sharding_key is not None:
            return self.choose(topic, queue_id, sharding_key), True
        queue = self._rolling.get(topic)
        if queue is None or queue not in self._open:
            queue = self._rolling[topic] = self.choose(topic, None, None)
        return queue, False

    def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of a topic go to."""
        route = self._routes.get(topic)
        if route is None:
            settings = self._cluster.settings
            is_first = self._is_first and topic not in self.seen
            limit_s = settings.first_wait_s if is_first else settings.wait_s
            route = retrying(settings, f"topic {topic}", lambda: self._route(topic), limit_s=limit_s)
        return route.write_queues

    def _route(self, topic: str) -> TopicRoute:
        try:
            route = self._cluster.route(topic)
            self.seen.add(topic)
        except UnknownTopicError as error:
            # Its brokers may be away: another, that is not allowed to, must not make it for that.
            since = self._unknown_since.setdefault(topic, time.monotonic())
            waits = time.monotonic() - since < self._cluster.settings.first_wait_s
            if topic in self.seen or (waits and not self._is_first and self._allowed is None):
                raise
            route = self._route_of_new(topic, error)
        if self._allowed is not None:
            own = tuple(queue for queue in route.write_queues if queue in self._allowed)
            route = replace(route, write_queues=own)
        if not route.write_queues:
            raise AwayError(f"topic {topic} has no queue that can be written to")
        self._routes[topic] = route
        return route

    def _route_of_new(self, topic: str, unknown: UnknownTopicError) -> TopicRoute:
        try:
            default = self._cluster.route(AUTO_CREATE_TOPIC)
        except UnknownTopicError:
            raise unknown from None
        queues = tuple(
            queue._replace(topic=topic) for queue in default.write_queues if queue.queue_id < DEFAULT_QUEUES
        )
        return TopicRoute(topic, queues, (), default.addresses)

    # Requests

    def _close(self, batch: _Batch) -> None:
        self._open.pop(batch.queue, None)
        self._send(batch)

    def _send(self, batch: _Batch) -> None:
        before = self._under_way.get(batch.queue)
        if before is not None:
            self._settle(before)
        while len(self._under_way) >= REQUESTS_UNDER_WAY:
            self._settle(next(iter(self._under_way.values())))
        self._under_way[batch.queue] = batch
        self._submit(batch)

    def _settle(self, batch: _Batch) -> None:
        self._wait(batch)
        self._under_way.pop(batch.queue)  # which may be another one than before

    def _submit(self, batch: _Batch) -> None:
        try:
            self._request_of(batch)
        except ChannelError as error:
            self._again(batch, error)

    def _request_of(self, batch: _Batch) -> None:
        batch.channel = None
        channel = self._channel(batch.queue.broker_name)
        batch.doubtful = True  # from here on
        batch.opaque = channel.submit(self._request(batch))
        batch.channel = channel

    def _channel(self, broker_name: str) -> Channel:
        address = self._cluster.master(broker_name)
        owned = self._channels.get(address)
        if owned is not None and not owned.closed:
            return owned
        channel = self._channels[address] = channel_to(address, self._cluster.settings)
        return channel

    def _wait(self, batch: _Batch) -> None:
        while batch.channel is not None:
            try:
                answer = batch.channel.wait(batch.opaque)
            except ChannelError as error:
                self._again(batch, error)
                continue
            if answer.code in _STORED:
                self.sent += len(batch.keys)
                return
            refused = AnsweredError(batch.queue.broker_name, f"messages for {batch.queue.topic}", answer)
            if answer.code in _FINAL:
                raise refused
            self._again(batch, refused)

    def _again(self, batch: _Batch, error: KourouError) -> None:
        """Send a batch once more after a pause, or what is not stored of it: that may be nothing."""
        settings = self._cluster.settings
        if batch.wait is None:
            may_pass = not isinstance(error, AnsweredError) or error.code in RETRY_CODES
            limit_s = settings.wait_s if may_pass else settings.first_wait_s
            batch.wait = Wait(settings, f"brokers of {batch.queue.topic}", limit_s)
        while True:
            batch.wait.pause(error)
            try:
                queues = self._route(batch.queue.topic).write_queues
                if batch.doubtful and self._stored is not None:
                    self._drop_stored(batch, self._stored)
                if not batch.keys:
                    batch.channel = None
                    return
                if not batch.named:
                    others = [q for q in queues if q.broker_name != batch.queue.broker_name] or list(queues)
                    self._move(batch, others[next(self._turn) % len(others)])
                self._request_of(batch)
                return
            except (AwayError, AnsweredError) as failure:
                error = failure

    def _drop_stored(
        self, batch: _Batch, stored: Callable[[MessageQueue, Collection[str]], Collection[str]]
    ) -> None:
        """Leave in a batch only what its queue does not have; an error if the broker cannot say."""
        there = stored(batch.queue, batch.keys)
        left = [number for number, key in enumerate(batch.keys) if key not in there]
        self.sent += len(batch.keys) - len(left)
        batch.keys = [batch.keys[number] for number in left]
        batch.entries = [batch.entries[number] for number in left] if batch.single is None else []
        batch.doubtful = False

    def _move(self, batch: _Batch, queue: MessageQueue) -> None:
        """Another queue takes the batch; its place among those under way stays where it was."""
        for key, other in list(self._under_way.items()):
            if other is batch and key != queue:
                if queue in self._under_way:
                    return  # that one is busy: it is tried with the old one again
                self._under_way[queue] = self._under_way.pop(key)
        batch.queue = queue

    def _request(self, batch: _Batch) -> RemotingCommand:
        self.requests += 1
        queue, single = batch.queue, batch.single
        fields = {
            "a": self._group, "b": queue.topic, "c": AUTO_CREATE_TOPIC, "d": str(DEFAULT_QUEUES),
            "e": str(queue.queue_id), "f": str(batch.sys_flag), "g": str(time.time_ns() // 1_000_000),
            "h": "0", "i": "", "j": "0", "k": "false", "m": "false", "n": queue.broker_name,
        }  # fmt: skip
        if single is not None:
            fields["h"], fields["i"] = str(single.flag), encode_properties(single.properties)
            return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bytes(single.body))
        fields["m"], fields["i"] = "true", encode_properties({"UNIQ_KEY": batch.keys[0]})
        return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields, b"".join(batch.entries))

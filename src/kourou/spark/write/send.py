"""BatchSender: many messages to many queues, in batches, with several requests under way.

Messages of a queue wait until they fill a batch. A queue has one request under way at a time, so that what
goes to one queue keeps its order; others are under way meanwhile. A batch that a broker does not take is
sent again, where the queue was not named by the caller also to another broker. It may then be stored twice:
unique ids tell.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kourou.client.routes import TopicRoute
from kourou.errors import BadMessageError, KourouError
from kourou.message import Message
from kourou.message.batch import encode_in_batch
from kourou.message.model import MessageQueue
from kourou.message.properties import DELAY_TIME_LEVEL, TIMER_DELIVER_MS, encode_properties, java_hash
from kourou.message.topics import AUTO_CREATE_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.spark.channel import AnsweredError, Channel, ChannelError, channel_to
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
    unique_key: str = ""  # of its first message
    entries: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    named: bool = False  # the caller named the queue: no other will do
    single: Message | None = None  # a message in a request of its own
    sys_flag: int = 0
    tries: int = 0
    opaque: int = 0
    channel: Channel | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message of a single send went."""

    queue: MessageQueue
    message: Message
    answer: RemotingCommand


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
    ) -> None:
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
            self._send(_Batch(queue, named=named, single=message, sys_flag=sys_flag))
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
            batch = self._open[queue] = _Batch(queue, unique_key, named=named)
        batch.entries.append(entry)
        batch.size_bytes += len(entry)
        if len(batch.entries) >= self._batch_records:
            self._close(batch)

    def flush(self) -> None:
        """Send everything, and wait until brokers have it."""
        for batch in list(self._open.values()):
            self._close(batch)
        while self._under_way:
            self._settle(next(iter(self._under_way.values())))

    def send_singles(self, messages: Sequence[tuple[Message, MessageQueue, int]]) -> Iterator[Sent]:
        """Each message in a request of its own, with its system flag; where each went, in order."""
        waiting: list[_Batch] = []
        for message, queue, sys_flag in messages:
            batch = _Batch(queue, single=message, sys_flag=sys_flag, named=True)
            self._submit(batch)
            waiting.append(batch)
            if len(waiting) >= REQUESTS_UNDER_WAY:
                yield self._sent(waiting.pop(0))
        for batch in waiting:
            yield self._sent(batch)

    def _sent(self, batch: _Batch) -> Sent:
        assert batch.single is not None
        return Sent(batch.queue, batch.single, self._wait(batch))

    # Queues

    def choose(self, topic: str, queue_id: int | None, sharding_key: str | None) -> MessageQueue:
        """The queue for the next message."""
        queues = self._write_queues(topic)
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

    def _write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        route = self._routes.get(topic)
        if route is None:
            try:
                route = self._cluster.route(topic)
            except UnknownTopicError:
                default = self._cluster.route(AUTO_CREATE_TOPIC)
                queues = tuple(
                    queue._replace(topic=topic)
                    for queue in default.write_queues
                    if queue.queue_id < DEFAULT_QUEUES
                )
                route = TopicRoute(topic, queues, (), default.addresses)
            self._routes[topic] = route
        if not route.write_queues:
            raise KourouError(f"topic {topic} has no queue that can be written to")
        return route.write_queues

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
            batch.channel = self._channel(batch.queue.broker_name)
            batch.opaque = batch.channel.submit(self._request(batch))
        except ChannelError as error:
            batch.channel = None
            self._again(batch, error)

    def _channel(self, broker_name: str) -> Channel:
        address = self._cluster.address(broker_name)
        owned = self._channels.get(address)
        if owned is not None and not owned.closed:
            return owned
        channel = self._channels[address] = channel_to(address, self._cluster.settings)
        return channel

    def _wait(self, batch: _Batch) -> RemotingCommand:
        while True:
            assert batch.channel is not None
            try:
                answer = batch.channel.wait(batch.opaque)
            except ChannelError as error:
                self._again(batch, error)
                continue
            if answer.code in _STORED:
                self.sent += len(batch.entries) or 1
                return answer
            refused = AnsweredError(batch.queue.broker_name, f"messages for {batch.queue.topic}", answer)
            if answer.code in _FINAL:
                raise refused
            self._again(batch, refused)

    def _again(self, batch: _Batch, error: KourouError) -> None:
        settings = self._cluster.settings
        while True:
            batch.tries += 1
            if batch.tries > settings.retries:
                raise error
            log.warning("messages for %s are sent again: %s", batch.queue.topic, error)
            time.sleep(settings.retry_interval_s * 2 ** (batch.tries - 1))
            self._routes.pop(batch.queue.topic, None)
            try:
                queues = self._write_queues(batch.queue.topic)
                if not batch.named:
                    others = [q for q in queues if q.broker_name != batch.queue.broker_name] or list(queues)
                    self._move(batch, others[next(self._turn) % len(others)])
                batch.channel = self._channel(batch.queue.broker_name)
                batch.opaque = batch.channel.submit(self._request(batch))
                return
            except ChannelError as failure:
                error = failure

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
        fields["m"], fields["i"] = "true", encode_properties({"UNIQ_KEY": batch.unique_key})
        return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields, b"".join(batch.entries))

"""PopBatch: what a pop brought, and the receipt handles of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kourou.client.consume.received import MessageBatch, ReceivedMessage
from kourou.errors import CorruptRecordError
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.handles import NORMAL, read_counts, read_handles, retry_topic

if TYPE_CHECKING:
    from kourou.remoting.protocol.subscription import SubscriptionData


class PopBatch(MessageBatch):
    """The messages of one pop: of several queues of a broker, and of the group's retry topic.

    Each message has the receipt handle that acknowledges it. Records of inner batches have one handle for
    all of their messages.
    """

    __slots__ = ("_counts", "_places", "handles", "pop_time_ms", "rest")

    def __init__(
        self,
        queue: MessageQueue,
        body: bytes,
        fields: Mapping[str, str],
        group: str,
        wanted: SubscriptionData | None = None,
        *,
        namespace: str | None = None,
    ) -> None:
        self._places = places = read_handles(fields, queue.broker_name)
        super().__init__(queue, body, 0, len(places), wanted, group=group, namespace=namespace)
        self._counts = read_counts(fields)
        self.rest = int(fields.get("restNum", 0))  # how many messages the queues have left, about
        self.pop_time_ms = int(fields.get("popTime", 0))
        self.handles = [place.text for place in places]
        # The stored record of these is not what a user shall see: its topic, or how often it came.
        if self._counts or self.is_filtered or any(place.kind != NORMAL for place in places):
            _ = self.messages

    @classmethod
    def none(cls, queue: MessageQueue) -> PopBatch:
        """A batch without messages."""
        return cls(queue, b"", {}, "")

    def _place(self, message: ReceivedMessage, number: int) -> None:
        """Say of a message where it lies. Answers have records and offsets in the same order."""
        if number >= len(self._places):
            raise CorruptRecordError(f"{self.queue} gave more records than the {len(self._places)} it names")
        place = self._places[number]
        topic = self.queue.topic
        message.topic = topic
        real = retry_topic(topic, self._group, place.kind)
        message.queue = MessageQueue(real, self.queue.broker_name, place.queue_id)
        message.receipt_handle = self.handles[number]
        message.pop_time_ms = self.pop_time_ms
        if self._counts:
            of_queue = self._counts.get((place.queue_id, -1), 0)
            times = self._counts.get((place.queue_id, place.queue_offset), of_queue)
            message.reconsume_times = times or message.reconsume_times

    @property
    def row_handles(self) -> list[str]:
        """The receipt handle of each message, as they are in `messages` or, before that, in the body."""
        return [message.receipt_handle or "" for message in self.messages] if self.is_opened else self.handles

    @property
    def unwanted_handles(self) -> list[str]:
        """The handles of records that have the hash of a wanted tag, but another tag."""
        if not self.is_filtered:
            return []
        wanted = set(self.row_handles)
        return [handle for handle in self.handles if handle not in wanted]

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """The messages as a RecordBatch, with a column `receipt_handle` (extra `arrow`)."""
        from kourou.client.consume.arrow import popped_to_arrow

        return popped_to_arrow([self], columns)

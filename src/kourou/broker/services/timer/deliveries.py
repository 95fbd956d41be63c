"""DeliveredBefore: which timer messages were delivered before a crash, though no checkpoint says so.

The checkpoint of the timers is a second old at best. What was delivered since then has kept the properties of
its timer, so that it is found at the end of its queue, and does not come a second time.
"""

from __future__ import annotations

from kourou.message import properties as names
from kourou.message.properties import decode_properties
from kourou.store import InnerMessage, MessageStore

MARGIN_MS = 5000  # clocks are set, and the times of a queue are not always in order
MAX_ENTRIES = 500_000  # of a queue that are looked at: more were not put between checkpoint and crash

# Unique id, time of birth, retries, time in the wheel, how often it was rolled
_Identity = tuple[str | None, int, int, str | None, str | None]


class DeliveredBefore:
    """The timer messages at the ends of queues, from some time on, queue by queue as they are asked for."""

    def __init__(self, store: MessageStore, since_ms: int) -> None:
        self._store = store
        self._since_ms = since_ms - MARGIN_MS
        self._queues: dict[tuple[str, int], set[_Identity]] = {}

    def has(self, message: InnerMessage) -> bool:
        """Whether this message, as it would be put now, was put before."""
        key = message.topic, message.queue_id
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = self._read(*key)
        identity = _identity(message.properties, message.born_timestamp, message.reconsume_times)
        return identity[0] is not None and identity in found

    def _read(self, topic: str, queue_id: int) -> set[_Identity]:
        store = self._store
        queue = store.queues.get(topic, queue_id)
        if queue is None:
            return set()
        first = store.offset_by_time(topic, queue_id, self._since_ms)
        found = set()
        for entry in queue.iterate(max(first, queue.max_offset - MAX_ENTRIES)):
            stored = store.look_message(entry.physical_offset)
            if stored is not None and names.TIMER_DEQUEUE_MS in stored.properties_raw:
                properties = decode_properties(stored.properties_raw)
                found.add(_identity(properties, stored.born_timestamp, stored.reconsume_times))
        return found


def _identity(properties: dict[str, str], born_timestamp: int, reconsume_times: int) -> _Identity:
    get = properties.get
    return (
        get(names.UNIQ_KEY), born_timestamp, reconsume_times, get(names.TIMER_OUT_MS),
        get(names.TIMER_ROLL_TIMES),
    )  # fmt: skip

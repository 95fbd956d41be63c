"""TimerMetrics: how many messages of each topic wait for their time (TimerMetrics), in config/timermetrics.

{"dataVersion": {"counter": 22, …}, "timingCount": {topic: {"count": 2, "timeStamp": ms of the last change}}}
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from kourou.broker.state.versions import next_version
from kourou.clock import Clock
from kourou.message import java_hash
from kourou.message.topics import SYSTEM_PREFIX
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import DataVersion
from kourou.store.queue.queue_store import is_lmq


class TimerMetrics:
    """The counts by topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counts: dict[str, list[int]] = {}  # topic -> [count, ms of the last change]
        self.data_version = DataVersion()
        self.dirty = False

    def encode(self) -> bytes:
        """The counts as Java's file has them."""
        counts = {
            topic: {"count": count, "timeStamp": time_ms}
            for topic, (count, time_ms) in sorted(self.counts.items())
        }
        return lenient_json.dumps({"dataVersion": self.data_version.to_json(), "timingCount": counts})

    def decode(self, value: Any) -> None:
        """Take the counts of a file."""
        counts = value.get("timingCount") or {}
        self.counts = {
            str(topic): [int(one["count"]), int(one["timeStamp"])] for topic, one in counts.items()
        }
        self.data_version = DataVersion.from_json(value.get("dataVersion") or {})

    def count(self, topic: str) -> int:
        """How many messages of a topic wait."""
        return self.counts.get(topic, (0,))[0]

    def add(self, topic: str, change: int) -> None:
        """So many more, or fewer, wait."""
        now_ms = self._clock.now_ms()
        found = self.counts.setdefault(topic, [0, now_ms])
        found[0] += change
        found[1] = now_ms
        self.data_version = next_version(self.data_version, now_ms)
        self.dirty = True

    def forget(self, topic: str) -> None:
        """A topic was deleted."""
        if self.counts.pop(topic, None) is not None:
            self.dirty = True

    def keep(self, topics: Container[str]) -> None:
        """Forget topics that are not there any more; those of the broker and light queues stay."""
        for topic in list(self.counts):
            if topic not in topics and not topic.startswith(SYSTEM_PREFIX) and not is_lmq(topic):
                del self.counts[topic]
                self.dirty = True

    def revise(self, counted: dict[int, int], below: int) -> None:
        """Take what was counted in the timer log, by hash of the topic, for the topics that have fewer than
        so many waiting. Where two topics have the same hash it is not known whose the messages are."""
        by_hash: dict[int, list[str]] = {}
        for topic in self.counts:
            by_hash.setdefault(java_hash(topic), []).append(topic)
        for code, topics in by_hash.items():
            found = self.counts[topics[0]]
            if len(topics) == 1 and found[0] < below and found[0] != counted.get(code, 0):
                found[0] = counted.get(code, 0)
                self.dirty = True

"""StoreStats: how much was put and got, how fast, and how long it took (StoreStatsService)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from kourou.clock import Clock

SAMPLE_INTERVAL_MS = 1000
MAX_SAMPLES = 601  # ten minutes and the one before
WINDOWS_S = (10, 60, 600)

# Upper bounds of the latency classes in ms, as Java prints them.
DISTRIBUTION_BOUNDS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
DISTRIBUTION_NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip

# Finer classes for percentiles: 0 to 20 by 1, to 50 by 2, to 100 by 5, to 200 by 10, to 500 by 50, …
_STEPS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9))
BUCKETS: tuple[int, ...] = tuple(
    sum(step * count for step, count in _STEPS[:number]) + step * (index + 1)
    for number, (step, count) in enumerate(_STEPS)
    for index in range(count)
)


class Snapshot(NamedTuple):
    """The totals at one moment."""

    timestamp: int
    put: int
    found: int
    missed: int
    transferred: int


class TopicPuts:
    """What was put to one topic."""

    __slots__ = ("count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0


class StoreStats:
    """Counters that the store keeps as it goes, and rates over the last 10 s, 1 and 10 minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.boot_timestamp = clock.now_ms()
        self.topics: dict[str, TopicPuts] = {}
        self._forgotten = TopicPuts()  # what was put to topics that are no more
        self.put_failed = 0
        self.get_found = 0
        self.get_missed = 0
        self.get_transferred = 0
        self.put_time_max_ms = 0
        self.get_time_max_ms = 0
        self.put_distribution = [0] * len(DISTRIBUTION_NAMES)
        self._put_buckets = [0] * (len(BUCKETS) + 1)
        self._samples: deque[Snapshot] = deque(maxlen=MAX_SAMPLES)
        self.sample()

    def topic(self, topic: str) -> TopicPuts:
        """The counters of a topic."""
        puts = self.topics.get(topic)
        if puts is None:
            puts = self.topics[topic] = TopicPuts()
        return puts

    def forget(self, topic: str) -> None:
        """Drop the counters of a deleted topic; the totals keep what they counted."""
        puts = self.topics.pop(topic, None)
        if puts is not None:
            self._forgotten.count += puts.count
            self._forgotten.size_bytes += puts.size_bytes

    @property
    def put_times_total(self) -> int:
        """How many messages were put."""
        # list(): the owner of the store may add a topic while another thread samples.
        return self._forgotten.count + sum(puts.count for puts in list(self.topics.values()))

    @property
    def put_size_total(self) -> int:
        """How many bytes of records were put."""
        return self._forgotten.size_bytes + sum(puts.size_bytes for puts in list(self.topics.values()))

    def record_put_time(self, elapsed_ms: int) -> None:
        """Count how long a put took until it was answered."""
        # 0 is a class of its own; the others hold what is below their bound.
        place = 0 if elapsed_ms <= 0 else bisect_left(DISTRIBUTION_BOUNDS, elapsed_ms + 1)
        self.put_distribution[place] += 1
        self._put_buckets[bisect_left(BUCKETS, elapsed_ms)] += 1
        self.put_time_max_ms = max(self.put_time_max_ms, elapsed_ms)

    def put_time_percentile(self, share: float) -> float:
        """The time in ms within which this share of puts was answered."""
        total = sum(self._put_buckets)
        wanted, passed = int(total * share), 0
        for place, count in enumerate(self._put_buckets):
            if count and wanted <= passed + count:
                low = BUCKETS[place - 1] if place else 0
                high = BUCKETS[place] if place < len(BUCKETS) else low
                return low + (high - low) * (wanted - passed) / count
            passed += count
        return 0.0

    def sample(self) -> None:
        """Note the totals; once a second."""
        self._samples.append(
            Snapshot(
                self._clock.elapsed_ms(),
                self.put_times_total,
                self.get_found,
                self.get_missed,
                self.get_transferred,
            )
        )

    def rates(self, window_s: int) -> dict[str, float]:
        """Messages or calls per second over the last seconds, as far as there are samples."""
        newest = self._samples[-1]
        oldest = self._samples[max(len(self._samples) - 1 - window_s, 0)]
        elapsed = (newest.timestamp - oldest.timestamp) / 1000
        if elapsed <= 0:
            return {"put": 0.0, "get_found": 0.0, "get_missed": 0.0, "get_transferred": 0.0}
        return {
            "put": (newest.put - oldest.put) / elapsed,
            "get_found": (newest.found - oldest.found) / elapsed,
            "get_missed": (newest.missed - oldest.missed) / elapsed,
            "get_transferred": (newest.transferred - oldest.transferred) / elapsed,
        }

    def runtime_info(self) -> dict[str, str]:
        """The figures under Java's names, for the broker's runtime information."""
        total = max(self.put_times_total, 1)
        windows = [self.rates(window) for window in WINDOWS_S]

        def rate(*kinds: str) -> str:
            return " ".join(str(sum(window[kind] for kind in kinds)) for window in windows)

        return {
            "bootTimestamp": str(self.boot_timestamp),
            "putMessageEntireTimeMax": str(self.put_time_max_ms),
            "putMessageTimesTotal": str(total),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageSizeTotal": str(self.put_size_total),
            "putMessageDistributeTime": " ".join(
                f"{name}:{count}"
                for name, count in zip(DISTRIBUTION_NAMES, self.put_distribution, strict=True)
            ),
            "putMessageAverageSize": str(self.put_size_total / total),
            "putLatency99": f"{self.put_time_percentile(0.99):.2f}",
            "putLatency999": f"{self.put_time_percentile(0.999):.2f}",
            "getMessageEntireTimeMax": str(self.get_time_max_ms),
            "putTps": rate("put"),
            "getFoundTps": rate("get_found"),
            "getMissTps": rate("get_missed"),
            "getTotalTps": rate("get_found", "get_missed"),
            "getTransferredTps": rate("get_transferred"),
        }

"""The stream: from which offset to which a micro-batch goes.

The reader lives in a process beside the driver for as long as the query runs. An offset of the stream is
that of every queue, {"topic": {"broker": {"0": offset}}}. That of the first micro-batch also says where it
began, under INITIAL: Spark writes down only where a batch ends, and a first batch that is planned again
after a crash must not begin with another `latest`. Routes and offsets are asked anew for every micro-batch,
so new queues and brokers are found; a new queue is read from its beginning. A queue whose broker is away
keeps its offset and goes on when the broker is back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.spark.channel import close_channels
from kourou.spark.cluster import Bounds, ClusterView
from kourou.spark.options import OptionError, Options
from kourou.spark.read.broker_road import ALL_READ_OPTIONS, BATCH_ONLY, BrokerReads
from kourou.spark.read.offsets import (
    LATEST,
    OffsetSpec,
    QueueOffsets,
    read_json,
    show,
    to_json,
    within_bounds,
)
from kourou.spark.read.pull import OffsetsGoneError
from kourou.spark.read.wanted import Wanted

log = logging.getLogger(__name__)

DEFAULT_TRIGGER_DELAY_S = 15 * 60.0
LAG_INTERVAL_S = 60.0

INITIAL = "*initial"  # no topic has such a name


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches."""

    def __init__(self, given: Mapping[str, str], names: Sequence[str]) -> None:
        options = Options(given, ALL_READ_OPTIONS)
        if "namesrv" not in options:
            raise OptionError("namesrv", "a stream comes from brokers: name the name servers")
        options.refuse(BATCH_ONLY, "a stream has none: it is for batch queries")
        self._reads = BrokerReads(options, names)
        self._start = OffsetSpec.read(options, "starting", default=LATEST)
        self._max = options.number("maxOffsetsPerTrigger")
        self._min = options.number("minOffsetsPerTrigger")
        if self._min is not None and self._max is not None and self._min > self._max:
            raise OptionError(
                "minOffsetsPerTrigger", f"{self._min} is more than maxOffsetsPerTrigger={self._max}"
            )
        if "maxTriggerDelay" in options and self._min is None:
            raise OptionError("maxTriggerDelay", "it needs minOffsetsPerTrigger")
        self._delay_s = options.seconds("maxTriggerDelay", DEFAULT_TRIGGER_DELAY_S)
        self._commit_group = options.text("commitGroup")
        self._wanted = Wanted(tags=None if self._reads.tags is None else frozenset(self._reads.tags))
        self._target: QueueOffsets | None = None  # of a query that ends with what is there now
        self._latest: QueueOffsets = {}
        self._initial: dict[str, Any] | None = None
        self._triggered_at: float | None = None
        self._lag_told_at = 0.0

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        if self._initial is None:  # Spark asks more than once, and must get one answer
            cluster, bounds = self._look()
            self._initial = {**to_json(self._start.resolve(cluster, bounds)), INITIAL: {}}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a micro-batch takes."""
        return ReadAllAvailable() if self._max is None else ReadMaxRows(self._max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the topics end now."""
        self._target = {queue: high for queue, (_, high) in self._look()[1].items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` where there is to be none yet."""
        _, bounds = self._look()
        begin = _read_offset(start)
        ends = {**begin, **{queue: high for queue, (_, high) in bounds.items()}}
        if self._target is not None:
            ends = {
                queue: min(end, self._target.get(queue, begin.get(queue, 0))) for queue, end in ends.items()
            }
            ends = {queue: end for queue, end in ends.items() if queue in begin or queue in self._target}
        first = {queue: begin.get(queue, bounds[queue].low if queue in bounds else 0) for queue in ends}
        self._check_not_behind(first, ends)
        new = {queue: max(end - first[queue], 0) for queue, end in ends.items()}
        self._tell_lag(new)
        total = sum(new.values())
        if self._waits(total):
            return start
        if total:
            self._triggered_at = time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if most is not None and total > most:
            ends = _share_out(first, new, total, most)
        if ends == begin:
            return start
        return {**to_json(ends), INITIAL: to_json(begin)} if start.get(INITIAL) == {} else to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the topics end, for StreamingQueryProgress: the difference to endOffset is the lag."""
        return to_json(self._latest) if self._latest else None

    def _look(self) -> tuple[ClusterView, dict[MessageQueue, Bounds]]:
        cluster = self._reads.cluster()
        bounds = cluster.bounds(self._reads.subscription.queues(cluster))
        self._latest = {queue: high for queue, (_, high) in bounds.items()}
        return cluster, bounds

    def _check_not_behind(self, first: QueueOffsets, ends: QueueOffsets) -> None:
        for queue, end in ends.items():
            if end < first[queue]:
                text = f"{show(queue)} ends at {end}, the query is at {first[queue]} already"
                if self._reads.fail_on_data_loss:
                    raise OffsetsGoneError(
                        f"{text}: messages are lost; failOnDataLoss=false goes on from there"
                    )
                log.warning("%s: it goes on from there", text)

    def _waits(self, total: int) -> bool:
        """Whether there is too little for a micro-batch, and time left to wait for more."""
        if self._min is None or self._target is not None or total >= self._min:
            return False
        return self._triggered_at is not None and time.monotonic() - self._triggered_at < self._delay_s

    def _tell_lag(self, new: QueueOffsets) -> None:
        now = time.monotonic()
        if now - self._lag_told_at < LAG_INTERVAL_S:
            return
        self._lag_told_at = now
        queue = max(new, key=lambda queue: new[queue], default=None)
        if queue is not None:
            log.info(
                "%d messages are left to read in %d queues, most of them, %d, in %s",
                sum(new.values()), len(new), new[queue], show(queue),
            )  # fmt: skip

    # Data

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a micro-batch read."""
        cluster, bounds = self._look()
        ends = _read_offset(end)
        begin = _read_offset(end[INITIAL] or end if INITIAL in end else start)
        first = {queue: begin.get(queue, bounds[queue].low if queue in bounds else 0) for queue in ends}
        ranges = within_bounds(
            first,
            {queue: last for queue, last in ends.items() if first[queue] != last},
            bounds,
            fail_on_data_loss=self._reads.fail_on_data_loss,
        )
        return [InputPartition(part) for part in self._reads.parts(cluster, ranges)] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition."""
        if partition.value is None:
            return iter(())
        return self._reads.read(partition.value, self._wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything up to there: tell the consumer group, if there is one."""
        if self._commit_group is not None:
            commit_offsets(self._reads.cluster(), self._commit_group, end)

    def stop(self) -> None:
        """Hang up."""
        close_channels()


def _read_offset(value: Mapping[str, Any]) -> QueueOffsets:
    return read_json("startingOffsets", {key: item for key, item in value.items() if key != INITIAL}, least=0)


def commit_offsets(cluster: ClusterView, group: str, end: Mapping[str, Any]) -> None:
    """Tell brokers how far a stream is. It is for eyes only, so a failure is a warning."""
    offsets = _read_offset(end)
    try:
        for topic in sorted({queue.topic for queue in offsets}):
            cluster.route(topic)  # for the addresses
        cluster.commit_offsets(group, offsets)
    except KourouError as error:
        log.warning("the offsets of group %s were not committed: %s", group, error)


def _share_out(first: QueueOffsets, new: QueueOffsets, total: int, most: int) -> QueueOffsets:
    """Each queue gets of the limit what it has of the messages, but at least one."""
    ends = {}
    for queue, count in new.items():
        share = most * count / total
        ends[queue] = first[queue] + min(count, int(share) if share >= 1 else int(count > 0))
    return ends

"""The stream: from which offset to which a micro-batch goes.

The reader lives in a process beside the driver for as long as the query runs. An offset of the stream is
that of every queue, {"topic": {"broker": {"0": offset}}}. That of the first micro-batch also says where it
began, under INITIAL: Spark writes down only where a batch ends, and a first batch that is planned again
after a crash must not begin with another `latest`. Routes and offsets are asked anew for every micro-batch,
so new queues and brokers are found; a new queue is read from its beginning.

What is away: a queue whose broker does not answer, or is not known, keeps its offset; the others go on. The
log and the progress of the query say so (WAITING in latestOffset). A broker that the name servers know, a
topic that was named and the name servers themselves are waited for up to `waitTimeout`; a broker that is not
known any more has left, maybe for good. A micro-batch that is written down waits for all that it has.

What is gone: a topic that its broker does not have any more is data loss, since nobody knows what was in it.
So is a queue that was taken away with messages in it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from kourou.spark.channel import AnsweredError, AwayError, ChannelError, close_channels, retrying
from kourou.spark.cluster import Bounds, ClusterView, UnknownTopicError
from kourou.spark.options import OptionError, Options
from kourou.spark.read.broker_road import ALL_READ_OPTIONS, BATCH_ONLY, BrokerReads, Part
from kourou.spark.read.offsets import (
    LATEST,
    OffsetSpec,
    QueueOffsets,
    lost,
    read_json,
    show,
    to_json,
    within_bounds,
)
from kourou.spark.read.pull import OffsetsGoneError
from kourou.spark.read.wanted import Wanted
from kourou.spark.sentence import in_one_sentence, rows_in_one_sentence

log = logging.getLogger(__name__)

DEFAULT_TRIGGER_DELAY_S = 15 * 60.0
LAG_INTERVAL_S = 60.0
# A broker that does not answer is asked again after this: the queues of others go on meanwhile.
ASK_AGAIN_S = 1.0
# What is gone must be gone still after this: a broker may just be registering.
GONE_FOR_S = 1.0

INITIAL = "*initial"  # no topic has such a name
WAITING = "*waiting"


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
        self._ends_now = False  # with what is there now
        self._target: QueueOffsets | None = None  # which is this
        self._latest: QueueOffsets = {}
        self._away: dict[str, _Away] = {}
        self._left: frozenset[str] = frozenset()  # brokers that the name servers do not know any more
        self._initial: dict[str, Any] | None = None
        self._triggered_at: float | None = None
        self._lag_told_at = 0.0

    # Offsets

    @in_one_sentence
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        if self._initial is None:  # Spark asks more than once, and must get one answer
            self._initial = {**to_json(self._reads.at_first(self._first_offsets)), INITIAL: {}}
        return self._initial

    def _first_offsets(self, cluster: ClusterView) -> QueueOffsets:
        bounds = cluster.bounds(self._reads.subscription.queues(cluster))
        return self._start.resolve(cluster, bounds)

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a micro-batch takes."""
        return ReadAllAvailable() if self._max is None else ReadMaxRows(self._max)

    @in_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the topics end now; if all of them can be asked, otherwise when they can."""
        self._ends_now = True
        away: dict[str, KourouError] = {}
        bounds = self._ask(self._reads.cluster(), away)
        if not away:
            self._target = {queue: high for queue, (_, high) in bounds.items()}

    @in_one_sentence
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` where there is to be none yet."""
        begin = _read_offset(start)
        cluster, bounds = self._look(begin)
        ends = {**begin, **cluster.not_behind(begin, bounds)}
        for queue in self._gone(cluster, begin, bounds):
            del ends[queue]
        first = {queue: begin.get(queue, bounds[queue].low if queue in bounds else 0) for queue in ends}
        self._check_not_behind(first, ends)
        if self._target is not None:
            ends = {
                queue: min(end, max(self._target.get(queue, 0), first[queue]))
                for queue, end in ends.items()
                if queue in begin or queue in self._target
            }
        new = {queue: max(end - first[queue], 0) for queue, end in ends.items()}
        self._tell_lag(new)
        total = sum(new.values())
        if self._waits(total):
            return start
        if total:
            self._triggered_at = time.monotonic()
        elif self._away and not self._ends_now:
            time.sleep(ASK_AGAIN_S / 2)  # Spark asks again at once
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if most is not None and total > most:
            ends = _share_out(first, new, total, most)
        if ends == begin:
            return start
        return {**to_json(ends), INITIAL: to_json(begin)} if start.get(INITIAL) == {} else to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the topics end, for StreamingQueryProgress: the difference to endOffset is the lag."""
        waiting = {what: str(away.error) for what, away in self._away.items()}
        waiting |= {f"broker {name}": "no name server knows it" for name in self._left}
        return {**to_json(self._latest), **({WAITING: waiting} if waiting else {})} or None

    # What answers, what is away, what is gone

    def _look(self, begin: QueueOffsets) -> tuple[ClusterView, dict[MessageQueue, Bounds]]:
        """The queues that answer; what does not is noted. A query that ends with what is there needs all."""
        while True:
            cluster = self._reads.cluster()
            away: dict[str, KourouError] = {}
            bounds = self._ask(cluster, away)
            self._note(away)
            if not self._ends_now or self._target is not None:
                break
            if not away:
                self._target = {queue: high for queue, (_, high) in bounds.items()}
                break
            time.sleep(ASK_AGAIN_S)
        kept = {queue: high for queue, high in self._latest.items() if queue in begin}
        self._latest = kept | {queue: high for queue, (_, high) in bounds.items()}
        return cluster, bounds

    def _ask(self, cluster: ClusterView, away: dict[str, KourouError]) -> dict[MessageQueue, Bounds]:
        try:
            queues = self._reads.subscription.queues(cluster, away=away)
        except (AwayError, AnsweredError) as error:
            away["name servers"] = error
            return {}
        now = time.monotonic()
        for name in {queue.broker_name for queue in queues}:
            before = self._away.get(f"broker {name}")
            if before is not None and now < before.again_at:
                away[f"broker {name}"] = before.error
        asked = {queue for queue in queues if f"broker {queue.broker_name}" not in away}
        silent: dict[str, KourouError] = {}
        bounds = cluster.bounds(asked, silent)
        away |= {f"broker {name}": error for name, error in silent.items()}
        return bounds

    def _note(self, away: Mapping[str, KourouError]) -> None:
        """Remember since when something is away, and say so; an error after too long."""
        now, wait_s = time.monotonic(), self._reads.pull.net.wait_s
        for what in self._away.keys() - away.keys():
            log.warning("%s is back", what)
        noted = {}
        for what, error in away.items():
            before = self._away.get(what)
            if before is None:
                log.warning("waiting for %s, up to %.0f s: %s", what, wait_s, error)
                before = _Away(error, now, now + ASK_AGAIN_S)
            elif now - before.since > wait_s:
                raise ChannelError(f"{error} (waited {wait_s:.0f} s for {what}; see waitTimeout)")
            elif error is not before.error:  # it was asked again
                before = _Away(error, before.since, now + ASK_AGAIN_S)
            noted[what] = before
        self._away = noted

    def _gone(
        self, cluster: ClusterView, begin: QueueOffsets, bounds: Mapping[MessageQueue, Bounds]
    ) -> set[MessageQueue]:
        """Queues that a broker had, and does not have any more though it is there."""
        missing = {
            queue: offset
            for queue, offset in begin.items()
            if queue not in bounds and f"broker {queue.broker_name}" not in self._away
        }
        self._left = frozenset()
        if not missing or "name servers" in self._away:
            return set()
        gone = self._not_on_their_brokers(cluster, missing)
        if gone:
            time.sleep(GONE_FOR_S)
            gone = self._not_on_their_brokers(self._reads.cluster(), gone)
        for queue, offset in sorted(gone.items()):
            text = f"{show(queue)} was deleted; the query has read it up to {offset}, what came later is lost"
            lost(text, self._reads.fail_on_data_loss)
        return set(gone)

    def _not_on_their_brokers(self, cluster: ClusterView, queues: QueueOffsets) -> QueueOffsets:
        """Those whose broker is there and has them no more; but for queues that were read to their end."""
        try:
            masters = cluster.masters()
            self._left = frozenset(queue.broker_name for queue in queues) - masters.keys()
            gone: QueueOffsets = {}
            for topic in {queue.topic for queue in queues}:
                there: set[MessageQueue] = set()
                with contextlib.suppress(UnknownTopicError):
                    there = set(cluster.route(topic).read_queues)
                own = {
                    queue: offset
                    for queue, offset in queues.items()
                    if queue.topic == topic and queue.broker_name in masters and queue not in there
                }
                fewer = {queue for queue in own if any(queue.broker_name == one.broker_name for one in there)}
                ends = cluster.bounds(fewer)
                gone |= {
                    queue: at for queue, at in own.items() if queue not in fewer or ends[queue].high > at
                }
        except (AwayError, AnsweredError):  # nobody can say
            return {}
        return gone

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

    @in_one_sentence
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a micro-batch read."""
        ends = _read_offset(end)
        begin = _read_offset(end[INITIAL] or end if INITIAL in end else start)
        ends = {queue: last for queue, last in ends.items() if begin.get(queue, 0) != last}
        net = self._reads.pull.net
        parts = retrying(net, "the micro-batch's brokers", lambda: self._plan(begin, ends)) if ends else []
        return [InputPartition(part) for part in parts] or [InputPartition(None)]

    def _plan(self, begin: QueueOffsets, ends: QueueOffsets) -> list[Part]:
        cluster = self._reads.cluster()
        queues = self._reads.subscription.queues(cluster, away={})
        bounds = cluster.bounds([queue for queue in ends if queue in queues])
        for queue in ends.keys() - bounds.keys():
            if queue.broker_name not in cluster.masters():
                raise ChannelError(f"{show(queue)}: no name server knows broker {queue.broker_name}")
        first = {queue: begin.get(queue, bounds[queue].low if queue in bounds else 0) for queue in ends}
        for queue, (low, high) in bounds.items():
            if queue.broker_name in cluster.by_slave and not low <= first[queue] <= ends[queue] <= high:
                raise AwayError(
                    f"{show(queue)}: a slave has {low} to {high - 1}, not all up to {ends[queue] - 1}"
                )
        ranges = within_bounds(first, ends, bounds, fail_on_data_loss=self._reads.fail_on_data_loss)
        return self._reads.parts(cluster, ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition."""
        if partition.value is None:
            return iter(())
        return rows_in_one_sentence(self._reads.read(partition.value, self._wanted))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything up to there: tell the consumer group, if there is one."""
        if self._commit_group is not None:
            commit_offsets(self._reads.cluster(), self._commit_group, end)

    def stop(self) -> None:
        """Hang up."""
        close_channels()


class RefusedReader(DataSourceStreamReader):
    """The reader of a query that cannot be: it says why when it is asked where to begin."""

    def __init__(self, why: KourouError) -> None:
        self._why = why

    @in_one_sentence
    def getDefaultReadLimit(self) -> ReadLimit:
        """The error: this is what Spark asks first."""
        raise self._why

    def initialOffset(self) -> dict[str, Any]:
        """The same."""
        self.getDefaultReadLimit()
        raise AssertionError

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The same."""
        return self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Nothing was planned."""
        return iter(())


@dataclass
class _Away:
    """Something that is waited for."""

    error: KourouError
    since: float
    again_at: float  # when it is asked again


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

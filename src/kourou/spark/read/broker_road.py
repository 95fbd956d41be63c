"""BrokerRoad: topics as tables. The driver asks brokers for offsets and plans, tasks pull.

Options, beside those of `offsets`:

- namesrv, group, requestTimeout, waitTimeout, fetchRetries, fetchRetryInterval: the cluster, the consumer
  group that pulls (brokers make it unless they are told not to), and how patient to be.
- tls, tlsConfig, accessKey, secretKey, securityToken: TLS by Java's tls.properties, and Java's signatures.
- topic, topics, pattern, assign: what to read; {"topic": {"broker": [0, 1]}} for the last.
- tags or sql: an expression that brokers filter by. keys: only messages with one of these keys.
- minPartitions, maxRecordsPerPartition, pullsInFlight, readFromSlaves, decompress.
- failOnBadBody, failOnDataLoss: what ends a query.

A partition is one range of a queue, or several small ones of the same broker, so that a small query is few
tasks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kourou.message.model import MessageQueue
from kourou.remoting.tls import TlsConfig
from kourou.spark.channel import FIRST_WAIT_S, WAIT_S, NetSettings, retrying
from kourou.spark.cluster import SLAVES, Bounds, ClusterView, Server
from kourou.spark.options import OptionError, Options
from kourou.spark.read.offsets import EARLIEST, LATEST, OffsetSpec, Subscription, within_bounds
from kourou.spark.read.pull import DEPTH, PullSettings, QueuePuller, QueueRange, Source
from kourou.spark.read.wanted import MAX_LONG, Wanted

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

CONNECTION_OPTIONS = frozenset(
    ("namesrv", "group", "requestTimeout", "waitTimeout", "fetchRetries", "fetchRetryInterval", "tls",
     "tlsConfig", "accessKey", "secretKey", "securityToken")
)  # fmt: skip
READ_OPTIONS = CONNECTION_OPTIONS | frozenset(
    (*Subscription.NAMES, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
     "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition",
     "tags", "sql", "readFromSlaves", "pullsInFlight", "decompress", "failOnBadBody")
)  # fmt: skip
BATCH_ONLY = frozenset(("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "keys"))
STREAM_ONLY = frozenset(("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroup"))
ALL_READ_OPTIONS = READ_OPTIONS | BATCH_ONLY | STREAM_ONLY

_T = TypeVar("_T")

DEFAULT_GROUP = "kourou-spark"
# Ranges of a broker that are smaller than this together are one task: a task costs more than their pulls.
MERGE_RECORDS = 10_000


def net_settings(options: Options) -> NetSettings:
    """How to talk to the cluster."""
    tls = None
    if options.flag("tls", "tlsConfig" in options):
        tls = dataclasses.replace(TlsConfig.load(options.text("tlsConfig")), enable=True)
    elif "tlsConfig" in options:
        raise OptionError("tlsConfig", "it contradicts tls=false")
    for name, other in (
        ("accessKey", "secretKey"),
        ("secretKey", "accessKey"),
        ("securityToken", "accessKey"),
    ):
        if name in options and other not in options:
            raise OptionError(name, f"it needs {other}")
    return NetSettings(
        timeout_s=options.seconds("requestTimeout", 10.0),
        wait_s=options.seconds("waitTimeout", WAIT_S),
        first_wait_s=options.seconds("waitTimeout", FIRST_WAIT_S),
        retries=options.number("fetchRetries", least=0),
        retry_interval_s=options.seconds("fetchRetryInterval", 0.1),
        tls=tls,
        access_key=options.text("accessKey"),
        secret_key=options.text("secretKey"),
        security_token=options.text("securityToken"),
    )


def name_servers(options: Options) -> str:
    """The addresses of the name servers."""
    text = options.text("namesrv")
    if not text:
        raise OptionError("namesrv", "name the name servers, host:port, several with ';'")
    for address in text.replace(",", ";").split(";"):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise OptionError("namesrv", f"{address.strip()!r} is no host:port")
    return text


class Part:
    """Ranges of queues of one broker, and where they could be read when this was planned."""

    def __init__(self, servers: Sequence[Server], ranges: Sequence[QueueRange]) -> None:
        self.servers = tuple(servers)
        self.ranges = tuple(ranges)

    @property
    def records(self) -> int:
        """How many offsets it has."""
        return sum(item.end - item.start for item in self.ranges)


class BrokerReads:
    """What batch and stream have in common: which queues, how to cut them, how to read them."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.namesrv = name_servers(options)
        self.subscription = Subscription(options)
        self.fail_on_data_loss = options.flag("failOnDataLoss", True)
        self.min_partitions = options.number("minPartitions")
        self.max_records = options.number("maxRecordsPerPartition")
        self.from_slaves = options.choice("readFromSlaves", SLAVES, "false")
        self.decompress = options.flag("decompress", True)
        self.fail_on_bad_body = options.flag("failOnBadBody", False)
        self.tags, self.sql = options.names("tags"), options.text("sql")
        options.only_one_of("tags", "sql")
        if "sql" in options and not (self.sql or "").strip():
            raise OptionError("sql", "it is empty")
        depth = options.number("pullsInFlight", DEPTH)
        assert depth is not None
        self.pull = PullSettings(
            net=net_settings(options),
            group=options.text("group") or options.text("commitGroup") or DEFAULT_GROUP,
            depth=depth,
            fail_on_data_loss=self.fail_on_data_loss,
        )

    def cluster(self) -> ClusterView:
        """The cluster, asked anew."""
        return ClusterView(self.namesrv, self.pull.net, from_slaves=self.from_slaves)

    def at_first(self, work: Callable[[ClusterView], _T]) -> _T:
        """What `work` gives when a query begins. What does not answer is waited for, but not for long unless
        the option says so: its address may be wrong."""
        net = self.pull.net
        return retrying(net, "the cluster", lambda: work(self.cluster()), limit_s=net.first_wait_s)

    def parts(self, cluster: ClusterView, ranges: Mapping[MessageQueue, Bounds]) -> list[Part]:
        """Ranges, cut and put together as the options ask."""
        total = sum(high - low for low, high in ranges.values())
        most = self.max_records or MAX_LONG
        if self.min_partitions is not None and self.min_partitions > len(ranges) and total:
            most = min(most, -(-total // self.min_partitions))
        pieces: dict[str, list[QueueRange]] = {}
        for queue, (low, high) in sorted(ranges.items()):
            count = -(-(high - low) // most)
            edges = [low + (high - low) * number // count for number in range(count + 1)]
            own = pieces.setdefault(queue.broker_name, [])
            own += [
                QueueRange(queue.topic, queue.broker_name, queue.queue_id, first, last)
                for first, last in itertools.pairwise(edges)
            ]
        merge_up_to = 0 if self.min_partitions is not None else min(most, MERGE_RECORDS)
        return [
            Part(cluster.servers(broker_name, master_first=broker_name in cluster.by_slave), group)
            for broker_name, own in pieces.items()
            for group in _merged(own, merge_up_to)
        ]

    def read(self, part: Part, wanted: Wanted) -> Iterator[Any]:
        """The rows of a part, in a task."""
        from kourou.spark.read.rows import RowMaker

        settings = self._with_expression(wanted)
        for item in part.ranges:
            own = dataclasses.replace(
                wanted,
                first_offset=max(item.start, wanted.first_offset),
                last_offset=min(item.end - 1, wanted.last_offset),
            )
            maker = RowMaker(
                self.names, wanted=own, broker_name=item.broker_name, decompress_body=self.decompress,
                fail_on_bad_body=self.fail_on_bad_body,
            )  # fmt: skip
            puller = QueuePuller(item, settings, Source(self.cluster(), item, part.servers))
            for records in puller.pieces():
                yield from maker.from_records(records)

    def _with_expression(self, wanted: Wanted) -> PullSettings:
        """What brokers are asked for: an expression of the user's, else the tags that are wanted.

        Brokers filter tags by their hash; RowMaker looks at the tags themselves.
        """
        if self.sql is not None:
            return dataclasses.replace(self.pull, expression=self.sql, expression_type="SQL92")
        if wanted.tags is not None and all(_is_plain(tag) for tag in wanted.tags):
            return dataclasses.replace(self.pull, expression=" || ".join(sorted(wanted.tags)))
        return self.pull


def _is_plain(tag: str) -> bool:
    """Whether a tag can stand in an expression."""
    return bool(tag) and "|" not in tag and tag == tag.strip() and tag != "*"


def _merged(ranges: list[QueueRange], up_to: int) -> Iterator[list[QueueRange]]:
    group: list[QueueRange] = []
    records = 0
    for item in ranges:
        size = item.end - item.start
        if group and records + size > up_to:
            yield group
            group, records = [], 0
        group.append(item)
        records += size
    if group:
        yield group


class BrokerRoad:
    """Reads topics in a batch query."""

    def __init__(self, given: Mapping[str, str], names: tuple[str, ...]) -> None:
        options = Options(given, ALL_READ_OPTIONS)
        options.refuse(("path", "paths"), "it contradicts namesrv: read store files or brokers")
        options.refuse(STREAM_ONLY, "it is for streams only")
        self._reads = BrokerReads(options, names)
        self._start = OffsetSpec.read(options, "starting", default=EARLIEST)
        self._end = OffsetSpec.read(options, "ending", default=LATEST)
        if self._start.default == LATEST and not self._start.by_queue:
            raise OptionError("startingOffsets", "a batch query cannot begin with the latest offset")
        keys = options.names("keys")
        self.wanted = Wanted(
            tags=None if self._reads.tags is None else frozenset(self._reads.tags),
            keys=None if keys is None else frozenset(keys),
        )

    def narrow(self, filters: list[Filter]) -> list[Filter]:
        """Take filters; those that are left are returned."""
        self.wanted, left = self.wanted.narrow(filters)
        return left

    def plan(self) -> Sequence[Part]:
        """The ranges of queues to read."""
        return [] if self.wanted.nothing else self._reads.at_first(self._plan)

    def _plan(self, cluster: ClusterView) -> Sequence[Part]:
        reads, wanted = self._reads, self.wanted
        topics = wanted.topics
        queues = reads.subscription.queues(cluster, lambda topic: topics is None or topic in topics)
        if wanted.queue_ids is not None:
            queues = {queue for queue in queues if queue.queue_id in wanted.queue_ids}
        bounds = cluster.bounds(queues)
        specs = self._specs_for(bounds)
        start, end = (spec.resolve(cluster, bounds) for spec in specs)
        ranges = within_bounds(start, end, bounds, fail_on_data_loss=reads.fail_on_data_loss)
        return reads.parts(cluster, self._narrowed(cluster, ranges))

    def _specs_for(self, bounds: Mapping[MessageQueue, Bounds]) -> tuple[OffsetSpec, OffsetSpec]:
        """The specs; where filters left queues out, without what they say of these."""
        if self.wanted.topics is None and self.wanted.queue_ids is None:
            return self._start, self._end

        def of(spec: OffsetSpec) -> OffsetSpec:
            return dataclasses.replace(
                spec,
                by_queue={queue: value for queue, value in spec.by_queue.items() if queue in bounds},
                times_ms={queue: value for queue, value in spec.times_ms.items() if queue in bounds},
            )

        return of(self._start), of(self._end)

    def _narrowed(
        self, cluster: ClusterView, ranges: Mapping[MessageQueue, Bounds]
    ) -> Mapping[MessageQueue, Bounds]:
        """What filters on offsets and times leave of the ranges."""
        wanted = self.wanted
        low = {queue: max(bounds.low, wanted.first_offset) for queue, bounds in ranges.items()}
        high = {queue: min(bounds.high, wanted.last_offset + 1) for queue, bounds in ranges.items()}
        if wanted.begin_ms > 0:
            first = cluster.offsets_by_time(dict.fromkeys(ranges, max(wanted.begin_ms - CLOCK_SLACK_MS, 0)))
            low = {queue: max(offset, first[queue]) for queue, offset in low.items()}
        if wanted.end_ms < MAX_LONG:
            behind = cluster.offsets_by_time(dict.fromkeys(ranges, wanted.end_ms + CLOCK_SLACK_MS))
            high = {queue: min(offset, behind[queue]) for queue, offset in high.items()}
        return {queue: Bounds(low[queue], high[queue]) for queue in ranges if low[queue] < high[queue]}

    def read(self, part: Part) -> Iterator[Any]:
        """The rows of a part."""
        return self._reads.read(part, self.wanted)


# As in store_plan: store times rise in a queue, but for clocks that were set back.
CLOCK_SLACK_MS = 10 * 60 * 1000

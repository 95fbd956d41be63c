"""BrokerMetrics: what a broker tells Prometheus, and whether it is ready (BrokerMetricsManager).

There is one where `metricsExporterType=PROM`; otherwise nothing of this is in the way. Most is known
already and looked up when somebody asks. What is counted here: messages that come in, by type and size, the
fate of transactions and timers, and the time of requests.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from kourou.broker.metrics import families
from kourou.broker.metrics.lag import lags
from kourou.broker.metrics.pop import PopMetrics
from kourou.broker.metrics.stats import OTHERS
from kourou.broker.names import is_system_group
from kourou.broker.services.transactions import HalfEvent
from kourou.message import properties as names
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from kourou.remoting.metrics import (
    CONNECTIONS,
    OVERFLOW,
    READY,
    REFUSALS,
    RPC_LATENCY,
    Histogram,
    Labels,
    MetricsServer,
    Page,
    RpcMeter,
    Totals,
    java_bool,
    parse_labels,
)
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.mq_version import version_name
from kourou.store.config import BrokerRole

if TYPE_CHECKING:
    from kourou.broker.server import Broker
    from kourou.message.codec import StoredMessage
    from kourou.store.put import InnerMessage
    from kourou.store.status import PutMessageResult

STORAGE = ("local", "disk")
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
TIMER_BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)

_SIZE_BOUNDS = tuple(1024.0 * kib for kib in (1, 4, 512, 1024, 2048, 4096))
_FINISH_BOUNDS_S = (5.0, 60.0, 600.0, 3600.0, 43_200.0, 86_400.0)
_CREATE_BOUNDS_MS = (10.0, 100.0, 1000.0, 3000.0, 5000.0)
_DELAY_BOUNDS_S = (60.0, 600.0, 3600.0, 43_200.0, 86_400.0, 259_200.0)

_CREATES_TOPIC = {int(RequestCode.UPDATE_AND_CREATE_TOPIC), int(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)}
_CREATES_GROUP = {
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST),
}

# Java's queues of requests. Here requests are handled as they come: only sends wait, for disk and slaves.
_PROCESSORS = (
    "send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull",
    "transaction", "consumer_manager", "admin", "reply",
)  # fmt: skip
_CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_TIMES = (
    "__STARTDELIVERTIME", names.DELAY_TIME_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
)  # fmt: skip


_LAG_FIELDS = {
    families.LAG_MESSAGES: "lag_messages",
    families.LAG_LATENCY: "lag_latency_ms",
    families.INFLIGHT: "inflight_messages",
    families.QUEUEING_LATENCY: "queueing_latency_ms",
    families.READY_MESSAGES: "ready_messages",
}


class _Incoming:
    """What came into a topic with messages of a type. `sizes` is its row of the histogram."""

    __slots__ = ("labels", "messages", "size_bytes", "sizes")

    def __init__(self, labels: Labels, sizes: list[float]) -> None:
        self.labels = labels
        self.sizes = sizes
        self.messages = 0
        self.size_bytes = 0


class BrokerMetrics:
    """The counters of a broker and its endpoint: `start`, `stop`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        self.is_serving = False
        self._labels = {
            **parse_labels(config.metrics_label),
            **({"aggregation": "delta"} if config.metrics_in_delta else {}),
            "node_type": "broker",
            "cluster": config.broker_cluster_name,
            "node_id": config.broker_name,
        }
        limit = self._limit = config.metrics_otel_cardinality_limit
        self.request_meter = RpcMeter(_CREATES_TOPIC | _CREATES_GROUP, self._created)
        self._topic_creates = Histogram(_CREATE_BOUNDS_MS, limit)
        self._group_creates = Histogram(_CREATE_BOUNDS_MS, limit)
        self._incoming: dict[str, dict[str, _Incoming]] = {}  # by type, then by topic
        self._sizes = Histogram(_SIZE_BOUNDS, limit)
        self._scheduled_messages = self._scheduled_bytes = 0
        self._halves: Counter[str] = Counter()  # topic -> prepared messages
        self._commits, self._rollbacks = Totals(limit), Totals(limit)
        self._finish_latency = Histogram(_FINISH_BOUNDS_S, limit)
        self._timers_in, self._timers_out = Totals(limit), Totals(limit)
        self._delays = Histogram(_DELAY_BOUNDS_S, limit)
        self._pops = PopMetrics(broker, limit)
        self._server = MetricsServer(config.broker_name, self.page, self.missing)

    # Life

    async def start(self) -> None:
        """Listen. Before the store opens: that the port is taken is known at once."""
        config = self._broker.config
        host = config.metrics_prom_exporter_host or config.bind_address
        await self._server.start(host, config.metrics_prom_exporter_port)
        config.metrics_prom_exporter_port = self._server.port

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    @property
    def address(self) -> str:
        """Where it listens."""
        config = self._broker.config
        return f"{config.metrics_prom_exporter_host or config.bind_address}:{self._server.port}"

    def missing(self) -> list[str]:
        """Why the broker is not ready; nothing where it is."""
        broker = self._broker
        if not self.is_serving:
            return ["the broker is starting or stopping"]
        found = []
        if broker.store.refusal is not None and broker.slave is None:  # a slave takes none, and is ready so
            found.append(f"no messages are taken: {broker.store.refusal}")
        if broker.config.name_servers and not broker.registrar.registered_at:
            found.append("no name server knows the broker")
        return found

    # Counting

    def _created(self, request: RemotingCommand, code: int, elapsed_ms: float) -> None:
        """A topic or a group was made, or was not."""
        status = "success" if code == ResponseCode.SUCCESS else "failure"
        if request.code in _CREATES_GROUP:
            self._group_creates.observe((status,), elapsed_ms)
        else:
            system = self._broker.topics.is_system_topic(request.ext_fields.get("topic", ""))
            self._topic_creates.observe((status, java_bool(system)), elapsed_ms)

    def attach(self) -> None:
        """Listen to the parts of a broker whose store is open."""
        broker, config = self._broker, self._broker.config
        if config.enable_pop_metrics:
            self._pops.attach()
        if config.enable_request_metrics:
            broker.sender.on_stored = self._stored
            broker.delay.on_delivered = self._scheduled
        if config.enable_transaction_metrics:
            broker.transactions.on_half = self._half
        if config.enable_message_store_metrics:
            broker.timers.on_entered, broker.timers.on_delivered = self._timer_in, self._timer_out

    def _stored(self, message: InnerMessage, result: PutMessageResult) -> None:
        """A message or a batch was stored, where it waits or in its queue. Hot."""
        if not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            kind = _message_type(message.properties)
            self._count_in(message.topic, kind, result.message_count, result.wrote_bytes)

    def _count_in(self, topic: str, kind: str, messages: int, size_bytes: int) -> None:
        counted = self._incoming_of(topic, kind)
        counted.messages += messages
        counted.size_bytes += size_bytes
        self._sizes.observe(counted.labels, size_bytes // messages)

    def _incoming_of(self, topic: str, kind: str) -> _Incoming:
        topics = self._incoming.setdefault(kind, {})
        found = topics.get(topic)
        if found is None:
            labels: Labels = (topic, kind, java_bool(self._broker.topics.is_system_topic(topic)))
            if sum(map(len, self._incoming.values())) >= self._limit:
                topics, topic, labels = self._incoming.setdefault("", {}), "", OVERFLOW
            found = topics.setdefault(topic, _Incoming(labels, self._sizes.row(labels)))
        return found

    def _scheduled(self, topic: str, size_bytes: int) -> None:
        """A delayed message was delivered."""
        self._scheduled_messages += 1
        self._scheduled_bytes += size_bytes
        self._count_in(topic, "delay", 1, size_bytes)

    def count_halves(self) -> None:
        """Count the prepared messages that were there at the start; one that was checked lies there twice."""
        if self._broker.config.enable_transaction_metrics:
            halves = {
                (half.properties.get(names.UNIQ_KEY), half.properties.get(names.REAL_TOPIC, ""))
                for half in self._broker.transactions.unresolved()
            }
            self._halves = Counter(topic for _, topic in halves)

    def _half(self, event: HalfEvent, topic: str, born_ms: int) -> None:
        self._halves[topic] += 1 if event is HalfEvent.PREPARED else -1
        if event is HalfEvent.COMMITTED:
            self._commits.add((topic,), 1)
            self._finish_latency.observe((topic,), (self._broker.clock.now_ms() - born_ms) // 1000)
        elif event is HalfEvent.ROLLED_BACK:
            self._rollbacks.add((topic,), 1)

    def _timer_in(self, message: StoredMessage, due_ms: int) -> None:
        labels = (*STORAGE, message.properties.get(names.REAL_TOPIC, ""))
        self._timers_in.add(labels, 1)
        self._delays.observe(labels, (due_ms - message.born_timestamp) // 1000)

    def _timer_out(self, message: StoredMessage) -> None:
        self._timers_out.add((*STORAGE, message.properties.get(names.REAL_TOPIC, "")), 1)

    # Telling

    async def page(self) -> Page:
        """All there is to tell now."""
        page, config = Page(self._labels), self._broker.config
        missing = self.missing()
        page.add_value(READY, 0 if missing else 1)
        lagging = []
        if self.is_serving and config.enable_lag_and_dlq_metrics:
            lagging = await lags(self._broker)
        if not self.is_serving:
            return page  # the store may be closed, or not yet open
        if config.enable_stats_metrics:
            self._add_stats(page)
        if config.enable_request_metrics:
            self._add_requests(page)
        if config.enable_connection_metrics:
            self._add_clients(page)
        if config.enable_lag_and_dlq_metrics:
            labels = [(one.group, one.topic, "false", self._system(one.topic, one.group)) for one in lagging]
            for family, field in _LAG_FIELDS.items():
                page.add_rows(family, zip(labels, [getattr(one, field) for one in lagging]))
            self._add_dead_letters(page)
        if config.enable_transaction_metrics:
            page.add(families.COMMITS, self._commits)
            page.add(families.ROLLBACKS, self._rollbacks)
            page.add(families.FINISH_LATENCY, self._finish_latency)
            page.add_rows(families.HALF_MESSAGES, [((topic,), n) for topic, n in self._halves.items()])
        if config.enable_remoting_metrics:
            page.add(RPC_LATENCY, self.request_meter.histogram())
        if config.enable_message_store_metrics:
            self._add_store(page)
            self._add_timers(page)
        if config.enable_pop_metrics:
            self._pops.add(page)
        self._add_own(page)
        return page

    def _system(self, topic: str, group: str) -> str:
        return java_bool(self._broker.topics.is_system_topic(topic) or is_system_group(group.upper()))

    def _add_stats(self, page: Page) -> None:
        broker = self._broker
        waiting = {"send": broker.sender.waiting}
        page.add_rows(families.WATERMARK, [((name,), waiting.get(name, 0)) for name in _PROCESSORS])
        page.add_value(families.PERMISSION, broker.config.broker_permission)
        page.add_value(families.TOPICS, len(broker.topics.topics))
        page.add_value(families.GROUPS, len(broker.groups.groups))

    def _add_requests(self, page: Page) -> None:
        counted = [one for topics in self._incoming.values() for one in topics.values()]
        page.add_rows(families.MESSAGES_IN, [(one.labels, one.messages) for one in counted])
        page.add_rows(families.THROUGHPUT_IN, [(one.labels, one.size_bytes) for one in counted])
        page.add(families.MESSAGE_SIZE, self._sizes)
        messages, size_bytes = Totals(self._limit), Totals(self._limit)
        for (topic, group), stats in self._broker.stats.groups.items():
            row = stats.row()
            if row[0] and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                labels = (topic, group, self._system(topic, group))
                messages.add(labels, row[0])
                size_bytes.add(labels, row[2])
        if self._scheduled_messages:
            labels = (SCHEDULE_TOPIC, SCHEDULE_GROUP, "true")
            messages.add(labels, self._scheduled_messages)
            size_bytes.add(labels, self._scheduled_bytes)
        page.add(families.MESSAGES_OUT, messages)
        page.add(families.THROUGHPUT_OUT, size_bytes)
        page.add(families.TOPIC_CREATE, self._topic_creates)
        page.add(families.GROUP_CREATE, self._group_creates)

    def _add_clients(self, page: Page) -> None:
        producers, consumers = Totals(self._limit), Totals(self._limit)
        for clients in self._broker.producers.groups.values():
            for client in clients.values():
                version = version_name(client.version).lower()
                producers.add((client.language.lower(), version, "remoting"), 1)
        for name, group in self._broker.consumers.groups.items():
            mode, system = group.consume_type or "", java_bool(is_system_group(name.upper()))
            for client in group.clients.values():
                who = client.language.lower(), version_name(client.version).lower()
                consumers.add((name, *who, _CONSUME_MODES.get(mode, mode.lower()), "remoting", system), 1)
        page.add(families.PRODUCERS, producers)
        page.add(families.CONSUMERS, consumers)

    def _add_dead_letters(self, page: Page) -> None:
        rows: list[tuple[Labels, float]] = []
        for (group, topic), number in self._broker.stats.dead_letters.items():
            is_other = (group, topic) == OTHERS
            rows.append((OVERFLOW if is_other else (group, topic, self._system(topic, group)), number))
        page.add_rows(families.DEAD_LETTERS, rows)

    def _add_store(self, page: Page) -> None:
        store, now_ms = self._broker.store, self._broker.clock.now_ms()
        space, files = os.statvfs(store.root), store.commit_log.files
        first_ms = store.earliest_message_time()
        for family, value in (
            (families.STORAGE_SIZE, (space.f_blocks - space.f_bfree) * space.f_frsize),
            (families.FLUSH_BEHIND, files.max_wrote - files.flushed_where),
            (families.DISPATCH_BEHIND, store.dispatcher.behind_bytes),
        ):
            page.add_rows(family, [(STORAGE, value)])
        page.add_rows(families.RESERVE_TIME, [(STORAGE, now_ms - first_ms)] if first_ms > 0 else [])

    def _add_timers(self, page: Page) -> None:
        timers, store, now_ms = self._broker.timers, self._broker.store, self._broker.clock.now_ms()
        if not timers.enabled:
            return
        behind, behind_ms = timers.queue_behind, 0
        if behind:
            stored_ms = store.message_store_timestamp(TIMER_TOPIC, 0, timers.queue_offset)
            behind_ms = max(now_ms - stored_ms, 0) if stored_ms > 0 else 0
        for family, value in (
            (families.TIMER_ENQUEUE_LAG, behind),
            (families.TIMER_ENQUEUE_LATENCY, behind_ms),
            (families.TIMER_DEQUEUE_LAG, timers.pending),
            (families.TIMER_DEQUEUE_LATENCY, max(now_ms - timers.read_ms, 0)),
        ):
            page.add_rows(family, [(STORAGE, value)])
        page.add_rows(
            families.TIMING_MESSAGES,
            [((*STORAGE, topic), counts[0]) for topic, counts in timers.metrics.counts.items()],
        )
        page.add(families.TIMER_ENQUEUED, self._timers_in)
        page.add(families.TIMER_DEQUEUED, self._timers_out)
        due = timers.due_within([seconds * 1000 for seconds in TIMER_BOUNDS_S])
        page.add_rows(
            families.TIMER_SNAPSHOT,
            [((*STORAGE, str(bound)), number) for bound, number in zip(TIMER_BOUNDS_S, due)],
        )
        page.add(families.DELAY_LATENCY, self._delays)

    def _add_own(self, page: Page) -> None:
        broker = self._broker
        page.add_value(families.HELD_PULLS, broker.puller.held)
        page.add_value(CONNECTIONS, len(broker.server.connections))
        page.add_value(families.SLOW_REQUESTS, 0 if broker.watch is None else broker.watch.slow_requests)
        page.add_rows(REFUSALS, [((name,), number) for name, number in broker.refusals.counts.items()])
        page.add_value(families.REGISTERED, len(broker.registrar.registered_at))
        page.add_value(families.INDEX_BEHIND, broker.store.index_catch_up.behind_bytes)
        if broker.config.store.broker_role is not BrokerRole.SLAVE:
            page.add_value(families.SLAVES, len(broker.replication.slaves))


def _message_type(properties: dict[str, str]) -> str:
    """What a message is (TopicMessageType)."""
    if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
        return "transaction"
    if names.SHARDING_KEY in properties:
        return "fifo"
    return "delay" if any(name in properties for name in _TIMES) else "normal"

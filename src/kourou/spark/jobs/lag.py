"""lag: how far consumer groups are behind, from the files of a store or from brokers, and its change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kourou.errors import ConfigError
from kourou.inspect.directory import StoreDirectory
from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.spark.channel import call
from kourou.spark.cluster import ClusterView, UnknownTopicError
from kourou.spark.jobs.inputs import Input
from kourou.spark.options import Options
from kourou.spark.read.broker_road import CONNECTION_OPTIONS, name_servers, net_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "time timestamp, group string, topic string, brokerName string, queueId int, committed bigint,"
    " end bigint, lag bigint"
)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in a queue."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return max(self.end - self.committed, 0)


def lag(
    spark: SparkSession,
    source: str | Input,
    *,
    group: str | None = None,
    samples: int = 1,
    every_s: float = 10.0,
) -> DataFrame:
    """The lag of all groups or of one, once or several times: a row for each queue and time."""
    from datetime import UTC, datetime

    source = source if isinstance(source, Input) else Input.parse(source)
    rows: list[tuple[Any, ...]] = []
    for number in range(samples):
        if number:
            time.sleep(every_s)
        now = datetime.now(UTC)
        rows += [
            (now, item.group, item.topic, item.broker_name, item.queue_id, item.committed, item.end, item.lag)
            for item in read_lag(source)
            if group in (None, item.group)
        ]
    return spark.createDataFrame(rows, SCHEMA)


def read_lag(source: Input) -> Iterator[QueueLag]:
    """The lag of every group in every queue, now."""
    if source.kind == "store":
        for path in source.paths:
            yield from _of_store(path, source.options.get("brokerName", ""))
    elif source.kind == "cluster":
        yield from _of_cluster(source)
    else:
        raise ConfigError("an archive knows no consumers: name a store or a cluster")


def _of_store(path: str, broker_name: str) -> Iterator[QueueLag]:
    with StoreDirectory.open(path) as store:
        text = bytes(store.view(f"{store.root}/config/consumerOffset.json"))
        ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues}
        for topic, group, queue_id, offset in _table(text):
            yield QueueLag(group, topic, broker_name, queue_id, offset, ends.get((topic, queue_id), offset))


def _of_cluster(source: Input) -> Iterator[QueueLag]:
    options = Options({**source.options, "namesrv": source.text}, CONNECTION_OPTIONS)
    cluster = ClusterView(name_servers(options), net_settings(options))
    for broker_name, address in cluster.masters().items():
        answer = call(address, cluster.settings, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, "its offsets")
        found = list(_table(bytes(answer.body or b"")))
        known: dict[str, set[int]] = {}
        for topic in {topic for topic, *_ in found}:
            try:
                queues = cluster.route(topic).read_queues
            except UnknownTopicError:  # it was deleted, its offsets were not
                continue
            known[topic] = {queue.queue_id for queue in queues if queue.broker_name == broker_name}
        found = [item for item in found if item[2] in known.get(item[0], ())]
        bounds = cluster.bounds({MessageQueue(topic, broker_name, number) for topic, _, number, _ in found})
        for topic, group, number, offset in found:
            end = bounds[MessageQueue(topic, broker_name, number)].high
            yield QueueLag(group, topic, broker_name, number, offset, end)


def _table(text: bytes) -> Iterator[tuple[str, str, int, int]]:
    """(topic, group, queue, offset) of Java's consumerOffset.json."""
    table = (lenient_json.loads(text) if text.strip() else {}).get("offsetTable") or {}
    for key, queues in table.items():
        topic, _, group = key.partition("@")
        for queue_id, offset in queues.items():
            yield topic, group, int(queue_id), int(offset)

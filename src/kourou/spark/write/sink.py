"""The sink: rows of a DataFrame as messages.

Columns: body (required), topic (or the option), tags, keys, properties, shardingKey, delayLevel,
deliverTime, queueId, flag. The other columns of this source are passed over, so that a topic can be written
to another as it is; of `properties` the names that RocketMQ reserves are left out. A row with a bodyError has
its body as it was stored: it is sent as such, compressed in the way that its sysFlag says.

At least once: a task that fails is run again and sends its rows again. Each row's UNIQ_KEY follows from the
query, the micro-batch, the partition and its place in it, so a repeat has the id of the first.

Exactly once (`delivery=exactly-once`): tasks write files, and the commit in the driver sends them (`once`).
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from kourou.errors import BadMessageError, ConfigError, KourouError
from kourou.message import Message, sysflag
from kourou.message import properties as reserved
from kourou.message.batch import encode_in_batch
from kourou.spark.cluster import ClusterView
from kourou.spark.options import OptionError, Options
from kourou.spark.places import local_place
from kourou.spark.read.broker_road import CONNECTION_OPTIONS, name_servers, net_settings
from kourou.spark.schema import COLUMNS
from kourou.spark.sentence import in_one_sentence
from kourou.spark.write.once import Journal, Publisher, Staged, Stager, this_machine
from kourou.spark.write.send import BATCH_BYTES, BatchSender

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SINK_OPTIONS = CONNECTION_OPTIONS | frozenset(("topic", "delivery", "batchSize", "maxRowsPerSecond"))
DEFAULT_GROUP = "kourou-spark-sink"
MAX_BATCH_BYTES = 4 * 1024 * 1024

_KINDS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "delayLevel": ("int", "bigint"),
    "deliverTime": ("timestamp", "bigint"),
    "queueId": ("int", "bigint"),
    "flag": ("int", "bigint"),
    "sysFlag": ("int", "bigint"),
    "bodyError": ("string",),
}
_OF_BAD_BODIES = frozenset(("sysFlag", "bodyError"))
_COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK


_PLAIN = frozenset(("body", "topic", "tags", "keys", "flag"))
_UNIQ_KEY, _TAGS, _KEYS = (f"{name}\x01" for name in (reserved.UNIQ_KEY, reserved.TAGS, reserved.KEYS))


@dataclass
class Written(WriterCommitMessage):
    """What a task has sent."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """What a writer was told. It travels to the workers."""

    namesrv: str
    options: dict[str, str]
    topic: str | None
    group: str
    exactly_once: bool
    batch_bytes: int
    columns: tuple[str, ...]
    checkpoint: str | None
    per_second: int | None  # of each task

    @classmethod
    def read(cls, given: Mapping[str, str], schema: StructType) -> SinkSettings:
        """The settings; wrong options and columns are refused by name."""
        options = Options(given, SINK_OPTIONS)
        options.refuse(("path", "paths"), "a sink writes to brokers")
        net_settings(options)  # refused here, not in every task
        batch_bytes = options.size("batchSize") or BATCH_BYTES
        if batch_bytes > MAX_BATCH_BYTES:
            raise OptionError("batchSize", f"brokers take no more than {MAX_BATCH_BYTES} bytes")
        topic = options.text("topic")
        return cls(
            namesrv=name_servers(options),
            options=dict(given),
            topic=topic,
            group=options.text("group") or DEFAULT_GROUP,
            exactly_once=options.choice("delivery", ("at-least-once", "exactly-once"), "at-least-once")
            == "exactly-once",
            batch_bytes=batch_bytes,
            columns=_check_columns(schema, topic),
            checkpoint=options.text("checkpointlocation"),
            per_second=options.number("maxRowsPerSecond"),
        )

    @property
    def is_plain(self) -> bool:
        """Whether all rows are batched, to any queue, as fast as can be."""
        return self.per_second is None and _PLAIN.issuperset(self.columns)

    def cluster(self) -> ClusterView:
        """The cluster to write to."""
        net = net_settings(Options(self.options, SINK_OPTIONS))
        return ClusterView(self.namesrv, net, from_slaves="never")

    def publisher(self) -> Publisher:
        """What sends the rows of an exactly-once query."""
        return Publisher(self.cluster(), self.group, self.batch_bytes)


def _check_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "body" not in kinds:
        raise ConfigError("column body: a message needs one")
    if "topic" not in kinds and topic is None:
        raise OptionError("topic", "name a topic here or in a column topic")
    for name, kind in kinds.items():
        if name in _KINDS and kind not in _KINDS[name]:
            raise ConfigError(f"column {name} is {kind}: it must be {' or '.join(_KINDS[name])}")
        if name not in _KINDS and name not in COLUMNS:
            raise ConfigError(f"column {name} is not known: there are {', '.join(_KINDS)}")
    if "delayLevel" in kinds and "deliverTime" in kinds:
        raise ConfigError("column deliverTime: it contradicts column delayLevel")
    unused = frozenset() if kinds.keys() >= _OF_BAD_BODIES else _OF_BAD_BODIES
    return tuple(name for name in kinds if name in _KINDS and name not in unused)


class _Row(NamedTuple):
    """A message, where it goes, and the system flag of a body that is compressed."""

    message: Message
    queue_id: int | None
    sharding_key: str | None
    sys_flag: int


class _Task:
    """The rows of one partition of one micro-batch."""

    def __init__(self, settings: SinkSettings, job: str, batch_id: int | None = None) -> None:
        context = TaskContext.get()
        self.partition = 0 if context is None else context.partitionId()
        self._settings = settings
        self._is_first = not batch_id
        seed = f"{job}/{batch_id}/{self.partition}".encode()
        self._prefix = hashlib.blake2b(seed, digest_size=8).hexdigest().upper()

    def _rows(self, batches: Iterator[Any]) -> Iterator[_Row]:
        """The message of each row, and where it goes."""
        number, started = 0, time.monotonic()
        per_second = self._settings.per_second
        own, fixed = self._settings.columns, self._settings.topic
        for batch in batches:
            lists = {name: batch.column(name).to_pylist() for name in own}
            for row in zip(*(lists[name] for name in own)):
                if per_second is not None:
                    time.sleep(max(started + number / per_second - time.monotonic(), 0))
                yield self._message(dict(zip(own, row)), fixed, number)
                number += 1

    def _message(self, row: Mapping[str, Any], fixed: str | None, number: int) -> _Row:
        body, topic = row["body"], fixed or row.get("topic")
        if not (topic and body):
            raise _incomplete(number, topic)
        properties = {
            name: value
            for name, value in row.get("properties") or ()
            if value and name not in reserved.RESERVED_NAMES
        }
        properties[reserved.UNIQ_KEY] = self.unique_key(number)
        if tags := row.get("tags"):
            properties[reserved.TAGS] = tags
        if keys := row.get("keys"):
            properties[reserved.KEYS] = keys if isinstance(keys, str) else reserved.KEY_SEPARATOR.join(keys)
        sharding_key = row.get("shardingKey")
        if sharding_key is not None:
            properties[reserved.SHARDING_KEY] = sharding_key
        if level := row.get("delayLevel"):
            properties[reserved.DELAY_TIME_LEVEL] = str(level)
        if (moment := row.get("deliverTime")) is not None:
            properties[reserved.TIMER_DELIVER_MS] = str(_milliseconds(moment))
        message = Message(
            topic, body.encode() if isinstance(body, str) else body, properties, row.get("flag") or 0
        )
        sys_flag = 0 if row.get("bodyError") is None else row["sysFlag"] & _COMPRESSION
        return _Row(message, row.get("queueId"), sharding_key, sys_flag)

    def unique_key(self, number: int) -> str:
        """The id of a row: as long as a client's own, its time field zero, so that tools find it by it."""
        return f"{self._prefix}{number >> 16 & 0xFFFF:04X}{0:08X}{number & 0xFFFF:04X}"

    def send(self, batches: Iterator[Any]) -> Written:
        """Send all rows."""
        settings = self._settings
        sender = BatchSender(
            settings.cluster(),
            group=settings.group,
            batch_bytes=settings.batch_bytes,
            first_turn=self.partition,
            is_first=self._is_first,
        )
        self._add_all(sender, batches)
        sender.flush()
        return Written(sender.sent)

    def stage(self, batches: Iterator[Any], directory: str | Path | None) -> Staged:
        """Write all rows to a file of a directory."""
        stager = Stager(directory, self.partition)
        self._add_all(stager, batches)
        return stager.close()

    def _add_all(self, target: BatchSender | Stager, batches: Iterator[Any]) -> None:
        if self._settings.is_plain:
            self._add_plain(target, batches)
            return
        for message, queue_id, sharding_key, sys_flag in self._rows(batches):
            target.add(message, queue_id=queue_id, sharding_key=sharding_key, sys_flag=sys_flag)

    def _add_plain(self, target: BatchSender | Stager, batches: Iterator[Any]) -> None:
        """Rows that need no more than a topic, a body and texts: as `_rows`, in a third of the time. Hot."""
        number, fixed = 0, self._settings.topic
        nothing = itertools.repeat(None)
        for batch in batches:
            bodies, topics, tags, keys, flags = (
                batch.column(name).to_pylist() if name in self._settings.columns else nothing
                for name in ("body", "topic", "tags", "keys", "flag")
            )
            for body, topic, tag, key, flag in zip(bodies, topics, tags, keys, flags):
                topic = fixed or topic
                if not (topic and body):
                    raise _incomplete(number, topic)
                unique_key = self.unique_key(number)
                properties = f"{_UNIQ_KEY}{unique_key}\x02"
                if tag:
                    properties += f"{_TAGS}{tag}\x02"
                if key:
                    text = key if isinstance(key, str) else reserved.KEY_SEPARATOR.join(key)
                    properties += f"{_KEYS}{text}\x02"
                if isinstance(body, str):
                    body = body.encode()
                try:
                    entry = encode_in_batch(body, properties.encode(), flag or 0)
                except BadMessageError as error:
                    raise KourouError(f"row {number}: {error}") from error
                target.add_encoded(topic, entry, unique_key)
                number += 1


def _incomplete(number: int, topic: str | None) -> KourouError:
    if not topic:
        return KourouError(f"row {number} has no topic")
    return KourouError(f"row {number} has no body: on the wire, an empty one is none")


def _milliseconds(moment: Any) -> int:
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    return int(moment)


class RocketmqWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode overwrite: messages cannot be overwritten, use append")
        self._settings = SinkSettings.read(given, schema)
        self._job = uuid.uuid4().hex  # the same for all tries of a task
        self._machine = this_machine()
        self._directory = f"{tempfile.gettempdir()}/kourou-spark-{self._job}"

    @in_one_sentence
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send a partition, in a task."""
        task = _Task(self._settings, self._job)
        if not self._settings.exactly_once:
            return task.send(iterator)
        return task.stage(iterator, self._directory if this_machine() == self._machine else None)

    @in_one_sentence
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done: send what they wrote."""
        files = _staged(messages)
        publisher = self._settings.publisher()
        if files:
            publisher.publish(files, publisher.ends(files, is_first=True))
        self._clean()

    @in_one_sentence
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task failed: nothing that others wrote is sent."""
        self._clean()

    def _clean(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class RocketmqStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = SinkSettings.read(given, schema)
        if overwrite:
            raise ConfigError("output mode complete: messages cannot be overwritten, use append")
        if not self._settings.exactly_once:
            return
        if not self._settings.checkpoint:
            raise OptionError("delivery", "exactly-once needs checkpointLocation as an option of the query")
        # Workers have other directories of their own: what is relative is so to that of the driver.
        place = local_place(self._settings.checkpoint, "checkpointLocation")
        self._settings = replace(self._settings, checkpoint=str(place))
        try:
            self._journal().prepare()
        except OSError as error:
            raise ConfigError(f"checkpointLocation={place} cannot be written to: {error}") from error

    def _journal(self) -> Journal:
        assert self._settings.checkpoint is not None
        return Journal(self._settings.checkpoint)

    @in_one_sentence
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send a partition of a micro-batch, in a task."""
        context = TaskContext.get()
        assert context is not None
        job = context.getLocalProperty("sql.streaming.queryId") or ""
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        task = _Task(self._settings, job, batch_id)
        if not self._settings.exactly_once:
            return task.send(iterator)
        if self._journal().decided(batch_id):  # this batch is run again: the commit goes on with what it has
            return Written(0)
        return task.stage(iterator, self._journal().files(batch_id))

    @in_one_sentence
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks are done: send what they wrote."""
        if self._settings.exactly_once:
            self._journal().commit(self._settings.publisher(), batchId, _staged(messages))

    @in_one_sentence
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A task failed: what others wrote is of no use."""
        if self._settings.exactly_once:
            self._journal().abort(batchId)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]

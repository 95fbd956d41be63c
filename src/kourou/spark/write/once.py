"""Exactly once: rows wait in files until it is decided that they count; then one process sends them.

A task writes its rows to a file of its own, as they will be sent, and sends nothing. When all tasks of a
micro-batch are done, its commit in the driver writes down which files make it up and where the queues of its
topics end (the decision), sends what is in the files, and writes down that this is done:

    <checkpoint>/rocketmq/<batch>/…       the files; those of tries that failed are among them
    <checkpoint>/rocketmq/<batch>.json    the decision
    <checkpoint>/rocketmq/<batch>.done    everything was sent

A crash before the decision: nothing was sent, the batch is run again and writes new files. A crash after it:
the batch is run again, its tasks find the decision and write nothing, and the commit sends what its queues do
not have: all that it sent before lies behind the places that were written down, and each row has a unique id.
So does a commit that lost a connection, for the requests that were under way. A task that is dead for Spark
and still runs can only write a file that nobody names.

A batch write is the same without a checkpoint: its files lie in the driver's temporary directory, those of
other machines come with the word that a task is done.

Limits: the checkpoint must be on a file system that driver and workers share; a broker must keep messages for
as long as a query may be down (fileReservedTime), and must come back after a crash; the messages of one
micro-batch do not become visible at one instant, but one after the other; what is delivered later
(delayLevel, deliverTime) is not in its queue yet, and may be sent again after a crash.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from kourou.errors import KourouError
from kourou.files import sync_dir, write_atomically
from kourou.message import Message, sysflag
from kourou.message.batch import decode_batch, encode_batch
from kourou.message.model import MessageQueue
from kourou.message.properties import DELAY_TIME_LEVEL, TIMER_DELIVER_MS
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import EndTransaction
from kourou.spark.channel import call, retrying
from kourou.spark.cluster import ClusterView
from kourou.spark.places import local_place
from kourou.spark.read.offsets import QueueOffsets, read_json, to_json
from kourou.spark.read.pull import PullSettings, QueuePuller, QueueRange, Source
from kourou.spark.read.wanted import Wanted
from kourou.spark.write.send import BATCH_BYTES, BatchSender

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 8192
# A request that was on its way when its sender was cut off has been handled so long after the broker answers.
SETTLE_S = 1.0
# Decisions of older micro-batches are of no use: Spark never runs them again.
KEEP_DECISIONS = 100
READ_GROUP = "kourou-spark"  # that looks what is there already


@dataclass
class Staged(WriterCommitMessage):
    """What a task has written: a file, or the bytes that it would have."""

    rows: int
    topics: frozenset[str] = frozenset()
    path: str | None = None
    data: bytes | None = None


def this_machine() -> str:
    """Who sees the same temporary directory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


class Stager:
    """Takes messages as a BatchSender does, and writes them to a file; without a directory to memory."""

    def __init__(self, directory: str | Path | None, partition: int) -> None:
        import pyarrow as pa

        self._schema = pa.schema(
            [
                ("topic", pa.string()), ("key", pa.string()), ("entry", pa.binary()),
                ("queue_id", pa.int64()), ("sharding_key", pa.string()), ("alone", pa.bool_()),
                ("sys_flag", pa.int32()),
            ]
        )  # fmt: skip
        self._path = None if directory is None else Path(directory) / f"{partition}-{uuid.uuid4().hex}.arrow"
        if self._path is None:
            self._out = pa.BufferOutputStream()
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._out = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_stream(self._out, self._schema)
        self._rows: list[tuple[Any, ...]] = []
        self._topics: set[str] = set()
        self._count = 0

    def add(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        sys_flag: int = 0,
    ) -> None:
        """Take a message."""
        properties = message.properties
        alone = bool(sys_flag) or DELAY_TIME_LEVEL in properties or TIMER_DELIVER_MS in properties
        entry, key = encode_batch([message]), properties["UNIQ_KEY"]
        self._add((message.topic, key, entry, queue_id, sharding_key, alone, sys_flag))

    def add_encoded(self, topic: str, entry: bytes, unique_key: str) -> None:
        """Take a message in the form that a batch has it in. Hot."""
        self._add((topic, unique_key, entry, None, None, False, 0))

    def _add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        columns = list(zip(*self._rows))
        self._topics.update(columns[0])
        self._count += len(self._rows)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows = []

    def close(self) -> Staged:
        """All rows are there: the file is on the disk when this returns."""
        if self._rows:
            self._write()
        self._writer.close()
        if self._path is None:
            return Staged(self._count, frozenset(self._topics), data=self._out.getvalue().to_pybytes())
        self._out.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        sync_dir(self._path.parent)
        return Staged(self._count, frozenset(self._topics), str(self._path))


def _rows_of(staged: Staged) -> Iterator[Any]:
    """The rows of a file, many at a time."""
    import pyarrow as pa

    try:
        source = pa.OSFile(staged.path, "rb") if staged.path else pa.BufferReader(staged.data)
    except OSError as error:
        raise KourouError(f"{error}: driver and workers do not share this directory") from error
    with source, pa.ipc.open_stream(source) as stream:
        yield from stream


class Publisher:
    """Sends what tasks have written."""

    def __init__(self, cluster: ClusterView, group: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._cluster = cluster
        self._group = group
        self._batch_bytes = batch_bytes

    def ends(self, files: Sequence[Staged], *, is_first: bool) -> QueueOffsets:
        """The queues that the files go to, and where these end now: what is sent from now on lies behind."""
        sender = BatchSender(self._cluster, group=self._group, is_first=is_first)
        topics = frozenset().union(*(staged.topics for staged in files))
        queues = {queue for topic in topics for queue in sender.write_queues(topic)}
        known = {queue for queue in queues if queue.topic in sender.seen}
        bounds = retrying(self._cluster.settings, "the target's brokers", lambda: self._cluster.bounds(known))
        return {queue: bounds[queue].high if queue in known else 0 for queue in queues}

    def publish(self, files: Sequence[Staged], starts: QueueOffsets, *, again: bool = False) -> None:
        """Send what the files have; with `again`, what of it is not behind `starts` yet."""
        there: Collection[str] = ()
        if again:
            keys = {key for staged in files for rows in _rows_of(staged) for key in rows["key"].to_pylist()}
            there = self._found(starts, keys)
            log.warning("a commit goes on: %d of %d messages are there", len(there), len(keys))
        sender = BatchSender(
            self._cluster,
            group=self._group,
            batch_bytes=self._batch_bytes,
            is_first=False,
            stored=lambda queue, keys: self._look({queue: starts[queue]}, keys),
            allowed=starts,
        )
        for staged in files:
            for rows in _rows_of(staged):
                self._send(sender, rows, there)
        sender.flush()

    @staticmethod
    def _send(sender: BatchSender, rows: Any, there: Collection[str]) -> None:
        columns = [column.to_pylist() for column in rows.columns]
        for topic, key, entry, queue_id, sharding_key, alone, sys_flag in zip(*columns):
            if key in there:
                continue
            if alone:
                (message,) = decode_batch(entry, topic)
                sender.add(message, queue_id=queue_id, sharding_key=sharding_key, sys_flag=sys_flag)
            else:
                sender.add_encoded(topic, entry, key, queue_id=queue_id, sharding_key=sharding_key)

    def _found(self, starts: QueueOffsets, keys: Collection[str]) -> set[str]:
        def look() -> set[str]:
            self._cluster.masters()  # for the addresses
            return self._look(starts, keys)

        return retrying(self._cluster.settings, "the target's brokers", look)

    def _look(self, starts: QueueOffsets, keys: Collection[str]) -> set[str]:
        """Which of these ids are behind some places. AwayError unless all masters answer."""
        wanted, found = frozenset(keys), set[str]()
        self._cluster.bounds(starts)
        time.sleep(SETTLE_S)
        for queue, (low, high) in self._cluster.bounds(starts).items():
            found |= self._in_queue(queue, max(low, starts[queue]), high, wanted)
        return found

    def _in_queue(self, queue: MessageQueue, start: int, end: int, keys: frozenset[str]) -> set[str]:
        from kourou.spark.read.rows import RowMaker

        if start >= end:
            return set()
        item = QueueRange(queue.topic, queue.broker_name, queue.queue_id, start, end)
        settings = PullSettings(net=self._cluster.settings, group=READ_GROUP, fail_on_data_loss=False)
        source = Source(self._cluster, item, self._cluster.servers(queue.broker_name))
        maker = RowMaker(("uniqKey",), wanted=Wanted(uniq_keys=keys), decompress_body=False)
        return {
            key
            for piece in QueuePuller(item, settings, source).pieces()
            for rows in maker.from_records(piece)
            for key in rows.column(0).to_pylist()
        }

    def end_halves(self, halves: Sequence[Sequence[Any]]) -> None:
        """Finish what a version before this one has decided: its rows are half messages."""
        queues = {
            queue
            for topic in {half[1] for half in halves}
            for queue in self._cluster.route(topic).read_queues
        }
        there = self._found(dict.fromkeys(queues, 0), {half[4] for half in halves})
        for broker_name, topic, queue_offset, physical_offset, key in halves:
            if key in there:
                continue
            header = EndTransaction(
                self._group, queue_offset, physical_offset, sysflag.TRANSACTION_COMMIT, key, topic=topic,
                from_transaction_check=True, transaction_id=key,
            )  # fmt: skip
            fields = {**header.fields(), "bname": broker_name}
            address = self._cluster.master(broker_name)
            call(address, self._cluster.settings, RequestCode.END_TRANSACTION, fields, f"to commit {key}")


class Journal:
    """The decisions of a query, beside its checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self._directory = local_place(checkpoint, "checkpointLocation") / "rocketmq"

    def _path(self, batch_id: int, kind: str) -> Path:
        return self._directory / f"{batch_id}.{kind}"

    def prepare(self) -> None:
        """Make the directory; OSError where nothing can be written there."""
        self._directory.mkdir(parents=True, exist_ok=True)
        probe = self._directory / ".probe"
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)

    def files(self, batch_id: int) -> Path:
        """Where tasks write the rows of a micro-batch."""
        return self._directory / str(batch_id)

    def decided(self, batch_id: int) -> bool:
        """Whether it is written down what makes up a micro-batch."""
        return self._path(batch_id, "json").exists() or self.done(batch_id)

    def done(self, batch_id: int) -> bool:
        """Whether all of it was sent."""
        return self._path(batch_id, "done").exists()

    def commit(self, publisher: Publisher, batch_id: int, files: Sequence[Staged]) -> None:
        """Send a micro-batch, or go on with that."""
        if not self.done(batch_id):
            if self.decided(batch_id):
                self._go_on(publisher, batch_id, json.loads(self._path(batch_id, "json").read_bytes()))
            else:
                starts = publisher.ends(files, is_first=batch_id == 0)
                self._decide(batch_id, files, starts)
                publisher.publish(files, starts)
            write_atomically(self._path(batch_id, "done"), b"")
        self._forget(batch_id)

    def _decide(self, batch_id: int, files: Sequence[Staged], starts: QueueOffsets) -> None:
        names = [os.path.basename(staged.path or "") for staged in files]
        decision = {"files": names, "starts": to_json(starts)}
        write_atomically(self._path(batch_id, "json"), json.dumps(decision).encode())

    def _go_on(self, publisher: Publisher, batch_id: int, decision: Mapping[str, Any] | list[Any]) -> None:
        if isinstance(decision, list):
            publisher.end_halves(decision)
            return
        files = [Staged(0, path=str(self.files(batch_id) / name)) for name in decision["files"]]
        publisher.publish(files, read_json("starts", decision["starts"], least=0), again=True)

    def _forget(self, batch_id: int) -> None:
        """Remove decisions that are old, and files of micro-batches before this one: its own may be needed,
        if Spark runs it again."""
        for path in self._directory.iterdir():
            number = path.name.partition(".")[0]
            if path.is_dir() and number.isdecimal() and int(number) < batch_id:
                shutil.rmtree(path, ignore_errors=True)
            elif number.isdecimal() and int(number) <= batch_id - KEEP_DECISIONS:
                path.unlink(missing_ok=True)

    def abort(self, batch_id: int) -> None:
        """A try has failed: unless it was decided, nothing of it is of use."""
        if not self.decided(batch_id):
            shutil.rmtree(self.files(batch_id), ignore_errors=True)

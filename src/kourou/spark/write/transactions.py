"""Exactly once: half messages, the log of decisions, and their end.

Tasks send half messages. When all tasks of a micro-batch are done, its commit writes down which halves make
it up (the decision), has the brokers end each of them, and writes down that this is done:

    <checkpoint>/rocketmq/<batch>.json    the decision: the halves of the micro-batch
    <checkpoint>/rocketmq/<batch>.done    all of them have been ended

A crash before the decision: the batch is run again and sends new halves; the old ones stay unseen, and are
rolled back when the broker asks for them, or given up by it after its checks. A crash after the decision:
the batch is run again, its tasks find the decision and send nothing, and the commit ends what is not
visible yet. It asks the brokers for each message first, by its id and the place of its half, because a
broker of Java's that is told twice to commit a half shows it twice.

Limits: the checkpoint must be on a file system that driver and workers share; a broker must keep half
messages and the index for as long as a query may be down (fileReservedTime); the messages of one
micro-batch do not become visible at one instant, but one after the other.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kourou.files import write_atomically
from kourou.message import Message, codec, sysflag
from kourou.message import properties as names
from kourou.message.ids import decode_offset_message_id
from kourou.message.model import MessageQueue
from kourou.message.scan.records import find_records
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import EndTransaction, QueryMessage
from kourou.spark.channel import AnsweredError, Channel, channel_to, retrying
from kourou.spark.cluster import ClusterView
from kourou.spark.places import local_place
from kourou.spark.write.send import BatchSender

log = logging.getLogger(__name__)

BATCH_PROPERTY = "KOUROU_BATCH"
_AT_ONCE = 256
# A request that was on its way when a driver died has been handled by then.
_SETTLE_S = 1.0
# Decisions of older micro-batches are of no use: Spark never runs them again.
KEEP_DECISIONS = 100


class Half(NamedTuple):
    """A half message, as a broker must be told of it."""

    broker_name: str
    topic: str
    queue_offset: int  # of the half
    physical_offset: int  # of the half
    unique_key: str


class Row(NamedTuple):
    """A row of a sink: its message, where it goes, and the system flag of a body that is compressed."""

    message: Message
    queue_id: int | None = None
    sharding_key: str | None = None
    sys_flag: int = 0


def send_halves(
    sender: BatchSender,
    rows: Iterable[Row],
    group: str,
    mark: str | None,
) -> Iterator[Half]:
    """Send messages as half messages, each in a request of its own, marked with query and micro-batch."""

    def prepared() -> Iterator[tuple[Message, MessageQueue, int]]:
        for message, queue_id, sharding_key, sys_flag in rows:
            message.properties[names.TRANSACTION_PREPARED] = "true"
            message.properties[names.PRODUCER_GROUP] = group
            if mark is not None:
                message.properties[BATCH_PROPERTY] = mark
            queue = sender.choose(message.topic, queue_id, sharding_key)
            yield message, queue, sys_flag | sysflag.TRANSACTION_PREPARED

    pending = prepared()
    while part := [item for _, item in zip(range(_AT_ONCE), pending)]:
        for sent in sender.send_singles(part):
            fields = sent.answer.ext_fields
            yield Half(
                sent.queue.broker_name,
                sent.message.topic,
                int(fields["queueOffset"]),
                decode_offset_message_id(fields["msgId"]).physical_offset,
                sent.message.properties[names.UNIQ_KEY],
            )


def end_all(
    cluster: ClusterView, group: str, halves: Sequence[Half], *, commit: bool, again: bool = False
) -> None:
    """Commit half messages, or roll them back. With `again`, only those that are not visible yet."""
    for broker_name in sorted({half.broker_name for half in halves}):
        own = [half for half in halves if half.broker_name == broker_name]
        cluster.route(own[0].topic)  # for the address
        for start in range(0, len(own), _AT_ONCE):
            end = _End(cluster, group, broker_name, own[start : start + _AT_ONCE], commit, again)
            retrying(cluster.settings, end)


class _End:
    """The end of some halves on one broker; called again where a connection was lost."""

    def __init__(
        self, cluster: ClusterView, group: str, broker_name: str, halves: list[Half], commit: bool, look: bool
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._broker_name = broker_name
        self._halves = halves
        self._commit = commit
        self._look = look and commit

    def __call__(self) -> None:
        channel = channel_to(self._cluster.address(self._broker_name), self._cluster.settings)
        halves = _not_visible(channel, self._halves) if self._look else self._halves
        self._look = self._commit  # whatever happens now, the next try must look first
        _end(channel, self._group, halves, self._commit)


def _end(channel: Channel, group: str, halves: Sequence[Half], commit: bool) -> None:
    outcome = sysflag.TRANSACTION_COMMIT if commit else sysflag.TRANSACTION_ROLLBACK
    opaques = []
    for half in halves:
        header = EndTransaction(
            group, half.queue_offset, half.physical_offset, outcome, half.unique_key, topic=half.topic,
            from_transaction_check=True, transaction_id=half.unique_key,
        )  # fmt: skip
        fields = {**header.fields(), "bname": half.broker_name}
        opaques.append(channel.submit(RemotingCommand(RequestCode.END_TRANSACTION, fields)))
    for half, opaque in zip(halves, opaques):
        answer = channel.wait(opaque)
        if answer.code != ResponseCode.SUCCESS and commit:
            raise AnsweredError(channel.address, f"to commit {half.unique_key} of {half.topic}", answer)


def _not_visible(channel: Channel, halves: Sequence[Half]) -> list[Half]:
    """The halves whose message is not in its topic yet."""
    opaques = []
    for half in halves:
        header = QueryMessage(half.topic, half.unique_key, 32, 0, (1 << 63) - 1)
        opaques.append(channel.submit(RemotingCommand(RequestCode.QUERY_MESSAGE, header.fields())))
    left = []
    for half, opaque in zip(halves, opaques):
        answer = channel.wait(opaque)
        if not _holds(answer, half):
            left.append(half)
    return left


def _holds(answer: RemotingCommand, half: Half) -> bool:
    body = answer.body or b""
    return any(
        (message := codec.decode(body, position, check_crc=False)).prepared_transaction_offset
        == half.physical_offset
        and message.properties.get(names.UNIQ_KEY) == half.unique_key
        for position in find_records(body).positions.tolist()
    )


class TransactionLog:
    """The decisions of a query, beside its checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self._directory = local_place(checkpoint, "checkpointLocation") / "rocketmq"

    def _path(self, batch_id: int, kind: str) -> Path:
        return self._directory / f"{batch_id}.{kind}"

    def decided(self, batch_id: int) -> bool:
        """Whether the halves of a micro-batch are written down."""
        return self._path(batch_id, "json").exists() or self.done(batch_id)

    def done(self, batch_id: int) -> bool:
        """Whether all of them have been ended."""
        return self._path(batch_id, "done").exists()

    def commit(self, cluster: ClusterView, group: str, batch_id: int, halves: Sequence[Half]) -> None:
        """Make a micro-batch visible, or go on with that."""
        if self.done(batch_id):
            return
        again = self.decided(batch_id)
        if again:
            halves = [Half(*item) for item in json.loads(self._path(batch_id, "json").read_bytes())]
            log.warning("the commit of batch %d goes on: %d messages", batch_id, len(halves))
            time.sleep(_SETTLE_S)
        else:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(batch_id, "json"), json.dumps(halves).encode())
        end_all(cluster, group, halves, commit=True, again=again)
        write_atomically(self._path(batch_id, "done"), b"")
        self._forget(batch_id - KEEP_DECISIONS)

    def _forget(self, batch_id: int) -> None:
        for kind in ("json", "done"):
            if batch_id >= 0 and self._path(batch_id, kind).exists():
                os.unlink(self._path(batch_id, kind))

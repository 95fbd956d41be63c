"""The log on disk: RocketMQ's files, byte for byte, and what is done with them.

    message_store   MessageStore, which puts the rest together
    put, dispatch   a message to the log, then to its queue and the index; bulk_dispatch for many
    reads           back: entries of a queue, slices of the log, keys, times
    recovery, checkpoint, retention, clock_steps, service, stats, status, config
    log/            mapped files, the CommitLog, flush
    queue/          ConsumeQueues: simple, with ext units, of batches; light ones
    index/          keys to places in the log
    timer/          the wheel and the log of timer messages
    replication/    the log between brokers, master and slave

Requests and consumers' state do not live here, nor sockets but those of replication. A store directory that
no process has open is for `kourou.inspect`.

The way of the data: `MessageStore.put_message` → CommitLog → ConsumeQueue and index in the same call;
back, `get_message` reads the queue's entries and hands out slices of the log.
"""

from kourou.store.config import BrokerRole, FlushDiskType, MessageStoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.put import InnerMessage
from kourou.store.recovery import RecoveryReport
from kourou.store.status import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    PutMessageResult,
    PutMessageStatus,
    QueryMessageResult,
)

__all__ = [
    "BoundaryType",
    "BrokerRole",
    "FlushDiskType",
    "GetMessageResult",
    "GetMessageStatus",
    "InnerMessage",
    "MessageStore",
    "MessageStoreConfig",
    "PutMessageResult",
    "PutMessageStatus",
    "QueryMessageResult",
    "RecoveryReport",
]

"""The log on disk: RocketMQ's files, byte for byte, and what is done with them.

What lives here: mapped files (mapped_file, allocate), the CommitLog and its records' way to ConsumeQueue and
IndexFile (commit_log, dispatch, consume_queue, batch_consume_queue, index_file), flush, checkpoint,
recovery, retention, statistics, replication of the log between brokers, and MessageStore, which puts them
together. `offline` reads a store directory that no process has open. Requests and consumers' state do not
live here, nor sockets but those of replication.

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

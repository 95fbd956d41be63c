"""What the parts of Admin answer: plain records, in RocketMQ's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kourou.client.routes import MASTER_ID
from kourou.remoting.protocol.mq_version import version_name as version_name

# Brokers


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker: its name, and the addresses of its members by their ids."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """The address of the master."""
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A member of a broker and its figures (runtime); without them it did not answer, `error` says why."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    runtime: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def version(self) -> str:
        """The version that it says it has."""
        return self.runtime.get("brokerVersionDesc", "")

    @property
    def is_active(self) -> bool:
        """Whether it serves."""
        return self.runtime.get("brokerActive") == "true"

    @property
    def in_tps(self) -> float:
        """Messages put in a second, over the last ten."""
        return first_number(self.runtime.get("putTps"))

    @property
    def out_tps(self) -> float:
        """Messages read in a second, over the last ten."""
        return first_number(self.runtime.get("getTransferredTps"))

    @property
    def disk_ratio(self) -> float:
        """How full the disk of the log is, from 0 to 1."""
        return first_number(self.runtime.get("commitLogDiskRatio"))

    def difference(self, later: str, earlier: str) -> int:
        """How much one counter is above another."""
        return int(self.runtime.get(later, 0)) - int(self.runtime.get(earlier, 0))


def first_number(text: str | None) -> float:
    """The first of the numbers in a figure of a broker, which is empty until there is something to tell."""
    try:
        return float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """How long sends to a broker took."""

    cluster: str
    broker_name: str
    average_ms: float
    successes: int
    failures: int


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """What comes into a topic, and out to a group."""

    topic: str
    group: str
    accumulation: int
    in_tps: float
    out_tps: float
    in_24h: int
    out_24h: int


# Topics


@dataclass(frozen=True, slots=True)
class TopicOfBroker:
    """A topic on a broker, as the route has it."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue: the offset of its first message, and behind its last."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The queues of a topic, and how many messages come in a second."""

    topic: str
    queues: list[QueueState]
    put_tps: float


@dataclass(frozen=True, slots=True)
class PermissionChange:
    """The permission of a topic on a broker, before and after."""

    address: str
    old_perm: int
    new_perm: int


# Groups


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in a queue."""

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_consumed_ms: int
    client_ip: str | None = None

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Messages that were pulled and not consumed yet."""
        return self.pull_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is."""

    group: str
    queues: list[QueueProgress]
    tps: float

    @property
    def lag(self) -> int:
        """Messages that wait, in all queues."""
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int:
        """Messages that were pulled and not consumed yet."""
        return sum(queue.in_flight for queue in self.queues)


@dataclass(frozen=True, slots=True)
class PopProgress:
    """How a group takes a topic of a broker."""

    topic: str
    broker_name: str
    mode: str  # that was set: POP, PULL, or nothing
    shared_queues: int
    waiting_polls: int
    in_flight: int  # popped by clients that are online, and not acknowledged
    lag: int
    retries: int  # not acknowledged in time, and not popped again yet


@dataclass(frozen=True, slots=True)
class ReviveState:
    """How far a broker is with messages that were popped and not acknowledged."""

    behind: int  # records that are due
    waiting: int  # check points and acknowledgements that are not due yet


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A client and where it comes from."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True)
class SubscriptionOfGroup:
    """What a group wants of a topic."""

    topic: str
    expression: str
    expression_type: str


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The clients of a group, and what they subscribe to."""

    group: str
    clients: list[ClientConnection]
    subscriptions: list[SubscriptionOfGroup]
    consume_type: str
    message_model: str
    consume_from_where: str


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a line; type, model and version are empty where nobody is online."""

    group: str
    clients: int
    version: str
    consume_type: str
    message_model: str
    tps: float
    lag: int


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Where a group goes on in a queue; the old offset is known where the tool wrote the new one itself."""

    broker_name: str
    queue_id: int
    offset: int
    old_offset: int | None = None
    broker_offset: int | None = None
    timestamp_offset: int | None = None


# Messages


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """Whether a group has consumed a message."""

    group: str
    track_type: str  # Java's TrackType
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One thing that happened to a message."""

    type: str  # Pub, SubBefore, SubAfter, EndTransaction, Recall
    message_id: str
    group: str
    topic: str
    client_host: str
    timestamp_ms: int
    cost_ms: int
    is_success: bool
    keys: str = ""
    tags: str = ""


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntries:
    """Entries of a queue, as the broker has them: {physicOffset, physicSize, tagsCode, eval, …}."""

    min_offset: int
    max_offset: int
    first: int
    entries: list[dict[str, Any]]
    subscription: dict[str, Any] | None
    filter_data: str | None


@dataclass(frozen=True, slots=True)
class DirectResult:
    """How a consumer did with a message that it was handed."""

    order: bool
    auto_commit: bool
    consume_result: str
    remark: str | None
    spent_ms: int

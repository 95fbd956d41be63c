"""Brokers and clusters: figures, configuration, replication, what is to be cleaned up, round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import (
    ADMIN,
    OPERATOR,
    Done,
    Names,
    Table,
    Text,
    Values,
    columns,
    operation,
)
from kourou.admin.operations.parameters import Param

if TYPE_CHECKING:
    from kourou.admin import Admin

STATES = Table(
    columns(
        "Cluster=cluster-, Broker=broker_name, Id=broker_id:number, Address=address-, Version=version-, "
        "In / s=in_tps:number, Out / s=out_tps:number, Disk=disk_ratio:percent-, Active=active",
        active=lambda one: one.error or ("yes" if one.is_active else "no"),
    ),
    fails=lambda found: any(one.error for one in found),
)
TRAFFIC = Table(
    columns(
        "Topic=topic:topic, Group=group:group, Waiting=accumulation:number, In / s=in_tps:number, "
        "Out / s=out_tps:number, In of a day=in_24h:number, Out of a day=out_24h:number"
    )
)
CONSUME_STATS = Table(
    columns(
        "Group=group:group, Topic=topic:topic, Queue=queueId:number, End offset=brokerOffset:number, "
        "Offset=consumerOffset:number, Lag=lag:number, Last consumed=lastConsumedTimestamp:time"
    )
)
ROUND_TRIPS = Table(
    columns(
        "Cluster=cluster, Broker=broker_name, ms=average_ms:number, Sent=successes:number, "
        "Failed=failures:number"
    ),
    fails=lambda found: any(one.failures for one in found),
)


def _slaves(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for one in found:
        client = one.get("haClientRuntimeInfo") or {}
        if one.get("master"):
            rows += [{"address": one["address"], **slave} for slave in one.get("haConnectionInfo") or ()]
        else:
            here = {"address": client.get("masterAddr"), "addr": one["address"]}
            rows.append({**client, **here, "slaveAckOffset": client.get("maxOffset")})
    return rows


def _replication(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{one['address']}: master, its log ends at {one['masterCommitLogMaxOffset']},"
        f" {one['inSyncSlaveNums']} slaves in sync"
        if one.get("master")
        else f"{one['address']}: slave of {(one.get('haClientRuntimeInfo') or {}).get('masterAddr')}"
        for one in found
    ]


SLAVES = Table(
    columns(
        "Master=address:code, Slave=addr:code, In sync=inSync:yes, Bytes behind=diff:number, "
        "Position=slaveAckOffset:number-, Bytes / s=transferredByteInSecond:number-"
    ),
    rows=_slaves,
    whole=True,
    notes=_replication,
)


@operation("broker status", Values())
async def status(admin: Admin, broker: str, key: Text = None) -> Any:
    """Show the figures of a broker and its store."""
    return await admin.brokers.runtime(broker)


@operation("broker config", Values())
async def config(admin: Admin, broker: str, key: Text = None) -> Any:
    """Show the configuration of a broker."""
    return dict(sorted((await admin.brokers.config(broker)).items()))


@operation("broker set", Done("changed at {found}"), role=ADMIN)
async def set_config(
    admin: Admin, changes: dict[str, str], cluster: Text = None, broker: Text = None
) -> list[str]:
    """Change the configuration of a broker, or of all masters; it counts at once and after a restart.

    \b
    Example: keep messages for two days
      kourou admin broker set fileReservedTime=48 -b broker-a
    """
    return await admin.brokers.set_config(changes, broker=broker, cluster=cluster)


@operation(
    "broker consume-stats",
    CONSUME_STATS,
    java="brokerConsumeStats b!brokerAddr t:timeoutMillis= l:level=at_least o:order=only_ordered",
)
async def consume_stats(admin: Admin, broker: str, at_least: int = 0, only_ordered: bool = False) -> Any:
    """Show how far all groups are in all queues of a broker."""
    return [
        {
            "group": one.group, "topic": queue.topic, "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": queue.broker_offset, "consumerOffset": queue.consumer_offset, "lag": queue.lag,
            "lastConsumedTimestamp": queue.last_consumed_ms,
        }
        for one in await admin.brokers.consume_stats(broker, only_ordered=only_ordered)
        for queue in sorted(one.queues, key=lambda one: (one.topic, one.broker_name, one.queue_id))
        if queue.lag >= at_least
    ]  # fmt: skip


@operation(
    "broker clean",
    Done("{found} cleaned {what}"),
    role=ADMIN,
    confirm="Remove {what} that have expired or are unused?",
)
async def clean(admin: Admin, what: str, cluster: Text = None, broker: Text = None) -> list[str]:
    """Have brokers remove what nobody needs any more, now."""
    return await admin.brokers.clean(what, broker=broker, cluster=cluster)


@operation(
    "broker timer-engine",
    Done("timers are in {engine} at {found}"),
    role=ADMIN,
    java="switchTimerEngine b|brokerAddr c|clusterName e!engineType=engine",
)
async def timer_engine(admin: Admin, engine: str, cluster: Text = None, broker: Text = None) -> list[str]:
    """Have timers on the time wheel in files (F), or in RocksDB (R)."""
    return await admin.brokers.switch_timer_engine(engine, broker=broker, cluster=cluster)


@operation(
    "broker cold-limit",
    Done("{group} reads at most {bytes_per_s} cold bytes/s at {found}"),
    role=ADMIN,
    java="updateColdDataFlowCtrGroupConfig b|brokerAddr c|clusterName g!consumerGroup"
    " v!threshold=bytes_per_s",
)
async def cold_limit(
    admin: Admin, group: str, bytes_per_s: int, cluster: Text = None, broker: Text = None
) -> list[str]:
    """Limit what a group may read a second that is not in memory."""
    return await admin.brokers.set_cold_limit(group, bytes_per_s, broker=broker, cluster=cluster)


@operation(
    "broker cold-limit-remove",
    Done("{group} has no limit at {found}"),
    role=ADMIN,
    java="removeColdDataFlowCtrGroupConfig b|brokerAddr c|clusterName g!consumerGroup",
)
async def remove_cold_limit(admin: Admin, group: str, cluster: Text = None, broker: Text = None) -> list[str]:
    """Limit no more what a group may read that is not in memory."""
    return await admin.brokers.set_cold_limit(group, None, broker=broker, cluster=cluster)


@operation("broker read-ahead", Names("answer"), role=ADMIN)
async def read_ahead(admin: Admin, broker: str, read_mode: str) -> list[str]:
    """Have the system read ahead in the log of a broker as usual (0), or not (1)."""
    return [await admin.brokers.set_read_ahead(broker, read_mode)]


@operation(
    "ha status",
    SLAVES,
    java="haStatus c|clusterName b|brokerAddr i:interval=",
    broker=Param("One broker; else all masters.", metavar="BROKER", argument=True),
)
async def ha_status(admin: Admin, broker: Text = None, cluster: Text = None) -> Any:
    """Show how far slaves are behind their masters."""
    addresses = await admin.link.targets(cluster, broker)
    return [{"address": address, **await admin.brokers.ha_status(address)} for address in addresses]


@operation(
    "ha reset-master-flush",
    Done("{broker} takes its master's disk to be at {offset}"),
    role=ADMIN,
    confirm="Tell {broker} that its master's disk is at {offset}?",
    java="resetMasterFlushOffset b!brokerAddr o!offset",
)
async def reset_master_flush(admin: Admin, broker: str, offset: int) -> None:
    """Tell a slave how far its master's disk is."""
    await admin.brokers.reset_master_flush_offset(broker, offset)


@operation("cluster list", STATES, java="clusterList m-moreStats= i:interval= c:clusterName")
async def states(admin: Admin, cluster: Text = None) -> Any:
    """List all brokers, masters and slaves, and how they do. Exit code 1 if one does not answer."""
    return await admin.clusters.states(cluster)


@operation("cluster stats", TRAFFIC, java="statsAll a-activeTopic=active t:topic")
async def stats(admin: Admin, topic: Text = None, active: bool = False) -> Any:
    """Show what comes into topics, and out to groups."""
    return await admin.clusters.traffic(topic, only_active=active)


@operation(
    "cluster round-trip",
    ROUND_TRIPS,
    role=OPERATOR,
    java="clusterRT a:amount=count s:size c:cluster p:printAsTlog= m:machineRoom= i:interval=",
)
async def round_trip(admin: Admin, cluster: Text = None, count: int = 100, size: int = 128) -> Any:
    """Send messages to each broker, and show how long that takes. Exit code 1 if one was not sent."""
    return await admin.clusters.round_trips(cluster, count=count, size_bytes=size)

"""Consumer groups: how far they are, who is in them; made, changed, deleted. And producers: who sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import (
    ADMIN,
    Document,
    Done,
    Either,
    Names,
    Table,
    Text,
    columns,
    operation,
)
from kourou.admin.operations.parameters import Param
from kourou.admin.operations.topics import read_list

if TYPE_CHECKING:
    from kourou.admin import Admin

CLIENTS = Table(columns("Client=client_id:code, Address=address:code-, Language=language-, Version=version-"))
PROGRESS = Table(
    columns(
        "Topic=topic:topic, Broker=broker_name-, Queue=queue_id:number, End offset=broker_offset:number-, "
        "Offset=consumer_offset:number, Lag=lag:number, In flight=in_flight:number-, Client=client_ip-, "
        "Last consumed=last_consumed_ms:time-"
    ),
    "{group}: {found.lag} messages wait, {found.in_flight} in flight, {found.tps:.2f} messages/s",
    lambda found: found.queues,
)
SUMMARIES = Table(
    columns(
        "Group=group:group, Clients=clients:number, Version=version-, Type=consume_type-, "
        "Model=message_model-, Out / s=tps:number, Lag=lag:number"
    )
)
POPS = Table(
    columns(
        "Topic=topic:topic, Broker=broker_name-, Mode=mode, Shared queues=shared_queues:number-, "
        "Waiting polls=waiting_polls:number, In flight=in_flight:number, Lag=lag:number, "
        "Retries=retries:number"
    )
)
SUBSCRIPTIONS = Table(
    columns("Topic=topic:topic, Expression=expression:code, Type=expression_type-"),
    rows=lambda found: found.subscriptions,
)
CONNECTIONS = Table(
    CLIENTS.columns,
    "{group}: {found.consume_type}, {found.message_model}, {found.consume_from_where}",
    lambda found: found.clients,
    whole=True,
    below=SUBSCRIPTIONS,
)
RUNNING = columns(
    "Topic=topic, Broker=brokerName-, Queue=queueId:number, Cached=cachedMsgCount:number, "
    "Offset=commitOffset:number, Last consumed=lastConsumeTimestamp:time-"
)
PRODUCERS = Table(
    columns(
        "Group=group, Client=clientId:code, Address=remoteIP:code-, Language=language-, "
        "Version=versionDesc-, Last seen=lastUpdateTimestamp:time-"
    ),
    rows=lambda found: [{"group": group, **one} for group, clients in found.items() for one in clients],
)


@operation("group list", Names("group"))
async def list_groups(admin: Admin, cluster: Text = None, everything: bool = False) -> list[str]:
    """List groups."""
    return await admin.groups.names(cluster, with_system=everything)


@operation("group create", Done("{group} is on {found}"), role=ADMIN)
async def create(
    admin: Admin, group: str, retry_times: int = 16, retry_queues: int = 1, enable: bool = True,
    broadcast: bool = True, from_min: bool = True, orderly: bool = False,
    setting: dict[str, str] | None = None, cluster: Text = None,
    broker: Text = None,
) -> list[str]:  # fmt: skip
    """Make a group, or change it: on all masters, those of a cluster, or one broker."""
    settings: dict[str, Any] = {
        "consumeEnable": enable, "consumeFromMinEnable": from_min, "consumeBroadcastEnable": broadcast,
        "consumeMessageOrderly": orderly, "retryMaxTimes": retry_times, "retryQueueNums": retry_queues,
    }  # fmt: skip
    return await admin.groups.create(group, settings | (setting or {}), broker=broker, cluster=cluster)


@operation(
    "group create-many",
    Done("sent to {found}"),
    role=ADMIN,
    java="updateSubGroupList b|brokerAddr c|clusterName f!filename=file",
)
async def create_many(admin: Admin, file: str, cluster: Text = None, broker: Text = None) -> list[str]:
    """Make or change the consumer groups of a file with a JSON array of SubscriptionGroupConfig."""
    return await admin.groups.create_many(read_list(file), broker=broker, cluster=cluster)


@operation(
    "group delete",
    Done("{group} is deleted from {found}"),
    role=ADMIN,
    confirm="Delete group {group}?",
    needs="group",
    java="deleteSubGroup b|brokerAddr c|clusterName g!groupName r:removeOffset=clean_offset",
)
async def delete(
    admin: Admin, group: str, clean_offset: bool = False, cluster: Text = None, broker: Text = None
) -> list[str]:  # fmt: skip
    """Delete a group; from a whole cluster with its retry and dead-letter topics."""
    return await admin.groups.delete(group, broker=broker, cluster=cluster, clean_offset=clean_offset)


@operation("group config", Document())
async def config(admin: Admin, group: str) -> Any:
    """Show how a group is set at each broker, as JSON."""
    from kourou.admin import AdminError

    found = await admin.groups.config(group)
    if not found:
        raise AdminError(f"no broker has group {group}: make it with `kourou admin group create {group}`")
    return found


@operation(
    "group progress",
    Either("group", PROGRESS, SUMMARIES),
    needs="group",
    java="consumerProgress g:groupName t:topicName s:showClientIP=with_clients c:cluster=",
    group=Param("One group; else all.", metavar="GROUP", argument=True),
)
async def progress(admin: Admin, group: Text = None, topic: Text = None, with_clients: bool = False) -> Any:
    """Show how many messages wait: of one group queue by queue, or of all groups.

    \b
    Example: who is behind?
      kourou admin group progress
    """
    if group is None:
        return await admin.groups.summaries()
    return await admin.groups.progress(group, topic, with_clients=with_clients)


@operation(
    "group connections", CONNECTIONS, needs="group", java="consumerConnection g!consumerGroup b:brokerAddr"
)
async def connections(admin: Admin, group: str, broker: Text = None) -> Any:
    """Show the clients of a group, and what they subscribe to."""
    return await admin.groups.connections(group, broker=broker)


def running_rows(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The queues that clients read, of what each says that it does now."""
    from kourou.message.model import MessageQueue

    return [
        {"client": client, **MessageQueue.from_json(key).to_json(), **queue}
        for client, info in found.items()
        for key, queue in sorted((info.get("mqTable") or {}).items())
    ]


def _stacks(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for client, info in found.items():
        if info.get("jstack"):
            lines += [client, *str(info["jstack"]).expandtabs().splitlines()]
    return lines


@operation(
    "group status",
    Table((*columns("Client=client"), *RUNNING), rows=running_rows, whole=True, notes=_stacks),
    needs="group",
)
async def status(
    admin: Admin, group: str, client: Text = None, stack: bool = False, broker: Text = None
) -> Any:
    """Show what the clients of a group do now: queues, cached messages, speed."""
    if client is None:
        return await admin.groups.status(group, broker=broker, with_stack=stack)
    return {client: await admin.groups.running_info(group, client, with_stack=stack)}


@operation(
    "group mode",
    Done("{group} takes {topic} with {mode} at {found}"),
    role=ADMIN,
    needs="group",
    java="setConsumeMode b|brokerAddr c|clusterName t!topicName g!groupName m!mode"
    " q:popShareQueueNum=pop_queues",
)
async def set_mode(
    admin: Admin, group: str, topic: str, mode: str, pop_queues: int = 0, cluster: Text = None,
    broker: Text = None,
) -> list[str]:  # fmt: skip
    """Change how the clients of a group take the messages of a topic."""
    return await admin.groups.set_consume_mode(
        topic, group, mode, pop_share_queues=pop_queues, broker=broker, cluster=cluster
    )


@operation("group pops", POPS, needs="group")
async def pops(admin: Admin, group: str, topic: Text = None) -> Any:
    """Show how a group takes its topics: PULL or POP where that was set, and what is popped.

    Waiting polls are pops that wait for a message. In flight is what clients that are online have popped and
    not acknowledged; retries were not acknowledged in time, and wait for the next pop.
    """
    return await admin.pops.of_group(group, topic)


@operation("producer list", PRODUCERS, java="producer b!broker")
async def list_producers(admin: Admin, broker: str) -> Any:
    """Show all producers that are connected to a broker."""
    return await admin.producers.at_broker(broker)


@operation("producer connections", CLIENTS, java="producerConnection g!producerGroup t!topic")
async def producer_connections(admin: Admin, group: str, topic: str) -> Any:
    """Show the clients of a producer group that send to a topic."""
    return await admin.producers.connections(group, topic)

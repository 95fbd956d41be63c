"""Topics: where they are, what is in them; made, changed, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import (
    ADMIN,
    Document,
    Done,
    Names,
    Number,
    Table,
    Text,
    columns,
    operation,
)
from kourou.admin.operations.parameters import Param

if TYPE_CHECKING:
    from kourou.admin import Admin

QUEUES = Table(
    columns(
        "Broker=broker_name, Queue=queue_id:number, First offset=min_offset:number-, "
        "End offset=max_offset:number, Messages=messages:number, Last message=last_update_ms:time-",
        messages=lambda one: one.max_offset - one.min_offset,
    ),
    "{topic}: {found.put_tps:.2f} messages/s come in",
    lambda found: found.queues,
)
ROUTE = Table(
    columns(
        "Broker=broker_name, Cluster=cluster-, Addresses=addresses:code, Read queues=read_queue_nums:number, "
        "Write queues=write_queue_nums:number, Permission=perm:perm-",
        addresses=lambda one: ", ".join(f"{number}: {text}" for number, text in one.addresses.items()),
    )
)
CONFIG = columns(
    "Broker=broker, Read queues=readQueueNums:number, Write queues=writeQueueNums:number, "
    "Permission=perm:perm, In order=order:yes-, Attributes=attributes:code-",
    attributes=lambda one: ", ".join(f"{key}={value}" for key, value in one["attributes"].items()),
)
CONSUMERS = Table(
    columns(
        "Group=group:group, Lag=lag:number, Out / s=tps:number, Last consumed=last:time-",
        last=lambda one: max((queue.last_consumed_ms for queue in one.queues), default=0),
    )
)
ALLOCATED = Table(
    columns("Client=client, Broker=brokerName, Queue=queueId:number"),
    rows=lambda found: [{"client": client, **one.to_json()} for client, own in found.items() for one in own],
    whole=True,
)


@operation("topic list", Names("topic"))
async def list_topics(admin: Admin, cluster: Text = None, everything: bool = False) -> list[str]:
    """List topics; with --all also retry, dead-letter and system topics."""
    if everything:
        return await admin.topics.names(cluster)
    found: set[str] = set()
    for address in await admin.link.masters(cluster):
        found |= (await admin.topics.user_configs(address)).keys()
    return sorted(found)


@operation("topic route", ROUTE, java="topicRoute t!topic l-list=")
async def route(admin: Admin, topic: str) -> Any:
    """Show on which brokers a topic is."""
    return await admin.topics.route(topic)


@operation("topic status", QUEUES, java="topicStatus t!topic c:cluster=route_of")
async def status(admin: Admin, topic: str, route_of: Text = None) -> Any:
    """Show the offsets of a topic's queues."""
    return await admin.topics.status(topic, route_topic=route_of)


@operation("topic config", Document())
async def config(admin: Admin, topic: str) -> Any:
    """Show how a topic is set at each broker, as JSON."""
    return await admin.topics.config(topic)


@operation(
    "topic create",
    Done("{topic} is on {found}"),
    role=ADMIN,
    java="updateTopic b|brokerAddr c|clusterName a:attributes t!topic r:readQueueNums=read_queues"
    " w:writeQueueNums=write_queues p:perm o:order u:unit s:hasUnitSub=unit_subscriber",
)
async def create(
    admin: Admin, topic: str, queues: int = 8, read_queues: Number = None, write_queues: Number = None,
    perm: int = 6, order: bool = False, type: Text = None, attributes: Text = None, unit: bool = False,
    unit_subscriber: bool = False, cluster: Text = None, broker: Text = None,
) -> list[str]:  # fmt: skip
    """Make a topic, or change it: on all masters, those of a cluster, or one broker.

    \b
    Example: a topic whose messages keep their order
      kourou admin topic create orders -q 4 --type FIFO
    """
    changes = [text for text in (attributes, type and f"+message.type={type}") if text]
    return await admin.topics.create(
        topic, broker=broker, cluster=cluster, read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues, perm=perm, order=order,
        sys_flag=unit * 1 + unit_subscriber * 2, attributes=",".join(changes) or None,
    )  # fmt: skip


@operation("topic update", Done("{topic} is changed on {found}"), role=ADMIN)
async def update(
    admin: Admin, topic: str, read_queues: Number = None, write_queues: Number = None, perm: Number = None
) -> list[str]:  # fmt: skip
    """Change queues and permission on each broker that has a topic, and leave the rest of it as it is.

    Fewer queues leave messages of the others unread.
    """
    done = []
    for broker, known in (await admin.topics.config(topic)).items():
        done += await admin.topics.create(
            topic, broker=broker, order=known.order, sys_flag=known.topic_sys_flag,
            read_queues=known.read_queue_nums if read_queues is None else read_queues,
            write_queues=known.write_queue_nums if write_queues is None else write_queues,
            perm=known.perm if perm is None else perm,
        )  # fmt: skip
    return done


@operation(
    "topic create-many",
    Done("sent to {found}"),
    role=ADMIN,
    java="updateTopicList b|brokerAddr c|clusterName f!filename=file",
)
async def create_many(admin: Admin, file: str, cluster: Text = None, broker: Text = None) -> list[str]:
    """Make or change the topics of a file with a JSON array of TopicConfig."""
    return await admin.topics.create_many(read_list(file), broker=broker, cluster=cluster)


def read_list(path: str) -> list[Mapping[str, Any]]:
    """The objects of a JSON array in a file."""
    from kourou.admin import AdminError
    from kourou.remoting.protocol import lenient_json

    try:
        found = lenient_json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise AdminError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise AdminError(f"{path} has no JSON array of objects")
    return found


@operation(
    "topic delete",
    Done("{topic} is deleted from {found} and from the name servers"),
    role=ADMIN,
    confirm="Delete topic {topic} and its messages?",
    needs="topic",
    java="deleteTopic t!topic c!clusterName",
)
async def delete(admin: Admin, topic: str, cluster: Text = None) -> list[str]:
    """Delete a topic with its queues and offsets, from one cluster or from all that have it."""
    done: list[str] = []
    for name in [cluster] if cluster else await admin.topics.clusters(topic):
        done += await admin.topics.delete(topic, cluster=name)
    return done


@operation(
    "topic perm",
    Table(columns("Broker=address, Before=old_perm:perm, Now=new_perm:perm")),
    role=ADMIN,
    java="updateTopicPerm b|brokerAddr c|clusterName t!topic p!perm",
)
async def set_perm(admin: Admin, topic: str, perm: int, cluster: Text = None, broker: Text = None) -> Any:
    """Change whether a topic can be read and written."""
    return await admin.topics.set_permission(topic, perm, broker=broker, cluster=cluster)


@operation("topic clusters", Names("cluster"), java="topicClusterList t!topic")
async def clusters(admin: Admin, topic: str) -> list[str]:
    """List the clusters that have a topic."""
    return await admin.topics.clusters(topic)


@operation("topic groups", Names("group"))
async def groups(admin: Admin, topic: str) -> list[str]:
    """List the groups that consume a topic, or did."""
    return await admin.topics.groups(topic)


@operation("topic consumers", CONSUMERS)
async def consumers(admin: Admin, topic: str) -> Any:
    """Show how far the groups of a topic are in it."""
    return [await admin.groups.progress(group, topic) for group in await admin.topics.groups(topic)]


@operation("topic allocate", ALLOCATED, java="allocateMQ t!topic i!ipList=clients")
async def allocate(admin: Admin, topic: str, clients: list[str]) -> Any:
    """Show which queues each of some clients would read."""
    return await admin.topics.allocate(topic, clients)


@operation(
    "topic order",
    Names("order"),
    role=ADMIN,
    value=Param("Set it to this.", metavar="BROKER:QUEUES;…", argument=True),
)
async def order_config(admin: Admin, topic: str, value: Text = None, remove: bool = False) -> list[str]:
    """Show, set or remove what the name servers know of the queues of a topic in order."""
    from kourou.admin.name_servers import ORDER_TOPIC_CONFIG

    servers = admin.name_servers
    if remove:
        await servers.get_kv(ORDER_TOPIC_CONFIG, topic)  # raises where there is none
        await servers.delete_kv(ORDER_TOPIC_CONFIG, topic)
        return []
    if value is not None:
        await servers.put_kv(ORDER_TOPIC_CONFIG, topic, value)
    return [await servers.get_kv(ORDER_TOPIC_CONFIG, topic)]

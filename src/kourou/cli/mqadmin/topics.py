"""Verbs of `kourou mqadmin` about topics and name servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin.link import AdminError
from kourou.admin.name_servers import ORDER_TOPIC_CONFIG, order_config
from kourou.cli.mqadmin.verbs import (
    BadFlagsError,
    Flags,
    Verb,
    fit,
    flags,
    human_time,
    java_value,
    line,
    pretty_json,
)
from kourou.errors import KourouError
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.protocol import lenient_json

if TYPE_CHECKING:
    from kourou.admin import Admin

_ROUTE = "%-45s %-32s %-50s %-10s %-11s %-5s"


async def _update_topic(admin: Admin, given: Flags) -> None:
    topic, order = given.text("t"), given.truth("o")
    read, write = given.number("r", 8), given.number("w", 8)
    perm, sys_flag = given.number("p", 6), given.truth("u") * 1 + given.truth("s") * 2
    addresses = await admin.topics.create(
        topic, broker=given.get("b"), cluster=given.get("c"), read_queues=read, write_queues=write,
        perm=perm, order=order, sys_flag=sys_flag, attributes=given.get("a"),
    )  # fmt: skip
    for address in addresses:
        line("create topic to %s success.", address)
    if order:
        names = {one.broker_name: write for one in await admin.link.brokers() if one.master in addresses}
        where = "broker" if given.has("b") else "cluster"
        line("set %s orderConf. isOrder=true, orderConf=[%s]", where, order_config(names))
    line("%s", _config(topic, read, write, perm, sys_flag, order, given.get("a")))


def _config(
    topic: str, read: int, write: int, perm: int, sys_flag: int, order: bool, attributes: str | None
) -> str:
    table: dict[str, str] = {}
    for part in (attributes or "").split(","):
        key, _, value = part.partition("=")
        if key:
            table[key] = value
    return (
        f"TopicConfig [topicName={topic}, readQueueNums={read}, writeQueueNums={write}, "
        f"perm={_perm(perm)}, topicFilterType=SINGLE_TAG, topicSysFlag={sys_flag}, "
        f"order={java_value(order)}, attributes={java_value(table)}]"
    )


def _perm(perm: int) -> str:
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


def read_list(path: str) -> list[Mapping[str, Any]] | None:
    """The objects of a JSON array in a file; None if there is no file."""
    file = Path(path)
    if not file.exists():
        line("the file path %s does not exists", path)
        return None
    try:
        found = lenient_json.loads(file.read_bytes())
    except ValueError as error:
        raise AdminError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise AdminError(f"{path} has no JSON array of objects")
    return found


async def _update_topic_list(admin: Admin, given: Flags) -> None:
    topics = read_list(given.text("f"))
    if topics:
        for address in await admin.topics.create_many(topics, broker=given.get("b"), cluster=given.get("c")):
            line("submit batch of topic config to %s success, please check the result later.", address)


async def _delete_topic(admin: Admin, given: Flags) -> None:
    topic, cluster = given.text("t"), given.text("c")
    await admin.topics.delete(topic, cluster=cluster)
    line("delete topic [%s] from cluster [%s] success.", topic, cluster)
    line("delete topic [%s] from NameServer success.", topic)


async def _update_topic_perm(admin: Admin, given: Flags) -> None:
    topic, perm = given.text("t"), given.number("p")
    for change in await admin.topics.set_permission(
        topic, perm, broker=given.get("b"), cluster=given.get("c")
    ):
        line("update topic perm from %s to %s in %s success.", change.old_perm, perm, change.address)


async def _topic_route(admin: Admin, given: Flags) -> None:
    topic = given.text("t")
    if not given.has("l"):
        line(pretty_json(await admin.topics.route_data(topic)))
        return
    route = await admin.topics.route(topic)
    line(_ROUTE, "#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    for one in route:
        addresses = java_value(one.addresses)
        line(
            _ROUTE,
            one.cluster,
            one.broker_name,
            addresses,
            one.read_queue_nums,
            one.write_queue_nums,
            one.perm,
        )
    line("-" * 158)
    reads, writes = sum(one.read_queue_nums for one in route), sum(one.write_queue_nums for one in route)
    line(_ROUTE, "Total:", len(route), "", reads, writes, "")


async def _topic_status(admin: Admin, given: Flags) -> None:
    found = await admin.topics.status(given.text("t"), route_topic=given.get("c"))
    line(
        "%-32s  %-4s  %-20s  %-20s    %s",
        "#Broker Name",
        "#QID",
        "#Min Offset",
        "#Max Offset",
        "#Last Updated",
    )
    for one in found.queues:
        when = human_time(one.last_update_ms) if one.last_update_ms > 0 else ""
        line(
            "%-32s  %-4d  %-20d  %-20d    %s",
            fit(one.broker_name, 32), one.queue_id, one.min_offset, one.max_offset, when,
        )  # fmt: skip
    line("\nTopic Put TPS: %s", found.put_tps)


async def _topic_cluster_list(admin: Admin, given: Flags) -> None:
    for cluster in await admin.topics.clusters(given.text("t")):
        line("%s", cluster)


async def _topic_list(admin: Admin, given: Flags) -> None:
    names = await admin.topics.names()
    if not given.has("c"):
        for name in names:
            line("%s", name)
        return
    line("%-20s  %-48s  %-48s", "#Cluster Name", "#Topic", "#Consumer Group")
    for name in names:
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        cluster, groups = "", [""]
        try:
            cluster = (await admin.topics.clusters(name))[0]
            groups = await admin.topics.groups(name) or [""]
        except KourouError:
            pass  # a topic that has no broker now is listed without
        for group in groups:
            line("%-20s  %-64s  %-64s", fit(cluster, 20), fit(name, 64), fit(group, 64))


async def _allocate_mq(admin: Admin, given: Flags) -> None:
    found = await admin.topics.allocate(given.text("t"), given.text("i").split(","))
    line("%s", lenient_json.dumps({"result": {client: list(own) for client, own in found.items()}}).decode())


async def _update_order_conf(admin: Admin, given: Flags) -> None:
    topic, method = given.text("t"), given.text("m")
    if method == "get":
        value = await admin.name_servers.get_kv(ORDER_TOPIC_CONFIG, topic)
        line("get orderConf success. topic=[%s], orderConf=[%s] ", topic, value)
    elif method == "put":
        value = given.text("v")
        if not value:
            raise BadFlagsError("please set orderConf with option -v.")
        await admin.name_servers.put_kv(ORDER_TOPIC_CONFIG, topic, value)
        line("update orderConf success. topic=[%s], orderConf=[%s]", topic, value)
    elif method == "delete":
        await admin.name_servers.delete_kv(ORDER_TOPIC_CONFIG, topic)
        line("delete orderConf success. topic=[%s]", topic)
    else:
        raise BadFlagsError(f"-m {method} is none of put, get, delete")


# Name servers


async def _get_namesrv_config(admin: Admin, given: Flags) -> None:
    for address, table in (await admin.name_servers.config()).items():
        line("============%s============", address)
        for key, value in table.items():
            line("%-50s=  %s", key, value)


async def _update_namesrv_config(admin: Admin, given: Flags) -> None:
    key, value = given.text("k"), given.text("v")
    addresses = await admin.name_servers.set_config({key: value})
    line("update name server config success!%s\n%s : %s", java_value(addresses), key, value)


async def _update_kv_config(admin: Admin, given: Flags) -> None:
    await admin.name_servers.put_kv(given.text("s"), given.text("k"), given.text("v"))
    line("create or update kv config to namespace success.")


async def _delete_kv_config(admin: Admin, given: Flags) -> None:
    await admin.name_servers.delete_kv(given.text("s"), given.text("k"))
    line("delete kv config from namespace success.")


async def _wipe_write_perm(admin: Admin, given: Flags) -> None:
    broker = given.text("b")
    for address, count in (await admin.name_servers.wipe_write(broker)).items():
        line("wipe write perm of broker[%s] in name server[%s] OK, %d", broker, address, count)


async def _add_write_perm(admin: Admin, given: Flags) -> None:
    broker = given.text("b")
    for address, count in (await admin.name_servers.add_write(broker)).items():
        line("add write perm of broker[%s] in name server[%s] OK, %d", broker, address, count)


VERBS = (
    Verb(
        "updateTopic",
        "Make a topic, or change it.",
        flags(
            "b:brokerAddr c:clusterName a:attributes t!topic r:readQueueNums w:writeQueueNums p:perm o:order"
            " u:unit s:hasUnitSub"
        ),
        _update_topic,
        "bc",
    ),
    Verb(
        "updateTopicList",
        "Make or change the topics of a JSON file.",
        flags("b:brokerAddr c:clusterName f!filename"),
        _update_topic_list,
        "bc",
    ),
    Verb(
        "deleteTopic",
        "Delete a topic from a cluster and the name servers.",
        flags("t!topic c!clusterName"),
        _delete_topic,
    ),
    Verb(
        "updateTopicPerm",
        "Change whether a topic can be read and written.",
        flags("b:brokerAddr c:clusterName t!topic p!perm"),
        _update_topic_perm,
        "bc",
    ),
    Verb("topicRoute", "Show where a topic is.", flags("t!topic l-list"), _topic_route),
    Verb("topicStatus", "Show the offsets of a topic's queues.", flags("t!topic c:cluster"), _topic_status),
    Verb("topicClusterList", "Show the clusters that have a topic.", flags("t!topic"), _topic_cluster_list),
    Verb(
        "topicList",
        "List all topics; with -c with their clusters and groups.",
        flags("c-clusterModel"),
        _topic_list,
    ),
    Verb("allocateMQ", "Show which queues some clients would read.", flags("t!topic i!ipList"), _allocate_mq),
    Verb(
        "updateOrderConf",
        "Put, get or delete the queues of a topic in order.",
        flags("t!topic v:orderConf m!method"),
        _update_order_conf,
    ),
    Verb("getNamesrvConfig", "Show the configuration of the name servers.", (), _get_namesrv_config),
    Verb(
        "updateNamesrvConfig",
        "Change a configuration key of the name servers.",
        flags("k!key v!value"),
        _update_namesrv_config,
    ),
    Verb(
        "updateKvConfig",
        "Set a value in the table of the name servers.",
        flags("s!namespace k!key v!value"),
        _update_kv_config,
    ),
    Verb(
        "deleteKvConfig",
        "Remove a value from the table of the name servers.",
        flags("s!namespace k!key"),
        _delete_kv_config,
    ),
    Verb(
        "wipeWritePerm",
        "Have nothing sent to a broker any more.",
        flags("b!brokerName"),
        _wipe_write_perm,
    ),
    Verb(
        "addWritePerm",
        "Have a broker sent to again.",
        flags("b!brokerName"),
        _add_write_perm,
    ),
)

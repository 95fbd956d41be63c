"""Verbs about topics and name servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kourou.admin.name_servers import ORDER_TOPIC_CONFIG, order_config
from kourou.admin.operations import name_servers, topics
from kourou.admin.operations.parameters import BadInputError
from kourou.cli.answers import show_perm
from kourou.cli.mqadmin.verbs import Given, shows, tells, verb
from kourou.cli.mqadmin.words import java_value, line, pretty_json, table
from kourou.errors import KourouError
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.protocol import lenient_json

if TYPE_CHECKING:
    from kourou.admin import Admin

_ROUTE = "%-45s %-32s %-50s %-10s %-11s %-5s"


@shows(topics.create)
async def update_topic(admin: Admin, given: Given) -> None:
    read, write, perm = given.number("r", 8), given.number("w", 8), given.number("p", 6)
    order, sys_flag = given.truth("o"), given.truth("u") * 1 + given.truth("s") * 2
    addresses = await given.found(admin)
    for address in addresses:
        line("create topic to %s success.", address)
    if order:
        names = {one.broker_name: write for one in await admin.link.brokers() if one.master in addresses}
        where = "broker" if given.has("b") else "cluster"
        line("set %s orderConf. isOrder=true, orderConf=[%s]", where, order_config(names))
    attributes = dict(part.partition("=")[::2] for part in given.text("a").split(",") if part)
    line(
        "TopicConfig [topicName=%s, readQueueNums=%d, writeQueueNums=%d, perm=%s, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=%d, order=%s, attributes=%s]",
        given.text("t"), read, write, show_perm(perm), sys_flag, java_value(order), java_value(attributes),
    )  # fmt: skip


def no_file(given: Given) -> bool:
    """Whether the file of -f is not there, which Java says and takes for success."""
    if not Path(given.text("f")).exists():
        line("the file path %s does not exists", given.text("f"))
        return True
    return False


@shows(topics.create_many)
async def update_topic_list(admin: Admin, given: Given) -> None:
    for address in [] if no_file(given) else await given.found(admin):
        line("submit batch of topic config to %s success, please check the result later.", address)


@shows(topics.delete)
async def delete_topic(admin: Admin, given: Given) -> None:
    await given.found(admin)
    line("delete topic [%s] from cluster [%s] success.", given.text("t"), given.text("c"))
    line("delete topic [%s] from NameServer success.", given.text("t"))


@shows(topics.set_perm)
async def update_topic_perm(admin: Admin, given: Given) -> None:
    for change in await given.found(admin):
        line(
            "update topic perm from %s to %s in %s success.", change.old_perm, change.new_perm, change.address
        )


@shows(topics.route)
async def topic_route(admin: Admin, given: Given) -> None:
    if not given.has("l"):
        line(pretty_json(await admin.topics.route_data(given.text("t"))))
        return
    route = await given.found(admin)
    heads = "#ClusterName|#BrokerName|#BrokerAddrs|#ReadQueue|#WriteQueue|#Perm"
    table(_ROUTE, heads, route, "cluster broker_name addresses:java read_queue_nums write_queue_nums perm")
    line("-" * 158)
    reads, writes = sum(one.read_queue_nums for one in route), sum(one.write_queue_nums for one in route)
    line(_ROUTE, "Total:", len(route), "", reads, writes, "")


@shows(topics.status)
async def topic_status(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
    table(
        "%-32.32s  %-4s  %-20s  %-20s    %s",
        "#Broker Name|#QID|#Min Offset|#Max Offset|#Last Updated",
        found.queues,
        "broker_name queue_id min_offset max_offset last_update_ms:human",
    )
    line("\nTopic Put TPS: %s", found.put_tps)


tells(topics.clusters, "%s")


@verb("topicList c-clusterModel=", "List all topics; with -c with their clusters and groups.")
async def topic_list(admin: Admin, given: Given) -> None:
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
            line("%-20.20s  %-64.64s  %-64.64s", cluster, name, group)


@shows(topics.allocate)
async def allocate_mq(admin: Admin, given: Given) -> None:
    found = {client: list(own) for client, own in (await given.found(admin)).items()}
    line("%s", lenient_json.dumps({"result": found}).decode())


@verb("updateOrderConf t!topic v:orderConf m!method", "Put, get or delete the queues of a topic in order.")
async def update_order_conf(admin: Admin, given: Given) -> None:
    topic, method, value = given.text("t"), given.text("m"), given.text("v")
    if method == "get":
        value = await admin.name_servers.get_kv(ORDER_TOPIC_CONFIG, topic)
        line("get orderConf success. topic=[%s], orderConf=[%s] ", topic, value)
    elif method == "put":
        if not value:
            raise BadInputError("please set orderConf with option -v.")
        await admin.name_servers.put_kv(ORDER_TOPIC_CONFIG, topic, value)
        line("update orderConf success. topic=[%s], orderConf=[%s]", topic, value)
    elif method == "delete":
        await admin.name_servers.delete_kv(ORDER_TOPIC_CONFIG, topic)
        line("delete orderConf success. topic=[%s]", topic)
    else:
        raise BadInputError(f"-m {method} is none of put, get, delete")


# Name servers


@verb("getNamesrvConfig", "Show the configuration of the name servers.")
async def get_namesrv_config(admin: Admin, given: Given) -> None:
    for address, config in (await admin.name_servers.config()).items():
        table("============%s============", address, config.items(), row_form="%-50s=  %s")


@verb("updateNamesrvConfig k!key v!value", "Change a configuration key of the name servers.")
async def update_namesrv_config(admin: Admin, given: Given) -> None:
    key, value = given.text("k"), given.text("v")
    addresses = await admin.name_servers.set_config({key: value})
    line("update name server config success!%s\n%s : %s", java_value(addresses), key, value)


tells(name_servers.kv_put, "create or update kv config to namespace success.")
tells(name_servers.kv_delete, "delete kv config from namespace success.")


@shows(name_servers.wipe_write)
async def wipe_write_perm(admin: Admin, given: Given) -> None:
    for address, count in (await given.found(admin)).items():
        line("wipe write perm of broker[%s] in name server[%s] OK, %d", given.text("b"), address, count)


@shows(name_servers.add_write)
async def add_write_perm(admin: Admin, given: Given) -> None:
    for address, count in (await given.found(admin)).items():
        line("add write perm of broker[%s] in name server[%s] OK, %d", given.text("b"), address, count)

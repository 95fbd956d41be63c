"""Verbs of `kourou mqadmin` about consumer groups, producers and offsets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin.model import OffsetChange
from kourou.admin.offsets import END
from kourou.cli.mqadmin.topics import read_list
from kourou.cli.mqadmin.verbs import (
    BadFlagsError,
    Flags,
    Verb,
    file_name,
    fit,
    flags,
    java_value,
    line,
    plain_time,
)
from kourou.cli.output import printable
from kourou.message.model import MessageQueue
from kourou.message.topics import TIMER_TOPIC
from kourou.remoting.protocol import lenient_json

if TYPE_CHECKING:
    from kourou.admin import Admin

# Flag of updateSubGroup -> field and how its text is read
_FIELDS: dict[str, tuple[str, Any]] = {
    "s": ("consumeEnable", bool),
    "m": ("consumeFromMinEnable", bool),
    "d": ("consumeBroadcastEnable", bool),
    "o": ("consumeMessageOrderly", bool),
    "q": ("retryQueueNums", int),
    "r": ("retryMaxTimes", int),
    "i": ("brokerId", int),
    "w": ("whichBrokerWhenConsumeSlowly", int),
    "a": ("notifyConsumerIdsChangedEnable", bool),
}
# SubscriptionGroupConfig as Java makes it, in the order in which it prints it
_DEFAULTS: dict[str, Any] = {
    "groupName": "",
    "consumeEnable": True,
    "consumeFromMinEnable": False,
    "consumeBroadcastEnable": False,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "subscriptionDataSet": None,
    "attributes": {},
}


async def _update_sub_group(admin: Admin, given: Flags) -> None:
    group = given.text("g")
    settings: dict[str, Any] = {**_DEFAULTS, "groupName": group}
    for short, (name, kind) in _FIELDS.items():
        if given.has(short):
            settings[name] = given.truth(short) if kind is bool else given.number(short)
    if given.has("p"):
        try:
            settings["groupRetryPolicy"] = lenient_json.loads(given.text("p").encode())
        except ValueError:
            raise BadFlagsError(f"-p {given.text('p')} is no JSON") from None
    if given.has("attributes"):
        parts = (part.partition("=") for part in given.text("attributes").split(",") if part)
        settings["attributes"] = {key: value for key, _, value in parts}
    addresses = await admin.groups.create(group, settings, broker=given.get("b"), cluster=given.get("c"))
    for address in addresses:
        line("create subscription group to %s success.", address)
    told = ", ".join(f"{name}={java_value(settings[name])}" for name in _DEFAULTS)
    line("SubscriptionGroupConfig{%s}", told)


async def _update_sub_group_list(admin: Admin, given: Flags) -> None:
    groups = read_list(given.text("f"))
    if groups:
        what = "group config" if given.has("b") else "subscription group config"
        for address in await admin.groups.create_many(groups, broker=given.get("b"), cluster=given.get("c")):
            line("submit batch of %s to %s success, please check the result later.", what, address)


async def _delete_sub_group(admin: Admin, given: Flags) -> None:
    group, cluster = given.text("g"), given.get("c")
    addresses = await admin.groups.delete(
        group, broker=given.get("b"), cluster=cluster, clean_offset=given.truth("r")
    )
    for address in addresses:
        if given.has("b"):
            line("delete subscription group [%s] from broker [%s] success.", group, address)
        else:
            line(
                "delete subscription group [%s] from broker [%s] in cluster [%s] success.",
                group, address, cluster,
            )  # fmt: skip


async def _get_consumer_config(admin: Admin, given: Flags) -> None:
    found = await admin.groups.config(given.text("g"))
    clusters = {info.broker_name: info.cluster for info in await admin.link.brokers()}
    for broker, config in found.items():
        line("=============================%s:%s=============================", clusters[broker], broker)
        for name in _DEFAULTS:
            value = config.get(name)
            line("%-40s=  %s", name, "" if value is None else java_value(value))


async def _consumer_progress(admin: Admin, given: Flags) -> None:
    if not given.has("g"):
        head = "#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"
        line("%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s", *head)
        for one in await admin.groups.summaries():
            line(
                "%-64s  %-6d  %-24s %-5s  %-14s  %-7d  %d",
                fit(one.group, 64), one.clients, one.version, one.consume_type, one.message_model,
                int(one.tps), one.lag,
            )  # fmt: skip
        return
    clients = given.truth("s")
    progress = await admin.groups.progress(given.text("g"), given.get("t"), with_clients=clients)
    form = "%-64s  %-32s  %-4s  %-20s  %-20s  " + ("%-20s " if clients else "") + "%-20s %-20s"
    names = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"]
    line(form + "%s", *names, *(["#Client IP"] if clients else []), "#Diff", "#Inflight", "#LastTime")
    for queue in progress.queues:
        last = "N/A" if queue.last_consumed_ms == 0 else plain_time(queue.last_consumed_ms)
        line(
            form + " %s",
            fit(queue.topic, 64), fit(queue.broker_name, 32), queue.queue_id, queue.broker_offset,
            queue.consumer_offset, *([queue.client_ip or "N/A"] if clients else []), queue.lag,
            queue.in_flight, last,
        )  # fmt: skip
    line("\nConsume TPS: %.2f", progress.tps)
    line("Consume Diff Total: %d", progress.lag)
    line("Consume Inflight Total: %d", progress.in_flight)


async def _consumer_status(admin: Admin, given: Flags) -> None:
    group, stack = given.text("g"), given.has("s")
    if given.has("i"):
        info = await admin.groups.running_info(group, given.text("i"), with_stack=stack)
        line(running_info_text(info))
        return
    connections = await admin.groups.connections(group, broker=given.get("b"))
    versions = {client.client_id: client.version for client in connections.clients}
    line("%-10s %-40s %-20s %s", "#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")
    directory = Path(str(time.time_ns() // 1_000_000))
    infos = await admin.groups.status(group, broker=given.get("b"), with_stack=stack)
    for number, (client_id, info) in enumerate(infos.items(), start=1):
        directory.mkdir(exist_ok=True)
        file = directory / file_name(client_id)
        file.write_text(running_info_text(info), encoding="utf-8")
        line("%-10d %-40s %-20s %s", number, client_id, versions.get(client_id, ""), file)
    wanted = {
        frozenset((one["topic"], one.get("subString")) for one in info.get("subscriptionSet") or ())
        for info in infos.values()
    }
    if len(wanted) > 1:
        line("\n\nWARN: Different subscription in the same group of consumer!!!")
    elif infos:
        line("\n\nSame subscription in the same group of consumer\n\nRebalance OK")


def running_info_text(info: dict[str, Any]) -> str:
    """A ConsumerRunningInfo as Java's formatString has it."""
    queues = {MessageQueue.from_json(key): value for key, value in (info.get("mqTable") or {}).items()}
    rows = ["#Consumer Properties#"]
    rows += [f"{key:<40}: {java_value(value)}" for key, value in (info.get("properties") or {}).items()]
    rows += ["", "", "#Consumer Subscription#"]
    for number, one in enumerate(info.get("subscriptionSet") or (), start=1):
        mode, wanted = java_value(bool(one.get("classFilterMode"))), one.get("subString")
        rows.append(f"{number:03d} Topic: {one['topic']:<40} ClassFilter: {mode:<8} SubExpression: {wanted}")
    head = "%-64s  %-32s  %-4s  %-20s"
    rows += ["", "", "#Consumer Offset#", head % ("#Topic", "#Broker Name", "#QID", "#Consumer Offset")]
    short = "%-32s  %-32s  %-4d  %-20d"
    rows += [short % (*name, one["commitOffset"]) for name, one in queues.items()]
    rows += ["", "", "#Consumer MQ Detail#", head % ("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo")]
    rows += [head % (*name, f"ProcessQueueInfo {java_value(one)}") for name, one in queues.items()]
    columns = (
        "#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS",
        "#ConsumeFailedMsgsInHour",
    )  # fmt: skip
    speeds = "%-64s  %14s %14s %14s %14s %18s %25s"
    rows += ["", "", "#Consumer RT&TPS#", speeds % columns]
    names = "pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS", "consumeFailedMsgs"
    for topic, one in (info.get("statusTable") or {}).items():
        values = [f"{one.get(name) or 0:.2f}" for name in names[:-1]]
        rows.append(speeds % (topic, *values, one.get(names[-1]) or 0))
    if info.get("jstack"):
        rows += ["", "", "#Consumer jstack#", *str(info["jstack"]).expandtabs().split("\n")]
    return "\n".join(map(printable, rows)) + "\n"


async def _set_consume_mode(admin: Admin, given: Flags) -> None:
    topic, group, mode, queues = given.text("t"), given.text("g"), given.text("m"), given.number("q")
    if mode not in ("PULL", "POP"):
        raise BadFlagsError(f"-m {mode} is neither PULL nor POP")
    addresses = await admin.groups.set_consume_mode(
        topic, group, mode, pop_share_queues=queues, broker=given.get("b"), cluster=given.get("c")
    )
    for address in addresses:
        line("set consume mode to %s success.", address)
    line("topic[%s] group[%s] consume mode[%s] popShareQueueNum[%d]", topic, group, mode, queues)


async def _consumer_connection(admin: Admin, given: Flags) -> None:
    found = await admin.groups.connections(given.text("g"), broker=given.get("b"))
    line("%-36s %-22s %-10s %s", "#ClientId", "#ClientAddr", "#Language", "#Version")
    for one in found.clients:
        line("%-36s %-22s %-10s %s", one.client_id, one.address, one.language, one.version)
    line("\nBelow is subscription:")
    line("%-20s %s", "#Topic", "#SubExpression")
    for subscription in found.subscriptions:
        line("%-20s %s", subscription.topic, subscription.expression)
    line("\nConsumeType: %s", found.consume_type)
    line("MessageModel: %s", found.message_model)
    line("ConsumeFromWhere: %s", found.consume_from_where)


async def _producer_connection(admin: Admin, given: Flags) -> None:
    found = await admin.producers.connections(given.text("g"), given.text("t"))
    for number, one in enumerate(found, start=1):
        line("%04d  %-32s %-22s %-8s %s", number, one.client_id, one.address, one.language, one.version)


async def _producer(admin: Admin, given: Flags) -> None:
    for group, clients in (await admin.producers.at_broker(given.text("b"))).items():
        if not clients:
            line("producer group (%s) instances are empty", group)
        for one in clients:
            told = (
                f"clientId={one['clientId']},remoteIP={one['remoteIP']}, language={one['language']}, "
                f"version={one['version']}, lastUpdateTimestamp={one['lastUpdateTimestamp']}"
            )
            line("producer group (%s) instance : %s", group, told)


# Offsets


async def _clone_group_offset(admin: Admin, given: Flags) -> None:
    source, target, topic = given.text("s"), given.text("d"), given.text("t")
    await admin.offsets.clone(source, target, topic)
    line("clone group offset success. srcGroup[%s], destGroup=[%s], topic[%s]", source, target, topic)


def _print_changes(changes: list[OffsetChange], last_heading: str) -> None:
    """Offsets that brokers set, or the longer table of those that were written for a group offline."""
    if any(one.old_offset is None for one in changes):
        line("%-40s  %-40s  %-40s", "#brokerName", "#queueId", "#offset")
        for one in changes:
            line("%-40s  %-40d  %-40d", fit(one.broker_name, 32), one.queue_id, one.offset)
        return
    form = "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s"
    line(
        form, "#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", last_heading
    )
    for one in changes:
        line(
            form,
            fit(one.broker_name, 32), one.queue_id, one.broker_offset, one.old_offset, one.timestamp_offset,
            one.offset,
        )  # fmt: skip


async def _reset_offset_by_time(admin: Admin, given: Flags) -> None:
    group, topic, text = given.text("g"), given.text("t"), given.text("s")
    when_ms = given.time("s") or 0
    queue_id = given.number("q", -1)
    if given.has("b") and queue_id >= 0:
        broker = given.text("b")
        line(
            "start reset consumer offset by specified, group[%s], topic[%s], queueId[%s], broker[%s], "
            "timestamp(string)[%s], timestamp(long)[%s]",
            group, topic, queue_id, broker, text, when_ms,
        )  # fmt: skip
        address = await admin.link.address_of(broker)
        offset = given.number("o", -1)
        if offset < 0:
            offset = await admin.offsets.at_time(address, topic, queue_id, when_ms)
        line("reset consumer offset to %d", offset)
        await admin.offsets.set(group, topic, address, queue_id, offset)
        return
    force = given.truth("f", True)
    changes = await admin.offsets.reset(
        group, topic, when_ms, force=force, route_topic=_lmq_route(topic, given)
    )
    head = "start reset consumer offset by specified, group"
    if all(one.old_offset is not None for one in changes):  # Java words it otherwise where nobody is online
        head = "reset consumer offset by specified consumerGroup"
    line(
        "%s[%s], topic[%s], force[%s], timestamp(string)[%s], timestamp(long)[%s]",
        head, group, topic, java_value(force), text, when_ms,
    )  # fmt: skip
    _print_changes(changes, "#resetOffset")


def _lmq_route(topic: str, given: Flags) -> str | None:
    is_hidden = topic.startswith("%LMQ%") or topic == TIMER_TOPIC
    return given.get("c") if is_hidden else None


async def _skip_accumulated(admin: Admin, given: Flags) -> None:
    topic = given.text("t")
    changes = await admin.offsets.reset(
        given.text("g"), topic, END, force=given.truth("f", True), route_topic=_lmq_route(topic, given)
    )
    _print_changes(changes, "#rollbackOffset")


VERBS = (
    Verb(
        "updateSubGroup",
        "Make a consumer group, or change it.",
        flags(
            "b:brokerAddr c:clusterName g!groupName s:consumeEnable m:consumeFromMinEnable"
            " d:consumeBroadcastEnable o:consumeMessageOrderly q:retryQueueNums r:retryMaxTimes"
            " p:groupRetryPolicy i:brokerId w:whichBrokerWhenConsumeSlowly a:notifyConsumerIdsChanged"
            " attributes:attributes"
        ),
        _update_sub_group,
        "bc",
    ),
    Verb(
        "updateSubGroupList",
        "Make or change the consumer groups of a JSON file.",
        flags("b:brokerAddr c:clusterName f!filename"),
        _update_sub_group_list,
        "bc",
    ),
    Verb(
        "deleteSubGroup",
        "Delete a consumer group.",
        flags("b:brokerAddr c:clusterName g!groupName r:removeOffset"),
        _delete_sub_group,
        "bc",
    ),
    Verb(
        "getConsumerConfig",
        "Show how a consumer group is set.",
        flags("g!groupName"),
        _get_consumer_config,
    ),
    Verb(
        "consumerProgress",
        "Show how far a consumer group is, or all of them.",
        flags("g:groupName t:topicName s:showClientIP c:cluster"),
        _consumer_progress,
    ),
    Verb(
        "consumerStatus",
        "Show what the clients of a consumer group do.",
        flags("g!consumerGroup i:clientId b:brokerAddr s-jstack"),
        _consumer_status,
    ),
    Verb(
        "setConsumeMode",
        "Change how a group takes a topic: PULL or POP.",
        flags("b:brokerAddr c:clusterName t!topicName g!groupName m!mode q:popShareQueueNum"),
        _set_consume_mode,
        "bc",
    ),
    Verb(
        "consumerConnection",
        "Show the clients of a consumer group, and what they subscribe to.",
        flags("g!consumerGroup b:brokerAddr"),
        _consumer_connection,
    ),
    Verb(
        "producerConnection",
        "Show the clients of a producer group.",
        flags("g!producerGroup t!topic"),
        _producer_connection,
    ),
    Verb("producer", "Show the producers that are connected to a broker.", flags("b!broker"), _producer),
    Verb(
        "cloneGroupOffset",
        "Let a group go on where another one is.",
        flags("s!srcGroup d!destGroup t!topic o:offline"),
        _clone_group_offset,
    ),
    Verb(
        "resetOffsetByTime",
        "Let a group go on at a time, or at an offset of one queue.",
        flags("g!group t!topic s!timestamp f:force c:cluster b:broker q:queue o:offset"),
        _reset_offset_by_time,
    ),
    Verb(
        "skipAccumulatedMessage",
        "Let a group go on behind the last message.",
        flags("g!group t!topic f:force c:cluster"),
        _skip_accumulated,
    ),
)

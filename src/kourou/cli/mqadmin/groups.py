"""Verbs about consumer groups, producers and offsets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin.model import OffsetChange
from kourou.admin.offsets import END
from kourou.admin.operations import groups, offsets
from kourou.admin.operations.parameters import BadInputError
from kourou.cli.mqadmin.topics import no_file
from kourou.cli.mqadmin.verbs import Given, shows, verb
from kourou.cli.mqadmin.words import file_name, java_value, line, table
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


@verb(
    "updateSubGroup b|brokerAddr c|clusterName g!groupName s:consumeEnable m:consumeFromMinEnable"
    " d:consumeBroadcastEnable o:consumeMessageOrderly q:retryQueueNums r:retryMaxTimes p:groupRetryPolicy"
    " i:brokerId w:whichBrokerWhenConsumeSlowly a:notifyConsumerIdsChanged attributes:attributes",
    "Make a consumer group, or change it.",
)
async def update_sub_group(admin: Admin, given: Given) -> None:
    group = given.text("g")
    settings: dict[str, Any] = {**_DEFAULTS, "groupName": group}
    for short, (name, kind) in _FIELDS.items():
        if given.has(short):
            settings[name] = given.truth(short) if kind is bool else given.number(short)
    if given.has("p"):
        try:
            settings["groupRetryPolicy"] = lenient_json.loads(given.text("p").encode())
        except ValueError:
            raise BadInputError(f"-p {given.text('p')} is no JSON") from None
    if given.has("attributes"):
        parts = (part.partition("=") for part in given.text("attributes").split(",") if part)
        settings["attributes"] = {key: value for key, _, value in parts}
    for address in await admin.groups.create(group, settings, broker=given.get("b"), cluster=given.get("c")):
        line("create subscription group to %s success.", address)
    told = ", ".join(f"{name}={java_value(settings[name])}" for name in _DEFAULTS)
    line("SubscriptionGroupConfig{%s}", told)


@shows(groups.create_many)
async def update_sub_group_list(admin: Admin, given: Given) -> None:
    what = "group config" if given.has("b") else "subscription group config"
    for address in [] if no_file(given) else await given.found(admin):
        line("submit batch of %s to %s success, please check the result later.", what, address)


@shows(groups.delete)
async def delete_sub_group(admin: Admin, given: Given) -> None:
    where = "" if given.has("b") else f" in cluster [{given.text('c')}]"
    for address in await given.found(admin):
        line("delete subscription group [%s] from broker [%s]%s success.", given.text("g"), address, where)


@verb("getConsumerConfig g!groupName", "Show how a consumer group is set.")
async def get_consumer_config(admin: Admin, given: Given) -> None:
    clusters = {info.broker_name: info.cluster for info in await admin.link.brokers()}
    for broker, config in (await admin.groups.config(given.text("g"))).items():
        rule = "=" * 29
        line("%s%s:%s%s", rule, clusters[broker], broker, rule)
        for name in _DEFAULTS:
            value = config.get(name)
            line("%-40s=  %s", name, "" if value is None else java_value(value))


@shows(groups.progress)
async def consumer_progress(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
    if not given.has("g"):
        table(
            "%-64.64s  %-6s  %-24s %-5s  %-14s  %-7s  %s",
            "#Group|#Count|#Version|#Type|#Model|#TPS|#Diff Total",
            found,
            "group clients version consume_type message_model tps lag",
            row_form="%-64.64s  %-6d  %-24s %-5s  %-14s  %-7d  %d",
        )
        return
    ip = ("%-20s ", "#Client IP|", "client_ip:ip ") if given.truth("s") else ("", "", "")
    form = f"%-64.64s  %-32.32s  %-4s  %-20s  %-20s  {ip[0]}%-20s %-20s"
    table(
        f"{form}%s",
        f"#Topic|#Broker Name|#QID|#Broker Offset|#Consumer Offset|{ip[1]}#Diff|#Inflight|#LastTime",
        found.queues,
        f"topic broker_name queue_id broker_offset consumer_offset {ip[2]}lag in_flight"
        " last_consumed_ms:plain",
        row_form=f"{form} %s",
    )
    line("\nConsume TPS: %.2f", found.tps)
    line("Consume Diff Total: %d", found.lag)
    line("Consume Inflight Total: %d", found.in_flight)


@verb(
    "consumerStatus g!consumerGroup i:clientId b:brokerAddr s-jstack",
    "Show what the clients of a consumer group do.",
)
async def consumer_status(admin: Admin, given: Given) -> None:
    group, stack = given.text("g"), given.has("s")
    if given.has("i"):
        line(running_info_text(await admin.groups.running_info(group, given.text("i"), with_stack=stack)))
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


@shows(groups.set_mode)
async def set_consume_mode(admin: Admin, given: Given) -> None:
    for address in await given.found(admin):
        line("set consume mode to %s success.", address)
    line(
        "topic[%s] group[%s] consume mode[%s] popShareQueueNum[%d]",
        given.text("t"), given.text("g"), given.text("m"), given.number("q"),
    )  # fmt: skip


@shows(groups.connections)
async def consumer_connection(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
    heads = "#ClientId|#ClientAddr|#Language|#Version"
    table("%-36s %-22s %-10s %s", heads, found.clients, "client_id address language version")
    line("\nBelow is subscription:")
    table("%-20s %s", "#Topic|#SubExpression", found.subscriptions, "topic expression")
    line("\nConsumeType: %s", found.consume_type)
    line("MessageModel: %s", found.message_model)
    line("ConsumeFromWhere: %s", found.consume_from_where)


@shows(groups.producer_connections)
async def producer_connection(admin: Admin, given: Given) -> None:
    for number, one in enumerate(await given.found(admin), start=1):
        line("%04d  %-32s %-22s %-8s %s", number, one.client_id, one.address, one.language, one.version)


@shows(groups.list_producers)
async def producer(admin: Admin, given: Given) -> None:
    for group, clients in (await given.found(admin)).items():
        if not clients:
            line("producer group (%s) instances are empty", group)
        for one in clients:
            told = (
                f"clientId={one['clientId']},remoteIP={one['remoteIP']}, language={one['language']}, "
                f"version={one['version']}, lastUpdateTimestamp={one['lastUpdateTimestamp']}"
            )
            line("producer group (%s) instance : %s", group, told)


# Offsets


@shows(offsets.clone)
async def clone_group_offset(admin: Admin, given: Given) -> None:
    await given.found(admin)
    form = "clone group offset success. srcGroup[%s], destGroup=[%s], topic[%s]"
    line(form, given.text("s"), given.text("d"), given.text("t"))


def _print_changes(changes: list[OffsetChange], last_heading: str) -> None:
    """Offsets that brokers set, or the longer table of those that were written for a group offline."""
    if any(one.old_offset is None for one in changes):
        heads = "#brokerName|#queueId|#offset"
        table("%-40.32s  %-40s  %-40s", heads, changes, "broker_name queue_id offset")
        return
    table(
        "%-20.32s  %-20s  %-20s  %-20s  %-20s  %-20s",
        f"#brokerName|#queueId|#brokerOffset|#consumerOffset|#timestampOffset|{last_heading}",
        changes,
        "broker_name queue_id broker_offset old_offset timestamp_offset offset",
    )


def _lmq_route(given: Given) -> str | None:
    is_hidden = given.text("t").startswith("%LMQ%") or given.text("t") == TIMER_TOPIC
    return given.get("c") if is_hidden else None


@verb(
    "resetOffsetByTime g!group t!topic s!timestamp f:force c:cluster b:broker q:queue o:offset",
    "Let a group go on at a time, or at an offset of one queue.",
)
async def reset_offset_by_time(admin: Admin, given: Given) -> None:
    group, topic, text = given.text("g"), given.text("t"), given.text("s")
    when_ms, queue_id, force = given.time("s") or 0, given.number("q", -1), given.truth("f", True)
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
    changes = await admin.offsets.reset(group, topic, when_ms, force=force, route_topic=_lmq_route(given))
    head = "start reset consumer offset by specified, group"
    if all(one.old_offset is not None for one in changes):  # Java words it otherwise where nobody is online
        head = "reset consumer offset by specified consumerGroup"
    line(
        "%s[%s], topic[%s], force[%s], timestamp(string)[%s], timestamp(long)[%s]",
        head, group, topic, java_value(force), text, when_ms,
    )  # fmt: skip
    _print_changes(changes, "#resetOffset")


@verb("skipAccumulatedMessage g!group t!topic f:force c:cluster", "Let a group go on after the last message.")
async def skip_accumulated(admin: Admin, given: Given) -> None:
    changes = await admin.offsets.reset(
        given.text("g"), given.text("t"), END, force=given.truth("f", True), route_topic=_lmq_route(given)
    )
    _print_changes(changes, "#rollbackOffset")

"""Verbs about brokers and clusters, and those that write files of what they know."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin import AdminError
from kourou.admin.model import BrokerState
from kourou.admin.operations import brokers
from kourou.admin.operations.parameters import BadInputError
from kourou.cli.mqadmin.verbs import Given, shows, tells, verb
from kourou.cli.mqadmin.words import (
    human_time,
    java_value,
    line,
    plain_time,
    pretty_json,
    table,
    temporary,
)
from kourou.errors import KourouError

if TYPE_CHECKING:
    from kourou.admin import Admin

_WHERE = "b|brokerAddr c|clusterName"
_BASE = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s"
_ENGINES = {"F": "FILE_TIME_WHEEL", "R": "ROCKSDB_TIMELINE"}

UNDONE_LIMIT = 100_000  # messages that may wait before a group is told of, as Java's monitor has it
ROUND_S = 60


async def _members(admin: Admin, given: Given) -> list[tuple[str, str]]:
    """Address and heading of the brokers that -b or -c name, each master before its slaves."""
    if given.has("b"):
        return [(given.text("b"), f"============{given.text('b')}============")]
    found = []
    for info in await admin.link.brokers(given.text("c")):
        master = info.master
        if master is not None:
            found.append((master, f"============Master: {master}============"))
        for number, address in info.addresses.items():
            if number != 0:
                found.append((address, f"============My Master: {master}=====Slave: {address}============"))
    return found


@verb(
    f"updateBrokerConfig {_WHERE} a:updateAllBroker k!key v!value", "Change a configuration key of brokers."
)
async def update_broker_config(admin: Admin, given: Given) -> None:
    if given.has("c") and given.truth("a"):
        addresses = [address for address, _ in await _members(admin, given)]
    else:
        addresses = await admin.link.targets(given.get("c"), given.get("b"))
    for address in addresses:
        await admin.brokers.set_config({given.text("k"): given.text("v")}, broker=address)
        line("update broker config success, %s", address)


@verb(f"getBrokerConfig {_WHERE}", "Show the configuration of brokers.")
async def get_broker_config(admin: Admin, given: Given) -> None:
    for address, head in await _members(admin, given):
        table("%s", head, (await admin.brokers.config(address)).items(), row_form="%-50s=  %s")
        line("")


@verb(f"brokerStatus {_WHERE}", "Show the figures of brokers.")
async def broker_status(admin: Admin, given: Given) -> None:
    for address, _ in await _members(admin, given):
        prefix = f"{address:<24} " if given.has("c") else ""
        for key, value in (await admin.brokers.runtime(address)).items():
            line("%s%-32s: %s", prefix, key, value)


@shows(brokers.consume_stats)
async def broker_consume_stats(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
    table(
        "%-64.64s  %-64s  %-32.32s  %-4s  %-20s  %-20s  %-20s  %s",
        "#Topic|#Group|#Broker Name|#QID|#Broker Offset|#Consumer Offset|#Diff|#LastTime",
        (one for one in found if one["lastConsumedTimestamp"] > 0),
        "topic group brokerName queueId brokerOffset consumerOffset lag lastConsumedTimestamp:plain",
    )
    line("\nDiff Total: %d", sum(one["lag"] for one in found))


def _clean(name: str, what: str, help: str) -> None:
    @verb(f"{name} b:brokerAddr c:cluster", help)
    async def clean(admin: Admin, given: Given) -> None:
        await admin.brokers.clean(what, broker=given.get("b"), cluster=given.get("c"))
        line("success")


_clean("cleanExpiredCQ", "queues", "Remove queues without messages.")
_clean("deleteExpiredCommitLog", "log", "Remove log files past their time.")
_clean("cleanUnusedTopic", "topics", "Remove queues of topics that are no more.")


@shows(brokers.reset_master_flush)
async def reset_master_flush_offset(admin: Admin, given: Given) -> None:
    await given.found(admin)
    line("reset master flush offset to %d success", given.number("o"))


@shows(brokers.ha_status)
async def ha_status(admin: Admin, given: Given) -> None:
    for one in await given.found(admin):
        _print_ha(one["address"], one)


def _print_ha(address: str, found: dict[str, Any]) -> None:
    slaves = found.get("haConnectionInfo") or []
    if not found.get("master"):
        client = found.get("haClientRuntimeInfo") or {}
        line("\n#MasterAddr\t%s", java_value(client.get("masterAddr")))
        line("#CommitLogMaxOffset\t%d", client.get("maxOffset") or 0)
        line("#TransferSpeed(KB/s)\t%.2f", (client.get("transferredByteInSecond") or 0) / 1024)
        line("#LastReadTime\t%s", human_time(client.get("lastReadTimestamp") or 0))
        line("#LastWriteTime\t%s", human_time(client.get("lastWriteTimestamp") or 0))
        line("#MasterFlushOffset\t%s", client.get("masterFlushOffset") or 0)
        return
    line("\n#MasterAddr\t%s", address)
    line("#MasterCommitLogMaxOffset\t%d", found["masterCommitLogMaxOffset"])
    line("#SlaveNum\t%d\n#InSyncSlaveNum\t%d", len(slaves), found["inSyncSlaveNums"])
    table(
        "%-32s  %-16s %16s %16s %16s %16s",
        "#SlaveAddr|#SlaveAckOffset|#Diff|#TransferSpeed(KB/s)|#Status|#TransferFromWhere",
        (
            (
                one["addr"], one["slaveAckOffset"], one["diff"],
                f"{one['transferredByteInSecond'] / 1024:.2f}",
                "OK" if one["inSync"] else "Fall Behind", one["transferFromWhere"],
            )
            for one in slaves
        ),
    )  # fmt: skip


# Clusters


@shows(brokers.states)
async def cluster_list(admin: Admin, given: Given) -> None:
    (_print_more if given.has("m") else _print_base)(await given.found(admin))


def _print_base(states: list[BrokerState]) -> None:
    line(
        _BASE, "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)",
        "#OutTPS(LOAD)", "#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED",
    )  # fmt: skip
    for one in states:
        runtime = one.runtime
        get = runtime.get
        earliest = int(get("earliestMessageTimeStamp") or 0)
        hours = (time.time() - earliest / 1000) / 3600 if earliest > 0 else 0.0
        waits = (
            f"{one.out_tps:9.2f}({get('pullThreadPoolQueueSize', '')},"
            f"{get('pullThreadPoolQueueHeadWaitTimeMills', '')}ms|{get('ackThreadPoolQueueSize', 'N')},"
            f"{get('ackThreadPoolQueueHeadWaitTimeMills', 'N')}ms)"
        )
        timer = (
            f"{get('timerReadBehind', 0)}-{get('timerOffsetBehind', 0)}"
            f"({int(get('timerCongestNum', 0)) / 10000:.1f}w, {float(get('timerEnqueueTps', 0)):.1f}, "
            f"{float(get('timerDequeueTps', 0)):.1f})"
        )
        line(
            _BASE, one.cluster, one.broker_name, one.broker_id, one.address, one.version,
            f"{one.in_tps:9.2f}({get('sendThreadPoolQueueSize', '')},"
            f"{get('sendThreadPoolQueueHeadWaitTimeMills', '')}ms)",
            waits, timer, get("pageCacheLockTimeMills", ""), f"{hours:2.2f}", f"{one.disk_ratio:.4f}",
            java_value(one.is_active),
        )  # fmt: skip


def _print_more(states: list[BrokerState]) -> None:
    form = "%-16s  %-32s %14s %14s %14s %14s"
    names = "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"
    line(form, "#Cluster Name", "#Broker Name", *names)
    for one in states:
        line(
            form, one.cluster, one.broker_name,
            one.difference("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
            one.difference("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
            one.difference("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
            one.difference("msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        )  # fmt: skip


@shows(brokers.round_trip)
async def cluster_rt(admin: Admin, given: Given) -> None:
    found = await given.found(admin)
    if given.truth("p"):
        now = plain_time(time.time_ns() // 1_000_000)
        for one in found:
            room = given.text("m", "noname")
            line("%s|%s|%s|%s|%d", now, room, one.cluster, one.broker_name, round(one.average_ms))
        return
    table(
        "%-24s  %-24s  %-4s  %-8s  %-8s",
        "#Cluster Name|#Broker Name|#RT|#successCount|#failCount",
        found,
        "cluster broker_name average_ms successes failures",
        row_form="%-24s  %-24s  %-8.2f  %-16s  %-16s",
    )


@shows(brokers.stats)
async def stats_all(admin: Admin, given: Given) -> None:
    names = "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"
    line("%-64s  %-64s %12s %11s %11s %14s %14s", "#Topic", "#Consumer Group", *names)
    for one in await given.found(admin):
        out = (f"{one.out_tps:.2f}", one.out_24h) if one.group else ("", "NO_CONSUMER")
        line(
            "%-64.64s  %-64.64s %12d %11.2f %11s %14d %14s",
            one.topic, one.group, one.accumulation, one.in_tps, out[0], one.in_24h, out[1],
        )  # fmt: skip


# Other ways of a broker, and watching


@verb("startMonitoring", "Tell of groups that fall behind, every minute.")
async def start_monitoring(admin: Admin, given: Given) -> None:
    """Every minute, tell of groups that many messages wait for, and of those that do not answer."""
    line("watching every %d s groups with more than %d messages waiting", ROUND_S, UNDONE_LIMIT)
    while True:
        for summary in await admin.groups.summaries():
            if summary.lag > UNDONE_LIMIT:
                line("undone: %s, %d messages wait, %d clients", summary.group, summary.lag, summary.clients)
            if summary.clients:
                try:
                    await admin.groups.status(summary.group)
                except KourouError as error:
                    line("no answer: %s, %s", summary.group, error)
        await asyncio.sleep(ROUND_S)


@shows(brokers.timer_engine)
async def switch_timer_engine(admin: Admin, given: Given) -> None:
    for address in await given.found(admin):
        line("switchTimerEngine to %s success, %s", _ENGINES[given.text("e").upper()], address)


@verb(f"getColdDataFlowCtrInfo {_WHERE}", "Show what a broker knows of cold reads.")
async def get_cold_data_flow(admin: Admin, given: Given) -> None:
    for address, head in await _members(admin, given):
        line(" %s", head)
        text = await admin.brokers.cold_data_info(address)
        if not text:
            raise AdminError(f"broker {address} has no table of cold reads")
        line(text)


tells(brokers.cold_limit, "updateColdDataFlowCtrGroupConfig success, %s")
tells(brokers.remove_cold_limit, "remove broker cold read threshold success, %s")


@verb(
    f"setCommitLogReadAheadMode {_WHERE} m!commitLogReadAheadMode",
    "Set how the system reads ahead in the log.",
)
async def set_read_ahead(admin: Admin, given: Given) -> None:
    if given.text("m") not in ("0", "1"):
        raise BadInputError("set the read mode error; 0 is default, 1 random read")
    for address, head in await _members(admin, given):
        line(" %s", head)
        said = await admin.brokers.set_read_ahead(address, given.text("m"))
        line("commitLog set readAhead mode rstStr%s", said)


# Files


# The keys that exportConfigs takes along
_KEYS = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
    "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip


def _write(given: Given, name: str, value: dict[str, Any]) -> None:
    directory = Path(given.text("f")) if given.has("f") else temporary("export")
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(pretty_json(value), encoding="utf-8")
    line("export %s success", file)


@verb(
    "exportMetadata c|clusterName b|brokerAddr f:filePath t-topic g-subscriptionGroup s-specialTopic",
    "Write topics and groups to a JSON file.",
)
async def export_metadata(admin: Admin, given: Given) -> None:
    special = given.has("s")
    if given.has("b"):
        address = given.text("b")
        if given.has("t"):
            topics = await admin.topics.user_configs(address, with_special=special)
            table = {name: topic.to_json() for name, topic in topics.items()}
            _write(given, "topic.json", {"topicConfigTable": table})
        elif given.has("g"):
            groups = await admin.groups.user_configs(address)
            _write(given, "subscriptionGroup.json", {"subscriptionGroupTable": groups})
        else:
            raise BadInputError("of one broker, export -t topics or -g groups")
        return
    topics_of_all: dict[str, dict[str, Any]] = {}
    groups_of_all: dict[str, dict[str, Any]] = {}
    for address in await admin.link.targets(given.get("c"), None):
        for name, topic in (await admin.topics.user_configs(address, with_special=special)).items():
            one = topic.to_json()
            for key in ("readQueueNums", "writeQueueNums"):
                one[key] += topics_of_all.get(name, {}).get(key, 0)
            topics_of_all[name] = one
        for name, group in (await admin.groups.user_configs(address)).items():
            before = groups_of_all.get(name, {}).get("retryQueueNums", 0)
            groups_of_all[name] = {**group, "retryQueueNums": group.get("retryQueueNums", 0) + before}
    now = {"exportTime": time.time_ns() // 1_000_000}
    if given.has("t"):
        _write(given, "topic.json", {"topicConfigTable": topics_of_all, **now})
    elif given.has("g"):
        _write(given, "subscriptionGroup.json", {"subscriptionGroupTable": groups_of_all, **now})
    else:
        both = {"topicConfigTable": topics_of_all, "subscriptionGroupTable": groups_of_all, **now}
        _write(given, "metadata.json", both)


@verb("exportConfigs c!clusterName f:filePath", "Write the configuration of brokers to a JSON file.")
async def export_configs(admin: Admin, given: Given) -> None:
    infos = await admin.link.brokers(given.text("c"))
    configs = {}
    for info in infos:
        if info.master is None:
            raise AdminError(f"broker {info.broker_name} has no master now")
        config = await admin.brokers.config(info.master)
        configs[info.broker_name] = {key: config[key] for key in _KEYS if key in config}
    scale = {
        "namesrvSize": len(admin.core.name_servers),
        "masterBrokerSize": len(infos),
        "slaveBrokerSize": sum(len(info.addresses) - 1 for info in infos),
    }
    _write(given, "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


@verb("exportMetrics c!clusterName f:filePath", "Write the figures of a cluster to a JSON file.")
async def export_metrics(admin: Admin, given: Given) -> None:
    _write(given, "metrics.json", await admin.metadata.metrics(given.text("c")))

"""Verbs of `kourou mqadmin` about brokers and clusters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from kourou.admin.brokers import lagging
from kourou.admin.link import AdminError
from kourou.admin.model import BrokerState
from kourou.cli.mqadmin.verbs import (
    BadFlagsError,
    Flags,
    Verb,
    fit,
    flags,
    human_time,
    java_value,
    line,
    plain_time,
)
from kourou.errors import KourouError

if TYPE_CHECKING:
    from kourou.admin import Admin

_BASE = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s"


async def _repeat(given: Flags, work: Callable[[], Awaitable[None]]) -> None:
    """Once, or with -i again and again after so many seconds."""
    await work()
    while given.has("i"):
        await asyncio.sleep(max(given.number("i", 10), 1))
        await work()


async def _members(admin: Admin, given: Flags) -> list[tuple[str, str]]:
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


async def _update_broker_config(admin: Admin, given: Flags) -> None:
    changes = {given.text("k"): given.text("v")}
    if given.has("c") and given.truth("a"):
        addresses = [address for address, _ in await _members(admin, given)]
    else:
        addresses = await admin.link.targets(given.get("c"), given.get("b"))
    for address in addresses:
        await admin.brokers.set_config(changes, broker=address)
        line("update broker config success, %s", address)


async def _get_broker_config(admin: Admin, given: Flags) -> None:
    for address, head in await _members(admin, given):
        line("%s", head)
        for key, value in (await admin.brokers.config(address)).items():
            line("%-50s=  %s", key, value)
        line("")


async def _broker_status(admin: Admin, given: Flags) -> None:
    for address, _ in await _members(admin, given):
        prefix = f"{address:<24} " if given.has("c") else ""
        for key, value in (await admin.brokers.runtime(address)).items():
            line("%s%-32s: %s", prefix, key, value)


async def _broker_consume_stats(admin: Admin, given: Flags) -> None:
    found = await admin.brokers.consume_stats(given.text("b"), only_ordered=given.truth("o"))
    form = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    names = "#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff"
    line(form, *names, "#LastTime")
    for group, one in lagging(found, given.number("l")):
        if one.last_consumed_ms > 0:
            line(
                form,
                fit(one.topic, 64), group, fit(one.broker_name, 32), one.queue_id, one.broker_offset,
                one.consumer_offset, one.lag, plain_time(one.last_consumed_ms),
            )  # fmt: skip
    line("\nDiff Total: %d", sum(one.lag for one in found))


async def _clean(admin: Admin, given: Flags, what: str) -> None:
    await admin.brokers.clean(what, broker=given.get("b"), cluster=given.get("c"))
    line("success")


async def _clean_expired_cq(admin: Admin, given: Flags) -> None:
    await _clean(admin, given, "queues")


async def _delete_expired_commit_log(admin: Admin, given: Flags) -> None:
    await _clean(admin, given, "log")


async def _clean_unused_topic(admin: Admin, given: Flags) -> None:
    await _clean(admin, given, "topics")


async def _reset_master_flush_offset(admin: Admin, given: Flags) -> None:
    await admin.brokers.reset_master_flush_offset(given.text("b"), given.number("o"))
    line("reset master flush offset to %d success", given.number("o"))


async def _ha_status(admin: Admin, given: Flags) -> None:
    async def once() -> None:
        for address in await admin.link.targets(given.get("c"), given.get("b")):
            _print_ha(address, await admin.brokers.ha_status(address))

    await _repeat(given, once)


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
    names = "#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status", "#TransferFromWhere"
    line("%-32s  %-16s %16s %16s %16s %16s", *names)
    for one in slaves:
        line(
            "%-32s  %-16d %16d %16.2f %16s %16d",
            one["addr"], one["slaveAckOffset"], one["diff"], one["transferredByteInSecond"] / 1024,
            "OK" if one["inSync"] else "Fall Behind", one["transferFromWhere"],
        )  # fmt: skip


# Clusters


async def _cluster_list(admin: Admin, given: Flags) -> None:
    async def once() -> None:
        states = await admin.clusters.states(given.get("c") or None)
        (_print_more if given.has("m") else _print_base)(states)

    await _repeat(given, once)


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


async def _cluster_rt(admin: Admin, given: Flags) -> None:
    as_log, room = given.truth("p"), given.text("m", "noname")
    if not as_log:
        head = "#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"
        line("%-24s  %-24s  %-4s  %-8s  %-8s", *head)

    async def once() -> None:
        for one in await admin.clusters.round_trips(
            given.get("c"), count=given.number("a", 100), size_bytes=given.number("s", 128)
        ):
            if as_log:
                now = plain_time(time.time_ns() // 1_000_000)
                line("%s|%s|%s|%s|%d", now, room, one.cluster, one.broker_name, round(one.average_ms))
            else:
                line(
                    "%-24s  %-24s  %-8s  %-16s  %-16s",
                    one.cluster, one.broker_name, f"{one.average_ms:.2f}", one.successes, one.failures,
                )  # fmt: skip

    await _repeat(given, once)


async def _stats_all(admin: Admin, given: Flags) -> None:
    names = "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"
    line("%-64s  %-64s %12s %11s %11s %14s %14s", "#Topic", "#Consumer Group", *names)
    for one in await admin.clusters.traffic(given.get("t"), only_active=given.has("a")):
        out = (f"{one.out_tps:.2f}", one.out_24h) if one.group else ("", "NO_CONSUMER")
        line(
            "%-64s  %-64s %12d %11.2f %11s %14d %14s",
            fit(one.topic, 64), fit(one.group, 64), one.accumulation, one.in_tps, out[0], one.in_24h, out[1],
        )  # fmt: skip


# What a broker may have other ways of, and watching

_ENGINES = {"F": "FILE_TIME_WHEEL", "R": "ROCKSDB_TIMELINE"}

UNDONE_LIMIT = 100_000  # messages that may wait before a group is told of, as Java's monitor has it
ROUND_S = 60


async def _start_monitoring(admin: Admin, given: Flags) -> None:
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


async def _switch_timer_engine(admin: Admin, given: Flags) -> None:
    engine = given.text("e")
    if engine not in _ENGINES:
        raise BadFlagsError("switchTimerEngine engineType must be R or F")
    for address in await admin.brokers.switch_timer_engine(
        engine, broker=given.get("b"), cluster=given.get("c")
    ):
        line("switchTimerEngine to %s success, %s", _ENGINES[engine], address)


async def _get_cold_data_flow(admin: Admin, given: Flags) -> None:
    for address, head in await _members(admin, given):
        line(" %s", head)
        text = await admin.brokers.cold_data_info(address)
        if not text:
            raise AdminError(f"broker {address} has no table of cold reads")
        line(text)


VERBS = (
    Verb(
        "clusterList",
        "List clusters, their brokers and how they do.",
        flags("m-moreStats i:interval c:clusterName"),
        _cluster_list,
    ),
    Verb(
        "clusterRT",
        "Send messages to each broker, and show how long that takes; with -i again and again.",
        flags("a:amount s:size c:cluster p:printAsTlog m:machineRoom i:interval"),
        _cluster_rt,
    ),
    Verb(
        "statsAll",
        "Show what comes into topics and out to groups.",
        flags("a-activeTopic t:topic"),
        _stats_all,
    ),
    Verb(
        "updateBrokerConfig",
        "Change a configuration key of brokers.",
        flags("b:brokerAddr c:clusterName a:updateAllBroker k!key v!value"),
        _update_broker_config,
        "bc",
    ),
    Verb(
        "getBrokerConfig",
        "Show the configuration of brokers.",
        flags("b:brokerAddr c:clusterName"),
        _get_broker_config,
        "bc",
    ),
    Verb(
        "brokerStatus",
        "Show the figures of brokers.",
        flags("b:brokerAddr c:clusterName"),
        _broker_status,
        "bc",
    ),
    Verb(
        "brokerConsumeStats",
        "Show how far all groups are at a broker.",
        flags("b!brokerAddr t:timeoutMillis l:level o:order"),
        _broker_consume_stats,
    ),
    Verb(
        "cleanExpiredCQ",
        "Remove queues without messages.",
        flags("b:brokerAddr c:cluster"),
        _clean_expired_cq,
    ),
    Verb(
        "deleteExpiredCommitLog",
        "Remove log files past their time.",
        flags("b:brokerAddr c:cluster"),
        _delete_expired_commit_log,
    ),
    Verb(
        "cleanUnusedTopic",
        "Remove queues of topics that are no more.",
        flags("b:brokerAddr c:cluster"),
        _clean_unused_topic,
    ),
    Verb(
        "resetMasterFlushOffset",
        "Tell a slave how far its master's disk is.",
        flags("b!brokerAddr o!offset"),
        _reset_master_flush_offset,
    ),
    Verb(
        "haStatus",
        "Show how replication is.",
        flags("c:clusterName b:brokerAddr i:interval"),
        _ha_status,
        "bc",
    ),
    Verb(
        "getColdDataFlowCtrInfo",
        "Show what a broker knows of cold reads.",
        flags("b:brokerAddr c:clusterName"),
        _get_cold_data_flow,
        "bc",
    ),
    Verb(
        "switchTimerEngine",
        "Have timers on the time wheel in files (F), or in RocksDB (R).",
        flags("b:brokerAddr c:clusterName e!engineType"),
        _switch_timer_engine,
        "bc",
    ),
    Verb("startMonitoring", "Tell of groups that fall behind, every minute.", (), _start_monitoring),
)

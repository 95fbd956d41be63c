"""Figures: how far groups are, what was put and got, how the broker does (AdminBrokerProcessor)."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kourou.auth.rules import GET
from kourou.auth.rules import topic as topic_of
from kourou.broker.handlers.offsets import has_left
from kourou.message.model import MessageQueue
from kourou.message.topics import SCHEDULE_TOPIC
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import (
    GetConsumeStats,
    GetConsumeStatsInBroker,
    QueryConsumeTimeSpan,
    ViewBrokerStatsData,
)
from kourou.store.config import BrokerRole

if TYPE_CHECKING:
    from kourou.broker.server import Broker
    from kourou.store import MessageStore

VERSION_NAME = "V5_5_0"  # of remoting.command.VERSION
TOPIC_SEPARATOR = ";"
NO_POOL = 0x7FFFFFFF  # remainTransientStoreBufferNumbs without a pool

# Java's other queues of requests and their default capacities. Here such requests are handled as they come,
# so that nothing waits; tools want the keys nevertheless.
_CAPACITIES = {
    "litePullThreadPoolQueue": ("litePullThreadPoolQueueCapacity", "100000"),
    "queryThreadPoolQueue": ("queryThreadPoolQueueCapacity", "20000"),
    "ackThreadPoolQueue": ("ackThreadPoolQueueCapacity", "100000"),
}


# Groups


def get_consume_stats(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_CONSUME_STATS: how far a group is in its topics, or in those that are named."""
    header = GetConsumeStats.read(request)
    group = header.consumer_group
    named = [name for name in (header.topic_list or "").split(TOPIC_SEPARATOR) if name]
    if named:
        topics = set(named)
    else:
        topics = {header.topic} if header.topic else broker.offsets.topics_of(group)
        topics = {topic for topic in topics if not has_left(broker, group, topic)}
    for topic in topics:
        broker.guard.require(request, connection.peer, topic_of(topic), GET)
    table: dict[MessageQueue, dict[str, int]] = {}
    tps = 0.0
    for topic in sorted(topics):
        config = broker.topics.get(topic)
        if config is None:
            continue
        for queue_id in range(config.read_queue_nums):
            queue = MessageQueue(topic, broker.config.broker_name, queue_id)
            table[queue] = _progress(broker, group, topic, queue_id)
        tps += broker.stats.group_get_tps(topic, group)
    return request.response(body=lenient_json.dumps({"consumeTps": tps, "offsetTable": table}))


def get_all_consume_stats(broker: Broker, connection: Connection, request: RemotingCommand) -> None:
    """GET_BROKER_CONSUME_STATS: how far all groups are in all their topics."""
    header = GetConsumeStatsInBroker.read(request)
    broker.answer_later(connection, request, _all_consume_stats(broker, request, header.is_order))


async def _all_consume_stats(broker: Broker, request: RemotingCommand, only_ordered: bool) -> RemotingCommand:
    """Group by group, so that other requests have their turn."""
    parts = []
    behind = in_flight = 0
    topics_of = broker.offsets.group_topics()
    for group in list(broker.groups.groups):
        found = []
        for topic in topics_of.get(group, ()):
            config = broker.topics.get(topic)
            if config is None or (only_ordered and not config.order) or has_left(broker, group, topic):
                continue
            table = {
                MessageQueue(topic, broker.config.broker_name, queue_id): _progress(
                    broker, group, topic, queue_id
                )
                for queue_id in range(config.write_queue_nums)
            }
            behind += sum(entry["brokerOffset"] - entry["consumerOffset"] for entry in table.values())
            in_flight += sum(entry["pullOffset"] - entry["consumerOffset"] for entry in table.values())
            found.append({"consumeTps": broker.stats.group_get_tps(topic, group), "offsetTable": table})
        parts.append(lenient_json.dumps({group: found}))
        await asyncio.sleep(0)
    body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        lenient_json.dumps(broker.config.address),
        b",".join(parts),
        behind,
        in_flight,
    )
    return request.response(body=body)


def _progress(broker: Broker, group: str, topic: str, queue_id: int) -> dict[str, int]:
    """How far a group is in a queue (OffsetWrapper)."""
    consumed = max(broker.offsets.query(group, topic, queue_id), 0)
    last = broker.store.message_store_timestamp(topic, queue_id, consumed - 1) if consumed else 0
    return {
        "brokerOffset": broker.store.max_offset(topic, queue_id),
        "consumerOffset": consumed,
        "lastTimestamp": max(last, 0),
        "pullOffset": max(consumed, broker.offsets.query_pull(group, topic, queue_id)),
    }


def get_consume_time_span(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """QUERY_CONSUME_TIME_SPAN: of each queue the times of its messages, and of the last that was consumed."""
    header = QueryConsumeTimeSpan.read(request)
    config = broker.topics.get(header.topic)
    if config is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{header.topic}] not exist")
    spans = [
        _time_span(broker, header.group, header.topic, queue_id)
        for queue_id in range(config.write_queue_nums)
    ]
    return request.response(body=lenient_json.dumps({"consumeTimeSpanSet": spans}))


def _time_span(broker: Broker, group: str, topic: str, queue_id: int) -> dict[str, Any]:
    store = broker.store
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    first = store.earliest_message_time(topic, queue_id)
    last = store.message_store_timestamp(topic, queue_id, high - 1)
    consumed = broker.offsets.query(group, topic, queue_id)
    consumed_time = store.message_store_timestamp(topic, queue_id, consumed - 1) if consumed > 0 else first
    delay_ms = 0
    if max(consumed, 0) < high:
        waiting = store.message_store_timestamp(topic, queue_id, max(consumed, low))
        delay_ms = broker.clock.now_ms() - waiting
    return {
        "consumeTimeStamp": consumed_time,
        "consumeTimeStampStr": _time_text(consumed_time),
        "delayTime": delay_ms,
        "maxTimeStamp": last,
        "maxTimeStampStr": _time_text(last),
        "messageQueue": MessageQueue(topic, broker.config.broker_name, queue_id),
        "minTimeStamp": first,
        "minTimeStampStr": _time_text(first),
    }


def _time_text(timestamp_ms: int) -> str:
    """2026-11-15#06:25:23:751, by the clock on the wall."""
    seconds, ms = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d#%H:%M:%S}:{ms:03d}"


# The broker


def view_stats(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """VIEW_BROKER_STATS_DATA: what was counted under a name and a key."""
    header = ViewBrokerStatsData.read(request)
    found = broker.stats.view(header.stats_name, header.stats_key)
    if found is None:
        remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    return request.response(body=lenient_json.dumps(dict(sorted(found.items()))))


def get_runtime_info(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_BROKER_RUNTIME_INFO: all figures of the broker and its store."""
    table = {
        **broker.store.stats.runtime_info(),
        **_store_info(broker),
        **_schedule_info(broker),
        **broker.stats.runtime_info(),
        **_queue_info(broker),
        "brokerActive": str(broker.config.store.broker_role is not BrokerRole.SLAVE).lower(),
        "brokerVersionDesc": VERSION_NAME,
        "runtime": _duration_text(broker.clock.now_ms() - broker.store.stats.boot_timestamp),
        "startAcceptSendRequestTimeStamp": str(broker.config.start_accept_send_request_time_stamp),
    }
    return request.response(body=lenient_json.dumps({"table": table}))


def _store_info(broker: Broker) -> dict[str, str]:
    store = broker.store
    files = store.commit_log.files
    ratios = {path: _used_ratio(store, path) for path in store.config.commit_log_directories}
    space = os.statvfs(store.root)
    total, free = space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize
    info = {
        "commitLogDirCapacity": f"Total : {_size_text(total)}, Free : {_size_text(free)}.",
        "commitLogDiskRatio": str(min(ratios.values())),
        "commitLogMaxOffset": str(store.commit_log.max_offset),
        "commitLogMinOffset": str(store.commit_log.min_offset),
        "consumeQueueDiskRatio": str(store.disk.used_ratio(store.root)),
        "dispatchBehindBytes": str(store.dispatcher.behind_bytes),
        "dispatchMaxBuffer": "0",  # neither Java nor this store has such a buffer any more
        "indexBehindBytes": str(store.index_catch_up.behind_bytes),  # Kourou's own
        "earliestMessageTimeStamp": str(store.earliest_message_time()),
        "pageCacheLockTimeMills": "0",  # whoever answers this holds the store: no put is under way
        "remainHowManyDataToFlush": _size_text(files.max_offset - files.flushed_where),
        # Messages by timer are not taken.
        "timerCongestNum": str(broker.timers.pending),
        "timerDequeueTps": str(broker.timers.rates[1]),
        "timerEnqueueTps": str(broker.timers.rates[0]),
        "timerOffsetBehind": str(broker.timers.queue_behind),
        "timerReadBehind": str(broker.timers.read_behind_s),
    }
    if store.config.transient_store_pool_enable:
        info["remainHowManyDataToCommit"] = _size_text(files.max_wrote - files.committed_where)
    else:
        info["remainTransientStoreBufferNumbs"] = str(NO_POOL)
    return info | {f"commitLogDiskRatio_{path}": str(ratio) for path, ratio in ratios.items()}


def _used_ratio(store: MessageStore, directory: str) -> float:
    """How full a disk is; a directory that the first message will make is on the disk of its parent."""
    ratio = store.disk.used_ratio(directory)
    return ratio if ratio >= 0 else store.disk.used_ratio(os.path.dirname(directory))


def _schedule_info(broker: Broker) -> dict[str, str]:
    """Of each delay level that is in use: delivered, and put."""
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{queue.max_offset}"
        for level, offset in sorted(broker.delay.offsets.items())
        if (queue := broker.store.queues.get(SCHEDULE_TOPIC, level - 1)) is not None
    }


def _queue_info(broker: Broker) -> dict[str, str]:
    """What waits. Requests are handled in the turn they come; sends wait for the disk, pulls for messages."""
    config = broker.config
    sizes = {"sendThreadPoolQueue": broker.sender.waiting, "pullThreadPoolQueue": broker.puller.held}
    info = {
        "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
        "pullThreadPoolQueueCapacity": str(config.pull_thread_pool_queue_capacity),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": config.others.get(
            "endTransactionPoolQueueCapacity", "100000"
        ),
    }
    for name, (key, default) in _CAPACITIES.items():
        info[key] = config.others.get(key, default)
        sizes[name] = 0
    for name, size in sizes.items():
        info[f"{name}Size"] = str(size)
        info[f"{name}HeadWaitTimeMills"] = "0"
    return info


def _duration_text(duration_ms: int) -> str:
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size_text(size_bytes: int) -> str:
    """7.8 KiB and the like."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    amount, units = float(size_bytes), "BKMGTPE"
    power = 0
    while amount >= 1024 and power < len(units) - 1:
        amount /= 1024
        power += 1
    return f"{amount:.1f} {units[power]}iB"


HANDLERS = {
    RequestCode.GET_CONSUME_STATS: get_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: get_all_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: get_consume_time_span,
    RequestCode.VIEW_BROKER_STATS_DATA: view_stats,
    RequestCode.GET_BROKER_RUNTIME_INFO: get_runtime_info,
}

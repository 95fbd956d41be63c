"""Metadata: topics, groups, configuration and offsets of a cluster as one JSON document, and back.

{"format": "kourou-metadata/1", "cluster": …, "exportTime": ms,
 "brokers": {name: {"topics": {name: TopicConfig}, "groups": {name: SubscriptionGroupConfig},
                    "config": {key: value}, "offsets": {topic: {group: {queue: offset}}}}},
 "orderConfig": {topic: "broker:queues;…"}}
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kourou.admin.brokers import Brokers
from kourou.admin.clusters import day_sum
from kourou.admin.groups import Groups, is_system_group
from kourou.admin.link import AdminError, Link
from kourou.admin.model import BrokerInfo, first_number, version_name
from kourou.admin.name_servers import ORDER_TOPIC_CONFIG, NameServers
from kourou.admin.offsets import Offsets
from kourou.admin.topics import Topics
from kourou.client.core import RefusedError
from kourou.message.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import VERSION
from kourou.remoting.protocol.headers import UpdateConsumerOffset

FORMAT = "kourou-metadata/1"
PARTS = ("topics", "groups", "config", "offsets")

# What is set for one machine or process, and must not be carried to another.
_OWN_KEYS = frozenset(
    {
        "brokerName", "brokerClusterName", "brokerId", "brokerIP1", "brokerIP2", "listenPort",
        "haListenPort", "namesrvAddr", "rocketmqHome", "haMasterAddress", "brokerRole", "bindAddress",
    }
)  # fmt: skip


@dataclass(slots=True)
class Imported:
    """What an import has made, and what it left out."""

    topics: int = 0
    groups: int = 0
    config_keys: int = 0
    offsets: int = 0
    notes: list[str] = field(default_factory=list)


class Metadata:
    """Export and import of what a cluster knows beside its messages."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._topics = Topics(link)
        self._groups = Groups(link)
        self._brokers = Brokers(link)
        self._offsets = Offsets(link)
        self._name_servers = NameServers(link)

    async def export(self, cluster: str | None = None, parts: Collection[str] = PARTS) -> dict[str, Any]:
        """Everything of a cluster, or some parts of it."""
        brokers: dict[str, Any] = {}
        for info in await self._link.brokers(cluster):
            if info.master is not None:
                brokers[info.broker_name] = await self._export_broker(info.master, parts)
        try:
            order = await self._name_servers.list_kv(ORDER_TOPIC_CONFIG) if "topics" in parts else {}
        except RefusedError:  # no topic is in order
            order = {}
        return {
            "format": FORMAT,
            "cluster": cluster,
            "exportTime": time.time_ns() // 1_000_000,
            "brokers": brokers,
            "orderConfig": order,
        }

    async def _export_broker(self, address: str, parts: Collection[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "topics" in parts:
            topics = await self._topics.user_configs(address, with_special=True)
            found["topics"] = {name: topic.to_json() for name, topic in topics.items()}
        if "groups" in parts:
            found["groups"] = await self._groups.user_configs(address)
        if "config" in parts:
            found["config"] = dict(sorted((await self._brokers.config(address)).items()))
        if "offsets" in parts:
            table = await self._offsets.table(address)
            found["offsets"] = {
                topic: {
                    group: {str(number): offset for number, offset in queues.items()}
                    for group, queues in groups.items()
                    if not is_system_group(group)
                }
                for topic, groups in table.items()
            }
        return found

    async def import_all(
        self,
        document: Mapping[str, Any],
        *,
        cluster: str | None = None,
        parts: Collection[str] = ("topics", "groups", "offsets"),
    ) -> Imported:
        """Make what an export has in it: at the broker of the same name, or at all masters of the cluster
        where there is none. Offsets belong to queues, and go to the broker of the same name only."""
        if document.get("format") != FORMAT:
            raise AdminError(f'this is no export: its "format" is not {FORMAT}')
        members = {info.broker_name: info for info in await self._link.brokers(cluster)}
        done = Imported()
        for name, part in document["brokers"].items():
            same = members.get(name)
            targets = [info.master for info in (members.values() if same is None else [same]) if info.master]
            if same is None:
                done.notes.append(f"there is no broker {name} here: its topics and groups go to all masters")
            await self._import_broker(part, parts, targets, same, done)
        if "topics" in parts:
            for topic, value in (document.get("orderConfig") or {}).items():
                await self._name_servers.put_kv(ORDER_TOPIC_CONFIG, topic, value)
        return done

    async def _import_broker(
        self,
        part: Mapping[str, Any],
        parts: Collection[str],
        targets: list[str],
        same: BrokerInfo | None,
        done: Imported,
    ) -> None:
        topics, groups = list((part.get("topics") or {}).values()), list((part.get("groups") or {}).values())
        for topic in topics:  # attributes are given as changes
            topic["attributes"] = {
                f"+{key.lstrip('+')}": value for key, value in (topic.get("attributes") or {}).items()
            }
        for group in groups:
            group["attributes"] = {
                f"+{key.lstrip('+')}": value for key, value in (group.get("attributes") or {}).items()
            }
        for address in targets:
            if "topics" in parts and topics:
                await self._topics.create_many(topics, broker=address)
            if "groups" in parts and groups:
                await self._groups.create_many(groups, broker=address)
        done.topics += len(topics) if "topics" in parts else 0
        done.groups += len(groups) if "groups" in parts else 0
        if same is None or same.master is None:
            return
        if "config" in parts:
            done.config_keys += await self._import_config(part.get("config") or {}, same.master, done)
        if "offsets" in parts:
            done.offsets += await self._import_offsets(part.get("offsets") or {}, same.master, done)

    async def _import_config(self, config: Mapping[str, str], address: str, done: Imported) -> int:
        """Change the keys that differ, one by one: those that a broker refuses are noted."""
        now = await self._brokers.config(address)
        changed = 0
        for key, value in config.items():
            is_own = key in _OWN_KEYS or "path" in key.lower() or "addr" in key.lower()
            if is_own or key not in now or now[key] == value:
                continue
            try:
                await self._brokers.set_config({key: value}, broker=address)
                changed += 1
            except RefusedError as error:
                done.notes.append(f"{key} stays {now[key]}: {error}")
        return changed

    async def _import_offsets(
        self, offsets: Mapping[str, Mapping[str, Mapping[str, int]]], address: str, done: Imported
    ) -> int:
        count = 0
        for topic, groups in offsets.items():
            for group, queues in groups.items():
                for queue_id, offset in queues.items():
                    header = UpdateConsumerOffset(group, topic, int(queue_id), int(offset))
                    try:
                        await self._link.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
                    except RefusedError as error:
                        done.notes.append(f"no offsets of {group} in {topic}: {error}")
                        break
                    count += 1
        return count

    # The figures of mqadmin exportMetrics

    async def metrics(self, cluster: str) -> dict[str, Any]:
        """How much a cluster does, broker by broker and in all."""
        report: dict[str, Any] = {}
        tps = dict.fromkeys(
            ("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"), 0.0
        )
        days = dict.fromkeys(
            ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum"), 0
        )
        for info in await self._link.brokers(cluster):
            if info.master is None:
                continue
            one = report[info.broker_name] = await self._broker_metrics(info.master)
            for key, value in one["runtimeQuota"]["tps"].items():
                tps[f"total{key[0].upper()}{key[1:]}"] += value
            for key, value in one["runtimeQuota"]["oneDayNum"].items():
                days[key] += value
        return {"evaluateReport": report, "totalData": {"totalTps": tps, "totalOneDayNum": days}}

    async def _broker_metrics(self, address: str) -> dict[str, Any]:
        runtime = await self._brokers.runtime(address)
        config = await self._brokers.config(address)
        groups = await self._groups.user_configs(address)
        clients = set()
        for group in groups:
            try:
                connections = await self._groups.connections(group, broker=address)
            except RefusedError:
                continue
            clients |= {f"{client.language}%{client.version}" for client in connections.clients}
        trans_tps, trans_day = await self._counted(address, TRANS_HALF_TOPIC)
        delay_tps, delay_day = await self._counted(address, SCHEDULE_TOPIC)
        quota = {
            "diskRatio": {key: runtime.get(key) for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
            "tps": {
                "normalInTps": first_number(runtime.get("putTps")),
                "normalOutTps": first_number(runtime.get("getTransferredTps")),
                "transInTps": trans_tps,
                "scheduleInTps": delay_tps,
            },
            "oneDayNum": {
                "normalOneDayInNum": _between(runtime, "msgPutTotal"),
                "normalOneDayOutNum": _between(runtime, "msgGetTotal"),
                "transOneDayInNum": trans_day,
                "scheduleOneDayInNum": delay_day,
            },
            "messageAverageSize": runtime.get("putMessageAverageSize"),
            "topicSize": len(await self._topics.user_configs(address)),
            "groupSize": len(groups),
        }
        env = {
            "cpuNum": config.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        }
        version = {"rocketmqVersion": version_name(VERSION), "clientInfo": sorted(clients)}
        return {"runtimeEnv": env, "runtimeQuota": quota, "runtimeVersion": version}

    async def _counted(self, address: str, topic: str) -> tuple[float, int]:
        try:
            stats = await self._brokers.view_stats(address, "TOPIC_PUT_NUMS", topic)
        except RefusedError:
            return 0.0, 0
        return float((stats.get("statsMinute") or {}).get("tps") or 0), day_sum(stats)


def _between(runtime: Mapping[str, str], name: str) -> int:
    return int(runtime.get(f"{name}TodayMorning", 0)) - int(runtime.get(f"{name}YesterdayMorning", 0))

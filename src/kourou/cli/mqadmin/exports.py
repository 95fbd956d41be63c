"""Verbs of `kourou mqadmin` that write metadata, configuration and figures to files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin.link import AdminError
from kourou.cli.mqadmin.verbs import BadFlagsError, Flags, Verb, flags, line, pretty_json, temporary

if TYPE_CHECKING:
    from kourou.admin import Admin

# The keys that exportConfigs takes along
_KEYS = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
    "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip


def _write(given: Flags, name: str, value: dict[str, Any]) -> None:
    directory = Path(given.text("f")) if given.has("f") else temporary("export")
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(pretty_json(value), encoding="utf-8")
    line("export %s success", file)


async def _export_metadata(admin: Admin, given: Flags) -> None:
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
            raise BadFlagsError("of one broker, export -t topics or -g groups")
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


async def _export_configs(admin: Admin, given: Flags) -> None:
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


async def _export_metrics(admin: Admin, given: Flags) -> None:
    _write(given, "metrics.json", await admin.metadata.metrics(given.text("c")))


VERBS = (
    Verb(
        "exportMetadata",
        "Write topics and groups to a JSON file.",
        flags("c:clusterName b:brokerAddr f:filePath t-topic g-subscriptionGroup s-specialTopic"),
        _export_metadata,
        "bc",
    ),
    Verb(
        "exportConfigs",
        "Write the configuration of brokers to a JSON file.",
        flags("c!clusterName f:filePath"),
        _export_configs,
    ),
    Verb(
        "exportMetrics",
        "Write the figures of a cluster to a JSON file.",
        flags("c!clusterName f:filePath"),
        _export_metrics,
    ),
)

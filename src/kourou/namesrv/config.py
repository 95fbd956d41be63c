"""NameServerConfig: Java's keys and defaults, read from the same namesrv.conf.

A field is Java's key in snake case: `supportActingMaster` is `support_acting_master`. Keys that Java has and
that change nothing here (its threads and buffers) are in `JAVA_ONLY`: they are kept and shown, so that tools
see what they expect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kourou.auth.config import KEYS as AUTH_KEYS
from kourou.auth.config import SECRETS, STARS
from kourou.java_config import convert_known, java_keys, names_a_place, to_properties
from kourou.properties_file import format_properties, read_properties_file

DEFAULT_PORT = 9876

JAVA_ONLY = {
    "clientRequestThreadPoolNums": "8",
    "clientRequestThreadPoolQueueCapacity": "50000",
    "clusterTest": "false",
    "defaultThreadPoolNums": "16",
    "defaultThreadPoolQueueCapacity": "10000",
    "enableControllerInNamesrv": "false",
    "enableShutdownGracefully": "false",
    "productEnvName": "center",
    "serverAsyncSemaphoreValue": "64",
    "serverCallbackExecutorThreads": "0",
    "serverChannelMaxIdleTimeSeconds": "120",
    "serverNettyWorkerGroupEnable": "true",
    "serverOnewaySemaphoreValue": "256",
    "serverPooledByteBufAllocatorEnable": "true",
    "serverSelectorThreads": "3",
    "serverSocketBacklog": "1024",
    "serverSocketRcvBufSize": "0",
    "serverSocketSndBufSize": "0",
    "serverWorkerThreads": "8",
    "shutdownWaitTimeSeconds": "30",
    "unRegisterBrokerQueueCapacity": "3000",
    "useEpollNativeSelector": "false",
    "writeBufferHighWaterMark": "0",
    "writeBufferLowWaterMark": "0",
}


_FORBIDDEN = frozenset({"configBlackList", "clusterName", *AUTH_KEYS})  # whatever the black list says


def _in_home(name: str) -> Any:
    return field(default_factory=lambda: str(Path.home() / "namesrv" / name))


@dataclass(slots=True, kw_only=True)
class NameServerConfig:
    """How a name server listens, forgets and answers."""

    # Where
    bind_address: str = "0.0.0.0"
    listen_port: int = DEFAULT_PORT
    kv_config_path: str = _in_home("kvConfig.json")
    config_store_path: str = _in_home("namesrv.properties")
    rocketmq_home: str = field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))

    # Brokers
    scan_not_active_broker_interval: int = 5000
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    delete_topic_with_broker_registration: bool = False
    return_order_topic_config_to_broker: bool = True

    # Clients
    order_message_enable: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = 45
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    others: dict[str, str] = field(default_factory=lambda: dict(JAVA_ONLY))

    @classmethod
    def load(cls, path: str | Path) -> NameServerConfig:
        """A configuration from a namesrv.conf, to which changes at run time are written, as Java's are."""
        config = cls(config_store_path=str(Path(path).absolute()))
        properties = read_properties_file(path)
        config.others.update({key: text for key, text in properties.items() if key not in java_keys(cls)})
        config.update(properties)
        return config

    def update(self, properties: Mapping[str, str]) -> None:
        """Take new values of keys that are there, all of them or, if one is invalid, none."""
        for name, value in convert_known(NameServerConfig, properties).items():
            setattr(self, name, value)
        self.others.update({key: text for key, text in properties.items() if key in self.others})

    def forbids_update_of(self, key: str) -> bool:
        """Whether a key may not be changed from outside: those that name files and addresses, those that say
        who may do what, and whichever are listed."""
        if key in _FORBIDDEN or key in map(str.strip, self.config_black_list.split(";")):
            return True
        return names_a_place(key)

    def to_text(self, *, with_secrets: bool = False) -> str:
        """All keys and values, a line each, in the order of the keys; secrets are for its own file only."""
        values = {**self.others, **to_properties(self)}
        if not with_secrets:
            values.update({key: STARS for key in SECRETS if values.get(key)})
        return format_properties(values)

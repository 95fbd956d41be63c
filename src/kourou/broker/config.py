"""BrokerConfig: Java's keys and defaults, read from the same broker.conf.

Only keys that change what this broker does are listed, those of its store in MessageStoreConfig; others of a
file (Java's threads and buffers) are kept and shown, so that tools see what they wrote.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kourou.auth.config import KEYS as AUTH_KEYS
from kourou.auth.config import SECRETS, STARS
from kourou.clock import SystemClock
from kourou.errors import ConfigError
from kourou.java_config import convert_known, java_keys, names_a_place, to_properties
from kourou.properties_file import format_properties, read_properties_file
from kourou.remoting.metrics import MetricsExporterType
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, DataVersion
from kourou.store import BrokerRole, MessageStoreConfig

DEFAULT_PORT = 10911
MASTER_ID = 0

_HIDDEN = ("brokerConfigPath",)
_FORBIDDEN = frozenset(
    {*_HIDDEN, "rocketmqHome", "configBlackList", *AUTH_KEYS}
)  # whatever the black list says

# What a store that is open, and sockets that listen, cannot take another value of; and the cluster, for
# whoever may administer the one that is named here may administer this broker
_AT_START_ONLY = (
    "bindAddress", "brokerIP1", "listenPort", "storePathRootDir", "storePathCommitLog",
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "mapperFileSizeBatchConsumeQueue",
    "mappedFileSizeConsumeQueueExt", "enableConsumeQueueExt", "maxHashSlotNum", "maxIndexNum",
    "transientStorePoolEnable", "transientStorePoolSize", "enableLmq", "haListenPort", "brokerId",
    "brokerClusterName",
    "metricsExporterType", "metricsPromExporterPort", "metricsPromExporterHost", "metricsLabel",
    "metricsInDelta", "metricsOtelCardinalityLimit",
)  # fmt: skip


def local_address() -> str:
    """An address of this machine that others can reach; 127.0.0.1 where there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the system only chooses an interface
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@lru_cache(maxsize=16)
def resolved(host: str) -> str:
    """The address of brokerIP1, which may be a name, as in Java. Asked once: a look-up blocks."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]).partition("%")[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"brokerIP1={host} is neither an address nor the name of one: {error}") from None


@dataclass(slots=True, kw_only=True)
class BrokerConfig:
    """Who a broker is, where it listens, and what it lets its clients do."""

    # Who and where
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = field(default_factory=lambda: socket.gethostname() or "DEFAULT_BROKER")
    broker_id: int = MASTER_ID
    broker_ip1: str = field(default_factory=local_address, metadata={"key": "brokerIP1"})
    broker_ip2: str = field(default_factory=local_address, metadata={"key": "brokerIP2"})
    bind_address: str = "0.0.0.0"
    listen_port: int = DEFAULT_PORT
    broker_config_path: str = ""  # the file that changes are written to

    # Name servers
    namesrv_addr: str = field(default_factory=lambda: os.environ.get("NAMESRV_ADDR", ""))
    register_broker_timeout_mills: int = 24_000
    register_name_server_period: int = 30_000
    broker_not_active_timeout_millis: int = 10_000
    compressed_register: bool = False
    force_register: bool = True
    enable_slave_acting_master: bool = False
    enable_remote_escape: bool = False

    # Topics and groups
    broker_permission: int = PERM_READ | PERM_WRITE
    default_topic_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    revive_queue_num: int = 8
    validate_system_topic_when_update_topic: bool = True
    clear_retry_topic_when_delete_topic: bool = True

    # POP
    default_message_request_mode: str = "PULL"
    default_pop_share_queue_num: int = -1
    pop_from_retry_probability: int = 20
    pop_response_return_actual_retry_topic: bool = False
    init_pop_offset_by_check_msg_in_mem: bool = True
    enable_retry_topic_v2: bool = False
    retrieve_message_from_pop_retry_topic_v1: bool = True
    revive_interval: int = 1000
    enable_pop_message_threshold: bool = False
    pop_inflight_message_threshold: int = 10_000
    enable_pop_buffer_merge: bool = False
    pop_ck_stay_buffer_time: int = 10_000
    pop_ck_stay_buffer_time_out: int = 3000
    pop_ck_max_buffer_size: int = 200_000
    pop_ck_offset_max_queue_size: int = 20_000

    # Groups
    enable_create_sys_group: bool = True

    # Sends
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    reject_transaction_message: bool = False
    send_thread_pool_queue_capacity: int = 10_000  # sends that wait for the disk; Java's queue of sends
    store_reply_message_enable: bool = True

    # Transactions
    transaction_time_out: int = 6000
    transaction_check_max: int = 15
    transaction_check_interval: int = 30_000
    transaction_op_msg_max_size: int = 4096
    transaction_op_batch_interval: int = 3000
    start_accept_send_request_time_stamp: int = 0
    recall_message_enable: bool = False
    allow_recall_when_broker_not_writeable: bool = True

    # Pulls
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    pull_thread_pool_queue_capacity: int = 100_000  # pulls that are held; Java's queue of pulls
    lite_pull_message_enable: bool = True
    slave_read_enable: bool = False
    enable_property_filter: bool = False
    filter_support_retry: bool = False
    enable_calc_filter_bit_map: bool = False
    expect_consumer_num_use_filter: int = 32
    max_error_rate_of_bloom_filter: int = 20
    filter_data_clean_time_span: int = 24 * 3_600_000
    disable_consume_if_consumer_read_slowly: bool = False
    consumer_fallbehind_threshold: int = 16 * 1024 * 1024 * 1024
    use_server_side_reset_offset: bool = True

    # Clients
    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: int = 120_000
    subscription_expired_timeout: int = 600_000
    enable_register_producer: bool = True
    reject_pull_consumer_enable: bool = False
    server_load_balancer_enable: bool = True
    flush_consumer_offset_interval: int = 5000
    consumer_offset_update_version_step: int = 500

    # Metrics; the endpoint that serves them says too whether the broker is ready
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    metrics_prom_exporter_port: int = 5557
    metrics_prom_exporter_host: str = ""  # bindAddress
    metrics_label: str = ""
    metrics_in_delta: bool = False
    metrics_otel_cardinality_limit: int = 50_000
    enable_remoting_metrics: bool = True
    enable_message_store_metrics: bool = True
    enable_pop_metrics: bool = True
    enable_connection_metrics: bool = True
    enable_transaction_metrics: bool = True
    enable_stats_metrics: bool = True
    enable_request_metrics: bool = True
    enable_lag_and_dlq_metrics: bool = True
    estimate_accumulation: bool = True

    # Administration
    enable_detail_stat: bool = True
    enable_lmq_stats: bool = False
    config_black_list: str = "configBlackList;brokerConfigPath"
    split_metadata_size: int = 2000

    store: MessageStoreConfig = field(default_factory=MessageStoreConfig)
    others: dict[str, str] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0, SystemClock.now_ms()))

    @classmethod
    def load(cls, path: str | Path, **overrides: Any) -> BrokerConfig:
        """A configuration from a broker.conf, to which changes at run time are written, as Java's are."""
        properties = read_properties_file(path)
        properties["brokerConfigPath"] = str(Path(path).absolute())
        return cls.from_properties(properties, **overrides)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], **overrides: Any) -> BrokerConfig:
        """A configuration of the keys in `properties`; those nobody knows are kept."""
        known = {*java_keys(cls), *java_keys(MessageStoreConfig)}
        return cls(
            **{
                "store": MessageStoreConfig.from_properties(properties),
                "others": {key: text for key, text in properties.items() if key not in known},
                **convert_known(cls, properties),
                **overrides,
            }
        )

    def update(self, properties: Mapping[str, str]) -> None:
        """Take new values of keys that are there, all of them or, where one is of no use, none."""
        own, store = convert_known(BrokerConfig, properties), convert_known(MessageStoreConfig, properties)
        replace(self.store, **store)  # ConfigError where values are of no use together
        current = {**to_properties(self.store), **to_properties(self)}
        for key in _AT_START_ONLY:
            if key in properties and properties[key].strip() != current[key]:
                raise ConfigError(f"{key} counts at the start only: it cannot change while the broker runs")
        role = store.get("broker_role", self.store.broker_role)
        if (role is BrokerRole.SLAVE) != (self.store.broker_role is BrokerRole.SLAVE):
            raise ConfigError("a slave becomes a master, or a master a slave, by a new start only")
        for name, value in own.items():
            setattr(self, name, value)
        for name, value in store.items():
            setattr(self.store, name, value)
        self.others.update({key: text for key, text in properties.items() if key in self.others})

    def forbids_update_of(self, key: str) -> bool:
        """Whether a key may not be changed from outside. Those that count at the start only are not among
        them: they may be said again, as they are."""
        if key in _FORBIDDEN or key in map(str.strip, self.config_black_list.split(";")):
            return True
        return names_a_place(key) and key not in _AT_START_ONLY

    def to_text(self, *, with_secrets: bool = False) -> str:
        """All keys and values, a line each, in the order of the keys; secrets are for its own file only."""
        values = {**self.others, **to_properties(self.store), **to_properties(self)}
        if not with_secrets:
            values.update({key: STARS for key in SECRETS if values.get(key)})
        return format_properties({key: value for key, value in values.items() if key not in _HIDDEN})

    @property
    def address(self) -> str:
        """Where clients find this broker, as the name server tells them."""
        return f"{self.broker_ip1}:{self.listen_port}"

    @property
    def ha_address(self) -> str:
        """Where slaves find this broker."""
        return f"{self.broker_ip2}:{self.store.ha_listen_port}"

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return [part.strip() for part in self.namesrv_addr.split(";") if part.strip()]

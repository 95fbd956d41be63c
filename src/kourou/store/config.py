"""MessageStoreConfig: Java's keys and defaults, read from the same broker.conf.

A key here is Java's in snake case: `mappedFileSizeCommitLog` is `mapped_file_size_commit_log`. Only
keys that change what this store does are listed; others in a file are left to whom they concern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from kourou.errors import ConfigError
from kourou.java_config import convert_known
from kourou.properties_file import read_properties_file


class FlushDiskType(Enum):
    """When a sender is answered: once the record is on the disk, or before."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(Enum):
    """What the broker is to its replicas."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


MULTI_PATH_SPLITTER = ","
DEFAULT_HA_PORT = 10912
_OLDER_NAMES = {"haSlaveFallbehindMax": "haMaxGapNotInSync"}  # of RocketMQ 4
TIMER_PRECISIONS_MS = (100, 200, 500, 1000)


@dataclass(slots=True, kw_only=True)
class MessageStoreConfig:
    """How a store lies on disk, flushes, reads and forgets."""

    # Where
    store_path_root_dir: str = field(default_factory=lambda: str(Path.home() / "store"))
    store_path_commit_log: str = ""  # default: <root>/commitlog; several, with commas: MultiPath
    read_only_commit_log_store_paths: str = ""

    # Files
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300_000 * 20
    mapper_file_size_batch_consume_queue: int = 300_000 * 46  # the spelling is Java's
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 * 1024 * 1024
    bit_map_length_consume_queue_ext: int = 64
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 5_000_000 * 4
    message_index_enable: bool = True
    message_index_safe: bool = False
    warm_maped_file_enable: bool = False  # the spelling is Java's
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5

    # Messages
    max_message_size: int = 4 * 1024 * 1024
    enabled_append_prop_crc: bool = field(default=False, metadata={"key": "enabledAppendPropCRC"})
    force_verify_prop_crc: bool = field(default=False, metadata={"key": "forceVerifyPropCRC"})
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000

    # Flush
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: int = 5000
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000

    # Recovery
    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    commit_log_recover_max_num: int = 10

    # Reads
    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    max_filter_message_size: int = 16_000
    access_message_in_memory_max_ratio: int = 40
    travel_cq_file_num_when_get_message: int = 1
    max_msgs_num_batch: int = 64
    max_consume_queue_scan: int = 20_000
    sample_count_threshold: int = 5000

    # Retention
    delete_when: str = "04"
    file_reserved_time: int = 72
    clean_resource_interval: int = 10_000
    delete_commit_log_files_interval: int = 100
    delete_consume_queue_files_interval: int = 100
    redelete_hanged_file_interval: int = 120_000
    delete_file_batch_max: int = 10
    clean_file_forcibly_enable: bool = True
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90

    # Timers
    timer_wheel_enable: bool = True
    timer_precision_ms: int = 1000
    timer_max_delay_sec: int = 3 * 86_400
    timer_roll_window_slot: int = 2 * 86_400
    timer_flush_interval_ms: int = 1000
    timer_congest_num_each_slot: int = 0x7FFFFFFF
    mapped_file_size_timer_log: int = 100 * 1024 * 1024
    timer_enable_check_metrics: bool = True
    timer_check_metrics_when: str = "05"
    timer_metric_small_threshold: int = 1_000_000
    append_topic_for_timer_delete_key: bool = False

    # Replication
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_listen_port: int = DEFAULT_HA_PORT
    ha_master_address: str = ""  # default: the name server says
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000
    ha_transfer_batch_size: int = 32 * 1024
    ha_max_gap_not_in_sync: int = 256 * 1024 * 1024
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = 100 * 1024 * 1024
    slave_timeout: int = 3000
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    enable_auto_in_sync_replicas: bool = False
    offset_check_in_slave: bool = False
    read_un_committed: bool = False

    def __post_init__(self) -> None:
        self.store_path_root_dir = str(Path(self.store_path_root_dir).absolute())
        if not self.store_path_commit_log:
            self.store_path_commit_log = f"{self.store_path_root_dir}/commitlog"
        # Files of queues hold whole entries.
        self.mapped_file_size_consume_queue = -(-self.mapped_file_size_consume_queue // 20) * 20
        self.mapper_file_size_batch_consume_queue = -(-self.mapper_file_size_batch_consume_queue // 46) * 46
        for key, size, least in (
            ("mappedFileSizeCommitLog", self.mapped_file_size_commit_log, 4096),
            ("mappedFileSizeConsumeQueue", self.mapped_file_size_consume_queue, 20),
            ("mapperFileSizeBatchConsumeQueue", self.mapper_file_size_batch_consume_queue, 46),
            ("mappedFileSizeConsumeQueueExt", self.mapped_file_size_consume_queue_ext, 24),
            ("mappedFileSizeTimerLog", self.mapped_file_size_timer_log, 68),
        ):
            if size < least:
                raise ConfigError(f"{key} must be at least {least} bytes")
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ConfigError("maxHashSlotNum must be at least 1 and maxIndexNum at least 2")
        if self.broker_role is BrokerRole.SLAVE:
            self.transient_store_pool_enable = False  # what a slave says that it has is in its files
        for key, size, least in (
            ("haTransferBatchSize", self.ha_transfer_batch_size, 1),
            ("haSendHeartbeatInterval", self.ha_send_heartbeat_interval, 1),
            ("maxHaTransferByteInSecond", self.max_ha_transfer_byte_in_second, 1),
        ):
            if size < least:
                raise ConfigError(f"{key} must be at least {least}")
        parse_delay_levels(self.message_delay_level)
        # Java knows four precisions, and takes the one below where another is named.
        self.timer_precision_ms = max(
            (known for known in TIMER_PRECISIONS_MS if known <= self.timer_precision_ms),
            default=TIMER_PRECISIONS_MS[0],
        )
        for key, hours in (
            ("deleteWhen", self.delete_when),
            ("timerCheckMetricsWhen", self.timer_check_metrics_when),
        ):
            for hour in hours.split(";"):
                if not hour.isdecimal() or int(hour) > 23:
                    raise ConfigError(f"{key} has {hour!r}: it takes hours from 00 to 23, joined by ';'")

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], **overrides: Any) -> MessageStoreConfig:
        """A configuration of the keys in `properties` that concern the store."""
        older = {key: properties[name] for name, key in _OLDER_NAMES.items() if name in properties}
        return cls(**{**convert_known(cls, {**older, **properties}), **overrides})

    @classmethod
    def load(cls, path: str | Path, **overrides: Any) -> MessageStoreConfig:
        """A configuration from a broker.conf."""
        return cls.from_properties(read_properties_file(path), **overrides)

    @property
    def commit_log_directories(self) -> list[str]:
        """The directories of the log, those only read last."""
        return [path for path in self.store_path_commit_log.split(MULTI_PATH_SPLITTER) if path]

    @property
    def read_only_directories(self) -> list[str]:
        """Directories whose log files are read and never written."""
        return [path for path in self.read_only_commit_log_store_paths.split(MULTI_PATH_SPLITTER) if path]

    @property
    def sync_flush(self) -> bool:
        """Whether senders wait for the disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def sync_copies(self) -> bool:
        """Whether senders wait for the disk or for slaves."""
        return self.sync_flush or self.broker_role is BrokerRole.SYNC_MASTER


def parse_delay_levels(text: str) -> list[int]:
    """The delays of `messageDelayLevel` in milliseconds; the first is level 1."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    delays = []
    for item in text.split():
        if item[-1] not in units or not item[:-1].isdecimal():
            raise ConfigError(f"messageDelayLevel has {item!r}: it takes numbers followed by s, m, h or d")
        delays.append(int(item[:-1]) * units[item[-1]])
    return delays

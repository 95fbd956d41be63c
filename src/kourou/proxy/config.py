"""ProxyConfig: rmq-proxy.json, with Java's keys and defaults (Java's ProxyConfig)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from kourou.errors import ConfigError
from kourou.java_config import convert_known, java_keys
from kourou.remoting.metrics import MetricsExporterType

DEFAULT_PORT = 8081


@dataclass(slots=True)
class ProxyConfig:
    """Where a proxy listens, which cluster it is for, and what it allows."""

    # Where
    bind_address: str = "0.0.0.0"
    grpc_server_port: int = DEFAULT_PORT
    remoting_listen_port: int = 8080  # for clients that do not speak gRPC; -1: none
    namesrv_addr: str = ""
    rocket_mq_cluster_name: str = field(default="DefaultCluster", metadata={"key": "rocketMQClusterName"})
    proxy_cluster_name: str = "DefaultCluster"
    proxy_name: str = field(default_factory=lambda: socket.gethostname() or "DEFAULT_PROXY")
    # What clients are told: host:port, several joined by ';'. Empty: the address that they called.
    advertised_endpoints: str = ""
    use_endpoint_port_from_request: bool = False
    remoting_access_addr: str = ""  # what clients of remoting are told. Empty: the address that they called

    # TLS
    tls_test_mode_enable: bool = True
    tls_key_path: str = ""
    tls_cert_path: str = ""

    # Limits
    grpc_max_inbound_message_size: int = 130 * 1024 * 1024
    max_message_size: int = 4 * 1024 * 1024
    enable_message_body_empty_check: bool = True
    max_user_property_size: int = 16 * 1024
    user_property_max_num: int = 128
    max_message_group_size: int = 64
    max_delay_time_mills: int = 24 * 3600 * 1000
    min_invisible_time_mills_for_recv: int = 10_000
    max_invisible_time_mills: int = 12 * 3600 * 1000
    max_transaction_recovery_second: int = 3600
    enable_topic_message_type_check: bool = True

    # What clients are told to do
    grpc_client_producer_max_attempts: int = 3
    grpc_client_producer_backoff_initial_millis: int = 10
    grpc_client_producer_backoff_max_millis: int = 1000
    grpc_client_producer_backoff_multiplier: int = 2
    grpc_client_consumer_min_long_polling_timeout_millis: int = 5000
    grpc_client_consumer_max_long_polling_timeout_millis: int = 20_000
    grpc_client_consumer_long_polling_batch_size: int = 32

    # Receipt handles that are renewed
    default_invisible_time_mills: int = 60_000
    renew_ahead_time_millis: int = 10_000
    renew_max_time_millis: int = 3 * 3600 * 1000
    renew_schedule_period_millis: int = 5000
    max_renew_retry_times: int = 3
    channel_expired_timeout: int = 120_000

    # What Prometheus is told
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    metrics_prom_exporter_port: int = 5557
    metrics_prom_exporter_host: str = ""  # bindAddress
    metrics_label: str = ""

    # Users and their rights, as brokers tell them
    user_cache_refresh_seconds: int = 20
    user_cache_expired_seconds: int = 300

    others: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> ProxyConfig:
        """A configuration from a file; ConfigError if it cannot be used."""
        try:
            values: Any = orjson.loads(Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path} is no JSON object")
        return cls.from_properties({key: _text(value) for key, value in values.items()})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ProxyConfig:
        """A configuration from keys and values; ConfigError if a value is invalid."""
        config = cls(**convert_known(cls, properties))
        known = java_keys(cls)
        config.others = {key: text for key, text in properties.items() if key not in known}
        return config


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()

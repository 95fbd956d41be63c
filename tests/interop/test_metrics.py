"""The same traffic through a Java broker and ours: the metrics have the same names, types and labels."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.java import RUN, Java
from support.recorded.wire import Caller, free_ports
from support.sites.broker import UNIQUE_ID, send_request
from support.sites.scrape import HOST, Scraped, scrape
from support.sites.servers import interop, java_broker, java_environment, kourou_broker, kourou_name_server

BROKERS = {"java": java_broker, "kourou": kourou_broker}
WAIT_S = 60
LEVELS = "1s 2s 3s"
SENT = {"sync": 20, "delay": 2, "timer": 2, "ordered": 4, "transaction": 2}
VISIBLE = sum(SENT.values()) - 1  # one transaction is rolled back
MORE = {"sync": [], "delay": ["--delay-level", "1"], "timer": ["--delay-sec", "2"]}

# Deliberate differences.
OTEL = {"otel_scope_name"}  # labels that say which library counted
NOT_SERVED: tuple[str, ...] = ()
NO_METRIC = {"target_info"}  # target_info: it has no labels
# Java reads halves and op messages as a consumer group of its own; our transactions read the store.
INTERNAL_READER = "CID_RMQ_SYS_TRANS"
ONLY_OURS = ("kourou_", "process_")
# Java has these once a message was revived; ours are there from the start
POP_IN_FLIGHT = {
    "rocketmq_pop_revive_in_message", "rocketmq_pop_revive_out_message", "rocketmq_pop_revive_retry_messages",
}  # fmt: skip
# Java scans its buffer of check points also where it is switched off; ours has samples where it is on
BUFFER_SCAN = "rocketmq_pop_buffer_scan_time_consume_milliseconds"

REQUESTS = "rocketmq_rpc_latency_milliseconds_count"
REQUEST_LABELS = ("request_code", "response_code", "is_long_polling", "result", "protocol_type")
ANSWERED = (
    ("send_message_v2", "success", "false", "success", "remoting"),
    ("heart_beat", "success", "false", "success", "remoting"),
    ("end_transaction", "success", "false", "oneway", "remoting"),
    ("pull_message", "success", "false", "success", "remoting"),
    ("pull_message", "success", "true", "success", "remoting"),
    ("update_consumer_offset", "success", "false", "oneway", "remoting"),
    ("update_and_create_topic", "success", "false", "success", "remoting"),
    ("update_and_create_subscriptiongroup", "success", "false", "success", "remoting"),
    ("consumer_send_msg_back", "success", "false", "success", "remoting"),
)


def drive(directory: Path, namesrv: str, broker_port: int) -> None:
    """Topics, a group, messages of all types, and a dead letter."""
    interop(directory, namesrv, "topic", "--topic", "T")
    for mode, count in SENT.items():
        arguments = ["--topic", "T", "--mode", mode, "--count", str(count), *MORE.get(mode, [])]
        interop(directory, namesrv, "produce", *arguments, "--key-prefix", mode)
    with Caller(broker_port) as caller:
        group = json.dumps({"groupName": "made"}).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert caller.call(RemotingCommand(code, {}, group)).code == ResponseCode.SUCCESS
        fields = {"offset": "0", "group": "made", "delayLevel": "-1", "originTopic": "T"}
        sent_back = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert caller.call(sent_back).code == ResponseCode.SUCCESS


@contextmanager
def consuming(directory: Path, namesrv: str) -> Iterator[None]:
    """A consumer that stays; each message fails once and comes again."""
    arguments = ["--namesrv", namesrv, "--topic", "T", "--group", "G", "--count", "1000", "--fail-first"]
    with subprocess.Popen(
        [RUN, "Interop", "consume", *arguments, "--timeout", "300"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=java_environment(directory),
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(WAIT_S)


def traffic(kind: str, directory: Path) -> Scraped:
    """What a broker tells after the traffic, while its consumer and a producer are connected."""
    directory.mkdir()
    port = free_ports(0)
    config: dict[str, object] = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": port,
        "metricsPromExporterHost": HOST,
        "messageDelayLevel": LEVELS,
    }
    with (
        kourou_name_server(directory) as names,
        BROKERS[kind](directory, names.port, config) as broker,
        Caller(broker.port) as producer,
    ):
        drive(directory, names.address, broker.port)
        beat = {"clientID": "c", "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": []}
        heartbeat = RemotingCommand(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        assert producer.call(heartbeat).code == ResponseCode.SUCCESS
        with consuming(directory, names.address):
            wait_until(port, got_all)
            message = send_request("T", properties={"UNIQ_KEY": UNIQUE_ID, "KEYS": "held"})
            assert producer.call(message).code == ResponseCode.SUCCESS
            return wait_until(port, is_over)


def wait_until(port: int, condition: Callable[[Scraped], bool]) -> Scraped:
    deadline = time.monotonic() + WAIT_S
    while not condition(found := scrape(port)):
        assert time.monotonic() < deadline, found.text
        time.sleep(0.5)
    return found


def got_all(found: Scraped, count: int = VISIBLE) -> bool:
    """Whether all that was sent has come, and came again."""
    name, failed = "rocketmq_messages_out_total", "SCHEDULE_CONSUMER"
    got = {"topic": "T", "consumer_group": "G"}
    return (
        found.has(name, **got)
        and found.value(name, **got) >= count
        and found.has(name, consumer_group=failed)
        and found.value(name, consumer_group=failed) >= count + SENT["delay"]
    )


def is_over(found: Scraped) -> bool:
    """The same with the message that a pull was held for."""
    return (
        got_all(found, VISIBLE + 1)
        and all(found.has(REQUESTS, **dict(zip(REQUEST_LABELS, request))) for request in ANSWERED)
        and found.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="G") == 0
    )


@pytest.fixture(scope="module")
def told(java: Java, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scraped]:
    directory = tmp_path_factory.mktemp("metrics")
    with ThreadPoolExecutor(2) as pool:
        running = {kind: pool.submit(traffic, kind, directory / kind) for kind in BROKERS}
        return {kind: future.result() for kind, future in running.items()}


def java_families(told: dict[str, Scraped]) -> dict[str, Any]:
    return {
        name: family
        for name, family in told["java"].families.items()
        if not name.startswith(NOT_SERVED) and name not in NO_METRIC
    }


def test_every_metric_of_java_is_there_with_its_type(told):
    java = {name: family.type for name, family in java_families(told).items()}
    ours = {name: family.type for name, family in told["kourou"].families.items()}
    assert len(java) >= 35
    assert {name: ours.get(name) for name in java} == java
    more = [name for name in ours if name not in java and not name.startswith(ONLY_OURS)]
    assert set(more) <= POP_IN_FLIGHT


def test_samples_have_the_same_names_and_labels(told):
    for name, family in java_families(told).items():
        if name == BUFFER_SCAN:
            continue
        ours = told["kourou"].families[name]
        assert {sample.name for sample in ours.samples} == {sample.name for sample in family.samples}, name
        java_labels = told["java"].label_names(name, but={*OTEL, "le"})
        assert told["kourou"].label_names(name, but={"le"}) == java_labels, name


def test_buckets_have_the_same_bounds(told):
    for name, family in java_families(told).items():
        if family.type == "histogram" and name != BUFFER_SCAN:
            bounds = {
                kind: {one.labels.get("le") for one in found.samples(f"{name}_bucket")}
                for kind, found in told.items()
            }
            assert bounds["kourou"] == bounds["java"], name
            assert len(bounds["java"]) > 3, name


SAME_VALUES_OF_LABELS = {
    "rocketmq_messages_in_total": ("topic", "message_type", "is_system"),
    "rocketmq_throughput_in_total": ("topic", "message_type", "is_system"),
    "rocketmq_message_size_count": ("topic", "message_type", "is_system"),
    "rocketmq_messages_out_total": ("topic", "consumer_group", "is_system"),
    "rocketmq_throughput_out_total": ("topic", "consumer_group", "is_system"),
    "rocketmq_processor_watermark": ("processor",),
    "rocketmq_producer_connections": ("language", "version", "protocol_type"),
    "rocketmq_consumer_connections": (
        "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system",
    ),
    "rocketmq_consumer_lag_messages": ("consumer_group", "topic", "is_retry", "is_system"),
    "rocketmq_consumer_inflight_messages": ("consumer_group", "topic", "is_retry", "is_system"),
    "rocketmq_consumer_ready_messages": ("consumer_group", "topic", "is_retry", "is_system"),
    "rocketmq_send_to_dlq_messages_total": ("consumer_group", "topic", "is_system"),
    "rocketmq_commit_messages_total": ("topic",),
    "rocketmq_rollback_messages_total": ("topic",),
    "rocketmq_half_messages": ("topic",),
    "rocketmq_timing_messages": ("topic", "storage_type", "storage_medium"),
    "rocketmq_timer_enqueue_total": ("topic", "storage_type", "storage_medium"),
    "rocketmq_timer_dequeue_total": ("topic", "storage_type", "storage_medium"),
    "rocketmq_timer_message_snapshot": ("timer_bound_s", "storage_type", "storage_medium"),
    "rocketmq_topic_create_execution_time_milliseconds_count": ("invocation_status", "is_system"),
    "rocketmq_consumer_group_create_execution_time_milliseconds_count": ("invocation_status",),
    "rocketmq_storage_size_bytes": ("storage_type", "storage_medium"),
    "rocketmq_broker_permission": ("cluster", "node_type", "node_id"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME_VALUES_OF_LABELS)
def test_labels_have_the_same_values(told, name):
    values = {
        kind: {
            tuple(sample.labels[label] for label in SAME_VALUES_OF_LABELS[name])
            for sample in found.samples(name)
            if sample.labels.get("consumer_group") != INTERNAL_READER
        }
        for kind, found in told.items()
    }
    assert values["java"]
    assert values["kourou"] == values["java"]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("rocketmq_messages_in_total", {"topic": "T", "message_type": "normal"}),
        ("rocketmq_throughput_in_total", {"topic": "T", "message_type": "normal"}),
        ("rocketmq_messages_in_total", {"topic": "T", "message_type": "delay"}),
        ("rocketmq_messages_in_total", {"topic": "rmq_sys_wheel_timer", "message_type": "delay"}),
        ("rocketmq_messages_in_total", {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}),
        ("rocketmq_messages_out_total", {"topic": "T", "consumer_group": "G"}),
        ("rocketmq_messages_out_total", {"consumer_group": "SCHEDULE_CONSUMER"}),
        ("rocketmq_message_size_bucket", {"topic": "T", "message_type": "normal", "le": "1024.0"}),
        ("rocketmq_commit_messages_total", {"topic": "T"}),
        ("rocketmq_rollback_messages_total", {"topic": "T"}),
        ("rocketmq_half_messages", {"topic": "T"}),
        ("rocketmq_finish_message_latency_milliseconds_count", {"topic": "T"}),
        ("rocketmq_send_to_dlq_messages_total", {"topic": "T", "consumer_group": "made"}),
        ("rocketmq_consumer_lag_messages", {"topic": "T", "consumer_group": "G"}),
        ("rocketmq_consumer_ready_messages", {"topic": "T", "consumer_group": "G"}),
        ("rocketmq_timing_messages", {"topic": "T"}),
        ("rocketmq_timer_enqueue_total", {"topic": "T"}),
        ("rocketmq_timer_dequeue_total", {"topic": "T"}),
        ("rocketmq_delay_message_latency_seconds_count", {"topic": "T"}),
        ("rocketmq_broker_permission", {}),
        ("rocketmq_topic_number", {}),
        ("rocketmq_consumer_group_number", {}),
        ("rocketmq_topic_create_execution_time_milliseconds_count", {}),
        ("rocketmq_consumer_group_create_execution_time_milliseconds_count", {}),
    ],
)
def test_the_same_was_counted(told, name, labels):
    assert told["kourou"].value(name, **labels) == told["java"].value(name, **labels)


def test_requests_have_the_same_names_and_results(told):
    names = {
        kind: {sample.labels["request_code"] for sample in scraped.samples(REQUESTS)}
        for kind, scraped in told.items()
    }
    assert names["kourou"] == names["java"]
    for scraped in told.values():
        for request in ANSWERED:
            assert scraped.value(REQUESTS, **dict(zip(REQUEST_LABELS, request))) >= 1, request

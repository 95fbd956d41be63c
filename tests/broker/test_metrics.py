"""Metrics: what a broker counts, whether it is ready, what an HTTP peer may do to it, and slow requests."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.broker import BrokerConfig
from kourou.broker.metrics.families import FAMILIES
from kourou.errors import ConfigError
from kourou.message import sysflag
from kourou.namesrv.metrics import FAMILIES as NAMESRV_FAMILIES
from kourou.proxy.metrics import FAMILIES as PROXY_FAMILIES
from kourou.remoting import http, metrics, timing
from kourou.remoting.connection import Connection
from kourou.remoting.metrics import Family, Histogram, Page, RpcMeter, Totals, parse_labels
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic, EndTransaction
from kourou.remoting.timing import TimedConnection
from kourou.testing import Cluster
from support.sites.broker import (
    HOST,
    SMALL,
    SUBSCRIPTION,
    SUSPEND,
    Peer,
    Site,
    heartbeat,
    pull_request,
    running,
    send_request,
    until,
)
from support.sites.scrape import Scraped, get, raw, scrape
from support.sites.servers import kourou

ROOT = Path(__file__).resolve().parents[2]
ON = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0", "timerWheelEnable": "true"}
NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
GET_METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def port_of(site: Site) -> int:
    return site.broker.config.metrics_prom_exporter_port


def told(site: Site) -> Scraped:
    return scrape(port_of(site))


def send_to(peer: Peer, topic: str, **properties: str) -> RemotingCommand:
    return peer.ask(send_request(topic, properties={"UNIQ_KEY": "A" * 32, **properties}))


# Messages


def test_messages_are_counted_by_topic_type_and_size(tmp_path):
    with running(tmp_path, ON) as site:
        peer = site.connect()
        site.make_topic()
        for _ in range(3):
            send_to(peer, "t")
        send_to(peer, "t", __SHARDINGKEY="k")
        send_to(peer, "t", DELAY="3")
        peer.ask(send_request("t", b"x" * 5000))
        found = told(site)
        assert found.value("rocketmq_messages_in_total", topic="t", message_type="normal", **NODE) == 4
        assert found.value("rocketmq_messages_in_total", topic="t", message_type="fifo") == 1
        delayed = {"topic": "SCHEDULE_TOPIC_XXXX", "message_type": "delay", "is_system": "true"}
        assert found.value("rocketmq_messages_in_total", **delayed) == 1
        end = site.log_end()
        assert sum(one.value for one in found.samples("rocketmq_throughput_in_total")) == end
        plain = {"topic": "t", "message_type": "normal", "is_system": "false"}
        assert found.value("rocketmq_message_size_bucket", **plain, le="1024.0") == 3
        assert found.value("rocketmq_message_size_bucket", **plain, le="4096.0") == 3
        assert found.value("rocketmq_message_size_bucket", **plain, le="524288.0") == 4
        assert found.value("rocketmq_message_size_bucket", **plain, le="+Inf") == 4
        assert found.value("rocketmq_message_size_count", **plain) == 4


def test_what_is_pulled_and_what_is_still_to_come(tmp_path):
    subscription = {"topic": "t", "subString": "*", "subVersion": 1}
    with running(tmp_path, ON) as site:
        peer = site.connect()
        site.make_topic(queues=1)
        peer.ask(heartbeat(group="g", subscriptions=[subscription], producers=("p",)))
        for _ in range(5):
            send_to(peer, "t")
        fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "1"}
        peer.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        peer.ask(pull_request("t", 1, count=2))
        time.sleep(0.002)
        found = told(site)
        assert found.value("rocketmq_messages_out_total", topic="t", consumer_group="g", **NODE) == 2
        assert found.value("rocketmq_throughput_out_total", topic="t", consumer_group="g") > 200
        whose = {"consumer_group": "g", "topic": "t", "is_retry": "false", "is_system": "false", **NODE}
        assert found.value("rocketmq_consumer_lag_messages", **whose) == 4
        assert found.value("rocketmq_consumer_inflight_messages", **whose) == 2
        assert found.value("rocketmq_consumer_ready_messages", **whose) == 2
        assert found.value("rocketmq_consumer_lag_latency_milliseconds", **whose) > 0
        assert found.value("rocketmq_consumer_queueing_latency_milliseconds", **whose) > 0
        client = {"language": "python", "version": "v5_5_0", "protocol_type": "remoting"}
        assert found.value("rocketmq_producer_connections", **client) == 1
        consumer = {**client, "consumer_group": "g", "consume_mode": "push", "is_system": "false"}
        assert found.value("rocketmq_consumer_connections", **consumer) == 1


def test_lag_of_a_group_that_wants_some_tags_counts_those(tmp_path):
    wanted = {"topic": "t", "subString": "A", "tagsSet": ["A"], "codeSet": [65], "subVersion": 1}
    with running(tmp_path, ON) as site:
        peer = site.connect()
        site.make_topic(queues=1)
        for number in range(10):
            send_to(peer, "t", TAGS="A" if number < 2 else "B")
        peer.ask(heartbeat(group="g", subscriptions=[wanted]))
        fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "0"}
        peer.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        assert told(site).value("rocketmq_consumer_lag_messages", consumer_group="g") == 2


def test_transactions_are_counted_over_a_restart(tmp_path):
    def prepare(peer: Peer, unique_id: str) -> EndTransaction:
        properties = {"UNIQ_KEY": unique_id * 32, "TRAN_MSG": "true", "PGROUP": "p"}
        answer = peer.ask(send_request("t", properties=properties, g=str(int(time.time() * 1000))))
        offset = int(answer.ext_fields["msgId"][-16:], 16)
        return EndTransaction("p", int(answer.ext_fields["queueOffset"]), offset, 0, "m", "x", False)

    def end(peer: Peer, header: EndTransaction, outcome: int) -> None:
        fields = {**header.fields(), "commitOrRollback": str(outcome)}
        peer.ask(RemotingCommand(RequestCode.END_TRANSACTION, fields))

    with running(tmp_path, ON) as site:
        peer = site.connect()
        site.make_topic()
        halves = [prepare(peer, letter) for letter in "ABCD"]
        end(peer, halves[0], sysflag.TRANSACTION_COMMIT)
        end(peer, halves[0], sysflag.TRANSACTION_COMMIT)  # said twice, it counts once
        end(peer, halves[1], sysflag.TRANSACTION_ROLLBACK)
        found = told(site)
        assert found.value("rocketmq_commit_messages_total", topic="t", **NODE) == 1
        assert found.value("rocketmq_rollback_messages_total", topic="t") == 1
        assert found.value("rocketmq_finish_message_latency_milliseconds_bucket", topic="t", le="5.0") == 1
        assert found.value("rocketmq_half_messages", topic="t") == 2
        half_topic = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "message_type": "transaction"}
        assert found.value("rocketmq_messages_in_total", **half_topic) == 4
    with running(tmp_path, ON) as site:
        assert told(site).value("rocketmq_half_messages", topic="t") == 2


def test_timers_and_delays_are_counted_when_they_come(tmp_path):
    with running(tmp_path, {**ON, "messageDelayLevel": "1s 5s"}) as site:
        peer = site.connect()
        site.make_topic()
        send_to(peer, "t", TIMER_DELAY_MS="3000000")
        send_to(peer, "t", TIMER_DELAY_MS="50")
        send_to(peer, "t", DELAY="1")
        until(lambda: told(site).has("rocketmq_timer_dequeue_total", topic="t"))
        until(lambda: told(site).has("rocketmq_messages_in_total", topic="t", message_type="delay"))
        found = told(site)
        storage = {"storage_type": "local", "storage_medium": "disk", **NODE}
        assert found.value("rocketmq_timer_enqueue_total", topic="t", **storage) == 2
        assert found.value("rocketmq_timer_dequeue_total", topic="t", **storage) == 1
        assert found.value("rocketmq_timing_messages", topic="t", **storage) == 1
        assert found.value("rocketmq_timer_dequeue_lag", **storage) == 1
        assert found.value("rocketmq_timer_message_snapshot", timer_bound_s="3600", **storage) == 1
        assert found.value("rocketmq_timer_message_snapshot", timer_bound_s="900", **storage) == 0
        assert found.value("rocketmq_delay_message_latency_seconds_count", topic="t", **storage) == 2
        out = {"topic": "SCHEDULE_TOPIC_XXXX", "consumer_group": "SCHEDULE_CONSUMER", "is_system": "true"}
        assert found.value("rocketmq_messages_out_total", **out) == 1


def test_dead_letters_are_counted(tmp_path):
    with running(tmp_path, ON) as site:
        peer = site.connect()
        site.make_topic()
        sent = send_to(peer, "t")
        peer.ask(heartbeat(group="g"))
        fields = {"offset": str(int(sent.ext_fields["msgId"][-16:], 16)), "group": "g", "delayLevel": "-1",
                  "originTopic": "t"}  # fmt: skip
        peer.ask(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
        peer.ask(send_request("%RETRY%g", j="20", l="3"))
        found = told(site)
        lost = {"consumer_group": "g", "topic": "t", "is_system": "false"}
        assert found.value("rocketmq_send_to_dlq_messages_total", **lost, **NODE) == 1
        assert found.value("rocketmq_send_to_dlq_messages_total", topic="%RETRY%g", consumer_group="p") == 1
        assert not found.has("rocketmq_messages_in_total", topic="%DLQ%g")  # as in Java


# Requests


def test_requests_are_timed_by_code_and_result(tmp_path):
    with running(tmp_path, ON) as site:
        peer = site.connect()
        header = CreateTopic("made", "TBW102", 4, 4, 6, "SINGLE_TAG")
        peer.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields()))
        bad = CreateTopic("TBW102", "TBW102", 4, 4, 6, "SINGLE_TAG")
        peer.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, bad.fields()))
        group = {"groupName": "made"}
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        peer.ask(RemotingCommand(code, {}, json.dumps(group).encode()))
        peer.send(send_request("made", oneway=True))
        peer.call(RemotingCommand(29_999))
        held = peer.send(pull_request("made", 0, queue_id=1, flag=SUBSCRIPTION | SUSPEND, suspend_ms=60_000))
        other = site.connect()
        until(lambda: site.broker.puller.held == 1)
        assert told(site).value("kourou_held_pulls") == 1
        other.ask(send_request("made", e="1"))
        assert peer.answer_to(held).code == ResponseCode.SUCCESS
        found = told(site)
        name = "rocketmq_rpc_latency_milliseconds_count"
        ok = {"protocol_type": "remoting", "response_code": "success", "result": "success", **NODE}
        assert found.value(name, request_code="update_and_create_topic", is_long_polling="false", **ok) == 1
        assert found.value(name, request_code="send_message_v2", **ok) == 1
        assert found.value(name, request_code="send_message_v2", result="oneway") == 1
        assert found.value(name, request_code="pull_message", is_long_polling="true", **ok) == 1
        unknown = {"request_code": "29999", "response_code": "request_code_not_supported"}
        assert found.value(name, **unknown, result="success") == 1
        made = "rocketmq_topic_create_execution_time_milliseconds_count"
        assert found.value(made, invocation_status="success", is_system="false") == 1
        assert found.value(made, invocation_status="failure", is_system="true") == 1
        made = "rocketmq_consumer_group_create_execution_time_milliseconds_count"
        assert found.value(made, invocation_status="success") == 1


def test_a_send_that_waits_for_the_disk_is_timed_when_it_is_answered(tmp_path):
    with running(tmp_path, {**ON, "flushDiskType": "SYNC_FLUSH"}) as site:
        site.make_topic()
        send_to(site.connect(), "t")
        found = told(site)
        done = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
        assert found.value("rocketmq_rpc_latency_milliseconds_count", **done) == 1
        assert found.value("rocketmq_messages_in_total", topic="t", message_type="normal") == 1


def test_a_message_that_waits_for_slaves_is_timed_when_it_is_answered():
    config = {**ON, "brokerRole": "SYNC_MASTER"}
    with Cluster(slaves=1, config=config) as cluster, ExitStack() as stack:
        cluster.create_topic("t", queues=1)
        peer = Peer(cluster.brokers[0].config.listen_port)
        stack.callback(peer.close)
        port = cluster.brokers[0].config.metrics_prom_exporter_port
        until(lambda: scrape(port).value("kourou_slaves") == 1, "the slave")
        peer.ask(send_request("t"))
        found = scrape(port)
        done = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
        assert found.value("rocketmq_rpc_latency_milliseconds_count", **done) == 1
        assert found.value("kourou_registered_name_servers") == 1
        assert get(port, "/ready").status == 200


def test_codes_that_do_not_exist_fill_no_more_than_so_many_rows(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_RPC_ROWS", 10)
    meter = RpcMeter()
    for code in range(5000, 5100):
        meter.count(RemotingCommand(code), RemotingCommand(3), 0.001, 0)
    rows = meter.histogram().rows
    assert len(rows) == 11
    assert sum(row[0] + row[1] for row in rows.values()) == 100


def test_labels_from_outside_are_bounded():
    totals, histogram = Totals(2), Histogram((1.0,), 2)
    for name in "abcd":
        totals.add((name,), 1)
        histogram.observe((name,), 3)
    page = Page({"cluster": "c"})
    page.add(Family("n_total", "counter", "help", ("topic",)), totals)
    page.add(Family("h", "histogram", "help", ("topic",)), histogram)
    found = Scraped(page.text().decode())
    assert found.value("n_total", topic="b", cluster="c") == 1
    assert found.value("n_total", otel_metric_overflow="true", cluster="c") == 2
    assert found.value("h_sum", otel_metric_overflow="true") == 6


def test_a_long_metric_is_one_metric():
    totals, histogram = Totals(5000), Histogram((1.0, 2.0), 5000)
    for number in range(1000):
        totals.add((f"t{number}",), number)
        histogram.observe((f"t{number}",), number)
    page = Page({})
    page.add(Family("n_total", "counter", "help", ("topic",)), totals)
    page.add(Family("h", "histogram", "help", ("topic",)), histogram)
    text = page.text().decode()
    assert text.count("# TYPE n_total ") == text.count("# TYPE h ") == text.count("# HELP h ") == 1
    found = Scraped(text)
    assert [found.value("n_total", topic=f"t{number}") for number in (0, 299, 300, 999)] == [0, 299, 300, 999]
    assert len(found.samples("h_sum")) == len(found.samples("n_total")) == 1000


def test_values_lie_in_the_bucket_of_their_bound():
    histogram = Histogram((1.0, 3.0), 10)
    for value in (0, 1, 1.5, 3, 4):
        histogram.observe((), value)
    page = Page({})
    page.add(Family("h", "histogram", "help"), histogram)
    found = Scraped(page.text().decode())
    assert [found.value("h_bucket", le=bound) for bound in ("1.0", "3.0", "+Inf")] == [2, 4, 5]
    assert found.value("h_sum") == 9.5


# Configuration


def test_without_an_exporter_nothing_is_in_the_way(tmp_path):
    with running(tmp_path, {"slowRequestThresholdMs": "0"}) as site:
        site.connect().ask(heartbeat())
        assert site.broker.metrics is None
        assert site.do(lambda: {type(one) for one in site.broker.server.connections}) == {Connection}
        assert site.broker.sender.on_stored is None
        assert site.broker.transactions.on_half is site.broker.timers.on_entered is None


def test_labels_and_parts_are_configured(tmp_path):
    names = ("Remoting", "MessageStore", "Connection", "Transaction", "Stats", "Request", "LagAndDlq", "Pop")
    parts = {f"enable{name}Metrics": "false" for name in names}
    more = {"metricsLabel": "zone:a,rack:7", "metricsInDelta": "true", **parts}
    with running(tmp_path, {**ON, **more}) as site:
        site.make_topic()
        send_to(site.connect(), "t")
        found = told(site)
        assert found.value("kourou_ready", zone="a", rack="7", aggregation="delta", **NODE) == 1
        assert [name for name in found.families if name.startswith("rocketmq_")] == []


@pytest.mark.parametrize("text", ["zone", "zone:a:b", "1zone:a", "zo ne:a"])
def test_labels_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="metricsLabel="):
        parse_labels(text)


@pytest.mark.parametrize("kind", ["OTLP_GRPC", "LOG"])
def test_ways_that_only_java_has_are_refused(tmp_path, kind):
    with (
        pytest.raises(ConfigError, match=f"metricsExporterType={kind}: there is PROM"),
        running(tmp_path, {"metricsExporterType": kind}),
    ):
        pass


def test_a_port_that_is_taken_is_said_and_leaves_nothing_behind(tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(OSError, match=f"metricsPromExporterPort={port}: .*the port is taken"),
            running(tmp_path, {**ON, "metricsPromExporterPort": port}),
        ):
            pass
    with running(tmp_path, ON) as site:  # the store was not opened, or is let go
        assert get(port_of(site), "/ready").status == 200


def test_a_start_that_fails_leaves_the_port(tmp_path):
    with running(tmp_path, ON) as site:
        port = port_of(site)
        with (
            pytest.raises(OSError, match="cannot listen"),
            running(tmp_path / "b", {**ON, "listenPort": str(site.port)}),
        ):
            pass
        assert get(port, "/health").status == 200
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, port)) != 0


def test_keys_of_the_endpoint_count_at_the_start_only():
    config = BrokerConfig.from_properties({"brokerName": "b"})
    with pytest.raises(ConfigError, match="metricsPromExporterPort counts at the start only"):
        config.update({"metricsPromExporterPort": "1"})


def test_the_command_line_gives_the_port(tmp_path):
    conf = tmp_path / "broker.conf"
    properties = {**SMALL, "storePathRootDir": str(tmp_path / "store")}
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
    with kourou("broker", "-c", str(conf), "--metrics-port", "0") as server:
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        port = int(line.removeprefix(f"metrics on http://{HOST}:").removesuffix("/metrics\n"))
        assert get(port, "/ready").status == 200


# Health


def test_health_and_readiness(tmp_path):
    with running(tmp_path, ON) as site:
        answer = get(port_of(site), "/health")
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert answer.json()["status"] == "UP"
        assert get(port_of(site), "/ready").json() == {"ready": True, "node": "broker-a"}
        site.do(setattr, site.broker.store, "refusal", "the disk is full")
        answer = get(port_of(site), "/ready")
        assert answer.status == 503
        assert answer.json()["reasons"] == ["no messages are taken: the disk is full"]
        assert told(site).value("kourou_ready") == 0
        assert get(port_of(site), "/health").status == 200
        site.do(setattr, site.broker.store, "refusal", None)
        site.do(setattr, site.broker.metrics, "is_serving", False)
        assert get(port_of(site), "/ready").json()["reasons"] == ["the broker is starting or stopping"]
        assert told(site).value("kourou_ready") == 0
        site.do(setattr, site.broker.metrics, "is_serving", True)


def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path):
    with socket.create_server((HOST, 0)) as nobody:
        address = f"{HOST}:{nobody.getsockname()[1]}"
    with running(tmp_path, {**ON, "namesrvAddr": address}) as site:
        answer = get(port_of(site), "/ready")
        assert (answer.status, answer.json()["reasons"]) == (503, ["no name server knows the broker"])


# The endpoint under attack


def test_other_methods_and_paths_are_refused(tmp_path):
    with running(tmp_path, ON) as site:
        port = port_of(site)
        assert get(port, "/metrics", "POST").status == 405
        assert get(port, "/metrics", "HEAD").status == 405
        assert get(port, "/etc/passwd").status == 404
        assert get(port, "/../metrics").status == 404
        assert b" 405 " in raw(port, b"PUT /metrics HTTP/1.1\r\n\r\n" + b"x" * 100_000)
        for nonsense in (
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /metrics\r\n\r\n",
            b"\x16\x03\x01\n\n",
            b"a b c\n\n",
        ):
            assert b" 400 " in raw(port, nonsense), nonsense
        assert get(port, "/metrics?a=b").status == 200


def test_a_huge_head_is_refused(tmp_path):
    with running(tmp_path, ON) as site:
        head = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2 * http.MAX_HEAD_BYTES
        assert b" 431 " in raw(port_of(site), head)
        assert raw(port_of(site), b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000_000)[:13] in (
            b"HTTP/1.1 431 ", b"")  # fmt: skip
        assert get(port_of(site), "/metrics").status == 200


def test_who_sends_slowly_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.2)
    with running(tmp_path, ON) as site, socket.create_connection((HOST, port_of(site)), 20) as slow:
        slow.sendall(b"GET /met")
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""
        monkeypatch.undo()
        assert get(port_of(site), "/health").status == 200


def test_who_does_not_read_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "ANSWER_TIMEOUT_S", 0.2)
    with running(tmp_path, ON) as site:
        assert site.broker.metrics is not None
        endpoint = site.broker.metrics._server._endpoint

        asked = []

        async def much() -> http.HttpAnswer:
            asked.append(1)
            return http.HttpAnswer.of("x" * 50_000_000)

        endpoint.routes = {**endpoint.routes, "/much": much}
        with socket.create_connection((HOST, port_of(site)), 20) as idle:
            idle.sendall(b"GET /much HTTP/1.1\r\n\r\n")
            until(lambda: asked)
            until(lambda: site.do(len, endpoint.exchanges) == 0)
            with contextlib.suppress(ConnectionResetError):
                assert len(idle.makefile("rb").read()) < 50_000_000


def test_more_connections_than_allowed_are_turned_away(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(http, "LINGER_S", 0.05)
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 60.0)
    with running(tmp_path, ON) as site, ExitStack() as stack:
        port = port_of(site)
        waiting = [stack.enter_context(socket.create_connection((HOST, port), 20)) for _ in range(3)]
        assert b" 503 " in raw(port, b"")
        site.make_topic()
        send_to(site.connect(), "t")  # the broker itself serves on
        for one in waiting:
            one.close()
        until(lambda: b" 200 " in raw(port, GET_METRICS))


def test_a_flood_of_connections_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    with running(tmp_path, ON) as site, ExitStack() as stack:
        assert site.broker.metrics is not None
        endpoint = site.broker.metrics._server._endpoint
        for _ in range(50):
            stack.enter_context(socket.create_connection((HOST, port_of(site)), 20))
        until(lambda: site.do(len, endpoint.exchanges) >= 3)
        assert site.do(len, endpoint.exchanges) <= 6


def test_those_who_ask_at_once_share_a_page(tmp_path):
    with running(tmp_path, ON) as site, ExitStack() as stack:
        assert site.broker.metrics is not None
        server, made = site.broker.metrics._server, []
        collect = server._collect

        async def counting() -> Page:
            made.append(1)
            return await collect()

        server._collect = counting
        asking = [stack.enter_context(socket.create_connection((HOST, port_of(site)), 20)) for _ in range(20)]

        def ask() -> None:  # on the broker's loop: it reads none of them before all are sent
            for one in asking:
                one.sendall(GET_METRICS)

        site.do(ask)
        answers = [one.makefile("rb").read() for one in asking]
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        assert len(made) < len(asking)


def test_a_path_that_fails_says_so_and_no_more(tmp_path, caplog):
    with running(tmp_path, ON) as site:
        assert site.broker.metrics is not None
        endpoint = site.broker.metrics._server._endpoint

        async def broken() -> http.HttpAnswer:
            raise ValueError("secret")

        endpoint.routes = {**endpoint.routes, "/broken": broken}
        answer = get(port_of(site), "/broken")
        assert (answer.status, answer.json()) == (500, {"error": "ValueError"})


def test_a_broker_stops_while_somebody_is_connected(tmp_path):
    with ExitStack() as stack:
        with running(tmp_path, ON) as site:
            idle = stack.enter_context(socket.create_connection((HOST, port_of(site)), 20))
            idle.sendall(b"GET /")
            endpoint = site.broker.metrics._server._endpoint if site.broker.metrics else None
            assert endpoint is not None
            until(lambda: site.do(len, endpoint.exchanges) == 1)
        assert endpoint.exchanges == set()


# Slow requests


def test_slow_requests_are_logged_but_not_those_that_wait_for_messages(tmp_path, caplog):
    with running(tmp_path, {"slowRequestThresholdMs": "500"}) as site:
        site.make_topic()
        peer = site.connect()
        wait = {"flag": SUBSCRIPTION | SUSPEND, "suspend_ms": 600}
        assert peer.call(pull_request("t", **wait)).code == ResponseCode.PULL_NOT_FOUND  # type: ignore[arg-type]
        put = site.broker.store.put_message

        def slowly(*arguments: object) -> object:
            time.sleep(0.6)
            return put(*arguments)  # type: ignore[arg-type]

        send_to(peer, "t")
        site.broker.sender._put = slowly  # type: ignore[assignment]
        assert type(next(iter(site.broker.server.connections))) is TimedConnection
        send_to(peer, "t")
        lines = [record.getMessage() for record in caplog.records if record.name == timing.__name__]
        slow = [line for line in lines if "SEND_MESSAGE_V2" in line]
        assert len(slow) == 1
        address = f"{HOST}:{peer.socket.getsockname()[1]}"
        assert re.fullmatch(
            rf"slow request SEND_MESSAGE_V2 of {address} took \d+ ms: topic t, group p", slow[0]
        )
        assert not any("PULL_MESSAGE" in line for line in lines)
        assert site.broker.watch is not None
        assert site.broker.watch.slow_requests >= 1


def test_a_bad_day_does_not_fill_the_log(caplog, monkeypatch):
    watch, connection = timing.RequestWatch(1), Connection({})
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            watch.slow(connection, RemotingCommand(10), 2.0)
        assert len(caplog.records) == timing.SLOW_LINES
        monkeypatch.setattr(timing.time, "monotonic", lambda: 1e12)
        watch.slow(connection, RemotingCommand(10, {"topic": "x" * 10_000}), 2.0)
    assert watch.slow_requests == 1001
    assert (
        caplog.records[-1]
        .getMessage()
        .endswith(f"(and {1000 - timing.SLOW_LINES} more that were not logged)")
    )
    assert len(caplog.records[-1].getMessage()) < 500


# What is written about it


def all_families() -> dict[str, Family]:
    return {family.name: family for family in (*FAMILIES, *NAMESRV_FAMILIES, *PROXY_FAMILIES)}


def test_every_metric_is_told_and_every_metric_told_is_listed(tmp_path):
    with running(tmp_path, ON) as site:
        text = told(site).text
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    ours = {name: kind for name, kind in types.items() if not name.startswith("process_")}
    assert ours == {family.name: family.kind for family in FAMILIES}


def test_the_dashboard_shows_only_what_there_is(tmp_path):
    dashboard = json.loads((ROOT / "deploy/grafana/kourou.json").read_text(encoding="utf-8"))
    text = json.dumps(dashboard) + (ROOT / "deploy/prometheus/kourou-alerts.yml").read_text(encoding="utf-8")
    names = set(re.findall(r"\b(?:rocketmq|kourou|process)_[a-z_]+", text))
    with running(tmp_path, ON) as site:
        process = {name for name in told(site).families if name.startswith("process_")}
    known = set(process) | {f"{name}_total" for name in process}
    for family in all_families().values():
        ends = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
        known |= {family.name + end for end in ends}
    assert len(names) > 25
    assert names - known == set()
    labels = {label for family in all_families().values() for label in family.labels}
    by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", text) for label in found.split(",")}
    assert by - labels - {"cluster", "node_id", "node_type", "le", "instance"} == set()
    assert {one["name"] for one in dashboard["templating"]["list"]} >= {"datasource", "cluster", "node"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_documentation_lists_every_metric_and_no_other():
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*) \|", text, re.MULTILINE)
    written = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert written == {one.name: (one.kind, one.labels) for one in all_families().values()}

"""A name server tells what it knows, and that it is ready."""

from __future__ import annotations

import socket

import pytest

from kourou.errors import ConfigError
from kourou.namesrv import NameServer
from kourou.namesrv.metrics import FAMILIES
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from support.recorded.wire import Caller
from support.sites.broker import running, until
from support.sites.name_server import name_server
from support.sites.scrape import get, scrape
from support.sites.servers import kourou

HOST = "127.0.0.1"
ON = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


def port_of(server: NameServer) -> int:
    assert server.metrics is not None
    return server.metrics.port


def test_a_name_server_tells_of_brokers_topics_and_requests(tmp_path):
    with name_server(tmp_path, {**ON, "metricsLabel": "zone:a"}) as server:
        with running(tmp_path, {"namesrvAddr": f"{HOST}:{server.port}"}) as site:
            site.make_topic("orders")
            until(lambda: scrape(port_of(server)).value("kourou_namesrv_brokers") == 1, "the broker")
            found = scrape(port_of(server))
            node = {"node_type": "nameserver", "node_id": f"{HOST}:{server.port}", "zone": "a"}
            assert found.value("kourou_namesrv_clusters", **node) == 1
            assert found.value("kourou_namesrv_broker_addresses", **node) == 1
            assert found.value("kourou_namesrv_topics") >= 1
            assert found.value("kourou_connections") == 1
            registered = {"request_code": "register_broker", "response_code": "success", "result": "success"}
            assert found.value("rocketmq_rpc_latency_milliseconds_count", **registered, **node) >= 1
        until(lambda: scrape(port_of(server)).value("kourou_namesrv_brokers") == 0, "its end")
        names = {name for name in scrape(port_of(server)).families if not name.startswith("process_")}
        assert names == {family.name.removesuffix("_total") for family in FAMILIES}


def test_health_and_readiness(tmp_path):
    with name_server(tmp_path, ON) as server:
        assert get(port_of(server), "/health").json()["status"] == "UP"
        assert get(port_of(server), "/ready").json() == {"ready": True, "node": "nameserver"}


def test_without_the_key_there_is_no_endpoint_and_no_key_is_shown(tmp_path):
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        assert server.metrics is None
        answer = caller.call(RemotingCommand(RequestCode.GET_NAMESRV_CONFIG))
        assert b"metrics" not in bytes(answer.body or b"")


def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(OSError, match=f"metricsPromExporterPort={port}: .*the port is taken"),
            name_server(tmp_path, {**ON, "metricsPromExporterPort": port}),
        ):
            pass


@pytest.mark.parametrize(
    ("key", "value"),
    [("metricsExporterType", "LOG"), ("metricsExporterType", "X"), ("metricsPromExporterPort", "70000")],
)
def test_values_of_no_use_are_refused(tmp_path, key, value):
    with pytest.raises(ConfigError, match=f"{key}={value}"), name_server(tmp_path, {**ON, key: value}):
        pass


def test_the_command_line_gives_the_port(tmp_path):
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"kvConfigPath={tmp_path}/kv.json\n", encoding="utf-8")
    arguments = ("--port", "0", "--host", HOST, "--metrics-port", "0")
    with kourou("namesrv", "-c", str(conf), *arguments) as server:
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        port = int(line.removeprefix(f"metrics on http://{HOST}:").removesuffix("/metrics\n"))
        assert get(port, "/ready").status == 200

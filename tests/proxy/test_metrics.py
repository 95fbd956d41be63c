"""A proxy tells what it does, and whether it is ready."""

from __future__ import annotations

import asyncio
import json

import pytest

from kourou.errors import ConfigError
from kourou.proxy.config import ProxyConfig
from kourou.proxy.metrics import FAMILIES
from kourou.proxy.protocol import pb
from kourou.proxy.server import Proxy
from kourou.remoting.metrics import MetricsExporterType
from support.loops import until
from support.sites.proxy import HOST, message, proxied
from support.sites.scrape import get, scrape
from support.sites.servers import kourou

ON = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}


async def test_a_proxy_tells_of_its_calls_and_clients(cluster):
    named = {"proxy_name": "proxy-1", "metrics_label": "zone:a"}
    async with proxied(cluster, **ON, **named) as (proxy, client):
        assert proxy.metrics is not None
        stream, _ = await client.settle(
            pb.Settings(publishing=pb.Publishing(topics=[pb.Resource(name="normal")]))
        )
        await client.send(message("normal"))
        await client.send(message("normal", b""))
        await client.receive("normal", "g-told")
        found = await asyncio.to_thread(scrape, proxy.metrics.port)
        node = {
            "node_type": "proxy", "node_id": "proxy-1", "cluster": "DefaultCluster", "proxy_mode": "cluster",
            "zone": "a",
        }  # fmt: skip
        assert found.value("rocketmq_proxy_up", **node) == 1
        assert found.value("kourou_connections", **node) == 1
        assert found.value("kourou_proxy_clients", **node) == 1
        count = "kourou_proxy_call_latency_milliseconds_count"
        assert found.value(count, call="SendMessage", code="OK") == 1
        assert found.value(count, call="SendMessage", code="MESSAGE_BODY_EMPTY") == 1
        assert sum(sample.value for sample in found.samples(count)) == 3
        names = {name for name in found.families if not name.startswith("process_")}
        assert names == {family.name for family in FAMILIES}
        stream.cancel()


async def test_a_proxy_is_ready_when_it_knows_a_broker_of_its_cluster(cluster):
    async with proxied(cluster, **ON, rocket_mq_cluster_name="elsewhere") as (proxy, _):
        assert proxy.metrics is not None
        await until(lambda: proxy.cluster.missing != "the proxy is starting", "a look")
        answer = await asyncio.to_thread(get, proxy.metrics.port, "/ready")
        assert (answer.status, answer.json()["reasons"]) == (
            503, ["the name server knows no broker of cluster elsewhere"]
        )  # fmt: skip
        assert (await asyncio.to_thread(get, proxy.metrics.port, "/health")).status == 200
    async with proxied(cluster, **ON) as (proxy, _):
        assert proxy.metrics is not None
        await until(lambda: proxy.cluster.missing is None, "the cluster")
        assert (await asyncio.to_thread(get, proxy.metrics.port, "/ready")).status == 200


def test_ways_that_only_java_has_are_refused():
    config = ProxyConfig.from_properties({"namesrvAddr": "127.0.0.1:9876", "metricsExporterType": "LOG"})
    with pytest.raises(ConfigError, match="metricsExporterType=LOG"):
        Proxy(config)


def test_the_file_or_the_command_line_gives_the_port(cluster, tmp_path):
    file = tmp_path / "rmq-proxy.json"
    values = {
        "namesrvAddr": cluster.namesrv,
        "grpcServerPort": 0,
        "bindAddress": HOST,
        "remotingListenPort": -1,
    }
    file.write_text(json.dumps(values), encoding="utf-8")
    with kourou("proxy", "-c", str(file), "--metrics-port", "0") as server:
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        port = int(line.removeprefix(f"metrics on http://{HOST}:").removesuffix("/metrics\n"))
        assert get(port, "/health").status == 200

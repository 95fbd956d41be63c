"""NameServerMetrics: what a name server tells Prometheus. Java's tells nothing; these names are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.remoting.metrics import (
    CONNECTIONS,
    READY,
    REFUSALS,
    RPC_LATENCY,
    Family,
    MetricsServer,
    Page,
    RpcMeter,
    WatchConfig,
    parse_labels,
)

if TYPE_CHECKING:
    from kourou.namesrv.server import NameServer

NODE_TYPE = "nameserver"

CLUSTERS = Family("kourou_namesrv_clusters", "gauge", "Clusters that brokers have registered for.")
BROKERS = Family("kourou_namesrv_brokers", "gauge", "Names of brokers, of each a master and its slaves.")
ADDRESSES = Family("kourou_namesrv_broker_addresses", "gauge", "Brokers that live, masters and slaves.")
TOPICS = Family("kourou_namesrv_topics", "gauge", "Topics that brokers have registered.")
SLOW_REQUESTS = Family(
    "kourou_slow_requests_total", "counter", "Requests that took longer than slowRequestThresholdMs."
)

FAMILIES = (CLUSTERS, BROKERS, ADDRESSES, TOPICS, CONNECTIONS, SLOW_REQUESTS, REFUSALS, READY, RPC_LATENCY)


class NameServerMetrics:
    """The counters of a name server and its endpoint: `start`, `stop`."""

    def __init__(self, server: NameServer, config: WatchConfig) -> None:
        self._name_server = server
        self._config = config
        self._host = config.metrics_prom_exporter_host or server.config.bind_address
        self._labels = parse_labels(config.metrics_label)
        self.rpc = RpcMeter()
        self._server = MetricsServer(NODE_TYPE, self.page, self.missing)

    async def start(self) -> None:
        """Listen, as the name server does already."""
        await self._server.start(self._host, self._config.metrics_prom_exporter_port)

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    @property
    def address(self) -> str:
        """The same, with the host."""
        return f"{self._host}:{self._server.port}"

    def missing(self) -> list[str]:
        """Why the name server is not ready: it is as long as it listens."""
        return [] if self._name_server.port else ["the name server is starting or stopping"]

    async def page(self) -> Page:
        """All there is to tell now."""
        server = self._name_server
        page = Page({**self._labels, "node_type": NODE_TYPE, "node_id": self._node_id})
        sizes = server.routes.sizes()
        page.add_value(CLUSTERS, sizes["clusters"])
        page.add_value(BROKERS, sizes["brokers"])
        page.add_value(ADDRESSES, sizes["addresses"])
        page.add_value(TOPICS, sizes["topics"])
        page.add_value(CONNECTIONS, server.connections)
        page.add_value(SLOW_REQUESTS, 0 if server.watch is None else server.watch.slow_requests)
        page.add_rows(REFUSALS, [((name,), number) for name, number in server.refusals.counts.items()])
        page.add_value(READY, 0 if self.missing() else 1)
        page.add(RPC_LATENCY, self.rpc.histogram())
        return page

    @property
    def _node_id(self) -> str:
        return f"{self._name_server.config.bind_address}:{self._name_server.port}"

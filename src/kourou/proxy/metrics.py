"""ProxyMetrics: what a proxy tells Prometheus. `rocketmq_proxy_up` is Java's, and all that Java's tells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kourou.proxy.protocol import pb
from kourou.remoting.metrics import CONNECTIONS, READY, Family, Histogram, MetricsServer, Page, parse_labels

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

UP = Family("rocketmq_proxy_up", "gauge", "1 as long as the proxy serves.")
CLIENTS = Family("kourou_proxy_clients", "gauge", "Clients that are known by their settings.")
RECEIPTS = Family("kourou_proxy_receipts", "gauge", "Messages whose invisible time is renewed.")
CALL_LATENCY = Family(
    "kourou_proxy_call_latency_milliseconds",
    "histogram",
    "Time from a call to its answer; of a receive, with the time it waited.",
    ("call", "code"),
)
FAMILIES = (UP, READY, CONNECTIONS, CLIENTS, RECEIPTS, CALL_LATENCY)

_BOUNDS_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
_CODES = {value: name for name, value in vars(pb.Code).items()}
MAX_ROWS = len(pb.service.methods) * len(_CODES)  # calls times codes


class ProxyMetrics:
    """The counters of a proxy and its endpoint: `start`, `stop`."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._calls = Histogram(_BOUNDS_MS, MAX_ROWS)
        config = proxy.config
        self._host = config.metrics_prom_exporter_host or config.bind_address
        self._labels = {
            **parse_labels(config.metrics_label),
            "node_type": "proxy",
            "cluster": config.proxy_cluster_name,
            "node_id": config.proxy_name,
            "proxy_mode": "cluster",
        }
        self._server = MetricsServer(config.proxy_name, self.page, self.missing)

    async def start(self) -> None:
        """Listen."""
        await self._server.start(self._host, self._proxy.config.metrics_prom_exporter_port)

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

    def count(self, call: str, code: int, started: float) -> None:
        """A call was answered."""
        self._calls.observe((call, _CODES.get(code, str(code))), (time.perf_counter() - started) * 1000)

    def missing(self) -> list[str]:
        """Why the proxy is not ready; nothing where it is."""
        missing = self._proxy.cluster.missing
        return [] if missing is None else [missing]

    async def page(self) -> Page:
        """All there is to tell now."""
        proxy, page = self._proxy, Page(self._labels)
        page.add_value(UP, 1)
        page.add_value(READY, 0 if self.missing() else 1)
        page.add_value(CONNECTIONS, proxy.connections)
        page.add_value(CLIENTS, len(proxy.clients))
        page.add_value(RECEIPTS, len(proxy.receipts))
        page.add(CALL_LATENCY, self._calls)
        return page

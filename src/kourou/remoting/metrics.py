"""Metrics: what servers count, and how Prometheus gets it.

Counting is hot: it only adds to lists and dicts. They become Prometheus' text when somebody asks: the event
loop copies the values in small steps, and a worker makes the text.

    counted = Totals(limit=50_000)
    counted.add(("orders", "normal"), 1)
    page = Page({"cluster": "DefaultCluster"})
    page.add(MESSAGES_IN, counted)
    await MetricsServer(...)                 # GET /metrics

Labels may come from outside, so a metric has at most `limit` combinations of them. All further ones share
the label otel_metric_overflow, as in Java.
"""

from __future__ import annotations

import asyncio
import errno
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, NamedTuple

from kourou.errors import ConfigError
from kourou.java_config import convert_known
from kourou.remoting.connection import Answer
from kourou.remoting.http import HttpAnswer, HttpEndpoint
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.timing import HELD, ONEWAY, UNSENT

Labels = tuple[str, ...]
OVERFLOW: Labels = ()
OVERFLOW_LABEL = {"otel_metric_overflow": "true"}
MAX_RPC_ROWS = 2000  # request codes times response codes: unknown codes cannot fill more
MAX_PORT = 65535
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES_A_SLICE = 300  # of text, which take about a millisecond
SLICE_PAUSE_S = 0.0002


class MetricsExporterType(Enum):
    """Java's values of metricsExporterType; of these, DISABLE and PROM are served."""

    DISABLE = 0
    OTLP_GRPC = 1
    PROM = 2
    LOG = 3


def exports(kind: MetricsExporterType) -> bool:
    """Whether there is something to export. ConfigError for ways that there are only in Java."""
    if kind in (MetricsExporterType.OTLP_GRPC, MetricsExporterType.LOG):
        raise ConfigError(f"metricsExporterType={kind.name}: there is PROM, or DISABLE")
    return kind is MetricsExporterType.PROM


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """Keys that Java does not have: all of these for a name server, of a broker the last. They are taken
    from what a configuration has beside Java's keys, and shown where somebody set them."""

    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    metrics_prom_exporter_port: int = 5558  # not a broker's default: both may be on one machine
    metrics_prom_exporter_host: str = ""
    metrics_label: str = ""
    slow_request_threshold_ms: int = 1000  # requests above it are logged; 0 for none

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> WatchConfig:
        """The keys among others. ConfigError if a value is invalid."""
        return cls(**convert_known(cls, properties))


def parse_labels(text: str) -> dict[str, str]:
    """The labels of metricsLabel: `zone:a,rack:7`."""
    found = {}
    for item in filter(None, text.split(",")):
        name, colon, value = item.partition(":")
        if not colon or not name.isidentifier() or not name.isascii() or ":" in value:
            raise ConfigError(f"metricsLabel={text}: expected name:value, joined by ','")
        found[name] = value
    return found


# What is counted


class Family(NamedTuple):
    """One metric: its name, what it is, and the labels it has beside those of the whole server."""

    name: str
    kind: str  # gauge, counter or histogram
    help: str
    labels: tuple[str, ...] = ()


class Totals:
    """Sums by labels."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.rows: dict[Labels, int] = {}

    def add(self, labels: Labels, number: int) -> None:
        """Count so many more."""
        rows = self.rows
        if labels in rows:
            rows[labels] += number
        elif len(rows) < self._limit:
            rows[labels] = number
        else:
            rows[OVERFLOW] = rows.get(OVERFLOW, 0) + number


class Histogram:
    """Values by labels, in buckets: a row has the count of each bucket, of what is above, and the sum."""

    def __init__(self, bounds: tuple[float, ...], limit: int) -> None:
        self.bounds = bounds
        self._limit = limit
        self.rows: dict[Labels, list[float]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Count a value."""
        row = self.row(labels)
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value

    def row(self, labels: Labels) -> list[float]:
        """Where values count; hold on to it where it is hot."""
        row = self.rows.get(labels)
        if row is None:
            if len(self.rows) >= self._limit:
                labels = OVERFLOW
            row = self.rows.setdefault(labels, [0] * (len(self.bounds) + 2))
        return row


# Requests

RPC_LATENCY = Family(
    "rocketmq_rpc_latency_milliseconds",
    "histogram",
    "Time from a request to its answer; of a pull that was held, with the time it was.",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
)
_RPC_BOUNDS_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
_REQUEST_NAMES = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES = {int(code): code.name.lower() for code in ResponseCode}
_RESULTS = {0: "success", ONEWAY: "oneway", UNSENT: "write_channel_failed"}


OnAnswer = Callable[[RemotingCommand, int, float], None]  # request, response code, ms


class RpcMeter:
    """How long requests take, by request and response code."""

    def __init__(self, codes: Container[int] = (), on_answer: OnAnswer | None = None) -> None:
        self._rows: dict[tuple[int, int, int], list[float]] = {}
        self._codes = codes  # requests of which `on_answer` hears
        self._on_answer = on_answer

    def count(self, request: RemotingCommand, answer: Answer, elapsed_s: float, kind: int) -> None:
        """A request was answered. Hot."""
        request_code = request.code
        code = answer.code if answer.__class__ is RemotingCommand else 0
        elapsed_ms = elapsed_s * 1000
        row = self._rows.get((request_code, code, kind))
        if row is None:
            row = self._make_row((request_code, code, kind))
        row[bisect_left(_RPC_BOUNDS_MS, elapsed_ms)] += 1
        row[-1] += elapsed_ms
        if request_code in self._codes and self._on_answer is not None:
            self._on_answer(request, code, elapsed_ms)

    def _make_row(self, key: tuple[int, int, int]) -> list[float]:
        if len(self._rows) >= MAX_RPC_ROWS:
            key = (-1, -1, 0)
        return self._rows.setdefault(key, [0] * (len(_RPC_BOUNDS_MS) + 2))

    def histogram(self) -> Histogram:
        """What was counted until now, under Java's labels."""
        found = Histogram(_RPC_BOUNDS_MS, MAX_RPC_ROWS + 1)
        for (request, response, kind), row in self._rows.items():
            labels = OVERFLOW
            if request >= 0 or response >= 0:
                labels = (
                    "remoting",
                    _REQUEST_NAMES.get(request, str(request)),
                    _RESPONSE_NAMES.get(response, str(response)),
                    java_bool(bool(kind & HELD)),
                    _RESULTS[kind & ~HELD],
                )
            found.rows[labels] = row
        return found


REFUSALS = Family(
    "kourou_refusals_total",
    "counter",
    "Requests, connections and entries that were refused or closed because a budget was spent.",
    ("budget",),
)
CONNECTIONS = Family("kourou_connections", "gauge", "Connections of clients and other servers.")
READY = Family("kourou_ready", "gauge", "1 where /ready says yes.")


def java_bool(value: bool) -> str:
    """`true` or `false`."""
    return "true" if value else "false"


# What is told


class Page:
    """The metrics at one moment, in the order they were added. `labels` are those of the server."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._families: list[tuple[Family, tuple[float, ...], list[tuple[Labels, Any]]]] = []

    def add(self, family: Family, counted: Totals | Histogram) -> None:
        """What was counted."""
        if isinstance(counted, Histogram):
            rows = [(labels, list(row)) for labels, row in counted.rows.items()]
            self._families.append((family, counted.bounds, rows))
        else:
            self._families.append((family, (), list(counted.rows.items())))

    def add_rows(self, family: Family, rows: Iterable[tuple[Labels, float]]) -> None:
        """Values that were looked up."""
        self._families.append((family, (), list(rows)))

    def add_value(self, family: Family, value: float) -> None:
        """The value of a metric that has no labels of its own."""
        self._families.append((family, (), [((), value)]))

    def text(self) -> bytes:
        """Prometheus' text. Slow: for worker threads. It is made in slices, with a pause after each: a thread
        that computes on and on lets the event loop have its turn every 5 ms only."""
        from prometheus_client.exposition import generate_latest
        from prometheus_client.process_collector import ProcessCollector

        slices: list[bytes] = []
        for family, bounds, rows in self._families:
            step = max(LINES_A_SLICE // (len(bounds) + 3), 1)
            for start in range(0, max(len(rows), 1), step):
                metric = self._metric(family, bounds, rows[start : start + step])
                text = bytes(generate_latest(_Collected([metric])))
                slices.append(text if start == 0 else text.split(b"\n", 2)[2])  # HELP and TYPE come once
                time.sleep(SLICE_PAUSE_S)
        slices.append(bytes(generate_latest(_Collected(list(ProcessCollector(registry=None).collect())))))
        return b"".join(slices)

    def _metric(self, family: Family, bounds: tuple[float, ...], rows: list[tuple[Labels, Any]]) -> Any:
        from prometheus_client.core import Metric

        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        metric = Metric(name, family.help, family.kind)
        for values, value in rows:
            own = dict(zip(family.labels, values)) if len(values) == len(family.labels) else OVERFLOW_LABEL
            labels = {**self._labels, **own}
            if family.kind != "histogram":
                metric.add_sample(family.name, labels, value)
                continue
            count = 0
            for bound, number in zip((*map(str, bounds), "+Inf"), value):
                count += number
                metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{name}_count", labels, count)
            metric.add_sample(f"{name}_sum", labels, value[-1])
        return metric


class _Collected(NamedTuple):
    metrics: list[Any]

    def collect(self) -> list[Any]:
        """What a registry answers."""
        return self.metrics


class MetricsServer:
    """The endpoint of a server: /metrics, /health, /ready.

    `collect` gives the metrics, `missing` the reasons why the server is not ready: none if it is.
    """

    def __init__(
        self, node: str, collect: Callable[[], Awaitable[Page]], missing: Callable[[], list[str]]
    ) -> None:
        self._node = node
        self._collect = collect
        self._missing = missing
        self._started = time.monotonic()
        self._page: asyncio.Task[bytes] | None = None
        routes = {"/metrics": self._metrics, "/health": self._health, "/ready": self._ready}
        self._endpoint = HttpEndpoint(routes)
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; `port` says where, also if the system chose it."""
        if not 0 <= port <= MAX_PORT:
            raise ConfigError(f"metricsPromExporterPort={port}: a port is a number up to {MAX_PORT}")
        try:
            self.port = await self._endpoint.start(host, port)
        except OSError as error:
            reason = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise OSError(
                error.errno, f"metricsPromExporterPort={port}: cannot listen on {host}:{port}: {reason}"
            ) from error

    async def stop(self) -> None:
        """Stop listening."""
        if self._page is not None:
            self._page.cancel()  # first of all: what a request would ask may be closed next
            await asyncio.gather(self._page, return_exceptions=True)
        await self._endpoint.stop()

    async def _metrics(self) -> HttpAnswer:
        """All who ask while a page is made get the same."""
        if self._page is None or self._page.done():
            self._page = asyncio.get_running_loop().create_task(self._make_page())
        body = await asyncio.shield(self._page)
        return HttpAnswer(HTTPStatus.OK, body, TEXT_TYPE)

    async def _make_page(self) -> bytes:
        page = await self._collect()
        return await asyncio.get_running_loop().run_in_executor(None, page.text)

    async def _health(self) -> HttpAnswer:
        uptime_s = int(time.monotonic() - self._started)
        return HttpAnswer.of({"status": "UP", "node": self._node, "uptimeSeconds": uptime_s})

    async def _ready(self) -> HttpAnswer:
        missing = self._missing()
        if missing:
            value = {"ready": False, "node": self._node, "reasons": missing}
            return HttpAnswer.of(value, HTTPStatus.SERVICE_UNAVAILABLE)
        return HttpAnswer.of({"ready": True, "node": self._node})

"""PopMetrics: what is counted of POP (PopMetricsManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.broker.metrics import families
from kourou.remoting.metrics import Histogram, Page, Totals
from kourou.store.status import PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker

_SCAN_BOUNDS_MS = (1.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)


class PopMetrics:
    """The counters of POP."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._put, self._got, self._retried = Totals(limit), Totals(limit), Totals(limit)
        self._scans = Histogram(_SCAN_BOUNDS_MS, limit)

    def attach(self) -> None:
        """Listen to the parts of a broker whose store is open."""
        broker = self._broker
        broker.popper.on_put = self._count_put
        broker.revive.on_read, broker.revive.on_retry = self._count_read, self._count_retry
        broker.pop_buffer.on_look = self._count_look

    def _count_put(self, group: str, topic: str, kind: str, status: PutMessageStatus) -> None:
        self._put.add((group, topic, kind, status.name), 1)

    def _count_read(self, group: str, topic: str, kind: str, queue_id: int) -> None:
        self._got.add((group, topic, kind, str(queue_id)), 1)

    def _count_retry(self, group: str, topic: str, status: PutMessageStatus) -> None:
        self._retried.add((group, topic, status.name), 1)

    def _count_look(self, elapsed_ms: int) -> None:
        self._scans.observe((), elapsed_ms)

    def add(self, page: Page) -> None:
        """Tell all."""
        page.add(families.POP_SCAN_TIME, self._scans)
        page.add(families.POP_REVIVE_IN, self._put)
        page.add(families.POP_REVIVE_OUT, self._got)
        page.add(families.POP_RETRIES, self._retried)
        buffer, revive = self._broker.pop_buffer, self._broker.revive
        page.add_value(families.POP_OFFSETS, buffer.offset_count)
        page.add_value(families.POP_CHECK_POINTS, len(buffer))
        queues = range(self._broker.config.revive_queue_num)
        page.add_rows(families.POP_LAG, [((str(number),), revive.lag(number)) for number in queues])
        page.add_rows(
            families.POP_LATENCY, [((str(number),), revive.latency_ms(number)) for number in queues]
        )

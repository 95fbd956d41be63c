"""The table of metrics, of brokers, name servers and proxies."""

from __future__ import annotations

from collections.abc import Iterable

from kourou.broker.metrics import families as metrics_families
from kourou.namesrv import metrics as namesrv_metrics
from kourou.proxy import metrics as proxy_metrics
from kourou.remoting.metrics import Family
from reference.text import MADE, table

HEAD = f"""# Metrics

{MADE}
What they are for, the endpoint and its keys: [Metrics, health, slow requests](../metrics.md). All have the
labels `cluster`, `node_type` and `node_id`, and those of `metricsLabel`.
"""


def families(found: Iterable[Family]) -> str:
    """A table of metrics."""
    rows = [
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in sorted(found)
    ]
    return table(("metric", "type", "labels", "what it is"), rows)


def page() -> str:
    """The whole page."""
    return (
        f"{HEAD}\n## Of a broker\n\n{families(metrics_families.FAMILIES)}\n"
        f"\n## Of a name server\n\n{families(namesrv_metrics.FAMILIES)}\n"
        f"\n## Of a proxy\n\n{families(proxy_metrics.FAMILIES)}\n"
    )

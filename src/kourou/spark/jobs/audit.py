"""audit: what is wrong, odd or large in a store, a cluster or an archive.

Of a store first what `kourou store check` finds: CRCs, queues and index that do not agree with the log.
Then, of any input, by Spark: gaps in queues, repeats by UNIQ_KEY, store times that go back, bodies that
cannot be read, the time from born to stored, sizes and rates by topic and hour, the keys and hosts that come
most.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.spark.jobs.html_report import render
from kourou.spark.jobs.inputs import Input
from kourou.spark.places import local_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = [
    "topic", "brokerName", "queueId", "queueOffset", "uniqKey", "tags", "keys", "bornTimestamp",
    "storeTimestamp", "bornHost", "body", "storeHost", "bodyError",
]  # fmt: skip
TOP = 20
MOST_FINDINGS = 1000

_PERCENTILES = "percentile_approx(latency_ms, array(0.5, 0.9, 0.99, 1.0), 1000)"
_IN_QUEUE = "(PARTITION BY topic, storeHost, queueId ORDER BY queueOffset)"
_QUERIES = {
    "queues": """
        SELECT topic, storeHost AS broker, queueId AS queue, count(*) AS messages, min(queueOffset) AS first,
               max(queueOffset) AS last,
               max(queueOffset) - min(queueOffset) + 1 - count(DISTINCT queueOffset) AS missing
        FROM audited GROUP BY ALL ORDER BY ALL""",
    "gaps": f"""
        SELECT topic, broker, queue, before + 1 AS first, queueOffset - 1 AS last FROM (
            SELECT topic, storeHost AS broker, queueId AS queue, queueOffset,
                   lag(queueOffset) OVER {_IN_QUEUE} AS before
            FROM audited)
        WHERE queueOffset > before + 1 ORDER BY ALL LIMIT {MOST_FINDINGS}""",
    "repeats": f"""
        SELECT topic, uniqKey, count(*) AS times FROM audited
        WHERE uniqKey IS NOT NULL AND NOT startswith(topic, 'RMQ_SYS_')  -- a checked half is put again
        GROUP BY topic, uniqKey HAVING count(*) > 1
        ORDER BY times DESC, topic, uniqKey LIMIT {MOST_FINDINGS}""",
    "disorder": f"""
        SELECT topic, broker, queue, queueOffset AS offset, storeTimestamp AS time, before FROM (
            SELECT topic, storeHost AS broker, queueId AS queue, queueOffset, storeTimestamp,
                   lag(storeTimestamp) OVER {_IN_QUEUE} AS before
            FROM audited)
        WHERE storeTimestamp < before ORDER BY ALL LIMIT {MOST_FINDINGS}""",
    "bodies": f"""
        SELECT topic, storeHost AS broker, queueId AS queue, queueOffset AS offset, bodyError AS error
        FROM audited WHERE bodyError IS NOT NULL ORDER BY ALL LIMIT {MOST_FINDINGS}""",
    "latency": f"""
        SELECT topic, n AS messages, p[0] AS p50_ms, p[1] AS p90_ms, p[2] AS p99_ms, p[3] AS max_ms
        FROM (SELECT topic, count(*) AS n, {_PERCENTILES} AS p FROM audited GROUP BY topic) ORDER BY topic""",
    "rates": """
        SELECT topic, date_trunc('hour', storeTimestamp) AS hour, count(*) AS messages,
               sum(length(body)) AS bytes
        FROM audited GROUP BY ALL ORDER BY hour, topic""",
    "keys": f"""
        SELECT topic, key, count(*) AS messages FROM (SELECT topic, explode(keys) AS key FROM audited)
        GROUP BY ALL ORDER BY messages DESC, topic, key LIMIT {TOP}""",
    "hosts": f"""
        SELECT split(bornHost, ':')[0] AS host, count(*) AS messages FROM audited
        GROUP BY ALL ORDER BY messages DESC, host LIMIT {TOP}""",
}  # fmt: skip


@dataclass(slots=True)
class AuditReport:
    """What was found; each table is a list of rows."""

    source: str
    messages: int = 0
    body_bytes: int = 0
    first_time: str = ""
    last_time: str = ""
    findings: list[dict[str, Any]] = field(default_factory=list)  # of files, where there are any
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """How many things are wrong: damage, gaps, store times that go back, bodies that cannot be read.

        Repeats are not: they happen.
        """
        damage = sum(1 for finding in self.findings if finding["severity"] == "fault")
        return damage + sum(len(self.tables[name]) for name in ("gaps", "disorder", "bodies"))

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "faults": self.faults}, indent=2, default=str)

    def write(self, directory: str | Path) -> Path:
        """Write report.html and report.json; the path of the first."""
        folder = local_place(str(directory), "out")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(self.to_json(), encoding="utf-8")
        (folder / "report.html").write_text(render(json.loads(self.to_json())), encoding="utf-8")
        return folder / "report.html"


def audit(
    spark: SparkSession,
    source: str | Input,
    *,
    topics: Collection[str] | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> AuditReport:
    """Audit an input."""
    source = source if isinstance(source, Input) else Input.parse(source)
    report = AuditReport(source.text)
    if source.kind == "store" and topics is None:
        for path in source.paths:
            report.findings += _check_files(path, source.options.get("brokerConf"))
    frame = source.frame(spark, topics=topics, columns=COLUMNS, begin_ms=begin_ms, end_ms=end_ms)
    frame = frame.selectExpr("*", "unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS latency_ms")
    frame.createOrReplaceTempView("audited")
    try:
        total = spark.sql(
            "SELECT count(*) n, sum(length(body)) b, min(storeTimestamp) f, max(storeTimestamp) l"
            " FROM audited"
        ).collect()[0]
        report.messages, report.body_bytes = total.n, total.b or 0
        report.first_time, report.last_time = str(total.f or ""), str(total.l or "")
        for name, query in _QUERIES.items():
            report.tables[name] = [row.asDict() for row in spark.sql(query).collect()]
    finally:
        spark.catalog.dropTempView("audited")
    return report


def _check_files(path: str, config_file: str | None) -> list[dict[str, Any]]:
    from kourou.inspect.check.whole import check
    from kourou.inspect.directory import StoreDirectory
    from kourou.store.config import MessageStoreConfig

    found: list[dict[str, Any]] = []
    config = None if config_file is None else MessageStoreConfig.load(config_file)
    with StoreDirectory.open(path, config) as store:
        check(
            store,
            on_finding=lambda finding: found.append(
                {
                    "severity": finding.severity.value,
                    "kind": finding.kind,
                    "file": finding.file,
                    "position": finding.position,
                    "message": finding.message,
                }
            ),
            limit=MOST_FINDINGS,
        )
    return found


def stats(
    spark: SparkSession, source: str | Input, *, topics: Collection[str] | None = None, every: str = "hour"
) -> DataFrame:
    """Messages and bytes by topic and time: one row for each hour, or another unit of date_trunc."""
    source = source if isinstance(source, Input) else Input.parse(source)
    frame = source.frame(spark, topics=topics, columns=["topic", "storeTimestamp", "body"])
    unit = every.replace("'", "")
    return (
        frame.selectExpr("topic", f"date_trunc('{unit}', storeTimestamp) AS time", "length(body) AS size")
        .groupBy("time", "topic")
        .agg({"*": "count", "size": "sum"})
        .selectExpr("time", "topic", "`count(1)` AS messages", "`sum(size)` AS bytes")
        .orderBy("time", "topic")
    )

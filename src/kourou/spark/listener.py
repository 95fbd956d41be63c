"""commit_to_group: a consumer group in the brokers follows a stream, so that admin tools show its lag.

The option `commitGroup` does the same from inside the source, but Spark tells a source of a micro-batch
only when the next one is planned, and never of the last. This listener is told of each when it is done.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from kourou.spark.cluster import ClusterView
from kourou.spark.options import OptionError, Options
from kourou.spark.read.broker_road import CONNECTION_OPTIONS, name_servers, net_settings
from kourou.spark.read.stream import commit_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def commit_to_group(
    spark: SparkSession, namesrv: str, group: str, *, query: str | None = None, **options: str
) -> StreamingQueryListener:
    """Have a consumer group follow the streams of a session: all, or the one of this name.

    `options` are those of the connection. The listener is returned for `spark.streams.removeListener`.
    """
    read = Options({"namesrv": namesrv, **options}, CONNECTION_OPTIONS)
    listener = _Committer(ClusterView(name_servers(read), net_settings(read)), group, query)
    spark.streams.addListener(listener)
    return listener


class _Committer(StreamingQueryListener):
    def __init__(self, cluster: ClusterView, group: str, query: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._query = query

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is done yet."""

    def onQueryProgress(self, event: Any) -> None:
        """A micro-batch is done."""
        progress = event.progress
        if self._query not in (None, progress.name):
            return
        for source in progress.sources:
            try:
                end = json.loads(source.endOffset)
                commit_offsets(self._cluster, self._group, end)
            except (ValueError, TypeError, OptionError):
                continue  # a source of another kind

    def onQueryIdle(self, event: Any) -> None:
        """Nothing was to be done."""

    def onQueryTerminated(self, event: Any) -> None:
        """What was done has been committed."""

"""rebuild: consume queues and index of store directories from their logs, a task for each store.

What is written is what `kourou store rebuild` writes, byte for byte: it is the same code, on the machines
of the cluster, as many stores at once as there are tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kourou.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(
    spark: SparkSession, paths: Sequence[str], out: str, *, config_file: str | None = None
) -> list[dict[str, Any]]:
    """Make queues and index of each store, below `out` in a directory of its name; a report for each."""
    names = [os.path.basename(os.path.abspath(path)) for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError("stores of the same name would be written to the same directory")
    targets = [os.path.join(out, name) for name in names]

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from kourou.store.config import MessageStoreConfig
        from kourou.store.offline.directory import StoreDirectory
        from kourou.store.offline.rebuild import rebuild_into

        config = None if config_file is None else MessageStoreConfig.load(config_file)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with StoreDirectory.open(paths[number], config) as store:
                    report = rebuild_into(store, targets[number])
                yield pa.RecordBatch.from_arrays([pa.array([json.dumps(asdict(report))])], ["report"])

    rows = spark.range(0, len(paths), 1, len(paths)).mapInArrow(task, "report string").collect()
    return [json.loads(row.report) for row in rows]

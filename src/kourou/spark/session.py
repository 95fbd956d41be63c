"""session: a Spark session with the settings that pay for this data source."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kourou.spark.java import provide_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Needs atomic renames, which local disks and HDFS have: halves the time of a small micro-batch.
_LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

# Arrow's own checks of every access, which the columns of a batch do not need: a tenth of the JVM's work.
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

SETTINGS = {
    "spark.driver.extraJavaOptions": _ARROW,
    "spark.executor.extraJavaOptions": _ARROW,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def session(
    app_name: str = "kourou",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    push_filters: bool = False,
) -> SparkSession:
    """A Spark session, `local[*]` unless a master is named here or by the environment.

    `push_filters` lets the source take filters. Spark 4.3 keeps those of one query for the next over the same
    DataFrame or view, which is then answered wrongly: only for sessions where each is asked once.

    `conf` goes before the settings of this module. Workers use the interpreter that runs this. For
    checkpoints on an object store take the setting of the checkpoint manager away, with an empty text.
    """
    from pyspark.sql import SparkSession

    from kourou.spark import daemon  # not at the top: it runs as a program of its own

    if "SPARK_REMOTE" not in os.environ:
        provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None or "SPARK_REMOTE" not in os.environ:
        builder = builder.master(master or os.environ.get("MASTER") or "local[*]")
    settings = {**SETTINGS, "spark.python.daemon.module": daemon.__name__}
    if push_filters:
        settings[PUSH_DOWN] = "true"
    settings |= conf or {}
    for key, value in settings.items():
        if value:
            builder = builder.config(key, value)
    return builder.getOrCreate()

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
    # A driver that dies while it writes down its first micro-batch leaves a temporary file, for which Spark
    # would refuse the checkpoint ever after.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
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

    remote = os.environ.get("SPARK_REMOTE")
    if remote is None or remote.startswith("local"):
        provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None or remote is None:
        builder = builder.master(master or os.environ.get("MASTER") or "local[*]")
    settings = {**SETTINGS, "spark.python.daemon.module": daemon.__name__}
    settings[PUSH_DOWN] = str(push_filters).lower()  # said either way: a session of before may have set it
    settings |= conf or {}
    for key, value in settings.items():
        if value:
            builder = builder.config(key, value)
    return builder.getOrCreate()

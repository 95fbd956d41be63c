"""A Spark job as a process of its own: `python -m kourou.console.pipeline.child spark JOB …`.

It is the command `kourou`, and beside it tells on standard error how many tasks of Spark are done. It ends
with the console: when its standard input does, so does everything that it has started.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

PROGRESS = "\x1eprogress "  # before `DONE/ALL`, on a line of its own
LOOK_S = 0.3


def main() -> None:
    """Run the command of the arguments."""
    for work in (_end_with_the_console, _tell_progress):
        threading.Thread(target=work, name=work.__name__, daemon=True).start()
    sys.argv[0] = "kourou"
    runpy.run_module("kourou", run_name="__main__", alter_sys=True)


def _end_with_the_console() -> None:
    # Not through sys.stdin: a thread that waits in there keeps the interpreter from ending well.
    while os.read(0, 1024):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _tell_progress() -> None:
    context: Any = None
    while not hasattr(context, "_jsc"):  # which is what a status tracker needs
        time.sleep(LOOK_S)
        spark = sys.modules.get("pyspark")
        context = getattr(getattr(spark, "SparkContext", None), "_active_spark_context", None)
    from kourou.spark.jobs.progress import TaskWatch

    watch = TaskWatch(cast(Any, SimpleNamespace(sparkContext=context)))
    told = (0, 0)
    while True:
        try:
            now = watch.look()
        except Exception:
            return  # Spark has ended, in one of the many ways that it tells so
        if now != told:
            told = now
            sys.stderr.write(f"{PROGRESS}{now[0]}/{now[1]}\n")
            sys.stderr.flush()
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()

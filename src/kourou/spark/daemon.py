"""The process that Spark forks its Python workers from, with what they need imported and frozen.

A worker collects garbage after every task, which costs tens of milliseconds with large libraries loaded;
what is frozen before the fork is left out of that, and its memory is shared. `session` sets it
(`spark.python.daemon.module`).
"""

from __future__ import annotations

import os


def main() -> None:
    """Import, freeze, and do what pyspark.daemon does."""
    # A library that starts threads before the fork would leave the workers without them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from pyspark.daemon import manager

    import kourou.spark.read.store_read  # noqa: F401
    from kourou.spark.read.rows import settle

    settle()
    manager()


if __name__ == "__main__":
    main()

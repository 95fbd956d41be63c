"""How far the jobs of a Spark session are: tasks done of all tasks, as Spark's status tracker tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TaskWatch:
    """Counts tasks from the moment it is made. Stages are known when they begin, so what is to do grows."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._stages: dict[int, tuple[int, int]] = {}
        self._older = set(self._tracker.getActiveStageIds())

    def look(self) -> tuple[int, int]:
        """Tasks done, and all tasks of the stages that began so far."""
        active = set(self._tracker.getActiveStageIds()) - self._older
        for stage in active:
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = info.numCompletedTasks, info.numTasks
        for stage, (_, tasks) in self._stages.items():
            if stage not in active:  # it is done: Spark forgets in time what it was
                self._stages[stage] = tasks, tasks
        return sum(done for done, _ in self._stages.values()), sum(all_ for _, all_ in self._stages.values())

"""rebuild: consume queues and index of store directories from their logs, a task for each range of a log.

What is written is what `kourou store rebuild` writes, byte for byte. First tasks read ranges of the logs and
note entries and keys in files (`rebuild_scan`); then tasks lay down queues and files of the index
(`rebuild_lay`). The driver in between sees to it that the ranges fit together and that nothing is invented.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kourou.errors import ConfigError
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.rebuild import (
    RebuildReport,
    bad_property,
    batch_topics_of,
    cannot_be_placed,
    check_empty,
    config_for,
    keep_expired_queues,
    salvage_note,
    sync_tree,
    torn_note,
)
from kourou.spark.jobs.rebuild_lay import IndexWork, Laid, QueueWork, lay_index, lay_queue
from kourou.spark.jobs.rebuild_scan import LogRange, RangeReport, StoreJob, scan_range
from kourou.spark.places import local_place
from kourou.store.config import MessageStoreConfig
from kourou.store.index.index_file import file_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES = 64 * 1024 * 1024
# Tasks that lay down queues: several to a core, since queues differ in length.
_TASKS_PER_CORE = 4

_Work = tuple[StoreJob, QueueWork | IndexWork]


def rebuild(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    config_file: str | None = None,
    range_bytes: int = RANGE_BYTES,
) -> list[dict[str, Any]]:
    """Make queues and index of each store, below `out` in a directory of its name; a report for each.

    Workers must see the stores and `out`.
    """
    started = time.monotonic()
    names = [os.path.basename(os.path.abspath(path)) for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError("stores of the same name would be written to the same directory")
    config = None if config_file is None else MessageStoreConfig.load(config_file)
    stores = [
        _Store(path, str(local_place(out, "out") / name), config, range_bytes)
        for path, name in zip(paths, names)
    ]
    try:
        _scan(spark, stores)
        for store in stores:
            store.check()
        _lay(spark, stores)
        return [asdict(store.finish(started)) for store in stores]
    finally:
        for store in stores:
            store.close()


def _scan(spark: SparkSession, stores: list[_Store]) -> None:
    """Have all ranges scanned, and those again that turn out to begin elsewhere."""
    parts = [(number, part) for number, store in enumerate(stores) for part in store.ranges]
    while parts:
        jobs = [store.job for store in stores]
        work = [(jobs[number], part) for number, part in parts]
        found = spark.sparkContext.parallelize(work, len(work)).map(lambda item: scan_range(*item)).collect()
        for (number, part), report in zip(parts, found):
            stores[number].reports[part.number] = report
        misfits = [store.next_misfit() for store in stores]
        parts = [(number, misfit) for number, misfit in enumerate(misfits) if misfit is not None]


def _lay(spark: SparkSession, stores: list[_Store]) -> None:
    """Have queues and index files written."""
    work: list[tuple[int, QueueWork | IndexWork]] = []
    for number, store in enumerate(stores):
        work += [(number, file) for file in store.index_work()]
        work += [(number, queue) for queue in store.queue_work()]
    if not work:
        return
    jobs = [store.job for store in stores]
    context = spark.sparkContext
    tasks = min(len(work), max(context.defaultParallelism * _TASKS_PER_CORE, len(stores)))
    # The largest first, dealt out in turn: each task gets about as much as the others.
    hands = [[(jobs[number], item) for number, item in work[first::tasks]] for first in range(tasks)]
    laid = context.parallelize(hands, tasks).map(_lay_all).collect()
    for first, results in enumerate(laid):
        for (number, _), result in zip(work[first::tasks], results):
            stores[number].laid.append(result)


def _lay_all(work: list[_Work]) -> list[Laid]:
    return [
        lay_queue(job, item) if isinstance(item, QueueWork) else lay_index(job, item) for job, item in work
    ]


class _Store:
    """One store on its way, in the driver."""

    def __init__(self, path: str, out: str, config: MessageStoreConfig | None, range_bytes: int) -> None:
        self._store = StoreDirectory.open(path, config)
        check_empty(out)
        self.job = StoreJob(
            self._store.root, config, config_for(self._store, out), self._store.delay_levels,
            batch_topics_of(self._store), out, f"{out}/.rebuild-parts",
        )  # fmt: skip
        self.ranges = list(self._cut(range_bytes))
        self.reports: dict[int, RangeReport] = {}
        self.laid: list[Laid] = []
        self._notes: list[tuple[int, str]] = []  # with the offsets they speak of
        os.makedirs(self.job.scratch, exist_ok=True)

    def _cut(self, range_bytes: int) -> Iterator[LogRange]:
        numbers = itertools.count()
        for file in self._store.log_files:
            # Behind its data a file is zero: the last range has it all.
            used = max(self._store.data_end(file.path), 1)
            starts = range(0, used, range_bytes)
            for start in starts:
                end = file.size if start == starts[-1] else start + range_bytes
                yield LogRange(next(numbers), file.base, start, end, None if start else 0)

    def next_misfit(self) -> LogRange | None:
        """The first range that did not begin where the one before it stopped; None where all fit.

        Ranges that another one runs over have no report any more.
        """
        at, base = 0, -1
        for part in self.ranges:
            if part.base != base:
                at, base = 0, part.base
            if at >= part.end:
                self.reports.pop(part.number, None)
                continue
            report = self.reports[part.number]
            if report.begin != at:
                return dataclasses.replace(part, begin=at)
            at = report.stop
        return None

    def _in_order(self) -> list[tuple[LogRange, RangeReport]]:
        return [
            (part, self.reports[part.number])
            for part in self.ranges
            if part.number in self.reports and self.reports[part.number].begin >= 0
        ]

    @property
    def _log_end(self) -> int:
        """Where the last whole record ends; what is damaged behind it is a torn tail."""
        return max((report.last_end for _, report in self._in_order()), default=-1)

    def check(self) -> None:
        """Refuse a log with damage that cannot be placed; note the rest."""
        end, torn = self._log_end, None
        for _, report in self._in_order():
            for damage in report.damages:
                if damage.place >= end:
                    torn = torn or (None if damage.is_empty else damage)
                elif damage.is_salvaged:
                    self._notes.append((damage.place, salvage_note(damage.place, damage.reason)))
                else:
                    raise cannot_be_placed(damage.place, damage.reason, damage.resume)
            if 0 <= report.bad_property < end:
                raise bad_property(report.bad_property)
        if torn is not None:
            self._notes.append((end, torn_note(torn.place, torn.reason)))

    def queue_work(self) -> list[QueueWork]:
        """The queues to lay down, the longest first."""
        slices: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        deletions: dict[str, int] = {}
        for part, report in self._in_order():
            deletions |= {topic: place for topic, place in report.deletions.items() if place < self._log_end}
            for own in report.queues:
                slices.setdefault((own.topic, own.queue_id), []).append((part.number, own.start, own.count))
        work = [
            QueueWork(*key, tuple(parts), deletions.get(key[0], 0), self._log_end)
            for key, parts in slices.items()
        ]
        return sorted(work, key=lambda item: -item.entries)

    def index_work(self) -> list[IndexWork]:
        """The files of the index to lay down."""
        room = self.job.config.max_index_num - 1  # the first place of a file is never used
        stamp_ms = time.time_ns() // 1_000_000
        work: list[IndexWork] = []
        slices: list[tuple[int, int, int]] = []
        used, last, before = 0, None, None
        for number, count in self._key_counts():
            first = 0
            while first < count:
                if used == room:
                    work.append(IndexWork(file_name(stamp_ms + len(work)), tuple(slices), before))
                    used, slices, before = 0, [], last
                fitting = min(room - used, count - first)
                slices.append((number, first, fitting))
                used, first = used + fitting, first + fitting
                last = (number, first - 1)
        if slices:
            work.append(IndexWork(file_name(stamp_ms + len(work)), tuple(slices), before))
        return work

    def _key_counts(self) -> Iterator[tuple[int, int]]:
        """(range, keys that count) in order."""
        for part, report, is_last in self._with_last():
            yield part.number, report.sure_keys if is_last else report.keys

    def _with_last(self) -> Iterator[tuple[LogRange, RangeReport, bool]]:
        """Each range, and whether no whole record comes behind those it has."""
        end, is_last = self._log_end, False
        for part, report in self._in_order():
            is_last = is_last or report.last_end == end
            yield part, report, is_last

    def finish(self, started: float) -> RebuildReport:
        """Keep what the log does not know any more, bring all to the disk, and report."""
        out = self.job.out
        report = RebuildReport(out)
        shutil.rmtree(self.job.scratch)
        for _, found, is_last in self._with_last():
            report.records += found.sure_records if is_last else found.records
        built = {laid.queue: laid for laid in self.laid if laid.queue is not None}
        report.queues = len(built)
        index = [laid for laid in self.laid if laid.index_entries]
        report.index_files = len(index)
        report.index_entries = sum(laid.index_entries for laid in index)
        notes = sorted([*self._notes, *(note for laid in self.laid for note in laid.notes)])
        report.notes = [text for _, text in notes]
        report.notes += keep_expired_queues(
            self._store, out, lambda topic, number: built.get((topic, number))
        )
        sync_tree(out)
        report.seconds = time.monotonic() - started
        return report

    def close(self) -> None:
        """Let go of the store, and of what a failed rebuild has noted."""
        shutil.rmtree(self.job.scratch, ignore_errors=True)
        self._store.close()

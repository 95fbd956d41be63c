"""Consume queues and index made anew from the log, in place or in another directory.

Records take the way that they take in a recovery (bulk_dispatch.py), so what comes out is what the store
would have written. Nothing is invented: a log that is damaged before its end is refused where the
damaged record cannot be placed, and a queue of which no record is left in the log keeps its files,
because only they know its offsets.

In place: all is built in <root>/.rebuild-<time> under the lock of the store, brought to the disk, and then
each directory trades places with its new one in one step of the file system. A crash before leaves the
old, a crash between leaves queues of one and index of the other, which both fit the log.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from kourou.clock import SystemClock
from kourou.errors import ConfigError, StoreDamagedError, StoreError
from kourou.files import sync_dir
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.log_scan import Break, Stretch, walk
from kourou.message.scan import records as scan
from kourou.store.bulk_dispatch import BulkDispatcher
from kourou.store.checkpoint import StoreCheckpoint
from kourou.store.config import MessageStoreConfig
from kourou.store.index.index_file import IndexService
from kourou.store.queue.queue_store import AnyQueue, ConsumeQueueStore

FOLDERS = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index")

Progress = Callable[[int], None]  # bytes of the log done since the last call

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(slots=True)
class RebuildReport:
    """What was made."""

    path: str = ""  # where queues and index lie now
    records: int = 0
    queues: int = 0
    index_files: int = 0
    index_entries: int = 0
    backups: list[str] = field(default_factory=list)  # what lay there before
    notes: list[str] = field(default_factory=list)  # what a reader of the result should know
    seconds: float = 0.0


def rebuild_into(store: StoreDirectory, out: str, *, progress: Progress | None = None) -> RebuildReport:
    """Make queues and index in another directory, which must be empty or not there yet."""
    out = os.path.abspath(out)
    check_empty(out)
    return _Builder(store, out, progress).build()


def check_empty(out: str) -> None:
    """Refuse a directory that has something in it already."""
    if os.path.exists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise StoreError(f"{out} is not empty: name a directory that is empty or not there yet")


def rebuild_in_place(
    store: StoreDirectory, *, backup: bool = True, progress: Progress | None = None
) -> RebuildReport:
    """Replace queues and index. Raises StoreLockedError if a process has the store open."""
    lock = store.disk.lock(f"{store.root}/lock")
    try:
        for name in os.listdir(store.root):
            if name.startswith(".rebuild-"):  # of a rebuild that was killed: the lock says that none runs
                shutil.rmtree(f"{store.root}/{name}")
        stamp = f"{datetime.now():%Y%m%d%H%M%S}"
        workshop = f"{store.root}/.rebuild-{stamp}"
        try:
            report = _Builder(store, workshop, progress).build()
            report.backups = _swap_all(store.root, workshop, stamp)
            _note_complete_index(store)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
        if not backup:
            for path in report.backups:
                shutil.rmtree(path)
            report.backups = []
    finally:
        lock.release()
    report.path = store.root
    return report


class _Builder:
    """Makes the queues and the index of a log below a directory."""

    def __init__(self, store: StoreDirectory, out: str, progress: Progress | None) -> None:
        self._store = store
        self._out = out
        self._progress = progress or (lambda done: None)
        config = config_for(store, out)
        self._queues = ConsumeQueueStore(store.disk, config, batch_topics_of(store).__contains__)
        self._index = IndexService(store.disk, out, config, SystemClock())
        self._bulk = BulkDispatcher(self._queues, self._index, config, None, store.delay_levels)
        self._report = RebuildReport(out)
        self._notes: list[tuple[int, str]] = []  # with the offset that each speaks of

    def build(self) -> RebuildReport:
        started = time.monotonic()
        report = self._report
        self._store.disk.make_dirs(self._out)
        try:
            self._read_log()
            self._notes += [
                (queue.began_at, anew_note(queue)) for queue in self._queues if queue.began_at >= 0
            ]
            report.notes = [text for _, text in sorted(self._notes)]
            report.notes += keep_expired_queues(self._store, self._out, self._queues.get)
            self._index.write_pending()
            self._queues.flush(0)
            self._index.flush()
            report.queues = sum(1 for _ in self._queues)
            report.index_files = len(self._index.files)
            report.index_entries = sum(file.count - 1 for file in self._index.files)
        finally:
            self._queues.close()
            self._index.close()
        sync_tree(self._out)
        report.seconds = time.monotonic() - started
        return report

    def _read_log(self) -> None:
        """Dispatch the records up to the end of the log."""
        pending: list[Break] = []
        for part in walk(self._store):
            if isinstance(part, Stretch):
                for broken in pending:
                    self._salvage(broken)
                pending.clear()
                self._dispatch(part)
                self._progress(part.end - part.begin)
            elif isinstance(part, Break):
                pending.append(part)
        torn = next((broken for broken in pending if not broken.empty), None)
        if torn is not None:
            place = torn.file.base + torn.position
            self._notes.append((place, torn_note(place, torn.reason)))

    def _salvage(self, broken: Break) -> None:
        place = broken.file.base + broken.position
        stretch = salvage(self._store, broken)
        if stretch is None:
            raise cannot_be_placed(place, broken.reason, broken.file.base + broken.resume)
        self._dispatch(stretch)
        self._notes.append((place, salvage_note(place, broken.reason)))

    def _dispatch(self, stretch: Stretch) -> None:
        done = self._bulk.dispatch_records(stretch.view, stretch.records)
        self._report.records += done
        if done < len(stretch.records):
            raise bad_property(stretch.file.base + int(stretch.records.positions[done]))


# What a rebuild on many machines has in common with this one


def config_for(store: StoreDirectory, out: str) -> MessageStoreConfig:
    """The configuration to write queues and index of a store with."""
    if store.index_size_problem is not None:
        raise ConfigError(store.index_size_problem)
    config = dataclasses.replace(
        store.config, store_path_root_dir=out, store_path_commit_log=store.config.store_path_commit_log
    )
    if store.inferred:
        # A record that names its offsets in light queues was written by a broker that had them.
        config = dataclasses.replace(config, enable_lmq=True, enable_multi_dispatch=True)
    return config


def batch_topics_of(store: StoreDirectory) -> set[str]:
    """The topics whose queues are batch queues."""
    return {queue.topic for queue in store.queues if queue.batch} | store.batch_topic_names


def salvage(store: StoreDirectory, broken: Break) -> Stretch | None:
    """A record that is damaged, but of which all but the body tells its place: its entry stays right."""
    view = store.view(broken.file.path)
    found = scan.find_records(view, broken.position, broken.position + 1, base_offset=broken.file.base)
    records, _ = scan.read_records(view, found)
    if len(records) != 1 or found.stop.position != broken.resume:
        return None
    return Stretch(broken.file, view, records)


def keep_expired_queues(
    store: StoreDirectory, out: str, built: Callable[[str, int], object | None]
) -> list[str]:
    """Copy the queues of which no record is left in the log, for their offsets; a note for each.

    built: the queue that was made of the log, None if none was.
    """
    notes = []
    for queue in store.queues:
        if built(queue.topic, queue.queue_id) is not None or queue.end == 0:
            continue
        entry = queue.entry(queue.end - 1)
        if entry is not None and 0 <= int(entry["offset"]) < store.min_offset:
            shutil.copytree(queue.path, f"{out}/{store.relative(queue.path)}")
            notes.append(f"queue {queue} is kept as it was: no record of it is left in the log")
    return notes


def cannot_be_placed(place: int, reason: str, end: int) -> StoreDamagedError:
    """The error for damage in the middle of the log."""
    return StoreDamagedError(
        f"the log is damaged at {place} ({reason}) and goes on at {end}: what lay between"
        " cannot be placed, and the queues behind it would be wrong"
    )


def bad_property(place: int) -> StoreDamagedError:
    """The error for a record that cannot be dispatched."""
    return StoreDamagedError(f"the record at {place} has a property that must be a number and is none")


def salvage_note(place: int, reason: str) -> str:
    """What is said of a damaged record that has its entry."""
    return f"the record at {place} is damaged ({reason}) and has its entry"


def torn_note(place: int, reason: str) -> str:
    """What is said of a log that does not end well."""
    return f"the log ends at {place} with a torn tail ({reason}), which has no entries now"


def anew_note(queue: AnyQueue) -> str:
    """What is said of a queue whose older records belong to nobody, though the log does not say it."""
    return f"queue {queue} begins anew at {queue.began_at}: its topic was deleted once"


def sync_tree(root: str) -> None:
    """Bring the names of a whole directory to the disk."""
    for folder, _, _ in os.walk(root):
        sync_dir(folder)


# Into place


def _swap_all(root: str, workshop: str, stamp: str) -> list[str]:
    backups = []
    for folder in FOLDERS:
        new, place, backup = f"{workshop}/{folder}", f"{root}/{folder}", f"{root}/{folder}.bak-{stamp}"
        if not os.path.isdir(place):
            if os.path.isdir(new):
                os.rename(new, place)
            continue
        if not os.path.isdir(new):
            os.rename(place, backup)
        elif _exchange(new, place):
            os.rename(new, backup)
        else:
            # A crash between these two leaves no such directory: the next start makes it from the log.
            os.rename(place, backup)
            os.rename(new, place)
        backups.append(backup)
    sync_dir(root)
    return backups


def _note_complete_index(store: StoreDirectory) -> None:
    if store.lacks_keys:
        checkpoint = StoreCheckpoint(store.disk, f"{store.root}/checkpoint")
        checkpoint.index_offset = 0
        checkpoint.flush()
        checkpoint.close()


def _exchange(one: str, other: str) -> bool:
    """Swap two directories atomically. Returns False if the system cannot."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    arguments = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    return bool(function(*arguments) == 0)

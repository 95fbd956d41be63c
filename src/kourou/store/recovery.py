"""Recovery: what is in the log is what counts; queues are made to agree with it, and the index afterwards.

After a clean stop (no abort file) the log is read from the last file that its queues reach into; after a
crash from the file that the checkpoint vouches for, at most `commitLogRecoverMaxNum` files back
(seed 001; CommitLog.recoverNormally, recoverAbnormally). Records are checked one by one: magic, sizes,
CRC, and that each lies where it says. The first that fails ends the log.

Beyond Java: what is cut and is not empty is kept in <root>/cut, and its place in the log is zeroed, so
that it cannot come back after another crash; keys that Java would leave out of the index are indexed, while
the broker serves already (index_catch_up.py).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kourou.message.codec import BLANK_MAGIC, SIZE_AND_MAGIC
from kourou.store.bulk_dispatch import BulkDispatcher
from kourou.store.dispatch import DispatchRequest, check_record
from kourou.store.queue.batch_consume_queue import BatchConsumeQueue
from kourou.store.queue.queue_store import QUEUE_FOLDERS

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery found and did."""

    clean: bool  # the last stop was a clean one
    start_offset: int = 0
    end_offset: int = 0
    records: int = 0
    index_offset: int = 0  # from there on records may lack their keys
    reason: str = ""  # why the log ends where it ends
    cut_bytes: int = 0  # bytes behind the end that were not empty
    cut_files: list[str] = field(default_factory=list)  # log files removed behind the end
    kept: list[str] = field(default_factory=list)  # where what was cut is kept
    dropped_queue_entries: dict[str, int] = field(default_factory=dict)
    dropped_index_files: list[str] = field(default_factory=list)

    def log(self, log: logging.Logger) -> None:
        """Say it."""
        log.info(
            "recovered after a %s: %d records checked from %d, log ends at %d (%s)",
            "clean stop" if self.clean else "crash",
            self.records, self.start_offset, self.end_offset, self.reason,
        )  # fmt: skip
        if self.cut_bytes:
            log.warning(
                "cut %d bytes at %d; kept in %s", self.cut_bytes, self.end_offset, ", ".join(self.kept)
            )
        for queue, count in self.dropped_queue_entries.items():
            log.warning("dropped %d entries of queue %s that pointed behind the log", count, queue)
        for path in self.dropped_index_files:
            log.info("dropped index file %s: its messages are indexed anew", path)


def recover(store: MessageStore, last_exit_ok: bool) -> RecoveryReport:
    """Bring log and queues into agreement; how far the index agrees with them is in the report."""
    report = RecoveryReport(last_exit_ok)
    store.queues.recover(clear=not last_exit_ok)
    files = store.commit_log.files
    if files.files:
        if not last_exit_ok:
            # A process that was killed may have written what the disk does not have yet. Queues are removed
            # by what the log says of deleted topics, and whatever is acknowledged from now on lies after it
            # and would be lost with it.
            for file in files.files:
                file.mapping.sync()
        _recover_log(store, report)
    else:
        report.reason = "there is no log"
        _put_queues_aside(store, report)
        files.flushed_where = files.committed_where = 0
    if store.index.files:
        store.index.files[-1].forget_behind(report.end_offset)
    report.index_offset = max(report.index_offset, store.index.end_offset)
    store.queues.recover_offset_table(store.commit_log.min_offset)
    return report


def _put_queues_aside(store: MessageStore, report: RecoveryReport) -> None:
    """Without a log, queues point nowhere. They are kept: the log may only be on a disk that is not there."""
    if not any(queue.files.files for queue in store.queues):
        return
    store.queues.close()
    stamp = store.clock.now_ms()
    for folder in QUEUE_FOLDERS:
        if store.disk.is_dir(f"{store.root}/{folder}"):
            kept = f"{store.root}/{folder}.bak-{stamp}"
            store.disk.rename(f"{store.root}/{folder}", kept)
            report.kept.append(kept)
    report.reason += ", but there were queues: is the disk of the log there? They are kept"


def _recover_log(store: MessageStore, report: RecoveryReport) -> None:
    files = store.commit_log.files
    reached = store.queues.max_physic_offset
    # A batch queue knows where its last record begins, the others where theirs ends.
    undispatched = reached + any(
        queue.max_physic_offset == reached and isinstance(queue, BatchConsumeQueue) for queue in store.queues
    )
    if report.clean:
        report.index_offset = store.checkpoint.index_offset or undispatched
    first = _first_file(store, report.clean, reached)
    report.start_offset = files.files[first].base
    bulk = BulkDispatcher(
        store.queues, store.index, store.config, store.checkpoint, store.dispatcher.delay_levels
    )
    if not report.clean:
        # Entries that were not on the disk for sure may have holes, and whole files of them may be missing.
        store.queues.truncate_dirty(report.start_offset)
    last_valid = report.start_offset
    end = report.start_offset
    queues_from = undispatched if report.clean else 0
    for file in files.files[first:]:
        ended = bulk.dispatch_file(file, queues_from=queues_from, check_crc=store.config.check_crc_on_recover)
        report.records += ended.records
        report.reason = ended.reason
        end = file.base + ended.position
        last_valid = ended.last_offset if ended.records else last_valid
        if not ended.rolled:
            break
    if not report.clean:
        store.queues.flush(0)
    report.end_offset = end
    store.checkpoint.confirm_phy_offset = last_valid
    report.dropped_queue_entries = store.queues.truncate_dirty(end)
    _cut(store, end, report)


def _first_file(store: MessageStore, clean: bool, reached: int) -> int:
    """The file to begin with: the last one whose first record the queues, or the checkpoint, know."""
    files, config, checkpoint = store.commit_log.files.files, store.config, store.checkpoint
    most = config.commit_log_recover_max_num if config.commit_log_recover_max_num > 0 else 10
    for number in range(len(files) - 1, -1, -1):
        most -= 1
        if most <= 0 or (clean and number == 0):
            return number
        first = check_record(
            files[number].view, 0, files[number].size, check_crc=config.check_crc_on_recover,
            verify_property_crc=config.force_verify_prop_crc, delay_levels=store.dispatcher.delay_levels,
        )  # fmt: skip
        if not isinstance(first, DispatchRequest) or first.store_timestamp == 0:
            continue
        if clean:
            known = first.physical_offset <= reached
        elif checkpoint.logics_physical_offset > 0:
            known = first.physical_offset <= checkpoint.logics_physical_offset
        else:
            # Java takes the same millisecond for known; records of it may have no entries yet.
            known = first.store_timestamp < checkpoint.logics_msg_timestamp
        if known:
            return number
    return 0


def _cut(store: MessageStore, end: int, report: RecoveryReport) -> None:
    """End the log at `end`: keep a copy of what lies behind, if anything does, and zero its place."""
    files = store.commit_log.files
    for file in files.files:
        if file.base + file.size <= end:
            continue
        start = max(end - file.base, 0)
        dirty = file.dirty_end(start)
        if file.view[start:dirty] == SIZE_AND_MAGIC.pack(file.size - start, BLANK_MAGIC):
            file.set_position(start)
            file.clear_tail()  # the end of a file that nothing followed
        elif dirty > start:
            kept = f"{store.root}/cut/{file.base + start:020d}-{store.clock.now_ms()}"
            store.disk.make_dirs(f"{store.root}/cut")
            store.disk.write(kept, bytes(file.view[start:dirty]))
            report.kept.append(kept)
            report.cut_bytes += dirty - start
    files.flushed_where = files.committed_where = end
    report.cut_files = [file.path for file in files.truncate(end)]
    last = files.last()
    if last is not None and report.cut_bytes:
        last.clear_tail()

"""Retention: which log files are deleted, when, and the queues and index files behind them.

Every `cleanResourceInterval` (DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService):

- In the hour of `deleteWhen`, with the disk above `diskMaxUsedSpaceRatio`, or asked by hand: files untouched
  for `fileReservedTime` hours.
- With the disk above `diskSpaceCleanForciblyRatio`: the oldest files, whatever their age
  (`cleanFileForciblyEnable`).
- With the disk above `diskSpaceWarningLevelRatio`: the same, and no message is taken until it is below
  `diskSpaceCleanForciblyRatio` again.

At most `deleteFileBatchMax` files a round, never the last one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kourou.store.log.mapped_file import MappedFile
    from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

MANUAL_ROUNDS = 20  # a deletion asked for by hand is tried so many rounds
DISK_FULL = "the disk is nearly full"


@dataclass(frozen=True, slots=True)
class DiskState:
    """How full the disk is, by the configured steps."""

    ratio: float
    reclaim: bool  # delete what has expired
    forcibly: bool  # delete what has not
    full: bool  # take no messages


class Retention:
    """Deletes what has had its time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._manual_rounds = 0
        self._last_redelete_ms = 0
        self._last_min_offset = 0

    def delete_now(self) -> None:
        """Ask for a deletion of what has expired, whatever the hour."""
        self._manual_rounds = MANUAL_ROUNDS

    def run_once(self) -> None:
        """One round."""
        self.delete_log_files()
        self.retry_hanged_file()
        self.delete_queue_and_index_files()

    def disk_state(self) -> DiskState:
        """How full the disks of log and queues are."""
        store, config = self._store, self._store.config
        forcibly_at = min(max(config.disk_space_clean_forcibly_ratio / 100, 0.30), 0.85)
        full_at = min(max(config.disk_space_warning_level_ratio / 100, 0.35), 0.90)
        ratios = {path: store.disk.used_ratio(path) for path in config.commit_log_directories}
        store.commit_log.files.full_directories = {
            path for path, ratio in ratios.items() if ratio > forcibly_at
        }
        # The emptiest of several log disks still takes messages; the queues have only theirs.
        ratio = max(min(ratios.values()), store.disk.used_ratio(store.root))
        return DiskState(
            ratio, ratio > config.disk_max_used_space_ratio / 100, ratio > forcibly_at, ratio > full_at
        )

    def delete_log_files(self) -> int:
        """Delete log files that are due; how many."""
        store, config = self._store, self._store.config
        store.look_at_clock()
        state = self.disk_state()
        if state.full and store.refusal is None:
            log.error("%s (%.0f %%): no message is taken until there is room", DISK_FULL, state.ratio * 100)
            store.refusal = DISK_FULL
        elif not state.forcibly and store.refusal == DISK_FULL:
            log.info("the disk has room again (%.0f %%)", state.ratio * 100)
            store.refusal = None
        manual = self._manual_rounds > 0
        if not (manual or state.reclaim or self._is_hour_of_deletion()):
            return 0
        self._manual_rounds -= manual
        at_once = state.forcibly and config.clean_file_forcibly_enable
        due, files = [], store.commit_log.files.files
        for number, file in enumerate(files[:-1]):
            if not at_once and self._age_ms(files[number:], manual) < config.file_reserved_time * 3_600_000:
                break
            due.append(file)
            if len(due) >= config.delete_file_batch_max:
                break
        count = 0
        for number, file in enumerate(due):
            if number:
                time.sleep(config.delete_commit_log_files_interval / 1000)
            if store.commit_log.files.remove_files([file]) == 0:
                break
            log.info("deleted %s%s", file.path, " before its time: the disk is full" if at_once else "")
            count += 1
        if state.reclaim and count == 0:
            log.warning("the disk is %.0f %% full and no log file could be deleted", state.ratio * 100)
        return count

    def _age_ms(self, files: Sequence[MappedFile], manual: bool) -> int:
        """How long ago the first of these files was written, whichever way the clock was set since.

        The file tells it, and the record after it: the later one counts, for times of files are lost in
        copies. One that is still to come is of a clock that was ahead, which nobody noted, and counts for
        nothing; a file that has no other is as old as the next one.

        What only the clock of a machine that was off says counts when an operator asks, or when nobody
        corrects it while the machine runs for fileReservedTime.
        """
        store, steps = self._store, self._store.clock_steps
        for file in files[:-1]:
            end = file.base + file.size
            modified_ms = store.disk.modified_ms(file.path)
            today_ms = steps.today(modified_ms, end - 1)
            if today_ms < modified_ms <= steps.now_ms:
                today_ms = modified_ms  # it may have been copied since: rather too long than lost
            record = store.commit_log.message_at(end)
            stored_ms = 0 if record is None else store.commit_log.pickup_store_timestamp(end, len(record))
            known = [ms for ms in (today_ms, steps.today(stored_ms, end)) if ms <= steps.now_ms]
            if known:
                return steps.now_ms - max(known) - (0 if manual else steps.gap_ms(end))
        return 0

    def _is_hour_of_deletion(self) -> bool:
        hour = time.localtime(self._store.clock.now_ms() / 1000).tm_hour
        return any(int(when) == hour for when in self._store.config.delete_when.split(";"))

    def retry_hanged_file(self) -> bool:
        """Try again to delete a file that the disk refused to delete."""
        store = self._store
        now = store.clock.elapsed_ms()
        if now - self._last_redelete_ms < store.config.redelete_hanged_file_interval:
            return False
        self._last_redelete_ms = now
        files = store.commit_log.files
        if files.files and not files.files[0].available:
            return files.remove_files(files.files[:1]) == 1
        return False

    def delete_queue_and_index_files(self) -> int:
        """Delete the files of queues and index that point only to records that are gone; how many."""
        store = self._store
        min_offset = store.commit_log.min_offset
        if min_offset <= self._last_min_offset:
            return 0
        self._last_min_offset = min_offset
        return store.queues.delete_expired(min_offset) + store.index.delete_expired(min_offset)

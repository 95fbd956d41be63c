"""TimerStore: wheel, timer log and checkpoint as one. What is due is entered here and found here; who puts it
where when its time comes is the broker's part (broker/services/timer/service.py).

One thread owns it; `flush` alone is for a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kourou.store.config import MessageStoreConfig
from kourou.store.log.disk import Disk
from kourou.store.timer.files import DELETE, TimerCheckpoint, TimerUnit
from kourou.store.timer.log import TimerLog, TimerRecovery, recover_timers
from kourou.store.timer.wheel import TimerCheckpointFile, TimerWheel

log = logging.getLogger(__name__)


class TimerStore:
    """The files of the timers, open for writing."""

    def __init__(self, disk: Disk, config: MessageStoreConfig) -> None:
        root = config.store_path_root_dir
        self.precision_ms = config.timer_precision_ms
        self.wheel = TimerWheel(disk, f"{root}/timerwheel", self.precision_ms)
        self.log = TimerLog(disk, f"{root}/timerlog", config.mapped_file_size_timer_log)
        self._checkpoint = TimerCheckpointFile(disk, f"{root}/config/timercheck")
        # With timerWheelSnapshotFlush, Java keeps the wheel in such files and leaves the plain one as it was.
        self._has_snapshots = any(
            name.startswith("timerwheel.") and name[11:].isdecimal() for name in disk.list(root)
        )

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """The checkpoint in its file."""
        return self._checkpoint.value

    def recover(self) -> TimerRecovery:
        """Make wheel and log agree."""
        return recover_timers(self.wheel, self.log, self.checkpoint, rebuild=self._has_snapshots)

    def append(
        self,
        due_ms: int,
        magic: int,
        enqueue_ms: int,
        physical_offset: int,
        record_size: int,
        topic_hash: int,
    ) -> bool:
        """Enter a record; whether it is the first of its slot. DiskFullError changes nothing."""
        self.wheel.reserve(due_ms)  # before the log: a unit that no slot leads to would never come
        slot = self.wheel.slot(due_ms)
        previous = -1 if slot is None else slot.last_position
        position = self.log.append(
            previous, magic, enqueue_ms, due_ms - enqueue_ms, physical_offset, record_size, topic_hash
        )
        return self.wheel.add(due_ms, position, -1 if magic & DELETE else 1)

    def units(self, time_ms: int) -> Iterator[TimerUnit]:
        """The units of the slot of a time, the newest first."""
        slot = self.wheel.slot(time_ms)
        position = -1 if slot is None else slot.last_position
        while position >= 0:
            unit = self.log.read(position)
            if unit is None or unit.due_ms // self.precision_ms != time_ms // self.precision_ms:
                log.warning("the units of %d end at %d, where another or none is", time_ms, position)
                return
            yield unit
            if unit.previous_position >= position:
                log.warning("the units of %d end at %d, which leads to what came later", time_ms, position)
                return
            position = unit.previous_position

    def flush(self, checkpoint: TimerCheckpoint, min_physical_offset: int) -> None:
        """Bring log and wheel to the disk, then the checkpoint that was taken before; remove what of the
        timer log has no records any more. Slow: for worker threads."""
        self.log.files.flush()
        self.wheel.sync()
        self._checkpoint.write(checkpoint)
        self.log.delete_expired(min_physical_offset)

    def close(self) -> None:
        """Let go of the files as they are."""
        self.wheel.close()
        self.log.files.close()
        self._checkpoint.close()

"""ClockSteps: how far the time of day was set, and where in the log. A file of Kourou's own: `<root>/clock`.

A record says when something is due by the clock of the moment it was stored. If that clock is set afterwards,
the time it says is not the time it meant. Here is noted at which end of the log the clock was set, and by how
much:

    log     | record A |  record B  |  clock set by +1 h  | record C |
    steps                           ^ (position, 3600000)

What A says of time is, by the clock of today, an hour later; what C says holds. So a delay lasts as long as
it should, whichever way the clock goes, and a file of the log is as old as it is.

Time of day less elapsed time is constant as long as nobody sets the clock (NTP slews both alike), so one
subtraction tells. The file has that difference, so that a restart of the process sees what was set meanwhile.
After a restart of the machine only the time of day is known: less than before is a clock that was set back.
More may be time that passed or a clock that was set ahead. It counts as time that passed, until the clock
goes back: then that much of it was wrong.

JSON: bootId, differenceMs (time of day less elapsed time), timeMs (the time of day when it was written),
latestMs (the latest that it ever was), gaps ([[position, ms, sinceMs], …], see `gap_ms`), steps
([[position, ms], …]).
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field

from kourou.clock import Clock
from kourou.store.config import MessageStoreConfig
from kourou.store.log.disk import Disk
from kourou.store.log.mapped_file import MappedFileQueue

log = logging.getLogger(__name__)

STEP_MS = 10  # less is no step: two clocks cannot be read at the same moment
PAIR_MS = 2  # two readings further apart than this say nothing
LOAD_TRIES = 100  # at the start, which should not wait for ever on a machine that is too busy
PAIR_TRIES = 5
MAX_STEPS = 1000  # a clock that is set more often makes what is older wait longer
# A gap that nobody corrected for fileReservedTime, but at least a day, was time that passed.
LEAST_TRUST_MS = 24 * 3_600_000
MAX_GAPS = 100  # a machine that is off more often in that time makes what is older wait longer


@dataclass(slots=True)
class _State:
    """What the file has."""

    boot_id: str = ""
    difference_ms: int = 0
    time_ms: int = 0
    latest_ms: int = 0
    # Of a machine that was off, by its clock, how much of it is true is not known: the end of the log then,
    # ms, elapsed time at its end.
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)  # position and ms, by position

    def encode(self) -> bytes:
        return json.dumps(
            {
                "bootId": self.boot_id, "differenceMs": self.difference_ms, "timeMs": self.time_ms,
                "latestMs": self.latest_ms, "gaps": self.gaps, "steps": self.steps,
            }
        ).encode()  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> _State:
        value = json.loads(data)
        steps = sorted((int(position), int(ms)) for position, ms in value["steps"])
        # A file of a version that knew one gap only has none.
        gaps = [(int(at), int(ms), int(since_ms)) for at, ms, since_ms in value.get("gaps", ())]
        latest_ms = int(value.get("latestMs", 0))
        return cls(
            str(value["bootId"]), int(value["differenceMs"]), int(value["timeMs"]), latest_ms, gaps, steps
        )


class ClockSteps:
    """The steps of a store's clock. `look` reads the clock; what else is asked holds for that moment."""

    def __init__(
        self, disk: Disk, path: str, clock: Clock, log_files: MappedFileQueue, config: MessageStoreConfig
    ) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._log = log_files
        self._config = config
        self._lock = threading.Lock()  # retention looks, too
        self._state = _State()
        self._looked_at = 0  # the end of the log at the last look
        self._is_saved = True
        self.now_ms = self.elapsed_ms = 0
        self._began_at = self._began_ms = 0  # end of the log and elapsed time at the start

    @property
    def difference_ms(self) -> int:
        """Time of day less elapsed time: another one is a clock that was set."""
        return self._state.difference_ms

    # Life

    def load(self, last_ms: int) -> None:
        """Take up what the file says, when the log is recovered: its last record is of that time."""
        state, is_known = self._read()
        end = self._log.max_wrote
        if not any(self._read_pair() for _ in range(LOAD_TRIES)):
            self.now_ms, self.elapsed_ms = self._clock.now_ms(), self._clock.elapsed_ms()
        difference_ms, boot_id = self.now_ms - self.elapsed_ms, self._clock.boot_id()
        self._state, self._looked_at = state, end
        # A power cut may have taken the end of the log: what is stored there now comes after all steps.
        state.steps = [(min(at, end), ms) for at, ms in state.steps]
        state.gaps = [(min(at, end), ms, since_ms) for at, ms, since_ms in state.gaps]
        if is_known and boot_id and boot_id == state.boot_id:
            step_ms = difference_ms - state.difference_ms
        else:
            known_ms = max(state.time_ms, self.today(last_ms, end - 1)) if last_ms else state.time_ms
            passed_ms = self.now_ms - known_ms if known_ms else 0
            # Without a file it is not known which clock the last record went by.
            step_ms = min(passed_ms, 0) if is_known else 0
            self._add_gap(max(passed_ms, 0), end, min(known_ms, self.now_ms) - state.difference_ms)
        state.boot_id, state.difference_ms = boot_id, difference_ms - step_ms
        self._is_saved = False
        self._take(step_ms, end)
        self.begin()

    def begin(self) -> None:
        """Records that are there now wait no longer than they would if they were stored now."""
        self._began_at, self._began_ms = self._log.max_wrote, self.elapsed_ms

    def _read(self) -> tuple[_State, bool]:
        size = self._disk.size(self._path)
        if size <= 0:
            return _State(), False
        mapping = self._disk.map(self._path, size, writable=False)
        try:
            return _State.decode(bytes(mapping.view)), True
        except (ValueError, KeyError, TypeError) as error:
            log.error("%s cannot be read: how the clock was set before is not known: %s", self._path, error)
            return _State(), False
        finally:
            mapping.close()

    # The clock

    def look(self) -> None:
        """Note it if the clock was set since the last look. Hot where messages wait."""
        elapsed_ms, now_ms, end = self._clock.elapsed_ms(), self._clock.now_ms(), self._log.max_wrote
        if self._is_saved and -STEP_MS < now_ms - elapsed_ms - self._state.difference_ms < STEP_MS:
            self.now_ms, self.elapsed_ms, self._looked_at = now_ms, elapsed_ms, end
            return
        with self._lock:
            if not self._read_pair():
                return
            step_ms = self.now_ms - self.elapsed_ms - self._state.difference_ms
            self._take(step_ms if abs(step_ms) >= STEP_MS else 0, end)
            self._looked_at = end

    def _read_pair(self) -> bool:
        """Read both clocks at one moment; False if others have the processor all the time."""
        clock = self._clock
        for _ in range(PAIR_TRIES):
            before_ms, now_ms, after_ms = clock.elapsed_ms(), clock.now_ms(), clock.elapsed_ms()
            if after_ms - before_ms <= PAIR_MS:
                self.now_ms, self.elapsed_ms = now_ms, after_ms
                return True
        return False

    def _take(self, step_ms: int, end: int) -> None:
        """Take a step. Of records that were stored between two looks it is not known whether they were before
        it or after: they are taken for those that wait longer."""
        state = self._state
        if step_ms:
            log.warning(
                "the clock was set by %d ms at %d of the log: delays go on as they were", step_ms, end
            )
        back_ms = -step_ms
        while (
            back_ms > 0 and state.gaps
        ):  # the newest first: what was stored between two waits longer by that
            at, gap_ms, since_ms = state.gaps.pop()
            wrong_ms = min(back_ms, gap_ms)
            if wrong_ms < gap_ms:
                state.gaps.append((at, gap_ms - wrong_ms, since_ms))
            self._add(at, wrong_ms)
            back_ms -= wrong_ms
        self._add(end if step_ms > 0 else self._looked_at, step_ms)
        state.difference_ms += step_ms
        state.time_ms = self.now_ms
        state.latest_ms = max(state.latest_ms, self.now_ms - min(step_ms, 0))
        self._save()

    def _add_gap(self, gap_ms: int, end: int, last_ms: int) -> None:
        """The machine was off. Those gaps go on that were not believed when it was last seen, by its elapsed
        time of then: what it was off does not count for them."""
        off_ms, since_ms = self.elapsed_ms - last_ms, last_ms - self._trust_ms
        gaps = [(at, ms, since + off_ms) for at, ms, since in self._state.gaps if since > since_ms]
        gaps += [(end, gap_ms, self.elapsed_ms)] * (gap_ms > 0)
        while len(gaps) > MAX_GAPS:
            (_, first_ms, _), (at, ms, since), *rest = gaps
            gaps = [(at, first_ms + ms, since), *rest]
        self._state.gaps = gaps

    def _add(self, position: int, ms: int) -> None:
        steps: Counter[int] = Counter()
        for at, by in (*self._state.steps, (position, ms)):
            steps[at] += by
        found = sorted((at, by) for at, by in steps.items() if by and at > self._log.min_offset)
        while len(found) > MAX_STEPS:
            (_, first_ms), (at, ms), *rest = found
            found = [(at, max(first_ms, 0) + ms), *rest]
        self._state.steps = found

    def _save(self) -> None:
        self._is_saved = False
        temporary = f"{self._path}.tmp"
        try:
            self._disk.write(temporary, self._state.encode())
            self._disk.rename(temporary, self._path)
            self._is_saved = True
        except OSError as error:
            log.error("%s cannot be written; it is tried again: %s", self._path, error)

    # What records say

    def today(self, time_ms: int, physical_offset: int) -> int:
        """What a record there says of time, by the clock of today. Hot where messages wait."""
        for position, ms in reversed(self._state.steps):
            if position <= physical_offset:
                break
            time_ms += ms
        return time_ms

    @property
    def latest_ms(self) -> int:
        """The latest that the clock has ever been seen to say: no record says a later time, but for one that
        was stored while a clock was ahead between two looks."""
        return max(self._state.latest_ms, self.now_ms)

    def left_ms(self, due_ms: int, physical_offset: int, delay_ms: int) -> int:
        """How long a record has to wait that says when it is due, `delay_ms` after it was stored."""
        left_ms = self.today(due_ms, physical_offset) - self.now_ms
        if physical_offset < self._began_at:
            # Whatever its clock was, it is not later than this.
            return min(left_ms, delay_ms - (self.elapsed_ms - self._began_ms))
        return left_ms

    def gap_ms(self, end: int) -> int:
        """How much of the age of what was stored before `end` is only what a clock says that was read after
        the machine had been off. It is believed when the machine ran for fileReservedTime since, and nobody
        corrected the clock: what was stored before is that old then in any case."""
        young_ms = self.elapsed_ms - self._trust_ms
        return sum(ms for at, ms, since_ms in self._state.gaps if end <= at and since_ms > young_ms)

    @property
    def _trust_ms(self) -> int:
        return max(LEAST_TRUST_MS, self._config.file_reserved_time * 3_600_000)

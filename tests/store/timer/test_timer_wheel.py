"""The timer wheel, the timer log, and how they agree after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.errors import DiskFullError, StoreDamagedError
from kourou.store import MessageStoreConfig
from kourou.store.log.disk import OsDisk
from kourou.store.timer.files import DELETE, PLAIN, ROLL, TimerCheckpoint, read_wheel
from kourou.store.timer.log import TimerLog
from kourou.store.timer.store import TimerStore
from kourou.store.timer.wheel import TimerWheel
from support.stores.store import START_MS, small_config

UNITS_A_FILE = 4
LOG_FILE = 52 * UNITS_A_FILE + 16
BEGIN = TimerCheckpoint(START_MS, 0, 0, 0, 0, 0, 0)


@pytest.fixture
def config(tmp_path: Path) -> MessageStoreConfig:
    return small_config(tmp_path, mapped_file_size_timer_log=LOG_FILE)


def enter(timers: TimerStore, *dues_s: int, magic: int = PLAIN, first: int = 0) -> None:
    """Enter units due so many seconds from now; their records are `first`, `first` + 1, …"""
    for number, due_s in enumerate(dues_s):
        timers.append(START_MS + due_s * 1000, magic, START_MS, first + number, 100, 7)


def records(timers: TimerStore, due_s: int) -> list[int]:
    return [unit.physical_offset for unit in timers.units(START_MS + due_s * 1000)]


def closed(timers: TimerStore, checkpoint: TimerCheckpoint = BEGIN) -> None:
    """Close it with a checkpoint that speaks of all there is."""
    timers.flush(checkpoint._replace(last_timer_log_flush_position=timers.log.files.max_wrote), 0)
    timers.close()


def reopened(config: MessageStoreConfig) -> TimerStore:
    timers = TimerStore(OsDisk(), config)
    timers.recover()
    return timers


def crash(config: MessageStoreConfig, *, log_end: int | None = None, keep_wheel: bool = True) -> None:
    """What a crash can leave: a shorter log, or no wheel."""
    root = Path(config.store_path_root_dir)
    if not keep_wheel:
        (root / "timerwheel").unlink()
    if log_end is not None:
        for file in (root / "timerlog").iterdir():
            kept = max(min(log_end - int(file.name), LOG_FILE), 0)
            file.write_bytes(file.read_bytes()[:kept] + bytes(LOG_FILE - kept))


def test_a_slot_leads_to_its_units_the_newest_first(config):
    timers = TimerStore(OsDisk(), config)

    enter(timers, 5, 6, 5, 5)

    assert records(timers, 5) == [3, 2, 0]
    assert records(timers, 6) == [1]
    assert records(timers, 7) == []
    assert timers.wheel.times_from(START_MS) == [START_MS + 5000, START_MS + 6000]
    assert timers.wheel.messages_from(START_MS + 5000) == 4
    assert timers.wheel.messages_from(START_MS + 6000) == 1


def test_a_unit_that_deletes_counts_one_less(config):
    timers = TimerStore(OsDisk(), config)

    enter(timers, 5, 5)
    enter(timers, 5, magic=PLAIN | DELETE, first=9)

    assert timers.wheel.messages(START_MS + 5000) == 1
    assert [unit.magic for unit in timers.units(START_MS + 5000)] == [5, 1, 1]


def test_a_slot_is_used_again_after_two_weeks(config):
    timers, two_weeks_s = TimerStore(OsDisk(), config), 14 * 86_400

    enter(timers, 5, 5 + two_weeks_s)

    assert records(timers, 5) == []
    assert records(timers, 5 + two_weeks_s) == [1]


def test_a_file_of_the_log_that_is_full_ends_as_javas(config):
    timers = TimerStore(OsDisk(), config)

    enter(timers, *[5] * (UNITS_A_FILE + 1))

    first, second = sorted(Path(config.store_path_root_dir, "timerlog").iterdir())
    assert first.read_bytes()[-16:] == bytes.fromhex("00000010 0000000000000000 cbd43194")
    assert int(second.name) == LOG_FILE
    assert records(timers, 5) == [4, 3, 2, 1, 0]


def test_all_is_found_again(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, *range(3, 13))
    closed(timers)

    timers = reopened(config)
    enter(timers, 3, first=20)

    assert records(timers, 3) == [20, 0]
    assert [records(timers, due) for due in range(4, 13)] == [[due - 3] for due in range(4, 13)]


def test_what_the_checkpoint_does_not_speak_of_is_cut_off_to_be_entered_again(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, *range(3, 13))
    timers.close()

    timers = TimerStore(OsDisk(), config)
    timers.flush(BEGIN._replace(last_timer_log_flush_position=LOG_FILE + 52), 0)

    found = timers.recover()
    assert (found.end, found.last_physical_offset, found.has_lost) == (LOG_FILE + 52, 4, True)
    assert [records(timers, due) for due in range(3, 13)] == [[0], [1], [2], [3], [4], [], [], [], [], []]
    enter(timers, 8, 8, first=5)
    assert records(timers, 8) == [6, 5]


def test_slots_that_a_crash_lost_are_made_from_the_log(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, *range(1, 11))
    enter(timers, 8, magic=PLAIN | DELETE, first=30)
    closed(timers, BEGIN._replace(last_read_time_ms=START_MS + 4000))
    crash(config, keep_wheel=False)

    timers = reopened(config)

    assert [records(timers, due) for due in range(1, 11)] == [
        [], [], [], [3], [4], [5], [6], [30, 7], [8], [9]
    ]  # fmt: skip
    assert timers.wheel.messages(START_MS + 8000) == 0


def test_slots_that_lead_beyond_the_log_end_where_it_ends(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, 5, 6, 5, 7, 5, 8)
    closed(timers)
    crash(config, log_end=3 * 52 + 20)

    timers = reopened(config)
    enter(timers, 9, first=40)

    assert records(timers, 5) == [2, 0]
    assert records(timers, 6) == [1]
    assert records(timers, 7) == records(timers, 8) == []
    assert records(timers, 9) == [40]
    assert timers.wheel.messages(START_MS + 5000) == 2
    assert timers.wheel.times_from(0) == [START_MS + due * 1000 for due in (5, 6, 9)]


def test_a_log_that_lost_what_the_checkpoint_vouches_for_says_so(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, 5, 6, 7, 8, 9)
    timers.close()
    crash(config, log_end=104)

    timers = TimerStore(OsDisk(), config)
    timers.flush(BEGIN._replace(last_timer_log_flush_position=LOG_FILE + 52), 0)
    found = timers.recover()

    assert (found.end, found.last_physical_offset, found.entered) == (104, 1, {0, 1})


def test_a_chain_never_leads_to_a_unit_of_another_slot(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, 5, 6)
    timers.wheel.add(START_MS + 7000, 52, 1)

    assert records(timers, 7) == []


def test_log_files_whose_records_are_gone_are_removed(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, *[5] * (2 * UNITS_A_FILE + 1))

    timers.flush(BEGIN, UNITS_A_FILE)

    assert records(timers, 5) == [8, 7, 6, 5, 4]
    timers.flush(BEGIN, 1000)
    assert records(timers, 5) == [8]


def test_pending_units_are_counted_by_topic(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, 1, 5, 6)
    timers.append(START_MS + 6000, PLAIN | DELETE, START_MS, 50, 100, -3)
    counted: dict[int, int] = {}

    for file in timers.log.files.files:
        timers.log.count_pending(file, START_MS + 5000, counted)

    assert counted == {7: 2, -3: -1}


def test_a_full_disk_changes_nothing(config, disk):
    timers = TimerStore(disk, config)
    enter(timers, 5)
    disk.fill()

    with pytest.raises(DiskFullError):
        enter(timers, 5 + 86_400, first=1)

    assert timers.log.files.max_wrote == 52
    assert timers.wheel.times_from(0) == [START_MS + 5000]


def test_a_wheel_of_another_size_is_an_error(config):
    path = Path(config.store_path_root_dir, "timerwheel")
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(100))

    with pytest.raises(StoreDamagedError, match="100 bytes"):
        TimerStore(OsDisk(), config)


def test_the_wheel_takes_room_where_it_is_used_only(config):
    timers = TimerStore(OsDisk(), config)
    enter(timers, 5)
    timers.flush(BEGIN, 0)

    wheel = Path(config.store_path_root_dir, "timerwheel").stat()
    assert (wheel.st_size, wheel.st_blocks * 512 <= 256 * 1024) == (38_707_200, True)


def test_what_java_wrote_is_continued(golden_store, tmp_path):
    path, expected = golden_store("timer")
    config = MessageStoreConfig(store_path_root_dir=str(path), mapped_file_size_timer_log=2096)
    before = list(read_wheel(memoryview((path / "timerwheel").read_bytes())))

    timers = TimerStore(OsDisk(), config)
    found = timers.recover()

    assert found.end == 676
    assert list(read_wheel(memoryview((path / "timerwheel").read_bytes()))) == before
    read_ms = expected["timer"]["timercheck"]["lastReadTimeMs"]
    assert timers.wheel.times_from(read_ms) == [1794731622000, 1794731626000, 1794731631000]
    assert [unit.physical_offset for unit in timers.units(1794731631000)] == [4886, 3760]


def test_a_precision_below_a_second_has_slots_of_its_own(tmp_path):
    wheel = TimerWheel(OsDisk(), str(tmp_path / "timerwheel"), 100)
    log = TimerLog(OsDisk(), str(tmp_path / "timerlog"), LOG_FILE)
    position = log.append(-1, PLAIN | ROLL, START_MS, 250, 0, 100, 7)
    wheel.add(START_MS + 250, position, 1)

    assert wheel.slot(START_MS + 299) == wheel.slot(START_MS + 200) is not None
    assert wheel.slot(START_MS + 300) is None
    assert wheel.times_from(START_MS) == [START_MS + 200]

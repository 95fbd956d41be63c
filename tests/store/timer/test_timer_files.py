"""The files of timer messages."""

from __future__ import annotations

import struct

from kourou.store.timer.files import (
    UNIT_SIZE,
    TimerCheckpoint,
    TimerSlot,
    TimerUnit,
    read_timer_checkpoint,
    read_timer_log,
    read_wheel,
)


def test_the_wheel_gives_the_slots_that_are_in_use():
    wheel = bytearray(32 * 200_000)
    struct.pack_into(">qqqii", wheel, 32 * 3, 1_794_724_420, 0, 52, 2, 0)
    struct.pack_into(">qqqii", wheel, 32 * 199_999, 1_794_731_631, 572, 624, 0, 7)

    assert list(read_wheel(memoryview(wheel))) == [
        TimerSlot(3, 1_794_724_420, 0, 52, 2, 0),
        TimerSlot(199_999, 1_794_731_631, 572, 624, 0, 7),
    ]


def test_a_wheel_cut_short_gives_its_whole_slots():
    wheel = struct.pack(">qqqii", 5, 0, 0, 1, 0) + bytes(31)

    assert [slot.slot for slot in read_wheel(memoryview(wheel))] == [0]


def test_the_timer_log_ends_at_the_first_thing_that_is_no_unit():
    first = (UNIT_SIZE, -1, 1, 1000, 2000, 337, 339, -143292516, 0)
    second = (UNIT_SIZE, 0, 2, 1001, 2001, 676, 300, 5, 0)
    log = b"".join(struct.pack(">iqiqiqiiq", *unit) for unit in (first, second)) + bytes(UNIT_SIZE * 2)

    assert list(read_timer_log(memoryview(log), base=104)) == [
        TimerUnit(104, *first),
        TimerUnit(156, *second),
    ]
    assert list(read_timer_log(memoryview(log[: UNIT_SIZE + 51]), base=0)) == [TimerUnit(0, *first)]


def test_the_checkpoint_of_the_timer():
    view = memoryview(struct.pack(">7q", 1, 2, 3, 4, 5, 6, 7) + bytes(4096 - 56))

    assert read_timer_checkpoint(view) == TimerCheckpoint(1, 2, 3, 4, 5, 6, 7)
    assert read_timer_checkpoint(view[:55]) is None


def test_what_java_wrote_is_read_as_java_reads_it(golden_store):
    path, expected = golden_store("timer")
    timer = expected["timer"]

    slots = list(read_wheel(memoryview((path / "timerwheel").read_bytes())))
    units = [
        unit
        for file in sorted((path / "timerlog").iterdir())
        for unit in read_timer_log(memoryview(file.read_bytes()), int(file.name))
    ]
    checkpoint = read_timer_checkpoint(memoryview((path / "config" / "timercheck").read_bytes()))

    assert [tuple(slot.values()) for slot in timer["slots"]] == slots
    assert [tuple(unit.values()) for unit in timer["log"]] == units
    assert tuple(timer["timercheck"].values()) == checkpoint
    assert sum(slot.messages for slot in slots if slot.time * 1000 > checkpoint.last_read_time_ms) == 2

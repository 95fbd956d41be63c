"""ConsumeQueue, its extension and the batch queue: entries over files, recovery, expiry."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import DiskFullError
from kourou.store.log.disk import Disk, OsDisk
from kourou.store.queue.batch_consume_queue import BatchConsumeQueue
from kourou.store.queue.consume_queue import ConsumeQueue
from kourou.store.queue.consume_queue_ext import ConsumeQueueExt, ExtUnit
from support.stores.fault_disk import FaultDisk
from support.stores.store import START_MS, files_below, small_config

PER_FILE = 20
SIZE = 100  # of every record in these tests
BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


def open_queue(
    directory: Path, *, disk: Disk | None = None, recover: bool = True, **overrides: Any
) -> ConsumeQueue:
    config = small_config(directory, **overrides)
    queue = ConsumeQueue(disk or OsDisk(), config.store_path_root_dir, "topic", 3, config)
    queue.load()
    if recover:
        queue.recover()
    return queue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    made = open_queue(tmp_path)
    yield made
    made.close()


def fill(queue: ConsumeQueue, start: int, count: int, gap: int = SIZE) -> None:
    """Entries for records that follow each other; entry n is for the record at n * gap."""
    for number in range(start, start + count):
        queue.put(number * gap, SIZE, number + 7, number)


def all_bytes(queue: ConsumeQueue) -> bytes:
    return b"".join(bytes(file.view[: file.wrote]) for file in queue.files.files)


def entries(start: int, count: int, gap: int = SIZE) -> bytes:
    return b"".join(struct.pack(">qiq", n * gap, SIZE, n + 7) for n in range(start, start + count))


# Writing and reading


def test_entries_lie_one_behind_the_other_over_files(queue, tmp_path):
    fill(queue, 0, 50)
    assert all_bytes(queue) == entries(0, 50)
    directory = tmp_path / "store" / "consumequeue" / "topic" / "3"
    assert sorted(path.name for path in directory.iterdir()) == [f"{base:020d}" for base in (0, 400, 800)]
    assert (queue.min_offset, queue.max_offset, queue.max_physic_offset) == (0, 50, 5000)
    assert queue.last_physical_end == 5000


def test_entries_are_read_from_any_offset(queue):
    fill(queue, 0, 50)
    for start in (0, 19, 20, 39, 49):
        found = [
            (entry.queue_offset, entry.physical_offset, entry.tags_code) for entry in queue.iterate(start)
        ]
        assert found == [(n, n * SIZE, n + 7) for n in range(start, 50)]
    for nowhere in (-1, 50, 51, 60, 10_000):
        assert list(queue.iterate(nowhere)) == []
        assert queue.get(nowhere) is None
    assert [queue.roll_next_file(n) for n in (0, 19, 20, 45)] == [20, 20, 40, 60]


def test_an_entry_that_is_there_already_is_ignored(queue):
    fill(queue, 0, 25)
    fill(queue, 0, 25)  # as a recovery does that begins early
    queue.put(24 * SIZE, SIZE, 0, 24)
    queue.put(30 * SIZE, SIZE, 0, 10)  # a later record for an offset that is taken
    assert all_bytes(queue) == entries(0, 25)
    fill(queue, 25, 1)
    assert all_bytes(queue) == entries(0, 26)


@pytest.mark.parametrize("first", [1, 19, 20, 25, 47, 1000])
def test_a_queue_that_does_not_begin_at_zero_begins_with_blank_entries(tmp_path, first):
    queue = open_queue(tmp_path)
    fill(queue, first, 30)
    blanks = first % PER_FILE
    assert all_bytes(queue) == BLANK * blanks + entries(first, 30)
    assert queue.files.files[0].base == (first - blanks) * 20
    assert (queue.min_offset, queue.max_offset) == (first, first + 30)
    assert queue.get(first - 1) is None
    entry = queue.get(first)
    assert entry is not None
    assert entry.physical_offset == first * SIZE
    queue.files.flush(0)
    assert queue.files.flushed_where == (first + 30) * 20
    queue.close()

    again = open_queue(tmp_path)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (first, first + 30)
    assert again.max_physic_offset == (first + 30) * SIZE
    fill(again, first + 30, 5)
    assert all_bytes(again) == BLANK * blanks + entries(first, 35)
    again.close()


def test_only_blank_entries_say_nothing_of_the_log(tmp_path):
    """A crash came between the blanks and the first entry. A blank entry has the size 2147483647: taken for a
    record it would make every message below two gigabytes look as if it had its entry."""
    queue = open_queue(tmp_path)
    fill(queue, 5, 1)
    queue.close()
    path = tmp_path / "store" / "consumequeue" / "topic" / "3" / f"{0:020d}"
    path.write_bytes(BLANK * 5 + bytes(300))

    again = open_queue(tmp_path)
    assert again.max_physic_offset < SIZE
    again.truncate_dirty(10_000)
    assert again.max_physic_offset <= 10_000
    assert (again.min_offset, again.max_offset) == (5, 5)
    again.max_physic_offset = -1
    fill(again, 5, 2)
    assert all_bytes(again) == BLANK * 5 + entries(5, 2)
    again.close()


def test_a_disk_full_while_blanks_are_written_does_not_misplace_entries(tmp_path):
    disk = FaultDisk()
    queue = open_queue(tmp_path, disk=disk)
    disk.fill("consumequeue")
    with pytest.raises(DiskFullError):
        fill(queue, 7, 1)
    disk.heal()
    fill(queue, 7, 2)
    assert all_bytes(queue) == BLANK * 7 + entries(7, 2)
    assert queue.min_offset == 7
    queue.close()


def test_the_last_entry_can_be_taken_back(queue):
    fill(queue, 0, 21)
    queue.take_back(5 * SIZE)  # not the last
    queue.take_back(20 * SIZE)
    assert queue.max_offset == 20
    queue.put(20 * SIZE, SIZE + 50, 1, 20)
    entry = queue.get(20)
    assert entry is not None
    assert entry.size == SIZE + 50


# Recovery


@pytest.mark.parametrize("count", [1, 19, 20, 21, 40, 59, 60, 95])
def test_recovery_finds_the_end(tmp_path, count):
    queue = open_queue(tmp_path)
    fill(queue, 0, count)
    queue.close()
    again = open_queue(tmp_path)
    assert (again.max_offset, again.max_physic_offset) == (count, count * SIZE)
    assert again.files.flushed_where == count * 20
    fill(again, count, 3)
    assert all_bytes(again) == entries(0, count + 3)
    again.close()


def test_recovery_of_an_empty_queue(queue):
    assert (queue.min_offset, queue.max_offset, queue.max_physic_offset) == (0, 0, -1)
    assert queue.files.files == ()


def test_recovery_ends_the_queue_at_a_hole_in_the_last_three_files(tmp_path):
    queue = open_queue(tmp_path)
    fill(queue, 0, 90)  # five files
    queue.files.files[3].view[100:120] = bytes(20)
    queue.close()
    again = open_queue(tmp_path)
    assert again.max_offset == 65
    assert [file.base for file in again.files.files] == [0, 400, 800, 1200]
    again.close()


@pytest.mark.parametrize("entry", [(-1, 100, 0), (400, 0, 0), (400, -5, 0), (0, 16, 0), (399, 100, 0)])
def test_recovery_ends_the_queue_at_an_impossible_entry(tmp_path, entry):
    queue = open_queue(tmp_path)
    fill(queue, 0, 10)
    struct.pack_into(">qiq", queue.files.files[0].view, 4 * 20, *entry)
    queue.close()
    again = open_queue(tmp_path)
    assert (again.max_offset, again.max_physic_offset) == (4, 400)
    again.close()


@pytest.mark.parametrize("kept", [0, 1, 19, 20, 21, 40, 55, 60])
def test_entries_behind_the_log_are_dropped(tmp_path, kept):
    queue = open_queue(tmp_path)
    fill(queue, 0, 60)
    end = kept * SIZE
    assert queue.truncate_dirty(end) == 60 - kept
    assert queue.max_offset == kept
    assert queue.max_physic_offset == end
    assert all_bytes(queue) == entries(0, kept)
    assert queue.files.flushed_where <= kept * 20
    fill(queue, kept, 5)
    assert all_bytes(queue) == entries(0, kept + 5)
    queue.close()
    again = open_queue(tmp_path)
    assert again.max_offset == kept + 5
    again.close()


def test_a_record_that_begins_before_the_end_keeps_its_entry(queue):
    fill(queue, 0, 10)
    assert queue.truncate_dirty(5 * SIZE + 1) == 4
    assert queue.max_offset == 6


# Minimum and expiry


@given(
    first=st.sampled_from([0, 0, 7, 20, 33]),
    steps=st.lists(st.integers(1, 500), min_size=1, max_size=70),
    limits=st.lists(st.integers(0, 36_000), min_size=1, max_size=6).map(sorted),
)
def test_the_minimum_is_the_first_entry_still_in_the_log(tmp_path_factory, first, steps, limits):
    queue = open_queue(tmp_path_factory.mktemp("queue"))
    offsets, at = [], 0
    for number, step in enumerate(steps):
        queue.put(at, step, 0, first + number)
        offsets.append(at)
        at += step
    for limit in limits:
        queue.delete_expired(limit)
        expected = first + sum(offset < limit for offset in offsets)
        assert queue.min_offset == expected, limit
        assert queue.max_offset == first + len(steps)
        expired = [file for file in queue.files.files[:-1] if (file.base + 400) // 20 <= expected]
        assert expired == []
    queue.close()


@given(count=st.integers(1, 70), limit=st.integers(0, 8000))
def test_the_minimum_is_found_again_after_a_restart(tmp_path_factory, count, limit):
    directory = tmp_path_factory.mktemp("queue")
    queue = open_queue(directory)
    fill(queue, 0, count)
    queue.delete_expired(limit)
    minimum = queue.min_offset
    queue.close()
    again = open_queue(directory)
    again.correct_min_offset(limit)
    assert again.min_offset == minimum
    assert again.max_offset == count
    again.close()


def test_the_last_file_never_expires(queue, tmp_path):
    fill(queue, 0, 50)
    assert queue.delete_expired(10**9) == 2
    assert (queue.min_offset, queue.max_offset) == (50, 50)
    assert len(files_below(tmp_path)) == 1
    fill(queue, 50, 1)
    assert (queue.min_offset, queue.max_offset) == (50, 51)


def test_a_queue_file_that_cannot_be_removed_is_tried_again(tmp_path):
    disk = FaultDisk()
    queue = open_queue(tmp_path, disk=disk)
    fill(queue, 0, 50)
    disk.refuse_removes("consumequeue")
    assert queue.delete_expired(45 * SIZE) == 0
    disk.heal()
    assert queue.delete_expired(45 * SIZE) == 2
    assert queue.min_offset == 45
    queue.close()


def test_destroying_a_queue_removes_its_directory(queue, tmp_path):
    fill(queue, 0, 50)
    queue.destroy()
    assert not (tmp_path / "store" / "consumequeue" / "topic" / "3").exists()
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    fill(queue, 0, 3)
    assert all_bytes(queue) == entries(0, 3)


# ConsumeQueueExt

EXT_FILE = 200


def open_ext(directory: Path) -> ConsumeQueueExt:
    ext = ConsumeQueueExt(OsDisk(), str(directory), "topic", 0, EXT_FILE)
    ext.load()
    ext.recover()
    return ext


@pytest.fixture
def ext(tmp_path: Path) -> Iterator[ConsumeQueueExt]:
    made = open_ext(tmp_path)
    yield made
    made.files.close()


def test_a_unit_lies_as_java_writes_it(ext, tmp_path):
    assert ext.put(ExtUnit(-5, START_MS, b"\x01\x02\x03")) == -(2**63)
    assert ext.put(ExtUnit(6, START_MS + 1)) == -(2**63) + 23
    data = (tmp_path / "consumequeue_ext" / "topic" / "0" / f"{0:020d}").read_bytes()
    assert data[:43] == struct.pack(">hqqh", 23, -5, START_MS, 3) + b"\x01\x02\x03" + struct.pack(
        ">hqqh", 20, 6, START_MS + 1, 0
    )


units = st.builds(
    ExtUnit, st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**62), st.binary(max_size=EXT_FILE - 4 - 20)
)


@given(given_units=st.lists(units, min_size=1, max_size=30))
def test_units_are_read_back_by_their_address(tmp_path_factory, given_units):
    directory = tmp_path_factory.mktemp("ext")
    ext = open_ext(directory)
    addresses = []
    for unit in given_units:
        address = ext.put(unit)
        assert address is not None
        addresses.append(address)
    assert [ext.get(address) for address in addresses] == given_units
    end = ext.files.max_wrote
    ext.files.close()

    again = open_ext(directory)
    assert [again.get(address) for address in addresses] == given_units
    assert again.files.max_wrote in (end, end - EXT_FILE + again.files.files[-1].wrote)
    more = again.put(ExtUnit(1, 2, b"3"))
    assert more is not None
    assert more not in addresses
    assert again.get(more) == ExtUnit(1, 2, b"3")
    assert [again.get(address) for address in addresses] == given_units
    again.files.close()


def test_a_unit_that_fits_no_file_has_no_address(ext):
    assert ext.put(ExtUnit(1, 2, bytes(EXT_FILE - 4 - 20 + 1))) is None
    assert ext.put(ExtUnit(1, 2, bytes(EXT_FILE - 4 - 20))) is not None


def test_an_address_that_is_none(ext):
    ext.put(ExtUnit(1, 2, b"bitmap"))
    for nowhere in (0, 1, -1, -(2**31), -(2**63) + 26, -(2**63) + EXT_FILE, -(2**62)):
        assert ext.get(nowhere) is None


def test_units_behind_an_address_are_dropped(ext):
    addresses = [ext.put(ExtUnit(number, 0, bytes(50))) for number in range(10)]
    assert None not in addresses
    ext.truncate_behind(addresses[4] or 0)
    assert [ext.get(address or 0) is not None for address in addresses] == [True] * 5 + [False] * 5
    assert ext.put(ExtUnit(99, 0)) == (addresses[4] or 0) + 70


def test_files_before_an_address_are_removed(ext):
    addresses = [ext.put(ExtUnit(number, 0, bytes(50))) or 0 for number in range(10)]  # two a file
    ext.truncate_before(addresses[6])
    assert ext.get(addresses[6]) == ExtUnit(6, 0, bytes(50))
    assert ext.get(addresses[1]) is None
    assert len(ext.files.files) in (2, 3)


def test_a_queue_with_its_extension_over_a_restart(tmp_path):
    queue = open_queue(tmp_path, enable_consume_queue_ext=True)
    given_units = [ExtUnit(number, START_MS + number, bytes([number])) for number in range(30)]
    for number, unit in enumerate(given_units):
        queue.put_ext(number * SIZE, SIZE, unit, number)
    assert [entry.ext for entry in queue.iterate(0)] == given_units
    assert [entry.tags_code for entry in queue.iterate(0)] == list(range(30))
    queue.close()

    again = open_queue(tmp_path, enable_consume_queue_ext=True)
    assert [entry.ext for entry in again.iterate(0)] == given_units
    assert again.truncate_dirty(20 * SIZE) == 10
    assert [entry.ext for entry in again.iterate(0)] == given_units[:20]
    assert again.ext is not None
    assert again.ext.files.max_wrote == 20 * 21
    again.put_ext(20 * SIZE, SIZE, ExtUnit(77, 1), 20)
    assert [entry.tags_code for entry in again.iterate(19)] == [19, 77]
    again.close()


def test_a_queue_with_an_extension_but_without_units(tmp_path):
    """The option was switched on later: old entries hold plain tags codes."""
    queue = open_queue(tmp_path)
    fill(queue, 0, 5)
    queue.close()
    again = open_queue(tmp_path, enable_consume_queue_ext=True)
    again.put_ext(5 * SIZE, SIZE, ExtUnit(12, 1, b"x"), 5)
    assert [(entry.tags_code, entry.ext is None) for entry in again.iterate(3)] == [
        (10, True),
        (11, True),
        (12, False),
    ]
    again.close()


# BatchConsumeQueue


def open_batch_queue(directory: Path, **overrides: Any) -> BatchConsumeQueue:
    config = small_config(directory, **overrides)
    queue = BatchConsumeQueue(OsDisk(), config.store_path_root_dir, "topic", 0, config)
    queue.load()
    queue.recover()
    return queue


@pytest.fixture
def batch_queue(tmp_path: Path) -> Iterator[BatchConsumeQueue]:
    made = open_batch_queue(tmp_path)
    yield made
    made.close()


def fill_batch(queue: BatchConsumeQueue, start: int, count: int) -> None:
    """Entries of three messages each."""
    for number in range(start, start + count):
        queue.put_batch(number * SIZE, SIZE, number, START_MS + number, number * 3, 3)


def test_a_batch_entry_lies_as_java_writes_it(batch_queue, tmp_path):
    batch_queue.put_batch(500, 100, -7, START_MS, 30, 4)
    data = (tmp_path / "store" / "batchconsumequeue" / "topic" / "0" / f"{0:020d}").read_bytes()
    assert data[:46] == struct.pack(">qiqqqhii", 500, 100, -7, START_MS, 30, 4, -1, 0)
    assert (batch_queue.min_offset, batch_queue.max_offset) == (30, 34)


@pytest.mark.parametrize("size", [460, 461, 500, 505])
def test_batch_entries_over_files_whatever_the_configured_size(tmp_path, size):
    """Files hold whole entries, as those of plain queues do."""
    queue = open_batch_queue(tmp_path, mapper_file_size_batch_consume_queue=size)
    fill_batch(queue, 0, 35)
    assert (queue.min_offset, queue.max_offset) == (0, 105)
    assert [entry.queue_offset for entry in queue.iterate(0)] == [number * 3 for number in range(35)]
    queue.close()
    again = open_batch_queue(tmp_path, mapper_file_size_batch_consume_queue=size)
    assert (again.min_offset, again.max_offset, again.max_physic_offset) == (0, 105, 3400)
    fill_batch(again, 0, 40)
    assert [entry.queue_offset for entry in again.iterate(0)] == [number * 3 for number in range(40)]
    again.close()


def test_a_batch_entry_by_any_of_its_offsets(batch_queue):
    fill_batch(batch_queue, 0, 25)
    for offset in range(75):
        entry = batch_queue.get(offset)
        assert entry is not None
        assert (entry.queue_offset, entry.batch_num) == (offset // 3 * 3, 3)
    assert batch_queue.get(75) is None
    assert batch_queue.get(-1) is None


def test_a_repeated_batch_entry_is_ignored(batch_queue):
    fill_batch(batch_queue, 0, 5)
    fill_batch(batch_queue, 0, 5)
    assert len(list(batch_queue.iterate(0))) == 5


@pytest.mark.parametrize("kept", [0, 1, 9, 10, 11, 20, 25])
def test_batch_entries_behind_the_log_are_dropped(tmp_path, kept):
    queue = open_batch_queue(tmp_path)
    fill_batch(queue, 0, 25)
    assert queue.truncate_dirty(kept * SIZE) == (25 - kept) * 3
    assert queue.max_offset == kept * 3
    fill_batch(queue, kept, 2)
    assert queue.max_offset == kept * 3 + 6
    queue.close()
    again = open_batch_queue(tmp_path)
    assert again.max_offset == kept * 3 + 6
    again.close()


def test_a_batch_entry_can_be_taken_back(batch_queue):
    fill_batch(batch_queue, 0, 11)
    batch_queue.take_back(3 * SIZE)
    assert batch_queue.max_offset == 33
    batch_queue.take_back(10 * SIZE)
    assert batch_queue.max_offset == 30
    batch_queue.put_batch(10 * SIZE, SIZE, 0, START_MS, 30, 5)
    assert batch_queue.max_offset == 35


@pytest.mark.parametrize("gone", [0, 1, 5, 9, 10, 11, 15, 24, 25, 30])
def test_the_minimum_of_a_batch_queue(batch_queue, gone):
    fill_batch(batch_queue, 0, 25)
    deleted = batch_queue.delete_expired(gone * SIZE)
    assert deleted == min(gone // 10, 2)
    assert batch_queue.min_offset == min(gone, 25) * 3
    assert batch_queue.max_offset == 75

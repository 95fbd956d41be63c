"""Mapped files, queues of them, and the service that makes them ahead."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kourou.errors import DiskFullError, StoreDamagedError, StoreError
from kourou.store import MessageStore
from kourou.store.log.allocate import AllocateMappedFileService
from kourou.store.log.disk import PAGE_SIZE, Disk, OsDisk
from kourou.store.log.mapped_file import MappedFile, MappedFileQueue, TransientStorePool
from support.stores.fault_disk import FaultDisk
from support.stores.store import (
    LOG_FILE,
    bodies,
    files_below,
    message,
    open_files_below,
    open_store,
    put,
    small_config,
)

SIZE = 1000


def new_queue(directory: Path, disk: Disk | None = None, size: int = SIZE) -> MappedFileQueue:
    queue = MappedFileQueue(disk or OsDisk(), str(directory), size)
    queue.load()
    return queue


@pytest.fixture
def queue(tmp_path: Path, disk: FaultDisk) -> Iterator[MappedFileQueue]:
    made = new_queue(tmp_path / "q", disk)
    yield made
    disk.heal()
    made.close()


@pytest.fixture
def file(tmp_path: Path, disk: FaultDisk) -> Iterator[MappedFile]:
    made = MappedFile(disk, str(tmp_path / f"{0:020d}"), SIZE)
    yield made
    disk.heal()
    made.close()


def append(queue: MappedFileQueue, *parts: bytes) -> None:
    for part in parts:
        file = queue.last_writable()
        if not file.append(part):
            file.wrote = file.size
            assert queue.last_writable().append(part)


# One file


def test_three_positions_say_how_far_the_bytes_have_come(tmp_path):
    pool = TransientStorePool(1, SIZE)
    file = MappedFile(OsDisk(), str(tmp_path / f"{5000:020d}"), SIZE, buffer_home=pool)
    assert (file.base, pool.available, file.full) == (5000, 0, False)
    assert file.append(b"x" * 400)
    assert (file.wrote, file.committed, file.flushed, file.read_position) == (400, 0, 0, 0)
    assert file.select(0, 10) is None
    assert file.commit(0) == 400
    assert (file.wrote, file.committed, file.flushed, file.read_position) == (400, 400, 0, 400)
    assert file.flush(0) == 400
    assert (file.wrote, file.committed, file.flushed) == (400, 400, 400)
    assert file.append(b"y" * 600)
    assert (file.full, file.read_position) == (True, 400)
    assert file.commit(4) == 1000  # a full file is committed whatever its pages
    assert pool.available == 1
    assert bytes(file.select(395, 10) or b"") == b"xxxxxyyyyy"
    file.close()


def test_without_a_buffer_bytes_are_read_as_soon_as_they_are_written(file):
    file.append(b"hello")
    assert (file.read_position, file.commit(0)) == (5, 5)
    assert bytes(file.select(0, 5) or b"") == b"hello"


@pytest.mark.parametrize(
    ("position", "size", "found"),
    [
        (0, 5, b"hello"),
        (1, 3, b"ell"),
        (0, -1, b"hello"),
        (5, -1, b""),
        (5, 0, b""),
        (4, 2, None),
        (6, -1, None),
        (-1, 3, None),
        (0, 6, None),
        (0, 2**31, None),
    ],
)
def test_a_selection_never_goes_beyond_what_may_be_read(file, position, size, found):
    file.append(b"hello")
    view = file.select(position, size)
    assert (None if view is None else bytes(view)) == found


def test_what_does_not_fit_is_not_appended(file):
    assert file.append(b"x" * 999)
    assert not file.append(b"yy")
    assert file.wrote == 999
    assert file.append(b"z")
    assert file.full


@pytest.mark.parametrize(
    ("done", "more", "least_pages", "flushes"),
    [(0, 1, 0, True), (0, 4095, 1, False), (0, 4096, 1, True), (4000, 97, 1, True), (0, 8191, 2, False)],
)
def test_a_flush_may_ask_for_whole_pages(tmp_path, done, more, least_pages, flushes):
    disk = FaultDisk()
    file = MappedFile(disk, str(tmp_path / f"{0:020d}"), 10 * PAGE_SIZE)
    file.append(bytes(done))
    file.flush(0)
    before = len(disk.syncs)
    file.append(bytes(more))
    assert file.flush(least_pages) == (done + more if flushes else done)
    assert len(disk.syncs) - before == (1 if flushes else 0)
    file.close()


def test_a_failed_sync_leaves_the_position_where_it_was(file, disk):
    file.append(b"x")
    disk.fail_syncs()
    with pytest.raises(OSError, match="sync failed"):
        file.flush(0)
    assert file.flushed == 0


def test_bytes_are_written_where_room_was_reserved(tmp_path):
    disk = FaultDisk()
    file = MappedFile(disk, str(tmp_path / f"{0:020d}"), SIZE, reserve_step=100)
    file.append(b"x" * 10)
    file.append(b"x" * 80)
    assert [(start, end) for _, start, end in disk.reserved] == [(0, 100)]
    file.append(b"x" * 300)
    assert [(start, end) for _, start, end in disk.reserved] == [(0, 100), (100, 390)]
    file.append(b"x" * 610)
    assert disk.reserved[-1][2] == SIZE
    file.close()


def test_the_last_room_of_a_disk_is_used(tmp_path):
    disk = FaultDisk()
    file = MappedFile(disk, str(tmp_path / f"{0:020d}"), SIZE, reserve_step=500)
    disk.fill(room=120)
    assert file.append(b"x" * 100)
    assert file.append(b"x" * 20)
    with pytest.raises(DiskFullError):
        file.append(b"x")
    assert file.wrote == 120
    file.close()


def test_readers_keep_their_slices_when_the_file_is_removed(tmp_path):
    file = MappedFile(OsDisk(), str(tmp_path / f"{0:020d}"), SIZE)
    file.append(b"hello")
    held = file.select(0, 5)
    assert held is not None
    assert file.destroy()
    assert files_below(tmp_path) == {}
    assert file.select(0, 5) is None
    del file
    gc.collect()
    assert bytes(held) == b"hello"


def test_a_file_is_unmapped_when_the_last_slice_is_gone(tmp_path):
    file = MappedFile(OsDisk(), str(tmp_path / f"{0:020d}"), SIZE)
    held = file.select(0, 0)
    file.close()
    del file
    assert open_files_below(tmp_path) != []
    del held
    assert open_files_below(tmp_path) == []


def test_closing_or_removing_returns_the_buffer_once(tmp_path):
    pool = TransientStorePool(1, SIZE)
    file = MappedFile(OsDisk(), str(tmp_path / f"{0:020d}"), SIZE, buffer_home=pool)
    file.close()
    file.close()
    file.destroy()
    assert pool.available == 1


def test_warm_pages_hold_what_was_written(tmp_path):
    file = MappedFile(OsDisk(), str(tmp_path / f"{0:020d}"), 5 * PAGE_SIZE)
    file.append(b"before")
    file.ensure(file.size)
    file.mapping.warm(lock=True)
    file.append(b"after")
    assert bytes(file.select(0) or b"") == b"beforeafter"
    file.close()
    del file
    assert open_files_below(tmp_path) == []


# Many files


def test_files_are_one_address_space(queue):
    append(queue, *[bytes([number]) * 300 for number in range(10)])
    assert [file.base for file in queue.files] == [0, 1000, 2000, 3000]
    assert (queue.min_offset, queue.max_offset, queue.max_wrote, queue.total_size) == (0, 3300, 3300, 4000)
    for offset, base in ((0, 0), (999, 0), (1000, 1000), (3299, 3000), (3999, 3000)):
        file = queue.find(offset)
        assert file is not None
        assert file.base == base
    for nowhere in (-1, -1000, 4000, 10**9):
        assert queue.find(nowhere) is None


def test_an_empty_queue(queue):
    assert (queue.min_offset, queue.max_offset, queue.max_wrote) == (-1, 0, 0)
    assert queue.find(0) is None
    assert queue.last() is None
    assert queue.flush() == 0
    assert queue.commit() == 0


@pytest.mark.parametrize("start", [0, 1, 999, 1000, 12_345])
def test_the_first_file_is_the_one_that_holds_the_start(queue, start):
    assert queue.last_writable(start).base == start // SIZE * SIZE
    assert queue.last_writable(start).created_first
    queue.files[0].wrote = SIZE
    assert queue.last_writable().base == start // SIZE * SIZE + SIZE
    assert not queue.files[1].created_first


def test_a_restart_finds_all_files_full(tmp_path):
    queue = new_queue(tmp_path / "q")
    append(queue, *[b"x" * 300] * 7)
    queue.close()
    again = new_queue(tmp_path / "q")
    assert [file.wrote for file in again.files] == [SIZE] * 3
    again.set_where(2300)
    assert [file.wrote for file in again.files] == [SIZE, SIZE, 300]
    assert (again.max_offset, again.flushed_where) == (2300, 2300)
    again.close()


def test_a_missing_file_is_noticed_and_the_others_are_found(tmp_path, caplog):
    queue = new_queue(tmp_path / "q")
    append(queue, *[b"x" * SIZE] * 5)
    queue.close()
    (tmp_path / "q" / f"{2000:020d}").unlink()
    again = new_queue(tmp_path / "q")
    assert "is missing" in caplog.text
    assert again.find(2500) is None
    for offset in (0, 1500, 3000, 3999, 4500):
        file = again.find(offset)
        assert file is not None
        assert file.base == offset // SIZE * SIZE
    again.close()


def test_a_file_of_a_wrong_size_is_not_guessed_at(tmp_path):
    queue = new_queue(tmp_path / "q")
    append(queue, *[b"x" * SIZE] * 2)
    queue.close()
    path = tmp_path / "q" / f"{0:020d}"
    path.write_bytes(bytes(999))
    with pytest.raises(StoreDamagedError, match="999"):
        new_queue(tmp_path / "q")
    assert path.stat().st_size == 999


def test_an_empty_last_file_is_removed(tmp_path):
    queue = new_queue(tmp_path / "q")
    append(queue, b"x" * SIZE)
    queue.close()
    (tmp_path / "q" / f"{1000:020d}").touch()
    again = new_queue(tmp_path / "q")
    assert [file.base for file in again.files] == [0]
    assert list(files_below(tmp_path / "q")) == [f"{0:020d}"]
    again.close()


@pytest.mark.parametrize("after_crash", [False, True])
def test_an_empty_file_in_the_middle_is_damage_but_blank_after_a_crash(queue, tmp_path, after_crash):
    """It was made ahead, and a power cut left its name alone: recovery ends there."""
    append(queue, *[b"x" * SIZE] * 3)
    queue.close()
    (tmp_path / "q" / f"{1000:020d}").write_bytes(b"")
    again = MappedFileQueue(OsDisk(), str(tmp_path / "q"), SIZE)
    if not after_crash:
        with pytest.raises(StoreDamagedError):
            again.load()
        return
    again.load(after_crash=True)
    assert [file.base for file in again.files] == [0, 1000, 2000]
    assert bytes(again.files[1].view) == bytes(SIZE)
    again.close()


def test_other_names_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / "q").mkdir()
    for name in ("README", "0000", "x" * 20, "00000000000000001000.bak"):
        (tmp_path / "q" / name).write_text("hands off")
    (tmp_path / "q" / f"{5:020d}").mkdir()
    queue = new_queue(tmp_path / "q")
    assert queue.files == ()
    queue.close()
    assert len(files_below(tmp_path / "q")) == 4


@pytest.mark.parametrize(
    ("offset", "bases", "last"),
    [(0, [0], 0), (999, [0], 999), (1000, [0, 1000], 0), (2500, [0, 1000, 2000], 500)],
)
def test_truncation_removes_the_files_behind(queue, tmp_path, offset, bases, last):
    append(queue, *[b"x" * SIZE] * 5)
    removed = queue.truncate(offset)
    assert [file.base for file in queue.files] == bases
    assert queue.files[-1].wrote == last
    assert len(removed) == 5 - len(bases)
    assert sorted(files_below(tmp_path / "q")) == [f"{base:020d}" for base in bases]


def test_flush_goes_through_all_files(queue, disk):
    append(queue, *[b"x" * 600] * 5)
    assert queue.flush() == queue.max_offset == 4600
    assert len(disk.syncs) == 5
    queue.flush()
    assert len(disk.syncs) == 5


def test_a_failed_sync_in_the_second_file_keeps_what_the_first_reached(queue, disk):
    append(queue, *[b"x" * 600] * 3)
    disk.fail_syncs(f"{1000:020d}")
    with pytest.raises(OSError, match="sync failed"):
        queue.flush()
    assert queue.flushed_where == 1000
    disk.heal()


def test_flush_goes_on_when_the_file_it_had_reached_was_removed(queue):
    """A full disk may cost files that were not flushed yet; what comes after them must be, all the same."""
    append(queue, *[b"x" * 600] * 2)
    queue.flush()
    append(queue, *[b"x" * 600] * 3)
    assert queue.flushed_where == 1600
    queue.remove_files(queue.files[:3])
    assert queue.flush() == queue.max_offset == 4600


def test_a_file_removed_before_it_was_flushed_does_not_fail_the_flush(queue, disk):
    """A flush that fails stops the store; but here nothing is left that could be brought to the disk."""
    append(queue, *[b"x" * 600] * 3)
    disk.refuse_removes()
    assert queue.remove_files(queue.files[:1]) == 0  # hangs, and is closed
    assert queue.flush() == queue.max_offset == 2600


def test_commit_goes_on_when_the_file_it_had_reached_was_removed(tmp_path):
    pool = TransientStorePool(9, SIZE)
    queue = MappedFileQueue(
        OsDisk(), str(tmp_path / "q"), SIZE,
        create=lambda path, _: MappedFile(OsDisk(), path, SIZE, buffer_home=pool),
    )  # fmt: skip
    append(queue, *[b"x" * 600] * 4)
    queue.remove_files(queue.files[:2])
    assert queue.commit() == queue.max_offset == 3600
    queue.close()
    assert pool.available == 9


def test_a_file_the_disk_refuses_to_remove_is_not_read_any_more_and_tried_again(queue, disk):
    append(queue, *[b"x" * SIZE] * 3)
    disk.refuse_removes(f"{0:020d}")
    assert queue.remove_files(queue.files[:2]) == 0
    assert [file.base for file in queue.files] == [0, 1000, 2000]
    assert [file.available for file in queue.files] == [False, True, True]
    disk.heal()
    assert queue.remove_files(queue.files[:2]) == 2
    assert [file.base for file in queue.files] == [2000]


def test_destroying_a_queue_leaves_nothing(queue, tmp_path):
    append(queue, *[b"x" * SIZE] * 3)
    queue.destroy()
    assert not (tmp_path / "q").exists()
    assert (queue.files, queue.flushed_where, queue.max_offset) == ((), 0, 0)


def test_a_closed_queue_holds_no_file_open(tmp_path):
    queue = new_queue(tmp_path / "q")
    append(queue, *[b"x" * SIZE] * 3)
    assert open_files_below(tmp_path) != []
    queue.close()
    assert open_files_below(tmp_path) == []


# Several directories


def test_a_log_in_two_directories_takes_them_in_turn(tmp_path):
    paths = [tmp_path / "b", tmp_path / "a"]
    config = small_config(tmp_path, store_path_commit_log=",".join(map(str, paths)))
    sent = [b"%d" % number + bytes(30_000) for number in range(8)]
    with open_store(config) as store:
        put(store, *[message(body=body) for body in sent])
        assert bodies(store) == sent
    assert sorted(files_below(tmp_path / "a")) == [f"{base:020d}" for base in (0, 2 * LOG_FILE)]
    assert sorted(files_below(tmp_path / "b")) == [f"{base:020d}" for base in (LOG_FILE, 3 * LOG_FILE)]
    with open_store(config) as store:
        assert bodies(store) == sent


def test_a_directory_that_is_only_read_gets_no_new_file(tmp_path):
    sent = [b"%d" % number + bytes(30_000) for number in range(4)]
    with open_store(small_config(tmp_path, store_path_commit_log=str(tmp_path / "old"))) as store:
        put(store, *[message(body=body) for body in sent])
    config = small_config(
        tmp_path,
        store_path_commit_log=f"{tmp_path / 'old'},{tmp_path / 'new'}",
        read_only_commit_log_store_paths=str(tmp_path / "old"),
    )
    before = files_below(tmp_path / "old")
    with open_store(config) as store:
        assert bodies(store) == sent
        put(store, *[message(body=bytes(40_000)) for _ in range(4)])
        assert len(bodies(store)) == 8
    assert files_below(tmp_path / "old") == before
    assert len(files_below(tmp_path / "new")) == 4


def test_a_directory_that_is_full_is_passed_over_while_another_has_room(tmp_path):
    disk = FaultDisk()
    config = small_config(tmp_path, store_path_commit_log=f"{tmp_path / 'a'},{tmp_path / 'b'}")
    with open_store(config, disk=disk) as store:
        put(store, message(body=bytes(40_000)))
        disk.ratio = lambda path: 0.95 if path == str(tmp_path / "a") else 0.1
        state = store.retention.disk_state()
        assert not state.full
        put(store, *[message(body=bytes(40_000)) for _ in range(3)])
        assert len(files_below(tmp_path / "b")) == 3
        disk.ratio = lambda path: 0.95 if path.startswith((str(tmp_path / "a"), str(tmp_path / "b"))) else 0.1
        assert store.retention.disk_state().full
        put(store, *[message(body=bytes(40_000)) for _ in range(2)])  # then all are as good as each other
        assert len(files_below(tmp_path / "a")) == 2


def test_of_two_files_for_the_same_offsets_the_used_one_counts(tmp_path):
    """One was made ahead in a directory that was full when it was needed; then came a crash."""
    config = small_config(tmp_path, store_path_commit_log=f"{tmp_path / 'a'},{tmp_path / 'b'}")
    with open_store(config) as store:
        put(store, *[message(body=b"%d" % number + bytes(40_000)) for number in range(3)])
    for unused in (tmp_path / "b" / f"{0:020d}", tmp_path / "a" / f"{LOG_FILE:020d}"):
        unused.write_bytes(bytes(LOG_FILE))
    with open_store(config) as store:
        assert [body[:1] for body in bodies(store)] == [b"0", b"1", b"2"]
    assert sorted(files_below(tmp_path / "a")) == [f"{0:020d}", f"{2 * LOG_FILE:020d}"]
    assert sorted(files_below(tmp_path / "b")) == [f"{LOG_FILE:020d}"]


def test_two_files_for_the_same_offsets_that_were_both_used_are_damage(tmp_path):
    config = small_config(tmp_path, store_path_commit_log=f"{tmp_path / 'a'},{tmp_path / 'b'}")
    with open_store(config) as store:
        put(store, *[message(body=bytes(40_000)) for _ in range(2)])
    (tmp_path / "b" / f"{0:020d}").write_bytes((tmp_path / "a" / f"{0:020d}").read_bytes())
    with pytest.raises(StoreDamagedError, match="same part"):
        MessageStore(config).load()


# Made ahead


@contextmanager
def allocating(disk: Disk, made: list[str]) -> Iterator[AllocateMappedFileService]:
    """A service that runs, and notes what it makes."""

    def make_file(path: str) -> MappedFile:
        made.append(path)
        return MappedFile(disk, path, SIZE)

    service = AllocateMappedFileService(make_file)
    service.start()
    yield service
    service.shutdown()


def paths_of(directory: Path, *bases: int) -> list[str]:
    return [str(directory / f"{base:020d}") for base in bases]


def test_the_next_file_is_made_ahead_and_removed_if_never_used(tmp_path, disk):
    made: list[str] = []
    paths = paths_of(tmp_path, 0, 1000, 2000)
    with allocating(disk, made) as service:
        files = [service.take(*paths[:2]), service.take(*paths[1:])]
    assert made == paths
    assert [file.base for file in files] == [0, 1000]
    assert sorted(files_below(tmp_path)) == [f"{0:020d}", f"{1000:020d}"]
    for file in files:
        file.close()


def test_a_file_made_ahead_in_the_wrong_directory_is_removed_at_once(tmp_path, disk):
    paths = paths_of(tmp_path / "a", 0, 1000, 2000, 3000)
    with allocating(disk, []) as service:
        files = [service.take(paths[0], str(tmp_path / "b" / f"{1000:020d}"))]
        files += [service.take(*paths[1:3]), service.take(*paths[2:])]
        assert files_below(tmp_path / "b") == {}
    for file in files:
        file.close()


def test_before_the_start_files_are_made_when_asked_for(tmp_path, disk):
    service = AllocateMappedFileService(lambda path: MappedFile(disk, path, SIZE))
    service.take(*paths_of(tmp_path, 0, 1000)).close()
    service.shutdown()
    assert list(files_below(tmp_path)) == [f"{0:020d}"]


def test_a_file_that_could_not_be_made_is_tried_again(tmp_path, disk):
    paths = paths_of(tmp_path, 0, 1000, 2000)
    with allocating(disk, []) as service:
        disk.fail_maps()
        with pytest.raises(OSError, match="injected"):
            service.take(*paths[:2])
        disk.heal()
        # The one made ahead failed as well, while nobody needed it: that must not fail whoever needs it now.
        files = [service.take(*paths[:2]), service.take(*paths[1:])]
    assert [file.base for file in files] == [0, 1000]
    for file in files:
        file.close()


def test_a_file_that_takes_too_long_is_an_error_and_ready_the_next_time(tmp_path, monkeypatch):
    monkeypatch.setattr("kourou.store.log.allocate.WAIT_SECONDS", 0.05)
    slow = threading.Event()

    def make_slowly(path: str) -> MappedFile:
        slow.wait(5)
        return MappedFile(OsDisk(), path, SIZE)

    service = AllocateMappedFileService(make_slowly)
    service.start()
    paths = [str(tmp_path / f"{base:020d}") for base in (0, 1000)]
    with pytest.raises(StoreError, match="too slow"):
        service.take(*paths)
    slow.set()
    monkeypatch.setattr("kourou.store.log.allocate.WAIT_SECONDS", 5)
    file = service.take(*paths)
    assert file.base == 0
    service.shutdown()
    file.close()
    assert list(files_below(tmp_path)) == [f"{0:020d}"]


def test_a_store_with_threads_leaves_no_unused_file(tmp_path):
    sent = [b"%d" % number + bytes(30_000) for number in range(9)]
    with open_store(small_config(tmp_path), threads=True) as store:
        put(store, *[message(body=body) for body in sent])
        assert bodies(store) == sent
    log = tmp_path / "store" / "commitlog"
    assert sorted(files_below(log)) == [f"{base * LOG_FILE:020d}" for base in range(5)]


def test_warm_files_take_messages_like_others(tmp_path):
    config = small_config(tmp_path, warm_maped_file_enable=True)
    sent = [b"%d" % number + bytes(30_000) for number in range(5)]
    for threads in (False, True):
        with open_store(config, threads=threads) as store:
            put(store, *[message(body=body) for body in sent])
    with open_store(config) as store:
        assert bodies(store) == sent * 2


def test_pages_are_kept_in_memory_only_while_a_file_is_written(tmp_path):
    def locked_bytes() -> int:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmLck" in line]
        return int(line.split()[1]) * 1024

    before = locked_bytes()
    with open_store(small_config(tmp_path, warm_maped_file_enable=True)) as store:
        put(store, message(body=bytes(30_000)))
        if locked_bytes() == before:
            pytest.skip("needs: the right to lock memory (RLIMIT_MEMLOCK)")
        put(store, *[message(body=bytes(30_000)) for _ in range(9)])
        store.flusher.flush()
        assert locked_bytes() == before + LOG_FILE
    assert locked_bytes() == before


def test_a_put_that_finds_no_room_for_a_warm_file_is_refused(tmp_path):
    disk = FaultDisk()
    with open_store(small_config(tmp_path, warm_maped_file_enable=True), disk=disk) as store:
        disk.fill("commitlog")
        assert not store.put_message(message()).ok
        disk.heal()
        put(store, message())
        assert bodies(store) == [b"body"]

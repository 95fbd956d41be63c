"""The index: Java's bytes for Java's keys, found again by key and time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.errors import StoreError
from kourou.inspect import StoreDirectory
from kourou.inspect.check.index_report import look_up
from kourou.inspect.check.whole import check
from kourou.inspect.look.chains import walk_chains
from kourou.message.properties import java_hash
from kourou.store.config import MessageStoreConfig
from kourou.store.index.index_file import (
    ENTRY_SIZE,
    HEADER_SIZE,
    KEY_WIDTH,
    SLOT_SIZE,
    IndexFile,
    IndexService,
    KeyList,
    file_name,
    hash_keys,
    key_hash,
    key_prefixes,
)
from kourou.store.log.disk import OsDisk
from support.stores.fault_disk import FaultDisk
from support.stores.store import START_MS, ManualClock, files_below, message, open_store, put, small_config

TOPIC = "topic"


class JavaIndexFile:
    """IndexFile.putKey and IndexHeader of Java, word for word, on a plain byte array."""

    def __init__(self, slots: int, entries: int, end_offset: int = 0, end_timestamp: int = 0) -> None:
        self.slots, self.entries = slots, entries
        self.data = bytearray(HEADER_SIZE + slots * SLOT_SIZE + entries * ENTRY_SIZE)
        self.begin_timestamp = self.end_timestamp = end_timestamp if end_timestamp > 0 else 0
        self.begin_offset = self.end_offset = end_offset if end_offset > 0 else 0
        self.slot_count, self.index_count = 0, 1

    def put_key(self, key: str, offset: int, timestamp: int) -> bool:
        if self.index_count >= self.entries:
            return False
        value = _java_string_hash(key)
        value = -value if value < 0 else value
        if value > 0x7FFFFFFF:
            value = 0
        slot_at = 40 + value % self.slots * 4
        (head,) = struct.unpack_from(">i", self.data, slot_at)
        if head <= 0 or head > self.index_count:
            head = 0
        difference = int((timestamp - self.begin_timestamp) / 1000)
        if self.begin_timestamp <= 0:
            difference = 0
        elif difference > 0x7FFFFFFF:
            difference = 0x7FFFFFFF
        elif difference < 0:
            difference = 0
        at = 40 + self.slots * 4 + self.index_count * 20
        struct.pack_into(">iqii", self.data, at, value, offset, difference, head)
        struct.pack_into(">i", self.data, slot_at, self.index_count)
        if self.index_count <= 1:
            self.begin_offset, self.begin_timestamp = offset, timestamp
        if head == 0:
            self.slot_count += 1
        self.index_count += 1
        self.end_offset, self.end_timestamp = offset, timestamp
        return True

    def bytes(self) -> bytes:
        struct.pack_into(
            ">qqqqii", self.data, 0, self.begin_timestamp, self.end_timestamp, self.begin_offset,
            self.end_offset, self.slot_count, self.index_count,
        )  # fmt: skip
        return bytes(self.data)


def _java_string_hash(text: str) -> int:
    """String.hashCode in 32-bit steps over UTF-16 units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


ascii_keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
any_keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
keys = st.one_of(ascii_keys, any_keys, st.sampled_from(["Aa", "BB", "AaAa", "BBBB", "AaBB", "k"]))
gaps = st.one_of(st.integers(0, 999), st.integers(0, 5000), st.integers(-3000, 0), st.just(3 * 10**12))
puts = st.lists(st.tuples(keys, st.integers(1, 5000), gaps), max_size=130)


def with_times(items: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """(key, physical offset, store time) of (key, step, gap)."""
    offset, timestamp, result = 0, START_MS, []
    for key, step, gap in items:
        offset += step
        timestamp += gap
        result.append((key, offset, timestamp))
    return result


def as_keys(items: list[tuple[str, int, int]]) -> KeyList:
    prefix, _ = key_prefixes(TOPIC)
    return [value for key, offset, timestamp in items for value in (prefix, key, offset, timestamp)]


def written(path: Path, write: Callable[[IndexFile], None], slots: int, entries: int) -> bytes:
    file = IndexFile(OsDisk(), str(path), slots, entries)
    write(file)
    file.flush()
    file.close()
    return path.read_bytes()


def put_all(file: IndexFile, keys: KeyList, size: int) -> None:
    for start in range(0, len(keys), size * KEY_WIDTH):
        part = keys[start : start + size * KEY_WIDTH]
        assert file.put(part) == len(part) // KEY_WIDTH


@given(items=puts, slots=st.sampled_from([1, 2, 7, 100]), size=st.sampled_from([2, 33, 64, 1000]))
@example(items=[(f"key-{n % 5}", 1, 700) for n in range(120)], slots=3, size=40)
@example(items=[("é" * (n % 4 + 1), 1, 700) for n in range(80)], slots=3, size=40)
@example(items=[("😀" if n % 3 else "k", 1, 700) for n in range(80)], slots=3, size=40)
def test_keys_written_together_alone_or_by_java_make_the_same_bytes(tmp_path_factory, items, slots, size):
    given_keys = with_times(items)
    directory = tmp_path_factory.mktemp("index")
    entries = len(items) + 2
    java = JavaIndexFile(slots, entries)
    for key, offset, timestamp in given_keys:
        assert java.put_key(f"{TOPIC}#{key}", offset, timestamp)
    alone = written(
        directory / f"{1:017d}", lambda file: put_all(file, as_keys(given_keys), 1), slots, entries
    )
    together = written(
        directory / f"{2:017d}", lambda file: put_all(file, as_keys(given_keys), size), slots, entries
    )
    expected = java.bytes()
    if not items:
        assert struct.unpack_from(">i", alone, 36) in [(0,), (1,)]
        return
    assert alone == expected
    assert together == expected


@given(texts=st.lists(keys, min_size=1, max_size=100))
@example(texts=[""])
@example(texts=["", "a", "é", ""])
def test_many_hashes_at_once_are_javas(texts):
    prefix, tag_prefix = key_prefixes("主题")
    for start, text_prefix in ((prefix, "主题#"), (tag_prefix, "主题#T#")):
        hashes = hash_keys(np.array([start] * len(texts), np.int64).astype(np.uint32), texts)
        assert hashes.tolist() == [key_hash(text_prefix + text) for text in texts]
        expected = [abs(_java_string_hash(text_prefix + text)) for text in texts]
        assert hashes.tolist() == [0 if value == 1 << 31 else value for value in expected]


def test_the_one_hash_without_an_absolute_value_is_zero(tmp_path):
    text = "polygenelubricants"  # String.hashCode is -2147483648
    assert java_hash(text) == -(1 << 31)
    assert key_hash(text) == 0
    assert hash_keys(np.zeros(40, np.uint32), [text] * 40).tolist() == [0] * 40

    def write(file: IndexFile) -> None:
        file.put([0, text, 5, START_MS])
        file.put([0, text, 6, START_MS] * 40)

    data = written(tmp_path / f"{1:017d}", write, 10, 50)
    assert [struct.unpack_from(">i", data, 40 + 40 + number * 20)[0] for number in range(1, 42)] == [0] * 41


# The service


@pytest.fixture
def config(tmp_path: Path) -> MessageStoreConfig:
    return small_config(tmp_path, max_hash_slot_num=7, max_index_num=20)


def service(
    config: MessageStoreConfig, clock: ManualClock, disk: OsDisk | FaultDisk | None = None
) -> IndexService:
    return IndexService(disk or OsDisk(), config.store_path_root_dir, config, clock)


@pytest.fixture
def index(config: MessageStoreConfig, clock: ManualClock, disk: FaultDisk) -> Iterator[IndexService]:
    made = service(config, clock, disk)
    yield made
    made.close()


def add(index: IndexService, key: str, offset: int, timestamp: int) -> None:
    index.add_message(TOPIC, {"KEYS": key}, offset, timestamp)


@given(items=puts, size=st.sampled_from([1, 5, 50, 200]))
def test_files_roll_over_as_javas_do(tmp_path_factory, items, size):
    config = small_config(tmp_path_factory.mktemp("index"), max_hash_slot_num=7, max_index_num=20)
    index, java = service(config, ManualClock()), [JavaIndexFile(7, 20)]
    for number, (key, offset, timestamp) in enumerate(with_times([i for i in items if " " not in i[0]])):
        add(index, key, offset, timestamp)
        if number % size == 0:
            index.write_pending()
        if not java[-1].put_key(f"{TOPIC}#{key}", offset, timestamp):
            java.append(JavaIndexFile(7, 20, java[-1].end_offset, java[-1].end_timestamp))
            assert java[-1].put_key(f"{TOPIC}#{key}", offset, timestamp)
    index.flush()
    paths = [file.path for file in index.files]
    assert paths == sorted(paths)
    index.close()
    expected = [file.bytes() for file in java] if paths else []
    assert [Path(path).read_bytes() for path in paths] == expected


def test_uniq_key_keys_and_tags_in_that_order(index):
    index.add_message(TOPIC, {"UNIQ_KEY": "u", "KEYS": "a  b c", "TAGS": "t"}, 7, START_MS)
    index.write_pending()
    entries = index.files[0].entries[1 : index.files[0].count]
    expected = [key_hash(text) for text in ("topic#u", "topic#a", "topic#b", "topic#c", "topic#T#t")]
    assert entries["hash"].tolist() == expected
    assert entries["offset"].tolist() == [7] * 5


def test_nothing_to_index_makes_no_file(config, clock, tmp_path):
    index = service(config, clock)
    index.add_message(TOPIC, {}, 7, START_MS)
    index.add_message(TOPIC, {"KEYS": "   "}, 8, START_MS)
    index.flush()
    index.close()
    assert files_below(tmp_path) == {}


def test_files_are_named_by_the_time_they_were_made(index):
    for number in range(50):
        add(index, f"k{number}", number, START_MS)
    index.flush()
    # Three were made within one millisecond: each gets a name of its own.
    names = [Path(file.path).name for file in index.files]
    assert names == [file_name(START_MS), file_name(START_MS + 1), file_name(START_MS + 2)]
    assert all(len(name) == 17 and name.isdecimal() for name in names)


@pytest.mark.parametrize("ms", [-1, -3_600_000, -365 * 24 * 3_600_000])
def test_files_are_in_their_order_after_the_clock_was_set_back(config, clock, ms):
    """Given an index file that is full, when the clock goes back, then the next one comes after it, and a
    process that starts then takes them in this order."""
    index = service(config, clock)
    for number in range(50):
        if number == 5:
            index.write_pending()
            clock.set_by(ms)
        add(index, f"k{number}", number, clock.now_ms())
    index.flush()
    paths = [file.path for file in index.files]
    assert len(paths) == 3
    index.close()
    again = service(config, clock)
    again.load(True, 0)
    assert [file.path for file in again.files] == paths
    again.close()


def test_after_a_crash_a_file_of_a_clock_that_was_back_is_not_taken_for_one_on_the_disk(config, clock):
    """Given a full file that the checkpoint speaks of, and another that was written when the clock was back,
    when the process crashed, then only the first is known to be on the disk."""
    index = service(config, clock)
    for number in range(50):
        add(index, f"k{number}", number, START_MS if len(index.files) < 2 else START_MS - 3_600_000)
        index.write_pending()
    first, *later = [file.path for file in index.files]
    index.close()
    again = service(config, clock)
    assert again.load(False, START_MS) == later
    assert [file.path for file in again.files] == [first]
    again.close()


def test_many_keys_are_written_without_being_asked(tmp_path, clock):
    index = service(small_config(tmp_path, max_index_num=10_000), clock)
    for number in range(4095):
        add(index, f"k{number}", number, START_MS)
    assert index.files == []
    add(index, "last", 4095, START_MS)
    assert index.files[0].count == 4097
    index.close()


# Queries


def test_the_newest_come_first(index):
    for number in range(60):  # four files
        add(index, "k" if number % 3 == 0 else f"other{number}", number, START_MS + number * 1000)
    assert index.query(TOPIC, "k", 100, 0, 1 << 62) == list(range(57, -1, -3))
    assert index.query(TOPIC, "k", 5, 0, 1 << 62) == [57, 54, 51, 48, 45]
    assert index.query(TOPIC, "k", 0, 0, 1 << 62) == []


@given(
    times=st.lists(st.integers(0, 30), min_size=1, max_size=70).map(sorted),
    begin=st.integers(-1, 31),
    length=st.integers(0, 32),
)
@example(times=[0] * 19 + [1], begin=0, length=1)
def test_a_range_of_times_over_several_files(tmp_path_factory, times, begin, length):
    """Times are whole seconds since each file's first entry: here exact, as all times are whole seconds."""
    config = small_config(tmp_path_factory.mktemp("index"), max_hash_slot_num=3, max_index_num=20)
    index = service(config, ManualClock())
    for number, second in enumerate(times):
        add(index, "k", number, START_MS + second * 1000)
    low, high = START_MS + begin * 1000, START_MS + (begin + length) * 1000
    found = index.query(TOPIC, "k", 100, low, high)
    expected = [n for n, second in enumerate(times) if begin <= second <= begin + length]
    assert found == expected[::-1][: config.max_msgs_num_batch]
    index.close()


def test_every_reader_has_the_time_of_the_first_entry_of_a_file(tmp_path):
    """Java counts its seconds from the file before: added to the begin of its own file they are too many."""
    clock = ManualClock()
    config = small_config(tmp_path, max_hash_slot_num=3, max_index_num=5)
    with open_store(config, clock=clock) as store:
        for _ in range(4 * 3):
            put(store, message(TOPIC, KEYS="k"))
            clock.advance(7000)
        times = [START_MS + number * 7000 for number in range(4 * 3)]
        store.index.write_pending()
        assert [len(store.index.query(TOPIC, "k", 9, time, time)) for time in times] == [1] * len(times)
    with StoreDirectory.open(tmp_path / "store", config) as directory:
        assert [entry["storeTimestamp"] for entry in look_up(directory, TOPIC, "k")] == times[::-1]
        links = [link for chain in walk_chains(directory, TOPIC, "k") for link in chain.links]
        assert [link.store_ms for link in links] == times[::-1]
        assert check(directory).findings == []


def test_a_store_time_is_kept_in_whole_seconds(index):
    add(index, "first", 0, START_MS)
    add(index, "k", 1, START_MS + 1999)
    assert index.query(TOPIC, "k", 10, START_MS + 1000, START_MS + 1000) == [1]
    assert index.query(TOPIC, "k", 10, START_MS + 1001, START_MS + 1999) == []


@pytest.mark.parametrize("slots", [1, 7])
def test_a_chain_of_many_entries(tmp_path, slots):
    config = small_config(tmp_path, max_hash_slot_num=slots, max_index_num=200, max_msgs_num_batch=500)
    index = service(config, ManualClock())
    for number in range(150):
        add(index, f"k{number % 10}", number, START_MS)
    for number in range(10):
        assert index.query(TOPIC, f"k{number}", 500, 0, 1 << 62) == list(range(140 + number, -1, -10))
    index.close()


# Damage


def fill(index: IndexService, count: int) -> IndexFile:
    """Entries of one key; the last file."""
    for number in range(count):
        add(index, "k", number, START_MS)
    index.write_pending()
    return index.files[-1]


@pytest.mark.parametrize("previous", [1, 5, 10, 11, 12, 19, 20, 0x7FFFFFFF, -1])
def test_a_damaged_chain_ends(index, previous):
    fill(index, 10).entries["previous"][5] = previous
    found = index.query(TOPIC, "k", 100, 0, 1 << 62)
    assert found[:6] == [9, 8, 7, 6, 5, 4]
    assert len(found) <= 7


@pytest.mark.parametrize("count", [10, 19])
@pytest.mark.parametrize("head", [0, -1, 11, 20, 21, 0x7FFFFFFF])
def test_a_damaged_slot_leads_nowhere(index, count, head):
    """With 19 entries the file is full, and entry 20 would lie after its end."""
    fill(index, count).slots[key_hash("topic#k") % 7] = head
    assert set(index.query(TOPIC, "k", 100, 0, 1 << 62)) <= set(range(count))


def test_a_negative_time_ends_a_chain(index):
    fill(index, 10).entries["seconds"][5] = -1
    assert index.query(TOPIC, "k", 100, 0, 1 << 62) == [9, 8, 7, 6, 5]


# Life


def test_a_restart_keeps_the_index_and_goes_on(config, clock, index):
    fill(index, 25)
    add(index, "k", 25, START_MS)  # closing writes the keys that wait
    index.close()
    again = service(config, clock)
    assert again.load(True, 0) == []
    assert (again.end_offset, len(again.files)) == (25, 2)
    add(again, "k", 26, START_MS)
    assert again.query(TOPIC, "k", 100, 0, 1 << 62) == list(range(26, -1, -1))
    again.close()


def test_after_a_crash_files_not_known_to_be_on_disk_are_dropped(config, clock):
    index = service(config, clock)
    for number in range(45):
        add(index, "k", number, START_MS + number)
    index.flush()
    paths = [file.path for file in index.files]
    ends = [file.end_timestamp for file in index.files]
    index.close()
    again = service(config, clock)
    assert again.load(False, ends[1]) == paths[2:]
    assert [file.path for file in again.files] == paths[:2]
    assert not Path(paths[2]).exists()
    again.close()


def test_a_file_of_a_wrong_size_is_an_error_that_names_it(config, clock, index):
    file = fill(index, 5)
    index.close()
    config.max_index_num = 30
    with pytest.raises(StoreError, match=file.path):
        service(config, clock).load(True, 0)


def test_an_empty_file_that_a_crash_left_is_removed(config, clock, index):
    """The file was made and the process died before it had its size; nothing was ever in it."""
    file = fill(index, 19)
    index.close()
    empty = Path(file.path).with_name(file_name(START_MS + 5))
    empty.touch()
    again = service(config, clock)
    again.load(False, file.end_timestamp)
    assert [item.path for item in again.files] == [file.path]
    assert not empty.exists()
    again.close()


def test_other_files_in_the_directory_are_left_alone(config, clock):
    directory = Path(config.store_path_root_dir, "index")
    directory.mkdir(parents=True)
    (directory / "README").write_text("hands off")
    index = service(config, clock)
    assert index.load(False, 0) == []
    assert index.files == []
    assert (directory / "README").exists()
    index.close()


def test_expired_files_go_but_never_the_last(config, index, disk):
    fill(index, 45)  # 0..18, 19..37, 38..44
    assert index.delete_expired(18) == 0
    disk.refuse_removes("/index/")
    assert index.delete_expired(19) == 0  # it is tried again
    disk.heal()
    assert index.delete_expired(19) == 1
    assert index.delete_expired(1000) == 1
    assert index.query(TOPIC, "k", 100, 0, 1 << 62) == list(range(44, 37, -1))
    assert len(files_below(config.store_path_root_dir)) == 1


def test_a_full_disk_keeps_the_keys_until_there_is_room(index, disk):
    failures: list[str] = []
    index.on_failed = failures.append
    add(index, "a", 1, START_MS)
    disk.fill("/index/")
    assert index.query(TOPIC, "a", 10, 0, 1 << 62) == []
    assert len(failures) == 1
    add(index, "b", 2, START_MS)
    disk.heal()
    assert index.query(TOPIC, "a", 10, 0, 1 << 62) == [1]
    assert index.query(TOPIC, "b", 10, 0, 1 << 62) == [2]
    assert index.files[0].count == 3


def test_after_a_cut_of_the_log_the_messages_after_it_are_indexed_again(index):
    file = fill(index, 10)
    file.forget_behind(5)
    assert index.end_offset == 5
    file.forget_behind(100)
    assert index.end_offset == 5

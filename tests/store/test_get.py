"""Reading: pulls and their statuses, offsets by time, messages by key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message import Message, encode_batch, sysflag
from kourou.store import BoundaryType, BrokerRole, GetMessageStatus, InnerMessage, MessageStore
from kourou.store.log.mapped_file import MappedFile
from kourou.store.queue.batch_consume_queue import ENTRY as BATCH_ENTRY
from kourou.store.queue.batch_consume_queue import BatchConsumeQueue
from kourou.store.queue.consume_queue import ENTRY, ConsumeQueue
from kourou.store.queue.consume_queue_ext import ExtUnit
from kourou.store.reads import MessageFilter
from support.stores.store import (
    LOG_FILE,
    START_MS,
    ManualClock,
    bodies,
    decoded,
    message,
    open_store,
    put,
    small_config,
)

LOWER, UPPER = BoundaryType.LOWER, BoundaryType.UPPER
ENTRIES_PER_FILE = 20


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    with open_store(small_config(tmp_path), clock=clock) as opened:
        yield opened


def drop_first_log_file(store: MessageStore) -> None:
    """As retention does, but leaving the queues as they are."""
    assert store.commit_log.files.remove_files(store.commit_log.files.files[:1]) == 1


class TagFilter(MessageFilter):
    """Lets through entries of some tags code, then records with a body that ends with something."""

    def __init__(self, codes: set[int] | None = None, ending: bytes = b"") -> None:
        self.codes = codes
        self.ending = ending
        self.asked: list[int] = []

    def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
        self.asked.append(tags_code)
        return self.codes is None or tags_code in self.codes

    def matches_record(self, record: memoryview) -> bool:
        return self.ending in bytes(record)


# Statuses


def test_a_queue_that_is_not_there(store):
    put(store, message())
    for topic, queue in (("topic", 9), ("nothing", 0)):
        result = store.get_message(topic, queue, 5, 32)
        assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        assert (result.min_offset, result.max_offset, result.records) == (0, 0, [])


def test_a_queue_without_messages(store):
    store.queues.get_or_create("topic", 0)
    result = store.get_message("topic", 0, 5, 32)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, GetMessageStatus.FOUND, 3),
        (2, GetMessageStatus.FOUND, 3),
        (3, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
        (2**62, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_where_an_offset_lies(store, offset, status, following):
    put(store, message(), message(), message())
    result = store.get_message("topic", 0, offset, 32)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 3)
    assert bool(result.records) == (status is GetMessageStatus.FOUND)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("topic", "offset", "status", "corrected"),
    [
        ("topic", 9, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
        ("topic", 3, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
        ("topic", -5, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        ("nothing", 9, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0),
    ],
)
def test_a_slave_corrects_no_offset_unless_told_to(tmp_path, topic, offset, status, corrected, check):
    with open_store(small_config(tmp_path)) as master:
        put(master, message(), message(), message())
    slave = small_config(tmp_path, broker_role=BrokerRole.SLAVE, offset_check_in_slave=check)
    with open_store(slave) as store:
        result = store.get_message(topic, 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (status, corrected if check else offset)


def test_an_offset_before_what_is_left_is_too_small(store):
    put(store, *[message(body=bytes(30_000)) for _ in range(6)])
    drop_first_log_file(store)
    store.queues.delete_expired(store.commit_log.min_offset)
    result = store.get_message("topic", 0, 0, 32)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 2)
    assert (store.min_offset("topic", 0), store.max_offset("topic", 0)) == (2, 6)


def test_a_log_file_removed_in_the_middle_of_a_read(store):
    """Until the queue's minimum is corrected its first entries point to nothing."""
    put(store, *[message(body=b"%d" % number + bytes(30_000)) for number in range(6)])
    drop_first_log_file(store)
    result = store.get_message("topic", 0, 0, 32)
    assert result.status is GetMessageStatus.FOUND
    assert result.queue_offsets == [2, 3, 4, 5]
    assert result.next_begin_offset == 6

    filtered = store.get_message("topic", 0, 0, 32, message_filter=TagFilter())
    assert (filtered.status, filtered.queue_offsets) == (result.status, result.queue_offsets)


@pytest.mark.parametrize("message_filter", [None, TagFilter()])
def test_only_removed_messages(store, message_filter):
    put(store, *[message("topic", 0, bytes(30_000)) for _ in range(2)])
    put(store, *[message("other", 0, bytes(30_000)) for _ in range(2)])
    drop_first_log_file(store)
    result = store.get_message("topic", 0, 0, 32, message_filter=message_filter)
    assert (result.status, result.records) == (GetMessageStatus.MESSAGE_WAS_REMOVING, [])
    assert result.next_begin_offset == 2


def test_removed_messages_then_messages_that_do_not_match(store):
    """The status tells of the last that was looked at, as in Java."""
    put(store, *[message(body=bytes(30_000), TAGS="a") for _ in range(3)])
    drop_first_log_file(store)
    for chosen in (TagFilter(ending=b"nothing ends so"), TagFilter({97}, ending=b"nothing ends so")):
        result = store.get_message("topic", 0, 0, 32, message_filter=chosen)
        assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 3)
        assert result.filter_message_count == 1


@pytest.mark.parametrize("message_filter", [None, TagFilter()])
@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE])
def test_a_hole_in_the_queue_leads_to_the_next_file(tmp_path, role, message_filter):
    with open_store(small_config(tmp_path)) as store:
        put(store, *[message() for _ in range(ENTRIES_PER_FILE * 3)])
        store.config.broker_role = role
        queue = store.queues.get("topic", 0)
        assert queue is not None
        queue.files.remove_files(queue.files.files[1:2])
        result = store.get_message("topic", 0, ENTRIES_PER_FILE + 3, 32, message_filter=message_filter)
        assert result.status is GetMessageStatus.OFFSET_FOUND_NULL
        slave = role is BrokerRole.SLAVE
        assert result.next_begin_offset == (ENTRIES_PER_FILE + 3 if slave else 2 * ENTRIES_PER_FILE)


@pytest.mark.parametrize("message_filter", [None, TagFilter()])
def test_looking_into_several_queue_files_stops_at_the_end_of_the_queue(tmp_path, message_filter):
    """The last file is exactly full: the offset behind it must not be skipped."""
    with open_store(small_config(tmp_path, travel_cq_file_num_when_get_message=3)) as store:
        put(store, *[message(body=bytes(3100)) for _ in range(ENTRIES_PER_FILE)])
        put(store, message("other", 0, bytes(30_000)))
        drop_first_log_file(store)
        result = store.get_message("topic", 0, 0, 32, message_filter=message_filter)
        assert (result.status, result.records) == (GetMessageStatus.MESSAGE_WAS_REMOVING, [])
        assert result.next_begin_offset == ENTRIES_PER_FILE


def test_several_queue_files_are_searched_if_allowed(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, *[message(body=bytes(3100)) for _ in range(ENTRIES_PER_FILE + 1)])
        assert len(store.commit_log.files.files) == 2
        drop_first_log_file(store)
        assert store.get_message("topic", 0, 0, 32).status is GetMessageStatus.MESSAGE_WAS_REMOVING
        store.config.travel_cq_file_num_when_get_message = 2
        result = store.get_message("topic", 0, 0, 32)
        assert (result.status, result.queue_offsets) == (GetMessageStatus.FOUND, [ENTRIES_PER_FILE])


# Limits


def test_no_more_than_asked_for(store):
    put(store, *[message() for _ in range(10)])
    result = store.get_message("topic", 0, 2, 3)
    assert (result.queue_offsets, result.next_begin_offset, result.message_count) == ([2, 3, 4], 5, 3)
    assert result.buffer_total_size == sum(len(record) for record in result.records)


@pytest.mark.parametrize("message_filter", [None, TagFilter()])
@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({"max_transfer_count_on_message_in_memory": 7}, 7),
        ({"max_transfer_bytes_on_message_in_memory": 5 * 1000 + 999}, 5),
        ({"max_transfer_bytes_on_message_in_memory": 6 * 1000}, 6),
        ({"max_transfer_bytes_on_message_in_memory": 10}, 1),
        ({"access_message_in_memory_max_ratio": 0}, 8),
        ({"access_message_in_memory_max_ratio": 0, "max_transfer_count_on_message_in_disk": 3}, 3),
        ({"access_message_in_memory_max_ratio": 0, "max_transfer_bytes_on_message_in_disk": 4100}, 4),
        ({}, 19),
    ],
)
def test_limits_for_memory_and_for_disk(tmp_path, settings_, expected, message_filter):
    with open_store(small_config(tmp_path, **settings_)) as store:
        put(store, *[message(body=bytes(1000 - 96)) for _ in range(19)])
        result = store.get_message("topic", 0, 0, 32, message_filter=message_filter)
        assert (len(result.records), result.next_begin_offset) == (expected, expected)
        far = settings_.get("access_message_in_memory_max_ratio") == 0
        assert result.suggest_pulling_from_slave == far


@given(
    offset=st.integers(-2, 720), count=st.integers(0, 400),
    max_size=st.sampled_from([90, 3000, 40_000, 1 << 40]),
    transfer=st.sampled_from([2_000, 30_000, 1 << 18]), most=st.sampled_from([32, 64, 65, 1000]),
)  # fmt: skip
def test_a_filter_that_lets_all_through_changes_nothing(many, offset, count, max_size, transfer, most):
    """Given queues and logs of several files, then runs taken whole are what is found one by one."""
    many.config.max_transfer_bytes_on_message_in_memory = transfer
    many.config.max_transfer_count_on_message_in_memory = most
    expected = many.get_message("a", 0, offset, count, max_size, TagFilter())
    found = many.get_message("a", 0, offset, count, max_size)
    for name in ("status", "next_begin_offset", "min_offset", "max_offset", "message_count", "queue_offsets"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.buffer_total_size == expected.buffer_total_size
    assert list(map(bytes, found.records)) == list(map(bytes, expected.records))
    assert b"".join(found.blocks) == b"".join(expected.blocks)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """700 messages of a queue among those of another, in four files of the queue and several of the log."""
    config = small_config(
        tmp_path_factory.mktemp("many"),
        mapped_file_size_consume_queue=200 * 20,
        mapped_file_size_commit_log=64 * 1024,
    )
    with open_store(config, clock=ManualClock()) as opened:
        for number in range(700):
            put(opened, message("a", body=bytes(number % 90)))
            if number % 3 == 0:
                put(opened, message("b", body=bytes(100)))
        yield opened


def test_default_limits_are_javas(store):
    put(store, *[message(body=b"x") for _ in range(ENTRIES_PER_FILE * 3)])
    assert len(store.get_message("topic", 0, 0, 100).records) == ENTRIES_PER_FILE  # a file of the queue ends
    store.config.max_transfer_count_on_message_in_memory = 5
    assert len(store.get_message("topic", 0, 0, 100).records) == 5


@pytest.mark.parametrize("message_filter", [None, TagFilter()])
@pytest.mark.parametrize(
    ("max_size", "expected"), [(2500, 2), (3000, 3), (1, 1), (0, 1), (-1, 1), (2**40, 5)]
)
def test_the_size_asked_for_is_a_limit_but_one_message_always_comes(
    store, max_size, expected, message_filter
):
    put(store, *[message(body=bytes(1000 - 96)) for _ in range(5)])
    result = store.get_message("topic", 0, 0, 32, max_size, message_filter)
    assert len(result.records) == expected


def test_small_messages_below_the_least_size_of_a_pull(store):
    """A maximum under 100 bytes counts as 100, as in Java."""
    put(store, *[message("t", 0, b"") for _ in range(3)])
    assert len(store.get_message("t", 0, 0, 32, 1).records) == 1
    assert len(store.get_message("t", 0, 0, 32, 200).records) == 2


# Filters


def test_a_filter_on_tags_reads_only_records_that_may_match(store):
    put(store, *[message(body=b"%d" % number, TAGS="ab"[number % 2]) for number in range(10)])
    result = store.get_message("topic", 0, 0, 32, message_filter=TagFilter({ord("b")}))
    assert [item.body for item in decoded(result)] == [b"1", b"3", b"5", b"7", b"9"]
    assert (result.queue_offsets, result.next_begin_offset) == ([1, 3, 5, 7, 9], 10)
    assert result.filter_message_count == 0


def test_a_filter_on_records_counts_what_it_keeps_back(store):
    put(store, *[message(body=b"odd" if number % 2 else b"even") for number in range(10)])
    result = store.get_message("topic", 0, 0, 3, message_filter=TagFilter(ending=b"odd"))
    assert (result.queue_offsets, result.next_begin_offset, result.filter_message_count) == ([1, 3, 5], 6, 3)


def test_nothing_matches(store):
    put(store, *[message(TAGS="a") for _ in range(5)])
    result = store.get_message("topic", 0, 1, 32, message_filter=TagFilter({1}))
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 5)


def test_a_filter_looks_at_a_limited_number_of_entries(tmp_path):
    with open_store(small_config(tmp_path, max_filter_message_size=10 * 20)) as store:
        put(store, *[message(TAGS="a") for _ in range(19)])
        chosen = TagFilter({1})
        result = store.get_message("topic", 0, 2, 4, message_filter=chosen)
        assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 12)
        assert len(chosen.asked) == 10


def test_filter_bitmaps_come_from_the_queue_extension(tmp_path):
    with open_store(small_config(tmp_path, enable_consume_queue_ext=True)) as store:
        store.queues.bitmap_of = lambda topic, properties, at: b"\x05" if "KEYS" in properties else b""
        put(store, message(TAGS="a"), message(TAGS="a", KEYS="k"))

        class Bitmaps(TagFilter):
            def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
                assert tags_code == ord("a")
                assert ext is not None
                assert ext.store_timestamp > 0
                return ext.bitmap == b"\x05"

        result = store.get_message("topic", 0, 0, 32, message_filter=Bitmaps())
        assert result.queue_offsets == [1]
        assert len(store.get_message("topic", 0, 0, 32).records) == 2


# Batch queues


def inner_batch(count: int, topic: str = "batch") -> InnerMessage:
    body = encode_batch([Message(topic, b"%d" % number) for number in range(count)])
    return message(topic, 0, body, sys_flag=sysflag.INNER_BATCH, INNER_NUM=str(count))


@pytest.fixture
def batch_store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    with open_store(small_config(tmp_path), clock=clock, is_batch_topic={"batch"}.__contains__) as opened:
        for count in [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]:  # begins 0 3 4 8 9 14 23 25 31 36 39 44, end 52
            put(opened, inner_batch(count))
            clock.advance(1000)
        yield opened


@pytest.mark.parametrize(
    ("offset", "first"), [(0, 0), (2, 0), (3, 3), (13, 9), (14, 14), (38, 36), (39, 39), (44, 44), (51, 44)]
)
def test_a_batch_queue_gives_the_record_that_holds_an_offset(batch_store, offset, first):
    result = batch_store.get_message("batch", 0, offset, 1)
    assert (result.status, result.queue_offsets) == (GetMessageStatus.FOUND, [first])
    assert result.message_count == result.next_begin_offset - first


def test_a_batch_queue_counts_messages_not_records(batch_store):
    result = batch_store.get_message("batch", 0, 0, 10)
    assert (result.queue_offsets, result.message_count, result.next_begin_offset) == ([0, 3, 4, 8], 9, 9)
    result = batch_store.get_message(
        "batch", 0, 9, 100
    )  # 32 in memory: the limit is asked before each record
    assert (result.queue_offsets, result.message_count) == ([9, 14, 23, 25, 31, 36, 39], 35)


@pytest.mark.parametrize("count", [0, -1, -0x8000])
def test_a_damaged_entry_of_a_batch_ends_a_pull(batch_store, count):
    queue = batch_store.queues.get("batch", 0)
    assert isinstance(queue, BatchConsumeQueue)
    file = queue.files.files[-1]
    at = file.wrote - BATCH_ENTRY.size
    entry = bytes(file.view[at : file.wrote])
    _, size, tags, time, base, _, a, b = BATCH_ENTRY.unpack(entry)
    try:
        BATCH_ENTRY.pack_into(file.view, at, 1 << 40, size, tags, time, base, count, a, b)
        assert batch_store.get_message("batch", 0, base, 100).next_begin_offset <= base
    finally:
        file.view[at : file.wrote] = entry


def test_offsets_around_a_batch_queue(batch_store):
    assert (batch_store.min_offset("batch", 0), batch_store.max_offset("batch", 0)) == (0, 52)
    assert batch_store.get_message("batch", 0, 52, 1).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert batch_store.get_message("batch", 0, 53, 1).status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
    assert batch_store.get_message("batch", 0, -1, 1).next_begin_offset == 0


def java_batch_search(times: list[int], bases: list[int], per_file: int, timestamp: int) -> int:
    """BatchConsumeQueue.getOffsetInQueueByTime for LOWER with its cache of first times, word for word."""
    files = [range(start, min(start + per_file, len(times))) for start in range(0, len(times), per_file)]
    cache = {times[file[0]]: file for file in files}
    floor = [time for time in cache if time <= timestamp]
    target = files[-1] if times[files[-1][0]] <= timestamp else cache[max(floor)] if floor else files[0]
    left, right = target[0], target[-1]
    if timestamp >= times[right]:
        return bases[right]
    while left <= right:
        middle = (left + right) // 2
        value = times[middle]
        if middle == right:
            return bases[middle] if value >= timestamp else -1
        if middle == left:
            if value >= timestamp:
                return bases[middle]
            left = middle + 1
        elif value < timestamp:
            left = middle + 1
        else:
            right = middle
    return -1


@given(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=35))
def test_a_batch_queue_by_time_is_javas(tmp_path_factory, gaps):
    clock = ManualClock()
    times = [START_MS + total for total in itertools.accumulate(gaps)]
    bases = [2 * number for number in range(len(gaps))]
    config = small_config(tmp_path_factory.mktemp("by_time"))
    with open_store(config, clock=clock, is_batch_topic={"batch"}.__contains__) as store:
        for gap in gaps:
            clock.advance(gap)
            put(store, inner_batch(2))
        for timestamp in range(START_MS - 1, times[-1] + 2):
            expected = java_batch_search(times, bases, 10, timestamp)
            assert store.offset_by_time("batch", 0, timestamp, LOWER) == expected, timestamp
            # Java's UPPER depends on where its search happens to end; this is what it means to find.
            if timestamp in times:
                last = len(times) - 1 - times[::-1].index(timestamp)
                assert store.offset_by_time("batch", 0, timestamp, UPPER) == bases[last], timestamp


# By time


class JavaQueue:
    """ConsumeQueue.binarySearchInQueueByTime and what it calls, word for word."""

    def __init__(self, store: MessageStore, queue: ConsumeQueue) -> None:
        self.log = store.commit_log
        self.queue = queue
        self.files = queue.files.files
        self.min_physical_offset = self.log.min_offset

    def search(self, timestamp: int, boundary: BoundaryType) -> int:
        file = self.file_by_time(timestamp, boundary)
        if file is None:
            return 0
        low = max(self.queue.min_logic_offset - file.base, 0)
        area = file.size
        if file.wrote not in (0, file.size):
            area = file.wrote
        if area > file.wrote:
            return 0
        ceiling, floor = area - 20, low
        high = ceiling
        stored = self.time_at(file, ceiling)
        if stored < timestamp:
            return (file.base + ceiling + (20 if boundary is LOWER else 0)) // 20
        stored = self.time_at(file, floor)
        if stored > timestamp:
            return file.base // 20 if boundary is LOWER else 0
        target = left = right = -1
        while high >= low:
            middle = (low + high) // 40 * 20
            physical_offset, size, _ = ENTRY.unpack_from(file.view, middle)
            if physical_offset < self.min_physical_offset:
                low = middle + 20
                left = middle
                continue
            stored = self.log.pickup_store_timestamp(physical_offset, size)
            if stored < 0:
                return 0
            if stored == timestamp:
                target = middle
                break
            if stored > timestamp:
                high = middle - 20
                right = middle
            else:
                low = middle + 20
                left = middle
        if target != -1:
            step = -20 if boundary is LOWER else 20
            while floor <= target + step <= ceiling and self.time_at(file, target + step) == timestamp:
                target += step
            return (file.base + target) // 20
        return (file.base + (right if boundary is LOWER else left)) // 20

    def file_by_time(self, timestamp: int, boundary: BoundaryType) -> MappedFile | None:
        starts, stops = [], []
        for number, file in enumerate(self.files):
            starts.append(self.time_at(file, 0) if file.wrote >= 20 else -1)
            stops.append(self.time_at(file, file.size - 20) if number < len(self.files) - 1 else -1)
        if boundary is LOWER:
            for number, file in enumerate(self.files):
                if number == len(self.files) - 1 or stops[number] >= timestamp:
                    return file
        for number in range(len(self.files) - 1, -1, -1):
            if starts[number] <= timestamp:
                return self.files[number]
        return None

    def time_at(self, file: MappedFile, at: int) -> int:
        physical_offset, size, _ = ENTRY.unpack_from(file.view, at)
        return self.log.pickup_store_timestamp(physical_offset, size)


def java_clamp(store: MessageStore, found: int) -> int:
    return min(max(found, store.min_offset("topic", 0)), store.max_offset("topic", 0))


@given(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=70), drop=st.integers(0, 2), large=st.booleans())
def test_offset_by_time_is_javas(tmp_path_factory, gaps, drop, large):
    clock = ManualClock()
    with open_store(small_config(tmp_path_factory.mktemp("by_time")), clock=clock) as store:
        for gap in gaps:
            clock.advance(gap)
            put(store, message(body=bytes(4000 if large else 10)))
        for _ in range(min(drop, len(store.commit_log.files.files) - 1)):
            drop_first_log_file(store)
        store.queues.delete_expired(store.commit_log.min_offset)
        queue = store.queues.get("topic", 0)
        assert isinstance(queue, ConsumeQueue)
        java = JavaQueue(store, queue)
        for timestamp in range(START_MS - 2, clock.now_ms() + 3):
            for boundary in (LOWER, UPPER):
                expected = java_clamp(store, java.search(timestamp, boundary))
                assert store.offset_by_time("topic", 0, timestamp, boundary) == expected, (
                    timestamp,
                    boundary,
                )


@given(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=19))
def test_in_one_queue_file_lower_is_the_first_and_upper_the_last(tmp_path_factory, gaps):
    """What is meant, by a plain look at all times; in one file Java finds it too."""
    clock = ManualClock()
    times = [START_MS + total for total in itertools.accumulate(gaps)]
    with open_store(small_config(tmp_path_factory.mktemp("by_time")), clock=clock) as store:
        for gap in gaps:
            clock.advance(gap)
            put(store, message())
        for timestamp in range(times[0], times[-1] + 3):
            first = sum(time < timestamp for time in times)
            assert store.offset_by_time("topic", 0, timestamp, LOWER) == first
            last = sum(time <= timestamp for time in times) - 1
            assert store.offset_by_time("topic", 0, timestamp, UPPER) == last


@pytest.mark.parametrize("boundary", [LOWER, UPPER])
@pytest.mark.parametrize("timestamp", [-(2**63), -2, -1, 0, START_MS, 2**62])
def test_offset_by_time_where_all_messages_are_gone(store, timestamp, boundary):
    put(store, *[message(body=bytes(30_000)) for _ in range(2)], message("other", 0, bytes(30_000)))
    drop_first_log_file(store)
    store.queues.delete_expired(store.commit_log.min_offset)
    assert store.min_offset("topic", 0) == store.max_offset("topic", 0) == 2
    assert store.offset_by_time("topic", 0, timestamp, boundary) == 2


def test_offset_by_time_of_an_empty_or_missing_queue(store):
    store.queues.get_or_create("topic", 0)
    assert store.offset_by_time("topic", 0, START_MS) == 0
    assert store.offset_by_time("nothing", 0, START_MS) == 0


def test_times_of_messages(store, clock):
    assert store.earliest_message_time() == -1
    for _ in range(6):
        put(store, message(body=bytes(30_000)))
        clock.advance(10)
    assert store.earliest_message_time() == START_MS
    assert store.earliest_message_time("topic", 0) == START_MS
    assert store.message_store_timestamp("topic", 0, 3) == START_MS + 30
    assert store.message_store_timestamp("topic", 0, 6) == -1
    assert store.message_store_timestamp("topic", 1, 0) == -1
    assert store.earliest_message_time("nothing", 0) == -1
    drop_first_log_file(store)
    store.queues.delete_expired(store.commit_log.min_offset)
    assert store.earliest_message_time() == START_MS + 20
    assert store.earliest_message_time("topic", 0) == START_MS + 20


def test_times_with_ipv6_hosts(store):
    put(store, message(born_host=bytes(20), store_host=bytes(20)))
    assert store.earliest_message_time() == START_MS
    assert store.offset_by_time("topic", 0, START_MS + 1) == 1


def test_offsets_of_queues(store):
    put(store, message(), message())
    assert (store.min_offset("topic", 0), store.max_offset("topic", 0)) == (0, 2)
    assert (store.min_offset("nothing", 0), store.max_offset("nothing", 0)) == (-1, 0)


# By place


def test_a_message_by_its_physical_offset(store):
    offsets = put(store, message(body=b"one"), message(body=b"two"))
    found = store.look_message(offsets[1])
    assert found is not None
    assert found.body == b"two"
    for nowhere in (-1, 1, offsets[1] + 1, store.commit_log.max_offset, LOG_FILE * 5):
        assert store.look_message(nowhere) is None


def test_a_damaged_record_is_not_handed_out_by_its_offset(store):
    (offset,) = put(store, message(body=b"body"))
    store.commit_log.files.files[0].view[offset + 88] ^= 1
    assert store.look_message(offset) is None


def test_slices_of_the_log_are_not_copies(store):
    put(store, message(body=b"body"))
    (record,) = store.get_message("topic", 0, 0, 1).records
    store.commit_log.files.files[0].view[88] = ord("B")
    assert bytes(record[88:92]) == b"Body"


# By key


def test_messages_by_key_unique_key_and_tag(store):
    offsets = put(
        store,
        message(body=b"0", KEYS="a b", UNIQ_KEY="u0", TAGS="red"),
        message(body=b"1", KEYS="b  c", UNIQ_KEY="u1", TAGS="blue"),
        message("other", 0, b"2", KEYS="a", UNIQ_KEY="u2", TAGS="red"),
    )

    def found(key: str, index_type: str | None = None) -> list[int]:
        return store.query_message("topic", key, index_type=index_type).physical_offsets

    assert found("a") == [offsets[0]]
    assert found("b") == [offsets[0], offsets[1]]
    assert found("c") == [offsets[1]]
    assert found("u1") == [offsets[1]]
    assert found("red", "T") == [offsets[0]]
    assert found("red") == []
    assert found("a", "T") == []
    assert found("") == []
    assert found("a b") == []
    assert store.query_message("other", "a").physical_offsets == [offsets[2]]
    assert store.query_message("nothing", "a").physical_offsets == []


def test_the_index_says_how_far_it_is(store, clock):
    put(store, message(KEYS="a"))
    clock.advance(5)
    (last,) = put(store, message(KEYS="b"))
    result = store.query_message("topic", "a")
    assert result.index_last_update_timestamp == START_MS + 5
    assert result.index_last_update_physical_offset == last
    assert [bytes(record[88:92]) for record in result.records] == [b"body"]


def test_keys_that_share_a_hash_are_not_mixed_up(store):
    offsets = put(
        store, message(KEYS="Aa"), message(KEYS="BB"), message(KEYS="AaBB BBAa"), message(TAGS="Aa")
    )
    assert store.query_message("topic", "Aa").physical_offsets == [offsets[0]]
    assert store.query_message("topic", "BB").physical_offsets == [offsets[1]]
    assert store.query_message("topic", "BBAa").physical_offsets == [offsets[2]]
    assert store.query_message("topic", "AaAa").physical_offsets == []
    assert store.query_message("topic", "BB", index_type="T").physical_offsets == []


def test_a_key_behind_many_strangers_with_its_hash_is_found(store, clock):
    (wanted,) = put(store, message(KEYS="Aa"))
    for _ in range(40):
        clock.advance(1000)
        put(store, message(KEYS="BB"))
    assert store.query_message("topic", "Aa", 32).physical_offsets == [wanted]


def test_messages_by_key_within_two_times(store, clock):
    offsets = []
    for _ in range(5):
        offsets += put(store, message(KEYS="k"))
        clock.advance(10_000)
    times = [START_MS + 10_000 * number for number in range(5)]

    def found(begin: int, end: int, limit: int = 32) -> list[int]:
        return store.query_message("topic", "k", limit, begin, end).physical_offsets

    assert found(times[1], times[3]) == offsets[1:4]
    assert found(times[1] + 1, times[3] - 1) == offsets[2:3]
    assert found(0, times[0]) == offsets[:1]
    assert found(times[4], 2**62) == offsets[4:]
    assert found(times[4] + 1, 2**62) == []
    assert found(0, times[0] - 1) == []
    assert found(0, 2**62, limit=2) == offsets[3:]  # the newest


def test_a_key_given_twice_is_found_once(store):
    (offset,) = put(store, message(KEYS="k k", UNIQ_KEY="k"))
    assert store.query_message("topic", "k").physical_offsets == [offset]


def test_a_key_of_a_message_that_is_gone_is_not_found(store):
    put(store, *[message(KEYS="k", body=bytes(30_000)) for _ in range(4)])
    drop_first_log_file(store)
    assert len(store.query_message("topic", "k").records) == 2


def test_without_an_index_nothing_is_found_by_key(tmp_path):
    with open_store(small_config(tmp_path, message_index_enable=False)) as store:
        put(store, message(KEYS="k", UNIQ_KEY="u"))
        assert store.query_message("topic", "k").records == []
    assert not (tmp_path / "store" / "index").exists()


def test_no_more_than_max_msgs_num_batch_by_key(tmp_path):
    with open_store(small_config(tmp_path, max_msgs_num_batch=3)) as store:
        offsets = put(store, *[message(KEYS="k") for _ in range(10)])
        assert store.query_message("topic", "k", 100).physical_offsets == offsets[-3:]


@pytest.mark.parametrize("key", ["ключ", "鍵", "🔑", "a\ud83d".encode("utf-8", "replace").decode()])
def test_keys_in_any_script(store, key):
    offsets = put(store, message(KEYS=f"{key} x"), *[message(KEYS=f"other{n}") for n in range(100)])
    assert store.query_message("topic", key).physical_offsets == offsets[:1]


# Estimates


def test_a_count_of_matching_messages_is_exact_where_few_are_scanned(store):
    put(store, *[message(TAGS="ab"[number % 2]) for number in range(50)])
    chosen = TagFilter({ord("a")})
    assert store.estimate_message_count("topic", 0, 0, 50, chosen) == 25
    assert store.estimate_message_count("topic", 0, 10, 20, chosen) == 5
    assert store.estimate_message_count("topic", 0, 0, 1000, chosen) == 25
    assert store.estimate_message_count("topic", 0, 20, 10, chosen) == 0
    assert store.estimate_message_count("nothing", 0, 0, 10, chosen) == -1


@pytest.mark.parametrize("limits", [{"max_consume_queue_scan": 20}, {"sample_count_threshold": 9}])
def test_a_count_is_drawn_from_a_sample_where_many_would_be_scanned(tmp_path, limits):
    with open_store(small_config(tmp_path, **limits)) as store:
        put(store, *[message(TAGS="ab"[number % 2]) for number in range(100)])
        chosen = TagFilter({ord("b")})
        assert store.estimate_message_count("topic", 0, 0, 100, chosen) == 50
        assert len(chosen.asked) == 20


def test_gets_are_counted(store):
    put(store, message(), message())
    store.get_message("topic", 0, 0, 32)
    store.get_message("topic", 0, 2, 32)
    store.get_message("nothing", 0, 2, 32)
    assert (store.stats.get_found, store.stats.get_missed, store.stats.get_transferred) == (1, 2, 2)


def test_a_deleted_topic_is_gone_and_begins_again_at_zero(store, tmp_path):
    put(store, message(), message("other"), message())
    store.delete_topics({"topic", "nothing"})
    assert store.get_message("topic", 0, 0, 32).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    assert not (tmp_path / "store" / "consumequeue" / "topic").exists()
    assert store.put_message(message(body=b"new")).queue_offset == 0
    assert (bodies(store), bodies(store, "other")) == ([b"new"], [b"body"])

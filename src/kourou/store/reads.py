"""Reads: the records of a pull, messages by key, estimates (DefaultMessageStore.getMessage and others)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage, decode
from kourou.store.config import BrokerRole
from kourou.store.index.index_file import TAG_TYPE
from kourou.store.log.disk import physical_memory_bytes
from kourou.store.queue.consume_queue import LONG_RUN, Run
from kourou.store.queue.consume_queue_ext import ExtUnit
from kourou.store.status import GetMessageResult, GetMessageStatus, QueryMessageResult, as_list

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore

MAX_PULL_SIZE = 128 * 1024 * 1024
_QUERY_ROUNDS = 3
_FILTERED_AT_ONCE = 128  # entries


class MessageFilter(Protocol):
    """What a subscription lets through: first by the queue's entry, then by the record."""

    def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
        """Whether an entry may match; its record is not read if not."""
        ...

    def choose(self, run: Run) -> Sequence[int]:
        """Which entries of a run may match, by their numbers in it. Hot."""
        units = run.ext or [None] * len(run.offsets)
        codes = zip(as_list(run.tags_codes), units)
        return [number for number, (code, unit) in enumerate(codes) if self.matches_queue(code, unit)]

    def matches_record(self, record: memoryview) -> bool:
        """Whether a record matches."""
        ...


def get_message(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    max_size: int,
    message_filter: MessageFilter | None,
) -> GetMessageResult:
    """Records of a queue from an offset on that a filter lets through, up to Java's limits. Hot."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return _none(store, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return _none(store, GetMessageStatus.NO_MESSAGE_IN_QUEUE, offset, 0, low, high)
    if offset < low:
        return _none(store, GetMessageStatus.OFFSET_TOO_SMALL, offset, low, low, high)
    if offset == high:
        return _none(store, GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, offset, low, high)
    if offset > high:
        # Who is so far ahead in a topic that was deleted and made again was in the old one.
        begin = low if topic in store.queues.deleted_at else high
        return _none(store, GetMessageStatus.OFFSET_OVERFLOW_BADLY, offset, begin, low, high)
    result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, low, high)
    choice = _Choice(store, result, max_count, min(max(max_size, 100), MAX_PULL_SIZE), message_filter)
    # So many entries are looked at, whatever comes of it, in so many files of the queue.
    end = min(offset + max(store.config.max_filter_message_size // queue.unit_size, max_count), high)
    files = store.config.travel_cq_file_num_when_get_message
    at_once = max_count if message_filter is None else _FILTERED_AT_ONCE
    while files and not choice.is_full and result.next_begin_offset < end:
        following = result.next_begin_offset
        most = max(min(at_once, end - following), 1)
        run = queue.read_run(following, most, with_ext=message_filter is not None)
        if run is None:
            if not result.message_count:
                result.status = GetMessageStatus.OFFSET_FOUND_NULL
                result.next_begin_offset = _corrected(store, offset, queue.roll_next_file(following))
            break
        choice.take(run)
        if result.next_begin_offset <= following:
            break  # a damaged entry of a batch, which leads nowhere
        if run.ends_file:
            files = 0 if result.message_count else files - 1
    stats = store.stats
    if result.message_count:
        result.status = GetMessageStatus.FOUND
        stats.get_found += 1
        stats.get_transferred += result.message_count
    else:
        stats.get_missed += 1
    return result


class _Choice:
    """Takes records into a result, run by run of queue entries, until it is full."""

    __slots__ = (
        "_end", "_filter", "_in_memory_from", "_log", "_max_count", "_max_size", "_result", "_skip_below",
        "_store", "is_full",
    )  # fmt: skip

    def __init__(
        self,
        store: MessageStore,
        result: GetMessageResult,
        max_count: int,
        max_size: int,
        message_filter: MessageFilter | None,
    ) -> None:
        self._store = store
        self._log = store.commit_log
        self._result = result
        self._max_count = max_count
        self._max_size = max_size
        self._filter = message_filter
        self._end = store.commit_log.max_offset
        self._in_memory_from = self._end - memory_bytes(store)
        self._skip_below = -1  # the log is gone up to there
        self.is_full = False

    def take(self, run: Run) -> None:
        """Take what may be taken. Hot: a run that fits, without a filter, is taken as it is."""
        result, config = self._result, self._store.config
        first, last = int(run.offsets[0]), int(run.offsets[-1])
        if first >= self._in_memory_from:
            count = config.max_transfer_count_on_message_in_memory
            size = config.max_transfer_bytes_on_message_in_memory
        else:
            count = config.max_transfer_count_on_message_in_disk
            size = config.max_transfer_bytes_on_message_in_disk
        count, size = min(count, self._max_count), min(size, self._max_size)
        result.suggest_pulling_from_slave = last < self._in_memory_from
        result.behind_bytes = self._end - last
        if self._filter is None and run.batch_nums is None:
            taken = len(run.offsets)
            total = sum(run.sizes) if taken < LONG_RUN else int(np.sum(run.sizes, dtype=np.int64))
            if result.message_count + taken <= count and result.buffer_total_size + total <= size:
                file = self._log.files.find(first)
                if file is not None and last + run.sizes[-1] - file.base <= file.read_position:
                    result.add_run(file.view, file.base, run.offsets, run.sizes, run.queue_offsets, total)
                    self.is_full = result.message_count == count
                    return
        self._take_each(run, count, size)

    def _take_each(self, run: Run, max_count: int, max_size: int) -> None:
        """Look at the entries that the filter chooses: the limits, and what is in the log still."""
        result, find, message_filter = self._result, self._log.files.find, self._filter
        most = min(max_count, self._max_count)
        places, sizes, offsets = as_list(run.offsets), as_list(run.sizes), run.queue_offsets
        chosen: Sequence[int] = range(len(places))
        if message_filter is not None:
            chosen = message_filter.choose(run)
            if len(chosen) < len(places) and not result.message_count:
                result.status = GetMessageStatus.NO_MATCHED_MESSAGE
        base, limit, view = -1, -1, memoryview(b"")
        for number in chosen:
            place, size = places[number], sizes[number]
            batch_num = 1 if run.batch_nums is None else run.batch_nums[number]
            count, total = result.message_count, result.buffer_total_size
            if total and (count + batch_num > self._max_count or total + size > max_size):
                result.next_begin_offset = offsets[number]
                self.is_full = True
                return
            if place < self._skip_below:
                continue
            at = place - base
            if not 0 <= at <= limit - size:
                file = find(place)
                if file is None or place - file.base + size > file.read_position:
                    if not total:
                        result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                    self._skip_below = self._log.roll_next_file(place)
                    continue
                base, limit, view = file.base, file.read_position, file.view
                at = place - base
            record = view[at : at + size]
            if message_filter is not None and not message_filter.matches_record(record):
                result.filter_message_count += 1
                if not total:
                    result.status = GetMessageStatus.NO_MATCHED_MESSAGE
                continue
            result.add(record, offsets[number], batch_num)
            if result.message_count >= most:
                result.next_begin_offset = offsets[number] + batch_num
                self.is_full = True
                return
        result.next_begin_offset = offsets[-1] + (1 if run.batch_nums is None else run.batch_nums[-1])


def memory_bytes(store: MessageStore) -> int:
    """How much of the log is taken to be in memory."""
    return physical_memory_bytes() * store.config.access_message_in_memory_max_ratio // 100


def _none(
    store: MessageStore, status: GetMessageStatus, offset: int, corrected: int, low: int, high: int
) -> GetMessageResult:
    store.stats.get_missed += 1
    return GetMessageResult(status, _corrected(store, offset, corrected), low, high)


def _corrected(store: MessageStore, offset: int, corrected: int) -> int:
    """A slave does not correct a consumer's offset: it may only be behind its master."""
    config = store.config
    if config.broker_role is not BrokerRole.SLAVE or config.offset_check_in_slave:
        return corrected
    return offset


def query_message(
    store: MessageStore,
    topic: str,
    key: str,
    limit: int,
    begin: int,
    end: int,
    index_type: str | None,
    after_offset: int,
) -> QueryMessageResult:
    """Messages by key. The index holds hashes only: a record that merely shares the hash is left out."""
    result = QueryMessageResult([], [], store.index_catch_up.remark)
    begins_at = store.queues.deleted_at.get(topic, 0)  # what is older was deleted with its topic
    for _ in range(_QUERY_ROUNDS):
        offsets = sorted(set(store.index.query(topic, key, limit, begin, end, index_type, after_offset)))
        if not offsets:
            break
        newest = store.index.files[-1]
        result.index_last_update_timestamp = newest.end_timestamp
        result.index_last_update_physical_offset = newest.end_offset
        oldest = end
        for offset in offsets:
            record = store.commit_log.message_at(offset)
            if record is None or offset < begins_at:
                continue
            try:
                message = decode(record, check_crc=False, copy_body=False)
            except CorruptRecordError:
                continue
            oldest = min(oldest, message.store_timestamp)
            if _has_key(message, topic, key, index_type):
                result.records.append(record)
                result.physical_offsets.append(offset)
        if result.records or oldest <= begin or oldest >= end:
            break
        end = oldest  # only strangers with the same hash: look further back
    return result


def _has_key(message: StoredMessage, topic: str, key: str, index_type: str | None) -> bool:
    properties = message.properties
    if message.topic != topic:
        return False
    if index_type == TAG_TYPE:
        return properties.get(names.TAGS) == key
    return properties.get(names.UNIQ_KEY) == key or key in properties.get(names.KEYS, "").split(
        names.KEY_SEPARATOR
    )


def estimate_message_count(
    store: MessageStore, topic: str, queue_id: int, start: int, end: int, message_filter: MessageFilter
) -> int:
    """About how many messages between two queue offsets match: counted, or drawn from a sample."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return -1
    start, end = max(start, queue.min_offset), min(end, queue.max_offset)
    if start >= end:
        return 0
    matched = raw = 0
    for scanned, entry in enumerate(queue.iterate(start), 1):
        if entry.queue_offset >= end:
            return matched
        raw += entry.batch_num
        if message_filter.matches_queue(entry.tags_code, entry.ext):
            matched += entry.batch_num
        if scanned >= store.config.max_consume_queue_scan or matched > store.config.sample_count_threshold:
            return matched * (end - start) // raw
    return matched


def estimate_message_size(store: MessageStore, topic: str, queue_id: int, start: int, end: int) -> int:
    """About how many bytes of log the messages between two queue offsets take: counted, or from a sample."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return -1
    start, end = max(start, queue.min_offset), min(end, queue.max_offset)
    total = messages = 0
    for scanned, entry in enumerate(queue.iterate(start) if start < end else (), 1):
        if entry.queue_offset >= end:
            break
        total += entry.size
        messages += entry.batch_num
        if scanned >= store.config.max_consume_queue_scan:
            return total * (end - start) // messages
    return total

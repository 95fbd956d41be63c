"""Reads: the records of a pull, messages by key, estimates (DefaultMessageStore.getMessage and others)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage, decode
from kourou.store.config import BrokerRole
from kourou.store.consume_queue import ENTRY, ENTRY_DTYPE, ENTRY_SIZE, ConsumeQueue
from kourou.store.consume_queue_ext import ExtUnit
from kourou.store.disk import physical_memory_bytes
from kourou.store.index_file import TAG_TYPE
from kourou.store.queue_store import AnyQueue
from kourou.store.status import GetMessageResult, GetMessageStatus, Places, QueryMessageResult

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore

MAX_PULL_SIZE = 128 * 1024 * 1024
_QUERY_ROUNDS = 3
# By number of entries: how to read them at once. More are read by numpy.
_UNPACKERS = tuple(struct.Struct(">" + "qiq" * count).unpack_from for count in range(65))


class MessageFilter(Protocol):
    """What a subscription lets through: first by the queue's entry, then by the record."""

    def matches_queue(self, tags_code: int, ext: ExtUnit | None) -> bool:
        """Whether an entry may match; its record is not read if not."""
        ...

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
    """Records of a queue from an offset on."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return _none(store, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0, 0)
    plain = None
    if message_filter is None and isinstance(queue, ConsumeQueue) and queue.ext is None:
        plain = queue
        taken = _take_all(store, plain, offset, max_count, max_size)
        if taken is not None:
            return taken
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return _none(store, GetMessageStatus.NO_MESSAGE_IN_QUEUE, offset, 0, low, high)
    if offset < low:
        return _none(store, GetMessageStatus.OFFSET_TOO_SMALL, offset, low, low, high)
    if offset == high:
        return _none(store, GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, offset, low, high)
    if offset > high:
        return _none(store, GetMessageStatus.OFFSET_OVERFLOW_BADLY, offset, high, low, high)
    max_size = min(max(max_size, 100), MAX_PULL_SIZE)
    memory = memory_bytes(store)
    if plain is not None:
        result = _get_plain(store, plain, offset, max_count, max_size, memory)
    else:
        result = _get_filtered(store, queue, offset, max_count, max_size, memory, message_filter)
    result.min_offset, result.max_offset = low, high
    stats = store.stats
    if result.records:
        stats.get_found += 1
        stats.get_transferred += result.message_count
    else:
        stats.get_missed += 1
    return result


def memory_bytes(store: MessageStore) -> int:
    """How much of the log is taken to be in memory."""
    return physical_memory_bytes() * store.config.access_message_in_memory_max_ratio // 100


def _get_plain(
    store: MessageStore, queue: ConsumeQueue, offset: int, max_count: int, max_size: int, memory: int
) -> GetMessageResult:
    """The common case: no filter, one message a record. Hot: under a microsecond a record."""
    config, commit_log = store.config, store.commit_log
    result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset)
    records = result.records
    queue_offsets = result.queue_offsets
    log_end = commit_log.max_offset
    entry_limit = max(config.max_filter_message_size, max_count * ENTRY_SIZE) // ENTRY_SIZE
    following, total, last_offset, skip_below = offset, 0, 0, -1
    base, limit, view = -1, -1, memoryview(b"")
    end = queue.max_offset
    for _ in range(config.travel_cq_file_num_when_get_message):
        if following >= end:
            break
        entries = queue.entries_from(following)
        if entries is None:
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            following = _corrected(store, following, queue.roll_next_file(following))
            break
        wanted = min(len(entries) // ENTRY_SIZE, entry_limit - (following - offset)) * ENTRY_SIZE
        for physical_offset, size, _ in ENTRY.iter_unpack(entries[:wanted]):
            if log_end - physical_offset <= memory:
                count_limit = config.max_transfer_count_on_message_in_memory
                size_limit = config.max_transfer_bytes_on_message_in_memory
            else:
                count_limit = config.max_transfer_count_on_message_in_disk
                size_limit = config.max_transfer_bytes_on_message_in_disk
            if total:
                count = len(records)
                grown = total + size
                if count >= max_count or count >= count_limit or grown > max_size or grown > size_limit:
                    break
            last_offset = physical_offset
            following += 1
            if physical_offset < skip_below:
                continue
            at = physical_offset - base
            if not 0 <= at <= limit - size:
                file = commit_log.files.find(physical_offset)
                if file is None or physical_offset - file.base + size > file.read_position:
                    if not total:
                        result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                    skip_below = commit_log.roll_next_file(physical_offset)
                    continue
                base, limit, view = file.base, file.read_position, file.view
                at = physical_offset - base
            records.append(view[at : at + size])
            queue_offsets.append(following - 1)
            total += size
        if total:
            result.status = GetMessageStatus.FOUND
            break
    result.next_begin_offset = following
    result.message_count = len(records)
    result.buffer_total_size = total
    result.suggest_pulling_from_slave = log_end - last_offset > memory
    return result


def take_all(
    store: MessageStore, topic: str, queue_id: int, offset: int, max_count: int
) -> GetMessageResult | None:
    """What `get_message` gives to a pull without a filter, where that is easily told; None elsewhere. Hot."""
    try:
        queue = store.queues.table[topic][queue_id]
    except KeyError:
        return None
    if queue.__class__ is not ConsumeQueue or queue.ext is not None:
        return None
    return _take_all(store, queue, offset, max_count, MAX_PULL_SIZE)


def _take_all(
    store: MessageStore, queue: ConsumeQueue, offset: int, max_count: int, max_size: int
) -> GetMessageResult | None:
    """As many records as may be taken at once, where all of them lie in one log file and in memory; None
    elsewhere. Hot: a third of the time of looking at each."""
    log_files, queue_files, config = store.commit_log.files, queue.files, store.config
    if not log_files.files or not queue_files.files:
        return None
    queue_file, last = queue_files.files[-1], log_files.files[-1]
    at = offset * ENTRY_SIZE - queue_file.base
    available = high = (queue_file.wrote - at) // ENTRY_SIZE
    if at < 0:
        older = queue_files.find(offset * ENTRY_SIZE)
        if older is None:
            return None
        at += queue_file.base - older.base
        queue_file, available = older, (older.wrote - at) // ENTRY_SIZE
    count = min(max_count, config.max_transfer_count_on_message_in_memory, available)
    low = queue.min_offset
    if count <= 0 or offset < low:
        return None
    limit = min(max_size, config.max_transfer_bytes_on_message_in_memory)
    offsets: Places
    sizes: Places
    if count < len(_UNPACKERS):
        flat = _UNPACKERS[count](queue_file.view, at)
        offsets, sizes = flat[0::3], flat[1::3]
        total = sum(sizes)
        if total > limit:
            return None
    else:
        entries = np.frombuffer(queue_file.view, ENTRY_DTYPE, count, at)
        ends = np.cumsum(entries["size"], dtype=np.int64)
        count = int(np.searchsorted(ends, limit, "right"))
        if count == 0:
            return None
        offsets, sizes = entries["offset"][:count].astype(np.int64), entries["size"][:count].astype(np.int64)
        total = int(ends[count - 1])
    first, end = int(offsets[0]), int(offsets[-1] + sizes[-1])
    file = last if first >= last.base else log_files.find(first)
    if (
        file is None
        or end - file.base > file.read_position
        or last.base + last.read_position - first > memory_bytes(store)
    ):
        return None
    result = GetMessageResult(GetMessageStatus.FOUND, offset + count, low, offset + high)
    result.view = file.view
    base = file.base
    if isinstance(offsets, np.ndarray):
        offsets = offsets - base
    elif base:
        offsets = [place - base for place in offsets]
    result.places = offsets, sizes
    result.message_count = count
    result.buffer_total_size = total
    store.stats.get_found += 1
    store.stats.get_transferred += count
    return result


def _get_filtered(
    store: MessageStore,
    queue: AnyQueue,
    offset: int,
    max_count: int,
    max_size: int,
    memory: int,
    message_filter: MessageFilter | None,
) -> GetMessageResult:
    config, commit_log = store.config, store.commit_log
    result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset)
    log_end = commit_log.max_offset
    byte_limit = max(config.max_filter_message_size, max_count * queue.unit_size)
    following, last_offset, skip_below, seen = offset, 0, -1, False
    queue_offsets = result.queue_offsets
    for entry in queue.iterate(offset):
        seen = True
        if (entry.queue_offset - offset) * queue.unit_size >= byte_limit:
            break
        if _is_full(store, result, entry.size, entry.batch_num, max_count, max_size,
                    log_end - entry.physical_offset <= memory):  # fmt: skip
            break
        last_offset = entry.physical_offset
        following = entry.queue_offset + entry.batch_num
        if entry.physical_offset < skip_below:
            continue
        if message_filter is not None and not message_filter.matches_queue(entry.tags_code, entry.ext):
            if not result.records:
                result.status = GetMessageStatus.NO_MATCHED_MESSAGE
            continue
        record = commit_log.message(entry.physical_offset, entry.size)
        if record is None:
            if not result.records:
                result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
            skip_below = commit_log.roll_next_file(entry.physical_offset)
            continue
        if message_filter is not None and not message_filter.matches_record(record):
            result.filter_message_count += 1
            if not result.records:
                result.status = GetMessageStatus.NO_MATCHED_MESSAGE
            continue
        result.records.append(record)
        queue_offsets.append(entry.queue_offset)
        result.message_count += entry.batch_num
        result.buffer_total_size += entry.size
        result.status = GetMessageStatus.FOUND
        skip_below = -1
    if not seen:
        result.status = GetMessageStatus.OFFSET_FOUND_NULL
        following = _corrected(store, offset, queue.roll_next_file(offset))
    result.next_begin_offset = following
    result.suggest_pulling_from_slave = log_end - last_offset > memory
    return result


def _is_full(
    store: MessageStore,
    result: GetMessageResult,
    size: int,
    batch_num: int,
    max_count: int,
    max_size: int,
    in_memory: bool,
) -> bool:
    if not result.records:
        return False
    config = store.config
    grown = result.buffer_total_size + size
    if result.message_count + batch_num > max_count or grown > max_size:
        return True
    if in_memory:
        return (
            grown > config.max_transfer_bytes_on_message_in_memory
            or result.message_count >= config.max_transfer_count_on_message_in_memory
        )
    return (
        grown > config.max_transfer_bytes_on_message_in_disk
        or result.message_count >= config.max_transfer_count_on_message_in_disk
    )


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
    result = QueryMessageResult(store.index_catch_up.remark, [], [])
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

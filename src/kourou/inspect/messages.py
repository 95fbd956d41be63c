"""Messages of a store by topic, queue, offset, key, time, place or id; what `kourou store cat` prints.

A selection is answered from the queues where it names a topic, from the index where it names a key, else,
and with `scan`, from the log itself. Records come as slices of the log, oldest first.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kourou.errors import BadMessageError, ConfigError, CorruptRecordError, StoreError
from kourou.inspect.directory import LogFile, StoreDirectory
from kourou.inspect.log_scan import Break, Stretch, walk
from kourou.inspect.queue_files import QueueFiles
from kourou.message import properties as names
from kourou.message.codec import StoredMessage, decode
from kourou.message.host import unpack_host
from kourou.message.ids import decode_offset_message_id
from kourou.message.scan import records as record_scan
from kourou.store.queue.consume_queue import QueueEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages; what is None does not count."""

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int | None = None  # queue offsets, the last not included
    end_offset: int | None = None
    begin_ms: int | None = None  # store times, the last not included
    end_ms: int | None = None
    key: str | None = None
    physical_offset: int | None = None
    message_id: str | None = None
    scan: bool = False  # read the log, whatever queues and index say
    limit: int | None = None  # no more than so many
    tail: int | None = None  # only the last so many

    def __post_init__(self) -> None:
        if self.topic is None and (self.queue_id is not None or self.first_offset or self.end_offset):
            raise ConfigError("queues and their offsets belong to a topic: name it with --topic")
        if self.limit is not None and self.tail is not None:
            raise ConfigError("--limit and --tail exclude each other")

    def has_time(self, timestamp: int) -> bool:
        """Whether a store time is within the selection."""
        return (self.begin_ms is None or timestamp >= self.begin_ms) and (
            self.end_ms is None or timestamp < self.end_ms
        )


class MessageReader:
    """Reads what a selection names."""

    def __init__(self, store: StoreDirectory, selection: Selection) -> None:
        self._store = store
        self._selection = selection
        self.unreadable: list[int] = []  # physical offsets where a record should be, and none is

    def records(self) -> Iterator[memoryview]:
        """The bytes of each record."""
        found = self._found()
        if self._selection.tail is not None:
            return iter(deque(found, self._selection.tail))
        return itertools.islice(found, self._selection.limit)

    def messages(self) -> Iterator[StoredMessage]:
        """Each message; its body is a slice of the log, as stored."""
        return (decode(record, check_crc=False, copy_body=False) for record in self.records())

    def _found(self) -> Iterator[memoryview]:
        selection = self._selection
        if selection.physical_offset is not None:
            return self._at(selection.physical_offset)
        if selection.message_id is not None:
            return self._by_id(selection.message_id)
        if selection.key is not None and not selection.scan and self._has_index:
            return self._by_key(selection.key)
        if selection.topic is not None and selection.key is None and not selection.scan:
            return self._from_queues(selection.topic)
        return self._from_log()

    # By place or id

    def _at(self, offset: int) -> Iterator[memoryview]:
        record = self._whole(offset)
        if record is None:
            raise StoreError(f"no record begins at {offset}; the log begins at {self._store.min_offset}")
        yield record

    def _by_id(self, message_id: str) -> Iterator[memoryview]:
        """By the id that says a place, if the message that lies there has it; else by the client's own id."""
        try:
            offset, ip = (decoded := decode_offset_message_id(message_id)).physical_offset, decoded.ip
        except BadMessageError:
            offset, ip = -1, ""
        message = self._store.message(offset) if offset >= 0 else None
        if message is not None and unpack_host(message.store_host)[0] == ip:
            yield from self._at(offset)
            return
        found = False
        for record in self._by_key(message_id.upper()) if self._has_index else self._from_log():
            if decode(record, check_crc=False, copy_body=False).message_id == message_id.upper():
                found = True
                yield record
        if not found:
            raise StoreError(f"there is no message with the id {message_id}")

    def _whole(self, offset: int) -> memoryview | None:
        record = self._store.record(offset)
        try:
            message = decode(record or b"", check_crc=False, copy_body=False)
        except CorruptRecordError:
            return None
        return record if message.physical_offset == offset else None

    # By key

    @property
    def _has_index(self) -> bool:
        return bool(self._store.index_paths) and not self._store.lacks_keys

    def _by_key(self, key: str) -> Iterator[memoryview]:
        topics = [self._selection.topic] if self._selection.topic is not None else self._all_topics()
        offsets: set[int] = set()
        for path in self._store.index_paths:
            file = self._store.index_file(path)
            if file is not None:
                for topic in topics:
                    offsets.update(file.query(f"{topic}#{key}", file.max_entries, 0, (1 << 63) - 1))
        for offset in sorted(offsets):
            message = self._store.message(offset)
            record = self._store.record(offset)
            if message is None or record is None:
                self.unreadable.append(offset)
            elif has_key(message, key) and self._wanted(message):
                yield record

    def _all_topics(self) -> list[str]:
        return sorted({queue.topic for queue in self._store.queues} | (self._store.topic_names or set()))

    def _wanted(self, message: StoredMessage) -> bool:
        selection = self._selection
        return (
            selection.topic in (None, message.topic)
            and selection.queue_id in (None, message.queue_id)
            and (selection.first_offset is None or message.queue_offset >= selection.first_offset)
            and (selection.end_offset is None or message.queue_offset < selection.end_offset)
            and selection.has_time(message.store_timestamp)
        )

    # From the queues

    def _from_queues(self, topic: str) -> Iterator[memoryview]:
        selection = self._selection
        queues = [queue for queue in self._store.queues if queue.topic == topic]
        if selection.queue_id is not None:
            queues = [queue for queue in queues if queue.queue_id == selection.queue_id]
        if not queues:
            which = topic if selection.queue_id is None else f"{topic}-{selection.queue_id}"
            known = ", ".join(sorted({queue.topic for queue in self._store.queues})) or "none"
            raise StoreError(f"there is no queue of {which} here; topics with queues: {known}")
        entries = heapq.merge(*map(self._entries, queues), key=lambda entry: entry.physical_offset)
        for entry in entries:
            record = self._store.record(entry.physical_offset)
            if (
                record is None
                or len(record) != entry.size
                or self._store.message(entry.physical_offset) is None
            ):
                self.unreadable.append(entry.physical_offset)
            else:
                yield record

    def _entries(self, queue: QueueFiles) -> Iterator[QueueEntry]:
        selection = self._selection
        low, high = queue.min_offset, queue.max_offset
        if selection.first_offset is not None:
            low = max(low, selection.first_offset)
        if selection.end_offset is not None:
            high = min(high, selection.end_offset)
        if selection.begin_ms is not None:
            low = max(low, self._offset_by_time(queue, selection.begin_ms))
        if selection.end_ms is not None:
            high = min(high, self._offset_by_time(queue, selection.end_ms))
        if selection.tail is not None:
            low = max(low, high - selection.tail)
        return queue.iterate(low, high)

    def _offset_by_time(self, queue: QueueFiles, timestamp: int) -> int:
        """The queue offset of the first message stored at or after a time."""

        def time_of(place: int) -> int:
            entry = queue.entry(place)
            message = None if entry is None else self._store.message(int(entry["offset"]))
            return -1 if message is None else message.store_timestamp

        place = bisect_left(range(queue.end), timestamp, queue.first, key=time_of)
        if not queue.batch or place >= queue.end:
            return queue.max_offset if place >= queue.end else place
        entry = queue.entry(place)
        return 0 if entry is None else int(entry["base"])

    # From the log

    def _from_log(self) -> Iterator[memoryview]:
        files = self._files_by_time()
        if self._selection.tail is None:
            for file in files:
                yield from self._from_file(file)
            return
        # From the last file back, so that a tail does not read the whole log.
        found: deque[memoryview] = deque()
        for file in reversed(files):
            wanted = self._selection.tail - len(found)
            if wanted <= 0:
                break
            found.extendleft(reversed(deque(self._from_file(file), wanted)))
        yield from found

    def _files_by_time(self) -> list[LogFile]:
        """The files that may hold something of the wanted time: store times rise with the log."""
        begin, end = self._selection.begin_ms, self._selection.end_ms
        files = []
        for number, file in enumerate(self._store.log_files):
            following = self._store.log_files[number + 1 : number + 2]
            next_time = self._first_time(following[0]) if following else None
            if begin is not None and next_time is not None and next_time < begin:
                continue
            first_time = self._first_time(file)
            if end is not None and first_time is not None and first_time >= end:
                break
            files.append(file)
        return files

    def _first_time(self, file: LogFile) -> int | None:
        message = self._store.message(file.base)
        return None if message is None else message.store_timestamp

    def _from_file(self, file: LogFile) -> Iterator[memoryview]:
        for part in walk(self._store, check_crc=False, start=file.base):
            if part.file.base != file.base:
                return
            if isinstance(part, Break) and not part.empty:
                self.unreadable.append(file.base + part.position)
            if isinstance(part, Stretch):
                yield from self._matching(part)

    def _matching(self, stretch: Stretch) -> Iterator[memoryview]:
        selection, records = self._selection, stretch.records
        header = records.header
        keep = np.ones(len(records), np.bool_)
        if selection.begin_ms is not None:
            keep &= header["store_timestamp"] >= selection.begin_ms
        if selection.end_ms is not None:
            keep &= header["store_timestamp"] < selection.end_ms
        if selection.queue_id is not None:
            keep &= header["queue_id"] == selection.queue_id
        if selection.first_offset is not None:
            keep &= header["queue_offset"] >= selection.first_offset
        if selection.end_offset is not None:
            keep &= header["queue_offset"] < selection.end_offset
        if selection.topic is not None:
            keep &= record_scan.has_topic(stretch.view, records, [selection.topic])
        key = selection.key
        for row in np.flatnonzero(keep).tolist():
            start = int(records.positions[row])
            record = stretch.view[start : start + int(records.sizes[row])]
            if key is None or has_key(decode(record, check_crc=False, copy_body=False), key):
                yield record


def has_key(message: StoredMessage, key: str) -> bool:
    """Whether a message can be asked for by a key: one of KEYS, or its unique id."""
    properties = message.properties
    if properties.get(names.UNIQ_KEY) == key:
        return True
    return key in properties.get(names.KEYS, "").split(names.KEY_SEPARATOR)

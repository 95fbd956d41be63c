"""Pages of a store: records of a log file, entries of a queue, timers; and one record with its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from kourou.errors import CorruptRecordError, StoreError
from kourou.inspect.check.queue_report import judge_record
from kourou.inspect.directory import LogFile, StoreDirectory
from kourou.inspect.log_scan import Blank, Break, walk
from kourou.inspect.queue_files import QueueFile, QueueFiles
from kourou.message.codec import BLANK_MAGIC, SIZE_AND_MAGIC, StoredMessage, decode
from kourou.message.scan import records as scan
from kourou.store.queue.consume_queue import QueueEntry
from kourou.store.timer.files import DEFAULT_PRECISION_MS, read_timer_log, read_wheel

RECORDS_A_PAGE = 50
ENTRIES_A_PAGE = 100
MOST_TIMERS = 500
MAX_RECORD_BYTES = 4 * 1024 * 1024  # of one record that are read; RocketMQ's own limit by default
DAMAGED_BYTES = 512  # that are shown where no record can be told
SEARCH_BYTES = 64 * 1024 * 1024  # in which the next record is looked for
_STRETCH_BYTES = 256 * 1024

# What is to be said of a record or an entry, where it is not damage
OK, NO_RECORD, BLANK = "ok", "there is no record", "blank"


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some of a log file: rows in order, and where the next ones begin (None at the end)."""

    rows: list[dict[str, Any]]
    following: int | None


def find_log_file(store: StoreDirectory, name: str) -> LogFile:
    """The log file of a name, as the store shows it."""
    for file in store.log_files:
        if store.relative(file.path) == name:
            return file
    raise StoreError(f"there is no log file {name} here")


def read_records(store: StoreDirectory, name: str, begin: int | None) -> RecordPage:
    """Records of a log file from a physical offset on, or from the next record behind it."""
    file = find_log_file(store, name)
    view = store.view(file.path)
    position = min(max((begin or 0) - file.base, 0), file.size)
    if position and scan.first_record(view, position, position + 1, base_offset=file.base) is None:
        limit = min(position + SEARCH_BYTES, store.data_end(file.path))
        found = scan.first_record(view, position, limit, base_offset=file.base)
        position = position if found is None else found
    rows: list[dict[str, Any]] = []
    for part in walk(store, start=file.base + position, stretch_bytes=_STRETCH_BYTES):
        if part.file.path != file.path:
            break
        if isinstance(part, Blank):
            rows.append(_gap_row(store, file, part.position, file.size - part.position, BLANK))
        elif isinstance(part, Break):
            if not part.empty:
                size = part.resume - part.position if part.resume < file.size else part.dirty - part.position
                rows.append(_gap_row(store, file, part.position, size, part.reason))
        else:
            for at, size in zip(part.records.positions.tolist(), part.records.sizes.tolist()):
                if len(rows) >= RECORDS_A_PAGE:
                    return RecordPage(rows, file.base + at)
                rows.append(_record_row(store, file, decode(part.view[at : at + size], copy_body=False)))
        if len(rows) >= RECORDS_A_PAGE:
            break
    return RecordPage(rows, None)


def _record_row(store: StoreDirectory, file: LogFile, message: StoredMessage) -> dict[str, Any]:
    return {
        "offset": message.physical_offset,
        "file": store.relative(file.path),
        "topic": message.topic,
        "queue": message.queue_id,
        "place": message.queue_offset,
        "size": message.store_size,
        "stored": message.store_timestamp,
        "keys": message.properties.get("KEYS", ""),
        "tags": message.properties.get("TAGS", ""),
        "state": "",
    }


def _gap_row(store: StoreDirectory, file: LogFile, position: int, size: int, what: str) -> dict[str, Any]:
    offset = file.base + position
    return {
        "offset": offset, "file": store.relative(file.path), "topic": "", "queue": None, "place": None,
        "size": size, "stored": 0, "keys": "", "tags": "", "state": what,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """The bytes at a place of the log, the message that they are (None for damage), and what is beside."""

    file: str
    offset: int
    data: bytes
    message: StoredMessage | None
    following: int | None
    queue_file: str | None
    queue_index: int


def read_record(store: StoreDirectory, offset: int) -> Record:
    """The record at a physical offset; where none can be told, some bytes that lie there."""
    file = store.log_file(offset)
    if file is None:
        raise StoreError(f"the log has no offset {offset}: it has {store.min_offset} and those behind it")
    found = store.record(offset)
    at = offset - file.base
    message = None
    if found is not None and len(found) <= MAX_RECORD_BYTES:
        try:
            message = decode(found, check_crc=False)
        except CorruptRecordError:
            message = None
    data = bytes(found[:MAX_RECORD_BYTES]) if found is not None else b""
    if not data:
        data = bytes(store.view(file.path)[at : at + DAMAGED_BYTES])
        if len(data) >= SIZE_AND_MAGIC.size and SIZE_AND_MAGIC.unpack_from(data)[1] == BLANK_MAGIC:
            data = data[:64]
    following = None
    end = offset + len(data)
    if found is not None and store.record(end) is not None:
        following = end
    queue_file, index = _queue_place(store, message)
    return Record(store.relative(file.path), offset, data, message, following, queue_file, index)


def _queue_place(store: StoreDirectory, message: StoredMessage | None) -> tuple[str | None, int]:
    queue = None if message is None else store.queue(message.topic, message.queue_id)
    if queue is None or message is None or queue.batch:
        return None, 0
    entry = queue.entry(message.queue_offset)
    if entry is None or int(entry["offset"]) != message.physical_offset:
        return None, 0
    return store.relative(queue.position(message.queue_offset)[0]), message.queue_offset


# Queues


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries of a file of a queue: rows, and which of its places they begin at."""

    file: str
    files: list[str]  # of the queue
    topic: str
    queue_id: int
    is_batch: bool
    first: int
    end: int  # behind the last entry of the file
    begin: int
    rows: list[dict[str, Any]]


def read_entries(store: StoreDirectory, name: str, begin: int | None) -> EntryPage:
    """Entries of a file of a queue, from an index on."""
    queue, file = _find_queue_file(store, name)
    end = file.first + queue.used(file)
    index = min(max(begin if begin is not None else file.first, file.first), max(end - 1, file.first))
    stop = min(index + ENTRIES_A_PAGE, end)
    rows = []
    room = queue.room(file)
    for place in range(index, stop):
        entry = room[place - file.first]
        offset, size, tags = int(entry["offset"]), int(entry["size"]), int(entry["tags"])
        queue_offset = int(entry["base"]) if queue.batch else place
        message = store.message(offset)
        log_file = store.log_file(offset)
        verdict = "" if message is None else _judge(store, queue, queue_offset, offset, size)
        rows.append(
            {
                "place": queue_offset,
                "offset": offset,
                "file": "" if log_file is None else store.relative(log_file.path),
                "size": size,
                "tags": tags,
                "count": int(entry["count"]) if queue.batch else 1,
                "stored": 0 if message is None else message.store_timestamp,
                "keys": "" if message is None else message.properties.get("KEYS", ""),
                "state": verdict or NO_RECORD,
                "is_expired": offset < store.min_offset,
            }
        )
    files = [store.relative(one.path) for one in queue.files]
    name = store.relative(file.path)
    return EntryPage(name, files, queue.topic, queue.queue_id, queue.batch, file.first, end, index, rows)


def _judge(store: StoreDirectory, queue: QueueFiles, place: int, offset: int, size: int) -> str:
    return judge_record(store, queue, QueueEntry(place, offset, size, 0))


def _find_queue_file(store: StoreDirectory, name: str) -> tuple[QueueFiles, QueueFile]:
    for queue in store.queues:
        if name.startswith(f"{store.relative(queue.path)}/") or name == store.relative(queue.path):
            for file in queue.files:
                if name in (store.relative(file.path), store.relative(queue.path)):
                    return queue, file
    raise StoreError(f"there is no queue file {name} here")


# Timers


def read_wheel_slots(store: StoreDirectory) -> list[dict[str, Any]]:
    """The slots of the timer wheel that hold something, the latest first."""
    slots = sorted(read_wheel(store.view(f"{store.root}/timerwheel")), key=lambda slot: -slot.time)
    return [
        {
            "due": slot.time * DEFAULT_PRECISION_MS, "messages": slot.messages, "first": slot.first_position,
            "last": slot.last_position,
        }
        for slot in slots[:MOST_TIMERS]
    ]  # fmt: skip


def read_timers(store: StoreDirectory, file: str) -> list[dict[str, Any]]:
    """The first units of a file of the timer log."""
    name = file.removeprefix("timerlog/")
    if name not in store.disk.list(f"{store.root}/timerlog") or not name.isdecimal():
        raise StoreError(f"there is no file {file} here")
    units = read_timer_log(store.view(f"{store.root}/timerlog/{name}"), int(name))
    return [
        {
            "due": unit.due_ms, "messages": 1, "first": unit.previous_position, "last": unit.position,
            "offset": unit.physical_offset,
        }
        for unit in islice(units, MOST_TIMERS)
    ]  # fmt: skip

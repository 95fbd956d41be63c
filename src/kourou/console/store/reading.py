"""Reading a store for the browser: which one may be opened, and pages of records and of queue entries.

Everything here is read in a thread of its own, opens the store anew (a broker may be writing to it), and ends
after a bounded number of records, entries or bytes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from kourou.auth.model import is_loopback
from kourou.console.door.sessions import ForbiddenError
from kourou.console.door.users import Role
from kourou.console.texts import later
from kourou.console.views.view import View
from kourou.errors import CorruptRecordError, KourouError, StoreError
from kourou.inspect import StoreDirectory
from kourou.inspect.check.queue_report import judge_record
from kourou.inspect.directory import LogFile
from kourou.inspect.log_scan import Blank, Break, walk
from kourou.inspect.queue_files import QueueFile, QueueFiles
from kourou.message.codec import BLANK_MAGIC, SIZE_AND_MAGIC, StoredMessage, decode
from kourou.message.scan import records as scan
from kourou.store.queue.consume_queue import QueueEntry

READ_S = 30.0
RECORDS_A_PAGE = 50
ENTRIES_A_PAGE = 100
MAX_RECORD_BYTES = 4 * 1024 * 1024  # of one record that are read; RocketMQ's own limit by default
DAMAGED_BYTES = 512  # that are shown where no record can be told
SEARCH_BYTES = 64 * 1024 * 1024  # in which the next record is looked for
_STRETCH_BYTES = 256 * 1024

# What is to be said of a record or an entry, where it is not damage
OK, NO_RECORD, BLANK = later("ok"), later("there is no record"), later("blank")

_T = TypeVar("_T")
_threads = ThreadPoolExecutor(2, "kourou-store")


def is_free(view: View) -> bool:
    """Whether any path may be typed: not where there are users, nor where other machines get in."""
    config = view.config
    return config.users_file is None and is_loopback(config.host) and view.may(Role.OPERATOR)


def check_path(view: View, path: str) -> str:
    """The path of a store that this user may open; ForbiddenError otherwise."""
    wanted = os.path.realpath(os.path.expanduser(path))
    if wanted in {os.path.realpath(one) for one in view.config.stores} or is_free(view):
        return wanted
    raise ForbiddenError(
        f"{path} is none of the stores of this console: name it with `kourou console --store DIRECTORY`"
    )


async def read(
    view: View, path: str, work: Callable[[StoreDirectory], _T], *, within_s: float = READ_S
) -> _T:
    """What `work` finds in a store, read in a thread."""
    view.access.check(view.session, Role.VIEWER)
    root = check_path(view, path)

    def run() -> _T:
        try:
            with StoreDirectory.open(root) as store:
                return work(store)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error

    try:
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(_threads, run), within_s)
    except TimeoutError:
        raise KourouError(f"{path} was not read within {within_s:g} s: use `kourou store` for it") from None


def store_url(path: str, **parameters: object) -> str:
    """The address of a place in a store."""
    given = {key: value for key, value in parameters.items() if value not in ("", None)}
    return f"/store?{urlencode({'path': path, **given})}"


# Records


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
        "offset_href": store_url(store.root, file=store.relative(file.path), offset=message.physical_offset),
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
        "offset": offset, "offset_href": store_url(store.root, file=store.relative(file.path), offset=offset),
        "topic": "", "queue": None, "place": None, "size": size, "stored": 0, "keys": "", "tags": "",
        "state": what, "state_color": "mute" if what == BLANK else "bad",
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
                "offset_href": ""
                if log_file is None
                else store_url(store.root, file=store.relative(log_file.path), offset=offset),
                "size": size,
                "tags": tags,
                "count": int(entry["count"]) if queue.batch else 1,
                "stored": 0 if message is None else message.store_timestamp,
                "keys": "" if message is None else message.properties.get("KEYS", ""),
                "state": verdict or NO_RECORD,
                "state_color": "good" if verdict == OK else "bad" if offset >= store.min_offset else "mute",
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

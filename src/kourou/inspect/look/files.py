"""The files of a store, to be drawn to scale: of each what is used, flushed, blank and free.

Nothing is read that a few looks do not tell: queues know where records lie, so the end of a log file is found
by halving, and only what lies behind is walked over, for a bounded way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kourou.inspect import StoreDirectory
from kourou.inspect.directory import LogFile
from kourou.inspect.log_scan import Blank, Break, LogEnd, Stretch, walk
from kourou.inspect.queue_files import QueueFiles
from kourou.store.index.index_file import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
from kourou.store.log.mapped_file import last_used
from kourou.store.timer.files import read_timer_checkpoint, read_wheel

MOST_FILES = 100  # of a kind
MOST_QUEUES = 512  # that are asked where a log file ends
WALK_BYTES = 64 * 1024 * 1024  # that are walked over to find the end of a log file
_CHECKPOINT_BYTES = 48
_SLOT_BYTES = 32


@dataclass(slots=True)
class Bar:
    """A file, or the files of a queue: its parts as (kind, bytes), in order; the rest is free."""

    name: str
    size_bytes: int
    parts: list[tuple[str, int]]
    entries: int = 0  # that it holds, where it is made of entries


@dataclass(slots=True)
class Drawing:
    """All files by kind; `left_out` counts those that are too many to be drawn."""

    log: list[Bar] = field(default_factory=list)
    queues: list[Bar] = field(default_factory=list)
    index: list[Bar] = field(default_factory=list)
    others: list[Bar] = field(default_factory=list)
    left_out: int = 0


def draw_files(store: StoreDirectory, end: LogEnd) -> Drawing:
    """The files of a store whose log ends there."""
    drawing = Drawing()
    flushed = flushed_offset(store, end)
    files = store.log_files
    drawing.left_out = max(len(files) - MOST_FILES, 0) + max(len(store.queues) - MOST_FILES, 0)
    for file in files[-MOST_FILES:]:
        drawing.log.append(_log_bar(store, file, end, flushed, is_last=file is files[-1]))
    for queue in store.queues[:MOST_FILES]:
        drawing.queues.append(_queue_bar(store, queue))
    for path in store.index_paths[-MOST_FILES:]:
        drawing.index.append(_index_bar(store, path))
    drawing.others = _other_bars(store)
    return drawing


def _log_bar(store: StoreDirectory, file: LogFile, end: LogEnd, flushed: int, *, is_last: bool) -> Bar:
    blank = damaged = 0
    if end.offset < file.base:
        used = 0  # made ahead of its time
    elif is_last or end.offset < file.base + file.size:
        used = min(max(end.offset - file.base, 0), file.size)
        ending = end.ending
        if ending is not None and ending.file.path == file.path:
            damaged = max(ending.dirty - ending.position, 0)
        elif end.offset < file.base + file.size:
            blank = file.size - used
    else:
        used, blank = _end_of_full_file(store, file)
    on_disk = min(max(flushed - file.base, 0), used)
    parts = [("used", on_disk), ("unflushed", used - on_disk), ("blank", blank), ("damaged", damaged)]
    return Bar(store.relative(file.path), file.size, [part for part in parts if part[1]])


def _end_of_full_file(store: StoreDirectory, file: LogFile) -> tuple[int, int]:
    """Bytes of records and of blank space in a file that is not the last."""
    place = max(_known_end(store, file.base + file.size), file.base)
    walked = 0
    for part in walk(store, check_crc=False, start=place):
        if part.file.path != file.path:
            break
        if isinstance(part, Blank):
            return part.position, file.size - part.position
        if isinstance(part, Break):
            return part.position, 0
        if isinstance(part, Stretch):
            place = part.end
            walked += part.end - part.begin
            if walked > WALK_BYTES:
                break
    return file.size, 0


def _known_end(store: StoreDirectory, limit: int) -> int:
    """Where the last record before a place ends, as far as queues know."""
    best = 0
    for queue in store.queues[:MOST_QUEUES]:
        index = _last_before(queue, lambda entry: int(entry["offset"]) >= limit)
        entry = queue.entry(index) if index >= 0 else None
        if entry is not None:
            best = max(best, int(entry["offset"]) + int(entry["size"]))
    return best


def _last_before(queue: QueueFiles, is_behind: Callable[[Any], bool]) -> int:
    """The index of the last entry of a queue that is not behind something; -1 for none."""
    places = range(queue.first, queue.end)

    def key(index: int) -> bool:
        entry = queue.entry(index)
        return entry is None or is_behind(entry)

    at = bisect_left(places, True, key=key)
    return places[at - 1] if at else -1


def flushed_offset(store: StoreDirectory, end: LogEnd) -> int:
    """Up to where the log was on disk when the checkpoint was written, as far as queues know."""
    checkpoint = store.checkpoint
    if checkpoint is None:
        return 0
    time_ms = checkpoint.physic_msg_timestamp
    if end.last_store_time and end.last_store_time <= time_ms:
        return end.offset
    best, newest = 0, end.last_store_time

    def is_later(entry: Any) -> bool:
        message = store.message(int(entry["offset"]))
        return message is None or message.store_timestamp > time_ms

    for queue in store.queues[:MOST_QUEUES]:
        index = _last_before(queue, is_later)
        entry = queue.entry(index) if index >= 0 else None
        if entry is not None:
            best = max(best, int(entry["offset"]) + int(entry["size"]))
        last = queue.last_entry
        message = None if last is None else store.message(last[0])
        newest = max(newest, 0 if message is None else message.store_timestamp)
    return end.offset if newest <= time_ms else best


def _queue_bar(store: StoreDirectory, queue: QueueFiles) -> Bar:
    used = sum(queue.used(file) for file in queue.files)
    return Bar(store.relative(queue.path), queue.size, [("used", used * queue.unit)], queue.end - queue.first)


def _index_bar(store: StoreDirectory, path: str) -> Bar:
    size = store.disk.size(path)
    file = None if store.index_size_problem is not None else store.index_file(path)
    if file is None:
        return Bar(store.relative(path), size, [("damaged", size)])
    entries = min(file.count - 1, file.max_entries)
    slots = file.slot_count * SLOT_SIZE
    parts = [("header", HEADER_SIZE), ("slots", slots), ("used", entries * ENTRY_SIZE)]
    return Bar(store.relative(path), size, parts, entries)


def _other_bars(store: StoreDirectory) -> list[Bar]:
    bars = []
    size = store.disk.size(f"{store.root}/checkpoint")
    if size >= 0:
        bars.append(Bar("checkpoint", max(size, 1), [("used", min(size, _CHECKPOINT_BYTES))]))
    wheel = f"{store.root}/timerwheel"
    if (size := store.disk.size(wheel)) > 0:
        slots = sum(1 for _ in read_wheel(store.view(wheel)))
        bars.append(Bar("timerwheel", size, [("used", slots * _SLOT_BYTES)], slots))
    checkpoint = read_timer_checkpoint(store.view(f"{store.root}/config/timercheck"))
    flushed = 0 if checkpoint is None else checkpoint.last_timer_log_flush_position
    for name in store.disk.list(f"{store.root}/timerlog")[-MOST_FILES:]:
        path = f"{store.root}/timerlog/{name}"
        if name.isdecimal() and (size := store.disk.size(path)) > 0:
            used = last_used(store.view(path), 0, store.data_end(path))
            on_disk = min(max(flushed - int(name), 0), used)
            bars.append(Bar(f"timerlog/{name}", size, [("used", on_disk), ("unflushed", used - on_disk)]))
    for name in ("abort", "lock"):
        if (size := store.disk.size(f"{store.root}/{name}")) >= 0:
            bars.append(Bar(name, max(size, 1), [("used", size)]))
    bars += [
        Bar(store.relative(path), store.disk.size(path), [("damaged", store.disk.size(path))])
        for path in store.cut_copies[-MOST_FILES:]
    ]
    return bars

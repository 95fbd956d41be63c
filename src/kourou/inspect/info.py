"""A summary of a store: sizes, ranges, topics, times, and what is obviously wrong with it.

Quick by design: only the ends of queues are read, and the part of the log after them. `check` reads
every byte.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

from kourou.inspect.directory import StoreDirectory
from kourou.inspect.log_scan import LogEnd, log_end
from kourou.inspect.queue_files import QueueFiles
from kourou.store.log.disk import PAGE_SIZE
from kourou.store.timer.files import DEFAULT_PRECISION_MS, read_timer_checkpoint, read_wheel


def describe(store: StoreDirectory) -> dict[str, Any]:
    """The store as plain values; times are milliseconds since 1970, 0 where there is none."""
    end = log_end(store)
    topics = _topics(store)
    last_time = max((queue["lastStoreTime"] for topic in topics for queue in topic["queues"]), default=0)
    log = _log(store, end, max(last_time, end.last_store_time))
    return {
        "path": store.root,
        "config": _config(store),
        "log": log,
        "topics": topics,
        "index": _index(store),
        "checkpoint": _checkpoint(store),
        "timer": _timer(store),
        "abort": store.aborted,
        "lock": store.lock_holder,
        "cut": [{"path": store.relative(path), "bytes": store.disk.size(path)} for path in store.cut_copies],
        "health": _health(store, end, log["lastStoreTime"]),
    }


def _config(store: StoreDirectory) -> dict[str, Any]:
    config = store.config
    return {
        "takenFrom": "the files" if store.inferred else "the configuration",
        "commitLogDirectories": config.commit_log_directories,
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
    }


def _log(store: StoreDirectory, end: LogEnd, last_time: int) -> dict[str, Any]:
    first = store.message(store.min_offset)
    return {
        "files": len(store.log_files),
        "bytes": store.log_size,
        "minOffset": store.min_offset,
        "maxOffset": end.offset,
        "firstStoreTime": 0 if first is None else first.store_timestamp,
        "lastStoreTime": last_time,
    }


def _topics(store: StoreDirectory) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for queue in store.queues:
        kind = "BatchCQ" if queue.batch else "SimpleCQ"
        topic = topics.setdefault(
            queue.topic, {"topic": queue.topic, "type": kind, "messages": 0, "bytes": 0, "queues": []}
        )
        described = _queue(store, queue)
        topic["queues"].append(described)
        topic["messages"] += described["messages"]
        topic["bytes"] += described["bytes"]
    return list(topics.values())


def _queue(store: StoreDirectory, queue: QueueFiles) -> dict[str, Any]:
    low, high = queue.min_offset, queue.max_offset
    times = [_store_time(store, queue, place) for place in (queue.first, queue.end - 1)]
    return {
        "queueId": queue.queue_id,
        "minOffset": low,
        "maxOffset": high,
        "messages": high - low,
        "files": len(queue.files),
        "bytes": queue.size,
        "firstStoreTime": times[0],
        "lastStoreTime": times[1],
    }


def _store_time(store: StoreDirectory, queue: QueueFiles, place: int) -> int:
    entry = queue.entry(place) if queue.first <= place < queue.end else None
    message = None if entry is None else store.message(int(entry["offset"]))
    return 0 if message is None else message.store_timestamp


def _index(store: StoreDirectory) -> dict[str, Any]:
    paths = store.index_paths
    described: dict[str, Any] = {
        "files": len(paths), "bytes": sum(map(store.disk.size, paths)), "entries": 0,
        "firstStoreTime": 0, "lastStoreTime": 0, "problem": store.index_size_problem,
    }  # fmt: skip
    if store.index_size_problem is not None:
        return described
    files = [file for path in paths if (file := store.index_file(path)) is not None and file.count > 1]
    if files:
        described["entries"] = sum(file.count - 1 for file in files)
        described["firstStoreTime"] = files[0].begin_timestamp
        described["lastStoreTime"] = files[-1].end_timestamp
    return described


def _checkpoint(store: StoreDirectory) -> dict[str, int] | None:
    checkpoint = store.checkpoint
    if checkpoint is None:
        return None
    return {
        "physicMsgTimestamp": checkpoint.physic_msg_timestamp,
        "logicsMsgTimestamp": checkpoint.logics_msg_timestamp,
        "indexMsgTimestamp": checkpoint.index_msg_timestamp,
        "masterFlushedOffset": checkpoint.master_flushed_offset,
        "confirmPhyOffset": checkpoint.confirm_phy_offset,
        "logicsPhysicalOffset": checkpoint.logics_physical_offset,
    }


def _timer(store: StoreDirectory) -> dict[str, Any] | None:
    if store.disk.size(f"{store.root}/timerwheel") < 0:
        return None
    slots = list(read_wheel(store.view(f"{store.root}/timerwheel")))
    checkpoint = read_timer_checkpoint(store.view(f"{store.root}/config/timercheck"))
    read_up_to = 0 if checkpoint is None else checkpoint.last_read_time_ms
    coming = [slot for slot in slots if slot.time * DEFAULT_PRECISION_MS > read_up_to and slot.messages > 0]
    return {
        "lastReadTime": read_up_to,
        "pending": sum(slot.messages for slot in coming),
        "nextTime": min((slot.time * DEFAULT_PRECISION_MS for slot in coming), default=0),
    }


def _health(store: StoreDirectory, end: LogEnd, last_time: int) -> list[dict[str, str]]:
    """What is wrong, or worth knowing, as far as the summary shows it."""
    found: list[dict[str, str]] = []

    def say(severity: str, message: str) -> None:
        found.append({"severity": severity, "message": message})

    holder = store.lock_holder
    if holder is not None:
        say("note", f"in use by {holder}: what is shown is of the moment")
    elif store.aborted:
        say("warning", "abort file: the store was not closed cleanly, the next start recovers it")
    if store.lacks_keys:
        say("note", "the index is not complete: a broker makes it anew while it runs")
    _log_health(store, end, say)
    for queue in store.queues:
        last = queue.last_entry
        if last is not None and sum(last) > end.offset:
            severity = "warning" if store.aborted else "fault"
            say(severity, f"queue {queue} points to {last[0]}, the log ends at {end.offset}")
    if end.records_behind_queues and store.queues and holder is None:
        say("note", f"{end.records_behind_queues} records lie behind the newest that a queue knows")
    if store.index_size_problem is not None:
        say("warning", store.index_size_problem)
    checkpoint = store.checkpoint
    if checkpoint is None:
        size = store.disk.size(f"{store.root}/checkpoint")
        say("warning", "no checkpoint" if size < 0 else f"checkpoint has {size} bytes, {PAGE_SIZE} are right")
    elif max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) > last_time > 0:
        severity = "warning" if store.aborted else "fault"
        say(severity, "the checkpoint is of a later time than the last record")
    if store.cut_copies:
        say("note", f"{len(store.cut_copies)} copies of what recoveries cut off the log, in cut/")
    return found


def _log_health(store: StoreDirectory, end: LogEnd, say: Any) -> None:
    files, wanted = store.log_files, store.config.mapped_file_size_commit_log
    if not files:
        say("note", "the log is empty")
    for file in files:
        if file.size != wanted:
            name = store.relative(file.path)
            say("fault", f"{name} has {file.size} bytes, mappedFileSizeCommitLog is {wanted}")
    for before, after in pairwise(files):
        if after.base != before.base + before.size:
            say("fault", f"{os.path.basename(after.path)} does not follow the log file before it")
    ending = end.ending
    if ending is not None and not ending.empty:
        severity = "warning" if store.aborted else "fault"
        size = ending.dirty - ending.position
        say(severity, f"{size} bytes lie behind the end of the log at {end.offset} ({ending.reason})")

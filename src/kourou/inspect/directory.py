"""StoreDirectory: the files of a store, found and mapped for reading only.

It opens a directory of Java's or of Kourou's, one that a broker has open, one on a read-only file system,
one that is damaged. Nothing in it is ever written, and nothing is assumed that the files do not say:
file sizes come from a broker.conf where one is given, else from the files themselves.
"""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from kourou.errors import ConfigError, CorruptRecordError, NotAStoreError
from kourou.inspect.file_sizes import INDEX_NAME, OFFSET_NAME, index_size, infer_config
from kourou.inspect.lock import lock_holder
from kourou.inspect.queue_files import QueueFiles
from kourou.message import properties as names
from kourou.message.codec import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, StoredMessage, decode
from kourou.message.topics import DELETION_TOPIC, SCHEDULE_TOPIC
from kourou.store.checkpoint import StoreCheckpoint
from kourou.store.config import MessageStoreConfig, parse_delay_levels
from kourou.store.index.index_file import IndexFile
from kourou.store.log.disk import PAGE_SIZE, Disk, OsDisk

# Each mapped file costs a file descriptor, and most systems allow 1024 in all.
MAX_MAPPED_FILES = 256

# So many entries of a delay queue are asked for their delay.
_DELAY_SAMPLES = 64


class LogFile(NamedTuple):
    """A file of the log: where it is, the offset of its first byte, and its true size."""

    path: str
    base: int
    size: int


class _Mapped(NamedTuple):
    view: memoryview
    data_end: int


class StoreDirectory:
    """A store directory, open for reading."""

    def __init__(self, root: str, config: MessageStoreConfig, *, inferred: bool, disk: Disk) -> None:
        self.root = root
        self.config = config
        self.inferred = inferred  # the configuration was made up from the files
        self.disk = disk
        self._maps: OrderedDict[str, _Mapped] = OrderedDict()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: MessageStoreConfig | None = None,
        *,
        disk: Disk | None = None,
    ) -> StoreDirectory:
        """Open a store directory; raises NotAStoreError if it is not one.

        A configuration gives the file sizes. It also gives the paths of the log, unless `path` is
        another directory than its storePathRootDir and has a log of its own, as a copy of a store has.
        """
        disk = disk or OsDisk()
        root = os.path.abspath(path)
        if not disk.is_dir(root):
            raise NotAStoreError(f"{os.fspath(path)} is no directory")
        if config is None:
            _check_is_store(disk, root, [f"{root}/commitlog"])
            return cls(root, infer_config(disk, root), inferred=True, disk=disk)
        config = _with_paths(config, root, disk)
        _check_is_store(disk, root, [*config.commit_log_directories, *config.read_only_directories])
        return cls(root, config, inferred=False, disk=disk)

    def close(self) -> None:
        """Unmap all files. Views that are still held stay valid."""
        self._maps.clear()

    def __enter__(self) -> StoreDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Files

    def view(self, path: str) -> memoryview:
        """A file's bytes, mapped; the files used last stay mapped."""
        return self._mapped(path).view

    def data_end(self, path: str) -> int:
        """After this position the file is all zeros, so a gigabyte of zeros is never read."""
        return self._mapped(path).data_end

    def _mapped(self, path: str) -> _Mapped:
        mapped = self._maps.get(path)
        if mapped is not None:
            self._maps.move_to_end(path)
            return mapped
        size = self.disk.size(path)
        if size <= 0:
            return _Mapped(memoryview(b""), 0)
        mapping = self.disk.map(path, size, writable=False)
        mapped = self._maps[path] = _Mapped(mapping.view, mapping.data_end(0))
        mapping.close()  # the view stays, and the map with it as long as somebody has the view
        if len(self._maps) > MAX_MAPPED_FILES:
            self._maps.popitem(last=False)
        return mapped

    def relative(self, path: str) -> str:
        """A path as it is shown: from the root of the store on, where it lies in it."""
        return path.removeprefix(f"{self.root}/")

    @property
    def aborted(self) -> bool:
        """Whether the last process left the store without closing it, or has it open."""
        return self.disk.size(f"{self.root}/abort") >= 0

    @property
    def lock_holder(self) -> str | None:
        """Who has the store open now: a process id, or `another process`; None if nobody has."""
        return lock_holder(f"{self.root}/lock")

    @cached_property
    def cut_copies(self) -> list[str]:
        """Copies of what recoveries cut off the log, in the order of their place."""
        return [f"{self.root}/cut/{name}" for name in self.disk.list(f"{self.root}/cut")]

    @cached_property
    def _topic_table(self) -> dict[str, Any] | None:
        try:
            table = orjson.loads(bytes(self.view(f"{self.root}/config/topics.json")))["topicConfigTable"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        return table if isinstance(table, dict) else None

    @property
    def topic_names(self) -> set[str] | None:
        """The topics of config/topics.json; None if there is no such file, or none that can be read."""
        return None if self._topic_table is None else set(self._topic_table)

    @property
    def batch_topic_names(self) -> set[str]:
        """The topics of config/topics.json whose queues are batch queues."""
        return {
            topic
            for topic, config in (self._topic_table or {}).items()
            if "BatchCQ" in ((config or {}).get("attributes") or {}).values()
        }

    @cached_property
    def checkpoint(self) -> StoreCheckpoint | None:
        """The checkpoint; None if there is none, or none that is large enough."""
        path = f"{self.root}/checkpoint"
        if self.disk.size(path) < PAGE_SIZE:
            return None
        checkpoint = StoreCheckpoint(self.disk, path, writable=False)
        checkpoint.close()
        return checkpoint

    @property
    def lacks_keys(self) -> bool:
        """Whether the index is being made anew, or was when the store was closed."""
        return self.checkpoint is not None and self.checkpoint.index_offset > 0

    # The log

    @cached_property
    def log_files(self) -> list[LogFile]:
        """The files of the log in order, empty ones left out. A last file of odd length is among them."""
        found = []
        directories = [*self.config.commit_log_directories, *self.config.read_only_directories]
        for directory in dict.fromkeys(directories):
            for name in self.disk.list(directory):
                path = f"{directory}/{name}"
                if OFFSET_NAME.fullmatch(name) and (size := self.disk.size(path)) > 0:
                    found.append(LogFile(path, int(name), size))
        return sorted(found, key=lambda file: file.base)

    @property
    def log_size(self) -> int:
        """Bytes of all files of the log."""
        return sum(file.size for file in self.log_files)

    @property
    def min_offset(self) -> int:
        """Where the log begins, 0 for an empty one."""
        return self.log_files[0].base if self.log_files else 0

    def log_file(self, offset: int) -> LogFile | None:
        """The file that holds an offset."""
        files = self.log_files
        low, high = 0, len(files)
        while low < high:
            middle = (low + high) // 2
            if files[middle].base <= offset:
                low = middle + 1
            else:
                high = middle
        file = files[low - 1] if low else None
        return file if file is not None and offset < file.base + file.size else None

    def record(self, offset: int) -> memoryview | None:
        """The bytes of the record at an offset; None if there is no whole one."""
        file = self.log_file(offset)
        if file is None or offset + SIZE_AND_MAGIC.size > file.base + file.size:
            return None
        view = self.view(file.path)
        size, magic = SIZE_AND_MAGIC.unpack_from(view, offset - file.base)
        at = offset - file.base
        if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0 or at + size > len(view):
            return None
        return view[at : at + size]

    def message(self, offset: int, *, check_crc: bool = False) -> StoredMessage | None:
        """The message at an offset; None if none lies there."""
        record = self.record(offset)
        if record is None:
            return None
        try:
            message = decode(record, check_crc=check_crc, copy_body=False)
        except CorruptRecordError:
            return None
        return message if message.physical_offset == offset else None

    # Queues

    @cached_property
    def queues(self) -> list[QueueFiles]:
        """The queues of all topics, batch queues among them, in order."""
        return sorted(self._find_queues(), key=lambda queue: (queue.topic, queue.queue_id))

    def _find_queues(self) -> Iterator[QueueFiles]:
        for folder, batch in (("consumequeue", False), ("batchconsumequeue", True)):
            base = f"{self.root}/{folder}"
            for topic in self.disk.list(base):
                for name in self.disk.list(f"{base}/{topic}"):
                    path = f"{base}/{topic}/{name}"
                    if name.isdecimal() and self.disk.is_dir(path):
                        yield QueueFiles(self, path, topic, int(name), batch=batch)

    def queue(self, topic: str, queue_id: int) -> QueueFiles | None:
        """A queue, if there is one."""
        return next((q for q in self.queues if q.topic == topic and q.queue_id == queue_id), None)

    @cached_property
    def deletions(self) -> dict[str, int]:
        """Where the log says that a topic was deleted last: its older records are in no queue."""
        found: dict[str, int] = {}
        queue = self.queue(DELETION_TOPIC, 0)
        for entry in queue.iterate(queue.min_offset, queue.end) if queue is not None else ():
            message = self.message(entry.physical_offset)
            if message is not None and message.topic == DELETION_TOPIC:
                found[message.properties.get(names.KEYS, "")] = entry.physical_offset
        return found

    @cached_property
    def delay_levels(self) -> list[int]:
        """The delay of each level in ms; level 1 comes first.

        Where no configuration says them, the delay queues do: an entry's tags code is the store time of
        its record plus the delay.
        """
        levels = parse_delay_levels(self.config.message_delay_level)
        if not self.inferred:
            return levels
        for queue in self.queues:
            if queue.topic != SCHEDULE_TOPIC or queue.batch:
                continue
            seen: list[int] = []
            for entry in queue.iterate(queue.min_offset, queue.min_offset + _DELAY_SAMPLES):
                message = self.message(entry.physical_offset)
                if message is not None:
                    seen.append(entry.tags_code - message.store_timestamp)
            if seen:
                levels += [0] * (queue.queue_id + 1 - len(levels))
                levels[queue.queue_id] = max(set(seen), key=seen.count)
        return levels

    # Index

    @cached_property
    def index_paths(self) -> list[str]:
        """The files of the index, oldest first."""
        base = f"{self.root}/index"
        return [f"{base}/{name}" for name in self.disk.list(base) if INDEX_NAME.fullmatch(name)]

    @property
    def index_file_size(self) -> int:
        """The size of an index file by its configuration."""
        return index_size(self.config.max_hash_slot_num, self.config.max_index_num)

    @cached_property
    def index_size_problem(self) -> str | None:
        """Why it cannot be told how an index file is divided into slots and entries; None if it can."""
        sizes = [self.disk.size(path) for path in self.index_paths]
        if not sizes or self.index_file_size in sizes or not self.inferred:
            return None
        return (
            f"{self.relative(self.index_paths[0])} has {sizes[0]} bytes, which does not tell how many slots"
            " it has: name maxHashSlotNum and maxIndexNum in a broker.conf and give it with -c"
        )

    def index_file(self, path: str) -> IndexFile | None:
        """An index file; None if its size does not fit the configuration."""
        if self.index_size_problem is not None:
            raise ConfigError(self.index_size_problem)
        if self.disk.size(path) != self.index_file_size:
            return None
        config = self.config
        file = IndexFile(self.disk, path, config.max_hash_slot_num, config.max_index_num, writable=False)
        file.close()  # the view stays
        return file


def _check_is_store(disk: Disk, root: str, log_directories: list[str]) -> None:
    names_here = disk.list(root)
    if any(map(OFFSET_NAME.fullmatch, names_here)):
        raise NotAStoreError(f"{root} holds log files itself: name the directory above it")
    known = {"checkpoint", "consumequeue", "batchconsumequeue", "abort", "lock"}.intersection(names_here)
    logs = [directory for directory in log_directories if disk.is_dir(directory)]
    has_files = any(map(OFFSET_NAME.fullmatch, (name for log in logs for name in disk.list(log))))
    if has_files or (logs and known):
        return
    if known - {"lock"} and not logs:
        raise NotAStoreError(
            f"{root} has no commitlog directory: where the log lies elsewhere (storePathCommitLog), name the"
            " broker.conf with -c"
        )
    raise NotAStoreError(f"{root} is no RocketMQ store: there is no commitlog in it")


def _with_paths(config: MessageStoreConfig, root: str, disk: Disk) -> MessageStoreConfig:
    own = f"{root}/commitlog"
    is_default = config.store_path_commit_log == f"{config.store_path_root_dir}/commitlog"
    is_copy = config.store_path_root_dir != root and disk.is_dir(own)
    if is_default or is_copy:
        read_only = "" if is_copy else config.read_only_commit_log_store_paths
        return dataclasses.replace(
            config,
            store_path_root_dir=root,
            store_path_commit_log=own,
            read_only_commit_log_store_paths=read_only,
        )
    return dataclasses.replace(config, store_path_root_dir=root)

"""IndexFile and IndexService: messages by key and time.

Layout (seed 000, 1.5): files of 40 + 4 * maxHashSlotNum + 20 * maxIndexNum bytes in index/, named by the time
they were made (yyyyMMddHHmmssSSS). A hash table with chains; big-endian:

| offset        | size | field |
|---------------|------|-------|
| 0             | 8    | store time of the first entry |
| 8             | 8    | store time of the last entry |
| 16            | 8    | physical offset of the first entry |
| 24            | 8    | physical offset of the last entry |
| 32            | 4    | slots in use |
| 36            | 4    | entries + 1: the number the next entry gets; 1 is the first |
| 40            | 4*S  | slots: number of the newest entry of the chain, 0 for none |
| 40+4*S        | 20*N | entries: key hash (4), physical offset (8), seconds since the first entry (4), |
|               |      | number of the previous entry of the chain (4) |

The seconds of the first entry tell nothing: Java counts them from the last entry of the file before, and sets
the begin of its own file after that. Its time is this begin.

A key is `topic#key` for UNIQ_KEY and each of KEYS, `topic#T#tag` for TAGS; its hash is the absolute
value of Java's String.hashCode, its slot that modulo S.

Keys of appended messages wait in a list and go to the file together, at the end of a turn of the
event loop: hashing and chaining a thousand at once with numpy costs a tenth of doing each alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

from kourou.clock import Clock
from kourou.errors import DiskFullError, KourouError, StoreError
from kourou.message.properties import java_hash
from kourou.message.scan.hashes import Hashes, java_hashes, to_signed, with_prefix
from kourou.message.scan.records import Integers
from kourou.store.config import MessageStoreConfig
from kourou.store.log.disk import Disk

log = logging.getLogger(__name__)

HEADER = struct.Struct(">qqqqii")
HEADER_SIZE = HEADER.size
SLOT_SIZE = 4
ENTRY = struct.Struct(">iqii")
ENTRY_SIZE = ENTRY.size
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT = struct.Struct(">i")
_INT_MAX = 0x7FFFFFFF
_RESERVE_STEP = 1024 * 1024

# Below this many keys, doing each alone is faster than numpy's fixed cost (about 60 µs a batch).
_BATCH_LEAST = 32
# The most keys that wait; then they are written whatever the turn.
MAX_PENDING_KEYS = 4096

TAG_TYPE = "T"
MAX_LONG = (1 << 63) - 1  # later than all times, after all offsets

# Keys that wait are one flat list of four values each: hash of the prefix `topic#`, the key, physical offset,
# store time. Its columns are slices, which cost a tenth of taking as many tuples apart.
KeyList = list[Any]
KEY_WIDTH = 4


def key_hash(text: str) -> int:
    """The hash that an entry holds: never negative."""
    value = abs(java_hash(text))
    return 0 if value > _INT_MAX else value


@lru_cache(maxsize=65536)  # brokers have thousands of topics, and see one for every message
def key_prefixes(topic: str) -> tuple[int, int]:
    """Java's hashes of `topic#` and `topic#T#`, to go on from with a key or a tag."""
    return java_hash(f"{topic}#"), java_hash(f"{topic}#{TAG_TYPE}#")


def hash_keys(prefixes: Hashes, keys: list[str]) -> Integers:
    """key_hash of many `prefix + key`, given the prefixes' own hashes."""
    joined = "".join(keys)
    texts: list[str] | list[bytes] = keys
    if not joined.isascii():
        texts = [key.encode("utf-8", "surrogatepass") for key in keys]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    blob = np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8)
    hashes, units = java_hashes(blob, np.cumsum(lengths) - lengths, lengths)
    return positive(with_prefix(prefixes, hashes, units))


def positive(hashes: Hashes) -> Integers:
    """The absolute values, as an entry holds them: 0 for the one that has none."""
    values = np.abs(to_signed(hashes))
    values[values > _INT_MAX] = 0
    return values


class IndexFile:
    """One file of the index."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        slot_count: int,
        max_entries: int,
        *,
        begin_offset: int = 0,
        begin_timestamp: int = 0,
        writable: bool = True,
    ) -> None:
        self._disk = disk
        self.path = path
        self.slot_count = slot_count
        self.max_entries = max_entries
        self._entries_at = HEADER_SIZE + slot_count * SLOT_SIZE
        self.size = self._entries_at + max_entries * ENTRY_SIZE
        self.mapping = disk.map(path, self.size, writable=writable)
        self._view = self.mapping.view
        header: tuple[int, ...] = (0,) * 6
        # On a full file system in memory, to read where nothing was written yet ends the process.
        with contextlib.suppress(DiskFullError):
            if writable:
                self.mapping.reserve(0, HEADER_SIZE)
            header = HEADER.unpack_from(self._view, 0)
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = header[:4]
        self.slots_used = header[4]
        self.count = max(header[5], 1)
        if writable:  # a number beyond the file is damage: nothing fits in any more; tools see it as it is
            self.count = min(self.count, max_entries)
        self._reserved = 0
        if begin_offset > 0:
            self.begin_offset = self.end_offset = begin_offset
        if begin_timestamp > 0:
            self.begin_timestamp = self.end_timestamp = begin_timestamp
        self.flushed_count = 0

    @property
    def full(self) -> bool:
        """Whether no further entry fits."""
        return self.count >= self.max_entries

    @property
    def slots(self) -> np.ndarray:
        """The slots, as they stand in the file."""
        return np.frombuffer(self._view, ">i4", self.slot_count, HEADER_SIZE)

    @property
    def entries(self) -> np.ndarray:
        """The entries; the first is never used."""
        return np.frombuffer(self._view, ENTRY_DTYPE, self.max_entries, self._entries_at)

    def put(self, keys: KeyList) -> int:
        """Append entries; how many fitted."""
        fitting = min(len(keys) // KEY_WIDTH, self.max_entries - self.count)
        if fitting == 0:
            return 0
        self._reserve(fitting)
        end = fitting * KEY_WIDTH
        if fitting < _BATCH_LEAST:
            for at in range(0, end, KEY_WIDTH):
                self._put_one(*keys[at : at + KEY_WIDTH])
        else:
            prefixes = np.array(keys[0:end:KEY_WIDTH], np.int64).astype(np.uint32)
            offsets = np.array(keys[2:end:KEY_WIDTH], np.int64)
            timestamps = np.array(keys[3:end:KEY_WIDTH], np.int64)
            self._put_many(hash_keys(prefixes, keys[1:end:KEY_WIDTH]), offsets, timestamps)
        self._write_header()
        return fitting

    def put_hashed(self, hashes: Integers, offsets: Integers, timestamps: Integers) -> int:
        """Append entries of keys that are hashed already; how many fitted."""
        fitting = min(len(hashes), self.max_entries - self.count)
        if fitting:
            self._reserve(fitting)
            self._put_many(hashes[:fitting], offsets[:fitting], timestamps[:fitting])
            self._write_header()
        return fitting

    def _reserve(self, number: int) -> None:
        needed = self._entries_at + (self.count + number) * ENTRY_SIZE
        if needed > self._reserved:
            # All slots at once, entries in steps: slots are written all over the table.
            until = min(self.size, needed + _RESERVE_STEP)
            self.mapping.reserve(self._reserved, until)
            self._reserved = until

    def _put_many(self, hashes: Integers, offsets: Integers, timestamps: Integers) -> None:
        number = len(hashes)
        seconds = self._seconds_since_begin(timestamps)
        if self.count == 1:
            # The begin is that of the first entry; the first entry itself counts from the file before.
            self.begin_offset, self.begin_timestamp = int(offsets[0]), int(timestamps[0])
            seconds[1:] = self._seconds_since_begin(timestamps[1:])
        slots = hashes % self.slot_count
        numbers = np.arange(self.count, self.count + number)

        # In each chain an entry follows the one before it in this batch, or what its slot held.
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        first = np.empty(number, bool)
        first[0] = True
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=first[1:])
        last = np.append(first[1:], True)
        table = self.slots
        heads = table[sorted_slots[first]].astype(np.int64)
        heads[(heads < 0) | (heads > self.count)] = 0
        previous = np.empty(number, np.int64)
        previous[order[first]] = heads
        follows = np.flatnonzero(~first)
        previous[order[follows]] = numbers[order[follows - 1]]
        table[sorted_slots[last]] = numbers[order[last]]

        entries = self.entries[self.count : self.count + number]
        entries["hash"] = hashes
        entries["offset"] = offsets
        entries["seconds"] = seconds
        entries["previous"] = previous
        self.slots_used += int(np.count_nonzero(heads == 0))
        self.count += number
        self.end_offset, self.end_timestamp = int(offsets[-1]), int(timestamps[-1])

    def _seconds_since_begin(self, timestamps: Integers) -> Integers:
        if self.begin_timestamp <= 0:
            return np.zeros(len(timestamps), np.int64)
        return np.clip((timestamps - self.begin_timestamp) // 1000, 0, _INT_MAX)

    def _put_one(self, prefix: int, text: str, offset: int, timestamp: int) -> None:
        value = prefix
        if text.isascii():
            for byte in text.encode():
                value = value * 31 + byte
        else:
            for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
                value = value * 31 + unit
        value &= 0xFFFFFFFF
        if value & 0x80000000:
            value = (0x100000000 - value) & 0x7FFFFFFF  # of -2^31, which has no absolute value, 0
        slot_at = HEADER_SIZE + value % self.slot_count * SLOT_SIZE
        count = self.count
        (head,) = _SLOT.unpack_from(self._view, slot_at)
        if head <= 0 or head > count:
            head = 0
            self.slots_used += 1
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max((timestamp - self.begin_timestamp) // 1000, 0), _INT_MAX)
        ENTRY.pack_into(self._view, self._entries_at + count * ENTRY_SIZE, value, offset, seconds, head)
        _SLOT.pack_into(self._view, slot_at, count)
        if count <= 1:
            self.begin_offset, self.begin_timestamp = offset, timestamp
        self.count = count + 1
        self.end_offset, self.end_timestamp = offset, timestamp

    def _write_header(self) -> None:
        HEADER.pack_into(
            self._view, 0, self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.slots_used, self.count,
        )  # fmt: skip

    def forget_behind(self, physical_offset: int) -> None:
        """Go on indexing at an offset that lies before the last entry: the log was cut there. Durably, before
        the log goes on there: else new records would pass for indexed after the next power cut."""
        if self.end_offset > physical_offset:
            self.end_offset = physical_offset
            self._write_header()
            self.mapping.sync()

    def store_ms(self, number: int, seconds: int) -> int:
        """When the message of an entry was stored, to the second; the first entry's time is the begin."""
        return self.begin_timestamp + (seconds * 1000 if number > 1 else 0)

    def covers_time(self, begin: int, end: int) -> bool:
        """Whether entries of this file may lie within two times."""
        return begin <= self.end_timestamp and end >= self.begin_timestamp

    def query(self, text: str, limit: int, begin: int, end: int) -> list[int]:
        """Physical offsets of a key within two times, newest first."""
        value = key_hash(text)
        found: list[int] = []
        (number,) = _SLOT.unpack_from(self._view, HEADER_SIZE + value % self.slot_count * SLOT_SIZE)
        end_number = min(self.count, self.max_entries)
        while 0 < number < end_number and len(found) < limit:
            entry = ENTRY.unpack_from(self._view, self._entries_at + number * ENTRY_SIZE)
            entry_hash, offset, seconds, previous = entry
            if seconds < 0:
                break
            stored = self.store_ms(number, seconds)
            if entry_hash == value and begin <= stored <= end:
                found.append(offset)
            if previous >= number or stored < begin:  # a chain only leads back: anything else is damage
                break
            number = previous
        return found

    def flush(self) -> None:
        """Bring the file to the disk."""
        if self.flushed_count != self.count:
            count = self.count
            self._write_header()
            self.mapping.sync()
            self.flushed_count = count

    def close(self) -> None:
        """Let go of the file."""
        self.mapping.close()

    def destroy(self) -> None:
        """Remove the file."""
        self.mapping.close()
        self._disk.remove(self.path)


class IndexService:
    """All index files of a store."""

    def __init__(
        self, disk: Disk, root: str, config: MessageStoreConfig, clock: Clock, *, writable: bool = True
    ) -> None:
        self._disk = disk
        self._directory = f"{root}/index"
        self._config = config
        self._clock = clock
        self._writable = writable
        self._pending: KeyList = []
        self.files: list[IndexFile] = []
        self.on_failed: Callable[[str], None] = log.error  # who has to know that keys cannot be written
        self.on_restored: Callable[[str], None] = log.info  # and that they can be again
        self._failure: str | None = None
        self.is_behind = False  # IndexCatchUp alone writes: it reads the keys of all records from the log

    def load(self, last_exit_ok: bool, index_msg_timestamp: int) -> list[str]:
        """Map the files; after a crash those that were not known to be on disk are dropped, and named.

        So is what comes behind one of them, and behind one that was torn: its messages are indexed again.
        """
        found: list[IndexFile] = []
        for name in self._disk.list(self._directory):
            if not (name.isdecimal() and len(name) == 17):
                continue
            path = f"{self._directory}/{name}"
            wanted = self.file_size
            size = self._disk.size(path)
            if size == 0 and self._writable:
                log.warning("removing %s: it is empty", path)
                self._disk.remove(path)
                continue
            if size != wanted:
                raise StoreError(
                    f"{path} has {size} bytes, {wanted} are configured: name the right maxHashSlotNum and"
                    " maxIndexNum, or move the file away"
                )
            found.append(self._open(path))
        # Up to the file that the checkpoint speaks of. Lower times do not tell: the clock may have been
        # set, and the times of a file that is not full may be as torn as the rest of it.
        ends = [file.end_timestamp for file in found]
        known = len(ends) - ends[::-1].index(index_msg_timestamp) if index_msg_timestamp in ends else 0
        dropped: list[str] = []
        for number, file in enumerate(found):
            is_known = number < known and file.full and file.begin_offset >= self.end_offset
            if not last_exit_ok and self._writable and (dropped or not is_known):
                file.destroy()
                dropped.append(file.path)
            else:
                file.flushed_count = file.count
                self.files.append(file)
        return dropped

    @property
    def file_size(self) -> int:
        """Size of an index file."""
        return (
            HEADER_SIZE + self._config.max_hash_slot_num * SLOT_SIZE + self._config.max_index_num * ENTRY_SIZE
        )

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest message in the index, -1 for an empty index."""
        # A new file for which there was no room may have no entry yet.
        return next((file.end_offset for file in reversed(self.files) if file.count > 1), -1)

    @property
    def end_timestamp(self) -> int:
        """When the newest message of the index was stored, 0 for an empty index."""
        return self.files[-1].end_timestamp if self.files else 0

    def _open(self, path: str, begin_offset: int = 0, begin_timestamp: int = 0) -> IndexFile:
        return IndexFile(
            self._disk, path, self._config.max_hash_slot_num, self._config.max_index_num,
            begin_offset=begin_offset, begin_timestamp=begin_timestamp, writable=self._writable,
        )  # fmt: skip

    def add_message(self, topic: str, properties: dict[str, str], offset: int, timestamp: int) -> None:
        """Take the keys that a message's properties name; `write_pending` writes them. Hot."""
        pending, get = self._pending, properties.get
        prefix, tag_prefix = key_prefixes(topic)
        unique_id = get("UNIQ_KEY")
        if unique_id is not None:
            pending += prefix, unique_id, offset, timestamp
        keys = get("KEYS")
        if keys is not None:
            for key in keys.split(" "):
                if key:
                    pending += prefix, key, offset, timestamp
        tags = get("TAGS")
        if tags is not None:
            pending += tag_prefix, tags, offset, timestamp
        if len(pending) >= MAX_PENDING_KEYS * KEY_WIDTH:
            self.try_write_pending()

    def add_flat(self, keys: Sequence[Any]) -> None:
        """Take keys that are in the form they wait in: prefix, text, offset, time of each. Hot."""
        self._pending += keys
        if len(self._pending) >= MAX_PENDING_KEYS * KEY_WIDTH:
            self.try_write_pending()

    def try_write_pending(self) -> None:
        """Write the keys that wait; where that fails they wait on, and `on_failed` is told."""
        try:
            self.write_pending()
        except (OSError, KourouError) as error:
            self._failure = f"the index cannot be written: {error}"
            self.on_failed(self._failure)
            return
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.on_restored(failure)

    def write_pending(self) -> None:
        """Write the keys that wait; while the index is behind they need not wait, the log has them."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        if self.is_behind:
            return
        done = 0
        try:
            while done < len(pending):
                done += self._writable_file().put(pending[done:] if done else pending) * KEY_WIDTH
        except BaseException:
            self._pending = pending[done:] + self._pending
            raise

    def take_over(self, offset: int) -> None:
        """All records before an offset have their keys: from now on those of live dispatch are written."""
        of_later = [at for at in range(0, len(self._pending), KEY_WIDTH) if self._pending[at + 2] >= offset]
        self._pending = self._pending[of_later[0] :] if of_later else []
        self.is_behind = False

    def put_hashed(self, hashes: Integers, offsets: Integers, timestamps: Integers) -> None:
        """Write keys that are hashed already."""
        self.write_pending()
        done = 0
        while done < len(hashes):
            done += self._writable_file().put_hashed(hashes[done:], offsets[done:], timestamps[done:])

    def _writable_file(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.full:
            return last
        name = file_name(self._clock.now_ms())
        if last is not None:
            # Their order is that of their names, also if the clock was set back.
            name = max(name, _name_after(os.path.basename(last.path)))
        while self._disk.size(path := f"{self._directory}/{name}") >= 0:
            name = _name_after(name)
        file = self._open(path, last.end_offset if last else 0, last.end_timestamp if last else 0)
        self.files.append(file)
        return file

    def query(
        self,
        topic: str,
        key: str,
        limit: int,
        begin: int,
        end: int,
        index_type: str | None = None,
        after_offset: int = MAX_LONG,
    ) -> list[int]:
        """Physical offsets of a key (a tag with index_type T) within two times, newest first.

        Times tell nothing where the clock was set back: files with records after `after_offset` are searched
        whatever they say.
        """
        self.try_write_pending()
        limit = min(limit, self._config.max_msgs_num_batch)
        text = f"{topic}#{TAG_TYPE}#{key}" if index_type == TAG_TYPE else f"{topic}#{key}"
        found: list[int] = []
        for file in reversed(self.files):
            if file.end_offset >= after_offset:
                found += file.query(text, limit - len(found), 0, MAX_LONG)
            elif file.covers_time(begin, end):
                found += file.query(text, limit - len(found), begin, end)
            if len(found) >= limit or (file.begin_timestamp < begin and file.begin_offset <= after_offset):
                break
        return found

    def flush(self) -> int:
        """Bring all files to the disk; store time of the last entry of the last full one, 0 if none is."""
        self.write_pending()
        timestamp = 0
        for file in list(self.files):
            file.flush()
            if file.full:
                timestamp = file.end_timestamp
        return timestamp

    def flush_full(self) -> int:
        """Bring full files to the disk, which never change again.

        The store time of the last entry of the newest of them, 0 if none was left to flush.
        """
        timestamp = 0
        for file in list(self.files):
            if file.full and file.flushed_count != file.count:
                file.flush()
                timestamp = file.end_timestamp
        return timestamp

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the files, never the last, whose entries all lie before the log."""
        count = 0
        while len(self.files) > 1 and self.files[0].end_offset < min_physical_offset:
            try:
                self.files[0].destroy()
            except OSError as error:
                log.warning("cannot remove %s: %s", self.files[0].path, error)
                break
            self.files.pop(0)
            count += 1
        return count

    @property
    def total_size(self) -> int:
        """Bytes of all files."""
        return len(self.files) * self.file_size

    def close(self) -> None:
        """Write what waits and let go of the files."""
        if self._writable:
            self.try_write_pending()
        for file in self.files:
            file.close()
        self.files.clear()
        self.is_behind = False  # a step that waits finds nothing to do any more

    def destroy(self) -> None:
        """Remove the index from the disk."""
        self._pending.clear()
        for file in self.files:
            file.destroy()
        self.files.clear()
        self._disk.remove_dir(self._directory)


def _name_after(name: str) -> str:
    moment = datetime.strptime(name, "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1)
    return f"{moment:%Y%m%d%H%M%S%f}"[: len(name)]


def file_name(stamp_ms: int) -> str:
    """The name of an index file made at a time: yyyyMMddHHmmssSSS, local."""
    return f"{datetime.fromtimestamp(stamp_ms / 1000):%Y%m%d%H%M%S}{stamp_ms % 1000:03d}"

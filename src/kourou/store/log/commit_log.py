"""CommitLog: every message of every topic, one behind the other.

Layout: files of `mappedFileSizeCommitLog` bytes, records one behind the other (message/codec.py). A record
never spans two files: where it would, the rest of the file becomes a blank record (seed 000, 2).

An append writes the record straight into the mapped file: one struct for the header, one copy of
the body. Nothing else in the process writes here, so there is no lock.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

from kourou.message import sysflag
from kourou.message.codec import (
    BLANK_MAGIC,
    BORN_HOST_AT,
    IPV6_EXTRA,
    LONG,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from kourou.store.config import MessageStoreConfig
from kourou.store.log.disk import Disk
from kourou.store.log.mapped_file import MappedFile, MappedFileQueue

log = logging.getLogger(__name__)

END_FILE_MIN_BLANK = 8  # a blank record's size and magic
# What a record may take beyond its body (MessageExtEncoder).
MAX_RECORD_OVERHEAD = 64 * 1024
MAX_PROPERTIES = 0x7FFF

_INT = struct.Struct(">i")


class CommitLog:
    """The log."""

    def __init__(
        self,
        disk: Disk,
        config: MessageStoreConfig,
        create: Callable[[str, str], MappedFile] | None = None,
        *,
        writable: bool = True,
    ) -> None:
        self._config = config
        directories = config.commit_log_directories
        self.files = MappedFileQueue(
            disk,
            [*directories, *(d for d in config.read_only_directories if d not in directories)],
            config.mapped_file_size_commit_log,
            writable=writable,
            create=create,
        )
        self.files.read_only_directories = set(config.read_only_directories)
        self.file_size = config.mapped_file_size_commit_log

    @property
    def min_offset(self) -> int:
        """Where the log begins, -1 where there is none."""
        files = self.files.files
        if not files:
            return -1
        return files[0].base if files[0].available else self.roll_next_file(files[0].base)

    @property
    def max_offset(self) -> int:
        """How far readers may go."""
        return self.files.max_offset

    def roll_next_file(self, offset: int) -> int:
        """Where the file behind the one that holds `offset` begins."""
        return offset + self.file_size - offset % self.file_size

    # Writing

    def room_for(self, size: int) -> MappedFile:
        """The file that takes the next `size` bytes, a new one where they do not fit the last. Hot."""
        files = self.files.files
        if files:
            file = files[-1]
            end = file.wrote + size
            if end + END_FILE_MIN_BLANK <= file.size:
                if end > file.reserved:
                    file.ensure(end)
                return file
            if not file.full:
                self._close_with_blank(file)
        file = self.files.last_writable()
        file.ensure(size)
        return file

    def _close_with_blank(self, file: MappedFile) -> None:
        rest = file.size - file.wrote
        if rest >= END_FILE_MIN_BLANK:
            file.ensure(file.wrote + END_FILE_MIN_BLANK)
            SIZE_AND_MAGIC.pack_into(file.write_view, file.wrote, rest, BLANK_MAGIC)
        file.wrote = file.size

    def take_back(self, file: MappedFile, position: int, size: int) -> None:
        """Undo the last append: the log ends where it did, and the file is zero from there on."""
        file.write_view[position : position + size] = bytes(size)
        file.wrote = position
        # What takes its place must not count as flushed because this was.
        file.flushed = min(file.flushed, position)
        self.files.flushed_where = min(self.files.flushed_where, file.base + position)

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes of another log at the place they have there, as a slave does."""
        view = memoryview(data)
        while view:
            file = self.files.last_writable(offset)
            part = view[: file.size - file.wrote]
            file.append(part)
            view = view[len(part) :]

    # Reading

    def message(self, offset: int, size: int) -> memoryview | None:
        """The bytes of a record whose size is known; None where they are not there."""
        file = self.files.find(offset)
        return None if file is None else file.select(offset - file.base, size)

    def message_at(self, offset: int) -> memoryview | None:
        """The bytes of the record at an offset; None where there is no whole one."""
        head = self.message(offset, SIZE_AND_MAGIC.size)
        if head is None:
            return None
        size, magic = SIZE_AND_MAGIC.unpack(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0:
            return None
        return self.message(offset, size)

    def data_from(self, offset: int) -> memoryview | None:
        """Everything readable from an offset to the end of its file."""
        file = self.files.find(offset)
        return None if file is None else file.select(offset - file.base)

    def pickup_store_timestamp(self, offset: int, size: int) -> int:
        """Store time of a record, -1 where it is not there."""
        if offset < self.min_offset or offset + size > self.max_offset:
            return -1
        view = self.message(offset, size)
        if view is None or len(view) < STORE_TIMESTAMP_AT + IPV6_EXTRA + LONG.size:
            return -1
        (sys_flag,) = _INT.unpack_from(view, SYS_FLAG_AT)
        at = STORE_TIMESTAMP_AT + (IPV6_EXTRA if sys_flag & sysflag.BORN_HOST_V6 else 0)
        return int(LONG.unpack_from(view, at)[0])


assert BORN_HOST_AT + 8 == STORE_TIMESTAMP_AT  # what pickup_store_timestamp relies on

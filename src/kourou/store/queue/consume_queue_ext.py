"""ConsumeQueueExt: what does not fit an entry of a ConsumeQueue, such as the filter bitmap of a message.

Layout: files of `mappedFileSizeConsumeQueueExt` bytes in consumequeue_ext/<topic>/<queueId>/, of units one
behind the other. Big-endian:

| offset | size | field |
|--------|------|-------|
| 0      | 2    | size of the unit; 0 nothing more here, -1 the rest of the file is empty |
| 2      | 8    | tags code |
| 10     | 8    | store time |
| 18     | 2    | size b of the bitmap |
| 20     | b    | bitmap |

The entry then holds, for its tags code, the unit's offset plus -2^63: an address. Real tags codes
are 32-bit numbers and cannot be mistaken for one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kourou.store.log.disk import Disk
from kourou.store.log.mapped_file import MappedFileQueue

_HEAD = struct.Struct(">hqqh")
_SHORT = struct.Struct(">h")
_LONG_MIN = -(2**63)
MAX_ADDRESS = -(2**31) - 1
_END_BLANK = 4
_MAX_UNIT = 0x7FFF


class ExtUnit(NamedTuple):
    """One unit."""

    tags_code: int
    store_timestamp: int
    bitmap: bytes = b""

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return _HEAD.size + len(self.bitmap)


class ConsumeQueueExt:
    """The units of one queue."""

    def __init__(
        self, disk: Disk, root: str, topic: str, queue_id: int, file_size: int, *, writable: bool = True
    ) -> None:
        self.files = MappedFileQueue(
            disk,
            f"{root}/consumequeue_ext/{topic}/{queue_id}",
            file_size,
            writable=writable,
            reserve_step=64 * 1024,
        )

    def load(self) -> None:
        """Map the files."""
        self.files.load()

    def put(self, unit: ExtUnit) -> int | None:
        """Append a unit; its address, or None where it is too large."""
        size = unit.size
        if size > min(_MAX_UNIT, self.files.file_size - _END_BLANK):
            return None
        file = self.files.last_writable()
        if size > file.size - file.wrote - _END_BLANK:
            file.ensure(min(file.wrote + 2, file.size))
            _SHORT.pack_into(file.view, file.wrote, -1)
            file.wrote = file.size
            file = self.files.last_writable()
        at = file.base + file.wrote
        file.append(_HEAD.pack(size, unit.tags_code, unit.store_timestamp, len(unit.bitmap)) + unit.bitmap)
        return at + _LONG_MIN

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address."""
        at = address - _LONG_MIN
        file = self.files.find(at)
        if address > MAX_ADDRESS or file is None:
            return None
        view = file.select(at - file.base)
        if view is None or len(view) < _HEAD.size:
            return None
        size, tags_code, store_timestamp, bitmap_size = _HEAD.unpack_from(view, 0)
        if size < _HEAD.size or len(view) < size or _HEAD.size + max(bitmap_size, 0) > size:
            return None
        return ExtUnit(tags_code, store_timestamp, bytes(view[_HEAD.size : _HEAD.size + max(bitmap_size, 0)]))

    def recover(self) -> None:
        """Find the end: behind the last unit."""
        end = 0
        for file in self.files.files:
            at = 0
            while at + 2 <= file.size:
                (size,) = _SHORT.unpack_from(file.view, at)
                if size <= 0 or at + size > file.size:
                    break
                at += size
            end = file.base + at
        if self.files.files:
            self.files.set_where(end)

    def truncate_behind(self, address: int) -> None:
        """Drop the units behind the one at an address."""
        unit = self.get(address)
        if unit is not None:
            self.files.set_where(address - _LONG_MIN + unit.size)

    def truncate_before(self, address: int) -> None:
        """Remove the files that end before an address."""
        if address > MAX_ADDRESS:
            return
        at = address - _LONG_MIN
        self.files.remove_files([f for f in self.files.files if f.base + f.size < at])

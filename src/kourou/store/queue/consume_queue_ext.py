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
from collections.abc import Iterable, Sequence
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

    def put_many(self, codes: Sequence[int], store_timestamp: int, bitmaps: Sequence[bytes]) -> list[int]:
        """Append units of one time; the address of each, or its code where it is too large. Hot."""
        file, pack, head_size = self.files.last_writable(), _HEAD.pack, _HEAD.size
        pieces: list[bytes] = []
        addresses, at = [], file.base + file.wrote + _LONG_MIN
        for code, bitmap in zip(codes, bitmaps):
            addresses.append(at)
            size = head_size + len(bitmap)
            at += size
            if size > _MAX_UNIT:
                break
            pieces += pack(size, code, store_timestamp, len(bitmap)), bitmap
        if len(addresses) == len(codes) and at - _LONG_MIN <= file.base + file.size - _END_BLANK:
            file.append(b"".join(pieces))
            return addresses
        units = [ExtUnit(code, store_timestamp, bitmap) for code, bitmap in zip(codes, bitmaps)]
        return [unit.tags_code if (put := self.put(unit)) is None else put for unit in units]

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address."""
        return self.get_many((address,))[0]

    def get_many(self, addresses: Iterable[int]) -> list[ExtUnit | None]:
        """The unit at each address; None where there is none, and for a code that is no address. Hot."""
        units: list[ExtUnit | None] = []
        base, end, view = 0, 0, memoryview(b"")
        unpack, head_size = _HEAD.unpack_from, _HEAD.size
        for address in addresses:
            unit = None
            if address <= MAX_ADDRESS:
                at = address - _LONG_MIN - base
                if not 0 <= at <= end - head_size:
                    file = self.files.find(at + base)
                    if file is not None and file.available:
                        at, base, end, view = at + base - file.base, file.base, file.read_position, file.view
                if 0 <= at <= end - head_size:
                    size, tags_code, store_timestamp, bitmap_size = unpack(view, at)
                    bitmap_end = head_size + max(bitmap_size, 0)
                    if bitmap_end <= size <= end - at:
                        bitmap = bytes(view[at + head_size : at + bitmap_end])
                        unit = ExtUnit(tags_code, store_timestamp, bitmap)
            units.append(unit)
        return units

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

"""The checkpoint: how far the log, the queues and the index were on disk when they last all were.

Layout (StoreCheckpoint; the seeds show the first three). One page of 4096 bytes, big-endian:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | physicMsgTimestamp: store time of the newest record flushed to the log |
| 8      | 8    | logicsMsgTimestamp: store time of the newest record whose queue entry is flushed |
| 16     | 8    | indexMsgTimestamp: store time of the last entry of the last full index file |
| 24     | 8    | masterFlushedOffset |
| 32     | 8    | confirmPhyOffset |
| 40     | 8    | logicsPhysicalOffset: physical offset that belongs to logicsMsgTimestamp |
| 4088   | 8    | Kourou's own, where Java has zeros: while the index is made anew, the physical offset |
|        |      | before which messages have their keys (index_catch_up.py); 0 if the index is complete |
"""

from __future__ import annotations

import struct

from kourou.store.log.disk import PAGE_SIZE, Disk

_WORDS = struct.Struct(">6q")
_INDEX_OFFSET = struct.Struct(">q")
_INDEX_OFFSET_AT = PAGE_SIZE - _INDEX_OFFSET.size


class StoreCheckpoint:
    """The six words, in memory and in the file."""

    def __init__(self, disk: Disk, path: str, *, writable: bool = True) -> None:
        self._mapping = disk.map(path, PAGE_SIZE, writable=writable)
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
            self.logics_physical_offset,
        ) = self.words()
        (self.index_offset,) = _INDEX_OFFSET.unpack_from(self._mapping.view, _INDEX_OFFSET_AT)
        # Dispatched, but not known to be on disk: they become the logics values with the next full flush.
        self.dispatched_msg_timestamp = 0
        self.dispatched_physical_offset = 0
        self._mapping.reserve(0, PAGE_SIZE) if writable else None

    def words(self) -> tuple[int, ...]:
        """The six words as they stand in the file."""
        return _WORDS.unpack_from(self._mapping.view, 0)

    def flush(self) -> None:
        """Write the words and bring them to the disk."""
        _WORDS.pack_into(
            self._mapping.view, 0,
            self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp,
            self.master_flushed_offset, self.confirm_phy_offset, self.logics_physical_offset,
        )  # fmt: skip
        _INDEX_OFFSET.pack_into(self._mapping.view, _INDEX_OFFSET_AT, self.index_offset)
        self._mapping.sync()

    def close(self) -> None:
        """Let go of the file."""
        self._mapping.close()
        del self._mapping  # with it goes the map

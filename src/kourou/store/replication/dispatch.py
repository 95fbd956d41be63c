"""LogDispatcher: brings records that came by replication to queues and index.

One by one where there are few, as `Dispatcher.reput` does; where there are many, as when an empty slave
catches up, a stretch of the log at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.message.scan import records as scan
from kourou.store.bulk_dispatch import BulkDispatcher

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore

BULK_FROM_BYTES = 256 * 1024
STRETCH_BYTES = 2 * 1024 * 1024  # some ten milliseconds


class LogDispatcher:
    """Dispatches what is behind the last record that was."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._bulk: BulkDispatcher | None = None

    def run(self) -> bool:
        """Dispatch what is there, as much as a turn may take; False if there is more."""
        store, dispatcher = self._store, self._store.dispatcher
        if dispatcher.behind_bytes >= BULK_FROM_BYTES and self._run_bulk():
            return dispatcher.behind_bytes < BULK_FROM_BYTES
        dispatcher.reput()
        last = store.commit_log.files.last()
        if last is not None:
            last.store_timestamp = store.checkpoint.dispatched_msg_timestamp
        return True

    def _run_bulk(self) -> bool:
        """Dispatch a stretch of one file; False if there is nothing that can be done so."""
        store, dispatcher = self._store, self._store.dispatcher
        file = store.commit_log.files.find(dispatcher.dispatched_offset)
        if file is None or store.config.force_verify_prop_crc:
            return False
        if self._bulk is None:
            self._bulk = BulkDispatcher(
                store.queues, store.index, store.config, store.checkpoint, dispatcher.delay_levels
            )
        begin = dispatcher.dispatched_offset - file.base
        end = min(file.read_position, dispatcher.confirm_offset - file.base)
        view = file.view[:end]
        found = scan.find_records(view, begin, min(begin + STRETCH_BYTES, end), base_offset=file.base)
        records, _ = scan.read_records(view, found, check_crc=False)
        count = self._bulk.dispatch_records(view, records)
        if count == 0:
            return False
        last = int(records.positions[count - 1])
        dispatcher.dispatched_offset = file.base + last + int(records.sizes[count - 1])
        if dispatcher.on_arrive_many is not None:
            dispatcher.on_arrive_many()
        return True

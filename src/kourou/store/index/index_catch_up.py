"""IndexCatchUp: gives the records that the index lacks their keys, while the broker serves.

A crash drops the index files that were not on the disk for sure, and one file holds the keys of gigabytes of
the log. Recovery does not wait for that: it makes the queues right and lets the store open. From then on
this class reads the log from where the index ends, in steps of a few milliseconds by the store's owner,
until it has reached the newest record.

An index file is append-only and in the order of the log, so there is one writer at a time: as long as
`IndexService.is_behind`, this class alone writes, and live dispatch leaves its keys to it. The step that
reaches the newest dispatched record ends that, in the same turn.

A stop on the way notes in the checkpoint how far it is (`index_offset`), and the next start goes on there.
After a crash the index files themselves tell, as they always do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kourou.errors import KourouError
from kourou.message.scan import records as scan
from kourou.store.bulk_dispatch import BulkDispatcher

if TYPE_CHECKING:
    from kourou.store.log.mapped_file import MappedFile
    from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

STEP_BYTES = 512 * 1024  # of the log at once: one to three milliseconds in which the broker answers nobody
PAUSE_MS = 3  # between two steps: the broker's time is first of all for its clients
RETRY_MS = 1000  # until a step that failed is tried again
LOG_EVERY_PERCENT = 10


class IndexCatchUp:
    """Follows the log with the index until it has reached its end."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._bulk = BulkDispatcher(
            store.queues, store.index, store.config, None, store.dispatcher.delay_levels
        )
        self.offset = 0  # the records before it have their keys
        self._began_at = 0
        self._began_ms = 0
        self._told_percent = 0
        self.failure = ""  # why the last step failed
        self._retry_at_ms = 0
        self._is_posted = False  # a step waits for the owner
        self.on_caught_up: Callable[[], None] = lambda: None

    def begin(self, offset: int) -> None:
        """Begin with the records at an offset. What one step does is done at once."""
        store = self._store
        self.offset = self._began_at = min(max(offset, store.commit_log.min_offset), self._end)
        self._began_ms = store.clock.elapsed_ms()
        store.index.is_behind = store.config.message_index_enable
        self.step()
        if self.is_behind:
            log.warning(
                "the index lacks the keys of %d bytes of the log from %d on: it is made anew while the broker"
                " serves; until then queries by key are not complete",
                self.behind_bytes, self.offset,
            )  # fmt: skip
            store.checkpoint.flush()  # who reads the files of a running broker must not trust its index

    @property
    def is_behind(self) -> bool:
        """Whether there are records without their keys."""
        return self._store.index.is_behind

    @property
    def behind_bytes(self) -> int:
        """How many bytes of the log the index lacks."""
        return max(self._end - self.offset, 0) if self.is_behind else 0

    @property
    def percent(self) -> int:
        """How much of the work is done."""
        return 100 * (self.offset - self._began_at) // max(self._end - self._began_at, 1)

    @property
    def remark(self) -> str | None:
        """What an answer by key has to say of itself; None if it is complete."""
        if not self.is_behind:
            return None
        return (
            f"not complete: the index is being made anew, {self.percent} % done; it lacks the messages at"
            f" physical offsets {self.offset} to {self._end}"
        )

    @property
    def _end(self) -> int:
        return self._store.dispatcher.dispatched_offset

    # Steps

    def run_once(self) -> None:
        """By a worker: read what comes next into memory, then have the owner do a step."""
        if not self.is_behind or self._is_posted or self._store.clock.elapsed_ms() < self._retry_at_ms:
            return
        file = self._store.commit_log.files.find(self.offset)
        if file is not None:
            start = self.offset - file.base
            file.mapping.populate(start, min(start + STEP_BYTES, file.size))
        self._is_posted = True
        self._store.post(self.step)

    def finish(self) -> None:
        """By the owner of a store that serves nobody: do all of it, and bring full files to the disk."""
        while self.is_behind and not self.failure:
            self.step()
        checkpoint = self._store.checkpoint
        checkpoint.index_msg_timestamp = self._store.index.flush_full() or checkpoint.index_msg_timestamp

    def step(self) -> None:
        """By the owner: index a few milliseconds' worth of the log."""
        self._is_posted = False
        if not self.is_behind:
            return
        store = self._store
        try:
            self.offset = max(self.offset, store.commit_log.min_offset)  # old files may have gone meanwhile
            until = min(self.offset + STEP_BYTES, self._end)
            while self.offset < until:
                self._index_some(until)
        except (OSError, KourouError) as error:
            if str(error) != self.failure:
                log.error("the index cannot be made anew: %s; it is tried again", error)
            self.failure = str(error)
            self._retry_at_ms = store.clock.elapsed_ms() + RETRY_MS
            return
        self.failure = ""
        if self.offset >= self._end:
            self._take_over()
        else:
            store.checkpoint.index_offset = self.offset
            if self.percent >= self._told_percent + LOG_EVERY_PERCENT:
                self._told_percent = self.percent
                log.info("the index is being made anew: %d %%, at %d", self.percent, self.offset)

    def _index_some(self, until: int) -> None:
        """Index records of one file, from the offset on."""
        commit_log = self._store.commit_log
        file = commit_log.files.find(self.offset)
        if file is None or not self._index_records(file, until - file.base):
            self.offset = min(commit_log.roll_next_file(self.offset), self._end)

    def _index_records(self, file: MappedFile, until: int) -> bool:
        """Index the records of a file that begin before a position; False where none is at the offset."""
        start = self.offset - file.base
        view = file.view[: min(file.read_position, self._end - file.base)]
        found = scan.find_records(view, start, until, base_offset=file.base)
        records, stop = scan.read_records(view, found)
        if len(records):
            self._bulk.index_records(view, records)
            self.offset = file.base + int(records.positions[-1] + records.sizes[-1])
        elif stop.reason != scan.BLANK:
            log.error(
                "no record to index at %d (%s): the rest of its file is not indexed", self.offset, stop.reason
            )
        return len(records) > 0

    def _take_over(self) -> None:
        """The index has all that is dispatched: live dispatch goes on from here."""
        store = self._store
        store.index.take_over(self.offset)
        if store.checkpoint.index_offset:
            store.checkpoint.index_offset = 0
            seconds = (store.clock.elapsed_ms() - self._began_ms) / 1000
            log.info("the index is complete again, after %.1f s", seconds)
        self.on_caught_up()

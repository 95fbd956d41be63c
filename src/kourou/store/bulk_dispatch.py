"""Bulk dispatch: thousands of records of the log to their queues and to the index at once.

What `Dispatcher` does for one record as it is appended, this does for a stretch of the log, for recovery
(queues alone), for an index that catches up (keys alone) and for rebuilding: the same bytes in a third of
the time. `message.scan` finds and checks the records; entries are grouped by queue and keys are hashed with
numpy. Records that need more than that (delayed ones, inner batches, filter bitmaps, light queues) go to
their queues one by one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.scan import records as scan
from kourou.message.scan.hashes import Hashes, java_hashes, to_signed, with_prefix
from kourou.message.scan.properties import Properties, Values, join_properties
from kourou.message.scan.records import Bytes, Integers, Records
from kourou.message.topics import DELETION_TOPIC, SCHEDULE_TOPIC
from kourou.store.checkpoint import StoreCheckpoint
from kourou.store.config import MessageStoreConfig
from kourou.store.dispatch import DispatchRequest, NotARecord, check_record
from kourou.store.index.index_file import IndexService, key_prefixes, positive
from kourou.store.log.mapped_file import MappedFile
from kourou.store.queue.consume_queue import ConsumeQueue
from kourou.store.queue.queue_store import ConsumeQueueStore

# Bytes of the log looked at together: enough for numpy to pay, little enough to stay in the caches.
STRETCH_BYTES = 8 * 1024 * 1024

_INNER = re.compile(rb"INNER_")

# Keys of a message are in the order UNIQ_KEY, each of KEYS, TAGS; 32 KiB of properties hold fewer.
_MOST_KEYS = 1 << 16


class Ended(NamedTuple):
    """Where the records of a file ended, and why."""

    position: int
    reason: str
    rolled: bool  # with a blank: the log goes on in the next file
    records: int
    last_offset: int  # physical offset of the last record, -1 if there was none


class _Stretch(NamedTuple):
    """Some records, and what both queues and index need of them."""

    records: Records
    requests: dict[int, DispatchRequest]  # by row: those that go to their queues one by one
    offsets: Integers
    timestamps: Integers
    topics: Integers  # numbers of the topics
    properties: Properties


class BulkDispatcher:
    """Gives many records their queue entries and index keys."""

    def __init__(
        self,
        queues: ConsumeQueueStore,
        index: IndexService,
        config: MessageStoreConfig,
        checkpoint: StoreCheckpoint | None,  # takes note of what was dispatched
        delay_levels: list[int],
    ) -> None:
        self._queues = queues
        self._index = index
        self._config = config
        self._checkpoint = checkpoint
        self._delay_levels = delay_levels
        self._topic_table = scan.TopicTable()
        self._topics = self._topic_table.names

    def dispatch_file(self, file: MappedFile, *, queues_from: int = 0, check_crc: bool = True) -> Ended:
        """Check the records of a file from its begin; give those from a physical offset on their queue
        entries. Their keys are IndexCatchUp's business."""
        assert self._index.is_behind
        view = file.view
        position, count, last_offset = 0, 0, -1
        at_once = not self._config.force_verify_prop_crc
        while True:
            if at_once:
                found = scan.find_records(view, position, position + STRETCH_BYTES, base_offset=file.base)
                records, _ = scan.read_records(view, found, check_crc=check_crc)
                records, requests = self._look_closer(view, records)
                if len(records):
                    self._dispatch(view, records, requests, queues_from)
                    count += len(records)
                    last_offset = file.base + int(records.positions[-1])
                    position = int(records.positions[-1] + records.sizes[-1])
                    continue
            # The last word has the very check that one record gets.
            verdict = check_record(
                view, position, file.size, check_crc=check_crc, delay_levels=self._delay_levels,
                verify_property_crc=self._config.force_verify_prop_crc,
            )  # fmt: skip
            if isinstance(verdict, NotARecord):
                return Ended(position, verdict.reason, verdict.blank, count, last_offset)
            if verdict.physical_offset != file.base + position:
                reason = f"a record that says it lies at {verdict.physical_offset}"
                return Ended(position, reason, False, count, last_offset)
            self._dispatch_one(verdict, queues_from)
            count += 1
            last_offset = verdict.physical_offset
            position += verdict.size

    def dispatch_records(self, view: memoryview, records: Records) -> int:
        """Dispatch records that are found already; how many: the first with a damaged property ends them."""
        records, requests = self._look_closer(view, records)
        if len(records):
            self._dispatch(view, records, requests, 0)
        return len(records)

    def index_records(self, view: memoryview, records: Records) -> None:
        """Give records that are found already their keys alone."""
        self._dispatch_to_index(self._stretch(view, records, {}))

    def _dispatch_one(self, request: DispatchRequest, queues_from: int) -> None:
        if request.in_queue and request.physical_offset >= queues_from:
            self._queues.dispatch(request)
            self._note_dispatched(request.store_timestamp, request.physical_offset)

    def _note_dispatched(self, timestamp: int, offset: int) -> None:
        if self._checkpoint is not None:
            self._checkpoint.dispatched_msg_timestamp = timestamp
            self._checkpoint.dispatched_physical_offset = offset

    def _look_closer(self, view: memoryview, records: Records) -> tuple[Records, dict[int, DispatchRequest]]:
        """The requests of records whose properties say more than a tag and keys.

        Where one of these properties is damaged the record is none: the records before it come back.
        """
        requests: dict[int, DispatchRequest] = {}
        if len(records) == 0:
            return records, requests
        marked = scan.has_topic(view, records, [SCHEDULE_TOPIC, DELETION_TOPIC])
        begin, end = int(records.positions[0]), int(records.positions[-1] + records.sizes[-1])
        if _INNER.search(view, begin, end):  # INNER_NUM, INNER_MULTI_DISPATCH: hardly ever
            properties = join_properties(view, records)
            for name in (names.INNER_NUM, names.INNER_MULTI_DISPATCH):
                marked[properties.find(name).rows] = True
        for row in np.flatnonzero(marked).tolist():
            request = self._request(view, records, row)
            if isinstance(request, NotARecord):
                return records[:row], requests
            requests[row] = request
        return records, requests

    def _request(self, view: memoryview, records: Records, row: int) -> DispatchRequest | NotARecord:
        return check_record(
            view, int(records.positions[row]), len(view), check_crc=False, delay_levels=self._delay_levels
        )

    def _dispatch(
        self,
        view: memoryview,
        records: Records,
        requests: dict[int, DispatchRequest],
        queues_from: int,
    ) -> None:
        """Dispatch records in parts that end with a deletion: what follows one begins new queues."""
        begin = 0
        deletions = [row + 1 for row, request in requests.items() if request.topic == DELETION_TOPIC]
        for end in (*deletions, len(records)):
            if begin < end:
                part = {row - begin: request for row, request in requests.items() if begin <= row < end}
                self._dispatch_part(view, records[begin:end], part, queues_from)
            begin = end

    def _dispatch_part(
        self,
        view: memoryview,
        records: Records,
        requests: dict[int, DispatchRequest],
        queues_from: int,
    ) -> None:
        stretch = self._stretch(view, records, requests)
        transaction = records.header["sys_flag"] & sysflag.TRANSACTION_MASK
        visible = (transaction == sysflag.TRANSACTION_NOT) | (transaction == sysflag.TRANSACTION_COMMIT)
        rows = np.flatnonzero(visible & (stretch.offsets >= queues_from))
        if len(rows):
            self._dispatch_to_queues(view, stretch, rows)
            self._note_dispatched(int(stretch.timestamps[rows[-1]]), int(stretch.offsets[rows[-1]]))
        if self._config.message_index_enable and not self._index.is_behind:
            self._dispatch_to_index(stretch)

    def _stretch(self, view: memoryview, records: Records, requests: dict[int, DispatchRequest]) -> _Stretch:
        header = records.header
        return _Stretch(
            records,
            requests,
            header["physical_offset"].astype(np.int64),
            header["store_timestamp"].astype(np.int64),
            self._topic_table.number_all(view, records),
            join_properties(view, records),
        )

    # Queues

    def _dispatch_to_queues(self, view: memoryview, stretch: _Stretch, rows: Integers) -> None:
        records = stretch.records
        tags_codes = np.zeros(len(records), np.int64)
        tags = stretch.properties.find(names.TAGS)
        tags_codes[tags.rows] = to_signed(java_hashes(stretch.properties.blob, tags.starts, tags.lengths)[0])
        queue_ids = records.header["queue_id"].astype(np.int64)
        queue_offsets = records.header["queue_offset"].astype(np.int64)
        places = (stretch.topics << 32) + queue_ids
        one_by_one = set(stretch.requests).intersection(rows.tolist())
        for place in np.unique(places[rows]).tolist():
            chosen = rows[places[rows] == place]
            first = int(chosen[0])
            queue = self._plain_queue(self._topics[stretch.topics[first]], int(queue_ids[first]))
            if queue is None:
                one_by_one.update(chosen.tolist())
            else:
                queue.put_many(
                    stretch.offsets[chosen], records.sizes[chosen], tags_codes[chosen], queue_offsets[chosen]
                )
        for row in sorted(one_by_one):
            request = stretch.requests.get(row) or self._request(view, records, row)
            assert isinstance(request, DispatchRequest)
            self._queues.dispatch(request)  # an entry that is there already it leaves alone

    def _plain_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if its entries are nothing but place, size and tags code."""
        if topic in (SCHEDULE_TOPIC, DELETION_TOPIC):
            return None
        queue = self._queues.get_if_usable(topic, queue_id)
        return queue if isinstance(queue, ConsumeQueue) and queue.ext is None else None

    # Index

    def _dispatch_to_index(self, stretch: _Stretch) -> None:
        """Write the keys of records, from where the index ends."""
        transaction = stretch.records.header["sys_flag"] & sysflag.TRANSACTION_MASK
        indexed = transaction != sysflag.TRANSACTION_ROLLBACK
        indexed &= stretch.offsets >= self._index.end_offset
        if indexed.any():
            rows, hashes = self._hash_keys(stretch)
            keep = indexed[rows]
            rows = rows[keep]
            self._index.put_hashed(hashes[keep], stretch.offsets[rows], stretch.timestamps[rows])

    def _hash_keys(self, stretch: _Stretch) -> tuple[Integers, Integers]:
        """The hashes of all keys in the order they have in the index, and the row of each."""
        properties = stretch.properties
        prefixes = np.array([key_prefixes(topic) for topic in self._topics], np.int64).astype(np.uint32)
        tags = properties.find(names.TAGS)
        unique = properties.find(names.UNIQ_KEY)
        keys, places = _split_keys(properties.find(names.KEYS), properties.blob)
        rows = np.concatenate((unique.rows, keys.rows, tags.rows))
        order = np.concatenate((np.zeros_like(unique.rows), places, np.full_like(tags.rows, _MOST_KEYS)))
        hashes = np.concatenate(
            [
                _hash_values(properties.blob, values, prefixes[stretch.topics[values.rows], column])
                for values, column in ((unique, 0), (keys, 0), (tags, 1))
            ]
        )
        sequence = np.argsort(rows * (2 * _MOST_KEYS) + order)
        return rows[sequence], positive(hashes[sequence])


def _hash_values(blob: Bytes, values: Values, prefixes: Hashes) -> Hashes:
    hashes, units = java_hashes(blob, values.starts, values.lengths)
    return with_prefix(prefixes, hashes, units)


def _split_keys(values: Values, blob: Bytes) -> tuple[Values, Integers]:
    """Each of the keys in the KEYS of a row, and its place among them from 1 on."""
    spaces = np.flatnonzero(blob == ord(" "))
    ends = values.starts + values.lengths
    several = np.searchsorted(spaces, values.starts) < np.searchsorted(spaces, ends)
    if not several.any():
        return values, np.ones_like(values.rows)
    alone = ~several
    rows, starts, lengths = (column[alone].tolist() for column in values)
    places = [1] * len(rows)
    for row, start, end in zip(
        values.rows[several].tolist(), values.starts[several].tolist(), ends[several].tolist()
    ):
        at = start
        for place, key in enumerate(blob[start:end].tobytes().split(b" "), 1):
            if key:
                rows.append(row)
                starts.append(at)
                lengths.append(len(key))
                places.append(place)
            at += len(key) + 1
    return Values(*(np.array(column, np.int64) for column in (rows, starts, lengths))), np.array(
        places, np.int64
    )

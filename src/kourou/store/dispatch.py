"""Dispatch: the way of a record from the log to its queue and to the index.

DispatchRequest is what a record means to them. A master that appends a record knows all of it; recovery
and slaves read it from the log with `check_record`, by the very checks of
CommitLog.checkMessageAndReturnSize. Dispatcher sees to it that every record that may be seen gets its
entries, in order and once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING

from msgspec import Struct

from kourou.errors import KourouError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.checksum import crc32
from kourou.message.codec import (
    BLANK_MAGIC,
    HEADER_SIZES,
    HEADERS,
    INT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_LENGTH,
    SIZE_AND_MAGIC,
    SYS_FLAG_AT,
)
from kourou.message.properties import decode_properties, tags_code
from kourou.message.topics import SCHEDULE_TOPIC
from kourou.store.config import BrokerRole, MessageStoreConfig, parse_delay_levels
from kourou.store.index.index_file import KEY_WIDTH, IndexService, KeyList
from kourou.store.log.commit_log import END_FILE_MIN_BLANK, CommitLog

if TYPE_CHECKING:
    from kourou.store.checkpoint import StoreCheckpoint
    from kourou.store.queue.queue_store import ConsumeQueueStore

log = logging.getLogger(__name__)

CRC_DIGITS = 10

# Requests kept from the put until they may be dispatched; beyond, they are read from the log again.
MAX_RECENT_REQUESTS = 100_000

# on_arrive(topic, queue_id, next queue offset, tags code, store timestamp, properties). For a batch it is
# called once for each tags code in it, and the properties are None.
OnArrive = Callable[[str, int, int, int, int, dict[str, str] | None], None]


class DispatchRequest(Struct, eq=False, gc=False):
    """One record on its way to its queue and to the index. Hot: one is made for each message."""

    topic: str
    queue_id: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    queue_offset: int
    sys_flag: int
    properties: dict[str, str]
    is_special: bool = True  # whether its topic or its properties may ask for more than an entry and keys
    inner_base: int | None = None  # of an inner batch: the queue offset of its first message
    batch_count: int = 1

    @property
    def batch_base(self) -> int:
        """The queue offset of the first message; a plain one in a batch queue is a batch of one."""
        return self.queue_offset if self.inner_base is None else self.inner_base

    @property
    def in_queue(self) -> bool:
        """Whether it can be seen: not prepared (4) nor rolled back (12)."""
        return not self.sys_flag & sysflag.TRANSACTION_PREPARED

    @property
    def in_index(self) -> bool:
        """Whether it can be found by key: not rolled back."""
        return self.sys_flag & sysflag.TRANSACTION_MASK != sysflag.TRANSACTION_ROLLBACK

    def read_batch(self) -> None:
        """Take what the properties of an inner batch say; ValueError if that is no number."""
        if names.INNER_NUM in self.properties and names.INNER_BASE in self.properties:
            self.inner_base = int(self.properties[names.INNER_BASE])
            self.batch_count = int(self.properties[names.INNER_NUM])


class DispatchBlock:
    """Records of one queue that lie one behind the other in the log, as a batch brings them."""

    __slots__ = (
        "codes",
        "keys",
        "offsets",
        "physical_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "size",
        "sizes",
        "store_timestamp",
        "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, queue_id: int, physical_offset: int, store_timestamp: int, queue_offset: int
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.physical_offset = physical_offset  # of the first
        self.store_timestamp = store_timestamp
        self.queue_offset = queue_offset  # of the first
        self.size = 0  # of all
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.codes: list[int] = []
        self.keys: KeyList = []
        self.properties: list[dict[str, str]] = []  # of each, where their queue needs them

    def requests(self) -> Iterator[DispatchRequest]:
        """Each of the records."""
        none: dict[str, str] = {}
        for number, (offset, size, code) in enumerate(zip(self.offsets, self.sizes, self.codes)):
            yield DispatchRequest(
                self.topic, self.queue_id, offset, size, code, self.store_timestamp,
                self.queue_offset + number, 0, self.properties[number] if self.properties else none,
            )  # fmt: skip


class NotARecord:
    """Why there is no record at a place."""

    __slots__ = ("blank", "is_short", "reason")

    def __init__(self, reason: str, blank: bool = False, is_short: bool = False) -> None:
        self.reason = reason
        self.blank = blank  # the file goes on in the next
        self.is_short = is_short  # the bytes end before the record does


_BLANK = NotARecord("blank", blank=True)
_END = NotARecord("end of file", is_short=True)
_ZERO = NotARecord("zero magic")


def check_record(
    view: memoryview,
    position: int,
    limit: int,
    *,
    check_crc: bool = True,
    verify_property_crc: bool = False,
    delay_levels: Sequence[int] = (),
    topics: dict[bytes, str] | None = None,
) -> DispatchRequest | NotARecord:
    """The record at `position` of a log file whose bytes end at `limit`.

    `topics` caches topic names over many calls. Hot in recovery: no object but the request is made.
    """
    if limit - position < 8:
        return _END
    size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    end = position + size
    if end > limit:
        return NotARecord(f"record of {size} bytes runs past the file", is_short=True)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if magic == BLANK_MAGIC:
            return _BLANK
        return NotARecord(f"unknown magic {magic & 0xFFFFFFFF:08x}") if magic else _ZERO
    if size < HEADER_SIZES[0]:
        return NotARecord(f"record of {size} bytes is too short")
    (sys_flag,) = INT.unpack_from(view, position + SYS_FLAG_AT)
    kind = sys_flag >> 4 & 3
    at = position + HEADER_SIZES[kind]
    if at > end:
        return NotARecord(f"record of {size} bytes is too short for its addresses")
    (
        _, _, crc, queue_id, _, queue_offset, physical_offset, _, _, _, store_timestamp, _, _, _, body_length,
    ) = HEADERS[kind].unpack_from(view, position)  # fmt: skip
    if body_length > 0:
        topic_at = at + body_length
        if topic_at > end:
            return NotARecord(f"body of {body_length} bytes runs past the record")
        if check_crc and not verify_property_crc and crc32(view[at:topic_at]) & 0x7FFFFFFF != crc:
            return NotARecord("body CRC does not match")
        at = topic_at
    if magic == MAGIC_V1:
        topic_at = at + 1
        topic_length = view[at] if at < end else 255
        topic_length = -1 if topic_length > 127 else topic_length
    else:
        topic_at = at + 2
        topic_length = int.from_bytes(view[at:topic_at], "big", signed=True)
    at = topic_at + topic_length + 2
    if topic_length < 0 or at > end:
        return NotARecord(f"topic of {topic_length} bytes does not fit the record")
    properties_length = int.from_bytes(view[at - 2 : at], "big", signed=True)
    if at + (properties_length if properties_length > 0 else 0) != end:
        return NotARecord(f"the parts do not add up to {size} bytes")

    topic_bytes = bytes(view[topic_at : at - 2])
    topic = topics.get(topic_bytes) if topics is not None else None
    if topic is None:
        topic = str(topic_bytes, "utf-8", "replace")
        if topics is not None:
            topics[topic_bytes] = topic
    properties = decode_properties(str(view[at:end], "utf-8", "replace"))
    if check_crc and verify_property_crc and not _property_crc_fits(view[position:end], properties):
        return NotARecord("record CRC does not match")
    code = tags_code(properties.get(names.TAGS))
    try:
        if topic == SCHEDULE_TOPIC and names.DELAY_TIME_LEVEL in properties:
            level = min(int(properties[names.DELAY_TIME_LEVEL]), len(delay_levels))
            if level > 0:
                code = store_timestamp + delay_levels[level - 1]
        request = DispatchRequest(
            topic, queue_id, physical_offset, size, code, store_timestamp, queue_offset, sys_flag, properties
        )
        request.read_batch()
        return request
    except ValueError as error:
        return NotARecord(f"a property that must be a number is none: {error}")


def _property_crc_fits(record: memoryview, properties: dict[str, str]) -> bool:
    digits = properties.get(names.CRC32, "")[::-1]
    is_crc = len(digits) == CRC_DIGITS and digits.isdecimal()
    return is_crc and crc32(record[:-PROPERTY_CRC_LENGTH]) & 0x7FFFFFFF == int(digits)


class Dispatcher:
    """Gives records their queue entries and index keys.

    At once, where a record may be seen as soon as it is appended. With SYNC_FLUSH or a TransientStorePool it
    may not: `reput` then dispatches what is confirmed, from the requests kept or from the log itself.
    """

    checkpoint: StoreCheckpoint

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService,
        config: MessageStoreConfig,
        on_failed: Callable[[str], None],
    ) -> None:
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._config = config
        self._on_failed = on_failed
        self.on_restored: Callable[[str], None] = log.info  # what failed works again
        self._failure: str | None = None
        self._recent: deque[DispatchRequest | DispatchBlock] = deque()
        self.delay_levels = parse_delay_levels(config.message_delay_level)
        self._indexes = config.message_index_enable
        self.at_once = not (config.sync_flush or config.transient_store_pool_enable)
        self.dispatched_offset = 0  # everything before it has its queue entry and its keys
        self.on_arrive: OnArrive | None = None
        # Both empty: nobody waits, by a pull or by a pop, and `on_arrive` need not be called
        self.awaited: Sized = ()
        self.awaited_by_pops: Sized = ()
        self.on_arrive_many: Callable[[], None] | None = None  # messages of any queue, which ones is not said

    @property
    def confirm_offset(self) -> int:
        """Records before it may be seen: those on disk with SYNC_FLUSH, else those in the files."""
        if self._config.sync_flush and not self._config.read_un_committed:
            return self._commit_log.files.flushed_where
        return self._commit_log.max_offset

    @property
    def behind_bytes(self) -> int:
        """How far queues and index are behind the log."""
        return max(self.confirm_offset - self.dispatched_offset, 0)

    @property
    def is_done(self) -> bool:
        """Whether every whole record has its entries. A slave's log may end with a part of one."""
        if self.behind_bytes == 0:
            return True
        file = self._commit_log.files.find(self.dispatched_offset)
        if self._config.broker_role is not BrokerRole.SLAVE or file is None:
            return False
        found = check_record(
            file.view, self.dispatched_offset - file.base, file.read_position, check_crc=False
        )
        return isinstance(found, NotARecord) and found.is_short

    def appended_blocks(self, blocks: Sequence[DispatchBlock]) -> Exception | None:
        """Records were appended together: give them their entries, at once or when they may be seen. The
        error where none of them can have one; where only some have no room, those get theirs later."""
        if not self.at_once:
            for block in blocks:
                self.keep(block)
            return None
        try:
            for block in blocks:
                self.dispatch_block(block)
        except (OSError, KourouError) as error:
            if self.dispatched_offset <= blocks[0].physical_offset:
                return error
            self.fail(error)
        return None

    def keep(self, request: DispatchRequest | DispatchBlock) -> None:
        """Keep what was appended until it may be dispatched."""
        if len(self._recent) >= MAX_RECENT_REQUESTS:
            self._recent.clear()
        self._recent.append(request)

    def dispatch(self, request: DispatchRequest) -> None:
        """Give a record its queue entry and its keys, and tell who waits for it. Hot."""
        offset = request.physical_offset
        is_visible = not request.sys_flag & sysflag.TRANSACTION_PREPARED
        if is_visible:
            self._queues.dispatch(request)
            self.checkpoint.dispatched_msg_timestamp = request.store_timestamp
            self.checkpoint.dispatched_physical_offset = offset
        self.dispatched_offset = offset + request.size
        if self._indexes and (is_visible or request.in_index):
            self._index.add_message(request.topic, request.properties, offset, request.store_timestamp)
        if (self.awaited or self.awaited_by_pops) and is_visible and self.on_arrive is not None:
            self._tell(request)

    def _tell(self, request: DispatchRequest) -> None:
        assert self.on_arrive is not None
        self.on_arrive(
            request.topic, request.queue_id, request.queue_offset + request.batch_count,
            request.tags_code, request.store_timestamp, request.properties,
        )  # fmt: skip
        if names.INNER_MULTI_QUEUE_OFFSET in request.properties:
            for queue, offset in self._queues.light_entries(request):
                self.on_arrive(
                    queue.topic, queue.queue_id, offset + 1, request.tags_code, request.store_timestamp,
                    request.properties,
                )  # fmt: skip

    def dispatch_block(self, block: DispatchBlock) -> None:
        """Give the records of a block their queue entries and keys, and tell who waits for one. Hot."""
        if not self._queues.dispatch_block(block):
            self._dispatch_one_by_one(block)
        self.dispatched_offset = block.physical_offset + block.size
        checkpoint = self.checkpoint
        checkpoint.dispatched_msg_timestamp = block.store_timestamp
        checkpoint.dispatched_physical_offset = block.offsets[-1]
        if self._indexes:
            self._index.add_flat(block.keys)
        if (self.awaited or self.awaited_by_pops) and self.on_arrive is not None:
            following = block.queue_offset + len(block.offsets)
            for code in dict.fromkeys(block.codes):
                self.on_arrive(block.topic, block.queue_id, following, code, block.store_timestamp, None)

    def _dispatch_one_by_one(self, block: DispatchBlock) -> None:
        """Give the records of a block their queue entries. Where one has no room, those before it have
        theirs, and get their keys here: the rest of the block is read from the log later."""
        try:
            for request in block.requests():
                self._queues.dispatch(request)
                self.dispatched_offset = request.physical_offset + request.size
        except (OSError, KourouError):
            if self._indexes:
                done = sum(offset < self.dispatched_offset for offset in block.keys[2::KEY_WIDTH])
                self._index.add_flat(block.keys[: done * KEY_WIDTH])
            raise

    def reput(self) -> None:
        """Dispatch every confirmed record that is not yet."""
        try:
            self._reput()
        except (OSError, KourouError) as error:
            self.fail(error)
            return
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.on_restored(failure)

    def fail(self, error: Exception) -> None:
        """Records have no entries. Nothing is lost: they are in the log, where the next try begins."""
        self._failure = f"queues or index cannot be written: {error}"
        self._on_failed(self._failure)

    def retry(self) -> None:
        """Try again what failed: while no message is taken, nothing else comes that would."""
        if self._failure is not None:
            self.reput()

    def _reput(self) -> None:
        if self.dispatched_offset < self._commit_log.min_offset:
            log.warning("records before %d expired undispatched", self._commit_log.min_offset)
            self.dispatched_offset = self._commit_log.min_offset
        confirmed = self.confirm_offset
        recent = self._recent
        while (at := self.dispatched_offset) < confirmed:
            while recent and recent[0].physical_offset < at:
                recent.popleft()
            request = recent[0] if recent and recent[0].physical_offset == at else self._read(at)
            if request is None:
                if self.dispatched_offset == at:
                    return
                continue
            if at + request.size > confirmed:
                return
            if isinstance(request, DispatchBlock):
                self.dispatch_block(request)
            else:
                self.dispatch(request)

    def _read(self, at: int) -> DispatchRequest | None:
        """The record at an offset of the log; None behind a blank, which is skipped, and at damage."""
        file = self._commit_log.files.find(at)
        if file is None:
            return None
        position = at - file.base
        found = check_record(
            file.view, position, file.read_position, check_crc=False, delay_levels=self.delay_levels
        )
        if isinstance(found, DispatchRequest):
            return found
        if found.blank or file.size - position <= END_FILE_MIN_BLANK:
            self.dispatched_offset = self._commit_log.roll_next_file(at)
        elif found.is_short and file.read_position < file.size:
            pass  # the rest of it is still on its way from the master
        else:
            log.error("no record to dispatch at %d: %s", at, found.reason)
        return None

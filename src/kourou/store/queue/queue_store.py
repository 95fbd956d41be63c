"""ConsumeQueueStore: the queues of all topics, and what a record does to them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Container, Iterator, Mapping

import orjson

from kourou.errors import BadMessageError, KourouError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage
from kourou.message.topics import (
    DELETION_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    is_system_topic,
)
from kourou.store.config import MessageStoreConfig
from kourou.store.dispatch import DispatchBlock, DispatchRequest
from kourou.store.log.disk import Disk
from kourou.store.queue.batch_consume_queue import BatchConsumeQueue
from kourou.store.queue.consume_queue import ConsumeQueue
from kourou.store.queue.consume_queue_ext import ExtUnit

log = logging.getLogger(__name__)

LMQ_PREFIX = "%LMQ%"
LMQ_SEPARATOR = ","
QUEUE_FOLDERS = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
DELETED_FOLDER = "deleted"  # where directories of deleted topics go before they are removed
MAX_QUEUE_ID = 0x7FFFFFFF
MAX_NAME_BYTES = 255  # of a topic: the longest name that file systems take
MAX_LIGHT_TEXTS = 10_000  # lists of light queues that are known by their text
AnyQueue = ConsumeQueue | BatchConsumeQueue
BitmapOf = Callable[[str, Mapping[str, str], int], bytes]  # of a topic, properties and store time


def is_lmq(name: str) -> bool:
    """Whether a queue is a light one."""
    return name.startswith(LMQ_PREFIX)


def is_directory_name(name: str) -> bool:
    """Whether a name leads nowhere but into the directory that it is used in."""
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")


def allows_lmq(topic: str) -> bool:
    """Whether a message of this topic goes to the light queues it names (MixAll.topicAllowsLMQ).

    One that comes back from a consumer has the names still, from its first time, and is in them already.
    """
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX)) and topic != SCHEDULE_TOPIC


class ConsumeQueueStore:
    """All queues, by topic and queue id."""

    def __init__(
        self,
        disk: Disk,
        config: MessageStoreConfig,
        is_batch_topic: Callable[[str], bool] | None = None,
        *,
        writable: bool = True,
    ) -> None:
        self._disk = disk
        self._config = config
        self._root = config.store_path_root_dir
        self._writable = writable
        self._batch_topics: set[str] = set()
        self.is_batch_topic = is_batch_topic or self._batch_topics.__contains__
        self.bitmap_of: BitmapOf | None = None  # set by who computes filter bitmaps
        self.table: dict[str, dict[int, AnyQueue]] = {}
        self._light: dict[str, tuple[ConsumeQueue | None, ...]] = {}  # see `light_queues`
        self.deleted_at: dict[str, int] = {}  # topic -> where the log says that it was deleted last
        # Brings the log to the disk up to an offset. A deletion that a power cut takes back must not have
        # removed queues: what is before the place where recovery begins would have no entries any more.
        self.flush_log: Callable[[int], None] | None = None
        self.on_deleted: Callable[[str], None] | None = None

    def __iter__(self) -> Iterator[AnyQueue]:
        for queues in list(self.table.values()):
            yield from list(queues.values())

    def get(self, topic: str, queue_id: int) -> AnyQueue | None:
        """A queue, if there is one."""
        queues = self.table.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get_or_create(self, topic: str, queue_id: int) -> AnyQueue:
        """A queue; an empty one where there was none. Nothing is written for it yet. Hot."""
        queue = self.get(topic, queue_id)
        if queue is None:
            queue = self._new(topic, queue_id, batch=self.is_batch_topic(topic))
            self.table.setdefault(topic, {})[queue_id] = queue
        return queue

    def get_if_usable(self, topic: str, queue_id: int) -> AnyQueue | None:
        """As get_or_create, but None for a record in the log that no queue can be made for."""
        try:
            return self.get_or_create(topic, queue_id)
        except BadMessageError as error:
            log.error("a record in the log has no queue: %s", error)
            return None

    def _new(self, topic: str, queue_id: int, *, batch: bool) -> AnyQueue:
        # Both become names of directories, and a topic comes from whoever sends.
        if not is_directory_name(topic):
            raise BadMessageError(f"{topic!r} cannot be a topic")
        if len(topic.encode()) > MAX_NAME_BYTES:
            raise BadMessageError(f"topic of {len(topic.encode())} bytes, {MAX_NAME_BYTES} allowed")
        if not 0 <= queue_id <= MAX_QUEUE_ID:
            raise BadMessageError(f"queue id {queue_id} is negative or too large")
        kind = BatchConsumeQueue if batch else ConsumeQueue
        return kind(self._disk, self._root, topic, queue_id, self._config, writable=self._writable)

    @property
    def lmq_count(self) -> int:
        """How many light queues there are."""
        return sum(map(is_lmq, self.table))

    # What a record does

    def dispatch(self, request: DispatchRequest) -> None:
        """Give a record its entry in its queue, and in the light queues it names; do what a deletion says.
        Hot."""
        if request.is_special and request.topic == DELETION_TOPIC:
            self._delete(request)
        try:
            queue = self.table[request.topic][request.queue_id]
        except KeyError:
            made = self.get_if_usable(request.topic, request.queue_id)
            if made is None:
                return
            queue = made
        if isinstance(queue, BatchConsumeQueue):
            if request.batch_base < 0:
                log.error("%s: record at %d is no inner batch", queue, request.physical_offset)
                return
            queue.put_batch(
                request.physical_offset, request.size, request.tags_code, request.store_timestamp,
                request.batch_base, request.batch_count,
            )  # fmt: skip
        elif queue.ext is None:
            queue.put(request.physical_offset, request.size, request.tags_code, request.queue_offset)
        else:
            bitmap = b""
            if self.bitmap_of is not None:
                bitmap = self.bitmap_of(request.topic, request.properties, request.store_timestamp)
            unit = ExtUnit(request.tags_code, request.store_timestamp, bitmap)
            queue.put_ext(request.physical_offset, request.size, unit, request.queue_offset)
        if request.is_special and names.INNER_MULTI_DISPATCH in request.properties:
            self._dispatch_to_light_queues(request)

    def dispatch_block(self, block: DispatchBlock) -> bool:
        """Give the records of a block their entries; False, and nothing done, where one call cannot. Hot."""
        queue = self.get_if_usable(block.topic, block.queue_id)
        if not isinstance(queue, ConsumeQueue):
            return False
        bitmaps: list[bytes] = []
        if queue.ext is not None and self.bitmap_of is not None:
            bitmap_of, topic, timestamp = self.bitmap_of, block.topic, block.store_timestamp
            bitmaps = [bitmap_of(topic, properties, timestamp) for properties in block.properties]
        return queue.put_block(block, bitmaps)

    def _delete(self, request: DispatchRequest) -> None:
        """The log says that a topic ends here. Done again where it was done already, it changes nothing: then
        its records from here on are still to come."""
        topic = request.properties.get(names.KEYS, "")
        if topic == DELETION_TOPIC or not is_directory_name(topic):
            log.error("record at %d deletes %r, which is no topic", request.physical_offset, topic)
            return
        if self.flush_log is not None:
            self.flush_log(request.physical_offset + request.size)
        self.delete_topic(topic)
        self.deleted_at[topic] = request.physical_offset
        if self.on_deleted is not None:
            self.on_deleted(topic)

    def _take_back(self, request: DispatchRequest) -> None:
        """All queues or none: a record that some know could be neither taken back nor put again."""
        for name in (request.topic, *request.properties[names.INNER_MULTI_DISPATCH].split(LMQ_SEPARATOR)):
            for queue in self.table.get(name, {}).values():
                queue.take_back(request.physical_offset)

    def _dispatch_to_light_queues(self, request: DispatchRequest) -> None:
        try:
            for queue, offset in self.light_entries(request):
                queue.put(request.physical_offset, request.size, request.tags_code, offset)
        except (OSError, KourouError):
            self._take_back(request)
            raise

    def light_entries(self, request: DispatchRequest) -> list[tuple[ConsumeQueue, int]]:
        """Where a record lies besides its own queue: light queues and offsets."""
        offsets = request.properties.get(names.INNER_MULTI_QUEUE_OFFSET)
        enabled = self._config.enable_multi_dispatch and self._config.enable_lmq
        if offsets is None or not (enabled and allows_lmq(request.topic)):
            return []
        queues = self.light_queues(request.properties.get(names.INNER_MULTI_DISPATCH, ""))
        queue_offsets = offsets.split(LMQ_SEPARATOR)
        if len(queues) != len(queue_offsets):
            log.error("record at %d names %d light queues and %d offsets", request.physical_offset,
                      len(queues), len(queue_offsets))  # fmt: skip
            return []
        return [
            (queue, int(offset))
            for queue, offset in zip(queues, queue_offsets, strict=True)
            if queue is not None and offset.isdecimal()
        ]

    def light_queues(self, text: str) -> tuple[ConsumeQueue | None, ...]:
        """The light queues that a message names, made where there was none; None in place of a name that is
        not of a light queue, or that none can have. Hot: messages of a kind name the same ones."""
        queues = self._light.get(text)
        if queues is None:
            made = [
                self.get_if_usable(name, 0) if is_lmq(name) else None for name in text.split(LMQ_SEPARATOR)
            ]
            queues = tuple([queue if isinstance(queue, ConsumeQueue) else None for queue in made])
            if len(self._light) >= MAX_LIGHT_TEXTS:
                self._light.clear()
            self._light[text] = queues
        return queues

    def knows_light_queues(self, text: str) -> bool:
        """Whether the light queues that a message names are there."""
        return text in self._light

    # Life

    def load(self, *, after_crash: bool = False) -> None:
        """Find and map the queues on the disk."""
        if self._writable:
            self._empty_deleted()
        self._batch_topics |= _batch_topics(self._disk, self._root)
        for folder, batch in (("consumequeue", False), ("batchconsumequeue", True)):
            base = f"{self._root}/{folder}"
            for topic in self._disk.list(base):
                for name in self._disk.list(f"{base}/{topic}"):
                    if name.isdecimal():
                        if batch:
                            self._batch_topics.add(topic)
                        queue = self._new(topic, int(name), batch=batch)
                        queue.load(after_crash=after_crash)
                        self.table.setdefault(topic, {})[int(name)] = queue

    def recover(self, *, clear: bool) -> None:
        """Find the end of each queue; `clear` leftovers behind it, as there may be after a crash."""
        for queue in self:
            queue.recover()
            last = queue.files.last()
            if clear and last is not None:
                last.clear_tail()

    def recover_offset_table(self, min_physical_offset: int) -> None:
        """What the next message of each queue gets, and where each begins."""
        for queue in self:
            queue.next_offset = queue.max_offset
            queue.correct_min_offset(min_physical_offset)

    @property
    def max_physic_offset(self) -> int:
        """The end of the newest record that any queue knows."""
        return max((queue.max_physic_offset for queue in self), default=-1)

    def truncate_dirty(self, physical_offset: int) -> dict[str, int]:
        """Drop entries at or behind the end of the log; how many, by queue."""
        dropped = {}
        if self.max_physic_offset >= physical_offset:
            for queue in self:
                count = queue.truncate_dirty(physical_offset)
                if count:
                    dropped[str(queue)] = count
        return dropped

    def flush(self, least_pages: int = 0) -> None:
        """Bring the entries of all queues to the disk."""
        for queue in self:
            queue.flush(least_pages)

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic. In one step for each kind of queue, however many files there are, and
        durably: a power cut must not bring back a part of them."""
        deleted = f"{self._root}/{DELETED_FOLDER}"
        for folder in QUEUE_FOLDERS:
            if self._disk.is_dir(f"{self._root}/{folder}/{topic}"):
                self._disk.make_dirs(deleted)
                aside = f"{deleted}/{folder}-{len(self._disk.list(deleted))}"
                self._disk.rename(f"{self._root}/{folder}/{topic}", aside)
        for queue in self.table.pop(topic, {}).values():
            queue.close()
        self._light.clear()
        self._empty_deleted()

    def _empty_deleted(self) -> None:
        """Remove the files of deleted topics. Those that the disk refuses to remove are tried again later."""
        deleted = f"{self._root}/{DELETED_FOLDER}"
        for folder in self._disk.list(deleted):
            for queue in self._disk.list(f"{deleted}/{folder}"):
                for file in self._disk.list(f"{deleted}/{folder}/{queue}"):
                    with contextlib.suppress(OSError):
                        self._disk.remove(f"{deleted}/{folder}/{queue}/{file}")
                self._disk.remove_dir(f"{deleted}/{folder}/{queue}")
            self._disk.remove_dir(f"{deleted}/{folder}")

    def read_deletions(self, read: Callable[[int], StoredMessage | None]) -> None:
        """Learn from the log which topics were deleted, and where."""
        queue = self.get(DELETION_TOPIC, 0)
        for entry in queue.iterate(queue.min_offset) if queue is not None else ():
            message = read(entry.physical_offset)
            if message is not None and message.topic == DELETION_TOPIC:
                self.deleted_at[message.properties.get(names.KEYS, "")] = entry.physical_offset

    def was_deleted(self, topic: str | None, physical_offset: int) -> bool:
        """Whether the topic that a message waits for was deleted since: it was of that one, not of one of the
        same name that was made again."""
        return topic is not None and physical_offset < self.deleted_at.get(topic, 0)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the files that point only to records that are gone."""
        for topic, offset in list(self.deleted_at.items()):
            if offset < min_physical_offset:  # the log has nothing that is older
                self.deleted_at.pop(topic, None)
        return sum(queue.delete_expired(min_physical_offset) for queue in self)

    def clean_expired(self, min_physical_offset: int, kept_topics: Container[str] = ()) -> list[str]:
        """Remove the queues of which no record is left, those of the broker excepted; their names.

        Of topics that are still used they are kept: they alone know which offset comes next.
        """
        removed = []
        for topic, queues in list(self.table.items()):
            if is_system_topic(topic) or topic in kept_topics:
                continue
            for queue_id, queue in list(queues.items()):
                waits = queue.next_offset > queue.max_offset  # records of it wait for their entries
                if 0 <= queue.last_physical_end < min_physical_offset and not waits:
                    del queues[queue_id]
                    queue.destroy()
                    removed.append(str(queue))
            if not queues:
                del self.table[topic]
        self._light.clear()
        return removed

    @property
    def total_size(self) -> int:
        """Bytes of all files."""
        return sum(queue.files.total_size for queue in self)

    def close(self) -> None:
        """Let go of all files."""
        for queue in self:
            queue.close()
        self.table.clear()
        self._light.clear()

    def destroy(self) -> None:
        """Remove all queues from the disk."""
        for topic in list(self.table):
            self.delete_topic(topic)


def _batch_topics(disk: Disk, root: str) -> set[str]:
    """The topics whose configuration names BatchCQ, for stores without a broker around them."""
    path = f"{root}/config/topics.json"
    size = disk.size(path)
    if size <= 0:
        return set()
    mapping = disk.map(path, size, writable=False)
    try:
        table = orjson.loads(bytes(mapping.view)).get("topicConfigTable", {})
    except (orjson.JSONDecodeError, AttributeError):
        return set()  # the broker reports it; here it only costs the hint
    finally:
        mapping.close()
    return {
        topic
        for topic, config in table.items()
        if "BatchCQ" in ((config or {}).get("attributes") or {}).values()
    }

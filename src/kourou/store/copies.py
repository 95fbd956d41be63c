"""CopyPutter: delayed messages whose time has come, many at once.

A copy is the record again, with the topic and queue that its properties name, and another time. Body and
properties are taken as they stand in the log. The copies are put together aside, in their order, and written
at once, and so are the entries of each queue: a third of the time of single puts.

Like PlainPutter it does what is like most. Where there is more to look at (a new topic, the end of a file, a
damaged record) it stops, and the caller takes the longer way for that one message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.checksum import crc32
from kourou.message.codec import HEADERS, MAGIC_V1, SYS_FLAG_AT
from kourou.message.plain_properties import PlainProperties, PropertyModel
from kourou.store.commit_log import END_FILE_MIN_BLANK
from kourou.store.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from kourou.store.dispatch import SCHEDULE_TOPIC
from kourou.store.index_file import KeyList
from kourou.store.mapped_file import MappedFile
from kourou.store.plain import PlainPutter
from kourou.store.put import MessagePutter, TopicForm

MAX_BYTES = 1 << 20  # of the copies that are written at once
_LONGER_WAY = sysflag.TRANSACTION_MASK | sysflag.INNER_BATCH
# What PlainProperties itself puts aside: a second one would be missed. All else is copied as it is.
_NOT_PLAIN = frozenset((names.UNIQ_KEY, names.KEYS))


class _Target:
    """A queue that gets copies. Hot: a plain class with slots."""

    __slots__ = ("codes", "end", "entries", "name", "queue", "queue_id", "room", "size_bytes", "topic")

    def __init__(self, name: str, queue_id: int, topic: TopicForm, queue: ConsumeQueue) -> None:
        self.name = name
        self.queue_id = queue_id
        self.topic = topic
        self.queue = queue
        self.room = 0  # for entries that need neither another file nor more of the disk
        file = queue.files.last()
        if file is not None and file.base + file.wrote == queue.next_offset * ENTRY_SIZE:
            self.room = (min(file.size, file.reserved) - file.wrote) // ENTRY_SIZE
        self.entries: list[bytes] = []
        self.codes: set[int] = set()
        self.size_bytes = 0
        self.end = 0  # of its last copy in the log


class CopyPutter:
    """Appends copies of delayed messages. One thread calls it."""

    def __init__(self, putter: MessagePutter, plain: PlainPutter) -> None:
        self._putter = putter
        self._plain = plain
        self._properties = PlainProperties({}, _NOT_PLAIN)

    def put(self, records: Iterable[tuple[int, int]]) -> list[tuple[str, int]]:
        """Append copies of records, given by place and size, up to one that is not like most: the topic and
        size of each copy. Hot."""
        done: list[tuple[str, int]] = []
        message = self._putter.commit_log.message
        file = self._putter.commit_log.files.last()
        if file is None:
            return done
        at = file.wrote
        limit = min(file.size - END_FILE_MIN_BLANK, file.reserved, at + MAX_BYTES)
        max_body = self._putter.config.max_message_size
        timestamp = self._putter.clock.now_ms()
        by_model: dict[PropertyModel, _Target] = {}
        targets: dict[tuple[str, int], _Target] = {}
        pieces: list[bytes | memoryview] = []
        keys: KeyList = []
        offset, pack_entry, read = file.base + at, ENTRY.pack, self._properties.read
        try:
            for place, old_size in records:
                record = message(place, old_size)
                if record is None:
                    break
                header = HEADERS[record[SYS_FLAG_AT + 3] >> 4 & 3]
                (
                    own_size, magic, crc, _, flag, _, _, sys_flag, born_timestamp, born_host, _, store_host,
                    reconsume_times, _, body_length,
                ) = header.unpack_from(record)  # fmt: skip
                body_at = header.size
                body_end = body_at + body_length
                body = record[body_at:body_end]
                # The length of the properties and they themselves stand in a copy as in the record.
                tail = bytes(record[body_end + 1 + record[body_end] :])
                if (
                    own_size != old_size
                    or magic != MAGIC_V1
                    or sys_flag & _LONGER_WAY
                    or not 0 <= body_length <= max_body
                    or crc32(body) & 0x7FFFFFFF != crc
                    or int.from_bytes(tail[:2], "big") != len(tail) - 2
                    or (found := read(tail[2:])) is None
                ):
                    break
                unique_id, message_keys, model = found
                target = by_model.get(model)
                if target is None:
                    target = self._target(model, targets)
                    if target is None:
                        break
                    by_model[model] = target
                topic, entries = target.topic, target.entries
                size = body_at + body_length + topic.overhead + len(tail) - 2
                if at + size > limit or len(entries) >= target.room:
                    break
                prefix, tag_prefix = topic.key_prefixes
                keys += prefix, unique_id.decode(), offset, timestamp
                if message_keys is not None:
                    for key in message_keys.decode().split(" "):
                        if key:
                            keys += prefix, key, offset, timestamp
                if model.tags:
                    keys += tag_prefix, model.tags, offset, timestamp
                pieces += (
                    header.pack(
                        size, topic.magic, crc, target.queue_id, flag,
                        target.queue.next_offset + len(entries), offset, sys_flag, born_timestamp, born_host,
                        timestamp, store_host, reconsume_times, 0, body_length,
                    ),
                    body, topic.field, tail,
                )  # fmt: skip
                entries.append(pack_entry(offset, size, model.tags_code))
                target.codes.add(model.tags_code)
                target.size_bytes += size
                at += size
                offset += size
                target.end = offset
                done.append((target.name, size))
        except (IndexError, struct.error, UnicodeDecodeError):
            pass  # the longer way says what is wrong
        if done:
            self._write(file, b"".join(pieces), timestamp, targets.values(), keys, done[-1][1])
        return done

    def _target(self, model: PropertyModel, targets: dict[tuple[str, int], _Target]) -> _Target | None:
        """The queue that messages of a kind go to; None where that has to be looked at."""
        properties = model.properties(None, None)
        topic_name, queue_id = properties.get(names.REAL_TOPIC, ""), properties.get(names.REAL_QUEUE_ID, "")
        if not queue_id.isdecimal() or topic_name == SCHEDULE_TOPIC:
            return None
        key = topic_name, int(queue_id)
        if key not in targets:
            place = self._plain._place(*key)
            if place is None or place[0].is_deletion:
                return None
            targets[key] = _Target(*key, *place[:2])
        return targets[key]

    def _write(
        self,
        file: MappedFile,
        data: bytes,
        timestamp: int,
        targets: Iterable[_Target],
        keys: KeyList,
        last_size: int,
    ) -> None:
        """Append the copies, and what PlainPutter.put_batch does for one queue, for each."""
        start = file.wrote
        file.view[start : start + len(data)] = data
        end = file.base + start + len(data)
        putter, dispatcher = self._putter, self._putter.dispatcher
        for target in targets:
            queue, count = target.queue, len(target.entries)
            if count == 0:
                continue
            fits = queue.put_block(b"".join(target.entries), queue.next_offset, target.end)
            assert fits, "its room was looked at, and nobody else writes"
            queue.next_offset += count
            target.topic.puts.count += count
            target.topic.puts.size_bytes += target.size_bytes
        file.wrote = start + len(data)
        file.store_timestamp = timestamp
        dispatcher.checkpoint.dispatched_msg_timestamp = timestamp
        dispatcher.checkpoint.dispatched_physical_offset = end - last_size
        dispatcher.dispatched_offset = end
        if putter.config.message_index_enable:
            putter.index.add_flat(keys)
        putter.stats.put_distribution[0] += 1
        if dispatcher.awaited and dispatcher.on_arrive is not None:
            for target in targets:
                for code in target.codes:
                    dispatcher.on_arrive(
                        target.name, target.queue_id, target.queue.next_offset, code, timestamp, None
                    )

"""PlainPutter: the way into the log of messages that are like most, alone and in batches.

It does what MessagePutter does with less looking: no light queues, no inner batches, no checksums of
properties, no TransientStorePool, and room in the last file of the log and of the queue. Where that does
not hold it does nothing and gives None, and the caller takes the longer way. Half of what a send costs is
here.
"""

from __future__ import annotations

import struct

from kourou.errors import KourouError
from kourou.message.checksum import crc32
from kourou.message.codec import HEADER_SIZES, HEADERS
from kourou.message.plain_properties import PropertyModel
from kourou.message.properties import decode_properties, tags_code
from kourou.store.commit_log import END_FILE_MIN_BLANK, MAX_PROPERTIES
from kourou.store.consume_queue import ENTRY, ConsumeQueue
from kourou.store.index_file import KeyList
from kourou.store.mapped_file import MappedFile
from kourou.store.put import MessagePutter, TopicForm

_BATCH_HEAD = struct.Struct(">iiiii")  # size, magic, CRC, flag, body length
_SHORT = struct.Struct(">h")


class PlainPutter:
    """Appends plain messages. One thread calls it."""

    def __init__(self, putter: MessagePutter) -> None:
        self._putter = putter
        self._inbox = putter.inbox
        self._files = putter.commit_log.files
        self._queues = putter.queues
        self._index_add = putter.index.add
        self._index_add_flat = putter.index.add_flat
        self._dispatcher = putter.dispatcher
        self._clock = putter.clock
        self._stats = putter.stats
        config = putter.config
        self._config = config
        self._indexing = config.message_index_enable
        self._may_be_plain = not (
            config.enabled_append_prop_crc
            or config.enable_lmq
            or config.enable_consume_queue_ext
            or config.transient_store_pool_enable
        )
        self._at_once = putter.dispatcher.at_once

    def _place(self, topic_name: str, queue_id: int) -> tuple[TopicForm, ConsumeQueue, MappedFile] | None:
        """Where messages of a queue go, if they may go there without further looking."""
        putter = self._putter
        try:
            topic = putter.topics[topic_name]
            queue = self._queues.table[topic_name][queue_id]
            file = self._files.files[-1]
        except (KeyError, IndexError):
            return None
        if (
            not (self._may_be_plain and self._at_once)
            or putter.refusal is not None
            or self._inbox.calls
            or putter.lacks_replicas is not None
            or not isinstance(queue, ConsumeQueue)
            or file.base + file.wrote - self._files.flushed_where > putter.max_unflushed
        ):
            return None
        return topic, queue, file

    def put(
        self,
        topic_name: str,
        queue_id: int,
        body: bytes | memoryview,
        raw: bytes,
        unique_id: bytes | None,
        keys: bytes | None,
        model: PropertyModel,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
    ) -> tuple[int, int, int] | None:
        """Append a message: its physical offset, queue offset and size. Its properties are there as they are
        stored and as PlainProperties reads them. Hot, with `_place` in line."""
        putter, files = self._putter, self._files
        try:
            topic = putter.topics[topic_name]
            queue = self._queues.table[topic_name][queue_id]
            file = files.files[-1]
        except (KeyError, IndexError):
            return None
        at = file.wrote
        offset = file.base + at
        if (
            not self._may_be_plain
            or putter.refusal is not None
            or self._inbox.calls
            or putter.lacks_replicas is not None
            or not isinstance(queue, ConsumeQueue)
            or offset - files.flushed_where > putter.max_unflushed
        ):
            return None
        body_length, raw_length = len(body), len(raw)
        kind = sys_flag >> 4 & 3
        header_size = HEADER_SIZES[kind]
        size = header_size + body_length + topic.overhead + raw_length
        end = at + size
        if (
            end + END_FILE_MIN_BLANK > file.size
            or end > file.reserved
            or body_length > self._config.max_message_size
            or raw_length > MAX_PROPERTIES
        ):
            return None
        queue_offset = queue.next_offset
        timestamp = self._clock.now_ms()
        view = file.view
        HEADERS[kind].pack_into(
            view, at, size, topic.magic, crc32(body) & 0x7FFFFFFF, queue_id, 0, queue_offset, offset,
            sys_flag, born_timestamp, born_host, timestamp, store_host, 0, 0, body_length,
        )  # fmt: skip
        body_at = at + header_size
        body_end = body_at + body_length
        view[body_at:body_end] = body
        view[body_end:end] = topic.field + raw_length.to_bytes(2, "big") + raw
        dispatcher = self._dispatcher
        if self._at_once:
            try:
                queue.put(offset, size, model.tags_code, queue_offset)
            except (OSError, KourouError):
                self._putter.commit_log.take_back(file, at, size)
                return None
        file.wrote = end
        file.store_timestamp = timestamp
        queue.next_offset = queue_offset + 1
        puts = topic.puts
        puts.count += 1
        puts.size_bytes += size
        if not self._at_once:
            dispatcher.keep(
                offset,
                size,
                (topic_name, queue_id, queue_offset, timestamp, topic.key_prefixes, unique_id, keys, model),
            )
            return offset, queue_offset, size
        checkpoint = dispatcher.checkpoint
        checkpoint.dispatched_msg_timestamp = timestamp
        checkpoint.dispatched_physical_offset = offset
        dispatcher.dispatched_offset = offset + size
        if self._indexing:
            if unique_id and not keys and not model.tags:
                self._index_add_flat((topic.key_prefixes[0], unique_id.decode(), offset, timestamp))
            else:
                self._index_add(
                    topic.key_prefixes, unique_id.decode() if unique_id else None,
                    keys.decode() if keys else None, model.tags, offset, timestamp,
                )  # fmt: skip
        if dispatcher.awaited and dispatcher.on_arrive is not None:
            properties = model.properties(unique_id, keys)
            dispatcher.on_arrive(
                topic_name, queue_id, queue_offset + 1, model.tags_code, timestamp, properties
            )
        self._stats.put_distribution[0] += 1
        return offset, queue_offset, size

    def put_batch(
        self,
        topic_name: str,
        queue_id: int,
        body: bytes | memoryview,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
    ) -> tuple[list[int], int, int] | None:
        """Append the messages of a batch body: their physical offsets, the first queue offset, and the size
        of all records. They are put together aside and copied at once. Hot."""
        place = self._place(topic_name, queue_id)
        if place is None or len(body) > self._config.max_message_size:
            return None
        topic, queue, file = place
        kind = sys_flag >> 4 & 3
        overhead = HEADER_SIZES[kind] + topic.overhead
        pack, unpack_head, unpack_short = HEADERS[kind].pack, _BATCH_HEAD.unpack_from, _SHORT.unpack_from
        magic, topic_bytes, pack_entry = topic.magic, topic.field, ENTRY.pack
        first = queue_offset = queue.next_offset
        start = file.wrote
        offset = file.base + start
        timestamp = self._clock.now_ms()
        view = memoryview(body)
        at, end = 0, len(view)
        offsets: list[int] = []
        keys: KeyList = []
        prefix, tag_prefix = topic.key_prefixes
        pieces: list[bytes | memoryview] = []
        entries: list[bytes] = []
        codes: list[int] = []  # of messages with tags
        try:
            while at < end:
                message_size, _, _, flag, body_length = unpack_head(view, at)
                body_at = at + 20
                body_end = body_at + body_length
                (raw_length,) = unpack_short(view, body_end)
                following = body_end + 2 + raw_length
                if body_length < 0 or raw_length < 0 or following > end or message_size != following - at:
                    return None
                text = str(view[body_end + 2 : following], "utf-8", "replace")
                if "INNER_" in text:
                    return None
                content = view[body_at:body_end]
                size = overhead + body_length + raw_length
                code = 0
                end_of_id = text.find("\x02", 9)
                if (
                    end_of_id > 9
                    and text[:9] == "UNIQ_KEY\x01"
                    and "KEYS\x01" not in text
                    and "TAGS\x01" not in text
                    and text.find("UNIQ_KEY\x01", end_of_id) < 0
                ):
                    keys += prefix, text[9:end_of_id], offset, timestamp
                elif text:
                    get = decode_properties(text).get
                    tags = get("TAGS")
                    if tags:
                        code = tags_code(tags)
                        codes.append(code)
                        keys += tag_prefix, tags, offset, timestamp
                    for key in (get("UNIQ_KEY"), *get("KEYS", "").split(" ")):
                        if key:
                            keys += prefix, key, offset, timestamp
                head = pack(
                    size, magic, crc32(content) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset, sys_flag,
                    born_timestamp, born_host, timestamp, store_host, 0, 0, body_length,
                )  # fmt: skip
                # The length of the properties and they themselves stand in the batch as in the record.
                pieces += head, content, topic_bytes, view[body_end:following]
                entries.append(pack_entry(offset, size, code))
                offsets.append(offset)
                offset += size
                queue_offset += 1
                at = following
        except struct.error:
            return None
        log_end = offset - file.base
        if not offsets or log_end + END_FILE_MIN_BLANK > file.size or log_end > file.reserved:
            return None
        file.view[start:log_end] = b"".join(pieces)
        try:
            fits = queue.put_block(b"".join(entries), first, offset)
        except (OSError, KourouError):
            fits = False
        if not fits:
            self._putter.commit_log.take_back(file, start, log_end - start)
            return None
        file.wrote = log_end
        file.store_timestamp = timestamp
        queue.next_offset = queue_offset
        dispatcher = self._dispatcher
        dispatcher.checkpoint.dispatched_msg_timestamp = timestamp
        dispatcher.checkpoint.dispatched_physical_offset = offsets[-1]
        dispatcher.dispatched_offset = offset
        if self._indexing:
            self._index_add_flat(keys)
        if dispatcher.awaited and dispatcher.on_arrive is not None:
            for code in {*codes, 0} if len(codes) < len(offsets) else set(codes):
                dispatcher.on_arrive(topic_name, queue_id, queue_offset, code, timestamp, None)
        topic.puts.count += len(offsets)
        topic.puts.size_bytes += log_end - start
        self._stats.put_distribution[0] += 1
        return offsets, first, log_end - start

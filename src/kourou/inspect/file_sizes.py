"""What the files of a store say of how they were made, where no broker.conf says it.

Java's default stands where there is no file to tell. An index file does not tell its slots from its entries:
it has Java's sizes, or Java's proportion between them, or the configuration must say it.
"""

from __future__ import annotations

import os
import re

from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import decode
from kourou.store.config import MessageStoreConfig
from kourou.store.index.index_file import ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE
from kourou.store.log.disk import Disk
from kourou.store.queue.queue_store import LMQ_PREFIX

OFFSET_NAME = re.compile(r"\d{20}")
INDEX_NAME = re.compile(r"\d{17}")

DEFAULTS = MessageStoreConfig(store_path_root_dir=os.sep)
# Java's own sizes have four entries for each slot; a file made for a test keeps to that more often than not.
INDEX_ENTRIES_PER_SLOT = 4

_MIN_LOG_FILE_SIZE = 4096


def infer_config(disk: Disk, root: str) -> MessageStoreConfig:
    """What the files say of how they were made; Java's default where there is no file to say it."""
    has_lmq = any(name.startswith(LMQ_PREFIX) for name in disk.list(f"{root}/consumequeue"))
    slots, entries = _infer_index_sizes(disk, root)
    log_file_size = _first_size(disk, f"{root}/commitlog", depth=0)
    return MessageStoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=(
            log_file_size if log_file_size >= _MIN_LOG_FILE_SIZE else DEFAULTS.mapped_file_size_commit_log
        ),
        mapped_file_size_consume_queue=(
            _first_size(disk, f"{root}/consumequeue") or DEFAULTS.mapped_file_size_consume_queue
        ),
        mapper_file_size_batch_consume_queue=(
            _first_size(disk, f"{root}/batchconsumequeue") or DEFAULTS.mapper_file_size_batch_consume_queue
        ),
        enable_consume_queue_ext=disk.is_dir(f"{root}/consumequeue_ext"),
        mapped_file_size_consume_queue_ext=(
            _first_size(disk, f"{root}/consumequeue_ext") or DEFAULTS.mapped_file_size_consume_queue_ext
        ),
        max_hash_slot_num=slots,
        max_index_num=entries,
        enabled_append_prop_crc=_has_property_crc(disk, root),
        enable_lmq=has_lmq,
        enable_multi_dispatch=has_lmq,
    )


def _first_size(disk: Disk, directory: str, depth: int = 2) -> int:
    """Size of the first file, in name order, that is named by an offset and not empty; 0 for none."""
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        size = _first_size(disk, path, depth - 1) if depth else 0
        if not depth and OFFSET_NAME.fullmatch(name):
            size = disk.size(path)
        if size > 0:
            return size
    return 0


def index_size(slots: int, entries: int) -> int:
    """The size of an index file."""
    return HEADER_SIZE + slots * SLOT_SIZE + entries * ENTRY_SIZE


def _infer_index_sizes(disk: Disk, root: str) -> tuple[int, int]:
    """(maxHashSlotNum, maxIndexNum): Java's defaults, or Java's proportion where a file's size fits it."""
    default = DEFAULTS.max_hash_slot_num, DEFAULTS.max_index_num
    base = f"{root}/index"
    paths = [f"{base}/{name}" for name in disk.list(base) if INDEX_NAME.fullmatch(name)]
    for path in paths:
        size = disk.size(path)
        slots, rest = divmod(size - HEADER_SIZE, SLOT_SIZE + INDEX_ENTRIES_PER_SLOT * ENTRY_SIZE)
        entries = slots * INDEX_ENTRIES_PER_SLOT
        if size == index_size(*default):
            return default
        if rest == 0 and slots > 0 and _fits_header(disk, path, slots, entries):
            return slots, entries
    return default


def _fits_header(disk: Disk, path: str, slots: int, entries: int) -> bool:
    mapping = disk.map(path, HEADER_SIZE, writable=False)
    header: tuple[int, ...] = HEADER.unpack(mapping.view)
    mapping.close()
    return 0 <= header[4] <= slots and 0 <= header[5] <= entries


def _has_property_crc(disk: Disk, root: str) -> bool:
    """Whether the first record of the log carries a CRC of the whole."""
    directory = f"{root}/commitlog"
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        size = disk.size(path)
        if not OFFSET_NAME.fullmatch(name) or size <= 0:
            continue
        mapping = disk.map(path, size, writable=False)
        mapping.close()
        try:
            return names.CRC32 in decode(mapping.view, check_crc=False, copy_body=False).properties
        except CorruptRecordError:
            return False
    return False

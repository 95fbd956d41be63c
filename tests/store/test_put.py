"""Putting messages: what is taken, what is refused and why, and the bytes that come of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import pytest

from kourou.message import Message, decode, encode_batch, pack_host, sysflag
from kourou.message.codec import BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from kourou.message.properties import decode_properties
from kourou.store import (
    BrokerRole,
    FlushDiskType,
    InnerMessage,
    MessageStore,
    MessageStoreConfig,
    PutMessageStatus,
)
from support.stores.fault_disk import FaultDisk
from support.stores.store import (
    LOG_FILE,
    START_MS,
    ManualClock,
    bodies,
    decoded,
    files_below,
    message,
    open_store,
    put,
    small_config,
)

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: FaultDisk) -> Iterator[MessageStore]:
    with open_store(small_config(tmp_path), clock=clock, disk=disk) as opened:
        yield opened


def queue_entries(store: MessageStore, topic: str = "topic", queue_id: int = 0) -> list[tuple[int, int, int]]:
    """(physical offset, size, tags code) of each entry, as the file holds them."""
    queue = store.queues.get(topic, queue_id)
    assert queue is not None
    data = b"".join(bytes(file.view[: file.wrote]) for file in queue.files.files)
    return list(struct.iter_unpack(">qiq", data))


# What is refused


def test_a_message_put_is_read_back_field_for_field(store):
    given = InnerMessage.of(
        "topic", 3, b"hello", "TAGS\x01red\x02KEYS\x01k1 k2\x02", flag=7, born_timestamp=123,
        born_host=pack_host("1.2.3.4", 5), store_host=pack_host("6.7.8.9", 10911), reconsume_times=2,
        prepared_transaction_offset=99,
    )  # fmt: skip
    result = store.put_message(given)

    assert (result.status, result.physical_offset, result.queue_offset) == (PutMessageStatus.PUT_OK, 0, 0)
    assert (result.store_timestamp, result.message_count) == (START_MS, 1)
    (stored,) = decoded(store.get_message("topic", 3, 0, 32))
    assert (stored.topic, stored.queue_id, stored.queue_offset) == ("topic", 3, 0)
    assert (stored.body, stored.properties_raw) == (b"hello", given.properties_raw)
    assert (stored.flag, stored.born_timestamp, stored.store_timestamp) == (7, 123, START_MS)
    assert (stored.born_host, stored.store_host) == (given.born_host, given.store_host)
    assert (stored.reconsume_times, stored.prepared_transaction_offset) == (2, 99)
    assert (stored.magic, stored.store_size) == (MAGIC_V1, result.wrote_bytes)
    assert stored.body_crc == crc32(b"hello") & 0x7FFFFFFF


def test_an_empty_body_is_a_message_too(store):
    put(store, message(body=b""), message(body=b"after"))
    assert bodies(store) == [b"", b"after"]


def test_before_start_after_shutdown_and_on_a_slave_nothing_is_taken(tmp_path):
    early = MessageStore(small_config(tmp_path / "early"))
    early.load()
    with open_store(small_config(tmp_path / "closed")) as closed:
        put(closed, message())
    with open_store(small_config(tmp_path / "slave", broker_role=BrokerRole.SLAVE)) as slave:
        for store, why in ((early, "not started"), (closed, "shutting down"), (slave, "slave")):
            for result in (store.put_message(message()), store.put_messages(batch_of([b"x"]))):
                assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
                assert why in result.reason
        assert slave.commit_log.max_offset == 0
    early.shutdown()
    assert files_below(tmp_path / "early" / "store" / "commitlog") == {}


@pytest.mark.parametrize(
    ("topic", "queue_id"),
    [
        ("a/b", 0),
        ("..", 0),
        (".", 0),
        ("", 0),
        ("../../etc", 0),
        ("nul\0", 0),
        ("topic", -1),
        ("topic", 2**31),
    ],
)
def test_a_topic_or_queue_that_cannot_be_a_directory_is_illegal(store, tmp_path, topic, queue_id):
    before = files_below(tmp_path)
    for result in (
        store.put_message(message(topic, queue_id)),
        store.put_messages(batch_of([b"x"], topic, queue_id)),
    ):
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert result.reason
    assert files_below(tmp_path) == before
    assert store.stats.put_failed == 2


@pytest.mark.parametrize("sync", [False, True])
def test_a_topic_longer_than_a_file_name_is_illegal(tmp_path, sync):
    """Once in the log it could never get a queue: the store would stop at it, now and after a restart."""
    flush = {"flush_disk_type": flush_type(sync)}
    with open_store(small_config(tmp_path, **flush)) as store:
        result = store.put_message(message("T" * 256))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        store.flusher.flush()
        store.wait(0)
        put(store, message("T" * 255))
        store.flusher.flush()
        assert bodies(store, "T" * 255) == [b"body"]
    with open_store(small_config(tmp_path, **flush)) as store:
        assert bodies(store, "T" * 255) == [b"body"]


def test_a_body_or_a_batch_over_the_limit_is_illegal(tmp_path):
    with open_store(small_config(tmp_path, max_message_size=1000)) as store:
        assert store.put_message(message(body=bytes(1001))).status is PutMessageStatus.MESSAGE_ILLEGAL
        assert store.put_messages(batch_of([bytes(490)] * 2)).status is PutMessageStatus.MESSAGE_ILLEGAL
        assert store.commit_log.max_offset == 0
        assert store.put_message(message(body=bytes(1000))).ok
        assert store.put_messages(batch_of([bytes(490)])).ok


def test_properties_over_32767_bytes_are_refused(store):
    fits = 0x7FFF - len("k\x01\x02")
    for longer in ("v" * (fits + 1), "€" * 11_000):  # bytes count, not characters
        refused = store.put_message(message(k=longer))
        assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    assert store.commit_log.max_offset == 0
    assert store.put_message(message(k="v" * fits)).ok
    largest = LOG_FILE - RECORD - 8  # with the blank after it, what a file holds
    assert store.put_message(message(body=bytes(largest))).ok


def test_a_full_disk_refuses_and_leaves_nothing_half_written(store, disk):
    put(store, message(body=b"before"), message(body=bytes(40_000)))
    entries = queue_entries(store)
    disk.fill()  # what is reserved already may be written, a new file may not

    refused = [store.put_message(message(body=bytes(30_000))) for _ in range(3)]
    refused.append(store.put_messages(batch_of([bytes(15_000)] * 2)))
    for result in refused:
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "no room" in result.reason
    assert queue_entries(store) == entries
    assert store.max_offset("topic", 0) == 2
    assert store.commit_log.max_offset == LOG_FILE  # the blank is there, and nothing behind it
    assert store.look_message(LOG_FILE) is None

    disk.heal()
    (offset,) = put(store, message(body=b"after"))
    assert offset == LOG_FILE
    assert [body[:6] for body in bodies(store)] == [b"before", bytes(6), b"after"]


def test_a_log_file_that_cannot_be_made_is_an_answer_not_an_exception(store, disk):
    disk.fail_maps("commitlog")
    assert store.put_message(message()).status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
    disk.heal()
    put(store, message())
    assert bodies(store) == [b"body"]


@pytest.mark.parametrize("batch", [False, True])
def test_senders_are_told_to_wait_while_too_much_is_not_flushed(store, monkeypatch, batch):
    monkeypatch.setattr(store.putter, "max_unflushed", 1000)
    put(store, message(body=bytes(1000)))
    refused = store.put_messages(batch_of([b"x"])) if batch else store.put_message(message())
    assert refused.status is PutMessageStatus.OS_PAGE_CACHE_BUSY
    store.flusher.flush()
    assert store.put_message(message()).queue_offset == 1


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("fault", ["no room", "no file"])
def test_a_record_whose_queue_entry_fails_is_taken_back(store, disk, fault, batch):
    put(store, message("other"))
    end = store.commit_log.max_offset
    if fault == "no room":
        disk.fill("consumequeue/topic")
    else:
        disk.fail_maps("consumequeue/topic")

    refused = store.put_messages(batch_of([b"lost"])) if batch else store.put_message(message(body=b"lost"))
    assert not refused.ok
    assert store.commit_log.max_offset == end
    assert store.look_message(end) is None
    assert store.max_offset("topic", 0) == 0

    disk.heal()
    (offset,) = put(store, message(body=b"kept"))
    assert offset == end
    assert bodies(store) == [b"kept"]


def test_a_taken_back_record_does_not_come_back_after_a_restart(tmp_path, disk):
    with open_store(small_config(tmp_path), disk=disk) as store:
        put(store, message("other"))
        disk.fill("consumequeue/topic")
        assert not store.put_message(message(body=b"lost", KEYS="lost")).ok
        end = store.commit_log.max_offset
        disk.heal()
    with open_store(small_config(tmp_path)) as store:
        assert store.recovery is not None
        assert store.recovery.cut_bytes == 0  # nothing of it was left in the file
        assert store.commit_log.max_offset == end
        assert bodies(store) == []
        assert store.query_message("topic", "lost").records == []


def test_what_takes_the_place_of_a_record_taken_back_is_flushed_too(store, disk, monkeypatch):
    """The flush thread may come between the append and its undoing."""
    put(store, message("other"))

    def flush_then_fail(*_: object, **__: object) -> NoReturn:
        store.flusher.flush()
        raise OSError("no such luck")

    monkeypatch.setattr(disk, "map", flush_then_fail)
    assert not store.put_message(message(body=bytes(500))).ok
    monkeypatch.undo()
    put(store, message(body=b"short"))
    syncs = disk.count_syncs("commitlog")
    assert store.flusher.flush() == store.commit_log.max_offset
    assert disk.count_syncs("commitlog") == syncs + 1


def test_a_light_queue_that_fails_leaves_no_entry_in_the_message_own_queue(tmp_path, disk):
    """The record is taken back, so an entry that stays would point at the next record."""
    with open_store(lmq_config(tmp_path), disk=disk) as store:
        put(store, message(body=b"first"))
        disk.fail_maps("%LMQ%")
        refused = store.put_message(message(body=b"lost", INNER_MULTI_DISPATCH="%LMQ%a"))
        disk.heal()
        assert refused.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        put(store, message(body=b"a much longer body than the one before"))
        assert bodies(store) == [b"first", b"a much longer body than the one before"]
        assert bodies(store, "%LMQ%a") == []


def test_an_index_that_cannot_be_written_does_not_fail_the_put_with_an_exception(tmp_path, disk):
    """The message is in the log and in its queue: its sender is told so, and keys are not lost."""
    with open_store(small_config(tmp_path, max_index_num=50_000), disk=disk) as store:
        disk.fail_maps("/index/")
        many = " ".join(f"key-{number}" for number in range(2500))
        offsets = put(store, message(KEYS=many), message(KEYS=many))
        refused = store.put_message(message())
        assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "index" in refused.reason
        assert len(bodies(store)) == 2
        disk.heal()
        assert store.query_message("topic", "key-2499").physical_offsets == offsets
        assert store.put_message(message()).status is PutMessageStatus.PUT_OK  # there is room again
    assert not (tmp_path / "store" / "abort").exists()
    with open_store(small_config(tmp_path, max_index_num=50_000)) as store:
        assert store.query_message("topic", "key-2499").physical_offsets == offsets


# Queue offsets, transactions, delay


def test_each_queue_counts_for_itself(store):
    results = [
        store.put_message(message(topic, queue)) for topic in "ab" for queue in (0, 1) for _ in range(3)
    ]
    assert [result.queue_offset for result in results] == [0, 1, 2] * 4
    assert [result.physical_offset for result in results] == [
        number * results[0].wrote_bytes for number in range(12)
    ]
    assert store.max_offset("b", 1) == 3


def test_a_refused_message_uses_up_no_queue_offset(store):
    put(store, message())
    assert not store.put_message(message(k="v" * 40_000)).ok
    assert store.put_message(message()).queue_offset == 1


@pytest.mark.parametrize("kind", [PREPARED, ROLLBACK])
def test_prepared_and_rolled_back_messages_are_in_the_log_but_in_no_queue(store, kind):
    put(store, message(body=b"seen"))
    result = store.put_message(message(body=b"hidden", sys_flag=kind, KEYS="half", UNIQ_KEY="unique"))
    put(store, message(body=b"seen too"))

    assert result.queue_offset == 0
    assert bodies(store) == [b"seen", b"seen too"]
    assert [item.queue_offset for item in decoded(store.get_message("topic", 0, 0, 32))] == [0, 1]
    stored = store.look_message(result.physical_offset)
    assert stored is not None
    assert (stored.body, stored.queue_offset) == (b"hidden", 0)
    expected = [result.physical_offset] if kind == PREPARED else []
    assert store.query_message("topic", "half").physical_offsets == expected
    assert store.query_message("topic", "unique").physical_offsets == expected


def test_a_committed_message_is_seen(store):
    put(store, message(body=b"done", sys_flag=COMMIT, KEYS="k"))
    assert bodies(store) == [b"done"]
    assert len(store.query_message("topic", "k").records) == 1


@pytest.mark.parametrize(
    ("level", "delay_ms"), [("1", 1000), ("3", 10_000), ("18", 7_200_000), ("99", 7_200_000)]
)
def test_a_scheduled_message_has_its_deliver_time_for_a_tags_code(store, level, delay_ms):
    put(store, message("SCHEDULE_TOPIC_XXXX", 2, DELAY=level, TAGS="red"))
    ((_, _, code),) = queue_entries(store, "SCHEDULE_TOPIC_XXXX", 2)
    assert code == START_MS + delay_ms


def test_a_delay_level_changes_nothing_in_other_topics_or_where_it_is_zero(store):
    put(store, message(DELAY="3", TAGS="red"), message("SCHEDULE_TOPIC_XXXX", 0, DELAY="0", TAGS="red"))
    assert queue_entries(store)[0][2] == 112785  # "red".hashCode()
    assert queue_entries(store, "SCHEDULE_TOPIC_XXXX")[0][2] == 112785


@pytest.mark.parametrize(
    ("tags", "code"),
    [("TagA", 2598919), ("Aa", 2112), ("BB", 2112), ("タグ", 399313), ("a long enough tag", -814046385)],
)
def test_the_tags_code_is_javas_hash_code(store, tags, code):
    put(store, message(TAGS=tags), message())
    assert [entry[2] for entry in queue_entries(store)] == [code, 0]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("topic", "properties", "sys_flag"),
    [
        ("SCHEDULE_TOPIC_XXXX", {"DELAY": "soon"}, 0),
        ("batch", {"INNER_NUM": "many"}, sysflag.INNER_BATCH),
        ("batch", {"INNER_NUM": "40000"}, sysflag.INNER_BATCH),
        ("batch", {"INNER_NUM": "-1"}, sysflag.INNER_BATCH),
        ("batch", {"INNER_NUM": "0"}, sysflag.INNER_BATCH),
    ],
)
def test_a_number_that_is_none_does_not_poison_the_log(tmp_path, topic, properties, sys_flag, sync):
    """Recovery ends the log at a record it cannot read: one that is taken must be readable."""
    config = small_config(tmp_path, flush_disk_type=flush_type(sync))
    batch_topics = {"batch"}.__contains__
    with open_store(config, is_batch_topic=batch_topics) as store:
        put(store, message(body=b"before"))
        body = encode_batch([Message("batch", b"x")])
        refused = store.put_message(message(topic, 0, body, sys_flag=sys_flag, **properties))
        assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
        put(store, message(body=b"after"))
        store.flusher.flush()
        assert bodies(store) == [b"before", b"after"]
        end = store.commit_log.max_offset
    with open_store(config, is_batch_topic=batch_topics) as store:
        assert store.commit_log.max_offset == end
        assert bodies(store) == [b"before", b"after"]


# Batches


def batch_of(parts: list[bytes], topic: str = "topic", queue_id: int = 0) -> InnerMessage:
    return message(topic, queue_id, encode_batch([Message(topic, part) for part in parts]))


def test_a_batch_becomes_one_record_for_each_message(store):
    put(store, message(body=b"before"))
    parts = [
        Message("topic", b"m%d" % number, {"KEYS": f"k{number}", "TAGS": "t"}, number) for number in range(5)
    ]
    result = store.put_messages(message(body=encode_batch(parts)))

    assert (result.status, result.queue_offset, result.message_count) == (PutMessageStatus.PUT_OK, 1, 5)
    assert result.physical_offsets is not None
    assert result.physical_offset == result.physical_offsets[0]
    stored = decoded(store.get_message("topic", 0, 1, 32))
    assert [item.body for item in stored] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert [item.queue_offset for item in stored] == [1, 2, 3, 4, 5]
    assert [item.physical_offset for item in stored] == result.physical_offsets
    assert [item.flag for item in stored] == [0, 1, 2, 3, 4]
    assert sum(item.store_size for item in stored) == result.wrote_bytes
    assert store.query_message("topic", "k3").physical_offsets == [result.physical_offsets[3]]
    assert store.put_message(message()).queue_offset == 6


def test_a_batch_that_does_not_fit_the_file_rolls_as_a_whole(store):
    put(store, message(body=bytes(60_000)))
    blank_at = store.commit_log.max_offset
    result = store.put_messages(batch_of([bytes(2000)] * 4))
    assert result.physical_offsets is not None
    assert result.physical_offsets[0] == LOG_FILE
    assert all(LOG_FILE <= offset < 2 * LOG_FILE for offset in result.physical_offsets)
    size, magic = struct.unpack_from(">ii", store.commit_log.files.files[0].view, blank_at)
    assert (size, magic) == (LOG_FILE - blank_at, BLANK_MAGIC)
    assert len(bodies(store)) == 5


WHOLE = encode_batch([Message("topic", b"one", {"a": "b"}), Message("topic", b"two")])
MALFORMED = [
    b"", b"x", WHOLE[:-1], WHOLE + b"x", WHOLE[:20], b"\x7f\xff\xff\xff" + WHOLE[4:],
    WHOLE[:16] + b"\xff\xff\xff\xff" + WHOLE[20:], WHOLE[:23] + b"\xff\xff" + WHOLE[25:],
]  # fmt: skip
RECORD = 88 + 1 + len("topic") + 2  # with an empty body and no properties


def inner_batch(count: int) -> InnerMessage:
    body = encode_batch([Message("batch", b"%d" % number) for number in range(count)])
    return message("batch", 0, body, sys_flag=sysflag.INNER_BATCH, INNER_NUM=str(count))


def calls_itself_inner(number: str) -> InnerMessage:
    odd = Message("topic", b"odd", {"INNER_NUM": number, "INNER_BASE": "7"})
    return message(body=encode_batch([Message("topic", b"plain"), odd]))


ILLEGAL_BATCHES = [
    *(message(body=body) for body in MALFORMED),
    batch_of([bytes(10_000)] * 7),  # fits no file
    *(message(body=WHOLE, sys_flag=kind) for kind in (PREPARED, COMMIT, ROLLBACK)),
    *(message(body=WHOLE, DELAY=level) for level in ("1", "soon")),
    *(calls_itself_inner(number) for number in ("many", "3", "40000")),
]
ILLEGAL = [
    message(body=bytes(LOG_FILE - RECORD - 7)),  # no room for the blank after it
    inner_batch(2),  # its topic takes none
    message(INNER_NUM="2"),
]


@pytest.mark.parametrize(
    ("bad", "is_batch"), [*((bad, True) for bad in ILLEGAL_BATCHES), *((bad, False) for bad in ILLEGAL)]
)
def test_what_cannot_be_stored_is_illegal_and_changes_nothing(store, bad, is_batch):
    result = store.put_messages(bad) if is_batch else store.put_message(bad)
    assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert result.reason
    assert store.commit_log.max_offset == 0
    assert store.put_message(message()).queue_offset == 0
    harmless = Message("topic", b"x", {"KEYS": "INNER_NUM"})
    assert store.put_messages(message(body=encode_batch([harmless]))).ok


def test_a_batch_whose_properties_leave_no_room_for_the_crc_changes_nothing(tmp_path):
    properties = b"p\x01" + b"v" * (0x7FFF - 3) + b"\x02"
    body = (
        struct.pack(">iiiii", 22 + 3 + 0x7FFF, 0, 0, 0, 3) + b"two" + struct.pack(">h", 0x7FFF) + properties
    )
    with open_store(small_config(tmp_path / "plain")) as store:
        assert store.put_messages(message(body=WHOLE + body)).ok
    with open_store(small_config(tmp_path / "crc", enabled_append_prop_crc=True)) as store:
        refused = store.put_messages(message(body=WHOLE + body))
        assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        assert store.commit_log.max_offset == 0


def test_a_batch_interrupted_by_a_full_disk_is_completed_when_there_is_room(store, disk):
    """Its first messages were in their queue already, so it could not be taken back. All have their keys."""
    queue_file_entries = 20
    for _ in range(queue_file_entries - 2):
        put(store, message(body=b"."))
    disk.fail_maps("consumequeue")
    batch = [Message("topic", b"%d" % number, {"KEYS": f"k{number}"}) for number in range(1, 5)]
    result = store.put_messages(message(body=encode_batch(batch)))
    assert result.ok
    assert not store.put_message(message()).ok
    disk.heal()
    store.dispatcher.reput()
    assert bodies(store)[-4:] == [b"1", b"2", b"3", b"4"]
    for number in range(1, 5):
        assert len(store.query_message("topic", f"k{number}", 8, 0, 1 << 62).physical_offsets) == 1


# The record's form


@pytest.mark.parametrize(
    ("topic", "magic"),
    [("t" * 127, MAGIC_V1), ("t" * 128, MAGIC_V2), ("é" * 63, MAGIC_V1), ("é" * 64, MAGIC_V2)],
)
def test_topics_over_127_bytes_make_version_2_records(store, topic, magic):
    put(store, message(topic, 0, b"x"))
    assert store.put_messages(batch_of([b"y"], topic)).ok
    stored = decoded(store.get_message(topic, 0, 0, 32))
    assert [(item.magic, item.topic) for item in stored] == [(magic, topic)] * 2


@pytest.mark.parametrize("store_host", ["10.0.0.2", "2001:db8::2"])
@pytest.mark.parametrize("born_host", ["10.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("claimed", [0, 0x30])
def test_ipv6_hosts_set_their_flags_whatever_the_sender_claims(store, born_host, store_host, claimed):
    born, stored_at = pack_host(born_host, 1), pack_host(store_host, 2)
    (offset,) = put(store, message(sys_flag=claimed | 1, born_host=born, store_host=stored_at))
    stored = store.look_message(offset)
    assert stored is not None
    flags = 1 | (0x10 if ":" in born_host else 0) | (0x20 if ":" in store_host else 0)
    assert (stored.sys_flag, stored.born_host, stored.store_host) == (flags, born, stored_at)
    assert stored.store_size == 88 + 4 + 1 + 5 + 2 + 12 * (flags >> 4).bit_count()


def java_crc_property(record: bytes) -> bytes:
    """MessageDecoder.createCrc32 over all of the record but its last 20 bytes."""
    value = crc32(record) & 0x7FFFFFFF
    digits = bytearray()
    for _ in range(10):
        digits.append(ord("0") + value % 10)
        value //= 10
    return b"__CRC32#\x01" + bytes(digits) + b"\x02"


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("properties", "stored_as"),
    [
        ("", b""),
        ("a\x01b\x02", b"a\x01b\x02"),
        ("a\x01b", b"a\x01b\x02"),
        ("__CRC32#\x010123456789\x02a\x01b\x02", b"a\x01b\x02"),
    ],
)
def test_the_crc_property_is_the_last_and_covers_all_before_it(tmp_path, properties, stored_as, batch):
    config = small_config(tmp_path, enabled_append_prop_crc=True, force_verify_prop_crc=True)
    with open_store(config) as store:
        if batch:
            part = Message("topic", b"one", decode_properties(stored_as.decode()))
            result = store.put_messages(message(body=encode_batch([part, part])))
        else:
            result = store.put_message(InnerMessage.of("topic", 0, b"body", properties))
        records = [bytes(record) for record in store.get_message("topic", 0, 0, 32).records]
    assert len(records) == (2 if batch else 1)
    assert sum(map(len, records)) == result.wrote_bytes
    for record in records:
        assert record[-20:] == java_crc_property(record[:-20])
        assert record[-20 - len(stored_as) - 2 :][:-20] == struct.pack(">h", len(stored_as) + 20) + stored_as


def test_room_for_the_crc_counts_as_properties(tmp_path):
    with open_store(small_config(tmp_path, enabled_append_prop_crc=True)) as store:
        fits = 0x7FFF - 20 - len("k\x01\x02")
        refused = store.put_message(message(k="v" * (fits + 1)))
        assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        assert store.put_message(message(k="v" * fits)).ok


# The end of a file


@pytest.mark.parametrize(("left", "rolls"), [(8, False), (9, False), (7, True), (1, True), (0, True)])
def test_a_record_stays_in_the_file_if_a_blank_fits_behind_it(store, left, rolls):
    first = 1000
    put(store, message(body=bytes(first - RECORD)))
    (offset,) = put(store, message(body=bytes(LOG_FILE - first - left - RECORD)))
    assert offset == (LOG_FILE if rolls else first)
    blank_at = first if rolls else LOG_FILE - left
    put(store, message(body=b"next"))
    size, magic = struct.unpack_from(">ii", store.commit_log.files.files[0].view, blank_at)
    assert (size, magic) == (LOG_FILE - blank_at, BLANK_MAGIC)
    assert [len(body) for body in bodies(store)] == [first - RECORD, LOG_FILE - first - left - RECORD, 4]


def test_records_over_many_files_survive_a_restart(tmp_path):
    config = small_config(tmp_path)
    sent = [b"%05d" % number * 200 for number in range(300)]
    with open_store(config) as store:
        put(store, *[message(queue_id=number % 3, body=body) for number, body in enumerate(sent)])
        assert len(store.commit_log.files.files) == 6
    with open_store(config) as store:
        assert [bodies(store, "topic", queue) for queue in range(3)] == [sent[0::3], sent[1::3], sent[2::3]]
        assert store.put_message(message()).queue_offset == 100


# Inner batches and light queues


def test_an_inner_batch_is_one_record_with_many_queue_offsets(tmp_path):
    with open_store(small_config(tmp_path), is_batch_topic={"batch"}.__contains__) as store:
        results = [store.put_message(inner_batch(count)) for count in (3, 1, 4)]
        assert [result.queue_offset for result in results] == [0, 3, 4]
        assert [result.message_count for result in results] == [3, 1, 4]
        assert store.max_offset("batch", 0) == 8
        stored = decoded(store.get_message("batch", 0, 0, 32))
        assert [item.properties["INNER_BASE"] for item in stored] == ["0", "3", "4"]
        assert [item.queue_offset for item in stored] == [0, 3, 4]
        assert [len(item.inner_messages()) for item in stored] == [3, 1, 4]
        assert store.stats.put_times_total == 8
    directory = tmp_path / "store" / "batchconsumequeue" / "batch" / "0"
    assert [path.name for path in directory.iterdir()] == [f"{0:020d}"]
    assert not (tmp_path / "store" / "consumequeue").exists()


def test_a_batch_body_for_a_batch_queue_is_illegal(tmp_path):
    with open_store(small_config(tmp_path), is_batch_topic={"batch"}.__contains__) as store:
        assert store.put_messages(batch_of([b"x"], "batch")).status is PutMessageStatus.MESSAGE_ILLEGAL


def test_batch_queues_go_on_after_a_restart(tmp_path):
    config = small_config(tmp_path)
    with open_store(config, is_batch_topic={"batch"}.__contains__) as store:
        put(store, *[inner_batch(3) for _ in range(25)])  # three files of ten entries
    with open_store(config) as store:  # the directory alone says what kind of queue it is
        assert store.max_offset("batch", 0) == 75
        assert store.put_message(inner_batch(2)).queue_offset == 75
        found = store.get_message("batch", 0, 31, 100)
        assert decoded(found)[0].properties["INNER_BASE"] == "30"


def lmq_config(tmp_path: Path, **overrides: Any) -> MessageStoreConfig:
    return small_config(tmp_path, enable_lmq=True, enable_multi_dispatch=True, **overrides)


def test_a_message_goes_to_every_light_queue_it_names(tmp_path):
    with open_store(lmq_config(tmp_path)) as store:
        put(store, message(queue_id=4, body=b"1", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b"))
        put(store, message(queue_id=5, body=b"2", INNER_MULTI_DISPATCH="%LMQ%b"))
        put(store, message(queue_id=4, body=b"3"))
        assert bodies(store, "%LMQ%a") == [b"1"]
        assert bodies(store, "%LMQ%b") == [b"1", b"2"]
        assert bodies(store, "topic", 4) == [b"1", b"3"]
        (stored,) = decoded(store.get_message("topic", 5, 0, 32))
        assert stored.properties["INNER_MULTI_QUEUE_OFFSET"] == "1"
        (stored, _) = decoded(store.get_message("topic", 4, 0, 32))
        assert stored.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
    with open_store(lmq_config(tmp_path)) as store:
        assert bodies(store, "%LMQ%b") == [b"1", b"2"]
        put(store, message(body=b"4", INNER_MULTI_DISPATCH="%LMQ%b"))
        assert bodies(store, "%LMQ%b") == [b"1", b"2", b"4"]


@pytest.mark.parametrize("topic", ["%RETRY%group", "%DLQ%group", "rmq_sys_topic", "SCHEDULE_TOPIC_XXXX"])
def test_a_message_that_comes_back_is_not_in_its_light_queue_twice(tmp_path, topic):
    """It comes with the properties of its first time, and must not use up offsets of the light queue."""
    with open_store(lmq_config(tmp_path)) as store:
        put(store, message(body=b"first", INNER_MULTI_DISPATCH="%LMQ%a"))
        put(store, message(topic, 0, b"again", INNER_MULTI_DISPATCH="%LMQ%a", INNER_MULTI_QUEUE_OFFSET="0"))
        put(store, message(body=b"second", INNER_MULTI_DISPATCH="%LMQ%a"))
        assert bodies(store, topic) == [b"again"]
        assert bodies(store, "%LMQ%a") == [b"first", b"second"]
        stored = decoded(store.get_message("%LMQ%a", 0, 0, 32))
        assert [item.properties["INNER_MULTI_QUEUE_OFFSET"] for item in stored] == ["0", "1"]


def test_a_light_queue_named_twice_gets_the_message_once(tmp_path):
    with open_store(lmq_config(tmp_path)) as store:
        put(store, message(body=b"1", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%a"))
        put(store, message(body=b"2", INNER_MULTI_DISPATCH="%LMQ%a"))
        stored = decoded(store.get_message("%LMQ%a", 0, 0, 32))
        assert [item.properties["INNER_MULTI_QUEUE_OFFSET"] for item in stored] == ["0,0", "1"]


def test_without_the_option_light_queues_are_only_a_property(store):
    put(store, message(INNER_MULTI_DISPATCH="%LMQ%a"))
    (stored,) = decoded(store.get_message("topic", 0, 0, 32))
    assert "INNER_MULTI_QUEUE_OFFSET" not in stored.properties
    assert store.queues.get("%LMQ%a", 0) is None


def test_the_number_of_light_queues_is_limited(tmp_path):
    with open_store(lmq_config(tmp_path, max_lmq_consume_queue_num=2)) as store:
        put(store, message(INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b"))
        result = store.put_message(message(INNER_MULTI_DISPATCH="%LMQ%b,%LMQ%c"))
        assert result.status is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        put(store, message(INNER_MULTI_DISPATCH="%LMQ%a"))


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("%LMQ%../../etc", False),
        ("%LMQ%" + "n" * 300, False),
        ("..", True),
        (",", True),
        ("plain", True),
        ("%LMQ%a,,%LMQ%b", True),
    ],
)
@pytest.mark.parametrize("sync", [False, True])
def test_odd_names_of_light_queues_do_no_harm(tmp_path, name, taken, sync):
    """What does not begin with %LMQ% is no light queue; what does must be able to have a directory."""
    config = lmq_config(tmp_path, flush_disk_type=flush_type(sync))
    expected = [b"before", b"odd", b"after"] if taken else [b"before", b"after"]
    with open_store(config) as store:
        put(store, message(body=b"before"))
        odd = store.put_message(message(body=b"odd", INNER_MULTI_DISPATCH=name))
        assert odd.status is (PutMessageStatus.PUT_OK if taken else PutMessageStatus.MESSAGE_ILLEGAL)
        put(store, message(body=b"after"))
        store.flusher.flush()
        assert bodies(store) == expected
    assert not list(tmp_path.rglob("etc"))
    with open_store(config) as store:
        assert bodies(store) == expected


@pytest.mark.parametrize("name", ["..", "%LMQ%" + "n" * 300, "a/b"])
def test_a_sender_cannot_name_light_queues_and_offsets_that_stop_the_store(tmp_path, name):
    """With enableMultiDispatch alone, both properties come from the sender."""
    config = small_config(tmp_path, enable_multi_dispatch=True)
    with open_store(config) as store:
        put(store, message(body=b"before"))
        put(store, message(body=b"odd", INNER_MULTI_DISPATCH=name, INNER_MULTI_QUEUE_OFFSET="0"))
        put(store, message(body=b"after"))
        assert bodies(store) == [b"before", b"odd", b"after"]
    with open_store(config) as store:
        assert bodies(store) == [b"before", b"odd", b"after"]


# Who is told


def test_whoever_waits_for_messages_is_told_of_each(store):
    arrived: list[tuple[str, int, int, int, int, dict[str, str]]] = []
    store.dispatcher.awaited = ["somebody"]
    store.dispatcher.on_arrive = lambda *args: arrived.append(args)
    put(store, message(queue_id=2, TAGS="red"), message(sys_flag=PREPARED), message(sys_flag=ROLLBACK))
    store.put_messages(batch_of([b"1", b"2"]))
    assert [(topic, queue, following, code) for topic, queue, following, code, _, _ in arrived] == [
        ("topic", 2, 1, 112785),
        ("topic", 0, 2, 0),  # a batch is told once for each tag
    ]
    assert arrived[0][4:] == (START_MS, {"TAGS": "red"})


def test_the_message_is_there_when_its_arrival_is_told(store):
    seen: list[int] = []
    store.dispatcher.awaited = ["somebody"]
    store.dispatcher.on_arrive = lambda topic, queue, following, *_: seen.append(
        len(store.get_message(topic, queue, following - 1, 1).records)
    )
    put(store, message(), message())
    assert seen == [1, 1]


def test_statistics_count_messages_and_bytes(store):
    put(store, message("a"), message("b"))
    result = store.put_messages(batch_of([b"1", b"2", b"3"], "b"))
    store.put_message(message(k="v" * 40_000))
    assert (store.stats.put_times_total, store.stats.put_failed) == (5, 1)
    assert store.stats.put_size_total == store.commit_log.max_offset
    assert store.stats.topic("b").count == 4
    assert store.stats.topic("b").size_bytes > result.wrote_bytes


def test_a_record_put_in_a_hurry_decodes_from_the_log_itself(store):
    offsets = put(store, *[message(body=b"%d" % number, KEYS=f"k{number}") for number in range(50)])
    view = store.commit_log.files.files[0].view
    for number, offset in enumerate(offsets):
        assert decode(view, offset).body == b"%d" % number


def flush_type(sync: bool) -> FlushDiskType:
    return FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH

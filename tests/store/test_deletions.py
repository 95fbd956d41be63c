"""Topics that are deleted and made again: what was deleted stays so, and what is new is not lost, whatever
happens to the process, and at slaves too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import StoreError
from kourou.message import sysflag
from kourou.message.batch import encode_batch
from kourou.message.model import Message
from kourou.message.topics import DELETION_TOPIC
from kourou.store import FlushDiskType, InnerMessage, MessageStore, MessageStoreConfig, PutMessageStatus
from support.stores.replication import caught_up, node, slave
from support.stores.store import bodies, message, open_store, put, small_config

MODES: dict[str, dict[str, Any]] = {
    "async flush": {},
    "sync flush": {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    "transient pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    "ext queues": {"enable_consume_queue_ext": True},
    "property crc": {"enabled_append_prop_crc": True, "force_verify_prop_crc": True},
}

End = Callable[[MessageStore], None]
ENDS: dict[str, End] = {"a clean stop": MessageStore.shutdown, "a crash": MessageStore.abandon}


def opened(config: MessageStoreConfig, **more: Any) -> MessageStore:
    store = MessageStore(config, **more)
    store.load()
    store.start(threads=False)
    return store


def put_safely(store: MessageStore, *messages: InnerMessage) -> None:
    """Put messages, and come back when their senders may be told."""
    for item in messages:
        assert store.put_and_wait(item).status is PutMessageStatus.PUT_OK
    if store.config.transient_store_pool_enable:
        store.flusher.flush()  # what is in its buffers is lost with the process
        store.dispatcher.reput()


@pytest.fixture(params=MODES)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> MessageStoreConfig:
    return small_config(tmp_path, **MODES[request.param])


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> End:
    return ENDS[request.param]


def test_a_topic_that_was_made_again_keeps_its_messages(config, end):
    store = opened(config)
    put_safely(store, *[message(body=b"old %d" % number) for number in range(100)])
    store.delete_topics({"topic"})
    new = [b"new %d" % number for number in range(60)]
    put_safely(store, *[message(body=body) for body in new])
    end(store)

    for _ in range(2):
        with open_store(config) as store:
            assert bodies(store) == new
            assert (store.min_offset("topic", 0), store.max_offset("topic", 0)) == (0, 60)


def test_deleted_messages_do_not_come_back(config, end):
    store = opened(config)
    put_safely(store, *[message(queue_id=queue, body=b"old") for queue in range(4) for _ in range(25)])
    store.delete_topics({"topic"})
    end(store)

    store = opened(config)
    assert all(store.queues.get("topic", queue) is None for queue in range(4))
    put_safely(store, message(queue_id=2, body=b"new"))
    end(store)

    with open_store(config) as store:
        assert [bodies(store, queue_id=queue) for queue in range(4)] == [[], [], [b"new"], []]


def test_a_topic_may_be_deleted_many_times(config):
    store = opened(config)
    for life in range(7):
        put_safely(store, *[message(body=b"%d of life %d" % (number, life)) for number in range(life + 3)])
        put_safely(store, message("other", body=b"%d" % life))
        store.delete_topics({"topic"})
    put_safely(store, message(body=b"last"))
    store.abandon()

    with open_store(config) as store:
        assert bodies(store) == [b"last"]
        assert bodies(store, "other") == [b"%d" % life for life in range(7)]


def test_recovery_that_begins_in_a_later_file_knows_of_the_deletion(tmp_path):
    """Queues and checkpoint are on the disk: the deletion is not dispatched again."""
    config = small_config(tmp_path)
    store = opened(config)
    put(store, *[message(body=bytes(2000)) for _ in range(40)])
    store.delete_topics({"topic"})
    put(store, *[message(body=b"%d" % number + bytes(2000)) for number in range(60)])
    store.flusher.flush()
    store._queue_flusher.flush_all()
    put(store, message(body=b"after"))
    store.abandon()

    with open_store(config) as store:
        assert store.recovery is not None
        assert store.recovery.start_offset > store.queues.deleted_at["topic"]
        assert [body.rstrip(b"\0") for body in bodies(store)] == [*(b"%d" % n for n in range(60)), b"after"]


def test_queries_by_key_do_not_find_what_was_deleted(config, end):
    store = opened(config)
    put_safely(store, message(body=b"old", KEYS="order-7", UNIQ_KEY="A" * 32, TAGS="tag"))
    store.delete_topics({"topic"})
    put_safely(store, message(body=b"new", KEYS="order-8", UNIQ_KEY="B" * 32, TAGS="tag"))

    def found(key: str, index_type: str | None = None) -> int:
        store.index.write_pending()
        return len(store.query_message("topic", key, index_type=index_type).records)

    for _ in range(2):
        assert (found("order-7"), found("A" * 32), found("order-8"), found("B" * 32)) == (0, 0, 1, 1)
        assert found("tag", "T") == 1
        end(store)
        store = opened(config)
    store.shutdown()


def test_a_deletion_leaves_light_queues_and_ends_them_alone(tmp_path):
    config = small_config(tmp_path, enable_lmq=True, enable_multi_dispatch=True)
    light = "%LMQ%a,%LMQ%b"
    store = opened(config)
    put(store, *[message(body=b"old %d" % n, INNER_MULTI_DISPATCH=light) for n in range(3)])
    store.delete_topics({"topic", "%LMQ%b"})
    put(store, *[message(body=b"new %d" % n, INNER_MULTI_DISPATCH=light) for n in range(2)])
    store.abandon()

    with open_store(config) as store:
        new = [b"new 0", b"new 1"]
        assert bodies(store) == new
        assert bodies(store, "%LMQ%a") == [b"old 0", b"old 1", b"old 2", *new]
        assert bodies(store, "%LMQ%b") == new


def test_a_batch_topic_begins_anew_too(tmp_path, end):
    config = small_config(tmp_path)
    store = opened(config, is_batch_topic=lambda topic: topic == "topic")

    def inner(text: bytes) -> InnerMessage:
        body = encode_batch([Message("topic", text + b" %d" % number) for number in range(3)])
        return message(body=body, sys_flag=sysflag.INNER_BATCH | sysflag.NEED_UNWRAP, INNER_NUM="3")

    put(store, *[inner(b"old") for _ in range(5)])
    store.delete_topics({"topic"})
    put(store, *[inner(b"new") for _ in range(2)])
    end(store)

    with open_store(config, is_batch_topic=lambda topic: topic == "topic") as store:
        assert (store.min_offset("topic", 0), store.max_offset("topic", 0)) == (0, 6)
        assert [b"new 0" in body for body in bodies(store)] == [True, True]


def test_a_topic_may_be_made_again_as_one_of_the_other_kind(tmp_path):
    config = small_config(tmp_path)
    store = opened(config)
    put(store, *[message(body=b"old") for _ in range(5)])
    store.delete_topics({"topic"})
    store.queues.is_batch_topic = lambda topic: topic == "topic"
    put(store, message(body=b"new"))
    store.abandon()

    with open_store(config, is_batch_topic=lambda topic: topic == "topic") as store:
        assert bodies(store) == [b"new"]


@pytest.mark.parametrize("begin", [0, 3])
def test_a_log_that_does_not_speak_of_deletions_is_read_by_its_offsets(tmp_path, begin):
    """As Java's: a message with the first offset, after others, is the first of a new topic."""
    config = small_config(tmp_path)
    store = opened(config)
    put(store, *[message(body=b"old %d" % number) for number in range(100)])
    store.queues.delete_topic("topic")  # and nothing is said in the log
    new = [b"new %d" % number for number in range(60)]
    put(store, *[message(body=body) for body in new])
    if begin:  # many records at once, as a slave reads them
        store.shutdown()
        (tmp_path / "store" / "abort").touch()
        for path in (tmp_path / "store" / "consumequeue" / "topic").rglob("0*"):
            if path.is_file():
                path.unlink()
    else:
        store.abandon()

    with open_store(config) as store:
        assert bodies(store) == new


def test_a_deletion_that_cannot_be_written_changes_nothing(tmp_path, disk, config):
    store = opened(config, disk=disk)
    put_safely(store, *[message(body=b"%d" % number) for number in range(5)])
    store.refusal = "the disk is full"
    with pytest.raises(StoreError, match="topic cannot be deleted: the disk is full"):
        store.delete_topics({"topic"})
    assert len(bodies(store)) == 5
    store.refusal = None
    store.delete_topics({"topic"})
    assert bodies(store) == []
    store.shutdown()


def test_the_log_is_on_the_disk_before_queues_are_removed(tmp_path, disk):
    config = small_config(tmp_path)
    store = opened(config, disk=disk)
    put(store, *[message(body=b"%d" % number) for number in range(5)])
    disk.fail_syncs("commitlog")
    with pytest.raises(StoreError):
        store.delete_topics({"topic"})
    assert store.queues.get("topic", 0) is not None
    store.abandon()


def test_files_that_could_not_be_removed_go_at_the_next_start(tmp_path, disk):
    config = small_config(tmp_path)
    store = opened(config, disk=disk)
    put(store, message(body=b"old"))
    disk.refuse_removes("deleted")
    store.delete_topics({"topic"})
    put(store, message(body=b"new"))
    store.shutdown()
    assert any(path.is_file() for path in (tmp_path / "store" / "deleted").rglob("*"))

    with open_store(config) as store:
        assert bodies(store) == [b"new"]
    assert not any((tmp_path / "store" / "deleted").iterdir())


def test_retention_forgets_deletions_that_the_log_does_not_have_any_more(tmp_path):
    with open_store(small_config(tmp_path)) as store:
        put(store, message())
        store.delete_topics({"topic"})
        assert store.queues.deleted_at.keys() == {"topic"}
        store.queues.delete_expired(store.commit_log.max_offset)
        assert store.queues.deleted_at == {}


@pytest.mark.parametrize("count", [1, 100, 3000], ids="{} messages".format)
async def test_a_slave_follows_deletions_in_the_order_of_the_log(tmp_path, count):
    """One by one, and many at once as when it catches up."""

    async with node(tmp_path / "master", from_start=True) as master:
        put(master.store, *[message(body=b"old %d" % number) for number in range(count)])
        master.store.delete_topics({"topic"})
        new = [b"new %d" % number for number in range(count)]
        put(master.store, *[message(body=body) for body in new])
        put(master.store, *[message("late", body=b"late") for _ in range(3)])
        async with slave(tmp_path / "slave", master.port) as follower:
            await caught_up(master, follower)
            assert bodies(follower.store) == new
            master.store.delete_topics({"late"})
            put(master.store, message("late", body=b"again"))
            await caught_up(master, follower)
            assert bodies(follower.store, "late") == [b"again"]
    (tmp_path / "slave" / "store" / "abort").touch()  # as if it had crashed
    with open_store(small_config(tmp_path / "slave")) as store:
        assert bodies(store) == new
        assert bodies(store, "late") == [b"again"]


def test_a_deletion_names_a_topic_and_nothing_else(tmp_path):
    """Whatever is in the log, no other directory is touched."""
    config = small_config(tmp_path)
    with open_store(config) as store:
        put(store, message(body=b"kept"))
        for name in ("", "..", "../store", "a/b", DELETION_TOPIC):
            put(store, message(DELETION_TOPIC, KEYS=name))
        assert bodies(store) == [b"kept"]
        assert store.queues.deleted_at == {}

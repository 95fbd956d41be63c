"""Recovery: nothing before a torn tail is lost, nothing is invented, queues and index agree with the log."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import StoreDamagedError
from kourou.message import StoredMessage, decode
from kourou.store import MessageStore, MessageStoreConfig
from support.proof import proof
from support.recorded import golden
from support.stores import mixed

GOLDEN = [name for name in golden.GOLDEN_STORES if name != "crash_short"]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_store_recovers_to_javas_offsets(name, golden_store):
    root, expected = golden_store(name)
    java = expected["recovered"]
    store = MessageStore(golden.config_of(root, expected))
    store.load()

    log = store.commit_log
    assert (log.min_offset, log.max_offset) == (java["minPhyOffset"], java["maxPhyOffset"])
    assert log.files.flushed_where == java["flushedWhere"]
    assert sorted(path.name for path in (root / "commitlog").iterdir()) == java["commitlogFiles"]
    queues = {
        topic: {
            str(queue_id): {
                "cqType": queue.cq_type,
                "minOffset": queue.min_offset,
                "maxOffset": queue.max_offset,
                "maxPhysicOffset": queue.max_physic_offset,
                "entries": [
                    [entry.queue_offset, entry.physical_offset, entry.size, entry.tags_code, entry.batch_num]
                    for entry in queue.iterate(queue.min_offset)
                ],
            }
            for queue_id, queue in queues.items()
        }
        for topic, queues in store.queues.table.items()
    }
    assert queues == java["queues"]
    for query in java["indexQueries"]:
        found = store.index.query(query["topic"], query["key"], 64, 0, 1 << 62, query["type"])
        if name.startswith("crash"):  # Java leaves keys out there; see docs/differences.md
            assert set(found) >= set(query["phyOffsets"])
        else:
            assert found == query["phyOffsets"]


def test_a_log_file_of_a_wrong_length_is_refused_as_java_does(golden_store):
    root, expected = golden_store("crash_short")
    assert expected["recovered"]["loaded"] is False
    with pytest.raises(StoreDamagedError, match="00000000000000327680 has 40223 bytes, 65536 are configured"):
        MessageStore(golden.config_of(root, expected)).load()


# A torn tail

SMALL = {"mapped_file_size_commit_log": 16384, "mapped_file_size_consume_queue": 400}


def small_config(root: Path, **overrides: object) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        max_hash_slot_num=50,
        max_index_num=100,
        **{**SMALL, **overrides},  # type: ignore[arg-type]
    )


def write_small(config: MessageStoreConfig, count: int = 24) -> list[StoredMessage]:
    """A store whose last record lies in the middle of its second file; its messages."""
    with MessageStore(config) as store:
        for message in mixed.mixed_messages(400, seed=5):
            if message.flag != mixed.BATCH_MARK and len(message.body) < 1000:
                assert store.put_message(message).ok
                count -= 1
            if count == 0:
                break
        return messages_of(store)


def messages_of(store: MessageStore) -> list[StoredMessage]:
    """Everything in the log, in order."""
    found = []
    for file in store.commit_log.files.files:
        offset = file.base
        while offset < store.commit_log.max_offset:
            record = store.commit_log.message_at(offset)
            if record is None:
                break
            found.append(decode(record, check_crc=False))
            offset += found[-1].store_size
    return found


def assert_consistent(store: MessageStore) -> None:
    """Log, queues and index, once it has caught up, say the same."""
    store.index_catch_up.finish()
    records = {message.physical_offset: message for message in messages_of(store)}
    in_queues = set()
    for queue in store.queues:
        for entry in queue.iterate(queue.min_offset):
            message = records[entry.physical_offset]
            assert (message.topic, message.queue_id) == (queue.topic, queue.queue_id)
            assert (message.queue_offset, message.store_size) == (entry.queue_offset, entry.size)
            in_queues.add(entry.physical_offset)
        assert queue.next_offset == queue.max_offset
    for message in records.values():
        if message.sys_flag & 0xC in (0, 8):
            assert message.physical_offset in in_queues
        if message.sys_flag & 0xC != 0xC and "UNIQ_KEY" in message.properties:
            found = store.query_message(message.topic, message.properties["UNIQ_KEY"]).physical_offsets
            assert message.physical_offset in found


@pytest.mark.parametrize("crashed", [True, False], ids=["crash", "clean stop"])
@pytest.mark.parametrize("damage", ["cut", "zero", "flip"])
def test_damage_at_each_byte_of_the_last_record_loses_nothing_before_it(memory_path, damage, crashed):
    config = small_config(memory_path / "store")
    written = write_small(config)
    last = written[-1]
    for position in range(0, last.store_size, proof(quick=7, full=1)):
        copy = damaged_copy(memory_path, last, position, damage, crashed)
        store = MessageStore(small_config(copy))
        report = store.load()
        found = messages_of(store)
        assert found[: len(written) - 1] == written[:-1]
        assert len(found) <= len(written)
        if len(found) == len(written):
            # A change that no checksum covers: it is still the same record, at its place.
            assert found[-1].physical_offset == last.physical_offset
            assert found[-1].body == last.body
            assert damage_is_beyond_the_checks(last, position, damage)
        else:
            assert store.commit_log.max_offset == last.physical_offset == report.end_offset
            assert report.reason
            assert_consistent(store)
        store.abandon()
        shutil.rmtree(copy)


def damaged_copy(tmp_path: Path, last: StoredMessage, position: int, damage: str, crashed: bool) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy)
    if crashed:
        (copy / "abort").touch()
    size = SMALL["mapped_file_size_commit_log"]
    path = copy / "commitlog" / f"{last.physical_offset // size * size:020d}"
    data = bytearray(path.read_bytes())
    at = last.physical_offset % size + position
    if damage == "cut":
        data[at:] = bytes(len(data) - at)
    elif damage == "zero":
        data[at] = 0
    else:
        data[at] ^= 1 << position % 8
    path.write_bytes(data)
    return copy


def damage_is_beyond_the_checks(last: StoredMessage, position: int, damage: str) -> bool:
    """Neither sizes, magic, places nor the body: those have checks."""
    body_at = 84 + 12 * (len(last.born_host) == 20) + 12 * (len(last.store_host) == 20)
    checked = [*range(12), *range(28, 36), *range(body_at, body_at + 4 + len(last.body))]
    if damage == "flip":
        return position not in checked
    return True  # zeroing a byte that was zero, or the end of the properties


@pytest.mark.parametrize("damage", ["cut", "zero", "flip"])
def test_with_a_crc_over_the_whole_record_every_damage_is_found(memory_path, damage):
    options = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    written = write_small(small_config(memory_path / "store", **options), count=8)
    last = written[-1]
    for position in range(0, last.store_size, 5):
        copy = damaged_copy(memory_path, last, position, damage, crashed=True)
        store = MessageStore(small_config(copy, **options))
        store.load()
        found = messages_of(store)
        store.abandon()
        shutil.rmtree(copy)
        assert found == written or found == written[:-1]
        if found == written:
            assert damage != "flip"  # zeroing a byte that was zero changes nothing


def test_what_is_cut_is_kept_and_does_not_come_back(tmp_path):
    """Damage in the middle: the whole records behind it are cut too, and must not rise again."""
    config = small_config(tmp_path / "store")
    written = write_small(config)
    number = max(n for n, message in enumerate(written[:-3]) if len(message.body) > 10)
    victim, behind = written[number], written[number + 1 :]
    path = tmp_path / "store" / "commitlog" / f"{victim.physical_offset // 16384 * 16384:020d}"
    data = bytearray(path.read_bytes())
    in_body = bytes(data).index(victim.body, victim.physical_offset % 16384)
    data[in_body] ^= 0xFF
    lost = bytes(data[victim.physical_offset % 16384 :]).rstrip(b"\0")
    path.write_bytes(data)
    (tmp_path / "store" / "abort").touch()

    with MessageStore(config) as store:
        assert store.recovery is not None
        assert store.recovery.cut_bytes == len(lost)
        assert Path(store.recovery.kept[0]).read_bytes() == lost
        assert store.commit_log.max_offset == victim.physical_offset
        # The same size at the same place: without zeroing, the records behind would be whole again.
        result = store.put_message(mixed_from(victim))
        assert result.physical_offset == victim.physical_offset
        assert result.wrote_bytes == victim.store_size
    (tmp_path / "store" / "abort").touch()
    with MessageStore(config) as store:
        offsets = [message.physical_offset for message in messages_of(store)]
        assert offsets == [message.physical_offset for message in written[: number + 1]]
        assert not {message.physical_offset for message in behind} & set(offsets)
        assert_consistent(store)


def mixed_from(message: StoredMessage) -> mixed.InnerMessage:
    return mixed.InnerMessage.of(
        message.topic,
        message.queue_id,
        message.body,
        message.properties_raw,
        sys_flag=message.sys_flag,
        born_host=message.born_host,
        store_host=message.store_host,
    )


def test_a_record_that_lies_elsewhere_than_it_says_is_no_record(tmp_path):
    """A copy of an old record behind the end of the log must not become a message."""
    config = small_config(tmp_path / "store")
    written = write_small(config)
    first, last = written[0], written[-1]
    base = last.physical_offset // 16384 * 16384
    path = tmp_path / "store" / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    old = (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()[: first.store_size]
    end = last.physical_offset + last.store_size - base
    data[end : end + len(old)] = old
    path.write_bytes(data)
    (tmp_path / "store" / "abort").touch()
    with MessageStore(config) as store:
        assert len(messages_of(store)) == len(written)
        assert store.recovery is not None
        assert "says it lies at 0" in store.recovery.reason


def test_a_blank_that_nothing_follows_is_no_loss(tmp_path):
    """A crash between closing a file and the first record of the next: the record was not acknowledged."""
    config = small_config(tmp_path / "store")
    written = write_small(config)
    store = MessageStore(config)
    store.load()
    store.start(threads=False)
    file = store.commit_log.files.files[-1]
    end = store.commit_log.max_offset
    store.commit_log._close_with_blank(file)
    store.abandon()
    with MessageStore(config) as store:
        assert store.recovery is not None
        assert (store.recovery.cut_bytes, store.recovery.kept) == (0, [])
        assert store.commit_log.max_offset == end
        assert messages_of(store) == written
    assert not (tmp_path / "store" / "cut").exists()


def test_records_of_the_checkpoints_millisecond_get_their_entries(tmp_path):
    config = small_config(tmp_path / "store")
    written = write_small(config, count=150)
    root = tmp_path / "store"
    shutil.rmtree(root / "consumequeue")
    # As Java may leave it: logics time of the last file's first record, and no physical offset.
    second_file = next(m for m in written if m.physical_offset >= 16384)
    words = [second_file.store_timestamp, second_file.store_timestamp, 0, 0, 0, 0]
    (root / "checkpoint").write_bytes(b"".join(word.to_bytes(8, "big") for word in words).ljust(4096, b"\0"))
    (root / "abort").touch()
    with MessageStore(config) as store:
        assert_consistent(store)


def test_the_checkpoint_chooses_where_recovery_begins(tmp_path):
    config = small_config(tmp_path / "store")
    write_small(config, count=150)  # clean: the checkpoint vouches for all of it
    (tmp_path / "store" / "abort").touch()
    store = MessageStore(config)
    report = store.load()
    assert not report.clean
    assert len(store.commit_log.files.files) > 2
    assert report.start_offset == store.commit_log.files.files[-1].base
    assert_consistent(store)
    store.abandon()


def test_without_a_log_the_queues_are_put_aside_and_the_store_begins_anew(tmp_path):
    config = small_config(tmp_path / "store")
    write_small(config)
    shutil.rmtree(tmp_path / "store" / "commitlog")
    before = sorted(path.name for path in (tmp_path / "store" / "consumequeue").iterdir())
    with MessageStore(config) as store:
        assert list(store.queues) == []
        assert store.recovery is not None
        assert sorted(path.name for path in Path(store.recovery.kept[0]).iterdir()) == before
        assert store.commit_log.max_offset == 0
        assert store.put_message(mixed.InnerMessage.of("t", 0, b"x", "KEYS\x01k\x02")).physical_offset == 0
        assert store.query_message("t", "k").physical_offsets == [0]


# Crashes at any moment


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 60),
    lost_log_bytes=st.integers(0, 3000),
    lost_queue_entries=st.integers(0, 30),
    index=st.sampled_from(["whole", "gone", "header lost", "slots lost"]),
)
def test_after_any_crash_the_log_is_a_prefix_and_all_agree(
    tmp_path_factory, seed, count, lost_log_bytes, lost_queue_entries, index
):
    root = tmp_path_factory.mktemp("crash")
    config = small_config(root)
    store = MessageStore(config)
    store.load()
    store.start(threads=False)
    mixed.put_mixed(store, count, seed)
    store.index.write_pending()
    written = messages_of(store)
    end = store.commit_log.max_offset
    store.abandon()  # as a crash: nothing flushed, the abort file stays

    lose_tail(root, end, lost_log_bytes)
    lose_queue_entries(root, lost_queue_entries, random.Random(seed))
    damage_index(root, index)

    store = MessageStore(config)
    report = store.load()
    found = messages_of(store)
    whole = [m for m in written if m.physical_offset + m.store_size <= end - lost_log_bytes]
    assert found[: len(whole)] == whole
    # Beyond, at most records whose loss no checksum covers: the end of their properties.
    assert [(m.physical_offset, m.body) for m in found] == [
        (m.physical_offset, m.body) for m in written[: len(found)]
    ]
    end_of_last = found[-1].physical_offset + found[-1].store_size if found else 0
    assert report.end_offset in (end_of_last, store.commit_log.roll_next_file(end_of_last))
    assert_consistent(store)
    store.start(threads=False)
    mixed.put_mixed(store, 5, seed + 1)
    assert_consistent(store)
    after = messages_of(store)
    store.shutdown()

    with MessageStore(config) as store:
        assert messages_of(store) == after
        assert_consistent(store)
    shutil.rmtree(root)


def lose_tail(root: Path, end: int, count: int) -> None:
    """Zero the last bytes of the log, as pages that never reached the disk are."""
    size = SMALL["mapped_file_size_commit_log"]
    for path in (root / "commitlog").iterdir():
        base = int(path.name)
        start, stop = max(end - count - base, 0), min(end - base, size)
        if start < stop:
            data = bytearray(path.read_bytes())
            data[start:stop] = bytes(stop - start)
            path.write_bytes(data)


def lose_queue_entries(root: Path, count: int, rng: random.Random) -> None:
    """Zero the last entries of some queues."""
    for queue in sorted((root / "consumequeue").glob("*/*")):
        if rng.random() < 0.5:
            continue
        left = count
        for path in sorted(queue.iterdir(), reverse=True):
            data = bytearray(path.read_bytes())
            used = len(bytes(data).rstrip(b"\0")) // 20 + 1
            start = max(used - left, 0) * 20
            left -= used - start // 20
            data[start:] = bytes(len(data) - start)
            path.write_bytes(data)
            if left <= 0:
                break


def damage_index(root: Path, how: str) -> None:
    files = sorted((root / "index").glob("*"))
    if how == "gone":
        shutil.rmtree(root / "index", ignore_errors=True)
    elif files and how != "whole":
        data = bytearray(files[-1].read_bytes())
        span = slice(0, 40) if how == "header lost" else slice(40, 40 + 4 * 50)
        data[span] = bytes(span.stop - span.start)
        files[-1].write_bytes(data)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_killed_process_loses_no_acknowledged_message(tmp_path, flush):
    root = tmp_path / "store"
    acknowledged: dict[int, tuple[int, str, int]] = {}
    for round_number in range(3):
        command = [sys.executable, mixed.__file__, str(root), str(round_number), flush]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(60)]
            writer.send_signal(signal.SIGKILL)
            lines += [line for line in writer.stdout if line.endswith("\n")]
        for line in lines:
            offset, size, topic, queue_offset = line.split()
            acknowledged[int(offset)] = int(size), topic, int(queue_offset)
        store = MessageStore(mixed.mixed_config(root))
        report = store.load()
        assert not report.clean
        found = {message.physical_offset: message for message in messages_of(store)}
        for at, (_, topic, queue_offset_) in acknowledged.items():
            assert (found[at].topic, found[at].queue_offset) == (topic, queue_offset_)
        assert_consistent(store)
        store.abandon()

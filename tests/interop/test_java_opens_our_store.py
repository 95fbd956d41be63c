"""Java's own DefaultMessageStore opens what Kourou wrote, and reads the same in it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kourou.inspect.directory import StoreDirectory
from kourou.inspect.dump import dump
from kourou.message import decode
from kourou.store import MessageStore, MessageStoreConfig
from support.stores import mixed


def what_kourou_reads(config: MessageStoreConfig) -> dict[str, Any]:
    """All of a store as Kourou reads it, and recovers it, in the form of Java's dump."""
    store = StoreDirectory.open(config.store_path_root_dir, config)
    read: dict[str, Any] = json.loads(b"".join(dump(store, recovered=True)))
    return read


@pytest.mark.parametrize("append_crc", [False, True])
def test_java_reads_every_message_queue_entry_and_index_answer_of_a_clean_store(tmp_path, java, append_crc):
    config = mixed.mixed_config(tmp_path / "store", enabled_append_prop_crc=append_crc)
    with MessageStore(config) as store:
        results = mixed.put_mixed(store, 600)
    assert all(result.ok for _, result in results)

    read = what_kourou_reads(config)
    assert len(read["commitlog"]["records"]) == sum(result.message_count for _, result in results)
    assert len(read["recovered"]["indexQueries"]) > 600
    verdict = java.compare(tmp_path / "store", {**mixed.SIZES, "enabledAppendPropCRC": append_crc}, read)
    assert verdict.match, verdict.first


def test_java_reads_a_store_in_which_topics_were_deleted_and_made_again(tmp_path, java):
    config = mixed.mixed_config(tmp_path / "store")
    with MessageStore(config) as store:
        mixed.put_mixed(store, 300)
        deleted = sorted(store.queues.table)[:3]
        store.delete_topics(deleted)
        mixed.put_mixed(store, 300, seed=5)
        assert set(deleted) <= store.queues.deleted_at.keys()

    verdict = java.compare(tmp_path / "store", mixed.SIZES, what_kourou_reads(config))
    assert verdict.match, verdict.first


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_java_recovers_a_killed_store_to_what_kourou_recovers(tmp_path, java, flush):
    root = tmp_path / "store"
    acknowledged = kill_writer_after(root, 400, flush)

    read = what_kourou_reads(mixed.mixed_config(root))
    assert acknowledged <= {record["physicalOffset"] for record in read["commitlog"]["records"]}
    assert read["abort"] is True
    verdict = java.compare(root, mixed.SIZES, read)
    assert verdict.match, verdict.first


def kill_writer_after(root: Path, lines: int, flush: str) -> set[int]:
    """Runs the writer in a process of its own, kills it, and gives the acknowledged physical offsets."""
    command = [sys.executable, mixed.__file__, str(root), "7", flush]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = {int(writer.stdout.readline().split()[0]) for _ in range(lines)}
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines()
    return acknowledged | {int(line.split()[0]) for line in rest if line.count(" ") == 3}


def test_a_store_goes_from_kourou_to_java_and_back(tmp_path, java):
    """Both write to the same directory in turn; neither loses a message or a key of the other."""
    root = tmp_path / "store"
    config = mixed.mixed_config(root)
    with MessageStore(config) as store:
        first = mixed.put_mixed(store, 150, seed=1)
        end = store.commit_log.max_offset

    written = java.store_write(root, mixed.SIZES, "topic-0", 50)
    assert written[0][0] == end

    with MessageStore(config) as store:
        assert store.recovery is not None
        assert store.recovery.clean
        for number, (physical_offset, queue_id, queue_offset) in enumerate(written):
            found = store.get_message("topic-0", queue_id, queue_offset, 1)
            assert bytes(decode(found.records[0]).body) == f"java-{number}".encode()
            assert store.query_message("topic-0", f"java-key-{number}").physical_offsets == [physical_offset]
        last = mixed.put_mixed(store, 150, seed=2)

    read = what_kourou_reads(config)
    assert len(read["commitlog"]["records"]) == 50 + sum(result.message_count for _, result in first + last)
    verdict = java.compare(root, mixed.SIZES, read)
    assert verdict.match, verdict.first

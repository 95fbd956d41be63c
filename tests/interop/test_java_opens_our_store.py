"""Java's own DefaultMessageStore opens what Kourou wrote, and reads the same in it."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kourou.message import decode, format_host
from kourou.store import MessageStore, MessageStoreConfig
from support import mixed
from support.java import Java


def records_of(store: MessageStore) -> list[dict[str, Any]]:
    """Every record of the log, in the form of Java's dump."""
    found = []
    for file in store.commit_log.files.files:
        position = 0
        while (record := store.commit_log.message_at(file.base + position)) is not None:
            message = decode(record)
            found.append(
                {
                    "physicalOffset": message.physical_offset,
                    "storeSize": message.store_size,
                    "magic": message.magic,
                    "bodyCRC": message.body_crc,
                    "queueId": message.queue_id,
                    "flag": message.flag,
                    "queueOffset": message.queue_offset,
                    "sysFlag": message.sys_flag,
                    "bornTimestamp": message.born_timestamp,
                    "bornHost": format_host(message.born_host),
                    "storeTimestamp": message.store_timestamp,
                    "storeHost": format_host(message.store_host),
                    "reconsumeTimes": message.reconsume_times,
                    "preparedTransactionOffset": message.prepared_transaction_offset,
                    "topic": message.topic,
                    "body": base64.b64encode(message.body).decode(),
                    "propertiesRaw": message.properties_raw,
                    "properties": message.properties,
                    "tagsCode": message.tags_code,
                    "offsetMsgId": message.offset_message_id,
                    "msgId": message.message_id,
                }
            )
            position += message.store_size
    return found


def recovered_of(store: MessageStore, records: list[dict[str, Any]]) -> dict[str, Any]:
    """What a loaded store answers, in the form of Java's dump."""
    queues: dict[str, dict[str, Any]] = {}
    for queue in store.queues:
        queues.setdefault(queue.topic, {})[str(queue.queue_id)] = {
            "cqType": queue.cq_type,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "entries": [
                [entry.queue_offset, entry.physical_offset, entry.size, entry.tags_code, entry.batch_num]
                for entry in queue.iterate(queue.min_offset)
            ],
        }
    keys: dict[tuple[str, str, str], None] = {}
    for record in records:
        topic, properties = record["topic"], record["properties"]
        if "UNIQ_KEY" in properties:
            keys[topic, properties["UNIQ_KEY"], "U"] = None
        for key in properties.get("KEYS", "").split():
            keys[topic, key, "K"] = None
        if "TAGS" in properties:
            keys[topic, properties["TAGS"], "T"] = None
    return {
        "loaded": True,
        "minPhyOffset": store.commit_log.min_offset,
        "maxPhyOffset": store.commit_log.max_offset,
        "queues": queues,
        "indexQueries": [
            {
                "topic": topic,
                "key": key,
                "type": kind,
                "phyOffsets": store.index.query(topic, key, 64, 0, 1 << 62, kind),
            }
            for topic, key, kind in keys
        ],
    }


def what_kourou_reads(config: MessageStoreConfig, copy: Path) -> dict[str, Any]:
    """What Kourou makes of a copy of a store."""
    shutil.copytree(config.store_path_root_dir, copy)
    store = MessageStore(mixed.mixed_config(copy, enabled_append_prop_crc=config.enabled_append_prop_crc))
    store.load()
    records = records_of(store)
    recovered = recovered_of(store, records)
    store.start(threads=False)
    store.shutdown()
    return {"commitlog": {"records": records}, "recovered": recovered}


@pytest.mark.parametrize("append_crc", [False, True])
def test_java_reads_every_message_queue_entry_and_index_answer_of_a_clean_store(
    tmp_path: Path, java: Java, append_crc: bool
) -> None:
    config = mixed.mixed_config(tmp_path / "store", enabled_append_prop_crc=append_crc)
    with MessageStore(config) as store:
        results = mixed.put_mixed(store, 600)
    assert all(result.ok for _, result in results)

    expected = what_kourou_reads(config, tmp_path / "copy")
    assert len(expected["commitlog"]["records"]) == sum(result.message_count for _, result in results)
    verdict = java.compare(tmp_path / "store", {**mixed.SIZES, "enabledAppendPropCRC": append_crc}, expected)
    assert verdict.match, verdict.first


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_java_recovers_a_killed_store_to_what_kourou_recovers(tmp_path: Path, java: Java, flush: str) -> None:
    root = tmp_path / "store"
    acknowledged = kill_writer_after(root, 400, flush)

    expected = what_kourou_reads(mixed.mixed_config(root), tmp_path / "copy")
    in_log = {record["physicalOffset"] for record in expected["commitlog"]["records"]}
    assert acknowledged <= in_log
    assert (root / "abort").exists()
    verdict = java.compare(root, mixed.SIZES, expected)
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


def test_a_store_goes_from_kourou_to_java_and_back(tmp_path: Path, java: Java) -> None:
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

    expected = what_kourou_reads(config, tmp_path / "copy")
    assert len(expected["commitlog"]["records"]) == 50 + sum(
        result.message_count for _, result in first + last
    )
    verdict = java.compare(root, mixed.SIZES, expected)
    assert verdict.match, verdict.first

"""Bulk dispatch writes the bytes that dispatch one by one writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message.properties import java_hash
from kourou.store import InnerMessage, MessageStore
from kourou.store.index.index_file import hash_keys, key_hash, key_prefixes
from support.recorded import golden
from support.stores import mixed


def contents(root: Path) -> dict[str, list[bytes]]:
    """The bytes of queues (by path) and of index files (in order; their names are times)."""
    found = {
        str(path.relative_to(root)): [path.read_bytes()]
        for folder in ("consumequeue", "batchconsumequeue")
        for path in sorted(root.glob(f"{folder}/*/*/*"))
    }
    return found | {"index": [path.read_bytes() for path in sorted(root.glob("index/*"))]}


def forget(root: Path) -> None:
    """Leave nothing but the log, and no checkpoint to shorten its reading."""
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "checkpoint").unlink()
    (root / "abort").touch()


@given(seed=st.integers(0, 1000), count=st.integers(1, 120))
def test_queues_and_index_rebuilt_from_the_log_are_those_that_were_written(tmp_path_factory, seed, count):
    root = tmp_path_factory.mktemp("bulk")
    config = mixed.mixed_config(root)
    with MessageStore(config) as store:
        mixed.put_mixed(store, count, seed)
    written = contents(root)
    forget(root)
    with MessageStore(config):
        pass
    assert contents(root) == written
    shutil.rmtree(root)


def test_a_log_of_many_stretches_is_rebuilt_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("kourou.store.bulk_dispatch.STRETCH_BYTES", 3000)
    config = mixed.mixed_config(tmp_path)
    with MessageStore(config) as store:
        mixed.put_mixed(store, 300, seed=3)
    written = contents(tmp_path)
    forget(tmp_path)
    with MessageStore(config):
        pass
    assert contents(tmp_path) == written


def test_light_queues_and_batch_queues_are_rebuilt_the_same(tmp_path):
    options = {
        "enable_lmq": True,
        "enable_multi_dispatch": True,
        "mapper_file_size_batch_consume_queue": 460,
    }
    config = mixed.mixed_config(tmp_path, **options)

    def is_batch_topic(topic: str) -> bool:
        return topic == "batches"

    with MessageStore(config, is_batch_topic=is_batch_topic) as store:
        for number in range(60):
            light = {"INNER_MULTI_DISPATCH": f"%LMQ%a,%LMQ%{number % 3}", "KEYS": f"k{number}"}
            assert store.put_message(InnerMessage.of("plain", number % 2, b"x", light)).ok
            assert store.put_message(InnerMessage.of("plain", 0, b"y", {"TAGS": "t"})).ok
            inner = {"INNER_NUM": str(number % 4 + 1), "TAGS": "b"}
            assert store.put_message(InnerMessage.of("batches", 0, b"z" * 30, inner, sys_flag=0x80)).ok
    written = contents(tmp_path)
    assert any("batchconsumequeue" in path for path in written)
    assert any("%LMQ%2" in path for path in written)
    forget(tmp_path)
    with MessageStore(config, is_batch_topic=is_batch_topic):
        pass
    assert contents(tmp_path) == written


@pytest.mark.parametrize("name", ["plain", "ipv6", "delay_after", "transaction", "batch", "lmq"])
def test_java_written_queues_are_rebuilt_the_same(name, golden_store):
    root, expected = golden_store(name)
    written = contents(root)
    forget(root)
    store = MessageStore(golden.config_of(root, expected))
    store.load()
    store.abandon()
    rebuilt = contents(root)
    del written["index"], rebuilt["index"]  # Java's clock, not the log, says where an index file ends
    assert rebuilt == written


@given(st.lists(st.text(max_size=40)), st.text(max_size=20))
def test_many_keys_hash_as_each_alone(keys, topic):
    prefix = key_prefixes(topic)[0]
    prefixes = np.full(len(keys), prefix, np.int64).astype(np.uint32)
    assert hash_keys(prefixes, keys).tolist() == [key_hash(f"{topic}#{key}") for key in keys]
    assert prefix == java_hash(f"{topic}#")

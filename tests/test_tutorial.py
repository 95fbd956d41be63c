"""What the guides say works as it stands there, from the first block to the last.

The tutorial is followed by the newcomer in test_packaging.py, with nothing but what it says itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kourou.store import InnerMessage, MessageStore, MessageStoreConfig
from support.recorded.golden import GoldenStore
from support.walkthrough import Reader

DOCS = Path(__file__).resolve().parent.parent / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
ON_SPARK = ["replay-dlq", "spark-cluster", "spark-topics"]
# The golden store of Java has small files; a broker on it must be told.
SMALL_FILES = (
    "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=400\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
)


def write_store(directory: Path) -> None:
    """A store with some orders, as the guides find one."""
    config = MessageStoreConfig(store_path_root_dir=str(directory), mapped_file_size_commit_log=1 << 20)
    with MessageStore(config) as store:
        for number in range(20):
            store.put_message(InnerMessage.of("orders", 0, b"order %d" % number, {"KEYS": f"order-{number}"}))


def test_every_guide_is_followed_by_a_test() -> None:
    assert {page.stem for page in GUIDES} == {
        "move-from-java", "pair", "pytest", "repair-store", "replay-dlq", "spark-cluster", "spark-topics"
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["pair", "pytest", *(pytest.param(name, marks=pytest.mark.spark) for name in ON_SPARK)]
)
def test_a_guide(tmp_path: Path, name: str) -> None:
    with Reader(tmp_path) as reader:
        assert [*reader.follow(DOCS / "guides" / f"{name}.md")]


def test_the_guide_to_repair_a_store(tmp_path: Path) -> None:
    write_store(tmp_path / "data" / "rocketmq" / "store")
    with Reader(tmp_path) as reader:
        assert [*reader.follow(DOCS / "guides" / "repair-store.md")]
    assert pq.read_table(tmp_path / "saved.parquet").num_rows == 20
    assert list((tmp_path / "data" / "rocketmq" / "store").glob("consumequeue.bak-*"))


def test_the_guide_from_java(tmp_path: Path, golden_store: Callable[[str], GoldenStore]) -> None:
    store = tmp_path / "data" / "rocketmq" / "store"
    store.parent.mkdir(parents=True)
    golden_store("plain").path.rename(store)
    with Reader(tmp_path) as reader:
        for _ in reader.follow(DOCS / "guides" / "move-from-java.md"):
            conf = tmp_path / "broker.conf"
            if conf.exists() and SMALL_FILES not in conf.read_text(encoding="utf-8"):
                conf.write_text(conf.read_text(encoding="utf-8") + SMALL_FILES, encoding="utf-8")
    assert not (store / "abort").exists()  # stopped well

"""The golden stores: directories written by Apache RocketMQ 5.5.0, with what its own code reads in them.

`tests/fixtures/rocketmq-5.5.0/README.md` says what each scenario holds and explains the expected data.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from kourou.store import MessageStoreConfig

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures" / "rocketmq-5.5.0"

GOLDEN_STORES = [
    "batch",
    "batchcq",
    "crash",
    "crash_flip",
    "crash_garbage",
    "crash_lostcq",
    "crash_short",
    "crash_torn",
    "delay_after",
    "delay_before",
    "ipv6",
    "lmq",
    "plain",
    "plain_torn",
    "plain_torn_props",
    "pop",
    "propcrc",
    "retry_dlq",
    "timer",
    "transaction",
]


class GoldenStore(NamedTuple):
    """A private copy of a golden store, and what Java decodes from it."""

    path: Path
    expected: dict[str, Any]


def unpack(name: str, into: Path) -> GoldenStore:
    """Unpacks the scenario `name` below `into` (into/name)."""
    with tarfile.open(FIXTURES / "store" / f"{name}.tar.gz") as archive:
        # Python before 3.11.4 has no filters and later versions insist on one.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(into)
    return GoldenStore(into / name, read_expected(name))


def read_expected(name: str) -> dict[str, Any]:
    """What Java reads in the scenario `name`, without unpacking it."""
    with gzip.open(expected_file(name)) as file:
        expected: dict[str, Any] = json.load(file)
    return expected


def expected_file(name: str) -> Path:
    return FIXTURES / "store" / f"{name}.expected.json.gz"


def config_of(root: Path, expected: dict[str, Any]) -> MessageStoreConfig:
    """The configuration that a golden store was written with."""
    sizes = expected["config"]
    batch = next(iter(root.glob("batchconsumequeue/*/*/*")), None)
    return MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=sizes["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=sizes["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=sizes["maxHashSlotNum"],
        max_index_num=sizes["maxIndexNum"],
        enabled_append_prop_crc=sizes["enabledAppendPropCRC"],
        enable_lmq=sizes["enableLmq"],
        enable_multi_dispatch=sizes["enableLmq"],
        mapper_file_size_batch_consume_queue=batch.stat().st_size if batch else 300_000 * 46,
    )

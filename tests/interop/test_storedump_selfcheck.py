"""The judge itself is checked first: it agrees with the golden data, and it sees a single flipped byte."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from support.recorded.golden import expected_file


def test_java_reads_in_a_golden_store_what_it_read_when_it_was_made(java, golden_store):
    store, expected = golden_store("plain")

    verdict = java.compare(store, expected["config"], expected_file("plain"))

    assert verdict.match, verdict.first
    assert len(expected["commitlog"]["records"]) > 300


def test_the_dump_is_the_data_that_is_compared(java, golden_store):
    store, expected = golden_store("ipv6")

    dump = java.store_dump(store, expected["config"], "--raw-only")

    assert dump["commitlog"] == expected["commitlog"]
    assert dump["consumequeue"] == expected["consumequeue"]
    assert dump["index"] == expected["index"]
    assert "recovered" not in dump


def test_one_flipped_byte_in_a_body_is_reported(java, golden_store):
    store, expected = golden_store("plain")
    records = expected["commitlog"]["records"]
    flip_a_byte_of_the_body(store, expected["config"], records[-1])

    verdict = java.compare(store, expected["config"], {"commitlog": expected["commitlog"]})

    assert not verdict.match
    assert f".commitlog.records: expected {len(records)} elements, got {len(records) - 1}" in verdict.first


def flip_a_byte_of_the_body(store: Path, config: dict[str, Any], record: dict[str, Any]) -> None:
    base = record["physicalOffset"] // config["mappedFileSizeCommitLog"] * config["mappedFileSizeCommitLog"]
    file = store / "commitlog" / f"{base:020d}"
    content = bytearray(file.read_bytes())
    body = base64.b64decode(record["body"])
    assert body
    position = content.index(body, record["physicalOffset"] - base)
    content[position] ^= 1
    file.write_bytes(content)

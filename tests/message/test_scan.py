"""Where records lie, their headers and parts: always what the codec says of them one by one."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message.codec import encode
from kourou.message.scan import records as scan
from support.recorded import golden
from support.stores.records import blank, decode_all, encode_raw, raw_records, simple_message


def records_of(log):
    return scan.read_records(log, scan.find_records(log))


def small_log(bodies):
    """A log of records with these bodies; each says the physical offset at which it lies."""
    log = b""
    for body in bodies:
        log += encode(simple_message(body, "TAGS\x01TagA\x02", physical_offset=len(log)))
    return log


def test_an_empty_buffer_has_no_records():
    records, stop = records_of(b"")
    assert (len(records), stop) == (0, scan.Stop(0, scan.END))


def test_records_are_found_one_behind_the_other():
    log = small_log([b"", b"a", b"bc" * 100])
    found = scan.find_records(log)
    messages, end = decode_all(log)
    assert found.sizes.tolist() == [message.store_size for message in messages]
    assert found.positions.tolist() == [message.physical_offset for message in messages]
    assert found.stop == scan.Stop(end, scan.END)


RECORD = small_log([b"body"])


@pytest.mark.parametrize(
    ("tail", "reason", "detail"),
    [
        (b"", scan.END, ""),
        (blank(8), scan.BLANK, ""),
        (blank(100), scan.BLANK, ""),
        (bytes(100), scan.ZERO_MAGIC, ""),
        (b"\0\0\0\x64\0\x4a\xf0\xbf" + bytes(100), "unknown magic 4911295", ""),
        (RECORD[:-1], scan.PAST_THE_FILE, ""),
        (b"\0\0\0\x64", scan.PAST_THE_FILE, ""),
        (b"\0\0\0\x5a" + RECORD[4:], scan.DOES_NOT_DECODE, "record of 90 bytes is too short"),
        (b"\xff\xff\xff\xff" + RECORD[4:], scan.DOES_NOT_DECODE, "record of -1 bytes is too short"),
    ],
)
def test_a_scan_says_where_and_why_it_stops(tail, reason, detail):
    found = scan.find_records(RECORD + tail)
    assert found.positions.tolist() == [0]
    assert found.stop == scan.Stop(len(RECORD), reason, detail)


def test_a_record_may_run_past_the_end_of_a_stretch_but_must_begin_before_it():
    log = RECORD * 3
    assert len(scan.find_records(log, 0, len(RECORD)).positions) == 1
    assert scan.find_records(log, 0, len(RECORD) + 1).stop == scan.Stop(2 * len(RECORD), scan.END)
    assert scan.find_records(log, len(RECORD), 10**9).positions.tolist() == [len(RECORD), 2 * len(RECORD)]


def test_a_record_that_lies_at_the_wrong_offset_stops_the_scan_where_offsets_are_checked():
    log = small_log([b"a", b"b"])
    assert len(scan.find_records(log, base_offset=0).positions) == 2
    moved = log + encode(simple_message(physical_offset=7))
    found = scan.find_records(moved, base_offset=0)
    assert (len(found.positions), found.stop.reason, found.stop.position) == (
        2,
        scan.DOES_NOT_DECODE,
        len(log),
    )
    assert found.stop.detail == f"it says physical offset 7 and lies at {len(log)}"
    assert len(scan.find_records(moved).positions) == 3


@pytest.mark.parametrize("base_offset", [None, 0])
def test_the_next_record_is_found_from_anywhere_in_the_log(base_offset):
    log = small_log([b"\xda\xa3\x20\xa7", b"", b"c" * 50])
    positions = scan.find_records(log).positions.tolist()
    for start in range(len(log)):
        expected = next((position for position in positions if position >= start), None)
        assert scan.first_record(log, start, base_offset=base_offset) == expected
    assert scan.first_record(log, 1, positions[1], base_offset=base_offset) is None
    assert scan.first_record(log, 1, positions[1] + 1, base_offset=base_offset) == positions[1]


def test_a_record_within_a_body_is_not_taken_for_one_where_offsets_are_checked():
    inner = small_log([b"x", b"y"])
    log = small_log([inner, b"z"])
    assert scan.first_record(log, 1) == log.index(inner)
    assert scan.first_record(log, 1, base_offset=0) == scan.find_records(log).positions[1]


@given(st.lists(raw_records(), max_size=6))
def test_headers_and_parts_are_those_of_the_codec(raw):
    log = b"".join(raw)
    records, stop = records_of(log)
    messages, end = decode_all(log)
    assert (len(records), stop.position) == (len(messages), end)
    born_hosts, born_is_v6 = scan.hosts(log, records, "born")
    store_hosts, store_is_v6 = scan.hosts(log, records, "store")
    for row, message in enumerate(messages):
        header = records.header[row]
        for field in set(scan.HEADER.names or ()) - {"born_host", "store_host", "body_length"}:
            assert header[field] == getattr(message, field)
        body_at = records.body_start[row]
        assert log[body_at : body_at + records.body_length[row]] == message.body
        assert born_hosts[row, : 20 if born_is_v6[row] else 8].tobytes() == message.born_host
        assert store_hosts[row, : 20 if store_is_v6[row] else 8].tobytes() == message.store_host
        topic = str(log[records.topic_start[row] :][: records.topic_length[row]], "utf-8", "replace")
        properties = str(
            log[records.properties_start[row] :][: records.properties_length[row]], "utf-8", "replace"
        )
        assert (topic, properties) == (message.topic, message.properties_raw)


@given(st.lists(raw_records(), min_size=1, max_size=4), st.data())
def test_a_scan_of_changed_bytes_stops_where_the_codec_does(raw, data):
    log = bytearray(b"".join(raw))
    for _ in range(data.draw(st.integers(1, 4))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    del log[data.draw(st.integers(0, len(log))) :]
    for check_crc in (False, True):
        records, stop = scan.read_records(log, scan.find_records(log), check_crc=check_crc)
        messages, end = decode_all(log, check_crc=check_crc)
        assert (len(records), stop.position) == (len(messages), end)
        assert (stop.reason == scan.END) == (end == len(log))


def test_records_are_chosen_by_topic():
    log = b"".join(encode(simple_message(topic=topic)) for topic in ["a", "b", "", "aa", "主题", "a"])
    records, _ = records_of(log)
    assert scan.has_topic(log, records, ["a", "主题"]).tolist() == [True, False, False, False, True, True]
    assert scan.has_topic(log, records, [""]).tolist() == [False, False, True, False, False, False]
    assert not scan.has_topic(log, records, []).any()


@pytest.fixture
def lanes_always(monkeypatch):
    """Long logs are walked in many places at once; here even short ones are."""
    for name, value in {"_PROBE_BYTES": 200, "_LANES_MIN_RECORDS": 20, "_LANES_MIN": 2}.items():
        monkeypatch.setattr(scan, name, value)


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_in_many_places_at_once_finds_what_a_plain_walk_finds(lanes_always, monkeypatch, seed):
    rng = random.Random(seed)
    decoy = encode(simple_message(b"decoy"))
    kinds = [b"", b"b" * 30, b"\xda\xa3\x20\xa7" * 20, decoy * 5, decoy[:-3], b"b" * 5000]
    weights = [10, 10, 5, 5, 5, seed % 2]
    log = b"".join(
        encode_raw(simple_message(body), b"t", b"", rng.choice([scan.codec.MAGIC_V1, scan.codec.MAGIC_V2]))
        for body in rng.choices(kinds, weights, k=400)
    )
    if seed % 3 == 1:  # damage somewhere
        damaged = bytearray(log)
        damaged[rng.randrange(len(log))] ^= 0xFF
        log = bytes(damaged)
    if seed % 3 == 2:
        log = log[: rng.randrange(len(log))] + blank(100)
    start, end = scan.find_records(log).positions[5], rng.choice([None, len(log) * 3 // 4])
    in_lanes = scan.find_records(log, start, end)
    monkeypatch.setattr(scan, "_LANES_MIN_RECORDS", 10**9)
    plain = scan.find_records(log, start, end)
    assert in_lanes.positions.tolist() == plain.positions.tolist()
    assert in_lanes.stop == plain.stop


def test_a_long_log_is_walked_in_lanes_and_found_whole():
    record = len(RECORD)
    found = scan.find_records(RECORD * 20_000)
    assert np.array_equal(found.positions, np.arange(20_000) * record)
    assert found.stop == scan.Stop(20_000 * record, scan.END)


@pytest.mark.parametrize("name", golden.GOLDEN_STORES)
def test_a_scan_of_a_store_of_java_ends_where_and_why_java_says(golden_store, name):
    path, expected = golden_store(name)
    commitlog = expected["commitlog"]
    offsets, blanks, base = [], [], 0
    for file in sorted((path / "commitlog").iterdir()):
        base = int(file.name)
        log = file.read_bytes()
        records, stop = scan.read_records(log, scan.find_records(log, base_offset=base), check_crc=True)
        offsets += records.header["physical_offset"].tolist()
        if stop.reason != scan.BLANK:
            break
        blanks.append(base + stop.position)
    assert offsets == [record["physicalOffset"] for record in commitlog["records"]]
    assert blanks == [blank["physicalOffset"] for blank in commitlog["blanks"]]
    assert (base + stop.position, stop.reason) == (commitlog["endOffset"], commitlog["stop"])


def test_a_scan_needs_no_arrow():
    program = "import sys; sys.modules['pyarrow'] = None; import kourou.message.scan.properties"
    subprocess.run([sys.executable, "-c", program], check=True)

"""`check` finds nothing in stores that are whole, and each kind of damage with its file and byte."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kourou.inspect import StoreDirectory
from kourou.inspect.check.findings import Finding, Severity
from kourou.inspect.check.whole import CheckReport, check
from kourou.store import MessageStoreConfig
from kourou.store.queue.consume_queue_ext import ExtUnit
from support.stores.store import ManualClock, message, open_store, put, small_config

CLEAN_STORES = [
    "batch", "batchcq", "crash", "delay_after", "delay_before", "ipv6", "lmq", "plain", "pop", "propcrc",
    "retry_dlq", "timer", "transaction",
]  # fmt: skip

LOG_FILE = 65536
BODY_AT = 88  # in a record with IPv4 addresses
SLOTS = 100
INDEX_ENTRIES_AT = 40 + 4 * SLOTS


def run(path: Path, config: MessageStoreConfig | None = None, **options: Any) -> CheckReport:
    with StoreDirectory.open(path, config) as store:
        return check(store, **options)


def faults(report: CheckReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.FAULT]


def warnings(report: CheckReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.WARNING]


def places(findings: list[Finding]) -> list[tuple[str, str, int]]:
    return [(finding.kind, finding.file, finding.position) for finding in findings]


def patch(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def patch_number(path: Path, position: int, form: str, change: Callable[[int], int]) -> None:
    data = path.read_bytes()
    (value,) = struct.unpack_from(form, data, position)
    patch(path, position, struct.pack(form, change(value)))


def log_place(offset: int) -> tuple[str, int]:
    return f"commitlog/{offset // LOG_FILE * LOG_FILE:020d}", offset % LOG_FILE


# One wrong number, and nothing else: (golden store, where the structure lies, where the number lies in it,
# its form, what becomes of it, the kind of what is found there)

Where = Callable[[dict[str, Any]], tuple[str, int]]
FIRST = "0" * 20
QUEUE = f"consumequeue/GoldenAlpha/0/{FIRST}"
BATCH_QUEUE = f"batchconsumequeue/GoldenBatchCq/1/{FIRST}"


def at(file: str, position: int) -> Where:
    return lambda _: (file, position)


def record(number: int) -> Where:
    return lambda expected: log_place(expected["commitlog"]["records"][number]["physicalOffset"])


def index(position: int) -> Where:
    return lambda expected: ("index/" + expected["index"]["files"][0]["name"], position)


def chained_entry(expected: dict[str, Any]) -> tuple[int, int]:
    """(number, number of the one before) of an entry of the first file that is not the first of its chain."""
    entries = expected["index"]["files"][0]["entries"]
    return next((entry[0], entry[4]) for entry in entries if entry[0] > 100 and entry[4])


def entry_at(number: int) -> int:
    return INDEX_ENTRIES_AT + number * 20


def index_entry(expected: dict[str, Any]) -> tuple[str, int]:
    return index(entry_at(chained_entry(expected)[0]))(expected)


def plus(number: int) -> Callable[[int], int]:
    return lambda value: value + number


ENTRY = [(0, ">q", "queue-offset"), (8, ">i", "queue-size"), (12, ">q", "queue-tags")]
BATCH_ENTRY = [
    (8, ">i", "queue-size"), (12, ">q", "queue-tags"), (20, ">q", "queue-time"), (28, ">q", "queue-base"),
    (36, ">h", "queue-count"), (38, ">i", "queue-reserved"), (42, ">i", "queue-reserved"),
]  # fmt: skip
WRONG_NUMBERS: list[Any] = [
    ("plain", record(7), 28, ">q", plus(1), "record"),  # it says that it lies elsewhere
    ("plain", lambda expected: log_place(expected["commitlog"]["blanks"][1]["physicalOffset"]), 0, ">i",
     plus(-1), "blank-size"),
    *(("plain", at(QUEUE, entry * 20), *field, plus(1), kind)
      for entry in (0, 3, 19) for *field, kind in ENTRY),
    ("delay_before", at(f"consumequeue/SCHEDULE_TOPIC_XXXX/2/{FIRST}", 20), 12, ">q", plus(1000),
     "queue-tags"),
    ("lmq", at(f"consumequeue/%LMQ%one/0/{FIRST}", 60), 0, ">q", plus(8), "queue-offset"),
    *(("batchcq", at(BATCH_QUEUE, 46), *field, plus(1), kind) for *field, kind in BATCH_ENTRY),
    ("plain", index(32), 0, ">i", plus(1), "index-count"),  # of slots
    ("plain", index(16), 0, ">q", plus(1), "index-header"),  # where it begins
    ("plain", index_entry, 12, ">i", plus(60), "index-time"),
    *(("plain", at("checkpoint", word * 8), 0, ">q", lambda _: 1 << 60, "checkpoint") for word in range(6)),
    ("plain", at("checkpoint", 0), 0, ">q", lambda _: -5, "checkpoint"),
]  # fmt: skip


@pytest.mark.parametrize(("store", "where", "inside", "form", "change", "kind"), WRONG_NUMBERS)
def test_one_wrong_number_is_found_where_it_is(golden_store, store, where, inside, form, change, kind):
    path, expected = golden_store(store)
    file, position = where(expected)
    patch_number(path / file, position + inside, form, change)

    assert places(run(path).findings) == [(kind, file, position)]


@pytest.fixture
def plain(golden_store) -> tuple[Path, dict[str, Any]]:
    store = golden_store("plain")
    return store.path, store.expected


# Whole stores


@pytest.mark.parametrize("name", CLEAN_STORES)
def test_nothing_is_found_in_a_store_that_is_whole(name, golden_store):
    path, expected = golden_store(name)

    report = run(path)

    assert report.findings == []
    assert report.records == len(expected["commitlog"]["records"])
    assert report.log_bytes == expected["commitlog"]["endOffset"]
    queues = [
        queue
        for kind in ("consumequeue", "batchconsumequeue")
        for topic in expected.get(kind, {}).values()
        for queue in topic.values()
    ]
    assert (report.queues, report.queue_entries) == (len(queues), sum(len(q["entries"]) for q in queues))
    assert report.index_entries == sum(len(file["entries"]) for file in expected["index"]["files"])


def test_nothing_is_found_when_old_files_of_the_log_are_gone(plain):
    path, _ = plain
    (path / "commitlog" / ("0" * 20)).unlink()

    assert run(path).findings == []


def test_nothing_is_found_in_a_store_of_our_own(tmp_path):
    config = small_config(
        tmp_path, enable_consume_queue_ext=True, enable_lmq=True, enable_multi_dispatch=True
    )
    with open_store(config, is_batch_topic=lambda topic: topic == "batches") as store:
        for number in range(100):
            key, tag = f"key{number} schlüssel", f"tag{number % 3}"
            put(
                store,
                message("topic", number % 3, bytes(number * 20), KEYS=key, TAGS=tag, UNIQ_KEY=f"U{number}"),
            )
        put(store, message("topic", 0, b"light", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b"))
        put(store, message("batches", 1, b"", TAGS="t"))

    report = run(Path(config.store_path_root_dir), config)

    assert report.findings == []
    assert report.records == 102


# The log


def test_a_flipped_byte_of_a_body(plain):
    path, expected = plain
    offset = expected["commitlog"]["records"][100]["physicalOffset"]
    file, position = log_place(offset)
    patch_number(path / file, position + BODY_AT, ">B", lambda byte: byte ^ 1)

    found = run(path)

    assert places(found.findings) == [("record", file, position)]
    assert "body CRC" in found.findings[0].message
    assert f"physical offset {offset}" in found.findings[0].message
    assert found.records == 320


def test_a_record_that_is_wiped_out_in_the_middle_of_the_log(plain):
    path, expected = plain
    file, position = record(50)(expected)
    patch(path / file, position, bytes(expected["commitlog"]["records"][50]["storeSize"]))

    (found,) = run(path).findings

    assert (*places([found])[0], "no record" in found.message) == ("record", file, position, True)


def test_damage_before_good_records_is_a_fault_even_after_a_crash(golden_store):
    path, expected = golden_store("crash")
    file, position = log_place(expected["commitlog"]["records"][-2]["physicalOffset"])
    patch_number(path / file, position + BODY_AT, ">B", lambda byte: byte ^ 1)

    assert places(faults(run(path))) == [("record", file, position)]


def test_a_log_file_that_is_missing_or_cut_short(plain):
    path, _ = plain
    (path / "commitlog" / "00000000000000131072").unlink()
    with open(path / "commitlog" / "00000000000000196608", "ab") as file:
        file.truncate(60000)

    kinds = {finding.kind for finding in faults(run(path))}

    assert {"log-gap", "log-file-size"} <= kinds


def test_a_property_behind_the_reach_of_the_body_crc(golden_store):
    path, expected = golden_store("propcrc")
    record = next(record for record in expected["commitlog"]["records"] if "KEYS" in record["properties"])
    file = "commitlog/" + "0" * 20
    value_at = (path / file).read_bytes().index(b"KEYS\x01", record["physicalOffset"]) + 5
    patch_number(path / file, value_at, ">B", lambda byte: byte ^ 1)

    found = places(run(path).findings)

    assert found[0] == ("record-crc", file, record["physicalOffset"])
    assert {kind for kind, _, _ in found[1:]} == {"index-key", "index-missing"}


def test_a_torn_tail_after_a_clean_stop_is_a_fault(golden_store):
    path, expected = golden_store("plain_torn")
    file, position = log_place(expected["commitlog"]["endOffset"])

    found = faults(run(path))

    assert ("torn-tail", file, position) in places(found)
    assert {"queue-behind-log", "index-behind-log"} <= {fault.kind for fault in found}


@pytest.mark.parametrize("name", ["crash_torn", "crash_flip", "crash_garbage"])
def test_a_torn_tail_after_a_crash_is_a_warning(name, golden_store):
    path, expected = golden_store(name)
    file, position = log_place(expected["commitlog"]["endOffset"])

    found = run(path)

    assert found.faults == 0
    assert ("torn-tail", file, position) in places(warnings(found))


def test_a_log_file_cut_short_by_a_crash_is_a_fault(golden_store):
    path, _ = golden_store("crash_short")

    assert [fault.kind for fault in faults(run(path))] == ["log-file-size"]


# Queues


def test_an_entry_that_points_to_a_record_of_another_queue(plain):
    path, expected = plain
    stranger = expected["consumequeue"]["GoldenBeta_2-x"]["0"]["entries"][5]
    patch(path / QUEUE, 40, struct.pack(">qiq", *stranger[1:]))

    (finding,) = run(path).findings

    own = expected["consumequeue"]["GoldenAlpha"]["0"]["entries"][2][1]
    assert (finding.kind, finding.file, finding.position) == ("queue-offset", QUEUE, 40)
    assert finding.message == f"entry 2 points to {stranger[1]}, its record lies at {own}"


def test_an_entry_that_no_record_knows(plain):
    path, expected = plain
    entries = expected["consumequeue"]["GoldenAlpha"]["0"]["entries"]
    file = "consumequeue/GoldenAlpha/0/00000000000000000400"
    at = (len(entries) - 20) * 20
    patch(path / file, at, struct.pack(">qiq", *entries[4][1:]))
    patch(path / file, at + 20, struct.pack(">qiq", 12345, 100, 0))
    patch(path / file, at + 40, struct.pack(">qiq", 10_000_000, 100, 0))

    found = run(path)

    assert places(found.findings) == [
        ("queue-offset", file, at), ("queue-offset", file, at + 20), ("queue-behind-log", file, at + 40),
    ]  # fmt: skip
    assert "a record of GoldenAlpha-0, queue offset 4" in found.findings[0].message
    assert "where no record begins" in found.findings[1].message


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_missing_entry(plain, which):
    path, expected = plain
    count = len(expected["consumequeue"]["GoldenAlpha"]["0"]["entries"])
    place = {"first": 0, "middle": 9, "last": count - 1}[which]
    file = f"consumequeue/GoldenAlpha/0/{place // 20 * 400:020d}"
    patch(path / file, place % 20 * 20, bytes(20))

    (finding,) = run(path).findings

    assert (finding.kind, finding.file, finding.position) == ("queue-missing", file, place % 20 * 20)


def test_missing_entries_at_the_end_are_made_by_recovery_after_a_crash(golden_store):
    path, expected = golden_store("crash")
    file = f"consumequeue/GoldenAlpha/0/{400:020d}"
    patch(path / file, 6 * 20, bytes(20))

    found = run(path)

    assert len(expected["consumequeue"]["GoldenAlpha"]["0"]["entries"]) == 27
    assert places(warnings(found)) == [("queue-missing", file, 120)]
    assert found.faults == 0


def test_a_missing_queue(plain):
    path, _ = plain
    shutil.rmtree(path / "consumequeue" / "GoldenAlpha" / "1")

    (finding,) = run(path).findings

    assert (finding.severity, finding.kind) == (Severity.FAULT, "missing-queue")
    assert (finding.file, finding.position) == ("consumequeue/GoldenAlpha/1", -1)


def test_a_topic_that_was_deleted_has_no_queue_and_that_is_right(plain):
    path, _ = plain
    shutil.rmtree(path / "consumequeue" / "GoldenAlpha")
    topics = json.loads((path / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["GoldenAlpha"]
    (path / "config" / "topics.json").write_text(json.dumps(topics))

    found = run(path)

    assert found.faults == 0
    assert {finding.kind for finding in found.findings} == {"deleted-topic"}


def test_a_topic_that_was_deleted_and_made_anew(tmp_path):
    config = small_config(tmp_path, enable_lmq=True, enable_multi_dispatch=True)
    light = "%LMQ%a"
    with open_store(config) as store:
        put(store, *(message("topic", 0, b"old", INNER_MULTI_DISPATCH=light) for _ in range(30)))
        store.delete_topics({"topic", "%LMQ%a"})
        put(store, *(message("topic", 0, b"new", INNER_MULTI_DISPATCH=light) for _ in range(10)))

    assert run(Path(config.store_path_root_dir), config).findings == []


def test_a_topic_that_was_deleted_by_who_does_not_say_so_in_the_log(tmp_path):
    config = small_config(tmp_path)
    with open_store(config) as store:
        put(store, *(message("topic", 0, b"old") for _ in range(30)))
        store.queues.delete_topic("topic")
        put(store, *(message("topic", 0, b"new") for _ in range(10)))

    found = run(Path(config.store_path_root_dir), config)

    assert found.faults == 0
    assert {finding.kind for finding in found.findings} == {"queue-replaced", "queue-missing"}


def test_delay_levels_of_the_configuration_count_where_there_is_one(golden_store):
    path, _ = golden_store("retry_dlq")  # written with short delays
    config = StoreDirectory.open(path).config

    assert run(path).findings == []
    assert {fault.kind for fault in faults(run(path, config))} == {"queue-tags"}


def test_a_batch_entry_that_points_to_no_record(golden_store):
    path, _ = golden_store("batchcq")
    file = "batchconsumequeue/GoldenBatchCq/1/" + "0" * 20
    patch_number(path / file, 46, ">q", lambda offset: offset + 1)

    assert sorted(kind for kind, _, _ in places(faults(run(path)))) == ["queue-missing", "queue-offset"]


def test_an_address_in_the_consume_queue_ext(tmp_path):
    config = small_config(tmp_path, enable_consume_queue_ext=True)
    with open_store(config) as store:
        put(store, *(message("topic", 0, b"x", TAGS=f"tag{number}") for number in range(5)))
    root = Path(config.store_path_root_dir)
    unit = ExtUnit(0, 0).size
    patch_number(root / f"consumequeue_ext/topic/0/{0:020d}", 2 * unit + 2, ">q", lambda code: code + 1)

    assert places(run(root, config).findings) == [("queue-tags", f"consumequeue/topic/0/{0:020d}", 40)]


# Index


def test_a_chain_that_leads_to_another_slot(plain):
    path, expected = plain
    number, previous = chained_entry(expected)
    file, _ = index(0)(expected)
    hashes = {entry[0]: entry[1] for entry in expected["index"]["files"][0]["entries"]}
    stranger = next(other for other in range(1, number) if hashes[other] % SLOTS != hashes[number] % SLOTS)
    patch(path / file, entry_at(number) + 16, struct.pack(">i", stranger))

    # nothing leads to the one before any more
    assert {("index-chain", file, entry_at(one)) for one in (number, previous)} <= set(
        places(faults(run(path)))
    )


def other_slot(expected: dict[str, Any]) -> int:
    """What the second slot of the first file leads to."""
    return int(expected["index"]["files"][0]["slots"][1][1])


@pytest.mark.parametrize("leads_to", [lambda _: 400, other_slot], ids=["nowhere", "an entry of another"])
def test_a_slot_that_leads_elsewhere(plain, leads_to):
    path, expected = plain
    file, position = index(40 + 4 * expected["index"]["files"][0]["slots"][0][0])(expected)
    patch(path / file, position, struct.pack(">i", leads_to(expected)))

    assert ("index-slot", file, position) in places(faults(run(path)))


@pytest.mark.parametrize(("change", "kind"), [(-1, "index-count"), (1, "index-chain")])
def test_a_wrong_number_of_entries(plain, change, kind):
    path, expected = plain
    name = expected["index"]["files"][2]["name"]  # which is not full
    patch_number(path / "index" / name, 36, ">i", plus(change))

    assert (kind, f"index/{name}") in [(fault.kind, fault.file) for fault in faults(run(path))]


def test_an_index_file_of_the_wrong_size(plain):
    path, expected = plain
    file, _ = index(0)(expected)
    with open(path / file, "ab") as end:
        end.write(b"x")

    assert ("index-file-size", file, -1) in places(faults(run(path)))


@pytest.mark.parametrize("distance", [0, 5])
def test_a_chain_that_is_a_loop(plain, distance):
    path, expected = plain
    number, _ = chained_entry(expected)
    file, position = index_entry(expected)
    patch(path / file, position + 16, struct.pack(">i", number + distance))

    found = faults(run(path))

    assert ("index-chain", file, position) in places(found)
    assert any("loop" in fault.message for fault in found)


def test_an_index_file_from_before_the_clock_went_back_is_only_warned_of(plain):
    path, expected = plain
    file, _ = index(0)(expected)
    patch_number(path / file, 8, ">q", plus(-(10**9)))  # the end, before the begin

    report = run(path)

    assert places(report.findings) == [("index-header", file, 0)]
    assert (report.faults, report.warnings) == (0, 1)


def test_an_entry_whose_record_has_no_such_key(plain):
    path, expected = plain
    file, position = index_entry(expected)
    patch_number(path / file, position, ">i", plus(SLOTS))  # the same slot

    found = run(path)

    assert places(faults(found)) == [("index-key", file, position)]
    assert [finding.kind for finding in warnings(found)] == ["index-missing"]


def test_an_entry_that_points_between_records(plain):
    path, expected = plain
    file, position = index_entry(expected)
    patch_number(path / file, position + 4, ">q", plus(1))

    (fault,) = faults(run(path))

    assert (fault.kind, fault.position) == ("index-key", position)
    assert "where no record begins" in fault.message


@pytest.mark.parametrize("missing", ["index", "checkpoint"])
def test_a_missing_index_file_or_checkpoint_is_a_warning(plain, missing):
    path, expected = plain
    file = index(0)(expected)[0] if missing == "index" else missing
    (path / file).unlink()

    found = run(path)

    assert found.faults == 0
    kind = "index-missing" if missing == "index" else "checkpoint"
    assert [finding.kind for finding in found.findings] == [kind]


def test_an_index_without_any_order_is_not_compared_and_that_is_told(tmp_path):
    config = small_config(tmp_path, max_hash_slot_num=10_000, max_index_num=40_000)
    clock = ManualClock()
    with open_store(config, clock=clock) as store:
        put(store, *(message("topic", 0, b"x", KEYS=f"k{number}") for number in range(2500)))
    root = Path(config.store_path_root_dir)
    (name,) = [file.name for file in (root / "index").iterdir()]
    for number in range(1, 2400, 2):
        patch(root / "index" / name, 40 + 4 * 10_000 + number * 20 + 4, struct.pack(">q", 0))

    kinds = {finding.kind for finding in run(root, config).findings}

    assert "index-order" in kinds


# Checkpoint


# Telling


def test_findings_are_told_as_they_come_and_no_more_of_a_kind_than_wanted(plain):
    path, _ = plain
    for entry in range(20):
        patch_number(path / QUEUE, entry * 20 + 8, ">i", lambda value: value + 1)
    told: list[Finding] = []

    limited = run(path, limit=3, on_finding=told.append)

    assert limited.faults == 20
    assert told == limited.findings
    assert [finding.position for finding in told] == [0, 20, 40, -1]
    assert told[-1].message == "17 more findings of the kind queue-size in this file"
    assert len(run(path, limit=0).findings) == 20


def test_progress_covers_the_whole_log(plain):
    path, _ = plain
    steps: list[int] = []

    run(path, progress=steps.append)

    assert sum(steps) == 6 * LOG_FILE

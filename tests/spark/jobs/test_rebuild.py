"""`kourou spark rebuild`: byte for byte what the broker wrote, whatever the log is cut into."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kourou.errors import ConfigError, KourouError, StoreDamagedError, StoreError
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.rebuild import rebuild_into
from kourou.spark.jobs.rebuild import rebuild
from support.proof import proof
from support.recorded.golden import GOLDEN_STORES, unpack
from support.stores.store import message, open_store, put, small_config

# What is built from a store that was closed well is what its broker wrote.
WHOLE_STORES = [
    "batch", "batchcq", "crash", "crash_garbage", "delay_after", "delay_before", "ipv6", "lmq", "plain",
    "pop", "propcrc", "retry_dlq", "timer", "transaction",
]  # fmt: skip
# Less than the largest records have: ranges that no record begins in, and that one runs over, are among them.
SMALL_RANGE = 3000
LIVE_MIB = proof(quick=64, full=1024)


def files(root: Path) -> dict[str, bytes]:
    """All files by their names; those of the index, which are named by the time they were made, by number."""
    found = {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}
    index = [name for name in found if name.startswith("index/")]
    names = {name: f"index/{number}" for number, name in enumerate(index)}
    return {names.get(name, name): path.read_bytes() for name, path in found.items()}


def own_files(root: Path) -> dict[str, bytes]:
    """The queues and the index that lie in a store."""
    kinds = ("consumequeue/", "batchconsumequeue/", "consumequeue_ext/", "index/")
    return {name: data for name, data in files(root).items() if name.startswith(kinds)}


def by_the_command(path: Path, out: Path):
    """The rebuild of `kourou store`: its files and its report, or its error."""
    try:
        with StoreDirectory.open(path) as store:
            report = rebuild_into(store, str(out))
    except StoreDamagedError as error:
        return str(error)
    return files(out), (report.records, report.queues, report.index_files, report.index_entries, report.notes)


def by_spark(spark, path: Path, out: Path, range_bytes: int):
    try:
        (report,) = rebuild(spark, [str(path)], str(out), range_bytes=range_bytes)
    except StoreDamagedError as error:
        return str(error)
    assert report["path"] == str(out / path.name)
    counts = tuple(report[name] for name in ("records", "queues", "index_files", "index_entries", "notes"))
    return files(out / path.name), counts


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_every_golden_store_is_rebuilt_byte_for_byte(spark, name, tmp_path):
    path, _ = unpack(name, tmp_path)
    size = max(StoreDirectory.open(path).log_size // 12, SMALL_RANGE)

    built = by_spark(spark, path, tmp_path / "spark", size)

    assert built == by_the_command(path, tmp_path / "by-command")
    if name in WHOLE_STORES:
        assert built[0] == own_files(path)


def test_many_stores_at_once(spark, tmp_path):
    names = ["plain", "batchcq", "lmq"]
    paths = [unpack(name, tmp_path).path for name in names]

    reports = rebuild(spark, [str(path) for path in paths], str(tmp_path / "out"))

    assert [Path(report["path"]).name for report in reports] == names
    for path in paths:
        assert files(tmp_path / "out" / path.name) == own_files(path)


def write_conf(directory, config):
    """The sizes of a store as a broker.conf says them."""
    values = {
        "storePathRootDir": config.store_path_root_dir,
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "mappedFileSizeConsumeQueueExt": config.mapped_file_size_consume_queue_ext,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
        "enableConsumeQueueExt": str(config.enable_consume_queue_ext).lower(),
    }
    path = directory / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return str(path)


@pytest.mark.parametrize("is_said", [True, False], ids=["said in the log", "as Java does it"])
@pytest.mark.parametrize("ext", [False, True])
def test_queues_that_begin_late_anew_or_are_gone(spark, tmp_path, ext, is_said):
    config = small_config(tmp_path, enable_consume_queue_ext=ext)
    root = Path(config.store_path_root_dir)
    with open_store(config) as store:
        put(store, *(message("gone", 1, b"x") for _ in range(7)))
        put(store, *(message("made-anew", 0, b"old") for _ in range(30)))
        put(store, *(message("late", 0, bytes(4096)) for _ in range(40)))
        store.delete_topics({"made-anew"}) if is_said else store.queues.delete_topic("made-anew")
        put(store, *(message("made-anew", 0, b"new") for _ in range(10)))
    conf = write_conf(tmp_path, config)
    (root / "commitlog" / ("0" * 20)).unlink()

    (report,) = rebuild(spark, [str(root)], str(tmp_path / "out"), config_file=conf, range_bytes=8192)

    with StoreDirectory.open(root, config) as opened:
        plain = rebuild_into(opened, str(tmp_path / "by-command"))
    assert files(tmp_path / "out" / root.name) == files(tmp_path / "by-command")
    assert report["notes"] == plain.notes != []


def damage(path: Path, record: dict, at: int, data: bytes) -> None:
    with open(path / "commitlog" / ("0" * 20), "r+b") as file:
        file.seek(record["physicalOffset"] + at)
        file.write(data)


@pytest.mark.parametrize("range_bytes", [SMALL_RANGE, 1 << 20])
@pytest.mark.parametrize("what", ["body", "record", "magic"])
def test_damage_is_salvaged_or_refused_as_ever(spark, tmp_path, what, range_bytes):
    path, expected = unpack("plain", tmp_path)
    record = expected["commitlog"]["records"][3]
    if what == "body":
        damage(path, record, 90, b"~")
    else:
        damage(path, record, 0, bytes(record["storeSize"] if what == "record" else 8))

    built = by_spark(spark, path, tmp_path / "spark", range_bytes)

    assert built == by_the_command(path, tmp_path / "by-command")
    assert (what == "body") == (not isinstance(built, str))
    assert not list((tmp_path / "spark").rglob(".rebuild-parts"))


def test_a_record_inside_a_body_is_not_taken_for_one(spark, tmp_path):
    """A body with the bytes of a record that even says the very offset it lies at."""
    config = small_config(tmp_path)
    root = Path(config.store_path_root_dir)
    with open_store(config) as store:
        put(store, message("t", 0, b"first"))
        end = store.commit_log.max_offset
        record = bytearray((root / "commitlog" / ("0" * 20)).read_bytes()[:end])
        put(store, message("t", 0, bytes(2000) + record))
        log = (root / "commitlog" / ("0" * 20)).read_bytes()
        at = log.index(record, end)
        record[28:36] = at.to_bytes(8, "big")
        put(store, *(message("t", 0, b"%d" % number) for number in range(20)))
    inner = root / "commitlog" / ("0" * 20)
    data = bytearray(inner.read_bytes())
    data[at : at + len(record)] = record
    body_at = data.index(bytes(2000), end)
    from kourou.message.checksum import crc32

    data[end + 8 : end + 12] = (crc32(data[body_at : at + len(record)]) & 0x7FFFFFFF).to_bytes(4, "big")
    inner.write_bytes(data)

    # A range begins in the zeros before the inner record, finds it, and has to be scanned again.
    (report,) = rebuild(spark, [str(root)], str(tmp_path / "out"), range_bytes=at - 100)

    assert report["records"] == 22
    assert files(tmp_path / "out" / root.name) == own_files(root)


def test_refusals(spark, tmp_path, golden_store):
    path = golden_store("plain").path
    (tmp_path / "out" / "plain").mkdir(parents=True)
    (tmp_path / "out" / "plain" / "file").touch()
    with pytest.raises(StoreError, match="not empty"):
        rebuild(spark, [str(path)], str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="same name"):
        rebuild(spark, [str(path), str(path)], str(tmp_path / "other"))
    for file in (path / "index").iterdir():
        file.write_bytes(bytes(1234))
    with pytest.raises(KourouError, match="maxHashSlotNum"):
        rebuild(spark, [str(path)], str(tmp_path / "third"))


@pytest.mark.slow
def test_a_large_live_store(spark, tmp_path):
    config = small_config(
        tmp_path,
        mapped_file_size_commit_log=LIVE_MIB * 1024 * 1024 // 4,
        max_hash_slot_num=LIVE_MIB * 20,
        max_index_num=LIVE_MIB * 39,
    )
    root = Path(config.store_path_root_dir)
    body = os.urandom(16 * 1024)
    with open_store(config) as store:
        for number in range(LIVE_MIB * 1024 * 1024 // (len(body) + 150)):
            keys, tags = f"k-{number % 1000} all", f"t{number % 5}"
            item = message(
                f"topic-{number % 7}", number % 3, body, KEYS=keys, TAGS=tags, UNIQ_KEY=f"{number:032X}"
            )
            put(store, item)
    assert sum(file.stat().st_size for file in (root / "commitlog").iterdir()) >= LIVE_MIB * 1024 * 1024

    conf = write_conf(tmp_path, config)
    (report,) = rebuild(spark, [str(root)], str(tmp_path / "out"), config_file=conf)

    assert report["index_files"] > 5
    assert files(tmp_path / "out" / root.name) == own_files(root)
    shutil.rmtree(root)
